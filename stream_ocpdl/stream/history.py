"""A journal as a list of versions: which record has which step, and which steps can be made again.

A step can be rebuilt where a chain of records leads to it, from a genesis or a kept checkpoint, whose input is there
still. A rollback leads on from the record it went back to.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stream_ocpdl.errors import LineageError
from stream_ocpdl.stream.lost import same_topic
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


class Present(NamedTuple):
    """What is left of the input: its identity, and the lowest offset of each partition."""

    identity: str
    earliest: Mapping[int, int]

    def missing(self, record: JournalRecord, identity: str | None) -> str:
        """What is gone of that which a record learned from the topic of that identity; empty if nothing is."""
        for partition, first, _ in record.used:
            if identity is not None and not same_topic(identity, self.identity):
                return f"step {record.t} learned from a topic that was deleted and made anew since"
            if first < self.earliest.get(partition, 0):
                return (
                    f"step {record.t} learned offset {first} of partition {partition}, and the input begins at"
                    f" {self.earliest[partition]} now; there is no checkpoint between"
                )
        return ""


class Judged(NamedTuple):
    """A record of the journal, and whether the state after it can be made again."""

    offset: int
    record: JournalRecord
    kept: bool
    """Whether there is a checkpoint of it."""
    missing: str
    """What of its own input is gone."""
    why: str
    """What is missing on every way to it; empty if it can be rebuilt."""


def judged(records: Iterable[tuple[int, bytes]], kept: Mapping[int, str], present: Present) -> Iterator[Judged]:
    """The records of a journal, with checkpoints at these offsets, with their links, and such an input.

    After a loss the way leads on from the record whose state it is; the steps that were lost are not needed.
    """
    targets: dict[int, str] = {}
    why, identity = "the journal does not begin with a genesis", None
    for offset, value in records:
        record = read_journal(value)
        identity, target = record.input or identity, went_back_to(record)
        there, missing = kept.get(offset) == link(value), present.missing(record, identity)
        if record.event == "genesis" or there:
            why = ""
        elif target is not None:
            why = targets.get(target, "the record it went back to is not in the journal")
        else:
            why = why or missing
        targets[offset] = why
        yield Judged(offset, record, there, missing, why)


def window(records: Iterable[tuple[int, bytes]], kept: Mapping[int, str], present: Present) -> Window:
    """Which steps of a journal can be rebuilt."""
    found = Window()
    for one in judged(records, kept, present):
        if one.record.event in VERSIONS or one.record.base is not None:
            found.add(one.record.epoch or 0, one.record.t, one.why)
    return found


def whole_from(records: Iterable[tuple[int, bytes]], kept: Mapping[int, str], present: Present) -> int | None:
    """The first place from which all that follows can be replayed: a checkpoint, or none for the beginning."""
    base, whole = None, True
    whys: dict[int, str] = {}
    for one in judged(records, kept, present):
        whys[one.offset], target = one.why, went_back_to(one.record)
        before = target is not None and target < (0 if base is None else base)
        if one.missing or (before and whys.get(target or 0, "it is not there")):
            whole = False
        if not whole and one.kept:
            base, whole = one.offset, True
    if not whole:
        raise LineageError(
            "nothing can be replayed: input of the last steps is gone, and no checkpoint is kept that is newer; see"
            " replay --window"
        )
    return base


def went_back_to(record: JournalRecord) -> int | None:
    """The offset in the journal of the record whose state it is after a rollback, or after steps were lost."""
    if record.target is not None:
        return record.target.offset
    return None if record.base is None else record.base[0]
