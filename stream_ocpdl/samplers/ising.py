"""The Ising model on a torus, by Gibbs' sampler: each spin in turn is drawn anew, given its four neighbours.

    π(s) ∝ exp(−E(s)/T),    E(s) = −Σ over edges sᵢsⱼ − h Σ sᵢ,    s = ±1

At T = 2/log(1 + √2) ≈ 2.269 a large lattice has patterns of every size, and the chain is slowest. Draws are 0 and 1.
"""

from dataclasses import dataclass
from math import exp, isfinite
from typing import Any

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.arrays import BigArray
from stream_ocpdl.ocpdl.compiled import kernel

CRITICAL = 2.269185314213022


@kernel
def sweep(uniforms: Any, coldness: float, field: float, out: Any) -> None:
    """P(sᵢ = 1 | others) = 1/(1 + exp(−2(Σⱼ sⱼ + h)/T)), site by site; uniforms (sweeps, I, J), out (I, J) is ±1."""
    rows, columns = out.shape
    for u in uniforms:
        for i in range(rows):
            above, below = out[i - 1], out[(i + 1) % rows]
            for j in range(columns):
                around = above[j] + below[j] + out[i, j - 1] + out[i, (j + 1) % columns]
                up = 1.0 / (1.0 + exp(-2.0 * coldness * (around + field)))
                out[i, j] = 1 if u[i, j] < up else -1


@dataclass(frozen=True, slots=True)
class Ising:
    """`sweeps` over the lattice from one draw to the next."""

    shape: tuple[int, int]
    temperature: float = CRITICAL
    field: float = 0.0
    sweeps: int = 1
    name: str = "ising"

    def __post_init__(self) -> None:
        if len(self.shape) != 2 or min(self.shape) < 3:
            raise ConfigError(f"an Ising lattice has two sides of at least 3, not {list(self.shape)}")
        if not (isfinite(self.temperature) and self.temperature > 0 and isfinite(self.field)):
            raise ConfigError(f"an Ising model has a temperature above 0, and a field, not {self.temperature:g}")
        if self.sweeps < 1:
            raise ConfigError(f"sweeps must be at least 1, not {self.sweeps}")

    def first(self, random: np.random.Generator) -> BigArray:
        """Every spin by itself, as at an infinite temperature."""
        return random.integers(0, 2, self.shape, np.int8) * np.int8(2) - np.int8(1)

    def move(self, place: BigArray, random: np.random.Generator) -> BigArray:
        """The lattice after the sweeps."""
        out = place.copy()
        sweep(random.random((self.sweeps, *self.shape)), 1.0 / self.temperature, self.field, out)
        return out

    def tensor(self, place: BigArray) -> BigArray:
        """1 where the spin is up, 0 where it is down."""
        return np.asarray(place > 0, np.uint8)
