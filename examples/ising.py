"""Patterns of the Ising model, learned from every draw of four chains: python examples/ising.py --out ising.svg

Below the critical temperature (2.269) lattices are of one colour, above it they are noise; near it there are patches of
all sizes, and the chains are slow. A minibatch has one draw of each chain, so that it is a draw of the product chain.
"""

import argparse
from math import isnan

import numpy as np
from pictures import atoms, picture

from stream_ocpdl import OnlineCPDL
from stream_ocpdl.chains.streaming import Health, split_rhat
from stream_ocpdl.samplers import Chain, Ising


def learn(chains, count, rank):
    """A model of `count` draws of each chain, the health of their magnetisations, and the last draws."""
    model = OnlineCPDL(rank, groups=((0, 1),), sparsity=0.05, batch_size=len(chains), random_state=0)
    health = [Health() for _ in chains]
    kept = []
    for k in range(count):
        draws = np.stack([next(chain) for chain in chains]).astype(float)
        model.partial_fit(draws)
        for one, draw in zip(health, draws, strict=True):
            one.add(float(draw.mean()))
        if k >= count - 200:
            kept.extend(draws)
    return model, health, np.stack(kept)


def main():
    """Sample, learn, say how well the chains mix, draw."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--side", type=int, default=16)
    options.add_argument("--temperature", type=float, default=2.8)
    options.add_argument("--count", type=int, default=3000)
    options.add_argument("--rank", type=int, default=9)
    options.add_argument("--out", default="ising.svg")
    chosen = options.parse_args()
    sampler = Ising((chosen.side, chosen.side), chosen.temperature)
    model, health, last = learn([Chain(sampler, 1, c) for c in range(4)], chosen.count, chosen.rank)
    shapes, shares = atoms(model, model.transform(last))
    picture(
        chosen.out,
        [
            ("the last draws", last[-len(shapes) :]),
            ("the same, by their codes", model.inverse_transform(model.transform(last[-len(shapes) :]))),
            (f"atoms; the first has {shares[0]:.0%} of the energy", shapes),
        ],
    )
    known = [one.autocorrelation_time for one in health]
    times = ", ".join("unknown" if isnan(tau) else f"{tau:.0f}" for tau in known)
    print(f"magnetisation: autocorrelation times {times} draws, classical split-R̂ {split_rhat(health):.3f}")
    print(f"explained: {model.score(last):.0%} of the energy of the last draws; see {chosen.out}")


if __name__ == "__main__":
    main()
