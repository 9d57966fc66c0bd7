"""Vectors (n = 1, online nonnegative matrix factorisation): time to loss, against scikit-learn.

**Data.** Patches of 12 × 12 grey pixels from the two photographs that come with scikit-learn, in random order; some
are held out. **Contenders** get the same minibatches of 100 in the same order by `partial_fit`, with the same rank and
no penalties: ours with default settings, `MiniBatchNMF`, and `MiniBatchDictionaryLearning` with positive codes and
dictionary (as they are by default otherwise). The clock is CPU time on one thread and runs in `partial_fit` alone.

**Loss.** ‖X − HW‖² / ‖X‖² of the held-out patches under a contender's dictionary W, with the optimal nonnegative
codes H, which one and the same exact solver finds for everyone outside of the clock. The levels are so many percent
above the least loss of the run, in which an offline NMF (coordinate descent, on all training patches) takes part.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import FULL, Options, Row, one_thread
from benchmarks.races import KEYS, OURS, RATIOS, Curve, lowest, plot, report, results
from stream_ocpdl import OnlineCPDL
from stream_ocpdl.ocpdl.solvers import box_solver

__all__ = ["KEYS", "RATIOS", "plot", "run"]

SIDE, RANK, BATCH, HELD_OUT = 12, 25, 100, 2000
WITHIN = (100, 50, 20, 10, 5, 2)
"""Percent above the least loss."""


def run(options: Options = FULL) -> list[Row]:
    """A row for each contender and percentage."""
    seeds, steps = (2, 200) if options.quick else (10, 1000)
    X = patches(HELD_OUT + 20_000)
    train, test = X[HELD_OUT:], X[:HELD_OUT]
    curves: dict[str, list[Curve]] = {name: [] for name in CONTENDERS}
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's coordinate descent advises against no penalty
        for name in CONTENDERS:
            race(name, train, test, seeds, 2)
        for seed in range(seeds):
            for name in CONTENDERS:
                curves[name].append(race(name, train, test, seed, steps))
        best = min(offline(train, test), *map(lowest, curves.values()))
    rows = results(curves, best, WITHIN)
    print(f"{SIDE}×{SIDE} patches, R = {RANK}, b = {BATCH}: ms of CPU to come within x % of the least held-out loss")
    print(f"{best:.5f}: median (least – greatest) of {seeds} seeds, and how many times longer than {OURS}")
    report(rows)
    return rows


def patches(count: int) -> np.ndarray:
    """(count, SIDE²) grey patches of scikit-learn's photographs, in [0, 1]."""
    from sklearn.datasets import load_sample_images

    random = np.random.default_rng(0)
    found = []
    for image in load_sample_images().images:
        grey = image.mean(axis=2) / 255
        windows = np.lib.stride_tricks.sliding_window_view(grey, (SIDE, SIDE))
        rows, columns = (random.integers(size, size=count // 2) for size in windows.shape[:2])
        found.append(windows[rows, columns].reshape(-1, SIDE * SIDE))
    return random.permutation(np.concatenate(found))


def ours(seed: int) -> OnlineCPDL:
    """Default settings."""
    return OnlineCPDL(rank=RANK, batch_size=BATCH, random_state=seed)


def minibatch_nmf(seed: int) -> Any:
    """Multiplicative updates of a minibatch."""
    from sklearn.decomposition import MiniBatchNMF

    return MiniBatchNMF(n_components=RANK, batch_size=BATCH, random_state=seed)


def minibatch_dictionary(seed: int) -> Any:
    """The online method of Mairal et al.; a coding takes at most 100 sweeps, which serves it better than its 1000."""
    from sklearn.decomposition import MiniBatchDictionaryLearning

    return MiniBatchDictionaryLearning(
        n_components=RANK,
        alpha=0,
        batch_size=BATCH,
        fit_algorithm="cd",
        transform_max_iter=100,
        positive_code=True,
        positive_dict=True,
        random_state=seed,
    )


CONTENDERS: dict[str, Callable[[int], Any]] = {
    OURS: ours,
    "MiniBatchNMF": minibatch_nmf,
    "MiniBatchDictionaryLearning": minibatch_dictionary,
}


def dictionary(model: Any) -> np.ndarray:
    """W (R, cells), whatever a model calls it."""
    return model.loadings_[0].T if isinstance(model, OnlineCPDL) else model.components_


def race(name: str, train: np.ndarray, test: np.ndarray, seed: int, steps: int) -> Curve:
    """One run; the loss is evaluated after the first steps and then after every twentieth part more."""
    model, random = CONTENDERS[name](seed), np.random.default_rng(seed)
    spent, due, curve = 0.0, 1.0, []
    for t in range(1, steps + 1):
        minibatch = train[random.choice(len(train), BATCH, replace=False)]
        began = time.process_time()
        model.partial_fit(minibatch)
        spent += time.process_time() - began
        if t >= due or t == steps:
            curve.append((spent, loss(test, dictionary(model))))
            due = max(t + 1, 1.05 * t)
    return curve


def loss(X: np.ndarray, W: np.ndarray) -> float:
    """‖X − HW‖² / ‖X‖² with the optimal nonnegative codes H; atoms are brought to norm one for the solver's sake."""
    norms = np.linalg.norm(W, axis=1, keepdims=True)
    W = np.ascontiguousarray(np.divide(W, norms, out=np.zeros(W.shape), where=norms > 0), dtype=np.float64)
    W = W[norms[:, 0] > 0]
    H = box_solver(np.inf, 1e-10)(W @ W.T, X @ W.T, np.zeros((len(X), len(W)))).Y
    return float(np.sum((X - H @ W) ** 2) / np.sum(X**2))


def offline(train: np.ndarray, test: np.ndarray) -> float:
    """The held-out loss of an offline factorisation of all training patches."""
    from sklearn.decomposition import NMF

    return loss(test, NMF(RANK, init="nndsvda", tol=0, max_iter=100).fit(train).components_)
