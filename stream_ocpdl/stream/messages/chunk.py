"""Messages that are too large for one record: cut into pieces, each a message of its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from stream_ocpdl.errors import DecodeError
from stream_ocpdl.stream.messages.fields import Fields
from stream_ocpdl.stream.messages.framing import Payload, frame, unframe

CHUNK = 900_000
"""Bytes of a piece: below the broker's default limit of a record, with room for key and headers."""

SMALLEST = 100
"""Bytes of a piece on average, at least: what is kept with each is not to be larger than the pieces."""

PIECES = 10_000
"""Of a message, at most: where one is refused, each of them has a line in the journal."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A piece of a message."""

    id: str
    index: int
    count: int
    size: int
    """Bytes of the whole message."""
    piece: Payload

    def to_bytes(self, *, crc: bool = False) -> bytes:
        """Header with which piece of what, payload the piece."""
        header = {"kind": "chunk", "id": self.id, "index": self.index, "count": self.count, "size": self.size}
        return frame(header, self.piece, crc=crc)

    @classmethod
    def from_bytes(cls, value: Payload | None) -> Self:
        """The piece, in the memory of its message."""
        return cls.read(*unframe(value))

    @classmethod
    def read(cls, header: dict[str, Any], payload: memoryview) -> Self:
        """The piece of a message that was taken apart."""
        fields = Fields(header, "chunk")
        count, size = fields.size("count"), fields.size("size")
        index = fields.count("index", most=count - 1)
        if count > min(1 + size // SMALLEST, PIECES):
            raise DecodeError(
                f"count is {count}, too many pieces for {size} bytes: at most {PIECES} of {SMALLEST} or more"
            )
        return cls(fields.text("id", 1, 64), index, count, size, payload)


def split(value: Payload, name: str, most: int = CHUNK) -> Iterator[Chunk]:
    """A message in pieces of at most so many bytes, which have this name for their id.

    >>> [(c.index, c.count, bytes(c.piece)) for c in split(b"too long", "7", 3)]
    [(0, 3, b'too'), (1, 3, b' lo'), (2, 3, b'ng')]
    """
    most = max(most, -(-len(value) // PIECES))
    view, count = memoryview(value), -(-len(value) // most)
    for index in range(count):
        yield Chunk(name, index, count, len(value), view[index * most : (index + 1) * most])
