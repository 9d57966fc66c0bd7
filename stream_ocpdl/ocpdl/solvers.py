"""Solvers of the quadratic sub-problem, one for each kind of set.

- 0 ≤ Y ≤ upper: the rows are separate, and an active-set method is exact on each (`rows`); so are those of any other
  box, and of signed codes, where a penalty has a kink (`signed`).
- **A ball** ‖Y − Y₀‖_F ≤ r around a point of C is not a set of its own kind: its multiplier μ ≥ 0 only turns (Q, L)
  into (Q + μI, L + μY₀). So `within_ball` wraps any solver and searches for μ. The norm bounds of `NonnegativeBall`
  and `Ball` are such balls around zero; the search radius (eq:Alg1_search_restriction) is one around U_{t−1}. It
  couples all columns: clipping each column's step by itself, as is often done, does not give the minimiser.
- Columns that have a bound each, of their norm or of their sum: `columns` and `simplices`.
- Any other closed convex set: accelerated projected gradients, to COARSE.
"""

from collections.abc import Callable
from dataclasses import replace
from math import frexp, inf, isfinite, sqrt

import numpy as np

from stream_ocpdl.ocpdl import kernels, rows
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.columns import columns_solver, nonnegative_columns_solver
from stream_ocpdl.ocpdl.constraints import (
    Ball,
    Box,
    Columns,
    Constraint,
    NonnegativeBall,
    NonnegativeColumns,
    Simplex,
)
from stream_ocpdl.ocpdl.lanes import GROUP
from stream_ocpdl.ocpdl.onerow import most_rounds
from stream_ocpdl.ocpdl.quadratic import (
    Solution,
    Solver,
    half_gradient,
    largest_diagonal,
    largest_row,
    moved,
    norm,
    objective,
    product,
)
from stream_ocpdl.ocpdl.signed import solve_signed
from stream_ocpdl.ocpdl.simplices import simplex_solver
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

ON_THE_SPHERE = 1e-12
"""How close, relatively, a search for multipliers brings a norm to its bound."""

FLAT = 1e-11
"""A pull towards the start, relative to Q, that selects the nearest minimiser where Q is flat and has many."""

PROXIMAL = 1e-7
"""The pull of a proximal step: Q becomes well enough conditioned for every search, and a few steps undo the pull."""

COARSE = 1e-9
"""The tolerance for sets that only know how to project: gradients would take for ever to reach a finer one."""

ROUNDING = 1e-14
"""How far, relatively, a point may lie outside of a ball and still count as on its sphere."""


def minimise_near(
    Q: Array, L: Array, C: Constraint, start: Array, radius: float, tolerance: float, workers: Workers = SERIAL
) -> Solution:
    """argmin over C ∩ {‖Y − start‖_F ≤ radius}, eq:Alg1_search_restriction; the start must be in C.

    Among several minimisers it is the one nearest to the start. Where Q is so flat that a search for multipliers does
    not settle, proximal steps do: each minimises with PROXIMAL·‖Y − Y_before‖² added, in units of Q's diagonal.
    """
    finer = max(1e-3 * tolerance, 2e-14)  # where Q is nearly flat a small residual leaves ‖Y − start‖ uncertain
    solver = solver_of(C, finer, workers)
    unit = 0.5 ** frexp(largest_diagonal(Q))[1]  # a power of two, which changes no digit: squares must not overflow

    def pulled(pull: float, towards: Array) -> Solution:
        near_Q, near_L = np.empty_like(Q), np.empty_like(L)
        kernels.pulled(Q, L, unit, pull, towards, near_Q, near_L)  # an atom with Qᵣᵣ = 0 stays by itself
        found = within_ball(solver, near_Q, near_L, start, radius, towards)
        left, size = kernels.pull_left(Q, unit, pull, towards, found.Y)
        return found if left <= 0.1 * tolerance * size else replace(found, settled=False)

    solution = pulled(FLAT, start)
    rounds, before = solution.rounds, inf
    for _ in range(20):
        if solution.settled:
            break
        Y = solution.Y
        solution = pulled(PROXIMAL, Y)
        rounds += solution.rounds
        step = kernels.distance(solution.Y, Y)
        if step >= before:  # as close as rounding allows
            break
        before = step
    return Solution(solution.Y, rounds, solution.multiplier / unit, solution.settled)


def project_near(V: Array, C: Constraint, centre: Array, radius: float) -> Array:
    """Π of C ∩ {‖Y − centre‖_F ≤ radius}: Π_C((V + μ·centre)/(1 + μ)) for the smallest μ ≥ 0 that reaches the ball."""

    def project(Q: Array, L: Array, _: Array) -> Solution:
        return Solution(np.ascontiguousarray(C.project(L / Q[0, 0]), np.float64), 0)

    return within_ball(project, np.eye(V.shape[1]), V, centre, radius, centre).Y


def solver_of(C: Constraint, tolerance: float, workers: Workers = SERIAL) -> Solver:
    """The solver that suits a set."""
    finer = max(1e-3 * tolerance, 1e-14)
    match C:
        case NonnegativeBall(bound):
            return ball_solver(bound, box_solver(inf, tolerance, workers))
        case NonnegativeColumns(bound):
            several = nonnegative_columns_solver(bound, tolerance, box_solver(inf, finer, workers))
            return of_rows(box_solver(bound, tolerance, workers), several)
        case Box(lower, upper):
            return signed_solver(lower, upper, tolerance, workers)
        case Ball(bound):
            return ball_solver(bound, signed_solver(-inf, inf, tolerance, workers))
        case Columns(bound):
            several = columns_solver(bound, tolerance, signed_solver(-inf, inf, finer, workers))
            return of_rows(signed_solver(-bound, bound, tolerance, workers), several)
        case Simplex(total):
            return simplex_solver(total, tolerance, box_solver(inf, finer, workers))
        case _:
            return gradient_solver(C, max(tolerance, COARSE))


def of_rows(one: Solver, several: Solver) -> Solver:
    """The solver that suits the number of rows: a column that is a number has a box for its ball."""
    return lambda Q, L, start: (one if len(start) == 1 else several)(Q, L, start)


# ── boxes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def box_solver(upper: float, tolerance: float, workers: Workers = SERIAL) -> Solver:
    """Exact minimiser over 0 ≤ Y ≤ upper, row by row."""

    def solve(Q: Array, L: Array, start: Array) -> Solution:
        Y, rounds = start.copy(), np.zeros(len(start), np.int64)
        workers.run(rows.solve_rows, len(Y), 5.0 * Q.size, Q, L, upper, tolerance, Y, rounds, grain=GROUP)
        used = kernels.largest(rounds)
        return Solution(Y, used, settled=used < most_rounds(len(Q)))

    return solve


def signed_solver(
    lower: float, upper: float, tolerance: float, workers: Workers = SERIAL, price: float = 0.0
) -> Solver:
    """Exact minimiser over lower ≤ Y ≤ upper, row by row, with 2·price·‖Y‖₁ added to the objective."""

    def solve(Q: Array, L: Array, start: Array) -> Solution:
        Y, rounds = start.copy(), np.zeros(len(start), np.int64)
        cost = Q.size * (5.0 + len(Q) / 3)
        workers.run(solve_signed, len(Y), cost, Q, L, lower, upper, price, tolerance, Y, rounds)
        used = kernels.largest(rounds)
        return Solution(Y, used, settled=used < most_rounds(len(Q)))

    return solve


# ── balls ──────────────────────────────────────────────────────────────────────────────────────────────────────


def ball_solver(bound: float, base: Solver) -> Solver:
    """Exact minimiser with ‖Y‖_F ≤ bound, which is a ball around zero and seldom met, over the set of a solver."""

    def solve(Q: Array, L: Array, start: Array) -> Solution:
        found = base(Q, L, start)
        if norm(found.Y) > bound * (1.0 + ROUNDING):
            return within_ball(base, Q, L, np.zeros_like(start), bound, found.Y)
        return found

    return solve


def within_ball(solve: Solver, Q: Array, L: Array, centre: Array, radius: float, start: Array) -> Solution:
    """argmin over C ∩ {‖Y − centre‖_F ≤ radius}, for a solver over a C that contains the centre.

    Y(μ), the solver's answer to (Q + μI, L + μ·centre), moves monotonically from the free minimiser to the centre.
    The root of radius/‖Y(μ) − centre‖ − 1, which rises and is nearly linear in μ, is bracketed by zero and by
    ‖L − centre·Q‖/radius (strong convexity). The answer is taken from the inner end of the last bracket: where Q is so
    flat that rounding blurs the norm, μ is so small that staying a little inside costs nothing.
    """
    found = solve(Q, L, start)
    gap = kernels.distance(found.Y, centre)
    if not gap > radius * (1.0 + ROUNDING):  # nor if it is not a number: the caller will notice
        return found if found.multiplier == 0.0 else replace(found, multiplier=0.0)
    eye, rounds = np.eye(len(Q)), found.rounds
    inner: Solution | None = None

    def excess(mu: float) -> float:
        nonlocal found, inner, rounds
        found = solve(Q + mu * eye, L + mu * centre, found.Y)
        rounds += found.rounds
        gap = kernels.distance(found.Y, centre)
        if gap <= radius * (1.0 + ROUNDING):
            inner = replace(found, multiplier=mu, settled=found.settled and gap >= radius * (1.0 - ON_THE_SPHERE))
        return radius / gap - 1.0 if gap > 0.0 else inf

    high = (
        kernels.distance(L, product(centre, Q)) / radius or 1.0
    )  # zero where nothing but rounding, or a start, is out
    mu = close_in(excess, high, radius / gap - 1.0)
    if inner is None:  # rounding never let it in: drawn in along the segment to the centre, which lies in C
        share = radius / kernels.distance(found.Y, centre)
        inner = Solution(centre + share * (found.Y - centre), 0, mu, settled=False)
    return replace(inner, rounds=rounds)


def close_in(excess: Callable[[float], float], high: float, at_zero: float) -> float:
    """Call a rising function at points that close in from both sides on its root, which lies near (0, high].

    False position (Illinois: the value at an end that stays is halved), with a bisection now and then. Returns the
    upper end of the last bracket.
    """
    low, f_low, f_high, side = 0.0, at_zero, excess(high), 0
    while f_high < -ROUNDING and high < 1e100:  # the bound was rounded down
        low, f_low, high = high, f_high, 2.0 * high
        f_high = excess(high)
    closest = f_high
    for turn in range(100):
        if closest <= ON_THE_SPHERE or high - low <= 1e-15 * high:
            break
        mu = low + (high - low) * (f_low / (f_low - f_high)) if f_high < inf else 0.0
        if turn % 4 == 3 or not low < mu < high:
            mu = 0.5 * (low + high)
        f = excess(mu)
        if f >= 0.0:
            closest = f
            high, f_high, f_low = mu, f, f_low / 2 if side > 0 else f_low
        else:
            low, f_low, f_high = mu, f, f_high / 2 if side < 0 else f_high
        side = 1 if f >= 0.0 else -1
    return high


# ── anything else ──────────────────────────────────────────────────────────────────────────────────────────────


def gradient_solver(C: Constraint, tolerance: float, steps: int = 20_000) -> Solver:
    """Minimiser over any closed convex C, by accelerated projected gradients that restart when they overshoot.

    Never worse than the start, though the start may be better than the tolerance asks for.
    """

    def solve(Q: Array, L: Array, start: Array) -> Solution:
        first = np.ascontiguousarray(C.project(start), np.float64)
        found = descend(Q, L, first)
        return replace(found, Y=first) if objective(found.Y, Q, L) > objective(first, Q, L) else found

    def descend(Q: Array, L: Array, start: Array) -> Solution:
        steepness, diagonal = largest_row(Q), largest_diagonal(Q)
        Y = Z = start
        if steepness == 0.0:
            return Solution(Y, 0)
        momentum = 1.0
        for used in range(1, steps + 1):
            new = np.ascontiguousarray(C.project(Z - half_gradient(Z, Q, L) / steepness), np.float64)
            if not isfinite(norm(new)):
                return Solution(new, used)
            if kernels.distance(new, Z) <= tolerance * norm(new) and moved(new, Q, L, C.project, diagonal) <= tolerance:
                return Solution(new, used)
            following = (1.0 + sqrt(1.0 + 4.0 * momentum**2)) / 2.0
            if kernels.inner(Z - new, new - Y) > 0.0:
                following, Z = 1.0, new
            else:
                Z = new + ((momentum - 1.0) / following) * (new - Y)
            momentum, Y = following, new
        return Solution(Y, steps, settled=False)

    return solve
