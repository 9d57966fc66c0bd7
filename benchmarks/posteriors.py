"""Samplers for the benchmark of sinks: PyMC and emcee, where they are installed, their draws more or less costly."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from typing import Any

import numpy as np

from stream_ocpdl import DrawSink
from stream_ocpdl.sinks import adapters


class Nothing(Enum):
    """What stands for a sink where a callback does nothing."""

    NOTHING = 0


NOTHING = Nothing.NOTHING

Sample = Callable[[int, DrawSink | Nothing | None], None]


@dataclass(frozen=True, slots=True)
class Contender:
    """A sampler: what it is, how many chains it has, how it makes so many draws of each, and its map to tensors."""

    name: str
    chains: int
    sample: Sample
    to_tensor: Callable[[Any], Any]


def names() -> Iterator[str]:
    """Those whose sampler is installed, the cheapest draws last."""
    for name, (package, _, _, _) in CONTENDERS.items():
        if find_spec(package) is None:
            print(f"{package} is not installed: no {name}")
        else:
            yield name


def contender(name: str) -> Contender:
    """The one of this name."""
    _, chains, make, to_tensor = CONTENDERS[name]
    return Contender(name, chains, make(), to_tensor)


def eight_schools() -> Sample:
    """PyMC's NUTS on the eight schools, not centred; one chain after the other in this process."""
    import pymc as pm

    effects, errors = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model() as model:
        mu, tau, z = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5), pm.Normal("z", 0, 1, shape=8)
        pm.Normal("y", mu + tau * z, errors, observed=effects)

    return nuts(model)


def varying_intercepts() -> Sample:
    """PyMC's NUTS on a regression with intercepts of 85 counties, as of radon in 919 houses, not centred."""
    import pymc as pm

    random = np.random.default_rng(0)
    county, floor = random.integers(0, 85, 919), random.integers(0, 2, 919)
    seen = (1.5 + 0.3 * random.standard_normal(85))[county] - 0.7 * floor + 0.75 * random.standard_normal(919)
    with pm.Model() as model:
        mu, slope, z = pm.Normal("mu", 0, 2), pm.Normal("slope", 0, 2), pm.Normal("z", 0, 1, shape=85)
        apart, error = pm.HalfNormal("apart", 1), pm.HalfNormal("error", 1)
        pm.Normal("y", (mu + apart * z)[county] + slope * floor, error, observed=seen)
    return nuts(model)


def nuts(model: Any) -> Sample:
    """One chain after the other in this process; every run is the same."""
    import pymc as pm

    def sample(each: int, sink: DrawSink | Nothing | None) -> None:
        quiet = {"progressbar": False, "compute_convergence_checks": False, "return_inferencedata": False}
        callback = _ignored if sink is NOTHING else adapters.pymc(sink) if sink else None
        with model:
            pm.sample(each, tune=200, chains=4, cores=1, random_seed=1, nuts_sampler="pymc", callback=callback, **quiet)

    return sample


def predators() -> Sample:
    """emcee on the rates of Lotka and Volterra, given twenty years of two kinds of animals: each draw solves them."""
    rates, years = np.array([0.55, 0.028, 0.8, 0.024]), 20
    seen = np.array(populations(rates, years)) * np.exp(0.1 * np.random.default_rng(0).standard_normal((years, 2)))

    def density(place: Any) -> float:
        found = np.array(populations(np.exp(place), years))
        good = np.isfinite(found).all() and found.min() > 0
        return float(-50.0 * np.sum(np.log(found / seen) ** 2)) if good else -np.inf

    return sampled(density, np.log(rates), 0.01)


def populations(rates: np.ndarray, years: int) -> list[tuple[float, float]]:
    """Of prey and predators, year after year: dx = (a − by) x, dy = (dx − c) y, by Heun's steps, fifty a year."""
    a, b, c, d = map(float, rates)
    x, y, h, found = 30.0, 5.0, 0.02, []
    for _ in range(years):
        for _ in range(50):
            u, v = (a - b * y) * x, (d * x - c) * y
            p, q = x + h * u, y + h * v
            x, y = x + h / 2 * (u + (a - b * q) * p), y + h / 2 * (v + (d * p - c) * q)
        found.append((x, y))
    return found


def curve(vectorise: bool = False) -> Sample:
    """emcee on a polynomial of degree four through 400 points."""
    random = np.random.default_rng(0)
    x = np.linspace(0, 1, 400)
    y, basis = np.sin(3 * x) + 0.1 * random.standard_normal(400), np.stack([x**k for k in range(5)])

    def density(place: Any) -> Any:
        return -0.5 * np.sum((y - place @ basis) ** 2, axis=-1) / 0.1**2

    return sampled(density, np.zeros(5), 0.1, vectorise)


def sampled(density: Callable[[Any], Any], start: np.ndarray, apart: float, vectorise: bool = False) -> Sample:
    """32 walkers that begin around a place, so far apart; every run is the same."""
    import emcee

    places = start + apart * np.random.default_rng(0).standard_normal((32, len(start)))

    def sample(each: int, sink: DrawSink | Nothing | None) -> None:
        np.random.seed(1)  # noqa: NPY002  (emcee's own)
        sampler = emcee.EnsembleSampler(32, len(start), density, vectorize=vectorise)
        states = sampler.sample(places, iterations=each)
        passed = (state for state in states) if sink is NOTHING else adapters.emcee(sink, states) if sink else states
        for _ in passed:
            pass

    return sample


def _exp_z(point: Any) -> Any:
    return np.exp(point["z"])


def _ignored(trace: Any, draw: Any) -> None:
    """A callback that does nothing."""


CONTENDERS: dict[str, tuple[str, int, Callable[[], Sample], Callable[[Any], Any]]] = {
    "PyMC, eight schools, 4 chains": ("pymc", 4, eight_schools, _exp_z),
    "PyMC, 85 intercepts, 4 chains": ("pymc", 4, varying_intercepts, _exp_z),
    "emcee, 32 walkers, lynxes and hares": ("emcee", 32, predators, np.exp),
    "emcee, 32 walkers, a curve through 400 points": ("emcee", 32, curve, np.exp),
    "emcee, 32 walkers, vectorised": ("emcee", 32, lambda: curve(vectorise=True), np.exp),
}
"""Package, chains, how it is made, and its map to tensors. The last two are too quick for any sink."""
