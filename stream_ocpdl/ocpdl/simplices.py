"""The solver for columns on a simplex {y ≥ 0, Σy = total}.

The sums couple the rows of a column, and Q the columns of a row. Prices ν, one for each sum, undo the first: they turn
L into L + 1νᵀ, and the rows are separate again. Newton's method on the concave dual function finds them, and with them
the face, that is which entries are zero (`priced_sums`). Where Q is nearly flat a price is blurred by rounding. So the
end is a search as in `rows`: sweeps over the columns (Algorithm 5, exact), which guess a face, and Newton steps on that
face, which keep the sums and end where an entry would fall below zero. It seldom takes more than one round.
"""

from math import inf

import numpy as np

from stream_ocpdl.ocpdl import kernels
from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.columns import on_live_columns
from stream_ocpdl.ocpdl.compiled import kernel
from stream_ocpdl.ocpdl.constraints import Simplex
from stream_ocpdl.ocpdl.onerow import column_curvature, factor_face, solve_factored
from stream_ocpdl.ocpdl.quadratic import Solution, Solver, half_gradient, largest_diagonal, moved, objective
from stream_ocpdl.ocpdl.simplex import project_column

PRICES, ROUNDS, STEPS = 40, 40, 60
"""The most Newton steps on the prices, rounds of the search, and Newton steps on the faces of a round."""

NEAR = 100.0
"""Times the tolerance, which is a thousandth of what is asked for: where a long column's rounding ends the search."""


def simplex_solver(total: float, tolerance: float, base: Solver) -> Solver:
    """Minimiser over columns on the simplex, for a finer solver over Y ≥ 0."""
    C = Simplex(total)

    def solve(Q: Array, L: Array, start: Array) -> Solution:
        steepness = largest_diagonal(Q)
        priced, rounds = priced_sums(Q, L, total, start, base)
        Y = C.project(priced)
        if not objective(Y, Q, L) <= objective(start, Q, L):
            Y = start
        bad, least = moved(Y, Q, L, C.project, steepness), tolerance
        for turn in range(ROUNDS):
            if not bad > least:
                break
            found = C.project(searched(Q, L, total, Y, sweeps=2 if turn > 0 else 0))
            left, rounds = moved(found, Q, L, C.project, steepness), rounds + 1
            if turn > 0 and left > 0.5 * bad:  # a round that hardly helps: near enough, that is as rounding allows
                least = NEAR * tolerance
            if left < bad or not bad <= least:
                Y, bad = found, left
        return Solution(Y, rounds, settled=bad <= least)

    return on_live_columns(solve)


def priced_sums(Q: Array, L: Array, total: float, start: Array, base: Solver) -> tuple[Array, int]:
    """Newton's method on the prices ν of Σy_r = total; sums are near it at the end.

    Y(ν) minimises over Y ≥ 0 with L + 1νᵀ. The dual function 2·total·Σν − ⟨Y(ν), L + 1νᵀ⟩ is concave, with gradient
    2(total − Σy_r).
    """
    nu = np.sum(start * half_gradient(start, Q, L), axis=0) / total
    Y, value, rounds, step = start, -inf, 0, np.zeros(len(Q))
    for _ in range(PRICES):
        trial = nu + step
        load = L + trial
        found = base(Q, load, Y)
        rounds += found.rounds
        reached = 2.0 * total * float(trial.sum()) - kernels.inner(found.Y, load)
        if reached < value - 1e-13 * abs(value) and np.abs(step).max() > 1e-15 * np.abs(nu).max():
            step = 0.25 * step
            continue
        Y, nu, value = found.Y, trial, reached
        lack = total - Y.sum(axis=0)
        if not np.abs(lack).max() > 1e-14 * total:
            break
        step = price_step(Q, load, Y, lack, total)
    return Y, rounds


def price_step(Q: Array, load: Array, Y: Array, lack: Array, total: float) -> Array:
    """The step of the prices that would make up for what the sums lack; a column of zeros gets its first entry."""
    curvature, work, step = np.empty_like(Q), np.empty_like(Q), np.zeros(len(Q))
    empty = ~(Y > 0.0).any(axis=0)
    filled = np.flatnonzero(~empty).astype(np.int64)
    column_curvature(Q, (Y > 0.0).astype(np.float64), curvature)  # Σᵢ Q[Fᵢ, Fᵢ]⁻¹
    if filled.size > 0 and factor_face(curvature, filled, work):
        d = lack[filled]
        solve_factored(work, d)
        step[filled] = d
    if empty.any():
        step[empty] = half_gradient(Y, Q, load)[:, empty].min(axis=0) + total * np.diag(Q)[empty]
    return step


def searched(Q: Array, L: Array, total: float, start: Array, sweeps: int) -> Array:
    """One round of the search."""
    Yt, Lt, work = start.T.copy(), L.T.copy(), np.empty(len(start))
    for _ in range(sweeps):
        sweep(Q, Lt, total, Yt, work)
    Y, D = Yt.T.copy(), np.empty_like(start)
    left = STEPS
    while left > 0:
        G = half_gradient(Y, Q, L)
        G -= levels(G, Y)
        if not newton(Q, G, total - Y.sum(axis=0), Y, D):
            break
        left = min(left - 1, 1) if go(D, Y) else left - 1  # one more step, to refine the last
    return Y


@kernel
def sweep(Q: Array, Lt: Array, total: float, Yt: Array, work: Array) -> None:
    """Each column to its minimiser on the simplex, in turn. Lt, Yt (R, I) are transposed; Yt is written."""
    R, I = Yt.shape  # noqa: E741  (the paper's letter for a mode's size)
    for r in range(R):
        work[:] = Lt[r]
        for s in range(R):
            if s != r:
                for i in range(I):
                    work[i] -= Q[r, s] * Yt[s, i]
        work /= Q[r, r]
        project_column(work, total)
        Yt[r, :] = work


@kernel
def levels(G: Array, Y: Array) -> Array:
    """Each column's mean of G (I, R) over the entries of Y above zero: its price, nearly."""
    out = np.zeros(Y.shape[1])
    for r in range(out.size):
        count = 0
        for i in range(Y.shape[0]):
            if Y[i, r] > 0.0:
                out[r] += G[i, r]
                count += 1
        out[r] /= max(count, 1)
    return out


@kernel
def newton(Q: Array, G: Array, lack: Array, Y: Array, out: Array) -> bool:
    """The step of the entries above zero to their minimiser with the right sums; false where there is none.

    dᵢ = Q[Fᵢ, Fᵢ]⁻¹(ν − gᵢ) over the rows i with supports Fᵢ, with ν such that Σdᵢ = lack. G (I, R) is YQ − L less the
    columns' levels, which must not come in here: the digits of a small step would be lost.
    """
    I, R = Y.shape  # noqa: E741
    H, nu, C, d = np.zeros((R, R)), lack.copy(), np.empty((R, R)), np.empty(R)
    face = np.empty(R, np.int64)
    for i in range(I):
        size = support(Y[i], face)
        if size == 0:
            continue
        factor_face(Q, face[:size], C)
        for k in range(size):
            d[:size] = 0.0
            d[k] = 1.0
            solve_factored(C, d[:size])
            for m in range(size):
                H[face[k], face[m]] += d[m]
        for k in range(size):
            d[k] = G[i, face[k]]
        solve_factored(C, d[:size])
        for k in range(size):
            nu[face[k]] += d[k]
    if not factor_face(H, np.arange(R), C):
        return False
    solve_factored(C, nu)
    for i in range(I):
        size = support(Y[i], face)
        out[i, :] = 0.0
        if size == 0:
            continue
        factor_face(Q, face[:size], C)
        for k in range(size):
            d[k] = nu[face[k]] - G[i, face[k]]
        solve_factored(C, d[:size])
        for k in range(size):
            out[i, face[k]] = d[k]
    return True


@kernel
def support(y: Array, face: Indices) -> int:
    """The entries above zero → face; how many they are."""
    size = 0
    for r in range(y.size):
        if y[r] > 0.0:
            face[size] = r
            size += 1
    return size


@kernel
def go(D: Array, Y: Array) -> bool:
    """Y + D, or as far as no entry falls below zero: the first that would is zero then. Whether it was all the way."""
    share, row, column = 1.0, -1, -1
    for i in range(Y.shape[0]):
        for r in range(Y.shape[1]):
            if D[i, r] < 0.0 and -Y[i, r] / D[i, r] < share:
                share, row, column = -Y[i, r] / D[i, r], i, r
    for i in range(Y.shape[0]):
        for r in range(Y.shape[1]):
            Y[i, r] = max(Y[i, r] + share * D[i, r], 0.0)
    if row >= 0:
        Y[row, column] = 0.0
    return row < 0
