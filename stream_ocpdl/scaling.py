"""One dictionary by many workers, past this machine: how many tensors a second, and what they would wait for.

A round (`docs/workers.md`) has P partials of b tensors, made by W ≤ P workers. Times that are measured here, or given:

    c    a worker codes a tensor, adds it to its sums, and writes its share of a partial
    m    the learner reads a partial and adds it to the others
    u    the learner updates the loadings, once a round
    l    nobody computes: two transactions, and the next dictionary on its way
    p, x bytes of a partial, and of a tensor, of which the brokers move β a second

A synchronous round takes ⌈P/W⌉bc + Pm + u + l. With staleness workers do not wait, and it takes the longest of ⌈P/W⌉bc,
of Pm + u, and of what the brokers need. So the learner takes b/m tensors a second at most, however many workers there
are: what counts against that is b. If partials are added by others before, in a tree in which each adds k, the learner
has k partials a round or fewer; a synchronous round goes through all levels of the tree, each with a way of its own.

The model is checked at the sizes that can be run: `python -m benchmarks workers`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from math import ceil, inf, log
from typing import Literal

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.batch import gather
from stream_ocpdl.ocpdl.learner import encode, update_loadings, warm_up
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.sums import Sums, absorb_sums, added, settle, sums_of
from stream_ocpdl.ocpdl.synthetic import chain, truth
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.messages import Partial, Tensor, Version

WAY = 0.1
"""Seconds of a round in which nobody computes: what rounds of tiny tensors take with one broker on the same machine."""

RECORD = 25e-6
"""Seconds that a record takes a worker beside what is measured here: to have it from the client, and keep it."""

MERGED = 4
"""How many partials one adds in a tree."""

Bound = Literal["workers", "learner", "brokers", "the way"]


@dataclass(frozen=True, slots=True)
class Costs:
    """What a problem costs, in seconds on one core, and in bytes."""

    tensor: float
    merge: float
    update: float
    message: int
    partial: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many workers, each with so many tensors a round."""

    workers: int
    batch: int
    """Tensors of a partial."""
    bandwidth: float = inf
    """Bytes a second that the brokers move."""
    way: float = WAY
    partials: int = 0
    """Of a round; zero is one each."""

    def __post_init__(self) -> None:
        if not self.partials:
            object.__setattr__(self, "partials", self.workers)

    @property
    def each(self) -> int:
        """Tensors that the busiest worker has in a round."""
        return -(-self.partials // self.workers) * self.batch

    def synchronous(self, costs: Costs) -> tuple[float, Bound]:
        """Tensors a second if all wait for all, and what most of a round is.

        >>> Fleet(4, 100, way=0.0).synchronous(Costs(1e-3, 1e-2, 6e-2, 0, 0))
        (2000.0, 'workers')
        """
        parts: dict[Bound, float] = {
            "workers": self.each * costs.tensor,
            "learner": self.partials * costs.merge + costs.update,
            "the way": self.way,
            "brokers": self._moved(costs),
        }
        return self._rate(sum(parts.values())), max(parts, key=lambda name: parts[name])

    def stale(self, costs: Costs) -> tuple[float, Bound]:
        """Tensors a second if nobody waits for the next dictionary, and who is the slowest."""
        parts: dict[Bound, float] = {
            "workers": self.each * costs.tensor,
            "learner": self.partials * costs.merge + costs.update,
            "brokers": self._moved(costs),
        }
        return self._rate(max(parts.values())), max(parts, key=lambda name: parts[name])

    def merged(self, costs: Costs, each: int = MERGED) -> tuple[float, float]:
        """Both, if partials are added in a tree before the learner has them."""
        levels = max(0, ceil(log(self.partials, each) - 1e-9) - 1)
        top = ceil(self.partials / each**levels)
        learner, adding = top * costs.merge + costs.update, each * costs.merge * (levels > 0)
        moved = self._moved(costs, sum(ceil(self.partials / each**k) for k in range(levels + 1)))
        coding = self.each * costs.tensor
        waits = coding + levels * (adding + self.way / 2) + learner + self.way + moved
        return self._rate(waits), self._rate(max(coding, adding, learner, moved))

    def _moved(self, costs: Costs, partials: int | None = None) -> float:
        """Seconds that the brokers need for a round: tensors are read, partials written and read."""
        tensors = self.partials * self.batch * costs.message
        return (tensors + 2 * (partials or self.partials) * costs.partial) / self.bandwidth

    def _rate(self, seconds: float) -> float:
        return self.partials * self.batch / seconds if seconds > 0 else inf


@dataclass(frozen=True, slots=True)
class Expected:
    """What so many workers do: tensors a second."""

    workers: int
    synchronous: float
    stale: float
    merged: float
    """Stale as well, and added in a tree."""
    bound: Bound
    """What stale ones without a tree are held up by."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What more and more workers do."""

    costs: Costs
    batch: int
    most: float
    """Tensors a second that the learner takes at most, however many workers there are."""
    rows: tuple[Expected, ...]


def outlook(costs: Costs, batch: int, most: int, bandwidth: float = inf) -> Outlook:
    """For one worker, twice as many, and so on."""
    rows = []
    for workers in [*(2**k for k in range(most.bit_length()) if 2**k < most), most]:
        fleet = Fleet(workers, batch, bandwidth)
        stale, bound = fleet.stale(costs)
        rows.append(Expected(workers, fleet.synchronous(costs)[0], stale, fleet.merged(costs)[1], bound))
    return Outlook(costs, batch, batch / costs.merge if costs.merge > 0 else inf, tuple(rows))


def measure(problem: Problem, message: int, seconds: float, workers: Workers = SERIAL) -> Costs:
    """Learn as a fleet would, in turns, for so long."""
    batch = problem.batch_size
    warm_up(problem, workers)
    tensors = chain(truth(problem.shape, problem.rank, problem.seed), problem.seed)
    records = [[Tensor(X).to_bytes() for X in islice(tensors, batch)] for _ in range(2)]
    state = State.initial(problem)
    sets, loadings = problem.sets(1.0), problem.initial_loadings(1.0)

    def coded(k: int) -> bytes:
        rows, _ = gather(problem, [Tensor.from_bytes(record).array for record in records[k % 2]], workers)
        return written(sums_of(loadings, rows, encode(problem, sets, loadings, rows, workers), workers))

    values = [coded(0), coded(1)]
    state, sums = settle(problem, state, added([read(value) for value in values]))
    aggregates = absorb_sums(state.aggregates, sums, 1.0)
    own = problem.sets(state.scale or 1.0)

    def updated(_: int) -> tuple[tuple[Array, ...], object]:
        absorb_sums(aggregates, sums, 0.1)
        return update_loadings(problem, own, state.loadings, aggregates, 0.1, workers)

    share = seconds / 3
    return Costs(
        tensor=RECORD + timed(coded, share) / batch,
        merge=timed(lambda _: added([read(value) for value in values]), share) / 2,
        update=timed(updated, share),
        message=message,
        partial=len(values[0]),
    )


def written(sums: Sums) -> bytes:
    """Sums as they go to the learner."""
    B = np.moveaxis(sums.B, 0, -1)
    return Partial(Version("model", 0), sums.count, sums.energy, sums.mass, sums.A, B, 1).to_bytes()


def read(value: bytes) -> Sums:
    """And as they come."""
    found = Partial.from_bytes(value)
    return Sums(found.count, found.energy, found.mass, found.A, np.moveaxis(found.B, -1, 0))


def timed(call: Callable[[int], object], seconds: float) -> float:
    """The median of what a call takes, of at least three after the first."""
    took: list[float] = []
    end = time.monotonic() + seconds
    while len(took) < 4 or time.monotonic() < end:
        began = time.perf_counter()
        call(len(took))
        took.append(time.perf_counter() - began)
    return float(np.median(took[1:]))
