"""Apache Kafka in a container, where a Docker engine answers."""

import gc
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress

from tests.broker.jars import NoBroker, free_ports

_PING_SECONDS = 2


def docker_host() -> str:
    """The host under which containers' ports are reached, if an engine answers at once."""
    try:
        from docker.errors import DockerException
        from testcontainers.core.docker_client import DockerClient
    except ImportError as missing:
        raise NoBroker(f"{missing.name} is not installed") from missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # without an engine docker leaves its socket to the collector
        with suppress(DockerException, OSError):
            engine = DockerClient(timeout=_PING_SECONDS)
            engine.client.ping()
            return engine.host()
        gc.collect()
    raise NoBroker("no Docker engine answers")


def start_kafka(host: str, image: str, settings: Mapping[str, object]) -> tuple[str, Callable[[], None]]:
    """Start one node; its bootstrap servers, and what removes it again.

    The broker must tell clients the port that they reach it by, so that port is chosen here, not by the engine.
    """
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    (port,) = free_ports(1)
    container = DockerContainer(image).with_bind_ports(9092, port)
    container.waiting_for(LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(120))
    for key, value in container_settings(host, port, settings).items():
        container.with_env("KAFKA_" + key.upper().replace(".", "_"), str(value))
    container.start()
    return f"{host}:{port}", container.stop


def container_settings(host: str, port: int, settings: Mapping[str, object]) -> dict[str, object]:
    """A node's settings inside its container: it listens everywhere and names the address outside."""
    return {
        **settings,
        "node.id": 1,
        "listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "controller.quorum.voters": "1@127.0.0.1:9093",
    }
