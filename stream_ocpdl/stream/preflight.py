"""Whether the topics are such that nothing can be lost, and the command that mends one that is not.

`inspect` is a function of what the broker says; it is asked by `topics check`, by `validate --connect`, and when the
service starts. An error would cost data, or end the service sooner or later, and keeps it from starting. A warning is a
risk that may be taken on purpose. What is only missing, the service makes by itself.

**Retention of the input.** A recovery learns again what was learned after the checkpoint that it begins with, so
inputs must stay for as long as the oldest checkpoint that may be needed, and for the longest outage. How long that is
nobody knows here; what is certain is that a checkpoint may take up to its transaction's ten minutes, and less than
that can lose input without any outage: an error. Less than a day does not outlast a bad night: a warning.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from stream_ocpdl.errors import BrokerError, ConfigError, DecodeError, LineageError
from stream_ocpdl.stream.genesis import begun
from stream_ocpdl.stream.kafka import (
    LARGEST,
    Connection,
    Described,
    await_topics,
    create_topics,
    describe,
    read_committed,
)
from stream_ocpdl.stream.messages import JournalRecord
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import read_journal
from stream_ocpdl.stream.rounds import Rounds
from stream_ocpdl.stream.shards import check_shards
from stream_ocpdl.stream.terms import hold_to, terms_of
from stream_ocpdl.stream.topics import CHECKPOINT_MS, TopicJournal, Topics

PIECE = 1_000_000
"""Bytes that a topic must take in one record: a piece of a large message, with its key and headers."""

DAY = 24 * 3600 * 1000

LAST = (20, 400, 8000)
"""Offsets at the end of a journal among which its last record is looked for: whoever dies leaves some without any."""

EVERY = "(every one)"
"""In place of the name of a topic."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a topic, and what to do."""

    level: Literal["missing", "error", "warning"]
    topic: str
    what: str
    mend: str

    def __str__(self) -> str:
        return f"topic {self.topic}: {self.what}; mend it with: {self.mend}"


@dataclass(frozen=True, slots=True)
class Scripts:
    """The commands of Apache Kafka for a broker, and our own."""

    bootstrap_servers: str
    create: str = "stream-ocpdl topics create"
    """Makes the topics that are missing."""

    def alter(self, topic: str, setting: str) -> str:
        """Change a setting of a topic."""
        return (
            f"kafka-configs.sh --bootstrap-server {self.bootstrap_servers}"
            f" --alter --entity-type topics --entity-name {topic} --add-config {setting}"
        )

    def partitions(self, topic: str, count: int) -> str:
        """Give a topic more partitions."""
        return (
            f"kafka-topics.sh --bootstrap-server {self.bootstrap_servers} --alter --topic {topic} --partitions {count}"
        )

    def replicas(self) -> str:
        """Give topics more replicas."""
        return f"kafka-reassign-partitions.sh --bootstrap-server {self.bootstrap_servers} …"


def inspect(topics: Topics, found: Mapping[str, Described], scripts: Scripts) -> list[Finding]:
    """All that is wrong with the topics of a model."""
    findings = [*_input(topics.input, found.get(topics.input), scripts), *_shards(topics, found, scripts)]
    inputs = found[topics.input].partitions if topics.input in found else 1
    if topics.journal in found:  # which says how many shards there are: see `_shards`
        topics = replace(topics, shards=found[topics.journal].partitions)
    for name, (partitions, config) in topics.outputs(inputs).items():
        topic = found.get(name)
        if topic is None:
            findings.append(Finding("missing", name, "it is not there", scripts.create))
        else:
            findings += _output(topics, name, topic, partitions, config, scripts)
    return [*findings, *_few_replicas(topics, found, scripts)]


def _shards(topics: Topics, found: Mapping[str, Described], scripts: Scripts) -> Iterator[Finding]:
    """What does not go with the number of shards: it cannot be changed, and each has a share of the input."""
    inputs, journals = (found[name].partitions if name in found else None for name in (topics.input, topics.journal))
    if inputs is not None and inputs < topics.shards:
        what = f"it has {inputs} partitions, and with {topics.shards} shards some would have nothing to learn"
        mend = f"--set shards={inputs}, or {scripts.partitions(topics.input, topics.shards)}"
        yield Finding("error", topics.input, what, mend)
    if journals is not None and journals != topics.shards:
        what = f"it has {journals} partitions, one a shard, and shards is {topics.shards}"
        mend = f"--set shards={journals}, if the model was begun so, or another name for the model"
        yield Finding("error", topics.journal, what, mend)


def _input(name: str, topic: Described | None, scripts: Scripts) -> Iterator[Finding]:
    if topic is None:
        yield Finding("error", name, "the input is not there, or has another name", scripts.create)
        return
    if topic.config is None:
        yield _unseen(name)
        return
    if "compact" in _policy(topic):
        what = "its cleanup.policy has compact, so a step could not be learned again from its inputs"
        yield Finding("error", name, what, scripts.alter(name, "cleanup.policy=delete"))
    retention = _number(topic, "retention.ms", -1)
    if 0 <= retention < CHECKPOINT_MS:
        what = f"its retention.ms is {retention}; a checkpoint, which spares inputs, may take {CHECKPOINT_MS}"
        yield Finding("error", name, what, scripts.alter(name, f"retention.ms={7 * DAY}"))
    elif 0 <= retention < DAY:
        what = f"its retention.ms is {retention}; after an outage of that length inputs are lost"
        yield Finding("warning", name, what, scripts.alter(name, f"retention.ms={7 * DAY}"))
    if _number(topic, "retention.bytes", -1) >= 0:
        what = "its retention.bytes is limited, and may take inputs away before their time"
        yield Finding("warning", name, what, scripts.alter(name, "retention.bytes=-1"))


def _output(
    topics: Topics, name: str, topic: Described, partitions: int, config: Mapping[str, str], scripts: Scripts
) -> Iterator[Finding]:
    """What is wrong with a topic that the service writes. Codes may be kept as their readers like it."""
    if topic.partitions < partitions:
        what = f"it has {topic.partitions} partitions, and {partitions} are needed"
        yield Finding("error", name, what, scripts.partitions(name, partitions))
    if topic.config is None:
        yield _unseen(name)
        return
    wanted = config.get("cleanup.policy")
    policy = _policy(topic)
    also = {"delete"} if name == topics.snapshots else set()  # old dictionaries may go
    if wanted and (wanted not in policy or policy - also - {wanted}):
        what = f"its cleanup.policy is {','.join(sorted(policy))}, which takes away what is needed; it must be {wanted}"
        yield Finding("error", name, what, scripts.alter(name, f"cleanup.policy={wanted}"))
    if name == topics.journal:
        for limit in ("retention.ms", "retention.bytes"):
            if _number(topic, limit, -1) >= 0:
                what = f"its {limit} is {topic.config[limit]}; a journal that was trimmed cannot be replayed"
                yield Finding("error", name, what, scripts.alter(name, f"{limit}=-1"))
    needed = LARGEST if name == topics.journal else PIECE
    if _number(topic, "max.message.bytes", needed) < needed:
        what = f"its max.message.bytes is {topic.config['max.message.bytes']}, and records may have {needed}"
        yield Finding("error", name, what, scripts.alter(name, f"max.message.bytes={needed}"))


def _few_replicas(topics: Topics, found: Mapping[str, Described], scripts: Scripts) -> Iterator[Finding]:
    """One warning for all topics that a single broker can lose."""
    kept = {name: found[name] for name in (topics.input, *topics.outputs(1)) if name in found}
    single = [name for name, topic in kept.items() if topic.replicas < 2]
    if single:
        what = "one replica: who loses that broker loses the model"
        who = EVERY if len(single) == len(kept) else ", ".join(single)
        yield Finding("warning", who, what, scripts.replicas())
    for name, topic in kept.items():
        if topic.replicas > 1 and _number(topic, "min.insync.replicas", 2) < 2:
            what = "its min.insync.replicas is 1: what one broker alone has acknowledged can be lost with it"
            yield Finding("warning", name, what, scripts.alter(name, "min.insync.replicas=2"))


def _unseen(name: str) -> Finding:
    what = "its settings may not be read, so they are not checked"
    return Finding("warning", name, what, f"kafka-acls.sh --add --operation DescribeConfigs --topic {name} …")


def _policy(topic: Described) -> set[str]:
    return {word.strip() for word in (topic.config or {}).get("cleanup.policy", "delete").split(",")}


def _number(topic: Described, setting: str, default: int) -> int:
    return int((topic.config or {}).get(setting, default))


# ── at work ────────────────────────────────────────────────────────────────────────────────────────────────────


def look(connection: Connection, topics: Topics, scripts: Scripts) -> list[Finding]:
    """What is wrong with the topics at this broker."""
    return inspect(topics, describe(connection, [topics.input, *topics.outputs(1)]), scripts)


def create(
    connection: Connection, topics: Topics, partitions: int, retention_ms: int | None = None, replication: int = -1
) -> list[str]:
    """Make what is missing, and change nothing that is there; what was made.

    The input gets so many partitions; if it is there already, the codes have as many as it has.
    """
    retention = {} if retention_ms is None else {"retention.ms": f"{retention_ms}"}
    wanted = {topics.input: (partitions, {"cleanup.policy": "delete"} | retention)}
    made = _make(connection, wanted, replication)
    count = await_topics(connection, wanted)[topics.input].partitions
    made += _make(connection, topics.outputs(count), replication)
    await_topics(connection, topics.outputs(count))
    return made


def _make(connection: Connection, wanted: Mapping[str, tuple[int, dict[str, str]]], replication: int) -> list[str]:
    """Make what is not seen; whoever may not make topics can still use those that are there."""
    found = describe(connection, list(wanted))
    missing = {name: layout for name, layout in wanted.items() if name not in found}
    return create_topics(connection, missing, replication) if missing else []


def prepare(connection: Connection, topics: Topics, scripts: Scripts) -> list[Finding]:
    """Make the topics that the service writes, unless they are there; then raise what is wrong. The warnings are left.

    Without its input nothing is made: its name may be wrong. An encoder counts the partitions of the journal, and does
    not read it.
    """
    findings = look(connection, topics, scripts)
    begun = not any(finding.topic == topics.journal and finding.level == "missing" for finding in findings)
    if begun and topics.part is None:
        same_shards(connection, topics)
    refuse(findings)
    if any(finding.level == "missing" for finding in findings):
        create(connection, topics, 1)
    return [finding for finding in findings if finding.level == "warning"]


def hasty(connection: Connection) -> Connection:
    """The same, for a look at a journal that can wait until it is read in earnest."""
    return replace(connection, patience=min(2.0, connection.patience))


def same_shards(connection: Connection, topics: Topics) -> None:
    """Raise if a journal was begun with another number of shards.

    Here, and not only when a shard is recovered: another one could be learning by then what was learned already.
    """
    for shard in range(describe(connection, [topics.journal])[topics.journal].partitions):
        with suppress(BrokerError, DecodeError):  # an open transaction, say: then recovery will look
            for first in islice(read_committed(hasty(connection), topics.journal, shard), 1):
                record = JournalRecord.from_bytes(first.value)
                if record.event == "genesis":
                    check_shards(record.input or "", topics.shards)


def same_problem(connection: Connection, topics: Topics, plan: Plan) -> bool:
    """Raise if a journal has another problem, or other terms: a standby would hear of it when it is needed.

    Whether it is known: false if there are journals, and none of them could be read soon.
    """
    known = True
    for shard in range(topics.shards):  # the first that was begun speaks for all
        try:
            journal = TopicJournal(hasty(connection), topics.journal, shard)
            found = begun(replace(plan, shard=shard), journal)
            last = None if found is None else _last(journal)
        except BrokerError:  # an open transaction, say: then recovery will look
            known = False
            continue
        if found is not None and last is not None:
            first = terms_of(found.problem)
            hold_to(terms_of(plan.problem), first, last.terms or first)
            return True
        known = known and found is None
    return known


def _last(journal: TopicJournal) -> JournalRecord | None:
    """The last record, if it is found at once."""
    with suppress(LineageError):  # it was trimmed, or a later release wrote it: recovery will say so
        end = journal.end()
        for back in LAST:
            found = deque(journal.read(max(0, end - back)), 1)
            if found:
                return read_journal(found[0][1])
    return None


def check_rounds(connection: Connection, topics: Topics, rounds: Rounds | None) -> None:
    """Raise unless input and partials have a partition for each partial of a round."""
    if rounds is None or topics.partials is None:
        return
    for name, found in describe(connection, sorted({topics.input, topics.partials})).items():
        if found.partitions != rounds.partials:
            raise ConfigError(
                f"topic {name} has {found.partitions} partitions, and a round {rounds.partials} partials, one of each:"
                f" batching.size must be partials.size, {rounds.size}, times the partitions of the input"
            )


def refuse(findings: list[Finding]) -> None:
    """Raise the errors, a line each."""
    errors = [str(finding) for finding in findings if finding.level == "error"]
    if errors:
        raise ConfigError("\n".join(errors))
