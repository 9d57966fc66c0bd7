"""Two dictionaries side by side. Atoms keep their place while a model learns, so they are compared place by place."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.arrays import Array


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """What is different between two dictionaries."""

    movements: tuple[float, ...]
    """‖U − U′‖_F / ‖U‖_F of each mode."""
    cosines: Array
    """(n, R): the cosine of each column with its successor."""

    @property
    def atoms(self) -> Array:
        """The cosine of each atom with its successor: the product over the modes."""
        return np.asarray(self.cosines.prod(axis=0))

    def most_changed(self, count: int) -> list[int]:
        """The atoms that changed most, the first the most."""
        return [int(r) for r in np.argsort(self.atoms, kind="stable")[:count]]


def compare(one: Sequence[Array], other: Sequence[Array]) -> Comparison:
    """How far it is from one dictionary to another of the same shape.

    >>> compare([np.eye(2)], [np.eye(2) * 2]).movements, compare([np.eye(2)], [np.eye(2)[::-1]]).atoms.tolist()
    ((1.0,), [0.0, 0.0])
    """
    shapes = [[U.shape for U in loadings] for loadings in (one, other)]
    if shapes[0] != shapes[1]:
        raise ConfigError(f"the two have the shapes {shapes[0]} and {shapes[1]}: they cannot be compared")
    movements = tuple(_norm(U - V) / max(_norm(U), 1e-300) for U, V in zip(one, other, strict=True))
    return Comparison(movements, np.array([_cosines(U, V) for U, V in zip(one, other, strict=True)]))


def _norm(U: Array) -> float:
    return float(np.sqrt(np.sum(U * U)))


def _cosines(U: Array, V: Array) -> Array:
    """Of the columns; two that are zero are the same, one that is zero is like nothing."""
    norms = np.sqrt(np.sum(U * U, axis=0)), np.sqrt(np.sum(V * V, axis=0))
    found = np.sum(U * V, axis=0) / np.maximum(norms[0] * norms[1], 1e-300)
    return np.asarray(np.where((norms[0] == 0) & (norms[1] == 0), 1.0, np.minimum(found, 1.0)))
