"""How to reach a broker, and the settings of every client."""

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka.admin import AdminClient

from stream_ocpdl.errors import BrokerError, ConfigError
from stream_ocpdl.stream.kafka.backoff import client_log

log = logging.getLogger("stream_ocpdl.kafka")

LARGEST = 64_000_000
"""Bytes of a record, at most: the records of the journal are not cut into pieces."""

SESSION_MS = 10_000
"""How long a member may be silent before the group takes its shards away."""

POLL_MS = 60_000
"""How long the group waits for a member that does not poll; the thread that does nothing else is never so late."""

OF_GROUPS = ("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms")
"""Settings of the members of a group."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a broker, and how long to try."""

    bootstrap_servers: str
    patience: float = 60.0
    """Seconds after which what does not work is given up."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """More settings for every client: security, and what an operator wants to have otherwise. They may be secrets."""
    abandon: Callable[[str], None] = log.critical
    """Called from another thread when a call into the client does not come back, long after patience has ended."""

    def consumer(self, **settings: Any) -> Consumer:
        """A consumer that commits nothing by itself and never resets an offset by itself."""
        defaults = {"fetch.queue.backoff.ms": 5, "queued.max.messages.kbytes": 65536}
        rules = {
            "group.id": "stream_ocpdl",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
        return Consumer(defaults | self.alone() | rules | settings, logger=client_log)

    def producer(self, transactional_id: str, **settings: Any) -> Producer:
        """A transactional producer."""
        defaults = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20, "linger.ms": 1}
        rules = {"transactional.id": transactional_id, "message.max.bytes": LARGEST}
        return Producer(defaults | self.alone() | rules | settings, logger=client_log)

    def admin(self) -> AdminClient:
        """An administrator."""
        return AdminClient(self.alone(), logger=client_log)

    def alone(self) -> dict[str, Any]:
        """The settings of a client that is in no group: those of members are not for it."""
        return {name: value for name, value in self.common().items() if name not in OF_GROUPS}

    def common(self) -> dict[str, Any]:
        """The settings of every client."""
        quiet = {"enable.metrics.push": False, "log.connection.close": False}
        return {"bootstrap.servers": self.bootstrap_servers, **quiet, **self.options}


def timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    """The times of a member, but for those that the operator has set.

    >>> timeouts({"session.timeout.ms": 45000})["heartbeat.interval.ms"]
    4500
    """
    told = str(options.get("session.timeout.ms", SESSION_MS))
    session = int(told) if told.isdecimal() else SESSION_MS  # what is wrong with it, librdkafka says
    usual = {
        "session.timeout.ms": session,
        "heartbeat.interval.ms": session // 10,
        "max.poll.interval.ms": max(session, POLL_MS),
    }
    return {name: options.get(name, value) for name, value in usual.items()}


def check_options(options: Mapping[str, Any]) -> None:
    """Raise unless librdkafka takes these settings. Nothing is connected."""
    connection = Connection("", options={**options, "log_level": 0})
    try:
        connection.consumer(**timeouts(options)).close()
        connection.producer("never used")
    except KafkaException as error:
        reason = error.args[0].str().strip().removeprefix("Failed to create consumer: ")
        raise ConfigError(f"kafka: librdkafka says: {reason}") from None


def reach(connection: Connection) -> None:
    """Wait for a broker, for as long as there is patience; now and then say why there is none."""
    said: list[KafkaError] = []
    admin = AdminClient(connection.alone() | {"error_cb": said.append, "log_level": 0})
    servers, patience, deadline = (
        connection.bootstrap_servers,
        connection.patience,
        time.monotonic() + connection.patience,
    )
    while True:
        left = deadline - time.monotonic()
        try:
            admin.list_topics(timeout=max(0.1, min(5.0, left)))
        except KafkaException as error:
            admin.poll(0)  # whereupon `said` is filled
            why = ([one for one in said if one.code() != KafkaError._ALL_BROKERS_DOWN] or [error.args[0]])[-1]
            reason = re.sub(r" \(after \d+ms.*?\)", "", why.str())
            if why.code() == KafkaError._AUTHENTICATION:
                raise BrokerError(f"the broker at {servers} does not let us in: {reason}; see kafka.sasl_…") from None
            if left <= 5.0:
                raise BrokerError(
                    f"no broker answers at {servers} within {patience:g} s: {reason};"
                    " is bootstrap_servers right, the broker up, kafka.security_protocol its own?"
                ) from None
            log.warning("no broker answers at %s: %s; trying for another %.0f s", servers, reason, left - 5.0)
        else:
            return
