"""The array types that the mathematics speaks of."""

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


class Sparse(NamedTuple):
    """A tensor by its nonzero entries: linear indices in C order, strictly ascending, and their values."""

    shape: tuple[int, ...]
    indices: Indices
    values: BigArray
