"""A value on a topic: a header that any msgpack reader can read, then raw bytes.

    b"OCT" · version (1 byte) · header length (4 bytes, little-endian) · header (msgpack map, padded) · payload

The header is padded with zero bytes so that the payload begins at a multiple of 16: arrays are read in place, aligned.
"""

import struct
from typing import Any

import msgpack

from stream_ocpdl.errors import DecodeError

MAGIC = b"OCT"
VERSION = 1
ALIGNMENT = 16
HEADER_LIMIT = 1 << 20
_PREFIX = struct.Struct("<3sBI")


def frame(header: dict[str, Any], payload: bytes | memoryview = b"") -> bytes:
    """The bytes of a message.

    >>> header, payload = unframe(frame({"kind": "hello"}, b"world"))
    >>> header, bytes(payload)
    ({'kind': 'hello'}, b'world')
    """
    packed = msgpack.packb(header)
    length = -(-(_PREFIX.size + len(packed)) // ALIGNMENT) * ALIGNMENT - _PREFIX.size
    return b"".join([_PREFIX.pack(MAGIC, VERSION, length), packed.ljust(length, b"\0"), payload])


def unframe(value: bytes | memoryview | None) -> tuple[dict[str, Any], memoryview]:
    """The header and the payload, the latter in place."""
    if not value:
        raise DecodeError("the message has no value")
    view = memoryview(value)
    if len(view) < _PREFIX.size:
        raise DecodeError(f"the message has {len(view)} bytes, fewer than the {_PREFIX.size} of its prefix")
    magic, version, length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise DecodeError(f"the message does not begin with {MAGIC!r}")
    if version != VERSION:
        raise DecodeError(f"the message has format version {version}; this release reads version {VERSION}")
    end = _PREFIX.size + length
    if length > HEADER_LIMIT or end > len(view):
        raise DecodeError(f"the message promises a header of {length} bytes and has {len(view)} in all")
    return _unpack(view[_PREFIX.size : end]), view[end:]


def _unpack(packed: memoryview) -> dict[str, Any]:
    unpacker = msgpack.Unpacker(max_buffer_size=HEADER_LIMIT, strict_map_key=False)
    unpacker.feed(packed)
    try:
        header = unpacker.unpack()
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise DecodeError(f"the header of the message is not msgpack: {error}") from error
    if not isinstance(header, dict):
        raise DecodeError(f"the header of the message is a {type(header).__name__}, not a map")
    return header
