"""Damaged messages of every kind, again and again: each must be read or refused, quickly and in little memory.

    python -m tests.fuzz 1000000        # so many inputs; a second number is the seed

Three ways to damage: bytes are changed, cut and repeated; fields of the header get odd values, or go; and two messages
are mixed. Time is taken of every input, allocation (by tracemalloc, which is slow) of one in twenty.
"""

import gc
import random
import sys
import time
import tracemalloc
from collections import Counter

import msgpack

from stream_ocpdl.errors import DecodeError
from stream_ocpdl.stream.formats import Format
from stream_ocpdl.stream.intake import Intake
from stream_ocpdl.stream.messages import KINDS, OWN, DeadLetter, Position, Record, unframe
from tests.samples import SAMPLES, kind

ODD = [
    *(None, True, False, 0, 1, -1, 2, 1.5, -0.0, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(float("nan"), float("inf"), 1e308, "", "a", "a" * 64, "x" * 600, "\n", "\ud7ff", "<f8", "|O", ">f8", "coo"),
    *("dense", "tensor", "chunk", "0" * 64, "m/0/0/1", b"", b"bytes", [], [0], [1], [2, 3], [0, 1], [-1, 5]),
    *([2**62, 2**62], [1] * 16, [1] * 17, [3, 2], [[0, 1]], [[0, 1, 2]], [[]], [["a", None]], {}, {"a": 1}, [{}]),
    *([None], ["a", "a"], ["a", "b"], [[[[[[]]]]]], [[0, 1, "E", "r"]], [[0] * 4]),
    *(msgpack.ExtType(5, b"z"), msgpack.Timestamp(1)),
]
FIELDS = sorted({name for value in SAMPLES.values() for name in unframe(value, OWN)[0]} | {"layout", "nnz", "crc32"})
BOMBS = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdc\xff\xff" * 1200,
    b"\xde\xff\xff\xa1a" * 1200,
    b"\x91" * 5000,
    b"\xdc\x0e\x00" * 1000,
    b"\xde\x0c\x00\xa1a" * 1000,
    b"\xdc\x00\x40" * 1200,
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
]
SLOW = 0.05
"""Seconds of CPU that no message may take."""

ALLOCATION = 1_000_000
"""Bytes that a message may take beyond twenty times its own size."""


def damaged(chance, value, other):
    """A message that is no longer quite one."""
    way = chance.random()
    if way < 0.5:
        return _bytes(chance, bytearray(value))
    if way < 0.9:
        return _fields(chance, value)
    if way < 0.95:
        cut = chance.randrange(len(value))
        return value[:cut] + other[chance.randrange(len(other)) :]
    return _framed(chance.choice(BOMBS) + bytes(chance.randrange(100)), b"")


def _bytes(chance, value):
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(value))
        match chance.randrange(4):
            case 0:
                value[at] = chance.randrange(256)
            case 1:
                value[at] ^= 1 << chance.randrange(8)
            case 2:
                del value[at : at + chance.randint(1, 9)]
            case 3:
                value[at:at] = chance.randbytes(chance.randint(1, 9))
        value = value or bytearray(b"O")
    return bytes(value)


def _fields(chance, value):
    header, payload = unframe(value, OWN)
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(FIELDS if chance.random() < 0.3 else list(header) or FIELDS)
        if chance.random() < 0.15:
            header.pop(name, None)
        elif isinstance(header.get(name), list) and header[name] and chance.random() < 0.4:
            header[name] = [*header[name], *header[name]] if chance.random() < 0.3 else header[name][:-1]
        else:
            header[name] = chance.choice(ODD)
    try:
        packed = msgpack.packb(header)
    except UnicodeEncodeError:
        packed = b"\x80"
    return _framed(
        packed, bytes(payload[: chance.choice([len(payload), len(payload), chance.randrange(1 + len(payload))])])
    )


def _framed(packed, payload):
    length = len(packed).to_bytes(4, "little")
    return b"OCT\x01" + length + packed + bytes(-(8 + len(packed)) % 16) + payload


def attempt(read, value):
    """Read a message; true, or false if it was refused as it should be."""
    try:
        read(value)
    except DecodeError as error:
        reason = str(error)
    else:
        return True
    assert reason, value
    assert "\n" not in reason, value
    assert len(reason) < 1000, value
    return False


def allocated(read, value):
    """The most memory that reading a message took."""
    tracemalloc.start()
    try:
        attempt(read, value)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def run(inputs=100_000, seed=0):
    """What came of so many damaged messages of every kind in turn; raises for anything but a message or a refusal."""
    gc.collect()
    gc.freeze()  # a collection of what others left is not the time of a message
    chance, seen = random.Random(seed), Counter()
    slowest, largest, names = 0.0, 0, list(SAMPLES)
    for count in range(inputs):
        name = names[count % len(names)]
        value = damaged(chance, SAMPLES[name], SAMPLES[chance.choice(names)])
        read = KINDS[kind(name)].from_bytes
        began = time.thread_time()
        seen[name, attempt(read, value)] += 1
        slowest = max(slowest, time.thread_time() - began)
        _learned(value)
        if count % 20 == 0:
            peak = allocated(read, value)
            largest = max(largest, peak)
            assert peak < ALLOCATION + 20 * len(value), (peak, value)
    gc.unfreeze()
    return seen, slowest, largest


INTAKE = Intake(Format(), (3, 2), [0])


def _learned(value):
    """The way of the service: a tensor, a wait for more pieces, or a refusal whose dead letter has the bytes."""
    _learned.offset = getattr(_learned, "offset", 0) + 1
    record = Record(Position(0, _learned.offset), b"key", value)
    item = INTAKE.read(record, 0.0)
    for refusal in item.refused:
        letter = DeadLetter("t", refusal.record, refusal.error, refusal.reason)
        assert DeadLetter.from_bytes(letter.to_bytes()) == letter
    INTAKE.waiting({0: _learned.offset + 1})


def main():
    """Run it, and say what was seen."""
    seen, slowest, largest = run(*map(int, sys.argv[1:]))
    for name in SAMPLES:
        print(f"{name:24} read {seen[name, True]:9,}   refused {seen[name, False]:9,}")
    print(f"{seen.total():,} inputs; the slowest took {1000 * slowest:.1f} ms, the largest {largest:,} bytes")
    if slowest > SLOW:
        sys.exit(f"one took more than {1000 * SLOW:.0f} ms")


if __name__ == "__main__":
    main()
