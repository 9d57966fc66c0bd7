"""Which weights to ship: the paper's synthetic tensor, every schedule, the error's excess over the best offline one.

The winner among those that satisfy (A3) is the default of `Problem`.
"""

import numpy as np

from benchmarks.measure import FULL, Options, Row
from stream_ocpdl import Balanced, Learner, PowerLaw, Problem
from stream_ocpdl.experiments.ncpd import RANK
from stream_ocpdl.experiments.offline import least_error
from stream_ocpdl.experiments.tensors import synthetic

SCHEDULES = [
    PowerLaw(0.75),
    PowerLaw(0.76),
    PowerLaw(0.8),
    PowerLaw(0.9),
    Balanced(),
    PowerLaw(0.75, 0.51),
    PowerLaw(0.75, 1.0),
    PowerLaw(1.0, 1.0),
]
MARKS = (10, 25, 50, 100, 200)

KEYS = ("weights",)
RATIOS: dict[str, str] = {}


def run(options: Options = FULL) -> list[Row]:
    """Median and worst excess in percent, over seeds, after so many steps."""
    seeds = 3 if options.quick else 10
    X = synthetic().X
    best = least_error(synthetic(), RANK)
    print(f"excess over the best offline error {best:.5f}, in percent: median (worst) of {seeds} seeds")
    print(f"{'weights':34} {'(A3)':6}" + "".join(f"{f'{t} steps':>16}" for t in MARKS))
    rows: list[Row] = []
    for weights in SCHEDULES:
        excess = np.array([errors(X, weights, seed) for seed in range(seeds)]) / best - 1
        median, worst = 100 * np.median(excess, axis=0), 100 * excess.max(axis=0)
        rows.append({"weights": repr(weights), "a3": weights.a3().holds, "steps": MARKS})
        rows[-1] |= {"median": median.tolist(), "worst": worst.tolist()}
        cells = "".join(f"{m:9.2f} ({w:4.2f})" for m, w in zip(median, worst, strict=True))
        print(f"{weights!r:34} {'holds' if weights.a3().holds else 'fails':6}{cells}", flush=True)
    return rows


def errors(X: np.ndarray, weights: object, seed: int) -> list[float]:
    """Relative errors of one run at the marks."""
    learner = Learner(Problem(shape=X.shape[1:], rank=RANK, batch_size=20, weights=weights, seed=seed))
    random, found = np.random.default_rng(seed), []
    for t in range(1, MARKS[-1] + 1):
        learner.step(X[random.choice(len(X), 20, replace=False)])
        if t in MARKS:
            found.append(float(np.sqrt(learner.code(X).losses.sum()) / np.linalg.norm(X)))
    return found
