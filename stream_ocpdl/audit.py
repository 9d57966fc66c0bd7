"""A model rebuilt for people: one step of it, or all that can be rebuilt, compared with what was published.

Nothing is written but what is asked for, and nobody is fenced: a service may be running meanwhile.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TypeVar

from stream_ocpdl.errors import LineageError
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.ocpdl.workers import Workers
from stream_ocpdl.stream.checkpoint import CheckpointStore, NoStore, ReadOnly
from stream_ocpdl.stream.genesis import begun
from stream_ocpdl.stream.history import Present, Window, whole_from, window
from stream_ocpdl.stream.kafka import Connection, KafkaSource
from stream_ocpdl.stream.messages import JournalRecord, Record, Snapshot, Version
from stream_ocpdl.stream.outputs import snapshot
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Journal, Source
from stream_ocpdl.stream.progress import Progress, read_journal
from stream_ocpdl.stream.recovery import END, Recovered, Recovery, rebuild
from stream_ocpdl.stream.replaying import replay_all
from stream_ocpdl.stream.snapshots import Published
from stream_ocpdl.stream.topics import TopicJournal, Topics

Say = Callable[[str], None]
T = TypeVar("T")

EVERY = 2.0
"""Seconds between two lines that say how far it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """What is left of a model's past."""

    plan: Plan
    """On the terms that it began with."""
    source: Source
    journal: Journal
    store: CheckpointStore
    workers: Workers
    say: Say

    def kept(self) -> dict[int, str]:
        """The checkpoints of the model: where they stand in the journal, and their links."""
        found = (candidate.manifest for candidate in self.store.candidates())
        return {m.journal_offset: m.link for m in found if m.model == self.plan.model}

    def window(self) -> Window:
        """Which steps can be rebuilt."""
        return self._judged_by(window)

    def at(self, offset: int) -> Recovered:
        """The model after the record at an offset of the journal."""
        return rebuild(self.plan, self._world(self.store, _Progress(self.say)), offset)

    def audit(self, published: Iterable[Published]) -> "Audit":
        """Replay all that can be, and compare it with the snapshots that were published."""
        mine = (one for one in published if one.snapshot.version.shard == self.plan.shard)
        known = {one.snapshot.version: (one.snapshot.software, sha256(one.value).digest()) for one in mine}
        base = self._judged_by(whole_from)
        found, progress = Audit(self.plan, self._identity_at(base), known), _Progress(self.say)

        def on_record(now: Progress, used: Sequence[Record], step: Step | None, record: JournalRecord) -> None:
            found.see(now, record)
            progress(now, used, step, record)

        store = NoStore() if base is None else self.store
        found.replayed = replay_all(self.plan, self._world(store, on_record), END if base is None else base)
        return found

    def _identity_at(self, base: int | None) -> str:
        """What the input was called where a replay begins: it may have got partitions since."""
        identity = ""
        for offset, value in self.journal.read() if base is not None else ():
            identity = read_journal(value).input or identity
            if offset == base:
                break
        return identity or self.source.identity

    def _judged_by(self, judge: Callable[[Iterable[tuple[int, bytes]], Mapping[int, str], Present], T]) -> T:
        return judge(self.journal.read(), self.kept(), Present(self.source.identity, self.source.earliest()))

    def _world(self, store: CheckpointStore, on_record: "Callable[..., None]") -> Recovery:
        return Recovery(self.source, self.journal, store, self.say, on_record, self.workers)


@contextmanager
def past(connection: Connection, plan: Plan, store: CheckpointStore, threads: int, say: Say) -> Iterator[Past]:
    """The past of the model on a broker."""
    topics = Topics.of(plan.model, plan.topic, plan.shards)
    journal = TopicJournal(connection, topics.journal, plan.shard)
    base = begun(plan, journal)
    if base is None:
        raise LineageError(f"{topics.journal} is empty: the model has not begun")
    group = f"{plan.model}.replay"
    with (
        closing(KafkaSource(connection, topics.input, group, plan.shard, plan.shards)) as source,
        Workers(threads) as workers,
    ):
        yield Past(base, source, journal, ReadOnly(store), workers, say)


@dataclass(slots=True)
class Audit:
    """What a replay says of the snapshots that were published."""

    plan: Plan
    identity: str
    published: dict[Version, tuple[str, bytes]]
    """Of this shard: the software that wrote each, and its SHA-256."""
    agree: list[Version] = field(default_factory=list)
    differ: list[Version] = field(default_factory=list)
    replayed: Recovered | None = None

    def see(self, progress: Progress, record: JournalRecord) -> None:
        """Compare the snapshots of this record, if there are any."""
        self.identity = record.input or self.identity
        version = Version(self.plan.model, progress.state.t, self.plan.shard, progress.epoch)
        if version in self.published and record.event in ("genesis", "step", "rollback"):
            software, wanted = self.published[version]
            made = Snapshot.from_bytes(snapshot(self.plan, progress, record.weight, self.identity).value)
            same = sha256(replace(made, software=software).to_bytes()).digest() == wanted
            (self.agree if same else self.differ).append(version)

    @property
    def unchecked(self) -> list[Version]:
        """Those that the replay did not come to."""
        seen = {*self.agree, *self.differ}
        return [version for version in self.published if version not in seen]


class _Progress:
    """Says now and then how far a long replay is."""

    def __init__(self, say: Say) -> None:
        self._say, self._next, self._steps = say, time.monotonic() + EVERY, 0

    def __call__(self, progress: Progress, used: Sequence[Record], step: Step | None, record: JournalRecord) -> None:
        self._steps += step is not None
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self._say(f"at step {progress.state.t} of epoch {progress.epoch}, {self._steps} steps replayed")
