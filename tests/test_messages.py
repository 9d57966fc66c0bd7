"""Messages: exact both ways, and nothing a producer can send does more than be refused."""

import random
import re

import msgpack
import numpy as np
import pytest

from stream_ocpdl import Problem
from stream_ocpdl.stream.codec import frame, unframe
from stream_ocpdl.stream.messages import DTYPES, Code, DeadLetter, Position, Record, Snapshot, Tensor
from stream_ocpdl.stream.pipeline import decode

PROBLEM = Problem(shape=(3, 2), rank=2)
GOOD = Tensor(np.arange(6.0).reshape(3, 2)).to_bytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_come_back(dtype):
    """Every dtype and shape is read back exactly, in the memory of the message, aligned to 16 bytes."""
    for shape in [(1,), (5,), (3, 4), (2, 1, 3), (1,) * 16]:
        array = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtype)
        value = Tensor(array).to_bytes()
        back = Tensor.from_bytes(value).array

        assert back.dtype == dtype
        assert np.array_equal(back, array)
        assert np.shares_memory(back, np.frombuffer(value, np.uint8))
        assert (len(value) - array.nbytes) % 16 == 0


def test_the_others_come_back():
    """Codes, snapshots and dead letters are read back exactly."""
    code = Code.from_bytes(Code("m", Position(2, 9), 7, 0.1, np.array([1.5, 0.0])).to_bytes())
    snapshot = Snapshot.from_bytes(Snapshot("m", 3, [np.eye(2), np.ones((4, 2))]).to_bytes())

    assert (code.model, code.position, code.t, code.loss, code.code.tolist()) == ("m", (2, 9), 7, 0.1, [1.5, 0.0])
    assert [U.tolist() for U in snapshot.loadings] == [np.eye(2).tolist(), np.ones((4, 2)).tolist()]
    for value in (b"bytes", b"", None):
        letter = DeadLetter(Record(Position(0, 1), b"key", value), "why")
        assert DeadLetter.from_bytes(letter.to_bytes()) == letter


def tensor(**changes):
    """A framed tensor with other fields in its header."""
    return frame({"kind": "tensor", "dtype": "<f8", "shape": [3, 2]} | changes, bytes(48))


REFUSED = {
    "empty": (b"", "no value"),
    "tombstone": (None, "no value"),
    "short": (b"OCT", "fewer than the 8"),
    "another format": (b"\x93NUMPY\x01\x00" + bytes(50), "does not begin with"),
    "pickle": (b"\x80\x04\x95" + bytes(50), "does not begin with"),
    "the next version": (b"OCT\x02" + GOOD[4:], "format version 2"),
    "a header that is not there": (GOOD[:4] + b"\xff\xff\xff\x7f" + GOOD[8:], "promises a header"),
    "a header that is no map": (frame([1, 2]), "is a list, not a map"),
    "a header that is no msgpack": (GOOD[:8] + b"\xc1" + GOOD[9:], "not msgpack"),
    "another kind": (tensor(kind="draw"), "kind 'draw'"),
    "objects": (tensor(dtype="|O"), "dtype is"),
    "a dtype that is no text": (tensor(dtype=[1]), "dtype is"),
    "2^63 elements": (tensor(shape=[2**62, 2]), "does not fit"),
    "zero sizes": (tensor(shape=[0, 2**62]), "positive sizes"),
    "too many modes": (tensor(shape=[1] * 17), "positive sizes"),
    "no shape": (tensor(shape=None), "positive sizes"),
    "truncated": (GOOD[:-1], "does not fit"),
    "wrong shape": (Tensor(np.ones((2, 3))).to_bytes(), r"shape \(1, 2, 3\)"),
    "NaN": (Tensor(np.full((3, 2), np.nan)).to_bytes(), "is not finite"),
    "negative": (Tensor(-np.ones((3, 2))).to_bytes(), "is negative"),
    "list as a key": (GOOD[:8] + msgpack.packb({"a": 1})[:1] + b"\x90\x01" + GOOD[11:], "not msgpack"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_tensor_is_refused(name):
    """Each has a reason in one line."""
    value, reason = REFUSED[name]
    item = decode(PROBLEM, Record(Position(0, 0), None, value), 0.0)

    assert item.array is None
    assert re.search(reason, item.refusal)
    assert "\n" not in item.refusal


def test_fuzz():
    """Fifty thousand damaged messages: each is a tensor or a refusal."""
    chance = random.Random(0)
    odd = [None, True, -1, 1.5, 2**63, "a", b"x", [], [1] * 40, {}, {"a": {}}, float("nan"), msgpack.ExtType(5, b"z")]
    for _ in range(50_000):
        if chance.random() < 0.6:
            value = bytearray(GOOD)
            for _ in range(chance.randint(1, 4)):
                value[chance.randrange(len(value))] = chance.randrange(256)
            value = bytes(value[: chance.randint(0, 2 * len(value))])
        else:
            value = tensor(**{name: chance.choice(odd) for name in chance.sample(["kind", "dtype", "shape"], 2)})
        item = decode(PROBLEM, Record(Position(0, 0), None, value), 0.0)

        assert (item.array is None) == (item.refusal is not None)


def test_headers_are_padded():
    """A payload begins at a multiple of 16 whatever the header's length."""
    for size in range(40):
        value = frame({"x": "y" * size}, b"payload")

        assert (len(value) - 7) % 16 == 0
        assert unframe(value)[0] == {"x": "y" * size}
