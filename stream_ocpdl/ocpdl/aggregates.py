"""A, B, E, P: all that the past leaves behind, and what the algorithm reads from it.

By prop:g_t_derivation the surrogate loss needs no stored data. With E and P, which hold the two sums that the
paper's (i) prints without their weights wₛᵗ, it is exact:

    f̂_t(D) = tr(A G) − 2⟨B, Out(D)⟩ + E + λP + λ₂ tr A,        G = U₁ᵀU₁ ⊙ … ⊙ UₙᵀUₙ,   per tensor.

The paper puts batch and atom last; here they come first: X (b, I₁…Iₙ), H (b, R), B (R, I₁…Iₙ). Sums over a
minibatch are divided by its size, so that batches of different sizes can be mixed.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from stream_ocpdl.ocpdl import arrays, contraction, kernels, panels
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.blocks import Blocks, Folded, width_of
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

IN_A_ROW = 48
"""Cells that lie one after the other, at least, in the second of two groups of modes."""

SMALL = 4_000_000
"""Multiplications up to which a coding is done in one call, on one thread. Sizes alone decide, never the threads: bits
do not depend on these."""


class Aggregates(NamedTuple):
    """A (R, R), B (R, I₁…Iₙ), E = mean energy, P = mean ‖h‖₁, each weighted by wₛᵗ (eq:def_OCPDL_ELM_explicit)."""

    A: Array
    B: BigArray | Blocks
    """In tiles where it is large: `blocks.width_of`."""
    E: float
    P: float


def nothing(shape: tuple[int, ...], rank: int, dtype: str) -> Aggregates:
    """The aggregates before any data."""
    width = width_of(shape, rank)
    B = Blocks.zeros(shape, rank, dtype, width) if width > 0 else arrays.zeros((rank, *shape), dtype)
    return Aggregates(np.zeros((rank, rank)), B, 0.0, 0.0)


def absorb(
    past: Aggregates, X: BigArray, energy: float, H: Array, w: float, workers: Workers = SERIAL, consume: bool = False
) -> Aggregates:
    """eq:main_alg_aggregate_tensors, with `energy` = Σ‖X_j‖² of the minibatch. A consumed past gives its B away."""
    R, M, b = len(past.A), prod(past.B.shape[1:]), len(X)
    B = np.asarray(past.B) if consume else arrays.copy(past.B)
    factors = H * (w / b), X.reshape(b, M)
    workers.run(panels.add_product, M, R * b, *factors, 1 - w, B.reshape(R, M), grain=kernels.TILE)
    return with_new(past, B, energy, H, w)


def absorb_and_fold(
    past: Aggregates,
    loadings: Sequence[Array],
    X: BigArray,
    energy: float,
    H: Array,
    w: float,
    workers: Workers = SERIAL,
    consume: bool = False,
) -> tuple[Aggregates, Folded | None]:
    """`absorb`, and B contracted with the second group of modes meanwhile, if the first has enough cells."""
    V, W = halves(loadings)
    (P, R), Q, b = V.shape, len(W), len(X)
    if P < IN_A_ROW:
        return absorb(past, X, energy, H, w, workers, consume), None
    B, T = np.asarray(past.B) if consume else arrays.copy(past.B), np.empty((R, P))
    factors = X.reshape(b, P, Q), H * (w / b), 1 - w, panels.turned_in_lanes(W)
    workers.run(panels.absorb_and_fold_far, P, R * b * Q, B.reshape(R, P, Q), *factors, T)
    return with_new(past, B, energy, H, w), Folded(T, gram(loadings[-1]))


def with_new(past: Aggregates, B: BigArray | Blocks, energy: float, H: Array, w: float) -> Aggregates:
    """The aggregates with a B that has absorbed the minibatch, and all the rest that has to."""
    b = len(H)
    return Aggregates(
        A=(1 - w) * past.A + (w / b) * gram(H),
        B=B,
        E=(1 - w) * past.E + (w / b) * energy,
        P=(1 - w) * past.P + (w / b) * float(np.abs(H).sum()),
    )


def gram(U: Array) -> Array:
    """UᵀU."""
    out = np.empty((U.shape[1], U.shape[1]))
    panels.gram(np.ascontiguousarray(U), out)
    return out


def gram_of_atoms(loadings: Sequence[Array]) -> Array:
    """G = ⊙ᵢ UᵢᵀUᵢ, the inner products of the atoms."""
    G = np.ones((loadings[0].shape[1],) * 2)
    for U in loadings:
        G *= gram(U)
    return G


def reconstruction(loadings: Sequence[Array], H: Array) -> BigArray:
    """X̂ = Out(D) ×ₙ₊₁ H: the tensors (…, I₁…Iₙ) that codes (…, R) stand for.

    >>> reconstruction([np.eye(2), np.eye(2)], np.array([1.0, 2.0])).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    T = np.asarray(H, np.float64)
    for U in loadings[:-1]:
        T = T[..., None, :] * U
    return np.asarray(T @ loadings[-1].T)


def correlate(X: BigArray, loadings: Sequence[Array], workers: Workers = SERIAL) -> Array:
    """⟨X_j, atom r⟩ as (b, R): Algorithm 4's WᵀX, the second group of modes first."""
    V, W = halves(loadings)
    if X.size * V.shape[1] > SMALL:
        return without_first(without_second(X, W, workers), V, workers)
    out = np.empty((len(X), V.shape[1]))
    panels.correlate(X.reshape(len(X), len(V), -1), V, np.ascontiguousarray(W.T), out)
    return out


def without_second(X: BigArray, W: Array, workers: Workers = SERIAL) -> Array:
    """X (b, I₁…Iₙ) contracted with W (Q, R), the second group of modes → (b, P, R)."""
    b, (Q, R) = len(X), W.shape
    out = np.empty((X.size // Q, R))
    workers.run(contraction.contract, len(out), W.size, X.reshape(-1, Q), W, out, grain=contraction.STRIP)
    return out.reshape(b, -1, R)


def without_first(Y: Array, V: Array, workers: Workers = SERIAL) -> Array:
    """Y (b, P, R) contracted with V (P, R), the first group of modes, atom by atom → (b, R)."""
    out = np.empty((len(Y), V.shape[1]))
    workers.run(kernels.contract_next, len(Y), V.size, Y, V, out)
    return out


def first_group(shape: Sequence[int]) -> int:
    """How many modes are in the first of two groups. The second has enough cells in a row for vector instructions.

    >>> first_group((20, 20, 3)), first_group((50, 60000)), first_group((7,))
    (1, 1, 0)
    """
    modes, cells = len(shape), 1
    while modes > 0 and cells < IN_A_ROW:
        modes -= 1
        cells *= shape[modes]
    return modes


def halves(loadings: Sequence[Array]) -> tuple[Array, Array]:
    """V (P, R) and W (Q, R) with atom r = V(:, r) ⊗ W(:, r): the modes in two groups, each a Khatri–Rao product."""
    k = first_group([len(U) for U in loadings])
    return khatri_rao(loadings[:k], loadings[0].shape[1]), khatri_rao(loadings[k:], loadings[0].shape[1])


def khatri_rao(loadings: Sequence[Array], R: int) -> Array:
    """Column by column the outer product of the modes, as one mode."""
    if len(loadings) == 0:
        return np.ones((1, R))
    W = loadings[0]
    for U in loadings[1:]:
        W = (W[:, None, :] * U).reshape(-1, R)
    return W


class Intermediate:
    """Algorithm 3 for the modes in turn: Ā = A ⊙ (grams of the other modes), B̄ = B contracted with the other modes.

    Mode i sees the new loadings of the modes before it and the old ones of the modes after it. B is read twice: once
    contracted with the old loadings of the second group of modes, for the first group; then with the new ones of the
    first, for the second. Who has folded it with the old loadings of the last mode already says so.
    """

    def __init__(
        self, aggregates: Aggregates, loadings: Sequence[Array], workers: Workers = SERIAL, known: Folded | None = None
    ) -> None:
        self._A, self._B, self._workers = aggregates.A, aggregates.B, workers
        self._loadings = list(loadings)
        self._grams = [gram(U) for U in loadings] if known is None else [*map(gram, loadings[:-1]), known.G]
        self._split = first_group(aggregates.B.shape[1:])
        self._group: tuple[int, list[Array]] = (0, [])
        """The first mode of a group, and for each of its modes what is left when those after it are contracted."""
        if self._split > 0:
            T = self._without_second() if known is None else known.T.reshape(self._B.shape[: 1 + self._split])
            self._group = (0, self._tails(T, self._loadings[: self._split]))

    def __call__(self, i: int) -> tuple[Array, Array]:
        """(Ā, B̄) of mode i: eq:def_Atj (R, R) and eq:def_Btrj (Iᵢ, R)."""
        if i >= self._split and (self._group[0] < self._split or not self._group[1]):
            self._group = (self._split, self._tails(self._without_first(), self._loadings[self._split :]))
        start, tails = self._group
        T = tails[i - start]
        for U in self._loadings[start:i]:
            T = fold_first(T, U)
        return self.A(i), np.ascontiguousarray(T.T)

    def A(self, i: int) -> Array:
        """Ā of mode i, for which B is not read."""
        A = self._A.copy()
        for j, G in enumerate(self._grams):
            if j != i:
                A *= G
        return A

    def update(self, i: int, U: Array) -> None:
        """Mode i has new loadings; only modes after i may be asked for from now on."""
        self._loadings[i] = U
        self._grams[i] = gram(U)

    def _without_second(self) -> Array:
        if isinstance(self._B, Blocks):
            T = self._B.fold_last(self._loadings[-1], self._workers).T
            return T.reshape(self._B.shape[: 1 + self._split])
        W = khatri_rao(self._loadings[self._split :], len(self._A))
        return fold_last(self._B, W, self._B.shape[1 : 1 + self._split], self._workers)

    def _without_first(self) -> Array:
        V = khatri_rao(self._loadings[: self._split], len(self._A))
        if isinstance(self._B, Blocks):
            return self._B.fold_first(V, self._workers)
        return fold_first(self._B, V, self._B.shape[1 + self._split :], self._workers)

    @staticmethod
    def _tails(T: Array, loadings: Sequence[Array]) -> list[Array]:
        """What is left for each mode of a group when the old loadings of those after it are contracted."""
        tails = [T]
        for U in reversed(loadings[1:]):
            tails.append(fold_last(tails[-1], U, tails[-1].shape[1:-1]))
        return tails[::-1]


def fold_last(T: BigArray, W: Array, left: tuple[int, ...], workers: Workers = SERIAL) -> Array:
    """T (R, left…, cells…) contracted with W (cells, R), atom by atom."""
    R, places = len(T), T.size // len(W)
    out = np.empty((R, *left))
    workers.run(
        kernels.fold_last,
        places,
        len(W),
        T.reshape(R, -1, len(W)),
        np.ascontiguousarray(W.T),
        out.reshape(R, -1),
    )
    return out


def fold_first(T: BigArray, V: Array, left: tuple[int, ...] | None = None, workers: Workers = SERIAL) -> Array:
    """T (R, cells…, left…) contracted with V (cells, R), atom by atom."""
    R, cells = len(T), T.size // V.size
    left = T.shape[2:] if left is None else left
    out = np.empty((R, *left))
    strips, whole = R * -(-cells // kernels.COLUMNS), T.reshape(R, len(V), cells)
    workers.run(kernels.fold_strips, strips, T.size / strips, whole, V, out.reshape(R, -1))
    return out
