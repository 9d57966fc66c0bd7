"""For those at the other ends of the topics: write tensors, read codes and dictionaries."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Self, TypeVar

from stream_ocpdl.errors import ConfigError, DataError, DecodeError, QueueFull
from stream_ocpdl.ocpdl.batch import as_array
from stream_ocpdl.ocpdl.coordinates import as_sparse
from stream_ocpdl.stream.assembly import whole
from stream_ocpdl.stream.kafka import (
    Connection,
    Sent,
    Writer,
    follow,
    offsets_at,
    partitions_of_topic,
    read_committed,
    watermarks,
)
from stream_ocpdl.stream.messages import CHUNK, Code, DeadLetter, Draw, Headers, Record, Snapshot, Tensor, split

T = TypeVar("T")

TOGETHER = 1_000_000
"""Bytes of messages that are handed to the client at once."""


class TensorProducer:
    """Writes tensors to a topic, once and in the order of each key.

    A tensor larger than a record is cut into pieces of `chunk_bytes`, one after the other in one partition.

    `options` are settings of librdkafka, such as those of security.

    `when_full`: with "block", `send` waits up to `timeout` seconds for room in a queue of `queue_bytes`, then raises
    QueueFull; with "raise" it does so at once, unless it is in the middle of the pieces of a tensor. A tensor that
    could not be delivered raises at the next call.

        with TensorProducer("localhost:9092", "weather.tensors") as producer:
            producer.send(array, key=b"sensor 7", axes=("latitude", "longitude"))
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        when_full: Literal["block", "raise"] = "block",
        timeout: float = 60.0,
        queue_bytes: int = 64_000_000,
        chunk_bytes: int = CHUNK,
        checksums: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if when_full not in ("block", "raise"):
            raise ConfigError(f"when_full must be 'block' or 'raise', not {when_full!r}")
        if chunk_bytes < 1000:
            raise ConfigError(f"chunk_bytes must be at least 1000, not {chunk_bytes}")
        if queue_bytes < 2 * chunk_bytes:
            raise ConfigError(f"queue_bytes must have room for two pieces of {chunk_bytes} bytes, not {queue_bytes}")
        if not timeout >= 0.1:
            raise ConfigError(f"timeout must be at least a tenth of a second, not {timeout}")
        self.topic = topic
        self._timeout, self._at_once = timeout, when_full == "raise"
        self._chunk, self._checksums = chunk_bytes, checksums
        self._connection = Connection(bootstrap_servers, timeout, options or {})
        self._writer = Writer(self._connection, queue_bytes)
        self._partitions: Sequence[int] = ()

    def send(
        self,
        array: Any,
        key: bytes | None = None,
        axes: Sequence[str] | None = None,
        *,
        partition: int = -1,
        headers: Headers = (),
    ) -> None:
        """Queue one tensor, dense or sparse (`Sparse`, SciPy's, PyData's); tensors of one key stay in order.

        `partition` is where it goes, whatever the key. `headers` go with it, or with the last of its pieces.
        """
        if isinstance(axes, str):
            raise DataError(f"axes must be a list of names, not the text {axes!r}")
        tensor = Tensor(_array(array), None if axes is None else tuple(axes))
        self._send(tensor.to_bytes(crc=self._checksums), key, partition, headers)

    def send_draw(self, draw: Draw, *, partition: int = -1) -> None:
        """Queue a draw of a sampler, with its own key: draws of one chain stay in order."""
        self._send(draw.to_bytes(crc=self._checksums), draw.key, partition, ())

    def send_written(self, messages: Iterable[Sent]) -> None:
        """Queue messages that are written already, each with its key and its partition."""
        some, size = list[Sent](), 0
        try:
            for message in messages:
                if len(message[0]) > self._chunk:
                    self._put(some)
                    some, size = [], 0
                    self._write_pieces(*message, ())
                    continue
                some.append(message)
                size += len(message[0])
                if size > TOGETHER:
                    self._put(some)
                    some, size = [], 0
        finally:  # also those that came before one that could not be written
            self._put(some)
        self._writer.heed()

    def _put(self, messages: Sequence[Sent]) -> None:
        if not self._writer.put_together(self.topic, messages, 0.0 if self._at_once else self._timeout):
            raise self._full()

    def _send(self, value: bytes, key: bytes | None, partition: int, headers: Headers) -> None:
        if len(value) <= self._chunk:
            self._write(value, key, partition, 0.0 if self._at_once else self._timeout, headers)
        else:
            self._write_pieces(value, key, partition, headers)

    def send_many(self, arrays: Iterable[Any], key: bytes | None = None, axes: Sequence[str] | None = None) -> None:
        """Queue tensors one after the other."""
        for array in arrays:
            self.send(array, key, axes)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything queued is at the broker, for so many seconds if it is said."""
        self._writer.flush(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()

    def _write_pieces(self, value: bytes, key: bytes | None, partition: int, headers: Headers) -> None:
        name = uuid.uuid4()
        if partition < 0 and not key:  # an empty key goes anywhere, as none does
            partition = self._any_partition(name.int)
        for chunk in split(value, name.hex, self._chunk):
            wait = 0.0 if self._at_once and chunk.index == 0 else self._timeout
            last = chunk.index + 1 == chunk.count
            self._write(chunk.to_bytes(crc=self._checksums), key, partition, wait, headers if last else ())

    def _any_partition(self, number: int) -> int:
        """All pieces must go to one partition; without a key nobody else would see to it."""
        self._partitions = self._partitions or partitions_of_topic(self._connection, self.topic)
        return self._partitions[number % len(self._partitions)]

    def _write(self, value: bytes, key: bytes | None, partition: int, wait: float, headers: Headers) -> None:
        if not self._writer.write(self.topic, value, key, partition, wait, headers):
            raise self._full()

    def _full(self) -> QueueFull:
        return QueueFull(f"the queue for {self.topic} is full: the broker does not take tensors as fast as they come")


def _array(value: Any) -> Any:
    """The array, or the entries of something sparse."""
    sparse = as_sparse(value, "array")
    return as_array(value, "array") if sparse is None else sparse


def read_codes(bootstrap_servers: str, topic: str, **options: Any) -> Iterator[Code]:
    """The committed codes of a topic; the options are those of `read`."""
    return read(bootstrap_servers, topic, Code.from_bytes, **options)


def read_snapshots(bootstrap_servers: str, topic: str, **options: Any) -> Iterator[Snapshot]:
    """The committed dictionaries of a topic; the options are those of `read`."""
    return read(bootstrap_servers, topic, Snapshot.from_bytes, **options)


def read_dead_letters(bootstrap_servers: str, topic: str, **options: Any) -> Iterator[DeadLetter]:
    """The committed dead letters of a topic; the options are those of `read`."""
    return read(bootstrap_servers, topic, DeadLetter.from_bytes, **options)


def read(
    bootstrap_servers: str,
    topic: str,
    decode: Callable[[bytes | None], T],
    *,
    starts: Mapping[int, int] | None = None,
    since: datetime | None = None,
    until: Callable[[], bool] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Iterator[T]:
    """Committed messages, decoded and put together if they came in pieces.

    Where it begins: at the earliest, at `starts` (offsets by partition), or at the first record written `since` a time.
    Where it ends: partition by partition at the present end; or, with `until`, messages of all partitions as they come,
    until it says true. It is asked when nothing came for a tenth of a second.

    `options` are settings of librdkafka, such as those of security.

    A message that cannot be read raises a DecodeError that says where it is; the next one can be asked for still.
    """
    if starts is not None and since is not None:
        raise ConfigError("starts and since say both where to begin; give one of them")
    if since is not None and since.tzinfo is None:
        raise ConfigError("since has no time zone; datetime.now(UTC) has one")
    connection = Connection(bootstrap_servers, options=options or {})
    if starts is not None:
        begin = dict(starts)
    elif since is not None:
        begin = offsets_at(connection, topic, max(0, int(since.timestamp() * 1000)))
    else:
        ranges = watermarks(connection, topic, partitions_of_topic(connection, topic))
        begin = {p: low for p, (low, _) in ranges.items()}
    found = _to_the_end(connection, topic, begin) if until is None else follow(connection, topic, begin, until)

    def decoded(record: Record) -> T:
        try:
            return decode(record.value)
        except DecodeError as error:
            place = f"{topic}[{record.position.partition}] at offset {record.position.offset}"
            raise DecodeError(f"{place}: {error}") from error

    return map(decoded, whole(found))  # which goes on after an error, if one asks it to


def _to_the_end(connection: Connection, topic: str, starts: Mapping[int, int]) -> Iterator[Record]:
    for partition, start in starts.items():
        yield from read_committed(connection, topic, partition, start)
