"""The formats of the input: the native one, and four for producers that exist already.

    raw       the numbers, nothing else
    npy       a .npy file of NumPy
    msgpack   a map, or a nested list
    json      an object, or a nested list

Whatever a producer sends, the answer is a tensor or a `DecodeError`, and its cost is bounded by the problem's shape: a
value has at most 32 bytes an element (and 64 KiB), and its lists and numbers are counted. Msgpack is walked over before
anything is built, so that no length is believed that the bytes do not keep.
"""

import io
import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, Literal, NoReturn, TypeAlias, get_args

import msgpack
import numpy as np
from numpy.lib import format as npy

from stream_ocpdl.errors import ConfigError, DecodeError
from stream_ocpdl.ocpdl.arrays import BigArray
from stream_ocpdl.stream.messages import DTYPES, MODES, Tensor, brief

Name: TypeAlias = Literal["native", "msgpack", "raw", "npy", "json"]
Shape: TypeAlias = tuple[int, ...]

ELEMENT, SLACK = 32, 1 << 16
"""The most bytes of a value: for each element of the problem's shape, and for all the rest."""

SPARE = 8192
"""How many lists and numbers a value may have beyond twice those of the problem's shape."""

KEYS, KEY, FIELD = 256, 256, 8192
"""In msgpack, the most keys, the most bytes of a key, and of any field but `data`."""

NPY_HEADER = 1024
"""How far the header of a .npy file may reach; NumPy's own, with 16 modes, are shorter."""

_BIN = {0xC4: 2, 0xC5: 3, 0xC6: 5}
"""The first byte of a msgpack bin, and after how many bytes its content begins."""

_NPY_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0, (3, 0): npy.read_array_header_2_0}
"""Version 3.0 differs from 2.0 in names that are not ASCII, and the dtypes that are allowed have no names."""

_NUMBERS = {float, int, type(None)}
_PLAIN = {"max_bin_len": 0, "max_map_len": 0, "max_ext_len": 0}


@dataclass(frozen=True, slots=True)
class Format:
    """How the values of the input are to be read.

    >>> Format("json").read(b"[[1, 2, null], [4.5, 5, 6]]", (2, 3)).array.tolist()
    [[1.0, 2.0, nan], [4.5, 5.0, 6.0]]
    """

    name: Name = "native"
    dtype: str = "<f8"
    """Of raw numbers."""

    def __post_init__(self) -> None:
        if self.name not in get_args(Name):
            raise ConfigError(f"input.format is {self.name!r}, not one of {', '.join(get_args(Name))}")
        if self.dtype not in DTYPES:
            raise ConfigError(f"input.dtype is {self.dtype!r}, not one of {', '.join(DTYPES)}")

    def read(self, value: bytes | None, shape: Shape) -> Tensor:
        """The tensor in a value; only a raw one has the problem's shape for certain."""
        if not value:
            raise DecodeError("value is empty, or the record is a tombstone")
        limit = largest(shape)
        if len(value) > limit:
            raise DecodeError(f"the message has {len(value)} bytes; with shape {shape} it may have {limit}")
        match self.name:
            case "raw":
                return Tensor(_view(memoryview(value), self.dtype, shape))
            case "npy":
                return _npy(value)
            case "msgpack":
                return _msgpack(value, shape)
            case "json":
                return _json(value, shape)
            case "native":
                return Tensor.from_bytes(value)


def largest(shape: Shape) -> int:
    """The most bytes that a message with a tensor of this shape may have."""
    return ELEMENT * prod(shape) + SLACK


def _npy(value: bytes) -> Tensor:
    stream = io.BytesIO(value[:NPY_HEADER])
    try:
        read = _NPY_READERS[npy.read_magic(stream)]
        with warnings.catch_warnings(action="ignore"):  # of headers that Python 2 wrote
            shape, fortran, dtype = read(stream)
    except Exception as error:  # whatever Python's parser may raise
        reason = f"the message has no npy header of version 1.0 to 3.0 in its first {NPY_HEADER} bytes"
        raise DecodeError(reason) from error
    payload = memoryview(value)[stream.tell() :]
    return Tensor(_view(payload, dtype.str, _sizes(shape), "F" if fortran else "C"))


def _msgpack(value: bytes, shape: Shape) -> Tensor:
    fields = _fields(value)
    sizes, axes = _small(fields, "shape"), _small(fields, "axes")
    data = _required(fields)
    if data[0] in _BIN:
        dtype = _small(fields, "dtype")
        sizes = shape if sizes is None else _sizes(sizes)
        array = _view(data[_BIN[data[0]] :], "<f8" if dtype is None else dtype, sizes)
    else:
        array = _reshaped(_numbers(_unpacked(data, _parts(shape))), sizes)
    return Tensor(array, _axes(axes, array.ndim))


def _json(value: bytes, shape: Shape) -> Tensor:
    limit = _parts(shape)
    if sum(map(value.count, (b",", b"[", b"{"))) > limit:
        raise DecodeError(f"the message has more than {limit} lists and numbers")
    try:
        message = json.loads(value.decode(), parse_int=float, object_pairs_hook=_unique)  # float takes any digits
    except DecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"the message is not JSON in UTF-8: {error}") from error
    fields = message if isinstance(message, dict) else {"data": message}
    array = _reshaped(_numbers(_required(fields)), fields.get("shape"))
    return Tensor(array, _axes(fields.get("axes"), array.ndim))


def _fields(value: bytes) -> dict[str, memoryview]:
    """The fields of a msgpack map, each still packed and known to be complete; a list is `data`."""
    limits = _PLAIN | {"max_str_len": KEY, "max_bin_len": KEY, "max_array_len": 0}
    unpacker = msgpack.Unpacker(max_buffer_size=len(value), **limits)
    unpacker.feed(value)
    try:
        return _unique(_walk(unpacker, value))
    except DecodeError:
        raise
    except (ValueError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise DecodeError(f"the message is no map or list of msgpack: {reason}") from error


def _walk(unpacker: Any, value: bytes) -> Iterator[tuple[str, memoryview]]:
    if _is_list(value[0]):
        yield "data", _skipped(unpacker, value)
    else:
        keys = unpacker.read_map_header()
        if keys > KEYS:
            raise DecodeError(f"the message has {keys} keys; it may have {KEYS}")
        for _ in range(keys):
            yield _key(unpacker), _skipped(unpacker, value)
    if unpacker.tell() != len(value):
        raise DecodeError(f"the message has {len(value) - unpacker.tell()} bytes after its end")


def _key(unpacker: Any) -> str:
    key = unpacker.unpack()
    if not isinstance(key, str):
        raise DecodeError(f"the message has a key of type {type(key).__name__}, not text")
    return key


def _skipped(unpacker: Any, value: bytes) -> memoryview:
    """What comes next, still packed: skipping builds nothing, and fails where a length is not kept."""
    start = unpacker.tell()
    unpacker.skip()
    return memoryview(value)[start : unpacker.tell()]


def _is_list(first: int) -> bool:
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)


def _small(fields: dict[str, memoryview], name: str) -> object:
    """A field of msgpack that is not `data`, or None."""
    if name not in fields:
        return None
    if len(fields[name]) > FIELD:
        raise DecodeError(f"{name} has {len(fields[name])} bytes; it may have {FIELD}")
    try:
        value: object = msgpack.unpackb(fields[name], max_str_len=KEY, **_PLAIN)
    except ValueError as error:
        raise DecodeError(f"{name} is not text or a list: {error}") from error
    return value


def _unpacked(data: memoryview, limit: int) -> object:
    """The nested list, given up with the first list too many: one takes a byte of a message and eighty of memory."""
    left = limit

    def count(row: list[Any]) -> list[Any]:
        nonlocal left
        left -= 1 + len(row)
        if left < 0:
            raise ValueError(f"more than {limit} lists and numbers")
        return row

    hooks = {"list_hook": count, "object_hook": _no_number, "ext_hook": _no_number}
    try:
        nested: object = msgpack.unpackb(data, max_array_len=limit, max_str_len=0, **hooks, **_PLAIN)
    except ValueError as error:
        raise DecodeError(f"data is no nested list of numbers: {error}") from error
    return nested


def _no_number(*_: object) -> NoReturn:
    raise ValueError("a map or an extension among them")


def _parts(shape: Shape) -> int:
    """How many lists and numbers a nested list may have."""
    lists = sum(prod(shape[:mode]) for mode in range(len(shape)))
    return 2 * (lists + prod(shape)) + SPARE


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise DecodeError(f"{key[:40]!r} is in the message twice")
        fields[key] = value
    return fields


def _required(fields: dict[str, Any]) -> Any:
    if "data" not in fields:
        raise DecodeError("data is missing")
    return fields["data"]


def _numbers(data: object) -> BigArray:
    """A nested list as an array, mode by mode; None is a missing cell."""
    sizes: list[int] = []
    level: list[Any] = [data]
    while (kinds := set(map(type, level))) == {list}:
        lengths = set(map(len, level))
        if len(lengths) > 1 or 0 in lengths:
            raise DecodeError(f"data is ragged or empty: mode {len(sizes)} has lists of {_some(lengths)} values")
        if len(sizes) == MODES:
            raise DecodeError(f"data has more than {MODES} modes")
        sizes.append(lengths.pop())
        level = list(chain.from_iterable(level))
    if not sizes:
        raise DecodeError(f"data is a {type(data).__name__}, not a list")
    if not kinds <= _NUMBERS:
        names = _some(kind.__name__ for kind in kinds)
        raise DecodeError(f"data has {names} in mode {len(sizes)}, where all must be numbers or all lists")
    return np.array(level, np.float64).reshape(sizes)


def _some(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values))[:4])


def _reshaped(array: BigArray, shape: object) -> BigArray:
    """Numbers of a flat list in their shape; those of a nested one have it."""
    if shape is None:
        return array
    sizes = _sizes(shape)
    if array.shape != sizes and (array.ndim > 1 or array.size != prod(sizes)):
        raise DecodeError(f"shape is {sizes}, but data has shape {array.shape}")
    return array.reshape(sizes)


def _view(payload: memoryview, dtype: object, shape: Shape, order: Literal["C", "F"] = "C") -> BigArray:
    """The array, in the memory of the message."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise DecodeError(f"dtype is {brief(dtype)}, not one of {', '.join(DTYPES)}")
    if prod(shape) * np.dtype(dtype).itemsize != len(payload):
        raise DecodeError(f"shape {shape} of {dtype} does not fit data of {len(payload)} bytes")
    return np.frombuffer(payload, dtype).reshape(shape, order=order)


def _sizes(shape: object) -> Shape:
    if not isinstance(shape, list | tuple) or not 1 <= len(shape) <= MODES or not all(map(_is_size, shape)):
        raise DecodeError(f"shape is {brief(shape)}, not a list of 1 to {MODES} positive sizes")
    return tuple(map(int, shape))


def _is_size(n: object) -> bool:
    """Whether it is a positive integer; in JSON 3.0 is one."""
    return type(n) in (int, float) and 0 < n < 2**63 and n % 1 == 0  # type: ignore[operator]


def _axes(axes: object, modes: int) -> tuple[str, ...] | None:
    if axes is None:
        return None
    if not isinstance(axes, list) or len(axes) != modes or not all(map(_is_name, axes)) or len(set(axes)) < modes:
        raise DecodeError(f"axes is {brief(axes)}, not {modes} different texts of 1 to 64 characters")
    return tuple(axes)


def _is_name(name: object) -> bool:
    """Whether it is a short text; JSON can write half a character, which no other format could carry on."""
    return isinstance(name, str) and 1 <= len(name) <= 64 and name.encode(errors="ignore").decode() == name
