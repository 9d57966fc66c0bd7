"""`stream-ocpdl encode`: one of a fleet that codes."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click
from starlette.applications import Starlette

from stream_ocpdl.cli.options import topics_create, with_settings
from stream_ocpdl.cli.run import SILENT, Stop, abandon, compile_kernels, crasher, logged, report, said_after
from stream_ocpdl.config.loading import Loaded, load, show
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.config.validation import semantics
from stream_ocpdl.errors import ConfigError
from stream_ocpdl.fingerprint import build
from stream_ocpdl.logs import natural, written
from stream_ocpdl.machine import processors
from stream_ocpdl.observe.endpoints import endpoints_of
from stream_ocpdl.observe.fleet import EncoderBoard, WatchedCodebox
from stream_ocpdl.observe.metrics import FromFamilies, registry_with
from stream_ocpdl.observe.presence import Presence
from stream_ocpdl.observe.server import Server
from stream_ocpdl.ocpdl.workers import Workers
from stream_ocpdl.stream.beside import aside
from stream_ocpdl.stream.dictionaries import Dictionary
from stream_ocpdl.stream.encoders import EncoderPace, EncoderPorts, Encoding
from stream_ocpdl.stream.kafka import (
    Connection,
    Election,
    KafkaPartitions,
    partitions_of_topic,
    reach,
    stands,
    topic_names,
    watermarks,
)
from stream_ocpdl.stream.member import Member
from stream_ocpdl.stream.newest import Newest, followed
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import CrashPoint, Said, Stand, no_crash
from stream_ocpdl.stream.preflight import Scripts, check_rounds, prepare
from stream_ocpdl.stream.rights import check_rights
from stream_ocpdl.stream.service import Pace
from stream_ocpdl.stream.starting import Start
from stream_ocpdl.stream.tenure import Ours
from stream_ocpdl.stream.topics import TopicCodebox

log = logging.getLogger("stream_ocpdl")


@click.command()
@with_settings
@click.option("--crash-at", hidden=True, help="NAME:N, kill this process at the N-th visit of a crash point.")
def encode(config: Path | None, overrides: tuple[str, ...], crash_at: str | None) -> None:
    """Code the tensors of a topic with the newest dictionary, exactly once, until SIGTERM.

    Start as many as there are partitions, at most: they share them. The learner publishes no codes then (learner.codes:
    off). Without a dictionary it waits for the first.

    Example: stream-ocpdl encode --config service.yaml --set http.port=0
    """
    loaded = load(config, overrides)
    settings = loaded.settings
    plan, pace, connection = semantics(settings)
    check(settings)
    form = settings.log.format or natural()
    with written(form, settings.log.level, settings.kafka.secrets(), model=settings.model):
        board = EncoderBoard(settings.model, settings.shards, settings.topics().snapshots)
        if plan.rounds is not None and settings.encoders.emit != "codes":
            board.together = plan.rounds.size
        at = crasher(crash_at) if crash_at else no_crash
        with logged(form), endpoints(loaded, board):
            serve(settings, plan, pace, connection, topics_create(config, overrides), at, board)


def check(settings: Settings) -> None:
    """Raise if the learner codes the same tensors."""
    if settings.learner.codes and settings.coded().codes == settings.topics().codes:
        raise ConfigError(
            "learner.codes is on: every code would be published twice; set learner.codes to off, and start the learner"
            " with that, or encode another topic with encoders.input"
        )


@contextmanager
def endpoints(loaded: Loaded, board: EncoderBoard) -> Iterator[None]:
    """The endpoints, if they are wanted."""
    http, built = loaded.settings.http, build()
    if http.port is None:
        yield
        return
    registry = registry_with(FromFamilies(board.families, built))
    routes = endpoints_of(board, board.status, registry, built, show(loaded), http.stuck_after_s)
    with Server(Starlette(routes=routes), http.host, http.port) as server:
        board.address = server.address
        yield


def serve(
    settings: Settings,
    plan: Plan,
    pace: Pace,
    connection: Connection,
    create: str,
    at: CrashPoint,
    board: EncoderBoard,
) -> None:
    """Wire an encoder to Kafka and let it run."""
    topics, group = settings.coded(), settings.fleet()
    connection = replace(connection, abandon=abandon, group=group)
    board.starting = "waiting for the broker"
    reach(connection)
    board.starting = "checking the topics"
    check_rights(connection, settings.encoder_rights())
    for warning in prepare(connection, topics, Scripts(settings.bootstrap_servers, create)):
        log.warning("%s", warning, extra={"topic": warning.topic})
    if settings.encoders.emit != "codes":
        check_rounds(connection, topics, plan.rounds)
    board.starting = "compiling the kernels"
    with Workers(settings.threads or processors()) as workers:
        with said_after(SILENT, "compiling the kernels, once on this machine: it takes a minute or two"):
            compile_kernels(plan, workers)
        stop = Stop()
        wanted = [topics.input, *(name for name in topics.outputs(1) if name != topics.journal)]
        with (
            Presence(board, wanted, topic_names(connection)),
            Newest(plan, followed(connection, topics.snapshots, plan.shards), came(board)) as newest,
            closing(Election(connection, topics.input, group, what="partition")) as election,
        ):
            board.newest, board.wrong, board.group, board.starting = newest, lambda: newest.wrong, election, None
            if board.address is not None:
                log.info("endpoints at %s", board.address)
            if not newest():
                log.info("waiting for the first dictionary on %s", topics.snapshots)
            encoder = EncoderWork(settings, plan, pace, connection, workers, election, newest, board, at)
            Member(election, encoder.run, stop, board.went_round).run()
    report(Said(f"stopped, {board.tensors} tensors coded", tensors=board.tensors))


def came(board: EncoderBoard) -> Callable[[Dictionary], None]:
    """Note a dictionary, and say so if it is the first of its shard."""

    def note(dictionary: Dictionary) -> None:
        board.came(dictionary)
        first = board.swaps[dictionary.version.shard] == 1
        log.log(logging.INFO if first else logging.DEBUG, "coding with %s", dictionary.version)

    return note


@dataclass(frozen=True, slots=True)
class EncoderWork:
    """An encoder's parts, wired to Kafka."""

    settings: Settings
    plan: Plan
    pace: Pace
    connection: Connection
    workers: Workers
    election: Election
    newest: Newest
    board: EncoderBoard
    at: CrashPoint = no_crash

    def run(self, stopping: Callable[[], bool]) -> None:
        """Code until told to stop."""
        settings, topics = self.settings, self.settings.coded()
        ports = EncoderPorts(
            terms=lambda: dict(self.election.terms),
            stands=self._stands,
            source=self._source,
            outbox=self._outbox,
            newest=self.newest,
            aside=aside,
            now=time.monotonic,
            stopping=stopping,
            report=report,
            watch=self.board,
        )
        beat = EncoderPace(settings.encoders.batch, self.pace.commit_interval_ms, self.pace.poll_timeout_ms)
        letters = topics.uses(topics.dead_letters)  # else the learner writes them
        plan = replace(self.plan, topic=topics.input)
        Encoding(plan, ports, letters, beat, self.workers, settings.encoders.emit).run()

    def _source(self) -> KafkaPartitions:
        found = KafkaPartitions(self.connection, self.settings.coded().input, self.settings.fleet())
        self.board.statistics = lambda: found.statistics
        return found

    def _outbox(self, ours: Ours) -> WatchedCodebox:
        settings, patience = self.settings, self.settings.encoders.transaction_s
        box = TopicCodebox(self.connection, settings.coded(), settings.fleet(), ours, patience, self.at)
        return WatchedCodebox(box, self.board)

    def _stands(self, partitions: Sequence[int]) -> dict[int, Stand]:
        """Where the group stands: where it has committed, or where a new one begins."""
        topic = self.settings.coded().input
        everywhere = partitions_of_topic(self.connection, topic)
        known = stands(self.connection, self.settings.fleet(), topic, everywhere)
        found = {p: known[p] for p in partitions if p in known}
        if len(found) < len(partitions):  # one that was added since is read from its beginning
            begin = Start.read("earliest" if known else self.settings.start).positions(self.connection, topic)
            found |= {p: Stand(begin[p], begin[p]) for p in partitions if p not in found}
        if self.settings.on_lost_input == "resume":
            for p, (low, _) in watermarks(self.connection, topic, partitions).items():
                found[p] = Stand(max(low, found[p].offset), max(low, found[p].reached), found[p].round)
        return found
