"""What it costs to code with an old dictionary: loss against an enforced delay τ, with the radius and without.

One dictionary that many workers code for is Algorithm 2 with codes of D_{t−1−τ} in place of D_{t−1}: the aggregates
take HᵀH and Hᵀ·X of codes that are no longer optimal. f̂_t still majorises f_t, but it is not tight at D_{t−1}: the gap
is of the order ‖D_{t−1} − D_{t−1−τ}‖, which the radius keeps below c′τw_{t−τ}. So prop:Wt_bd gains a term of order τw²,
which is summable under (A3) for a bounded τ. That is our extension, not the paper's theorem; without a radius, or with
weights that do not fall, nothing bounds it. `first` is the number of steps, at the beginning, that have no delay.

Each row is the median over seeds of the loss of tensors that were not learned, relative to that without a delay.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.measure import FULL, Options, Row, table
from stream_ocpdl.ocpdl.aggregates import absorb
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.batch import read_batch
from stream_ocpdl.ocpdl.learner import Learner, encode, settle, update_loadings
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.schedules import Constant, Schedule
from stream_ocpdl.ocpdl.state import State

KEYS = ("radius", "weights", "first", "tau")
RATIOS = {"loss": "lower"}

DELAYS = (0, 1, 4, 16, 64)
SHAPE, RANK, BATCH, RIDGE = (12, 10), 5, 20, 1e-3
COLUMNS = {"radius": "", "weights": "", "first": "", "tau": "", "loss": ".4f", "worst": ".4f"}


def run(options: Options = FULL) -> list[Row]:
    """Every delay, with a radius and without, with weights that fall and with constant ones."""
    steps, seeds = (150, 3) if options.quick else (200, 5)
    rows: list[Row] = []
    for radius in ("auto", 1.0, None):
        for weights, first in ((None, 0), (None, 10), (Constant(0.1), 10)):
            base = losses(radius, weights, 0, first, steps, seeds)
            for tau in DELAYS:
                found = losses(radius, weights, tau, first, steps, seeds) / base if tau else base / base
                told = {"radius": str(radius), "weights": "falling" if weights is None else "constant"}
                row: Row = {**told, "first": first, "tau": tau}
                rows.append(row | {"loss": float(np.median(found)), "worst": float(found.max())})
    table(rows, COLUMNS)
    return rows


def losses(radius: object, weights: Schedule | None, tau: int, first: int, steps: int, seeds: int) -> Array:
    """The held-out loss for each seed."""
    return np.array([delayed(radius, weights, tau, first, steps, seed) for seed in range(seeds)])


def delayed(
    radius: object, weights: Schedule | None, tau: int, first: int, steps: int, seed: int, oldest: int = 0
) -> float:
    """The loss of held-out tensors after so many steps whose codes are of a dictionary τ steps old.

    Where there is none so old it is that of step `oldest`; of the service 1, for the one before knows no scale yet.
    """
    problem = Problem(SHAPE, RANK, ridge=RIDGE, batch_size=BATCH, seed=seed, radius=radius)  # type: ignore[arg-type]
    problem = problem if weights is None else replace(problem, weights=weights)
    state, old = State.initial(problem), list[tuple[Array, ...]]()
    for t, X in enumerate(minibatches(seed, steps), 1):
        batch = read_batch(problem, X)
        state = settle(problem, state, batch)
        old.append(tuple(state.loadings))
        coding_with = old[made_with(t, tau, first, oldest)]
        sets, w = problem.sets(state.scale), problem.weight(t, t * BATCH, BATCH)
        coding = encode(problem, sets, coding_with, batch)
        aggregates = absorb(state.aggregates, batch.X, batch.energy, coding.H, w)
        loadings, _ = update_loadings(problem, sets, state.loadings, aggregates, w)
        state = state._replace(t=t, N=t * BATCH, loadings=loadings, aggregates=aggregates, folded=None)
    return float(Learner(problem, state).code(held_out(seed)).losses.mean())


def made_with(number: int, tau: int, first: int, oldest: int) -> int:
    """The step of the dictionary that codes of a step are made with.

    >>> [made_with(t, 4, 3, 1) for t in (1, 2, 3, 4, 5, 6, 7, 8)]
    [0, 1, 2, 1, 1, 1, 2, 3]
    """
    newest = number - 1
    return newest if number <= first else max(newest - tau, min(oldest, newest))


def minibatches(seed: int, steps: int) -> Iterator[Array]:
    """The stream of a seed."""
    random = np.random.default_rng(seed)
    truth = _truth(random)
    return (_draw(random, truth, BATCH) for _ in range(steps))


def held_out(seed: int) -> Array:
    """Tensors like those of the stream, none of which is in it."""
    return _draw(np.random.default_rng(10_000 + seed), _truth(np.random.default_rng(seed)), 500)


def _truth(random: np.random.Generator) -> list[Array]:
    return [random.random((size, RANK)) ** 3 for size in SHAPE]


def _draw(random: np.random.Generator, truth: list[Array], count: int) -> Array:
    H = random.exponential(size=(count, RANK)) * (random.random((count, RANK)) < 0.4)
    X = np.einsum("br,ir,jr->bij", H, *truth)
    return X + 0.05 * random.random(X.shape)


def plot(rows: list[Row], path: Path) -> None:
    """Loss against the delay."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, weights in zip(axes, ("falling", "constant"), strict=True):
        for radius, colour in (("auto", "C0"), ("1.0", "C1"), ("None", "C2")):
            for first, style in ((0, "--"), (10, "-")):
                mine = [r for r in rows if (r["radius"], r["weights"], r["first"]) == (radius, weights, first)]
                if mine:
                    label = f"c′ {radius}, {'first 10 steps without delay' if first else 'delay from the start'}"
                    ax.plot(
                        [r["tau"] for r in mine], [r["loss"] for r in mine], colour + style, marker="o", label=label
                    )
        ax.set(xlabel="delay τ in steps", title=f"{weights} weights", xscale="symlog")
        ax.set(xticks=DELAYS, xticklabels=DELAYS, xlim=(-0.2, 80))
    axes[0].set_ylabel("held-out loss, relative to τ = 0")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=120)
