"""Dead letters, for those who look at them and those who send them back.

A letter has all that the record was: value, key, headers. `send_back` writes it as it was, to the partition that it
came from, with one more header: `ocpdl-replayed-from`, which has the position that it had. So what was sent back
already can be found again, and sending back twice writes nothing twice, also if the first time was cut short.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from stream_ocpdl.errors import BrokerError, ConfigError, DecodeError
from stream_ocpdl.stream.assembly import whole
from stream_ocpdl.stream.kafka import (
    Connection,
    Writer,
    offsets_at,
    partitions_of_topic,
    read_committed,
)
from stream_ocpdl.stream.messages import DeadLetter, Headers, Position

log = logging.getLogger("stream_ocpdl.letters")

MARK = "ocpdl-replayed-from"

SKEW = 3_600_000
"""Milliseconds by which the clocks of two machines may differ."""

_NUMBER = re.compile(r"-?\d[\d.]*(e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, and when it was written."""

    letter: DeadLetter
    written: int
    """Milliseconds since 1970."""

    @property
    def place(self) -> str:
        """Where the record was, as `partition:offset`."""
        return place(self.letter.record.position)

    @property
    def replayed_from(self) -> str | None:
        """Where the record was before, if it was sent back once already and refused again."""
        return _mark(self.letter.record.headers)

    @property
    def kind(self) -> str:
        """Class and reason without its numbers: what many letters have in common."""
        return f"{self.letter.error}: {_NUMBER.sub('#', self.letter.reason)}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which letters are meant."""

    reason: str | None = None
    """A part of the class or of the reason."""
    places: Collection[str] = ()
    """Where their records were; all if none is given."""

    def __post_init__(self) -> None:
        for place in self.places:
            if not re.fullmatch(r"\d+:\d+", place):
                raise ConfigError(f"--at must be a partition and an offset, such as 0:1200, not {place!r}")

    def __contains__(self, found: Letter) -> bool:
        said = f"{found.letter.error}: {found.letter.reason}"
        return (self.reason is None or self.reason in said) and (not self.places or found.place in self.places)


def read_letters(connection: Connection, topic: str, choice: Choice) -> Iterator[Letter]:
    """The letters of a topic that are meant, in the order in which they were written; one that is damaged is said."""
    records = (r for p in partitions_of_topic(connection, topic) for r in read_committed(connection, topic, p))
    for record in whole(records):
        try:
            found = Letter(DeadLetter.from_bytes(record.value), record.timestamp)
        except DecodeError as error:
            log.warning("%s[%d] at offset %d is no dead letter: %s", topic, *record.position, error)
            continue
        if found in choice:
            yield found


def sent_back(connection: Connection, topic: str, since: int) -> set[str]:
    """The places of letters that a topic has again, as far as they were sent back after a time."""
    found = set()
    for partition, start in offsets_at(connection, topic, max(0, since - SKEW)).items():
        for record in read_committed(connection, topic, partition, start):
            mark = _mark(record.headers)
            if mark is not None:
                found.add(mark)
    return found


def send_back(connection: Connection, topic: str, letters: Iterable[Letter]) -> Iterator[Letter]:
    """Write the records of letters to a topic as they were, each once it is queued; all are there in the end.

    To the partition that each came from, if the topic has it: that keeps pieces of a message together, and in order.
    """
    writer, partitions = Writer(connection), set(partitions_of_topic(connection, topic))
    for found in letters:
        record = found.letter.record
        headers = (*((name, value) for name, value in record.headers if name != MARK), (MARK, found.place.encode()))
        partition = record.position.partition if record.position.partition in partitions else -1
        if not writer.write(topic, record.value, record.key, partition, connection.patience, headers):
            raise BrokerError(f"{topic} takes no records within {connection.patience:g} s")
        yield found
    writer.flush()


def place(position: Position) -> str:
    """A position in words."""
    return f"{position.partition}:{position.offset}"


def _mark(headers: Headers) -> str | None:
    return next((value.decode(errors="replace") for name, value in headers if name == MARK and value), None)
