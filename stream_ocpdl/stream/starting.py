"""How a new model begins: where it begins to read, and with which loadings. An old one goes on as its journal says."""

import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from stream_ocpdl.errors import BrokerError, ConfigError, DecodeError
from stream_ocpdl.stream.genesis import Beginning
from stream_ocpdl.stream.kafka import Connection, offsets_at, partitions_of_topic, watermarks
from stream_ocpdl.stream.messages import Version
from stream_ocpdl.stream.snapshots import choose, load, published
from stream_ocpdl.stream.warm import Warm


@dataclass(frozen=True, slots=True)
class Start:
    """The earliest input, only what is still to come, or what was written from a time on."""

    name: str
    timestamp: int = 0
    """Milliseconds since 1970."""

    @classmethod
    def read(cls, text: str) -> "Start":
        """What a setting says.

        >>> Start.read("1970-01-01T00:01Z")
        Start(name='timestamp', timestamp=60000)
        """
        if text in ("earliest", "latest"):
            return cls(text)
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            when = None
        if when is None or when.tzinfo is None or when.timestamp() < 0:
            raise ConfigError(
                f"start must be earliest, latest or a time with its zone, such as 2031-05-04T12:00Z, not {text!r}"
            )
        return cls("timestamp", int(when.timestamp() * 1000))

    def positions(self, connection: Connection, topic: str) -> dict[int, int]:
        """For each partition the offset at which to begin."""
        if self.name == "timestamp":
            if self.timestamp > 1000 * time.time():
                raise ConfigError("start is a time that is still to come; say latest, or a time that has passed")
            return offsets_at(connection, topic, self.timestamp)
        ranges = watermarks(connection, topic, partitions_of_topic(connection, topic))
        return {p: low if self.name == "earliest" else high for p, (low, high) in ranges.items()}


def beginning(connection: Connection, topic: str, start: str, warm_start: str | None) -> Beginning:
    """How a model of these settings begins; nothing is read before it is asked for."""

    def warm() -> Warm | None:
        return None if warm_start is None else warm_from(connection, warm_start)

    return Beginning(lambda: Start.read(start).positions(connection, topic), warm)


def snapshots_of(text: str) -> str | None:
    """The topic that a warm start reads, if it reads one.

    >>> snapshots_of("weather/0/1/400"), snapshots_of("loadings.npz")
    ('weather.snapshots', None)
    """
    return None if text.endswith(".npz") else f"{_chosen(text)[0]}.snapshots"


def _chosen(text: str) -> tuple[str, str, int]:
    """Model, version and shard."""
    try:
        version = Version.parse(text)
    except DecodeError:
        return text, "latest", 0
    return version.model, text, version.shard


def warm_from(connection: Connection, text: str) -> Warm:
    """The loadings of a file, or of a snapshot: of a version, or the newest of a model."""
    if text.endswith(".npz"):
        return Warm(load(Path(text)), f"file {Path(text).name}")
    model, wanted, shard = _chosen(text)
    try:
        (found,) = choose(published(connection, f"{model}.snapshots"), wanted, shard=shard)
    except (BrokerError, ConfigError) as error:
        raise ConfigError(f"warm_start {text}: {error}") from error
    return Warm(tuple(found.snapshot.loadings), str(found.snapshot.version))
