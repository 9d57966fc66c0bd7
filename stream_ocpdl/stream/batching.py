"""When a minibatch is complete, and in which order its rows come.

- `close: full` waits for `size` tensors; `close: linger` takes what there is once the oldest has waited long enough.
- `order: arrival` keeps the order of delivery. `order: canonical` sorts rows by partition and offset.

With `full` and `canonical` a minibatch is a pure function of what the partitions contain: records are taken from the
partitions in turn, one from each, so no accident of delivery can enter. The price: a partition that falls silent
holds up the others.

Refused records wait in line with the tensors and leave with the next minibatch. If many wait while no minibatch can be
closed, they are let go ahead of it: their places in the line are kept, so that what follows stays the same.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.arrays import BigArray
from stream_ocpdl.stream.messages import Position, Record

PLENTY = 8_000_000
"""Bytes of a partition that may wait for their minibatch before no more of it is read."""

MOST_REFUSED = 100
"""So many refused records, or so many bytes of them, do not wait for a minibatch."""


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
    """Why there is no tensor; none too for a record that was refused ahead of its turn, and only keeps its place."""
    arrived: float

    @property
    def waits_refused(self) -> bool:
        """Whether a dead letter is still to be written."""
        return self.refusal is not None


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A closed minibatch."""

    rows: tuple[Item, ...]
    """Its tensors in the order of the rows; none if it only lets refused records go."""
    refused: tuple[Item, ...]
    """The refused records that leave with it."""
    passed: tuple[Position, ...]
    """All positions that are done with, in the order of the line: a prefix of each partition."""
    ahead: tuple[Position, ...]
    """Refused records that are done with although something before them is not."""
    cursor: int
    """The partition whose turn is next."""


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
        refused = [item for item in self._line if item.waits_refused]
        if len(refused) >= MOST_REFUSED or sum(map(_size, refused)) >= PLENTY // 2:
            return self._let_go()
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
        self._held[partition] = (count + sign, size + sign * _size(item))

    def _take(self, tensors: int) -> Cut:
        """The items up to the last of so many tensors, and the refused ones right after it."""
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
        return self._cut(rows, taken, [item for item in taken if item.waits_refused])

    def _let_go(self) -> Cut:
        """The refused records of the line, ahead of the tensors between them; their places are kept."""
        refused = [item for item in self._line if item.waits_refused]
        for item in refused:
            self._hold(item, -1)
        kept = [
            replace(item, record=replace(item.record, value=None), refusal=None) if item.waits_refused else item
            for item in self._line
        ]
        for old, new in zip(self._line, kept, strict=True):
            if old is not new:
                self._hold(new, 1)
        self._line = deque(kept)
        taken: list[Item] = []
        while self._line and self._line[0].array is None:
            self._hold(self._line[0], -1)
            taken.append(self._line.popleft())
        return self._cut([], taken, refused)

    def _cut(self, rows: list[Item], taken: list[Item], refused: list[Item]) -> Cut:
        passed = tuple(item.record.position for item in taken)
        ahead = tuple(i.record.position for i in self._line if i.array is None and not i.waits_refused)
        return Cut(tuple(rows), tuple(refused), passed, ahead, self._next_turn(taken))

    def _next_turn(self, taken: list[Item]) -> int:
        """The partition of the next item of the line: where a Batcher that continues from here begins."""
        if self._line:
            return self._line[0].record.position.partition
        if not taken:
            return self._partitions[self._turn]
        last = self._partitions.index(taken[-1].record.position.partition)
        return self._partitions[(last + 1) % len(self._partitions)]


def _size(item: Item) -> int:
    """About the memory that an item holds."""
    return 200 + len(item.record.value or b"")
