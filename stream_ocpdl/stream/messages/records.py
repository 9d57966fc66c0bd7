"""Records as a broker keeps them, and the names of places and dictionaries."""

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self

import xxhash

from stream_ocpdl.errors import DecodeError

_NUMBER = "(0|[1-9][0-9]{0,18})"
_VERSION = re.compile(f"([A-Za-z0-9._-]+)/{_NUMBER}/{_NUMBER}/{_NUMBER}")


class Position(NamedTuple):
    """Where a record is in the input."""

    partition: int
    offset: int


Run = tuple[int, int, int]
"""(partition, first, last): every record of a partition between two offsets, both included."""

Headers = tuple[tuple[str, bytes | None], ...]
"""Names may come more than once."""


class Record(NamedTuple):
    """A record as it was read from the input."""

    position: Position
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = -1
    """Milliseconds since 1970; −1 where it is not known."""
    hash: int = -1
    """`hashed` of the value; −1 where whoever read the record has not made it."""


class Output(NamedTuple):
    """A record to be written: the name of a stream ("codes", "journal" …), not of a topic."""

    stream: str
    key: bytes | None
    value: bytes
    headers: Headers = ()
    timestamp: int = 0
    """Milliseconds since 1970; 0 for now."""
    partition: int = -1
    """Where it must be; −1 for anywhere."""


new_position: Callable[[tuple[int, int]], Position] = partial(tuple.__new__, Position)
"""A position of its two numbers. Like the two below it makes what the class makes, of a tuple that has every field and
in half of the time: no function in Python is called. They are for what there is of every tensor."""

new_record: Callable[[tuple[Position, bytes | None, bytes | None, Headers, int, int]], Record]
new_record = partial(tuple.__new__, Record)

new_output: Callable[[tuple[str, bytes | None, bytes, Headers, int, int]], Output]
new_output = partial(tuple.__new__, Output)


def hashed(value: bytes | None) -> int:
    """XXH3 of a value, 64 bits; of none that of no bytes.

    It is made where a record is read: beside the learning, and while the value is in the cache of the processor.
    """
    return xxhash.xxh3_64_intdigest(value or b"")


class Version(NamedTuple):
    """The name of one dictionary: that of a model's shard after step t.

    An epoch ends with a rollback, where bits are made under other conditions, or with a product of chains.
    """

    model: str
    t: int
    shard: int = 0
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.model}/{self.shard}/{self.epoch}/{self.t}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote.

        >>> Version.parse(str(Version("weather", 41)))
        Version(model='weather', t=41, shard=0, epoch=0)
        """
        found = _VERSION.fullmatch(text)
        if found is None:
            raise DecodeError(f"{text[:80]!r}, not MODEL/SHARD/EPOCH/T")
        model, shard, epoch, t = found.groups()
        return cls(model, int(t), int(shard), int(epoch))
