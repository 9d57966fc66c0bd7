"""A chain over finitely many known tensors, of which everything is known: for the theorem.

In a step it stays where it is with probability 1 − 1/τ, and is drawn anew from π otherwise:

    P = (1 − 1/τ) I + (1/τ) 1πᵀ

Its stationary distribution is π, and ‖P^t(x, ·) − π‖_TV = (1 − 1/τ)^t (1 − π(x)): exactly the geometric mixing that
assumption:A1 asks for, as slow as one likes. Every function of the state has correlation (1 − 1/τ)^k at lag k, hence
the autocorrelation time 2τ − 1. With τ = 1 draws are independent.
"""

from dataclasses import dataclass, field
from math import ceil, isfinite, log
from typing import Any

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.compiled import kernel


@kernel
def find(cumulated: Any, u: float) -> int:
    """The first state s with u < π(0) + … + π(s)."""
    for s in range(len(cumulated) - 1):
        if u < cumulated[s]:
            return s
    return len(cumulated) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Markov:
    """`tensors` (S, I₁…Iₙ), π as `weights` of any sum, τ as `relaxation`."""

    tensors: BigArray
    weights: Any = None
    """All the same, if none are given."""
    relaxation: float = 1.0
    name: str = "markov"
    stationary: Array = field(init=False)
    """π."""
    _cumulated: Array = field(init=False)

    def __post_init__(self) -> None:
        states = len(self.tensors)
        weights = np.ones(states) if self.weights is None else np.asarray(self.weights, float)
        if states < 1 or weights.shape != (states,):
            raise ConfigError(f"there are {states} tensors and {weights.size} weights; each must have one")
        if not (np.all(weights > 0) and isfinite(weights.sum())):
            raise ConfigError("every weight must be positive and finite")
        if not (isfinite(self.relaxation) and self.relaxation >= 1):
            raise ConfigError(f"relaxation must be a number of draws, at least 1, not {self.relaxation:g}")
        object.__setattr__(self, "stationary", weights / weights.sum())
        object.__setattr__(self, "_cumulated", np.cumsum(self.stationary))

    @property
    def mixing_time(self) -> int:
        """Draws after which, from any state, the distribution is within ¼ of π in total variation."""
        least = 1.0 - float(self.stationary.min())
        if self.relaxation == 1.0 or least <= 0.25:
            return 1
        return max(1, ceil(log(0.25 / least) / log(1.0 - 1.0 / self.relaxation)))

    @property
    def transition(self) -> Array:
        """P."""
        stays = 1.0 - 1.0 / self.relaxation
        return stays * np.eye(len(self.stationary)) + (1.0 - stays) * self.stationary

    def first(self, random: np.random.Generator) -> BigArray:
        """Drawn from π: the chain is stationary from its beginning."""
        return np.array(find(self._cumulated, random.random()))

    def move(self, place: BigArray, random: np.random.Generator) -> BigArray:
        """The same state, or one drawn from π."""
        leaves, u = random.random(2)
        return place if leaves * self.relaxation >= 1.0 else np.array(find(self._cumulated, u))

    def tensor(self, place: BigArray) -> BigArray:
        """The tensor of the state."""
        return np.asarray(self.tensors[int(place)])
