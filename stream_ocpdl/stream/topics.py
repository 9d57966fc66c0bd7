"""The topics of a model: its journal, its way out, its checkpoints. What a broker is, `kafka` knows."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from stream_ocpdl.errors import LineageError, OcpdlError, StateError
from stream_ocpdl.stream.checkpoint import KEPT, Candidate, Manifest
from stream_ocpdl.stream.kafka import Connection, KafkaSource, Row, Transactions, read_committed, watermarks
from stream_ocpdl.stream.messages import Output
from stream_ocpdl.stream.ports import CrashPoint, no_crash

log = logging.getLogger("stream_ocpdl.topics")

CHUNK = 900_000
"""Bytes of a piece of a checkpoint: below the broker's default limit of a message, with room for key and headers."""

MANIFESTS, CHUNKS = 0, 1
"""The partitions of the state topic."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Where a model reads and writes."""

    input: str
    codes: str
    journal: str
    state: str
    snapshots: str
    dead_letters: str

    @classmethod
    def of(cls, model: str, topic: str) -> "Topics":
        """The topics of a model that reads `topic`."""
        return cls(topic, *(f"{model}.{name}" for name in ("codes", "journal", "state", "snapshots", "dead-letters")))

    def named(self, stream: str) -> str:
        """The topic of a stream."""
        return str(getattr(self, stream.replace("-", "_")))

    def outputs(self, partitions: int) -> dict[str, tuple[int, dict[str, str]]]:
        """Partitions and settings of the topics that the model writes, for an input of so many partitions."""
        forever = {"cleanup.policy": "delete", "retention.ms": "-1"}
        roomy = {"max.message.bytes": "64000000"}
        return {
            self.codes: (partitions, {}),
            self.journal: (1, forever | roomy),
            self.state: (2, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}),
            self.snapshots: (1, forever | roomy),
            self.dead_letters: (1, forever | roomy),
        }


class TopicJournal:
    """The journal of a model."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection, self._topic = connection, topic

    def read(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Offset and value of every committed record."""
        low, high = watermarks(self._connection, self._topic, [0])[0]
        if low > start and high > 0:
            raise LineageError(
                f"the journal {self._topic} begins at offset {low}, and {start} is needed: it was trimmed."
                " Its retention must be unlimited, or longer than the age of the oldest checkpoint"
            )
        for found in read_committed(self._connection, self._topic, 0, start):
            yield found.offset, found.value or b""


class TopicOutbox:
    """Codes, dead letters, snapshots, journal and consumed offsets, in one transaction."""

    def __init__(
        self, connection: Connection, topics: Topics, model: str, source: KafkaSource, at: CrashPoint = no_crash
    ) -> None:
        self._topics, self._source, self._at = topics, source, at
        self._transactions = Transactions(connection, f"{model}.steps")

    def open(self) -> None:
        """Fence every predecessor."""
        self._transactions.open()

    def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> int:
        """Write everything or nothing; the offset of the last record of the journal."""

        def records() -> Iterator[Row]:
            for output in outputs:
                yield self._topics.named(output.stream), _partition(output), output.key or None, output.value

        given = self._transactions.write(records, self._source.positions(positions), self._at)
        return max(offset for offset, output in zip(given, outputs, strict=True) if output.stream == "journal")


def _partition(output: Output) -> int:
    """The journal is one chain in one partition; the rest goes by key."""
    return 0 if output.stream == "journal" else -1


class TopicStore:
    """Checkpoints in a compacted topic: pieces in one partition, manifests in the other, each checkpoint a transaction.

    Slots rotate, so that compaction keeps the newest few checkpoints whole. Being one transaction, a checkpoint is
    there whole or not at all, and a fenced predecessor can no longer overwrite a slot.
    """

    def __init__(self, connection: Connection, topic: str, model: str, at: CrashPoint = no_crash) -> None:
        self._connection, self._topic, self._at = connection, topic, at
        self._transactions = Transactions(connection, f"{model}.checkpoints", timeout_ms=600_000)
        self._slots: dict[Manifest, int] = {}
        self._used: dict[int, tuple[int, int]] = {}
        """For each slot when it was written (the offset of its manifest), and its number of pieces."""

    def open(self) -> None:
        """Fence every predecessor."""
        self._transactions.open()

    def save(self, manifest: Manifest, parts: Callable[[], Iterable[bytes | memoryview]]) -> None:
        """Overwrite the oldest slot."""
        slot = min(range(KEPT), key=lambda s: self._used.get(s, (-1, 0))[0])
        count = -(-manifest.size // CHUNK)
        begin = watermarks(self._connection, self._topic, [CHUNKS])[CHUNKS][1]
        surplus = range(count, self._used.get(slot, (0, 0))[1])

        def records() -> Iterator[Row]:
            for i, piece in enumerate(pieces(parts())):
                yield self._topic, CHUNKS, b"%d:%d" % (slot, i), piece
                if i == count // 2:
                    self._at("in-checkpoint")
            for i in surplus:
                yield self._topic, CHUNKS, b"%d:%d" % (slot, i), None
            yield self._topic, MANIFESTS, b"%d" % slot, manifest.to_bytes(slot=slot, pieces=count, begin=begin)

        self._used[slot] = (self._transactions.write(records)[-1], count)

    def candidates(self) -> Iterator[Candidate]:
        """What the slots hold, newest first."""
        found: dict[int, tuple[Manifest, int, int, int]] = {}
        for record in read_committed(self._connection, self._topic, MANIFESTS):
            try:
                manifest, header, _ = Manifest.from_bytes(record.value)
                slot, count, begin = (int(header[name]) for name in ("slot", "pieces", "begin"))
            except (OcpdlError, KeyError, TypeError, ValueError) as error:
                log.warning("a manifest at offset %d is not usable: %s", record.offset, error)
            else:
                found[slot] = (manifest, record.offset, count, begin)
        self._used = {slot: (written, count) for slot, (_, written, count, _) in found.items()}
        self._slots = {manifest: slot for slot, (manifest, *_) in found.items()}
        for slot in sorted(found, key=lambda s: found[s][1], reverse=True):
            manifest, _, count, begin = found[slot]
            yield Candidate(manifest, partial(self._load, manifest, slot, count, begin))

    def discard(self, manifest: Manifest) -> None:
        """Its slot is the next to be overwritten."""
        slot = self._slots[manifest]
        self._used[slot] = (-1, self._used[slot][1])

    def _load(self, manifest: Manifest, slot: int, pieces: int, begin: int) -> bytes:
        """The pieces of a slot, put together; they lie behind an offset that was noted before they were written."""
        found: dict[int, bytes | None] = {}
        for record in read_committed(self._connection, self._topic, CHUNKS, begin):
            of, _, number = (record.key or b"").partition(b":")
            if of == b"%d" % slot and number.isdigit():
                found[int(number)] = record.value
        whole = [piece for piece in map(found.get, range(pieces)) if piece is not None]
        if len(whole) < pieces:
            raise StateError(f"the checkpoint of step {manifest.t} lacks {pieces - len(whole)} of its {pieces} pieces")
        return b"".join(whole)


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
