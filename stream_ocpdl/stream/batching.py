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
from stream_ocpdl.stream.messages import Record, Run

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
    """A record with its tensor, or with the reason why it has none; or the places of records that are done with."""

    record: Record
    array: BigArray | None
    refusal: str | None
    arrived: float
    gone: tuple[Run, ...] = ()
    """Refused records that left ahead of their turn, and only keep their places in the line."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A closed minibatch."""

    rows: tuple[Item, ...]
    """Its tensors in the order of the rows; none if it only lets refused records go."""
    refused: tuple[Item, ...]
    """The refused records that leave with it."""
    gaps: tuple[Run, ...]
    """What lies between the rows and is none of them."""
    reached: dict[int, int]
    """For each partition that moved the offset up to which all is done."""
    ahead: tuple[Run, ...]
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
        self._refused = (0, 0)
        """How many refused records wait in the line, and their bytes."""

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
        count, size = self._refused
        return self._let_go() if count >= MOST_REFUSED or size >= PLENTY // 2 else None

    @property
    def hungry(self) -> set[int]:
        """The partitions of which more is wanted: those with little waiting, or not even two minibatches.

        The limit is wide, because pausing a partition throws away what was fetched of it.
        """
        return {p for p, (count, size) in self._held.items() if count < 2 * self._batching.size or size < PLENTY}

    def _join(self, item: Item) -> None:
        if item.gone and self._line and self._line[-1].gone:
            self._line[-1] = _joined(self._line[-1], item)
            return
        self._line.append(item)
        self._tensors += item.array is not None
        if item.refusal is not None:
            self._refused = (self._refused[0] + 1, self._refused[1] + _size(item))

    def _hold(self, item: Item, sign: int) -> None:
        """Count an item that waits, or no longer does; places alone hold nothing."""
        if not item.gone:
            partition = item.record.position.partition
            count, size = self._held[partition]
            self._held[partition] = (count + sign, size + sign * _size(item))

    def _take(self, tensors: int) -> Cut:
        """The items up to the last of so many tensors, and what is refused or gone right after it."""
        taken: list[Item] = []
        while self._line and (tensors > 0 or self._line[0].array is None):
            item = self._line.popleft()
            self._hold(item, -1)
            tensors -= item.array is not None
            taken.append(item)
        rows = [item for item in taken if item.array is not None]
        refused = [item for item in taken if item.refusal is not None]
        self._tensors -= len(rows)
        self._refused = (self._refused[0] - len(refused), self._refused[1] - sum(map(_size, refused)))
        if self._batching.order == "canonical":
            rows.sort(key=lambda item: item.record.position)
        return self._cut(rows, taken, refused)

    def _let_go(self) -> Cut:
        """The refused records of the line, ahead of the tensors between them; their places are kept."""
        refused = [item for item in self._line if item.refusal is not None]
        line, self._line, self._tensors, self._refused = self._line, deque(), 0, (0, 0)
        for item in line:
            if item.refusal is not None:
                self._hold(item, -1)
            self._join(_place(item) if item.refusal is not None else item)
        taken = [self._line.popleft()] if self._line[0].gone else []
        return self._cut([], taken, refused)

    def _cut(self, rows: list[Item], taken: list[Item], refused: list[Item]) -> Cut:
        gaps = [run for item in taken if item.array is None for run in item.gone or _place(item).gone]
        done = [*gaps, *((*item.record.position, item.record.position.offset) for item in rows)]
        reached: dict[int, int] = {}
        for partition, _, last in done:
            reached[partition] = max(reached.get(partition, 0), last + 1)
        ahead = tuple(run for item in self._line for run in item.gone)
        return Cut(tuple(rows), tuple(refused), tuple(gaps), reached, ahead, self._next_turn(taken))

    def _next_turn(self, taken: list[Item]) -> int:
        """The partition whose record comes next: where a Batcher that continues from here begins."""
        if self._line:
            first = self._line[0]
            return first.gone[0][0] if first.gone else first.record.position.partition
        if not taken:
            return self._partitions[self._turn]
        last = self._partitions.index(taken[-1].record.position.partition)
        return self._partitions[(last + 1) % len(self._partitions)]


def _place(item: Item) -> Item:
    """The place of an item, without what it holds."""
    partition, offset = item.record.position
    return replace(item, record=replace(item.record, value=None), refusal=None, gone=((partition, offset, offset),))


def _joined(first: Item, second: Item) -> Item:
    """The places of two neighbours in the line as one item; its position is that of the last, its turn the first's."""
    runs = list(first.gone)
    for partition, low, high in second.gone:
        at = next((k for k in range(len(runs)) if runs[k][0] == partition and runs[k][2] == low - 1), None)
        if at is None:
            runs.append((partition, low, high))
        else:
            runs[at] = (partition, runs[at][1], high)
    return replace(second, gone=tuple(runs))


def _size(item: Item) -> int:
    """About the memory that an item holds."""
    return 200 + len(item.record.value or b"")
