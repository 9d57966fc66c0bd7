"""Random-walk Metropolis over a density that is known up to a factor.

A step proposes x + scale·ξ, ξ standard normal, and takes it with probability min(1, π(y)/π(x)). Where the density is a
compiled function of Numba's, so is the walk; any Python function will do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import isfinite, log
from typing import Any

import numba
import numpy as np

from stream_ocpdl.errors import ConfigError, DataError
from stream_ocpdl.ocpdl.arrays import Array, BigArray

Density = Callable[[Array], float]
"""log π up to a constant; −inf where there is no mass."""


@dataclass(frozen=True, slots=True, eq=False)
class Metropolis:
    """`start` is where every chain begins, `steps` of the walk lie between two draws.

    Draws are the points themselves, of either sign: `to_tensor` makes them what a model learns, such as `np.exp`.
    """

    density: Density
    start: Any
    scale: float = 1.0
    steps: int = 1
    to_tensor: Callable[[Array], BigArray] = np.asarray
    name: str = "metropolis"

    def __post_init__(self) -> None:
        if not (isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"scale must be positive and finite, not {self.scale:g}")
        if self.steps < 1:
            raise ConfigError(f"steps must be at least 1, not {self.steps}")
        if not isfinite(found := float(self.density(np.array(self.start, float)))):
            raise ConfigError(f"the log density is {found} at the start: begin where there is mass")

    def first(self, random: np.random.Generator) -> BigArray:
        """The start."""
        return np.array(self.start, float)

    def move(self, place: BigArray, random: np.random.Generator) -> BigArray:
        """The point after the steps."""
        walk = _compiled() if hasattr(self.density, "py_func") else _walk
        out = place.copy()
        noise = self.scale * random.standard_normal((self.steps, *place.shape))
        if walk(self.density, noise, random.random(self.steps), out) < 0:
            raise DataError("the log density is NaN at a point of the walk")
        return out

    def tensor(self, place: BigArray) -> BigArray:
        """What the map makes of the point."""
        return self.to_tensor(place)


def _walk(density: Any, noise: Any, uniforms: Any, out: Any) -> int:
    """So many steps were taken, of noise (steps, …) and uniforms (steps,); −1 where the density is NaN."""
    here, taken = density(out), 0
    for k in range(len(noise)):
        proposal = out + noise[k]
        there = density(proposal)
        if there != there:
            return -1
        if log(1.0 - uniforms[k]) < there - here:
            out[...] = proposal
            here = there
            taken += 1
    return taken


@cache
def _compiled() -> Any:
    """The same, compiled; not kept on disk, for it has the user's density in it."""
    return numba.njit(nogil=True)(_walk)
