"""Solvers of the quadratic sub-problem, one for each kind of set.

- 0 ≤ Y ≤ upper: the rows are separate, and an active-set method is exact on each.
- **A ball** ‖Y − Y₀‖_F ≤ r around a point of C is not a set of its own kind: its multiplier μ ≥ 0 only turns (Q, L)
  into (Q + μI, L + μY₀). So `within_ball` wraps any solver and searches for μ. The norm bound of `NonnegativeBall`
  is such a ball around zero; the search radius (eq:Alg1_search_restriction) is one around U_{t−1}. It couples all
  columns: clipping each column's step by itself, as is often done, does not give the minimiser.
- Norm-bounded columns: sweeps over the columns (Algorithm 5), and where these are slow Newton steps on the columns'
  multipliers, which turn Q into Q + diag(ν).
- Any other closed convex set: accelerated projected gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import frexp, inf, isfinite, sqrt

import numpy as np

from stream_ocpdl.ocpdl import kernels, rows
from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.constraints import Constraint, NonnegativeBall, NonnegativeColumns
from stream_ocpdl.ocpdl.lanes import GROUP
from stream_ocpdl.ocpdl.quadratic import half_gradient, largest_diagonal, largest_row, moved, norm, product
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

ON_THE_SPHERE = 1e-12
"""How close, relatively, a search for multipliers brings a norm to its bound."""

FLAT = 1e-11
"""A pull towards the start, relative to Q, that selects the nearest minimiser where Q is flat and has many."""

PROXIMAL = 1e-7
"""The pull of a proximal step: Q becomes well enough conditioned for every search, and a few steps undo the pull."""

ROUNDING = 1e-14
"""How far, relatively, a point may lie outside of a ball and still count as on its sphere."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A minimiser, the rounds that finding it took, the multiplier of the ball it was sought in, and whether the
    search met its tolerance.
    """

    Y: Array
    rounds: int
    multiplier: float = 0.0
    settled: bool = True


Solver = Callable[[Array, Array, Array], Solution]
"""Q, L, a start → the minimiser over the solver's set."""


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
    match C:
        case NonnegativeBall(bound):
            return ball_solver(bound, tolerance, workers)
        case NonnegativeColumns(bound):
            return columns_solver(bound, tolerance, workers)
        case _:
            return gradient_solver(C, tolerance)


# ── boxes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def box_solver(upper: float, tolerance: float, workers: Workers = SERIAL) -> Solver:
    """Exact minimiser over 0 ≤ Y ≤ upper, row by row."""

    def solve(Q: Array, L: Array, start: Array) -> Solution:
        Y, rounds = start.copy(), np.zeros(len(start), np.int64)
        workers.run(rows.solve_rows, len(Y), 5.0 * Q.size, Q, L, upper, tolerance, Y, rounds, grain=GROUP)
        used = kernels.largest(rounds)
        return Solution(Y, used, settled=used < rows.most_rounds(len(Q)))

    return solve


# ── balls ──────────────────────────────────────────────────────────────────────────────────────────────────────


def ball_solver(bound: float, tolerance: float, workers: Workers = SERIAL) -> Solver:
    """Exact minimiser over Y ≥ 0 with ‖Y‖_F ≤ bound, which is a ball around zero and seldom met."""
    box = box_solver(inf, tolerance, workers)

    def solve(Q: Array, L: Array, start: Array) -> Solution:
        found = box(Q, L, start)
        if norm(found.Y) > bound * (1.0 + ROUNDING):
            return within_ball(box, Q, L, np.zeros_like(start), bound, found.Y)
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


# ── norm-bounded columns ───────────────────────────────────────────────────────────────────────────────────────


def columns_solver(bound: float, tolerance: float, workers: Workers = SERIAL) -> Solver:
    """Minimiser over columns in {y ≥ 0, ‖y‖ ≤ bound}: by sweeps, and where these are slow by pricing the columns."""
    C = NonnegativeColumns(bound)

    def solve(Q: Array, L: Array, start: Array) -> Solution:
        steepness = largest_diagonal(Q)
        Y, rounds = swept_columns(Q, L, bound, start, tolerance)
        bad = moved(Y, Q, L, C.project, steepness)
        if bad > tolerance:
            priced, used = priced_columns(Q, L, bound, Y, tolerance, workers)
            after, rounds = moved(priced, Q, L, C.project, steepness), rounds + used
            if after < bad:
                Y, bad = priced, after
        return Solution(Y, rounds, settled=bad <= tolerance)

    return solve


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
    Q: Array, L: Array, bound: float, start: Array, tolerance: float, workers: Workers
) -> tuple[Array, int]:
    """Newton's method on the multipliers ν ≥ 0 of ‖y_r‖² ≤ bound².

    Y(ν) minimises over Y ≥ 0 with Q + diag(ν). The dual function −⟨Y(ν), L⟩ − bound² Σν is concave, with gradient
    ‖y_r‖² − bound².
    """
    box, limit = box_solver(inf, max(1e-3 * tolerance, 1e-14), workers), bound * bound
    slack = np.sum(start * start, axis=0) - limit
    pull = -np.sum(start * half_gradient(start, Q, L), axis=0)
    nu = np.where(slack > -1e-6 * limit, np.maximum(pull, 0.0), 0.0) / limit
    Y, value, rounds = start, -inf, 0
    step = np.zeros_like(nu)
    for _ in range(60):
        trial = np.maximum(nu + step, 0.0)
        found = box(Q + np.diag(trial), L, Y)
        rounds += found.rounds
        reached = -kernels.inner(found.Y, L) - limit * float(trial.sum())
        if reached < value - 1e-13 * abs(value) and np.abs(step).max() > 1e-15 * np.abs(nu).max():
            step *= 0.25
            continue
        Y, nu, value = found.Y, trial, reached
        slack = np.sum(Y * Y, axis=0) - limit
        free = np.flatnonzero((nu > 0.0) | (slack > 0.0)).astype(np.int64)
        if free.size == 0 or np.abs(slack[free]).max() <= ON_THE_SPHERE * limit:
            break
        step = newton_step(Q + np.diag(nu), Y, slack, free)
    return NonnegativeColumns(bound).project(Y), rounds


def newton_step(Q: Array, Y: Array, slack: Array, free: Indices) -> Array:
    """The step of the multipliers that would bring the free columns' norms to the bound."""
    curvature, work, step = np.empty_like(Q), np.empty_like(Q), np.zeros(len(Q))
    rows.column_curvature(Q, Y, curvature)
    if rows.factor_face(curvature, free, work):
        d = 0.5 * slack[free]
        rows.solve_factored(work, d)
        step[free] = d
    return step


# ── anything else ──────────────────────────────────────────────────────────────────────────────────────────────


def gradient_solver(C: Constraint, tolerance: float, steps: int = 20_000) -> Solver:
    """Minimiser over any closed convex C, by accelerated projected gradients that restart when they overshoot."""

    def solve(Q: Array, L: Array, start: Array) -> Solution:
        steepness, diagonal = largest_row(Q), largest_diagonal(Q)
        Y = Z = np.ascontiguousarray(C.project(start), np.float64)
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
