"""The sub-problem row by row, compiled: min of yQyᵀ − 2⟨y, l⟩ over 0 ≤ y ≤ upper for each row l of L.

All of it in units in which Q has a unit diagonal, S, so that an atom of tiny norm is coded as exactly as any other.

**Eight rows at once.** A row sits in a lane of a `Lanes`, the vector register of GROUP doubles, and a *group* holds
GROUP rows: their points y, loads l, gradients yS − l and faces, each (n, GROUP). Sweeps of coordinate descent guess
the face of the box on which the minimiser lies. A round then finds the minimiser of the face, by a Cholesky factor of
its own in each lane, and either this is the row's minimiser, or it says which coordinates to drop, those below zero,
and which to free, those whose gradient is below zero: a face for the next round (block pivoting; Kim & Park 2011).
Rows that need another round gather in a second group, so that no lane waits for its neighbours.

**One row.** A row on which this does not end soon, whose face is nearly flat, or that meets its upper bound, is solved
from its start by a method that always ends: see `solve_row`.

Every operation on lanes is elementwise, and what happens to a row never depends on the rows beside it. So its bits
depend neither on the lane it sits in nor on the range it is part of.

This file has everything that a row calls, and the functions that others share with it: Numba's cache does not notice a
change in a function defined in another file.
"""

import operator
from collections.abc import Callable
from math import inf, sqrt
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import signature
from numba.extending import lower_builtin, models, register_model, type_callable

from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.kernels import kernel

GROUP = 8
"""Rows that are solved side by side: one register with AVX-512, two with AVX2, four with NEON."""

POINT, LOAD, SLOPE, FACE = 0, 1, 2, 3
"""What a group (4, n, GROUP) has of its rows: y, l, half the gradient yS − l, and 1 where a coordinate is free, else 0.
Where it is not free y is zero, unless the atom is flat."""

ROW, USED, LEFT = 0, 1, 2
"""And its tags (3, GROUP): which row is in the lane, −1 for none; the rounds it took, and those it may still take."""

BAD, LENGTH, OUTSIDE, CHANGED, FLATTEST = 0, 1, 2, 3, 4
"""What a verdict (5, 1, GROUP) says: the squares of residual and length, how far the point is out of the box, how many
coordinates join or leave the face, and the inverse of the face's smallest pivot."""

STEP, SCALE, TOP, BOTTOM = 0, 1, 2, 3
"""The work of a round (4, n, GROUP): the step on the face, and of the factor CDCᵀ 1/D and two rows of CD."""

HARD = -1
"""The rounds of a row that waits for `solve_row`."""

COLD, WARM = 8, 1
"""Sweeps before the first round: from zero, and from a start that is likely to have the face already."""

PATIENCE = 12
"""Rounds before a row is left to `solve_row`; most take one to five."""

STEEP = 1e12
"""A face with a pivot below the inverse of this is left to `solve_row`, which has a ridge."""


# ── lanes: in Python a row of GROUP doubles, compiled a vector register ────────────────────────────────────────


def take(a: Array, m: int, k: int) -> Array:
    """a[m, k], of an array (…, n, GROUP)."""
    return a[m, k].copy()


def put(a: Array, m: int, k: int, v: Array) -> None:
    """a[m, k] = v."""
    a[m, k] = v


def spread(x: float) -> Array:
    """The same number in each lane."""
    return np.full(GROUP, x)


def larger(a: Array, b: Array) -> Array:
    """b where a < b, else a: a NaN in a stays, as it does in Python's max(a, b)."""
    return np.where(a < b, b, a)


def smaller(a: Array, b: Array) -> Array:
    """b where b < a, else a."""
    return np.where(b < a, b, a)


def above(a: Array, b: Array) -> Array:
    """1 where a > b, else 0."""
    return np.where(a > b, 1.0, 0.0)


class Lanes(types.Type):  # type: ignore[misc]
    """Numba's type of a vector register."""

    def __init__(self) -> None:
        super().__init__("Lanes")


VECTOR = ir.VectorType(ir.DoubleType(), GROUP)


@register_model(Lanes)  # type: ignore[misc]
class LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    """Its machine representation."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


def instruction(function: Any, result: Any, *kinds: Any) -> Callable[[Any], Any]:
    """What a function of lanes is in compiled code: the decorated function emits it."""

    def chosen(*args: Any) -> Any:
        fits = all(fit(arg, kind) for arg, kind in zip(args, kinds, strict=True))
        exact = (arg if kind is types.Array else kind for arg, kind in zip(args, kinds, strict=True))
        return signature(result, *exact) if fits else None

    def fit(arg: Any, kind: Any) -> bool:
        return isinstance(arg, (Lanes if kind == LANES else types.Array if kind is types.Array else types.Number))

    by_arity: dict[int, Callable[..., Any]] = {
        1: lambda a: chosen(a),
        2: lambda a, b: chosen(a, b),
        3: lambda a, b, c: chosen(a, b, c),
        4: lambda a, b, c, d: chosen(a, b, c, d),
    }
    type_callable(function)(lambda _: by_arity[len(kinds)])
    return lower_builtin(function, *kinds)  # type: ignore[no-any-return]


LANES = Lanes()
ZERO, ONE = ir.Constant(VECTOR, [0.0] * GROUP), ir.Constant(VECTOR, [1.0] * GROUP)


def address(context: Any, builder: Any, kind: Any, a: Any, m: Any, k: Any) -> Any:
    """Where a[m, k] begins."""
    array = context.make_array(kind)(context, builder, a)
    row = builder.add(builder.mul(m, builder.extract_value(array.shape, 1)), k)
    return builder.bitcast(builder.gep(array.data, [builder.mul(row, row.type(GROUP))]), VECTOR.as_pointer())


@instruction(take, LANES, types.Array, types.intp, types.intp)
def emit_take(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.load(address(context, builder, sig.args[0], *args), align=8)


@instruction(put, types.none, types.Array, types.intp, types.intp, LANES)
def emit_put(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    builder.store(args[3], address(context, builder, sig.args[0], *args[:3]), align=8)
    return context.get_dummy_value()


@instruction(spread, LANES, types.float64)
def emit_spread(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    nothing, first = ir.Constant(VECTOR, ir.Undefined), ir.IntType(32)(0)
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), GROUP), [0] * GROUP)
    return builder.shuffle_vector(builder.insert_element(nothing, args[0], first), nothing, zeros)


@instruction(larger, LANES, LANES, LANES)
def emit_larger(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", *args), args[1], args[0])


@instruction(smaller, LANES, LANES, LANES)
def emit_smaller(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", *args), args[1], args[0])


@instruction(above, LANES, LANES, LANES)
def emit_above(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", *args), ONE, ZERO)


@instruction(operator.add, LANES, LANES, LANES)
def emit_add(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fadd(*args)


@instruction(operator.sub, LANES, LANES, LANES)
def emit_subtract(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fsub(*args)


@instruction(operator.mul, LANES, LANES, LANES)
def emit_multiply(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fmul(*args)


@instruction(operator.truediv, LANES, LANES, LANES)
def emit_divide(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fdiv(*args)


# ── all rows ───────────────────────────────────────────────────────────────────────────────────────────────────


@kernel
def solve_rows(lo: int, hi: int, Q: Array, L: Array, upper: float, tolerance: float, Y: Array, rounds: Indices) -> None:
    """min of yQyᵀ − 2⟨y, l⟩ over 0 ≤ y ≤ upper for each row l of L in [lo, hi); Y holds the start, then the minimisers.

    rounds[i] says after how many rounds. There is at least one: where Q is nearly flat, a start may satisfy the
    tolerance and still be far from the minimiser. Only a start that satisfies it exactly stays.
    """
    n = Q.shape[0] + Q.shape[0] % 2  # a factor is made two rows at a time: where R is odd, a flat atom is added
    S, unit, inverse, bound = np.empty((n, n)), np.empty(n), np.empty(n), np.empty(n)
    to_unit_diagonal(Q, upper, S, unit, inverse, bound)
    space = aligned(n * n + 12 * n + 5)
    C, work = space[: n * n].reshape(n, n, GROUP), space[n * n : n * n + 4 * n].reshape(4, n, GROUP)
    fresh, waiting = space[n * n + 4 * n : n * n + 8 * n].reshape(4, n, GROUP), space[n * n + 8 * n : -5].reshape(4, n, GROUP)
    verdict = space[-5:].reshape(5, 1, GROUP)
    fresh[:, :, :] = 0.0
    waiting[:, :, :] = 0.0
    tags, later = np.full((3, GROUP), -1), np.full((3, GROUP), -1)
    size, hard = 0, 0
    for first in range(lo, hi, GROUP):
        enter(first, min(first + GROUP, hi), Y, L, unit, inverse, bound, fresh, tags)
        sweeps(S, bound, fresh, tags, verdict, rounds)
        newton(S, bound, C, work, fresh, verdict)
        hard += leave(fresh, tags, verdict, tolerance, upper, inverse, Y, rounds)
        for j in range(GROUP):
            if tags[ROW, j] >= 0:
                move(fresh, tags, j, waiting, later, size)
                size += 1
                while size == GROUP:
                    gradients(S, waiting)
                    newton(S, bound, C, work, waiting, verdict)
                    hard += leave(waiting, later, verdict, tolerance, upper, inverse, Y, rounds)
                    size = close_ranks(waiting, later)
    while size > 0:
        gradients(S, waiting)
        newton(S, bound, C, work, waiting, verdict)
        hard += leave(waiting, later, verdict, tolerance, upper, inverse, Y, rounds)
        size = close_ranks(waiting, later)
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


@kernel
def aligned(n: int) -> Array:
    """An array (n, GROUP) that begins with a cache line, so that a register is read from one line and not from two."""
    raw = np.empty((n + 1) * GROUP)
    skip = -(raw.ctypes.data // 8) % GROUP
    return raw[skip : skip + n * GROUP].reshape(n, GROUP)


@kernel
def enter(first: int, last: int, Y: Array, L: Array, unit: Array, inverse: Array, bound: Array, group: Array, tags: Indices) -> None:
    """The rows [first, last) take the lanes of a group; lanes that stay empty have zeros."""
    R, count = L.shape[1], last - first
    for j in range(count):
        tags[ROW, j], tags[USED, j], tags[LEFT, j] = first + j, 0, PATIENCE
        for r in range(R):
            group[POINT, r, j] = min(max(Y[first + j, r] * unit[r], 0.0), bound[r])
            group[LOAD, r, j] = L[first + j, r] * inverse[r]
    for j in range(count, GROUP):
        tags[ROW, j] = -1
        for r in range(R):
            group[POINT, r, j] = 0.0
            group[LOAD, r, j] = 0.0


@kernel
def move(source: Array, labels: Indices, j: int, group: Array, tags: Indices, k: int) -> None:
    """Lane j of one group → lane k of another."""
    for t in range(3):
        tags[t, k] = labels[t, j]
    for r in range(source.shape[1]):
        group[POINT, r, k] = source[POINT, r, j]
        group[LOAD, r, k] = source[LOAD, r, j]
        group[FACE, r, k] = source[FACE, r, j]


@kernel
def close_ranks(group: Array, tags: Indices) -> int:
    """The rows that are left move to the first lanes; how many they are."""
    size = 0
    for j in range(GROUP):
        if tags[ROW, j] >= 0:
            if size < j:
                move(group, tags, j, group, tags, size)
                tags[ROW, j] = -1
            size += 1
    return size


@kernel
def leave(
    group: Array, tags: Indices, verdict: Array, tolerance: float, upper: float, inverse: Array, Y: Array, rounds: Indices
) -> int:
    """After a round: rows that are done leave their lanes for Y, and those without rounds left as HARD. How many these are.

    A face that stays is the right one: a point that is not exact by then gets a second step on it, as a refinement.
    """
    hard = 0
    for j in range(GROUP):
        i = tags[ROW, j]
        if i < 0:
            continue
        tags[USED, j] += 1
        tags[LEFT, j] -= 1
        steep, inside = verdict[FLATTEST, 0, j] <= STEEP, verdict[OUTSIDE, 0, j] <= 0.0
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


@kernel
def sweeps(S: Array, bound: Array, group: Array, tags: Indices, verdict: Array, rounds: Indices) -> None:
    """Coordinate descent from the start, longer if it is zero: a guess of the face. A start that is exact leaves."""
    gradients(S, group)
    judge(S, bound, group, verdict)
    most = 0
    for j in range(GROUP):
        if tags[ROW, j] >= 0 and verdict[BAD, 0, j] == 0.0:
            rounds[tags[ROW, j]] = 0
            tags[ROW, j] = -1
        many = 0 if tags[ROW, j] < 0 else COLD if verdict[LENGTH, 0, j] == 0.0 else WARM
        verdict[CHANGED, 0, j] = many
        most = max(most, many)
    for k in range(most):
        sweep(S, bound, group, above(take(verdict, CHANGED, 0), spread(k)))
    for r in range(S.shape[0]):
        put(group, FACE, r, above(take(group, POINT, r), spread(0.0 if S[r, r] > 0.0 else inf)))


@kernel
def gradients(S: Array, group: Array) -> None:
    """yS − l → slope."""
    for r in range(0, S.shape[0], 2):
        a, b = spread(0.0) - take(group, LOAD, r), spread(0.0) - take(group, LOAD, r + 1)
        for s in range(S.shape[0]):
            y = take(group, POINT, s)
            a = a + spread(S[r, s]) * y
            b = b + spread(S[r + 1, s]) * y
        put(group, SLOPE, r, a)
        put(group, SLOPE, r + 1, b)


@kernel
def sweep(S: Array, bound: Array, group: Array, moves: Array) -> None:
    """Each coordinate to its own minimiser in turn, in the lanes where `moves` is 1, not 0; y and slope are written.

    Two at a time, so that the slopes are written half as often.
    """
    for r in range(0, S.shape[0], 2):
        a = own_step(S[r, r], bound[r], take(group, POINT, r), take(group, SLOPE, r)) * moves
        slope = take(group, SLOPE, r + 1) + a * spread(S[r, r + 1])
        b = own_step(S[r + 1, r + 1], bound[r + 1], take(group, POINT, r + 1), slope) * moves
        put(group, POINT, r, take(group, POINT, r) + a)
        put(group, POINT, r + 1, take(group, POINT, r + 1) + b)
        for s in range(S.shape[0]):
            put(group, SLOPE, s, take(group, SLOPE, s) + a * spread(S[r, s]) + b * spread(S[r + 1, s]))


@kernel
def own_step(steepness: float, bound: float, y: Array, slope: Array) -> Array:
    """To the coordinate's own minimiser; if the atom is flat, to the bound that it is drawn to."""
    if steepness > 0.0:
        return smaller(larger(y - slope, spread(0.0)), spread(bound)) - y
    down, up = above(slope, spread(0.0)), above(spread(0.0), slope)
    return up * (spread(bound) - y) - down * y if bound < inf else spread(0.0) - down * y


@kernel
def newton(S: Array, bound: Array, C: Array, work: Array, group: Array, verdict: Array) -> None:
    """Each row to the minimiser on its face, whether that is in the box or not; then its verdict and its next face."""
    factor(S, group, C, work, verdict)
    solve(C, work, group)
    for r in range(S.shape[0]):
        put(group, POINT, r, take(group, POINT, r) + take(work, STEP, r))
    gradients(S, group)
    judge(S, bound, group, verdict)


@kernel
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


@kernel
def factor(S: Array, group: Array, C: Array, work: Array, verdict: Array) -> None:
    """S on each lane's face, and the identity elsewhere, = CDCᵀ → C (below its diagonal of ones), 1/D → SCALE, FLATTEST.

    Two rows of C at a time, against two rows above them: four sums run for four registers that are read.
    """
    one, flattest = spread(1.0), spread(0.0)
    for k in range(0, S.shape[0], 2):
        f, g = take(group, FACE, k), take(group, FACE, k + 1)
        for q in range(0, k, 2):
            u, v = take(group, FACE, q), take(group, FACE, q + 1)
            a, b = spread(S[k, q]) * (f * u), spread(S[k, q + 1]) * (f * v)
            c, d = spread(S[k + 1, q]) * (g * u), spread(S[k + 1, q + 1]) * (g * v)
            for s in range(q):
                top, bottom = take(work, TOP, s), take(work, BOTTOM, s)
                left, right = take(C, q, s), take(C, q + 1, s)
                a, b = a - top * left, b - top * right
                c, d = c - bottom * left, d - bottom * right
            right = take(C, q + 1, q)
            put(work, TOP, q, a)
            put(work, BOTTOM, q, c)
            put(work, TOP, q + 1, b - a * right)
            put(work, BOTTOM, q + 1, d - c * right)
        a, b, c = one + f * spread(S[k, k] - 1.0), spread(S[k + 1, k]) * (f * g), one + g * spread(S[k + 1, k + 1] - 1.0)
        for q in range(k):
            top, bottom, scale = take(work, TOP, q), take(work, BOTTOM, q), take(work, SCALE, q)
            left, right = top * scale, bottom * scale
            a, b, c = a - top * left, b - bottom * left, c - bottom * right
            put(C, k, q, left)
            put(C, k + 1, q, right)
        scale = one / a
        left = b * scale
        put(work, SCALE, k, scale)
        put(C, k + 1, k, left)
        flattest = larger(scale, flattest)
        scale = one / (c - b * left)
        put(work, SCALE, k + 1, scale)
        flattest = larger(scale, flattest)
    put(verdict, FLATTEST, 0, flattest)


@kernel
def solve(C: Array, work: Array, group: Array) -> None:
    """−(CDCᵀ)⁻¹ slope on each lane's face, and zero elsewhere → STEP."""
    n = C.shape[0]
    for k in range(n):
        total = spread(0.0) - take(group, FACE, k) * take(group, SLOPE, k)
        for q in range(k):
            total = total - take(C, k, q) * take(work, STEP, q)
        put(work, STEP, k, total)
    for k in range(n):
        put(work, STEP, k, take(work, STEP, k) * take(work, SCALE, k))
    for k in range(n - 1, 0, -1):
        done = take(work, STEP, k)
        for q in range(k):
            put(work, STEP, q, take(work, STEP, q) - take(C, k, q) * done)


# ── one row ────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel
def solve_row(
    i: int, S: Array, unit: Array, inverse: Array, bound: Array, L: Array, upper: float, tolerance: float, Y: Array,
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
