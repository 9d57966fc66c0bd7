"""One tensor under its code: which atoms it is made of, and where it differs from them.

With contributions c_r = h_r u_r⁽¹⁾ ∘ … ∘ u_r⁽ⁿ⁾ the reconstruction is X̂ = Σ c_r. The share of an atom is ⟨c_r, X̂⟩/‖X̂‖²:
shares add up to one, also where atoms overlap. The share of an index of a mode in the residual is the energy of that
slice of X − X̂, over the energy of all of it. A cell that is NaN was not observed, and differs from nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream_ocpdl.errors import DataError
from stream_ocpdl.ocpdl.aggregates import gram_of_atoms, reconstruction
from stream_ocpdl.ocpdl.arrays import Array, BigArray


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """What a code makes of a tensor."""

    energy: float
    """‖X‖² over the cells that were observed."""
    error: float
    """‖X − X̂‖² over the same."""
    shares: Array
    """(R,): of each atom in the reconstruction; zeros if that is zero."""
    residual: tuple[Array, ...]
    """(Iᵢ,) of each mode: the share of each index in the error; zeros if there is none."""
    worst: tuple[int, ...]
    """The cell that differs most."""
    difference: float
    """X − X̂ there."""

    @property
    def explained(self) -> float:
        """1 − ‖X − X̂‖²/‖X‖²: one is perfect, and below zero nothing would have been better."""
        return 1.0 - self.error / self.energy if self.energy > 0 else float(self.error == 0)

    def strongest(self, count: int) -> list[int]:
        """The atoms with the largest shares, the first the largest; none without any."""
        order = np.argsort(-np.abs(self.shares), kind="stable")[:count]
        return [int(r) for r in order if self.shares[r] != 0]

    def largest(self, mode: int, count: int) -> list[int]:
        """The indices of a mode with the largest shares in the error; none without any."""
        order = np.argsort(-self.residual[mode], kind="stable")[:count]
        return [int(i) for i in order if self.residual[mode][i] > 0]


def explain(X: BigArray, loadings: Sequence[Array], code: Array) -> Explanation:
    """What a code makes of a tensor under a dictionary.

    >>> found = explain(np.array([[1.0, 0.0], [0.0, 3.0]]), [np.eye(2), np.eye(2)], np.array([1.0, 2.0]))
    >>> found.error, found.shares.tolist(), [R.tolist() for R in found.residual], found.worst
    (1.0, [0.2, 0.8], [[0.0, 1.0], [0.0, 1.0]], (1, 1))
    """
    shape, rank = tuple(len(U) for U in loadings), loadings[0].shape[1]
    if X.shape != shape or code.shape != (rank,):
        raise DataError(f"a tensor {X.shape} and a code {code.shape} do not fit a dictionary of {shape}, rank {rank}")
    values = np.asarray(X, np.float64)
    seen = ~np.isnan(values)
    R = np.where(seen, values - reconstruction(loadings, code), 0.0)
    squares = R * R
    error = float(squares.sum())
    modes = range(R.ndim)
    by_mode = (squares.sum(axis=tuple(j for j in modes if j != i)) for i in modes)
    worst = np.unravel_index(int(squares.argmax()), R.shape)
    return Explanation(
        energy=float(np.square(values, where=seen, out=np.zeros(R.shape)).sum()),
        error=error,
        shares=_shares(loadings, code),
        residual=tuple(np.asarray(part / error if error > 0 else part) for part in by_mode),
        worst=tuple(int(i) for i in worst),
        difference=float(R[worst]),
    )


def _shares(loadings: Sequence[Array], code: Array) -> Array:
    """h_r (G h)_r / hᵀGh, with G the inner products of the atoms."""
    parts = code * (gram_of_atoms(loadings) @ code)
    total = float(parts.sum())
    return np.asarray(parts / total if total > 0 else np.zeros(len(code)))
