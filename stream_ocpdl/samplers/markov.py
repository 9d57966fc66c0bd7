"""A chain over finitely many known tensors, of which everything is known: for the theorem.

In a step it stays in its group of states with probability 1 − 1/τ, and is drawn anew from π otherwise:

    P = (1 − 1/τ) K + (1/τ) 1πᵀ,    K(x, y) = π(y) / π(G) for y in the group G of x

Its stationary distribution is π, and ‖P^t(x, ·) − π‖_TV = (1 − 1/τ)^t (1 − π(G)) for t ≥ 1: the geometric mixing
that assumption:A1 asks for, as slow as one likes. What is the same in all of a group has correlation (1 − 1/τ)^k at lag
k, hence the autocorrelation time 2τ − 1; what averages to the same in every group has none. If every state is a group,
the chain rests; if there are some, it is like samplers that move quickly in most directions, and slowly in one. With
τ = 1 draws are independent.
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
    groups: Any = None
    """The group of each state, (S,); each has its own, if none are given."""
    name: str = "markov"
    stationary: Array = field(init=False)
    """π."""
    _inside: Array = field(init=False)
    """K."""
    _cumulated: Array = field(init=False)
    """K and, as its last row, π, summed up along their rows."""

    def __post_init__(self) -> None:
        states = len(self.tensors)
        weights = np.ones(states) if self.weights is None else np.asarray(self.weights, float)
        if states < 1 or weights.shape != (states,):
            raise ConfigError(f"there are {states} tensors and {weights.size} weights; each must have one")
        if not (np.all(weights > 0) and isfinite(weights.sum())):
            raise ConfigError("every weight must be positive and finite")
        groups = np.arange(states) if self.groups is None else np.asarray(self.groups)
        if groups.shape != (states,):
            raise ConfigError(f"there are {states} tensors and {groups.size} groups; each must be in one")
        if not (isfinite(self.relaxation) and self.relaxation >= 1):
            raise ConfigError(f"relaxation must be a number of draws, at least 1, not {self.relaxation:g}")
        object.__setattr__(self, "stationary", weights / weights.sum())
        inside = np.where(groups[:, None] == groups, self.stationary, 0.0)
        object.__setattr__(self, "_inside", inside / inside.sum(axis=1, keepdims=True))
        object.__setattr__(self, "_cumulated", np.cumsum(np.vstack([self._inside, self.stationary]), axis=1))

    @property
    def mixing_time(self) -> int:
        """Draws after which, from any state, the distribution is within ¼ of π in total variation."""
        rest = 1.0 - float((self._inside > 0).astype(float).dot(self.stationary).min())
        if self.relaxation == 1.0 or rest <= 0.25:
            return 1
        return max(1, ceil(log(0.25 / rest) / log(1.0 - 1.0 / self.relaxation)))

    @property
    def transition(self) -> Array:
        """P."""
        return (1.0 - 1.0 / self.relaxation) * self._inside + self.stationary / self.relaxation

    def first(self, random: np.random.Generator) -> BigArray:
        """Drawn from π: the chain is stationary from its beginning."""
        return np.array(find(self._cumulated[-1], random.random()))

    def move(self, place: BigArray, random: np.random.Generator) -> BigArray:
        """A state of the same group, or any."""
        leaves, u = random.random(2)
        return np.array(find(self._cumulated[-1 if leaves * self.relaxation < 1.0 else int(place)], u))

    def tensor(self, place: BigArray) -> BigArray:
        """The tensor of the state."""
        return np.asarray(self.tensors[int(place)])
