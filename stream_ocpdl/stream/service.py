"""The loop. It sees ports, not Kafka.

    1. Fence every predecessor.
    2. Recover: checkpoint, then replay.
    3. Poll, feed, step, until it is time to commit; then codes, dead letters, snapshots, journal and positions in one
       transaction. Checkpoints only after their step is committed.
    4. When told to stop: commit what is learned, write a checkpoint, end.

What is learned and not yet committed exists in memory alone. A process that dies loses it and learns it again from the
same input; a transaction that was aborted is written again from the same bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from stream_ocpdl.errors import ConfigError, Fenced, OcpdlError, Stopped
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.checkpoint import CheckpointStore, manifest_of
from stream_ocpdl.stream.messages import DeadLetter, Output
from stream_ocpdl.stream.pipeline import Pipeline
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import CrashPoint, Journal, Outbox, Said, Source, no_crash
from stream_ocpdl.stream.recovery import Follower, Recovered, Report, recover, starts

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
    since: float | None = None
    """When it was asked to run, by the same clock."""


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
        self.ports.outbox.open()  # 1
        self.ports.store.open()
        pipeline, offset, checkpointed = self._recover()  # 2
        while not self.ports.stopping():  # 3
            outputs = self._work(pipeline)
            if outputs:
                offset = self.ports.outbox.commit(outputs, pipeline.progress.resume)
                self._say_refused(outputs)
            if pipeline.progress.state.t - checkpointed >= self.pace.checkpoint_every:
                self._checkpoint(pipeline, offset)
                checkpointed = pipeline.progress.state.t
        if pipeline.progress.state.t > checkpointed:  # 4
            self._checkpoint(pipeline, offset)
        return pipeline

    def _recover(self) -> tuple[Pipeline, int, int]:
        """A pipeline where the model stands, the journal's last offset, and the step of the last checkpoint.

        A new model begins its journal.
        """
        ports = self.ports
        found, standby = self._found()
        pipeline = Pipeline(self.plan, found.progress, ports.source.identity, self.workers)
        offset = found.journal_offset
        if offset < 0:
            offset = ports.outbox.commit([pipeline.genesis()], pipeline.progress.resume)
        ports.source.start(starts(pipeline.progress, ports.source))
        t = pipeline.progress.state.t
        fields = {"step": t, "replayed": found.replayed, "standby": standby}
        if ports.since is not None:
            fields["seconds"] = round(ports.now() - ports.since, 3)
        ports.report(Said(f"ready at step {t}, {found.replayed} steps replayed", **fields))
        return pipeline, offset, t - found.replayed

    def _found(self) -> tuple[Recovered, str]:
        """Where the model stands: the tail of the journal if somebody has followed it, or all that is needed of it."""
        ports, follower = self.ports, self.warm()
        if follower is not None:
            follower.on_record = self._between_replays
            try:
                return follower.catch_up(), "warm"
            except (Stopped, Fenced):
                raise
            except OcpdlError as error:
                ports.report(f"what was followed cannot be used, and is begun again: {error}")
        return recover(
            self.plan, ports.source, ports.journal, ports.store, ports.report, self._between_replays, self.workers
        ), "cold"

    def _between_replays(self, *_: object) -> None:
        self.ports.at("in-replay")
        if self.ports.stopping():
            raise Stopped("asked to stop while recovering; nothing was changed")

    def _work(self, pipeline: Pipeline) -> list[Output]:
        """Learn until the commit interval has passed; all outputs of that time."""
        ports, pace = self.ports, self.pace
        outputs: list[Output] = []
        deadline = ports.now() + pace.commit_interval_ms / 1000
        while not ports.stopping():
            outcome = pipeline.step(ports.now())
            if outcome is not None:
                outputs.extend(outcome.outputs)
            else:
                wanted = max(self.plan.batching.size, POLLED)
                pipeline.feed(ports.source.poll(wanted, pace.poll_timeout_ms / 1000, pipeline.hungry), ports.now())
            if ports.now() >= deadline:
                break
        return outputs

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
        manifest = manifest_of(self.plan, progress, journal_offset, self.ports.source.identity)
        self.ports.store.save(manifest, progress.state.parts)
