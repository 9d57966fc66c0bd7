"""Plain tensors wait as the records they are, and nobody can tell from what comes out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_ocpdl import Problem, Sparse
from stream_ocpdl.ocpdl import arrays, kernels
from stream_ocpdl.ocpdl.batch import Packed, fill
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.ocpdl.pointers import addresses_in
from stream_ocpdl.stream import assembly
from stream_ocpdl.stream.batching import Batcher, Batching
from stream_ocpdl.stream.intake import KEY, Intake, is_plain
from stream_ocpdl.stream.items import Item, Sheet
from stream_ocpdl.stream.lanes import Lanes
from stream_ocpdl.stream.messages import Mould, Position, Record, Tensor, split
from stream_ocpdl.stream.pipeline import Pipeline
from stream_ocpdl.stream.progress import beginning
from tests.fakes import World, serve
from tests.test_pipeline import PACE, check_journal, dictionaries, inputs, plan


def record(partition, offset, value=b"", key=None):
    return Record(Position(partition, offset), key, value)


KINDS = {
    "plain": lambda X: Tensor(X).to_bytes(),
    "single": lambda X: Tensor(X.astype(np.float32)).to_bytes(),
    "bytes": lambda X: Tensor((9 * X).astype(np.uint8)).to_bytes(),
    "long": lambda X: Tensor((9 * X).astype(np.int32)).to_bytes(),
    "named": lambda X: Tensor(X, ("row", "column")).to_bytes(),
    "misnamed": lambda X: Tensor(X, ("column", "row")).to_bytes(),
    "checked": lambda X: Tensor(X).to_bytes(crc=True),
    "sparse": lambda X: Tensor(Sparse((4, 3), np.arange(12), X.ravel())).to_bytes(),
    "turned": lambda X: Tensor(X.T.copy()).to_bytes(),
    "negative": lambda X: Tensor(-X).to_bytes(),
    "nan": lambda X: Tensor(np.full((4, 3), np.nan)).to_bytes(),
    "cut": lambda X: Tensor(X).to_bytes()[:-1],
    "more": lambda X: Tensor(X).to_bytes() + b"\0",
    "nothing": lambda _: None,
}


def stream_of(kinds):
    """Partitions with tensors of these kinds; "pieces" is a tensor in pieces."""
    random, found = np.random.default_rng(0), []
    for line in kinds:
        found.append([])
        for k, kind in enumerate(line):
            X = random.random((4, 3))
            if kind == "pieces":
                found[-1] += [chunk.to_bytes() for chunk in split(Tensor(X).to_bytes(), str(k), 80)]
            else:
                found[-1].append(KINDS[kind](X))
    return found


MOSTLY = st.sampled_from(["plain", "plain", "single", "named"])
LINE = MOSTLY.flatmap(lambda kind: st.lists(st.sampled_from([kind] * 60 + [*KINDS, "pieces"]), min_size=5, max_size=40))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(LINE, min_size=1, max_size=3), st.integers(1, 9))
def test_one_by_one_they_give_the_same(kinds, chunk):
    """Codes, dictionaries and letters are those of a service that looks at each record, bit for bit."""
    ours, theirs = World(stream_of(kinds)), World(stream_of(kinds))
    serve(ours, plan(), PACE, chunk=chunk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batcher, "takes", lambda *_: False)
        serve(theirs, plan(), PACE, chunk=chunk)

    assert ours.stream("codes") == theirs.stream("codes")
    assert dictionaries(ours) == dictionaries(theirs)
    assert sorted(ours.stream("dead-letters")) == sorted(theirs.stream("dead-letters"))
    check_journal(ours)


def test_few_are_looked_at(monkeypatch):
    """One tensor says what those like it are; after one that is none, and a minibatch, it is so again."""
    seen, read = [], Intake.read

    def reading(intake, found, now):
        seen.append(found.position)
        return read(intake, found, now)

    monkeypatch.setattr(Intake, "read", reading)
    serve(World(inputs(2, 40, [(1, 13)])), plan(), PACE)

    assert seen == [Position(1, 0), Position(1, 13)]


def test_another_mould_waits_for_the_first_to_be_gone():
    """No sheet has tensors of two kinds, and the second kind is taken as it comes once the first is gone."""
    pipeline = Pipeline(plan(), beginning(plan(), {0: 0}), "input")
    values = stream_of([["plain"] * 12 + ["single"] * 18])[0]
    moulds = []
    for k, value in enumerate(values):
        pipeline.feed([record(0, k, value)], 0.0)
        rows = pipeline._batcher.complete(0.0)
        if rows:
            moulds.append(rows.mould.dtype.name if isinstance(rows, Sheet) else None)
        pipeline.step(0.0)

    assert moulds == [None, "float64", None, "float32", "float32", "float32"]


@pytest.mark.parametrize(("key", "plain"), [(None, True), (bytes(KEY), True), (bytes(KEY + 1), False)])
def test_a_long_key_is_looked_at(key, plain):
    """A key that does not go with a code is refused, and so its tensor is not plain."""
    value = Tensor(np.ones((4, 3))).to_bytes()

    assert is_plain(record(0, 0, value, key), Mould.of(value)) is plain


def test_a_stranger_with_the_same_beginning_is_looked_at():
    """A message is plain only with all of the header's bytes and exactly its own size."""
    value = Tensor(np.ones((4, 3))).to_bytes()
    mould = Mould.of(value)
    strangers = [None, b"", value[:-1], value + b"\0", b"x" + value[1:], bytes(len(value))]

    assert [is_plain(record(0, 0, one), mould) for one in strangers] == [False] * len(strangers)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.data())
def test_lanes_are_a_line_that_takes_turns(lengths, data):
    """How many follow each other, whose turn ends it, and which they are: as one who takes them one by one finds."""
    turn = data.draw(st.integers(0, len(lengths) - 1))
    lanes, slow = Lanes(range(len(lengths)), turn), []
    for p, count in enumerate(lengths):
        lanes.extend([record(p, k) for k in range(count)])
    left, at = list(lengths), turn
    while left[at]:
        slow.append(Position(at, lengths[at] - left[at]))
        left[at] -= 1
        at = (at + 1) % len(left)

    assert lanes.reach() == (len(slow), at, any(left))
    size = data.draw(st.integers(0, len(slow)))
    assert [one.position for one in lanes.first(size)] == sorted(slow[:size])
    taken = Counter(p for p, _ in slow[:size])
    assert lanes.drop(size) == [(p, taken[p], last) for p, last in sorted(dict(sorted(slow[:size])).items())]
    assert lanes.turn == (turn + size) % len(lengths)
    assert [lanes.pop().position for _ in range(len(slow) - size)] == slow[size:]
    assert lanes.turn == at


def test_keys_and_headers_are_counted_and_let_go():
    """What a plain tensor has beside its value pauses a partition, too; learned or refused, it is let go with it."""
    value, long = Tensor(np.ones((4, 3))).to_bytes(), (("name", bytes(3_000_000)),)
    records = [record(0, k, value, b"key")._replace(headers=long if k % 2 == 0 else ()) for k in range(16)]
    batcher = Batcher(Batching(2), [0])
    assert batcher.takes(Mould.of(value))
    batcher.add_plain(records[:4], 0.0)
    assert batcher.hungry == {0}
    batcher.add_plain(records[4:], 0.0)
    assert batcher.hungry == set()

    batcher.take(batcher.complete(0.0))
    batcher.refuse({Position(0, 3): ValueError("no")})
    while (rows := batcher.complete(0.0)) is not None:
        batcher.take(rows)
    assert batcher.hungry == {0}
    assert batcher._held == {0: len(value) + assembly.OVERHEAD + 3}  # one is left, with its key


def test_what_waits_is_counted_and_let_go():
    """Large plain tensors pause a partition as items do; once they are learned, or refused, it is read again."""
    value = Tensor(np.ones((1000, 625))).to_bytes()
    batcher, hungry = Batcher(Batching(4), [0, 1]), []
    assert batcher.takes(Mould.of(value))
    for partition in (0, 1):
        for k in range(6):
            batcher.add_plain([record(partition, k, value)], 0.0)
            hungry.append(batcher.hungry)
    both, other, none = {0, 1}, {1}, set()

    assert hungry == [both] * 4 + [other] * 2 + [other] * 4 + [none] * 2
    cut = batcher.take(batcher.complete(0.0))
    assert (cut.reached, cut.cursor, cut.history) == ({0: 2, 1: 2}, 0, (4,))
    assert batcher.hungry == both
    batcher.refuse({Position(0, 2): ValueError("no")})
    rows = batcher.complete(0.0)
    assert [item.position for item in rows] == [(0, 3), (0, 4), (1, 2), (1, 3)]
    assert [refusal.record.position for refusal in batcher.take(rows).refused] == [(0, 2)]
    assert sum(batcher._held.values()) == sum(map(len, [value] * 3)) + 3 * 500


def test_whose_turn_it_is():
    """The partition that lacks a record is wanted and awaited, though nothing was moved into a line."""
    value = Tensor(np.ones((4, 3))).to_bytes()
    batcher, found = Batcher(Batching(4), [0, 1]), []
    assert batcher.takes(Mould.of(value))
    for partition, offset in ((1, 0), (1, 1), (0, 0), (0, 1), (1, 2)):
        batcher.add_plain([record(partition, offset, value)], 0.0)
        rows = batcher.complete(0.0)
        if rows:
            batcher.take(rows)
        found.append(batcher.awaited)

    assert found == [{0}, {0}, {0}, set(), {0}]


@pytest.mark.parametrize(
    "batching", [Batching(4, "linger"), Batching(4, "full", "arrival"), Batching(4, rows="one-per-chain")]
)
def test_where_partitions_take_no_turns_all_is_looked_at(batching):
    """There the order of arrival matters, or the chain that a tensor is of."""
    assert not Batcher(batching, [0]).takes(Mould.of(Tensor(np.ones((4, 3))).to_bytes()))


@pytest.mark.parametrize("dtype", ["float64", "float32", "uint8", "int32", "float16", "bool"])
@pytest.mark.parametrize("shape", [(4, 3), (130, 70)])
@pytest.mark.parametrize("own", ["float64", "float32"])
def test_tensors_in_messages_are_copied_as_arrays_are(dtype, shape, own):
    """From their addresses or one by one: the same minibatch, the same energies, the same refusals."""
    problem = Problem(shape=shape, rank=2, batch_size=3, dtype=own)
    X = (9 * np.random.default_rng(0).random((3, *shape))).astype(dtype)
    if dtype == "float64":
        X[1, 2, 1] = np.nan
    values = [Tensor(x).to_bytes() for x in X]
    mould = Mould.of(values[0])
    packed = Packed(values, mould.start, shape, mould.dtype)
    (ours, wrong), (theirs, also) = (
        fill(problem, rows, arrays.empty((3, *shape), own)) for rows in (packed, packed.arrays())
    )

    assert wrong == also
    assert list(wrong) == ([1] if dtype == "float64" else [])
    assert ours.X.tobytes() == theirs.X.tobytes()
    assert ours.energies.tobytes() == theirs.energies.tobytes()


def test_an_item_between_them_is_waited_for():
    """What is no tensor right behind a minibatch leaves with it, as it would have from the line."""
    value = Tensor(np.ones((4, 3))).to_bytes()
    batcher = Batcher(Batching(2), [0])
    assert batcher.takes(Mould.of(value))
    for k in (0, 1, 3):
        if k == 3:
            batcher.add(Item(Position(0, 2), 0.0))
        batcher.add_plain([record(0, k, value)], 0.0)

    cut = batcher.take(batcher.complete(0.0))
    assert cut.reached == {0: 3}


def test_places_of_pieces_are_runs():
    """Pieces behind a minibatch keep their places, and those that follow each other are one run of the journal."""
    value = Tensor(np.ones((4, 3))).to_bytes()
    batcher = Batcher(Batching(2), [0])
    for tensor in range(6):
        for piece in range(9):
            batcher.add(Item(Position(0, 10 * tensor + piece), 0.0))
        whole = record(0, 10 * tensor + 9, value)
        batcher.add(Item(whole.position, 0.0, Tensor.plain(value), (whole,)))

    cut = batcher.take(batcher.complete(0.0))
    assert cut.reached == {0: 29}
    assert cut.ahead == ((0, 30, 38), (0, 40, 48), (0, 50, 58))


def test_plain_tensors_pass_pieces_by(monkeypatch):
    """A message in pieces is given up by those that pass it by, wherever they come in a portion: also if it was open
    before a restart, and another partition came first.
    """
    monkeypatch.setattr(assembly, "DISTANCE", 3)
    values = stream_of([["pieces"] + ["plain"] * 20, ["plain"] * 20])
    values[0] = [values[0][0], *values[0][-20:]]  # the other pieces do not come
    started = replace(beginning(plan(), {0: 0, 1: 0}), open=((0, 0, 0),), reached={0: 1, 1: 0})

    def letters(lines):
        pipeline, found = Pipeline(plan(), started, "input"), []
        for line in lines:
            pipeline.feed([record(p, k, values[p][k]) for p, k in line], 0.0)
            while outcome := pipeline.step(0.0):
                found += [(outcome.step.t, letter) for letter in outcome.letters]
        return found

    places = [(1, k) for k in range(10)] + [(0, k) for k in range(11)]
    together, apart = letters([places]), letters([[place] for place in sorted(places)])

    assert together == apart
    assert [letter.offset for _, letter in together] == [0]


def test_only_bytes_have_addresses():
    """Memory is read where CPython has that of bytes; whatever else has a length and a beginning is not plain."""
    value = Tensor(np.ones((4, 3))).to_bytes()

    assert not is_plain(record(0, 0, bytearray(value)), Mould.of(value))
    with pytest.raises(TypeError, match="only of bytes"):
        addresses_in([value, bytearray(value)], 16)


def test_one_that_is_not_plain_makes_the_others_no_younger():
    """A tensor that is refused when one of another kind comes has waited since it came."""
    values = stream_of([["plain"] * 8 + ["nan", "sparse"]])[0]
    pipeline = Pipeline(plan(), beginning(plan(), {0: 0}), "input")
    pipeline.feed([record(0, k, value) for k, value in enumerate(values[:5])], 0.0)
    assert pipeline.step(0.0).step is not None
    pipeline.feed([record(0, k + 5, value) for k, value in enumerate(values[5:9])], 0.0)
    pipeline.feed([record(0, 9, values[9])], 5.0)

    assert pipeline.step(5.0).refused == ("DataError",)


def test_pieces_of_one_partition_are_no_matter_of_another():
    """While a message in pieces is open, plain tensors of other partitions still wait as they are."""
    pieces = [chunk.to_bytes() for chunk in split(Tensor(np.ones((4, 3))).to_bytes(), "id", 80)]
    values = stream_of([["plain"] * 7])[0]
    pipeline = Pipeline(plan(), beginning(plan(), {0: 0, 1: 0}), "input")
    with pytest.MonkeyPatch.context() as patch:
        runs = []
        patch.setattr(Batcher, "add_plain", lambda self, records, now: runs.append([one.position for one in records]))
        pipeline.feed([record(0, 0, values[0]), record(0, 1, pieces[0])], 0.0)
        pipeline.feed([record(1, k, values[k]) for k in range(5)], 0.0)
        pipeline.feed([record(0, 2, values[5]), record(0, 3, pieces[1]), record(0, 4, values[6])], 0.0)

    assert [len(run) for run in runs] == [5, 1, 1]
    assert runs[1:] == [[(0, 2)], [(0, 4)]]


class Looked(Sequence):
    """Records, and how often one of them was looked at."""

    def __init__(self, records):
        self._records, self.count = records, 0

    def __len__(self):
        return len(self._records)

    def __getitem__(self, which):
        self.count += isinstance(which, int)
        return self._records[which]


def test_a_feed_takes_time_in_proportion():
    """Runs of one, each between two that are not plain: a record is looked at a few times, however many there are."""
    for count in (50, 500):
        values = stream_of([["plain", "checked"] * count])[0]
        records = Looked([record(0, k, value) for k, value in enumerate(values)])
        pipeline = Pipeline(plan(), beginning(plan(), {0: 0}), "input")
        pipeline.feed(records, 0.0)

        assert records.count <= 5 * len(records)


def test_small_problems_are_warm():
    """After warming up, no step of plain tensors compiles anything more."""
    problem = Problem(shape=(4, 3), rank=2, batch_size=5)
    warm_up(problem)
    known = len(kernels.copy_rows.signatures)
    pipeline = Pipeline(plan(), beginning(plan(), {0: 0}), "input")
    for k, value in enumerate(stream_of([["plain"] * 12 + ["single"] * 18])[0]):
        pipeline.feed([record(0, k, value)], 0.0)
        pipeline.step(0.0)

    assert len(kernels.copy_rows.signatures) == known > 0
