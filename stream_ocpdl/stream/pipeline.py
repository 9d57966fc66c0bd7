"""Records in, outputs out: where the mathematics and the stream meet. No I/O, no clock.

    feed(records)  →  step(now)  →  outputs of that step, all of which belong in one transaction

A `Progress` is all that decides what comes next: the state, the last link of the journal, and where reading goes on.
Live steps and replayed ones go through the same `learn`.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stream_ocpdl.errors import DataError, LineageError
from stream_ocpdl.fingerprint import fingerprint
from stream_ocpdl.ocpdl.batch import read_batch
from stream_ocpdl.ocpdl.learner import Step, advance
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.batching import Batcher, Batching, Cut, Item
from stream_ocpdl.stream.journal import GENESIS, JournalRecord, link, runs
from stream_ocpdl.stream.messages import Code, DeadLetter, Output, Record, Run, Snapshot, Tensor

REASON = 200
"""Characters of the reason for a refusal: it goes into the journal, whose records have to stay small."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """How far a model has come. `link` is empty before the genesis."""

    state: State
    link: bytes
    resume: dict[int, int]
    cursor: int = 0
    ahead: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a step gives to the world, in the order in which it is written; the record of the journal comes last."""

    outputs: tuple[Output, ...]
    step: Step | None


class Pipeline:
    """A model in motion."""

    def __init__(self, plan: Plan, progress: Progress, workers: Workers = SERIAL) -> None:
        self.plan = plan
        self.progress = progress
        self._workers = workers
        self._batcher = Batcher(plan.batching, list(progress.resume), progress.cursor)
        self._expected = dict(progress.resume)
        self._refused_before = progress.ahead
        """What an earlier life refused ahead of its turn; it comes by again."""

    @property
    def hungry(self) -> set[int]:
        """The partitions of which more is wanted."""
        return self._batcher.hungry

    def genesis(self, identity: str) -> Output:
        """The first record of the journal, with the identity of the input; to be written before any step."""
        record = JournalRecord(
            "genesis",
            GENESIS,
            resume=self.progress.resume,
            cursor=self.progress.cursor,
            input=identity,
            problem=self.plan.problem.digest(),
            fingerprint=fingerprint(),
            state=self.progress.state.digest(),
        )
        return self._journal(record)

    def feed(self, records: Iterable[Record], now: float) -> None:
        """Decode records and let them wait for their minibatch."""
        for record in records:
            partition, offset = record.position
            if offset < self._expected[partition]:
                raise LineageError(f"partition {partition} delivered offset {offset} again: a fault of the client")
            self._expected[partition] = offset + 1
            if any(p == partition and first <= offset <= last for p, first, last in self._refused_before):
                self._batcher.add(Item(replace(record, value=None), None, None, now, ((partition, offset, offset),)))
            else:
                self._batcher.add(decode(self.plan.problem, record, now))

    def step(self, now: float) -> Outcome | None:
        """Learn the next minibatch, if one is complete at this time."""
        cut = self._batcher.cut(now)
        if cut is None:
            return None
        before = self.progress
        step: Step | None = None
        state = before.state
        if cut.rows:
            state, step = learn(self.plan.problem, state, [item.array for item in cut.rows], self._workers)
        resume = before.resume | cut.reached
        ahead = (*cut.ahead, *self._still_to_come_by())
        self.progress = replace(before, state=state, resume=resume, cursor=cut.cursor, ahead=ahead)
        outputs = [*self._results(cut, step), self._journal(self._record(cut, step))]
        return Outcome(tuple(outputs), step)

    def _still_to_come_by(self) -> Iterable[Run]:
        """What an earlier life refused and this one has not read again yet."""
        for partition, first, last in self._refused_before:
            if self._expected[partition] <= last:
                yield partition, max(first, self._expected[partition]), last

    def _record(self, cut: Cut, step: Step | None) -> JournalRecord:
        positions = [item.record.position for item in cut.rows]
        now = self.progress
        return JournalRecord(
            event="step" if step else "refusal",
            previous=now.link,
            t=now.state.t,
            N=now.state.N,
            weight=step.weight if step else 0.0,
            used=runs(positions, cut.gaps),
            refused=tuple((*item.record.position, item.refusal or "") for item in cut.refused),
            resume=now.resume,
            ahead=now.ahead,
            cursor=now.cursor,
            checksum=checksum(item.record for item in cut.rows),
            state=now.state.digest() if now.state.t % self.plan.digest_every == 0 else None,
        )

    def _results(self, cut: Cut, step: Step | None) -> Iterable[Output]:
        """Codes, dead letters, and a snapshot if one is due."""
        for item in cut.refused:
            letter = DeadLetter(item.record, item.refusal or "")
            yield Output("dead-letters", item.record.key or b"", letter.to_bytes())
        if step is None:
            return
        for item, h, loss in zip(cut.rows, step.codes, step.coding.losses, strict=True):
            code = Code(self.plan.model, item.record.position, step.t, float(loss), h)
            yield Output("codes", item.record.key or b"", code.to_bytes())
        if step.t % self.plan.snapshot_every == 0:
            snapshot = Snapshot(self.plan.model, step.t, self.progress.state.loadings)
            yield Output("snapshots", self.plan.model.encode(), snapshot.to_bytes())

    def _journal(self, record: JournalRecord) -> Output:
        value = record.to_bytes()
        self.progress = replace(self.progress, link=link(value))
        return Output("journal", self.plan.model.encode(), value)


def beginning(plan: Plan, resume: dict[int, int]) -> Progress:
    """The progress of a model that has seen nothing, and begins to read here."""
    return Progress(State.initial(plan.problem), b"", resume, min(resume, default=0))


def decode(problem: Problem, record: Record, now: float) -> Item:
    """A record's tensor, or why it cannot be learned."""
    try:
        array = Tensor.from_bytes(record.value).array
        return Item(record, read_batch(problem, array[None]).X[0], None, now)
    except DataError as error:
        return Item(record, None, " ".join(str(error).split())[:REASON], now)


def learn(problem: Problem, state: State, arrays: Sequence[object], workers: Workers = SERIAL) -> tuple[State, Step]:
    """One step on these tensors, in this order."""
    return advance(problem, state, np.stack(arrays), workers)  # type: ignore[arg-type]


def checksum(records: Iterable[Record]) -> int:
    """CRC-32 over the values of records, in order."""
    total = 0
    for record in records:
        total = zlib.crc32(record.value or b"", total)
    return total


def replay(
    problem: Problem, progress: Progress, value: bytes, rows: Sequence[Record], workers: Workers = SERIAL
) -> tuple[Progress, Step | None]:
    """The progress after a record of the journal, from the input that it names. The record decides, and is checked."""
    record = JournalRecord.from_bytes(value)
    if record.event not in ("genesis", "step", "refusal"):
        raise LineageError(f"the journal has a record of event {record.event!r}, which this release does not know")
    if record.previous != (progress.link or GENESIS):
        raise LineageError(f"the journal record of step {record.t} does not follow the one before it")
    if record.event == "genesis":
        check_lineage(problem, record.problem, record.fingerprint)
    state, step = progress.state, None
    if record.event == "step":
        if checksum(rows) != record.checksum:
            raise LineageError(f"the input of step {record.t} is not what it was when it was learned")
        arrays = [Tensor.from_bytes(row.value).array.astype(problem.dtype) for row in rows]
        state, step = learn(problem, state, arrays, workers)
        if (step.t, step.N, step.weight) != (record.t, record.N, record.weight):
            raise LineageError(f"the journal has step {record.t}, {record.N} tensors; the replay {step.t}, {step.N}")
    if record.state is not None and record.state != state.digest():
        raise LineageError(f"the state after step {record.t} is not the one that the journal has")
    return after(record, value, state), step


def after(record: JournalRecord, value: bytes, state: State) -> Progress:
    """The progress after a record whose step led to this state."""
    return Progress(state, link(value), dict(record.resume), record.cursor, record.ahead)


def check_lineage(problem: Problem, digest: str | None, made_under: str | None) -> None:
    """Raise unless a journal or a checkpoint was made for this problem, and under conditions that give its bits."""
    if digest != problem.digest():
        raise LineageError(
            "the model was begun with another problem (shape, rank, penalties, weights, seed …);"
            " restore those settings, or give the model another name"
        )
    if made_under != fingerprint():
        raise LineageError(
            f"the model's bits were made under the numeric fingerprint {made_under}, here it is {fingerprint()}:"
            " another CPU, library or release; run it where it ran, or give the model another name"
        )
