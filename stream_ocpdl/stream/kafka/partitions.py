"""Partitions that come and go, and where their group stands.

Who has which partition, `election` knows; here they are read, by another consumer, and nothing of the group is touched.
Where the group stands comes with a note of how far all is done, in the metadata that Kafka keeps with an offset. Kafka
tells it to nobody while a transaction with stands is open: that is the fence against a member that has died in between.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing

from confluent_kafka import TopicPartition

from stream_ocpdl.errors import OcpdlError
from stream_ocpdl.stream.kafka.admin import partitions_of
from stream_ocpdl.stream.kafka.connection import Connection
from stream_ocpdl.stream.kafka.reading import STATISTICS_MS, committed_places, until_failed
from stream_ocpdl.stream.kafka.windows import read_windows, stable_ends
from stream_ocpdl.stream.messages import Record
from stream_ocpdl.stream.ports import Stand

LOOKED = 64
"""Records at the end of a topic that are looked at first; each time eight times as many."""


def consumed_to(topic: str, stands: Mapping[int, Stand]) -> list[TopicPartition]:
    """Stands as a transaction takes them."""
    return [TopicPartition(topic, p, stand.offset, note_of(stand)) for p, stand in stands.items()]


def note_of(stand: Stand) -> str:
    """What is noted with an offset.

    >>> note_of(Stand(5, 9)), note_of(Stand(5, 5)), note_of(Stand(5, 5, 3))
    ('9', '', '5/3')
    """
    if stand.round > 0:
        return f"{stand.reached}/{stand.round}"
    return "" if stand.reached == stand.offset else str(stand.reached)


def stand_of(offset: int, note: str | None) -> Stand:
    """The stand in an offset and its note; one that somebody else has set has none, or one that means nothing.

    >>> stand_of(5, "9").reached, stand_of(5, None).reached, stand_of(5, "3").reached, stand_of(5, "5/3").round
    (9, 5, 5, 3)
    """
    reached, _, number = (note or "").partition("/")
    return Stand(offset, max(offset, _count(reached) or offset), _count(number))


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


def stands(connection: Connection, group: str, topic: str, partitions: Sequence[int]) -> dict[int, Stand]:
    """Where a group stands; partitions where it stands nowhere are left out. It waits for open transactions."""
    with closing(connection.consumer(**{"group.id": group})) as consumer:
        found = committed_places(connection, consumer, group, [TopicPartition(topic, p) for p in partitions])
        return {one.partition: stand_of(one.offset, one.metadata) for one in found}


class KafkaPartitions:
    """Partitions of a topic, read by assignment."""

    def __init__(self, connection: Connection, topic: str, group: str) -> None:
        self._topic = topic
        self._counted: deque[str] = deque([""], maxlen=1)
        counts = {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self._counted.append}
        self._consumer = connection.consumer(**{"group.id": group, **counts})
        partitions_of(self._consumer, topic, connection)
        self._read: set[int] = set()
        self._paused: set[int] = set()
        self._failed: OcpdlError | None = None

    def add(self, starts: Mapping[int, int]) -> None:
        """Read these, too."""
        self._consumer.incremental_assign([TopicPartition(self._topic, p, offset) for p, offset in starts.items()])
        self._read |= set(starts)

    def drop(self, partition: int) -> None:
        """Read it no more."""
        if partition in self._read:
            self._pause(self._paused - {partition})
            self._read.remove(partition)
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def poll(self, limit: int, timeout: float, hungry: Collection[int] | None = None) -> list[Record]:
        """Records, or what came until the timeout; those that are not hungry are paused for as long."""
        if self._failed is not None:
            raise self._failed
        self._pause(set() if hungry is None else self._read - set(hungry))
        records, self._failed = until_failed(self._consumer.consume(limit, timeout), self._topic)
        if not records and self._failed is not None:
            raise self._failed
        return records

    def _pause(self, wanted: set[int]) -> None:
        for change, which in (
            (self._consumer.pause, wanted - self._paused),
            (self._consumer.resume, self._paused - wanted),
        ):
            if which:
                change([TopicPartition(self._topic, p) for p in which])
        self._paused = wanted

    @property
    def statistics(self) -> str:
        """What the client counts, in its own JSON."""
        return self._counted[-1]

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


def newest_starts(connection: Connection, topic: str, firsts: Collection[Collection[bytes]]) -> int:
    """The offset in partition 0 from which on there is a newest message of each kind, told by the keys of its first
    record; or the first of all, if one is missing.
    """
    low, high = stable_ends(connection, topic, [0])[0]
    looked = LOOKED
    while True:
        begin = max(low, high - looked)
        found = list(_last(connection, topic, (begin, high), firsts))
        if begin == low or all(place is not None for place in found):
            return min((place for place in found if place is not None), default=low)
        looked *= 8


def _last(
    connection: Connection, topic: str, window: tuple[int, int], firsts: Collection[Collection[bytes]]
) -> Iterator[int | None]:
    places: dict[bytes, int] = {}
    for _, record in read_windows(connection, topic, [{0: window}]):
        places[record.key or b""] = record.position.offset
    for keys in firsts:
        yield max((places[key] for key in keys if key in places), default=None)
