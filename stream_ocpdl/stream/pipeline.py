"""Records in, outputs out: where the mathematics and the stream meet. No I/O, no clock.

    feed(records)  →  step(now)  →  outputs of that step, all of which belong in one transaction

A `Progress` is all that decides what comes next: the state, the last link of the journal, and where reading goes on.
Live steps and replayed ones go through the same `learn`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from stream_ocpdl.errors import DataError, LineageError, NumericError, OcpdlError
from stream_ocpdl.ocpdl.arrays import Array, BigArray, empty
from stream_ocpdl.ocpdl.batch import Packed
from stream_ocpdl.ocpdl.blame import blame
from stream_ocpdl.ocpdl.diagnostics import figures
from stream_ocpdl.ocpdl.entries import AnyBatch
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.sums import Sums
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.absorbing import intake_of, learn, minibatch
from stream_ocpdl.stream.batching import Batcher
from stream_ocpdl.stream.intake import Intake, is_plain
from stream_ocpdl.stream.items import Cut, Item, Sheet, origins_of, place_of
from stream_ocpdl.stream.messages import (
    GENESIS,
    JournalRecord,
    Mould,
    Origin,
    Output,
    Partial,
    Position,
    Record,
    Refused,
    Run,
    Tensor,
    input_hash,
    link,
    runs,
)
from stream_ocpdl.stream.messages.fields import TEXT
from stream_ocpdl.stream.outputs import codes, dead_letter, shown, snapshot
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import Progress, judged, within
from stream_ocpdl.stream.refusals import Tally
from stream_ocpdl.stream.rounds import RoundBatcher
from stream_ocpdl.stream.terms import terms_of
from stream_ocpdl.stream.warm import Warm, to_bytes

_position: Callable[[Record], Position] = itemgetter(0)

REFUSALS = 1000
"""The most in one record of the journal."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a step gives to the world, in the order in which it is written; the record of the journal comes last."""

    outputs: tuple[Output, ...]
    step: Step | None
    refused: tuple[str, ...] = ()
    """The kinds of the errors of those that were refused."""
    letters: tuple[Refused, ...] = ()
    """Those that were refused, each with the reason."""
    positions: tuple[Position, ...] = ()
    """Where the tensors were, in the order of the rows."""
    origins: Sequence[Origin | None] = ()
    """Of which chains the rows are draws; nothing where none is."""
    energies: Array | None = None
    """‖X‖² of each row."""
    begun: str | None = None
    """Why a new epoch began before the step."""
    newest: int = -1
    """The timestamp of the last row, in milliseconds since 1970; −1 if it has none."""
    tensors: int = 0
    """How many were learned."""
    staleness: int | None = None
    """Of a round of partials: by how many steps the oldest of their dictionaries is behind."""


class Spent(NumericError):
    """A step in place had a result that is not finite, and the state is void. It has to be made again, and the step to
    be taken with care.
    """


class Pipeline:
    """A model in motion.

    With `care` the first step is tried on a copy of the state, and tensors because of which it has a result that is not
    finite are refused.
    """

    def __init__(
        self, plan: Plan, progress: Progress, identity: str, workers: Workers = SERIAL, care: bool = False
    ) -> None:
        self.plan = plan
        self.progress = progress
        self.identity = identity
        self._workers = workers
        self._care = care
        self._place: BigArray | None = None
        self._intake = intake_of(plan, progress.resume)
        self._batcher = (
            Batcher(plan.batching, list(progress.resume), progress.cursor)
            if plan.rounds is None
            else RoundBatcher(list(progress.resume))
        )
        self._expected = dict(progress.resume)
        self._before = progress
        """Where an earlier life ended. What it had done with, or refused ahead of its turn, comes by again."""
        self._ahead = progress.ahead
        """What of that was done with ahead of its turn, and is still to come by."""

    @property
    def hungry(self) -> set[int]:
        """The partitions of which more is wanted."""
        return self._batcher.hungry

    @property
    def awaited(self) -> set[int]:
        """The partitions that hold up what others have."""
        return self._batcher.awaited

    @property
    def problem(self) -> Problem:
        """The problem on the terms in force."""
        return self.progress.problem(self.plan)

    def genesis(self, warm: Warm | None = None) -> Output:
        """The first record of the journal; to be written before any step."""
        now = self.progress
        identity = {"input": self.identity, "lineage": self.plan.lineage(), "fingerprint": now.fingerprint}
        begun = {"terms": terms_of(self.plan.problem), "state": now.state.digest()}
        if warm is not None:
            begun |= {"loadings": to_bytes(now.state.loadings), "reason": warm.origin[:TEXT]}
        return self._journal(_record(now, GENESIS, "genesis", **identity | begun))

    def record(self, progress: Progress, event: str, **more: Any) -> Output:
        """Go on from a progress that came about between two steps, with a record that says how."""
        previous, self.progress = self.progress.link, progress
        return self._journal(_record(progress, previous, event, **more))

    def note(self, event: str, **more: Any) -> Output:
        """A record of the journal of something that happened to the input."""
        now = self.progress
        return self._journal(_record(now, now.link, event, state=now.state.digest(), **more))

    def feed(self, records: Sequence[Record], now: float) -> None:
        """Decode records and let them wait for their minibatch."""
        self._ahead = tuple(self._still_to_come_by(self._ahead)) if self._ahead else ()
        at = 0
        while at < len(records):
            mould = self._mould()
            end = at if mould is None or self._ahead else self._plain(records, at, mould)
            if end > at and isinstance(self._batcher, Batcher):
                self._batcher.add_plain(records[at:end], now)
            else:
                self._feed_one(records[at], mould, now)
            at = max(end, at + 1)

    def _plain(self, records: Sequence[Record], at: int, mould: Mould) -> int:
        """Where the records from this one on end that are plain tensors in their order, and only that: in a partition
        of which pieces are open, these may have waited for too long.
        """
        expected, reached, pieces = self._expected, self._before.reached, self._intake.open
        for k in range(at, len(records)):
            partition, offset = records[k][0]
            if offset < expected[partition] or offset < reached[partition] or partition in pieces:
                return k
            if not is_plain(records[k], mould):
                return k
            expected[partition] = offset + 1
        return len(records)

    def _feed_one(self, record: Record, mould: Mould | None, now: float) -> None:
        before, batcher, (partition, offset) = self._before, self._batcher, record.position
        if offset < self._expected[partition]:
            raise LineageError(f"partition {partition} delivered offset {offset} again: a fault of the client")
        self._expected[partition] = offset + 1
        if offset < before.reached[partition]:
            self._read_again(record, now)
        elif self._ahead and within(record.position, self._ahead):
            item = self._intake.read(record, now)
            batcher.add(_again(item, within(record.position, before.learned)))
        elif mould is not None and is_plain(record, mould) and isinstance(batcher, Batcher):
            given_up = self._intake.pass_by(record.position)
            if not given_up:
                batcher.add_plain([record], now)
            else:
                batcher.add(Item(record.position, now, Tensor.plain(record.value), (record,), given_up))
        else:
            batcher.add(self._intake.read(record, now))

    def _mould(self) -> Mould | None:
        """What makes a record a plain tensor now, if anything does."""
        if not isinstance(self._intake, Intake) or not isinstance(self._batcher, Batcher):
            return None
        mould = self._intake.mould
        return mould if self._batcher.takes(mould) else None

    def _read_again(self, record: Record, now: float) -> None:
        """A record that an earlier life was done with, but for a message in pieces that may need it."""
        if within(record.position, self._before.open):
            item = self._intake.read(record, now)._replace(late=True)
            if item.refused:  # what came before it is gone
                self._batcher.add(item)

    def step(self, now: float) -> Outcome | None:
        """Learn the next minibatch, if one is complete at this time."""
        ready = self._gather(now)
        if ready is None:
            return None
        cut, batch, axes, state = ready
        before, step, letters = self.progress, None, self._refused(cut)
        senses = before.senses
        tally = self._tally(cut)
        origins, used = cut.rows.origins, cut.rows.used
        begun = self._begun(origins)
        if begun is not None:
            before = replace(before, epoch=before.epoch + 1)
        if batch is not None:
            state, step = self._advance(state, batch)
            step, senses = judged(self.problem, before, batch, step)
        journal = [] if begun is None else [self._begin_epoch(before, begun)]
        reached = before.reached | cut.reached
        open_ = self._open(reached)
        self.progress = replace(
            before,
            link=self.progress.link,
            state=state,
            resume=reached | {p: first for p, first, _ in reversed(open_)},
            reached=reached,
            open=open_,
            cursor=cut.cursor,
            ahead=(*cut.ahead, *self._still_to_come_by(self._before.ahead)),
            learned=(*cut.learned, *self._still_to_come_by(self._before.learned)),
            axes=axes,
            tally=tally,
            senses=senses,
            draws=before.draws.after(origins, letters),
            product=before.product.after(origins, before.epoch),
        )
        told = {"used": runs(map(_position, used)), "xxh3": None if step is None else input_hash(used)}
        journal += [self._journal(record) for record in self._records(before, step, letters, told)]
        kinds, positions = tuple(r.error for r in letters), tuple(map(_position, cut.rows.records))
        drawn = origins if any(origins) else ()
        energies = None if batch is None or isinstance(batch, Sums) else batch.energies
        outputs = (*self._results(cut, step), *journal)
        newest = cut.rows.records[-1].timestamp if cut.rows.records else -1
        known = kinds, tuple(letters), positions, drawn, energies, begun, newest
        return Outcome(outputs, step, *known, 0 if batch is None else len(batch), _staleness(cut, state))

    def _begun(self, origins: Sequence[Origin | None]) -> str | None:
        """Why these rows begin another product of chains, if minibatches are draws of one."""
        one_per_chain = self.plan.batching.rows == "one-per-chain"
        return self.progress.product.ended(origins, self.progress.epoch) if one_per_chain else None

    def _begin_epoch(self, standing: Progress, why: str) -> Output:
        """The record of an epoch that begins before a step, for which it has not been asked for a digest."""
        fields = {"fingerprint": standing.fingerprint, "reason": why}
        return self._journal(_record(standing, standing.link, "epoch", **fields))

    def _gather(self, now: float) -> tuple[Cut, AnyBatch | Sums | None, tuple[str, ...] | None, State] | None:
        """The next minibatch, copied together and checked on the way; whoever fails the check loses the row.

        With it comes the state to go on from: the present one, with the units of the data if these are fixed now.
        """
        while (rows := self._batcher.complete(now)) is not None:
            batch: AnyBatch | Sums | None = None
            state = self.progress.state
            wrong = self._out_of_turn(rows)
            if rows and not wrong:
                found = self._tensors(rows)
                state, batch, refused = minibatch(self.plan, self.plan.problem, state, found, self._workers, self._room)
                wrong = {place_of(rows, j): DataError(reason) for j, reason in refused.items()}
            axes, misnamed = _named(self.progress.axes, self._names(rows, wrong))
            wrong |= misnamed
            if not wrong and not isinstance(rows, Sheet):
                judged = self.plan.draws.judge(self.progress.draws, origins_of(rows))
                wrong |= {rows[j].position: error for j, error in judged.items()}
            if self._care and batch is not None and not isinstance(batch, Sums) and not wrong:
                guilty = blame(self.problem, state, batch, self._workers)
                wrong = {place_of(rows, j): NumericError(reason) for j, reason in guilty.items()}
            if not wrong:
                return self._batcher.take(rows), batch, axes, state
            self._batcher.refuse(wrong)
        return None

    def _tensors(self, rows: list[Item] | Sheet) -> Sequence[Tensor | Partial] | Packed:
        """What is in the rows; plain tensors are not looked at one by one."""
        if not isinstance(rows, Sheet):
            return [item.tensor for item in rows if item.tensor is not None]
        values = [record.value or b"" for record in rows.records]
        return Packed(values, rows.mould.start, rows.mould.shape, rows.mould.dtype)

    def _names(
        self, rows: list[Item] | Sheet, wrong: Mapping[Position, OcpdlError]
    ) -> Iterable[tuple[Position, tuple[str, ...] | None]]:
        """The names that rows have for their modes, but for those that are wrong; plain tensors have all the same."""
        if not isinstance(rows, Sheet):
            named = (item for item in rows if item.position not in wrong)
            return ((item.position, item.tensor.axes if item.tensor is not None else None) for item in named)
        axes = rows.mould.axes
        new = axes is not None and axes != self.progress.axes
        return ((record.position, axes) for record in rows.records if record.position not in wrong) if new else ()

    def _out_of_turn(self, rows: list[Item] | Sheet) -> dict[Position, OcpdlError]:
        """The partials that are none of the next step, each with the reason."""
        if isinstance(rows, Sheet):
            return {}
        rounds, t = self.plan.rounds, self.progress.state.t
        found = [(item.position, item.tensor) for item in rows if isinstance(item.tensor, Partial)]
        told = [(at, rounds.wrong(partial, at.partition, t)) for at, partial in found] if rounds is not None else []
        return {at: error for at, error in told if error is not None}

    def _room(self, rows: int) -> BigArray:
        """Memory for a minibatch: always the same, since new memory costs as much as the copy into it."""
        if self._place is None or len(self._place) < rows:
            self._place = empty((rows, *self.problem.shape), self.problem.dtype)
        return self._place[:rows]

    def _advance(self, state: State, batch: AnyBatch | Sums) -> tuple[State, Step]:
        """The next state, in the memory of the present one."""
        self._care = False
        try:
            return learn(self.problem, state, batch, self._workers)
        except NumericError as error:
            raise Spent(str(error)) from error

    def _tally(self, cut: Cut) -> Tally:
        """What was refused, this included; raise if it is too much."""
        count, last = self.plan.refusals.count, cut.refused[-1].reason if cut.refused else ""
        tally = count(self.progress.tally, cut.history, last)
        count(tally, cut.waiting, last)
        return tally

    def _open(self, reached: dict[int, int]) -> tuple[Run, ...]:
        """The open pieces; in partitions that this life has not read so far again, those that an earlier one left."""
        read = {p: offset for p, offset in reached.items() if self._expected[p] >= offset}
        known = [Position(p, k) for p, offsets in sorted(self._intake.waiting(read).items()) for k in offsets]
        return (*(run for run in self._before.open if run[0] not in read), *runs(known))

    def _still_to_come_by(self, done: Iterable[Run]) -> Iterable[Run]:
        """What of that which an earlier life was done with ahead of its turn this one has not read again yet."""
        for partition, first, last in done:
            if self._expected[partition] <= last:
                yield partition, max(first, self._expected[partition]), last

    def _refused(self, cut: Cut) -> list[Refused]:
        return [Refused(*r.record.position, r.error, r.reason) for r in cut.refused]

    def _records(
        self, before: Progress, step: Step | None, letters: Sequence[Refused], told: dict[str, Any]
    ) -> Iterable[JournalRecord]:
        """The record of a step; very many refusals have records of their own before it, so that each can be read."""
        refused = list(letters)
        while len(refused) > REFUSALS:
            yield _record(before, self.progress.link, refused=tuple(refused[:REFUSALS]))
            del refused[:REFUSALS]
        now = self.progress
        yield _record(
            now,
            now.link,
            event="step" if step else "refusal",
            weight=step.weight if step else 0.0,
            refused=tuple(refused),
            **told | self._digested(now.state, step),
        )

    def _digested(self, state: State, step: Step | None) -> dict[str, Any]:
        """Now and then what a state is: its digest, and figures that can be compared where digests cannot."""
        if state.t % self.plan.digest_every != 0:
            return {}
        told = {"figures": figures(self.progress.problem(self.plan), state, self._workers)} if step else {}
        return {"state": state.digest(), **told}

    def _results(self, cut: Cut, step: Step | None) -> Iterable[Output]:
        """Codes, dead letters, and a snapshot if one is due."""
        for refusal in cut.refused:
            yield dead_letter(self.plan, refusal.record, refusal.error, refusal.reason)
        if step is None:
            return
        if self.plan.codes:
            yield from codes(self.plan, step, cut.rows.records, self.progress.epoch)
        if shown(self.plan, step.t):
            yield snapshot(self.plan, self.progress, step.weight, self.identity)

    def _journal(self, record: JournalRecord) -> Output:
        value = record.to_bytes()
        self.progress = replace(self.progress, link=link(value))
        return Output("journal", self.plan.model.encode(), value)


def _record(progress: Progress, previous: str, event: str = "refusal", **more: Any) -> JournalRecord:
    """A record of the journal after which a model stands here."""
    standing = {"terms": progress.terms, "epoch": progress.epoch or None, "control": progress.control}
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
        tally=progress.tally if any(progress.tally) else None,
        learned=progress.learned or None,
        **standing | more,
    )


def _staleness(cut: Cut, after: State) -> int | None:
    """By how many steps the oldest dictionary of a round is behind."""
    return max((after.t - 1 - partial.dictionary.t for partial in cut.rows.partials), default=None)


def _again(item: Item, learned: bool) -> Item:
    """The place of a record that an earlier life was done with ahead of its turn: refused, if it brought anything."""
    places = ((item.position.partition, item.position.offset, item.position.offset),) if learned else ()
    done = (1,) if learned else () if item.empty else (-1,)
    return Item(item.position, item.arrived, done=done, learned=places)


def _named(
    axes: tuple[str, ...] | None, names: Iterable[tuple[Position, tuple[str, ...] | None]]
) -> tuple[tuple[str, ...] | None, dict[Position, DataError]]:
    """The names of the modes, told by the first tensor that has any; and the rows that have others."""
    wrong: dict[Position, DataError] = {}
    for position, told in names:
        axes = axes or told
        if told is not None and told != axes:
            wrong[position] = DataError(f"axes is {list(told)}, those of the model are {list(axes or ())}")
    return axes, wrong
