"""What people who look at a shard want to see beside its numbers: its past, its dictionary, who used which atom.

The thread that learns writes, and never waits. What it writes when nobody looks is a reference or two a step, and a
point of the past a few times a second. While somebody looks it also copies the loadings, which the next step may
overwrite; at most once a second, and never for more than a hundredth of its time. Everything has a bound.
"""

import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from stream_ocpdl.observe.past import Past, Point
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.stream.messages import Position, Refused
from stream_ocpdl.stream.outputs import shown
from stream_ocpdl.stream.pipeline import Outcome, Pipeline
from stream_ocpdl.stream.plan import Plan

GAZE = 5.0
"""Seconds for which somebody who asked is taken to be looking."""

FRESH = 1.0
"""Seconds between two copies of the dictionary, at least."""

SHARE = 100
"""A copy that took a second is followed by none for so many."""

LETTERS = 50
"""Dead letters that are remembered."""

ROWS, BYTES = 4096, 4_000_000
"""Codes that are remembered, in tensors and in memory; those of the last step always."""

LARGEST = 32_000_000
"""Bytes of a snapshot that is remembered."""

LAGGED = 1.0
"""Seconds between two looks at the lag, which takes longer than all else here."""


Lag: TypeAlias = Callable[[], tuple[int | None, float]]


def unknown() -> tuple[int | None, float]:
    """Nothing is known of a lag."""
    return None, 0.0


class Dictionary(NamedTuple):
    """The dictionary after a step, in memory of its own."""

    at: float
    """Seconds since 1970."""
    t: int
    N: int
    epoch: int
    loadings: tuple[Array, ...]
    uses: Array
    """(R,): the diagonal of A, the mean square of each atom's codes, with the weights of the past."""
    factors: tuple[float, ...]
    axes: tuple[str, ...] | None


class Coded(NamedTuple):
    """The codes of a step."""

    t: int
    positions: tuple[Position, ...]
    H: Array


class Letter(NamedTuple):
    """Something that was refused, and when."""

    at: float
    refused: Refused


class Spectators:
    """Those who look at a shard, and what is kept for them."""

    def __init__(
        self,
        plan: Plan,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.past = Past()
        self.letters: deque[Letter] = deque(maxlen=LETTERS)
        self.refused = 0
        self.snapshots: tuple[tuple[int, bytes], ...] = ()
        """The last two, with their steps."""
        self.dictionary: Dictionary | None = None
        self.known_from = 0
        """The step from which on every revival is known."""
        self.revived: dict[int, int] = {}
        """The step of each atom's last revival since then."""
        self._plan, self._now, self._wall = plan, now, wall
        self._room = max(1, min(ROWS, BYTES // (8 * plan.problem.rank)))
        self._coded: deque[tuple[int, tuple[Position, ...], Array]] = deque()
        self._rows, self._t, self._learned = 0, 0, 0
        self._pipeline: Pipeline | None = None
        self._until = self._next = self._lagged = -inf
        self._last_lag: tuple[int | None, float] = (None, 0.0)

    def look(self) -> None:
        """Somebody looks. This is the only thing here that readers write."""
        self._until = self._now() + GAZE

    @property
    def coded(self) -> list[Coded]:
        """The codes of the last steps, the oldest first."""
        return [Coded(*one) for one in self._coded.copy()]

    # ── by the thread that learns ──────────────────────────────────────────────────────────────────────────────

    def ready(self, pipeline: Pipeline) -> None:
        """A life begins."""
        t = pipeline.progress.state.t
        self._pipeline = pipeline
        self.known_from = t if pipeline.problem.revive is not None else 0
        self.revived = {}
        self._went_back(t + 1)
        self._t = t

    def turned(self) -> None:
        """The loop went round, perhaps without a step."""
        now = self._now()
        if self._next <= now < self._until and self._pipeline is not None:
            self._copy(self._pipeline, now)

    def stepped(self, pipeline: Pipeline, outcome: Outcome, lag: Lag = unknown) -> None:
        """A step was made; `lag` is asked for records and seconds now and then, and not kept: it knows a client."""
        if outcome.letters:
            self.refused += len(outcome.letters)
            at = self._wall()
            self.letters.extend(Letter(at, refused) for refused in outcome.letters[-LETTERS:])
        step = outcome.step
        if step is None:
            return
        t, H = step.t, step.coding.H
        if t <= self._t:
            self._went_back(t)
        self._t, self._pipeline = t, pipeline
        self._learned += outcome.tensors
        self._rows += len(H)
        if len(H) > 0:  # of sums nobody has them
            self._coded.append((t, outcome.positions, H))
        while self._rows > self._room and len(self._coded) > 1:
            self._rows -= len(self._coded.popleft()[2])
        if step.revived:
            self.revived.update(dict.fromkeys(step.revived, t))
        if shown(self._plan, t):
            self._keep_snapshot(t, outcome)
        now = self._now()
        if now >= self.past.due:
            self.past.add(self._point(step, now, lag), now)
        if self._next <= now < self._until:
            self._copy(pipeline, now)

    def _keep_snapshot(self, t: int, outcome: Outcome) -> None:
        value = next((output.value for output in reversed(outcome.outputs) if output.stream == "snapshots"), None)
        if value is not None and len(value) <= LARGEST:
            self.snapshots = (*self.snapshots[-1:], (t, value))

    def _point(self, step: Step, now: float, lag: Lag) -> Point:
        if now >= self._lagged:
            self._last_lag, self._lagged = lag(), now + LAGGED
        return Point(
            self._wall(),
            step.t,
            self._learned,
            step.surrogate,
            step.prequential_loss,
            step.weight,
            step.movements,
            step.radii,
            *self._last_lag,
        )

    def _copy(self, pipeline: Pipeline, now: float) -> None:
        progress = pipeline.progress
        state, held = progress.state, self.dictionary
        if held is None or (held.t, held.epoch) != (state.t, progress.epoch):
            self.dictionary = Dictionary(
                self._wall(),
                state.t,
                state.N,
                progress.epoch,
                tuple(np.array(U) for U in state.loadings),
                np.array(state.aggregates.A.diagonal()),
                state.factors,
                progress.axes,
            )
        self._next = now + max(FRESH, SHARE * (self._now() - now))

    def _went_back(self, t: int) -> None:
        """Steps from t on have not been."""
        self.past.forget_from(t)
        self.snapshots = tuple(one for one in self.snapshots if one[0] < t)
        self.revived = {r: born for r, born in self.revived.items() if born < t}
        self._coded.clear()
        self._rows = 0
