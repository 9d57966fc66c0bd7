"""The sub-problem row by row, compiled: min of yQyᵀ − 2⟨y, l⟩ over 0 ≤ y ≤ upper for each row l of L.

All of it in units in which Q has a unit diagonal, S, so that an atom of tiny norm is coded as exactly as any other.

Rows are solved a register full at once (`rowgroup`). Those that need another round gather in a second group: no lane
waits for its neighbours. A row on which this does not end soon, whose face is nearly flat, or that meets its upper
bound, is solved from its start by a method that always ends (`onerow`).

What happens to a row never depends on the rows beside it. So its bits depend neither on the lane it sits in nor on the
range it is part of.
"""

from math import sqrt

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.compiled import kernel, part, written_in
from stream_ocpdl.ocpdl.lanes import GROUP, aligned, put, spread
from stream_ocpdl.ocpdl.multipliers import HARD
from stream_ocpdl.ocpdl.onerow import solve_row
from stream_ocpdl.ocpdl.rowgroup import (
    BAD,
    CHANGED,
    FACE,
    FLAT,
    LEFT,
    LENGTH,
    LOAD,
    OUTSIDE,
    PIVOT,
    POINT,
    ROW,
    UNKNOWN,
    USED,
    faces,
    factor_all,
    gradients,
    guess,
    newton,
    start,
)

PATIENCE = 12
"""Rounds before a row is left to `solve_row`; most take one to five."""


@written_in
def solve_left(
    hard: int, Q: Array, L: Array, start: Array, upper: float, tolerance: float, Y: Array, rounds: Indices
) -> None:
    """The rows that are HARD, so many of them, from their start by `solve_rows`."""
    room, which = np.empty((2, hard, Q.shape[0])), np.empty((2, hard), np.int64)
    k = 0
    for i in range(Y.shape[0]):
        if rounds[i] == HARD:
            for r in range(Q.shape[0]):
                room[0, k, r], room[1, k, r] = start[i, r], L[i, r]
            which[0, k] = i
            k += 1
    solve_rows(0, hard, Q, room[1], upper, tolerance, room[0], which[1])
    for k in range(hard):
        rounds[which[0, k]] = which[1, k]
        for r in range(Q.shape[0]):
            Y[which[0, k], r] = room[0, k, r]


@kernel
def solve_rows(lo: int, hi: int, Q: Array, L: Array, upper: float, tolerance: float, Y: Array, rounds: Indices) -> None:
    """min of yQyᵀ − 2⟨y, l⟩ over 0 ≤ y ≤ upper for each row l of L in [lo, hi); Y holds the start, then the minimisers.

    The start is in the box. rounds[i] says after how many rounds it ended. There is at least one: where Q is nearly
    flat, a start may satisfy the tolerance and still be far from the minimiser. Only a start that satisfies it exactly
    stays.
    """
    n = Q.shape[0] + Q.shape[0] % 2  # a factor is made two rows at a time: where R is odd, a flat atom is added
    frame = np.empty((n + 3, n))
    S, unit, inverse, bound = frame[:n], frame[n], frame[n + 1], frame[n + 2]
    to_unit_diagonal(Q, upper, S, unit, inverse, bound)
    room = aligned(2 * n + 21, n)  # one piece of memory, since a piece takes as long as a sweep
    C, C_all, work, work_all = room[:n], room[n : 2 * n], room[2 * n : 2 * n + 4], room[2 * n + 4 : 2 * n + 8]
    fresh, waiting, verdict = room[2 * n + 8 : 2 * n + 12], room[2 * n + 12 : 2 * n + 16], room[2 * n + 16 :]
    labels, which = np.full((6, GROUP), -1), np.empty(n, np.int64)
    tags, later = labels[:3], labels[3:]
    fresh[:], waiting[:] = 0.0, 0.0
    first, size, hard, ready = lo, 0, 0, UNKNOWN
    while first < hi or size > 0:
        if first < hi and size < GROUP:
            enter(first, min(first + GROUP, hi), Y, L, unit, inverse, bound, fresh, tags)
            if start(S, bound, fresh, tags, verdict, rounds):
                if ready == UNKNOWN:
                    ready = factor_all(S, fresh, which, C_all, work_all, verdict)
                guess(S, fresh, verdict, which, C_all, work_all, ready)
            faces(S, fresh)
            newton(S, bound, C, work, which, fresh, verdict)
            hard += leave(fresh, tags, verdict, tolerance, upper, inverse, Y, rounds)
            first += GROUP
        else:
            gradients(S, waiting)
            newton(S, bound, C, work, which, waiting, verdict)
            hard += leave(waiting, later, verdict, tolerance, upper, inverse, Y, rounds)
        size = regroup(fresh, tags, waiting, later)
    if hard > 0:
        for i in range(lo, hi):
            if rounds[i] == HARD:
                solve_row(i, S, unit, inverse, bound, L, upper, tolerance, Y, rounds)


@kernel
def to_unit_diagonal(Q: Array, upper: float, S: Array, unit: Array, inverse: Array, bound: Array) -> None:
    """Q (R, R) in units √Qᵣᵣ → S (n, n) with a unit diagonal, the units, their inverses and the upper bounds (n).

    An atom with Qᵣᵣ = 0 keeps its own unit. Atoms from R on are flat.
    """
    R = Q.shape[0]
    for r in range(unit.size):
        unit[r] = sqrt(Q[r, r]) if r < R and Q[r, r] > 0.0 else 1.0
        inverse[r] = 1.0 / unit[r]
        bound[r] = upper * unit[r]
    S[:, :] = 0.0
    for r in range(R):
        for s in range(R):
            S[r, s] = Q[r, s] * inverse[r] * inverse[s]


@part
def enter(
    first: int, last: int, Y: Array, L: Array, unit: Array, inverse: Array, bound: Array, group: Array, tags: Indices
) -> None:
    """The rows [first, last) take the lanes of a group; lanes that stay empty have zeros."""
    for r in range(group.shape[1]):
        put(group, POINT, r, spread(0.0))
        put(group, LOAD, r, spread(0.0))
    tags[ROW, :] = -1
    for j in range(last - first):
        tags[ROW, j], tags[USED, j], tags[LEFT, j] = first + j, 0, PATIENCE
        for r in range(L.shape[1]):
            group[POINT, r, j] = min(max(Y[first + j, r] * unit[r], 0.0), bound[r])
            group[LOAD, r, j] = L[first + j, r] * inverse[r]


@part
def move(source: Array, labels: Indices, j: int, group: Array, tags: Indices, k: int) -> None:
    """Lane j of one group → lane k of another."""
    for t in range(3):
        tags[t, k] = labels[t, j]
    for r in range(source.shape[1]):
        group[POINT, r, k] = source[POINT, r, j]
        group[LOAD, r, k] = source[LOAD, r, j]
        group[FACE, r, k] = source[FACE, r, j]


@part
def regroup(fresh: Array, tags: Indices, waiting: Array, later: Indices) -> int:
    """Rows that wait move to the first lanes, and fresh ones that need another round join them; how many wait then.

    Fresh rows for which there is no lane stay where they are: no others enter until all of them wait.
    """
    size = 0
    for j in range(GROUP):
        if later[ROW, j] >= 0:
            if size < j:
                move(waiting, later, j, waiting, later, size)
                later[ROW, j] = -1
            size += 1
    for j in range(GROUP):
        if tags[ROW, j] >= 0 and size < GROUP:
            move(fresh, tags, j, waiting, later, size)
            tags[ROW, j] = -1
            size += 1
    return size


@part
def leave(
    group: Array,
    tags: Indices,
    verdict: Array,
    tolerance: float,
    upper: float,
    inverse: Array,
    Y: Array,
    rounds: Indices,
) -> int:
    """After a round: rows that are done leave their lanes for Y, and those that had their rounds as HARD; how many.

    A face that stays is the right one: a point that is not exact by then gets a second step on it, as a refinement.
    """
    hard = 0
    for j in range(GROUP):
        i = tags[ROW, j]
        if i < 0:
            continue
        tags[USED, j] += 1
        tags[LEFT, j] -= 1
        steep, inside = verdict[PIVOT, 0, j] >= FLAT, verdict[OUTSIDE, 0, j] <= 0.0
        if steep and inside and verdict[BAD, 0, j] <= tolerance**2 * verdict[LENGTH, 0, j]:
            for r in range(Y.shape[1]):
                Y[i, r] = min(group[POINT, r, j] * inverse[r], upper)
            rounds[i] = tags[USED, j]
            tags[ROW, j] = -1
            continue
        if verdict[CHANGED, 0, j] == 0.0:
            tags[LEFT, j] = min(tags[LEFT, j], 1 if inside else 0)
        if tags[LEFT, j] <= 0 or not steep:
            rounds[i] = HARD
            tags[ROW, j] = -1
            hard += 1
    return hard
