"""What a step leaves behind beside the next state."""

from typing import NamedTuple, Protocol

from stream_ocpdl.ocpdl.anomaly import Judgement
from stream_ocpdl.ocpdl.arrays import Array


class Coding(NamedTuple):
    """Codes H (b, R), their losses ℓ(X_j, D, h_j) of the observed cells, and what finding them took."""

    H: Array
    losses: Array
    at_bound: int
    rounds: int
    settled: bool


class Update(Protocol):
    """What the update of the loadings did: f̂_t(D_{t−1}) and f̂_t(D_t), and mode by mode the way, its limit, whether that
    held it back, and what it took.
    """

    @property
    def before(self) -> float: ...  # noqa: D102
    @property
    def after(self) -> float: ...  # noqa: D102
    @property
    def movements(self) -> tuple[float, ...]: ...  # noqa: D102
    @property
    def radii(self) -> tuple[float, ...]: ...  # noqa: D102
    @property
    def radius_active(self) -> tuple[bool, ...]: ...  # noqa: D102
    @property
    def rounds(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def settled(self) -> tuple[bool, ...]: ...  # noqa: D102


class Updated(NamedTuple):
    """An update with everything said."""

    before: float
    after: float
    movements: tuple[float, ...]
    radii: tuple[float, ...]
    radius_active: tuple[bool, ...]
    rounds: tuple[int, ...]
    settled: tuple[bool, ...]


class Step(NamedTuple):
    """What happened in step t."""

    t: int
    N: int
    weight: float
    coding: Coding
    """Codes and losses under D_{t−1}: the losses are prequential, each tensor is judged before it is learned."""
    update: Update
    revived: tuple[int, ...] = ()
    """The atoms that were drawn anew after the update: all else here is of the dictionary before."""
    judged: Judgement | None = None
    """How unusual its tensors are, if somebody has judged them."""

    @property
    def surrogate_before(self) -> float:
        """f̂_t(D_{t−1}), per tensor."""
        return self.update.before

    @property
    def surrogate(self) -> float:
        """f̂_t(D_t), never above the former (lem:main_analytic_lemma (i))."""
        return self.update.after

    @property
    def movements(self) -> tuple[float, ...]:
        """‖U_t⁽ⁱ⁾ − U_{t−1}⁽ⁱ⁾‖_F."""
        return self.update.movements

    @property
    def radii(self) -> tuple[float, ...]:
        """c′ᵢ w_t, the bounds of the movements (lem:main_analytic_lemma (ii))."""
        return self.update.radii

    @property
    def radius_active(self) -> tuple[bool, ...]:
        """Whether the radius held mode i back."""
        return self.update.radius_active

    @property
    def rounds(self) -> tuple[int, ...]:
        """What the loading updates took."""
        return self.update.rounds

    @property
    def settled(self) -> tuple[bool, ...]:
        """Whether mode i was solved to the tolerance; rounding may forbid it where Q is nearly flat."""
        return self.update.settled

    @property
    def codes(self) -> Array:
        """H_t (b, R)."""
        return self.coding.H

    @property
    def prequential_loss(self) -> float:
        """Mean ℓ(X_t, D_{t−1}) of a tensor."""
        return float(self.coding.losses.mean())
