"""Algorithm 2 by entries: coding and absorbing in O(nnz·R), where the whole minibatch would cost O(bMR).

    ⟨X_j, atom r⟩ = Σ x · U₁[i₁, r] ⋯ Uₙ[iₙ, r], over the entries x of tensor j     Algorithm 4's WᵀX
    B ← (1 − w)B + (w/b) Σⱼ h_j ⊗ X_j, entry by entry                               eq:main_alg_aggregate_tensors

All of B shrinks in every step, and the loadings are solved from all of it: that stays O(MR). So B is gone over as it
would be without a minibatch, row by row: a row shrinks, is contracted with the second group of modes, which the
loadings of the first need (eq:def_Btrj), and takes its entries while it is in the cache. For this the entries are put
in the order of rows, or of tiles where B is in tiles (`onepass`), in each by tensors: the order of every sum is fixed.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from stream_ocpdl.ocpdl import arrays
from stream_ocpdl.ocpdl.aggregates import Aggregates, first_group, gram, gram_of_atoms, khatri_rao, with_new
from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices
from stream_ocpdl.ocpdl.blocks import Folded, load_four, store_four
from stream_ocpdl.ocpdl.compiled import exact, part
from stream_ocpdl.ocpdl.entries import SparseBatch
from stream_ocpdl.ocpdl.lanes import GROUP, fma, load_some, spread, store_some, total
from stream_ocpdl.ocpdl.quadratic import product
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

CHUNK = 4096
"""Cells of a row where there is only one group of modes."""

SPAN = 4 * GROUP
"""Cells of a row at a time."""


class Contracted(NamedTuple):
    """What a minibatch is coded from: G (R, R), inner products of the atoms, and L (b, R), those with the tensors."""

    G: Array
    L: Array


class Entries(NamedTuple):
    """Entries in order: those of row (or tile) k are [ends[k], ends[k + 1]); where in it, of which tensor, and x.

    `codes` (b, R) are the tensors' codes, already times w/b.
    """

    ends: Indices
    places: Indices
    tensors: Indices
    values: BigArray
    codes: Array


def contracted(loadings: Sequence[Array], batch: SparseBatch, workers: Workers = SERIAL) -> Contracted:
    """The minibatch contracted with D_{t−1}."""
    return Contracted(gram_of_atoms(loadings), correlate(batch, loadings, workers))


def correlate(batch: SparseBatch, loadings: Sequence[Array], workers: Workers = SERIAL) -> Array:
    """⟨X_j, atom r⟩ as (b, R): Algorithm 4's WᵀX; no atom is ever made."""
    b, (n, R) = len(batch), (len(loadings), loadings[0].shape[1])
    U, sizes = np.concatenate(loadings), np.array(batch.shape)
    rows, out = np.empty((len(batch.indices), n), np.int64), np.empty((b, R))
    workers.run(locate, len(rows), 10 * n, batch.indices, sizes, rows)
    workers.run(correlate_entries, b, n * R * len(rows) / b, batch.starts, rows, batch.values, U, out)
    return out


def residuals(loadings: Sequence[Array], batch: SparseBatch, H: Array) -> Array:
    """‖X_j − Out(D) ×ₙ₊₁ h_j‖² of each tensor."""
    G, L = contracted(loadings, batch)
    return np.asarray(np.maximum(batch.energies + np.sum(H * (product(H, G) - 2.0 * L), axis=1), 0.0))


def absorb(
    past: Aggregates,
    loadings: Sequence[Array],
    batch: SparseBatch,
    H: Array,
    w: float,
    workers: Workers = SERIAL,
    consume: bool = False,
) -> tuple[Aggregates, Folded | None]:
    """eq:main_alg_aggregate_tensors, and B contracted with the second group of modes, if there are two.

    A consumed past gives its B away.
    """
    R, M, split = len(past.A), prod(batch.shape), first_group(batch.shape)
    Q = prod(batch.shape[split:]) if split > 0 else min(CHUNK, M)
    P = -(-M // Q)
    entries = in_order(*np.divmod(batch.indices, Q), P, batch, (w / len(H)) * H)
    old = np.asarray(past.B)
    B, T = old if consume else arrays.empty(old.shape, old.dtype), np.empty((R, P))
    W = np.ascontiguousarray(khatri_rao(loadings[split:], R).T) if split > 0 else np.zeros((R, Q))
    workers.run(absorb_rows, R * P, Q, old.reshape(R, M), 1 - w, entries, W, Q, B.reshape(R, M), T)
    folded = Folded(T, gram(loadings[-1])) if split > 0 else None
    return with_new(past, B, batch.energy, H, w), folded


def in_order(rows: Indices, places: Indices, count: int, batch: SparseBatch, codes: Array) -> Entries:
    """The entries of a minibatch by `count` rows, in each by tensors; `places` is where in its row an entry is."""
    ends, order = np.zeros(count + 1, np.int64), np.empty(len(rows), np.int64)
    put_in_order(rows, ends, order)
    return Entries(ends, places[order], batch.tensors[order], batch.values[order], codes)


def by_tiles(batch: SparseBatch, width: int, codes: Array) -> Entries:
    """The entries by tiles of `width` columns of the last mode; a place in a tile is that of (P, width), flat."""
    fibres, columns = np.divmod(batch.indices, batch.shape[-1])
    tiles, within = np.divmod(columns, width)
    return in_order(tiles, fibres * width + within, -(-batch.shape[-1] // width), batch, codes)


def no_entries(R: int, dtype: np.dtype[Any]) -> Entries:
    """Of a minibatch that comes as a whole."""
    none = np.empty(0, np.int64)
    return Entries(none, none, none, np.empty(0, dtype), np.empty((0, R)))


def fold_minibatch(batch: SparseBatch, codes: Array, U: Array, workers: Workers = SERIAL) -> Array:
    """Σⱼ codes[j, r] · X_j ×ₙ U (Iₙ, R) → (R, P)."""
    P, R = prod(batch.shape[:-1]), U.shape[1]
    fibres, columns = np.divmod(batch.indices, batch.shape[-1])
    out = np.zeros((R, P))
    workers.run(fold_entries, R, 3 * len(fibres), fibres, columns, batch.tensors, batch.values, codes, U, out)
    return out


@exact
def locate(lo: int, hi: int, indices: Indices, sizes: Indices, out: Indices) -> None:
    """For entries [lo, hi) the rows of the modes, one mode below the other, whose product has the cell's atoms."""
    n = sizes.size
    for e in range(lo, hi):
        m, first = indices[e], np.sum(sizes)
        for k in range(1, n + 1):
            i = n - k
            first -= sizes[i]
            rest = m // sizes[i]
            out[e, i] = first + m - rest * sizes[i]
            m = rest


@exact
def correlate_entries(lo: int, hi: int, starts: Indices, rows: Indices, values: BigArray, U: Array, out: Array) -> None:
    """Σ x ∏ᵢ U[rows[e, i], r] over the entries of tensors [lo, hi). U (ΣIᵢ, R) → out (b, R)."""
    n, R = rows.shape[1], U.shape[1]
    for j in range(lo, hi):
        for r in range(0, R, GROUP):
            s = spread(0.0)
            for e in range(starts[j], starts[j + 1]):
                d = spread(np.float64(values[e]))
                for i in range(n):
                    d = d * load_some(U, rows[e, i] * R + r, R - r)
                s = s + d
            store_some(out, j * R + r, R - r, s)


@exact
def put_in_order(rows: Indices, ends: Indices, order: Indices) -> None:
    """The stable order of entries by rows, and where each row begins; ends (count + 1) comes as zeros."""
    for e in range(rows.size):
        ends[rows[e] + 1] += 1
    for k in range(1, ends.size):
        ends[k] += ends[k - 1]
    following = ends.copy()
    for e in range(rows.size):
        order[following[rows[e]]] = e
        following[rows[e]] += 1


@exact
def absorb_rows(
    lo: int, hi: int, past: BigArray, keep: float, entries: Entries, W: Array, Q: int, B: BigArray, T: Array
) -> None:
    """Rows [lo, hi) of keep·past + Σ codes ⊗ entries → B (R, M), and each with W (R, Q) → T (R, P).

    A row has Q cells, the last of an atom perhaps fewer. What is contracted was rounded as B is.
    """
    P, M = T.shape[1], B.shape[1]
    ends, places, tensors, values, codes = entries
    for k in range(lo, hi):
        r, p = k // P, k % P
        first = p * Q
        sum_ = shrink(past, r * M + first, min(Q, M - first), keep, W, r * Q, B)
        for e in range(ends[p], ends[p + 1]):
            q = places[e]
            before = np.float64(B[r, first + q])
            B[r, first + q] = before + codes[tensors[e], r] * np.float64(values[e])
            sum_ += W[r, q] * (np.float64(B[r, first + q]) - before)
        T[r, p] = sum_


@part
def shrink(past: BigArray, i: int, size: int, keep: float, W: Array, j: int, B: BigArray) -> float:
    """keep·past → B, the same `size` cells from place i on; and their sum with those of W from place j on."""
    old, zero = spread(keep), spread(0.0)
    s0, s1, s2, s3 = zero, zero, zero, zero
    whole = size // SPAN * SPAN
    for q in range(0, whole, SPAN):
        a, b, c, d = load_four(past, i + q)
        store_four(B, i + q, old * a, old * b, old * c, old * d)
        a, b, c, d = load_four(B, i + q)
        e, f, g, h = load_four(W, j + q)
        s0, s1, s2, s3 = fma(a, e, s0), fma(b, f, s1), fma(c, g, s2), fma(d, h, s3)
    for q in range(whole, size, GROUP):
        store_some(B, i + q, size - q, old * load_some(past, i + q, size - q))
        s0 = fma(load_some(B, i + q, size - q), load_some(W, j + q, size - q), s0)
    return total((s0 + s1) + (s2 + s3))


@part
def absorb_entries(entries: Entries, k: int, V: Array, B: BigArray, L: Array) -> None:
    """Tile k takes its entries → B (tiles, R, P, width), and so does Σ_p V[p, r] B[k, r, p, :] → L (R, ·, GROUP)."""
    R, width = B.shape[1], B.shape[3]
    for e in range(entries.ends[k], entries.ends[k + 1]):
        p, q, x = entries.places[e] // width, entries.places[e] % width, np.float64(entries.values[e])
        for r in range(R):
            more = entries.codes[entries.tensors[e], r] * x
            B[k, r, p, q] += more
            L[r, q // GROUP, q % GROUP] += V[p, r] * more


@exact
def fold_entries(
    lo: int,
    hi: int,
    fibres: Indices,
    columns: Indices,
    tensors: Indices,
    values: BigArray,
    codes: Array,
    U: Array,
    out: Array,
) -> None:
    """Σ codes[j, r] x U[q, r] over the entries x of each fibre, atoms [lo, hi) → added to out (R, P)."""
    for r in range(lo, hi):
        for e in range(fibres.size):
            out[r, fibres[e]] += codes[tensors[e], r] * np.float64(values[e]) * U[columns[e], r]
