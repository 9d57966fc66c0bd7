"""What a model has left on its topics, and which promises that breaks.

Everything is rebuilt from the journal and the input alone, by a replay from scratch: the state, every code, every
snapshot. Then it is compared with what was published, and with what the newest checkpoint and the group hold.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from stream_ocpdl.config.settings import Settings
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.stream.absorbing import intake_of
from stream_ocpdl.stream.assembly import whole
from stream_ocpdl.stream.checkpoint import NoStore
from stream_ocpdl.stream.genesis import begun
from stream_ocpdl.stream.kafka import Connection, KafkaSource, committed, partitions_of_topic, read_committed
from stream_ocpdl.stream.messages import JournalRecord, Manifest, Position, Record
from stream_ocpdl.stream.outputs import codes, dead_letter, shown, snapshot
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import Progress
from stream_ocpdl.stream.recovery import Recovery
from stream_ocpdl.stream.replaying import replay_all
from stream_ocpdl.stream.topics import TopicJournal, TopicStore


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
    """Compare everything with everything, shard by shard where they have something of their own."""
    plan, topics, found = settings.plan(), settings.topics(), Evidence()
    inputs = {record.position: record for record in all_records(connection, topics.input)}
    shards = [_replay(connection, settings, shard) for shard in range(settings.shards)]
    found.steps = sum(shard.progress.state.t for shard in shards)
    found.state = " ".join(shard.progress.state.digest() for shard in shards)
    learned = Counter(position for shard in shards for position in shard.expected.learned.elements())
    found.learned, found.codes = learned.total(), Counter(_values(connection, topics.codes))
    found.dead_letters = Counter(_values(connection, topics.dead_letters))
    refused = [entry for shard in shards for record in shard.records for entry in record.refused]
    letters = Counter(
        dead_letter(plan, inputs[Position(r.partition, r.offset)], r.error, r.reason).value for r in refused
    )
    places = Counter(Position(r.partition, r.offset) for r in refused)
    wanted, snapshots = (
        sum((getattr(shard.expected, name) for shard in shards), Counter[bytes]()) for name in ("codes", "snapshots")
    )
    resume = {p: offset for shard in shards for p, offset in shard.records[-1].resume.items()}

    def check(holds: bool, promise: str) -> None:
        if not holds:
            found.broken.append(promise)

    if plan.codes:  # else others publish them
        check(found.codes == wanted, "every code is published once, as a replay finds it")
    check(found.dead_letters == letters, "every refused input is one dead letter, with its bytes")
    check(Counter(_values(connection, topics.snapshots)) == snapshots, "every snapshot is published once")
    check(learned + places == Counter(inputs.keys()), "every input is in one step or refused")
    check(committed(connection, settings.model, topics.input) == resume, "positions are the journal's")
    for number, shard in enumerate(shards):
        where = f" (shard {number})" if settings.shards > 1 else ""
        link, digest = (shard.newest.link, shard.newest.sha256) if shard.newest else ("", "")
        last = links_of_the_end(shard.progress.link, shard.records)
        check(link in last, f"the newest checkpoint is of the last step{where}")
        same = digest == shard.progress.state.digest()
        check(same, f"the state of the newest checkpoint is that of a replay of the journal{where}")
    return found


def links_of_the_end(link: str, records: Sequence[JournalRecord]) -> set[str]:
    """The links of the last step and of what was only refused after it, which changes no state."""
    found = {link}
    for record in reversed(records):
        if record.event != "refusal":
            break
        found.add(record.previous)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A shard, made again from its journal alone."""

    progress: Progress
    expected: "Expected"
    records: list[JournalRecord]
    newest: Manifest | None
    """The newest checkpoint that it wrote, if any is there."""


def _replay(connection: Connection, settings: Settings, shard: int) -> Replayed:
    topics = settings.topics()
    journal = TopicJournal(connection, topics.journal, shard)
    plan = replace(settings.plan(), shard=shard)
    plan = begun(plan, journal) or plan
    store = TopicStore(connection, topics.state, settings.model, shard=shard)
    group = f"{settings.model}.examined"
    with closing(KafkaSource(connection, topics.input, group, shard, settings.shards)) as source:
        wanted = Expected(plan, source.identity)
        found = replay_all(plan, Recovery(source, journal, NoStore(), lambda _: None, wanted.after_record))
    records = [JournalRecord.from_bytes(value) for _, value in journal.read()]
    newest = next(store.candidates(), None)
    return Replayed(found.progress, wanted, records, newest and newest.manifest)


class Expected:
    """What a replay says that was to be published."""

    def __init__(self, plan: Plan, identity: str) -> None:
        self._plan, self._identity = plan, identity
        self._intake = intake_of(plan, ())
        self.codes: Counter[bytes] = Counter()
        self.snapshots: Counter[bytes] = Counter()
        self.learned: Counter[Position] = Counter()

    def after_record(
        self, progress: Progress, used: Sequence[Record], step: Step | None, record: JournalRecord
    ) -> None:
        """Note what this record had to publish."""
        self._identity = record.input or self._identity
        if record.event == "rollback" or (record.event == "genesis" and self._plan.rounds is not None):
            self.snapshots[snapshot(self._plan, progress, record.weight, self._identity).value] += 1
        if step is None:
            return
        self.learned.update(record.position for record in used)
        if self._plan.codes:
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
