"""The dictionaries that a model has published, by their versions; and loadings in files."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from stream_ocpdl.errors import ConfigError, DecodeError
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.stream.assembly import whole
from stream_ocpdl.stream.kafka import Connection, partitions_of_topic, read_committed
from stream_ocpdl.stream.messages import Record, Snapshot, Version


class Published(NamedTuple):
    """A snapshot as it is on its topic."""

    snapshot: Snapshot
    timestamp: int
    """Milliseconds since 1970."""
    value: bytes


def published(connection: Connection, topic: str) -> Iterator[Published]:
    """The snapshots on a topic, in the order in which they were written."""
    for record in whole(_records(connection, topic)):
        try:
            snapshot = Snapshot.from_bytes(record.value)
        except DecodeError as error:
            raise DecodeError(f"{topic} at offset {record.position.offset}: {error}") from error
        yield Published(snapshot, record.timestamp, bytes(record.value or b""))


def _records(connection: Connection, topic: str) -> Iterator[Record]:
    for partition in partitions_of_topic(connection, topic):
        yield from read_committed(connection, topic, partition)


def choose(found: Iterable[Published], *wanted: str, shard: int = 0) -> list[Published]:
    """The snapshots that are meant: `latest`, a step (of the newest epoch that has it), EPOCH/T, or a whole version,
    which names its shard itself.

    The others are not kept: there may be many, and large.
    """
    meant: dict[str, Published] = {}
    first = last = one = None
    for one in found:
        version = one.snapshot.version
        if version.shard == shard:
            first, last = first or version, version
        meant |= {name: one for name in wanted if is_meant(version, name, shard)}
    if last is None and not meant:
        of = "" if one is None else f" of shard {shard}"
        raise ConfigError(f"no snapshot{of} was published so far")
    for name in wanted:
        if name not in meant:
            raise ConfigError(
                f"there is no snapshot {name}; those on the topic go from {first} to {last}."
                " stream-ocpdl replay --to-step rebuilds any step that can be rebuilt"
            )
    return [meant[name] for name in wanted]


def is_meant(version: Version, text: str, shard: int) -> bool:
    """Whether a version is that of a name."""
    names = ("latest", f"{version.t}", f"{version.epoch}/{version.t}")
    return text == str(version) or (version.shard == shard and text in names)


def save(path: Path, loadings: Sequence[Array], version: str) -> None:
    """Write loadings to a .npz file: U1 … Un, and the version."""
    arrays = {f"U{i + 1}": np.asarray(U) for i, U in enumerate(loadings)}
    try:
        with path.open("wb") as file:
            np.savez(file, version=np.array(version), **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def load(path: Path) -> tuple[Array, ...]:
    """The loadings in a .npz file: U1 … Un."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return _loadings(path, file)
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, TypeError, NotImplementedError, zlib.error) as error:
        why = "it is none" if "pickle" in str(error) else error  # NumPy would advise to trust it
        raise ConfigError(f"{path} cannot be read as a .npz file with U1 … Un: {why}") from error


def _loadings(path: Path, arrays: Mapping[str, Array]) -> tuple[Array, ...]:
    if "factors" in arrays:
        raise ConfigError(
            f"{path} is a state with loadings in units of its own; those of the data are written by snapshot show --out"
        )
    count = sum(name[:1] == "U" and name[1:].isdigit() for name in arrays)
    if count == 0:
        raise ConfigError(f"{path} has no loadings U1 … Un; it has {', '.join(arrays)[:200] or 'nothing'}")
    return tuple(np.array(arrays[f"U{i + 1}"], np.float64) for i in range(count))
