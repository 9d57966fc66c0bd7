"""The drill: what an operator wants to have seen before production, on one machine and a real broker.

    1. deploy     topics, and two processes of the service: one is elected, the other stands by
    2. stream     tensors come, some of them poison; codes are published
    3. kill       the one that writes, as a power cut does
    4. recover    the other takes over, and goes on
    5. hand over  a process of another numeric fingerprint joins, as a new release is one; the old one is told to stop
    6. go back    the same with the release before: a rollback of the software
    7. verify     everything that was published is compared with a replay from scratch

Between two fingerprints an epoch is journaled. What makes them differ here is a variable that says in words what Numba
does anyway: so the bits are the same, and the replay is held to them.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from stream_ocpdl.config.settings import Settings
from stream_ocpdl.evidence import Evidence, all_records, examine
from stream_ocpdl.lives import Life, VerificationFailed
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.storm import owns
from stream_ocpdl.stream.kafka import Connection, create_topics, delete_topics, watermarks
from stream_ocpdl.stream.messages import JournalRecord
from stream_ocpdl.verification import Feed, Trial, finish, settings_of

OTHER_RELEASE = {"NUMBA_SLP_VECTORIZE": "0"}
"""Another fingerprint, and the same bits."""

WAIT = 120.0
"""Seconds for anything that has to come."""


@dataclass(frozen=True, slots=True)
class Done:
    """One line of the checklist."""

    name: str
    well: bool
    what: str


@dataclass(slots=True)
class Drill:
    """A model of its own, the processes that serve it, and the checklist so far."""

    settings: Settings
    connection: Connection
    tell: Callable[[Done], None]
    stack: ExitStack
    checklist: list[Done] = field(default_factory=list)

    @contextmanager
    def item(self, name: str) -> Iterator[list[str]]:
        """A line of the checklist, good if nothing fails; what was seen is put into the list."""
        began, seen = time.monotonic(), list[str]()
        try:
            yield seen
        except VerificationFailed as error:
            self._note(Done(name, False, str(error)))
            raise
        self._note(Done(name, True, f"{'; '.join(seen)} ({time.monotonic() - began:.1f} s)"))

    def start(self, **variables: str) -> Life:
        """Another process."""
        return self.stack.enter_context(Life(self.settings, **variables))

    def codes(self) -> int:
        """Offsets that codes take by now."""
        topics = self.settings.topics()
        ends = watermarks(self.connection, topics.codes, range(1))
        return sum(high for _, high in ends.values())

    def goes_on(self) -> None:
        """Wait until codes are published that were not there before."""
        before = self.codes()
        until(lambda: self.codes() > before, "no code was published")

    def epochs(self) -> list[str]:
        """Why epochs began, as the journal has it."""
        records = (JournalRecord.from_bytes(one.value) for one in all_records(self.connection, self._journal))
        return [record.reason or "" for record in records if record.event == "epoch"]

    @property
    def _journal(self) -> str:
        return self.settings.topics().journal

    def _note(self, done: Done) -> None:
        self.checklist.append(done)
        self.tell(done)


def until(holds: Callable[[], bool], otherwise: str, *lives: Life) -> None:
    """Wait for something, for as long as all processes live."""
    deadline = time.monotonic() + WAIT
    while not holds():
        for life in lives:
            if life.process.poll() is not None:
                raise VerificationFailed(f"a process ended by itself with code {life.process.returncode}")
        if time.monotonic() > deadline:
            raise VerificationFailed(f"{otherwise} in {WAIT:.0f} s")
        time.sleep(0.1)


def drill(bootstrap_servers: str, tell: Callable[[Done], None]) -> list[Done]:
    """Go through the list; it ends with the first line that is not good."""
    trial = Trial(bootstrap_servers, partitions=2, report=lambda _: None)
    connection, name = Connection(bootstrap_servers), f"ocpdl-drill-{uuid.uuid4().hex[:8]}"
    settings = settings_of(trial, f"{name}.model", f"{name}.input")
    with ExitStack() as stack:
        topics = {settings.topic: (trial.partitions, dict[str, str]())} | settings.topics().outputs(trial.partitions)
        stack.callback(delete_topics, connection, topics)
        here = Drill(settings, connection, tell, stack)
        with suppress(VerificationFailed):  # it is in the list
            _walk(here, trial, topics)
    return here.checklist


def _walk(here: Drill, trial: Trial, topics: dict[str, tuple[int, dict[str, str]]]) -> None:
    with here.item("deploy") as seen:
        made = create_topics(here.connection, topics)
        warm_up(here.settings.plan().problem)  # what is compiled here no process has to compile
        first, second = here.start(), here.start()
        until(lambda: owns(first) != owns(second), "nobody was elected", first, second)
        writer, standby = (first, second) if owns(first) else (second, first)
        until(lambda: "standby" in standby.log, "nobody stands by", first, second)
        seen.append(f"{len(made)} topics, two processes: one writes, one stands by")
    with here.item("stream") as seen:
        feed = Feed(trial)
        feed.begin(here.connection, here.settings.topic)
        until(lambda: here.codes() > 0, "no code was published", writer, standby)
        here.goes_on()
        seen.append(f"codes up to offset {here.codes()} of their first partition")
    with here.item("kill") as seen:
        writer.process.kill()
        seen.append(f"SIGKILL to process {writer.process.pid}, which wrote")
    with here.item("recover") as seen:
        until(lambda: owns(standby), "nobody took over", standby)
        here.goes_on()
        seen.append("the standby writes, after its predecessor was missed")
    newer = _hand_over(here, "hand over", standby, 1, **OTHER_RELEASE)
    last = _hand_over(here, "go back", newer, 2)
    with here.item("verify") as seen:
        inputs = feed.end()
        _stop(last)
        finish(trial, here.settings)
        found = examine(here.connection, here.settings)
        seen.append(judged(found, inputs))


def _hand_over(here: Drill, name: str, old: Life, epoch: int, **variables: str) -> Life:
    """A process of another release takes over from one that is told to stop, and begins an epoch."""
    with here.item(name) as seen:
        new = here.start(**variables)
        until(lambda: "standby" in new.log, "the new process does not stand by", new, old)
        began = time.monotonic()
        _stop(old)
        until(lambda: owns(new), "the new process did not take over", new)
        seconds = time.monotonic() - began
        here.goes_on()
        reasons = here.epochs()
        if len(reasons) != epoch:
            raise VerificationFailed(f"{epoch} epochs should have been journaled, not {len(reasons)}")
        seen.append(f"without a writer for {seconds:.1f} s; epoch {epoch}: {reasons[-1]}")
    return new


def _stop(life: Life) -> None:
    life.process.terminate()
    if life.process.wait(60) != 0:
        raise VerificationFailed(f"a process ended with {life.process.returncode} when it was told to stop")


def judged(found: Evidence, inputs: int) -> str:
    """What the evidence comes to, if all is well."""
    if found.broken:
        raise VerificationFailed("; ".join(f"it does not hold that {promise}" for promise in found.broken))
    letters = found.dead_letters.total()
    if found.learned + letters != inputs:
        raise VerificationFailed(f"{inputs} inputs, but {found.learned} learned and {letters} dead letters")
    return f"{inputs} inputs, {found.codes.total()} codes, {letters} dead letters: each once, as a replay finds them"
