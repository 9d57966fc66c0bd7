"""What a draw costs with a sink, within one run: its draws are handed over or not, block by block.

Two processes are never quite as fast as each other; here there is one, and drift hits blocks with and without alike.
The sampler's thread is compared between neighbouring blocks. All that the other threads do, the sink's and the
client's, is the sink's, whenever they do it. Both are CPU; on one processor that is what a user waits for.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from stream_ocpdl import DrawSink


class Switch:
    """Stands for a sink, and hands every other block of draws to it."""

    def __init__(self, sink: DrawSink, block: int) -> None:
        self.sampler: str | None = None
        self.expect = sink.expect
        self.handed: dict[int, int] = {}
        """Of each chain, how many draws."""
        self.times: list[float] = []
        """Seconds of the sampler's thread at the beginning of each block; the first is handed over."""
        self._sink, self._block, self._seen = sink, block, 0

    def draw(self, point: Any, chain: int = 0, tuning: bool = False) -> None:
        """A draw; those of tuning are in no block."""
        if not tuning and self._on(1):
            self._sink.draw(point, chain)
            self.handed[chain] = self.handed.get(chain, 0) + 1

    def draws(self, points: Any) -> None:
        """Draws of an ensemble."""
        if self._on(len(points)):
            self._sink.draws(points)
            for chain in range(len(points)):
                self.handed[chain] = self.handed.get(chain, 0) + 1

    def more(self) -> list[float]:
        """Seconds that a draw took the sampler's thread more with the sink, pair of blocks by pair of blocks."""
        spans = [(b - a) / self._block for a, b in pairwise(self.times)]
        return [a - b for a, b in zip(spans[::2], spans[1::2], strict=False)]

    def alone(self) -> float:
        """Seconds of a draw that is not handed over."""
        spans = [(b - a) / self._block for a, b in zip(self.times[1::2], self.times[2::2], strict=False)]
        return sum(spans) / len(spans)

    def _on(self, draws: int) -> bool:
        if self._seen % self._block == 0:
            self.times.append(time.thread_time())
        self._seen += draws
        return (self._seen - 1) // self._block % 2 == 0


def others(action: Callable[[], object]) -> float:
    """Seconds of CPU that threads beside the present one had meanwhile."""
    began = time.process_time() - time.thread_time()
    action()
    return time.process_time() - time.thread_time() - began
