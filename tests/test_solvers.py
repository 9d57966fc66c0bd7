"""The sub-problem against an independent cone solver, and at the places where solvers break."""

import clarabel
import numpy as np
import pytest
from scipy import sparse

from stream_ocpdl import Columns, Learner, NonnegativeBall, NonnegativeColumns, Problem
from stream_ocpdl.ocpdl.quadratic import objective, residual
from stream_ocpdl.ocpdl.solvers import box_solver, minimise_near, project_near
from tests import laws, paper


def cone_solution(Q, L, C, centre, radius):
    """The same problem for Clarabel: Y ≥ 0, and each ball as a second-order cone."""
    rows, rank = L.shape
    size = rows * rank
    eye = sparse.eye(size, format="csc")
    blocks, offsets, cones = [-eye], [np.zeros(size)], [clarabel.NonnegativeConeT(size)]

    def ball(selected, point, bound):
        if np.isfinite(bound):
            k = selected.shape[0]
            blocks.append(sparse.vstack([sparse.csc_matrix((1, size)), -selected]))
            offsets.append(np.concatenate([[bound], -selected @ point]))
            cones.append(clarabel.SecondOrderConeT(k + 1))

    if isinstance(C, NonnegativeColumns):
        for r in range(rank):
            ball(eye[r::rank], np.zeros(size), C.bound)
    else:
        ball(eye, np.zeros(size), C.bound)
    ball(eye, centre.ravel(), radius)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    P = sparse.triu(sparse.kron(sparse.eye(rows), 2 * Q), format="csc")
    solver = clarabel.DefaultSolver(
        P, -2 * L.ravel(), sparse.vstack(blocks, format="csc"), np.concatenate(offsets), cones, settings
    )
    return np.array(solver.solve().x).reshape(rows, rank)


@pytest.mark.parametrize("radius", [np.inf, 0.7, 0.05])
@pytest.mark.parametrize(
    "C", [NonnegativeBall(), NonnegativeBall(1.5), NonnegativeColumns(), NonnegativeColumns(0.4)], ids=repr
)
def test_an_independent_solver_agrees(C, radius):
    """Norm bound and radius active or not: the same minimum as a cone solver's, and a residual of 1e-10.

    Clipping each column's step to the radius, instead of the whole matrix's, fails this.
    """
    for seed in range(10):
        random = np.random.default_rng(seed)
        Q, L = laws.quadratic("good", random, rows=5, rank=3)
        start = C.project(random.random((5, 3)))
        ours = minimise_near(Q, L, C, start, radius, 1e-12).Y
        theirs = cone_solution(Q, L, C, start, radius)

        assert objective(ours, Q, L) <= objective(theirs, Q, L) + 1e-9 * abs(objective(theirs, Q, L))
        assert np.allclose(ours, theirs, atol=1e-4)  # an interior-point method stops short of the boundary
        assert residual(ours, Q, L, lambda V: project_near(V, C, start, radius)) <= 1e-10  # noqa: B023


@pytest.mark.parametrize("C", [NonnegativeBall(1.5), NonnegativeColumns()], ids=repr)
def test_projection_near_a_point_is_dykstras(C):
    """One multiplier gives the same projection onto C ∩ ball as alternating projections do."""
    random = np.random.default_rng(3)
    for _ in range(20):
        centre, V = C.project(random.random((4, 3))), random.normal(size=(4, 3))
        slow = paper.project_both(V, C.project, centre, 0.5)

        assert np.allclose(project_near(V, C, centre, 0.5), slow, atol=1e-9)


@pytest.mark.parametrize("upper", [np.inf, 0.8, 0.05])
def test_boxes(upper):
    """Codes in a box: zero gradient inside, the right sign at each bound, whatever the rank and conditioning."""
    for seed in range(30):
        random = np.random.default_rng(seed)
        rank = int(random.integers(1, 30))
        Q, L = laws.quadratic(["good", "bad", "singular"][seed % 3], random, rows=20, rank=rank)
        Y = box_solver(upper, 1e-12)(Q, L, np.zeros_like(L)).Y

        assert residual(Y, Q, L, lambda V: np.clip(V, 0, upper)) <= 1e-10
        assert Y.min() >= 0
        assert Y.max() <= upper


def test_collinear_atoms_under_a_small_penalty():
    """Of two atoms on one line the longer is cheaper; coordinate descent alone would take about 1/λ sweeps."""
    W, lam = np.array([[1.0, 2.0]]), 1e-7
    solution = box_solver(np.inf, 1e-12)(W.T @ W, 3.0 * W - lam / 2, np.zeros((1, 2)))

    assert solution.rounds < 20
    assert np.allclose(solution.Y, [[0.0, 1.5]], atol=1e-6)


def test_a_dead_atom_keeps_its_column():
    """Where Q has a zero diagonal the loading stays, bit for bit."""
    random = np.random.default_rng(0)
    Q, L = laws.quadratic("good", random, 5, 3)
    Q[1, :] = Q[:, 1] = L[:, 1] = 0
    for C in (NonnegativeBall(9.0), NonnegativeColumns()):
        start = C.project(random.random((5, 3)))

        assert np.array_equal(minimise_near(Q, L, C, start, np.inf, 1e-12).Y[:, 1], start[:, 1])


@pytest.mark.parametrize("scale", [1e-60, 1e-8, 1e8, 1e60])
def test_scale_does_not_matter(scale):
    """Every tolerance is relative: a problem in other units has the same solution."""
    random = np.random.default_rng(1)
    Q, L = laws.quadratic("bad", random, 6, 4)
    for C in (NonnegativeBall(1.0), NonnegativeColumns()):
        start = C.project(random.random((6, 4)))
        plain = minimise_near(Q, L, C, start, 0.3, 1e-12).Y

        assert np.allclose(minimise_near(scale * Q, scale * L, C, start, 0.3, 1e-12).Y, plain, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-24, 1e-9, 1.0, 1e12])
@pytest.mark.parametrize("C", [NonnegativeBall(), NonnegativeBall(1.5), NonnegativeColumns()], ids=repr)
def test_a_dead_atom_does_not_loosen_the_others(C, scale):
    """The atoms that live are solved to 1e-10 whatever the units and whatever the column of a dead one holds."""
    random = np.random.default_rng(4)
    Q, L = laws.quadratic("good", random, 6, 4)
    Q[2, :] = Q[:, 2] = L[:, 2] = 0
    start = C.project(random.random((6, 4)))
    Y = minimise_near(scale * Q, scale * L, C, start, np.inf, 1e-10).Y
    live = [0, 1, 3]
    part = np.ascontiguousarray

    assert residual(Y, Q, L, C.project) <= 1e-10
    if C != NonnegativeBall(1.5):  # there the bound is met, and a dead atom makes room for the others
        assert residual(part(Y[:, live]), part(Q[np.ix_(live, live)]), part(L[:, live]), C.project) <= 1e-10


@pytest.mark.parametrize("radius", [1e-3, 1e-6, 1.7e-6, 1e-9, 1e-12])
def test_a_tiny_radius_is_used_to_the_full(radius):
    """However small the radius against the loadings, the step goes to the sphere and says so."""
    for seed in range(50):
        random = np.random.default_rng(seed)
        Q, L = random.random((1, 1)) * 1e-8, random.random((2, 1))
        start = random.random((2, 1)) + 0.3
        solution = minimise_near(Q, L, NonnegativeBall(), start, radius, 1e-10)

        assert solution.multiplier > 0
        assert np.linalg.norm(solution.Y - start) == pytest.approx(radius, rel=1e-3 if radius > 1e-11 else 0.1)


def test_a_weak_atom_reaches_its_minimiser():
    """An atom of amplitude 1e-7 on a support of its own is solved as exactly as a strong one."""
    Q, wanted = np.diag([1.0, 1e-14]), np.array([[2.0, 3.0], [0.5, 0.25]])
    for C in (NonnegativeBall(), NonnegativeColumns(9.0)):
        Y = minimise_near(Q, wanted @ Q, C, np.ones((2, 2)), np.inf, 1e-10).Y

        assert np.allclose(Y, wanted, rtol=1e-8)


@pytest.mark.parametrize("far", [1e2, 1e4, 1e6])
def test_a_far_start_leaves_no_trace(far):
    """A start far from the minimiser pulls nothing towards itself."""
    random = np.random.default_rng(5)
    Q, L = laws.quadratic("good", random, 6, 4)
    for C in (NonnegativeBall(), NonnegativeColumns(1e9)):
        Y = minimise_near(Q, L, C, far * random.random((6, 4)), np.inf, 1e-10).Y

        assert residual(Y, Q, L, C.project) <= 1e-10


def test_one_row_of_bounded_columns_is_a_box():
    """Numbers of norm at most 0.7, and a Q that is nearly flat: as exact as a box, where multipliers do not settle."""
    shape, X = (2, 1, 1), [[0.94498181, 0.71860218], [0.04094812, 0.23147913], [0.89702158, 0.70244414]]
    problem = Problem(shape=shape, rank=4, ridge=0.01, constraints=NonnegativeColumns(0.7), seed=51)
    learner = Learner(problem)
    assert all(learner.step(np.reshape(X, (3, *shape))).settled)

    random = np.random.default_rng(5)
    for C in (NonnegativeColumns(0.7), Columns(0.7)):
        for _ in range(50):
            F = random.random((2, 4))
            Q = F.T @ F + 1e-7 * np.diag(random.random(4))
            L, start = random.random((1, 4)) @ Q * 2, C.project(random.random((1, 4)))
            found = minimise_near(Q, L, C, start, np.inf, 1e-10)

            assert found.settled
            assert residual(found.Y, Q, L, C.project) <= 1e-10
