"""Formats of the input: what producers write is read exactly, and all else is refused at a bounded cost."""

import gc
import io
import json
import random
import re
import struct
import time
import tracemalloc
from math import prod

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stream_ocpdl.errors import ConfigError, DecodeError
from stream_ocpdl.stream.formats import ELEMENT, SLACK, Format
from stream_ocpdl.stream.messages import DTYPES, MODES, Tensor

SHAPE = (3, 2)
X = np.arange(6.0).reshape(SHAPE)

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)
every = arrays.arrays(st.sampled_from(DTYPES), shapes)
floats = arrays.arrays("<f8", shapes)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64)


def same(a, b):
    """Whether two arrays have the same dtype, shape and numbers."""
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def lies_in(array, value):
    """Whether an array is a view of the bytes it was read from."""
    return np.shares_memory(array, np.frombuffer(value, np.uint8))


def saved(array, version=(1, 0)):
    """The bytes of a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=False)
    return file.getvalue()


def npy(header):
    """A .npy file with any header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + X.tobytes()


def nulls(array):
    """The nested list, with None for what is not a number."""
    return np.where(np.isnan(array), None, array.astype(object)).tolist()


@given(every)
def test_raw_comes_back(array):
    """Bytes of every dtype are the array, in their own memory."""
    value = array.tobytes()
    back = Format("raw", array.dtype.str).read(value, array.shape).array

    assert same(back, array)
    assert lies_in(back, value)


@given(every, st.sampled_from("CF"), st.sampled_from([(1, 0), (2, 0), (3, 0)]))
def test_npy_comes_back(array, order, version):
    """Files of every version, dtype and order are the array, in their own memory."""
    value = saved(np.asarray(array, order=order), version)
    back = Format("npy").read(value, array.shape).array

    assert same(back, array)
    assert lies_in(back, value)


@given(every, st.booleans())
def test_packed_bytes_come_back(array, told):
    """Bytes in msgpack are the array, in the memory of the message; without a shape they have the problem's."""
    fields = {"dtype": array.dtype.str, "data": array.tobytes()}
    value = msgpack.packb(fields | {"shape": array.shape} if told else fields)
    back = Format("msgpack").read(value, (1,) if told else array.shape).array

    assert same(back, array)
    assert lies_in(back, value)


@given(floats, st.booleans())
def test_packed_lists_come_back(array, bare):
    """Nested lists in msgpack are float64; nil is a missing cell."""
    value = msgpack.packb(nulls(array) if bare else {"data": nulls(array)})

    assert same(Format("msgpack").read(value, array.shape).array, array)


@given(arrays.arrays(st.sampled_from([d for d in DTYPES if d[1] in "iu"]), shapes))
def test_integers_become_floats(array):
    """Lists of integers are float64, the nearest there is."""
    expected = array.astype(np.float64)

    assert same(Format("msgpack").read(msgpack.packb(array.tolist()), array.shape).array, expected)
    assert same(Format("json").read(json.dumps(array.tolist()).encode(), array.shape).array, expected)


@given(floats, st.sampled_from(["bare", "nested", "flat", "both"]), st.booleans())
def test_json_comes_back(array, layout, null):
    """Nested and flat lists in JSON are float64; null and NaN are missing cells, Infinity is infinite."""
    data = nulls(array) if null else array.tolist()
    flat = nulls(array.ravel()) if null else array.ravel().tolist()
    shape = list(array.shape)
    message = {
        "bare": data,
        "nested": {"data": data},
        "flat": {"data": flat, "shape": shape},
        "both": {"shape": shape, "data": data},
    }[layout]

    assert same(Format("json").read(json.dumps(message).encode(), array.shape).array, array)


@given(st.lists(names, min_size=2, max_size=2, unique=True))
def test_axes_come_back(axes):
    """Names of the modes are read from msgpack and JSON, and are None where they are not given."""
    message = {"data": X.tolist(), "axes": axes}

    assert Format("msgpack").read(msgpack.packb(message), SHAPE).axes == tuple(axes)
    assert Format("msgpack").read(msgpack.packb(message | {"data": X.tobytes()}), SHAPE).axes == tuple(axes)
    assert Format("json").read(json.dumps(message).encode(), SHAPE).axes == tuple(axes)
    assert Format("json").read(json.dumps(message | {"axes": None}).encode(), SHAPE).axes is None
    assert Format("raw").read(X.tobytes(), SHAPE).axes is None


def test_native_is_the_default():
    """Without a word about it, the input is native."""
    assert same(Format().read(Tensor(X).to_bytes(), SHAPE).array, X)
    with pytest.raises(DecodeError, match="value is"):
        Format().read(None, SHAPE)


READ = {
    "any sixteen modes": ("json", b"[" * 16 + b"7" + b"]" * 16, np.full((1,) * 16, 7.0)),
    "another shape than the problem's": ("json", b"[[[1]], [[2]], [[3]], [[4]]]", np.arange(1.0, 5).reshape(4, 1, 1)),
    "integers of any length": ("json", b"[1" + b"0" * 5000 + b", -1" + b"0" * 400 + b"]", np.array([np.inf, -np.inf])),
    "numbers of JavaScript": (
        "json",
        b"[NaN, Infinity, -Infinity, 1e999]",
        np.array([np.nan, np.inf, -np.inf, np.inf]),
    ),
    "whole sizes": ("json", b'{"data": [0, 1, 2, 3, 4, 5], "shape": [3.0, 2]}', X),
    "no sizes": ("json", b'{"data": [5], "shape": null}', np.array([5.0])),
    "keys that nobody knows": ("json", b'{"unit": {"mm": [[[]]]}, "dtype": 7, "data": [5]}', np.array([5.0])),
    "packed keys that nobody knows": (
        "msgpack",
        msgpack.packb({"when": msgpack.Timestamp(5), "raw": b"\xff" * 999, "map": {"a": {}}, "data": [5]}),
        np.array([5.0]),
    ),
    "another order of keys": ("npy", npy("{'shape':(3,2),'fortran_order':False,\"descr\":'<f8'}"), X),
    "another name of the dtype": ("npy", npy("{'descr': 'float64', 'fortran_order': False, 'shape': (3, 2)}"), X),
    "a header of Python 2": ("npy", npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3L, 2L), }\n"), X),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name):
    """Each is within the format."""
    form, value, expected = READ[name]

    assert same(Format(form).read(value, SHAPE).array, expected)


def packed(**changes):
    """A msgpack map with a bin, and other fields."""
    return msgpack.packb({"data": X.tobytes(), "dtype": "<f8", "shape": [3, 2]} | changes)


def text(**changes):
    """A JSON object with a flat list, and other fields."""
    return json.dumps({"data": X.ravel().tolist(), "shape": [3, 2]} | changes).encode()


def header(descr="'<f8'", order="False", shape="(3, 2)"):
    """A .npy file with other fields."""
    return npy(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n")


REFUSED = {
    "raw, short": ("raw", bytes(47), r"shape \(3, 2\) of <f8 does not fit data of 47 bytes"),
    "raw, long": ("raw", bytes(49), "does not fit"),
    "npy, native": ("npy", Tensor(X).to_bytes(), "no npy header"),
    "npy, version 4": ("npy", saved(X).replace(b"\x01", b"\x04", 1), "no npy header of version"),
    "npy, header that is not there": ("npy", saved(X)[:40], "no npy header"),
    "npy, header of 4 GiB": ("npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(99), "no npy header"),
    "npy, header too long": ("npy", npy(" " * 2000 + saved(X)[10:128].decode()), "in its first 1024 bytes"),
    "npy, code": ("npy", npy("__import__('os').abort()"), "no npy header"),
    "npy, deep header": ("npy", npy("-" * 900 + "1"), "no npy header"),
    "npy, open header": ("npy", npy("{'a':" * 150), "no npy header"),
    "npy, no shape": ("npy", npy("{'descr': '<f8', 'fortran_order': False}"), "no npy header"),
    "npy, objects": ("npy", header("'|O'"), "dtype is '|O'"),
    "npy, pickle": ("npy", header("'|O'") + b"\x80\x04cos\nabort\n(tR.", "dtype is '|O'"),
    "npy, big-endian": ("npy", saved(X.astype(">f8")), "dtype is '>f8'"),
    "npy, complex": ("npy", saved(X.astype(complex)), "dtype is '<c16'"),
    "npy, times": ("npy", header("'<M8[ns]'"), "dtype is"),
    "npy, fields": ("npy", header("[('a', '<f8')]"), "dtype is '|V8'"),
    "npy, arrays of arrays": ("npy", header("('<f8', (2,))", shape="(3,)"), "dtype is '|V16'"),
    "npy, no modes": ("npy", header(shape="()"), "shape is"),
    "npy, no elements": ("npy", saved(np.ones((0, 2))), "shape is"),
    "npy, negative": ("npy", header(shape="(-3, -2)"), "shape is"),
    "npy, booleans as sizes": ("npy", header(shape="(True, 6)"), "shape is"),
    "npy, many elements": ("npy", header(shape="(4611686018427387904, 4)"), "does not fit"),
    "npy, digits": ("npy", header(shape=f"({'9' * 500},)"), "shape is"),
    "npy, truncated": ("npy", saved(X)[:-1], "does not fit data of 47 bytes"),
    "npy, two": ("npy", saved(X) * 2, "does not fit"),
    "msgpack, a number": ("msgpack", b"\x05", "no map or list"),
    "msgpack, a bin": ("msgpack", msgpack.packb(X.tobytes()), "no map or list"),
    "msgpack, no format": ("msgpack", b"\xc1", "no map or list"),
    "msgpack, broken inside": ("msgpack", b"\x91\xc1", "no map or list of msgpack: FormatError"),
    "msgpack, truncated": ("msgpack", packed()[:-1], "No more data"),
    "msgpack, two": ("msgpack", packed() * 2, "75 bytes after its end"),
    "msgpack, 2^32 keys": ("msgpack", b"\xdf\xff\xff\xff\xff", "4294967295 keys"),
    "msgpack, keys that are not there": ("msgpack", b"\x8f", "No more data"),
    "msgpack, 2^32 values": ("msgpack", b"\xdd\xff\xff\xff\xff\x01", "No more data"),
    "msgpack, deep": ("msgpack", b"\x91" * 3000 + b"\x01", "StackError"),
    "msgpack, rather deep": ("msgpack", b"\x91" * 17 + b"\x01", "data has more than 16 modes"),
    "msgpack, number as a key": ("msgpack", msgpack.packb({1: 2}), "a key of type int, not text"),
    "msgpack, list as a key": ("msgpack", b"\x81\x90\x01", "a key of type list, not text"),
    "msgpack, bin as a key": ("msgpack", msgpack.packb({b"data": [1]}), "a key of type bytes, not text"),
    "msgpack, long key": ("msgpack", msgpack.packb({"k" * 257: 1}), "exceeds max_str_len"),
    "msgpack, twice": ("msgpack", b"\x82" + packed()[1:56] * 2, "'data' is in the message twice"),
    "msgpack, no data": ("msgpack", b"\x80", "data is missing"),
    "msgpack, nil": ("msgpack", packed(data=None), "data is a NoneType, not a list"),
    "msgpack, text": ("msgpack", packed(data="text"), "data is no nested list of numbers"),
    "msgpack, map": ("msgpack", packed(data={}), "data is no nested list of numbers: a map"),
    "msgpack, text among numbers": ("msgpack", packed(data=[1, "2"]), "data is no nested list of numbers"),
    "msgpack, empty text among numbers": ("msgpack", packed(data=[1, ""]), "data has int, str in mode 1"),
    "msgpack, maps among numbers": ("msgpack", packed(data=[{}]), "data is no nested list of numbers: a map"),
    "msgpack, times": ("msgpack", packed(data=[msgpack.Timestamp(1)]), "data is no nested list of numbers"),
    "msgpack, extensions": ("msgpack", packed(data=[msgpack.ExtType(7, b"")]), "data is no .* an extension"),
    "msgpack, booleans": ("msgpack", packed(data=[True, 1]), "data has bool, int in mode 1"),
    "msgpack, ragged": ("msgpack", packed(data=[[1], [2, 3]]), "data is ragged or empty: mode 1 has lists of 1, 2"),
    "msgpack, empty": ("msgpack", b"\x90", "data is ragged or empty: mode 0"),
    "msgpack, too many": ("msgpack", msgpack.packb([0] * 9000), "data is no .*: 9000 exceeds"),
    "msgpack, too many lists": ("msgpack", msgpack.packb([[0]] * 5000), "data is no .*: more than"),
    "msgpack, objects": ("msgpack", packed(dtype="|O"), "dtype is '|O'"),
    "msgpack, dtype that is a bin": ("msgpack", packed(dtype=b"<f8"), "dtype is not text"),
    "msgpack, dtype that is a list": ("msgpack", packed(dtype=["<f8"]), "dtype is \\['<f8'\\], not one of"),
    "msgpack, dtype of half characters": ("msgpack", packed(dtype="X").replace(b"X", b"\xff"), "dtype is not text"),
    "msgpack, another dtype": ("msgpack", packed(dtype="<f4"), "does not fit data of 48 bytes"),
    "msgpack, another shape": ("msgpack", packed(shape=[3, 3]), "does not fit"),
    "msgpack, shape of a list": ("msgpack", packed(data=[1, 2]), r"shape is \(3, 2\), but data has shape \(2,\)"),
    "msgpack, 2^64 elements": ("msgpack", packed(shape=[2**62, 4]), "does not fit"),
    "msgpack, no elements": ("msgpack", packed(shape=[0, 2**62]), "shape is"),
    "msgpack, no modes": ("msgpack", packed(shape=[]), "shape is"),
    "msgpack, 17 modes": ("msgpack", packed(shape=[1] * 17), "shape is"),
    "msgpack, infinite size": ("msgpack", packed(shape=[float("inf")]), "shape is"),
    "msgpack, shape that is a number": ("msgpack", packed(shape=6), "shape is 6"),
    "msgpack, long shape": ("msgpack", packed(shape=[1] * 9000), "shape has 9003 bytes"),
    "msgpack, one axis": ("msgpack", packed(axes=["a"]), "axes is"),
    "msgpack, equal axes": ("msgpack", packed(axes=["a", "a"]), "axes is"),
    "msgpack, axes that are lists": ("msgpack", packed(axes=[[], []]), "axes is"),
    "msgpack, axis without a name": ("msgpack", packed(axes=["a", ""]), "axes is"),
    "msgpack, long axis": ("msgpack", packed(axes=["a", "b" * 65]), "axes is"),
    "msgpack, axes that are text": ("msgpack", packed(axes="ab"), "axes is 'ab'"),
    "json, another format": ("json", saved(X), "not JSON in UTF-8"),
    "json, UTF-16": ("json", "[1]".encode("utf-16"), "not JSON in UTF-8"),
    "json, byte-order mark": ("json", b"\xef\xbb\xbf[1]", "not JSON in UTF-8"),
    "json, truncated": ("json", text()[:-1], "not JSON"),
    "json, two": ("json", text() * 2, "not JSON"),
    "json, code": ("json", b"[__import__('os').abort()]", "not JSON"),
    "json, deep": ("json", b"[" * 8000, "not JSON in UTF-8: maximum recursion"),
    "json, deep objects": ("json", b'{"a":' * 8000, "not JSON in UTF-8: maximum recursion"),
    "json, rather deep": ("json", b"[" * 17 + b"1" + b"]" * 17, "data has more than 16 modes"),
    "json, text": ("json", b'"text"', "data is a str, not a list"),
    "json, a number": ("json", b"5", "data is a float, not a list"),
    "json, null": ("json", b"null", "data is a NoneType, not a list"),
    "json, no data": ("json", b"{}", "data is missing"),
    "json, twice": ("json", b'{"data": [1], "data": [2]}', "'data' is in the message twice"),
    "json, map": ("json", text(data={"a": 1}), "data is a dict"),
    "json, booleans": ("json", b"[true, 1]", "data has bool, float in mode 1"),
    "json, numbers as text": ("json", b'["1.5"]', "data has str in mode 1"),
    "json, lists and numbers": ("json", b"[[1], 2]", "data has float, list in mode 1"),
    "json, ragged": ("json", b"[[[1], [2]], [[3], [4, 5]]]", "data is ragged or empty: mode 2 has lists of 1, 2"),
    "json, empty": ("json", b"[[], []]", "data is ragged or empty: mode 1"),
    "json, too many": ("json", json.dumps([0] * 9000).encode(), "more than 8212 lists and numbers"),
    "json, another shape": ("json", text(shape=[2, 2]), r"shape is \(2, 2\), but data has shape \(6,\)"),
    "json, two shapes": ("json", text(data=X.T.tolist()), r"but data has shape \(2, 3\)"),
    "json, half sizes": ("json", text(shape=[1.5, 6]), "shape is"),
    "json, sizes of any length": ("json", text(shape=[10**400]), "shape is"),
    "json, deep shape": ("json", b'{"data": [1], "shape": ' + b"[" * 900 + b"]" * 900 + b"}", "shape is"),
    "json, shape that is text": ("json", text(shape="3,2"), "shape is '3,2'"),
    "json, half a character": ("json", text(axes=["a", "\ud800"]), "axes is"),
    "json, axes of numbers": ("json", text(axes=[1, 2]), "axes is"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    """Each has a reason in one line, which names the field."""
    form, value, reason = REFUSED[name]
    with pytest.raises(DecodeError) as caught:
        Format(form).read(value, SHAPE)

    assert re.search(reason, str(caught.value))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("form", ["raw", "npy", "msgpack", "json"])
def test_no_value_and_too_long_a_value(form):
    """A value that is not there and one that is longer than any tensor are refused unread."""
    for value in (None, b""):
        with pytest.raises(DecodeError, match="value is"):
            Format(form).read(value, SHAPE)
    with pytest.raises(DecodeError, match=r"has 65729 bytes; with shape \(3, 2\) it may have 65728"):
        Format(form).read(bytes(ELEMENT * 6 + SLACK + 1), SHAPE)


@pytest.mark.parametrize("shape", [(20_000,), (20_000, 1, 1, 1), (1, 1, 1, 20_000), (20, 10, 100)])
def test_the_limits_leave_room(shape):
    """A nested list of the problem's own shape is never too much, though there be more lists than numbers."""
    array = np.arange(prod(shape), dtype=float).reshape(shape)

    assert same(Format("msgpack").read(msgpack.packb(array.tolist()), shape).array, array)
    assert same(Format("json").read(json.dumps(array.tolist()).encode(), shape).array, array)


def test_settings():
    """A format and a dtype that are not known are refused with those that are."""
    with pytest.raises(ConfigError, match=r"input\.format is 'xml', not one of native, msgpack, raw, npy, json"):
        Format("xml")
    with pytest.raises(ConfigError, match=r"input\.dtype is '>f8', not one of <f8"):
        Format("raw", ">f8")


@pytest.fixture
def frozen():
    """The heap of the test session is kept out of the collector, whose passes over it would be timed."""
    gc.freeze()
    yield
    gc.unfreeze()


def cost(form, value, shape):
    """Read twice, whatever comes of it: the processor's seconds, and the peak of new memory."""
    start = time.thread_time()
    outcome(form, value, shape)
    seconds = time.thread_time() - start
    tracemalloc.start()
    try:
        outcome(form, value, shape)
        return seconds, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def outcome(form, value, shape):
    """A sound tensor, or a reason of one line; anything else fails."""
    try:
        tensor = Format(form).read(value, shape)
    except DecodeError as error:
        reason = str(error)
        assert reason.isprintable()
        assert 0 < len(reason) < 500
        return None
    assert tensor.array.dtype.str in DTYPES
    assert 1 <= tensor.array.ndim <= MODES
    assert 0 < tensor.array.nbytes <= ELEMENT * prod(shape) + SLACK
    assert tensor.axes is None or len(set(tensor.axes)) == tensor.array.ndim
    return tensor


def allowed(value):
    """The most memory that reading may take: a byte may be a list, and a kilobyte of .npy header a syntax tree."""
    return 96 * len(value) + (1 << 21)


def many(unit, count):
    """A msgpack list."""
    return b"\xdd" + struct.pack(">I", count) + unit * count


BOMBS = {
    "promises": ("msgpack", b"\xdd\xff\xff\xff\xff" * 1000),
    "promises that could be true": ("msgpack", b"\xdd\x00\x00\x1f\xff" * 1000),
    "promises in a field": ("msgpack", b"\x82\xa4data\x91\x01\xa5shape" + b"\xdd\x00\x00\x1f\xff" * 1000),
    "promises as a key": ("msgpack", b"\x81" + b"\xdd\x00\x00\x1f\xff" * 1000),
    "promises of a map": ("msgpack", b"\x91" + b"\xdf\x00\x00\x1f\xff\xa1a" * 1000),
    "bytes that are not there": ("msgpack", b"\x81\xa4data\xc6\xff\xff\xff\xff"),
    "empty lists": ("msgpack", many(b"\x90", 4000)),
    "more empty lists": ("msgpack", many(b"\x90", 65000)),
    "empty maps": ("msgpack", many(b"\x80", 8000)),
    "integers": ("msgpack", many(b"\xe0", 8000)),
    "chains": ("msgpack", many(b"\x91" * 1000 + b"\x01", 60)),
    "keys": ("msgpack", b"\xde\x7f\xff" + b"".join(b"\xa3%03x\x01" % i for i in range(4096)) * 3),
    "packed axes": ("msgpack", b"\x82\xa4data\x91\x01\xa4axes" + many(b"\x90", 8000)),
    "JSON lists": ("json", b"[" + b"[]," * 4000 + b"[]]"),
    "JSON objects": ("json", b"[" + b'{"":1},' * 4000 + b"1]"),
    "JSON keys": ("json", json.dumps({f"{i:x}": 1 for i in range(5000)}).encode()),
    "JSON digits": ("json", b"[" + b"9" * 65000 + b"]"),
    "JSON fraction": ("json", b"[0." + b"0" * 32000 + b"9" * 32000 + b"e32000]"),
    "JSON depth": ("json", b"[" * 8000 + b"]" * 8000),
    "JSON shape": ("json", b'{"data": [1], "shape": [' + b"[]," * 4000 + b"[]]}"),
    "JSON blanks": ("json", b"\n" * 65000),
    "header of 4 GiB": ("npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"(" * 65000),
    "header of brackets": ("npy", npy("{'a':" * 190)),
    "header of closed brackets": ("npy", npy("a(b=" * 150 + "!" + ")" * 150)),
    "header of powers": ("npy", npy("9**9**9**9")),
    "header of products": ("npy", npy("'a'*9999999999")),
    "dtype of 2^31 bytes": ("npy", header("'V2147483647'")),
}


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name):
    """Nothing costs more than 50 ms, or memory out of proportion: a reader that believes lengths takes 64 MB here."""
    form, value = BOMBS[name]
    costs = [cost(form, value, SHAPE) for _ in range(2)]

    assert min(seconds for seconds, _ in costs) < 0.05
    assert max(peak for _, peak in costs) < allowed(value)


ODD = [None, True, -1, 0, 1.5, 2**62, float("nan"), "", "a", "<f8", "|O", [], [1], [3, 2], [1] * 17, [[1], [2, 3]], {}]
ODD += [{"a": {}}, ["a", "b"], [[]], [[[1, 2], [3, 4]]], "\ud7ff", "x" * 99, X.tolist(), X.ravel().tolist()]
PACKED = [*ODD, b"", X.tobytes(), bytes(6), msgpack.ExtType(5, b"z"), msgpack.ExtType(5, b""), msgpack.Timestamp(1, 2)]
LITERALS = [
    "None",
    "True",
    "-1",
    "'<f8'",
    "'>f4'",
    "'O'",
    "[('a','<f8')]",
    "('<f8',(2,))",
    "(3,2)",
    "(6,)",
    "()",
    "(0,)",
]
LITERALS += ["(3L,2)", "'a'*9", "1e9", "{}", "'\\d'", "0or 1", "'f8,f8'", "'V99'", "b'<f8'", "(1,)*17", "...", "{[]:1}"]


def nest(chance, leaves, depth=0):
    """A nested list with something odd in it."""
    if depth > 5 or chance.random() < 0.3:
        return chance.choice(leaves)
    return [nest(chance, leaves, depth + 1) for _ in range(chance.randint(0, 3))]


def fields(chance, leaves):
    """A message with something odd in every field."""
    known = ["data", "shape", "axes", "dtype", "other"]
    return {key: nest(chance, leaves) for key in chance.sample(known, chance.randint(0, 5))}


def odd_npy(chance):
    """A .npy file with something odd in its header."""
    descr, order, shape = chance.choice(LITERALS), chance.choice(["True", "False", "1"]), chance.choice(LITERALS)
    return header(descr, order, shape)


MAKE = {
    "raw": lambda chance: chance.randbytes(chance.choice([0, 1, 47, 48, 49, 96])),
    "npy": odd_npy,
    "msgpack": lambda chance: msgpack.packb(chance.choice([fields, nest])(chance, PACKED)),
    "json": lambda chance: json.dumps(chance.choice([fields, nest])(chance, ODD)).encode(),
}
GOOD = {
    "raw": [X.tobytes()],
    "npy": [saved(X), saved(np.asfortranarray(X), (2, 0)), saved(X.astype("<i2"), (3, 0))],
    "msgpack": [packed(), packed(data=X.tolist(), axes=["a", "b"]), msgpack.packb(X.tolist())],
    "json": [text(), text(data=X.tolist(), axes=["a", "b"]), json.dumps(X.tolist()).encode()],
}
TOKENS = {
    "raw": [b"\0"],
    "npy": [b"(", b"{", b"'", b"\\", b"L", b"-", b"\x93NUMPY", b"True", b",", b"9" * 20, b"\n", b"#", b"\0"],
    "msgpack": [bytes([byte]) for byte in (*range(0x80, 0x100, 3), *range(0xC0, 0xE0))] + [b"\xff\xff\xff\xff"],
    "json": [b"[", b"]", b"{", b"}", b'"', b",", b":", b"null", b"NaN", b"-", b"1e9", b"\\ud800", b"\xff", b"9" * 5000],
}


def damaged(chance, form):
    """A good message, with bytes changed, put in, left out or repeated."""
    value = bytearray(chance.choice(GOOD[form]))
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(value) + 1)
        match chance.randrange(5):
            case 0:
                value[start : start + 1] = chance.randbytes(1)
            case 1:
                value[start : start + chance.randint(0, 2)] = chance.choice(TOKENS[form])
            case 2:
                value[start:start] = chance.choice(TOKENS[form]) * chance.choice([2, 20, 200])
            case 3:
                del value[start : start + chance.randint(1, 9)]
            case 4:
                value[start:start] = value[chance.randrange(len(value) + 1) :][:200]
    return bytes(value)


def timed(form, value):
    """How long it takes to read a value, and whether it is a tensor."""
    start = time.thread_time()
    found = outcome(form, value, SHAPE) is not None
    return time.thread_time() - start, found


def fuzz(form, count, seed=0):
    """Read so many values: how many were tensors, the most seconds, the most memory as a part of what is allowed."""
    chance = random.Random(seed)
    tensors, slowest, largest = 0, 0.0, 0.0
    for k in range(count):
        value = damaged(chance, form) if chance.random() < 0.6 else MAKE[form](chance)
        seconds, found = timed(form, value)
        if seconds > 0.01:  # what a machine takes away once it does not take each time
            seconds = min(seconds, timed(form, value)[0], timed(form, value)[0])
        tensors += found
        slowest = max(slowest, seconds)
        if k % 50 == 0:
            largest = max(largest, cost(form, value, SHAPE)[1] / allowed(value))
    return tensors, slowest, largest


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("form", MAKE)
def test_fuzz(form):
    """Twenty thousand damaged and odd values: each is a tensor or a refusal, soon and in little memory."""
    tensors, slowest, largest = fuzz(form, 20_000)

    assert 100 < tensors < 15_000
    assert slowest < 0.05
    assert largest < 1
