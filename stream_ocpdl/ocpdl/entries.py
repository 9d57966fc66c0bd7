"""A minibatch by its entries: what is known of sparse tensors, and how they come in.

An absent entry is zero, never missing. A minibatch is learned by its entries if all of its tensors came so and entries
are few. That is a function of the minibatch and the problem alone: the two ways agree to rounding, not to the bit, and
a replay must take the one that was taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from stream_ocpdl.errors import DataError
from stream_ocpdl.ocpdl import arrays
from stream_ocpdl.ocpdl.arrays import Array, BigArray, Flags, Indices, Sparse
from stream_ocpdl.ocpdl.batch import NONE, NORMS, Batch, Packed, as_array, fill
from stream_ocpdl.ocpdl.batch import open_batch as open_whole
from stream_ocpdl.ocpdl.batch import read_batch as read_whole
from stream_ocpdl.ocpdl.compiled import exact
from stream_ocpdl.ocpdl.coordinates import tensors_of
from stream_ocpdl.ocpdl.kernels import SUMS, total
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

CELLS = 1 << 20
"""Cells of a minibatch below which it is learned as a whole: that takes few calls, and milliseconds."""

CELLS_AN_ENTRY = 25
"""Cells for each entry, at least, for entries to be few: to look one up takes as long as to go over so many cells."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseBatch:
    """b tensors by their entries, one tensor after the other: those of tensor j are [starts[j], starts[j + 1]).

    Linear indices in C order, ascending in each tensor; values of the problem's dtype, finite; energies ‖X_j‖².
    """

    shape: tuple[int, ...]
    """I₁ … Iₙ of one tensor."""
    starts: Indices
    indices: Indices
    values: BigArray
    energies: Array

    @property
    def measured(self) -> bool:
        """It was checked when it was made."""
        return True

    @property
    def missing(self) -> None:
        """No cell is missing."""
        return

    @property
    def gaps(self) -> Indices:
        """Nor has any tensor missing ones."""
        return NONE

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def energy(self) -> float:
        """Σ‖X_j‖²."""
        return float(self.energies.sum())

    @property
    def tensors(self) -> Indices:
        """For each entry the tensor that it is of."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def part(self, rows: Sequence[int]) -> "SparseBatch":
        """Some of its tensors."""
        chosen = [np.arange(self.starts[j], self.starts[j + 1]) for j in rows]
        places = np.concatenate([NONE, *chosen])
        starts = np.cumsum([0, *map(len, chosen)])
        return SparseBatch(self.shape, starts, self.indices[places], self.values[places], self.energies[list(rows)])

    def whole(self, j: int) -> BigArray:
        """Tensor j with all its cells."""
        mine = slice(self.starts[j], self.starts[j + 1])
        return Sparse(self.shape, self.indices[mine], self.values[mine]).whole()

    def nothing(self) -> "SparseBatch":
        """One tensor of zeros in its stead."""
        return SparseBatch(self.shape, np.zeros(2, np.int64), NONE, self.values[:0], np.zeros(1))


AnyBatch: TypeAlias = Batch | SparseBatch
"""A minibatch, as a whole or by its entries."""


def open_batch(problem: Problem, X: Any) -> AnyBatch:
    """What will be a batch when it is checked; `read_batch` does that, or whoever measures it first.

    X (b, I₁…Iₙ), dense or sparse (`coordinates`), or a list of tensors of which some are; or what was opened before.
    """
    if isinstance(X, (Batch, np.ndarray)):
        return open_whole(problem, X)
    if isinstance(X, SparseBatch):
        if X.shape != problem.shape or X.values.dtype != problem.dtype:
            raise DataError(f"the batch has {X.values.dtype} tensors of shape {X.shape}: it is of another problem")
        return X
    tensors = tensors_of(problem.shape, X)
    if tensors is None:
        return open_whole(problem, X)
    batch, refusals = collect(problem, tensors)
    for j, reason in refusals.items():
        raise DataError(f"tensor {j} cannot be learned: {reason}")
    return batch


def read_batch(problem: Problem, X: Any, workers: Workers = SERIAL) -> AnyBatch:
    """Check and, only where the kernels need it, convert. A batch that was read before is taken as it is."""
    batch = open_batch(problem, X)
    return batch if isinstance(batch, SparseBatch) else read_whole(problem, batch, workers)


def collect(
    problem: Problem,
    rows: Sequence[BigArray | Sparse] | Packed,
    workers: Workers = SERIAL,
    room: Callable[[int], BigArray] | None = None,
) -> tuple[AnyBatch, dict[int, str]]:
    """One minibatch of tensors, by entries where these are few, else as a whole; why it cannot be learned, by its row.

    A batch with a refused row is of no use, but all its rows are checked. `room` has memory for a whole one.
    """
    if len(rows) == 0:
        raise DataError("X is empty: a minibatch has at least one tensor")
    found = None if isinstance(rows, Packed) or not are_few(rows, problem) else join(problem, rows, workers)
    if found is not None:
        return found
    place = arrays.empty((len(rows), *problem.shape), problem.dtype) if room is None else room(len(rows))
    return fill(problem, rows, place, workers)


def are_few(rows: Sequence[BigArray | Sparse], problem: Problem) -> TypeGuard[Sequence[Sparse]]:
    """Whether a minibatch is learned by its entries: all tensors came so, and entries are few for so many cells."""
    cells = len(rows) * prod(problem.shape)
    if cells < CELLS or not all(isinstance(row, Sparse) for row in rows):
        return False
    return CELLS_AN_ENTRY * sum(np.size(row.values) for row in rows if isinstance(row, Sparse)) <= cells


def join(
    problem: Problem, rows: Sequence[Sparse], workers: Workers = SERIAL
) -> tuple[SparseBatch, dict[int, str]] | None:
    """The minibatch of sparse tensors, and why it cannot be learned, by its row; None if it has missing cells."""
    for row in rows:
        if tuple(row.shape) != problem.shape:
            raise DataError(f"X has shape {tuple(row.shape)}; a tensor of this problem has shape {problem.shape}")
    refusals = {j: reason for j, row in enumerate(rows) if (reason := _mismatch(row)) is not None}
    fit = [row if j not in refusals else Sparse(row.shape, NONE, np.empty(0)) for j, row in enumerate(rows)]
    starts = np.cumsum([0, *(len(row.indices) for row in fit)])
    indices, values = np.empty(starts[-1], np.int64), np.empty(starts[-1], problem.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        np.concatenate([row.indices for row in fit], out=indices, casting="unsafe")
        np.concatenate([row.values for row in fit], out=values, casting="unsafe")
    b, size = len(rows), prod(problem.shape)
    energies, negative, used = np.empty(b), np.empty(b, np.bool_), np.empty(b, np.int64)
    workers.run(measure, b, len(values) / b, starts, indices, values, size, energies, negative, used)
    if problem.missing == "impute" and np.isnan(energies).any():
        return None
    batch = SparseBatch(problem.shape, starts, indices, values, energies)
    for j in np.flatnonzero(~_good(problem, batch, negative) | (used < np.diff(starts))):
        refusals.setdefault(int(j), _reason(problem, batch, int(j), int(used[j])))
    return batch, dict(sorted(refusals.items()))


def _mismatch(row: Sparse) -> str | None:
    indices, values = np.asarray(row.indices), as_array(row.values, "X")
    if indices.ndim != 1 or values.shape != indices.shape:
        return f"X has {indices.size} indices and values of shape {values.shape}"
    return None


def _good(problem: Problem, batch: SparseBatch, negative: Flags) -> Flags:
    """Which tensors can be learned: a NaN or an infinity shows in the energy."""
    limit = NORMS[problem.dtype] ** 2
    good = (batch.energies <= limit) & (batch.energies >= 1 / limit)
    for j in np.flatnonzero(batch.energies == 0.0):  # zero, or so small that its square is
        good[j] = not batch.values[batch.starts[j] : batch.starts[j + 1]].any()
    return good if not problem.nonnegative else good & ~negative


def _reason(problem: Problem, batch: SparseBatch, j: int, used: int) -> str:
    """What is wrong with a tensor, at which place first."""
    here = slice(batch.starts[j], batch.starts[j + 1])
    indices, values, size = batch.indices[here], batch.values[here], prod(problem.shape)
    if used < len(indices):
        return f"X has index {indices[used]} at entry {used}; ascending ones, below {size}, are needed"
    wrongs = {"is not finite": ~np.isfinite(values)}
    if problem.nonnegative:
        wrongs["is negative, but loadings and codes are constrained to be nonnegative"] = values < 0
    for what, wrong in wrongs.items():
        if wrong.any():
            k = int(np.argmax(wrong))
            place = ", ".join(str(int(i)) for i in np.unravel_index(indices[k], problem.shape))
            return f"X[{place}] = {values[k]} {what}"
    return f"X has a tensor of a norm too far from one for {problem.dtype}; rescale the data"


@exact
def measure(
    lo: int,
    hi: int,
    starts: Indices,
    indices: Indices,
    values: BigArray,
    size: int,
    energies: Array,
    negative: Flags,
    used: Indices,
) -> None:
    """‖X_j‖² of tensors [lo, hi), whether an entry is below zero, and how many entries there are before the first whose
    index is not above the one before, or is not a cell. Energies have the bits of `kernels.scan`.
    """
    sums = np.empty(SUMS)
    for j in range(lo, hi):
        sums[:] = 0.0
        below, last, count = False, -1, starts[j + 1] - starts[j]
        for e in range(starts[j], starts[j + 1]):
            m, x = indices[e], np.float64(values[e])
            if m <= last or m >= size:
                count = e - starts[j]
                break
            last = m
            if x < 0.0:
                below = True
            sums[m % SUMS] += x * x
        energies[j], negative[j], used[j] = total(sums), below, count
