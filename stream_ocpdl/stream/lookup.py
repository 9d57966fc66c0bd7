"""What became of one record of the input: which step learned it, or why none did; its code, and under which dictionary.

The journal decides: it names every record that was used, refused or lost. Codes and snapshots may be gone by now, for
their topics may be trimmed; what is not found is none.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

from stream_ocpdl.errors import DataError, DecodeError
from stream_ocpdl.stream.assembly import piece_of
from stream_ocpdl.stream.intake import Intake
from stream_ocpdl.stream.kafka import Connection, offsets_at, partitions_of_topic, read_committed
from stream_ocpdl.stream.messages import (
    Chunk,
    Code,
    JournalRecord,
    Position,
    Record,
    Refused,
    Snapshot,
    Tensor,
    Version,
)
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import within
from stream_ocpdl.stream.snapshots import Published
from stream_ocpdl.stream.topics import nothing


@dataclass(slots=True)
class Fate:
    """What a journal says of one record of the input."""

    position: Position
    learned: JournalRecord | None = None
    refused: Refused | None = None
    refused_at: int = 0
    """The step at which the model was then."""
    lost: bool = False
    remembered: bool = False
    """Whether the present state has learned it: a rollback may have forgotten it."""
    reached: int | None = None
    """The offset of its partition below which all is done; none if the journal does not have the partition."""
    t: int = 0
    epoch: int = 0
    _offset: int = -1
    """Where the step that learned it stands in the journal."""
    _segments: list[tuple[int, bool]] = field(default_factory=list)
    """Where each history begins that goes back to an earlier record, and whether that one had learned it."""

    def read(self, offset: int, record: JournalRecord) -> None:
        """The next record of the journal."""
        partition = self.position.partition
        self.t, self.epoch = record.t, record.epoch or 0
        self.reached = record.reached.get(partition, self.reached)
        back = record.target.offset if record.target else record.base[0] if record.base else None
        if back is not None:
            self._segments.append((offset, self._had(back)))
        if within(self.position, record.used):
            self.learned, self._offset = record, offset
        for entry in record.refused:
            if (entry.partition, entry.offset) == self.position:
                self.refused, self.refused_at = entry, record.t
        self.lost = self.lost or within(self.position, record.lost or ())
        self.remembered = self._had(offset)

    def _had(self, offset: int) -> bool:
        """Whether the state after a record of the journal has learned it."""
        begin, before = next(((b, had) for b, had in reversed(self._segments) if b <= offset), (-1, False))
        return before or (self.learned is not None and begin <= self._offset <= offset)


def fate(journal: Iterable[tuple[int, JournalRecord]], position: Position, seen: Callable[[], None] = nothing) -> Fate:
    """What a journal says of a record; `seen` is called for every record of the journal."""
    found = Fate(position)
    for offset, record in journal:
        seen()
        found.read(offset, record)
    return found


def record_at(connection: Connection, topic: str, position: Position) -> Record | None:
    """The record at a place, if it is there (still)."""
    found = next(read_committed(connection, topic, position.partition, position.offset), None)
    return found if found is not None and found.position == position else None


def tensor_of(
    connection: Connection, plan: Plan, record: Record, step: JournalRecord
) -> tuple[Position, Tensor | None]:
    """The tensor of a record that a step used, and the place that its code names; none if it is not there (whole)."""
    chunk, intake = piece_of(record.value) if plan.format.name == "native" else None, _intake(plan, record)
    pieces = [record] if chunk is None else _pieces(connection, plan.topic, record, chunk, step)
    try:
        _, tensor = next(intake.rows(pieces), (None, None))
    except DataError:  # the topic is another by now
        tensor = None
    return pieces[-1].position, tensor if chunk is None or len(pieces) == chunk.count else None


def _pieces(connection: Connection, topic: str, record: Record, chunk: Chunk, step: JournalRecord) -> list[Record]:
    """The pieces of a message that are there: the step used them, so they lie between its first record and its last."""
    partition = record.position.partition
    mine = [run for run in step.used if run[0] == partition]
    first, last = min(run[1] for run in mine), max(run[2] for run in mine)
    between = takewhile(lambda r: r.position.offset <= last, read_committed(connection, topic, partition, first))
    return [r for r in between if within(r.position, mine) and getattr(piece_of(r.value), "id", None) == chunk.id]


def _intake(plan: Plan, record: Record) -> Intake:
    return Intake(plan.format, plan.shape, [record.position.partition])


def code_of(
    connection: Connection, topic: str, position: Position, timestamp: int, seen: Callable[[], None] = nothing
) -> Code | None:
    """The code of a record. It has the time of its tensor: so it is looked for from there on, and then before."""
    starts = offsets_at(connection, topic, timestamp) if timestamp >= 0 else {}
    for partition in partitions_of_topic(connection, topic):
        found = _code(read_committed(connection, topic, partition, starts.get(partition, 0)), position, seen)
        if found is not None:
            return found
    for partition, start in starts.items():  # a tensor with a time that was still to come has a code of an earlier one
        before = takewhile(lambda r, end=start: r.position.offset < end, read_committed(connection, topic, partition))  # type: ignore[misc]
        found = _code(before, position, seen)
        if found is not None:
            return found
    return None


def _code(records: Iterator[Record], position: Position, seen: Callable[[], None]) -> Code | None:
    for record in records:
        seen()
        with suppress(DecodeError):
            code = Code.from_bytes(record.value)
            if code.position == position:
                return code
    return None


def nearest(found: Iterable[Published], version: Version) -> Snapshot | None:
    """The newest snapshot at or before a version, of its epoch; if there is none the oldest after it."""
    before = after = None
    for one in found:
        other = one.snapshot.version
        if (other.shard, other.epoch) != (version.shard, version.epoch):
            continue
        if other.t <= version.t and (before is None or other.t >= before.version.t):
            before = one.snapshot
        elif other.t > version.t and (after is None or other.t < after.version.t):
            after = one.snapshot
    return before or after
