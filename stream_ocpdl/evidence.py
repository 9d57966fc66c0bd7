"""What a model has left on its topics, and which promises that breaks.

Everything is rebuilt from the journal and the input alone, by a replay from scratch: the state, every code, every
snapshot. Then it is compared with what was published, and with what the newest checkpoint and the group hold.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from stream_ocpdl.ocpdl.learner import Step
from stream_ocpdl.settings import Settings
from stream_ocpdl.stream.checkpoint import NoStore
from stream_ocpdl.stream.journal import JournalRecord
from stream_ocpdl.stream.kafka import Connection, KafkaSource, Stored, committed, partitions_of_topic, read_committed
from stream_ocpdl.stream.messages import Code, DeadLetter, Position, Record, Snapshot
from stream_ocpdl.stream.pipeline import Plan, Progress
from stream_ocpdl.stream.recovery import recover
from stream_ocpdl.stream.topics import TopicJournal, Topics, TopicStore


@dataclass(slots=True)
class Evidence:
    """What a model published, and what a replay of its journal says that it should have."""

    codes: Counter[bytes] = field(default_factory=Counter)
    dead_letters: Counter[bytes] = field(default_factory=Counter)
    steps: int = 0
    state: str = ""
    broken: list[str] = field(default_factory=list)
    """The promises that do not hold."""


def examine(connection: Connection, settings: Settings) -> Evidence:
    """Compare everything with everything."""
    plan, topics = settings.plan(), Topics.of(settings.model, settings.input)
    inputs = dict(_inputs(connection, settings.input))
    found, wanted = Evidence(), Expected(plan)
    with closing(KafkaSource(connection, settings.input, f"{settings.model}.examined")) as source:
        journal = TopicJournal(connection, topics.journal)
        replayed = recover(plan, source, journal, NoStore(), lambda _: None, wanted.after_record)
        records = [JournalRecord.from_bytes(value) for _, value in journal.read()]
    found.steps, found.state = replayed.progress.state.t, replayed.progress.state.digest()
    found.codes = Counter(_values(connection, topics.codes))
    found.dead_letters = Counter(_values(connection, topics.dead_letters))
    refused = {Position(p, offset): reason for record in records for p, offset, reason in record.refused}
    letters = Counter(DeadLetter(Record(p, None, inputs.get(p)), reason).to_bytes() for p, reason in refused.items())

    def check(holds: bool, promise: str) -> None:
        if not holds:
            found.broken.append(promise)

    check(found.codes == wanted.codes, "every code is published once, as a replay finds it")
    check(found.dead_letters == letters, "every refused input is one dead letter, with its bytes")
    check(Counter(_values(connection, topics.snapshots)) == wanted.snapshots, "every snapshot is published once")
    check(wanted.learned == Counter(set(inputs) - set(refused)), "every input is in one step or refused")
    check(committed(connection, settings.model, settings.input) == records[-1].resume, "positions are the journal's")
    newest = next(TopicStore(connection, topics.state, settings.model).candidates()).manifest
    check(newest.link == replayed.progress.link, "the newest checkpoint is of the last step")
    check(newest.sha256 == found.state, "the state of the newest checkpoint is that of a replay of the journal")
    return found


class Expected:
    """What a replay says that was to be published."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.codes: Counter[bytes] = Counter()
        self.snapshots: Counter[bytes] = Counter()
        self.learned: Counter[Position] = Counter()

    def after_record(self, progress: Progress, rows: Sequence[Record], step: Step | None) -> None:
        """Note what this step had to publish."""
        if step is None:
            return
        for row, h, loss in zip(rows, step.codes, step.coding.losses, strict=True):
            self.codes[Code(self._plan.model, row.position, step.t, float(loss), h).to_bytes()] += 1
            self.learned[row.position] += 1
        if step.t % self._plan.snapshot_every == 0:
            self.snapshots[Snapshot(self._plan.model, step.t, progress.state.loadings).to_bytes()] += 1


def _inputs(connection: Connection, topic: str) -> Iterator[tuple[Position, bytes | None]]:
    for record in _all(connection, topic):
        yield Position(record.partition, record.offset), record.value


def _values(connection: Connection, topic: str) -> Iterator[bytes]:
    return (record.value or b"" for record in _all(connection, topic))


def _all(connection: Connection, topic: str) -> Iterator[Stored]:
    """The committed records of all partitions."""
    for partition in partitions_of_topic(connection, topic):
        yield from read_committed(connection, topic, partition)
