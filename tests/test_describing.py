"""Records in a few plain values: whatever their bytes are."""

import json
import random

import numpy as np
import pytest

from stream_ocpdl.cli.tap import line
from stream_ocpdl.ocpdl.arrays import Sparse
from stream_ocpdl.stream.describing import described, summary
from stream_ocpdl.stream.formats import Format
from stream_ocpdl.stream.messages import Code, DeadLetter, Position, Record, Tensor, Version
from tests.fuzz import BOMBS, damaged
from tests.samples import SAMPLES, kind


def record(value, key=None):
    return Record(Position(1, 7), key, value, (), 1_700_000_000_000)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_kind_is_known(name):
    """A message of every kind is described as what it is, as JSON and in words."""
    found = described(record(SAMPLES[name]))

    assert found["kind"] == kind(name)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert line(found).startswith(f"       1:7  2023-11-14T22:13:20.000Z  {kind(name)} ")


def test_a_tensor_is_never_shown_whole():
    """However large it is, its line is short; the figures are those of its numbers."""
    found = described(record(Tensor(np.arange(1_000_000.0).reshape(1000, 1000)).to_bytes()))

    assert (found["min"], found["mean"], found["max"], found["head"]) == (0, 499999.5, 999999, [0, 1, 2, 3, 4, 5])
    assert len(line(found)) < 200


def test_numbers_that_are_none():
    """NaN and infinity are counted and left out of the figures; emptiness, overflow and entries are no trouble."""
    assert summary(np.array([1.0, np.nan, np.inf, 3.0]))["not_finite"] == 2
    assert summary(np.array([1.0, np.nan, np.inf, 3.0]))["mean"] == 2.0
    assert summary(np.array([np.nan]))["min"] is None
    assert summary(np.full(4, 1e308))["mean"] == "inf"
    assert summary(np.array([True, False]))["max"] == 1
    assert summary(Sparse((3, 3), np.array([], np.int64), np.array([], np.float32)))["nonzero"] == 0
    nan = Code(Version("m", 1), 2, Position(0, 0), 0.5, np.array([np.nan, 1.0]))
    json.dumps(described(record(nan.to_bytes())), allow_nan=False)


def test_hostile_bytes_are_a_reason():
    """Damaged messages of every kind, bombs and tombstones are read or refused: never an exception, always one line."""
    chance, names = random.Random(0), list(SAMPLES)
    hostile = [damaged(chance, SAMPLES[chance.choice(names)], SAMPLES[chance.choice(names)]) for _ in range(3000)]
    unreadable = 0
    for value in (None, b"", b"OCT", b"OCT\x01\xff\xff\xff\xff", *BOMBS, *hostile):
        found = described(record(value, b"\xff\x00"))
        json.dumps(found, allow_nan=False)
        unreadable += found["kind"] == "unreadable"
        assert found["kind"] == "snapshot" or "\n" not in line(found)
    assert 300 < unreadable < 3100


def test_a_message_cannot_drive_the_terminal():
    """Escape sequences in keys, axes and reasons are shown, not sent."""
    axes = described(record(Tensor(np.eye(2), ("a\x1b[2J", "b\nc")).to_bytes(), b"\x1b]0;title\x07"))
    letter = DeadLetter("t", record(b"\x1b[31m"), "DataError", "\x1b[31mred\r")

    for found in (axes, described(record(letter.to_bytes()))):
        assert line(found).isprintable()


def test_the_input_in_another_format():
    """An input that is not ours is read as the settings say, and refused in the same way."""
    form = Format("json")

    assert described(record(b"[[1, 2], [3, 4]]"), form, (2, 2))["mean"] == 2.5
    assert described(record(b"{nothing"), form, (2, 2))["kind"] == "unreadable"
