"""What comes in: tensors, and the draws of samplers, which are tensors that know where they come from."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from stream_ocpdl.errors import DataError, DecodeError
from stream_ocpdl.ocpdl.arrays import BigArray, Indices, Sparse
from stream_ocpdl.stream.messages.fields import Fields
from stream_ocpdl.stream.messages.framing import Payload, beginning, brief, frame, header_in, unframe, unpack

DTYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "<u8", "<u4", "<u2", "|i1", "|u1", "|b1")
_DTYPES = {name: np.dtype(name) for name in DTYPES}


class Origin(NamedTuple):
    """Where a draw comes from: which one of which chain of which run."""

    run: str
    chain: int
    draw: int
    tuning: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor of the stream, dense or sparse, perhaps with names of its modes."""

    array: BigArray | Sparse
    axes: tuple[str, ...] | None = None
    origin: Origin | None = None
    """Of the tensor of a draw that was read; it is not written."""

    @property
    def shape(self) -> tuple[int, ...]:
        """I₁ … Iₙ."""
        return self.array.shape

    def to_bytes(self, *, crc: bool = False) -> bytes:
        """Header with dtype and shape, payload in C order.

        >>> Tensor.from_bytes(Tensor(np.eye(2), ("row", "column")).to_bytes()).array.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        return frame({"kind": "tensor", **self.described()}, *self.parts(), crc=crc)

    @classmethod
    def from_bytes(cls, value: Payload | None) -> Self:
        """The tensor, in the memory of the message."""
        return cls.plain(value) or cls.read(*unframe(value))

    @classmethod
    def plain(cls, value: Payload | None) -> Self | None:
        """The tensor, if it is dense and has no checksum. Such headers come again and again, and are known by heart."""
        mould = Mould.of(value)
        return None if mould is None or value is None else cls(mould.array(value), mould.axes)

    @classmethod
    def read(cls, header: dict[str, Any], payload: memoryview) -> Self:
        """The tensor of a message that was taken apart."""
        return cls(*described(Fields(header, "tensor"), payload))

    def described(self) -> dict[str, Any]:
        """The fields of a header that describe the array."""
        values = self.array.values if isinstance(self.array, Sparse) else self.array
        shape = [int(n) for n in self.shape]
        header: dict[str, Any] = {"dtype": _little(values.dtype), "shape": shape}
        if self.axes is not None:
            header["axes"] = list(self.axes)
        if isinstance(self.array, Sparse):
            header |= {"layout": "coo", "nnz": len(values)}
        fields = Fields(header | {"kind": "tensor"}, "tensor")
        try:  # what cannot be read is not written
            _describe(fields)
            if isinstance(self.array, Sparse):
                _check_entries(self.array.indices, self.array.shape)
        except DecodeError as error:
            raise DataError(f"the tensor cannot be written: {error}") from error
        return header

    def parts(self) -> list[memoryview]:
        """The payload."""
        if isinstance(self.array, Sparse):
            return [raw(np.asarray(self.array.indices, "<i8")), raw(self.array.values)]
        return [raw(self.array)]


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """A draw of a sampler."""

    tensor: Tensor
    run: str
    chain: int
    draw: int
    tuning: bool = False
    sampler: str | None = None

    @property
    def origin(self) -> Origin:
        """Where it comes from."""
        return Origin(self.run, self.chain, self.draw, self.tuning)

    @property
    def key(self) -> bytes:
        """Keeps a chain in order in one partition."""
        return f"{self.run}:{self.chain}".encode()

    def to_bytes(self, *, crc: bool = False) -> bytes:
        """A tensor's header and payload, and where the draw comes from."""
        return frame(self.described(), *self.tensor.parts(), crc=crc)

    def described(self) -> dict[str, Any]:
        """The header."""
        header = {"kind": "draw", **self.tensor.described(), "run": self.run, "chain": self.chain, "draw": self.draw}
        header |= {"tuning": self.tuning} if self.tuning else {}
        header |= {"sampler": self.sampler} if self.sampler is not None else {}
        try:  # what cannot be read is not written
            _origin(Fields(header, "draw"))
        except DecodeError as error:
            raise DataError(f"the draw cannot be written: {error}") from error
        return header

    @classmethod
    def from_bytes(cls, value: Payload | None) -> Self:
        """The draw, its numbers in the memory of the message."""
        return cls.read(*unframe(value))

    @classmethod
    def read(cls, header: dict[str, Any], payload: memoryview) -> Self:
        """The draw of a message that was taken apart."""
        fields = Fields(header, "draw")
        return cls(Tensor(*described(fields, payload)), *_origin(fields))


def _origin(fields: Fields) -> tuple[str, int, int, bool, str | None]:
    """Where a draw comes from."""
    tuning = bool(fields.optional("tuning", fields.flag))
    sampler = fields.optional("sampler", fields.text)
    return fields.text("run"), fields.count("chain"), fields.count("draw"), tuning, sampler


def described(fields: Fields, payload: memoryview) -> tuple[BigArray | Sparse, tuple[str, ...] | None]:
    """The array that a header describes, in the memory of the payload; and the names of its modes."""
    dtype, shape, axes, nnz = _describe(fields)
    if nnz is None:
        return dense(dtype, shape, payload), axes
    if len(payload) != nnz * (8 + dtype.itemsize):
        raise DecodeError(f"nnz {nnz} of {dtype.str} does not fit a payload of {len(payload)} bytes")
    indices: Indices = np.frombuffer(payload[: 8 * nnz], "<i8")
    _check_entries(indices, shape)
    return Sparse(shape, indices, np.frombuffer(payload[8 * nnz :], dtype)), axes


def _check_entries(indices: Indices, shape: tuple[int, ...]) -> None:
    size = prod(shape)
    if len(indices) and not (indices[0] >= 0 and indices[-1] < size and np.all(indices[1:] > indices[:-1])):
        raise DecodeError(f"indices are not strictly ascending from 0 to below {size}")


def dense(dtype: np.dtype[Any], shape: tuple[int, ...], payload: memoryview) -> BigArray:
    """The array in the memory of a payload."""
    if prod(shape) * dtype.itemsize != len(payload):
        raise DecodeError(f"shape {list(shape)} of {dtype.str} does not fit a payload of {len(payload)} bytes")
    return np.frombuffer(payload, dtype).reshape(shape)


class Mould(NamedTuple):
    """What all dense tensors have in common that begin with the same bytes."""

    head: bytes
    """Up to the end of the header, which has no checksum."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    axes: tuple[str, ...] | None
    start: int
    """Where the payload begins."""
    size: int
    """Bytes of the whole message."""

    @classmethod
    def of(cls, value: Payload | None) -> "Mould | None":
        """What the beginning of a message says, if it is that of a dense tensor without a checksum."""
        head = beginning(value)
        return _mould(head) if head else None

    def array(self, value: Payload) -> BigArray:
        """The numbers of a message with this beginning, in its memory."""
        if len(value) != self.size:
            return dense(self.dtype, self.shape, memoryview(value)[self.start :])  # which says what is wrong
        return np.ndarray(self.shape, self.dtype, value, self.start)


@lru_cache(64)
def _mould(head: bytes) -> Mould | None:
    packed, start = header_in(head)
    header = unpack(packed)
    if header.get("kind") != "tensor" or "crc32" in header:
        return None
    dtype, shape, axes, nnz = _describe(Fields(header, "tensor"))
    return Mould(head, dtype, shape, axes, start, start + prod(shape) * dtype.itemsize) if nnz is None else None


def _describe(fields: Fields) -> tuple[np.dtype[Any], tuple[int, ...], tuple[str, ...] | None, int | None]:
    """dtype, shape, axes, and the number of entries if it is sparse."""
    dtype, shape = _DTYPES[fields.one_of("dtype", _DTYPES)], fields.shape()
    axes = fields.optional("axes", fields.axes)
    if axes is not None and len(axes) != len(shape):
        raise DecodeError(f"axes is {brief(list(axes))}, {len(axes)} names for {len(shape)} modes")
    sparse = "layout" in fields.header and fields.one_of("layout", ("dense", "coo")) == "coo"
    nnz = fields.count("nnz") if sparse else fields.optional("nnz", fields.count)
    return dtype, shape, axes, nnz if sparse else None


def _little(dtype: np.dtype[Any]) -> str:
    return dtype.newbyteorder("<").str


def raw(array: BigArray) -> memoryview:
    """The bytes of an array, little-endian in C order."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data
