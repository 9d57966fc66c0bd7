"""Messages that came in pieces, put together again; one Assembler a partition.

A set opens with its first piece and must get the others in order. Records of others may come between them, also pieces
of other sets. A piece that does not continue an open set is refused, and a set that lost a piece with all it has.

Sets that stay open must not fill the memory or hold back the stream: one is given up when too many younger ones are
open, when it and they have too many bytes, or when no piece of it came for very many offsets. All of this depends on
the partition's records alone, and for each set only on those since its first piece, never on a clock: whoever reads
again from the first piece of the oldest set that is still open finds everything as it was.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
    first: int
    """The offset of the first piece."""
    head: Chunk
    records: list[Record] = field(default_factory=list)
    pieces: list[Payload] = field(default_factory=list)
    bytes: int = 0
    closed: int | None = None
    """The offset of the record that completed it, or for which it was given up."""

    @property
    def last(self) -> int:
        return self.records[-1].position.offset

    def take(self, record: Record, chunk: Chunk) -> str | None:
        """Add the next piece; or say what is wrong with it."""
        expected = len(self.records)
        self.records.append(record)
        self.pieces.append(chunk.piece)
        self.bytes += len(chunk.piece)
        if chunk.index > expected:
            return f"chunk {expected} of {chunk.id!r} is missing"
        if self.bytes > chunk.size or (chunk.index + 1 == chunk.count and self.bytes < chunk.size):
            return f"size is {chunk.size} bytes, but the chunks of {chunk.id!r} up to {chunk.index} have {self.bytes}"
        return None


class Assembler:
    """The open sets of one partition. `limit` is the most bytes that a message may have."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sets: list[_Set] = []
        """In the order of their first pieces; closed ones stay until all before them is done."""

    def put(self, record: Record, chunk: Chunk) -> Put:
        """Take a piece."""
        mine = next((s for s in self._sets if s.closed is None and s.head.id == chunk.id), None)
        put = self._open(record, chunk, mine) if chunk.index == 0 else self._continue(record, chunk, mine)
        return Put(put.whole, put.parts, (*put.refused, *self._make_room(record.position.offset)))

    def pass_by(self, offset: int) -> tuple[Refusal, ...]:
        """To be called for every record, piece or not: sets that waited too long for their next piece are given up."""
        refused: tuple[Refusal, ...] = ()
        for s in [s for s in self._sets if s.closed is None and offset - s.last > DISTANCE]:
            refused += self._close(s, offset, f"chunk {len(s.records)} of {s.head.id!r} did not come in time")
        return refused

    def resume(self, reached: int) -> int:
        """Where to read again if all below `reached` is done but open sets; what lies behind is forgotten."""
        self._sets = [s for s in self._sets if s.closed is None or s.closed >= reached]
        return min([reached, *(s.first for s in self._sets)])

    def _open(self, record: Record, chunk: Chunk, before: _Set | None) -> Put:
        offset, refused = record.position.offset, tuple[Refusal, ...]()
        if before is not None:
            missing = f"chunk {len(before.records)} of {chunk.id!r} is missing: the message begins again"
            refused = self._close(before, offset, missing)
        if chunk.size > self._limit:
            large = f"size is {chunk.size} bytes; a message of this model has at most {self._limit}"
            return Put(refused=(*refused, _refuse(record, large)))
        self._sets.append(_Set(offset, chunk))
        put = self._continue(record, chunk, self._sets[-1])
        return Put(put.whole, put.parts, (*refused, *put.refused))

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
            return Put(refused=self._close(mine, offset, wrong))
        if chunk.index + 1 < chunk.count:
            return Put()
        whole, parts = b"".join(mine.pieces), tuple(mine.records)
        self._close(mine, offset, "")
        return Put(whole, parts)

    def _make_room(self, offset: int) -> tuple[Refusal, ...]:
        """Give up every set that is too much together with the younger ones."""
        refused: tuple[Refusal, ...] = ()
        count, size = 0, 0
        for s in reversed([s for s in self._sets if s.closed is None]):
            count, size = count + 1, size + s.bytes
            if count > MOST_OPEN or size > 2 * self._limit:
                refused += self._close(s, offset, f"chunk {len(s.records)} of {s.head.id!r} did not come in time")
        return refused

    def _close(self, given_up: _Set, offset: int, reason: str) -> tuple[Refusal, ...]:
        given_up.closed = offset
        refused = tuple(_refuse(record, reason) for record in given_up.records)
        given_up.pieces.clear()
        given_up.records.clear()
        return refused


def _refuse(record: Record, reason: str) -> Refusal:
    return Refusal.of(record, DecodeError(reason))


def _name(chunk: Chunk) -> str:
    return f"{chunk.index} of {chunk.id!r}"


def whole(records: Iterable[Record]) -> Iterator[bytes | None]:
    """The values of records, those in pieces put together; pieces that do not make a whole are passed over."""
    assemblers: dict[int, Assembler] = {}
    for record in records:
        chunk = _chunk(record.value)
        if chunk is None:
            yield record.value
            continue
        assembler = assemblers.setdefault(record.position.partition, Assembler(LARGEST))
        stale, put = assembler.pass_by(record.position.offset), assembler.put(record, chunk)
        for refusal in (*stale, *put.refused):
            log.warning("%s at %s", refusal.reason, refusal.record.position)
        assembler.resume(record.position.offset + 1)
        if put.whole is not None:
            yield put.whole


def _chunk(value: bytes | None) -> Chunk | None:
    """The piece that a record is, if it is one."""
    if value is None or not value.startswith(MAGIC) or b"chunk" not in value[:64]:
        return None
    try:
        header, payload = unframe(value)
        return Chunk.read(header, payload) if header.get("kind") == "chunk" else None
    except DecodeError:
        return None
