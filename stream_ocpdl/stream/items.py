"""What waits for its minibatch: items, each of one record, in a line; and what leaves together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stream_ocpdl.stream.assembly import OVERHEAD, Refusal, weight
from stream_ocpdl.stream.messages import Mould, Origin, Partial, Position, Record, Run, Tensor
from stream_ocpdl.stream.refusals import History, merged


class Item(NamedTuple):
    """What one record brought about: a tensor, refusals, or neither. Whatever it is, it has a place in the line."""

    position: Position
    arrived: float
    tensor: Tensor | Partial | None = None
    """Or the sums over several."""
    parts: tuple[Record, ...] = ()
    """The records that the tensor came in."""
    refused: tuple[Refusal, ...] = ()
    places: tuple[Run, ...] = ()
    """Of an item that stands for several which had nothing: where they were."""
    late: bool = False
    """Whether its turn was in an earlier life."""
    done: History = ()
    """What became of messages that were done with ahead of their turn here."""
    learned: tuple[Run, ...] = ()
    """Where in its places were those that were learned."""

    @property
    def empty(self) -> bool:
        """Whether it only keeps its place."""
        return self.tensor is None and not self.refused

    @property
    def history(self) -> History:
        """What becomes of the messages that it brought, if its tensor is learned."""
        learned = (1,) if self.tensor is not None else ()
        return (*self.done, -1, *learned) if self.refused else self.done + learned


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """Rows of a minibatch that all are plain tensors, nothing of which but their records has been looked at."""

    records: list[Record]
    mould: Mould


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of a minibatch by what was read for them."""

    records: Sequence[Record]
    """Of each row its record, or the one of its last piece."""
    used: Sequence[Record]
    """All records."""
    origins: Sequence[Origin | None] = ()
    """Of which chains the rows are draws; nothing where none can be."""
    partials: tuple[Partial, ...] = ()

    @classmethod
    def of(cls, items: Sequence[Item] | Sheet) -> "Rows":
        """The rows that items are."""
        if isinstance(items, Sheet):
            return cls(items.records, items.records)
        records, used = [item.parts[-1] for item in items], [record for item in items for record in item.parts]
        partials = tuple(item.tensor for item in items if isinstance(item.tensor, Partial))
        return cls(records, used, origins_of(items), partials)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A closed minibatch."""

    rows: Rows
    """Its tensors in their order; none if it only lets refused records go."""
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
    learned: tuple[Run, ...] = ()
    """What of `ahead` was learned."""


def places_of(item: Item) -> tuple[Run, ...]:
    """Where the records of an item were."""
    partition, offset = item.position
    return item.places or ((partition, offset, offset),)


def joined(first: Item, second: Item) -> Item:
    """The places of two neighbours in the line as one item; its position is that of the last, its turn the first's."""
    runs = {partition: (low, high) for partition, low, high in places_of(first)}
    for partition, low, high in places_of(second):  # nothing that was delivered lies between the two
        runs[partition] = (runs.get(partition, (low, high))[0], high)
    places = tuple((partition, low, high) for partition, (low, high) in runs.items())
    done, learned = merged((first.done, second.done)), (*first.learned, *second.learned)
    return second._replace(places=places, done=done, learned=learned)


def done_with(item: Item) -> Item:
    """An item whose tensor was learned or whose refusals are gone, and which keeps its place."""
    learned = (*item.learned, *([] if item.tensor is None else places_of(item)))
    return item._replace(tensor=None, parts=(), refused=(), done=item.history, learned=learned)


def place_of(rows: Sequence[Item] | Sheet, j: int) -> Position:
    """Where a row is."""
    return rows.records[j].position if isinstance(rows, Sheet) else rows[j].position


def origins_of(items: Sequence[Item]) -> list[Origin | None]:
    """Of which chains these are draws."""
    return [item.tensor.origin if item.tensor is not None else None for item in items]


def chain_of(item: Item) -> tuple[str, int] | None:
    """The chain that a draw is of."""
    origin = item.tensor.origin if item.tensor is not None else None
    return (origin.run, origin.chain) if origin is not None else None


def refuse(item: Item, error: Exception) -> Item:
    """An item without its tensor."""
    refused = (*item.refused, *(Refusal.of(record, error) for record in item.parts))
    return item._replace(tensor=None, parts=(), refused=refused)


def held_by(item: Item) -> int:
    """About the memory that an item holds; a tensor in pieces is there twice."""
    if len(item.parts) == 1 and not item.refused:  # nearly always, and asked twice of every item
        return record_bytes(item.parts[0])
    tensor = sum(map(record_bytes, item.parts))
    return tensor * (2 if len(item.parts) > 1 else 1) + refused_bytes(item)


def refused_bytes(item: Item) -> int:
    """About the memory of the records that it refuses."""
    return sum(record_bytes(refusal.record) for refusal in item.refused)


def record_bytes(record: Record) -> int:
    """About the memory of a record."""
    _, key, value, headers, _, _ = record
    size = OVERHEAD if value is None else OVERHEAD + len(value)
    return size + weight(record) if key or headers else size
