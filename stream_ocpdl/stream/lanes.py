"""What waits for its turn: a lane for each partition, and one from each in turn.

Nearly all that comes are plain tensors, records of which all that matters is known by their first bytes. As long as
nothing else waits, a minibatch is a piece of every lane, and no record of it is looked at alone: `reach` says how many
follow each other, `first` shows them. Anything else waits as an `Item`, and then all is taken one by one.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any

from stream_ocpdl.stream.items import Item, places_of
from stream_ocpdl.stream.messages import Record, Run


class Lanes:
    """Records and items of partitions that take turns, beginning with the lane of this index."""

    def __init__(self, partitions: Sequence[int], turn: int = 0) -> None:
        self._partitions = partitions
        self._lanes: list[deque[Item | Record]] = [deque() for _ in partitions]
        self._by_partition = dict(zip(partitions, self._lanes, strict=True))
        self._turn = turn
        self._items = 0
        """How many that wait are no plain records."""
        self._kept: dict[int, deque[Run]] = {p: deque() for p in partitions}
        """For each partition the places in its lane; those of neighbours are one."""
        self._learned: dict[int, deque[Run]] = {p: deque() for p in partitions}
        """Which of them are of records that were learned."""

    def __bool__(self) -> bool:
        return any(self._lanes)

    @property
    def places(self) -> list[Run]:
        """Where items are that only keep their places; neighbours in a lane are one run."""
        return [run for runs in self._kept.values() for run in runs]

    @property
    def learned(self) -> list[Run]:
        """Which of them are of records that were learned."""
        return [run for runs in self._learned.values() for run in runs]

    def _keep(self, item: Item, joins: bool) -> None:
        """Note the place of an item; `joins` it the one before it."""
        partition = item.position.partition
        kept, ((_, low, high), *_) = self._kept[partition], places_of(item)
        kept.append((partition, kept.pop()[1] if joins else low, high))
        self._learned[partition].extend(item.learned)

    def _leave(self, item: Item) -> None:
        """Forget the place of an item, which is the first of its lane."""
        partition, last = item.position.partition, places_of(item)[-1][2]
        for runs in (self._kept[partition], self._learned[partition]):
            while runs and runs[0][1] <= last:
                _, _, high = runs.popleft()
                if high > last:
                    runs.appendleft((partition, last + 1, high))

    def in_turn(self) -> Iterator[Item | Record]:
        """What waits, one from each lane in turn; a lane that ends is passed over."""
        lanes = [*self._lanes[self._turn :], *self._lanes[: self._turn]]
        return (waits for row in zip_longest(*lanes) for waits in row if waits is not None)

    def exchange(self, change: Callable[[Item], Item]) -> None:
        """Put other items in the places of those that wait."""
        for partition, lane in self._by_partition.items():
            changed = [change(waits) if isinstance(waits, Item) else waits for waits in lane]
            lane.clear()
            self._kept[partition].clear()
            self._learned[partition].clear()
            for waits in changed:
                self._append(lane, waits)

    def put(self, item: Item) -> None:
        """Let an item wait."""
        self._items += 1
        self._append(self._by_partition[item.position.partition], item)

    def _append(self, lane: deque[Item | Record], waits: Item | Record) -> None:
        if isinstance(waits, Item) and waits.empty:
            self._keep(waits, joins=bool(lane) and isinstance(lane[-1], Item) and lane[-1].empty)
        lane.append(waits)

    def extend(self, records: Sequence[Record]) -> None:
        """Let plain tensors wait."""
        lanes = self._by_partition
        for record in records:
            lanes[record[0][0]].append(record)

    @property
    def plain(self) -> bool:
        """Whether only plain tensors wait."""
        return self._items == 0

    @property
    def without_plain(self) -> bool:
        """Whether no plain tensor waits."""
        return sum(map(len, self._lanes)) == self._items

    @property
    def turn(self) -> int:
        """The partition whose turn it is."""
        return self._partitions[self._turn]

    @property
    def next(self) -> Item | Record | None:
        """What comes next, if it is there."""
        lane = self._lanes[self._turn]
        return lane[0] if lane else None

    def pop(self) -> Item | Record:
        """What comes next, taken."""
        found = self._lanes[self._turn].popleft()
        if isinstance(found, Item):
            self._items -= 1
            if found.empty:
                self._leave(found)
        self._turn = (self._turn + 1) % len(self._lanes)
        return found

    def reach(self) -> tuple[int, int, bool]:
        """How many can be taken until a lane is empty; the partition of that one; whether others wait for it."""
        lanes, turn = self._lanes, self._turn
        count, last = min((len(lane) * len(lanes) + (k - turn) % len(lanes), k) for k, lane in enumerate(lanes))
        return count, self._partitions[last], sum(map(len, lanes)) > count

    def first(self, size: int) -> list[Record]:
        """The next so many plain tensors, by partition and offset."""
        found: list[Any] = []
        for lane, share in zip(self._lanes, self._shares(size), strict=True):
            found += islice(lane, share)
        return found

    def drop(self, size: int) -> list[tuple[int, int, int]]:
        """Let those go; for each partition of which there were some how many, and the offset of the last."""
        gone: list[tuple[int, int, int]] = []
        for lane, share in zip(self._lanes, self._shares(size), strict=True):
            if share > 0:
                partition, last = lane[share - 1].position
                gone.append((partition, share, last))
                for _ in range(share):
                    lane.popleft()
        self._turn = (self._turn + size) % len(self._lanes)
        return gone

    def _shares(self, size: int) -> list[int]:
        """How many of the next so many are of each lane."""
        many = len(self._lanes)
        return [-(-(size - (k - self._turn) % many) // many) for k in range(many)]
