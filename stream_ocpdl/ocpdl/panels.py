"""Products of matrices in registers.

A *panel* is a block of an output, some atoms by some registers of cells, whose sums stay in registers while everything
that is added to them streams by:

    sums[k, m] = Σ_d A[d, r + k] · X[d, q + m]

It is most of a step: coding (A = loadings, d = rows of a tensor), absorbing (A = codes, d = tensors). A product is
added to what came before it and rounded once, whatever panel it is part of.

Panels are written in LLVM's terms, once for every size: Numba would keep their sums in memory. They take arrays in C
order, A and W of float64, X and B of either kind.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices
from stream_ocpdl.ocpdl.compiled import exact, intrinsic, part
from stream_ocpdl.ocpdl.lanes import (
    GROUP,
    INDEX,
    WIDE,
    ZERO,
    aligned,
    broadcast,
    emit_fma,
    emit_load,
    emit_load_masked,
    emit_prefetch,
    emit_rounded,
    emit_store,
    emit_store_masked,
    fma,
    if_else,
    load,
    load_some,
    put,
    spread,
    store,
    store_some,
    take,
    total,
    turn_square,
)

ATOMS, REGISTERS = (8, (2, 3)) if WIDE else (6, (1, 2))
"""Sizes of a panel: up to so many atoms, and as many registers of cells; 24 sums are in registers then, of 32, or 12 of
16."""

AHEAD = 24
"""Cells between those that are computed and those that are asked for, where memory is far."""

NEAR = 1_200_000
"""Bytes of a minibatch that are in the second cache still, or so near that to ask for them takes longer."""

TOOLS: Any = cgutils
INT = ir.IntType(64)


def sized(write: Callable[..., None], *kinds: Any) -> Any:
    """Compiled, a function of (n, v, …) is what `write(builder, atoms, registers, …)` emits for these two sizes.

    What Numba wants to know of it: its signature, and how it is lowered; None if an array is not in C order.
    """
    if not all(kind.layout == "C" for kind in kinds if isinstance(kind, types.Array)):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        n, v, *given = (
            context.make_array(kind)(context, builder, arg) if isinstance(kind, types.Array) else arg
            for kind, arg in zip(sig.args, args, strict=True)
        )
        for atoms, registers in sizes(builder, n, v):
            write(builder, atoms, registers, *given)
        return context.get_dummy_value()

    return types.none(*(INDEX if isinstance(kind, types.Integer) else kind for kind in kinds)), lower


def sizes(builder: Any, n: Any, v: Any) -> Iterator[tuple[int, int]]:
    """All sizes, each with the builder in a branch of its own."""
    key, done = builder.add(builder.mul(n, n.type(4)), v), builder.append_basic_block("done")
    switch = builder.switch(key, done)
    for atoms in range(1, ATOMS + 1):
        for registers in REGISTERS:
            branch = builder.append_basic_block(f"panel{atoms}x{registers}")
            switch.add_case(key.type(4 * atoms + registers), branch)
            builder.position_at_end(branch)
            yield atoms, registers
            builder.branch(done)
    builder.position_at_end(done)


def whole_or_not(builder: Any, atoms: int, registers: int, cells: Any) -> "Iterator[Panel]":
    """The panel of these sizes; where registers are narrow, one for the case that all its cells are there, too.

    To know which cells are there takes a register then, and to write them takes long.
    """
    if WIDE:
        yield Panel(builder, atoms, registers, cells)
        return
    with if_else(builder, builder.icmp_signed(">=", cells, INT(registers * GROUP))) as (then, otherwise):
        with then:
            yield Panel(builder, atoms, registers, None)
        with otherwise:
            yield Panel(builder, atoms, registers, cells)


def half_line(memory: Any) -> Any:
    """Numbers in half a cache line."""
    return INT(4 if memory.data.type.pointee == ir.DoubleType() else 8)


class Panel:
    """Sums of `atoms` by `registers` while they are written; registers are empty from cell `cells` on, if that is said.

    Where registers are narrow only the last one is: see `width`.
    """

    def __init__(self, builder: Any, atoms: int, registers: int, cells: Any) -> None:
        self.builder, self.atoms, self.registers, self.cells = builder, atoms, registers, cells
        self.sums: list[list[Any]] = []

    def accumulate(
        self, A: Any, r: Any, X: Any, at: Any, stride: Any, ahead: Any = None, soon: tuple[Any, Any] | None = None
    ) -> None:
        """Σ_d A[d, r + k] · X[at + d·stride + m], X flat; what is `ahead` of that is on its way meanwhile.

        And half a line for each d of other memory that is wanted soon, from a place on.
        """
        builder = self.builder
        depth, R = builder.extract_value(A.shape, 0), builder.extract_value(A.shape, 1)
        slots = [[TOOLS.alloca_once_value(builder, ZERO) for _ in range(self.registers)] for _ in range(self.atoms)]
        with TOOLS.for_range(builder, depth) as loop:
            start = builder.add(at, builder.mul(loop.index, stride))
            x = self.load(X, start)
            for m in range(0, self.registers if ahead is not None else 0, 8 // GROUP):
                emit_prefetch(builder, X, builder.add(builder.add(start, INT(m * GROUP)), ahead))
            if soon is not None:
                memory, place = soon
                emit_prefetch(builder, memory, builder.add(place, builder.mul(loop.index, half_line(memory))))
            row = builder.gep(A.data, [builder.add(builder.mul(loop.index, R), r)])
            for k, line in enumerate(slots):
                a = broadcast(builder, builder.load(builder.gep(row, [INT(k)])))
                for slot, each in zip(line, x, strict=True):
                    builder.store(emit_fma(builder, a, each, builder.load(slot)), slot)
        self.sums = [[builder.load(slot) for slot in line] for line in slots]

    def blend(self, keep: Any, B: Any, i: Any, stride: Any, ahead: Any = None) -> None:
        """keep·B[i + k·stride + m] + sums → B, and as it is there → sums: both groups of modes see one B.

        What is `ahead` of that is on its way meanwhile.
        """
        builder, old = self.builder, broadcast(self.builder, keep)
        for k, line in enumerate(self.sums):
            start = builder.add(i, builder.mul(stride, INT(k)))
            for m in range(0, self.registers if ahead is not None else 0, 8 // GROUP):
                emit_prefetch(builder, B, builder.add(builder.add(start, INT(m * GROUP)), ahead))
            for m, before in enumerate(self.load(B, start)):
                line[m] = emit_rounded(builder, emit_fma(builder, old, before, line[m]), B)
                place, left = self.register(start, m)
                if left is None:
                    emit_store(builder, B, place, line[m])
                else:
                    emit_store_masked(builder, B, place, left, line[m])

    def fold(self, W: Any, i: Any, stride: Any, out: Any, r: Any) -> None:
        """out[r + k] + Σ_m sums[k, m] · W[i + k·stride + m] → out, by lanes."""
        builder = self.builder
        for k, line in enumerate(self.sums):
            place = builder.mul(builder.add(r, INT(k)), INT(GROUP))
            lanes = emit_load(builder, out, place)
            for each, factor in zip(line, self.load(W, builder.add(i, builder.mul(stride, INT(k)))), strict=True):
                lanes = emit_fma(builder, each, factor, lanes)
            emit_store(builder, out, place, lanes)

    def load(self, X: Any, start: Any) -> list[Any]:
        """A row of registers from place `start` on."""
        places = [self.register(start, m) for m in range(self.registers)]
        return [
            emit_load(self.builder, X, place) if left is None else emit_load_masked(self.builder, X, place, left)
            for place, left in places
        ]

    def register(self, start: Any, m: int) -> tuple[Any, Any]:
        """Where register m of a row begins, and how many of its cells are there; None if all are."""
        at, last = INT(m * GROUP), m == self.registers - 1
        left = self.builder.sub(self.cells, at) if self.cells is not None and (WIDE or last) else None
        return self.builder.add(start, at), left


@intrinsic
def correlate_panel(
    _: Any, n: Any, v: Any, V: Any, r: Any, X: Any, at: Any, stride: Any, cells: Any, W: Any, q: Any, out: Any
) -> Any:
    """out[r + k] + Σ_m (Σ_p V[p, r + k] · X[at + p·stride + m]) · W[r + k, q + m] → out, by lanes."""

    def write(builder: Any, atoms: int, registers: int, *args: Any) -> None:
        V, r, X, at, stride, cells, W, q, out = args
        Q, depth = builder.extract_value(W.shape, 1), builder.extract_value(V.shape, 0)
        for panel in whole_or_not(builder, atoms, registers, cells):
            panel.accumulate(V, r, X, at, stride, builder.neg(builder.mul(depth, stride)))
            panel.fold(W, builder.add(builder.mul(r, Q), q), Q, out, r)

    return sized(write, n, v, V, r, X, at, stride, cells, W, q, out)


@intrinsic
def add_panel(
    _: Any, n: Any, v: Any, A: Any, r: Any, X: Any, at: Any, stride: Any, cells: Any, B: Any, keep: Any
) -> Any:
    """keep·B[r + k, at + m] + Σ_d A[d, r + k] · X[d, at + m] → B; X and B have rows of `stride` cells."""

    def write(builder: Any, atoms: int, registers: int, *args: Any) -> None:
        A, r, X, at, stride, cells, B, keep = args
        for panel in whole_or_not(builder, atoms, registers, cells):
            panel.accumulate(A, r, X, at, stride)
            panel.blend(keep, B, builder.add(builder.mul(r, stride), at), stride)

    return sized(write, n, v, A, r, X, at, stride, cells, B, keep)


@intrinsic
def add_panel_and_ask(
    _: Any, n: Any, v: Any, A: Any, r: Any, X: Any, at: Any, stride: Any, cells: Any, B: Any, keep: Any, S: Any, s: Any
) -> Any:
    """The same, and memory S from place s on is asked for, half a line for each d."""

    def write(builder: Any, atoms: int, registers: int, *args: Any) -> None:
        A, r, X, at, stride, cells, B, keep, S, s = args
        for panel in whole_or_not(builder, atoms, registers, cells):
            panel.accumulate(A, r, X, at, stride, soon=(S, s))
            panel.blend(keep, B, builder.add(builder.mul(r, stride), at), stride)

    return sized(write, n, v, A, r, X, at, stride, cells, B, keep, S, s)


@intrinsic
def absorb_panel(
    _: Any,
    n: Any,
    v: Any,
    H: Any,
    r: Any,
    X: Any,
    at: Any,
    stride: Any,
    cells: Any,
    B: Any,
    keep: Any,
    W: Any,
    q: Any,
    out: Any,
) -> Any:
    """The same, and what is in B then times W[r + k, q + m], added to out[r + k] by lanes."""
    return sized(absorbing(None), n, v, H, r, X, at, stride, cells, B, keep, W, q, out)


@intrinsic
def absorb_far_panel(
    _: Any,
    n: Any,
    v: Any,
    H: Any,
    r: Any,
    X: Any,
    at: Any,
    stride: Any,
    cells: Any,
    B: Any,
    keep: Any,
    W: Any,
    q: Any,
    out: Any,
) -> Any:
    """The same where X and B are in no cache: what is AHEAD is asked for."""
    return sized(absorbing(INT(AHEAD)), n, v, H, r, X, at, stride, cells, B, keep, W, q, out)


def absorbing(ahead: Any) -> Callable[..., None]:
    """What writes a panel that absorbs, while what is `ahead` is on its way."""

    def write(builder: Any, atoms: int, registers: int, *args: Any) -> None:
        H, r, X, at, stride, cells, B, keep, W, q, out = args
        Q = builder.extract_value(W.shape, 1)
        for panel in whole_or_not(builder, atoms, registers, cells):
            panel.accumulate(H, r, X, at, stride, ahead)
            panel.blend(keep, B, builder.add(builder.mul(r, stride), at), stride, ahead)
            panel.fold(W, builder.add(builder.mul(r, Q), q), Q, out, r)

    return write


@exact
def width(cells: int) -> int:
    """Registers of the next panel where so many cells are left, so that few lanes stay empty."""
    registers = -(-cells // GROUP)
    if WIDE:
        return 3 if registers == 3 or registers > 4 else 2
    return min(registers, 2)


@exact
def add_product(lo: int, hi: int, A: Array, X: BigArray, keep: float, B: BigArray) -> None:
    """keep·B + AᵀX → B, columns [lo, hi). A (d, R), X (d, M), B (R, M)."""
    R, M = B.shape
    blocks = -(-R // ATOMS)
    at = lo
    while at < hi:
        v = width(hi - at)
        r = 0
        for k in range(blocks):
            n = (R - r) // (blocks - k)
            add_panel(n, v, A, r, X, at, M, hi - at, B, keep)
            r += n
        at += v * GROUP


@part
def add_product_and_ask(
    hi: int, A: Array, X: BigArray, keep: float, B: BigArray, memory: BigArray, at: Indices
) -> None:
    """keep·B + AᵀX → B, columns [0, hi), while memory is asked for, from place at[0] on, up to at[1]."""
    (R, M), step = B.shape, A.shape[0] * 32 // memory.itemsize
    blocks = -(-R // ATOMS)
    q = 0
    while q < hi:
        v = width(hi - q)
        r = 0
        for k in range(blocks):
            n = (R - r) // (blocks - k)
            add_panel_and_ask(n, v, A, r, X, q, M, hi - q, B, keep, memory, at[0])
            at[0] = min(at[0] + step, at[1])
            r += n
        q += v * GROUP


@exact
def correlate(X: BigArray, V: Array, W: Array, out: Array) -> None:
    """⟨X_j, V(:, r) ⊗ W(r, :)⟩. X (b, P, Q), V (P, R), W (R, Q or more) → out (b, R).

    The last tensor comes first: it was copied together last, and is in the cache still. The next is on its way.
    """
    b, P, Q = X.shape
    R = V.shape[1]
    sums, blocks = aligned(R, 1), -(-R // ATOMS)
    for j in range(b - 1, -1, -1):
        sums[:] = 0.0
        q = 0
        while q < Q:
            v = width(Q - q)
            r = 0
            for k in range(blocks):
                n = (R - r) // (blocks - k)
                correlate_panel(n, v, V, r, X, j * P * Q + q, Q, Q - q, W, q, sums)
                r += n
            q += v * GROUP
        for r in range(R):
            out[j, r] = total(load(sums, r * GROUP))


@exact
def absorb_and_fold(B: BigArray, X: BigArray, H: Array, keep: float, W: Array, out: Array) -> None:
    """keep·B + Hᵀ·X → B (eq:main_alg_aggregate_tensors), and this contracted with W (eq:def_Btrj) while it is at hand.

    B (R, P, Q), X (b, P, Q), H (b, R) with its weights, W (R, Q or more) → out (R, P).
    """
    R, P, Q = B.shape
    if X.shape[0] == 1:
        absorb_one(B, X, H[0], keep, W, out)
        return
    if X.size * X.itemsize > NEAR:
        absorb_and_fold_far(0, P, B, X, H, keep, W, out)
        return
    sums, blocks = aligned(R, 1), -(-R // ATOMS)
    for p in range(P):
        sums[:] = 0.0
        q = 0
        while q < Q:
            v = width(Q - q)
            r = 0
            for k in range(blocks):
                n = (R - r) // (blocks - k)
                absorb_panel(n, v, H, r, X, p * Q + q, P * Q, Q - q, B, keep, W, q, sums)
                r += n
            q += v * GROUP
        for r in range(R):
            out[r, p] = total(load(sums, r * GROUP))


@exact
def absorb_and_fold_far(
    lo: int, hi: int, B: BigArray, X: BigArray, H: Array, keep: float, W: Array, out: Array
) -> None:
    """The same, to the bit, for columns [lo, hi) of out, where X and B are in no cache.

    They lie in as many places as there are tensors and atoms, more than a processor follows by itself.
    """
    R, P, Q = B.shape
    sums, blocks = aligned(R, 1), -(-R // ATOMS)
    for p in range(lo, hi):
        sums[:] = 0.0
        q = 0
        while q < Q:
            v = width(Q - q)
            r = 0
            for k in range(blocks):
                n = (R - r) // (blocks - k)
                absorb_far_panel(n, v, H, r, X, p * Q + q, P * Q, Q - q, B, keep, W, q, sums)
                r += n
            q += v * GROUP
        for r in range(R):
            out[r, p] = total(load(sums, r * GROUP))


@exact
def absorb_one(B: BigArray, X: BigArray, h: Array, keep: float, W: Array, out: Array) -> None:
    """The same, to the bit, for a tensor X (1, P, Q): there is little to keep in registers, so B is read as it lies.

    Four rows at a time, since each sum has to wait for its own last term.
    """
    R, P, Q = B.shape
    sums, old, zero, whole = aligned(P, 1), spread(keep), spread(0.0), Q - Q % GROUP
    for r in range(R):
        new, i, j = spread(h[r]), r * P * Q, r * W.shape[1]
        for p in range(0, P - P % 4, 4):
            a, b, c, d = zero, zero, zero, zero
            for q in range(0, whole, GROUP):
                k, w = p * Q + q, load(W, j + q)
                a, b = fma(absorb_at(B, i, X, k, old, new), w, a), fma(absorb_at(B, i, X, k + Q, old, new), w, b)
                k += 2 * Q
                c, d = fma(absorb_at(B, i, X, k, old, new), w, c), fma(absorb_at(B, i, X, k + Q, old, new), w, d)
            put(sums, p, 0, a)
            put(sums, p + 1, 0, b)
            put(sums, p + 2, 0, c)
            put(sums, p + 3, 0, d)
        for p in range(P - P % 4, P):
            a = zero
            for q in range(0, whole, GROUP):
                a = fma(absorb_at(B, i, X, p * Q + q, old, new), load(W, j + q), a)
            put(sums, p, 0, a)
        for p in range(P if whole < Q else 0):
            k, left = p * Q + whole, Q - whole
            store_some(B, i + k, left, fma(old, load_some(B, i + k, left), new * load_some(X, k, left)))
            put(sums, p, 0, fma(load_some(B, i + k, left), load_some(W, j + whole, left), take(sums, p, 0)))
        for p in range(P):
            out[r, p] = total(take(sums, p, 0))


@part
def absorb_at(B: BigArray, i: int, X: BigArray, k: int, old: Array, new: Array) -> Array:
    """A register of old·B + new·X, at places i + k and k → B; and as it is there."""
    store(B, i + k, fma(old, load(B, i + k), new * load(X, k)))
    return load(B, i + k)


@part
def turn(W: Array, first: int, size: int, out: Array) -> None:
    """Rows [first, first + size) of W (Q, R) as columns, and zeros behind → out (R, size or more)."""
    (R, step), rest, whole = out.shape, out.shape[0] % GROUP, size - size % GROUP
    for q in range(0, whole, GROUP):
        for r in range(0, R - rest, GROUP):
            turn_square(W, (first + q) * R + r, R, out, r * step + q, step)
    for r in range(R):
        for q in range(whole if r < R - rest else 0, size):
            out[r, q] = W[first + q, r]
        for q in range(size, step):
            out[r, q] = 0.0


@exact
def turned(W: Array) -> Array:
    """Wᵀ, in memory of its own."""
    out = np.empty((W.shape[1], W.shape[0]))
    turn(W, 0, W.shape[0], out)
    return out


@exact
def turned_in_lanes(W: Array) -> Array:
    """The same, with rows of whole registers; what is behind the last column is zero."""
    registers = -(-W.shape[0] // GROUP)
    out = aligned(W.shape[1], registers).reshape(W.shape[1], registers * GROUP)
    turn(W, 0, W.shape[0], out)
    return out


@exact
def gram(U: Array, out: Array) -> None:
    """UᵀU. U (I, R) → out (R, R)."""
    out[:, :] = 0.0
    add_product(0, U.shape[1], U, U, 0.0, out)


@exact
def multiply(Y: Array, Q: Array, out: Array) -> None:
    """YQ. Y (I, R), Q (R, R) → out (I, R)."""
    out[:, :] = 0.0
    add_product(0, Q.shape[1], turned(Y), Q, 0.0, out)
