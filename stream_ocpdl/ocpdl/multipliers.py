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
from typing import NamedTuple

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices
from stream_ocpdl.ocpdl.compiled import kernel, part
from stream_ocpdl.ocpdl.lanes import (
    GROUP,
    aligned,
    below,
    fma,
    lane,
    larger,
    load,
    load_some,
    prefetch,
    put,
    smaller,
    some,
    spread,
    store,
    store_some,
    take,
    take_each,
    total,
)
from stream_ocpdl.ocpdl.panels import add_product_and_ask

PATIENCE = 6
"""Rounds before a row is left to others; most take one or two."""

STEEPEST = 1e4
"""Where the others take all but so small a part of a coordinate's curvature, Q is too flat for its inverse."""

TINIEST = 5e-324
"""Below it is zero and what is less."""

PLACES = np.array([sorted(range(GROUP), key=lambda j: ~bits >> j & 1) for bits in range(1 << GROUP)])
"""Which bits of a number are set, one after the other, and behind them which are not."""

COUNTS = np.array([bits.bit_count() for bits in range(1 << GROUP)])
"""How many are set."""

LINES = 4
"""Lines of memory that are asked for at a time."""

HARD = -1
"""The rounds of a row that is left to others."""


@kernel
def inverse_of(Q: Array) -> Array:
    """Q⁻¹ (R, whole registers), zeros behind column R; of no rows where Q is too flat.

    Two coordinates at a time change sides with their loads, in place (Gauss and Jordan; Q is positive, so that no
    pivot need be looked for). One of which Q knows nothing, Qᵣᵣ = 0, has zeros: it is left where it is. Where R is odd,
    one more takes part that is not there.
    """
    R, registers = Q.shape[0], -(-Q.shape[0] // GROUP)
    n = R + R % 2
    out, shares = aligned(n, registers), np.empty((2, n))
    M = out.reshape(n, registers * GROUP)
    M[:, :] = 0.0
    for i in range(R):
        for r in range(R):
            M[i, r] = Q[i, r]
    for r in range(n):
        if r >= R or not Q[r, r] > 0.0:
            M[r, :] = 0.0
            M[:, r] = 0.0
            M[r, r] = 1.0
    for k in range(0, n, 2):
        first, cross = M[k, k], M[k, k + 1]
        second = M[k + 1, k + 1] - cross * (cross / first)
        if not (is_steep(first, Q, k) and is_steep(second, Q, k + 1)):
            return M[:0]
        for i in range(n):
            shares[0, i], shares[1, i] = -M[i, k], -M[i, k + 1]
            M[i, k], M[i, k + 1] = 0.0, 0.0
        shares[:, k : k + 2] = 0.0
        M[k, k], M[k + 1, k + 1] = 1.0, 1.0
        second = 1.0 / second
        cross = -second * (cross / first)
        change_sides(out, k, 1.0 / first + cross * (cross / second), cross, second, shares)
    for r in range(n):
        if r >= R or not Q[r, r] > 0.0:
            M[r, r] = 0.0
    return M[:R]


@part
def is_steep(pivot: float, Q: Array, r: int) -> bool:
    """Whether enough of a coordinate's curvature is left; there is nothing to ask of one that is not there."""
    return bool(r >= Q.shape[0] or pivot * STEEPEST > Q[r, r] or Q[r, r] == 0.0)


@part
def change_sides(out: Array, k: int, first: float, cross: float, second: float, shares: Array) -> None:
    """Rows k and k + 1 times the inverse of their block of M, and so much of them added to each row."""
    for m in range(out.shape[1]):
        above, beneath = take(out, k, m), take(out, k + 1, m)
        top = fma(spread(first), above, spread(cross) * beneath)
        bottom = fma(spread(cross), above, spread(second) * beneath)
        for i in range(out.shape[0]):
            row = fma(spread(shares[0, i]), top, take(out, i, m))
            put(out, i, m, fma(spread(shares[1, i]), bottom, row))
        put(out, k, m, top)
        put(out, k + 1, m, bottom)


class Room(NamedTuple):
    """Memory in which `on_faces` solves some rows at a time."""

    inverse: Array
    """Q⁻¹ and, below and behind it, the identity: one that is not there, but takes part, is on its diagonal."""
    least: Array
    """A coordinate below this is zero; of one of which Q knows nothing that is never said. Whole registers."""
    free: Array
    """Free minimisers, a row each; zeros behind them."""
    point: Array
    """A minimiser on a face, with whole registers."""
    zero: Indices
    """Which coordinates of a row are zero."""
    size: Indices
    """How many."""
    waiting: Indices
    """Rows that are not done."""
    order: Indices
    """The same while they are sorted."""
    ends: Indices
    """Where rows with so many zeros are among them."""
    rows: Indices
    """Where the rows of the inverse that a register full of rows needs begin."""
    columns: Indices
    """Where in a row its columns are."""
    places: Indices
    """Where the rows' free minimisers are."""
    system: Array
    """G[Z, Z] of a register full of rows, and below it −u[Z], then μ."""


class Soon(NamedTuple):
    """Memory that is wanted after the rows, and is asked for while they are solved, some lines at a time.

    Solving rows needs no memory, and what comes then does nothing but wait for it.
    """

    memory: BigArray
    at: Indices
    """Its first place that was not asked for, counted flat, and the first that is not wanted."""


@kernel
def spaces(inverse: Array, count: int) -> Room:
    """Memory for so many rows; none where there is no inverse."""
    (R, width), count = inverse.shape, count if inverse.shape[0] > 0 else 0
    least, half = np.full(width, -inf), R // 2
    stride = -(-(R + half + 1) // GROUP) * GROUP
    wider = aligned(R + half + 1, stride // GROUP).reshape(R + half + 1, stride)
    free = aligned(count, stride // GROUP).reshape(count, stride)
    wider[:, :] = 0.0
    free[:, :] = 0.0
    for r in range(R):
        for m in range(R):
            wider[r, m] = inverse[r, m]
        if inverse[r, r] > 0.0:
            least[r] = TINIEST
    for r in range(R, R + half + 1):
        wider[r, r] = 1.0
    return Room(
        inverse=wider,
        least=least,
        free=free,
        point=aligned(1, width // GROUP).reshape(width),
        zero=np.empty((count, R + GROUP), np.int64),
        size=np.empty(count, np.int64),
        waiting=np.empty(count, np.int64),
        order=np.empty(count, np.int64),
        ends=np.empty(half + 2, np.int64),
        rows=np.empty((half + 1, GROUP), np.int64),
        columns=np.empty((half + 1, GROUP), np.int64),
        places=np.empty(GROUP, np.int64),
        system=aligned(half + 1, max(half, 1)),
    )


@part
def on_faces(inverse: Array, loads: Array, start: Array, Y: Array, rounds: Indices, room: Room, soon: Soon) -> None:
    """The first columns of loads (R, ·, GROUP) → minimisers, rows of Y, and rounds; or HARD, and no row.

    In each round rows are solved a register full at once, and those that are not done wait for the next.
    """
    R, free, waiting = inverse.shape[0], room.free, room.waiting
    free[:, :] = 0.0
    add_product_and_ask(R, loads.reshape(R, free.shape[0]), room.inverse[:R], 0.0, free, soon.memory, soon.at)
    for r in range(R):
        if not inverse[r, r] > 0.0:  # it stays where it is: nothing is ever added to it
            for i in range(Y.shape[0]):
                free[i, r] = start[i, r]
    size = first_faces(start, Y, rounds, room)
    for used in range(1, PATIENCE + 1):
        left = 0
        sort_by_size(size, room)
        for first in range(0, size, GROUP):
            last = min(first + GROUP, size)
            multiply(first, last, room, soon)
            for j in range(last - first):
                i = waiting[first + j]
                done = to_face(i, j, room, soon)
                rounds[i] = used if done else HARD
                if done:
                    for r in range(0, R, GROUP):
                        store_some(Y, i * R + r, R - r, load(room.point, r))
                elif next_face(i, j, room):
                    waiting[left] = i
                    left += 1
        size = left


@part
def ask(soon: Soon) -> None:
    """Ask for the next few lines: more at once would have to wait for each other."""
    at, line = soon.at[0], 64 // soon.memory.itemsize
    if at < soon.at[1]:
        for m in range(LINES):
            prefetch(soon.memory, at + m * line)
        soon.at[0] = at + LINES * line


@part
def first_faces(start: Array, Y: Array, rounds: Indices, room: Room) -> int:
    """The faces on which the start is; those with many zeros are HARD, the others wait; how many.

    As many rows behind these are asked for, of the start and of Y: those of the next tile.
    """
    R, waiting = start.shape[1], 0
    for i in range(start.shape[0]):
        size = 0
        for r in range(0, R, 8):
            prefetch(start, (start.shape[0] + i) * R + r)
            prefetch(Y, (start.shape[0] + i) * R + r)
        for r in range(0, R, GROUP):
            y = load_some(start, i * R + r, R - r)
            size = join(below(y, load(room.least, r)), r, i, size, room)
        room.size[i] = size
        rounds[i] = HARD
        room.waiting[waiting] = i
        waiting += 2 * size <= R
    return waiting


@part
def join(bits: int, r: int, i: int, size: int, room: Room) -> int:
    """Of the coordinates from r on, those whose bit is set join the `size` that are zero in row i; how many are then.

    Without a branch, of which nobody could guess the outcome.
    """
    for j in range(GROUP):
        room.zero[i, size + j] = r + PLACES[bits, j]
    return size + int(COUNTS[bits])


@part
def multiply(first: int, last: int, room: Room, soon: Soon) -> None:
    """μ of the waiting rows [first, last), one to a lane → the last row of the system.

    G[Z, Z] = CDCᵀ, column by column; −u[Z], as one row more, becomes C⁻¹ of itself on the way. A row whose Z is smaller
    than that of others, and a lane without one, has the identity and zeros instead.
    """
    most = gather(first, last, room, soon)
    M, bottom = room.system, room.system.shape[0] - 1
    for k in range(most):
        ask(soon)
        scale = spread(1.0) / take(M, k, k)
        for i in range(k + 1, most):
            row = take(M, i, k)
            share = row * scale
            for j in range(k + 1, i):
                put(M, i, j, take(M, i, j) - row * take(M, j, k))
            put(M, i, i, take(M, i, i) - row * share)
            put(M, i, k, share)
        row = take(M, bottom, k)
        for j in range(k + 1, most):
            put(M, bottom, j, take(M, bottom, j) - row * take(M, j, k))
        put(M, bottom, k, row * scale)
    for k in range(most - 1, 0, -1):
        multiplier = take(M, bottom, k)
        for m in range(k):
            put(M, bottom, m, take(M, bottom, m) - take(M, k, m) * multiplier)


@part
def sort_by_size(count: int, room: Room) -> None:
    """The waiting rows in the order of their zeros: those that are solved together then have about as many."""
    size, waiting, ends = room.size, room.waiting, room.ends
    ends[:] = 0
    for j in range(count):
        room.order[j] = waiting[j]
        ends[size[waiting[j]] + 1] += 1
    for k in range(1, ends.size):
        ends[k] += ends[k - 1]
    for j in range(count):
        i = room.order[j]
        waiting[ends[size[i]]] = i
        ends[size[i]] += 1


@part
def gather(first: int, last: int, room: Room, soon: Soon) -> int:
    """G[Z, Z] and −u[Z] of the waiting rows [first, last) → the system; the size of the largest, which is the last."""
    G, M, most = room.inverse, room.system, room.size[room.waiting[last - 1]]
    R, stride, bottom = room.zero.shape[1] - GROUP, G.shape[1], M.shape[0] - 1
    for j in range(GROUP):
        i = room.waiting[min(first + j, last - 1)]
        size = room.size[i] if first + j < last else 0
        room.places[j] = i * stride
        for k in range(most):
            r = room.zero[i, k] if k < size else R + k
            room.rows[k, j], room.columns[k, j] = r * stride, r
    for k in range(most):
        ask(soon)
        for m in range(k + 1):
            put(M, k, m, take_each(G, room.rows, k * GROUP, room.columns, m * GROUP))
        put(M, bottom, k, spread(0.0) - take_each(room.free, room.places, 0, room.columns, k * GROUP))
    return int(most)


@part
def to_face(i: int, j: int, room: Room, soon: Soon) -> bool:
    """Row i, whose μ is in lane j, on its face → point; whether neither is below zero."""
    zero, size, M, point, stride = room.zero, room.size[i], room.system, room.point, room.inverse.shape[1]
    bottom, lowest, good = M.shape[0] - 1, spread(0.0), True
    for r in range(0, point.size, GROUP):
        y = load(room.free, i * stride + r)
        ask(soon)
        for k in range(size):
            y = fma(spread(M[bottom, k, j]), load(room.inverse, zero[i, k] * stride + r), y)
        store(point, r, y)
    for k in range(size):
        good &= M[bottom, k, j] >= 0.0
        point[zero[i, k]] = 0.0
    for r in range(0, point.size, GROUP):
        lowest = smaller(lowest, load(point, r))
    return good and not some(spread(0.0) - lowest)


@part
def next_face(i: int, j: int, room: Room) -> bool:
    """Coordinates whose μ, in lane j, is below zero leave, and those whose y is join; whether they are few enough."""
    zero, M, kept, bottom = room.zero, room.system, 0, room.system.shape[0] - 1
    for k in range(room.size[i]):
        zero[i, kept] = zero[i, k]
        kept += M[bottom, k, j] >= 0.0
    for r in range(0, room.point.size, GROUP):
        kept = join(below(load(room.point, r), spread(0.0)), r, i, kept, room)
    room.size[i] = kept
    return bool(kept <= bottom)


@part
def judge(Q: Array, units: Array, now: Array, tolerance: float, loads: Array, rounds: Indices, soon: Soon) -> int:
    """Rows of which now (R, ·, GROUP) is no minimiser to the tolerance become HARD; how many are. Loads are written.

    The residual is that of `rowgroup.judge`, in units in which Q has a unit diagonal (`units_of`). A coordinate of
    which Q knows nothing must have no load either.
    """
    R, registers, _ = now.shape
    width = registers * GROUP
    add_product_and_ask(width, Q, now.reshape(R, width), -1.0, loads.reshape(R, width), soon.memory, soon.at)
    zero, hard = spread(0.0), 0
    for m in range(registers):
        bad, length = zero, zero
        ask(soon)
        for r in range(R):
            y = load(now, r * width + m * GROUP) * spread(units[0, r])
            miss = y - larger(y - load(loads, r * width + m * GROUP) * spread(units[1, r]), spread(units[2, r]))
            length = fma(y, y, length)
            bad = fma(miss, miss, bad)
        left = bad - spread(tolerance**2) * length
        if some(left) or not total(left) <= 0.0:  # a NaN is neither above zero nor below
            for j in range(min(GROUP, rounds.size - m * GROUP)):
                if not lane(left, j) <= 0.0:
                    rounds[m * GROUP + j] = HARD
    for i in range(rounds.size):
        hard += rounds[i] == HARD
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
