"""A real Apache Kafka for tests and development.

`obtain()` gives a broker from the first of: KAFKA_BOOTSTRAP_SERVERS, a Docker engine that answers, Maven's jars
on a local Java. `Cluster` is the last of these: KRaft nodes on loopback that a test may kill, freeze and restart.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.broker.jars import Installation, NoBroker, free_ports, install, kafka_version, random_id, write_properties
from tests.broker.processes import ProcessGroup, tail

_READY_SECONDS = 60.0
_ATTEMPTS = 3
_STARTED = b"Kafka Server started"
_PORT_TAKEN = "Address already in use"


class BrokerFailed(Exception):
    """A broker could be had but did not come up; the message ends with its log."""


class Cluster:
    """Nodes numbered from 1, each broker and controller; a fault is a signal to one of them."""

    @classmethod
    def start(cls, nodes: int = 1, settings: Mapping[str, object] | None = None) -> Self:
        """Start the nodes and wait until all of them answer; `settings` go over the defaults.

        A port found free may be taken before a node binds it: then all is begun again with other ports.
        """
        kafka = install()
        for attempt in range(_ATTEMPTS):
            cluster = cls(kafka, nodes, settings or {})
            try:
                cluster._start_all()
            except BaseException as error:
                cluster.close()
                if attempt + 1 == _ATTEMPTS or _PORT_TAKEN not in str(error):
                    raise
            else:
                return cluster
        raise AssertionError

    def __init__(self, kafka: Installation, nodes: int, settings: Mapping[str, object]) -> None:
        self._kafka = kafka
        self._settings = settings
        self._cluster_id = random_id()
        self._group = ProcessGroup("kafka-")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._begun: dict[int, int] = {}
        ports = iter(free_ports(2 * nodes))
        self._ports = dict(zip(range(1, nodes + 1), ports, strict=False))
        self._controllers = dict(zip(range(1, nodes + 1), ports, strict=True))

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, also of those that are down."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    @property
    def nodes(self) -> list[int]:
        """The numbers of all nodes."""
        return list(self._ports)

    def port(self, node: int) -> int:
        """The node's port; it is the same after a restart."""
        return self._ports[node]

    def log(self, node: int) -> Path:
        """What the node printed since the cluster was started. It goes with the cluster."""
        return self._group.directory / f"{node}.log"

    def kill(self, node: int) -> None:
        """End a node as a power cut does (SIGKILL). Its data stay for `restart`."""
        self._processes[node].kill()
        self._processes[node].wait(_READY_SECONDS)

    def stop(self, node: int) -> None:
        """Freeze a node (SIGSTOP): connections stay open, nothing answers."""
        self._processes[node].send_signal(signal.SIGSTOP)

    def cont(self, node: int) -> None:
        """Let a frozen node go on (SIGCONT)."""
        self._processes[node].send_signal(signal.SIGCONT)

    def restart(self, node: int) -> None:
        """Kill a node if it runs, start it on its data and port, and wait until it serves again."""
        self.kill(node)
        self._spawn(node)
        self._await(node, time.monotonic() + _READY_SECONDS)

    def close(self) -> None:
        """Kill all nodes and remove their data."""
        self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start_all(self) -> None:
        for node in self._ports:
            self._kafka.format(self._data(node), node, self._cluster_id)
            write_properties(self._properties(node), self._node_settings(node))
            self._spawn(node)
        deadline = time.monotonic() + _READY_SECONDS
        for node in self._ports:
            self._await(node, deadline)
        _await_brokers(self.bootstrap_servers, len(self._ports), deadline)

    def _spawn(self, node: int) -> None:
        command = self._kafka.command(*self._options(), "kafka.Kafka", str(self._properties(node)))
        self._begun[node] = self.log(node).stat().st_size if self.log(node).exists() else 0
        self._processes[node] = self._group.spawn(command, self._kafka.home, self.log(node))

    def _await(self, node: int, deadline: float) -> None:
        """Wait for the node's word: a port that answers could be somebody else's, taken before the node bound it."""
        while _STARTED not in self.log(node).read_bytes()[self._begun[node] :]:
            ended = self._processes[node].poll()
            if ended is not None or time.monotonic() > deadline:
                why = "is not ready in time" if ended is None else f"ended with {ended}"
                raise BrokerFailed(f"Kafka node {node} {why}:\n{tail(self.log(node))}")
            time.sleep(0.02)

    def _options(self) -> tuple[str, ...]:
        """More options of the JVM."""
        return ()

    def _data(self, node: int) -> Path:
        return self._group.directory / f"{node}.data"

    def _properties(self, node: int) -> Path:
        return self._group.directory / f"{node}.properties"

    def _node_settings(self, node: int) -> dict[str, object]:
        listeners = f"PLAINTEXT://127.0.0.1:{self._ports[node]},CONTROLLER://127.0.0.1:{self._controllers[node]}"
        return {
            **_defaults(len(self._ports)),
            "node.id": node,
            "listeners": listeners,
            "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{port}" for n, port in self._controllers.items()),
            "log.dirs": self._data(node),
            **self._settings,
        }


def _defaults(nodes: int) -> dict[str, object]:
    """What the project asks of a broker, with the waiting of a production cluster taken out."""
    in_sync = min(nodes, 2)
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "default.replication.factor": nodes,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": nodes,
        "offsets.topic.num.partitions": 3,
        "transaction.state.log.replication.factor": nodes,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 3,
        "broker.heartbeat.interval.ms": 500,
        "broker.session.timeout.ms": 3000,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
        "log.cleaner.backoff.ms": 1000,
        "log.initial.task.delay.ms": 1000,
    }


def _await_brokers(bootstrap_servers: str, count: int, deadline: float) -> None:
    """Wait until metadata name all brokers, or the first topic could be refused its replicas."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    while time.monotonic() < deadline:
        with suppress(KafkaException):
            if len(admin.list_topics(timeout=5.0).brokers) >= count:
                return
        time.sleep(0.02)
    raise BrokerFailed(f"{bootstrap_servers} did not show {count} brokers in time")


@dataclass(frozen=True)
class Broker:
    """A broker in use: where it came from, how to reach it, how to give it back."""

    origin: str
    bootstrap_servers: str
    close: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def from_environment() -> Broker:
    """The broker that KAFKA_BOOTSTRAP_SERVERS names."""
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if not servers:
        raise NoBroker("KAFKA_BOOTSTRAP_SERVERS is not set")
    return Broker("KAFKA_BOOTSTRAP_SERVERS", servers)


def from_docker() -> Broker:
    """The same Apache Kafka as the jars', in a container."""
    from tests.broker.containers import docker_host, start_kafka

    host = docker_host()
    servers, close = start_kafka(host, f"apache/kafka:{kafka_version()}", _defaults(1))
    return Broker("Docker", servers, close)


def from_jars() -> Broker:
    """One local node."""
    cluster = Cluster.start()
    return Broker("jars", cluster.bootstrap_servers, cluster.close)


def obtain(sources: Sequence[Callable[[], Broker]] = (from_environment, from_docker, from_jars)) -> Broker:
    """A broker from the first source that has one.

    Only a source that says NoBroker is passed over: one that is there and fails is an error to be seen.
    """
    reasons: list[str] = []
    for source in sources:
        try:
            return source()
        except NoBroker as reason:
            reasons.append(str(reason))
    raise NoBroker("no Kafka broker: " + "; ".join(reasons))
