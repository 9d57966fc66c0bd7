"""Messages: exact both ways, and nothing a producer can send does more than be refused."""

import dataclasses
import pickle
import re
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stream_ocpdl import Problem, Sparse
from stream_ocpdl.errors import DataError, DecodeError
from stream_ocpdl.ocpdl.batch import gather
from stream_ocpdl.stream.formats import Format
from stream_ocpdl.stream.intake import KEY, Intake
from stream_ocpdl.stream.messages import (
    DTYPES,
    KINDS,
    OWN,
    Chunk,
    Code,
    Codes,
    DeadLetter,
    Draft,
    Draw,
    Position,
    Record,
    Tensor,
    Version,
    frame,
    raw,
    split,
    unframe,
)
from tests import fuzz
from tests.samples import SAMPLES, kind

GOLDEN = Path(__file__).parent / "golden" / "1"
PROBLEM = Problem(shape=(3, 2), rank=2)
GOOD = Tensor(np.arange(6.0).reshape(3, 2)).to_bytes()


# ── both ways ──────────────────────────────────────────────────────────────────────────────────────────────────


def dense(dtype):
    shapes = arrays.array_shapes(min_dims=1, max_dims=16, max_side=4)
    return arrays.arrays(dtype, shapes.filter(lambda shape: np.prod(shape) < 10_000))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_dense_tensors_come_back(dtype, data):
    """Every dtype, shape and layout is read back exactly, in the memory of the message, aligned to 16 bytes."""
    array = data.draw(dense(dtype))
    layout = data.draw(st.sampled_from([np.asarray, np.asfortranarray, lambda a: a[..., ::-1], lambda a: a.T]))
    array, crc = layout(array), data.draw(st.booleans())
    value = Tensor(array).to_bytes(crc=crc)
    back = Tensor.from_bytes(value).array

    assert back.dtype == dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert np.shares_memory(back, np.frombuffer(value, np.uint8))
    assert (len(value) - array.nbytes) % 16 == 0


@pytest.mark.parametrize("size", [10, 1_000, 131_072, 12_500_000], ids=["80 B", "8 KB", "1 MB", "100 MB"])
def test_nothing_of_the_payload_is_copied(size):
    """Whatever its size, a dense tensor is the message's memory."""
    value = Tensor(np.arange(float(size))).to_bytes()
    back = Tensor.from_bytes(value).array

    assert np.shares_memory(back, np.frombuffer(value, np.uint8))
    assert not back.flags.owndata
    assert back[-1] == size - 1


def test_big_endian_arrays_are_turned():
    """What is written is little-endian, whatever it was."""
    assert Tensor.from_bytes(Tensor(np.arange(3, dtype=">i4")).to_bytes()).array.tolist() == [0, 1, 2]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sparse_tensors_come_back(data):
    """Entries and their places, exactly; no entries at all is a tensor too."""
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    places = sorted(data.draw(st.sets(st.integers(0, int(np.prod(shape)) - 1), max_size=20)))
    values = np.arange(len(places)).astype(data.draw(st.sampled_from(DTYPES)))
    back = Tensor.from_bytes(Tensor(Sparse(shape, np.array(places, np.int64), values)).to_bytes()).array

    assert back.shape == shape
    assert back.indices.tolist() == places
    assert back.values.dtype == values.dtype
    assert back.values.tobytes() == values.tobytes()


def same(a, b):
    """Equal field by field, arrays bit for bit."""
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bytes(a) == bytes(b) if isinstance(a, (np.ndarray, memoryview, bytes)) else a == b


@pytest.mark.parametrize("name", SAMPLES)
def test_every_kind_comes_back(name):
    """What is read and written again has the same bytes, and reads the same."""
    once = KINDS[kind(name)].from_bytes(SAMPLES[name])
    bare = frame(
        {k: v for k, v in unframe(SAMPLES[name], OWN)[0].items() if k != "crc32"}, unframe(SAMPLES[name], OWN)[1]
    )

    assert once.to_bytes() == bare
    assert same(KINDS[kind(name)].from_bytes(once.to_bytes()), once)


JSON = (str, int, float, bool, type(None), list, dict)


def test_headers_are_json():
    """Whatever we write, its header has text, numbers, booleans, nulls, lists and maps only."""

    def plain(value):
        inside = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
        return isinstance(value, JSON) and all(map(plain, inside))

    assert all(plain(unframe(value, OWN)[0]) for value in SAMPLES.values())


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([0, 127, 128, 255, 256, 2**16, 2**32, 2**63 - 1]), st.booleans())
def test_a_draft_writes_what_a_draw_does(data, number, tuning):
    """To the byte, for numbers of every length; a number that could not be read is not written."""
    array = data.draw(dense(data.draw(st.sampled_from(DTYPES))))
    axes = data.draw(st.sampled_from([None, tuple(f"axis {k}" for k in range(array.ndim))]))
    run, chain, sampler = data.draw(st.text(max_size=40)), data.draw(st.integers(0, 2**40)), data.draw(st.text("ab"))
    draft = Draft(Draw(Tensor(array, axes), run, chain, 3, tuning, sampler or None))
    draw = Draw(Tensor(array, axes), run, chain, number, tuning, sampler or None)

    assert draft.written(number, raw(array)) == draw.to_bytes()
    assert draft.key == draw.key
    for wrong in (-1, 2**63, 1.0, True):
        with pytest.raises(DataError, match="cannot be written: draw is"):
            draft.written(wrong, raw(array))


@given(st.binary(min_size=1, max_size=3000), st.integers(1, 700))
def test_pieces_make_the_whole(value, most):
    """Cut and joined, a message is what it was."""
    pieces = [Chunk.from_bytes(chunk.to_bytes()) if most >= 100 else chunk for chunk in split(value, "id", most)]

    assert b"".join(bytes(chunk.piece) for chunk in pieces) == value
    assert [chunk.index for chunk in pieces] == list(range(pieces[0].count))
    assert {chunk.size for chunk in pieces} == {len(value)}


# ── for ever ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_bytes(name):
    """What a release has written, every later one reads and writes the same."""
    golden = (GOLDEN / f"{name}.bin").read_bytes()

    assert SAMPLES[name] == golden
    assert KINDS[kind(name)].from_bytes(golden)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_next_version_is_refused(name):
    """By number, whatever else is in it."""
    with pytest.raises(DecodeError, match="format version 2; this release reads version 1"):
        KINDS[kind(name)].from_bytes(b"OCT\x02" + SAMPLES[name][4:])


@pytest.mark.parametrize("name", SAMPLES)
def test_fields_of_later_releases_are_ignored(name):
    """A field that is not known changes nothing."""
    header, payload = unframe(SAMPLES[name], OWN)
    later = frame(header | {"of a later release": [1, {"a": None}]}, payload)

    assert same(KINDS[kind(name)].from_bytes(later), KINDS[kind(name)].from_bytes(SAMPLES[name]))


# ── what is refused ────────────────────────────────────────────────────────────────────────────────────────────


def tensor(payload=bytes(48), **changes):
    """A framed tensor with other fields in its header."""
    header = {"kind": "tensor", "dtype": "<f8", "shape": [3, 2]} | changes
    return frame({k: v for k, v in header.items() if v is not ...}, payload)


def sparse(*indices):
    return np.array(indices, "<i8").tobytes() + np.ones(len(indices)).tobytes()


class Evil:
    """Loading its pickle fails the test."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def array(value):
    return Tensor(np.asarray(value)).to_bytes()


REFUSED = {
    "an empty value": (b"", "DecodeError", "value has 0 bytes"),
    "a tombstone": (None, "DecodeError", "value is missing"),
    "a prefix that is cut": (b"OCT", "DecodeError", "fewer than the 8"),
    "a .npy file": (b"\x93NUMPY\x01\x00" + bytes(50), "DecodeError", "does not begin with"),
    "a pickle": (pickle.dumps(Evil()), "DecodeError", "does not begin with"),
    "a pickle as payload": (
        frame({"kind": "tensor", "dtype": "|O", "shape": [1]}, pickle.dumps(Evil())),
        "DecodeError",
        "dtype is",
    ),
    "the next version": (b"OCT\x02" + GOOD[4:], "DecodeError", "format version 2"),
    "a header beyond the end": (GOOD[:4] + b"\x00\x30\x00\x00" + GOOD[8:], "DecodeError", "cut short"),
    "a header of 2 GB": (GOOD[:4] + b"\xff\xff\xff\x7f" + GOOD[8:], "DecodeError", "at most 16384"),
    "a header that is no map": (frame([1, 2]), "DecodeError", "is a list, not a map"),
    "a header that is no msgpack": (GOOD[:8] + b"\xc1" + GOOD[9:], "DecodeError", "header is not msgpack"),
    "a header with more after it": (
        frame({}, b"")[:4] + b"\x02\0\0\0\x80\x80" + bytes(6),
        "DecodeError",
        "not msgpack",
    ),
    "a list as a key": (frame({}, b"")[:4] + b"\x04\0\0\0\x81\x90\x01\x00" + bytes(4), "DecodeError", "not msgpack"),
    "an unknown kind": (tensor(kind="matrix"), "DecodeError", "kind is 'matrix'"),
    "a kind that is not for the input": (SAMPLES["code"], "DecodeError", "kind is 'code', not 'tensor'"),
    "no kind": (tensor(kind=...), "DecodeError", "kind is None"),
    "objects": (tensor(dtype="|O"), "DecodeError", "dtype is '|O'"),
    "big-endian": (tensor(dtype=">f8"), "DecodeError", "dtype is '>f8'"),
    "complex": (tensor(dtype="<c16"), "DecodeError", "dtype is"),
    "a dtype that is no text": (tensor(dtype=[1]), "DecodeError", "dtype is"),
    "no dtype": (tensor(dtype=...), "DecodeError", "dtype is missing"),
    "2⁶³ elements": (tensor(shape=[2**62, 2]), "DecodeError", "shape .* does not fit a payload of 48 bytes"),
    "2⁶⁴ elements in a size": (tensor(shape=[2**64 - 1]), "DecodeError", "shape is"),
    "a size of zero": (tensor(shape=[0, 2**62]), "DecodeError", "positive sizes"),
    "17 modes": (tensor(shape=[1] * 17), "DecodeError", "1 to 16 positive sizes"),
    "no modes": (tensor(shape=[]), "DecodeError", "positive sizes"),
    "a shape that is true": (tensor(shape=[True, 6]), "DecodeError", "positive sizes"),
    "no shape": (tensor(shape=...), "DecodeError", "shape is missing"),
    "a payload that is cut": (GOOD[:-1], "DecodeError", "does not fit a payload of 47 bytes"),
    "a payload that is too long": (GOOD + b"x", "DecodeError", "does not fit a payload of 49 bytes"),
    "another checksum": (tensor(crc32=1), "DecodeError", "crc32 is 1, and that of the payload"),
    "a checksum that is no number": (tensor(crc32="a"), "DecodeError", "crc32 is 'a'"),
    "an axis too few": (tensor(axes=["row"]), "DecodeError", "axes is .* 1 names for 2 modes"),
    "the same axis twice": (tensor(axes=["row", "row"]), "DecodeError", "axes is"),
    "an axis without a name": (tensor(axes=["", "row"]), "DecodeError", "axes is"),
    "an unknown layout": (tensor(layout="csr"), "DecodeError", "layout is 'csr'"),
    "no number of entries": (tensor(layout="coo"), "DecodeError", "nnz is missing"),
    "2⁶² entries": (tensor(layout="coo", nnz=2**62), "DecodeError", "nnz .* does not fit"),
    "entries that go down": (tensor(sparse(3, 1), layout="coo", nnz=2), "DecodeError", "indices are not strictly"),
    "an entry twice": (tensor(sparse(3, 3), layout="coo", nnz=2), "DecodeError", "indices are not strictly"),
    "an entry outside": (tensor(sparse(0, 6), layout="coo", nnz=2), "DecodeError", "indices are not .* below 6"),
    "an entry below": (tensor(sparse(-1, 2), layout="coo", nnz=2), "DecodeError", "indices are not"),
    "a draw without a chain": (tensor(kind="draw", run="a", draw=1), "DecodeError", "chain is missing"),
    "a draw of a chain in words": (tensor(kind="draw", run="a", draw=1, chain="b"), "DecodeError", "chain is 'b'"),
    "another shape": (array(np.ones((2, 3))), "DataError", r"shape is \[2, 3\], that of the model \[3, 2\]"),
    "a foreign piece": (Chunk("x", 1, 2, 300, b"abc").to_bytes(), "DecodeError", "chunk 1 of 'x' belongs to no open"),
    "a piece past the last": (SAMPLES["chunk"].replace(b"index\x01", b"index\x03"), "DecodeError", "index is 3"),
    "too many pieces": (Chunk("x", 0, 999, 300, b"abc").to_bytes(), "DecodeError", "count is 999, too many"),
    "pieces of something huge": (Chunk("x", 0, 2, 2**40, b"abc").to_bytes(), "DecodeError", "size is 1099511627776"),
    "more than was promised": (Chunk("x", 0, 2, 200, bytes(300)).to_bytes(), "DecodeError", "size is 200 bytes, but"),
    "NaN": (array([[0, 1], [2, np.nan], [4, 5]]), "DataError", r"X\[1, 1\] = nan is not finite"),
    "infinity": (array([[0, 1], [2, 3], [4, -np.inf]]), "DataError", r"X\[2, 1\] = -inf is not finite"),
    "a negative number": (array([[0, 1], [-2, 3], [4, 5]]), "DataError", r"X\[1, 0\] = -2.0 is negative"),
    "numbers that are too large": (array(np.full((3, 2), 1e200)), "DataError", "norm too far from one"),
}


def refusals(value, key=None):
    """The refusals of a record on its way into a minibatch of the problem."""
    item = Intake(Format(), PROBLEM.shape, [0]).read(Record(Position(0, 0), key, value), 0.0)
    if item.tensor is None:
        return [(refusal.error, refusal.reason) for refusal in item.refused]
    _, refused = gather(PROBLEM, [item.tensor.array])
    return [("DataError", reason) for reason in refused.values()]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_tensor_is_refused(name):
    """Each has a class and a reason in one line that names the field."""
    value, error, reason = REFUSED[name]
    ((found, said),) = refusals(value)

    assert found == error
    assert re.search(reason, said)
    assert "\n" not in said
    assert len(said) <= 200


def test_what_is_a_tensor_is_not():
    """A tensor, a draw, one with a checksum, one with names, a sparse one: all good."""
    for value in (GOOD, tensor(), tensor(sparse(0, 5), layout="coo", nnz=2), tensor(b"", layout="coo", nnz=0)):
        assert refusals(value) == []
    assert refusals(Draw(Tensor(np.ones((3, 2), np.float16)), "run", 0, 0).to_bytes(crc=True), b"k" * KEY) == []
    ((_, said),) = refusals(GOOD, b"k" * (KEY + 1))
    assert said == "key has 16385 bytes; at most 16384 go with a code"


def test_what_could_not_be_read_is_not_written():
    """Modes, names and dtypes that a reader would refuse are an error of the writer."""
    for wrong in (np.ones((1,) * 17), np.ones((0, 3)), np.ones(3, complex), np.array(["a"]), np.array(1.0)):
        with pytest.raises(DataError):
            Tensor(wrong).to_bytes()
    for axes in (("a",), ("a", "a"), ("a", "")):
        with pytest.raises(DataError, match="axes"):
            Tensor(np.ones((2, 2)), axes).to_bytes()


def test_a_dead_letter_has_everything():
    """Original bytes, key, headers, time, whatever they are; also of a record of the largest size."""
    for value in (b"bytes", b"", None, bytes(1_048_588)):
        headers = (("a", b"\xff"), ("a", None), ("é", b""))
        letter = DeadLetter("topic", Record(Position(0, 1), b"\x00key" * 50_000, value, headers, 17), "E", "why")
        assert DeadLetter.from_bytes(letter.to_bytes()) == letter


def test_versions():
    """The name of a dictionary is read as it was written, whatever dots and dashes the model has."""
    version = Version("a.b-c_9", 41, 2, 3)

    assert Version.parse(str(version)) == version == ("a.b-c_9", 41, 2, 3)
    for wrong in (
        "",
        "a",
        "a/0/0",
        "a/0/0/-1",
        "a/0/0/01",
        "a/0/0/1 ",
        "/0/0/1",
        "a/b/0/0/1",
        "a/0/0/99999999999999999999",
    ):
        with pytest.raises(DecodeError):
            Version.parse(wrong)


CONTRADICTIONS = [
    ("snapshot", {"step": 7}, "step"),
    ("snapshot", {"atoms": [0, 0]}, "atoms"),
    ("snapshot", {"atoms": [0]}, "atoms"),
    ("snapshot", {"axes": ["a"]}, "axes"),
    ("snapshot", {"rank": 3}, "rank"),
    ("snapshot", {"layout": {"shape": [3, 2], "groups": [[0], [0]]}}, "layout: groups"),
    ("snapshot", {"layout": {"shape": [3, 3], "groups": [[0], [1]]}}, "layout: shape"),
    ("snapshot", {"layout": {"shape": [3, 2], "groups": [[0], [True]]}}, "layout: groups"),
    (
        "snapshot",
        {"layout": {"shape": [3, 2], "groups": [[0], [1]], "axis": 0, "factors": [1.0]}},
        "layout: scaling.by",
    ),
    ("snapshot", {"layout": {"shape": [3, 2], "groups": [[0], [1]], "axis": 2, "factors": [1.0]}}, "layout: scaling.a"),
    ("snapshot", {"layout": {"shape": [3, 2], "groups": [[0], [1]], "factors": [1.0, 1.0, 1.0]}}, "layout: axis"),
    ("snapshot", {"layout": {"shape": [3, 2], "groups": [[0], [1]], "axis": 1, "factors": [1, -1]}}, "layout: scaling"),
    ("snapshot", {"layout": {"shape": [3, 1, 2], "groups": [[0], [1, 2]]}}, "axes .* 2 names for 3 modes"),
    ("snapshot", {"positions": [[0, 1], [0, 2]]}, "positions .* twice"),
    ("journal", {"used": [[0, 5, 4]]}, "used"),
    ("journal", {"ahead": [[0, 5, 4]]}, "ahead"),
    ("journal", {"open": [[0, 5, 4]]}, "open"),
    ("journal", {"resume": [[0, 1], [0, 2]]}, "resume .* twice"),
    ("journal", {"reached": [[0, 1], [0, 2]]}, "reached .* twice"),
    ("chunk", {"index": 3}, "index"),
    ("chunk", {"count": 99}, "count"),
    ("tensor", {"axes": ["a"]}, "axes"),
    ("tensor-sparse", {"nnz": 3}, "nnz"),
]


@pytest.mark.parametrize(("name", "change", "reason"), CONTRADICTIONS)
def test_messages_that_contradict_themselves(name, change, reason):
    """What no schema of single fields can say is checked all the same."""
    header, payload = unframe(SAMPLES[name], OWN)
    header.pop("crc32", None)
    with pytest.raises(DecodeError, match=reason):
        KINDS[kind(name)].from_bytes(frame(header | change, payload))


def test_a_journal_has_no_payload():
    """Whatever stands behind its header is not covered by anything."""
    with pytest.raises(DecodeError, match="payload has 1 bytes"):
        KINDS["journal"].from_bytes(SAMPLES["journal"] + bytes(-len(SAMPLES["journal"]) % 16) + b"x")


def test_codes_are_vectors():
    """A code has one mode, and R numbers."""
    header, payload = unframe(SAMPLES["code"])
    for change in ({"shape": [1, 2]}, {"shape": [3]}, {"dtype": "<f4"}):
        with pytest.raises(DecodeError, match=next(iter(change))):
            Code.from_bytes(frame(header | change, payload))


WIDTHS = (0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1)
"""Integers at both ends of every width that msgpack has for them."""
FLOATS = st.floats(width=64, allow_nan=True, allow_infinity=True)


def one_by_one(codes, positions):
    """The messages of a minibatch, each of its own map."""
    for j, position in enumerate(positions):
        header = {"kind": "code", "dictionary": str(codes.dictionary), "step": codes.step, "input": list(position)}
        header |= {"loss": codes.losses[j], "dtype": "<f8", "shape": [codes.H.shape[1]]}
        header |= {} if codes.residuals is None else {"residual": codes.residuals[j]}
        header |= {} if codes.quantiles is None else {"quantiles": list(codes.quantiles[j])}
        header |= {} if codes.change is None else {"change": codes.change}
        yield frame(header, codes.H[j].astype("<f8").tobytes())


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_codes_are_written_together_as_one_by_one(data):
    """Byte by byte, with positions of one width or of many, whatever the numbers are, and whatever else is known."""
    number = st.one_of(st.sampled_from(WIDTHS), st.integers(0, 2**63 - 1))
    alike = st.builds(Position, st.integers(0, 127), st.integers(65_536, 2**32 - 1))
    positions = data.draw(st.lists(st.one_of(alike, st.builds(Position, number, number)), max_size=8))
    b, rank = len(positions), data.draw(st.sampled_from((1, 3, 10, 200)))
    column, pair = st.lists(FLOATS, min_size=b, max_size=b), st.lists(st.tuples(FLOATS, FLOATS), min_size=b, max_size=b)
    codes = Codes(
        Version("weather", data.draw(number), data.draw(st.integers(0, 300))),
        data.draw(number),
        np.asfortranarray(np.random.default_rng(b).standard_normal((b, rank))),
        data.draw(column),
        data.draw(st.none() | column),
        data.draw(st.none() | pair),
        data.draw(st.sampled_from((None, "structure", "scale"))),
    )

    assert codes.to_bytes(positions) == list(one_by_one(codes, positions))


@pytest.mark.parametrize("number", WIDTHS)
def test_codes_of_every_width(number):
    """A minibatch whose partitions, or offsets, or both, are at the end of a width; and one across it."""
    codes = Codes(Version("weather", 41), 42, np.eye(4), [0.5, np.nan, np.inf, -0.0], [1.0] * 4, [(0.0, 1.0)] * 4)
    for places in ([(number, number)] * 4, [(0, number)] * 4, [(number, 7)] * 4, [(j, number + j) for j in range(4)]):
        positions = [Position(*place) for place in places]

        assert codes.to_bytes(positions) == list(one_by_one(codes, positions))


# ── what is damaged ────────────────────────────────────────────────────────────────────────────────────────────


def test_fuzz():
    """Damaged messages of every kind: each is read or refused, soon, and in little memory. `tests.fuzz` runs more."""
    seen, slowest, _ = fuzz.run(40_000)

    assert all(seen[name, outcome] for name in SAMPLES for outcome in (True, False))
    assert slowest < fuzz.SLOW


def test_nested_promises_make_no_room():
    """Lists in lists that each promise more than there is: refused before anything of that size is made."""
    for bomb in fuzz.BOMBS:
        for reader in KINDS.values():
            value = b"OCT\x01" + len(bomb).to_bytes(4, "little") + bomb + bytes(16)
            assert fuzz.allocated(reader.from_bytes, value) < 1_000_000


def test_headers_are_padded():
    """A payload begins at a multiple of 16 whatever the header's length."""
    for size in range(40):
        value = frame({"x": "y" * size}, b"payload")

        assert (len(value) - 7) % 16 == 0
        assert unframe(value) == ({"x": "y" * size}, b"payload")
        assert msgpack.unpackb(value[8 : 8 + int.from_bytes(value[4:8], "little")]) == {"x": "y" * size}
