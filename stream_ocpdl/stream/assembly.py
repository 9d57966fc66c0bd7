"""Messages that came in pieces, put together again; one Assembler a partition.

A set opens with its first piece and must get the others in order. Records of others may come between them, also pieces
of other sets. A piece that does not continue an open set is refused, and a set that lost a piece with all it has.

Sets that stay open must not fill the memory or hold back the stream: one is given up when too many younger ones are
open, when it and they have too many bytes, or when no piece of it came for very many offsets. All of this depends on
the partition's records alone, never on a clock. Which pieces wait for their message is known at every offset, and the
journal has it: whoever reads those again, and nothing else, finds the open sets as they were.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Self

from stream_ocpdl.errors import DecodeError
from stream_ocpdl.stream.messages import MAGIC, Chunk, Payload, Record, unframe

log = logging.getLogger("stream_ocpdl.assembly")

LARGEST = 1 << 31
"""Bytes of a message that a reader puts together who does not know how large they are."""

MOST_OPEN = 16
"""Sets of a partition that may be open."""

DISTANCE = 100_000
"""Offsets after which the next piece of a set is no longer waited for."""


OVERHEAD = 500
"""Bytes that a record takes beside its value, its key and its headers."""

REASON = 200
"""Characters of the reason for a refusal: it goes into the journal, whose records have to stay small."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A record that cannot be learned, the class of the error and the reason in one line."""

    record: Record
    error: str
    reason: str

    @classmethod
    def of(cls, record: Record, error: Exception) -> Self:
        """The refusal of a record for an error."""
        return cls(record, type(error).__name__, " ".join(str(error).split())[:REASON])


@dataclass(frozen=True, slots=True)
class Put:
    """What a piece brought about."""

    whole: bytes | None = None
    """The message, if this was its last piece."""
    parts: tuple[Record, ...] = ()
    """The records that it was made of."""
    refused: tuple[Refusal, ...] = ()


@dataclass(slots=True)
class _Set:
    head: Chunk
    offsets: list[int] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    pieces: list[Payload] = field(default_factory=list)
    size: int = 0
    """Bytes of the pieces."""
    bytes: int = 0
    """About the memory that it holds."""
    closed: int = -1
    """The offset of the record that completed it, or for which it was given up."""

    @property
    def last(self) -> int:
        return self.offsets[-1]

    def take(self, record: Record, chunk: Chunk) -> str | None:
        """Add the next piece; or say what is wrong with it."""
        expected = len(self.records)
        self.records.append(record)
        self.offsets.append(record.position.offset)
        self.pieces.append(chunk.piece)
        self.bytes += len(chunk.piece) + OVERHEAD + weight(record)
        self.size += len(chunk.piece)
        if chunk.index > expected:
            return f"chunk {expected} of {chunk.id!r} is missing"
        if self.size > chunk.size or (chunk.index + 1 == chunk.count and self.size < chunk.size):
            return f"size is {chunk.size} bytes, but the chunks of {chunk.id!r} up to {chunk.index} have {self.size}"
        return None


class Assembler:
    """The open sets of one partition. `limit` is the most bytes that a message may have."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[str, _Set] = {}
        """By their ids, in the order of their first pieces."""
        self._closed: list[_Set] = []
        """Those that may still matter to somebody who reads again."""

    @property
    def waits(self) -> bool:
        """Whether a set is open."""
        return bool(self._open)

    def put(self, record: Record, chunk: Chunk) -> Put:
        """Take a piece."""
        mine = self._open.get(chunk.id)
        if mine is None and chunk.index == 0 and chunk.size > self._limit:
            large = f"size is {chunk.size} bytes; a message of this model has at most {self._limit}"
            return Put(refused=(_refuse(record, large),))
        if mine is None and chunk.index == 0:
            mine = self._open[chunk.id] = _Set(replace(chunk, piece=b""))
        put = self._continue(record, chunk, mine)
        return Put(put.whole, put.parts, (*put.refused, *self._make_room(record.position.offset)))

    def pass_by(self, offset: int) -> tuple[Refusal, ...]:
        """To be called for every record, piece or not: sets that waited too long for their next piece are given up."""
        refused: tuple[Refusal, ...] = ()
        for s in list(self._open.values()) if self._open else ():
            if offset - s.last > DISTANCE or offset - s.offsets[0] > 10 * DISTANCE:
                refused += self._give_up(s, offset, f"no piece came for {offset - s.last} offsets")
        return refused

    def waiting(self, reached: int) -> list[int]:
        """The offsets of pieces below `reached` whose message was not whole there; what lies behind is forgotten."""
        self._closed = [s for s in self._closed if s.closed >= reached]
        return sorted(k for s in (*self._closed, *self._open.values()) for k in s.offsets if k < reached)

    def _continue(self, record: Record, chunk: Chunk, mine: _Set | None) -> Put:
        offset = record.position.offset
        if mine is None:
            return Put(refused=(_refuse(record, f"chunk {_name(chunk)} belongs to no open message"),))
        if (chunk.count, chunk.size) != (mine.head.count, mine.head.size):
            return Put(refused=(_refuse(record, f"chunk {_name(chunk)} is of another message than the first piece"),))
        if chunk.index < len(mine.records):
            return Put(refused=(_refuse(record, f"chunk {_name(chunk)} is repeated"),))
        wrong = mine.take(record, chunk)
        if wrong is not None:
            return Put(refused=self._refuse_all(mine, offset, wrong))
        if chunk.index + 1 < chunk.count:
            return Put()
        whole, parts = b"".join(mine.pieces), tuple(mine.records)
        self._close(mine, offset)
        return Put(whole, parts)

    def _make_room(self, offset: int) -> tuple[Refusal, ...]:
        """Give up every set that is too much together with the younger ones."""
        refused: tuple[Refusal, ...] = ()
        count, size = 0, 0
        for s in reversed(list(self._open.values())):
            count, size = count + 1, size + s.bytes
            if count > MOST_OPEN:
                refused += self._give_up(s, offset, f"more than {MOST_OPEN} messages are open")
            elif size > 4 * self._limit:
                refused += self._give_up(s, offset, f"open messages take more than {4 * self._limit} bytes")
        return refused

    def _give_up(self, unfinished: _Set, offset: int, why: str) -> tuple[Refusal, ...]:
        reason = f"chunk {len(unfinished.records)} of {unfinished.head.id!r} did not come in time: {why}"
        return self._refuse_all(unfinished, offset, reason)

    def _refuse_all(self, wrong: _Set, offset: int, reason: str) -> tuple[Refusal, ...]:
        refused = tuple(_refuse(record, reason) for record in wrong.records)
        self._close(wrong, offset)
        return refused

    def _close(self, done: _Set, offset: int) -> None:
        """It is whole, or given up."""
        del self._open[done.head.id]
        done.closed = offset
        done.records.clear()
        done.pieces.clear()
        if done.offsets[0] < offset:
            self._closed.append(done)


def weight(record: Record) -> int:
    """Bytes of a record beside its value."""
    return len(record.key or b"") + sum(len(name) + len(value or b"") for name, value in record.headers)


def _refuse(record: Record, reason: str) -> Refusal:
    return Refusal.of(record, DecodeError(reason))


def _name(chunk: Chunk) -> str:
    return f"{chunk.index} of {chunk.id!r}"


def whole(records: Iterable[Record]) -> Iterator[Record]:
    """Records, those in pieces put together as the last of them; pieces that do not make a whole are passed over."""
    assemblers: dict[int, Assembler] = {}
    for record in records:
        chunk = piece_of(record.value)
        if chunk is None:
            yield record
            continue
        assembler = assemblers.setdefault(record.position.partition, Assembler(LARGEST))
        stale, put = assembler.pass_by(record.position.offset), assembler.put(record, chunk)
        for refusal in (*stale, *put.refused):
            log.warning("%s at %s", refusal.reason, refusal.record.position)
        assembler.waiting(record.position.offset + 1)
        if put.whole is not None:
            yield record._replace(value=put.whole, hash=-1)


def piece_of(value: bytes | None) -> Chunk | None:
    """The piece that a record is, if it is one."""
    if value is None or not value.startswith(MAGIC):
        return None
    try:
        header, payload = unframe(value)
        return Chunk.read(header, payload) if header.get("kind") == "chunk" else None
    except DecodeError:
        return None
