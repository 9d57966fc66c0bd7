"""A minibatch as the kernels want it, or a refusal that names what is wrong with it.

It comes in as one array (`read_batch`), or tensor by tensor from the memory of messages (`gather`), which copies and
checks in one pass. Either way energies are summed in the same order, so a minibatch has the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeGuard

import numpy as np

from stream_ocpdl.errors import DataError
from stream_ocpdl.ocpdl import arrays, kernels
from stream_ocpdl.ocpdl.arrays import Array, BigArray, Flags, Indices, Sparse
from stream_ocpdl.ocpdl.pointers import addresses, addresses_in
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

NORMS = {"float64": 1e75, "float32": 1e15}
"""How far from one, either way, the norm of a tensor may be: squares of squares must keep their digits."""

DTYPES = {name: np.dtype(name) for name in NORMS}
"""NumPy's name of them: a comparison with the name as text takes much longer."""

FUSED = {np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.uint8)}
"""What the copying kernel reads, numbers and images; compiling it for more would cost every start more than a NumPy
conversion, which is followed by a scan of what it wrote, costs a tensor."""

SMALL = 1 << 16
"""Bytes of a tensor up to which NumPy copies all of a minibatch and a scan follows, in the cache: that reads it twice,
and spares a call for each tensor."""

UNKNOWN: Array = np.empty(0)
"""The energies of a batch that was not measured yet."""

NONE: Indices = np.empty(0, np.int64)
"""No tensor at all."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """b tensors X (b, I₁…Iₙ): C-contiguous, writable memory, the problem's dtype, finite; and their energies ‖X_j‖².

    A missing cell is NaN, energies are those of the observed cells, and `missing` counts the missing ones by tensor.
    """

    X: BigArray
    energies: Array
    missing: Indices | None = None

    @property
    def measured(self) -> bool:
        """Whether it was checked, and its energies are known."""
        return len(self.energies) > 0

    def __len__(self) -> int:
        return len(self.X)

    @property
    def energy(self) -> float:
        """Σ‖X_j‖²."""
        return float(self.energies.sum())

    @property
    def gaps(self) -> Indices:
        """The tensors with missing cells."""
        return NONE if self.missing is None else np.flatnonzero(self.missing)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Dense tensors of one shape and dtype, each in the memory of a message, so many bytes behind its beginning."""

    values: Sequence[bytes]
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def readable(self) -> bool:
        """Whether the copying kernel reads them where they are."""
        return self.dtype in FUSED and self.start % self.dtype.itemsize == 0

    def arrays(self) -> list[BigArray]:
        """Each as an array."""
        return [np.ndarray(self.shape, self.dtype, value, self.start) for value in self.values]


def open_batch(problem: Problem, X: Any) -> Batch:
    """What will be a batch when it is checked; `read_batch` does that, or whoever measures it first."""
    if not isinstance(X, Batch):
        return Batch(_as_batch(problem, X), UNKNOWN)
    if X.X.shape[1:] != problem.shape or X.X.dtype != DTYPES[problem.dtype]:
        raise DataError(f"the batch has {X.X.dtype} tensors of shape {X.X.shape[1:]}: it is of another problem")
    return X


def read_batch(problem: Problem, X: Any, workers: Workers = SERIAL) -> Batch:
    """Check and, only where the kernels need it, convert. A batch that was read before is taken as it is."""
    batch = open_batch(problem, X)
    if batch.measured:
        if batch.missing is not None and problem.missing == "reject" and len(batch.gaps) > 0:
            raise DataError("the batch has missing cells, which this problem rejects: it is of another problem")
        return batch
    batch, refused = _measured(problem, batch.X, workers)
    for j in refused:
        raise DataError(_reason(batch.X[j], problem, j))
    return batch


def gather(
    problem: Problem, rows: Sequence[BigArray | Sparse], workers: Workers = SERIAL
) -> tuple[Batch, dict[int, str]]:
    """Copy tensors, of any real dtype and layout, into one minibatch; and why it cannot be learned, by its row.

    A batch with a refused row is of no use, but all its rows are checked.
    """
    if len(rows) == 0:
        raise DataError("X is empty: a minibatch has at least one tensor")
    return fill(problem, rows, arrays.empty((len(rows), *problem.shape), problem.dtype), workers)


def fill(
    problem: Problem, rows: Sequence[BigArray | Sparse] | Packed, out: BigArray, workers: Workers = SERIAL
) -> tuple[Batch, dict[int, str]]:
    """`gather` into memory that is there already."""
    if isinstance(rows, Packed):
        if rows.readable and rows.shape == problem.shape:
            like = np.ndarray(prod(rows.shape), rows.dtype, rows.values[0], rows.start)
            return _copied(problem, addresses_in(rows.values, rows.start), like, out, workers)
        rows = rows.arrays()
    if out[0].nbytes <= SMALL and _all_plain(rows, problem.shape):
        with np.errstate(over="ignore", invalid="ignore"):
            np.concatenate(rows, out=out.reshape(-1, *problem.shape[1:]), casting="unsafe")
        return _measured(problem, out, workers)
    for row in rows:
        _check_kind(problem, row)
    if _all_alike(rows):
        return _copied(problem, addresses(rows), _read_only(rows[0].reshape(-1)), out, workers)
    b, refusals = len(rows), dict[int, str]()
    energies, negative = np.empty(b), np.empty(b, np.bool_)

    def copy(lo: int, hi: int) -> None:
        for j in range(lo, hi):
            row = rows[j]
            try:
                energies[j], negative[j] = _scatter(row, out[j]) if isinstance(row, Sparse) else _copy(row, out[j])
            except DataError as error:
                energies[j], negative[j] = 0.0, False
                refusals[j] = str(error)

    workers.run(copy, b, out.size / b)
    batch, refused = _judge(problem, out, energies, negative, workers)
    refusals = {int(j): _reason(out[j], problem) for j in refused} | refusals
    return batch, dict(sorted(refusals.items()))


def _copied(
    problem: Problem, places: Indices, like: BigArray, out: BigArray, workers: Workers
) -> tuple[Batch, dict[int, str]]:
    """Tensors at these addresses, each like this one, as a minibatch; and why it cannot be learned, by its row."""
    b = len(places)
    energies, negative = np.empty(b), np.empty(b, np.bool_)
    workers.run(kernels.copy_rows, b, out.size / b, places, like, out.reshape(b, -1), energies, negative)
    batch, refused = _judge(problem, out, energies, negative, workers)
    return batch, {int(j): _reason(out[j], problem) for j in refused}


def as_array(value: Any, name: str) -> BigArray:
    """An array of real numbers, or an error that names the argument."""
    if isinstance(value, np.ma.MaskedArray):
        raise DataError(f"{name} is a masked array; a missing cell is a NaN here")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{name} is not an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} has dtype {array.dtype}; real numbers are needed")
    return array


def _as_batch(problem: Problem, X: Any) -> BigArray:
    if (
        type(X) is np.ndarray
        and X.dtype == DTYPES[problem.dtype]
        and X.flags.carray
        and X.shape[1:] == problem.shape
        and len(X)
    ):
        return X
    array = as_array(X, "X")
    if array.ndim != problem.modes + 1 or array.shape[1:] != problem.shape:
        expected = ", ".join(["b", *map(str, problem.shape)])
        raise DataError(f"X has shape {array.shape}; a minibatch of this problem has shape ({expected})")
    if len(array) == 0:
        raise DataError("X is empty: a minibatch has at least one tensor")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.require(array, problem.dtype, ["C", "A", "W"])


def _measured(problem: Problem, X: BigArray, workers: Workers) -> tuple[Batch, dict[int, str]]:
    """The batch, and why it cannot be learned, by its row."""
    b = len(X)
    energies, negative = np.empty(b), np.empty(b, np.bool_)
    workers.run(kernels.scan, b, X.size / b, X.reshape(b, -1), energies, negative)
    batch, refused = _judge(problem, X, energies, negative, workers)
    return batch, {int(j): _reason(X[j], problem) for j in refused}


def _all_plain(rows: Sequence[BigArray | Sparse], shape: tuple[int, ...]) -> TypeGuard[Sequence[BigArray]]:
    """Whether all rows are arrays of numbers, and of this shape."""
    return all(type(row) is np.ndarray and row.shape == shape and row.dtype.kind in "biuf" for row in rows)


def _all_alike(rows: Sequence[BigArray | Sparse]) -> TypeGuard[Sequence[BigArray]]:
    """Whether the copying kernel reads them, all in one way."""
    kinds = {row.dtype if isinstance(row, np.ndarray) and _readable(row) else None for row in rows}
    return len(kinds) == 1 and kinds <= FUSED


def _readable(row: BigArray) -> bool:
    return row.flags.c_contiguous and row.flags.aligned


def _check_kind(problem: Problem, row: BigArray | Sparse) -> None:
    if tuple(row.shape) != problem.shape:
        raise DataError(f"X has shape {tuple(row.shape)}; a tensor of this problem has shape {problem.shape}")
    as_array(row.values if isinstance(row, Sparse) else row, "X")


def _copy(row: BigArray, out: BigArray) -> tuple[float, bool]:
    """One tensor into its place; its energy, and whether a cell is below zero."""
    if row.dtype in FUSED and _readable(row):
        return kernels.copy(_read_only(row.reshape(-1)), out.reshape(-1))
    energies, negative = np.empty(1), np.empty(1, np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(out, row, casting="unsafe")
    kernels.scan(0, 1, out.reshape(1, -1), energies, negative)
    return float(energies[0]), bool(negative[0])


def _scatter(row: Sparse, out: BigArray) -> tuple[float, bool]:
    """The same for a tensor of which only the entries are known."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.require(row.values, out.dtype, ["C", "A"])
    indices = np.require(row.indices, np.int64, ["C", "A"])
    if values.shape != (indices.size,):
        raise DataError(f"X has {indices.size} indices and values of shape {values.shape}")
    energy, below, used = kernels.scatter(_read_only(indices), _read_only(values), out.reshape(-1))
    if used < indices.size:
        raise DataError(f"X has index {indices[used]} at entry {used}; ascending ones, below {out.size}, are needed")
    return energy, below


def _read_only(array: BigArray) -> BigArray:
    """The array as a kernel may read it: memory that may be written would be compiled for once more."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _judge(problem: Problem, X: BigArray, energies: Array, negative: Flags, workers: Workers) -> tuple[Batch, Indices]:
    """The batch, and which tensors cannot be learned: a NaN or an infinity shows in the energy."""
    limit = NORMS[problem.dtype] ** 2
    if kernels.all_good(energies, negative, 1 / limit, limit, not problem.nonnegative):
        return Batch(X, energies), NONE
    missing = None
    gaps = np.flatnonzero(np.isnan(energies)) if problem.missing == "impute" else NONE
    if len(gaps) > 0:
        missing = np.zeros(len(X), np.int64)
        workers.run(kernels.scan_observed, len(gaps), X[0].size, gaps, X.reshape(len(X), -1), energies, missing)
    good = (energies <= limit) & (energies >= 1 / limit)
    for j in np.flatnonzero(energies == 0.0):  # zero, or so small that its square is
        good[j] = not np.nan_to_num(X[j]).any()
    if missing is not None:
        good &= missing < X[0].size
    if negative.any() and problem.nonnegative:
        good &= ~negative
    return Batch(X, energies, missing), np.flatnonzero(~good)


def _reason(row: BigArray, problem: Problem, *index: int) -> str:
    """What is wrong with a tensor, at which place first; `index` is its own place in the minibatch, if it has one."""
    wrongs = {"is not finite": np.isinf(row) if problem.missing == "impute" else ~np.isfinite(row)}
    if problem.nonnegative:
        wrongs["is negative, but loadings and codes are constrained to be nonnegative"] = row < 0
    for what, wrong in wrongs.items():
        if wrong.any():
            place = tuple(int(k) for k in np.argwhere(wrong)[0])
            return f"X{_brackets(*index, *place)} = {row[place]} {what}"
    if np.isnan(row).all():
        return f"X{_brackets(*index)} has no observed cell"
    return f"X has a tensor of a norm too far from one for {problem.dtype}; rescale the data"


def _brackets(*place: int) -> str:
    return f"[{', '.join(map(str, place))}]" if place else ""
