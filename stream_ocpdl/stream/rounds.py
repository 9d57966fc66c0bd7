"""Rounds: how many workers learn one dictionary.

A **partial** has the sums over the next `size` tensors of one partition of the input. So which tensors are in the r-th
partial of a partition follows from what the partition contains, and whoever has the partition at the time makes it. A
**round** is one partial of each partition, the r-th of all; the learner's step r absorbs round r. Nobody has to know
who the workers are, or how many: Kafka shares out the partitions, and a step waits for partitions, not for workers.

**Which dictionary.** Partial r may be made with the dictionary after step r − 1, the newest there can be: the step is
that of Algorithm 2 then. With `staleness` τ it may be up to τ steps older, so that nobody waits for the slowest. The
first rounds are synchronous all the same: there a step is large. Whoever makes a partial holds to this, so none that is
too stale is ever sent, and no tensor is lost for it; one that comes nevertheless is a stranger's, and is refused.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stream_ocpdl.errors import ConfigError, DataError
from stream_ocpdl.stream.batching import MOST_REFUSED, PLENTY, REFUSED_WAIT
from stream_ocpdl.stream.items import Cut, Item, Rows, Sheet, held_by, places_of, refuse
from stream_ocpdl.stream.messages import Partial, Position
from stream_ocpdl.stream.refusals import merged


class StalePartial(DataError):
    """A partial that was made with a dictionary which is too old."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The choice."""

    size: int
    """Tensors of a partial."""
    partials: int
    """Of a round: partitions of the input."""
    staleness: int = 0
    """τ: steps by which the dictionary of a partial may be behind the newest there can be."""
    synchronous_first: int = 10
    """Rounds in which it may not."""

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("partials", 1), ("staleness", 0), ("synchronous_first", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"partials.{name} must be a whole number, at least {least}, not {value!r}")

    def bound(self, number: int) -> int:
        """By how many steps the dictionary of a round may be behind."""
        return 0 if number <= self.synchronous_first else self.staleness

    def wrong(self, partial: Partial, partition: int, t: int) -> DataError | None:
        """Why a partial is none of step t + 1, if it is not."""
        number, behind = partial.round, t - partial.dictionary.t
        if number is None or partial.covers is None:
            return DataError("it does not say of which round it is, or what it covers")
        if partial.covers[0] != partition:
            return DataError(f"it is of partition {partial.covers[0]} of the input, and came in partition {partition}")
        if number != t + 1:
            what = "was absorbed before" if number <= t else f"came, and {t + 1} is missing"
            return DataError(f"round {number} of partition {partition} {what}")
        if partial.count != self.size:
            return DataError(f"it is of {partial.count} tensors, and partials.size is {self.size}")
        if behind < 0:
            return DataError(f"it was made with the dictionary of step {partial.dictionary.t}, which is to come")
        if behind > self.bound(number):
            return StalePartial(f"its dictionary is {behind} steps old, and {self.bound(number)} are allowed")
        return None


class RoundBatcher:
    """A `Batcher` whose minibatches are rounds: of every partition the next partial, in the order of the partitions.

    What is refused has no part in a round, wherever it is, and leaves with the next one; or without, if it waits long
    and nothing is before it.
    """

    def __init__(self, partitions: Sequence[int]) -> None:
        self._lines: dict[int, deque[Item]] = {p: deque() for p in sorted(partitions)}

    def add(self, item: Item) -> None:
        """Take an item; items of one partition come in the order of their offsets."""
        line = self._lines[item.position.partition]
        if item.late:
            line.appendleft(item)
        else:
            line.append(item)

    def complete(self, now: float) -> list[Item] | None:
        """The partials of the round that is complete; none if refused records alone are to leave."""
        firsts = [next((item for item in line if item.tensor is not None), None) for line in self._lines.values()]
        rows = [item for item in firsts if item is not None]
        if len(rows) == len(self._lines):
            return rows
        waiting = [item for line in self._lines.values() for item in _before_the_first(line) if item.refused]
        waited = any(now - item.arrived >= REFUSED_WAIT for item in waiting)
        return [] if waited or sum(len(item.refused) for item in waiting) >= MOST_REFUSED else None

    def refuse(self, wrong: Mapping[Position, Exception]) -> None:
        """Take partials out, each for an error; their places stay."""
        for partition, line in self._lines.items():
            items = (refuse(item, wrong[item.position]) if item.position in wrong else item for item in line)
            self._lines[partition] = deque(items)

    def take(self, rows: Sequence[Item] | Sheet) -> Cut:
        """Close a round: what is up to its partials, and those right after them that are none."""
        taken = [item for line in self._lines.values() for item in _popped(line, 1 if rows else 0)]
        reached: dict[int, int] = {}
        for partition, _, last in (run for item in taken if not item.late for run in places_of(item)):
            reached[partition] = max(reached.get(partition, 0), last + 1)
        refused = tuple(refusal for item in taken for refusal in item.refused)
        history = merged(item.history for item in taken)
        return Cut(Rows.of(rows), refused, reached, (), min(self._lines), history)

    @property
    def hungry(self) -> set[int]:
        """The partitions of which more is wanted: those without a partial, and those with little waiting."""
        return {
            p
            for p, line in self._lines.items()
            if all(item.tensor is None for item in line) or sum(map(held_by, line)) < PLENTY
        }

    @property
    def awaited(self) -> set[int]:
        """The partitions without a partial, while others have one."""
        without = {p for p, line in self._lines.items() if all(item.tensor is None for item in line)}
        return without if len(without) < len(self._lines) else set()


def _before_the_first(line: deque[Item]) -> Iterator[Item]:
    """What waits before the first partial."""
    for item in line:
        if item.tensor is not None:
            return
        yield item


def _popped(line: deque[Item], partials: int) -> Iterator[Item]:
    """The items up to the last of so many partials, and those right after it that are none."""
    while line and (partials > 0 or line[0].tensor is None):
        item = line.popleft()
        partials -= item.tensor is not None
        yield item
