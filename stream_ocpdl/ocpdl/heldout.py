"""Cells that are held out: hidden from coding, then compared with what code and dictionary say of them.

An error on cells that had a part in finding the code says how well a dictionary can bend; the error on hidden ones says
what it knows. A problem that rejects missing cells can be asked as well: only coding has to do without them.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from stream_ocpdl.errors import DataError
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.batch import as_array
from stream_ocpdl.ocpdl.entries import AnyBatch
from stream_ocpdl.ocpdl.learner import Learner


def hide(X: Any, cells: Any) -> BigArray:
    """A copy of X in which these cells, a mask of X's shape, were not observed."""
    array, mask = as_array(X, "X"), np.asarray(cells)
    if mask.dtype != np.bool_ or mask.shape != array.shape:
        raise DataError(f"cells must be a mask of the shape {array.shape} of X, not {mask.dtype} of shape {mask.shape}")
    kind = array.dtype if array.dtype.kind == "f" else np.float64
    return np.where(mask, np.nan, array.astype(kind))


def code_observed(learner: Learner, X: BigArray | AnyBatch) -> Array:
    """Codes (b, R) of tensors by their observed cells; a NaN is one that was not."""
    return Learner(replace(learner.problem, missing="impute"), learner.state, learner.workers).code(X).H


def explained(X: Any, rest: Array) -> float:
    """1 − ‖X − X̂‖²/‖X‖² over the cells where the rest X − X̂ is known, that is, not NaN; zero if X is."""
    known = ~np.isnan(rest)
    energy = float(np.sum(np.square(as_array(X, "X")[known], dtype=np.float64)))
    return 1.0 - float(np.sum(np.square(rest[known]))) / energy if energy > 0.0 else 0.0
