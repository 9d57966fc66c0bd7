"""`stream-ocpdl run`: the service."""

import logging
import os
import signal
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import FrameType

import click

from stream_ocpdl.errors import BrokerError
from stream_ocpdl.machine import processors
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.ocpdl.workers import Workers
from stream_ocpdl.settings import Settings, load
from stream_ocpdl.stream.checkpoint import CheckpointStore, DirectoryStore
from stream_ocpdl.stream.kafka import Connection, KafkaSource, create_topics
from stream_ocpdl.stream.ports import CrashPoint, no_crash
from stream_ocpdl.stream.service import Ports, Service
from stream_ocpdl.stream.topics import TopicJournal, TopicOutbox, Topics, TopicStore


@click.command()
@click.option("--config", type=click.Path(path_type=Path), required=True, help="File with the settings, JSON.")
@click.option("--crash-at", hidden=True, help="NAME:N, kill this process at the N-th visit of a crash point.")
def run(config: Path, crash_at: str | None) -> None:
    """Learn from a topic, exactly once, until SIGTERM.

    Example: stream-ocpdl run --config service.json
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    serve(load(config), crasher(crash_at) if crash_at else no_crash)


def serve(settings: Settings, at: CrashPoint) -> None:
    """Wire the service to Kafka and let it run."""
    log = logging.getLogger("stream_ocpdl")
    plan, pace, topics = settings.plan(), settings.rhythm(), Topics.of(settings.model, settings.topic)
    connection = Connection(settings.bootstrap_servers, abandon=abandon)
    stop = Stop()
    with closing(KafkaSource(connection, topics.input, settings.model)) as source:
        create_topics(connection, topics.outputs(len(source.partitions)))
        ports = Ports(
            source=source,
            journal=TopicJournal(connection, topics.journal),
            outbox=TopicOutbox(connection, topics, settings.model, source, at),
            store=store_of(settings, connection, topics, at),
            now=time.monotonic,
            stopping=stop,
            report=log.info,
            at=at,
        )
        with Workers(settings.threads or processors()) as workers:
            warm_up(plan.problem, workers)
            pipeline = Service(plan, ports, pace, workers).run()
    log.info("stopped after step %d", pipeline.progress.state.t)


def abandon(why: str) -> None:
    """End the process: nothing is lost, and the next one recovers."""
    logging.getLogger("stream_ocpdl").critical("%s; the process ends and has to be started again", why)
    os._exit(BrokerError.exit_code)


def store_of(settings: Settings, connection: Connection, topics: Topics, at: CrashPoint = no_crash) -> CheckpointStore:
    """Where the checkpoints of a model are."""
    if settings.checkpoints == "topic":
        return TopicStore(connection, topics.state, settings.model, at)
    return DirectoryStore(Path(settings.checkpoints), settings.model, at)


class Stop:
    """Whether a signal has asked to stop. The handler only sets a flag."""

    def __init__(self) -> None:
        self._asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def __call__(self) -> bool:
        """Whether it has."""
        return self._asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
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
