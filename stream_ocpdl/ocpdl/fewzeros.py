"""Rows of the sub-problem by their multipliers, one after the other: those of small problems, and codes.

As in `multipliers`, Q⁻¹ is made once for all rows, and a row then takes a system as large as the coordinates Z that are
zero in it. Where these are few, that is nothing against a factor of Q for each row (`rowgroup`); and where rows are not
many, there is nothing to be gained by solving those with as many zeros together. Rows with many zeros are left to
`rows`. As there, what happens to a row does not depend on the rows beside it.
"""

from math import inf

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.compiled import kernel, part, written_in
from stream_ocpdl.ocpdl.lanes import GROUP, aligned, below, fma, load, spread, store
from stream_ocpdl.ocpdl.multipliers import HARD, PATIENCE, inverse_of
from stream_ocpdl.ocpdl.panels import add_product, turned
from stream_ocpdl.ocpdl.rows import solve_left

STRIP = 128
"""Rows that are solved in the same memory, one strip after the other."""

MOST = 8
"""Coordinates that may be zero in any case; else half of them: more would take as long as a factor of Q."""


@kernel
def solve_range(
    lo: int, hi: int, Q: Array, L: Array, upper: float, tolerance: float, Y: Array, rounds: Indices
) -> None:
    """Minimisers as of `rows.solve_rows`, by multipliers first; a start that is exact counts one round, too."""
    solve_all(Q, L[lo:hi], upper, tolerance, Y[lo:hi], rounds[lo:hi])


@written_in
def solve_all(Q: Array, L: Array, upper: float, tolerance: float, Y: Array, rounds: Indices) -> None:
    """All rows: by multipliers, and those that are left by `rows`."""
    hard = solve_few(Q, L, upper, tolerance, Y, rounds)
    if hard > 0:
        solve_left(hard, Q, L, Y, upper, tolerance, Y, rounds)


@kernel
def solve_few(Q: Array, L: Array, upper: float, tolerance: float, Y: Array, rounds: Indices) -> int:
    """min of yQyᵀ − 2⟨y, l⟩ over 0 ≤ y ≤ upper for each row l of L; Y holds the start, then the minimisers, and rounds
    how many faces it took. Rows that are HARD, as those that meet their upper bound, keep their start; how many.
    """
    G, count, hard = inverse_of(Q), L.shape[0], 0
    rounds[:] = HARD
    if G.shape[0] == 0:
        return int(count)
    R, strip = L.shape[1], min(count, STRIP)
    room = aligned(2 * strip, G.shape[1] // GROUP).reshape(2 * strip, G.shape[1])
    most = min(max(R // 2, MOST), R)
    zero, system = np.empty(R + 1, np.int64), np.empty((most + 2, most + 1))
    for lo in range(0, count, STRIP):
        hi = min(lo + STRIP, count)
        free, points = room[: hi - lo], room[strip : strip + hi - lo]
        free[:, :] = 0.0
        add_product(0, G.shape[1], turned(L[lo:hi]), G, 0.0, free)
        for i in range(hi - lo):
            rounds[lo + i] = to_minimum(i, G, Y[lo + i], free, points, zero, system)
        hard += hi - lo - judge(Q, L[lo:hi], points, upper, tolerance, Y[lo:hi], rounds[lo:hi])
    return hard


@part
def to_minimum(i: int, G: Array, start: Array, free: Array, points: Array, zero: Indices, system: Array) -> int:
    """Row i from face to face, from that of its start on → point; how many there were, or HARD.

    One that has no start, all zeros, begins with the free minimiser.
    """
    (R, width), most = G.shape, system.shape[0] - 2
    mu = system[most + 1]
    size, known = 0, 0
    for r in range(R):
        zero[size] = r
        if G[r, r] > 0.0:
            size += start[r] <= 0.0
            known += 1
        else:  # Q knows nothing of it: it stays where it is
            free[i, r] = start[r]
    size = size if size < known else 0
    for used in range(1, PATIENCE + 1):
        if size > most:
            return HARD
        multipliers(size, G, free[i], zero, system)
        for r in range(0, width, GROUP):
            y = load(free, i * width + r)
            for k in range(size):
                y = fma(spread(mu[k]), load(G, zero[k] * width + r), y)
            store(points, i * width + r, y)
        kept = 0
        for k in range(size):
            points[i, zero[k]] = 0.0
            zero[kept] = zero[k]
            kept += mu[k] >= 0.0
        left = kept < size
        for r in range(0, width, GROUP):
            if below(load(points, i * width + r), spread(0.0)) > 0:
                left = True
                for s in range(r, min(r + GROUP, R)):
                    zero[kept] = s
                    kept += points[i, s] < 0.0
        if not left:
            return used
        size = kept
    return HARD


@part
def multipliers(size: int, G: Array, free: Array, zero: Indices, system: Array) -> None:
    """μ with G[Z, Z] μ = −u[Z] → the last row of the system; by G[Z, Z] = CDCᵀ, row by row, with 1/D on the diagonal.

    −u[Z], as one column more, becomes C⁻¹ of itself on the way. The row before the last holds a row of CD.
    """
    work, mu = system[system.shape[0] - 2], system[system.shape[0] - 1]
    for k in range(size):
        z = zero[k]
        pivot, mu[k] = G[z, z], -free[z]
        for m in range(k):
            work[m] = G[z, zero[m]]
            for s in range(m):
                work[m] -= work[s] * system[m, s]
            system[k, m] = work[m] * system[m, m]
            pivot -= work[m] * system[k, m]
            mu[k] -= system[k, m] * mu[m]
        system[k, k] = 1.0 / pivot
    for k in range(size - 1, -1, -1):
        mu[k] *= system[k, k]
        for m in range(k + 1, size):
            mu[k] -= system[m, k] * mu[m]


@written_in
def judge(Q: Array, L: Array, points: Array, upper: float, tolerance: float, Y: Array, rounds: Indices) -> int:
    """Points that are minimisers to the tolerance → Y, and how many they are; the other rows become HARD.

    The residual is that of `rowgroup.judge`, in units in which Q has a unit diagonal. A coordinate of which Q knows
    nothing must be where its load draws it.
    """
    (count, R), good, flat = L.shape, 0, 0
    slopes, steepness, dead = L.copy(), np.zeros(R), np.empty(R, np.int64)
    for r in range(R):
        if Q[r, r] > 0.0:
            steepness[r] = 1.0 / Q[r, r]
        else:
            dead[flat] = r
            flat += 1
    add_product(0, R, turned(points)[:R], Q, -1.0, slopes)
    for i in range(count):
        bad, length, inside = 0.0, 0.0, rounds[i] != HARD
        for r in range(R):
            y, step = points[i, r], slopes[i, r] * steepness[r]
            miss = step if step < y else y
            bad += miss * miss * Q[r, r]
            length += y * y * Q[r, r]
            inside &= y <= upper
        for k in range(flat):
            slope = slopes[i, dead[k]]
            inside &= slope == 0.0 or (slope > 0.0 and points[i, dead[k]] == 0.0)
        if inside and length < inf and bad <= tolerance**2 * length:
            good += 1
            for r in range(R):
                Y[i, r] = points[i, r]
        else:
            rounds[i] = HARD
    return good
