"""Which atom of one dictionary is which atom of another, and what has become of it.

A dictionary is the same whatever the order of its atoms and however an atom's size is shared among its modes. So atoms
are compared by their cosine, which is the product of the cosines of their modes:

    ⟨u₁ ∘ … ∘ uₙ, v₁ ∘ … ∘ vₙ⟩ = ⟨u₁, v₁⟩ … ⟨uₙ, vₙ⟩

and no atom is ever made dense. Of all ways to pair them one with the largest sum of cosines is taken, of equal ones one
that leaves atoms where they are. Below a threshold two atoms are not the same one: the older has died, the younger was
born.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.arrays import Array, Flags, Indices

SAME = 0.8
"""The cosine from which on two atoms are taken for the same; an angle of 37°."""

STAYING = 1e-12
"""What an atom's own place counts more than any other: it only decides between equals."""


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """Atom pairs[p, 0] of one dictionary is atom pairs[p, 1] of another."""

    pairs: Indices
    """(P, 2), in the order of the first dictionary."""
    deaths: tuple[int, ...]
    """Atoms of the first that the second has no more."""
    births: tuple[int, ...]
    """Atoms of the second that the first had not."""
    turns: Array
    """(n, P): 1 − |cosine|, mode by mode; to the last digit where it is small."""
    scales: Array
    """(n, P): v ≈ scale · u, in the sense of least squares."""
    movements: tuple[float, ...]
    """‖U − V‖_F / ‖U‖_F of each mode, over the pairs."""

    @property
    def permutation(self) -> Indices:
        """(R,): where each atom of the first is in the second; −1 for those that died."""
        where = np.full(len(self.pairs) + len(self.deaths), -1, np.int64)
        where[self.pairs[:, 0]] = self.pairs[:, 1]
        return where

    @property
    def cosines(self) -> Array:
        """(P,): of the atoms."""
        return np.asarray((1.0 - self.turns).prod(axis=0))

    @property
    def drift(self) -> Array:
        """(P,): the angles between the atoms, in degrees."""
        d = np.abs(np.expm1(np.log1p(-self.turns).sum(axis=0)))  # 1 − Π(1 − turn), without cancellation
        return np.asarray(np.degrees(2.0 * np.arcsin(np.sqrt(d / 2.0))))

    @property
    def sizes(self) -> Array:
        """(P,): how many times larger the atoms have become."""
        return np.asarray(self.scales.prod(axis=0))

    def most_changed(self, count: int) -> list[int]:
        """The pairs that drifted furthest, the first the furthest."""
        return [int(p) for p in np.argsort(-self.drift, kind="stable")[:count]]


def match_atoms(one: Sequence[Array], other: Sequence[Array], threshold: float = SAME) -> Matching:
    """What has become of each atom of one dictionary in another; their ranks may differ.

    >>> U, V = np.eye(3), np.array([[0.0, 5.0], [0.0, 0.0], [2.0, 0.0]])
    >>> found = match_atoms([U], [V])
    >>> found.pairs.tolist(), found.deaths, found.births, found.sizes.tolist()
    ([[0, 1], [2, 0]], (1,), (), [5.0, 2.0])
    """
    shapes = [[len(U) for U in loadings] for loadings in (one, other)]
    if shapes[0] != shapes[1]:
        raise ConfigError(f"the two have atoms of the shapes {shapes[0]} and {shapes[1]}: they cannot be compared")
    if not 0.0 < threshold <= 1.0:
        raise ConfigError(f"threshold must be in (0, 1], not {threshold!r}")
    similarity = similarities(one, other)
    pairs = _pairs(np.where(similarity >= threshold, similarity, 0.0))
    paired = [(U[:, pairs[:, 0]], V[:, pairs[:, 1]]) for U, V in zip(one, other, strict=True)]
    return Matching(
        pairs,
        deaths=tuple(sorted(set(range(len(similarity))) - set(pairs[:, 0].tolist()))),
        births=tuple(sorted(set(range(len(similarity.T))) - set(pairs[:, 1].tolist()))),
        turns=np.array([_turns(U, V) for U, V in paired]) * ~_zeros(one)[pairs[:, 0]],
        scales=np.array([_scales(U, V) for U, V in paired]),
        movements=tuple(_norm(U - V) / max(_norm(U), 1e-300) for U, V in paired),
    )


def similarities(one: Sequence[Array], other: Sequence[Array]) -> Array:
    """(R, R′): the cosine of each atom with each other; one that is zero is like nothing but another zero."""
    found = np.ones((one[0].shape[1], other[0].shape[1]))
    for U, V in zip(one, other, strict=True):
        found *= _units(U).T @ _units(V)
    return np.asarray(np.where(np.outer(_zeros(one), _zeros(other)), 1.0, np.minimum(found, 1.0)))


def assign(cost: Array) -> Indices:
    """Which column each row gets, no two the same, at the least cost in all; of columns there are as many, or more.

    The method of shortest augmenting paths (Jonker and Volgenant): rows come in one by one, and a path of least reduced
    cost from the new one to a free column says who changes places. u and v are the prices that keep reduced costs from
    being negative; row and column 0 stand for "none".

    >>> assign(np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0]])).tolist()
    [1, 0]
    """
    rows, columns = cost.shape
    u, v = np.zeros(rows + 1), np.zeros(columns + 1)
    owner, came_from = np.zeros(columns + 1, np.int64), np.zeros(columns + 1, np.int64)
    for row in range(1, rows + 1):
        owner[0], at = row, 0
        distance, done = np.full(columns + 1, np.inf), np.zeros(columns + 1, np.bool_)
        while owner[at] != 0:
            done[at] = True
            reduced = cost[owner[at] - 1] - u[owner[at]] - v[1:]
            nearer = ~done[1:] & (reduced < distance[1:])
            distance[1:][nearer], came_from[1:][nearer] = reduced[nearer], at
            at = int(np.argmin(np.where(done, np.inf, distance)))
            step = distance[at]
            u[owner[done]] += step
            v[done] -= step
            distance[~done] -= step
        while at != 0:
            owner[at], at = owner[came_from[at]], came_from[at]
    found = np.empty(rows, np.int64)
    taken = np.flatnonzero(owner[1:])
    found[owner[1:][taken] - 1] = taken
    return found


def _pairs(similarity: Array) -> Indices:
    """The pairs with the largest sum, those that are alike at all."""
    wide = similarity if len(similarity) <= len(similarity.T) else similarity.T
    found = np.stack([np.arange(len(wide)), assign(-wide - STAYING * np.eye(*wide.shape))], axis=1)
    pairs = found if wide is similarity else found[:, ::-1]
    pairs = pairs[similarity[pairs[:, 0], pairs[:, 1]] > 0.0]
    return np.asarray(pairs[np.argsort(pairs[:, 0])])


def _norm(U: Array) -> float:
    return float(np.linalg.norm(U))


def _units(U: Array) -> Array:
    """Columns of norm one, however large or small they were; zero ones stay zero."""
    U = U / _or_one(np.abs(U).max(axis=0))
    return np.asarray(U / _or_one(np.sqrt(np.sum(U * U, axis=0))))


def _or_one(norms: Array) -> Array:
    return np.where(norms > 0.0, norms, 1.0)


def _zeros(loadings: Sequence[Array]) -> Flags:
    """Which atoms are zero: those with a column that is."""
    return np.asarray(np.any([~U.any(axis=0) for U in loadings], axis=0))


def _turns(U: Array, V: Array) -> Array:
    """1 − |cosine| = ‖u/‖u‖ ∓ v/‖v‖‖²/2. Signs that change in two modes leave an atom as it was."""
    U, V = _units(U), _units(V)
    gap = U - np.where(np.sum(U * V, axis=0) < 0.0, -V, V)
    return np.asarray(np.sum(gap * gap, axis=0) / 2.0)


def _scales(U: Array, V: Array) -> Array:
    """⟨u, v⟩/⟨u, u⟩; of zero columns 1."""
    large = _or_one(np.abs(U).max(axis=0))
    energy = np.sum((U / large) ** 2, axis=0)
    return np.asarray(np.where(energy > 0.0, np.sum(U / large * V, axis=0) / _or_one(energy) / large, 1.0))
