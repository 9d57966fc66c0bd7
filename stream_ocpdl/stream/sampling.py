"""A look at a topic: its first messages, its newest, or those that come. Pieces are put together, strays are shown."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.stream.assembly import LARGEST, Assembler, piece_of
from stream_ocpdl.stream.describing import Fields, described
from stream_ocpdl.stream.formats import Format
from stream_ocpdl.stream.kafka import Connection, follow, partitions_of_topic, read_committed, watermarks
from stream_ocpdl.stream.messages import Chunk, Position, Record, brief


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic to be looked at, and how its values are read."""

    connection: Connection
    name: str
    form: Format | None = None
    """Of an input that is not in our format."""
    shape: tuple[int, ...] = ()
    whole: bool = True
    """Whether pieces are put together; those of a checkpoint are no message when they are."""

    def ends(self) -> dict[int, tuple[int, int]]:
        """The lowest offset and the end of each partition."""
        return watermarks(self.connection, self.name, partitions_of_topic(self.connection, self.name))

    def first(self, starts: Mapping[int, int], limit: int) -> list[Fields]:
        """The oldest messages from these offsets on."""
        found: list[Fields] = []
        for partition, start in starts.items():
            records = read_committed(self.connection, self.name, partition, start)
            found += islice(self.read(records), limit)
        return sorted(found, key=_order)[:limit]

    def newest(self, limit: int) -> list[Fields]:
        """The newest messages. One in many pieces begins far back, and is looked for from further and further back."""
        found: list[Fields] = []
        for partition, (low, high) in self.ends().items():
            back = 4 * limit
            while True:
                start = max(low, high - back)
                records = read_committed(self.connection, self.name, partition, start)
                kept = deque((one for one in self.read(records) if start == low or not _stray(one)), limit)
                if len(kept) == limit or start == low:
                    break
                back *= 8
            found += kept
        return sorted(found, key=_order)[-limit:]

    def follow(self, starts: Mapping[int, int], ended: Callable[[], bool]) -> Iterator[Fields]:
        """Messages from these offsets on, also those that are still to come, until told to end."""
        return self.read(follow(self.connection, self.name, starts, ended))

    def read(self, records: Iterable[Record]) -> Iterator[Fields]:
        """Records as messages."""
        ours, pieces = self.form is None or self.form.name == "native", _Pieces()
        for record in records:
            chunk = piece_of(record.value) if ours and self.whole else None
            for found, more in [(record, {})] if chunk is None else pieces.take(record, chunk):
                yield described(found, self.form, self.shape) | more


@dataclass(slots=True)
class _Pieces:
    """Messages in pieces, of all partitions."""

    assemblers: dict[int, Assembler] = field(default_factory=dict)

    def take(self, record: Record, chunk: Chunk) -> Iterator[tuple[Record, Fields]]:
        """What a piece brings about: the whole message, or pieces that will never be one."""
        assembler = self.assemblers.setdefault(record.position.partition, Assembler(LARGEST))
        stale, put = assembler.pass_by(record.position.offset), assembler.put(record, chunk)
        assembler.waiting(record.position.offset + 1)
        for refusal in (*stale, *put.refused):
            yield refusal.record, {"reason": refusal.reason}
        if put.whole is not None:
            yield record._replace(value=put.whole, hash=-1), {"pieces": len(put.parts)}


def _stray(found: Fields) -> bool:
    """Whether it is a piece without its message."""
    return bool(found["kind"] == "chunk")


def _order(found: Fields) -> tuple[str, int, int]:
    return found["time"] or "", found["partition"], found["offset"]


def place(said: str) -> Position:
    """PARTITION:OFFSET.

    >>> place("3:41")
    Position(partition=3, offset=41)
    """
    found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,18})", said)
    if not found:
        raise ConfigError(f"{brief(said)} must be PARTITION:OFFSET, such as 0:41")
    return Position(int(found[1]), int(found[2]))
