"""Weights w_t, and whether assumption (A3) holds for them.

(A3) (assumption:A3) asks of the non-increasing weights in (0, 1] that

    Σ w_t = ∞,    Σ w_t² √t < ∞,    and  w_{t+1}⁻¹ − w_t⁻¹ ≤ 1  for all large t.

For w_t = t^−β (log t)^−δ these say β ≤ 1; β > 3/4, or β = 3/4 and δ > 1/2; and β < 1, or β = 1 and δ ≤ 0.
Two departures from the text of the paper follow:

- t⁻¹/log t, which the experiments use, breaks the third condition: its w_{t+1}⁻¹ − w_t⁻¹ grows like log t.
- (log t)^−δ divides by zero at t = 1. Here it is (1 + log t)^−δ, which is the same Θ and equals one at t = 1.

A schedule is an object that is called with t ≥ 1 (any real number) and answers for (A3).
"""

from dataclasses import dataclass
from math import log
from typing import Protocol, runtime_checkable

from stream_ocpdl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a hypothesis holds, and why."""

    holds: bool
    reason: str


@runtime_checkable
class Schedule(Protocol):
    """A non-increasing weight for every t ≥ 1."""

    def __call__(self, t: float) -> float:
        """w(t), in (0, 1]."""
        ...

    def a3(self) -> Verdict:
        """Whether these weights satisfy (A3)."""
        ...


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """w(t) = t^−β (1 + log t)^−δ.

    >>> PowerLaw(beta=1.0)(4)
    0.25
    >>> PowerLaw(beta=1.0, delta=1.0).a3().holds
    False
    """

    beta: float = 1.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.beta, int | float) or not 0 < self.beta <= 4:
            raise ConfigError(f"beta must be in (0, 4], not {self.beta!r}")
        if not isinstance(self.delta, int | float) or not 0 <= self.delta <= 10:
            raise ConfigError(f"delta must be in [0, 10], not {self.delta!r}")

    def __call__(self, t: float) -> float:
        """t^−β (1 + log t)^−δ."""
        power = float(t**-self.beta)
        return power if self.delta == 0 else float(power * (1 + log(t)) ** -self.delta)

    def a3(self) -> Verdict:
        """Which of the three conditions decides."""
        beta, delta = self.beta, self.delta
        if beta > 1 or (beta == 1 and delta > 0):
            return Verdict(False, "w_{t+1}⁻¹ − w_t⁻¹ exceeds 1 (β = 1 allows no logarithm, β > 1 nothing)")
        if beta < 0.75 or (beta == 0.75 and delta <= 0.5):
            return Verdict(False, "Σ w_t² √t diverges (needs β > 3/4, or β = 3/4 and δ > 1/2)")
        return Verdict(True, f"w_t = Θ(t^−{beta:g}" + (f" (log t)^−{delta:g})" if delta else ")"))


@dataclass(frozen=True, slots=True)
class Balanced:
    """w(t) = 1/t: every tensor weighs the same, the surrogate is an arithmetic mean."""

    def __call__(self, t: float) -> float:
        """1/t."""
        return 1 / t

    def a3(self) -> Verdict:
        """Holds."""
        return Verdict(True, "w_t = 1/t")


@dataclass(frozen=True, slots=True)
class Constant:
    """w(t) = c: the past is forgotten at a constant rate; a tracking mode, outside of the theorem."""

    value: float

    def __post_init__(self) -> None:
        if not isinstance(self.value, int | float) or not 0 < self.value <= 1:
            raise ConfigError(f"a constant weight must be in (0, 1], not {self.value}")

    def __call__(self, t: float) -> float:
        """The constant, whatever t is."""
        return self.value

    def a3(self) -> Verdict:
        """Does not hold."""
        return Verdict(False, "a constant weight forgets: Σ w_t² √t diverges")


def named(text: str) -> Schedule:
    """The schedule of a name: "power β", "power β δ", "balanced" or "constant c".

    >>> named("power 0.76"), named("constant 0.05")
    (PowerLaw(beta=0.76, delta=0.0), Constant(value=0.05))
    """
    kind, *numbers = text.split() or [""]
    known = {"power": (PowerLaw, 1, 2), "balanced": (Balanced, 0, 0), "constant": (Constant, 1, 1)}
    make, least, most = known.get(kind, (None, 0, 0))
    try:
        if make is not None and least <= len(numbers) <= most:
            return make(*map(float, numbers))  # type: ignore[no-any-return]
    except ConfigError as error:
        raise ConfigError(f"weights: {error}") from None
    except ValueError:
        pass
    raise ConfigError(f"weights must be 'power β', 'power β δ', 'balanced' or 'constant c', not {text[:80]!r}")


def name_of(schedule: Schedule) -> str:
    """What `named` reads; of a schedule that has no name, what it says of itself.

    >>> name_of(PowerLaw(0.75, 0.6)), name_of(Balanced())
    ('power 0.75 0.6', 'balanced')
    """
    match schedule:
        case PowerLaw(beta, delta):
            return f"power {float(beta)!r}" + (f" {float(delta)!r}" if delta else "")
        case Constant(value):
            return f"constant {float(value)!r}"
        case Balanced():
            return "balanced"
    return str(schedule)[:512]
