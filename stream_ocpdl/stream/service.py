"""The loop. It sees ports, not Kafka.

    1. Fence every predecessor.
    2. Recover: checkpoint, then replay.
    3. Poll, feed, step, until it is time to commit; then codes, dead letters, snapshots, journal and positions in one
       transaction. Checkpoints only after their step is committed.
    4. When told to stop: commit what is learned, write a checkpoint, end.

A step that leaves the range of floating point takes the state with it, for it was taken in place. What was learned
before it is committed, and 2 and 3 come again, with care for one step. So they do when input is gone, or partitions
were added: recovery is where such things are dealt with.

What is learned and not yet committed exists in memory alone. A process that dies loses it and learns it again from the
same input; a transaction that was aborted is written again from the same bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from stream_ocpdl.errors import BrokerError, ConfigError, InputLost, OcpdlError, Stopped, TooMuchRefused
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.checkpoint import CheckpointStore, manifest_of
from stream_ocpdl.stream.lost import reconcile
from stream_ocpdl.stream.messages import DeadLetter, Output
from stream_ocpdl.stream.pipeline import Pipeline, Spent
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import CrashPoint, Journal, Outbox, Said, Source, no_crash
from stream_ocpdl.stream.progress import Progress
from stream_ocpdl.stream.recovery import Recovered, Report, recover, starts

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
    refused: int = 0
    next_said: int = 1

    def run(self) -> Pipeline:
        """Work until told to stop; the pipeline as it was left, all of it committed."""
        self.ports.outbox.open()  # 1
        self.ports.store.open()
        care, ended_at = False, ""
        while True:
            life = self._recover(care)  # 2
            broken = self._live(*life)
            if broken is None:
                return life[0]
            link = life[0].progress.link
            if not isinstance(broken, Spent | InputLost) or link == ended_at:
                raise broken
            self.ports.report(Said(f"{broken}; going back to the last commit"))
            care, ended_at = isinstance(broken, Spent), link

    def _live(self, pipeline: Pipeline, offset: int, checkpointed: int) -> OcpdlError | None:
        """Work until told to stop, or until something is wrong with the input: that is returned, all else committed."""
        next_look, broken = self.ports.now() + LOOK, None
        while not self.ports.stopping():  # 3
            outputs, broken = self._work(pipeline)
            if outputs:
                offset = self.ports.outbox.commit(outputs, pipeline.progress.resume)
                self._say_refused(outputs)
            if broken is None and self.ports.now() >= next_look:
                next_look = self.ports.now() + LOOK
                broken = InputLost("the input has changed") if self.ports.source.changed() else None
            if isinstance(broken, Spent):
                return broken
            if broken is not None:
                break
            if pipeline.progress.state.t - checkpointed >= self.pace.checkpoint_every:
                self._checkpoint(pipeline, offset)
                checkpointed = pipeline.progress.state.t
        if pipeline.progress.state.t > checkpointed:  # 4
            self._checkpoint(pipeline, offset)
        return broken

    def _recover(self, care: bool = False) -> tuple[Pipeline, int, int]:
        """A pipeline where the model stands, the journal's last offset, and the step of the last checkpoint.

        A new model begins its journal.
        """
        ports = self.ports
        found: Recovered = recover(
            self.plan, ports.source, ports.journal, ports.store, ports.report, self._between_replays, self.workers
        )
        noted = reconcile(self.plan, found.progress, found.input, found.base, ports.source)
        progress = found.progress if noted is None else noted.progress
        pipeline = Pipeline(self.plan, progress, ports.source.identity, self.workers, care)
        offset, t = found.journal_offset, progress.state.t
        checkpointed = t - found.replayed
        if offset < 0:
            offset = ports.outbox.commit([pipeline.genesis()], progress.resume)
        elif noted is not None:
            offset = ports.outbox.commit([pipeline.note(noted.event, **noted.more)], progress.resume)
            for line in noted.said:
                ports.report(line)
            self._checkpoint(pipeline, offset)
            checkpointed = t
        else:
            self._compare_positions(progress)
        ports.source.start(starts(progress, ports.source))
        ports.report(Said(f"ready at step {t}, {found.replayed} steps replayed", step=t, replayed=found.replayed))
        return pipeline, offset, checkpointed

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
        self.ports.at("in-replay")
        if self.ports.stopping():
            raise Stopped("asked to stop while recovering; nothing was changed")

    def _work(self, pipeline: Pipeline) -> tuple[list[Output], OcpdlError | None]:
        """Learn until the commit interval has passed; all outputs of that time, and what ended it early."""
        ports, pace = self.ports, self.pace
        outputs: list[Output] = []
        deadline = ports.now() + pace.commit_interval_ms / 1000
        while not ports.stopping():
            try:
                outcome = pipeline.step(ports.now())
                if outcome is None:
                    wanted = max(self.plan.batching.size, POLLED)
                    pipeline.feed(ports.source.poll(wanted, pace.poll_timeout_ms / 1000, pipeline.hungry), ports.now())
            except (InputLost, Spent, TooMuchRefused) as error:
                return outputs, error
            if outcome is not None:
                outputs.extend(outcome.outputs)
            if ports.now() >= deadline:
                break
        return outputs, None

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

    def _checkpoint(self, pipeline: Pipeline, journal_offset: int) -> None:
        progress = pipeline.progress
        manifest = manifest_of(self.plan, progress, journal_offset, pipeline.identity)
        self.ports.store.save(manifest, progress.state.parts)
