"""A stream with a known dictionary: mixtures of atoms whose codes are one long Markov chain, plus noise.

From one tensor to the next a code keeps nine tenths of itself, and now and then an atom is struck anew: it forgets its
past geometrically, as the chains of (A1), assumption:A1, do, though it has not finitely many states.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from stream_ocpdl.ocpdl.aggregates import reconstruction
from stream_ocpdl.ocpdl.arrays import Array, BigArray

KEEPS, STRUCK, NOISE = 0.9, 0.25, 0.02


def bumps(rows: int, rank: int, random: np.random.Generator) -> Array:
    """Columns with one hill each, at random places."""
    places = random.random(rank) * rows
    return np.asarray(np.exp(-0.5 * ((np.arange(rows)[:, None] - places) / (0.1 * rows)) ** 2))


def truth(shape: Sequence[int], rank: int, seed: int) -> list[Array]:
    """A dictionary to be found."""
    random = np.random.default_rng([seed, 0])
    return [bumps(rows, rank, random) for rows in shape]


def chain(loadings: Sequence[Array], seed: int, noise: float = NOISE) -> Iterator[BigArray]:
    """Tensors one after the other, without end; the same for the same seed."""
    random, rank = np.random.default_rng([seed, 1]), loadings[0].shape[1]
    H = random.exponential(size=(rank,))
    while True:
        struck = random.exponential(size=(rank,)) * (random.random(rank) < STRUCK)
        H = KEEPS * H + (1 - KEEPS) * struck / STRUCK
        X = reconstruction(loadings, H)
        yield X + noise * random.exponential(size=X.shape)
