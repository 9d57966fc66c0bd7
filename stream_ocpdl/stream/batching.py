"""When a minibatch is complete, and in which order its rows come.

- `close: full` waits for `size` tensors; `close: linger` takes what there is once the oldest has waited long enough.
- `order: arrival` keeps the order of delivery. `order: canonical` sorts rows by partition and offset.

With `full` and `canonical` a minibatch is a pure function of what the partitions contain: records are taken from the
partitions in turn, one from each, so no accident of delivery can enter. The price: a partition that falls silent
holds up the others.

Refused records wait in line with the tensors and leave with the next minibatch. If many wait, or one for long, while no
minibatch can be closed, they are let go ahead of it: their places in the line are kept, so that what follows stays the
same.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Literal

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.stream.assembly import OVERHEAD, Refusal, weight
from stream_ocpdl.stream.messages import Position, Record, Run, Tensor
from stream_ocpdl.stream.refusals import History, merged

PLENTY = 8_000_000
"""Bytes of a partition that may wait for their minibatch before no more of it is read."""

MOST_REFUSED = 100
"""So many refused records, or so many bytes of them, do not wait for a minibatch."""

REFUSED_WAIT = 1.0
"""Seconds after which they do not either: their dead letters say what is wrong, perhaps why no minibatch comes."""


@dataclass(frozen=True, slots=True)
class Batching:
    """The choice."""

    size: int = 32
    close: Literal["full", "linger"] = "full"
    order: Literal["arrival", "canonical"] = "canonical"
    linger_ms: int = 100

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ConfigError(f"batching.size must be a whole number, at least 1, not {self.size!r}")
        if type(self.linger_ms) is not int or self.linger_ms < 0:
            raise ConfigError(f"batching.linger_ms must be a whole number, at least 0, not {self.linger_ms!r}")
        if self.close not in ("full", "linger"):
            raise ConfigError(f"batching.close must be 'full' or 'linger', not {self.close!r}")
        if self.order not in ("arrival", "canonical"):
            raise ConfigError(f"batching.order must be 'arrival' or 'canonical', not {self.order!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """What one record brought about: a tensor, refusals, or neither. Whatever it is, it has a place in the line."""

    position: Position
    arrived: float
    tensor: Tensor | None = None
    parts: tuple[Record, ...] = ()
    """The records that the tensor came in."""
    refused: tuple[Refusal, ...] = ()
    places: tuple[Run, ...] = ()
    """Of an item that stands for several which had nothing: where they were."""
    late: bool = False
    """Whether its turn was in an earlier life."""
    done: History = ()
    """What became of messages that were done with ahead of their turn here."""

    @property
    def empty(self) -> bool:
        """Whether it only keeps its place."""
        return self.tensor is None and not self.refused

    @property
    def history(self) -> History:
        """What becomes of the messages that it brought, if its tensor is learned."""
        return (*self.done, *([-1] if self.refused else []), *([1] if self.tensor is not None else []))


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A closed minibatch."""

    rows: tuple[Item, ...]
    """Its tensors in the order of the rows; none if it only lets refused records go."""
    refused: tuple[Refusal, ...]
    """The refused records that leave with it."""
    reached: dict[int, int]
    """For each partition that moved the offset up to which all is done."""
    ahead: tuple[Run, ...]
    """Records whose refusals are done with although something before them is not."""
    cursor: int
    """The partition whose turn is next."""
    history: History = ()
    """What becomes of the messages up to where all is done."""
    waiting: History = ()
    """Of those behind, where some of them go ahead of their turn."""


class Batcher:
    """Items in, minibatches out.

    `complete` shows the rows of a minibatch, `refuse` takes some of them out again if they turn out to be no good, and
    `take` closes it.
    """

    def __init__(self, batching: Batching, partitions: Sequence[int], cursor: int = 0) -> None:
        self._batching = batching
        self._partitions = sorted(partitions)
        self._in_turn = batching.close == "full" and batching.order == "canonical"
        self._turn = self._partitions.index(cursor) if self._in_turn and cursor in self._partitions else 0
        self._waiting: dict[int, deque[Item]] = {partition: deque() for partition in self._partitions}
        self._line: deque[Item] = deque()
        self._held = dict.fromkeys(self._partitions, 0)
        """Bytes of each partition that wait."""
        self._tensors = 0
        self._refused_since = 0.0
        self._refused = (0, 0)
        """How many refused records wait in the line without a tensor to wait for, and their bytes."""

    def add(self, item: Item) -> None:
        """Take an item; items of one partition come in the order of their offsets."""
        self._hold(item, 1)
        if item.late:
            self._line.appendleft(item)
            self._count(item, 1)
            return
        if not self._in_turn:
            self._join(item)
            return
        self._waiting[item.position.partition].append(item)
        while self._waiting[self._partitions[self._turn]]:
            self._join(self._waiting[self._partitions[self._turn]].popleft())
            self._turn = (self._turn + 1) % len(self._partitions)

    def complete(self, now: float) -> list[Item] | None:
        """The rows of the minibatch that is complete at this time, in order; if none, refused records alone leave."""
        if self._tensors >= self._batching.size:
            return self._rows(self._batching.size)
        if self._batching.close == "linger":
            oldest = next((item.arrived for item in self._line if not item.empty), None)
            if oldest is not None and now - oldest >= self._batching.linger_ms / 1000:
                return self._rows(self._tensors)
        count, size = self._refused
        waited = count > 0 and now - self._refused_since >= REFUSED_WAIT
        return [] if waited or count >= MOST_REFUSED or size >= PLENTY // 2 else None

    def refuse(self, wrong: Mapping[Position, Exception]) -> None:
        """Take tensors out of the line, each for an error; their places stay."""
        self._rebuild([_refuse(item, wrong[item.position]) if item.position in wrong else item for item in self._line])

    def take(self, rows: list[Item]) -> Cut:
        """Close the minibatch of these rows."""
        if not rows and self._tensors:
            return self._let_go()
        taken = self._pop(len(rows))
        refused = [refusal for item in taken for refusal in item.refused]
        return self._cut(rows, taken, refused)

    @property
    def hungry(self) -> set[int]:
        """The partitions of which more is wanted: those with little waiting, and those a minibatch waits for.

        The limit is wide, because pausing a partition throws away what was fetched of it.
        """
        wanted = {p for p, size in self._held.items() if size < PLENTY}
        if self._tensors < self._batching.size:
            wanted |= {self._partitions[self._turn]} if self._in_turn else set(self._partitions)
        return wanted

    def _rows(self, count: int) -> list[Item]:
        rows = list(islice((item for item in self._line if item.tensor is not None), count))
        return sorted(rows, key=lambda item: item.position) if self._batching.order == "canonical" else rows

    def _join(self, item: Item) -> None:
        if item.empty and self._line and self._line[-1].empty:
            self._line[-1] = _joined(self._line[-1], item)
        else:
            self._line.append(item)
            self._count(item, 1)

    def _count(self, item: Item, sign: int) -> None:
        self._tensors += sign * (item.tensor is not None)
        if item.refused and item.tensor is None:
            count, size = self._refused
            if count == 0:
                self._refused_since = item.arrived
            self._refused = (count + sign * len(item.refused), size + sign * _refused_bytes(item))

    def _hold(self, item: Item, sign: int) -> None:
        """Count an item that waits, or no longer does; a place alone holds nothing."""
        if not item.empty:
            self._held[item.position.partition] += sign * _bytes(item)

    def _pop(self, tensors: int) -> list[Item]:
        """The items up to the last of so many tensors, and those right after it that have none."""
        taken: list[Item] = []
        while self._line and (tensors > 0 or self._line[0].tensor is None):
            item = self._line.popleft()
            self._hold(item, -1)
            self._count(item, -1)
            tensors -= item.tensor is not None
            taken.append(item)
        return taken

    def _let_go(self) -> Cut:
        """The refused records of the line, ahead of the tensors between them; their places are kept."""
        refused = [refusal for item in self._line if item.tensor is None for refusal in item.refused]
        gone = [replace(item, refused=(), done=item.history) if item.tensor is None else item for item in self._line]
        self._rebuild(gone)
        cut = self._cut([], self._pop(0), refused)
        return replace(cut, waiting=merged(item.history for item in self._line))

    def _rebuild(self, line: list[Item]) -> None:
        """Put other items in the places of those in the line."""
        before, self._line, self._tensors, self._refused = self._line, deque(), 0, (0, 0)
        for old, new in zip(before, line, strict=True):
            self._hold(old, -1)
            self._hold(new, 1)
            if not (new.late and new.empty):
                self._join(new)

    def _cut(self, rows: list[Item], taken: list[Item], refused: list[Refusal]) -> Cut:
        reached: dict[int, int] = {}
        for partition, _, last in (run for item in taken if not item.late for run in _places(item)):
            reached[partition] = max(reached.get(partition, 0), last + 1)
        waiting = chain(self._line, *self._waiting.values())
        ahead = tuple(run for item in waiting if item.empty for run in _places(item))
        history = merged(item.history for item in taken)
        return Cut(tuple(rows), tuple(refused), reached, ahead, self._next_turn(), history)

    def _next_turn(self) -> int:
        """The partition whose record comes next: where a Batcher that continues from here begins."""
        first = next((item for item in self._line if not item.late), None)
        return self._partitions[self._turn] if first is None else _places(first)[0][0]


def _places(item: Item) -> tuple[Run, ...]:
    partition, offset = item.position
    return item.places or ((partition, offset, offset),)


def _joined(first: Item, second: Item) -> Item:
    """The places of two neighbours in the line as one item; its position is that of the last, its turn the first's."""
    runs = {partition: (low, high) for partition, low, high in _places(first)}
    for partition, low, high in _places(second):  # nothing that was delivered lies between the two
        runs[partition] = (runs.get(partition, (low, high))[0], high)
    places = tuple((partition, low, high) for partition, (low, high) in runs.items())
    return replace(second, places=places, done=merged((first.done, second.done)))


def _refuse(item: Item, error: Exception) -> Item:
    """An item without its tensor."""
    refused = (*item.refused, *(Refusal.of(record, error) for record in item.parts))
    return replace(item, tensor=None, parts=(), refused=refused)


def _bytes(item: Item) -> int:
    """About the memory that an item holds; a tensor in pieces is there twice."""
    tensor = sum(map(_record_bytes, item.parts))
    return tensor * (2 if len(item.parts) > 1 else 1) + _refused_bytes(item)


def _refused_bytes(item: Item) -> int:
    return sum(_record_bytes(refusal.record) for refusal in item.refused)


def _record_bytes(record: Record) -> int:
    return OVERHEAD + len(record.value or b"") + weight(record)
