"""B in tiles: the layout in which a step goes over a large B once, in one direction.

B (R, P, Q), with Q the last mode and P the cells of all others, is cut along Q. A tile (R, P, width) has all that the
rows of the last mode that lie in it need, and fits the second cache; tiles follow each other in memory. The columns
that the last tile has too many are zero. Nobody else knows of this: `Blocks` gives atoms in C order, and contractions.

**Order of sums.** A sum over the last mode has a register of partial sums for each *stretch* of STRETCH tiles, cell q
in lane q mod GROUP; stretches are added one after the other. So it has the same bits whether it was made while a step
had each tile in its cache, or later by `Blocks.fold_last`, and on any number of threads.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from stream_ocpdl.ocpdl import arrays, panels
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.compiled import kernel, part
from stream_ocpdl.ocpdl.lanes import GROUP, aligned, fma, load, load_some, prefetch, spread, store, total
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

LARGE = 4_000_000
"""Numbers from which on B is cut into tiles: fewer stay in a cache from one pass to the next."""

TILE = GROUP << 13
"""Numbers of a tile, at most: half a megabyte, or a quarter, for second caches are smaller where registers are."""

SPAN = 8 * GROUP
"""Columns whose sums are in registers at a time; a tile has one span or several."""

STRETCH = 16
"""Tiles whose sums are added in one register each."""


class Folded(NamedTuple):
    """T (R, P) = B ×ₙ Uₙ, atom by atom, and G (R, R) = UₙᵀUₙ: a function of B and Uₙ that a step leaves behind."""

    T: Array
    G: Array


def width_of(shape: tuple[int, ...], rank: int) -> int:
    """Columns of a tile; zero where B stays as it is, since it is small, or a tile would be too large.

    >>> width_of((50, 60000), 20) // GROUP, width_of((1000, 1000), 5), width_of((100, 100), 5)
    (8, 0, 0)
    """
    if len(shape) < 2 or rank * prod(shape) < LARGE:
        return 0
    width = min(TILE // (rank * prod(shape[:-1])), shape[-1] // 2)
    return width // SPAN * SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """B (R, I₁…Iₙ), kept as tiles (tiles, R, P, width).

    >>> B = Blocks.zeros((3, 130), 2, "float64", 64)
    >>> B.write_atom(1, np.ones((3, 130)))
    >>> B.shape, B.size, float(np.sum(B)), float(B.atom(0).sum())
    ((2, 3, 130), 780, 390.0, 0.0)
    """

    tiles: BigArray
    shape: tuple[int, ...]

    @classmethod
    def zeros(cls, shape: tuple[int, ...], rank: int, dtype: str, width: int) -> "Blocks":
        """B before any data."""
        dims = (-(-shape[-1] // width), rank, prod(shape[:-1]), width)
        return cls(arrays.zeros(dims, dtype), (rank, *shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64 or float32."""
        return self.tiles.dtype

    @property
    def size(self) -> int:
        """R · I₁⋯Iₙ."""
        return prod(self.shape)

    @property
    def stretches(self) -> int:
        """Runs of STRETCH tiles; the last may be shorter."""
        return -(-len(self.tiles) // STRETCH)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> BigArray:
        """All of it in C order."""
        return np.array([self.atom(r) for r in range(len(self))], dtype)

    def empty(self) -> "Blocks":
        """Memory for another one of this kind."""
        return Blocks(arrays.empty(self.tiles.shape, self.dtype), self.shape)

    def atom(self, r: int) -> BigArray:
        """B(r, …) in C order."""
        out = np.empty(self.shape[1:], self.dtype)
        for there, here in self._pieces(r, out):
            there[...] = here
        return out

    def write_atom(self, r: int, values: BigArray) -> None:
        """B(r, …) = values, which are in C order."""
        for there, here in self._pieces(r, values):
            here[...] = there

    def _pieces(self, r: int, plain: BigArray) -> list[tuple[BigArray, BigArray]]:
        """The columns of an atom that fill tiles, and the rest: as they are in C order, and as they are here."""
        count, width = len(self.tiles), self.tiles.shape[-1]
        fibres, whole = plain.reshape(-1, self.shape[-1]), self.shape[-1] // width
        full = fibres[:, : whole * width].reshape(len(fibres), whole, width).transpose(1, 0, 2)
        pieces = [(full, self.tiles[:whole, r])]
        if whole < count:
            rest = fibres[:, whole * width :]
            pieces.append((rest, self.tiles[whole, r, :, : rest.shape[1]]))
        return pieces

    def fold_last(self, U: Array, workers: Workers = SERIAL) -> Folded:
        """B contracted with Uₙ (Iₙ, R), and UₙᵀUₙ (eq:def_Btrj, eq:def_Atj)."""
        R, P, count = len(self), self.tiles.shape[2], self.stretches
        T, G = np.empty((count, R, P)), np.empty((count, R, R))
        workers.run(fold_last, count, self.size / count, self.tiles, U, T, G)
        return Folded(T.sum(axis=0), G.sum(axis=0))

    def fold_first(self, V: Array, workers: Workers = SERIAL) -> Array:
        """B contracted with V (P, R), the other modes → (R, Iₙ) (eq:def_Btrj)."""
        count, width = len(self.tiles), self.tiles.shape[-1]
        out = np.empty((len(self), count * width))
        workers.run(fold_first, count, self.size / count, self.tiles, V, out)
        return out[:, : self.shape[-1]]


# ── contractions ───────────────────────────────────────────────────────────────────────────────────────────────


@kernel
def fold_last(lo: int, hi: int, B: BigArray, U: Array, T: Array, G: Array) -> None:
    """Stretches [lo, hi) of B ×ₙ Uₙ and of UₙᵀUₙ. B (tiles, R, P, width), U (Q, R) → T (·, R, P), G (·, R, R)."""
    tiles, R, P, width = B.shape
    turned, sums, grams = aligned(R, width // GROUP), aligned(R, P), aligned(R, R)
    for s in range(lo, hi):
        sums[:] = 0.0
        grams[:] = 0.0
        for k in range(s * STRETCH, min((s + 1) * STRETCH, tiles)):
            turn(U, k * width, turned)
            fold_tile(B, k, turned, sums)
            gram_tile(turned, grams)
        add_lanes(sums, T[s])
        add_lanes(grams, G[s])
        mirror(G[s])


@kernel
def fold_first(lo: int, hi: int, B: BigArray, V: Array, out: Array) -> None:
    """B contracted with V over all modes but the last, tiles [lo, hi).

    B (tiles, R, P, width), V (P, R) → out (R, ·).
    """
    R, P, width = B.shape[1:]
    for k in range(lo, hi):
        for r in range(R):
            here = out[r, k * width : (k + 1) * width]
            here[:] = 0.0
            for p in range(P):
                for q in range(width):
                    here[q] += V[p, r] * B[k, r, p, q]


@part
def turn(U: Array, first: int, out: Array) -> None:
    """Rows [first, first + width) of U (Q, R) as columns, and zeros behind → out (R, width/GROUP, GROUP)."""
    R, registers, _ = out.shape
    width = registers * GROUP
    panels.turn(U, first, min(U.shape[0] - first, width), out.reshape(R, width))


@part
def fold_tile(B: BigArray, k: int, turned: Array, sums: Array) -> None:
    """Σ_q B[k, r, p, q] U[q, r], U turned (R, width), lane by lane added to sums (R, P, GROUP)."""
    R, P, width = B.shape[1], B.shape[2], B.shape[3]
    for r in range(R):
        for q in range(0, width, SPAN):
            u0, u1, u2, u3 = load_four(turned, r * width + q)
            u4, u5, u6, u7 = load_four(turned, r * width + q + SPAN // 2)
            i = (k * R + r) * P * width + q
            for p in range(P):
                a, b, c, d = load_four(B, i)
                a, b, c, d = fma(a, u0, load(sums, (r * P + p) * GROUP)), b * u1, c * u2, d * u3
                e, f, g, h = load_four(B, i + SPAN // 2)
                a, b, c, d = fma(e, u4, a), fma(f, u5, b), fma(g, u6, c), fma(h, u7, d)
                store(sums, (r * P + p) * GROUP, (a + b) + (c + d))
                i += width


@part
def gram_tile(turned: Array, sums: Array) -> None:
    """Σ_q U[q, r] U[q, s] for s ≤ r, U turned (R, width), lane by lane added to sums (R, R, GROUP)."""
    R, width = turned.shape[0], turned.shape[1] * GROUP
    for r in range(R):
        for q in range(0, width, SPAN):
            u0, u1, u2, u3 = load_four(turned, r * width + q)
            u4, u5, u6, u7 = load_four(turned, r * width + q + SPAN // 2)
            for s in range(r + 1):
                a, b, c, d = load_four(turned, s * width + q)
                a, b, c, d = fma(a, u0, load(sums, (r * R + s) * GROUP)), b * u1, c * u2, d * u3
                e, f, g, h = load_four(turned, s * width + q + SPAN // 2)
                a, b, c, d = fma(e, u4, a), fma(f, u5, b), fma(g, u6, c), fma(h, u7, d)
                store(sums, (r * R + s) * GROUP, (a + b) + (c + d))


@part
def load_four(x: BigArray, i: int) -> tuple[Array, Array, Array, Array]:
    """Four registers from place i on."""
    return load(x, i), load(x, i + GROUP), load(x, i + 2 * GROUP), load(x, i + 3 * GROUP)


@part
def add_lanes(sums: Array, out: Array) -> None:
    """Each register's total. sums (m, n, GROUP) → out (m, n)."""
    for m in range(out.shape[0]):
        for n in range(out.shape[1]):
            out[m, n] = total(load(sums, (m * out.shape[1] + n) * GROUP))


@part
def mirror(G: Array) -> None:
    """What is above the diagonal of a symmetric matrix, from what is below."""
    for r in range(G.shape[0]):
        for s in range(r):
            G[s, r] = G[r, s]


# ── absorbing ──────────────────────────────────────────────────────────────────────────────────────────────────


@part
def take_columns(X: BigArray, first: int, out: Array) -> None:
    """Columns of X (rows, Q) from `first` on, as doubles, and zeros behind → out (rows, width/GROUP, GROUP).

    Those of the next tile are asked for: they lie in as many pages as X has rows.
    """
    rows, width, Q = out.shape[0], out.shape[1] * GROUP, X.shape[1]
    for p in range(rows):
        for q in range(0, width, 64 // X.itemsize):
            prefetch(X, p * Q + first + width + q)
        for q in range(0, width, GROUP):
            store(out, p * width + q, load_some(X, p * Q + first + q, Q - first - q))


@part
def absorb_one(past: BigArray, k: int, x: Array, h: Array, keep: float, V: Array, B: BigArray, L: Array) -> None:
    """Tile k of keep·past + h ⊗ x → B, and Σ_p V[p, r] B[k, r, p, :] → L (R, width/GROUP, GROUP). One x (P, width).

    Eight registers of sums stay where they are while the cells of the other modes go by: B is read and written in the
    order in which it lies in memory, so that the processor knows by itself what it will want next.
    """
    R, P, width = B.shape[1], B.shape[2], B.shape[3]
    old, zero = spread(keep), spread(0.0)
    for r in range(R):
        new = spread(h[r])
        for q in range(0, width, SPAN):
            s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
            i, j = (k * R + r) * P * width + q, q
            for p in range(P):
                v = spread(V[p, r])
                a, b, c, d = absorb_four(past, i, x, j, old, new, B)
                s0, s1, s2, s3 = fma(v, a, s0), fma(v, b, s1), fma(v, c, s2), fma(v, d, s3)
                a, b, c, d = absorb_four(past, i + SPAN // 2, x, j + SPAN // 2, old, new, B)
                s4, s5, s6, s7 = fma(v, a, s4), fma(v, b, s5), fma(v, c, s6), fma(v, d, s7)
                i, j = i + width, j + width
            store_four(L, r * width + q, s0, s1, s2, s3)
            store_four(L, r * width + q + SPAN // 2, s4, s5, s6, s7)


@part
def absorb_four(
    past: BigArray, i: int, x: Array, j: int, old: Array, new: Array, B: BigArray
) -> tuple[Array, Array, Array, Array]:
    """Four registers of old·past + new·x, from places i and j on → B; and as they are before they are rounded."""
    a, b, c, d = load_four(past, i)
    e, f, g, h = load_four(x, j)
    a, b, c, d = fma(new, e, old * a), fma(new, f, old * b), fma(new, g, old * c), fma(new, h, old * d)
    store_four(B, i, a, b, c, d)
    return a, b, c, d


@part
def store_four(out: BigArray, i: int, a: Array, b: Array, c: Array, d: Array) -> None:
    """Four registers to place i on."""
    store(out, i, a)
    store(out, i + GROUP, b)
    store(out, i + 2 * GROUP, c)
    store(out, i + 3 * GROUP, d)


@part
def absorb_several(past: BigArray, k: int, x: Array, H: Array, keep: float, V: Array, B: BigArray, L: Array) -> None:
    """The same for b tensors x (b·P, width), H (b, R): the tensors' cells at one place serve all atoms."""
    b, R, P, width = H.shape[0], B.shape[1], B.shape[2], B.shape[3]
    old = spread(keep)
    for t in range(0, R * width, GROUP):
        store(L, t, spread(0.0))
    for p in range(P):
        for r in range(R):
            v = spread(V[p, r])
            for q in range(0, width, SPAN // 2):
                i, t = ((k * R + r) * P + p) * width + q, r * width + q
                s0, s1, s2, s3 = load_four(past, i)
                s0, s1, s2, s3 = old * s0, old * s1, old * s2, old * s3
                for j in range(b):
                    h, (x0, x1, x2, x3) = spread(H[j, r]), load_four(x, (j * P + p) * width + q)
                    s0, s1, s2, s3 = fma(h, x0, s0), fma(h, x1, s1), fma(h, x2, s2), fma(h, x3, s3)
                store_four(B, i, s0, s1, s2, s3)
                x0, x1, x2, x3 = load_four(L, t)
                store_four(L, t, fma(v, s0, x0), fma(v, s1, x1), fma(v, s2, x2), fma(v, s3, x3))
