"""Sparse tensors as others have them: SciPy's, PyData's, or coordinates and values.

Here their entries come in any order, and floats of one place are added up, as all of them mean it. In a message neither
is allowed: there it would be a mistake of the producer.
"""

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from stream_ocpdl.errors import DataError
from stream_ocpdl.ocpdl.arrays import BigArray, Sparse
from stream_ocpdl.ocpdl.batch import as_array


def as_sparse(value: Any, name: str) -> Sparse | None:
    """The entries of something sparse, in order; None if it is not sparse.

    Ours; SciPy's matrices and arrays, known by their `tocoo`; PyData's, known by `coords` and `fill_value`; or a tuple
    (coordinates (n, entries), values, shape). Floats of one place are added up, as all of them mean it.

    >>> as_sparse(([[1, 0, 1], [2, 0, 2]], [1.0, 5.0, 2.0], (2, 3)), "X")
    Sparse(shape=(2, 3), indices=array([0, 5]), values=array([5., 3.]))
    """
    if isinstance(value, Sparse):
        indices = np.asarray(value.indices, None if len(value.indices) else np.int64)
        return _ascending(value.shape, indices, as_array(value.values, name), name)
    if hasattr(value, "tocoo"):
        value = value.tocoo()
        coordinates = value.coords if hasattr(value, "coords") else (value.row, value.col)
        return _located(coordinates, value.data, value.shape, name)
    if hasattr(value, "coords") and hasattr(value, "fill_value"):
        if value.fill_value != 0:
            raise DataError(f"{name} has {value.fill_value} where it has no entry; zero is needed")
        return _located(value.coords, value.data, value.shape, name)
    if _is_entries(value):
        return _located(value[0], value[1], value[2], name)
    return None


def _located(coordinates: Any, values: Any, shape: Any, name: str) -> Sparse:
    """Entries by their coordinates."""
    try:
        where = tuple(np.asarray(places, None if len(places) else np.int64) for places in coordinates)
        indices = np.ravel_multi_index(where, shape)
    except (TypeError, ValueError, IndexError) as error:
        raise DataError(f"{name} has entries that are not in its shape {shape}: {error}") from error
    return _ascending(tuple(map(int, shape)), np.atleast_1d(indices), as_array(values, name), name)


def _ascending(shape: tuple[int, ...], indices: Any, values: BigArray, name: str) -> Sparse:
    if indices.shape != values.shape or indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise DataError(f"{name} has indices of shape {indices.shape} and values of shape {values.shape}")
    if (indices[1:] > indices[:-1]).all():
        return Sparse(shape, indices.astype(np.int64, copy=False), values)
    order = np.argsort(indices, kind="stable")
    places, first = np.unique(indices[order], return_index=True)
    if len(places) < len(indices) and values.dtype.kind != "f":
        raise DataError(f"{name} has entries of dtype {values.dtype} more than once at a place; their sum may not fit")
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(values[order], first, dtype=values.dtype)
    return Sparse(shape, places.astype(np.int64), sums)


def shape_of(X: Any) -> tuple[int, ...] | None:
    """(b, I₁ … Iₙ) of a minibatch that is sparse, or some of whose tensors are; None if none is."""
    if _has_sparse(X):
        return len(X), *(X[0][2] if _is_entries(X[0]) else X[0].shape)
    found = None if isinstance(X, list) else as_sparse(X, "X")
    return None if found is None else tuple(map(int, found.shape))


def tensors_of(shape: tuple[int, ...], X: Any) -> list[BigArray | Sparse] | None:
    """The tensors of a minibatch that is sparse, or some of whose tensors are; None if none is.

    A sparse array X (b, I₁…Iₙ), such as SciPy's matrices (b, I₁) where tensors have one mode; or a list of tensors.
    """
    if _has_sparse(X):
        return [found if (found := as_sparse(row, "X")) is not None else as_array(row, "X") for row in X]
    whole = None if isinstance(X, list) else as_sparse(X, "X")
    if whole is None:
        return None
    if tuple(whole.shape[1:]) != shape or len(whole.shape) != len(shape) + 1:
        expected = ", ".join(["b", *map(str, shape)])
        raise DataError(f"X has shape {tuple(whole.shape)}; a minibatch of this problem has shape ({expected})")
    size, b = prod(shape), whole.shape[0]
    if len(whole.indices) and not (whole.indices[0] >= 0 and whole.indices[-1] < b * size):
        raise DataError(f"X has indices from {whole.indices[0]} to {whole.indices[-1]}; cells are 0 to {b * size - 1}")
    ends = np.searchsorted(whole.indices, np.arange(b + 1) * size)
    return [
        Sparse(shape, whole.indices[lo:hi] - j * size, whole.values[lo:hi]) for j, (lo, hi) in enumerate(pairwise(ends))
    ]


def _has_sparse(X: Any) -> bool:
    return isinstance(X, list) and any(
        isinstance(row, Sparse) or hasattr(row, "tocoo") or hasattr(row, "fill_value") or _is_entries(row) for row in X
    )


def _is_entries(value: Any) -> bool:
    """(coordinates, values, shape)."""
    return type(value) is tuple and len(value) == 3 and isinstance(value[2], tuple)
