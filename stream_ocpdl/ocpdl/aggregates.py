"""A, B, E, P: all that the past leaves behind, and what the algorithm reads from it.

By prop:g_t_derivation the surrogate loss needs no stored data. With E and P, which hold the two sums that the
paper's (i) prints without their weights wₛᵗ, it is exact:

    f̂_t(D) = tr(A G) − 2⟨B, Out(D)⟩ + E + λP + λ₂ tr A,        G = U₁ᵀU₁ ⊙ … ⊙ UₙᵀUₙ,   per tensor.

The paper puts batch and atom last; here they come first: X (b, I₁…Iₙ), H (b, R), B (R, I₁…Iₙ). Sums over a
minibatch are divided by its size, so that batches of different sizes can be mixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from stream_ocpdl.ocpdl import kernels
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.workers import SERIAL, Workers


@dataclass(frozen=True, slots=True, eq=False)
class Aggregates:
    """A (R, R), B (R, I₁…Iₙ), E = mean energy, P = mean ‖h‖₁, each weighted by wₛᵗ (eq:def_OCPDL_ELM_explicit)."""

    A: Array
    B: BigArray
    E: float
    P: float


def nothing(shape: tuple[int, ...], rank: int, dtype: str) -> Aggregates:
    """The aggregates before any data."""
    return Aggregates(np.zeros((rank, rank)), np.zeros((rank, *shape), dtype), 0.0, 0.0)


def absorb(past: Aggregates, X: BigArray, energy: float, H: Array, w: float, workers: Workers = SERIAL) -> Aggregates:
    """eq:main_alg_aggregate_tensors, with `energy` = Σ‖X_j‖² of the minibatch. The past is not written."""
    R, M, b = len(past.A), prod(past.B.shape[1:]), len(X)
    B = np.empty_like(past.B)
    workers.run(
        kernels.absorb,
        M,
        R * b,
        past.B.reshape(R, M),
        X.reshape(b, M),
        H,
        w,
        B.reshape(R, M),
        grain=kernels.TILE,
    )
    return Aggregates(
        A=(1 - w) * past.A + (w / b) * gram(H),
        B=B,
        E=(1 - w) * past.E + (w / b) * energy,
        P=(1 - w) * past.P + (w / b) * float(np.abs(H).sum()),
    )


def gram(U: Array) -> Array:
    """UᵀU."""
    out = np.empty((U.shape[1], U.shape[1]))
    kernels.gram(U, out)
    return out


def gram_of_atoms(loadings: Sequence[Array], but: int | None = None) -> Array:
    """G = ⊙ᵢ UᵢᵀUᵢ, the inner products of the atoms; without mode `but` if one is given."""
    G = np.ones((loadings[0].shape[1],) * 2)
    for i, U in enumerate(loadings):
        if i != but:
            G *= gram(U)
    return G


def correlate(X: BigArray, loadings: Sequence[Array], workers: Workers = SERIAL) -> Array:
    """⟨X_j, atom r⟩ as (b, R): Algorithm 4's WᵀX, one mode after the other, last mode first."""
    P, R = X.size, loadings[0].shape[1]
    T: BigArray = X
    for i in range(len(loadings) - 1, -1, -1):
        U = loadings[i]
        P //= len(U)
        out = np.empty((P, R))
        if i == len(loadings) - 1:
            workers.run(kernels.contract_last, P, U.size, T.reshape(P, len(U)), U, out)
        else:
            workers.run(kernels.contract_next, P, U.size, T.reshape(P, len(U), R), U, out)
        T = out
    return T


class Intermediate:
    """Algorithm 3 for the modes in turn: Ā = A ⊙ (grams of the other modes), B̄ = B contracted with the other modes.

    Mode i sees the new loadings of the modes before it and the old ones of the modes after it. The contractions
    with the latter are made once, from the last mode down, before anything changes.
    """

    def __init__(self, aggregates: Aggregates, loadings: Sequence[Array], workers: Workers = SERIAL) -> None:
        self._A, self._workers = aggregates.A, workers
        self._loadings = list(loadings)
        self._tails: list[BigArray] = [aggregates.B]
        for U in reversed(self._loadings[1:]):
            self._tails.append(fold_last(self._tails[-1], U, workers))
        self._tails.reverse()

    def __call__(self, i: int) -> tuple[Array, Array]:
        """(Ā, B̄) of mode i: eq:def_Atj (R, R) and eq:def_Btrj (Iᵢ, R)."""
        T = self._tails[i]
        for U in self._loadings[:i]:
            T = fold_first(T, U, self._workers)
        return self._A * gram_of_atoms(self._loadings, but=i), np.ascontiguousarray(T.T, dtype=np.float64)

    def update(self, i: int, U: Array) -> None:
        """Mode i has new loadings; only modes after i may be asked for from now on."""
        self._loadings[i] = U


def fold_last(T: BigArray, U: Array, workers: Workers = SERIAL) -> Array:
    """T (R, …, I) contracted with U (I, R) over its last mode, atom by atom."""
    R, places = len(T), T.size // len(U)
    out = np.empty((R, places // R))
    workers.run(kernels.fold_last, places, len(U), T.reshape(R, -1, len(U)), U, out)
    return out.reshape(T.shape[:-1])


def fold_first(T: BigArray, U: Array, workers: Workers = SERIAL) -> Array:
    """T (R, I, …) contracted with U (I, R) over its first mode, atom by atom."""
    R, cells = len(T), T.size // U.size
    out = np.empty((R, cells))
    workers.run(kernels.fold_first, cells, U.size, T.reshape(R, len(U), cells), U, out, grain=kernels.TILE)
    return out.reshape(R, *T.shape[2:])
