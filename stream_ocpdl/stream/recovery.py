"""How a model comes back: the newest checkpoint that the journal agrees with, and a replay of the steps after it.

    1. Of the checkpoints, the furthest first, take the first that is whole and whose link stands in the journal at the
       offset it names. One that is ahead of the journal, or of another history, is refused.
    2. Read the journal from there to its end; read the input that it names; learn it again, outputs off.
    3. Check what the records claim: the chain, the checksums of the input, the digests of the state.

A model that was rolled back has the state of an earlier record, wherever the checkpoint is: of what lies behind the
checkpoint only the steps after the last rollback are learned again, and the record it went back to is recovered first,
in the same way. So a recovery is a chain of legs, each of which begins with a checkpoint, a genesis or a rollback.

The journal is the truth: offsets committed elsewhere serve monitors and fencing, and are not asked.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol

from stream_ocpdl.errors import InputLost, LineageError, StateError
from stream_ocpdl.ocpdl.learner import Step
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.batching import PLENTY
from stream_ocpdl.stream.checkpoint import Candidate, CheckpointStore, state_of
from stream_ocpdl.stream.genesis import Beginning, begun
from stream_ocpdl.stream.messages import JournalRecord, Position, Record, Run, Target, link
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Journal, Said, Source
from stream_ocpdl.stream.progress import Progress, after, beginning, check_lineage, read_journal, replay, within
from stream_ocpdl.stream.warm import Warm

Report = Callable[[str], None]

OnRecord = Callable[[Progress, Sequence[Record], Step | None, JournalRecord], None]
"""Called with the progress after a record, the input that it used, its step, and the record."""

POLLED = 1000
"""Records to ask for in one poll."""

PATIENCE = 600
"""Polls of a tenth of a second that a replay waits for a record which must be there."""

LOOKED_THROUGH = 16_000_000
"""Bytes of records that are kept from looking through a journal to replaying it; more are read a second time."""

END = 1 << 62
"""Behind the end of every journal."""


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """The progress, the journal's offset of its last record (−1: no journal yet), and how many steps were replayed."""

    progress: Progress
    journal_offset: int
    replayed: int
    plan: Plan
    """On the terms that the model began with: those in force are in the progress."""
    base: int = -1
    """The journal's offset of the checkpoint that it was made from; −1 if it was made from scratch."""
    went_back: bool = False
    """Whether it was made by way of a rollback that no checkpoint has seen."""
    warm: Warm | None = None
    """Of a new model: loadings that it begins with."""


@dataclass(frozen=True, slots=True, eq=False)
class Recovery:
    """What a recovery needs of the world. `on_record` is called after every record replayed; it may raise to end it."""

    source: Source
    journal: Journal
    store: CheckpointStore
    report: Report
    on_record: OnRecord = lambda *_: None
    workers: Workers = SERIAL


def recover(
    plan: Plan,
    source: Source,
    journal: Journal,
    store: CheckpointStore,
    report: Report,
    on_record: OnRecord = lambda *_: None,
    workers: Workers = SERIAL,
    begin: Beginning | None = None,
) -> Recovered:
    """Where the model stands."""
    world = Recovery(source, journal, store, report, on_record, workers)
    base = begun(plan, journal)
    if base is None:
        return _new(plan, world, begin or Beginning(source.earliest))
    return rebuild(base, world)


def _new(plan: Plan, world: Recovery, begin: Beginning) -> Recovered:
    if any(candidate.manifest.model == plan.model for candidate in world.store.candidates()):
        raise LineageError(
            f"the journal of {plan.model} is empty, yet there are checkpoints of it: it was deleted or trimmed, and"
            " beginning again would publish every code a second time; give the model another name"
        )
    warm = begin.warm()
    return Recovered(beginning(plan, begin.positions(), warm), -1, 0, plan, warm=warm)


class Kept(Protocol):
    """States that were kept for rollbacks to come (`replaying`)."""

    def see(self, position: int, progress: Progress) -> None:
        """Keep the state after a record, if it is wanted."""
        ...

    def state(self, target: Target) -> Progress | None:
        """The progress of a record that was kept."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Leg:
    """Records to be replayed: those behind an offset, up to and with another."""

    behind: int
    last: int
    rollback: bytes | None = None
    """The record at `behind`, if the leg begins with one that went back."""
    records: Sequence[tuple[int, bytes]] | None = None
    """The records, if they were few enough to be kept when they were looked through."""


def rebuild(plan: Plan, world: Recovery, until: int = END) -> Recovered:
    """The model as it stood after the record of the journal at an offset, or at its end."""
    legs, progress, base = _legs(plan, world, until)
    replayed, offset = 0, base
    for leg in reversed(legs):
        if leg.rollback is not None:
            progress, offset = _went_back(leg.rollback, progress), leg.behind
        progress, offset, count = replay_leg(plan, world, progress, leg)
        replayed += count
    return replace(whole(plan, progress, offset, replayed, base), went_back=len(legs) > 1)


def whole(plan: Plan, progress: Progress | None, offset: int, replayed: int, base: int) -> Recovered:
    """What a replay has come to; it must have come to something."""
    if progress is None:
        raise LineageError("the journal has no record up to the one that is wanted")
    return Recovered(progress, offset, replayed, plan, base)


def _went_back(value: bytes, progress: Progress | None) -> Progress:
    """The progress after a rollback to this one."""
    record = read_journal(value)
    if progress is None:
        raise LineageError(f"the journal has a rollback to step {record.t}, which it does not have")
    same = record.state == progress.state.digest()
    if progress.exact and not same:
        raise LineageError(f"the state of step {record.t} is not the one to which the model went back")
    made_under = record.fingerprint or progress.fingerprint
    return replace(after(record, value, progress.state), fingerprint=made_under, exact=same)


def _legs(plan: Plan, world: Recovery, until: int) -> tuple[list[Leg], Progress | None, int]:
    """The legs, the last first; and the progress that the first begins with, none for a genesis, with its offset."""
    legs: list[Leg] = []
    while True:
        progress, offset = nearest(plan, world, until)
        found, records = _last_rollback(world.journal, progress, offset, until)
        if found is None:
            return [*legs, Leg(offset, until, records=records)], progress, offset
        position, value, target = found
        legs.append(Leg(position, until, value))
        until = target.offset


def nearest(plan: Plan, world: Recovery, until: int) -> tuple[Progress | None, int]:
    """The furthest acceptable checkpoint up to an offset of the journal."""
    candidates = [c for c in world.store.candidates() if c.manifest.model == plan.model]
    for candidate in sorted(candidates, key=lambda c: c.manifest.journal_offset, reverse=True):
        if candidate.manifest.journal_offset > until:
            continue
        found = _accept(plan, candidate, world.source, world.journal, world.report)
        if found is not None:
            t = found.state.t
            world.report(Said(f"restored the checkpoint of step {t}", step=t))
            return found, candidate.manifest.journal_offset
        world.store.discard(candidate.manifest)
    return None, -1


def _last_rollback(
    journal: Journal, progress: Progress | None, offset: int, until: int
) -> tuple[tuple[int, bytes, Target] | None, list[tuple[int, bytes]] | None]:
    """The last record behind an offset that went back; the chain is checked on the way. And all records, if few."""
    found, previous = None, None if progress is None else progress.link
    records: list[tuple[int, bytes]] | None = []
    size = 0
    for position, value in journal.read(offset + 1):
        if position > until:
            break
        record = read_journal(value)
        if previous is not None and record.previous != previous:
            raise LineageError(f"the journal record of step {record.t} does not follow the one before it")
        previous, size = link(value), size + len(value)
        if size > LOOKED_THROUGH:
            records = None
        elif records is not None:
            records.append((position, value))
        if record.target is not None:
            if record.target.offset >= position:
                raise LineageError(f"the journal has a rollback at offset {position} to a record that came later")
            found = (position, value, record.target)
    return found, records


def _accept(plan: Plan, candidate: Candidate, source: Source, journal: Journal, report: Report) -> Progress | None:
    """The checkpoint's state where the journal has its record, or none and why."""
    manifest = candidate.manifest
    standing = next(journal.read(manifest.journal_offset), None)
    if standing is None or standing[0] != manifest.journal_offset:
        report(Said(f"refused the checkpoint of step {manifest.t}: it is ahead of the journal", step=manifest.t))
        return None
    if link(standing[1]) != manifest.link:
        report(Said(f"refused the checkpoint of step {manifest.t}: the journal has another history", step=manifest.t))
        return None
    check_lineage(plan, manifest.lineage)
    _check_input(manifest.input, source)
    try:
        state = state_of(manifest, candidate.load())
    except StateError as error:
        report(Said(f"refused the checkpoint of step {manifest.t}: {error}", step=manifest.t))
        return None
    return replace(after(read_journal(standing[1]), standing[1], state), fingerprint=manifest.fingerprint)


def _check_input(identity: str | None, source: Source) -> None:
    if identity != source.identity:
        raise LineageError(
            f"the model learned from {identity}, the input is {source.identity}: another topic, made anew, or with"
            " partitions added; positions in one mean nothing in the other. Give the model another name"
        )


def replay_leg(
    plan: Plan, world: Recovery, progress: Progress | None, leg: Leg, kept: Kept | None = None
) -> tuple[Progress | None, int, int]:
    """Learn again what the records of a leg name; where that leads, the last offset, and how many steps."""
    offset, records = leg.behind, world.journal.read(leg.behind + 1) if leg.records is None else leg.records
    source, inputs, started, replayed = world.source, Inputs(world.source), False, 0
    for position, value in records:
        if position > leg.last:
            break
        record = read_journal(value)
        if record.event == "genesis":
            _check_input(record.input, source)
            progress = beginning(plan, record.resume)
        if progress is None:
            raise LineageError("the journal does not begin with a genesis")
        if not started:
            source.start(starts(progress, source))
            started = True
        restored = kept.state(record.target) if kept is not None and record.target is not None else None
        used = [row for run in record.used for row in inputs.take(run)]
        progress, step = replay(plan, progress, value, used, world.workers, restored)
        inputs.drop(progress)
        offset = position
        replayed += step is not None
        if kept is not None:
            kept.see(position, progress)
        world.on_record(progress, used, step, record)
    return progress, offset, replayed


def starts(progress: Progress, source: Source) -> dict[int, int]:
    """Where to read on. Pieces of messages that never became whole may be gone; what was never read may not."""
    earliest, reached = source.earliest(), progress.reached
    return {p: max(k, earliest[p]) if earliest[p] <= reached.get(p, k) else k for p, k in progress.resume.items()}


class Inputs:
    """The input once more, by position; what was fetched is kept until it is dropped."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._fetched: dict[int, dict[int, Record]] = {partition: {} for partition in source.partitions}
        self._reached = dict.fromkeys(source.partitions, -1)
        self._bytes = dict.fromkeys(source.partitions, 0)

    def take(self, run: Run) -> Iterator[Record]:
        """The records of a run, in order."""
        partition, first, last = run
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
