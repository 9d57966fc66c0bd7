"""A stream with a known dictionary: mixtures of atoms whose codes are one long Markov chain, plus noise.

From one tensor to the next a code keeps most of itself, and now and then an atom is struck anew: it forgets its past
geometrically, as the chains of (A1), assumption:A1, do, though it has not finitely many states.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from stream_ocpdl.ocpdl.aggregates import reconstruction
from stream_ocpdl.ocpdl.arrays import Array, BigArray

NOISE = 0.02


class Mixing(NamedTuple):
    """How a chain forgets."""

    keeps: float
    """The share of a code that is left in the next tensor."""
    struck: float
    """How probable it is that an atom is struck in a tensor; codes are 1 in the mean in any case."""


FAST, SLOW = Mixing(0.9, 0.25), Mixing(0.99, 0.003)
"""All atoms in nearly every tensor; and a few for a hundred tensors, then others."""


def bumps(rows: int, rank: int, random: np.random.Generator) -> Array:
    """Columns with one hill each, at random places."""
    places = random.random(rank) * rows
    return np.asarray(np.exp(-0.5 * ((np.arange(rows)[:, None] - places) / (0.1 * rows)) ** 2))


def truth(shape: Sequence[int], rank: int, seed: int) -> list[Array]:
    """A dictionary to be found."""
    random = np.random.default_rng([seed, 0])
    return [bumps(rows, rank, random) for rows in shape]


def chain(loadings: Sequence[Array], seed: int, noise: float = NOISE, mixing: Mixing = FAST) -> Iterator[BigArray]:
    """Tensors one after the other, without end; the same for the same seed."""
    random, rank = np.random.default_rng([seed, 1]), loadings[0].shape[1]
    keeps, often = mixing
    H = random.exponential(size=(rank,))
    if often < 1 - keeps:  # then not all atoms are there at once
        H *= random.random(rank) < often / (1 - keeps)
    while True:
        struck = random.exponential(size=(rank,)) * (random.random(rank) < often)
        H = keeps * H + (1 - keeps) * struck / often
        X = reconstruction(loadings, H)
        yield X + noise * random.exponential(size=X.shape)
