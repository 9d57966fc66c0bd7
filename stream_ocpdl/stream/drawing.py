"""Draws of several chains on a topic, each once, also if the run is cut short and goes on later.

A draw says of which run and chain it is, and which one. Its key is run:chain, and all of a chain go to one partition,
by the chain's number, so that they stay in order and few chains fill all partitions. Whoever goes on reads which draws
of the run are there.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stream_ocpdl.errors import DataError, DecodeError
from stream_ocpdl.stream.assembly import whole
from stream_ocpdl.stream.client import TensorProducer
from stream_ocpdl.stream.kafka import Connection, partitions_of_topic, read_committed
from stream_ocpdl.stream.messages import Draw, Record, Tensor
from stream_ocpdl.stream.topics import nothing

SIGNED = (
    "a draw is negative, and the model is not: map draws to nonnegative tensors (to_tensor, such as np.exp, squares,"
    " or positive and negative parts side by side), or learn with signed constraints and codes"
)


@dataclass(slots=True)
class Numbers:
    """Which draws of a chain there are, as runs of numbers: one run, as long as nothing is missing.

    >>> numbers = Numbers()
    >>> for draw in (0, 1, 2, 7, 3):
    ...     numbers.add(draw)
    >>> numbers.last, 3 in numbers, 5 in numbers, numbers.runs
    (7, True, False, [(0, 4), (7, 8)])
    """

    runs: list[tuple[int, int]] = field(default_factory=list)
    """First, and the one after the last; ascending, and apart from each other."""

    @property
    def last(self) -> int:
        """The greatest, or −1."""
        return self.runs[-1][1] - 1 if self.runs else -1

    def __contains__(self, draw: int) -> bool:
        k = bisect_right(self.runs, draw, key=lambda run: run[0]) - 1
        return k >= 0 and draw < self.runs[k][1]

    def add(self, draw: int) -> None:
        """One more, if it is not there."""
        if draw in self:
            return
        k = bisect_right(self.runs, draw, key=lambda run: run[0])
        first, after = draw, draw + 1
        if k < len(self.runs) and self.runs[k][0] == after:
            after = self.runs.pop(k)[1]
        if k > 0 and self.runs[k - 1][1] == draw:
            first = self.runs.pop(k - 1)[0]
            k -= 1
        self.runs.insert(k, (first, after))


def drawn(connection: Connection, topic: str, run: str, seen: Callable[[], None] = nothing) -> dict[int, Numbers]:
    """Of each chain of a run the draws that a topic has; all of it is read, and `seen` called for every record."""
    found: dict[int, Numbers] = {}
    for partition in partitions_of_topic(connection, topic):
        for record in whole(_of_run(read_committed(connection, topic, partition), run, seen)):
            try:
                draw = Draw.from_bytes(record.value)
            except DecodeError:
                continue
            if draw.run == run:
                found.setdefault(draw.chain, Numbers()).add(draw.draw)
    return found


def _of_run(records: Iterable[Record], run: str, seen: Callable[[], None]) -> Iterator[Record]:
    """Those with a key of the run."""
    begin = f"{run}:".encode()
    for record in records:
        seen()
        if record.key is not None and record.key.startswith(begin):
            yield record


def nonnegative(array: Any) -> None:
    """Raise if any number is below zero."""
    if np.size(array) and np.min(array) < 0:
        raise DataError(SIGNED)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A run of several chains that fills a topic, one draw of each in turn."""

    producer: TensorProducer
    partitions: int
    run: str
    sampler: str
    axes: tuple[str, ...] | None = None
    signed: bool = False

    def write(
        self, chains: Mapping[int, Iterator[Any]], count: int, there: Mapping[int, Numbers]
    ) -> Iterator[tuple[int, bool]]:
        """The number of each draw, and whether it was written: those that are there already are not."""
        for number in range(count):
            for chain, draws in chains.items():
                array = np.asarray(next(draws))
                fresh = number not in there.get(chain, ())
                if fresh:
                    if not self.signed:
                        nonnegative(array)
                    draw = Draw(Tensor(array, self.axes), self.run, chain, number, sampler=self.sampler)
                    self.producer.send_draw(draw, partition=chain % self.partitions)
                yield number, fresh
