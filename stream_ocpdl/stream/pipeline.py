"""Records in, outputs out: where the mathematics and the stream meet. No I/O, no clock.

    feed(records)  →  step(now)  →  outputs of that step, all of which belong in one transaction

A `Progress` is all that decides what comes next: the state, the last link of the journal, and where reading goes on.
Live steps and replayed ones go through the same `learn`.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from stream_ocpdl.errors import ConfigError, DataError, DecodeError, LineageError
from stream_ocpdl.fingerprint import fingerprint
from stream_ocpdl.ocpdl.batch import Batch, gather
from stream_ocpdl.ocpdl.diagnostics import assumption_card
from stream_ocpdl.ocpdl.learner import Step, advance
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.batching import Batcher, Batching, Cut, Item
from stream_ocpdl.stream.formats import Format
from stream_ocpdl.stream.intake import KEY, Intake
from stream_ocpdl.stream.messages import (
    GENESIS,
    Code,
    DeadLetter,
    Headers,
    JournalRecord,
    Output,
    Position,
    Record,
    Refused,
    Run,
    Snapshot,
    Version,
    checksum,
    link,
    runs,
)
from stream_ocpdl.stream.messages.fields import TEXT, Fields

REFUSALS = 1000
"""The most in one record of the journal."""

CARRIED = ("traceparent", "tracestate")
"""The headers of a tensor that go with its code."""

CARRIED_BYTES = 1024
"""The most that one of them may have; W3C asks for 512 of a tracestate."""

MODEL = "[A-Za-z0-9._-]{1,200}"
"""The name of a model: topics are named after it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a model is to learn, from what, and how often it shows its dictionary."""

    model: str
    problem: Problem
    batching: Batching = Batching()  # noqa: RUF009  (frozen)
    snapshot_every: int = 100
    """Steps between two snapshots."""
    digest_every: int = 100
    """Steps between two records of the journal that carry the digest of the state."""
    topic: str = "input"
    """The name of the input, for dead letters."""
    format: Format = Format()  # noqa: RUF009
    axes: tuple[str, ...] | None = None
    """Names of the modes; without them the first tensor that has names gives them."""

    def __post_init__(self) -> None:
        if not re.fullmatch(MODEL, self.model):
            raise ConfigError(
                f"model must be 1 to 200 letters, digits, dots, dashes or underscores, not {self.model!r}"
            )
        if self.axes is not None and not (isinstance(self.axes, tuple) and self._named_right(self.axes)):
            raise ConfigError(f"axes must be a list of {self.problem.modes} different names, not {self.axes!r}")
        for name in ("snapshot_every", "digest_every"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} must be a whole number, at least 1, not {value!r}")

    def _named_right(self, axes: tuple[str, ...]) -> bool:
        with suppress(DecodeError):
            return len(Fields({"kind": "", "axes": list(axes)}, "").axes()) == self.problem.modes
        return False

    def lineage(self) -> str:
        """The digest of all that decides bits, beside the input and the order of its rows."""
        return sha256(f"{self.problem.digest()} {self.format}".encode()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """How far a model has come. `link` is empty before the genesis."""

    state: State
    link: str
    resume: dict[int, int]
    """Where reading goes on."""
    reached: dict[int, int]
    """Below these offsets all is done, but for the open pieces."""
    open: tuple[Run, ...] = ()
    """Pieces that wait for the rest of their message."""
    cursor: int = 0
    ahead: tuple[Run, ...] = ()
    axes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a step gives to the world, in the order in which it is written; the record of the journal comes last."""

    outputs: tuple[Output, ...]
    step: Step | None


class Pipeline:
    """A model in motion."""

    def __init__(self, plan: Plan, progress: Progress, identity: str, workers: Workers = SERIAL) -> None:
        self.plan = plan
        self.progress = progress
        self._identity = identity
        self._workers = workers
        self._intake = Intake(plan.format, plan.problem.shape, progress.resume)
        self._batcher = Batcher(plan.batching, list(progress.resume), progress.cursor)
        self._expected = dict(progress.resume)
        self._before = progress
        """Where an earlier life ended. What it had done with, or refused ahead of its turn, comes by again."""

    @property
    def hungry(self) -> set[int]:
        """The partitions of which more is wanted."""
        return self._batcher.hungry

    def genesis(self) -> Output:
        """The first record of the journal; to be written before any step."""
        now = self.progress
        identity = {"input": self._identity, "lineage": self.plan.lineage(), "fingerprint": fingerprint()}
        return self._journal(_record(now, GENESIS, "genesis", state=now.state.digest(), **identity))

    def feed(self, records: Iterable[Record], now: float) -> None:
        """Decode records and let them wait for their minibatch."""
        for record in records:
            partition, offset = record.position
            if offset < self._expected[partition]:
                raise LineageError(f"partition {partition} delivered offset {offset} again: a fault of the client")
            self._expected[partition] = offset + 1
            if offset >= self._before.reached[partition]:
                item = self._intake.read(record, now)
                self._batcher.add(Item(record.position, now) if within(record, self._before.ahead) else item)
            elif within(record, self._before.open):
                item = replace(self._intake.read(record, now), late=True)
                if item.refused:  # what came before it is gone
                    self._batcher.add(item)

    def step(self, now: float) -> Outcome | None:
        """Learn the next minibatch, if one is complete at this time."""
        ready = self._gather(now)
        if ready is None:
            return None
        cut, batch, axes = ready
        before, step, state = self.progress, None, self.progress.state
        if batch is not None:
            state, step = advance(self.plan.problem, state, batch, self._workers, consume=True)
        reached = before.reached | cut.reached
        open_ = self._open(reached)
        self.progress = replace(
            before,
            state=state,
            resume=reached | {p: first for p, first, _ in reversed(open_)},
            reached=reached,
            open=open_,
            cursor=cut.cursor,
            ahead=(*cut.ahead, *self._still_to_come_by()),
            axes=axes,
        )
        journal = [self._journal(record) for record in self._records(before, cut, step)]
        return Outcome((*self._results(cut, step), *journal), step)

    def _gather(self, now: float) -> tuple[Cut, Batch | None, tuple[str, ...] | None] | None:
        """The next minibatch, copied together and checked on the way; whoever fails the check loses the row."""
        while (rows := self._batcher.complete(now)) is not None:
            batch: Batch | None = None
            wrong: dict[Position, DataError] = {}
            if rows:
                arrays = [item.tensor.array for item in rows if item.tensor is not None]
                batch, refused = gather(self.plan.problem, arrays, self._workers)
                wrong = {rows[j].position: DataError(reason) for j, reason in refused.items()}
            axes, misnamed = _named(self.progress.axes, [item for item in rows if item.position not in wrong])
            if not wrong and not misnamed:
                return self._batcher.take(rows), batch, axes
            self._batcher.refuse(wrong | misnamed)
        return None

    def _open(self, reached: dict[int, int]) -> tuple[Run, ...]:
        """The open pieces; in partitions that this life has not read so far again, those that an earlier one left."""
        read = {p: offset for p, offset in reached.items() if self._expected[p] >= offset}
        known = [Position(p, k) for p, offsets in sorted(self._intake.waiting(read).items()) for k in offsets]
        return (*(run for run in self._before.open if run[0] not in read), *runs(known))

    def _still_to_come_by(self) -> Iterable[Run]:
        """What an earlier life refused ahead of its turn, and this one has not read again yet."""
        for partition, first, last in self._before.ahead:
            if self._expected[partition] <= last:
                yield partition, max(first, self._expected[partition]), last

    def _records(self, before: Progress, cut: Cut, step: Step | None) -> Iterable[JournalRecord]:
        """The record of a step; very many refusals have records of their own before it, so that each can be read."""
        refused = [Refused(*r.record.position, r.error, r.reason) for r in cut.refused]
        while len(refused) > REFUSALS:
            yield _record(before, self.progress.link, refused=tuple(refused[:REFUSALS]))
            del refused[:REFUSALS]
        used = [record for item in cut.rows for record in item.parts]
        now = self.progress
        yield _record(
            now,
            now.link,
            event="step" if step else "refusal",
            weight=step.weight if step else 0.0,
            used=runs(record.position for record in used),
            refused=tuple(refused),
            checksum=checksum(*(record.value or b"" for record in used)),
            state=now.state.digest() if now.state.t % self.plan.digest_every == 0 else None,
        )

    def _results(self, cut: Cut, step: Step | None) -> Iterable[Output]:
        """Codes, dead letters, and a snapshot if one is due."""
        for refusal in cut.refused:
            yield dead_letter(self.plan, refusal.record, refusal.error, refusal.reason)
        if step is None:
            return
        yield from codes(self.plan, step, [item.parts[-1] for item in cut.rows])
        if shown(self.plan, step.t):
            yield snapshot(self.plan, self.progress, step, self._identity)

    def _journal(self, record: JournalRecord) -> Output:
        value = record.to_bytes()
        self.progress = replace(self.progress, link=link(value))
        return Output("journal", self.plan.model.encode(), value)


def _record(progress: Progress, previous: str, event: str = "refusal", **more: Any) -> JournalRecord:
    """A record of the journal after which a model stands here."""
    return JournalRecord(
        event,
        previous,
        t=progress.state.t,
        N=progress.state.N,
        resume=progress.resume,
        reached=progress.reached,
        open=progress.open,
        ahead=progress.ahead,
        cursor=progress.cursor,
        axes=progress.axes,
        **more,
    )


def within(record: Record, places: Iterable[Run]) -> bool:
    """Whether a record is in one of these runs."""
    partition, offset = record.position
    return any(p == partition and first <= offset <= last for p, first, last in places)


def _named(
    axes: tuple[str, ...] | None, rows: Sequence[Item]
) -> tuple[tuple[str, ...] | None, dict[Position, DataError]]:
    """The names of the modes, told by the first tensor that has any; and the rows that have others."""
    wrong: dict[Position, DataError] = {}
    for item in rows:
        told = item.tensor.axes if item.tensor is not None else None
        axes = axes or told
        if told is not None and told != axes:
            wrong[item.position] = DataError(f"axes is {list(told)}, those of the model are {list(axes or ())}")
    return axes, wrong


# ── what is written ────────────────────────────────────────────────────────────────────────────────────────────


def codes(plan: Plan, step: Step, rows: Iterable[Record]) -> Iterable[Output]:
    """The codes of a step; each row is given by its record, or the one of its last piece."""
    dictionary = Version(plan.model, step.t - 1)
    for record, h, loss in zip(rows, step.codes, step.coding.losses, strict=True):
        code = Code(dictionary, step.t, record.position, float(loss), h)
        headers = (*_event(plan, "code", _place(record)), *_carried(record.headers))
        yield Output("codes", record.key, code.to_bytes(), headers, max(record.timestamp, 0))


def _carried(headers: Headers) -> Headers:
    """The headers of a tensor that go with its code: one of each name, and none so long that a code could not go."""
    first = {name: value for name, value in reversed(headers) if name in CARRIED and len(value or b"") <= CARRIED_BYTES}
    return tuple(first.items())


def shown(plan: Plan, t: int) -> bool:
    """Whether the dictionary is shown after step t: after the first, and then now and then."""
    return t == 1 or t % plan.snapshot_every == 0


def snapshot(plan: Plan, progress: Progress, step: Step, identity: str) -> Output:
    """The dictionary after a step."""
    state, version = progress.state, Version(plan.model, step.t)
    found = Snapshot(
        version=version,
        tensors=state.N,
        loadings=state.loadings,
        axes=progress.axes,
        weight=step.weight,
        schedule=str(plan.problem.weights)[:TEXT],
        card=assumption_card(plan.problem, state),
        atoms=tuple(range(plan.problem.rank)),
        input=identity,
        positions=progress.resume,
    )
    return Output("snapshots", b"%d" % version.shard, found.to_bytes(), _event(plan, "snapshot", str(version)))


def dead_letter(plan: Plan, record: Record, error: str, reason: str) -> Output:
    """A record that was refused."""
    letter = DeadLetter(plan.topic, record, error, reason)
    key = record.key if record.key and len(record.key) <= KEY else None
    return Output("dead-letters", key, letter.to_bytes(), _event(plan, "dead-letter", _place(record)))


def _place(record: Record) -> str:
    return f"{record.position.partition}:{record.position.offset}"


def _event(plan: Plan, kind: str, name: str) -> Headers:
    """Headers as CloudEvents has them in its binary mode."""
    return (
        ("ce_specversion", b"1.0"),
        ("ce_type", f"stream_ocpdl.{kind}".encode()),
        ("ce_source", f"/stream_ocpdl/{plan.model}".encode()),
        ("ce_id", name.encode()),
        ("content-type", b"application/vnd.stream-ocpdl.v1"),
    )


# ── once more ──────────────────────────────────────────────────────────────────────────────────────────────────


def beginning(plan: Plan, resume: dict[int, int]) -> Progress:
    """The progress of a model that has seen nothing, and begins to read here."""
    return Progress(State.initial(plan.problem), "", resume, resume, cursor=min(resume, default=0), axes=plan.axes)


def replay(
    plan: Plan, progress: Progress, value: bytes, used: Sequence[Record], workers: Workers = SERIAL
) -> tuple[Progress, Step | None]:
    """The progress after a record of the journal, from the input that it names. The record decides, and is checked."""
    record = read_journal(value)
    if record.previous != (progress.link or GENESIS):
        raise LineageError(f"the journal record of step {record.t} does not follow the one before it")
    if record.event == "genesis":
        check_lineage(plan, record.lineage, record.fingerprint)
    state, step = progress.state, None
    if record.event == "step":
        if checksum(*(row.value or b"" for row in used)) != record.checksum:
            raise LineageError(f"the input of step {record.t} is not what it was when it was learned")
        rows = Intake(plan.format, plan.problem.shape, ()).rows(used)
        batch, _ = gather(plan.problem, [tensor.array for _, tensor in rows], workers)
        state, step = advance(plan.problem, state, batch, workers, consume=True)
        if (step.t, step.N, step.weight) != (record.t, record.N, record.weight):
            raise LineageError(f"the journal has step {record.t}, {record.N} tensors; the replay {step.t}, {step.N}")
    if record.state is not None and record.state != state.digest():
        raise LineageError(f"the state after step {record.t} is not the one that the journal has")
    return after(record, value, state), step


def read_journal(value: bytes) -> JournalRecord:
    """A record of the journal; one that cannot be read is of another history, or of a later release."""
    try:
        return JournalRecord.from_bytes(value)
    except DecodeError as error:
        raise LineageError(f"the journal has a record that this release cannot read: {error}") from error


def after(record: JournalRecord, value: bytes, state: State) -> Progress:
    """The progress after a record whose step led to this state."""
    return Progress(
        state, link(value), record.resume, record.reached, record.open, record.cursor, record.ahead, record.axes
    )


def check_lineage(plan: Plan, lineage: str | None, made_under: str | None) -> None:
    """Raise unless a journal or a checkpoint was made for this problem, and under conditions that give its bits."""
    if lineage != plan.lineage():
        raise LineageError(
            "the model was begun with another problem (shape, rank, penalties, weights, seed …) or input format;"
            " restore those settings, or give the model another name"
        )
    if made_under != fingerprint():
        raise LineageError(
            f"the model's bits were made under the numeric fingerprint {made_under}, here it is {fingerprint()}:"
            " another CPU, library or release; run it where it ran, or give the model another name"
        )
