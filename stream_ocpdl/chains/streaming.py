"""The health of a chain by all its draws, in memory that does not grow: one number a draw, and no draw is kept.

**Autocorrelation time** τ = 1 + 2 Σ ρ(k), from the means of blocks of 2ˡ draws, at all levels l at once: τ(b), which is
b·Var(mean of b)/Var, comes to τ as b grows, from below by about τ²/2b, and 2τ(b) − τ(b/2) has no such bias. The level
that is taken is the least whose blocks are `WIDE` times as long as τ: longer ones are fewer, and know less. Its error
is about 2√(b/n). The effective sample size is n/τ.

**Split-R̂**, the classical one, not rank-normalised: sums of at most `PARTS` blocks of equal length are kept, and when
they are full two and two are made one. Their first and second half are the halves of the chain, but for an unfinished
block at its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan, sqrt

WIDE = 3
"""How many times τ a block is long, at least."""

SHORTEST = 16
"""Draws of a block, at least: what alternates looks settled in shorter ones."""

FEWEST = 16
"""Blocks of which a variance is taken."""

PARTS = 64
"""Blocks that are kept for the halves; an even number."""


@dataclass(slots=True)
class Moments:
    """Count, mean, and sum of squares about the mean."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, x: float) -> None:
        """One more number (Welford)."""
        self.count += 1
        away = x - self.mean
        self.mean += away / self.count
        self.squares += away * (x - self.mean)

    def plus(self, other: "Moments") -> "Moments":
        """Both together (Chan)."""
        count = self.count + other.count
        if count == 0:
            return Moments()
        away = other.mean - self.mean
        mean = self.mean + away * other.count / count
        return Moments(count, mean, self.squares + other.squares + away * away * self.count * other.count / count)

    @property
    def variance(self) -> float:
        """Of the numbers; NaN of fewer than two."""
        return self.squares / (self.count - 1) if self.count > 1 else nan


@dataclass(slots=True)
class Health:
    """What is known of one quantity of one chain; as many levels as the logarithm of its length."""

    levels: list[Moments] = field(default_factory=lambda: [Moments()])
    """Of the means of blocks of 1, 2, 4 … draws."""
    _open: list[float] = field(default_factory=lambda: [nan])
    """Of each level the mean of a block that waits for its neighbour."""
    parts: list[Moments] = field(default_factory=list)
    """Of blocks of equal length."""
    _part: Moments = field(default_factory=Moments)
    _length: int = 1

    def add(self, x: float) -> None:
        """One more draw; takes as long for the millionth as for the first, in the mean."""
        self._halve(x)
        level = 0
        while True:
            self.levels[level].add(x)
            before = self._open[level]
            if before != before:  # nothing waits
                self._open[level] = x
                return
            self._open[level], x, level = nan, (before + x) / 2.0, level + 1
            if level == len(self.levels):
                self.levels.append(Moments())
                self._open.append(nan)

    def _halve(self, x: float) -> None:
        self._part.add(x)
        if self._part.count < self._length:
            return
        self.parts.append(self._part)
        self._part = Moments()
        if len(self.parts) == PARTS:
            self.parts = [a.plus(b) for a, b in zip(self.parts[::2], self.parts[1::2], strict=True)]
            self._length *= 2

    @property
    def count(self) -> int:
        """Draws so far."""
        return self.levels[0].count

    @property
    def autocorrelation_time(self) -> float:
        """τ; NaN as long as there are too few draws for any level to be sure, or all are the same."""
        variance = self.levels[0].variance
        if not variance > 0.0:
            return nan
        before = 1.0
        for level, moments in enumerate(self.levels[1:], start=1):
            if moments.count < FEWEST:
                return nan
            length = 2.0**level
            here = length * moments.variance / variance
            tau = 2.0 * here - before
            if length >= max(SHORTEST, WIDE * max(here, tau)):
                return tau if tau > 0.0 else here
            before = here
        return nan

    @property
    def ess(self) -> float:
        """n/τ."""
        return self.count / self.autocorrelation_time

    @property
    def halves(self) -> tuple[Moments, Moments]:
        """Moments of the first and the second half, equally long."""
        half = len(self.parts) // 2
        return _sum(self.parts[:half]), _sum(self.parts[len(self.parts) - half :])


def split_rhat(chains: Sequence[Health]) -> float:
    """Classical split-R̂ of chains, of any lengths: √((B/W + n − 1)/n) with the mean length n of the halves."""
    halves = [half for chain in chains for half in chain.halves]
    if len(halves) < 2 or min(half.count for half in halves) < 2:
        return nan
    within = sum(half.variance for half in halves) / len(halves)
    means = Moments()
    for half in halves:
        means.add(half.mean)
    n = sum(half.count for half in halves) / len(halves)
    if within == 0.0:
        return nan if means.variance == 0.0 else float("inf")
    return sqrt(means.variance / within + (n - 1) / n)


def _sum(parts: Sequence[Moments]) -> Moments:
    total = Moments()
    for part in parts:
        total = total.plus(part)
    return total
