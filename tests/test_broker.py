"""The broker of the tests is tested first: what it starts it ends, and its faults are real faults."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.broker import cluster as broker
from tests.broker import jars
from tests.broker.cluster import Broker, BrokerFailed, Cluster, obtain
from tests.broker.containers import container_settings, docker_host
from tests.broker.jars import Installation, NoBroker, answers, free_ports, install
from tests.broker.processes import ProcessGroup

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cluster(installed: None) -> Iterator[Cluster]:
    """One node for the tests that do it no lasting harm."""
    with Cluster.start() as running:
        yield running


def create_topic(servers: str, name: str, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 1, replicas)])[name].result(timeout=30)


def read_values(servers: str, topic: str, count: int, seconds: float = 30.0) -> list[bytes | None]:
    settings = {"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + seconds
    while len(values) < count and time.monotonic() < deadline:
        values += [message.value() for message in consumer.consume(count, 0.2) if message.error() is None]
    consumer.close()
    return values


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def found(origin: str) -> Callable[[], Broker]:
    return lambda: Broker(origin, "127.0.0.1:1")


def absent() -> Broker:
    raise NoBroker("is absent")


def broken() -> Broker:
    raise BrokerFailed("is broken")


def test_the_first_source_that_has_a_broker_gives_it() -> None:
    """Sources are asked in order, and no further than needed."""
    assert obtain([absent, found("second"), broken]).origin == "second"


def test_a_source_that_fails_is_not_passed_over() -> None:
    """A broken Docker must be seen, not replaced in silence by something else."""
    with pytest.raises(BrokerFailed, match="is broken"):
        obtain([absent, broken, found("third")])


def test_without_a_source_all_reasons_are_given() -> None:
    """A person who reads the reason for a skip can act on it."""
    with pytest.raises(NoBroker, match=r"is absent; is absent"):
        obtain([absent, absent])


def test_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names a broker gets that one, whatever else is installed."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "kafka.example:9092")
    assert obtain().bootstrap_servers == "kafka.example:9092"


def test_docker_is_taken_when_its_engine_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an engine, a container of the pom's version is started and stopped with the broker."""
    stopped: list[str] = []
    started: list[str] = []

    def start_kafka(host: str, image: str, settings: object) -> tuple[str, Callable[[], None]]:
        started.append(image)
        return f"{host}:9", lambda: stopped.append(image)

    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setattr("tests.broker.containers.docker_host", lambda: "localhost")
    monkeypatch.setattr("tests.broker.containers.start_kafka", start_kafka)
    with obtain() as taken:
        assert (taken.origin, taken.bootstrap_servers) == ("Docker", "localhost:9")
    assert started == stopped == [f"apache/kafka:{jars.kafka_version()}"]


def test_a_silent_docker_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that accepts and never answers costs about two seconds, not a test session."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(NoBroker, match="no Docker engine answers"):
            docker_host()
        assert time.monotonic() - began < 6


def test_a_container_names_the_address_outside() -> None:
    """Clients are told the port of the host, not that of the container."""
    settings = container_settings("host", 12345, {"min.insync.replicas": 1})
    assert settings["advertised.listeners"] == "PLAINTEXT://host:12345"
    assert settings["min.insync.replicas"] == 1


@pytest.mark.parametrize("java", [None, "#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n"])
def test_an_old_or_missing_java_is_said(java: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names what to install and the way around."""
    if java:
        (tmp_path / "java").write_text(java)
        (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(NoBroker, match=r"Java 17\+.*KAFKA_BOOTSTRAP_SERVERS"):
        jars.find_java()


def test_a_fetch_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an installation is never found by the next process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "find_java", lambda: "java")
    monkeypatch.setattr("shutil.which", lambda program: "/bin/false")
    with pytest.raises(NoBroker, match="could not install Kafka"):
        install()
    assert list((tmp_path / "stream_ocpdl").iterdir()) == []


def test_two_installations_at_once_give_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loser of the race takes the winner's."""

    def build(kafka: Installation, group: ProcessGroup) -> None:
        (kafka.home / "libs").mkdir()
        both.wait(10)

    both = threading.Barrier(2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "find_java", lambda: "java")
    monkeypatch.setattr(jars, "_build", build)
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda _: install(), range(2))
    assert first == second
    assert [path.name for path in (tmp_path / "stream_ocpdl").iterdir()] == [first.home.name]


def test_a_port_taken_meanwhile_is_replaced(monkeypatch: pytest.MonkeyPatch, installed: None) -> None:
    """A lost race for a port costs another attempt, not the test session."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        offers = iter([[taken.getsockname()[1], *free_ports(1)], free_ports(2)])
        monkeypatch.setattr(broker, "free_ports", lambda count: next(offers))
        with Cluster.start() as cluster:
            assert str(taken.getsockname()[1]) not in cluster.bootstrap_servers


def test_a_failed_start_shows_the_log(installed: None) -> None:
    """What Kafka said is in the error."""
    with pytest.raises(BrokerFailed, match=r"ended with 1:(.|\n)*num.network.threads"):
        Cluster.start(settings={"num.network.threads": "many"})


def test_what_is_produced_is_consumed(cluster: Cluster) -> None:
    """It is a broker."""
    create_topic(cluster.bootstrap_servers, "plain")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce("plain", b"value")
    assert producer.flush(30) == 0
    assert read_values(cluster.bootstrap_servers, "plain", 1) == [b"value"]


def test_a_frozen_node_is_silent_until_it_goes_on(cluster: Cluster) -> None:
    """SIGSTOP looks to clients like a network that swallows everything."""
    create_topic(cluster.bootstrap_servers, "frozen")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    cluster.stop(1)
    producer.produce("frozen", b"late")
    assert producer.flush(1) == 1
    cluster.cont(1)
    assert producer.flush(30) == 0


def test_a_closed_cluster_leaves_nothing(installed: None) -> None:
    """Neither processes nor files."""
    with Cluster.start() as cluster:
        port = int(cluster.bootstrap_servers.rpartition(":")[2])
        directory = cluster.log(1).parent
    assert not answers(port)
    assert not directory.exists()


def test_a_killed_parent_leaves_nothing(installed: None) -> None:
    """SIGKILL gives no chance to clean up, and still no broker, not even a frozen one, is orphaned."""
    script = "from tests.broker.cluster import Cluster; c = Cluster.start(); c.stop(1); "
    script += "print(c.log(1).parent, flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        directory = Path(parent.stdout.readline().strip())
        running = processes_with(str(directory))
        parent.kill()
    assert len(running) == 2
    assert eventually(lambda: not directory.exists() and not processes_with(str(directory)))


def processes_with(argument: str) -> list[str]:
    """The processes that have the text in their command line: a node and its guardian."""
    listing = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, timeout=10, check=True
    ).stdout
    return [line for line in listing.splitlines() if argument in line]


def test_three_nodes_lose_one_and_no_record(installed: None) -> None:
    """With acks=all, what was acknowledged while a node was killed and restarted is there, once and in order."""
    errors: list[KafkaError] = []
    acknowledged: list[bytes | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            acknowledged.append(message.value())

    with Cluster.start(nodes=3) as cluster:
        create_topic(cluster.bootstrap_servers, "replicated", replicas=3)
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "enable.idempotence": True}
        producer = Producer(settings)
        for number in range(3000):
            if number == 1000:
                cluster.kill(leader(cluster.bootstrap_servers, "replicated"))
            if number == 2000:
                for node in cluster.nodes:
                    if not answers(cluster.port(node)):
                        cluster.restart(node)
            producer.produce("replicated", str(number).encode(), on_delivery=delivered)
            producer.poll(0.001)
        assert producer.flush(60) == 0
        values = read_values(cluster.bootstrap_servers, "replicated", 3000)
    assert errors == []
    assert values == acknowledged == [str(number).encode() for number in range(3000)]


def leader(servers: str, topic: str) -> int:
    """The node that serves the topic's only partition."""
    metadata = AdminClient({"bootstrap.servers": servers}).list_topics(topic, timeout=30)
    return metadata.topics[topic].partitions[0].leader


def test_a_group_with_a_frozen_process_closes() -> None:
    """A group closes although one of its processes is frozen, and may be closed twice."""
    with ProcessGroup("group-") as group:
        child = group.spawn(["sleep", "60"], group.directory, group.directory / "log")
        os.kill(child.pid, signal.SIGSTOP)
    group.close()
    assert child.returncode == -signal.SIGKILL
