"""The theorem, seen (thm:online NTF_convergence): a chain over finitely many tensors, whose expected loss is a sum.

    f(D) = Σₛ π(s) min over H of ℓ(Xₛ, D, H)

(i) f̂_t(D_t) − f(D_t) → 0, and (iii) D_t comes to the stationary points of f; for independent draws, for chains that mix
quickly and slowly, with every draw learned in its order. Then the slow chains once more, thinned by their mixing time:
the same draws, of which nearly all are thrown away. What that costs depends on what lies between two draws, so there
are two of them: "slow" moves quickly inside of a group of tensors, "resting" stays at one tensor as long.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measure import FULL, Options, Row, table
from stream_ocpdl import Learner, Problem, State
from stream_ocpdl.ocpdl.aggregates import Aggregates, Intermediate
from stream_ocpdl.ocpdl.quadratic import residual
from stream_ocpdl.samplers import Chain, Markov

GROUPS, MEMBERS, SHAPE, RANK, RIDGE = 4, 6, (6, 5), 3, 0.05
CHAINS = {"independent": 1.0, "fast": 5.0, "slow": 50.0, "resting": 50.0}
MARKS = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)

KEYS = ("chain", "thinned", "draws")
RATIOS: dict[str, str] = {}


def chain_of(relaxation: float, seed: int = 0, resting: bool = False) -> Markov:
    """Groups of tensors that look alike; the chain moves quickly inside of a group, or rests, and leaves it seldom."""
    random = np.random.default_rng(seed)
    middle = random.gamma(0.5, size=(GROUPS, 1, *SHAPE))
    tensors = middle * random.gamma(2.0, 0.5, (GROUPS, MEMBERS, *SHAPE))
    weights = 0.3 + random.random(GROUPS * MEMBERS)
    groups = None if resting else np.repeat(np.arange(GROUPS), MEMBERS)
    return Markov(tensors.reshape(-1, *SHAPE), weights, relaxation, groups)


@dataclass(frozen=True, slots=True)
class Seen:
    """After so many draws: f(D_t), f̂_t(D_t) − f(D_t), and how far D_t is from stationary for f."""

    draws: int
    loss: float
    gap: float
    residual: float


def expected(problem: Problem, state: State, sampler: Markov) -> tuple[float, float]:
    """f(D), and the greatest residual of a mode of D as a stationary point of f, both exact.

    By (A4) codes are unique, and ∇f is that of Σₛ π(s) ℓ(Xₛ, ·, Hₛ) with the codes held fixed: the same residual as
    that of f̂, with the aggregates of π in the place of those of the past.
    """
    X, weights = np.asarray(sampler.tensors), sampler.stationary
    coding = Learner(problem, state).code(X)
    H = coding.H
    past = Aggregates(np.einsum("s,sr,sq->rq", weights, H, H), np.einsum("s,sr,s...->r...", weights, H, X), 0.0, 0.0)
    at, sets = Intermediate(past, state.loadings), problem.sets(state.scale).loadings
    far = [residual(U, *at(i), C.project) for i, (U, C) in enumerate(zip(state.loadings, sets, strict=True))]
    rest = X - np.einsum("sr,ir,jr->sij", H, *state.loadings)
    losses = (rest**2).sum(axis=(1, 2)) + problem.ridge * (H**2).sum(axis=1)
    return float(weights @ losses), max(far)


def learn(sampler: Markov, marks: Sequence[int], seed: int, thin: int = 1) -> Iterator[Seen]:
    """One chain, learned draw by draw in its order, or every `thin`-th draw of it."""
    problem = Problem(shape=SHAPE, rank=RANK, ridge=RIDGE, batch_size=1)
    learner, chain, surrogate = Learner(problem), Chain(sampler, seed), 0.0
    for draw in range(1, max(marks) + 1):
        X = next(chain)
        if (draw - 1) % thin == 0:
            surrogate = learner.step(X[None]).update.after
        if draw in marks:
            loss, far = expected(problem, learner.state, sampler)
            yield Seen(draw, loss, surrogate - loss, far)


def run(options: Options = FULL) -> list[Row]:
    """Medians over seeds."""
    marks, seeds = (MARKS[:5], 3) if options.quick else (MARKS, 5)
    rows: list[Row] = []
    for name, relaxation in CHAINS.items():
        sampler = chain_of(relaxation, resting=name == "resting")
        for thin in (1, sampler.mixing_time) if name in ("slow", "resting") else (1,):
            seen = [list(learn(sampler, marks, seed, thin)) for seed in range(seeds)]
            for at in zip(*seen, strict=True):
                loss, gap, far = (
                    float(np.median([abs(getattr(s, k)) for s in at])) for k in ("loss", "gap", "residual")
                )
                rows.append({"chain": name, "thinned": thin, "draws": at[0].draws, "loss": loss, "gap": gap})
                rows[-1] |= {"residual": far, "mixing_time": sampler.mixing_time}
    table(rows, {"chain": "", "thinned": "d", "draws": "d", "loss": ".4f", "gap": ".4f", "residual": ".4f"})
    return rows


def plot(rows: Sequence[Row], path: Path) -> None:
    """Loss, gap and residual against draws."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5))
    said = ("f(D_t)", "|f̂_t(D_t) − f(D_t)|", "stationarity residual of f")
    for axes, name, title in zip(figure.subplots(1, 3), ("loss", "gap", "residual"), said, strict=True):
        for chain, thinned in dict.fromkeys((row["chain"], row["thinned"]) for row in rows):
            mine = [row for row in rows if (row["chain"], row["thinned"]) == (chain, thinned)]
            label = f"{chain}, every draw" if thinned == 1 else f"{chain}, every {thinned}th"
            draws, values = [row["draws"] for row in mine], [row[name] for row in mine]
            axes.loglog(draws, values, "o-" if thinned == 1 else "s--", label=label, ms=4)
        axes.set(xlabel="draws of the chain", title=title)
    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="lower center", ncols=6, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=120)
