"""The simplex {y ≥ 0, Σy = total}, compiled: projections of columns."""

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.compiled import kernel


@kernel
def project_columns(V: Array, total: float, out: Array) -> None:
    """Each column of V (I, R) → the nearest point of the simplex, a column of out (I, R)."""
    v = np.empty(V.shape[0])
    for r in range(V.shape[1]):
        v[:] = V[:, r]
        project_column(v, total)
        out[:, r] = v


@kernel
def project_column(v: Array, total: float) -> None:
    """max(v − θ, 0) with Σ = total → v.

    θ is the mean excess of the entries above it: entries at or below it are dropped until none is (Michelot 1986). All
    of it relative to the largest entry, which keeps the digits of a column that is far away. One that lies on the
    simplex but for rounding stays.
    """
    if v.min() >= 0.0 and abs(v.sum() - total) <= 1e-15 * (8.0 + np.sqrt(v.size)) * total:
        return
    v -= v.max()
    theta, above, before = -total, v.size + 1, 0
    while above != before:
        before, above, rest = above, 0, 0.0
        for i in range(v.size):
            if v[i] > theta:
                above += 1
                rest += v[i]
        theta = max((rest - total) / above, theta)  # rounding must not bring back what was dropped
    rest = 0.0
    for i in range(v.size):
        v[i] = max(v[i] - theta, 0.0)
        rest += v[i]
    v *= total / rest
