"""A minibatch as the kernels want it, or a refusal that names what is wrong with it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_ocpdl.errors import DataError
from stream_ocpdl.ocpdl import kernels
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

NORMS = {"float64": 1e75, "float32": 1e15}
"""How far from one, either way, the norm of a tensor may be: squares of squares must keep their digits."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """b tensors X (b, I₁…Iₙ): C-contiguous, writable memory, the problem's dtype, finite; and their energies ‖X_j‖²."""

    X: BigArray
    energies: Array

    def __len__(self) -> int:
        return len(self.X)

    @property
    def energy(self) -> float:
        """Σ‖X_j‖²."""
        return float(self.energies.sum())


def read_batch(problem: Problem, X: Any, workers: Workers = SERIAL) -> Batch:
    """Check and, only where the kernels need it, convert."""
    X = _as_batch(problem, X)
    b = len(X)
    energies, lowest = np.empty(b), np.empty(b)
    workers.run(kernels.scan, b, X.size / b, X.reshape(b, -1), energies, lowest)
    limit = NORMS[problem.dtype] ** 2
    if not np.all((energies <= limit) & ((energies >= 1 / limit) | (energies == 0))):
        _refuse(X, ~np.isfinite(X), "is not finite")
        raise DataError(f"X has a tensor of a norm too far from one for {problem.dtype}; rescale the data")
    if problem.nonnegative and not np.all(lowest >= 0):
        _refuse(X, X < 0, "is negative, but loadings and codes are constrained to be nonnegative")
    return Batch(X, energies)


def as_array(value: Any, name: str) -> BigArray:
    """An array of real numbers, or an error that names the argument."""
    if isinstance(value, np.ma.MaskedArray):
        raise DataError(f"{name} is a masked array; missing cells are not supported")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{name} is not an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} has dtype {array.dtype}; real numbers are needed")
    return array


def _as_batch(problem: Problem, X: Any) -> BigArray:
    array = as_array(X, "X")
    if array.ndim != problem.modes + 1 or array.shape[1:] != problem.shape:
        expected = ", ".join(["b", *map(str, problem.shape)])
        raise DataError(f"X has shape {array.shape}; a minibatch of this problem has shape ({expected})")
    if len(array) == 0:
        raise DataError("X is empty: a minibatch has at least one tensor")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.require(array, problem.dtype, ["C", "A", "W"])


def _refuse(X: BigArray, wrong: Any, what: str) -> None:
    if wrong.any():
        place = tuple(int(k) for k in np.argwhere(wrong)[0])
        raise DataError(f"X[{', '.join(map(str, place))}] = {X[place]} {what}")
