"""A topic looked at in places: its newest records, and some of all times, however long it is."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import cast

from confluent_kafka import Consumer, TopicPartition

from stream_ocpdl.errors import BrokerError
from stream_ocpdl.stream.kafka.admin import partitions_of
from stream_ocpdl.stream.kafka.connection import Connection
from stream_ocpdl.stream.kafka.reading import ends_of, raise_on_read, record_of
from stream_ocpdl.stream.messages import Record

Window = Mapping[int, tuple[int, int]]
"""For each partition the first offset, and the one after the last."""


def windows(ends: Window, limit: int, spread: int = 20) -> list[Window]:
    """Windows with about so many records of partitions that have these, the oldest first.

    One with all of them if they are no more; else the newest, half of what may be read, and as much from places that
    lie evenly before those.

    >>> windows({0: (0, 100)}, 100)
    [{0: (0, 100)}]
    >>> windows({0: (0, 100)}, 20, spread=2)
    [{0: (0, 5)}, {0: (45, 50)}, {0: (90, 100)}]
    """
    total = sum(high - low for low, high in ends.values())
    if total <= limit:
        return [ends]
    found: list[dict[int, tuple[int, int]]] = [{} for _ in range(spread + 1)]
    for partition, (low, high) in ends.items():
        newest = max(1, round((high - low) * limit / total / 2))
        border, size = high - newest, max(1, newest // spread)
        for k in range(spread):
            start, following = (low + (border - low) * i // spread for i in (k, k + 1))
            found[k][partition] = (start, min(start + size, following))
        found[spread][partition] = (border, high)
    return [{p: (a, b) for p, (a, b) in window.items() if a < b} for window in found]


def stable_ends(
    connection: Connection, topic: str, partitions: Sequence[int] | None = None
) -> dict[int, tuple[int, int]]:
    """The lowest offset of each partition, and the one before which all transactions are over."""
    with closing(connection.consumer()) as consumer:
        there = partitions_of(consumer, topic, connection)
        return {p: ends_of(consumer, topic, p, connection.patience) for p in partitions or there}


def read_windows(connection: Connection, topic: str, wanted: Sequence[Window]) -> Iterator[tuple[int, Record]]:
    """The committed records of windows, one window after the other, each with the number of its window."""
    with closing(connection.consumer()) as consumer:
        partitions_of(consumer, topic, connection)
        for number, window in enumerate(wanted):
            for record in _read_window(connection, consumer, topic, window):
                yield number, record


def _read_window(connection: Connection, consumer: Consumer, topic: str, window: Window) -> Iterator[Record]:
    # An empty partition gives nothing, not even a position to tell that it was read.
    places = [TopicPartition(topic, p, start) for p, (start, end) in window.items() if start < end]
    if not places:
        return
    consumer.assign(places)
    deadline = time.monotonic() + connection.patience
    while any(place.offset < window[place.partition][1] for place in consumer.position(places)):
        for message in consumer.consume(500, 0.05):
            error, partition = message.error(), cast(int, message.partition())
            if error is not None:
                raise_on_read(error, topic, partition)
            elif cast(int, message.offset()) < window[partition][1]:
                deadline = time.monotonic() + connection.patience
                yield record_of(message)
        if time.monotonic() > deadline:
            raise BrokerError(f"{topic} does not give what it has within {connection.patience:g} s")
