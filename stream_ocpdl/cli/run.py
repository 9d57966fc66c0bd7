"""`stream-ocpdl run`: the service."""

import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click

from stream_ocpdl.cli.options import topics_create, with_settings
from stream_ocpdl.cli.wiring import ShardWork
from stream_ocpdl.config.loading import Loaded, load, show
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.config.validation import semantics
from stream_ocpdl.errors import IMPATIENT, BrokerError, ConfigError, OcpdlError, StoreError
from stream_ocpdl.fingerprint import build
from stream_ocpdl.logs import natural, written
from stream_ocpdl.machine import KERNELS, processors
from stream_ocpdl.observe.board import Board
from stream_ocpdl.observe.endpoints import application
from stream_ocpdl.observe.metrics import registry_of
from stream_ocpdl.observe.presence import Presence
from stream_ocpdl.observe.server import Server
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.ocpdl.workers import Workers
from stream_ocpdl.stream.kafka import Connection, Election, reach, topic_names
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import CrashPoint, Warned, no_crash
from stream_ocpdl.stream.preflight import Scripts, check_rounds, prepare, same_problem
from stream_ocpdl.stream.replicas import Replica
from stream_ocpdl.stream.rights import check_rights
from stream_ocpdl.stream.service import Pace

log = logging.getLogger("stream_ocpdl")

SILENT = 3.0
"""Seconds after which those who wait for the kernels are told so."""


@click.command()
@with_settings
@click.option("--crash-at", hidden=True, help="NAME:N, kill this process at the N-th visit of a crash point.")
def run(config: Path | None, overrides: tuple[str, ...], crash_at: str | None) -> None:
    """Learn from a topic, exactly once, until SIGTERM.

    Topics that the service writes are made if they are missing; if one is not as it must be, it does not start.

    Example: stream-ocpdl run --config service.yaml
    """
    loaded = load(config, overrides)
    settings = loaded.settings
    parts = semantics(settings)
    form = settings.log.format or natural()
    with written(form, settings.log.level, settings.kafka.secrets(), model=settings.model):
        board = Board(settings.model, settings.shards)
        with logged(form), endpoints(loaded, board):
            serve(
                settings, *parts, topics_create(config, overrides), crasher(crash_at) if crash_at else no_crash, board
            )


@contextmanager
def logged(form: str) -> Iterator[None]:
    """An error ends the process as a line of the log; if that is plain, it is said as every command says it."""
    try:
        yield
    except OcpdlError as error:
        if form == "plain":
            raise
        for line in str(error).splitlines():
            log.log(logging.CRITICAL if error.exit_code else logging.INFO, "%s", line)
        sys.exit(error.exit_code)
    except Exception:
        if form == "plain":
            raise
        log.critical("a bug", exc_info=True)  # a traceback, too, is one line
        sys.exit(OcpdlError.exit_code)


@contextmanager
def endpoints(loaded: Loaded, board: Board) -> Iterator[None]:
    """The endpoints, if they are wanted."""
    http, built = loaded.settings.http, build()
    if http.port is None:
        yield
        return
    app = application(board, registry_of(board, built), built, show(loaded), http.stuck_after_s)
    with Server(app, http.host, http.port) as server:
        board.address = server.address
        yield


def serve(
    settings: Settings, plan: Plan, pace: Pace, connection: Connection, create: str, at: CrashPoint, board: Board
) -> None:
    """Wire the service to Kafka and let it run."""
    connection = replace(connection, abandon=abandon)
    topics = settings.topics()
    board.starting = "waiting for the broker"
    reach(connection)
    board.starting = "checking the topics"
    check_rights(connection, settings.rights())
    scripts = Scripts(settings.bootstrap_servers, create)
    if plan.rounds is not None:
        plan = replace(plan, on_lost_input="fail")  # a round without one of its partials is none
        if topics.input not in topic_names(connection)():  # encoders, which make it, may come later
            prepare(connection, settings.made(), scripts)
    for warning in prepare(connection, topics, scripts):
        log.warning("%s", warning, extra={"topic": warning.topic})
    check_rounds(connection, topics, plan.rounds)  # of the input it may know nothing: encoders look at that
    same_problem(connection, topics, plan)
    board.starting = "compiling the kernels"
    with Workers(settings.threads or processors()) as workers:
        with said_after(SILENT, "compiling the kernels, once on this machine: it takes a minute or two"):
            compile_kernels(plan, workers)
        stop = Stop()  # before this there is nothing to finish, and a signal ends the process at once
        work = ShardWork(settings, plan, pace, connection, workers, report, at, board)
        wanted = [topics.input, *topics.outputs(1)]
        with (
            Presence(board, wanted, topic_names(connection)),
            closing(Election(connection, topics.journal, settings.model)) as election,
        ):
            board.election, board.starting = election, None
            if board.address is not None:
                log.info("endpoints at %s", board.address)
            Replica(election, work, settings.shards, stop, report, turned=board.turned).run()


def compile_kernels(plan: Plan, workers: Workers) -> None:
    """Compile the kernels of a problem, or read those that were; a disk that is full is no bug."""
    try:
        warm_up(plan.problem, workers)
    except OSError as error:
        raise StoreError(
            f"compiled kernels cannot be kept in {KERNELS}: {error.strerror or error}. Make room, or name another"
            " directory in the environment: NUMBA_CACHE_DIR"
        ) from error
    except MemoryError as error:
        raise ConfigError(
            f"tensors of shape {plan.problem.shape}, {plan.batching.size} at once, do not fit into memory;"
            " stream-ocpdl plan says what a problem needs"
        ) from error


@contextmanager
def said_after(seconds: float, text: str) -> Iterator[None]:
    """Say what takes so long, if it does."""
    timer = threading.Timer(seconds, log.info, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def report(said: str) -> None:
    """What the service says, with its fields."""
    level = logging.WARNING if isinstance(said, Warned) else logging.INFO
    log.log(level, "%s", said, extra=getattr(said, "fields", {}))


def abandon(why: str) -> None:
    """End the process: nothing is lost, and the next one recovers."""
    log.critical("%s; the process ends and has to be started again", why)
    os._exit(BrokerError.exit_code)


class Stop:
    """Whether a signal has asked to stop. The handler only sets a flag; the second signal ends the process at once.

    Nothing is lost then: what was not committed is learned again.
    """

    def __init__(self) -> None:
        self._asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def __call__(self) -> bool:
        """Whether it has."""
        return self._asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            os._exit(IMPATIENT)
        self._asked = True


def crasher(spec: str) -> CrashPoint:
    """A crash point that kills this process, as `kill -9` does, at the N-th visit of a place."""
    name, _, count = spec.partition(":")
    visits: Counter[str] = Counter()

    def at(place: str) -> None:
        visits[place] += 1
        if place == name and visits[place] == int(count or 1):
            time.sleep(0.3)  # what was handed to the client is to arrive, or this point would be like an earlier one
            os.kill(os.getpid(), signal.SIGKILL)

    return at
