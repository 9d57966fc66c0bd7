"""When a minibatch is complete, and in which order its rows come.

- `close: full` waits for `size` tensors; `close: linger` takes what there is once the oldest has waited long enough.
- `order: arrival` keeps the order of delivery. `order: canonical` sorts rows by partition and offset.

With `full` and `canonical` a minibatch is a pure function of what the partitions contain: records are taken from the
partitions in turn, one from each, so no accident of delivery can enter. The price: a partition that falls silent
holds up the others. In every case a minibatch and what was refused on the way are a prefix of each partition.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.arrays import BigArray
from stream_ocpdl.stream.messages import Record

PLENTY = 8_000_000
"""Bytes of a partition that may wait for their minibatch before no more of it is read."""


@dataclass(frozen=True, slots=True)
class Batching:
    """The choice."""

    size: int = 32
    close: Literal["full", "linger"] = "full"
    order: Literal["arrival", "canonical"] = "canonical"
    linger_ms: int = 100

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"batch.size must be at least 1, not {self.size}")
        if self.close not in ("full", "linger"):
            raise ConfigError(f"batch.close must be 'full' or 'linger', not {self.close!r}")
        if self.order not in ("arrival", "canonical"):
            raise ConfigError(f"batch.order must be 'arrival' or 'canonical', not {self.order!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A record, with its tensor or the reason why it has none."""

    record: Record
    array: BigArray | None
    refusal: str | None
    arrived: float


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A closed minibatch: its tensors in the order of the rows (none if there are only refusals), and the refused."""

    rows: tuple[Item, ...]
    refused: tuple[Item, ...]
    cursor: int


class Batcher:
    """Items in, minibatches out."""

    def __init__(self, batching: Batching, partitions: Sequence[int], cursor: int = 0) -> None:
        self._batching = batching
        self._partitions = sorted(partitions)
        self._in_turn = batching.close == "full" and batching.order == "canonical"
        self._turn = self._partitions.index(cursor) if self._in_turn and cursor in self._partitions else 0
        self._waiting: dict[int, deque[Item]] = {partition: deque() for partition in self._partitions}
        self._line: deque[Item] = deque()
        self._held = dict.fromkeys(self._partitions, (0, 0))
        self._tensors = 0

    def add(self, item: Item) -> None:
        """Take an item; items of one partition come in the order of their offsets."""
        self._hold(item, 1)
        if not self._in_turn:
            self._join(item)
            return
        self._waiting[item.record.position.partition].append(item)
        while self._waiting[self._partitions[self._turn]]:
            self._join(self._waiting[self._partitions[self._turn]].popleft())
            self._turn = (self._turn + 1) % len(self._partitions)

    def cut(self, now: float) -> Cut | None:
        """The next minibatch, if one is complete at this time."""
        if self._tensors >= self._batching.size:
            return self._take(self._batching.size)
        due = bool(self._line) and now - self._line[0].arrived >= self._batching.linger_ms / 1000
        if self._batching.close == "linger" and due:
            return self._take(self._tensors)
        return None

    @property
    def hungry(self) -> set[int]:
        """The partitions of which more is wanted: those with little waiting, or not even two minibatches.

        The limit is wide, because pausing a partition throws away what was fetched of it.
        """
        return {p for p, (count, size) in self._held.items() if count < 2 * self._batching.size or size < PLENTY}

    def _join(self, item: Item) -> None:
        self._line.append(item)
        self._tensors += item.array is not None

    def _hold(self, item: Item, sign: int) -> None:
        """Count an item that waits, or no longer does."""
        partition = item.record.position.partition
        count, size = self._held[partition]
        self._held[partition] = (count + sign, size + sign * len(item.record.value or b""))

    def _take(self, tensors: int) -> Cut:
        """The items up to the last of so many tensors, and the refusals right after it."""
        taken: list[Item] = []
        while self._line and (tensors > 0 or self._line[0].array is None):
            item = self._line.popleft()
            self._hold(item, -1)
            tensors -= item.array is not None
            taken.append(item)
        rows = [item for item in taken if item.array is not None]
        self._tensors -= len(rows)
        if self._batching.order == "canonical":
            rows.sort(key=lambda item: item.record.position)
        return Cut(tuple(rows), tuple(item for item in taken if item.array is None), self._next_turn(taken))

    def _next_turn(self, taken: list[Item]) -> int:
        """The partition after that of the last item taken: where a Batcher that continues from here begins."""
        if not taken:
            return self._partitions[self._turn]
        last = self._partitions.index(taken[-1].record.position.partition)
        return self._partitions[(last + 1) % len(self._partitions)]
