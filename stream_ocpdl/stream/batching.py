"""When a minibatch is complete, and in which order its rows come.

- `close: full` waits for `size` tensors; `close: linger` takes what there is once the oldest has waited long enough.
- `order: arrival` keeps the order of delivery. `order: canonical` sorts rows by partition and offset.

With `full` and `canonical` a minibatch is a pure function of what the partitions contain: records are taken from the
partitions in turn, one from each, so no accident of delivery can enter. The price: a partition that falls silent
holds up the others.

With `rows: one-per-chain` a minibatch has at most one draw of each chain, so that its rows are less alike; the others
stay in the line. It is full with `size` rows, or when draws for eight minibatches, or of eight megabytes, wait behind
for chains that lag: then it has fewer rows, and it is a draw of another product of chains (`product`). A tensor that is
no draw is a chain of its own.

Where partitions take turns, records wait in their lanes (`lanes`) until the line is too short for a minibatch. If only
plain tensors wait, a minibatch is taken from the lanes as it is (`Sheet`), and there is no line.

Refused records wait in line with the tensors and leave with the next minibatch. If many wait, or one for long, while no
minibatch can be closed, they are let go ahead of it: their places in the line are kept, so that what follows stays the
same.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import Literal

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.stream.assembly import OVERHEAD, Refusal, weight
from stream_ocpdl.stream.items import (
    Cut,
    Item,
    Rows,
    Sheet,
    chain_of,
    done_with,
    held_by,
    joined,
    places_of,
    refuse,
    refused_bytes,
)
from stream_ocpdl.stream.lanes import Lanes
from stream_ocpdl.stream.messages import Mould, Position, Record, Run, Tensor
from stream_ocpdl.stream.refusals import merged

PLENTY = 8_000_000
"""Bytes of a partition that may wait for their minibatch before no more of it is read; or its share of two minibatches,
if that is more: a partition that is paused and resumed all the time is fetched again all the time."""

LAG = 8
"""So many minibatches' worth of draws wait for chains that lag, before one is closed without them."""

MOST_REFUSED = 100
"""So many refused records, or so many bytes of them, do not wait for a minibatch."""

REFUSED_WAIT = 1.0
"""Seconds after which they do not either: their dead letters say what is wrong, perhaps why no minibatch comes."""

MOST_PLACES = 1000
"""So many runs of places, at most: each record of the journal has them all. What would leave more waits its turn."""

LOOKED = 0.25
"""So many seconds a look counts at most where a partition is said to be silent: while nobody reads, none is."""


@dataclass(frozen=True, slots=True)
class Batching:
    """The choice."""

    size: int = 32
    close: Literal["full", "linger"] = "full"
    order: Literal["arrival", "canonical"] = "canonical"
    linger_ms: int = 100
    rows: Literal["any", "one-per-chain"] = "any"

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ConfigError(f"batching.size must be a whole number, at least 1, not {self.size!r}")
        if type(self.linger_ms) is not int or self.linger_ms < 0:
            raise ConfigError(f"batching.linger_ms must be a whole number, at least 0, not {self.linger_ms!r}")
        if self.close not in ("full", "linger"):
            raise ConfigError(f"batching.close must be 'full' or 'linger', not {self.close!r}")
        if self.order not in ("arrival", "canonical"):
            raise ConfigError(f"batching.order must be 'arrival' or 'canonical', not {self.order!r}")
        if self.rows not in ("any", "one-per-chain"):
            raise ConfigError(f"batching.rows must be 'any' or 'one-per-chain', not {self.rows!r}")

    def with_draws(self, chains: int) -> str:
        """What follows for (A1) where minibatches are made of draws, of so many chains until now."""
        if chains == 1:
            return "draws of one chain, learned in its order: (A1) is about that chain"
        if self.rows == "any":
            return (
                f"batching.rows: any, so draws of chains ({chains} until now) are mixed as they come, which is no"
                " Markov chain unless they take turns; one-per-chain makes a minibatch a draw of the product chain"
            )
        return (
            f"batching.rows: one-per-chain, so a minibatch is a draw of the product chain while the same chains"
            f" ({chains} until now) go on together, {self.size} at most, for more have no rows and make no product;"
            " when one ends, stalls or begins it is another product from there on, (A1) is about that one, and a new"
            " epoch marks where"
        )


class Batcher:
    """Items in, minibatches out.

    `complete` shows the rows of a minibatch, `refuse` takes some of them out again if they turn out to be no good, and
    `take` closes it.
    """

    def __init__(self, batching: Batching, partitions: Sequence[int], cursor: int = 0) -> None:
        self._batching = batching
        self._partitions = sorted(partitions)
        self._in_turn = batching.close == "full" and batching.order == "canonical"
        turn = self._partitions.index(cursor) if self._in_turn and cursor in self._partitions else 0
        self._lanes = Lanes(self._partitions, turn)
        self._mould: Mould | None = None
        """What all plain tensors have in common that wait."""
        self._usual = 0
        """About the memory of each, if it has neither key nor headers."""
        self._arrived = 0.0
        """When the last of them came; what is refused of them waits from then on."""
        self._line: deque[Item] = deque()
        self._places = False
        """Whether an item may wait that only keeps its place."""
        self._held = dict.fromkeys(self._partitions, 0)
        """Bytes of each partition that wait."""
        self._largest = 0
        """Bytes of the largest item so far."""
        self._tensors = 0
        self._refused_since = 0.0
        self._refused = (0, 0)
        """How many refused records wait in the line without a tensor to wait for, and their bytes."""
        self._behind = 0
        """How many such items wait in the lanes."""
        self._still, self._looked = 0.0, 0.0
        """Seconds for which lanes with such items have not moved, as far as somebody looked; and when that was last."""

    def add(self, item: Item) -> None:
        """Take an item; items of one partition come in the order of their offsets."""
        self._hold(item, 1)
        if item.late:
            self._line.appendleft(item)
            self._count(item, 1)
        elif self._in_turn:
            self._held[item.position.partition] += OVERHEAD if item.empty else 0
            self._lanes.put(item)
            self._count_behind(item, 1)
        else:
            self._join(item)

    def takes(self, mould: Mould | None) -> bool:
        """Whether tensors of a mould may be added as they came: partitions take turns, and none of another waits."""
        if mould is None or not self._in_turn or self._batching.rows != "any":
            return False
        if self._mould is None or (mould.head != self._mould.head and self._lanes.without_plain):
            self._mould, self._usual = mould, OVERHEAD + mould.size
        return mould.head == self._mould.head

    def add_plain(self, records: Sequence[Record], now: float) -> None:
        """The same for plain tensors of the mould that it takes."""
        self._arrived = now
        held, usual = self._held, self._usual
        self._lanes.extend(records)
        for record in records:
            held[record[0][0]] += usual
        self._largest = max(self._largest, usual)
        for partition, more in _weights(records):
            held[partition] += more
            self._largest = max(self._largest, usual + more)

    def complete(self, now: float) -> list[Item] | Sheet | None:
        """The rows of the minibatch that is complete at this time, in order; if none, refused records alone leave."""
        if self._full:
            return self._rows() if self._plain is None else Sheet(self._lanes.first(self._batching.size), self._plain)
        if self._batching.close == "linger":
            oldest = next((item.arrived for item in self._line if not item.empty), None)
            if oldest is not None and now - oldest >= self._batching.linger_ms / 1000:
                return self._rows()
        return [] if self._overdue(now) else None

    def _overdue(self, now: float) -> bool:
        """Whether refused records are too many to wait, or have waited for too long.

        Those in the lanes wait for their turn, however many they are; if it does not come, a partition is silent.
        """
        self._still += min(max(now - self._looked, 0.0), LOOKED)
        self._looked = now
        count, size = self._refused
        waited = count > 0 and now - self._refused_since >= REFUSED_WAIT
        return waited or count >= MOST_REFUSED or size >= PLENTY // 2 or self._silent

    @property
    def _silent(self) -> bool:
        """Whether lanes are still for so long that what is refused in them does not wait any more."""
        still = self._behind > 0 and self._still >= REFUSED_WAIT
        return still and len(self._lanes.places) < MOST_PLACES

    def refuse(self, wrong: Mapping[Position, Exception]) -> None:
        """Take tensors out of the line, each for an error; their places stay."""
        self._line_up()
        self._rebuild([refuse(item, wrong[item.position]) if item.position in wrong else item for item in self._line])

    def take(self, rows: list[Item] | Sheet) -> Cut:
        """Close the minibatch of these rows."""
        if isinstance(rows, Sheet):
            return self._take_plain(rows)
        if (not rows and (self._tensors or self._silent)) or self._batching.rows == "one-per-chain":
            return self._let_go(rows)
        taken = self._pop(len(rows))
        refused = [refusal for item in taken for refusal in item.refused]
        return self._cut(rows, taken, refused)

    @property
    def hungry(self) -> set[int]:
        """The partitions of which more is wanted: those with little waiting, and those a minibatch waits for.

        The limit is wide, because pausing a partition throws away what was fetched of it.
        """
        share = 2 * self._batching.size // len(self._partitions) + 1
        plenty = max(PLENTY, share * self._largest)
        wanted = {p for p, size in self._held.items() if size < plenty}
        if not self._full:
            wanted |= {self._lacking[0]} if self._in_turn else set(self._partitions)
        return wanted

    @property
    def awaited(self) -> set[int]:
        """The partition whose turn it is and that has nothing, while others have something that waits for it."""
        if not self._in_turn or self._full:
            return set()
        partition, waits = self._lacking
        return {partition} if waits else set()

    @property
    def _plain(self) -> Mould | None:
        """What all that waits has in common, if it is plain tensors, and all of them in the lanes."""
        return self._mould if not self._line and self._lanes.plain else None

    @property
    def _full(self) -> bool:
        """Whether the next minibatch waits for no more."""
        if self._plain is not None:
            return self._lanes.reach()[0] >= self._batching.size
        self._line_up()
        if self._batching.rows == "one-per-chain":
            return self._of_different_chains()[1]
        return self._tensors >= self._batching.size

    @property
    def _lacking(self) -> tuple[int, bool]:
        """Where partitions take turns and none is full: the one that lacks a record, and whether others wait for it."""
        if self._plain is not None:
            _, partition, waits = self._lanes.reach()
            return partition, waits
        return self._lanes.turn, bool(self._lanes)

    def _line_up(self) -> None:
        """Move what waits in the lanes into the line: enough for a minibatch, and what follows it and is no tensor."""
        lanes, bounded = self._lanes, self._batching.rows == "any"
        while (found := lanes.next) is not None:
            if bounded and self._tensors >= self._batching.size and not _lacks_tensor(found):
                return
            lanes.pop()
            self._still = 0.0
            if isinstance(found, Item):
                self._count_behind(found, -1)
                self._held[found.position.partition] -= OVERHEAD if found.empty else 0
                self._join(found)
            else:
                self._join(self._opened(found))

    def _opened(self, record: Record) -> Item:
        return Item(record.position, self._arrived, Tensor.plain(record.value), (record,))

    def _take_plain(self, sheet: Sheet) -> Cut:
        """Close a minibatch that is a piece of each lane."""
        held, reached, self._still = self._held, dict[int, int](), 0.0
        for partition, count, last in self._lanes.drop(len(sheet.records)):
            held[partition] -= count * self._usual
            reached[partition] = last + 1
        for partition, more in _weights(sheet.records):
            held[partition] -= more
        return Cut(Rows.of(sheet), (), reached, (), self._lanes.turn, (len(sheet.records),))

    def _rows(self) -> list[Item]:
        if self._batching.rows == "one-per-chain":
            rows, _ = self._of_different_chains()
        else:
            rows = list(islice((item for item in self._line if item.tensor is not None), self._batching.size))
        return sorted(rows, key=attrgetter("position")) if self._batching.order == "canonical" else rows

    def _of_different_chains(self) -> tuple[list[Item], bool]:
        """Rows of different chains in the order of the line, and whether there are enough.

        It depends on the line alone, up to where they are.
        """
        rows: list[Item] = []
        chains: set[tuple[str, int]] = set()
        count, held, size = 0, 0, self._batching.size
        for item in self._line:
            if item.tensor is None:
                continue
            chain = chain_of(item)
            if chain in chains:
                count, held = count + 1, held + held_by(item)
            else:
                rows.append(item)
                chains |= {chain} if chain is not None else set()
            if len(rows) == size or count >= LAG * size or held >= PLENTY:
                return rows, True
        return rows, False

    def _join(self, item: Item) -> None:
        if item.empty and self._line and self._line[-1].empty:
            self._line[-1] = joined(self._line[-1], item)
        else:
            self._line.append(item)
            self._count(item, 1)

    def _count(self, item: Item, sign: int) -> None:
        self._tensors += sign * (item.tensor is not None)
        if item.refused and item.tensor is None:
            count, size = self._refused
            if count == 0:
                self._refused_since = item.arrived
            self._refused = (count + sign * len(item.refused), size + sign * refused_bytes(item))

    def _count_behind(self, item: Item, sign: int) -> None:
        if item.refused and item.tensor is None:
            self._still = self._still if self._behind else 0.0
            self._behind += sign

    def _hold(self, item: Item, sign: int) -> None:
        """Count an item that waits, or no longer does; a place alone holds nothing."""
        if item.tensor is None and not item.refused:
            self._places = True
            return
        size = held_by(item)
        self._held[item.position.partition] += sign * size
        if size > self._largest:
            self._largest = size

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

    def _let_go(self, rows: list[Item]) -> Cut:
        """These rows and the refused records of the line, ahead of the tensors between them; their places are kept.

        If a partition is silent also those of the lanes: it may be so for ever.
        """
        taken = {item.position for item in rows}
        gone = [item.tensor is None or item.position in taken for item in self._line]
        refused = [refusal for item, goes in zip(self._line, gone, strict=True) if goes for refusal in item.refused]
        self._rebuild([done_with(item) if goes else item for item, goes in zip(self._line, gone, strict=True)])
        behind = self._let_go_behind() if self._silent and not rows else []
        cut = self._cut(rows, self._pop(0), [*refused, *behind])
        waiting = [item.history for item in self._line]
        if behind:
            waiting += [found.history if isinstance(found, Item) else (1,) for found in self._lanes.in_turn()]
        return replace(cut, waiting=merged(waiting))

    def _let_go_behind(self) -> list[Refusal]:
        refused: list[Refusal] = []
        room, last = MOST_PLACES - len(self._lanes.places), Position(-1, -1)

        def gone(item: Item) -> Item:
            nonlocal room, last
            partition, offset = item.position
            new = last != (partition, offset - 1)
            if item.tensor is not None or not item.refused or room < new:
                return item
            room, last = room - new, item.position
            refused.extend(item.refused)
            self._hold(item, -1)
            self._count_behind(item, -1)
            self._held[partition] += OVERHEAD
            left = done_with(item)
            self._hold(left, 1)
            return left

        self._lanes.exchange(gone)
        return refused

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
        for item in taken:
            for partition, _, last in places_of(item) if not item.late else ():
                if last >= reached.get(partition, 0):
                    reached[partition] = last + 1
        ahead: list[Run] = []
        learned: list[Run] = []
        if self._places:
            waiting = [item for item in self._line if item.empty]
            ahead = [*(run for item in waiting for run in places_of(item)), *self._lanes.places]
            learned = [*(run for item in waiting for run in item.learned), *self._lanes.learned]
            self._places = bool(ahead)
        history = merged(item.history for item in taken)
        cut = Cut(Rows.of(rows), tuple(refused), reached, tuple(ahead), self._next_turn(), history)
        return replace(cut, learned=tuple(learned)) if learned else cut

    def _next_turn(self) -> int:
        """The partition whose record comes next: where a Batcher that continues from here begins."""
        first = next((item for item in self._line if not item.late), None)
        return self._lanes.turn if first is None else places_of(first)[0][0]


def _weights(records: Sequence[Record]) -> list[tuple[int, int]]:
    """Partition and bytes beside the value of those records that have some."""
    return [(record.position.partition, weight(record)) for record in records if record[1] or record[3]]


def _lacks_tensor(waits: Item | Record) -> bool:
    """Whether something that waits is no tensor."""
    return isinstance(waits, Item) and waits.tensor is None
