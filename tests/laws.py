"""Laws written once. Every constraint, schedule and solver is put to them on the day it is born: see `test_laws.py`."""

import numpy as np

from stream_ocpdl.ocpdl.quadratic import objective, residual
from stream_ocpdl.ocpdl.solvers import minimise_near, project_near


def constraint(C, random, rows=7, rank=4):
    """A projection onto a closed convex set: idempotent, nonexpansive, obtuse; the norm bound bounds."""
    for scale in (0.01, 1.0, 100.0):
        V, W = (scale * random.normal(size=(rows, rank)) for _ in range(2))
        kept = V.copy()
        U, Z = C.project(V), C.project(W)

        assert np.array_equal(V, kept), "project wrote its argument"
        assert np.allclose(C.project(U), U, rtol=1e-14, atol=0), "projecting twice moves"
        assert np.linalg.norm(U - Z) <= np.linalg.norm(V - W) * (1 + 1e-12), "projecting pulls points apart"
        sizes = [max(np.linalg.norm(one), np.linalg.norm(other)) for one, other in ((V, U), (W, Z))]
        assert np.sum((V - U) * (Z - U)) <= 1e-12 * np.prod(sizes), "not the nearest point"
        assert np.linalg.norm(U) <= C.norm_bound(rows, rank) * (1 + 1e-12)
        assert not C.nonnegative or U.min() >= 0


def schedule(w):
    """Weights in (0, 1] that never rise; the verdict on (A3) agrees with the numbers."""
    t = np.unique(np.geomspace(1, 1e7, 400).astype(int)).astype(float)
    values = np.array([w(s) for s in t])

    assert ((values > 0) & (values <= 1)).all()
    assert (np.diff(values) <= 0).all()

    far = np.geomspace(1e150, 1e280, 10)
    slope = np.diff(np.log([w(s) for s in far])) / np.diff(np.log(far))
    decays = slope.max() < -0.74
    sums_diverge = slope.min() >= -1.02
    growth = np.array([(1 / w(s * (1 + 1e-6)) - 1 / w(s)) / (s * 1e-6) for s in far])
    verdict = w.a3()
    assert verdict.reason
    if verdict.holds:
        assert decays, "Σ w² √t would diverge"
        assert sums_diverge, "Σ w would converge"
        assert growth.max() <= 1 + 1e-6, "w⁻¹ grows faster than t"
    else:
        assert not decays or not sums_diverge or growth.max() > 1 or abs(slope[-1] + 0.75) < 0.01


def solver(C, random, rows=6, rank=4, tolerance=1e-12, within=1e-10):
    """Feasible, inside of the radius, no worse than the start, and KKT to 1e-10, however Q is conditioned."""
    for condition, radius in [(c, r) for c in ("good", "bad", "singular", "zero") for r in (np.inf, 1.0, 1e-2)]:
        Q, L = quadratic(condition, random, rows, rank, signed=not C.nonnegative)
        start = C.project(random.random((rows, rank)))
        kept = start.copy()
        solution = minimise_near(Q, L, C, start, radius, tolerance)
        Y = solution.Y

        assert np.array_equal(start, kept), "the start was written"
        assert np.allclose(C.project(Y), Y, rtol=1e-12, atol=1e-14)
        assert np.linalg.norm(Y - start) <= radius * (1 + 1e-12)
        assert objective(Y, Q, L) <= objective(start, Q, L) + 1e-12 * (1 + abs(objective(start, Q, L)))
        if radius < np.inf:
            assert residual(Y, Q, L, lambda V: project_near(V, C, start, radius)) <= within  # noqa: B023
        else:
            assert residual(Y, Q, L, C.project) <= within
        if condition == "zero":
            assert np.array_equal(Y, start), "flat columns must stay"


def quadratic(condition, random, rows, rank, signed=False):
    """Q and L as data would make them: L = YQ + noise in the range of Q."""
    least = -np.inf if signed else 0.0
    W = {
        "good": lambda: random.random((3 * rank, rank)),
        "bad": lambda: random.random((3 * rank, 1)) + 1e-3 * random.random((3 * rank, rank)),
        "singular": lambda: random.random((max(rank // 2, 1), rank)),
        "zero": lambda: np.zeros((2, rank)),
    }[condition]()
    X = np.maximum(random.normal(size=(rows, rank)), least) @ W.T + 0.1 * random.normal(size=(rows, len(W)))
    return W.T @ W, X @ W
