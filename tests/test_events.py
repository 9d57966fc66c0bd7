"""What operators ask of a running model: journaled, answered once, respected by every replay; and other epochs."""

import re
from collections import Counter
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_ocpdl import Problem
from stream_ocpdl.errors import ConfigError, LineageError
from stream_ocpdl.evidence import Expected
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.checkpoint import NoStore
from stream_ocpdl.stream.genesis import Beginning, begun
from stream_ocpdl.stream.history import Present, entries, find, records_of, window
from stream_ocpdl.stream.messages import JournalRecord, Request, Snapshot, Version, link
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.recovery import Recovery, rebuild
from stream_ocpdl.stream.replaying import replay_all
from stream_ocpdl.stream.service import Pace
from stream_ocpdl.stream.warm import Warm
from tests.fakes import Crash, Journal, Source, Store, World, serve
from tests.test_pipeline import check_journal, crashing, inputs, live

PROBLEM = Problem(shape=(4, 3), rank=2, batch_size=5, sparsity=0.01)
PACE = Pace(commit_interval_ms=20, checkpoint_every=3)


def plan(problem=PROBLEM, close="full", order="canonical"):
    return Plan("model", problem, Batching(5, close, order, linger_ms=30), snapshot_every=4, digest_every=2)


def asked(world):
    """The requests of a world that can be read, and the records that answer them."""
    records = [JournalRecord.from_bytes(value) for value in world.stream("journal")]
    return [r for r in records if r.request is not None]


def reconfigure(name, **change):
    return Request(name, "reconfigure", change).to_bytes()


def rollback(name, t, epoch=0, present=0):
    return Request(name, "rollback", t=t, epoch=epoch, present=present).to_bytes()


def scratch(world, chosen):
    """Everything replayed from the journal and the input alone, and what that says was to be published."""
    source, journal = Source(world), Journal(world)
    base = begun(chosen, journal)
    expected = Expected(base, source.identity)
    found = replay_all(base, Recovery(source, journal, NoStore(), str, expected.after_record))
    return found, expected


def check_promise(world, chosen, end):
    """Each input in one step or refused, each code and snapshot published once and as a replay finds it, and the live
    state that of a replay, in order from scratch or the short way.
    """
    used, refused = check_journal(world)
    assert len(used) == len(set(used))
    assert not refused & set(used)
    found, expected = scratch(world, chosen)
    assert found.progress.state.digest() == end.progress.state.digest()
    assert Counter(world.stream("codes")) == expected.codes
    assert Counter(world.stream("snapshots")) == expected.snapshots
    assert len({code.position for code in world.codes()}) == len(world.codes())
    versions = [Snapshot.from_bytes(value).version for value in world.stream("snapshots")]
    assert len(set(versions)) == len(versions)
    short = rebuild(begun(chosen, Journal(world)), Recovery(Source(world), Journal(world), NoStore(), str))
    assert short.progress.state.digest() == end.progress.state.digest()
    assert short.progress.terms == end.progress.terms == found.progress.terms
    assert short.progress.epoch == end.progress.epoch


ASKED = st.one_of(
    st.builds(lambda x: {"sparsity": x}, st.sampled_from([0.02, 0.5, 0.0, 3.0])),
    st.builds(lambda x: {"ridge": x}, st.sampled_from([0.1, 1.0])),
    st.builds(lambda x: {"weights": x}, st.sampled_from(["balanced", "constant 0.5", "power 0.8 0.1", "nonsense"])),
    st.builds(lambda x: {"radius": x}, st.sampled_from([0.05, None, "auto"])),
    st.builds(lambda t, e, p: (t, e, p), st.integers(0, 14), st.integers(0, 2), st.integers(0, 2)),
    st.sampled_from([b"nonsense", None, {}]),
)


def request(k, what):
    if isinstance(what, dict):
        return reconfigure(f"{k}", **what)
    return rollback(f"{k}", *what) if isinstance(what, tuple) else what


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(1, 20), ASKED), max_size=6),
    st.lists(st.integers(1, 90), max_size=12),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 29)), max_size=10, unique=True),
    st.sampled_from([("full", "canonical"), ("linger", "arrival")]),
    st.integers(1, 7),
)
def test_crashes_with_requests(wanted, crashes, poison, batching, chunk):
    """Crash anywhere, any number of times, whatever is asked for: what was promised holds, and each request that can be
    read is answered once and in order.
    """
    world, chosen = World(inputs(count=30, poison=poison)), plan(PROBLEM, *batching)
    world.requests = [(due, request(k, what)) for k, (due, what) in enumerate(wanted)]
    end = live(world, chosen, crashing(crashes), chunk)

    check_promise(world, chosen, end)
    names = [record.request for record in asked(world)]
    there = takewhile(lambda entry: entry[0] <= len(world.stream("journal")), world.requests)
    assert names == [f"{k}" for k, (_, value) in enumerate(there) if value not in (b"nonsense", None)]


def learned(*requests, count=30, problem=PROBLEM, **options):
    """A world with twelve steps, in which requests were answered; its pipeline."""
    world = World(inputs(count=count))
    world.requests = list(requests)
    return world, serve(world, plan(problem), PACE, **options)[0]


def test_other_terms():
    """After a reconfiguration steps are made with the new terms, and a snapshot says which weights those are."""
    world, end = learned((4, reconfigure("a", sparsity=0.5, weights="constant 0.25", radius=0.1)))

    (record,) = asked(world)
    assert (record.event, record.t, record.control) == ("reconfigure", 3, 1)
    assert record.terms == (0.5, 0.0, "constant 0.25", 0.1)
    later = [r for r in map(JournalRecord.from_bytes, world.stream("journal")) if r.t > 3]
    assert {r.weight for r in later if r.event == "step"} == {0.25}
    assert {r.terms for r in later} == {record.terms}
    assert Snapshot.from_bytes(world.stream("snapshots")[-1]).schedule == "Constant(value=0.25)"
    assert end.progress.problem(plan()).radius == 0.1
    check_promise(world, plan(), end)


def test_settings_after_a_reconfiguration():
    """A service goes on with the terms it began with or those in force, and the latter hold; with others it does not
    start, and the error says which command changes them.
    """
    world, _ = learned((4, reconfigure("a", sparsity=0.5)))
    for checkpoints in (world.checkpoints, []):
        for sparsity in (0.01, 0.5):
            world.checkpoints = list(checkpoints)
            end, reports = serve(world, plan(replace(PROBLEM, sparsity=sparsity)), PACE)
            assert end.progress.problem(plan()).sparsity == 0.5
            assert any("sparsity 0.01 → 0.5" in line for line in reports) == (sparsity == 0.01)
        for wrong, said in (({"sparsity": 0.7}, "sparsity 0.5 → 0.7"), ({"radius": 2.0}, "radius auto → 2")):
            with pytest.raises(LineageError, match=f"{said}.*stream-ocpdl reconfigure"):
                serve(world, plan(replace(PROBLEM, **wrong)), PACE)
        with pytest.raises(LineageError, match="another problem"):
            serve(world, plan(replace(PROBLEM, seed=1)), PACE)


SENSELESS = {
    "nothing": ({}, "nothing to change"),
    "a schedule that is none": ({"weights": "sometimes"}, "weights must be 'power β'"),
    "a schedule out of range": ({"weights": "power 9"}, r"weights: beta must be in \(0, 4\]"),
    "a penalty that goes": ({"sparsity": 0.0}, "a penalty cannot come"),
}


@pytest.mark.parametrize(("change", "said"), SENSELESS.values(), ids=SENSELESS)
def test_senseless_terms_are_declined(change, said):
    """A request that makes no sense is answered with the reason, and changes nothing."""
    world, end = learned((4, reconfigure("a", **change)))

    (record,) = asked(world)
    assert record.event == "declined"
    assert re.search(said, record.reason)
    assert end.progress.state.digest() == learned()[1].progress.state.digest()
    check_promise(world, plan(), end)


def test_a_rollback():
    """The state is that of the earlier step, reading goes on, versions have another epoch, and a snapshot shows it."""
    calm, _ = learned()
    world, end = learned((8, rollback("a", 2)))

    (record,) = asked(world)
    assert (record.event, record.t, record.N, record.epoch, record.target) == ("rollback", 2, 10, 1, (0, 2, 2))
    short = rebuild(plan(), Recovery(Source(calm), Journal(calm), NoStore(), str), 2)
    assert record.state == short.progress.state.digest()
    assert (end.progress.epoch, end.progress.state.t) == (1, 2 + 12 - 7)
    assert [code.dictionary for code in world.codes()][35:40] == [Version("model", 2, epoch=1)] * 5
    shown = [Snapshot.from_bytes(value) for value in world.stream("snapshots")]
    assert [str(found.version) for found in shown] == [
        "model/0/0/1",
        "model/0/0/4",
        "model/0/1/2",
        "model/0/1/4",
    ]
    assert len(world.codes()) == 60
    check_promise(world, plan(), end)


def test_back_and_forth():
    """A rollback can be undone: what was left behind is still a version; and a genesis is one."""
    world, end = learned(
        (5, rollback("a", 2)),
        (8, rollback("b", 4, 0, 1)),
        (9, rollback("c", 0, 0, 2)),
        (11, reconfigure("d", ridge=1.0)),
    )

    assert [(r.event, r.target) for r in asked(world)] == [
        ("rollback", (0, 2, 2)),
        ("rollback", (0, 4, 4)),
        ("rollback", (0, 0, 0)),
        ("reconfigure", None),
    ]
    check_promise(world, plan(), end)


IMPOSSIBLE = {
    "a step to come": (rollback("a", 50), "no step 50 in epoch 0; it stands at step 7 of epoch 0"),
    "an epoch to come": (rollback("a", 2, 1), "no step 2 in epoch 1"),
    "another present": (rollback("a", 2, 0, 3), "asked for in epoch 3, and the model is in 0"),
}


@pytest.mark.parametrize(("request_", "said"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_rollbacks_are_declined(request_, said):
    """The reason is told, and learning goes on as if nothing had been asked."""
    world, end = learned((8, request_))

    (record,) = asked(world)
    assert record.event == "declined"
    assert said in record.reason
    assert end.progress.state.digest() == learned()[1].progress.state.digest()
    check_promise(world, plan(), end)


def test_a_rollback_whose_input_is_gone_is_declined():
    """Without the input of the steps up to there, or a checkpoint, the state cannot be had; the service goes on."""
    whole = inputs(count=50)
    world = World([line[:30] for line in whole])
    serve(world, plan(), PACE)
    world.checkpoints = world.checkpoints[:1]
    world.input = whole
    world.input[0][3] = b"changed"
    world.requests = [(1, rollback("a", 2))]
    end, _ = serve(world, plan(), PACE)

    (record,) = asked(world)
    assert record.event == "declined"
    assert "the input of step" in record.reason
    assert end.progress.state.t == 20


@pytest.mark.parametrize("point", ["before-rollback", "before-commit", "after-commit", "after-answer", "in-checkpoint"])
@pytest.mark.parametrize("visit", [1, 2, 3, 4, 5, 6, 7, 8])
def test_killed_while_going_back(point, visit):
    """Killed at each point of a rollback: it is done once, and all promises hold."""
    world, visits = World(inputs(count=30)), Counter()
    world.requests = [(8, rollback("a", 2)), (10, reconfigure("b", ridge=0.5))]

    def at(name):
        visits[name] += 1
        if name == point and visits[name] == visit:
            raise Crash(name)

    end = live(world, plan(), at)

    assert [record.event for record in asked(world)] == ["rollback", "reconfigure"]
    check_promise(world, plan(), end)


def test_the_state_to_go_back_to_is_kept():
    """Before a rollback is committed its state is a checkpoint; afterwards nothing before it has to be read again."""
    world = World(inputs(count=30))
    world.requests = [(8, rollback("a", 1))]

    def at(name):
        if name == "after-commit" and asked(world):
            raise Crash(name)

    with pytest.raises(Crash):
        serve(world, plan(), PACE, at)
    assert world.checkpoints[0][0].t == 1
    world.input = [
        [b"gone" if k < world.positions[p] else value for k, value in enumerate(line)]
        for p, line in enumerate(world.input)
    ]
    end, reports = serve(world, plan(), PACE)

    assert "ready at step 1, 0 steps replayed" in reports
    assert end.progress.epoch == 1
    assert len(world.codes()) == 60


def test_a_stale_request_is_not_done_again():
    """Whoever asks again because no answer came does not go back twice: the second was for an epoch that is over."""
    world, end = learned((8, rollback("a", 2)), (10, rollback("b", 2)))

    assert [record.event for record in asked(world)] == ["rollback", "declined"]
    check_promise(world, plan(), end)


def test_a_rollback_to_the_future_is_refused():
    """A journal that goes back to a record that came later is nobody's."""
    world, _ = learned((8, rollback("a", 2)))
    world.checkpoints = []
    place = next(k for k, output in enumerate(world.written) if b"rollback" in output.value)
    record = JournalRecord.from_bytes(world.written[place].value)
    forged = replace(record, target=record.target._replace(offset=100)).to_bytes()
    world.written = [*world.written[:place], world.written[place]._replace(value=forged)]

    with pytest.raises(LineageError, match="came later"):
        serve(world, plan(), PACE)


# ── versions and the window ────────────────────────────────────────────────────────────────────────────────────────


def test_every_version_can_be_rebuilt():
    """Whatever step of whatever epoch: the state is the one that the journal had, from checkpoints or from scratch."""
    world, _ = learned((6, rollback("a", 2)), (9, reconfigure("b", sparsity=0.3)), (12, rollback("c", 5)))
    journal = Journal(world)
    digests = {offset: record.state for offset, record in records_of(journal) if record.state}
    for store in (NoStore(), Store(world, str)):
        for entry in entries(records_of(journal)):
            found = rebuild(plan(), Recovery(Source(world), journal, store, str), entry.offset)
            assert (found.progress.state.t, found.progress.epoch, found.journal_offset) == (
                entry.t,
                entry.epoch,
                entry.offset,
            )
            assert found.progress.state.digest() == digests.get(entry.offset, found.progress.state.digest())
    assert find(journal, 3).epoch == 1
    assert find(journal, 3, 0).epoch == 0
    with pytest.raises(LineageError, match="has no step 40; it stands at step"):
        find(journal, 40)


def test_a_long_journal_is_read_twice(monkeypatch):
    """Where records are too many to be kept, a recovery comes to the same."""
    world, end = learned((8, rollback("a", 2)))
    for most in (0, 700, 10**6):
        monkeypatch.setattr("stream_ocpdl.stream.recovery.LOOKED_THROUGH", most)
        found = rebuild(plan(), Recovery(Source(world), Journal(world), NoStore(), str))
        assert found.progress.state.digest() == end.progress.state.digest()
        assert found.replayed == 7


def test_the_window():
    """Steps whose input is gone cannot be rebuilt, until a checkpoint; a rollback is as good as where it went."""
    world, _ = learned((8, rollback("a", 2)))
    records = list(Journal(world).read())
    links = {offset: link(value) for offset, value in records}

    def there(low):
        return Present(Source.identity, {0: low, 1: low})

    assert window(records, {}, there(0)).spans == [(0, 0, 7, True, ""), (1, 2, 7, True, "")]
    spans = window(records, {4: links[4]}, there(6)).spans
    assert [span[:4] for span in spans] == [(0, 0, 0, True), (0, 1, 3, False), (0, 4, 7, True), (1, 2, 7, False)]
    assert spans[1].why == (
        "step 1 learned offset 0 of partition 0, and the input begins at 6 now; there is no checkpoint between"
    )
    assert window(records, {2: links[2]}, there(6)).spans[-1][:4] == (1, 2, 7, True)
    assert window(records, {2: links[4]}, there(6)).spans[-1][:4] == (1, 2, 7, False)
    assert not window(records[1:], {}, there(0)).spans[0].rebuilt


# ── epochs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def elsewhere(monkeypatch):
    """Another numeric fingerprint, under which steps come out otherwise in the last bits."""
    from stream_ocpdl.stream import pipeline, progress

    def other(problem, state, batch, *options, **more):
        batch = replace(batch, X=np.ascontiguousarray(batch.X * (1 + 2e-15)))
        return learn(problem, state, batch, *options, **more)

    learn = progress.learn

    def move():
        monkeypatch.setattr(progress, "fingerprint", lambda: "elsewhere")
        monkeypatch.setattr(progress, "learn", other)
        monkeypatch.setattr(pipeline, "learn", other)

    return move


@pytest.mark.parametrize("kept", ["all", "some", "none"])
def test_another_fingerprint_is_a_new_epoch(elsewhere, kept):
    """Elsewhere what was learned here is accepted within a tolerance: it is journaled, a checkpoint is written, and a
    restart finds the bits of its own.
    """
    whole = inputs(count=50)
    world = World([line[:30] for line in whole])
    serve(world, plan(), PACE)
    world.checkpoints = {"all": world.checkpoints, "some": world.checkpoints[1:], "none": []}[kept]
    elsewhere()
    world.input = whole
    end, reports = serve(world, plan(), PACE)
    epoch = next(r for r in map(JournalRecord.from_bytes, world.stream("journal")) if r.event == "epoch")

    assert any("a new epoch, 1" in line for line in reports)
    assert (epoch.t, epoch.epoch, epoch.fingerprint, len(epoch.figures)) == (12, 1, "elsewhere", 5)
    again, _ = serve(world, plan(), PACE)
    assert again.progress.epoch == 1
    assert again.progress.state.digest() == end.progress.state.digest()
    assert len({code.position for code in world.codes()}) == len(world.codes()) == 100


@pytest.mark.parametrize("point", ["before-commit", "after-commit", "in-checkpoint"])
def test_killed_at_the_beginning_of_an_epoch(elsewhere, point):
    """Killed before or after the epoch is committed, or in its checkpoint: it begins once, and the bits are found."""
    whole, visits = inputs(count=50), Counter()
    world = World([line[:30] for line in whole])
    serve(world, plan(), PACE)
    world.checkpoints = world.checkpoints[1:]
    elsewhere()
    world.input = whole

    def at(name):
        visits[name] += 1
        if name == point and visits[name] == 1:
            raise Crash(name)

    end = live(world, plan(), at)
    events = [JournalRecord.from_bytes(value).event for value in world.stream("journal")]
    assert events.count("epoch") == 1
    assert len(world.codes()) == 100
    assert live(world, plan(), crashing([])).progress.state.digest() == end.progress.state.digest()


def test_other_results_elsewhere_are_refused(monkeypatch):
    """More than rounding is no new epoch but another history; and under the same fingerprint not even rounding is."""
    from stream_ocpdl.stream import progress

    learn = progress.learn

    def other(problem, state, batch, *options, **more):
        batch = replace(batch, X=np.ascontiguousarray(batch.X * factor))
        return learn(problem, state, batch, *options, **more)

    world = World(inputs(count=30))
    serve(world, plan(), PACE)
    world.checkpoints = []
    monkeypatch.setattr(progress, "learn", other)
    factor = 1 + 1e-14
    with pytest.raises(LineageError, match="not the one that the journal has"):
        serve(world, plan(), PACE)
    monkeypatch.setattr(progress, "fingerprint", lambda: "elsewhere")
    factor = 1 + 1e-3
    with pytest.raises(LineageError, match="more than rounding"):
        serve(world, plan(), PACE)


# ── beginnings ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_warm_start():
    """A new model begins with the loadings of another; its journal alone can rebuild it, and nothing is asked again."""
    _, end = learned()
    loadings = tuple(end.progress.state.loadings)
    begin = Beginning(lambda: {0: 4, 1: 6}, lambda: Warm(loadings, "other/0/0/12"))
    world, warm = learned(begin=begin)
    first = JournalRecord.from_bytes(world.stream("journal")[0])

    assert (first.reason, first.resume, len(first.loadings)) == ("other/0/0/12", {0: 4, 1: 6}, 8 * 2 * 7)
    assert world.codes()[0].position.offset == 4
    cold, _ = learned(begin=Beginning(lambda: {0: 4, 1: 6}))
    assert world.stream("codes")[0] != cold.stream("codes")[0]
    found, _ = scratch(world, plan())
    assert found.progress.state.digest() == warm.progress.state.digest()
    assert rebuild(plan(), Recovery(Source(world), Journal(world), NoStore(), str), 0).progress.state.scale > 0


def test_warm_starts_that_do_not_fit():
    """Other shapes, other sets, numbers that are none: the error names warm_start and nothing was begun."""
    for loadings, said in (
        ([np.ones((4, 3)), np.ones((3, 3))], r"the shapes \[\(4, 3\), \(3, 3\)\], those of this problem"),
        ([np.ones((4, 2)), np.ones((3, 2))], "outside of their set"),
        ([np.full((4, 2), np.nan), np.ones((3, 2))], "not finite"),
        ([np.zeros((4, 2)), np.ones((3, 2))], "all zero"),
    ):
        world = World(inputs(count=30))
        with pytest.raises(ConfigError, match=f"warm_start: .*{said}"):
            serve(world, plan(), PACE, begin=Beginning(lambda: {0: 0, 1: 0}, lambda u=loadings: Warm(tuple(u), "x")))
        assert world.written == []


def test_a_damaged_warm_genesis_is_refused():
    """Loadings that were changed in the journal do not have the digest of its first state."""
    begin = Beginning(lambda: {0: 0, 1: 0}, lambda: Warm((np.eye(4, 2), np.eye(3, 2)), "x"))
    world, _ = learned(begin=begin)
    first = JournalRecord.from_bytes(world.stream("journal")[0])
    world.checkpoints, world.written = (
        [],
        [world.written[0]._replace(value=replace(first, loadings=np.full(14, 0.5).tobytes()).to_bytes())],
    )

    with pytest.raises(LineageError, match="not the one that the journal has"):
        serve(world, plan(), PACE)
