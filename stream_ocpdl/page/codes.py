"""What many codes have in common: how much each atom is used, how many at once, and which come together.

Only sums are kept, so that any number of codes can be counted.
"""

from dataclasses import dataclass, field

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.page.views import Axis, Json, picture, shrunk


@dataclass(slots=True)
class Codes:
    """Sums over the codes of R atoms."""

    rank: int
    count: int = 0
    used: Array = field(init=False)
    """(R,): in how many tensors each atom is."""
    sums: Array = field(init=False)
    products: Array = field(init=False)
    """(R, R): Σ h hᵀ."""
    together: Array = field(init=False)
    """(R + 1,): how many tensors have so many atoms."""

    def __post_init__(self) -> None:
        R = self.rank
        self.used, self.sums, self.products, self.together = np.zeros(R), np.zeros(R), np.zeros((R, R)), np.zeros(R + 1)

    def add(self, H: Array) -> None:
        """Count the codes (b, R) of some tensors."""
        self.count += len(H)
        self.used += (H != 0).sum(axis=0)
        self.sums += H.sum(axis=0)
        self.products += H.T @ H
        np.add.at(self.together, (H != 0).sum(axis=1), 1)

    @property
    def zeros(self) -> float:
        """The share of all codes that are zero."""
        return 1.0 - float(self.used.sum()) / max(self.count * self.rank, 1)

    def shares(self, sizes: Array) -> Array:
        """(R,): the share of each atom in the energy of all that was reconstructed, for atoms of these norms."""
        energy = self.products.diagonal() * sizes**2
        return np.asarray(energy / energy.sum()) if energy.sum() > 0 else np.zeros(self.rank)

    def correlations(self) -> Array:
        """(R, R): of the codes of two atoms; zero where one never changes."""
        n = max(self.count, 1)
        mean = self.sums / n
        covariance = self.products / n - np.outer(mean, mean)
        spread = np.sqrt(np.maximum(covariance.diagonal(), 0.0))
        spread[spread <= 1e-9 * np.sqrt(self.products.diagonal() / n)] = 0.0  # rounding
        scale = np.outer(spread, spread)
        return np.asarray(np.clip(np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 0), -1.0, 1.0))

    def views(self) -> list[Json]:
        """Pictures: which atoms come together, in how many tensors each is, and how many a tensor has."""
        atoms = Axis.of("atom", self.rank)
        other = atoms._replace(name="other atom")
        n = max(self.count, 1)
        count = Axis.of("atoms in a tensor", self.rank + 1)
        return [
            picture(shrunk(self.correlations(), [atoms, other]), [atoms, other], "correlation of the codes"),
            picture(shrunk(self.used / n, [atoms]), [atoms], "share of tensors that an atom is in"),
            picture(shrunk(self.together / n, [count]), [count], "share of tensors with so many atoms"),
        ]
