"""A value on a topic: a header that any msgpack reader can read, then raw bytes (specified in `docs/messages.md`).

    b"OCT" · version (1 byte) · header length (4 bytes, little-endian) · header (msgpack map) · zeros to 16 · payload

The payload begins at a multiple of 16: arrays are read in place, aligned.
"""

import reprlib
import struct
from functools import lru_cache
from typing import Any, NamedTuple

import msgpack
from isal import isal_zlib

from stream_ocpdl.errors import DecodeError

MAGIC = b"OCT"
VERSION = 1
ALIGNMENT = 16
SHORT = 512
"""Bytes that a message has with its header, if that is a short one."""
_PREFIX = struct.Struct("<3sBI")
_QUOTED = reprlib.Repr()
_QUOTED.maxlevel, _QUOTED.maxlist, _QUOTED.maxdict, _QUOTED.maxstring, _QUOTED.maxother = 2, 16, 3, 60, 60

Payload = bytes | bytearray | memoryview


class Limits(NamedTuple):
    """What a header may have before anything of that size is made of it."""

    header: int
    """Bytes."""
    entries: int
    """Of an array or a map. A length is a promise for which msgpack makes room at once, and arrays may be nested."""


FOREIGN = Limits(header=16_384, entries=64)
"""For what anybody may write."""

OWN = Limits(header=64_000_000, entries=10_000_000)
"""For what only a service writes: lists of runs, of refusals, of atoms."""


def frame(header: dict[str, Any], *payload: Payload, crc: bool = False) -> bytes:
    """The bytes of a message.

    >>> header, payload = unframe(frame({"kind": "hello"}, b"world"))
    >>> header, bytes(payload)
    ({'kind': 'hello'}, b'world')
    """
    if crc:
        header = header | {"crc32": checksum(*payload)}
    return framed(msgpack.packb(header), *payload)


def framed(packed: bytes, *payload: Payload) -> bytes:
    """The bytes of a message whose header is packed already."""
    before, behind = around(len(packed))
    return b"".join((before, packed, behind, *payload))


@lru_cache(1024)
def around(length: int) -> tuple[bytes, bytes]:
    """What comes before a header of so many bytes, and behind it."""
    return _PREFIX.pack(MAGIC, VERSION, length), bytes(-(_PREFIX.size + length) % ALIGNMENT)


def unframe(value: Payload | None, limits: Limits = FOREIGN) -> tuple[dict[str, Any], memoryview]:
    """The header and the payload, the latter in place."""
    packed, payload = take_apart(value, limits)
    header = unpack(packed, limits)
    if "crc32" in header and (header["crc32"] != checksum(payload) or type(header["crc32"]) is not int):
        raise DecodeError(f"crc32 is {brief(header['crc32'])}, and that of the payload {checksum(payload)}")
    return header, payload


def beginning(value: Payload | None) -> bytes | None:
    """The bytes of a message up to the end of its header, if that is short, as most are."""
    if value is None or len(value) < _PREFIX.size:
        return None
    end = _PREFIX.size + _PREFIX.unpack_from(value)[2]
    return bytes(value[:end]) if end <= SHORT and end + -end % ALIGNMENT <= len(value) else None


def header_in(head: bytes) -> tuple[memoryview, int]:
    """The header in the beginning of a message, still packed, and where the payload begins."""
    packed, _ = take_apart(head + bytes(-len(head) % ALIGNMENT))
    return packed, len(head) + -len(head) % ALIGNMENT


def take_apart(value: Payload | None, limits: Limits = FOREIGN) -> tuple[memoryview, memoryview]:
    """The header, still packed, and the payload, both in place."""
    if value is None:
        raise DecodeError("value is missing: the record is a tombstone")
    size = len(value)
    if size < _PREFIX.size:
        raise DecodeError(f"value has {size} bytes, fewer than the {_PREFIX.size} of a prefix")
    magic, version, length = _PREFIX.unpack_from(value)
    if magic != MAGIC:
        raise DecodeError(f"value does not begin with {MAGIC!r}: it is no message of this format")
    if version != VERSION:
        later = "; a later release wrote it, and that one, or one after it, has to read it" if version > VERSION else ""
        raise DecodeError(f"value has format version {version}; this release reads version {VERSION}{later}")
    end = _PREFIX.size + length
    if length > limits.header:
        raise DecodeError(f"header has {length} bytes; at most {limits.header} are read")
    start = end + -end % ALIGNMENT
    if start > size:
        raise DecodeError(f"header has {length} bytes by its prefix, and the message {size} in all: it is cut short")
    view = memoryview(value)
    return view[_PREFIX.size : end], view[start:]


def brief(value: Any) -> str:
    """A value as an error quotes it: of any size, in one short line."""
    return " ".join(_QUOTED.repr(value).split())


def checksum(*parts: Payload) -> int:
    """CRC-32 over bytes one after the other."""
    total = 0
    for part in parts:
        total = isal_zlib.crc32(part, total)
    return total


def unpack(packed: memoryview | bytes, limits: Limits = FOREIGN) -> dict[str, Any]:
    """A header."""
    most = min(limits.entries, len(packed))
    try:
        if most > FOREIGN.entries:  # lengths are believed only after the bytes have kept them
            walker = msgpack.Unpacker(max_buffer_size=len(packed))
            walker.feed(packed)
            walker.skip()
        header = msgpack.unpackb(packed, max_array_len=most, max_map_len=most)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise DecodeError(f"header is not msgpack: {str(error)[:80] or type(error).__name__}") from error
    if not isinstance(header, dict):
        raise DecodeError(f"header is a {type(header).__name__}, not a map")
    return header
