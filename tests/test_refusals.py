"""Too much that is refused stops the service; a step that is not finite costs the tensors because of which it is so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ocpdl import NumericError, Problem, State
from stream_ocpdl.errors import ConfigError, TooMuchRefused
from stream_ocpdl.ocpdl import blame as blaming
from stream_ocpdl.ocpdl import fused, small
from stream_ocpdl.ocpdl.batch import gather
from stream_ocpdl.ocpdl.learner import advance
from stream_ocpdl.stream import pipeline as pipelines
from stream_ocpdl.stream.messages import DeadLetter, JournalRecord, Tensor, split
from stream_ocpdl.stream.refusals import Refusals, Tally
from tests.fakes import Crash, World, serve
from tests.test_pipeline import PACE, PROBLEM, check_journal, crashing, flood, inputs, live, plan


def letters(world):
    return [DeadLetter.from_bytes(value) for value in world.stream("dead-letters")]


# ── the limit ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_broken_topic_stops_the_service():
    """After so many in a row nothing more is committed; what to do is said, and a restart does not forgive."""
    world = World([inputs(1, 10)[0] + [b"poison"] * 5000])
    for _ in range(3):
        with pytest.raises(TooMuchRefused, match=r"in a row were refused, the last because value has 6 bytes") as stop:
            serve(world, plan(), PACE, chunk=50)
        assert len(world.codes()) == 10
        assert 900 <= len(letters(world)) <= 1000
    assert stop.value.exit_code == 9
    assert "--set refusals.consecutive=null" in str(stop.value)


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_restart_does_not_forgive_what_was_refused_ahead(checkpoints):
    """Tensors wait before the poison, so its place is kept and it is read again in every life: it counts once."""
    world = World(flood(5000))
    counts = []
    for _ in range(3):
        with pytest.raises(TooMuchRefused):
            serve(world, plan(), PACE, chunk=50)
        counts.append(len(letters(world)))
        world.checkpoints = world.checkpoints if checkpoints else []

    assert 900 <= counts[0] == counts[2] <= 1000
    assert world.codes() == []


def test_poison_that_is_no_numbers_counts_after_a_restart():
    """Tensors that were found bad only in their minibatch, and were let go ahead, are still counted as refused."""
    bad = Tensor(np.full((4, 3), np.nan)).to_bytes()
    world = World([[inputs(1, 1)[0][0], *[bad] * 5000]])
    for _ in range(3):
        with pytest.raises(TooMuchRefused, match="nan is not finite"):
            serve(world, plan(), PACE, chunk=50)

    assert 900 <= len(letters(world)) <= 1000


def test_the_limit_can_be_lifted_for_once():
    """With other settings the same model goes on where it stopped, and in the end everything is done with."""
    values = [*inputs(1, 10)[0], *[b"poison"] * 1500, *inputs(1, 10)[0]]
    world = World([values])
    with pytest.raises(TooMuchRefused):
        serve(world, plan(), PACE, chunk=50)
    serve(world, plan(refusals=Refusals(None, None)), PACE, chunk=50)

    assert len(letters(world)) == 1500
    assert len(world.codes()) == 20
    assert world.positions == {0: 1520}


def test_half_a_topic_of_poison_is_noticed():
    """Never many in a row, but more than the share of a window."""
    good = inputs(1, 400)[0]
    values = [value for k in range(400) for value in (good[k], b"poison", b"poison")]
    with pytest.raises(TooMuchRefused, match=r"\d+ of \d+ messages were refused") as stop:
        serve(World([values]), plan(refusals=Refusals(1000, 0.5, 300)), PACE, chunk=30)

    assert "--set refusals.ratio=null" in str(stop.value)


def test_a_little_poison_goes_on_for_ever():
    """One in a hundred, also in bursts, in a long stream."""
    good = inputs(1, 100)[0]
    world = World([[*good * 20, *[b"poison"] * 20] * 3])
    serve(world, plan(refusals=Refusals(20, 0.02, 1000)), PACE, chunk=100)

    assert len(letters(world)) == 60
    assert len(world.codes()) == 6000


def test_large_minibatches_and_poison_between():
    """Poison is let go while a large minibatch waits; the tensors between it count, though they are not learned yet."""
    good = inputs(1, 2000)[0]
    values = [value for k in range(2000) for value in (good[k], b"poison")]
    chosen = plan(refusals=Refusals(5, 0.6, 100))
    chosen = type(chosen)("model", PROBLEM, type(chosen.batching)(2000), refusals=chosen.refusals)
    world = World([values])
    serve(world, chosen, PACE, chunk=100)

    assert len(world.codes()) == 2000
    assert len(letters(world)) >= 1999


def test_a_message_in_pieces_counts_once():
    """One lost piece of a message of thousands is one mistake, however many dead letters it makes."""
    pieces = [chunk.to_bytes() for chunk in split(bytes(500_000), "id", 100)]
    world = World([[*inputs(1, 4)[0], *pieces[:-2], pieces[-1], *inputs(1, 5)[0]]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stream_ocpdl.stream.formats.SLACK", 1_000_000)
        serve(world, plan(refusals=Refusals(1)), PACE, chunk=500)

    assert len(letters(world)) == len(pieces) - 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.booleans(), min_size=30, max_size=60),
    st.lists(st.integers(1, 40), max_size=6),
    st.integers(1, 7),
    st.sampled_from([1, 3, 100]),
    st.sampled_from([Refusals(3, None, 10), Refusals(None, 0.5, 10), Refusals(5, 0.4, 20)]),
)
def test_it_stops_at_the_same_place(bad, crashes, chunk, patience, limits):
    """Whether it stops is decided by the stream: killed or not, delivered in whatever chunks, let go ahead or not.

    The last step before may be committed, or stand with the poison behind it.
    """
    good = inputs(1, len(bad))[0]
    values = [[b"poison" if wrong else good[k] for k, wrong in enumerate(bad)]]
    chosen, ends = plan(refusals=limits), []
    for world, at in ((World(values), crashing(crashes)), (World(values), crashing([]))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("stream_ocpdl.stream.batching.MOST_REFUSED", patience)
            try:
                live(world, chosen, at, chunk)
                stopped = False
            except TooMuchRefused:
                stopped = True
        ends.append((stopped, len(world.codes())))
        check_journal(world)

    assert ends[0][0] == ends[1][0]
    assert abs(ends[0][1] - ends[1][1]) <= 5 * ends[0][0]


def test_tally():
    """Windows lie one after the other, also when a run goes over several, or the window was made smaller."""
    free = Refusals(None, None, 10)

    assert free.count(Tally(), (4, -3, 1), "") == Tally(0, 8, 3)
    assert free.count(Tally(0, 8, 3), (-25,), "") == Tally(25, 3, 3)
    assert Refusals(None, None, 5).count(Tally(0, 8, 3), (-1,), "") == Tally(1, 1, 1)
    assert Refusals(25, 1.0, 10).count(Tally(), (-25, 1, -25), "") == Tally(25, 1, 1)
    with pytest.raises(TooMuchRefused, match="6 of 9"):
        Refusals(None, 0.5, 10).count(Tally(), (3, -6, 5), "")


@pytest.mark.parametrize("wrong", [{"consecutive": -1}, {"window": 0}, {"ratio": 1.5}, {"window": None}])
def test_limits_that_make_no_sense(wrong):
    """They are refused by name."""
    with pytest.raises(ConfigError, match=rf"refusals\.{next(iter(wrong))} must be"):
        Refusals(**wrong)


# ── a step that is not finite ──────────────────────────────────────────────────────────────────────────────────


def overflowing(monkeypatch, fails):
    """Steps whose minibatch fails have a result that is not finite; what was to be consumed is consumed."""

    def step(problem, state, batch, workers, consume=False):
        made = advance(problem, state, batch, workers, consume)
        if fails(batch.X):
            raise NumericError("step has a result that is not finite and was discarded; rescale the data")
        return made

    monkeypatch.setattr(pipelines, "learn", lambda *given: step(*given, consume=True))
    monkeypatch.setattr(blaming, "advance", lambda *given: step(*given))


def with_large(*places, count=40):
    values = inputs(1, count)
    for k in places:
        values[0][k] = Tensor(np.full((4, 3), 1e6)).to_bytes()
    return values


def test_the_culprits_are_refused_and_the_rest_is_learned(monkeypatch):
    """The minibatch is learned without them, as if they had been refused when they came."""
    overflowing(monkeypatch, lambda X: X.max() >= 1e6)
    world, calm = World(with_large(7, 8, 23)), World(with_large(count=40))
    for k in (23, 8, 7):
        del calm.input[0][k]
    end, reports = serve(world, plan(), PACE)
    without, _ = serve(calm, plan(), PACE)

    assert [(letter.record.position.offset, letter.error) for letter in letters(world)] == [
        (k, "NumericError") for k in (7, 8, 23)
    ]
    assert "with this tensor has a result that is not finite" in letters(world)[0].reason
    assert end.progress.state.digest() == without.progress.state.digest()
    assert sum("going back" in line for line in reports) == 2
    assert check_journal(world)[1] == {(0, 7), (0, 8), (0, 23)}


def test_a_replay_does_not_bisect(monkeypatch):
    """The journal has what was used and what was refused; whoever replays it takes its word, and has the same bits."""
    overflowing(monkeypatch, lambda X: X.max() >= 1e6)
    world = World(with_large(7, 23))
    end, _ = serve(world, plan(), PACE)
    world.checkpoints = []
    monkeypatch.setattr(blaming, "advance", lambda *_: pytest.fail("bisected again"))
    again, reports = serve(world, plan(), PACE)

    assert again.progress.state.digest() == end.progress.state.digest()
    assert "ready at step 7, 7 steps replayed" in reports


@settings(max_examples=30, deadline=None)
@given(
    st.sets(st.integers(0, 39), max_size=6),
    st.lists(st.integers(1, 40), max_size=8),
    st.integers(1, 7),
)
def test_crashes_around_an_overflow(places, crashes, chunk):
    """Killed before, between and after: each input in one step or one dead letter, and the state of a calm life."""
    with pytest.MonkeyPatch.context() as patch:
        overflowing(patch, lambda X: X.max() >= 1e6)
        world, calm = World(with_large(*places)), World(with_large(*places))
        end = live(world, plan(), crashing(crashes), chunk)
        undisturbed = live(calm, plan(), crashing([]))

    used, refused = check_journal(world)
    assert not refused & set(used)
    assert refused <= {(0, k) for k in places}
    assert end.progress.state.digest() == undisturbed.progress.state.digest()
    assert world.stream("codes") == calm.stream("codes")


def test_only_the_sum_overflows(monkeypatch):
    """No tensor is guilty alone: the first that fit together are learned, the others refused, and it is said."""
    overflowing(monkeypatch, lambda X: X[:, 0, 0].sum() > 3)
    world = World([[Tensor(np.full((4, 3), 1.0)).to_bytes()] * 12])
    serve(world, plan("linger", "arrival"), PACE, chunk=12)

    assert len(world.codes()) + len(letters(world)) == 12
    assert len(letters(world)) > 0
    assert {letter.reason.endswith("though not with it alone") for letter in letters(world)} == {True}
    used, _ = check_journal(world)
    assert used[:3] == [(0, 0), (0, 1), (0, 2)]


def test_a_state_that_is_to_blame(monkeypatch):
    """If zeros overflow as well, no tensor is refused for it: the service ends with 3, as whoever scaled must act."""
    overflowing(monkeypatch, lambda X: True)
    world = World(inputs(1, 10))
    with pytest.raises(NumericError, match="not finite") as error:
        serve(world, plan(), PACE)

    assert error.value.exit_code == 3
    assert world.stream("dead-letters") == world.stream("codes") == []


def test_what_was_learned_before_is_committed(monkeypatch):
    """The steps before the overflow that were not committed yet are, in the transaction before going back."""
    overflowing(monkeypatch, lambda X: X.max() >= 1e6)
    world = World(with_large(22))

    def at(place):
        if place == "in-replay":
            raise Crash

    with pytest.raises(Crash):
        serve(world, plan(), type(PACE)(commit_interval_ms=10_000, checkpoint_every=1000), at, chunk=100)
    assert len(world.codes()) == 20


def test_blame_leaves_the_state_alone():
    """It tries steps, and none of them is taken."""
    problem = Problem(shape=(4, 3), rank=2, batch_size=5)
    state = State.initial(problem)
    batch, _ = gather(problem, list(np.random.default_rng(0).random((5, 4, 3))))
    before = state.digest()

    assert blaming.blame(problem, state, batch) == {}
    assert state.digest() == before


def test_a_consumed_state_is_void(monkeypatch):
    """Why the service goes back: with `consume` a step that raises has already changed the state it was given."""
    problem = Problem(shape=(4, 3), rank=2, batch_size=5)
    rows = list(np.random.default_rng(0).random((5, 4, 3)))
    state, _ = advance(problem, State.initial(problem), gather(problem, rows)[0])
    before = state.digest()
    learn = small.learn
    monkeypatch.setattr(small, "learn", lambda *given: (fused.OVERFLOWN, *learn(*given)[1:]))
    with pytest.raises(NumericError):
        advance(problem, state, gather(problem, rows)[0])
    assert state.digest() == before
    with pytest.raises(NumericError):
        advance(problem, state, gather(problem, rows)[0], consume=True)
    assert state.digest() != before


def test_old_journals_have_no_tally():
    """A record without one is read as if nothing had been refused, and writes none."""
    record = JournalRecord("refusal", "ab" * 32)

    assert JournalRecord.from_bytes(record.to_bytes()).tally is None
    assert b"tally" not in record.to_bytes()
