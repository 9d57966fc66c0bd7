"""Rows of the sub-problem by their multipliers, where many rows share one Q and few coordinates are zero.

With G = Q⁻¹, which is made once for all rows, the free minimiser of a row is u = Gl, and the minimiser on the face on
which the coordinates Z are zero is

    y = u + G[:, Z] μ,      G[Z, Z] μ = −u[Z],

where μ is half the gradient on Z. It is the row's minimiser if neither y nor μ is below zero; else the coordinates of y
below zero join Z, and those of μ leave it (block pivoting, as in `rowgroup`). That takes a system as large as Z and no
factor of Q, and u of all rows is one product of matrices.

Whether a row was solved is judged by its gradient yQ − l, as everywhere. Rows that were not, since Q is nearly flat, Z
is large, or faces follow each other without end, are left to `rows`.
"""

from math import inf, sqrt

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.compiled import kernel, part
from stream_ocpdl.ocpdl.lanes import GROUP, aligned, fma, lane, larger, load, smaller, some, spread, store
from stream_ocpdl.ocpdl.panels import add_product

PATIENCE = 6
"""Rounds before a row is left to others; most take one or two."""

STEEPEST = 1e4
"""Where the others take all but so small a part of a coordinate's curvature, Q is too flat for its inverse."""

HARD = -1
"""The rounds of a row that is left to others."""

MULTIPLIER, POINT, SCALE, SHARE, PARTS = range(5)
"""What is in the room of a row below the cleared rows of G: μ, y, one over the pivots, the shares of the cleared rows
in y, and from there on their parts of each other."""


@kernel
def inverse_of(Q: Array) -> Array:
    """Q⁻¹ (R, whole registers), zeros behind column R; of no rows where Q is too flat.

    A coordinate of which Q knows nothing, Qᵣᵣ = 0, has zeros: it is left where it is.
    """
    R = Q.shape[0]
    C, out = np.zeros((R, R)), aligned(R, -(-R // GROUP)).reshape(R, -(-R // GROUP) * GROUP)
    for k in range(R):
        for m in range(k):
            total = Q[k, m]
            for q in range(m):
                total -= C[k, q] * C[m, q]
            C[k, m] = total / C[m, m]
        total = Q[k, k]
        for q in range(k):
            total -= C[k, q] ** 2
        if Q[k, k] > 0.0 and not total * STEEPEST > Q[k, k]:
            return out[:0]
        C[k, k] = sqrt(total) if Q[k, k] > 0.0 else 1.0
    out[:, :] = 0.0
    for r in range(R):
        out[r, r] = 1.0 if Q[r, r] > 0.0 else 0.0
        solve_factored(C, out, r)
    return out


@part
def solve_factored(C: Array, out: Array, r: int) -> None:
    """Column r of out is solved for CCᵀ; what is above the diagonal is zero before."""
    R = C.shape[0]
    for k in range(r, R):
        total = out[k, r]
        for q in range(r, k):
            total -= C[k, q] * out[q, r]
        out[k, r] = total / C[k, k]
    for j in range(R):
        k = R - 1 - j
        total = out[k, r]
        for q in range(k + 1, R):
            total -= C[q, k] * out[q, r]
        out[k, r] = total / C[k, k]


@kernel
def spaces(inverse: Array, count: int) -> tuple[Array, Array]:
    """Memory in which `on_faces` solves so many rows at a time; none where there is no inverse."""
    R, width = inverse.shape
    registers = width // GROUP
    many, room = aligned(count if R > 0 else 0, registers), aligned(2 * R + 4, registers)
    return many.reshape(many.shape[0], width), room.reshape(2 * R + 4, width)


@part
def on_faces(
    count: int, inverse: Array, loads: Array, Y: Array, now: Array, rounds: Indices, free: Array, room: Array
) -> None:
    """The first `count` columns of loads (R, ·, GROUP) → minimisers, rows of Y, which holds the start; rounds, or HARD.

    As columns they are in now (R, ·, GROUP), which holds the start, too. free is for the free minimisers (·, R or
    more), room for the systems: (2R + 4, R or more).
    """
    R, width = inverse.shape
    free[:, :] = 0.0
    add_product(0, width, loads.reshape(R, free.shape[0]), inverse, 0.0, free)
    zero = np.empty(R + 1, np.int64)
    for i in range(count):
        size = 0
        for r in range(R):
            zero[size] = r  # without a branch, of which nobody could guess the outcome
            size += Y[i, r] <= 0.0 < inverse[r, r]
        used, done, known = 0, False, 0
        while not done and used < PATIENCE and 2 * size <= R:
            done = on_face(free, i, inverse, zero, known, size, room)
            if not done:
                known, size = next_face(zero, size, room)
            used += 1
        rounds[i] = used if done else HARD
        if done:
            for r in range(R):
                if inverse[r, r] > 0.0:
                    Y[i, r] = now[r, i // GROUP, i % GROUP] = room[R + POINT, r]


@part
def on_face(free: Array, i: int, inverse: Array, zero: Indices, known: int, size: int, room: Array) -> bool:
    """Row i on the face where the coordinates zero[:size] are: y and μ → room; whether neither is below zero.

    One coordinate after the other becomes zero: y loses a multiple of its row of G, and so do the rows of those to
    come. What was found for the first `known` of them, on another face, is in the room still.
    """
    R, width = inverse.shape
    y = (R + POINT) * width
    for r in range(0, width, GROUP):
        store(room, y + r, load(free, i * width + r))
    for k in range(size):
        if k >= known:
            clear_row(inverse, zero, k, room)
            room[R + SHARE, k] = -room[R + POINT, zero[k]] * room[R + SCALE, k]
        add_row(room[R + SHARE, k], room, k, y)
    good = True
    room[R + MULTIPLIER, :size] = room[R + SHARE, :size]
    for j in range(size):
        k = size - 1 - j
        good &= room[R + MULTIPLIER, k] >= 0.0
        for m in range(k):
            room[R + MULTIPLIER, m] -= room[R + PARTS + m, k] * room[R + MULTIPLIER, k]
    for k in range(size):
        room[R + POINT, zero[k]] = 0.0
    lowest = spread(0.0)
    for r in range(0, width, GROUP):
        lowest = smaller(lowest, load(room, y + r))
    return good and not some(spread(0.0) - lowest)


@part
def clear_row(inverse: Array, zero: Indices, k: int, room: Array) -> None:
    """Row zero[k] of G, cleared of the coordinates zero[:k] → room[k]; its pivot, and its parts of the rows before."""
    R, width = inverse.shape
    for r in range(0, width, GROUP):
        store(room, k * width + r, load(inverse, zero[k] * width + r))
    for m in range(k):
        room[R + PARTS + m, k] = room[k, zero[m]] * room[R + SCALE, m]
        add_row(-room[R + PARTS + m, k], room, m, k * width)
    room[R + SCALE, k] = 1.0 / room[k, zero[k]]


@part
def add_row(share: float, room: Array, k: int, at: int) -> None:
    """A share of row k of the room, added to that from place `at` on, counted flat."""
    width, factor = room.shape[1], spread(share)
    for r in range(0, width, GROUP):
        store(room, at + r, fma(factor, load(room, k * width + r), load(room, at + r)))


@part
def next_face(zero: Indices, size: int, room: Array) -> tuple[int, int]:
    """Coordinates whose μ is below zero leave, and those whose y is join.

    How many are before the first that left, so that all is known of them, and how many there are.
    """
    R, kept, known = zero.size - 1, 0, size
    for k in range(size):
        stays = room[R + MULTIPLIER, k] >= 0.0
        zero[kept] = zero[k]
        kept += stays
        known = min(known, size if stays else k)
    for r in range(R):
        zero[kept] = r
        kept += room[R + POINT, r] < 0.0
    return known, kept


@part
def judge(Q: Array, units: Array, now: Array, tolerance: float, loads: Array, rounds: Indices) -> int:
    """Rows of which now (R, ·, GROUP) is no minimiser to the tolerance become HARD; how many are. Loads are written.

    The residual is that of `rowgroup.judge`, in units in which Q has a unit diagonal (`units_of`). A coordinate of
    which Q knows nothing must have no load either.
    """
    R, registers, _ = now.shape
    width = registers * GROUP
    add_product(0, width, Q, now.reshape(R, width), -1.0, loads.reshape(R, width))
    zero, hard = spread(0.0), 0
    for m in range(registers):
        bad, length = zero, zero
        for r in range(R):
            y = load(now, r * width + m * GROUP) * spread(units[0, r])
            miss = y - larger(y - load(loads, r * width + m * GROUP) * spread(units[1, r]), spread(units[2, r]))
            length = fma(y, y, length)
            bad = fma(miss, miss, bad)
        left = bad - spread(tolerance**2) * length
        for j in range(min(GROUP, rounds.size - m * GROUP)):
            if not lane(left, j) <= 0.0:
                rounds[m * GROUP + j] = HARD
            hard += rounds[m * GROUP + j] == HARD
    return hard


@kernel
def units_of(Q: Array) -> Array:
    """√Qᵣᵣ, one over it, and the least coordinate; where Q knows nothing of one 0, 1 and none: its load shows."""
    out = np.empty((3, Q.shape[0]))
    for r in range(Q.shape[0]):
        known = Q[r, r] > 0.0
        out[0, r] = sqrt(Q[r, r]) if known else 0.0
        out[1, r] = 1.0 / out[0, r] if known else 1.0
        out[2, r] = 0.0 if known else -inf
    return out
