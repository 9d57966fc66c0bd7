"""A journal as a list of versions: which record has which step, and which steps can be made again.

A step can be rebuilt where a chain of records leads to it, from a genesis or a kept checkpoint, whose input is there
still. A rollback leads on from the record it went back to.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stream_ocpdl.errors import LineageError
from stream_ocpdl.stream.messages import JournalRecord, link
from stream_ocpdl.stream.ports import Journal
from stream_ocpdl.stream.progress import read_journal

VERSIONS = ("genesis", "step", "rollback", "epoch")
"""The events after which there is a version that was not there before."""


class Entry(NamedTuple):
    """A version, and where its record stands in the journal."""

    offset: int
    epoch: int
    t: int
    event: str
    weight: float


def entries(records: Iterable[tuple[int, JournalRecord]]) -> Iterator[Entry]:
    """The versions of a journal, in order."""
    for offset, record in records:
        if record.event in VERSIONS or record.base is not None:
            yield Entry(offset, record.epoch or 0, record.t, record.event, record.weight)


def records_of(journal: Journal) -> Iterator[tuple[int, JournalRecord]]:
    """The records of a journal, with their offsets."""
    return ((offset, read_journal(value)) for offset, value in journal.read())


def find(journal: Journal, t: int, epoch: int | None = None) -> Entry:
    """The version of a step: of the newest epoch that has it, if none is given."""
    found, last = None, None
    for entry in entries(records_of(journal)):
        last = entry
        if entry.t == t and epoch in (None, entry.epoch):
            found = entry
    if found is None:
        where = "" if epoch is None else f" in epoch {epoch}"
        now = "it is empty" if last is None else f"it stands at step {last.t} of epoch {last.epoch}"
        raise LineageError(f"the journal has no step {t}{where}; {now}")
    return found


class Span(NamedTuple):
    """Steps of an epoch, one after the other, that all can be rebuilt, or all cannot."""

    epoch: int
    first: int
    last: int
    rebuilt: bool
    why: str
    """What is missing, if they cannot."""


@dataclass(slots=True)
class Window:
    """Which steps can be rebuilt."""

    spans: list[Span] = field(default_factory=list)

    def add(self, epoch: int, t: int, why: str) -> None:
        """Count a version; an empty reason says that it can be rebuilt."""
        last = self.spans[-1] if self.spans else None
        if last and (last.epoch, last.why) == (epoch, why) and last.last <= t <= last.last + 1:
            self.spans[-1] = last._replace(last=t)
        else:
            self.spans.append(Span(epoch, t, t, not why, why))


def window(records: Iterable[tuple[int, bytes]], kept: Mapping[int, str], earliest: Mapping[int, int]) -> Window:
    """What can be rebuilt of a journal from checkpoints at these offsets, with their links, and such an input."""
    targets: dict[int, str] = {}
    found, why = Window(), "the journal does not begin with a genesis"
    for offset, value in records:
        record = read_journal(value)
        if record.event == "genesis" or (offset in kept and kept[offset] == link(value)):
            why = ""
        elif record.target is not None:
            why = targets.get(record.target.offset, "the record it went back to is not in the journal")
        elif not why:
            why = _missing(record, earliest)
        if record.event in VERSIONS or record.base is not None:
            targets[offset] = why
            found.add(record.epoch or 0, record.t, why)
    return found


def _missing(record: JournalRecord, earliest: Mapping[int, int]) -> str:
    """What of the input of a step is gone."""
    for partition, first, _ in record.used:
        if first < earliest.get(partition, 0):
            return (
                f"step {record.t} learned offset {first} of partition {partition}, and the input begins at"
                f" {earliest[partition]} now; there is no checkpoint between"
            )
    return ""
