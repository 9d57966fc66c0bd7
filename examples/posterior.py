"""What varies in a posterior, while it is sampled: python examples/posterior.py --sampler emcee --out posterior.svg

A logistic growth is measured with noise; a draw of its three parameters is the curve that they make. Curves are
nonnegative, and so is what is learned of them. With --signed the curves' distances from the data's fit are learned
instead, with signed constraints and codes. With --bootstrap the draws go to a topic as well, by a DrawSink.

Samplers: emcee and PyMC (pip install 'stream-ocpdl[samplers]'), or the random walk that comes with the package.
"""

import argparse
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
from pictures import atoms, picture

from stream_ocpdl import DrawSink, OnlineCPDL
from stream_ocpdl.samplers import Chain, Metropolis

TIMES = np.linspace(0.0, 10.0, 40)
TRUTH = np.array([np.log(8.0), np.log(1.2), 5.0])
"""Of the limit and the rate the logarithms, and the time of the steepest growth."""
NOISE = 0.8
MEASURED = np.arange(2, 28, 3)
DATA = np.random.default_rng(5)


def curve(point):
    """The growth that three parameters mean."""
    limit, rate, middle = np.exp(point[0]), np.exp(point[1]), point[2]
    return limit / (1.0 + np.exp(-np.clip(rate * (TIMES - middle), -50, 50)))


SEEN = curve(TRUTH)[MEASURED] + NOISE * DATA.standard_normal(len(MEASURED))


def log_density(point):
    """Of the posterior, up to a constant."""
    prior = -0.5 * np.sum(((np.asarray(point) - [2.0, 0.0, 5.0]) / [0.5, 0.5, 2.0]) ** 2)
    return float(prior - 0.5 * np.sum((SEEN - curve(point)[MEASURED]) ** 2) / NOISE**2)


def by_emcee(count: int) -> Iterator[np.ndarray]:
    """The walkers of an ensemble, (walkers, 3), again and again."""
    import emcee

    start = TRUTH + 0.1 * np.random.default_rng(0).standard_normal((8, 3))
    sampler = emcee.EnsembleSampler(8, 3, log_density)
    for state in sampler.sample(start, iterations=count):
        yield state.coords


def by_pymc(count: int) -> Iterator[np.ndarray]:
    """Chains of PyMC, (chains, 3) at a time, once they are drawn."""
    import pymc as pm

    with pm.Model():
        p = pm.Normal("p", mu=[2.0, 0.0, 5.0], sigma=[0.5, 0.5, 2.0], shape=3)
        grown = pm.math.exp(p[0]) * pm.math.sigmoid(pm.math.exp(p[1]) * (TIMES[MEASURED] - p[2]))
        pm.Normal("seen", mu=grown, sigma=NOISE, observed=SEEN)
        found = pm.sample(count, tune=500, chains=4, cores=1, random_seed=1, progressbar=False)
    yield from np.asarray(found.posterior["p"]).transpose(1, 0, 2)


def by_metropolis(count: int) -> Iterator[np.ndarray]:
    """Four random walks."""
    chains = [Chain(Metropolis(log_density, TRUTH, scale=0.25, steps=5), 1, c) for c in range(4)]
    for _ in range(count):
        yield np.stack([next(chain) for chain in chains])


SAMPLERS = {"emcee": by_emcee, "pymc": by_pymc, "metropolis": by_metropolis}


def learn(draws, signed, sink):
    """A model of the curves, one of each chain a minibatch; and the last curves."""
    centre = curve(TRUTH) if signed else 0.0
    sets = {"constraints": "signed", "codes": "signed"} if signed else {}
    model, kept = OnlineCPDL(4, random_state=0, ridge=0.01, **sets), []
    for points in draws:
        curves = np.stack([curve(point) for point in points])
        if sink is not None:
            for chain, one in enumerate(curves):
                sink.draw(one, chain)
        model.set_params(batch_size=len(curves)).partial_fit(curves - centre)
        kept = [*kept[-300:], *(curves - centre)]
    return model, np.stack(kept)


def main():
    """Sample, learn, draw."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sampler", choices=sorted(SAMPLERS), default="metropolis")
    options.add_argument("--count", type=int, default=1500)
    options.add_argument("--signed", action="store_true")
    options.add_argument("--bootstrap", help="a broker, to which the draws go, too")
    options.add_argument("--topic", default="growth.tensors")
    options.add_argument("--run", default="run-1")
    options.add_argument("--out", default="posterior.svg")
    chosen = options.parse_args()
    sink = DrawSink(chosen.bootstrap, chosen.topic, chosen.run, axes=("time",)) if chosen.bootstrap else nullcontext()
    with sink as open_sink:
        model, last = learn(SAMPLERS[chosen.sampler](chosen.count), chosen.signed, open_sink)
    shapes, shares = atoms(model, model.transform(last))
    title = "atoms: " + ", ".join(f"{share:.0%}" for share in shares) + " of the energy"
    picture(chosen.out, [("draws of the posterior", last[-8:]), (title, shapes)])
    print(f"explained: {model.score(last):.2%} of the energy of the last curves; see {chosen.out}")


if __name__ == "__main__":
    main()
