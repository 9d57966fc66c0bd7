"""Missing cells: tensors of which only some cells were observed. The rest of a tensor is NaN.

The paper has none; this is an extension that keeps its proofs. For a tensor with missing cells

    h  = argmin over the observed cells of ‖X − Out(D_{t−1}) ×ₙ₊₁ h‖² + λ‖h‖₁ + λ₂‖h‖²
    X̃  = X where it was observed, Out(D_{t−1}) ×ₙ₊₁ h elsewhere

and the aggregates take X̃ for X. Whatever the fill, ℓ(X̃, D, h) is at least the loss of the observed cells, so f̂_t still
majorises f_t; with this fill the two losses are equal at D_{t−1}, which is what prop:Wt_bd needs.

With d_m, what the atoms have in cell m, the problem of such a tensor has Q = Σ d_m d_mᵀ + λ₂I and L = Σ X_m d_m − λ/2,
over the observed cells. Q is summed, and not G less the missing cells, which would cancel where few were observed.
Where they are so few that Q is nearly singular, a ridge keeps codes, and with them the fill, from running away.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stream_ocpdl.ocpdl import kernels, panels
from stream_ocpdl.ocpdl.aggregates import khatri_rao
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.batch import Batch
from stream_ocpdl.ocpdl.coding import solve_codes
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.workers import SERIAL, Workers


class Masked(NamedTuple):
    """Codes (g, R) of the g tensors with missing cells, the losses of their observed cells, and the most rounds."""

    H: Array
    losses: Array
    rounds: int


def encode_observed(
    problem: Problem, h_max: float, loadings: Sequence[Array], batch: Batch, workers: Workers = SERIAL
) -> Masked:
    """eq:coding_OCPDL over the observed cells, for the tensors that have missing ones."""
    gaps, R = batch.gaps, problem.rank
    g, (V, U) = len(gaps), split(loadings)
    H, losses, rounds = np.zeros((g, R)), np.empty(g), np.zeros(g, np.int64)

    def encode(lo: int, hi: int) -> None:
        Q, L, QH, ridge = np.empty((R, R)), np.empty((1, R)), np.empty((1, R)), problem.ridge * np.eye(R)
        for k in range(lo, hi):
            j, h = gaps[k], H[k : k + 1]
            kernels.observed_normal(fibres(batch.X[j]), V, U, Q, L[0])
            Q += ridge
            solve_codes(problem, h_max, Q, L, h, rounds[k : k + 1])
            panels.multiply(h, Q, QH)
            losses[k] = max(batch.energies[j] + kernels.inner(h, QH - 2.0 * L), 0.0)

    workers.run(encode, g, batch.X[0].size * R * R / 2)
    return Masked(H, losses, int(rounds.max()))


def complete(loadings: Sequence[Array], batch: Batch, H: Array, workers: Workers = SERIAL) -> Batch:
    """X̃: the minibatch with its missing cells filled by the codes H; the batch itself where none is missing."""
    gaps = batch.gaps
    if len(gaps) == 0:
        return batch
    V, U = split(loadings)
    X, energies, negative = batch.X.copy(), batch.energies.copy(), np.empty(len(batch), np.bool_)

    def fill(lo: int, hi: int) -> None:
        for j in gaps[lo:hi]:
            kernels.fill_missing(V * H[j], U, fibres(X[j]))
            kernels.scan(j, j + 1, X.reshape(len(X), -1), energies, negative)

    workers.run(fill, len(gaps), X[0].size * H.shape[1])
    return Batch(X, energies)


def split(loadings: Sequence[Array]) -> tuple[Array, Array]:
    """V (I₁⋯Iₙ₋₁, R) and U (Iₙ, R) with d_m = V[p] ⊙ U[i] for cell m = (p, i): the W of Algorithm 4 in two factors."""
    return khatri_rao(loadings[:-1], loadings[0].shape[1]), loadings[-1]


def fibres(X: BigArray) -> BigArray:
    """A tensor as its fibres of the last mode, (I₁⋯Iₙ₋₁, Iₙ)."""
    return X.reshape(-1, X.shape[-1])
