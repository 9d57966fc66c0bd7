"""The paper's synthetic tensor (section:experimanl_validation): 100³, R = 5, a fifth of the last mode a step."""

import numpy as np
import pytest

from stream_ocpdl import Learner, Problem
from stream_ocpdl.experiments.offline import least_error
from stream_ocpdl.experiments.tensors import synthetic
from stream_ocpdl.ocpdl.solvers import box_solver

RANK = 5


def best_error(X, iterations=150):
    """The relative error of an offline nonnegative decomposition: exact alternating least squares, best of three."""
    solve, errors = box_solver(np.inf, 1e-12), []
    for seed in range(3):
        random = np.random.default_rng(seed)
        factors = [random.random((100, RANK)) for _ in range(3)]
        for _ in range(iterations):
            for i in range(3):
                others = [factors[j] for j in range(3) if j != i]
                L = np.einsum("ijk,jr,kr->ir", np.moveaxis(X, i, 0), *others, optimize=True)
                factors[i] = solve((others[0].T @ others[0]) * (others[1].T @ others[1]), L, factors[i]).Y
        errors.append(np.linalg.norm(X - np.einsum("ir,jr,kr->ijk", *factors)) / np.linalg.norm(X))
    return min(errors)


def test_online_learning_reaches_the_offline_error():
    """Default settings, 100 steps: within 1 % of the best nonnegative error for at least 9 of 10 seeds.

    What benchmarks take for the best is that, too, from other starts and by other formulas.
    """
    X = synthetic().X
    best, within = best_error(X), 0
    for seed in range(10):
        learner = Learner(Problem(shape=(100, 100), rank=RANK, batch_size=20, seed=seed))
        random = np.random.default_rng(seed)
        for _ in range(100):
            learner.step(X[random.choice(100, 20, replace=False)])
        error = np.sqrt(learner.code(X).losses.sum()) / np.linalg.norm(X)
        within += error <= 1.01 * best

    assert best < 0.0745
    assert least_error(synthetic(), RANK) == pytest.approx(best, rel=1e-3)
    assert within >= 9
