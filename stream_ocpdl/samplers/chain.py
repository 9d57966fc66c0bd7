"""A chain: a sampler that walks, draw after draw, and can be left and taken up again anywhere.

The random numbers of a draw are a function of seed, chain and draw (a counter, no hidden state): so where a chain
stands is the number of the next draw and the place of the last one, and nothing else. Chains of other numbers, or
seeds, are independent.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from stream_ocpdl.errors import ConfigError, StateError
from stream_ocpdl.ocpdl.arrays import BigArray

LARGEST = 2**64


class Sampler(Protocol):
    """A Markov chain, as functions."""

    @property
    def name(self) -> str:
        """What draws say they come from."""
        ...

    def first(self, random: np.random.Generator) -> BigArray:
        """Where a chain begins."""
        ...

    def move(self, place: BigArray, random: np.random.Generator) -> BigArray:
        """The next place; the old one is left as it is."""
        ...

    def tensor(self, place: BigArray) -> BigArray:
        """What is drawn there."""
        ...


class Place(NamedTuple):
    """Where a chain stands."""

    draw: int
    """The number of the next draw."""
    at: BigArray
    """The place of the one before, or where the chain began."""


class Chain(Iterator[BigArray]):
    """The draws of a sampler, without end.

    >>> import numpy as np
    >>> from stream_ocpdl.samplers import Ising
    >>> chain = Chain(Ising((4, 4), 2.0), seed=7)
    >>> first = [next(chain) for _ in range(3)]
    >>> later = Chain(Ising((4, 4), 2.0), seed=7, place=chain.place)
    >>> bool(np.all(next(later) == next(chain)))
    True
    """

    def __init__(self, sampler: Sampler, seed: int = 0, chain: int = 0, place: Place | None = None) -> None:
        for name, value in (("seed", seed), ("chain", chain)):
            if not 0 <= value < LARGEST:
                raise ConfigError(f"{name} must be a whole number from 0 to below 2^64, not {value}")
        if place is not None and place.draw < 0:
            raise StateError(f"a chain has no draw {place.draw}")
        self.sampler, self.seed, self.chain = sampler, seed, chain
        self.place = Place(0, sampler.first(numbers(seed, chain, LARGEST - 1))) if place is None else place

    def __next__(self) -> BigArray:
        """The next draw."""
        draw, at = self.place
        at = self.sampler.move(at, numbers(self.seed, self.chain, draw))
        self.place = Place(draw + 1, at)
        return self.sampler.tensor(at)


def numbers(seed: int, chain: int, draw: int) -> np.random.Generator:
    """The random numbers of one draw: 2^192 of them before those of the next begin."""
    key, counter = np.array([seed, chain], np.uint64), np.array([0, 0, 0, draw], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
