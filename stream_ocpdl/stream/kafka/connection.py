"""How to reach a broker, and the settings of every client."""

import logging
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

from stream_ocpdl.errors import BrokerError, ConfigError, Denied
from stream_ocpdl.stream.kafka.backoff import client_log
from stream_ocpdl.stream.kafka.refusing import denied, shortened, turned_away
from stream_ocpdl.stream.permissions import Operation

log = logging.getLogger("stream_ocpdl.kafka")

LARGEST = 64_000_000
"""Bytes of a record, at most: the records of the journal are not cut into pieces."""

FETCH = 4 << 20
"""Bytes of a partition in one answer of a broker. librdkafka asks for one megabyte, which few tensors fill."""

SESSION_MS = 10_000
"""How long a member may be silent before the group takes its shards away."""

POLL_MS = 60_000
"""How long the group waits for a member that does not poll; the thread that does nothing else is never so late."""

SELDOM_MS = 2000
"""librdkafka connects again after half of this, as often as it takes, where it waits for its first broker. By its own
default it does so twenty times a second; other clients are left with that, for with more followers of a journal were
seen to get nothing."""

AGAIN_MS = 200
"""The longest pause of a producer between two attempts, and also between two questions for a topic that it cannot write
to, be it denied or without a leader: with 20 a broker was asked fifty times a second."""

LOOK = 1.0
"""Seconds after which it is looked whether a broker that has not answered has refused."""

TOLD = 5.0
"""Seconds between two lines about a broker that does not answer."""

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
    group: str = "stream_ocpdl"
    """What consumers are called that are in no group: a broker is asked for it all the same, and may refuse."""

    def consumer(self, **settings: Any) -> Consumer:
        """A consumer that commits nothing by itself and never resets an offset by itself."""
        defaults = {"fetch.queue.backoff.ms": 5, "queued.max.messages.kbytes": 65536, "fetch.message.max.bytes": FETCH}
        rules = {
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
        return Consumer(defaults | self.alone() | rules | settings, logger=client_log)

    def producer(self, transactional_id: str, **settings: Any) -> Producer:
        """A transactional producer."""
        defaults = {"retry.backoff.ms": 5, "retry.backoff.max.ms": AGAIN_MS, "linger.ms": 1}
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

    @property
    def principal(self) -> str:
        """Who we are to an authorizer, as far as we know."""
        return f"User:{self.options.get('sasl.username', '…')}"

    def denied(self, error: KafkaError, name: str, operation: Operation | None = None) -> Denied | None:
        """What to say if an error means that an ACL is missing."""
        return denied(error, name, operation, self.bootstrap_servers, self.principal)


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
    """Wait for a broker, for as long as there is patience; now and then say why there is none.

    One that refuses us is not asked again.
    """
    said: list[KafkaError] = []
    rules: dict[str, Any] = {"error_cb": said.append, "log_level": 0}
    seldom: dict[str, Any] = {"reconnect.backoff.ms": SELDOM_MS}
    admin = AdminClient(seldom | connection.alone() | rules)
    servers, patience, began = connection.bootstrap_servers, connection.patience, time.monotonic()
    told = TOLD
    while True:
        left = began + patience - time.monotonic()
        try:
            admin.list_topics(timeout=max(0.1, min(LOOK, left)))
        except KafkaException as error:
            admin.poll(0)  # whereupon `said` is filled
            refused = turned_away(servers, connection.options, said)
            if refused is not None:
                raise refused from None
            why = ([one for one in said if one.code() != KafkaError._ALL_BROKERS_DOWN] or [error.args[0]])[-1]
            reason, waited = shortened(why.str()), time.monotonic() - began
            if waited >= patience:
                raise BrokerError(
                    f"no broker answers at {servers} within {patience:g} s: {reason};"
                    " is bootstrap_servers right, the broker up, kafka.security_protocol its own?"
                ) from None
            if waited >= told:
                told, more = told + TOLD, patience - waited
                log.warning("no broker answers at %s: %s; trying for another %.0f s", servers, reason, more)
        else:
            return
