"""Is the rank right? Smaller and larger models learn a share of the stream beside the one that counts, to be compared.

Each candidate R − k, R, R + k is a learner of its own, all of the same minibatches; which these are is decided by how
many tensors came, by no clock and no chance. They are judged by their prequential losses, each minibatch before it is
learned, so that a larger rank wins only if what it has learned is true of new data. Only the newer half of the losses
counts, of at most WINDOW minibatches: at first all of them are poor.

A larger rank is worth its price if it saves more than WORTH of the loss, and more than ERRORS standard errors of the
mean of the paired differences. Minibatches of a slowly mixing chain are alike, which makes these errors too small; the
rule is advice, no test. What shadows know is theirs: the model that counts has the same bits with and without them.
"""

from collections import deque
from copy import copy
from dataclasses import replace
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from stream_ocpdl.errors import ConfigError, NumericError
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.learner import Learner
from stream_ocpdl.ocpdl.problem import WHOLE, Problem
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

WINDOW, LEAST = 100, 10
"""Minibatches that are compared, at most and at least."""

WORTH, ERRORS, NOTHING = 0.01, 2.0, 1e-6
"""What a larger rank must gain: of the loss, in standard errors, and of the energy of a tensor."""


class Advice(NamedTuple):
    """Which rank to take, and why."""

    rank: int | None
    """None while it is too early to say."""
    reason: str
    losses: dict[int, float]
    """The mean prequential loss of each candidate."""


class Shadows:
    """Learners of other ranks, beside one of this problem.

    >>> random = np.random.default_rng(0)
    >>> atoms = np.einsum("ir,jr->rij", random.random((8, 3)), random.random((6, 3)))
    >>> shadows = Shadows(Problem(shape=(8, 6), rank=2, batch_size=10), by=1, share=1.0)
    >>> for _ in range(80):
    ...     taken = shadows.step(np.tensordot(random.exponential(size=(10, 3)), atoms, 1))
    >>> shadows.advice().rank
    3
    """

    def __init__(self, problem: Problem, by: int, share: float = 0.1, workers: Workers = SERIAL) -> None:
        if not isinstance(by, WHOLE) or isinstance(by, bool) or by < 1:
            raise ConfigError(f"by must be a whole number of atoms, at least 1, not {by!r}")
        if not 0.0 < share <= 1.0:
            raise ConfigError(f"share must be in (0, 1], not {share!r}")
        self.rank, self.share = problem.rank, share
        ranks = [rank for rank in (problem.rank - by, problem.rank, problem.rank + by) if rank >= 1]
        self.learners = [Learner(replace(problem, rank=rank), workers=workers) for rank in ranks]
        self.seen = self.taken = self.compared = 0
        self._losses: deque[list[float]] = deque(maxlen=WINDOW)

    def under(self, problem: Problem) -> "Shadows":
        """The same, and what they know, on other parameters: a model that goes on with them is compared with its like.

        The ranks stay. These here are left as they are.
        """
        other = copy(self)
        other.learners = [
            Learner(replace(problem, rank=learner.problem.rank), learner.state, learner.workers)
            for learner in self.learners
        ]
        other._losses = self._losses.copy()
        return other

    def step(self, X: Any) -> bool:
        """Learn a minibatch if the shadows are behind their share of the stream; whether they did.

        Where a candidate cannot learn it, since a result is not finite, none is judged by it.
        """
        due = self.taken <= self.share * self.seen
        self.seen += len(X)
        if not due:
            return False
        self.taken += len(X)
        try:
            steps = [learner.step(X) for learner in self.learners]
        except NumericError:
            return False
        self.compared += 1
        self._losses.append([step.prequential_loss for step in steps])
        return True

    def advice(self) -> Advice:
        """The smallest rank that no larger one beats by enough."""
        ranks = [learner.problem.rank for learner in self.learners]
        count = min(WINDOW, self.compared // 2)
        if count < LEAST:
            reason = f"too early to say: {self.compared} of {2 * LEAST} minibatches"
            return Advice(None, reason, {})
        losses = np.array(self._losses)[-count:]
        means = losses.mean(axis=0)
        energy = self.learners[0].state.aggregates.E
        best = next(
            i for i in range(len(ranks)) if not any(_beats(losses, i, j, energy) for j in range(i + 1, len(ranks)))
        )
        return Advice(ranks[best], _said(ranks, means, best, self.rank), dict(zip(ranks, means.tolist(), strict=True)))


def _beats(losses: Array, i: int, j: int, energy: float) -> bool:
    """Whether candidate j is worth its price against the smaller i."""
    gains = losses[:, i] - losses[:, j]
    mean, error = float(gains.mean()), float(gains.std(ddof=1)) / sqrt(len(gains))
    return mean > ERRORS * error and mean > WORTH * float(losses[:, i].mean()) + NOTHING * energy


def _said(ranks: list[int], means: Array, best: int, present: int) -> str:
    """The advice in one sentence.

    >>> _said([6, 8, 10], np.array([2.0, 1.0, 0.996]), 1, 8), _said([6, 8, 10], np.array([2.0, 1.0, 0.5]), 2, 8)
    ('rank 8 is enough: 10 gains 0.4 %', 'rank 10 is better: it gains 50.0 % over 8')
    """

    def gain(i: int, j: int) -> float:
        return 100.0 * float(1.0 - means[j] / means[i]) if means[i] > 0.0 else 0.0

    if ranks[best] > present:
        return f"rank {ranks[best]} is better: it gains {gain(ranks.index(present), best):.1f} % over {present}"
    if best + 1 == len(ranks):
        return f"rank {ranks[best]} is right: it gains {gain(best - 1, best):.1f} % over {ranks[best - 1]}"
    more = gain(best, best + 1)
    told = f"gains {more:.1f} %" if more >= 0 else f"loses {-more:.1f} %"
    return f"rank {ranks[best]} is enough: {ranks[best + 1]} {told}"
