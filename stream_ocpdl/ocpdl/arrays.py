"""The array types that the mathematics speaks of, and memory for the large ones."""

from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
"""Loadings, codes, A and every reduction: always float64."""

Indices: TypeAlias = NDArray[np.int64]
"""Which atoms."""

Flags: TypeAlias = NDArray[np.bool_]
"""Which tensors."""

BigArray: TypeAlias = NDArray[Any]
"""Minibatches and B: float64 or float32, as the problem says."""


def empty(shape: tuple[int, ...], dtype: Any) -> BigArray:
    """Memory for an array that begins with a cache line, so that a register is read from one line and not from two."""
    return _on_a_line(np.empty(prod(shape) + _LINE, dtype), shape)


def zeros(shape: tuple[int, ...], dtype: Any) -> BigArray:
    """The same, of zeros."""
    return _on_a_line(np.zeros(prod(shape) + _LINE, dtype), shape)


def copy(array: Any) -> BigArray:
    """The same, of what an array has, or what has an array to give."""
    out = empty(array.shape, array.dtype)
    out[...] = array
    return out


_LINE = 64
"""Bytes of a cache line: more numbers than it has."""


def _on_a_line(raw: BigArray, shape: tuple[int, ...]) -> BigArray:
    skip = -raw.ctypes.data % _LINE // raw.itemsize
    return raw[skip : skip + prod(shape)].reshape(shape)


class Sparse(NamedTuple):
    """A tensor by its nonzero entries: linear indices in C order, strictly ascending, and their values."""

    shape: tuple[int, ...]
    indices: Indices
    values: BigArray

    def whole(self) -> BigArray:
        """All its cells."""
        X = np.zeros(self.shape, self.values.dtype)
        X.reshape(-1)[self.indices] = self.values
        return X
