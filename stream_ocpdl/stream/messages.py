"""What travels on the topics, as types; `codec` has the bytes that they share.

A tensor comes in; codes, snapshots and dead letters go out. The journal's records are in `journal`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from stream_ocpdl.errors import DecodeError
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.stream.codec import frame, unframe

DTYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "<u8", "<u4", "<u2", "|i1", "|u1", "|b1")


MODES = 16
"""The most modes a tensor may have."""


class Position(NamedTuple):
    """Where a record is in the input."""

    partition: int
    offset: int


Run = tuple[int, int, int]
"""(partition, first, last): every record of a partition between two offsets, both included."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read from the input."""

    position: Position
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Output:
    """A record to be written: the name of a stream ("codes", "journal" …), not of a topic."""

    stream: str
    key: bytes
    value: bytes


def kind_of(header: dict[str, Any], wanted: str) -> None:
    """Refuse a message of another kind."""
    if header.get("kind") != wanted:
        raise DecodeError(f"the message is of kind {str(header.get('kind'))[:40]!r}, not {wanted!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor of the stream."""

    array: BigArray
    axes: tuple[str, ...] | None = None

    def to_bytes(self) -> bytes:
        """Header with dtype and shape, payload in C order.

        >>> Tensor.from_bytes(Tensor(np.eye(2)).to_bytes()).array.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        array = np.ascontiguousarray(self.array, self.array.dtype.newbyteorder("<"))
        return frame({"kind": "tensor", **_description(array)}, array.data.cast("B"))

    @classmethod
    def from_bytes(cls, value: bytes | None) -> Self:
        """The tensor, in the memory of the message."""
        header, payload = unframe(value)
        kind_of(header, "tensor")
        return cls(_array(header, payload))


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """The code of one tensor: made in step t with the dictionary of step t − 1."""

    model: str
    position: Position
    t: int
    loss: float
    """ℓ(X, D_{t−1}), before the tensor was learned."""
    code: Array

    def to_bytes(self) -> bytes:
        """Header with where and when, payload the R numbers."""
        header = {"kind": "code", "model": self.model, "input": list(self.position), "t": self.t, "loss": self.loss}
        return frame(header | _description(self.code), np.ascontiguousarray(self.code, "<f8").data.cast("B"))

    @classmethod
    def from_bytes(cls, value: bytes | None) -> Self:
        """The code, its numbers in the memory of the message."""
        header, payload = unframe(value)
        kind_of(header, "code")
        place = Position(*header["input"])
        return cls(header["model"], place, header["t"], header["loss"], _array(header, payload))


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The dictionary after step t."""

    model: str
    t: int
    loadings: Sequence[Array]

    def to_bytes(self) -> bytes:
        """Header with the shapes, payload U₁ … Uₙ one after the other."""
        header = {"kind": "snapshot", "model": self.model, "t": self.t, "shapes": [U.shape for U in self.loadings]}
        return frame(header, b"".join(np.ascontiguousarray(U, "<f8").tobytes() for U in self.loadings))

    @classmethod
    def from_bytes(cls, value: bytes | None) -> Self:
        """The snapshot, its loadings in the memory of the message."""
        header, payload = unframe(value)
        kind_of(header, "snapshot")
        loadings, offset = [], 0
        for shape in header["shapes"]:
            size = 8 * prod(shape)
            loadings.append(_array({"dtype": "<f8", "shape": shape}, payload[offset : offset + size]))
            offset += size
        return cls(header["model"], header["t"], loadings)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that cannot be learned, with its bytes and the reason."""

    record: Record
    reason: str

    def to_bytes(self) -> bytes:
        """Header with where and why, payload the original bytes."""
        header = {
            "kind": "dead-letter",
            "input": list(self.record.position),
            "key": self.record.key,
            "reason": self.reason,
            "tombstone": self.record.value is None,
        }
        return frame(header, self.record.value or b"")

    @classmethod
    def from_bytes(cls, value: bytes | None) -> Self:
        """The dead letter."""
        header, payload = unframe(value)
        kind_of(header, "dead-letter")
        original = None if header["tombstone"] else bytes(payload)
        return cls(Record(Position(*header["input"]), header["key"], original), header["reason"])


def _description(array: BigArray) -> dict[str, Any]:
    return {"dtype": array.dtype.newbyteorder("<").str, "shape": list(array.shape)}


def _array(header: dict[str, Any], payload: memoryview) -> BigArray:
    dtype, shape = header.get("dtype"), header.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise DecodeError(f"dtype is {str(dtype)[:40]}, not one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or not 1 <= len(shape) <= MODES or not all(type(n) is int and n > 0 for n in shape):
        raise DecodeError(f"shape is {str(shape)[:80]}, not a list of 1 to {MODES} positive sizes")
    if prod(shape) * np.dtype(dtype).itemsize != len(payload):
        raise DecodeError(f"shape {shape} of {dtype} does not fit a payload of {len(payload)} bytes")
    return np.frombuffer(payload, dtype).reshape(shape)
