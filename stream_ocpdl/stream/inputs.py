"""The input once more, for a replay: by position, whatever order it comes in."""

from collections.abc import Iterator, Mapping
from itertools import takewhile

from stream_ocpdl.errors import BrokerError, InputLost
from stream_ocpdl.stream.batching import PLENTY
from stream_ocpdl.stream.messages import Position, Record, Run
from stream_ocpdl.stream.ports import Source
from stream_ocpdl.stream.progress import Progress, within

POLLED = 1000
"""Records to ask for in one poll."""

PATIENCE = 600
"""Polls of a tenth of a second that a replay waits for a record which must be there."""


def starts(progress: Progress, source: Source) -> dict[int, int]:
    """Where to read on. Pieces of messages that never became whole may be gone; what was never read may not."""
    earliest, reached = source.earliest(), progress.reached
    return {p: max(k, earliest[p]) if earliest[p] <= reached.get(p, k) else k for p, k in progress.resume.items()}


class Inputs:
    """The input once more, by position; what was fetched is kept until it is dropped."""

    def __init__(self, source: Source, resume: Mapping[int, int]) -> None:
        self._source = source
        self._begin = {p: max(resume.get(p, 0), low) for p, low in source.earliest().items()}
        source.start(self._begin)
        self._fetched: dict[int, dict[int, Record]] = {partition: {} for partition in source.partitions}
        self._reached = dict.fromkeys(source.partitions, -1)
        self._bytes = dict.fromkeys(source.partitions, 0)

    def take(self, run: Run) -> Iterator[Record]:
        """The records of a run, in order."""
        partition, first, last = run
        if first < self._begin[partition]:
            raise InputLost(
                f"partition {partition} no longer has offset {first}, which a step used that has to be replayed:"
                f" it begins at {self._begin[partition]} now"
            )
        for offset in range(first, last + 1):
            self._fetch(Position(partition, offset))
            if offset not in self._fetched[partition]:
                raise InputLost(f"partition {partition} no longer has offset {offset}, which a step used")
            record = self._fetched[partition].pop(offset)
            self._bytes[partition] -= len(record.value or b"")
            yield record

    def drop(self, progress: Progress) -> None:
        """Forget what is done with: refused records, but not the open pieces."""
        for partition, records in self._fetched.items():
            for offset in list(takewhile(progress.reached.get(partition, 0).__gt__, records)):
                if not within(records[offset].position, progress.open):
                    self._bytes[partition] -= len(records.pop(offset).value or b"")

    def _fetch(self, wanted: Position) -> None:
        partition, offset = wanted
        idle = 0
        while self._reached[partition] < offset and idle < PATIENCE:
            hungry = {p for p, size in self._bytes.items() if size < PLENTY or p == partition}
            found = self._source.poll(POLLED, 0.1, hungry)
            idle = 0 if found else idle + 1
            for record in found:
                self._fetched[record.position.partition][record.position.offset] = record
                self._reached[record.position.partition] = record.position.offset
                self._bytes[record.position.partition] += len(record.value or b"")
        if self._reached[partition] < offset:
            if self._source.earliest()[partition] <= offset < self._source.latest()[partition]:
                raise BrokerError(f"partition {partition} has offset {offset}, and does not deliver it")
            raise InputLost(
                f"partition {partition} has no record at offset {offset}, which a step used: it was cut short"
            )
