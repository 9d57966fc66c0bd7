"""The topics of a model: its journal, its way out, its checkpoints. What a broker is, `kafka` knows."""

import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stream_ocpdl.errors import LineageError, OcpdlError, StateError
from stream_ocpdl.stream.checkpoint import KEPT, Candidate
from stream_ocpdl.stream.kafka import (
    LARGEST,
    MAKE_AGAIN,
    Connection,
    KafkaSource,
    Row,
    Transactions,
    Written,
    consumed_to,
    follow,
    read_committed,
    watermarks,
)
from stream_ocpdl.stream.messages import CHUNK, Chunk, Manifest, Output, Payload, Place, split
from stream_ocpdl.stream.permissions import own_ids
from stream_ocpdl.stream.ports import CrashPoint, Stand, no_crash
from stream_ocpdl.stream.tenure import Ours, Term

log = logging.getLogger("stream_ocpdl.topics")

HISTORY = 7 * 24 * 3600 * 1000
"""Milliseconds for which every snapshot is kept; after that the newest is."""

CHECKPOINT_MS = 600_000
"""How long a checkpoint may take."""

MANIFESTS, CHUNKS = 0, 1
"""The partitions of the state topic, for shard 0; each further shard has the next two."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Where a model reads and writes."""

    input: str
    codes: str
    journal: str
    state: str
    snapshots: str
    dead_letters: str
    control: str
    shards: int = 1
    part: frozenset[str] | None = None
    """Those that are used, and made if they are missing, by somebody who has no use for all."""
    partials: str | None = None
    """Where encoders write sums, and the learner reads them, if they do."""

    @classmethod
    def of(cls, model: str, topic: str, shards: int = 1) -> "Topics":
        """The topics of a model that reads `topic`."""
        names = ("codes", "journal", "state", "snapshots", "dead-letters", "control")
        codes, journal, state, snapshots, letters, control = (f"{model}.{name}" for name in names)
        return cls(topic, codes, journal, state, snapshots, letters, control, shards)

    def named(self, stream: str) -> str:
        """The topic of a stream."""
        return str(getattr(self, stream.replace("-", "_")))

    def uses(self, name: str) -> bool:
        """Whether it is one of those that are used."""
        return self.part is None or name in self.part

    def outputs(self, partitions: int) -> dict[str, tuple[int, dict[str, str]]]:
        """Partitions and settings of the topics that the model writes, for an input of so many partitions."""
        forever = {"cleanup.policy": "delete", "retention.ms": "-1"}
        own = self.partials if self.partials != self.input else None
        partials: dict[str, tuple[int, dict[str, str]]] = {} if own is None else {own: (partitions, {})}
        every: dict[str, tuple[int, dict[str, str]]] = partials | {
            self.codes: (partitions, {}),
            self.journal: (self.shards, forever | {"max.message.bytes": f"{LARGEST}"}),
            self.state: (2 * self.shards, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}),
            self.snapshots: (1, {"cleanup.policy": "compact", "min.compaction.lag.ms": f"{HISTORY}"}),
            self.dead_letters: (1, forever),
            self.control: (self.shards, forever),
        }
        return {name: layout for name, layout in every.items() if self.uses(name)}


class TopicJournal:
    """The journal of a shard: its partition of the topic."""

    def __init__(self, connection: Connection, topic: str, shard: int = 0) -> None:
        self._connection, self._topic, self._shard = connection, topic, shard

    def read(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Offset and value of every committed record."""
        low, high = watermarks(self._connection, self._topic, [self._shard])[self._shard]
        if low > start and high > 0:
            raise LineageError(
                f"the journal {self._topic} begins at offset {low}, and {start} is needed: it was trimmed."
                " Its retention must be unlimited, or longer than the age of the oldest checkpoint"
            )
        for found in read_committed(self._connection, self._topic, self._shard, start):
            yield found.position.offset, found.value or b""

    def end(self) -> int:
        """The offset after its last record."""
        return watermarks(self._connection, self._topic, [self._shard])[self._shard][1]

    def follow(self, start: int, ended: Callable[[], bool]) -> Iterator[tuple[int, bytes]]:
        """The same, and then those that are still to come, until told to end."""
        for found in follow(self._connection, self._topic, {self._shard: start}, ended):
            yield found.position.offset, found.value or b""


class TopicOutbox:
    """Codes, dead letters, snapshots, journal and consumed offsets, in one transaction."""

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        model: str,
        source: KafkaSource,
        at: CrashPoint = no_crash,
        term: Term | None = None,
        shard: int = 0,
    ) -> None:
        """In a term every transaction shows its token; without one the transactional id is the only fence."""
        self._topics, self._source, self._at, self._term, self._shard = topics, source, at, term, shard
        check = term.check if term else nothing
        self._transactions = Transactions(
            connection, f"{model}.steps.{shard}", check=check, remedy=partial(_remedy, topics)
        )

    def open(self) -> None:
        """Fence every predecessor."""
        self._transactions.open()

    def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> int:
        """Write everything or nothing; the offset of the last record of the journal, which comes last."""

        def records() -> Iterator[Written]:
            return rows_of(self._topics, outputs, self._shard)

        def consumed(refused: bool) -> tuple[list[Any], Any]:
            return self._source.positions(positions, self._term.show(refused) if self._term else None)

        return self._transactions.write(records, consumed, self._at)


def _remedy(topics: Topics, topic: str) -> str:
    """What to do about a topic that is gone. No method: an outbox that its client knows would be kept, and the client
    with its threads, until garbage is collected.
    """
    if topic == topics.journal:
        return "the past of the model went with it. Give the model another name, with warm_start its dictionary"
    if topic == topics.input:
        return "what was not learned of it is gone. Once it is made anew, on_lost_input says whether to go on"
    return MAKE_AGAIN


class TopicCodebox:
    """Codes, dead letters and stands of an encoder, in one transaction.

    No two have the same id: who writes is told by the group, in whose name the stands are. One that the group
    has given up is refused; and while one has stands in an open transaction, nobody else learns where the group stands.
    """

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        group: str,
        ours: Ours,
        timeout_s: float = 10.0,
        at: CrashPoint = no_crash,
    ) -> None:
        self._topics, self._ours, self._at = topics, ours, at
        ids = own_ids(group)
        name = f"{ids.name}{uuid.uuid4().hex}"
        self._transactions = Transactions(connection, name, int(1000 * timeout_s), ours.check, ids)

    def open(self) -> None:
        """Make ready."""
        self._transactions.open()

    def commit(self, outputs: Sequence[Output], stands: Mapping[int, Stand]) -> int:
        """Write everything or nothing."""

        def records() -> Iterator[Written]:
            return rows_of(self._topics, outputs)

        def consumed(refused: bool) -> tuple[list[Any], Any]:
            return consumed_to(self._topics.input, stands), self._ours.show(refused)

        return self._transactions.write(records, consumed, self._at)


def rows_of(topics: Topics, outputs: Iterable[Output], shard: int = 0) -> Iterator[Written]:
    """Outputs as records: several where one is too large. The journal is a chain, and stays whole.

    A code has the time of its tensor, yet none that is to come: no broker takes that.
    """
    now, names = int(time.time() * 1000), dict[str, str]()
    for output in outputs:
        stream, key, value, headers, timestamp, partition = output
        topic = names.get(stream) or names.setdefault(stream, topics.named(stream))
        when = timestamp if timestamp < now else now
        if stream == "journal":
            yield topic, shard, key, value, headers, 0
        elif len(value) <= CHUNK:
            yield topic, partition, key, value, headers, when
        else:
            yield from _chunks(topic, output, when)


def _chunks(topic: str, output: Output, when: int) -> Iterator[Written]:
    """The pieces of an output, all in one partition."""
    key, compacted = output.key, output.stream == "snapshots"
    anywhere = -1 if key and not compacted else 0
    partition = anywhere if output.partition < 0 else output.partition
    for chunk in split(output.value, hashlib.sha256(output.value).hexdigest()):
        piece = b"%b:%d" % (key or b"", chunk.index) if compacted else key
        yield topic, partition, piece, chunk.to_bytes(), output.headers, when


def nothing() -> None:
    """Go on."""


class TopicStore:
    """Checkpoints in a compacted topic: pieces in one partition, manifests in the other, each checkpoint a transaction.

    Slots rotate, so that compaction keeps the newest few checkpoints whole. Being one transaction, a checkpoint is
    there whole or not at all, and a fenced predecessor can no longer overwrite a slot.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        model: str,
        at: CrashPoint = no_crash,
        check: Callable[[], None] = nothing,
        shard: int = 0,
    ) -> None:
        self._connection, self._topic, self._at = connection, topic, at
        self._manifests, self._chunks = 2 * shard + MANIFESTS, 2 * shard + CHUNKS
        self._transactions = Transactions(connection, f"{model}.checkpoints.{shard}", CHECKPOINT_MS, check)
        self._used: dict[int, tuple[int, int]] | None = None
        """For each slot when it was written (the offset of its manifest), and its number of pieces; none if unknown."""

    def open(self) -> None:
        """Fence every predecessor; what it wrote is not known yet."""
        self._transactions.open()
        self._used = None

    def save(self, manifest: Manifest, parts: Callable[[], Iterable[bytes | memoryview]]) -> None:
        """Overwrite the oldest slot."""
        if self._used is None:
            self._found()
        used = self._used or {}
        slot = min(range(KEPT), key=lambda s: used.get(s, (-1, 0))[0])
        count = _pieces(manifest)
        begin = watermarks(self._connection, self._topic, [self._chunks])[self._chunks][1]
        surplus = range(count, used.get(slot, (0, 0))[1])
        placed = replace(manifest, place=Place(slot, begin))

        def records() -> Iterator[Row]:
            for i, piece in enumerate(pieces(parts())):
                chunk = Chunk(manifest.sha256, i, count, manifest.size, piece)
                yield Row(self._topic, self._chunks, b"%d:%d" % (slot, i), chunk.to_bytes())
                if i == count // 2:
                    self._at("in-checkpoint")
            for i in surplus:
                yield Row(self._topic, self._chunks, b"%d:%d" % (slot, i), None)
            yield Row(self._topic, self._manifests, b"%d" % slot, placed.to_bytes())

        self._used = used | {slot: (self._transactions.write(records), count)}

    def candidates(self) -> Iterator[Candidate]:
        """What the slots hold, newest first."""
        found = self._found()
        for manifest, _ in sorted(found.values(), key=lambda entry: entry[1], reverse=True):
            yield Candidate(manifest, partial(self._load, manifest))

    def discard(self, manifest: Manifest) -> None:
        """Its slot is the next to be overwritten."""
        if manifest.place is not None and self._used is not None:
            slot = manifest.place.slot
            self._used[slot] = (-1, self._used[slot][1])

    def _found(self) -> dict[int, tuple[Manifest, int]]:
        """For each slot its manifest, and the offset of that."""
        found: dict[int, tuple[Manifest, int]] = {}
        for record in read_committed(self._connection, self._topic, self._manifests):
            try:
                manifest = Manifest.from_bytes(record.value)
            except OcpdlError as error:
                place = {"topic": self._topic, "partition": self._manifests, "offset": record.position.offset}
                log.warning("a manifest is not usable: %s", error, extra=place)
            else:
                if manifest.place is not None:
                    found[manifest.place.slot] = (manifest, record.position.offset)
        self._used = {slot: (written, _pieces(manifest)) for slot, (manifest, written) in found.items()}
        return found

    def _load(self, manifest: Manifest) -> bytes:
        """The pieces of a checkpoint, put together; they lie behind an offset noted before they were written."""
        slot, begin = manifest.place or (0, 0)
        newest = {
            record.key: record.value for record in read_committed(self._connection, self._topic, self._chunks, begin)
        }
        count = _pieces(manifest)
        whole = [piece for i in range(count) if (piece := _piece(newest.get(b"%d:%d" % (slot, i)), manifest.sha256))]
        if len(whole) < count:
            raise StateError(f"the checkpoint of step {manifest.t} lacks {count - len(whole)} of its {count} pieces")
        return b"".join(whole)


def _piece(value: bytes | None, name: str) -> Payload | None:
    """The piece in a record, if it is one of this name."""
    with suppress(OcpdlError):
        chunk = Chunk.from_bytes(value)
        return chunk.piece if chunk.id == name else None
    return None


def _pieces(manifest: Manifest) -> int:
    return -(-manifest.size // CHUNK)


def pieces(parts: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The same bytes in pieces of one size.

    >>> [len(piece) for piece in pieces([bytes(1_000_000), bytes(900_000), b"x"])]
    [900000, 900000, 100001]
    """
    buffer = bytearray()
    for part in parts:
        for start in range(0, len(part), CHUNK):
            buffer += part[start : start + CHUNK]
            if len(buffer) >= CHUNK:
                yield bytes(buffer[:CHUNK])
                del buffer[:CHUNK]
    if buffer:
        yield bytes(buffer)
