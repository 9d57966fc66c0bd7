"""The loop. It sees ports, not Kafka.

    1. Fence every predecessor.
    2. Recover: checkpoint, then replay.
    3. Poll, feed, step, until it is time to commit; then codes, dead letters, snapshots, journal and positions in one
       transaction, which is written while the next minibatches are learned. Checkpoints only after their step is
       committed.
       Between two commits requests of operators are answered (`requests`).
    4. When told to stop: commit what is learned, write a checkpoint, end.

What is learned and not yet committed exists in memory alone. A process that dies loses it and learns it again from the
same input; a transaction that was aborted is written again from the same bytes.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from stream_ocpdl.errors import (
    BrokerError,
    ConfigError,
    Fenced,
    InputLost,
    LineageError,
    OcpdlError,
    Stopped,
    TooMuchRefused,
)
from stream_ocpdl.ocpdl.diagnostics import figures
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.checkpoint import CheckpointStore, manifest_of
from stream_ocpdl.stream.following import Follower
from stream_ocpdl.stream.genesis import Beginning
from stream_ocpdl.stream.inputs import starts
from stream_ocpdl.stream.lost import Noted, reconcile
from stream_ocpdl.stream.messages import DeadLetter, Output
from stream_ocpdl.stream.pipeline import Pipeline, Spent
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Control, CrashPoint, Journal, NoControl, Outbox, Said, Source, no_crash
from stream_ocpdl.stream.progress import Progress, here
from stream_ocpdl.stream.recovery import Recovered, Recovery, Report, recover
from stream_ocpdl.stream.requests import Answered, Desk
from stream_ocpdl.stream.terms import terms_of, told_apart
from stream_ocpdl.stream.watch import Unwatched, Watch

LOOK = 60.0
"""Seconds between two looks at whether the input is still the same topic, with the same partitions."""

POLLED = 256
"""Records to ask for in one poll, at least: few calls, and all partitions get their turn."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The world."""

    source: Source
    journal: Journal
    outbox: Outbox
    store: CheckpointStore
    now: Callable[[], float]
    """Seconds of a clock that only goes forward."""
    stopping: Callable[[], bool]
    report: Report
    at: CrashPoint = no_crash
    control: Control = NoControl()  # noqa: RUF009  (it has no state)
    begin: Beginning | None = None
    """How a new model begins; without it with the earliest input."""
    since: float | None = None
    """When it was asked to run, by the same clock."""
    aside: "Aside | None" = None
    """How a transaction is written beside the learning; without it it is written at once."""
    watch: Watch = Unwatched()  # noqa: RUF009


@dataclass(frozen=True, slots=True)
class Pace:
    """How often what is written."""

    commit_interval_ms: int = 50
    checkpoint_every: int = 500
    """Steps between two checkpoints."""
    poll_timeout_ms: int = 20

    def __post_init__(self) -> None:
        for name, least in (("commit_interval_ms", 0), ("checkpoint_every", 1), ("poll_timeout_ms", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"pace.{name} must be a whole number, at least {least}, not {value!r}")


@dataclass(slots=True)
class Service:
    """One model, one writer."""

    plan: Plan
    ports: Ports
    pace: Pace = field(default_factory=Pace)
    workers: Workers = SERIAL
    warm: Callable[[], Follower | None] = lambda: None
    """Asked once every predecessor is fenced: a replay that has come far already."""
    refused: int = 0
    next_said: int = 1

    def run(self) -> Pipeline:
        """Work until told to stop; the pipeline as it was left, all of it committed."""
        self.ports.watch.phase("fencing")
        self.ports.outbox.open()  # 1
        self.ports.store.open()
        care = False
        before: tuple[type[OcpdlError], str] = (OcpdlError, "")
        while True:
            pipeline, broken = self._live(*self._recover(care))  # 2
            if broken is None:
                return pipeline
            ended = (type(broken), pipeline.progress.link)
            if not isinstance(broken, Spent | InputLost) or ended == before:
                raise broken
            self.ports.report(Said(f"{broken}; going back to the last commit"))
            care, before = isinstance(broken, Spent), ended
            if not care:
                self.ports.source.changed()  # it may be another topic by now

    def _live(self, pipeline: Pipeline, offset: int, checkpointed: int) -> tuple[Pipeline, OcpdlError | None]:
        """Work until told to stop, or until something is wrong with the input: that is returned, all else committed."""
        ports, commits, broken = self.ports, Commits(self.ports.outbox, offset, self.ports.aside), None
        next_look = ports.now() + LOOK
        while not ports.stopping():  # 3
            outputs, broken = self._work(pipeline)
            commits.look()
            if outputs:
                commits.begin(outputs, pipeline.progress.resume)
                self._say_refused(outputs)
            if broken is None and ports.now() >= next_look:
                next_look = ports.now() + LOOK
                broken = InputLost("the input has changed") if ports.source.changed() else None
            if isinstance(broken, Spent):
                commits.end()
                return pipeline, broken
            if broken is not None:
                break
            for answered in self._answers(commits, pipeline):
                pipeline = answered.pipeline
                ports.at("after-answer")
                checkpointed = min(checkpointed, pipeline.progress.state.t - 1)  # one more, at the end at least
                if answered.went_back:
                    checkpointed = self._checkpoint(pipeline, commits.end())
            if pipeline.progress.state.t - checkpointed >= self.pace.checkpoint_every:
                checkpointed = self._checkpoint(pipeline, commits.end())
        offset = commits.end()
        if pipeline.progress.state.t > checkpointed:  # 4
            self._checkpoint(pipeline, offset)
        return pipeline, broken

    def _recover(self, care: bool = False) -> tuple[Pipeline, int, int]:
        """A pipeline where the model stands, the journal's last offset, and the step of the last checkpoint.

        A new model begins its journal.
        """
        ports = self.ports
        ports.watch.phase("recovering")
        found, standby = self._found()
        noted = reconcile(found.plan, found.progress, found.input, found.lost, ports.source)
        progress = found.progress if noted is None else noted.progress
        pipeline = Pipeline(found.plan, progress, ports.source.identity, self.workers, care)
        offset, t = found.journal_offset, progress.state.t
        checkpointed = t - (found.replayed if found.behind is None else found.behind)
        if offset < 0:
            offset = ports.outbox.commit([pipeline.genesis(found.warm)], progress.resume)
        else:
            self._hold_to_terms(found)
            if noted is not None:
                if checkpointed < t and found.lost is None:
                    self._keep(found)
                offset, checkpointed = self._note(pipeline, noted), t
            elif not care:
                self._compare_positions(progress)
            if not progress.exact or progress.fingerprint != here():
                offset = self._begin_epoch(pipeline)
                checkpointed = self._checkpoint(pipeline, offset)
            elif found.went_back:
                checkpointed = self._checkpoint(pipeline, offset)
        ports.source.start(starts(pipeline.progress, ports.source))
        fields: dict[str, Any] = {"step": t, "replayed": found.replayed, "standby": standby}
        if ports.since is not None and not care:
            fields["seconds"] = round(ports.now() - ports.since, 3)
        ports.watch.ready(pipeline, found.replayed, standby, fields.get("seconds"))
        ports.report(Said(f"ready at step {t}, {found.replayed} steps replayed", **fields))
        return pipeline, offset, checkpointed

    def _found(self) -> tuple[Recovered, str]:
        """Where the model stands: the tail of the journal if somebody has followed it, or all that is needed of it."""
        ports, follower = self.ports, self.warm()
        if follower is not None:
            try:
                found = follower.catch_up(self._between_replays)
            except (Stopped, Fenced):
                raise
            except OcpdlError as error:
                ports.report(f"what was followed cannot be used, and is begun again: {error}")
            else:
                if found is not None and found.progress.exact:
                    return found, "warm"
        return recover(
            self.plan,
            ports.source,
            ports.journal,
            ports.store,
            ports.report,
            self._between_replays,
            self.workers,
            ports.begin,
        ), "cold"

    def _keep(self, found: Recovered) -> None:
        """A checkpoint of what was found: after what is noted now, nobody could make it again.

        A standby knows steps whose input is gone.
        """
        manifest = manifest_of(found.plan, found.progress, found.journal_offset, found.input or "")
        self.ports.store.save(manifest, found.progress.state.parts)

    def _note(self, pipeline: Pipeline, noted: Noted) -> int:
        """Journal what is missing or new, and keep it at once: nothing before it will be needed again."""
        offset = self.ports.outbox.commit([pipeline.note(noted.event, **noted.more)], pipeline.progress.resume)
        for line in noted.said:
            self.ports.report(line)
        self._checkpoint(pipeline, offset)
        return offset

    def _answers(self, commits: "Commits", pipeline: Pipeline) -> Iterator[Answered]:
        """What operators asked for, done."""
        try:
            yield from self._desk(commits).answers(pipeline)
        except Stopped:
            commits.end()
            raise

    def _desk(self, commits: "Commits") -> Desk:
        ports = self.ports
        world = Recovery(
            ports.source, ports.journal, ports.store, ports.report, self._between_replays, workers=self.workers
        )
        return Desk(ports.control, commits, world, ports.at)

    def _hold_to_terms(self, found: Recovered) -> None:
        """Raise unless the settings have the terms that the model began with, or those in force, which hold."""
        mine, first = terms_of(self.plan.problem), terms_of(found.plan.problem)
        now = found.progress.terms or first
        if mine not in (first, now):
            raise LineageError(
                f"the settings ask for another problem than the journal has: {told_apart(now, mine)}; restore them, and"
                " change a model that is running with: stream-ocpdl reconfigure"
            )
        if mine != now:
            self.ports.report(Said(f"the model was reconfigured, and the journal holds: {told_apart(mine, now)}"))

    def _begin_epoch(self, pipeline: Pipeline) -> int:
        """Journal that bits are others from here on, because they are made under other conditions."""
        before = pipeline.progress
        now = replace(before, epoch=before.epoch + 1, fingerprint=here(), exact=True)
        reason = f"numeric fingerprint {before.fingerprint} → {now.fingerprint}"
        self.ports.report(Said(f"a new epoch, {now.epoch}: {reason}", step=now.state.t))
        figures_now = figures(now.problem(pipeline.plan), now.state, self.workers)
        told = {"state": now.state.digest(), "figures": figures_now, "fingerprint": now.fingerprint, "reason": reason}
        return self.ports.outbox.commit([pipeline.record(now, "epoch", **told)], now.resume)

    def _compare_positions(self, progress: Progress) -> None:
        """Say so if somebody has moved the positions; the journal is the truth."""
        try:
            positions = self.ports.source.committed()
        except BrokerError as error:
            self.ports.report(Said(f"the positions of the group are not known: {error}"))
            return
        for partition, offset in progress.resume.items():
            if positions.get(partition, -1) != offset:
                told = f"the group is at {positions.get(partition, 'no offset')} in partition {partition}"
                said = f"{told}, which somebody else set, or time; the journal's {offset} is used"
                self.ports.report(Said(said, partition=partition, offset=offset))

    def _between_replays(self, *_: object) -> None:
        self.ports.watch.turned()
        self.ports.at("in-replay")
        if self.ports.stopping():
            raise Stopped("asked to stop while recovering; nothing was changed")

    def _work(self, pipeline: Pipeline) -> tuple[list[Output], OcpdlError | None]:
        """Learn until the commit interval has passed; all outputs of that time, and what ended it early."""
        ports, watch, wanted = self.ports, self.ports.watch, max(self.plan.batching.size, POLLED)
        outputs: list[Output] = []
        began = ports.now()
        deadline = began + self.pace.commit_interval_ms / 1000
        while not ports.stopping():
            try:
                outcome = pipeline.step(began)
                if outcome is None:
                    records = ports.source.poll(wanted, self.pace.poll_timeout_ms / 1000, pipeline.hungry)
                    pipeline.feed(records, ports.now())
            except (InputLost, Spent, TooMuchRefused) as error:
                return outputs, error
            now = ports.now()
            if outcome is None:
                watch.polled(len(records), now - began)
            else:
                outputs.extend(outcome.outputs)
                watch.stepped(pipeline, outcome, now - began)
                if outcome.step is not None and outcome.step.judged is not None and outcome.step.judged.change:
                    self._say_changed(outcome.step.t, outcome.step.judged.change)
            if now >= deadline:
                break
            began = now
        watch.turned()
        return outputs, None

    def _say_changed(self, t: int, change: str) -> None:
        """The data are not what they were."""
        how = "tensors are explained worse than before" if change == "structure" else "they are larger, or smaller"
        self.ports.report(Said(f"the data have changed in {change}: {how}", step=t, change=change))

    def _say_refused(self, outputs: list[Output]) -> None:
        """The first refusal, the tenth, the hundredth …: enough to see that something is wrong, and what."""
        for output in outputs:
            if output.stream == "dead-letters":
                self.refused += 1
                if self.refused == self.next_said:
                    self.next_said *= 10
                    letter = DeadLetter.from_bytes(output.value)
                    partition, offset = letter.record.position
                    said = f"refused, {self.refused} so far, to the dead letters: {letter.reason}"
                    self.ports.report(Said(said, topic=letter.topic, partition=partition, offset=offset))

    def _checkpoint(self, pipeline: Pipeline, journal_offset: int) -> int:
        """Write a checkpoint; the step that it is of."""
        progress = pipeline.progress
        manifest = manifest_of(pipeline.plan, progress, journal_offset, pipeline.identity)
        self.ports.store.save(manifest, progress.state.parts)
        return progress.state.t


Aside: TypeAlias = Callable[[Callable[[], int]], Future[int]]
"""Makes a call somewhere else."""


def aside(call: Callable[[], int]) -> Future[int]:
    """Make a call in a thread of its own; one that hangs holds up nobody's end."""
    future: Future[int] = Future()
    threading.Thread(target=_make, args=(call, future), name="commit", daemon=True).start()
    return future


def _make(call: Callable[[], int], future: Future[int]) -> None:
    """Make a call. An error keeps its frames, and those must not keep the error: else the client would live on."""
    try:
        future.set_result(call())
    except BaseException as error:  # whoever waits for the result is to hear of it
        future.set_exception(error)
    finally:
        del call, future


class Commits:
    """The way out, one transaction at a time: each waits for the one before it, and says what went wrong."""

    def __init__(self, outbox: Outbox, offset: int, aside: "Aside | None" = None) -> None:
        self._outbox, self._offset, self._aside = outbox, offset, aside
        self._pending: Future[int] | None = None

    def open(self) -> None:
        """It is."""

    def begin(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> None:
        """Write outputs and positions; nothing of them changes any more."""
        self.end()
        if self._aside is None:
            self._went_on(self._outbox.commit(outputs, positions))
        else:
            self._pending = self._aside(partial(self._outbox.commit, outputs, positions))

    def look(self) -> None:
        """Hear of what went wrong, if that is known by now."""
        if self._pending is not None and self._pending.done():
            self.end()

    def end(self) -> int:
        """Wait until everything begun is committed; the offset of the journal's last record."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            try:
                self._went_on(pending.result())
            finally:
                del pending  # as in `_make`
        return self._offset

    def _went_on(self, offset: int) -> None:
        """Raise unless the journal has grown: another one of its name would begin in the middle, and prove nothing."""
        if offset <= self._offset:
            raise LineageError(
                f"the journal stood at offset {self._offset}, and the next record is at {offset}: it was deleted and"
                " made anew while it was written, and the past of the model is gone. Give the model another name"
            )
        self._offset = offset

    def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> int:
        """Both."""
        self.begin(outputs, positions)
        return self.end()
