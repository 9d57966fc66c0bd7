"""Convex sets for loading matrices: what `project` means.

A constraint C is an object with two pure methods. `project(V)` is the Euclidean projection Π_C of an (I, R)
matrix; `norm_bound(I, R)` is the largest Frobenius norm in C, infinite where C is not compact (then (A2),
assumption:A2, does not hold, and the assumption card says so).

Both sets below contain zero. `solvers` knows them and is exact on them; any other object with
these methods is solved by projected gradients.
"""

from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Protocol, runtime_checkable

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.arrays import Array


@runtime_checkable
class Constraint(Protocol):
    """A closed convex set of loading matrices."""

    nonnegative: bool

    def project(self, V: Array) -> Array:
        """Π_C(V), a new array."""
        ...

    def norm_bound(self, rows: int, rank: int) -> float:
        """sup of ‖U‖_F over U in C of shape (rows, rank)."""
        ...


@dataclass(frozen=True, slots=True)
class NonnegativeBall:
    """{U ≥ 0, ‖U‖_F ≤ bound}: compact, yet loose, so that codes and loadings share the scale freely."""

    bound: float = inf
    nonnegative = True

    def __post_init__(self) -> None:
        _require_positive(self.bound)

    def project(self, V: Array) -> Array:
        """Clip at zero, then shrink as a whole."""
        U = np.maximum(V, 0.0)
        norm = sqrt(float(np.sum(U * U)))
        return U if norm <= self.bound else U * (self.bound / norm)

    def norm_bound(self, rows: int, rank: int) -> float:
        """The bound itself."""
        return self.bound


@dataclass(frozen=True, slots=True)
class NonnegativeColumns:
    """{U ≥ 0, every column of norm ≤ bound}: what a penalty on the codes needs in order to mean anything."""

    bound: float = 1.0
    nonnegative = True

    def __post_init__(self) -> None:
        _require_positive(self.bound)
        if not isfinite(self.bound):
            raise ConfigError("columns need a finite bound; without one use NonnegativeBall()")

    def project(self, V: Array) -> Array:
        """Clip at zero, then shrink each column that is too long."""
        U = np.maximum(V, 0.0)
        norms = np.sqrt(np.sum(U * U, axis=0))
        return np.asarray(U * np.where(norms > self.bound, self.bound / np.maximum(norms, 1e-300), 1.0))

    def norm_bound(self, rows: int, rank: int) -> float:
        """√R times the bound of a column."""
        return sqrt(rank) * self.bound


def _require_positive(bound: float) -> None:
    if not isinstance(bound, int | float) or not bound > 0:
        raise ConfigError(f"the bound of a constraint must be positive, not {bound!r}")
