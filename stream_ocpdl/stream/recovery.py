"""How a model comes back: the newest checkpoint that the journal agrees with, and a replay of the steps after it.

    1. Of the checkpoints, the furthest first, take the first that is whole and whose link stands in the journal at the
       offset it names. One that is ahead of the journal, or of another history, is refused.
    2. Read the journal from there to its end; read the input that it names; learn it again, outputs off.
    3. Check what the records claim: the chain, the checksums of the input, the digests of the state.

A model that was rolled back has the state of an earlier record, wherever the checkpoint is: of what lies behind the
checkpoint only the steps after the last rollback are learned again, and the record it went back to is recovered first,
in the same way. So a recovery is a chain of legs, each of which begins with a checkpoint, a genesis or a rollback. The
same holds for a model that lost steps (`lost`): the record that notes the loss has the state of an earlier one.

Where the input of steps is gone that would have to be learned again, and the policy is to go on, they are lost: the
recovery ends with the state of the checkpoint, at the end of the journal.

The journal is the truth: offsets committed elsewhere serve monitors and fencing, and are not asked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from stream_ocpdl.errors import InputLost, LineageError, StateError
from stream_ocpdl.ocpdl.anomaly import Senses
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.checkpoint import Candidate, CheckpointStore, state_of
from stream_ocpdl.stream.draws import Chains, Counts
from stream_ocpdl.stream.genesis import Beginning, begun
from stream_ocpdl.stream.history import went_back_to
from stream_ocpdl.stream.inputs import Inputs
from stream_ocpdl.stream.lost import PARTIALS, compared, same_topic
from stream_ocpdl.stream.messages import JournalRecord, Record, link
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Journal, Said, Source, Warned
from stream_ocpdl.stream.product import Product
from stream_ocpdl.stream.progress import Progress, after, beginning, check_lineage, read_journal, replay
from stream_ocpdl.stream.warm import Warm

Report = Callable[[str], None]

OnRecord = Callable[[Progress, Sequence[Record], Step | None, JournalRecord], None]
"""Called with the progress after a record, the input that it used, its step, and the record."""

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
    input: str | None = None
    """The identity of the input that the model learned from."""
    behind: int | None = None
    """How many steps it is ahead of the checkpoint that it began with, if others than those replayed just now."""
    lost: tuple[int, int] | None = None
    """Where steps could not be replayed: the offset in the journal and the step of the record whose state it is."""


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
    way = way_to(base, world, END)
    if compared(base, way.input, source) == "anew":
        return _abandon(base, world, way)
    try:
        return follow(base, world, way)
    except InputLost as error:
        if plan.on_lost_input == "fail":
            t = 0 if way.progress is None else way.progress.state.t
            if plan.rounds is not None:
                raise InputLost(f"{error}: the state after step {way.t} cannot be made again. {PARTIALS}") from error
            raise InputLost(
                f"{error}: the state after step {way.t} cannot be made again. To go on with that of step {t}, and"
                f" without steps {t + 1} to {way.t}, whose codes are published: --set on_lost_input=resume"
            ) from error
        return _abandon(base, world, way_to(base, world, END))  # the other state may be spent


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

    def state(self, target: int) -> Progress | None:
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
    input: str | None = None
    """The identity of the input where the leg begins, if it is known."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How to come to a record of the journal."""

    legs: list[Leg]
    """The last first."""
    progress: Progress | None
    """With which the first of them begins; none for a genesis."""
    offset: int
    """Of its record in the journal."""
    input: str | None
    """The identity of the input at the end."""
    t: int
    """The last step."""


def rebuild(plan: Plan, world: Recovery, until: int = END) -> Recovered:
    """The model as it stood after the record of the journal at an offset, or at its end."""
    way = way_to(plan, world, until)
    compared(replace(plan, on_lost_input="resume"), way.input, world.source)  # what is lost is asked for step by step
    return follow(plan, world, way)


def follow(plan: Plan, world: Recovery, way: Way) -> Recovered:
    """Replay leg by leg."""
    progress, replayed, offset = way.progress, 0, way.offset
    for leg in reversed(way.legs):
        if leg.rollback is not None:
            progress, offset = _went_back(leg.rollback, progress), leg.behind
        progress, offset, count = replay_leg(plan, world, progress, leg)
        replayed += count
    found = whole(plan, progress, offset, replayed, way.offset)
    return replace(found, went_back=len(way.legs) > 1, input=way.input)


def _abandon(plan: Plan, world: Recovery, way: Way) -> Recovered:
    """Go to the end of the journal without the steps between; if there are any, they are lost from the state."""
    progress, offset, last, steps = way.progress, way.offset, b"", False
    base = (offset, 0 if progress is None else progress.state.t)
    for offset, last in world.journal.read(way.offset + 1):
        record = read_journal(last)
        if progress is None:
            progress, _ = replay(plan, beginning(plan, record.resume), last, (), world.workers)
            base = (offset, 0)
            continue
        if record.previous != progress.link:
            raise LineageError(f"the journal record of step {record.t} does not follow the one before it")
        progress = replace(progress, link=link(last))
        steps = steps or record.event == "step" or went_back_to(record) is not None
    found = whole(plan, progress, offset, 0, way.offset)
    if not last:
        return replace(found, input=way.input)
    record, standing = read_journal(last), found.progress
    state = standing.state._replace(t=record.t, N=record.N)
    made = replace(after(record, last, state, standing.draws), fingerprint=standing.fingerprint, exact=standing.exact)
    made = replace(made, senses=standing.senses, product=standing.product)
    return replace(found, progress=made, input=way.input, lost=base if steps else None)


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
    state = progress.state if record.base is None else progress.state._replace(t=record.t, N=record.N)
    same = record.state == state.digest()
    if progress.exact and not same:
        raise LineageError(f"the state of step {record.t} is not the one to which the model went back")
    draws = progress.draws if record.base is not None else Chains(record.chains or {}, Counts(*(record.draws or ())))
    made_under = record.fingerprint or progress.fingerprint
    return replace(after(record, value, state, draws), fingerprint=made_under, exact=same)


def way_to(plan: Plan, world: Recovery, until: int) -> Way:
    """How to come to the record at an offset of the journal, or to its end."""
    legs: list[Leg] = []
    known, t = None, -1
    while True:
        progress, offset, before = nearest(plan, world, until)
        ahead = _look_ahead(world.journal, progress, offset, until)
        if not legs:
            known, t = ahead.input or before, ahead.t
        if ahead.went_back is None:
            if progress is not None:
                world.report(Said(f"restored the checkpoint of step {progress.state.t}", step=progress.state.t))
            last = Leg(offset, until, records=ahead.records, input=before)
            return Way([*legs, last], progress, offset, known, t)
        position, value, target, named = ahead.went_back
        legs.append(Leg(position, until, value, input=named or before))
        until = target


def nearest(plan: Plan, world: Recovery, until: int) -> tuple[Progress | None, int, str | None]:
    """The furthest acceptable checkpoint up to an offset of the journal, its offset, and the identity of its input."""
    candidates = [c for c in world.store.candidates() if c.manifest.model == plan.model]
    for candidate in sorted(candidates, key=lambda c: c.manifest.journal_offset, reverse=True):
        if candidate.manifest.journal_offset > until:
            continue
        found = _accept(plan, candidate, world.journal, world.report)
        if found is not None:
            return found, candidate.manifest.journal_offset, candidate.manifest.input
        world.store.discard(candidate.manifest)
    return None, -1, None


class _Ahead(NamedTuple):
    went_back: tuple[int, bytes, int, str | None] | None
    """The last record with the state of an earlier one: its offset, its bytes, the offset of that one, and the identity
    of the input if it or one before it names it.
    """
    input: str | None
    """The identity of the input that is named last."""
    t: int
    records: list[tuple[int, bytes]] | None
    """All of them, if they are few."""


def _look_ahead(journal: Journal, progress: Progress | None, offset: int, until: int) -> _Ahead:
    """What the records behind an offset hold; the chain is checked on the way."""
    found, known, t = None, None, -1 if progress is None else progress.state.t
    previous = None if progress is None else progress.link
    records: list[tuple[int, bytes]] | None = []
    size = 0
    for position, value in journal.read(offset + 1):
        if position > until:
            break
        record = read_journal(value)
        if previous is not None and record.previous != previous:
            raise LineageError(f"the journal record of step {record.t} does not follow the one before it")
        previous, known, t, size = link(value), record.input or known, record.t, size + len(value)
        if size > LOOKED_THROUGH:
            records = None
        elif records is not None:
            records.append((position, value))
        target = went_back_to(record)
        if target is not None:
            if target >= position:
                raise LineageError(f"the journal goes back at offset {position} to a record that came later")
            found = (position, value, target, known)
    return _Ahead(found, known, t, records)


def _accept(plan: Plan, candidate: Candidate, journal: Journal, report: Report) -> Progress | None:
    """The checkpoint's state where the journal has its record, or none and why."""
    manifest = candidate.manifest
    standing = next(journal.read(manifest.journal_offset), None)
    if standing is None or standing[0] != manifest.journal_offset:
        report(Warned(f"refused the checkpoint of step {manifest.t}: it is ahead of the journal", step=manifest.t))
        return None
    if link(standing[1]) != manifest.link:
        report(Warned(f"refused the checkpoint of step {manifest.t}: the journal has another history", step=manifest.t))
        return None
    check_lineage(plan, manifest.lineage)
    try:
        state, senses = state_of(manifest, candidate.load()), Senses.from_bytes(manifest.senses or b"")
        product = Product.from_bytes(manifest.product or b"")
    except StateError as error:
        report(Warned(f"refused the checkpoint of step {manifest.t}: {error}", step=manifest.t))
        return None
    draws = Chains(manifest.chains or {}, Counts(*(manifest.draws or ())))
    made = after(read_journal(standing[1]), standing[1], state, draws)
    return replace(made, senses=senses, product=product, fingerprint=manifest.fingerprint)


def replay_leg(
    plan: Plan, world: Recovery, progress: Progress | None, leg: Leg, kept: Kept | None = None
) -> tuple[Progress | None, int, int]:
    """Learn again what the records of a leg name; where that leads, the last offset, and how many steps."""
    offset, records = leg.behind, world.journal.read(leg.behind + 1) if leg.records is None else leg.records
    inputs, replayed, identity = None, 0, leg.input
    for position, value in records:
        if position > leg.last:
            break
        record = read_journal(value)
        if record.event == "genesis":
            progress = beginning(plan, record.resume)
        if progress is None:
            raise LineageError("the journal does not begin with a genesis")
        inputs = inputs or Inputs(world.source, progress.resume)
        identity, target = record.input or identity, went_back_to(record)
        if record.used and identity is not None and not same_topic(identity, world.source.identity):
            raise InputLost(f"step {record.t} learned from {identity}, which was deleted and made anew since")
        restored = kept.state(target) if kept is not None and target is not None else None
        used = [row for run in record.used for row in inputs.take(run)]
        progress, step = replay(plan, progress, value, used, world.workers, restored)
        inputs.drop(progress)
        if record.event in ("lost", "partitions"):
            inputs = None  # the positions are others now
        offset = position
        replayed += step is not None
        if kept is not None:
            kept.see(position, progress)
        world.on_record(progress, used, step, record)
    return progress, offset, replayed
