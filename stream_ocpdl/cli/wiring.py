"""A shard's parts, wired to Kafka."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from math import prod

from stream_ocpdl.cli.options import store_of
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.observe.board import Board
from stream_ocpdl.observe.watched import WatchedOutbox, WatchedStore
from stream_ocpdl.ocpdl.workers import Workers
from stream_ocpdl.stream.ahead import SOON, WAIT, Ahead
from stream_ocpdl.stream.beside import aside
from stream_ocpdl.stream.checkpoint import CheckpointStore
from stream_ocpdl.stream.following import Follower
from stream_ocpdl.stream.genesis import Beginning
from stream_ocpdl.stream.kafka import Connection, KafkaSource, Tail
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import CrashPoint, Said, Source, no_crash
from stream_ocpdl.stream.recovery import Recovery, Report
from stream_ocpdl.stream.service import Pace, Service
from stream_ocpdl.stream.standby import Standby
from stream_ocpdl.stream.starting import beginning
from stream_ocpdl.stream.tenure import Term
from stream_ocpdl.stream.topics import TopicJournal, TopicOutbox, nothing
from stream_ocpdl.stream.world import Ports


@dataclass(frozen=True, slots=True)
class ShardWork:
    """How a shard is written, or followed, with these settings."""

    settings: Settings
    plan: Plan
    pace: Pace
    connection: Connection
    workers: Workers
    report: Report
    at: CrashPoint = no_crash
    board: Board = field(default_factory=lambda: Board("", 1))
    """Where what happens is written down."""

    def run(self, term: Term, warm: Callable[[], Follower | None]) -> None:
        """Write it, for as long as the term lasts."""
        shard, topics, plan = term.shard, self.settings.topics(), replace(self.plan, shard=term.shard)
        board = self.board.begin(shard, plan)
        with ExitStack() as stack:
            stack.callback(self.board.end, shard, board)
            source = stack.enter_context(closing(self._source(shard, counting=True)))
            board.statistics = lambda: source.statistics

            def warmed() -> Follower | None:
                follower = warm()
                if follower is not None and isinstance(follower.world.source, KafkaSource):
                    stack.callback(follower.world.source.close)
                return follower

            outbox = TopicOutbox(self.connection, topics, self.settings.model, source, self.at, term, shard)
            ports = Ports(
                source=stack.enter_context(closing(ahead_of(plan, source))),
                aside=aside,
                journal=TopicJournal(self.connection, topics.journal, shard),
                outbox=WatchedOutbox(outbox, board),
                store=WatchedStore(self._store(shard, self.at, term.check), board),
                now=time.monotonic,
                stopping=term.ending,
                report=self._report(shard),
                at=self.at,
                since=term.began,
                control=stack.enter_context(closing(Tail(self.connection, topics.control, shard))),
                begin=self._begin(source),
                watch=board,
            )
            service = Service(plan, ports, self.pace, self.workers, warmed)
            t = service.run().progress.state.t
        self._report(shard)(Said(f"stopped after step {t}", step=t))

    def follow(self, shard: int) -> Standby | None:
        """Follow it, if that is wanted."""
        if self.settings.standby == "cold":
            return None

        def begin() -> tuple[Follower, TopicJournal]:
            journal = TopicJournal(self.connection, self.settings.topics().journal, shard)
            world = Recovery(self._source(shard), journal, self._store(shard), nothing_said, workers=self.workers)
            return Follower(replace(self.plan, shard=shard), world), journal

        return Standby(shard, begin, self._report(shard), far=2 * self.pace.checkpoint_every)

    def _begin(self, source: KafkaSource) -> Beginning:
        settings = self.settings
        start = "earliest" if self.plan.rounds is not None else settings.start
        found = beginning(self.connection, settings.topics().input, start, settings.warm_start)

        def positions() -> dict[int, int]:
            everywhere = found.positions()
            return {p: everywhere[p] for p in source.partitions}

        return replace(found, positions=positions)

    def _source(self, shard: int, counting: bool = False) -> KafkaSource:
        settings = self.settings
        return KafkaSource(self.connection, settings.topics().input, settings.model, shard, settings.shards, counting)

    def _store(self, shard: int, at: CrashPoint = no_crash, check: Callable[[], None] = nothing) -> CheckpointStore:
        return store_of(self.settings, self.connection, at, check, shard)

    def _report(self, shard: int) -> Report:
        def report(said: str) -> None:
            kind = type(said) if isinstance(said, Said) else Said
            self.report(kind(said, **{"shard": shard} | getattr(said, "fields", {})))

        return report


def ahead_of(plan: Plan, source: Source) -> Ahead:
    """A source that reads ahead what the plan wants at once."""
    if plan.rounds is not None:
        return Ahead(source, SOON)
    return Ahead(source, WAIT, 8 * plan.batching.size * prod(plan.shape))


def nothing_said(_: str) -> None:
    """A follower is quiet."""
