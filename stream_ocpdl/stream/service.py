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

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from stream_ocpdl.errors import (
    ConfigError,
    InputLost,
    OcpdlError,
    Stopped,
    TooMuchRefused,
)
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.arrival import Arrival
from stream_ocpdl.stream.commits import Commits
from stream_ocpdl.stream.following import Follower
from stream_ocpdl.stream.messages import DeadLetter, Output
from stream_ocpdl.stream.pipeline import Pipeline, Spent
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Said, Warned
from stream_ocpdl.stream.recovery import Recovery
from stream_ocpdl.stream.requests import Answered, Desk
from stream_ocpdl.stream.world import Ports

LOOK = 60.0
"""Seconds between two looks at whether the input is still the same topic, with the same partitions."""

POLLED = 256
"""Records to ask for in one poll, at least: few calls, and all partitions get their turn."""

LONGEST_POLL_MS = 1000


@dataclass(frozen=True, slots=True)
class Pace:
    """How often what is written."""

    commit_interval_ms: int = 50
    checkpoint_every: int = 500
    """Steps between two checkpoints."""
    poll_timeout_ms: int = 20
    """At most a second: a service that is told to stop hears of it after the poll."""

    def __post_init__(self) -> None:
        for name, least in (("commit_interval_ms", 0), ("checkpoint_every", 1), ("poll_timeout_ms", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"pace.{name} must be a whole number, at least {least}, not {value!r}")
        if self.poll_timeout_ms > LONGEST_POLL_MS:
            raise ConfigError(f"pace.poll_timeout_ms must be at most {LONGEST_POLL_MS}, not {self.poll_timeout_ms}")


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
        arrival = Arrival(self.plan, self.ports, self.workers, self.warm)
        care = False
        before: tuple[type[OcpdlError], str] = (OcpdlError, "")
        while True:
            pipeline, broken = self._live(*arrival.arrive(care))  # 2
            if broken is None:
                return pipeline
            ended = (type(broken), pipeline.progress.link)
            if not isinstance(broken, Spent | InputLost) or ended == before:
                raise broken
            self.ports.report(Warned(f"{broken}; going back to the last commit"))
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
                    checkpointed = ports.keep(pipeline, commits.end())
            if pipeline.progress.state.t - checkpointed >= self.pace.checkpoint_every:
                checkpointed = ports.keep(pipeline, commits.end())
        offset = commits.end()
        if pipeline.progress.state.t > checkpointed:  # 4
            ports.keep(pipeline, offset)
        return pipeline, broken

    def _answers(self, commits: Commits, pipeline: Pipeline) -> Iterator[Answered]:
        """What operators asked for, done."""
        try:
            yield from self._desk(commits).answers(pipeline)
        except Stopped:
            commits.end()
            raise

    def _desk(self, commits: Commits) -> Desk:
        ports = self.ports
        world = Recovery(
            ports.source, ports.journal, ports.store, ports.report, ports.between_replays, workers=self.workers
        )
        return Desk(ports.control, commits, world, ports.at)

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
                watch.polled(len(records), now - began, pipeline.awaited)
            else:
                outputs.extend(outcome.outputs)
                watch.stepped(pipeline, outcome, now - began)
                if outcome.begun is not None:
                    said = f"a new epoch, {pipeline.progress.epoch}: {outcome.begun}"
                    ports.report(Said(said, step=pipeline.progress.state.t))
                if outcome.step is not None and outcome.step.judged is not None and outcome.step.judged.change:
                    self._say_changed(outcome.step.t, outcome.step.judged.change)
            if now >= deadline or (outcome is not None and self.plan.rounds is not None):  # others wait for it
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
                    self.ports.report(Warned(said, topic=letter.topic, partition=partition, offset=offset))
