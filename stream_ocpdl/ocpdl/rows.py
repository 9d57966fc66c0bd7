"""The sub-problem row by row, compiled: min of yQyᵀ − 2⟨y, l⟩ over 0 ≤ y ≤ upper for each row l of L.

All of it in units in which Q has a unit diagonal, S, so that an atom of tiny norm is coded as exactly as any other.

**Eight rows at once.** A row sits in a lane of a `Lanes`, the vector register of GROUP doubles, and a *group* holds
GROUP rows: their points y, loads l, gradients yS − l and faces, each (n, GROUP). The start tells the face of the box on
which the minimiser probably lies, or, where there is none, the free minimiser and sweeps of coordinate descent do. A
round then finds the minimiser of the face, by a Cholesky factor of its own in each lane, and either this is the row's
minimiser, or it says which coordinates to drop, those below zero, and which to free, those whose gradient is below
zero: a face for the next round (block pivoting; Kim & Park 2011). Rows that need another round gather in a second
group, so that no lane waits for its neighbours.

**One row.** A row on which this does not end soon, whose face is nearly flat, or that meets its upper bound, is solved
from its start by a method that always ends: see `solve_row`.

Every operation on lanes is elementwise, and what happens to a row never depends on the rows beside it. So its bits
depend neither on the lane it sits in nor on the range it is part of.
"""

from math import inf, sqrt

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.compiled import kernel, part
from stream_ocpdl.ocpdl.lanes import GROUP, above, aligned, larger, put, smaller, some, spread, take

POINT, LOAD, SLOPE, FACE = 0, 1, 2, 3
"""What a group (4, n, GROUP) has of its rows: y, l, half the gradient yS − l, and 1 where a coordinate is free, else 0.
Where it is not free y is zero, unless the atom is flat."""

ROW, USED, LEFT = 0, 1, 2
"""And its tags (3, GROUP): which row is in the lane, −1 for none; the rounds it took, and those it may still take."""

BAD, LENGTH, OUTSIDE, CHANGED, PIVOT = 0, 1, 2, 3, 4
"""What a verdict (5, 1, GROUP) says: the squares of residual and length, how far the point is out of the box, how many
coordinates join or leave the face, and the smallest pivot of the face."""

STEP, SCALE, TOP, BOTTOM = 0, 1, 2, 3
"""The work of a round (4, n, GROUP): the step on the face, and of the factor CDCᵀ 1/D and two rows of CD."""

UNKNOWN, SHALLOW, STEEP = 0, 1, 2
"""What is known of the factor of all of S."""

HARD = -1
"""The rounds of a row that waits for `solve_row`."""

SWEEPS, COLD = 3, 10
"""Sweeps before the first round of a row without a start: from its free minimiser, or else from zero."""

PATIENCE = 12
"""Rounds before a row is left to `solve_row`; most take one to five."""

FLAT = 1e-12
"""A face with a pivot below this is left to `solve_row`, which knows a ridge."""


# ── all rows ───────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── a group of rows ────────────────────────────────────────────────────────────────────────────────────────────


@part
def start(S: Array, bound: Array, group: Array, tags: Indices, verdict: Array, rounds: Indices) -> bool:
    """Whether a row has no start, so that its face must be guessed; CHANGED says which. A start that is exact leaves.

    A start has the face of the minimiser more often than not: loadings move little in a step.
    """
    gradients(S, group)
    judge(S, bound, group, verdict)
    some_cold = False
    for j in range(GROUP):
        if tags[ROW, j] >= 0 and verdict[BAD, 0, j] == 0.0:
            rounds[tags[ROW, j]] = 0
            tags[ROW, j] = -1
        cold = tags[ROW, j] >= 0 and verdict[LENGTH, 0, j] == 0.0
        verdict[CHANGED, 0, j] = 1.0 if cold else 0.0
        some_cold |= cold
    for r in range(S.shape[0]):
        if S[r, r] <= 0.0:
            put(group, POINT, r, drawn(bound[r], take(group, POINT, r), take(group, SLOPE, r)))
    return some_cold


@part
def factor_all(S: Array, group: Array, which: Indices, C: Array, work: Array, verdict: Array) -> int:
    """The factor of all of S, the same in each lane; STEEP, or SHALLOW if a pivot is too small for it to mean much."""
    for r in range(S.shape[0]):
        which[r] = r
        put(group, FACE, r, spread(1.0 if S[r, r] > 0.0 else 0.0))
    factor(S, group, which, C, work, verdict)
    return STEEP if verdict[PIVOT, 0, 0] >= FLAT else SHALLOW


@part
def guess(S: Array, group: Array, verdict: Array, which: Indices, C: Array, work: Array, ready: int) -> None:
    """A guess for the rows without a start: the minimiser over all of space, and what sweeps of coordinate descent make
    of its positive part. While they last SLOPE holds y − slope, the point to which each coordinate would go by itself.
    """
    cold, count = take(verdict, CHANGED, 0), COLD
    if ready == STEEP:
        count = SWEEPS
        for r in range(S.shape[0]):
            which[r] = r
            put(group, FACE, r, cold)
        solve(group, which, C, work)
        for r in range(S.shape[0]):
            if S[r, r] > 0.0:
                put(group, POINT, r, take(group, POINT, r) + larger(take(work, STEP, r), spread(0.0)))
        gradients(S, group)
    for r in range(S.shape[0]):
        put(group, SLOPE, r, take(group, POINT, r) - take(group, SLOPE, r))
    for _ in range(count):
        sweep(S, group, cold)
    gradients(S, group)  # anew, so that the rows beside them, which did not move, keep theirs to the last bit


@part
def faces(S: Array, group: Array) -> None:
    """The coordinates above zero are free."""
    for r in range(S.shape[0]):
        put(group, FACE, r, above(take(group, POINT, r), spread(0.0 if S[r, r] > 0.0 else inf)))


@part
def drawn(bound: float, y: Array, slope: Array) -> Array:
    """The bound to which a flat coordinate is drawn, or where it is."""
    y = y - above(slope, spread(0.0)) * y
    if bound < inf:
        up = above(spread(0.0), slope)
        y = y - up * y + up * spread(bound)
    return y


@part
def gradients(S: Array, group: Array) -> None:
    """yS − l → slope; eight sums run at a time, since each has to wait for its own last term."""
    n = S.shape[0]
    for r in range(0, n - n % 8, 8):
        a, b = spread(0.0) - take(group, LOAD, r), spread(0.0) - take(group, LOAD, r + 1)
        c, d = spread(0.0) - take(group, LOAD, r + 2), spread(0.0) - take(group, LOAD, r + 3)
        e, f = spread(0.0) - take(group, LOAD, r + 4), spread(0.0) - take(group, LOAD, r + 5)
        g, h = spread(0.0) - take(group, LOAD, r + 6), spread(0.0) - take(group, LOAD, r + 7)
        for s in range(n):
            y = take(group, POINT, s)
            a, b = a + spread(S[r, s]) * y, b + spread(S[r + 1, s]) * y
            c, d = c + spread(S[r + 2, s]) * y, d + spread(S[r + 3, s]) * y
            e, f = e + spread(S[r + 4, s]) * y, f + spread(S[r + 5, s]) * y
            g, h = g + spread(S[r + 6, s]) * y, h + spread(S[r + 7, s]) * y
        put(group, SLOPE, r, a)
        put(group, SLOPE, r + 1, b)
        put(group, SLOPE, r + 2, c)
        put(group, SLOPE, r + 3, d)
        put(group, SLOPE, r + 4, e)
        put(group, SLOPE, r + 5, f)
        put(group, SLOPE, r + 6, g)
        put(group, SLOPE, r + 7, h)
    for r in range(n - n % 8, n, 2):
        a, b = spread(0.0) - take(group, LOAD, r), spread(0.0) - take(group, LOAD, r + 1)
        for s in range(n):
            y = take(group, POINT, s)
            a = a + spread(S[r, s]) * y
            b = b + spread(S[r + 1, s]) * y
        put(group, SLOPE, r, a)
        put(group, SLOPE, r + 1, b)


@part
def sweep(S: Array, group: Array, moves: Array) -> None:
    """Each coordinate to its own minimiser over y ≥ 0 in turn, in the lanes where `moves` is 1, not 0.

    With a unit diagonal that is y − slope, if not below zero, and does not depend on y itself. Two coordinates at a
    time, so that the others are written half as often.
    """
    zero = spread(0.0)
    for r in range(0, S.shape[0], 2):
        a, b, goal, next_goal = zero, zero, take(group, SLOPE, r), take(group, SLOPE, r + 1)
        if S[r, r] > 0.0:
            y = take(group, POINT, r)
            a = (larger(goal, zero) - y) * moves
            put(group, POINT, r, y + a)
            next_goal = next_goal - a * spread(S[r, r + 1])
        if S[r + 1, r + 1] > 0.0:
            y = take(group, POINT, r + 1)
            b = (larger(next_goal, zero) - y) * moves
            put(group, POINT, r + 1, y + b)
            goal = goal - b * spread(S[r, r + 1])
        for s in range(S.shape[0]):
            put(group, SLOPE, s, take(group, SLOPE, s) - a * spread(S[r, s]) - b * spread(S[r + 1, s]))
        put(group, SLOPE, r, goal)
        put(group, SLOPE, r + 1, next_goal)


@part
def newton(S: Array, bound: Array, C: Array, work: Array, which: Indices, group: Array, verdict: Array) -> None:
    """Each row to the minimiser on its face, whether that is in the box or not; then its verdict and its next face."""
    size = free_somewhere(group, which)
    factor(S, group, which[:size], C, work, verdict)
    solve(group, which[:size], C, work)
    for k in range(size):
        put(group, POINT, which[k], take(group, POINT, which[k]) + take(work, STEP, k))
    gradients(S, group)
    judge(S, bound, group, verdict)


@part
def free_somewhere(group: Array, which: Indices) -> int:
    """The coordinates that are free in some lane, and one more if they are odd in number → which; how many.

    Others would only add exact zeros to what follows, so that no lane notices whether they are there.
    """
    size, other = 0, 0
    for r in range(which.size):
        if some(take(group, FACE, r)):
            which[size] = r
            size += 1
        else:
            other = r
    if size % 2 == 1:
        which[size] = other
        size += 1
    return size


@part
def judge(S: Array, bound: Array, group: Array, verdict: Array) -> None:
    """BAD, LENGTH, OUTSIDE and CHANGED → verdict; the next face, and its point, which is not below zero → group.

    The residual is ‖y − Π(y − slope)‖, with a unit diagonal at least that of the step 1/‖S‖. A flat atom has none.
    """
    zero, one = spread(0.0), spread(1.0)
    bad, length, outside, changed = zero, zero, zero, zero
    for r in range(S.shape[0]):
        if S[r, r] > 0.0:
            y, slope, face, top = take(group, POINT, r), take(group, SLOPE, r), take(group, FACE, r), spread(bound[r])
            miss = y - smaller(larger(y - slope, zero), top)
            bad = bad + miss * miss
            length = length + y * y
            outside = larger(outside, larger(zero - y, y - top))
            new = face * above(y, zero) + (one - face) * above(zero, slope)
            changed = changed + (new - face) * (new - face)
            put(group, FACE, r, new)
            put(group, POINT, r, larger(y, zero))
    put(verdict, BAD, 0, bad)
    put(verdict, LENGTH, 0, length)
    put(verdict, OUTSIDE, 0, outside)
    put(verdict, CHANGED, 0, changed)


@part
def factor(S: Array, group: Array, which: Indices, C: Array, work: Array, verdict: Array) -> None:
    """S on each lane's face, and the identity elsewhere, = CDCᵀ → C (below its diagonal of ones), 1/D → SCALE; PIVOT.

    Two rows of C at a time, against four rows above them: eight sums run for six registers that are read. A sum takes
    its terms in ascending order, whatever block it is in.
    """
    one = spread(1.0)
    smallest = one
    for k in range(0, which.size, 2):
        i, j = which[k], which[k + 1]
        f, g = take(group, FACE, i), take(group, FACE, j)
        first, second = one + f * spread(S[i, i] - 1.0), one + g * spread(S[j, j] - 1.0)
        cross = spread(S[j, i]) * (f * g)
        q = 0
        while q < k:
            m, o = which[q], which[q + 1]
            u, v = take(group, FACE, m), take(group, FACE, o)
            a, b = spread(S[i, m]) * (f * u), spread(S[i, o]) * (f * v)
            c, d = spread(S[j, m]) * (g * u), spread(S[j, o]) * (g * v)
            if q + 2 < k:
                m, o = which[q + 2], which[q + 3]
                u, v = take(group, FACE, m), take(group, FACE, o)
                e, h = spread(S[i, m]) * (f * u), spread(S[i, o]) * (f * v)
                x, y = spread(S[j, m]) * (g * u), spread(S[j, o]) * (g * v)
                for s in range(q):
                    top, bottom = take(work, TOP, s), take(work, BOTTOM, s)
                    left, right = take(C, q, s), take(C, q + 1, s)
                    a, b, c, d = a - top * left, b - top * right, c - bottom * left, d - bottom * right
                    left, right = take(C, q + 2, s), take(C, q + 3, s)
                    e, h, x, y = e - top * left, h - top * right, x - bottom * left, y - bottom * right
                left = take(C, q + 1, q)
                b, d = b - a * left, d - c * left
                left, right = take(C, q + 2, q), take(C, q + 2, q + 1)
                e, x = e - a * left - b * right, x - c * left - d * right
                left, right = take(C, q + 3, q), take(C, q + 3, q + 1)
                h, y = h - a * left - b * right, y - c * left - d * right
                left = take(C, q + 3, q + 2)
                h, y = h - e * left, y - x * left
                first, cross, second = column(C, work, k, q, a, c, first, cross, second)
                first, cross, second = column(C, work, k, q + 1, b, d, first, cross, second)
                first, cross, second = column(C, work, k, q + 2, e, x, first, cross, second)
                first, cross, second = column(C, work, k, q + 3, h, y, first, cross, second)
                q += 4
            else:
                for s in range(q):
                    top, bottom = take(work, TOP, s), take(work, BOTTOM, s)
                    left, right = take(C, q, s), take(C, q + 1, s)
                    a, b, c, d = a - top * left, b - top * right, c - bottom * left, d - bottom * right
                left = take(C, q + 1, q)
                b, d = b - a * left, d - c * left
                first, cross, second = column(C, work, k, q, a, c, first, cross, second)
                first, cross, second = column(C, work, k, q + 1, b, d, first, cross, second)
                q += 2
        scale = one / first
        left = cross * scale
        second = second - cross * left
        put(work, SCALE, k, scale)
        put(work, SCALE, k + 1, one / second)
        put(C, k + 1, k, left)
        smallest = smaller(smaller(smallest, first), second)
    put(verdict, PIVOT, 0, smallest)


@part
def column(
    C: Array, work: Array, k: int, q: int, top: Array, bottom: Array, first: Array, cross: Array, second: Array
) -> tuple[Array, Array, Array]:
    """Column q of rows k and k + 1 of CD is found: it goes to TOP and BOTTOM, over D to C, and into the two pivots."""
    scale = take(work, SCALE, q)
    left, right = top * scale, bottom * scale
    put(work, TOP, q, top)
    put(work, BOTTOM, q, bottom)
    put(C, k, q, left)
    put(C, k + 1, q, right)
    return first - top * left, cross - bottom * left, second - bottom * right


@part
def solve(group: Array, which: Indices, C: Array, work: Array) -> None:
    """−(CDCᵀ)⁻¹ slope on each lane's face, and zero elsewhere → STEP."""
    n = which.size
    for k in range(n):
        put(work, STEP, k, spread(0.0) - take(group, FACE, which[k]) * take(group, SLOPE, which[k]))
    for q in range(0, n, 2):
        a = take(work, STEP, q)
        b = take(work, STEP, q + 1) - take(C, q + 1, q) * a
        put(work, STEP, q + 1, b)
        for k in range(q + 2, n):
            put(work, STEP, k, take(work, STEP, k) - take(C, k, q) * a - take(C, k, q + 1) * b)
    for k in range(n):
        put(work, STEP, k, take(work, STEP, k) * take(work, SCALE, k))
    for q in range(n - 2, -1, -2):
        b = take(work, STEP, q + 1)
        a = take(work, STEP, q) - take(C, q + 1, q) * b
        put(work, STEP, q, a)
        for k in range(q):
            put(work, STEP, k, take(work, STEP, k) - take(C, q + 1, k) * b - take(C, q, k) * a)


# ── one row ────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel
def solve_row(
    i: int,
    S: Array,
    unit: Array,
    inverse: Array,
    bound: Array,
    L: Array,
    upper: float,
    tolerance: float,
    Y: Array,
    rounds: Indices,
) -> None:
    """Row i from its start, however hard it is.

    A round is two sweeps of coordinate descent, which guess a face, and Newton steps on that face, which find its
    minimiser or end at a bound. The objective never rises and a face's minimiser is never met twice, so the rounds
    end.
    """
    R, n = L.shape[1], S.shape[0]
    y, g, d, load = np.zeros(n), np.empty(n), np.empty(n), np.zeros(n)
    face, C = np.empty(n, np.int64), np.empty((n, n))
    for r in range(R):
        y[r] = min(max(Y[i, r] * unit[r], 0.0), bound[r])
        load[r] = L[i, r] * inverse[r]
    gradient(S, load, y, g)
    used, most = 0, most_rounds(R)
    while used < most:
        bad = row_residual(S, y, g, bound)
        if bad == 0.0 or (used > 0 and bad <= tolerance * length(S, y)):
            break
        used += 1
        for _ in range(2):
            sweep_row(S, y, g, bound)
        gradient(S, load, y, g)
        for _ in range(n):
            size = free_face(y, bound, face)
            if size == 0 or newton_on_face(S, load, y, g, bound, face[:size], C, d):
                break
    rounds[i] = used
    if used > 0:
        for r in range(R):
            Y[i, r] = min(y[r] * inverse[r], upper)


@kernel
def most_rounds(R: int) -> int:
    """After so many rounds a row is left as it is; it takes a handful."""
    return 100 + 4 * R


@kernel
def gradient(S: Array, load: Array, y: Array, g: Array) -> None:
    """yS − load, half of the gradient → g."""
    for r in range(y.size):
        total = -load[r]
        for s in range(y.size):
            total += S[r, s] * y[s]
        g[r] = total


@kernel
def row_residual(S: Array, y: Array, g: Array, bound: Array) -> float:
    """‖y − Π(y − g)‖; with a unit diagonal this is at least the residual with the step 1/‖S‖. A flat atom has none."""
    total = 0.0
    for r in range(y.size):
        if S[r, r] > 0.0:
            total += (y[r] - min(max(y[r] - g[r], 0.0), bound[r])) ** 2
    return sqrt(total)


@kernel
def length(S: Array, y: Array) -> float:
    """‖y‖ over the atoms that are not flat: those have units of their own."""
    total = 0.0
    for r in range(y.size):
        if S[r, r] > 0.0:
            total += y[r] * y[r]
    return sqrt(total)


@kernel
def sweep_row(S: Array, y: Array, g: Array, bound: Array) -> None:
    """Each coordinate to its own minimiser in turn; a flat one goes to the bound it is drawn to, or stays."""
    for r in range(y.size):
        if S[r, r] > 0.0:
            new = min(max(y[r] - g[r] / S[r, r], 0.0), bound[r])
        elif g[r] > 0.0:
            new = 0.0
        elif g[r] < 0.0 and bound[r] < inf:
            new = bound[r]
        else:
            continue
        step = new - y[r]
        if step != 0.0:
            y[r] = new
            for s in range(y.size):
                g[s] += step * S[r, s]


@kernel
def free_face(y: Array, bound: Array, face: Indices) -> int:
    """The coordinates strictly inside of their bounds → face; how many they are."""
    size = 0
    for r in range(y.size):
        if 0.0 < y[r] < bound[r]:
            face[size] = r
            size += 1
    return size


@kernel
def newton_on_face(S: Array, load: Array, y: Array, g: Array, bound: Array, face: Indices, C: Array, d: Array) -> bool:
    """A Newton step on a face and a second one to refine it; false if a bound was met, where the step ends.

    y and its gradient g are written.
    """
    if not factor_face(S, face, C):
        return True
    for _ in range(2):
        for k in range(face.size):
            d[k] = -g[face[k]]
        solve_factored(C, d[: face.size])
        share, first = 1.0, -1
        for k in range(face.size):
            room = -y[face[k]] if d[k] < 0.0 else bound[face[k]] - y[face[k]]
            if d[k] != 0.0 and room / d[k] < share:
                share, first = room / d[k], k
        for k in range(face.size):
            y[face[k]] = min(max(y[face[k]] + share * d[k], 0.0), bound[face[k]])
        if first >= 0:
            y[face[first]] = 0.0 if d[first] < 0.0 else bound[face[first]]
        gradient(S, load, y, g)
        if first >= 0:
            return False
    return True


@kernel
def factor_face(Q: Array, face: Indices, C: Array) -> bool:
    """Cholesky factor of Q[face, face] → C; false where that block is zero.

    The block may be singular: the factor gets a ridge of rounding size. A flat direction then has no step, and a
    direction without a minimum a huge one, which the caller stops at a bound.
    """
    steepest = 0.0
    for k in range(face.size):
        steepest = max(steepest, Q[face[k], face[k]])
    if steepest <= 0.0:
        return False
    ridge = 1e-15 * face.size * steepest
    for k in range(face.size):
        for m in range(k):
            total = Q[face[k], face[m]]
            for q in range(m):
                total -= C[k, q] * C[m, q]
            C[k, m] = total / C[m, m]
        total = Q[face[k], face[k]] + ridge
        for q in range(k):
            total -= C[k, q] ** 2
        C[k, k] = sqrt(max(total, ridge))
    return True


@kernel
def solve_factored(C: Array, d: Array) -> None:
    """(CCᵀ)⁻¹ d → d."""
    n = d.size
    for k in range(n):
        total = d[k]
        for q in range(k):
            total -= C[k, q] * d[q]
        d[k] = total / C[k, k]
    for k in range(n - 1, -1, -1):
        total = d[k]
        for q in range(k + 1, n):
            total -= C[q, k] * d[q]
        d[k] = total / C[k, k]


@kernel
def column_curvature(Q: Array, Y: Array, out: Array) -> None:
    """Σᵢ diag(yᵢ) Q[Fᵢ, Fᵢ]⁻¹ diag(yᵢ) over the rows yᵢ with supports Fᵢ: how ‖y_r‖²/2 falls as a multiplier rises.

    Minus half the Hessian, in the columns' multipliers, of the dual of the column-bounded problem. Q (R, R), Y (I, R)
    → out (R, R).
    """
    R = Q.shape[0]
    face, d, C, unbounded = np.empty(R, np.int64), np.empty(R), np.empty((R, R)), np.full(R, inf)
    out[:, :] = 0.0
    for i in range(Y.shape[0]):
        size = free_face(Y[i], unbounded, face)
        if size == 0 or not factor_face(Q, face[:size], C):
            continue
        for k in range(size):
            d[:size] = 0.0
            d[k] = 1.0
            solve_factored(C, d[:size])
            for m in range(size):
                out[face[k], face[m]] += Y[i, face[k]] * d[m] * Y[i, face[m]]
