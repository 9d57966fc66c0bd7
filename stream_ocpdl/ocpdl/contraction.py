"""The long contraction of a minibatch: X (N, Q) with a group of modes W (Q, R), the first half of Algorithm 4's WᵀX.

Sums of a few rows with a few atoms stay in registers while both run along Q. A sum is added lane by lane in ascending
order of the cells, whichever rows and atoms are at its side: its bits depend on no range.
"""

from typing import Any

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.compiled import exact, intrinsic, part
from stream_ocpdl.ocpdl.lanes import (
    GROUP,
    WIDE,
    ZERO,
    aligned,
    emit_fma,
    emit_load,
    emit_load_some,
    emit_prefetch,
    emit_store,
    load,
    total,
)
from stream_ocpdl.ocpdl.panels import ATOMS, INT, REGISTERS, TOOLS, sized, turn

FEWEST, ROWS = REGISTERS
"""Rows at a time, at least and at most. Where two are the fewest, a single one is taken twice."""

ROOM = 20480 if WIDE else 10240
"""Numbers of W that are turned at a time, if that is enough for the least SPAN: they stay in the second cache."""

STRIP = 2 * ROWS
"""Rows that meet a block of atoms one after the other, while that is in a cache."""

SPAN = 512
"""Cells of a sum that are taken at a time, at least."""


@exact
def contract(lo: int, hi: int, X: BigArray, W: Array, out: Array) -> None:
    """XW, rows [lo, hi) (Algorithm 4's WᵀX for one group of modes). X (N, Q), W (Q, R) → out (N, R).

    By spans of the sum, for which W is turned so that all loops run along memory. With few atoms a span is long: rows
    are read from their beginning to their end then, which memory likes best.
    """
    Q, R = W.shape
    blocks, span = -(-R // ATOMS), max(SPAN, ROOM // R // SPAN * SPAN)
    # An odd number of registers: rows that begin a power of two apart would crowd each other out of the cache.
    step = (-(-min(span, Q) // GROUP) | 1) * GROUP
    sums, turned = aligned(ROWS, ATOMS), np.zeros((R, step))
    out[lo:hi, :] = 0.0
    for first in range(0, Q, span):
        size = min(span, Q - first)
        turn(W, first, size, turned)
        for begin in range(lo, hi, STRIP):
            r = 0
            for k in range(blocks):
                atoms = (R - r) // (blocks - k)
                for n in range(begin, min(begin + STRIP, hi), ROWS):
                    rows, at, ahead = min(ROWS, hi - n), n * Q + first, STRIP * Q if r == 0 else 0
                    stride = Q if rows > 1 else 0
                    contract_panel(atoms, max(rows, FEWEST), turned, r, X, at, stride, size, ahead, sums)
                    add_totals(sums, rows, atoms, n, r, out)
                r += atoms


@part
def add_totals(sums: Array, rows: int, atoms: int, n: int, r: int, out: Array) -> None:
    """The totals of the sums of rows from n on with atoms from r on, added to out."""
    for m in range(rows):
        for k in range(atoms):
            out[n + m, r + k] += total(load(sums, (m * ATOMS + k) * GROUP))


@intrinsic
def contract_panel(
    _: Any, n: Any, v: Any, W: Any, r: Any, X: Any, at: Any, stride: Any, size: Any, ahead: Any, sums: Any
) -> Any:
    """Σ_q W[r + k, q] · X[at + m·stride + q] of `size` cells → sums[m, k], by lanes; X is flat.

    What is `ahead` of them, if that is not 0, is on its way meanwhile. W has zeros behind the last cell.
    """

    def write(builder: Any, atoms: int, rows: int, *args: Any) -> None:
        W, r, X, at, stride, size, ahead, sums = args
        step = builder.extract_value(W.shape, 1)
        slots = [[TOOLS.alloca_once_value(builder, ZERO) for _ in range(rows)] for _ in range(atoms)]
        starts = [builder.add(at, builder.mul(stride, INT(m))) for m in range(rows)]
        lines = [builder.mul(builder.add(r, INT(k)), step) for k in range(atoms)]

        def add(q: Any, left: Any = None, asks: bool = False) -> None:
            places = [builder.add(start, q) for start in starts]
            x = [emit_load(builder, X, i) if left is None else emit_load_some(builder, X, i, left) for i in places]
            for place in places if asks else []:
                emit_prefetch(builder, X, builder.add(place, ahead))
            for line, each in zip(lines, slots, strict=True):
                w = emit_load(builder, W, builder.add(line, q))
                for slot, cells in zip(each, x, strict=True):
                    builder.store(emit_fma(builder, w, cells, builder.load(slot)), slot)

        whole = builder.sdiv(size, INT(GROUP))
        with builder.if_else(builder.icmp_signed(">", ahead, INT(0))) as branches:
            for branch, asks in zip(branches, (True, False), strict=True):
                with branch, TOOLS.for_range(builder, whole) as loop:
                    add(builder.mul(loop.index, INT(GROUP)), asks=asks)
        rest = builder.mul(whole, INT(GROUP))
        with builder.if_then(builder.icmp_signed("<", rest, size)):
            add(rest, builder.sub(size, rest))
        for k, each in enumerate(slots):
            for m, slot in enumerate(each):
                emit_store(builder, sums, INT((m * ATOMS + k) * GROUP), builder.load(slot))

    return sized(write, n, v, W, r, X, at, stride, size, ahead, sums)
