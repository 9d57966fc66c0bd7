"""What a model has left on its topics, and which promises that breaks.

Everything is rebuilt from the journal and the input alone, by a replay from scratch: the state, every code, every
snapshot. Then it is compared with what was published, and with what the newest checkpoint and the group hold.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from stream_ocpdl.config.settings import Settings
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.stream.assembly import whole
from stream_ocpdl.stream.checkpoint import NoStore
from stream_ocpdl.stream.genesis import begun
from stream_ocpdl.stream.intake import Intake
from stream_ocpdl.stream.kafka import Connection, KafkaSource, committed, partitions_of_topic, read_committed
from stream_ocpdl.stream.messages import JournalRecord, Position, Record
from stream_ocpdl.stream.outputs import codes, dead_letter, shown, snapshot
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import Progress
from stream_ocpdl.stream.recovery import Recovery
from stream_ocpdl.stream.replaying import replay_all
from stream_ocpdl.stream.topics import TopicJournal, Topics, TopicStore


@dataclass(slots=True)
class Evidence:
    """What a model published, and what a replay of its journal says that it should have."""

    codes: Counter[bytes] = field(default_factory=Counter)
    dead_letters: Counter[bytes] = field(default_factory=Counter)
    learned: int = 0
    """Records of the input that are in a step."""
    steps: int = 0
    state: str = ""
    broken: list[str] = field(default_factory=list)
    """The promises that do not hold."""


def examine(connection: Connection, settings: Settings) -> Evidence:
    """Compare everything with everything."""
    plan, topics = settings.plan(), Topics.of(settings.model, settings.topic)
    inputs = {record.position: record for record in all_records(connection, settings.topic)}
    found = Evidence()
    with closing(KafkaSource(connection, settings.topic, f"{settings.model}.examined")) as source:
        journal = TopicJournal(connection, topics.journal)
        plan = begun(plan, journal) or plan
        wanted = Expected(plan, source.identity)
        world = Recovery(source, journal, NoStore(), lambda _: None, wanted.after_record)
        replayed = replay_all(plan, world)
        records = [JournalRecord.from_bytes(value) for _, value in journal.read()]
    found.steps, found.state = replayed.progress.state.t, replayed.progress.state.digest()
    found.learned, found.codes = wanted.learned.total(), Counter(_values(connection, topics.codes))
    found.dead_letters = Counter(_values(connection, topics.dead_letters))
    refused = [entry for record in records for entry in record.refused]
    letters = Counter(
        dead_letter(plan, inputs[Position(r.partition, r.offset)], r.error, r.reason).value for r in refused
    )
    places = Counter(Position(r.partition, r.offset) for r in refused)

    def check(holds: bool, promise: str) -> None:
        if not holds:
            found.broken.append(promise)

    check(found.codes == wanted.codes, "every code is published once, as a replay finds it")
    check(found.dead_letters == letters, "every refused input is one dead letter, with its bytes")
    check(Counter(_values(connection, topics.snapshots)) == wanted.snapshots, "every snapshot is published once")
    check(wanted.learned + places == Counter(inputs.keys()), "every input is in one step or refused")
    check(committed(connection, settings.model, settings.topic) == records[-1].resume, "positions are the journal's")
    newest = next(TopicStore(connection, topics.state, settings.model).candidates()).manifest
    check(newest.link == replayed.progress.link, "the newest checkpoint is of the last step")
    check(newest.sha256 == found.state, "the state of the newest checkpoint is that of a replay of the journal")
    return found


class Expected:
    """What a replay says that was to be published."""

    def __init__(self, plan: Plan, identity: str) -> None:
        self._plan, self._identity = plan, identity
        self._intake = Intake(plan.format, plan.problem.shape, ())
        self.codes: Counter[bytes] = Counter()
        self.snapshots: Counter[bytes] = Counter()
        self.learned: Counter[Position] = Counter()

    def after_record(
        self, progress: Progress, used: Sequence[Record], step: Step | None, record: JournalRecord
    ) -> None:
        """Note what this record had to publish."""
        if record.event == "rollback":
            self.snapshots[snapshot(self._plan, progress, record.weight, self._identity).value] += 1
        if step is None:
            return
        self.learned.update(record.position for record in used)
        rows = [record for record, _ in self._intake.rows(used)]
        self.codes.update(output.value for output in codes(self._plan, step, rows, progress.epoch))
        if shown(self._plan, step.t):
            self.snapshots[snapshot(self._plan, progress, step.weight, self._identity).value] += 1


def all_records(connection: Connection, topic: str) -> Iterator[Record]:
    """The committed records of all partitions."""
    for partition in partitions_of_topic(connection, topic):
        yield from read_committed(connection, topic, partition)


def _values(connection: Connection, topic: str) -> Iterator[bytes]:
    return (record.value or b"" for record in whole(all_records(connection, topic)))
