"""Apache Kafka: the only file that imports confluent_kafka.

What was learned of the broker and is relied on here:

- `init_transactions` with a stable transactional.id fences every predecessor and aborts what it left open; only after
  it does a read see all that was committed. It takes up to a second after a crash.
- A topic is read to its end *as of now* by its high watermark, asked by a read_uncommitted consumer: a read_committed
  one is told the last stable offset, which an open transaction holds back.
- The commit of a transaction answers before its markers are written, and the next transaction then waits for
  `retry.backoff.ms` at its first request: with the library's default ten transactions a second, with 5 ms about 150.
- An aborted transaction is written again from the same bytes. A commit that timed out is asked again, never aborted.
- `flush` on a fenced producer raises SystemError, so nothing is flushed inside of a transaction: the commit does it.
- `send_offsets_to_transaction` does not always keep its timeout while brokers come and go, and cannot be cancelled
  (librdkafka issues 5456, 5511): past all patience the process has to end, and to recover. `abandon` is called then.
"""

import ctypes
import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple, cast

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]  # no __all__
from confluent_kafka.cimpl import NewTopic

from stream_ocpdl.errors import BrokerError, ConfigError, Fenced, InputLost, OcpdlError
from stream_ocpdl.stream.messages import Headers, Position, Record
from stream_ocpdl.stream.ports import CrashPoint, no_crash

log = logging.getLogger("stream_ocpdl.kafka")


class Row(NamedTuple):
    """A record to be written."""

    topic: str
    partition: int
    """−1: by the key."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = 0
    """Milliseconds since 1970; 0 for now."""


LARGEST = 64_000_000
"""Bytes of a record, at most: the records of the journal are not cut into pieces."""

FENCED = (KafkaError._FENCED, KafkaError._FATAL, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
"""What a producer is told when its id has been taken over, or its transaction timed out, which looks the same."""


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
        return Consumer(defaults | self.common() | rules | settings, logger=log)

    def producer(self, transactional_id: str, **settings: Any) -> Producer:
        """A transactional producer."""
        defaults = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20, "linger.ms": 1}
        rules = {"transactional.id": transactional_id, "message.max.bytes": LARGEST}
        return Producer(defaults | self.common() | rules | settings, logger=log)

    def admin(self) -> AdminClient:
        """An administrator."""
        return AdminClient(self.common(), logger=log)

    def common(self) -> dict[str, Any]:
        """The settings of every client."""
        return {"bootstrap.servers": self.bootstrap_servers, "enable.metrics.push": False, **self.options}


def check_options(options: Mapping[str, Any]) -> None:
    """Raise unless librdkafka takes these settings. Nothing is connected."""
    connection = Connection("", options={**options, "log_level": 0})
    try:
        connection.consumer().close()
        connection.producer("never used")
    except KafkaException as error:
        reason = error.args[0].str().strip().removeprefix("Failed to create consumer: ")
        raise ConfigError(f"kafka: librdkafka says: {reason}") from None


def reach(connection: Connection) -> None:
    """Wait for a broker, for as long as there is patience; now and then say why there is none."""
    said: list[KafkaError] = []
    admin = AdminClient(connection.common() | {"error_cb": said.append, "log_level": 0})
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


# ── topics ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Described:
    """A topic as the broker has it."""

    partitions: int
    replicas: int
    """Of the partition that has fewest."""
    config: Mapping[str, str] | None
    """Its settings; none if we may not see them."""


def describe(connection: Connection, names: Collection[str]) -> dict[str, Described]:
    """Those of the topics that are there."""
    admin, found = connection.admin(), {}
    topics = admin.describe_topics(TopicCollection(list(names)), request_timeout=connection.patience)
    for name, outcome in topics.items():
        try:
            found[name] = outcome.result().partitions
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise BrokerError(f"topic {name} cannot be described: {error.args[0].str()}") from error
    return {
        name: Described(len(partitions), min(len(p.replicas) for p in partitions), _config(connection, admin, name))
        for name, partitions in found.items()
    }


def await_topics(connection: Connection, names: Collection[str]) -> dict[str, Described]:
    """The topics, once all are seen: a broker learns of a new one a moment after it was made."""
    deadline = time.monotonic() + connection.patience
    while len(found := describe(connection, names)) < len(names):
        if time.monotonic() > deadline:
            missing = ", ".join(name for name in names if name not in found)
            raise BrokerError(f"{missing}: made, but not seen within {connection.patience:g} s")
        time.sleep(0.05)
    return found


def _config(connection: Connection, admin: AdminClient, topic: str) -> dict[str, str] | None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        answer = admin.describe_configs([resource], request_timeout=connection.patience)[resource]
        return {name: str(entry.value) for name, entry in answer.result().items()}
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            return None
        raise BrokerError(f"the settings of topic {topic} cannot be read: {error.args[0].str()}") from error


def create_topics(
    connection: Connection, wanted: Mapping[str, tuple[int, dict[str, str]]], replication: int = -1
) -> list[str]:
    """Make topics, each with its number of partitions and its settings, unless they are there; those that were not."""
    made = []
    new = [NewTopic(name, count, replication, config=config) for name, (count, config) in wanted.items()]
    admin = connection.admin()  # it must live until the outcomes are there
    patience = {"operation_timeout": connection.patience, "request_timeout": connection.patience + 5}
    for name, outcome in admin.create_topics(new, **patience).items():
        try:
            outcome.result()
            made.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerError(f"topic {name} cannot be created: {error.args[0].str()}") from error
    return made


def delete_topics(connection: Connection, names: Collection[str]) -> None:
    """Remove topics."""
    admin = connection.admin()
    for outcome in admin.delete_topics(list(names), operation_timeout=connection.patience).values():
        try:
            outcome.result(connection.patience)
        except KafkaException as error:
            log.warning("a topic could not be deleted: %s", error.args[0].str())


def partitions_of(client: Consumer, topic: str, patience: float) -> list[int]:
    """The partitions of a topic."""
    try:
        found = client.list_topics(topic, timeout=patience).topics[topic]
    except KafkaException as error:
        raise BrokerError(f"no broker answers within {patience:g} s: {error.args[0].str()}") from error
    if found.error is not None:
        raise BrokerError(f"topic {topic} cannot be read: {found.error.str()}; create it, or correct its name")
    return sorted(found.partitions)


def partitions_of_topic(connection: Connection, topic: str) -> list[int]:
    """The partitions of a topic, for those who have no consumer."""
    with closing(connection.consumer()) as consumer:
        return partitions_of(consumer, topic, connection.patience)


def topic_id(connection: Connection, topic: str) -> str:
    """The broker's own name of a topic: another one after it was deleted and made anew."""
    admin = connection.admin()
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=connection.patience)[topic].result()
    except KafkaException as error:
        raise BrokerError(f"topic {topic} cannot be described: {error.args[0].str()}") from error
    return str(described.topic_id)


# ── reading ────────────────────────────────────────────────────────────────────────────────────────────────────


def watermarks(connection: Connection, topic: str, partitions: Collection[int]) -> dict[int, tuple[int, int]]:
    """The lowest offset and the high watermark of each partition, open transactions included."""
    with closing(connection.consumer(**{"isolation.level": "read_uncommitted"})) as consumer:
        partitions_of(consumer, topic, connection.patience)
        return {p: _watermarks(consumer, topic, p, connection.patience) for p in partitions}


def _watermarks(consumer: Consumer, topic: str, partition: int, patience: float) -> tuple[int, int]:
    try:
        answer = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=patience)
    except KafkaException as error:
        raise BrokerError(f"{topic}[{partition}] does not answer: {error.args[0].str()}") from error
    if answer is None:
        raise BrokerError(f"{topic}[{partition}] does not answer within {patience:g} s")
    return answer


def offsets_at(connection: Connection, topic: str, timestamp: int) -> dict[int, int]:
    """For each partition the offset of the first record written at a time (milliseconds since 1970) or after."""
    with closing(connection.consumer()) as consumer:
        wanted = [TopicPartition(topic, p, timestamp) for p in partitions_of(consumer, topic, connection.patience)]
        try:
            found = consumer.offsets_for_times(wanted, timeout=connection.patience)
        except KafkaException as error:
            raise BrokerError(f"{topic} does not answer: {error.args[0].str()}") from error
        ends = {p.partition: _watermarks(consumer, topic, p.partition, connection.patience)[1] for p in found}
        return {p.partition: p.offset if p.offset >= 0 else ends[p.partition] for p in found}


def read_committed(connection: Connection, topic: str, partition: int, start: int = 0) -> Iterator[Record]:
    """The committed records from an offset to the present end."""
    low, end = watermarks(connection, topic, [partition])[partition]
    reached, deadline = max(start, low), time.monotonic() + connection.patience
    if reached >= end:
        return
    with closing(connection.consumer()) as consumer:
        partitions_of(consumer, topic, connection.patience)
        consumer.assign([TopicPartition(topic, partition, reached)])
        while reached < end:
            for message in consumer.consume(500, 0.05):
                error = message.error()
                if error is not None:
                    _raise_on_read(error, topic, partition)
                elif cast(int, message.offset()) < end:
                    deadline = time.monotonic() + connection.patience
                    yield record_of(message)
            reached = max(reached, consumer.position([TopicPartition(topic, partition)])[0].offset)
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"{topic}[{partition}] is stuck at offset {reached} of {end}: another producer left a transaction"
                    " open; it ends by itself after that producer's transaction.timeout.ms"
                )


def follow(connection: Connection, topic: str, starts: Mapping[int, int], idle: Callable[[], bool]) -> Iterator[Record]:
    """Committed records from these offsets on, also those that are still to come, until `idle` says to end.

    It is asked whenever nothing came for a tenth of a second.
    """
    with closing(connection.consumer()) as consumer:
        partitions_of(consumer, topic, connection.patience)
        consumer.assign([TopicPartition(topic, p, offset) for p, offset in starts.items()])
        while True:
            messages = consumer.consume(500, 0.1)
            for message in messages:
                error = message.error()
                if error is None:
                    yield record_of(message)
                else:
                    _raise_on_read(error, topic, cast(int, message.partition()))
            if not messages and idle():
                return


def record_of(message: Message) -> Record:
    """What we want of a message of the client."""
    position = Position(cast(int, message.partition()), cast(int, message.offset()))
    return Record(position, message.key(), message.value(), _headers(message), max(message.timestamp()[1], -1))


def _headers(message: Message) -> Headers:
    """The headers of a message; none if they cannot be read.

    A name that is not UTF-8 leaves an exception that comes up anywhere later, and in the client's list a null pointer:
    to look at that entry in Python would end the process. So the list is looked at from outside first, through a call
    that also raises what is pending.
    """
    try:
        headers = message.headers()
        if headers is None:
            return ()
        for index in range(len(headers)):
            if _address(headers, index) is None:
                return ()
    except (UnicodeError, SystemError, ctypes.ArgumentError):
        return ()
    return tuple(cast(Headers, headers))


_address = ctypes.pythonapi.PyList_GetItem
_address.argtypes, _address.restype = [ctypes.py_object, ctypes.c_ssize_t], ctypes.c_void_p


def _raise_on_read(error: KafkaError, topic: str, partition: int) -> None:
    """Refuse what cannot mend itself."""
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise InputLost(
            f"{topic}[{partition}] no longer has the offset that has to be read ({error.str()}): its retention is"
            " shorter than the time since the last checkpoint, or the topic was made anew"
        )
    if error.fatal() or error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED):
        raise BrokerError(f"{topic}[{partition}] cannot be read: {error.str()}")
    log.warning("reading: %s", error.str(), extra={"topic": topic, "partition": partition})


def committed(connection: Connection, group: str, topic: str) -> dict[int, int]:
    """The offsets that a group has committed; partitions without one are left out."""
    with closing(connection.consumer(**{"group.id": group})) as consumer:
        partitions = [TopicPartition(topic, p) for p in partitions_of(consumer, topic, connection.patience)]
        deadline = time.monotonic() + connection.patience
        while True:
            try:
                found = consumer.committed(partitions, timeout=5.0)
            except KafkaException as error:  # it times out for as long as a transaction with offsets is open
                if time.monotonic() > deadline:
                    raise BrokerError(f"group {group} does not answer: {error.args[0].str()}") from error
            else:
                return {place.partition: place.offset for place in found if place.offset >= 0}


class KafkaSource:
    """The input of a model, read by assignment."""

    def __init__(self, connection: Connection, topic: str, group: str) -> None:
        self._connection, self._topic = connection, topic
        self._consumer = connection.consumer(**{"group.id": group})
        self.partitions: Sequence[int] = partitions_of(self._consumer, topic, connection.patience)
        self.identity = f"{topic} ({topic_id(connection, topic)}, {len(self.partitions)} partitions)"
        self._paused: set[int] = set()

    def earliest(self) -> dict[int, int]:
        """The lowest offset of each partition."""
        return {p: low for p, (low, _) in watermarks(self._connection, self._topic, self.partitions).items()}

    def start(self, positions: Mapping[int, int]) -> None:
        """Read on from these offsets."""
        self._pause_all_but(self.partitions)  # a partition stays paused through an assignment
        self._consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in positions.items()])

    def poll(self, limit: int, timeout: float, hungry: Collection[int]) -> list[Record]:
        """Records of the hungry partitions; the others are paused for as long as they are not."""
        self._pause_all_but(hungry)
        records = []
        for message in self._consumer.consume(limit, timeout):
            error = message.error()
            if error is not None:
                _raise_on_read(error, self._topic, cast(int, message.partition()))
            else:
                records.append(record_of(message))
        return records

    def positions(self, offsets: Mapping[int, int]) -> tuple[list[TopicPartition], Any]:
        """Consumed offsets as a transaction takes them."""
        consumed = [TopicPartition(self._topic, p, offset) for p, offset in offsets.items()]
        return consumed, self._consumer.consumer_group_metadata()

    def close(self) -> None:
        """Leave."""
        self._consumer.close()

    def _pause_all_but(self, hungry: Collection[int]) -> None:
        full = {p for p in self.partitions if p not in hungry}
        if full == self._paused:
            return
        for change, which in (
            (self._consumer.pause, full - self._paused),
            (self._consumer.resume, self._paused - full),
        ):
            if which:
                change([TopicPartition(self._topic, p) for p in which])
        self._paused = full


# ── writing ────────────────────────────────────────────────────────────────────────────────────────────────────


class Writer:
    """An idempotent producer with a bounded queue; each partition gets its records once and in order."""

    def __init__(self, connection: Connection, queue_bytes: int = 64_000_000) -> None:
        rules = {
            "enable.idempotence": True,
            "message.max.bytes": LARGEST,
            "queue.buffering.max.kbytes": max(1, queue_bytes // 1000),
            "delivery.timeout.ms": int(1000 * connection.patience),
        }
        self._producer = Producer({"linger.ms": 5} | connection.common() | rules, logger=log)
        self._patience = connection.patience
        self._failed: list[str] = []

    def write(self, topic: str, value: bytes | None, key: bytes | None, partition: int, wait: float) -> bool:
        """Queue a record; false if there was no room for it within so many seconds."""
        self._raise_failed()
        deadline = time.monotonic() + wait
        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=self._report)
            except BufferError:
                if time.monotonic() >= deadline:
                    return False
                self._producer.poll(min(0.1, wait))
            except KafkaException as error:
                raise BrokerError(f"{topic} takes no such record: {error.args[0].str()}") from error
            else:
                self._producer.poll(0)
                return True

    def flush(self) -> None:
        """Wait until everything queued has arrived."""
        left = self._producer.flush(self._patience)
        self._raise_failed()
        if left:
            raise BrokerError(f"{left} records could not be written in {self._patience:g} s; they are still queued")

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(f"a record for {message.topic()} was not delivered: {error.str()}")

    def _raise_failed(self) -> None:
        if self._failed:
            count, first = len(self._failed), self._failed[0]
            self._failed.clear()
            raise BrokerError(first if count == 1 else f"{first} (and {count - 1} more)")


def produce(connection: Connection, topic: str, rows: Iterable[tuple[int, bytes | None]]) -> None:
    """Write values to given partitions, in order, and wait until all are there."""
    writer = Writer(connection)
    for partition, value in rows:
        if not writer.write(topic, value, None, partition, connection.patience):
            raise BrokerError(f"{topic} takes no records within {connection.patience:g} s")
    writer.flush()


class Transactions:
    """A transactional producer that knows which error means what."""

    def __init__(self, connection: Connection, transactional_id: str, timeout_ms: int = 180_000) -> None:
        self._patience = connection.patience
        self._timeout = min(10.0, connection.patience)
        self._abandon = connection.abandon
        self.id = transactional_id
        self._producer = connection.producer(transactional_id, **{"transaction.timeout.ms": timeout_ms})

    def open(self) -> None:
        """Fence every predecessor and abort what it left open."""
        self._insist(partial(self._producer.init_transactions, self._timeout), self._deadline())

    def write(
        self,
        records: Callable[[], Iterable[Row]],
        consumed: tuple[list[TopicPartition], Any] | None = None,
        at: CrashPoint = no_crash,
    ) -> int:
        """One transaction of records and consumed offsets; the offset of the last record.

        Written again from the start, with the same bytes, for as long as it is aborted and there is patience.
        """
        deadline = self._deadline()
        watchdog = threading.Timer(2 * self._patience, self._abandon, [f"{self.id}: a call into the client hangs"])
        watchdog.daemon = True
        watchdog.start()
        try:
            return self._write(records, consumed, at, deadline)
        except BrokerError:
            with suppress(KafkaException):  # or readers would wait for it until it times out
                self._producer.abort_transaction(self._timeout)
            raise
        finally:
            watchdog.cancel()

    def _write(self, records: Callable[[], Iterable[Row]], consumed: Any, at: CrashPoint, deadline: float) -> int:
        while True:
            try:
                return self._attempt(records, consumed, at, deadline)
            except _Aborted as why:
                if time.monotonic() > deadline:
                    raise BrokerError(f"no transaction of {self.id} went through: {why}") from why
                log.warning("a transaction of %s was aborted and is written again: %s", self.id, why)
                time.sleep(0.05)

    def _attempt(self, records: Callable[[], Iterable[Row]], consumed: Any, at: CrashPoint, deadline: float) -> int:
        last: list[int] = []

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                last.append(cast(int, message.offset()))
            else:
                log.warning("%s: a record was not delivered: %s", self.id, error.str())

        at("before-produce")
        self._insist(self._producer.begin_transaction, deadline)
        for row, following in pairwise(chain(records(), [None])):
            if row is not None:
                self._produce(row, report if following is None else None, deadline)
        at("after-produce")
        if consumed is not None:
            offsets, group = consumed
            self._insist(partial(self._producer.send_offsets_to_transaction, offsets, group, self._timeout), deadline)
        at("before-commit")
        self._insist(partial(self._producer.commit_transaction, self._timeout), deadline)
        at("after-commit")
        while not last:
            self._producer.poll(0.01)
            if time.monotonic() > deadline:
                raise BrokerError(f"{self.id}: no report of a record that was committed")
        return last[0]

    def _produce(self, row: Row, report: Any, deadline: float) -> None:
        topic, partition, key, value, headers, timestamp = row
        while True:
            try:
                self._producer.produce(topic, value, key, partition, report, None, timestamp, list(headers))
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.1)
                if time.monotonic() > deadline:
                    raise BrokerError(f"{topic} takes no records: the queue of the producer stays full") from None
            except KafkaException as raised:
                self._judge(raised, deadline)
            else:
                return

    def _insist(self, call: Callable[[], Any], deadline: float) -> None:
        """Call until it works, for as long as the error can mend itself."""
        while True:
            try:
                call()
            except KafkaException as raised:
                self._judge(raised, deadline)
            else:
                return

    def _judge(self, raised: KafkaException, deadline: float) -> None:
        """Raise what an error means; return if the same call may be made again."""
        error: KafkaError = raised.args[0]
        if error.code() in FENCED:
            raise Fenced(f"another process writes as {self.id} now") from raised
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise BrokerError(
                f"{self.id}: a record is larger than the broker takes: raise max.message.bytes"
            ) from raised
        if error.txn_requires_abort():
            self._insist(partial(self._producer.abort_transaction, self._timeout), deadline)
            raise _Aborted(error.str()) from raised
        if error.fatal() or not error.retriable():
            raise BrokerError(f"{self.id}: {error.str()}") from raised
        if time.monotonic() > deadline:
            raise BrokerError(f"{self.id}: given up after {self._patience:g} s: {error.str()}") from raised
        log.warning("%s: %s; trying again", self.id, error.str())
        time.sleep(0.05)

    def _deadline(self) -> float:
        return time.monotonic() + self._patience


class _Aborted(OcpdlError):
    """The transaction was aborted; the same one may be written again."""
