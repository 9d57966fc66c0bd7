"""The long contraction of a minibatch: X (N, Q) with a group of modes W (Q, R), the first half of Algorithm 4's WᵀX.

Sixteen registers of sums, of four rows with four atoms, run along Q; or eight, of four rows with two atoms, where there
are no more. A sum is added lane by lane in ascending order of the cells, whichever rows and atoms are at its side: its
bits depend on no range.
"""

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.compiled import kernel, part
from stream_ocpdl.ocpdl.lanes import GROUP, WIDE, fma, load, load_some, prefetch, spread, total, turn_square

ROWS = 4
"""Rows at a time."""

SPAN = 1024 if WIDE else 512
"""Cells of a sum that are taken at a time, a multiple of GROUP: those of W, turned, stay in the cache."""

STRIDE = SPAN + GROUP
"""From an atom of the turned W to the next: no power of two, whose rows would crowd each other out of the cache."""


@kernel
def contract(lo: int, hi: int, X: BigArray, W: Array, out: Array) -> None:
    """XW, rows [lo, hi) (Algorithm 4's WᵀX for one group of modes). X (N, Q), W (Q, R) → out (N, R).

    By spans of the sum, for which W is turned so that all loops run along memory. Where fewer than four rows are left,
    the last is taken several times.
    """
    Q, R = W.shape
    turned = np.zeros((R, STRIDE))
    out[lo:hi, :] = 0.0
    for first in range(0, Q, SPAN):
        size = min(SPAN, Q - first)
        turn(W, first, size, turned)
        for n in range(lo, hi, ROWS):
            r = 0
            while WIDE and r + 4 <= R:
                four_atoms(X, n, hi, first, size, turned, r, out)
                r += 4
            while r + 2 <= R:
                two_atoms(X, n, hi, first, size, turned, r, out)
                r += 2
            if r < R:
                one_atom(X, n, hi, first, size, turned, r, out)


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


@part
def four_atoms(X: BigArray, n: int, hi: int, first: int, size: int, turned: Array, r: int, out: Array) -> None:
    """Rows [n, n + 4) of X with atoms [r, r + 4), cells [first, first + size) → added to out.

    The next four rows are on their way meanwhile.
    """
    Q = X.shape[1]
    i, j, k, m = n, min(n + 1, hi - 1), min(n + 2, hi - 1), min(n + 3, hi - 1)
    w = r * STRIDE
    zero = spread(0.0)
    a0, a1, a2, a3, b0, b1, b2, b3 = zero, zero, zero, zero, zero, zero, zero, zero
    c0, c1, c2, c3, d0, d1, d2, d3 = zero, zero, zero, zero, zero, zero, zero, zero
    for q in range(0, size, GROUP):
        a, b = load_some(X, i * Q + first + q, size - q), load_some(X, j * Q + first + q, size - q)
        c, d = load_some(X, k * Q + first + q, size - q), load_some(X, m * Q + first + q, size - q)
        if r == 0 and n + 2 * ROWS <= hi:
            fetch(X, (n + ROWS) * Q + first + q, Q)
        v = load(turned, w + q)
        a0, b0, c0, d0 = fma(a, v, a0), fma(b, v, b0), fma(c, v, c0), fma(d, v, d0)
        v = load(turned, w + STRIDE + q)
        a1, b1, c1, d1 = fma(a, v, a1), fma(b, v, b1), fma(c, v, c1), fma(d, v, d1)
        v = load(turned, w + 2 * STRIDE + q)
        a2, b2, c2, d2 = fma(a, v, a2), fma(b, v, b2), fma(c, v, c2), fma(d, v, d2)
        v = load(turned, w + 3 * STRIDE + q)
        a3, b3, c3, d3 = fma(a, v, a3), fma(b, v, b3), fma(c, v, c3), fma(d, v, d3)
    add_four(out, i, r, a0, a1, a2, a3)
    if j > i:
        add_four(out, j, r, b0, b1, b2, b3)
    if k > j:
        add_four(out, k, r, c0, c1, c2, c3)
    if m > k:
        add_four(out, m, r, d0, d1, d2, d3)


@part
def two_atoms(X: BigArray, n: int, hi: int, first: int, size: int, turned: Array, r: int, out: Array) -> None:
    """The same with atoms [r, r + 2)."""
    Q = X.shape[1]
    i, j, k, m = n, min(n + 1, hi - 1), min(n + 2, hi - 1), min(n + 3, hi - 1)
    w = r * STRIDE
    zero = spread(0.0)
    a0, a1, b0, b1, c0, c1, d0, d1 = zero, zero, zero, zero, zero, zero, zero, zero
    for q in range(0, size, GROUP):
        if r == 0 and n + 2 * ROWS <= hi:
            fetch(X, (n + ROWS) * Q + first + q, Q)
        v, u = load(turned, w + q), load(turned, w + STRIDE + q)
        x = load_some(X, i * Q + first + q, size - q)
        a0, a1 = fma(x, v, a0), fma(x, u, a1)
        x = load_some(X, j * Q + first + q, size - q)
        b0, b1 = fma(x, v, b0), fma(x, u, b1)
        x = load_some(X, k * Q + first + q, size - q)
        c0, c1 = fma(x, v, c0), fma(x, u, c1)
        x = load_some(X, m * Q + first + q, size - q)
        d0, d1 = fma(x, v, d0), fma(x, u, d1)
    add_two(out, i, r, a0, a1)
    if j > i:
        add_two(out, j, r, b0, b1)
    if k > j:
        add_two(out, k, r, c0, c1)
    if m > k:
        add_two(out, m, r, d0, d1)


@part
def add_two(out: Array, n: int, r: int, a: Array, b: Array) -> None:
    """Two totals added to a row."""
    out[n, r] += total(a)
    out[n, r + 1] += total(b)


@part
def fetch(X: BigArray, i: int, Q: int) -> None:
    """Ask for place i of X, counted flat, and for the places below it in the next three rows."""
    prefetch(X, i)
    prefetch(X, i + Q)
    prefetch(X, i + 2 * Q)
    prefetch(X, i + 3 * Q)


@part
def add_four(out: Array, n: int, r: int, a: Array, b: Array, c: Array, d: Array) -> None:
    """Four totals added to a row."""
    out[n, r] += total(a)
    out[n, r + 1] += total(b)
    out[n, r + 2] += total(c)
    out[n, r + 3] += total(d)


@part
def one_atom(X: BigArray, n: int, hi: int, first: int, size: int, turned: Array, r: int, out: Array) -> None:
    """The same with one atom."""
    Q = X.shape[1]
    i, j, k, m = n, min(n + 1, hi - 1), min(n + 2, hi - 1), min(n + 3, hi - 1)
    zero = spread(0.0)
    a, b, c, d = zero, zero, zero, zero
    for q in range(0, size, GROUP):
        v, left = load(turned, r * STRIDE + q), size - q
        a = fma(load_some(X, i * Q + first + q, left), v, a)
        b = fma(load_some(X, j * Q + first + q, left), v, b)
        c = fma(load_some(X, k * Q + first + q, left), v, c)
        d = fma(load_some(X, m * Q + first + q, left), v, d)
    out[i, r] += total(a)
    if j > i:
        out[j, r] += total(b)
    if k > j:
        out[k, r] += total(c)
    if m > k:
        out[m, r] += total(d)
