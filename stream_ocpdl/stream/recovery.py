"""How a model comes back: the newest checkpoint that the journal agrees with, and a replay of the steps after it.

    1. Of the checkpoints, newest first, take the first that is whole and whose link stands in the journal at the offset
       it names. One that is ahead of the journal, or of another history, is refused.
    2. Read the journal from there to its end; read the input that it names; learn it again, outputs off.
    3. Check what the records claim: the chain, the checksums of the input, the digests of the state.

Where the input of those steps is gone, `lost` has what happens.

The journal is the truth: offsets committed elsewhere serve monitors and fencing, and are not asked.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from stream_ocpdl.errors import InputLost, LineageError, StateError
from stream_ocpdl.ocpdl.learner import Step
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.batching import PLENTY
from stream_ocpdl.stream.checkpoint import Candidate, CheckpointStore, state_of
from stream_ocpdl.stream.draws import Chains, Counts
from stream_ocpdl.stream.lost import Outlook, compared, survey
from stream_ocpdl.stream.messages import GENESIS, JournalRecord, Position, Record, Run, link
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Journal, Said, Source
from stream_ocpdl.stream.progress import Progress, after, beginning, check_lineage, read_journal, replay, within

Report = Callable[[str], None]

OnRecord = Callable[[Progress, Sequence[Record], Step | None], None]

POLLED = 1000
"""Records to ask for in one poll."""

PATIENCE = 600
"""Polls of a tenth of a second that a replay waits for a record which must be there."""


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """The progress, the journal's offset of its last record (−1: no journal yet), and how many steps were replayed."""

    progress: Progress
    journal_offset: int
    replayed: int
    input: str | None = None
    """The identity of the input that the model learned from."""
    base: tuple[int, int] | None = None
    """Where steps could not be replayed: the offset in the journal and the step of the record whose state it is."""


class _Found(NamedTuple):
    progress: Progress
    offset: int
    """Of its record in the journal."""
    input: str | None
    outlook: Outlook
    """From there on."""
    refused: int
    """How many checkpoints were."""


def recover(
    plan: Plan,
    source: Source,
    journal: Journal,
    store: CheckpointStore,
    report: Report,
    on_record: OnRecord = lambda *_: None,
    workers: Workers = SERIAL,
) -> Recovered:
    """Where the model stands. `on_record` is called after every record replayed; it may raise to end the recovery."""
    found = _restore(plan, source, journal, store, report)
    anew = compared(plan, found.input, source) == "anew"
    try:
        recovered = (
            _abandon(plan, found, journal) if anew else _replay(plan, found, source, journal, on_record, workers)
        )
    except InputLost as error:
        if plan.on_lost_input == "fail":
            t, last = found.progress.state.t, found.outlook.t
            raise InputLost(
                f"{error}: the state after step {last} cannot be made again. To go on with that of step {t}, and"
                f" without steps {t + 1} to {last}, whose codes are published: --set on_lost_input=resume"
            ) from error
        found = _restore(plan, source, journal, store, report)  # the other state may be spent
        recovered = _abandon(plan, found, journal)
    if recovered.journal_offset < 0 and found.refused:
        raise LineageError(
            f"the journal of {plan.model} is empty, yet there are checkpoints of it: it was deleted or trimmed, and"
            " beginning again would publish every code a second time; give the model another name"
        )
    return recovered


def _restore(plan: Plan, source: Source, journal: Journal, store: CheckpointStore, report: Report) -> _Found:
    """The newest checkpoint that is acceptable; without one the beginning."""
    refused = 0
    for candidate in store.candidates():
        manifest = candidate.manifest
        if manifest.model != plan.model:
            continue
        found = _accept(plan, candidate, journal, report)
        if found is not None:
            outlook = survey(journal, manifest.journal_offset + 1)
            if not any(base < manifest.journal_offset for base in outlook.bases):
                report(Said(f"restored the checkpoint of step {found.state.t}", step=found.state.t))
                return _Found(found, manifest.journal_offset, outlook.input or manifest.input, outlook, refused)
            report(Said(f"refused the checkpoint of step {manifest.t}: that step was lost later", step=manifest.t))
        store.discard(manifest)
        refused += 1
    outlook = survey(journal, 0)
    return _Found(beginning(plan, source.earliest()), -1, outlook.input, outlook, refused)


def _accept(plan: Plan, candidate: Candidate, journal: Journal, report: Report) -> Progress | None:
    """The checkpoint's state where the journal has its record, or none and why."""
    manifest = candidate.manifest
    standing = next(journal.read(manifest.journal_offset), None)
    if standing is None or standing[0] != manifest.journal_offset:
        report(Said(f"refused the checkpoint of step {manifest.t}: it is ahead of the journal", step=manifest.t))
        return None
    if link(standing[1]) != manifest.link:
        report(Said(f"refused the checkpoint of step {manifest.t}: the journal has another history", step=manifest.t))
        return None
    check_lineage(plan, manifest.lineage, manifest.fingerprint)
    try:
        draws = Chains(manifest.chains or {}, Counts(*(manifest.draws or ())))
        return after(read_journal(standing[1]), standing[1], state_of(manifest, candidate.load()), draws)
    except StateError as error:
        report(Said(f"refused the checkpoint of step {manifest.t}: {error}", step=manifest.t))
        return None


def _replay(
    plan: Plan, found: _Found, source: Source, journal: Journal, on_record: OnRecord, workers: Workers
) -> Recovered:
    progress, offset, known, bases = found.progress, found.offset, found.input, found.outlook.bases
    inputs, replayed, goal = None, 0, bases.get(offset, -1)
    for position, value in journal.read(offset + 1):
        record = read_journal(value)
        offset = position
        if position < goal:  # steps that were lost
            progress = _skip(progress, record, value)
            continue
        if inputs is None:
            inputs = Inputs(source, record.resume if record.event == "genesis" else progress.resume)
        used = [row for run in record.used for row in inputs.take(run)]
        progress, step = replay(plan, progress, value, used, workers)
        inputs.drop(progress)
        if record.event in ("lost", "partitions"):
            inputs = None  # the positions are others now
        goal = bases.get(position, -1)
        replayed += step is not None
        on_record(progress, used, step)
    return Recovered(progress, offset, replayed, known)


def _abandon(plan: Plan, found: _Found, journal: Journal) -> Recovered:
    """Go to the end of the journal without the steps between; if there are any, they are lost from the state."""
    progress, base = found.progress, (found.offset, found.progress.state.t)
    last, offset = None, found.offset
    for offset, value in journal.read(found.offset + 1):
        last = read_journal(value)
        if last.event == "genesis":
            check_lineage(plan, last.lineage, last.fingerprint)
            base = (offset, 0)
        progress = _skip(progress, last, value)
        final = value
    if last is None:
        return Recovered(progress, offset, 0, found.input)
    state = replace(progress.state, t=last.t, N=last.N)
    steps = last.t > progress.state.t
    return Recovered(after(last, final, state, progress.draws), offset, 0, found.input, base if steps else None)


def _skip(progress: Progress, record: JournalRecord, value: bytes) -> Progress:
    """The same progress behind a record that is not followed, but for the chain."""
    if record.previous != (progress.link or GENESIS):
        raise LineageError(f"the journal record of step {record.t} does not follow the one before it")
    return replace(progress, link=link(value))


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
                if not within(records[offset], progress.open):
                    self._bytes[partition] -= len(records.pop(offset).value or b"")

    def _fetch(self, wanted: Position) -> None:
        partition, offset = wanted
        before, idle = self._reached[partition], 0
        while self._reached[partition] < offset and idle < PATIENCE:
            idle = idle + 1 if self._reached[partition] == before else 0
            before = self._reached[partition]
            hungry = {p for p, size in self._bytes.items() if size < PLENTY or p == partition}
            for record in self._source.poll(POLLED, 0.1, hungry):
                self._fetched[record.position.partition][record.position.offset] = record
                self._reached[record.position.partition] = record.position.offset
                self._bytes[record.position.partition] += len(record.value or b"")
        if self._reached[partition] < offset:
            raise InputLost(
                f"partition {partition} has no record at offset {offset}, which a step used: it was cut short"
            )
