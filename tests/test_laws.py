"""Every constraint, schedule and solver keeps the laws."""

import numpy as np
import pytest

from stream_ocpdl import (
    Balanced,
    Ball,
    Box,
    Columns,
    Constant,
    NonnegativeBall,
    NonnegativeColumns,
    PowerLaw,
    Simplex,
)
from stream_ocpdl.ocpdl.constraints import Projected
from tests import laws


class Disc:
    """A user's set: {‖U‖_F ≤ 2}, signed; solved by projected gradients."""

    nonnegative = False

    def project(self, V):
        return V * min(1.0, 2.0 / max(np.linalg.norm(V), 1e-300))

    def norm_bound(self, rows, rank):
        return 2.0


class Below:
    """A user's set that knows nothing but its projection: {U ≤ 0.9}, which has no bound."""

    def project(self, V):
        return np.minimum(V, 0.9)


CONSTRAINTS = [
    NonnegativeBall(),
    NonnegativeBall(1.0),
    NonnegativeBall(30.0),
    NonnegativeColumns(),
    NonnegativeColumns(0.3),
    NonnegativeColumns(3.0),
    Ball(),
    Ball(1.0),
    Ball(30.0),
    Columns(),
    Columns(0.3),
    Columns(3.0),
    Box(),
    Box(-0.5, 0.7),
    Box(-1e6, 1e6),
    Box(0.1, np.inf),
    Box(-np.inf, 0.3),
    Simplex(),
    Simplex(0.3),
    Simplex(30.0),
]
SCHEDULES = [
    *(PowerLaw(beta, delta) for beta in (0.5, 0.74, 0.75, 0.76, 0.9, 1.0, 1.1) for delta in (0.0, 0.4, 1.0, 2.0)),
    Balanced(),
    Constant(0.01),
    Constant(1.0),
]


@pytest.mark.parametrize("C", [*CONSTRAINTS, Disc(), Projected(Below())], ids=lambda C: repr(C).split(" object")[0])
def test_constraints(C):
    """Each projects onto a closed convex set."""
    for seed in range(20):
        laws.constraint(C, np.random.default_rng(seed))


@pytest.mark.parametrize("w", SCHEDULES, ids=repr)
def test_schedules(w):
    """Each is a schedule, and right about (A3)."""
    laws.schedule(w)


@pytest.mark.parametrize("C", CONSTRAINTS, ids=repr)
def test_exact_solvers(C):
    """Built-in sets are solved to a residual of 1e-10."""
    for seed in range(20):
        laws.solver(C, np.random.default_rng(seed))


def test_solver_of_any_set():
    """A set that only knows how to project is solved to 1e-6."""
    for seed in range(3):
        laws.solver(Disc(), np.random.default_rng(seed), tolerance=1e-7, within=1e-6)
        laws.solver(Projected(Below()), np.random.default_rng(seed), tolerance=1e-7, within=1e-6)


@pytest.mark.parametrize(
    ("w", "holds"),
    [
        (PowerLaw(0.75), False),
        (PowerLaw(0.75, 0.5), False),
        (PowerLaw(0.75, 0.51), True),
        (PowerLaw(0.76), True),
        (PowerLaw(1.0), True),
        (PowerLaw(1.0, 1.0), False),
        (PowerLaw(1.01), False),
        (Balanced(), True),
        (Constant(0.1), False),
    ],
    ids=repr,
)
def test_a3(w, holds):
    """The edges of (A3); that 1/(t log t), which the paper's experiments use, fails is no mistake."""
    assert w.a3().holds is holds
