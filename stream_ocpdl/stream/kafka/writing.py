"""Records out: one by one, or in a transaction with the positions that they came from."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeAlias, cast

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from stream_ocpdl.errors import BrokerError, Denied, Fenced, OcpdlError
from stream_ocpdl.stream.beside import alarm
from stream_ocpdl.stream.kafka.allowed import allowed_topics
from stream_ocpdl.stream.kafka.backoff import Backoff, client_log
from stream_ocpdl.stream.kafka.connection import LARGEST, Connection
from stream_ocpdl.stream.messages import Headers
from stream_ocpdl.stream.permissions import Operation, Permission
from stream_ocpdl.stream.ports import CrashPoint, no_crash

log = logging.getLogger("stream_ocpdl.kafka")

FENCED = (KafkaError._FENCED, KafkaError._FATAL, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
"""What a producer is told when its id has been taken over, or its transaction timed out, which looks the same."""

REBALANCED = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
)
"""What it is told when the group has another generation than the transaction. Whether the shard is still ours, the next
attempt finds out."""

GONE = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
"""What it is told of a topic that was deleted, once the client has looked for it in vain."""

MAKE_AGAIN = "make it again with stream-ocpdl topics create"

LOOK = 5.0
"""Seconds that a broker has to say which topics there are, where a transaction was given up."""

UNCLEAR = (KafkaError._INCONSISTENT, KafkaError.TOPIC_AUTHORIZATION_FAILED)
"""What it is told when an ACL is missing, and not of which topic."""

HEEDED = 64
"""Records between two looks at what became of those before: each lets other threads go first."""

WAITING = 100_000
"""So many records may wait in the client, beside the limit of their bytes."""

PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""What becomes of the records of a transaction that is aborted."""


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


Written: TypeAlias = tuple[str, int, bytes | None, bytes | None, Headers, int]
"""The same without names, which takes no call to make."""

Report: TypeAlias = Callable[[KafkaError | None, Message], None]
"""Told what became of a record."""

Sent: TypeAlias = tuple[bytes, bytes | None, int]
"""A value, its key, and its partition."""


class Writer:
    """An idempotent producer with a bounded queue; each partition gets its records once and in order."""

    def __init__(self, connection: Connection, queue_bytes: int = 64_000_000) -> None:
        rules = {
            "enable.idempotence": True,
            "message.max.bytes": LARGEST,
            "queue.buffering.max.kbytes": max(1, queue_bytes // 1000),
            "queue.buffering.max.messages": WAITING,
            "delivery.timeout.ms": int(1000 * connection.patience),
            "delivery.report.only.error": True,
        }
        self._producer = Producer({"linger.ms": 5} | connection.alone() | rules, logger=client_log)
        self._patience = connection.patience
        self._failed: list[str] = []
        self._room, self._largest = queue_bytes // 2, 0
        """No record that waits in the client is larger than `_largest`."""

    def write(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, wait: float, headers: Headers = ()
    ) -> bool:
        """Queue a record; false if there was no room for it within so many seconds."""
        self.heed()
        return self.put(topic, value, key, partition, wait, headers)

    def put(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, wait: float, headers: Headers = ()
    ) -> bool:
        """The same for one of many records, after which the client is heeded once."""
        deadline = None
        self._largest = max(self._largest, len(value or b""))
        while True:
            try:
                if headers:
                    self._producer.produce(topic, value, key, partition, self._report, headers=list(headers))
                else:
                    self._producer.produce(topic, value, key, partition, self._report)
            except BufferError:
                deadline = deadline or time.monotonic() + wait
                if time.monotonic() >= deadline:
                    return False
                self._producer.poll(min(0.1, wait))
            except KafkaException as error:
                raise BrokerError(f"{topic} takes no such record: {error.args[0].str()}") from error
            else:
                return True

    def put_together(self, topic: str, records: Sequence[Sent], wait: float) -> bool:
        """The same for several. Where there is room for certain, the interpreter is let go once and not for each: it
        may be long until another thread gives it back. Where some might not fit they come one by one, and in order.
        """
        waiting = len(self._producer)
        self._largest = max([self._largest if waiting else 0, *(len(value) for value, _, _ in records)])
        waiting += len(records)
        if waiting * self._largest > self._room or waiting > WAITING:
            return all(self.put(topic, value, key, partition, wait) for value, key, partition in records)
        parts: dict[int, list[dict[str, Any]]] = {}
        for value, key, partition in records:
            parts.setdefault(partition, []).append({"value": value, "key": key})
        for partition, messages in parts.items():  # a message's own partition would be ignored
            if self._producer.produce_batch(topic, messages, partition, self._report) < len(messages):
                error = next(message["_error"] for message in messages if "_error" in message)
                raise BrokerError(f"{topic} takes no such record: {error}")
        return True

    def heed(self) -> None:
        """Hear what became of records; raise if some were not delivered."""
        self._producer.poll(0)
        self._raise_failed()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything queued has arrived, for as long as there is patience, or for so many seconds."""
        patience = self._patience if timeout is None else timeout
        left = self._producer.flush(patience)
        self._raise_failed()
        if left:
            raise BrokerError(f"{left} records could not be written in {patience:g} s; they are still queued")

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

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        timeout_ms: int = 180_000,
        check: Callable[[], None] = lambda: None,
        right: Permission | None = None,
        remedy: Callable[[str], str] = lambda _: MAKE_AGAIN,
    ) -> None:
        """`check` is called between attempts, and may raise to end them; `right` is what lets us have this id; `remedy`
        says what to do about a topic that is gone.
        """
        self._connection, self._patience = connection, connection.patience
        self._timeout = min(10.0, connection.patience)
        self._abandon = connection.abandon
        self.id, self._timeout_ms = transactional_id, timeout_ms
        self._right = right or Permission("Write", "transactional-id", transactional_id)
        self._check, self._backoff, self._remedy = check, Backoff(transactional_id), remedy
        self._opened: Producer | None = None
        self._wanted: set[tuple[Operation, str]] = set()
        """What the present transaction must be allowed to do, with which topics."""

    @property
    def _producer(self) -> Producer:
        """Made when it is first needed: who only reads has none."""
        if self._opened is None:
            self._opened = self._connection.producer(self.id, **{"transaction.timeout.ms": self._timeout_ms})
        return self._opened

    def open(self) -> None:
        """Fence every predecessor and abort what it left open."""
        self._check()
        self._insist(partial(self._producer.init_transactions, self._timeout), self._deadline())

    def write(
        self,
        records: Callable[[], Iterable[Written]],
        consumed: Callable[[bool], tuple[list[TopicPartition], Any]] | None = None,
        at: CrashPoint = no_crash,
    ) -> int:
        """One transaction of records and consumed offsets; the offset of the last record, −1 without any.

        Written again from the start, with the same bytes, for as long as it is aborted and there is patience; the
        offsets are asked for each time, for they come with who we are in the group, and whether that was refused.
        """
        deadline = self._deadline()
        hangs = partial(self._abandon, f"{self.id}: a call into the client hangs")
        with alarm(2 * self._patience, hangs):
            try:
                return self._write(records, consumed, at, deadline)
            except (BrokerError, Fenced) as error:
                with suppress(KafkaException):  # or readers would wait for it until it times out
                    self._producer.abort_transaction(self._timeout)
                if not isinstance(error, Fenced | Denied) and (topic := self._deleted()):
                    raise self._gone(topic) from error
                raise

    def _write(self, records: Callable[[], Iterable[Written]], consumed: Any, at: CrashPoint, deadline: float) -> int:
        again = Backoff(f"{self.id}: a transaction is aborted and written again")
        refused = False
        while True:
            began = time.monotonic()
            try:
                written = self._attempt(records, consumed and partial(consumed, refused), at, deadline)
            except _Aborted as why:
                refused = why.rebalanced
                if time.monotonic() > deadline:
                    raise BrokerError(f"no transaction of {self.id} went through: {why}") from why
                again.wait(str(why), began)
            else:
                again.worked()
                return written

    def _attempt(self, records: Callable[[], Iterable[Written]], consumed: Any, at: CrashPoint, deadline: float) -> int:
        last: list[int] = []
        self._wanted.clear()

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                last.append(cast(int, message.offset()))
            elif error.code() not in PURGED:
                log.warning("%s: a record was not delivered: %s", self.id, error.str())

        self._check()
        at("before-produce")
        self._insist(self._producer.begin_transaction, deadline)
        wrote = self._produce(records(), report, deadline)
        at("after-produce")
        if consumed is not None:
            offsets, group = consumed()
            self._wanted |= {("Read", place.topic) for place in offsets}
            self._insist(partial(self._producer.send_offsets_to_transaction, offsets, group, self._timeout), deadline)
        at("before-commit")
        self._insist(partial(self._producer.commit_transaction, self._timeout), deadline)
        at("after-commit")
        while wrote and not last:
            self._producer.poll(0.01)
            if time.monotonic() > deadline:
                raise BrokerError(f"{self.id}: no report of a record that was committed")
        return last[0] if wrote else -1

    def _produce(self, rows: Iterable[Written], report: Report, deadline: float) -> int:
        """Hand records to the client, one by one; how many they were. What becomes of the last is reported."""
        producer, wrote, known = self._producer, 0, ""
        pairs = cast("Iterator[tuple[Written, Written | None]]", pairwise(chain(rows, [None])))
        for (topic, partition, key, value, headers, timestamp), following in pairs:
            if topic != known:
                self._wanted.add(("Write", topic))
                known = topic
            last = report if following is None else None
            while True:
                try:
                    producer.produce(topic, value, key, partition, last, None, timestamp, list(headers))
                except (BufferError, KafkaException) as raised:
                    self._not_taken(raised, topic, deadline)
                else:
                    break
            wrote += 1
            if wrote % HEEDED == 0:
                producer.poll(0)
        return wrote

    def _not_taken(self, raised: BufferError | KafkaException, topic: str, deadline: float) -> None:
        """Raise what it means that the client took no record; return if it may be handed over again."""
        if isinstance(raised, BufferError):
            self._producer.poll(0.1)
            if time.monotonic() > deadline:
                raise BrokerError(f"{topic} takes no records: the queue of the producer stays full") from None
        elif raised.args[0].code() in GONE:
            raise self._gone(topic) from raised
        else:
            self._judge(raised, deadline, time.monotonic())

    def _insist(self, call: Callable[[], Any], deadline: float) -> None:
        """Call until it works, for as long as the error can mend itself."""
        while True:
            began = time.monotonic()
            try:
                call()
            except KafkaException as raised:
                self._judge(raised, deadline, began)
            else:
                self._backoff.worked()
                return

    def _judge(self, raised: KafkaException, deadline: float, began: float) -> None:
        """Raise what an error means; return if the same call may be made again."""
        error: KafkaError = raised.args[0]
        if denied := self._denied(error):
            raise denied from raised
        if error.code() in FENCED:
            raise Fenced(f"another process writes as {self.id} now") from raised
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise BrokerError(
                f"{self.id}: a record is larger than the broker takes: raise max.message.bytes"
            ) from raised
        if error.txn_requires_abort() or error.code() in REBALANCED:
            self._insist(partial(self._producer.abort_transaction, self._timeout), deadline)
            raise _Aborted(error.str(), error.code() in REBALANCED) from raised
        if error.fatal() or not error.retriable():
            raise BrokerError(f"{self.id}: {error.str()}") from raised
        if time.monotonic() > deadline:
            raise BrokerError(f"{self.id}: given up after {self._patience:g} s: {error.str()}") from raised
        self._check()
        self._backoff.wait(error.str(), began)

    def _denied(self, error: KafkaError) -> Denied | None:
        """Whether an ACL is missing; of which topic, the broker has to be asked."""
        where = self._connection.bootstrap_servers, self._connection.principal
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return Denied(self._right.missing(*where))
        if error.code() not in UNCLEAR:
            return self._connection.denied(error, self._connection.group)
        found = allowed_topics(self._connection, {topic for _, topic in self._wanted})
        for operation, topic in sorted(self._wanted):
            told = found.get(topic)
            if told is not None and operation not in told:
                return Denied(Permission(operation, "topic", topic).missing(*where))
        return None

    def _deleted(self) -> str | None:
        """A topic that the transaction needs and the broker does not have; nothing is known if it does not answer."""
        with suppress(BrokerError):
            wanted = {topic for _, topic in self._wanted}
            there = allowed_topics(replace(self._connection, patience=min(LOOK, self._patience)), wanted)
            return next((topic for topic in sorted(wanted) if topic not in there), None)
        return None

    def _gone(self, topic: str) -> BrokerError:
        return BrokerError(f"{topic} is not there any more: {self._remedy(topic)}")

    def _deadline(self) -> float:
        return time.monotonic() + self._patience


class _Aborted(OcpdlError):
    """The transaction was aborted; the same one may be written again."""

    def __init__(self, why: str, rebalanced: bool) -> None:
        super().__init__(why)
        self.rebalanced = rebalanced
