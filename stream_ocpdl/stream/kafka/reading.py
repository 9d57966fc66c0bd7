"""Committed records: from an offset to the end, on and on, or as the input of a model."""

import ctypes
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from stream_ocpdl.errors import BrokerError, InputLost, OcpdlError
from stream_ocpdl.stream.kafka.admin import partitions_of, topic_id
from stream_ocpdl.stream.kafka.connection import Connection
from stream_ocpdl.stream.kafka.refusing import denied
from stream_ocpdl.stream.messages import Headers, Record
from stream_ocpdl.stream.messages.records import hashed, new_position, new_record
from stream_ocpdl.stream.shards import named, owned

log = logging.getLogger("stream_ocpdl.kafka")

STATISTICS_MS = 2000
"""How often a client says what it has counted."""


def watermarks(connection: Connection, topic: str, partitions: Collection[int]) -> dict[int, tuple[int, int]]:
    """The lowest offset and the high watermark of each partition, open transactions included."""
    with closing(connection.consumer(**{"isolation.level": "read_uncommitted"})) as consumer:
        partitions_of(consumer, topic, connection)
        return {p: ends_of(consumer, topic, p, connection.patience) for p in partitions}


_NO_LEADER = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
"""What is said of a partition that was just made, or moves to another broker."""


def ends_of(consumer: Consumer, topic: str, partition: int, patience: float) -> tuple[int, int]:
    """The lowest offset of a partition, and the one behind all that this consumer may read."""
    deadline = time.monotonic() + patience
    while True:
        try:
            answer = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=patience)
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline:
                raise BrokerError(f"{topic}[{partition}] does not answer: {error.args[0].str()}") from error
            time.sleep(0.05)
        else:
            break
    if answer is None:
        raise BrokerError(f"{topic}[{partition}] does not answer within {patience:g} s")
    return answer


def offsets_at(connection: Connection, topic: str, timestamp: int) -> dict[int, int]:
    """For each partition the offset of the first record written at a time (milliseconds since 1970) or after."""
    with closing(connection.consumer()) as consumer:
        wanted = [TopicPartition(topic, p, timestamp) for p in partitions_of(consumer, topic, connection)]
        try:
            found = consumer.offsets_for_times(wanted, timeout=connection.patience)
        except KafkaException as error:
            raise BrokerError(f"{topic} does not answer: {error.args[0].str()}") from error
        ends = {p.partition: ends_of(consumer, topic, p.partition, connection.patience)[1] for p in found}
        return {p.partition: p.offset if p.offset >= 0 else ends[p.partition] for p in found}


def read_committed(connection: Connection, topic: str, partition: int, start: int = 0) -> Iterator[Record]:
    """The committed records from an offset to the present end."""
    low, end = watermarks(connection, topic, [partition])[partition]
    reached, deadline = max(start, low), time.monotonic() + connection.patience
    if reached >= end:
        return
    with closing(connection.consumer()) as consumer:
        partitions_of(consumer, topic, connection)
        consumer.assign([TopicPartition(topic, partition, reached)])
        while reached < end:
            for message in consumer.consume(500, 0.05):
                error = message.error()
                if error is not None:
                    raise_on_read(error, topic, partition)
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
        partitions_of(consumer, topic, connection)
        consumer.assign([TopicPartition(topic, p, offset) for p, offset in starts.items()])
        while True:
            messages = consumer.consume(1, 0.1)  # for more it would wait, though one had come
            messages += consumer.consume(500, 0.0) if messages else []
            for message in messages:
                error = message.error()
                if error is None:
                    yield record_of(message)
                else:
                    raise_on_read(error, topic, cast(int, message.partition()))
            if not messages and idle():
                return


def record_of(message: Message) -> Record:
    """What we want of a message of the client."""
    try:
        found = message.headers()
        headers = () if found is None else _readable(found)
    except (UnicodeError, SystemError, ctypes.ArgumentError):
        headers = ()
    position = new_position((message.partition(), message.offset()))  # type: ignore[arg-type]  # only errors have none
    timestamp, value = max(message.timestamp()[1], -1), message.value()
    return new_record((position, message.key(), value, headers, timestamp, hashed(value)))


def _readable(headers: Any) -> Headers:
    """The headers of a message, in the client's list; none if they cannot be read.

    A name that is not UTF-8 leaves an exception that comes up anywhere later, and in the client's list a null pointer:
    to look at that entry in Python would end the process. So the list is looked at from outside first, through a call
    that also raises what is pending: between it and the one that made the list nothing may be done that could fail.
    """
    for index in range(len(headers)):
        if _address(headers, index) is None:
            return ()
    return tuple(headers)


_address = ctypes.pythonapi.PyList_GetItem
_address.argtypes, _address.restype = [ctypes.py_object, ctypes.c_ssize_t], ctypes.c_void_p


def until_failed(messages: Iterable[Message], topic: str) -> tuple[list[Record], OcpdlError | None]:
    """The records before the first error, and that error: what came before it counts, and nothing that comes after."""
    records = []
    for message in messages:
        error = message.error()
        if error is None:
            records.append(record_of(message))
            continue
        try:
            raise_on_read(error, topic, cast(int, message.partition()))
        except OcpdlError as failed:
            return records, failed
    return records, None


def raise_on_read(error: KafkaError, topic: str, partition: int) -> None:
    """Refuse what cannot mend itself."""
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise InputLost(
            f"{topic}[{partition}] no longer has the offset that has to be read ({error.str()}): its retention is"
            " shorter than the time since the last checkpoint, or the topic was made anew"
        )
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return  # whoever only reads is in no group
    if refused := denied(error, topic):
        raise refused
    if error.fatal() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise BrokerError(f"{topic}[{partition}] cannot be read: {error.str()}")
    log.warning("reading: %s", error.str(), extra={"topic": topic, "partition": partition})


def committed(connection: Connection, group: str, topic: str) -> dict[int, int]:
    """The offsets that a group has committed; partitions without one are left out."""
    with closing(connection.consumer(**{"group.id": group})) as consumer:
        partitions = [TopicPartition(topic, p) for p in partitions_of(consumer, topic, connection)]
        found = committed_places(connection, consumer, group, partitions)
        return {place.partition: place.offset for place in found}


def committed_places(
    connection: Connection, consumer: Consumer, group: str, wanted: list[TopicPartition]
) -> list[TopicPartition]:
    """The places that the group of a consumer has committed, with what is noted there. It waits for transactions."""
    deadline = time.monotonic() + connection.patience
    while True:
        try:
            found = consumer.committed(wanted, timeout=5.0)
        except KafkaException as error:  # it times out for as long as a transaction with offsets is open
            if refused := connection.denied(error.args[0], group):
                raise refused from error
            if time.monotonic() > deadline:
                raise BrokerError(f"group {group} does not answer: {error.args[0].str()}") from error
        else:
            for place in found:  # of a topic that is hidden from us a group seems to have nothing
                if place.error is not None and (refused := connection.denied(place.error, place.topic)):
                    raise refused
            return [place for place in found if place.offset >= 0]


class Tail:
    """The committed records of one partition, as they come."""

    def __init__(self, connection: Connection, topic: str, partition: int = 0) -> None:
        self._connection, self._topic, self._partition = connection, topic, partition
        self._consumer = connection.consumer()
        partitions_of(self._consumer, topic, connection)
        self._next = -1

    def read(self, start: int) -> list[tuple[int, bytes | None]]:
        """Offset and value of records from an offset on, those that are there by now; it does not wait."""
        if start != self._next:
            low, high = watermarks(self._connection, self._topic, [self._partition])[self._partition]
            begin = start if low <= start <= high else low  # else the topic was trimmed, or made anew
            self._consumer.assign([TopicPartition(self._topic, self._partition, begin)])
            self._next = start
        found = []
        for message in self._consumer.consume(10, 0):
            error = message.error()
            if error is not None:
                raise_on_read(error, self._topic, self._partition)
            else:
                found.append((cast(int, message.offset()), message.value()))
                self._next = cast(int, message.offset()) + 1
        return found

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


class KafkaSource:
    """The input of a model, or a shard's share of it, read by assignment."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        group: str,
        shard: int = 0,
        shards: int = 1,
        counting: bool = False,
        called: Callable[[Connection, str], str] = topic_id,
    ) -> None:
        self._connection, self._topic, self._group, self._called = connection, topic, group, called
        self._shard, self._shards = shard, shards
        # Of its own: a client that knows us would be kept, with its threads, until garbage is collected.
        self._counted: deque[str] = deque([""], maxlen=1)
        counts = {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self._counted.append} if counting else {}
        self._consumer = connection.consumer(**{"group.id": group, **counts})
        self.partitions: Sequence[int] = ()
        self.identity = ""
        self._paused: set[int] = set()
        self._failed: OcpdlError | None = None
        # Asked for now: beside a consumer that is being polled the call may never come back.
        self._nobody = self._consumer.consumer_group_metadata()
        self._look()

    def earliest(self) -> dict[int, int]:
        """The lowest offset of each partition."""
        return {p: low for p, (low, _) in watermarks(self._connection, self._topic, self.partitions).items()}

    def latest(self) -> dict[int, int]:
        """The high watermark of each partition."""
        return {p: high for p, (_, high) in watermarks(self._connection, self._topic, self.partitions).items()}

    def committed(self) -> dict[int, int]:
        """The positions of the group."""
        return committed(self._connection, self._group, self._topic)

    def changed(self) -> bool:
        """Whether the topic is another, or has more partitions; a broker that does not answer has changed nothing."""
        before = self.identity
        try:
            self._look()
        except BrokerError as error:
            log.warning("looking at the input: %s", error, extra={"topic": self._topic})
        return self.identity != before

    def _look(self) -> None:
        partitions = partitions_of(self._consumer, self._topic, self._connection)
        name = self._called(self._connection, self._topic)
        whole = f"{self._topic} ({name}, {len(partitions)} partitions)"
        self.partitions = owned(partitions, self._shard, self._shards)
        self.identity = named(whole, self._shard, self._shards)

    def start(self, positions: Mapping[int, int]) -> None:
        """Read on from these offsets."""
        self._pause_all_but(self.partitions)  # a partition stays paused through an assignment
        self._failed = None
        self._consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in positions.items()])

    def poll(self, limit: int, timeout: float, hungry: Collection[int]) -> list[Record]:
        """Records of the hungry partitions; the others are paused for as long as they are not."""
        if self._failed is not None:
            raise self._failed
        self._pause_all_but(hungry)
        records, self._failed = until_failed(self._consumer.consume(limit, timeout), self._topic)
        if not records and self._failed is not None:
            raise self._failed
        return records

    def positions(self, offsets: Mapping[int, int], token: bytes | None = None) -> tuple[list[TopicPartition], Any]:
        """Consumed offsets as a transaction takes them; without the token of a member they are nobody's."""
        consumed = [TopicPartition(self._topic, p, offset) for p, offset in offsets.items()]
        return consumed, self._nobody if token is None else token

    @property
    def statistics(self) -> str:
        """What the client counts, in its own JSON, if it does. It comes with a poll, and would pile up without any."""
        return self._counted[-1]

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
