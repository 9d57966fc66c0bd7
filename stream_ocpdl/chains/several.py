"""Several quantities of a chain at once, in blocks of draws: the sums of `streaming.Health`, in less time.

A block may have any length, and what is known afterwards is the same for every cut into blocks, but for rounding. The
longer blocks are, the less a draw costs.
"""

from dataclasses import dataclass

import numpy as np

from stream_ocpdl.chains.streaming import PARTS, Health, Moments
from stream_ocpdl.ocpdl.arrays import Array


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Count, means (F,), and sums of squares about the means (F,)."""

    count: int
    mean: Array
    squares: Array

    @classmethod
    def of(cls, draws: Array) -> "Sums":
        """Of draws (F, n)."""
        n = draws.shape[1]
        mean = draws.sum(axis=1) / n
        away = draws - mean[:, None]
        return cls(n, mean, np.einsum("fn,fn->f", away, away))

    @classmethod
    def of_each(cls, draws: Array) -> list["Sums"]:
        """Of each of k blocks (F, k, n)."""
        n = draws.shape[2]
        mean = draws.sum(axis=2) / n
        away = draws - mean[:, :, None]
        squares = np.einsum("fkn,fkn->kf", away, away)
        return [cls(n, *both) for both in zip(mean.T, squares, strict=True)]

    def plus(self, other: "Sums") -> "Sums":
        """Both together (Chan)."""
        if self.count == 0:
            return other
        count, away = self.count + other.count, other.mean - self.mean
        squares = self.squares + other.squares + away * away * (self.count * other.count / count)
        return Sums(count, self.mean + away * (other.count / count), squares)

    def of_one(self, k: int) -> Moments:
        """Those of one quantity."""
        return Moments(self.count, float(self.mean[k]), float(self.squares[k]))


class Several:
    """What is known of a few quantities of one chain; as many levels as the logarithm of its length."""

    def __init__(self, quantities: int) -> None:
        self._nothing = Sums(0, np.zeros(quantities), np.zeros(quantities))
        self._none = np.zeros((quantities, 0))
        self.levels = [self._nothing]
        """Of the means of blocks of 1, 2, 4 … draws."""
        self._open = [self._none]
        """Of each level the mean of a block that waits for its neighbour, (F, 0 or 1)."""
        self.parts: list[Sums] = []
        """Of blocks of equal length, for the halves."""
        self._part, self._length = self._nothing, 1

    def extend(self, draws: Array) -> None:
        """More draws, (F, n)."""
        self._halve(draws)
        level = 0
        while draws.shape[1] > 0:
            if level == len(self.levels):
                self.levels.append(self._nothing)
                self._open.append(self._none)
            self.levels[level] = self.levels[level].plus(Sums.of(draws))
            if self._open[level].shape[1] > 0:
                draws = np.concatenate([self._open[level], draws], axis=1)
            even = draws.shape[1] // 2 * 2
            self._open[level] = draws[:, even:].copy()
            draws = (draws[:, 0:even:2] + draws[:, 1:even:2]) / 2.0
            level += 1

    def health(self, k: int) -> Health:
        """What is known of one quantity, to be asked."""
        return Health(
            [level.of_one(k) for level in self.levels],
            [float(open_[k, 0]) if open_.shape[1] else np.nan for open_ in self._open],
            [part.of_one(k) for part in self.parts],
            self._part.of_one(k),
            self._length,
        )

    def _halve(self, draws: Array) -> None:
        while draws.shape[1] > 0:
            whole = min(draws.shape[1] // self._length, PARTS - len(self.parts))
            lack = self._length - self._part.count
            if self._part.count == 0 and whole > 0:
                lack = whole * self._length
                self.parts += Sums.of_each(draws[:, :lack].reshape(len(draws), whole, -1))
            else:
                self._part = self._part.plus(Sums.of(draws[:, :lack]))
                if self._part.count == self._length:
                    self.parts.append(self._part)
                    self._part = self._nothing
            draws = draws[:, lack:]
            if len(self.parts) == PARTS:
                self.parts = [a.plus(b) for a, b in zip(self.parts[::2], self.parts[1::2], strict=True)]
                self._length *= 2
