"""Some rows of the sub-problem at once: as many as a register has lanes.

A row sits in a lane of a `Lanes`, the vector register of GROUP doubles, and a *group* holds GROUP rows: their points y,
loads l, gradients yS − l and faces, each (n, GROUP). The start tells the face of the box on which the minimiser may
lie, or, where there is none, the free minimiser and sweeps of coordinate descent do. A round then finds the minimiser
of the face, by a Cholesky factor of its own in each lane, and either this is the row's minimiser, or it says which
coordinates to drop, those below zero, and which to free, those whose gradient is below zero: a face for the next round
(block pivoting; Kim & Park 2011).

Every operation on lanes is elementwise.
"""

from math import inf

from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.compiled import part
from stream_ocpdl.ocpdl.lanes import GROUP, above, larger, put, smaller, some, spread, take

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

SWEEPS, COLD = 3, 10
"""Sweeps before the first round of a row without a start: from its free minimiser, or else from zero."""

FLAT = 1e-12
"""A face with a pivot below this is left to `solve_row`, which knows a ridge."""


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
