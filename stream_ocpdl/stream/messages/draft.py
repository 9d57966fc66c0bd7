"""Draws of a chain, written one after the other: of all that is in their headers only the number changes."""

from typing import Any

import msgpack

from stream_ocpdl.errors import DataError
from stream_ocpdl.stream.messages.fields import COUNT
from stream_ocpdl.stream.messages.framing import Payload, around
from stream_ocpdl.stream.messages.tensor import Draw

NUMBERS = (1, 2, 3, 5, 9)
"""Bytes of a number from 0 in msgpack."""


class Draft:
    """A message of a draw without number and payload. What it writes is what `Draw.to_bytes` does, to the byte.

    >>> import numpy as np
    >>> from stream_ocpdl.stream.messages import Tensor
    >>> draw = Draw(Tensor(np.eye(2)), "run", 3, 0)
    >>> Draft(draw).written(7, np.eye(2).tobytes()) == Draw(Tensor(np.eye(2)), "run", 3, 7).to_bytes()
    True
    """

    __slots__ = ("_ends", "key")

    def __init__(self, like: Draw) -> None:
        """`like` is any draw of the chain."""
        header = like.described()
        names = list(header)
        at = names.index("draw")
        before = msgpack.Packer().pack_map_header(len(names)) + _packed(header, names[:at]) + msgpack.packb("draw")
        behind = _packed(header, names[at + 1 :])
        self.key = like.key
        self._ends: dict[int, tuple[bytes, bytes]] = {}
        for size in NUMBERS:
            first, last = around(len(before) + size + len(behind))
            self._ends[size] = first + before, behind + last

    def written(self, number: int, payload: Payload) -> bytes:
        """The message of a draw of this shape and type."""
        if type(number) is not int or not 0 <= number <= COUNT:
            raise DataError(f"the draw cannot be written: draw is {number!r}, not an integer from 0 to {COUNT}")
        packed = msgpack.packb(number)
        before, behind = self._ends[len(packed)]
        return b"".join((before, packed, behind, payload))


def _packed(header: dict[str, Any], names: list[str]) -> bytes:
    """Some fields of a header, one after the other."""
    return b"".join(msgpack.packb(name) + msgpack.packb(header[name]) for name in names)
