"""Canonical bytes: exact, the same everywhere, and no others are accepted."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ocpdl import Learner, Problem, State, StateError
from stream_ocpdl.fingerprint import conditions, fingerprint


def learned(**options):
    learner = Learner(Problem(**({"shape": (3, 2), "rank": 2} | options)))
    learner.step(np.arange(24.0).reshape(4, 3, 2))
    return learner.state


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_round_trip_is_exact(dtype):
    """Bytes → state → bytes gives the same bytes, and every number back."""
    state = learned(dtype=dtype)
    back = State.from_bytes(state.to_bytes())

    assert back.to_bytes() == state.to_bytes()
    assert (back.t, back.N, back.scale, back.at_bound) == (1, 4, state.scale, 0)
    assert back.aggregates.E == state.aggregates.E
    assert back.aggregates.B.dtype == dtype
    assert all(np.array_equal(U, V) for U, V in zip(back.loadings, state.loadings, strict=True))


def test_the_layout_is_fixed():
    """A golden layout: another implementation can read a state from this description alone."""
    state = State.initial(Problem(shape=(1, 2), rank=1))
    header = b'{"E":"0x0.0p+0","N":0,"P":"0x0.0p+0","at_bound":0,"dtype":"float64","rank":1,"scale":"0x0.0p+0",'
    header += b'"shape":[1,2],"t":0}'
    arrays = [U.astype("<f8").tobytes() for U in state.loadings] + [bytes(8), bytes(16)]

    assert state.to_bytes() == b"OCPDL\x01" + len(header).to_bytes(4, "little") + header + b"".join(arrays)
    assert state.digest() == "41afc533463a88395b14487710c13893515b3a0d51a5855acc7ad08fd4d56ed9"


def test_the_hash_sees_every_bit():
    """States that differ in one bit of one array have different hashes."""
    state = learned()
    before = state.digest()
    state.aggregates.B[0, 0, 0] = np.nextafter(state.aggregates.B[0, 0, 0], np.inf)

    assert state.digest() != before


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_read(data):
    """Any change of any byte gives a typed error or another state; never another exception, never a crash."""
    good = bytearray(learned().to_bytes())
    match data.draw(st.sampled_from(["flip", "cut", "append", "header"])):
        case "flip":
            good[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
        case "cut":
            del good[data.draw(st.integers(0, len(good) - 1)) :]
        case "append":
            good += b"x"
        case "header":
            header = data.draw(st.dictionaries(st.sampled_from(["shape", "rank", "dtype", "E", "t"]), st.just([1, -1])))
            text = json.dumps(header).encode()
            good[6:] = len(text).to_bytes(4, "little") + text + bytes(good[150:])
    try:
        State.from_bytes(good).digest()
    except StateError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        (b'"t":1', b'"t":7', "impossible counters"),
        (b'"N":4', b'"N": 4', "canonical|bytes"),
        (b'"at_bound":0', b'"at_bound":"0"', "canonical|bytes"),
        (b'"scale":"0x', b'"scale":"-0x', "bytes|impossible"),
    ],
)
def test_impossible_headers(was, becomes, message):
    """Counters that cannot be, and headers in another spelling, are refused."""
    data = learned().to_bytes()
    size = int.from_bytes(data[6:10], "little")
    header = data[10 : 10 + size].replace(was, becomes)

    with pytest.raises(StateError, match=message):
        State.from_bytes(data[:6] + len(header).to_bytes(4, "little") + header + data[10 + size :])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none(value):
    """A state with a number that is not finite is refused."""
    state = learned()
    state.loadings[0][0, 0] = value

    with pytest.raises(StateError, match="not finite"):
        State.from_bytes(state.to_bytes())


def test_loadings_outside_of_their_set():
    """A state whose loadings the problem forbids is of another problem."""
    state = learned()
    state.loadings[0][0, 0] = -1.0

    with pytest.raises(StateError, match="outside of their set"):
        Learner(Problem(shape=(3, 2), rank=2), State.from_bytes(state.to_bytes()))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "do not begin with OCPDL"),
        (b"PK\x03\x04 something else", "do not begin with OCPDL"),
        (b"OCPDL\x02\x00\x00\x00\x00", "format version 2"),
        (b"OCPDL\x01\x02\x00\x00\x00[]", "not a JSON object"),
        (b"OCPDL\x01\x40\x0d\x03\x00" + b"[" * 200000, "cannot be read|not JSON"),
        ("text", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_other_bytes(data, message):
    """What is not a state is told so in words."""
    with pytest.raises(StateError, match=message):
        State.from_bytes(data)


def test_a_truncated_state_says_how_long_it_should_be():
    """The error names both lengths."""
    data = learned().to_bytes()

    with pytest.raises(StateError, match=f"should have {len(data)} bytes and has {len(data) - 1}"):
        State.from_bytes(data[:-1])


def test_the_fingerprint_names_its_conditions():
    """It is short and stable, and says what it was made from."""
    assert fingerprint() == fingerprint()
    assert len(fingerprint()) == 16
    assert {"cpu", "numba", "numpy", "mathematics", "libc"} <= conditions().keys()
