"""Solvers for sets of columns of norm at most `bound`, nonnegative or signed.

Such a bound couples the rows of a column, and Q the columns of a row. The multipliers ν ≥ 0 of ‖y_r‖² ≤ bound² undo the
first: they turn Q into Q + diag(ν), and the rows are separate again. Newton's method finds them (`priced_columns`);
for nonnegative columns sweeps over the columns (Algorithm 5) come first, which are cheaper where they are enough.
"""

from collections.abc import Callable
from math import inf

import numpy as np

from stream_ocpdl.ocpdl import kernels, panels
from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.constraints import Columns, NonnegativeColumns
from stream_ocpdl.ocpdl.onerow import column_curvature, factor_face, solve_factored
from stream_ocpdl.ocpdl.quadratic import Solution, Solver, half_gradient, largest_diagonal, moved, norm

CLOSE = 1e-12
"""How close, relatively, the squared norm of a column is brought to its bound."""

Curvature = Callable[[Array, Array], Array]
"""Q, Y → Σᵢ diag(yᵢ) Q[Fᵢ, Fᵢ]⁻¹ diag(yᵢ) over the rows yᵢ and their faces Fᵢ."""


def nonnegative_columns_solver(bound: float, tolerance: float, base: Solver) -> Solver:
    """Minimiser over columns in {y ≥ 0, ‖y‖ ≤ bound}, for a finer solver over Y ≥ 0: by sweeps, else by pricing."""
    C = NonnegativeColumns(bound)

    def solve(Q: Array, L: Array, start: Array) -> Solution:
        steepness = largest_diagonal(Q)
        Y, rounds = swept_columns(Q, L, bound, start, tolerance)
        bad = moved(Y, Q, L, C.project, steepness)
        if bad > tolerance:
            priced, used = priced_columns(Q, L, bound, Y, base, curvature_of_faces)
            priced = C.project(priced)
            after, rounds = moved(priced, Q, L, C.project, steepness), rounds + used
            if after < bad:
                Y, bad = priced, after
        return Solution(Y, rounds, settled=bad <= tolerance)

    return solve


def columns_solver(bound: float, tolerance: float, base: Solver) -> Solver:
    """Minimiser over columns of norm ≤ bound and of either sign, for a finer solver over all of space."""
    C = Columns(bound)

    def solve(Q: Array, L: Array, start: Array) -> Solution:
        priced, rounds = priced_columns(Q, L, bound, start, base, curvature_of_all)
        Y = C.project(priced)
        return Solution(Y, rounds, settled=moved(Y, Q, L, C.project, largest_diagonal(Q)) <= tolerance)

    return on_live_columns(solve)


def on_live_columns(solve: Solver) -> Solver:
    """The solver for columns with Qᵣᵣ > 0; the others stay."""

    def part(Q: Array, L: Array, start: Array) -> Solution:
        live = np.flatnonzero(np.diag(Q) > 0.0)
        if len(live) == len(Q):
            return solve(Q, L, start)
        Y = start.copy()
        if len(live) == 0:
            return Solution(Y, 0)
        own = np.ascontiguousarray
        found = solve(own(Q[np.ix_(live, live)]), own(L[:, live]), own(start[:, live]))
        Y[:, live] = found.Y
        return Solution(Y, found.rounds, settled=found.settled)

    return part


def swept_columns(Q: Array, L: Array, bound: float, start: Array, tolerance: float) -> tuple[Array, int]:
    """At most fifty sweeps, fewer where they stop changing anything."""
    Yt, Lt, work = start.T.copy(), L.T.copy(), np.empty(len(start))
    enough = 0.1 * tolerance * largest_diagonal(Q)
    sweeps, change = 0, inf
    while sweeps < 50 and change > enough * norm(Yt):
        change = kernels.sweep_columns(Q, Lt, bound, Yt, work)
        sweeps += 1
    return Yt.T.copy(), sweeps


def priced_columns(
    Q: Array, L: Array, bound: float, start: Array, base: Solver, curvature: Curvature
) -> tuple[Array, int]:
    """Newton's method on the multipliers ν ≥ 0 of ‖y_r‖² ≤ bound²; norms may end a rounding above it.

    Y(ν) minimises over the base's set with Q + diag(ν). The dual function −⟨Y(ν), L⟩ − bound² Σν is concave, with
    gradient ‖y_r‖² − bound².
    """
    limit = bound * bound
    slack = np.sum(start * start, axis=0) - limit
    pull = -np.sum(start * half_gradient(start, Q, L), axis=0)
    nu = np.where(slack > -1e-6 * limit, np.maximum(pull, 0.0), 0.0) / limit
    Y, value, rounds = start, -inf, 0
    step = np.zeros_like(nu)
    for _ in range(60):
        trial = np.maximum(nu + step, 0.0)
        found = base(Q + np.diag(trial), L, Y)
        rounds += found.rounds
        reached = -kernels.inner(found.Y, L) - limit * float(trial.sum())
        if reached < value - 1e-13 * abs(value) and np.abs(step).max() > 1e-15 * np.abs(nu).max():
            step *= 0.25
            continue
        Y, nu, value = found.Y, trial, reached
        slack = np.sum(Y * Y, axis=0) - limit
        free = np.flatnonzero((nu > 0.0) | (slack > 0.0)).astype(np.int64)
        if free.size == 0 or np.abs(slack[free]).max() <= CLOSE * limit:
            break
        step = newton_step(curvature(Q + np.diag(nu), Y), slack, free)
    return Y, rounds


def newton_step(curvature: Array, slack: Array, free: Indices) -> Array:
    """The step of the multipliers that would bring the free columns' norms to the bound."""
    work, step = np.empty_like(curvature), np.zeros(len(curvature))
    if factor_face(curvature, free, work):
        d = 0.5 * slack[free]
        solve_factored(work, d)
        step[free] = d
    return step


def curvature_of_faces(Q: Array, Y: Array) -> Array:
    """Where the face of a row is its support."""
    out = np.empty_like(Q)
    column_curvature(Q, Y, out)
    return out


def curvature_of_all(Q: Array, Y: Array) -> Array:
    """Where every row is free as a whole: Q⁻¹ ⊙ YᵀY."""
    work, inverse = np.empty_like(Q), np.eye(len(Q))
    if factor_face(Q, np.arange(len(Q)), work):
        for row in inverse:
            solve_factored(work, row)
    out = np.empty_like(Q)
    panels.gram(np.ascontiguousarray(Y), out)
    return np.asarray(inverse * out)
