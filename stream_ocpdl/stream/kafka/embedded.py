"""A stand-in for a broker, inside of this process: librdkafka's mock cluster.

It starts in milliseconds and needs nothing, and it is for a first look only. It keeps five megabytes of a partition,
gives four partitions to every topic, forgets the positions of a transaction, and fences nobody: what it shows is no
evidence of anything but that the parts fit.
"""

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from confluent_kafka import Producer

from stream_ocpdl.stream.kafka.connection import Connection

KEPT = 5_000_000
"""Bytes that it keeps of a partition."""

PARTITIONS = 4
"""Of every topic."""


class Embedded:
    """The cluster, for as long as this lives."""

    def __init__(self) -> None:
        self._host = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "nobody", "log_level": 0})
        brokers = self._host.list_topics(timeout=10).brokers.values()
        servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        # It does not answer a fetch that waits when something comes: so none waits for long.
        self.connection = Connection(servers, options={"fetch.wait.max.ms": 10, "log_level": 0})

    def __enter__(self) -> Self:
        """It runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It ends with its client."""
        self._host.purge()
        del self._host

    def make(self, names: Iterable[str]) -> None:
        """Make topics: asking for one does."""
        wanted = set(names)
        for name in wanted:
            self._host.list_topics(name, timeout=10)
        while not wanted <= set(self._host.list_topics(timeout=10).topics):
            time.sleep(0.01)


def called_embedded(_: Connection, __: str) -> str:
    """Stands for the broker's own name of a topic: the stand-in has none."""
    return "embedded"
