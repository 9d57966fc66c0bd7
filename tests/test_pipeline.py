"""The pipeline and the loop without a broker: bytes in, bytes out, and crashes as part of the input."""

import time
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_ocpdl import Problem
from stream_ocpdl.errors import ConfigError, LineageError, TooMuchRefused
from stream_ocpdl.stream import batching
from stream_ocpdl.stream.assembly import Refusal
from stream_ocpdl.stream.batching import Batcher, Batching
from stream_ocpdl.stream.following import Follower
from stream_ocpdl.stream.items import Item
from stream_ocpdl.stream.messages import (
    GENESIS,
    DeadLetter,
    JournalRecord,
    Position,
    Record,
    Snapshot,
    Tensor,
    Version,
    frame,
    link,
    split,
)
from stream_ocpdl.stream.pipeline import Pipeline
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import no_crash
from stream_ocpdl.stream.progress import beginning, replay
from stream_ocpdl.stream.recovery import Recovery
from stream_ocpdl.stream.refusals import Refusals
from stream_ocpdl.stream.service import Pace
from stream_ocpdl.stream.shards import named
from tests.fakes import Crash, Journal, Source, Store, World, serve

PROBLEM = Problem(shape=(4, 3), rank=2, batch_size=5)
PACE = Pace(commit_interval_ms=20, checkpoint_every=3)


def plan(close="full", order="canonical", **options):
    return Plan("model", PROBLEM, Batching(5, close, order, linger_ms=30), snapshot_every=4, digest_every=2, **options)


def inputs(partitions=2, count=40, poison=()):
    """Tensors for each partition; at the poisoned places something that is none."""
    random = np.random.default_rng(0)
    values = [[Tensor(random.random((4, 3))).to_bytes() for _ in range(count)] for _ in range(partitions)]
    for k, (p, offset) in enumerate(poison):
        bad = [b"", None, b"nonsense", Tensor(np.ones((3, 4))).to_bytes(), Tensor(-np.ones((4, 3))).to_bytes()]
        values[p][offset] = bad[k % len(bad)]
    return values


def crashing(plan_of_crashes):
    """A crash point that ends the process at the given visits, counted over all crash points and lives."""
    visits, wanted = [0], set(plan_of_crashes)

    def at(name):
        visits[0] += 1
        if visits[0] in wanted:
            raise Crash(name)

    return at


def live(world, chosen, at, chunk=3):
    """As many lives as it takes."""
    while True:
        try:
            return serve(world, chosen, PACE, at, chunk=chunk)[0]
        except Crash:
            continue


DEFECTS = ("none", "none", "none", "lost", "repeated", "again", "swapped", "foreign", "open")


def in_pieces(values, sets):
    """The same input with some of its values in pieces, which have other records between them, or are damaged."""
    lines = [[((offset, 0), value) for offset, value in enumerate(line)] for line in values]
    for number, (p, offset, gap, defect) in enumerate(sets):
        value = values[p][offset] or frame({"kind": "nonsense"}, bytes(100))
        name = f"{p}:{offset}"
        pieces = [chunk.to_bytes() for chunk in split(value, name, 1 + len(value) // 3)]
        match defect:
            case "lost":
                del pieces[1]
            case "repeated":
                pieces.insert(1, pieces[0] if number % 2 else pieces[1])
            case "again":
                pieces = [*pieces[:2], *pieces]
            case "swapped":
                pieces[0], pieces[1] = pieces[1], pieces[0]
            case "foreign":
                pieces.insert(1, next(split(value, "foreign", 60)).to_bytes().replace(b"index\x00", b"index\x01"))
            case "open":
                pieces.pop()
        lines[p] = [entry for entry in lines[p] if entry[0] != (offset, 0)]
        lines[p] += [((offset + k * gap, 1 + k), piece) for k, piece in enumerate(pieces)]
    return [[value for _, value in sorted(line, key=lambda entry: entry[0])] for line in lines]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([("full", "canonical"), ("full", "arrival"), ("linger", "arrival"), ("linger", "canonical")]),
    st.lists(st.integers(1, 60), max_size=12),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 39)), max_size=40, unique=True),
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 39), st.integers(0, 6), st.sampled_from(DEFECTS)),
        max_size=20,
        unique_by=lambda entry: entry[:2],
    ),
    st.integers(1, 7),
    st.sampled_from([1, 2, 5, 100]),
    st.sampled_from([(1, 1000), (2, 1000), (16, 1000), (16, 2), (16, 9)]),
)
def test_crashes_lose_and_repeat_nothing(batching, crashes, poison, sets, chunk, patience_with_refused, with_sets):
    """Crash anywhere, any number of times: each input is in one step or one dead letter, each code published once, and
    the state is that of a replay from scratch; in canonical order also that of a life without crashes.
    """
    values = in_pieces(inputs(poison=poison), sets)
    world, calm, scratch = World(values), World(values), World(values)
    chosen = plan(*batching)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stream_ocpdl.stream.batching.MOST_REFUSED", patience_with_refused)
        patch.setattr("stream_ocpdl.stream.messages.chunk.SMALLEST", 10)
        patch.setattr("stream_ocpdl.stream.pipeline.REFUSALS", chunk)
        patch.setattr("stream_ocpdl.stream.assembly.MOST_OPEN", with_sets[0])
        patch.setattr("stream_ocpdl.stream.assembly.DISTANCE", with_sets[1])
        end = live(world, chosen, crashing(crashes), chunk)
        undisturbed = live(calm, chosen, crashing([]), chunk=3)
        scratch.written = [output for output in world.written if output.stream == "journal"]
        again = live(scratch, chosen, crashing([]))

    used, refused = check_journal(world)
    assert len(used) == len(set(used))
    assert {code.position for code in world.codes()} <= set(used)
    assert len({code.position for code in world.codes()}) == len(world.codes()) == end.progress.state.N
    letters = [DeadLetter.from_bytes(value).record for value in world.stream("dead-letters")]
    assert sorted(refused) == sorted(letter.position for letter in letters)
    assert all(letter.value == values[letter.position.partition][letter.position.offset] for letter in letters)
    assert not refused & set(used)
    if not sets:
        assert refused <= set(poison)
    done = end.progress.resume
    assert all((p, k) in refused or (p, k) in used for p in (0, 1) for k in range(done[p]))
    if batching[0] == "linger" and not any(defect == "open" for *_, defect in sets):
        assert len(used) + len(refused) == sum(map(len, values))
    assert again.progress.state.digest() == end.progress.state.digest()
    if batching == ("full", "canonical"):
        assert end.progress.state.digest() == undisturbed.progress.state.digest()
        assert world.stream("codes") == calm.stream("codes")
        assert dictionaries(world) == dictionaries(calm)


def test_an_open_message_that_is_not_yet_read_again():
    """After a restart another partition closes a minibatch before the first piece comes by again: it stays wanted."""
    good = inputs(2, 10)
    first, second = (chunk.to_bytes() for chunk in split(good[0][0], "id", 100))
    world = World([[good[0][0], first], good[1][:4]])
    serve(world, plan("full", "arrival"), PACE, chunk=5)
    assert world.positions == {0: 1, 1: 4}
    world.input = [[good[0][0], first], good[1][:9]]
    serve(world, plan("full", "arrival"), PACE, chunk=5, silent={0})
    assert world.positions == {0: 1, 1: 9}
    world.input = [[good[0][0], first, second, *good[0][1:5]], good[1][:9]]
    serve(world, plan("full", "arrival"), PACE, chunk=5)

    assert Position(0, 2) in {code.position for code in world.codes()}
    assert world.stream("dead-letters") == []


def test_refused_tensors_name_no_modes():
    """The names of a tensor that is refused are not those of the model; tensors with other names than the model are."""
    good = [Tensor(np.full((4, 3), k + 1.0), ("row", "column")).to_bytes() for k in range(6)]
    values = [Tensor(np.full((4, 3), np.nan), ("x", "y")).to_bytes(), *good[:5]]
    values += [Tensor(np.ones((4, 3)), ("column", "row")).to_bytes(), *inputs(1, 4)[0], good[5]]
    world = World([values])
    end, _ = serve(world, plan(), PACE)

    letters = [DeadLetter.from_bytes(value) for value in world.stream("dead-letters")]
    assert [letter.record.position.offset for letter in letters] == [0, 6]
    assert letters[1].reason == "axes is ['column', 'row'], those of the model are ['row', 'column']"
    assert end.progress.axes == ("row", "column")
    assert [Snapshot.from_bytes(value).axes for value in world.stream("snapshots")] == [("row", "column")]
    again, _ = serve(world, plan(), PACE)
    assert again.progress.axes == ("row", "column")


def test_large_tensors_are_read_as_they_are_needed():
    """Bytes that wait pause a partition with more than its share of two minibatches, unless one waits for it."""
    batcher = Batcher(Batching(4), [0, 1])
    hungry = []
    for partition, count in ((0, 6), (1, 6)):
        for k in range(count):
            record = Record(Position(partition, k), None, bytes(5_000_000))
            batcher.add(Item(record.position, 0.0, Tensor(np.ones((4, 3))), (record,)))
            hungry.append(batcher.hungry)
    both, other, none = {0, 1}, {1}, set()

    assert hungry == [both] * 4 + [other] * 2 + [other] * 4 + [none] * 2
    assert len(batcher.complete(0.0)) == 4
    batcher.take(batcher.complete(0.0))
    assert batcher.hungry == both


@pytest.mark.parametrize(
    ("batching", "wanted"),
    [
        (Batching(4), [{0}, {0}, {0}, set(), {0}]),
        (Batching(4, order="arrival"), [set()] * 5),
        (Batching(4, close="linger"), [set()] * 5),
    ],
    ids=str,
)
def test_the_partition_that_holds_up_the_others(batching, wanted):
    """Where they take turns: the one whose turn it is and that has nothing, while another has something."""
    batcher, found = Batcher(batching, [0, 1]), []
    for partition, offset in ((1, 0), (1, 1), (0, 0), (0, 1), (1, 2)):
        record = Record(Position(partition, offset), None, b"")
        batcher.add(Item(record.position, 0.0, Tensor(np.ones((4, 3))), (record,)))
        rows = batcher.complete(0.0)
        if rows:
            batcher.take(rows)
        found.append(batcher.awaited)

    assert found == wanted


def test_small_tensors_wait_by_the_million():
    """A partition is not paused for a few bytes, however many minibatches they make."""
    batcher = Batcher(Batching(4), [0, 1])
    for k in range(1000):
        record = Record(Position(0, k), None, bytes(5_000))
        batcher.add(Item(record.position, 0.0, Tensor(np.ones((4, 3))), (record,)))

    assert batcher.hungry == {0, 1}


def dictionaries(world):
    """Snapshots but for their positions: refused records that follow a minibatch leave with it if they are there."""
    found = [Snapshot.from_bytes(value) for value in world.stream("snapshots")]
    return [replace(snapshot, positions={}).to_bytes() for snapshot in found]


def check_journal(world):
    """A whole chain; positions used and refused, and the committed positions where the last record says."""
    used, refused, last = [], set(), None
    for value in world.stream("journal"):
        record = JournalRecord.from_bytes(value)
        bad = {(p, offset) for p, offset, _, _ in record.refused}
        refused |= bad
        for p, first, final in record.used:
            used += [(p, offset) for offset in range(first, final + 1)]
            assert not bad & {(p, offset) for offset in range(first, final + 1)}
        last = record
    assert world.positions == last.resume
    return used, refused


def test_outputs():
    """Codes carry the loss before learning and where they come from; a snapshot is the dictionary of its step."""
    world = World(inputs(1, 20))
    end, _ = serve(world, plan(), PACE)

    assert [code.step for code in world.codes()] == [1] * 5 + [2] * 5 + [3] * 5 + [4] * 5
    assert [code.position.offset for code in world.codes()] == list(range(20))
    assert all(code.loss > 0 and code.code.shape == (2,) for code in world.codes())
    first, snapshot = (Snapshot.from_bytes(value) for value in world.stream("snapshots"))
    assert first.step == 1
    assert snapshot.version == Version("model", 4)
    assert all(np.array_equal(U, V) for U, V in zip(snapshot.loadings, end.progress.state.loadings, strict=True))


def test_canonical_batches_do_not_see_delivery():
    """Whatever the sizes of the chunks in which partitions are delivered, codes and state have the same bits."""
    ends = [live(World(inputs(3, 25)), plan(), crashing([]), chunk).progress.state.digest() for chunk in (1, 2, 5, 11)]

    assert len(set(ends)) == 1


def test_a_silent_partition_holds_up_canonical_batches_only():
    """In canonical order nothing is learned past the silence; in arrival order everything is."""
    values = inputs(2, 20)
    values[1] = values[1][:4]
    canonical, arrival = World(values), World(values)
    serve(canonical, plan("full", "canonical"), PACE)
    serve(arrival, plan("linger", "arrival"), PACE)

    assert len(canonical.codes()) == 5
    assert len(arrival.codes()) == 24


def tamper(world, change):
    """Restart on a changed world; what the service reports."""
    change(world)
    return serve(world, plan(), PACE)[1]


def learned():
    world = World(inputs(2, 20))
    serve(world, plan(), PACE)
    return world


def test_a_damaged_checkpoint_is_passed_over():
    """A flipped byte in the newest: the one before is used, and said; the state is the same."""
    world, whole = learned(), learned()
    manifest, data = world.checkpoints[0]
    world.checkpoints[0] = (manifest, data[:-1] + bytes([data[-1] ^ 1]))
    older = world.checkpoints[1][0].t
    end, reports = serve(world, plan(), PACE)

    assert any("damaged" in line for line in reports)
    assert any(f"restored the checkpoint of step {older}" in line for line in reports)
    assert end.progress.state.digest() == serve(whole, plan(), PACE)[0].progress.state.digest()


def test_a_checkpoint_ahead_of_the_journal_is_refused():
    """If the journal lost its end, a checkpoint of that end must not bring it back."""

    def cut(world):
        journal = [output for output in world.written if output.stream == "journal"]
        gone = set(map(id, journal[-2:]))
        world.written = [output for output in world.written if id(output) not in gone]

    assert any("ahead of the journal" in line for line in tamper(learned(), cut))


def test_a_checkpoint_of_another_history_is_refused():
    """A checkpoint whose link is not in the journal is from elsewhere."""

    def swap(world):
        world.checkpoints = [(replace(manifest, link="0" * 64), data) for manifest, data in world.checkpoints]

    reports = tamper(learned(), swap)
    assert sum("another history" in line for line in reports) == 3
    assert any("8 steps replayed" in line for line in reports)


def test_changed_input_is_noticed():
    """If the input is not what it was, a replay says so and does not go on."""
    world = learned()
    world.checkpoints = []
    world.input[0][3] = Tensor(np.ones((4, 3))).to_bytes()

    with pytest.raises(LineageError, match="input of step"):
        serve(world, plan(), PACE)


def before_xxh3(world):
    """A world whose journal was written when steps had a CRC-32 of their input, and its checkpoints are gone."""
    previous = GENESIS
    for k, output in enumerate(world.written):
        if output.stream == "journal":
            record = replace(JournalRecord.from_bytes(output.value), previous=previous, xxh3=None)
            rows = [world.input[p][k] for p, first, last in record.used for k in range(first, last + 1)]
            value = replace(record, checksum=zlib.crc32(b"".join(rows))).to_bytes()
            world.written[k], previous = output._replace(value=value), link(value)
    world.checkpoints = []
    return world


def test_a_journal_with_checksums():
    """Steps that have a CRC-32 of their input are replayed, and input that has changed is noticed."""
    world = before_xxh3(learned())
    assert any("8 steps replayed" in line for line in tamper(world, lambda world: None))
    world = before_xxh3(learned())
    world.input[0][3] = Tensor(np.ones((4, 3))).to_bytes()

    with pytest.raises(LineageError, match="input of step"):
        serve(world, plan(), PACE)


def test_another_problem_is_refused():
    """The journal belongs to its problem; another λ is another model."""
    world = learned()
    other = Plan("model", Problem(shape=(4, 3), rank=2, batch_size=5, sparsity=0.1), Batching(5))

    with pytest.raises(LineageError, match="another problem"):
        serve(world, other, PACE)
    world.checkpoints = []
    with pytest.raises(LineageError, match="another problem"):
        serve(world, other, PACE)


def test_a_broken_chain_is_noticed():
    """A record that is missing in the middle of the journal ends the replay with an error."""
    world = learned()
    world.checkpoints = []
    journal = [output for output in world.written if output.stream == "journal"]
    world.written = [output for output in world.written if output is not journal[3]]

    with pytest.raises(LineageError, match="does not follow"):
        serve(world, plan(), PACE)


def flood(count, value=b"poison"):
    """Two tensors, many records that are none, and tensors enough to go on."""
    good = inputs(1, 10)[0]
    return [[*good[:2], *[value] * count, *good[2:]]]


@pytest.mark.parametrize("value", [b"poison", b"", None, bytes(100_000)], ids=["small", "empty", "tombstone", "large"])
def test_a_flood_of_poison_passes(value):
    """However much poison comes between two minibatches, it goes to dead letters, and learning goes on."""
    world = World(flood(1000, value))
    serve(world, plan(), PACE, chunk=50)

    assert len(world.stream("dead-letters")) == 1000
    assert len(world.codes()) == 10
    assert max(map(len, world.stream("journal"))) < 100_000
    assert world.positions == {0: 1010}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["good", "poison", "negative"]), min_size=10, max_size=40),
    st.lists(st.sampled_from(["good", "poison"]), min_size=10, max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=3),
    st.booleans(),
    st.integers(1, 30),
)
def test_poison_behind_a_silent_partition(one, other, lives, forget, chunk):
    """It goes to the dead letters, though no minibatch can be closed; what is learned later is the same."""
    good = inputs(2, 40)
    bad = {"poison": b"poison", "negative": Tensor(-np.ones((4, 3))).to_bytes()}
    values = [[bad.get(kind, good[p][k]) for k, kind in enumerate(kinds)] for p, kinds in enumerate((one, other))]
    chosen, calm, world = plan(refusals=Refusals(None, None)), World(values), World([[], []])
    ends = zip(*(sorted(column) for column in zip(*lives, (40, 40), strict=True)), strict=True)
    for end in ends:
        world.input = [known[:k] for known, k in zip(values, end, strict=True)]
        world.checkpoints = [] if forget else world.checkpoints
        last, _ = serve(world, chosen, PACE, chunk=chunk)
        poison = [(p, k) for p, known in enumerate(world.input) for k, value in enumerate(known) if value == b"poison"]
        letters = [DeadLetter.from_bytes(value).record.position for value in world.stream("dead-letters")]
        assert sorted(set(poison) & set(letters)) == poison  # none waits for another partition
        assert len(letters) == len(set(letters))

    wanted, _ = serve(calm, chosen, PACE)
    assert last.progress.state.digest() == wanted.progress.state.digest()
    assert world.stream("codes") == calm.stream("codes")
    if last.progress.reached == wanted.progress.reached:  # else places at the end leave with the next minibatch
        assert last.progress.tally == wanted.progress.tally


def test_nothing_but_poison_behind_a_silent_partition():
    """The breaker knows of it. While a partition is only late it does not: in their turn they come one by one."""
    good = inputs(2, 60)
    poison = [*good[0][:4], *[b"poison"] * 50]
    chosen = plan(refusals=Refusals(20, None))
    world = World([poison, good[1][:4]])
    with pytest.raises(TooMuchRefused):
        serve(world, chosen, PACE, chunk=60)
    assert len(world.codes()) == 5
    assert world.stream("dead-letters") == []

    world = World([poison, good[1]])
    serve(world, chosen, PACE, chunk=60)
    assert len(world.stream("dead-letters")) == 50


def test_places_that_are_kept_are_bounded(monkeypatch):
    """Every record of the journal has them: poison that would leave too many behind a silent partition waits."""
    monkeypatch.setattr(batching, "MOST_PLACES", 3)
    good = inputs(2, 12)
    mixed = [value for X in good[1] for value in (X, b"poison", b"poison")]
    calm, world = World([good[0] * 3, mixed]), World([[], mixed])
    serve(world, plan(), PACE)
    assert len(world.stream("dead-letters")) == 6
    assert JournalRecord.from_bytes(world.stream("journal")[-1]).ahead == ((1, 1, 2), (1, 4, 5), (1, 7, 8))
    world.input[0] += good[0] * 3
    last, _ = serve(world, plan(), PACE)

    wanted, _ = serve(calm, plan(), PACE)
    assert last.progress.state.digest() == wanted.progress.state.digest()
    assert len({DeadLetter.from_bytes(value).record.position for value in world.stream("dead-letters")}) == 24
    assert len(world.stream("dead-letters")) == 24


def test_while_nobody_reads_no_partition_is_silent():
    """A service that was held up, by its broker say, has not looked: the breaker counts in turns then, too."""
    good = inputs(2, 60)
    chosen = plan(refusals=Refusals(20, None))
    pipeline = Pipeline(chosen, beginning(chosen, {0: 0, 1: 0}), "input")
    pipeline.feed([Record(Position(1, k), None, b"poison") for k in range(50)], 0.0)
    assert pipeline.step(0.0) is None
    assert pipeline.step(60.0) is None
    pipeline.feed([Record(Position(0, k), None, value) for k, value in enumerate(good[0])], 60.0)
    while pipeline.step(60.0) is not None:
        pass

    assert pipeline.progress.tally.refused > 20

    pipeline = Pipeline(chosen, beginning(chosen, {0: 0, 1: 0}), "input")
    pipeline.feed([Record(Position(1, k), None, b"poison") for k in range(50)], 0.0)
    for look in range(11):
        assert pipeline.step(look / 11) is None
    with pytest.raises(TooMuchRefused):
        pipeline.step(1.0)


def test_a_long_flood_costs_no_more_a_record():
    """A hundred thousand refused records behind a waiting tensor take seconds, and leave one run in the journal."""
    serve(World(flood(100)), plan(), PACE)  # so that all is compiled
    world = World(flood(100_000))
    began = time.process_time()
    serve(world, plan(refusals=Refusals(None, None)), PACE, chunk=1000)

    assert time.process_time() - began < 20
    assert len(world.stream("dead-letters")) == 100_000
    assert max(len(JournalRecord.from_bytes(value).ahead) for value in world.stream("journal")) == 1


def test_what_was_refused_ahead_is_not_refused_again():
    """Poison let go ahead of a waiting tensor stays refused after a restart, and the batches stay the same."""
    values = flood(1000)
    early, calm = World([values[0][:800]]), World(values)
    serve(early, plan(), PACE, chunk=50)
    assert JournalRecord.from_bytes(early.stream("journal")[-1]).ahead
    early.input, early.checkpoints = values, []
    end, _ = serve(early, plan(), PACE, chunk=7)

    assert len(early.stream("dead-letters")) == 1000
    assert end.progress.state.digest() == serve(calm, plan(), PACE)[0].progress.state.digest()
    assert early.stream("codes") == calm.stream("codes")


@pytest.mark.parametrize("keep_checkpoints", [True, False])
def test_what_was_refused_ahead_and_is_not_yet_read_again(keep_checkpoints):
    """After a restart another partition closes a minibatch before they come by again: they stay refused."""
    good = inputs(2, 10)
    world = World([[good[0][0], *[b"poison"] * 200], []])
    serve(world, plan("full", "arrival"), PACE, chunk=5)
    assert JournalRecord.from_bytes(world.stream("journal")[-1]).ahead
    world.input[1] = good[1]
    world.checkpoints = world.checkpoints if keep_checkpoints else []
    serve(world, plan("full", "arrival"), PACE, chunk=5)
    world.input[0] += good[0][1:]
    serve(world, plan("full", "arrival"), PACE, chunk=5)

    letters = [DeadLetter.from_bytes(value).record.position for value in world.stream("dead-letters")]
    assert sorted(letters) == [(0, offset) for offset in range(1, 201)]
    assert len(world.codes()) == len({code.position for code in world.codes()}) == 20


def test_another_order_repeats_no_refusal():
    """The order of batches may change between two lives; what was refused ahead of its turn stays refused."""
    good = inputs(2, 10)
    world = World([[good[0][0], *[b"poison"] * 200], []])
    serve(world, plan("full", "arrival"), PACE, chunk=5)
    world.input[0] += good[0][1:]
    world.input[1] = good[1][:3]
    serve(world, plan("full", "canonical"), PACE, chunk=5)
    world.input[1] = good[1] * 30
    serve(world, plan("full", "canonical"), PACE, chunk=5)

    letters = [DeadLetter.from_bytes(value).record.position for value in world.stream("dead-letters")]
    assert sorted(letters) == [(0, offset) for offset in range(1, 201)]


def test_refused_records_do_not_count_as_tensors():
    """However many bytes wait, a partition is read while a minibatch lacks tensors."""
    batcher = Batcher(Batching(4), [0])
    for k in range(40):
        record = Record(Position(0, k), None, bytes(5_000_000 if k < 3 else 10))
        tensor = {"tensor": Tensor(np.ones((4, 3))), "parts": (record,)}
        refused = {"refused": (Refusal(record, "DataError", "why"),)}
        batcher.add(Item(record.position, 0.0, **(tensor if k < 3 else refused)))

    assert batcher.complete(0.0) is None
    assert batcher.hungry == {0}


def test_refused_records_do_not_wait_for_ever():
    """Without another tensor to come, the dead letter comes after a second, and the batches stay the same."""
    good = inputs(1, 10)[0]
    world, calm = World([[*good[:6], b"poison", None]]), World([[*good[:6], b"poison", None, *good[6:]]])
    serve(world, plan(), PACE, chunk=20)
    assert len(world.stream("dead-letters")) == 2
    world.input = calm.input
    serve(world, plan(), PACE, chunk=20)
    serve(calm, plan(), PACE, chunk=20)

    assert len(world.stream("dead-letters")) == 2
    assert world.stream("codes") == calm.stream("codes")


def test_many_refusals_are_many_records():
    """A message of thousands of pieces that is refused does not make a record of the journal that nobody can read."""
    pieces = [chunk.to_bytes() for chunk in split(bytes(500_000), "\U0001f600" * 64, 100)]
    world = World([[*inputs(1, 4)[0], *pieces[:-2], pieces[-1], *inputs(1, 5)[0]]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stream_ocpdl.stream.formats.SLACK", 1_000_000)
        serve(world, plan(), PACE, chunk=500)
        again, _ = serve(world, plan(), PACE, chunk=500)

    records = [JournalRecord.from_bytes(value) for value in world.stream("journal")]
    assert sum(len(record.refused) for record in records) == len(pieces) - 1 == len(world.stream("dead-letters"))
    assert max(len(record.refused) for record in records) <= 1000
    assert again.progress.state.N == 5


def test_a_lost_journal_is_no_new_beginning():
    """If the journal is gone and checkpoints are not, beginning again would publish everything twice: it is refused."""
    world = learned()
    world.written = [output for output in world.written if output.stream != "journal"]

    with pytest.raises(LineageError, match="journal of model is empty"):
        serve(world, plan(), PACE)


def test_another_input_is_refused(monkeypatch):
    """Positions in one input mean nothing in another, with a checkpoint or without."""
    monkeypatch.setattr("tests.fakes.Source.identity", "another input")
    for checkpoints in (True, False):
        with monkeypatch.context() as before:
            before.setattr("tests.fakes.Source.identity", "the input")
            world = learned()
        world.checkpoints = world.checkpoints if checkpoints else []
        with pytest.raises(LineageError, match="the input is another input"):
            serve(world, plan(), PACE)


def test_another_number_of_shards_is_refused(monkeypatch):
    """Journal and checkpoints have it in the identity of their input; the message says which number it was."""
    for keep in (True, False):
        world = learned()
        world.checkpoints = world.checkpoints if keep else []
        monkeypatch.setattr(Source, "identity", "the input in memory, shard 0 of 2")

        with pytest.raises(LineageError, match=r"begun with shards: 1, and is to have 2 now.*Set shards to 1 again"):
            serve(world, plan(), PACE)
        monkeypatch.undo()


def test_one_shard_has_the_bits_that_it_had():
    """The lineage of a model with one shard, and of its dictionaries, is what it was before there were shards."""
    assert plan().lineage() == plan(shards=2).lineage()
    assert named("input", 0, 1) == "input"
    with pytest.raises(ConfigError, match="shard must be a whole number below 2, not 2"):
        plan(shards=2, shard=2)


def test_codes_and_snapshots_name_their_shard():
    """And snapshots have it as their key, so that compaction keeps the newest of each."""
    world = World(inputs())
    serve(world, plan(shard=1, shards=2), PACE)

    assert {code.dictionary.shard for code in world.codes()} == {1}
    assert {output.key for output in world.written if output.stream == "snapshots"} == {b"1"}


def test_a_replay_can_go_on():
    """Followed record by record while it grows, a journal leads to the same state as in one go; nothing is written."""
    world = World(inputs(count=20))
    serve(world, plan(), PACE)
    follower = Follower(plan(), Recovery(Source(world), Journal(world), Store(world, no_crash), str))
    first = follower.catch_up()
    world.input = [a + b for a, b in zip(world.input, inputs(count=20), strict=True)]
    before = len(world.written), list(world.checkpoints)
    assert follower.catch_up().replayed == 0
    assert (len(world.written), world.checkpoints) == before
    pipeline, _ = serve(world, plan(), PACE)
    second = follower.catch_up()

    assert first.progress.state.t < second.progress.state.t
    assert second.progress.state.digest() == pipeline.progress.state.digest()
    assert second.progress.link == pipeline.progress.link
    assert second.replayed == second.progress.state.t - first.progress.state.t
    assert second.behind == first.replayed + second.replayed  # steps that no checkpoint it knows of has


def test_a_follower_discards_nothing():
    """A checkpoint that it cannot use is passed over, and stays where it is: that is for the owner to judge."""
    world = learned()
    world.checkpoints[0] = (world.checkpoints[0][0], b"damaged")
    follower = Follower(plan(), Recovery(Source(world), Journal(world), Store(world, no_crash), str))
    kept = list(world.checkpoints)

    assert follower.catch_up() is not None
    assert world.checkpoints == kept


def test_repeated_delivery_is_noticed():
    """A record that is delivered twice is a fault of the client, and is not learned twice."""
    world = World(inputs(1, 20))
    pipeline = Pipeline(plan(), beginning(plan(), {0: 0}), "input")
    records = [Record(Position(0, k), None, value) for k, value in enumerate(world.input[0])]
    pipeline.feed(records[:7], 0.0)

    with pytest.raises(LineageError, match="delivered offset 5 again"):
        pipeline.feed(records[5:9], 0.0)


def test_an_unknown_event_is_refused():
    """A journal written by a later release is not half understood."""
    record = JournalRecord("merger", GENESIS)

    with pytest.raises(LineageError, match="'merger'"):
        replay(plan(), beginning(plan(), {0: 0}), record.to_bytes(), [])
