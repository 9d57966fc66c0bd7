"""For those at the other ends of the topics: write tensors, read codes and dictionaries."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Self, TypeVar

from stream_ocpdl.errors import BrokerError, ConfigError
from stream_ocpdl.ocpdl.batch import as_array
from stream_ocpdl.stream.kafka import (
    Connection,
    Stored,
    Writer,
    follow,
    partitions_of_topic,
    read_committed,
    watermarks,
)
from stream_ocpdl.stream.messages import Code, Snapshot, Tensor

T = TypeVar("T")


class QueueFull(BrokerError):
    """There is no room for another tensor; the broker does not take them as fast as they come."""


class TensorProducer:
    """Writes tensors to a topic, once and in the order of each key.

    `when_full`: with "block", `send` waits up to `timeout` seconds for room in a queue of `queue_bytes`, then raises
    QueueFull; with "raise" it does so at once. A tensor that could not be delivered raises at the next call.

        with TensorProducer("localhost:9092", "weather.tensors") as producer:
            producer.send(array, key=b"sensor 7")
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        when_full: Literal["block", "raise"] = "block",
        timeout: float = 60.0,
        queue_bytes: int = 64_000_000,
    ) -> None:
        if when_full not in ("block", "raise"):
            raise ConfigError(f"when_full must be 'block' or 'raise', not {when_full!r}")
        self.topic = topic
        self._wait = timeout if when_full == "block" else 0.0
        self._writer = Writer(Connection(bootstrap_servers, patience=timeout), queue_bytes)

    def send(self, array: Any, key: bytes | None = None) -> None:
        """Queue one tensor; tensors of one key stay in order."""
        value = Tensor(as_array(array, "array")).to_bytes()
        if not self._writer.write(self.topic, value, key, -1, self._wait):
            raise QueueFull(
                f"the queue for {self.topic} is full: the broker does not take tensors as fast as they come"
            )

    def send_many(self, arrays: Iterable[Any], key: bytes | None = None) -> None:
        """Queue tensors one after the other."""
        for array in arrays:
            self.send(array, key)

    def flush(self) -> None:
        """Wait until everything queued is at the broker."""
        self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()


def read_codes(bootstrap_servers: str, topic: str, **options: Any) -> Iterator[Code]:
    """The committed codes of a topic; the options are those of `read`."""
    return read(bootstrap_servers, topic, Code.from_bytes, **options)


def read_snapshots(bootstrap_servers: str, topic: str, **options: Any) -> Iterator[Snapshot]:
    """The committed dictionaries of a topic; the options are those of `read`."""
    return read(bootstrap_servers, topic, Snapshot.from_bytes, **options)


def read(
    bootstrap_servers: str,
    topic: str,
    decode: Callable[[bytes | None], T],
    *,
    starts: Mapping[int, int] | None = None,
    until: Callable[[], bool] | None = None,
) -> Iterator[T]:
    """Committed messages, decoded: partition by partition to the present end, or, with `until`, as they come.

    `starts` are offsets by partition; without them reading begins at the earliest. `until` is asked when nothing came
    for a tenth of a second, and ends the reading by saying true.
    """
    connection = Connection(bootstrap_servers)
    ranges = watermarks(connection, topic, partitions_of_topic(connection, topic))
    begin = {p: low for p, (low, _) in ranges.items()} if starts is None else dict(starts)
    for found in _to_the_end(connection, topic, begin) if until is None else follow(connection, topic, begin, until):
        yield decode(found.value)


def _to_the_end(connection: Connection, topic: str, starts: Mapping[int, int]) -> Iterator[Stored]:
    for partition, start in starts.items():
        yield from read_committed(connection, topic, partition, start)
