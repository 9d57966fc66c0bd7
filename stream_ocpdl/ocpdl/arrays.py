"""The array types that the mathematics speaks of."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
"""Loadings, codes, A and every reduction: always float64."""

Indices: TypeAlias = NDArray[np.int64]
"""Which atoms."""

BigArray: TypeAlias = NDArray[Any]
"""Minibatches and B: float64 or float32, as the problem says."""
