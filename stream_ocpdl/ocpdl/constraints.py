"""Convex sets for loading matrices: what `project` means.

A constraint C is an object with two pure methods and a fact. `project(V)` is the Euclidean projection Π_C of an (I, R)
matrix; `norm_bound(I, R)` is the largest Frobenius norm in C, infinite where C is not compact (then (A2),
assumption:A2, does not hold, and the assumption card says so); `nonnegative` says whether C has no negative numbers.

`solvers` knows the sets below and is exact on them; any other object with these methods is solved by projected
gradients. A set may also say how to begin in it (`Begins`), where projecting uniform numbers would not do. Of an object
with `project` alone nothing else is believed: it counts as unbounded, and as a set with negative numbers (`Projected`).
"""

from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Protocol, runtime_checkable

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.simplex import project_columns


@runtime_checkable
class Projects(Protocol):
    """The least that a set can say of itself."""

    def project(self, V: Array) -> Array:
        """Π_C(V), a new array."""
        ...


@runtime_checkable
class Constraint(Projects, Protocol):
    """A closed convex set of loading matrices."""

    @property
    def nonnegative(self) -> bool:
        """Whether no matrix of C has a negative number."""
        ...

    def norm_bound(self, rows: int, rank: int) -> float:
        """sup of ‖U‖_F over U in C of shape (rows, rank)."""
        ...


@runtime_checkable
class Begins(Protocol):
    """A set that says how to begin in it."""

    def first_norm(self, rows: int, rank: int, wanted: float) -> float:
        """What `first` has for a norm, about, if this one is wanted."""
        ...

    def first(self, V: Array, norm: float) -> Array:
        """A point of C, made of numbers V that are uniform in [0, 1], and of about this norm."""
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


@dataclass(frozen=True, slots=True)
class Ball:
    """{‖U‖_F ≤ bound}, signed."""

    bound: float = inf
    nonnegative = False

    def __post_init__(self) -> None:
        _require_positive(self.bound)
        object.__setattr__(self, "bound", float(self.bound))

    def project(self, V: Array) -> Array:
        """Shrink as a whole."""
        norm = _norm(V)
        return V.copy() if norm <= self.bound else V * (self.bound / norm)

    def norm_bound(self, rows: int, rank: int) -> float:
        """The bound itself."""
        return self.bound

    def first_norm(self, rows: int, rank: int, wanted: float) -> float:
        """What is wanted, if it fits."""
        return min(wanted, self.bound)

    def first(self, V: Array, norm: float) -> Array:
        """Of either sign."""
        return self.project(_of_norm(2.0 * V - 1.0, norm))


@dataclass(frozen=True, slots=True)
class Columns:
    """{every column of norm ≤ bound}, signed: `NonnegativeColumns` without the sign."""

    bound: float = 1.0
    nonnegative = False

    def __post_init__(self) -> None:
        _require_positive(self.bound)
        if not isfinite(self.bound):
            raise ConfigError("columns need a finite bound; without one use Ball()")
        object.__setattr__(self, "bound", float(self.bound))

    def project(self, V: Array) -> Array:
        """Shrink each column that is too long."""
        norms = np.sqrt(np.sum(V * V, axis=0))
        return np.asarray(V * np.where(norms > self.bound, self.bound / np.maximum(norms, 1e-300), 1.0))

    def norm_bound(self, rows: int, rank: int) -> float:
        """√R times the bound of a column."""
        return sqrt(rank) * self.bound

    def first_norm(self, rows: int, rank: int, wanted: float) -> float:
        """What is wanted, if it fits."""
        return min(wanted, self.norm_bound(rows, rank))

    def first(self, V: Array, norm: float) -> Array:
        """Of either sign."""
        return self.project(_of_norm(2.0 * V - 1.0, norm))


@dataclass(frozen=True, slots=True)
class Box:
    """{lower ≤ U ≤ upper}, number by number; one of the two may be infinite."""

    lower: float = 0.0
    upper: float = 1.0

    def __post_init__(self) -> None:
        real = all(isinstance(value, int | float) for value in (self.lower, self.upper))
        if not real or not self.lower < self.upper:
            raise ConfigError(f"a box needs a lower bound below the upper one, not {self.lower!r} and {self.upper!r}")
        if self.lower == -inf and self.upper == inf:
            raise ConfigError("a box needs a bound; without one use Ball()")
        if self.lower == inf or self.upper == -inf:
            raise ConfigError(f"a box from {self.lower!r} to {self.upper!r} is empty")
        object.__setattr__(self, "lower", float(self.lower))
        object.__setattr__(self, "upper", float(self.upper))

    @property
    def nonnegative(self) -> bool:
        """Whether it begins at zero, or above."""
        return self.lower >= 0.0

    def project(self, V: Array) -> Array:
        """Clip."""
        return np.clip(V, self.lower, self.upper)

    def norm_bound(self, rows: int, rank: int) -> float:
        """That of a matrix with the larger of the two everywhere."""
        return sqrt(rows * rank) * max(abs(self.lower), abs(self.upper))

    def first_norm(self, rows: int, rank: int, wanted: float) -> float:
        """That of uniform numbers in the part of the box where they begin."""
        low, high = self._beginning(wanted / sqrt(rows * rank))
        return sqrt(rows * rank * (low * low + low * high + high * high) / 3.0)

    def first(self, V: Array, norm: float) -> Array:
        """Uniform in the box, or in as much of it as has numbers of the wanted size."""
        low, high = self._beginning(norm / sqrt(V.size))
        return self.project(low + (high - low) * V)

    def _beginning(self, size: float) -> tuple[float, float]:
        """A part of the box with numbers of about this size, if there are any; never a single number."""
        low, high = max(self.lower, -sqrt(3.0) * size), min(self.upper, sqrt(3.0) * size)
        if low < high:
            return low, high
        if self.lower > 0.0:
            return self.lower, min(self.upper, 2.0 * self.lower)
        return max(self.lower, 2.0 * self.upper), self.upper


@dataclass(frozen=True, slots=True)
class Simplex:
    """{U ≥ 0, every column sums to `total`}: columns are shares, such as probabilities. Zero is not in it."""

    total: float = 1.0
    nonnegative = True

    def __post_init__(self) -> None:
        _require_positive(self.total, "total of a simplex")
        if not isfinite(self.total):
            raise ConfigError("the total of a simplex must be finite")
        object.__setattr__(self, "total", float(self.total))

    def project(self, V: Array) -> Array:
        """Take from every number of a column the same, but not below zero."""
        out = np.empty(V.shape)
        project_columns(np.ascontiguousarray(V, np.float64), self.total, out)
        return out

    def norm_bound(self, rows: int, rank: int) -> float:
        """That of a matrix with all of each column in one place."""
        return sqrt(rank) * self.total

    def first_norm(self, rows: int, rank: int, wanted: float) -> float:
        """That of columns of uniform numbers; the set decides it, whatever is wanted."""
        return self.total * sqrt(rank * (4.0 / 3.0 if rows > 1 else 1.0) / rows)

    def first(self, V: Array, norm: float) -> Array:
        """The columns brought to their sum."""
        return self.project(V * (self.total / np.maximum(V.sum(axis=0), 1e-300)))


@dataclass(frozen=True, slots=True)
class Projected:
    """A user's set of which the projection is known, and what else it says of itself."""

    of: Projects

    @property
    def nonnegative(self) -> bool:
        """Not, unless it says so."""
        return bool(getattr(self.of, "nonnegative", False))

    def project(self, V: Array) -> Array:
        """Its own."""
        return self.of.project(V)

    def norm_bound(self, rows: int, rank: int) -> float:
        """None, unless it says one."""
        return float(self.of.norm_bound(rows, rank)) if hasattr(self.of, "norm_bound") else inf


def first_norm(C: Constraint, rows: int, rank: int, wanted: float) -> float:
    """The norm of the loadings that a model begins with in a set, if this one is wanted."""
    return C.first_norm(rows, rank, wanted) if isinstance(C, Begins) else min(C.norm_bound(rows, rank), wanted)


def first(C: Constraint, V: Array, norm: float) -> Array:
    """Loadings to begin with in a set, made of numbers V that are uniform in [0, 1]."""
    return C.first(V, norm) if isinstance(C, Begins) else C.project(_of_norm(V, norm))


def _require_positive(bound: float, name: str = "bound of a constraint") -> None:
    if not isinstance(bound, int | float) or not bound > 0:
        raise ConfigError(f"the {name} must be positive, not {bound!r}")


def _norm(V: Array) -> float:
    return sqrt(float(np.sum(V * V)))


def _of_norm(V: Array, norm: float) -> Array:
    """V of another length."""
    return V * (norm / sqrt(float(np.sum(V * V))))
