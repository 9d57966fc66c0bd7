"""Draws of samplers: what is repeated, missing or late is known, after a crash, too; batches of different chains."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ocpdl import Problem
from stream_ocpdl.errors import ConfigError
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.draws import CHAINS, GAPS, Chains, Counts, Draws, key_of
from stream_ocpdl.stream.messages import (
    DeadLetter,
    Draw,
    JournalRecord,
    Manifest,
    Origin,
    Position,
    Refused,
    Request,
    Tensor,
    split,
)
from stream_ocpdl.stream.plan import Plan
from tests.fakes import Crash, World, serve
from tests.test_pipeline import PACE, check_journal, crashing, inputs, live

PROBLEM = Problem(shape=(4, 3), rank=2, batch_size=4)


def plan(close="full", order="canonical", rows="any", size=4, **options):
    return Plan("model", PROBLEM, Batching(size, close, order, 30, rows), digest_every=2, **options)


def value(chain, draw, run="run", tuning=False):
    """A draw whose numbers tell which it is."""
    array = np.random.default_rng([chain, draw]).random((4, 3))
    return Draw(Tensor(array), run, chain, draw, tuning).to_bytes()


def letters(world):
    return [DeadLetter.from_bytes(found) for found in world.stream("dead-letters")]


def places(world):
    return [code.position.offset for code in world.codes()]


# ── what is known of a chain ───────────────────────────────────────────────────────────────────────────────────


def seen(*draws):
    chains = Chains()
    for draw in draws:
        chains = chains.after([Origin("run", 0, draw)], ())
    return chains


def test_counts():
    """In order; behind a gap; late; repeated."""
    assert seen(0, 1, 2).counts == Counts()
    assert seen(7, 8).counts == Counts()
    assert seen(0, 1, 5, 6).counts == Counts(gaps=1)
    assert seen(0, 5, 3, 3, 2, 5).counts == Counts(repeated=2, gaps=1, late=2)
    assert seen(7, 3, 3).counts == Counts(repeated=1, late=1)
    assert Chains().after([Origin("run", 0, 0, True), None], ()).counts == Counts(tuning=1)
    refused = [Refused(0, 1, "RepeatedDraw", "why"), Refused(0, 2, "DecodeError", "why")]
    assert Chains().after([], refused).counts == Counts(repeated=1)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=40))
def test_repeated_means_that_it_came_before(draws):
    """As one finds who remembers everything."""
    chains, before = Chains(), set()
    for chain, draw in draws:
        wrong = Draws().judge(chains, [Origin("run", chain, draw)])
        gaps = chains.known.get(key_of(Origin("run", chain, 0)), (0, ()))[1]
        if len(gaps) < GAPS:
            assert bool(wrong) == ((chain, draw) in before)
        if not wrong:
            before.add((chain, draw))
            chains = chains.after([Origin("run", chain, draw)], ())


def test_memory_is_bounded():
    """Chains without a draw for the longest time are forgotten, and the oldest gaps; never what came last."""
    chains = Chains()
    for chain in range(CHAINS + 10):
        chains = chains.after([Origin("run", chain, 0), Origin("run", 0, chain + 1)], ())
    assert len(chains.known) == CHAINS
    assert Draws().judge(chains, [Origin("run", 0, 1)])
    assert not Draws().judge(chains, [Origin("run", 5, 0)])
    holes = seen(*range(0, 100, 2))
    ((_, gaps),) = holes.known.values()
    assert gaps == tuple((k, k) for k in range(97 - 2 * GAPS + 2, 98, 2))
    assert Draws().judge(holes, [Origin("run", 0, 1)])  # forgotten, and so counted as repeated


def test_what_is_refused():
    """Each policy by itself, and what is refused is not known afterwards."""
    chains = seen(0, 1, 5)

    def judged(draw, of_tuning=False, **policy):
        found = Draws(**policy).judge(chains, [Origin("run", 0, draw, of_tuning)])
        return type(found[0]).__name__ if found else None

    assert judged(5) == "RepeatedDraw"
    assert judged(5, repeated="accept") is None
    assert (judged(9), judged(9, gaps="refuse")) == (None, "DrawBehindGap")
    assert (judged(3), judged(3, late="refuse")) == (None, "LateDraw")
    assert (judged(6, True), judged(6, True, tuning="refuse")) == (None, "TuningDraw")
    two = [Origin("run", 0, 8), Origin("run", 0, 6), Origin("run", 0, 7), None]
    assert list(Draws(gaps="refuse").judge(chains, two)) == [0]


@pytest.mark.parametrize("wrong", ["repeated", "gaps", "late", "tuning"])
def test_policies_that_make_no_sense(wrong):
    """They are refused by name."""
    with pytest.raises(ConfigError, match=rf"draws\.{wrong} must be"):
        Draws(**{wrong: "dead-letter"})
    with pytest.raises(ConfigError, match=r"batching\.rows must be"):
        Batching(rows="some")


# ── in the stream ──────────────────────────────────────────────────────────────────────────────────────────────


def test_repeated_draws_are_dead_letters():
    """Also of draws in pieces; tensors that are no draws may be the same as often as they like."""
    pieces = [chunk.to_bytes() for chunk in split(value(0, 1), "id", 110)]
    plain = inputs(1, 1)[0][0]
    world = World(
        [[value(0, 0), value(0, 0), *pieces, value(1, 0), value(0, 1), plain, plain, value(0, 0, "other"), plain]]
    )
    end, _ = serve(world, plan("linger", "arrival"), PACE, chunk=20)

    assert [letter.error for letter in letters(world)] == ["RepeatedDraw"] * 2
    assert letters(world)[0].reason == "draw 0 of chain 0 of run 'run' came before"
    assert end.progress.draws.counts == Counts(repeated=2)
    assert len(world.codes()) == 7


def test_a_chain_has_to_be_whole():
    """With `gaps: refuse` what is behind a gap is refused until the missing draws have come."""
    draws = [0, 1, 4, 5, 2, 3, 4, 5]
    world = World([[value(0, draw) for draw in draws]])
    end, _ = serve(world, plan("linger", "arrival", size=1, draws=Draws(gaps="refuse")), PACE)

    assert [letter.record.position.offset for letter in letters(world)] == [2, 3]
    assert "behind a gap: 2 is missing" in letters(world)[0].reason
    assert places(world) == [0, 1, 4, 5, 6, 7]
    assert end.progress.draws.counts == Counts(gaps=2)


def test_tuning_draws():
    """They may be kept out."""
    world = World([[value(0, k, tuning=k < 5) for k in range(13)]])
    serve(world, plan(draws=Draws(tuning="refuse")), PACE)

    assert places(world) == list(range(5, 13))
    assert {letter.error for letter in letters(world)} == {"TuningDraw"}


draws_of_a_stream = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 15), st.booleans()), min_size=20, max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(draws_of_a_stream, draws_of_a_stream),
    st.lists(st.integers(1, 60), max_size=10),
    st.sampled_from([Draws(), Draws(gaps="refuse"), Draws(late="refuse", tuning="refuse"), Draws(repeated="accept")]),
    st.sampled_from(["any", "one-per-chain"]),
    st.sampled_from([("full", "canonical"), ("linger", "arrival")]),
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.sampled_from([1, 3, 100]),
)
def test_crashes_change_no_decision(streams, crashes, policy, rows, batching, chunks, patience):
    """Killed anywhere, a service knows of its chains what one does that was not disturbed, and what a replay finds."""
    values = [[value(c, d, tuning=tuning) for c, d, tuning in stream] for stream in streams]
    for k, line in enumerate(values):
        line[5:5] = [b"poison", *(chunk.to_bytes() for chunk in split(value(k + 7, 3), f"id{k}", 110)), None]
    world, calm, chosen = World(values), World(values), plan(*batching, rows, draws=policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stream_ocpdl.stream.batching.MOST_REFUSED", patience)
        patch.setattr("stream_ocpdl.stream.batching.LAG", 1)
        end = live(world, chosen, crashing(crashes), chunks[0])
        undisturbed = live(calm, chosen, crashing([]), chunks[1])
        scratch = World(values)
        scratch.written = [output for output in world.written if output.stream == "journal"]
        again = live(scratch, chosen, crashing([]), chunks[1])

    used, refused = check_journal(world)
    assert len(used) == len(set(used))
    assert not refused & set(used)
    assert len({letter.record.position for letter in letters(world)}) == len(letters(world)) == len(refused)
    assert again.progress.state.digest() == end.progress.state.digest()
    assert again.progress.draws == end.progress.draws
    done = {(p, k) for p in (0, 1) for k in range(end.progress.resume[p])}
    assert done <= refused | set(used)
    if batching[0] == "linger":
        assert len(refused) + len(used) == sum(map(len, values))
    else:
        assert end.progress.state.digest() == undisturbed.progress.state.digest()
        assert world.stream("codes") == calm.stream("codes")
        assert end.progress.draws.known == undisturbed.progress.draws.known
    for value_ in world.stream("journal"):
        record = JournalRecord.from_bytes(value_)
        positions = [Position(p, k) for p, first, last in record.used for k in range(first, last + 1)]
        if rows == "one-per-chain":
            assert different(values, positions)


def different(values, positions):
    """Whether no chain comes twice among these records."""
    found = []
    for p, k in positions:
        try:
            found.append(Draw.from_bytes(values[p][k]).chain)
        except ValueError:
            continue  # a piece
    return len(found) == len(set(found))


# ── minibatches of different chains ────────────────────────────────────────────────────────────────────────────


def test_one_draw_of_each_chain():
    """Chains that come one after the other are dealt out; each keeps its order."""
    world = World([[value(chain, draw) for chain in range(4) for draw in range(5)]])
    serve(world, plan(rows="one-per-chain"), PACE)

    assert places(world) == [chain * 5 + draw for draw in range(5) for chain in range(4)]
    assert world.positions == {0: 20}


def test_a_chain_that_lags_is_waited_for_a_while():
    """A minibatch of four with two chains alive: it is closed when draws for eight minibatches wait."""
    world = World([[value(chain, draw) for draw in range(40) for chain in range(2)]])
    serve(world, plan(rows="one-per-chain"), PACE)
    steps = [JournalRecord.from_bytes(found) for found in world.stream("journal")][1:]

    assert {sum(last - first + 1 for _, first, last in step.used) for step in steps} == {2}
    assert len(world.codes()) == 80 - 32  # those that wait at the end
    more = world.input[0] + [value(2, 0), value(3, 0)]
    world.input = [more]
    serve(world, plan(rows="one-per-chain"), PACE)
    assert places(world)[-4:] == [48, 49, 80, 81]


def test_what_was_learned_ahead_is_not_learned_again():
    """After a restart the places of draws that went ahead are known, whatever the rows are to be now."""
    values = [[value(0, draw) for draw in range(10)] + [value(chain, 0) for chain in (1, 2, 3)]]
    world = World(values)
    serve(world, plan(rows="one-per-chain"), PACE)
    last = JournalRecord.from_bytes(world.stream("journal")[-1])
    assert (last.ahead, last.learned) == (((0, 10, 12),), ((0, 10, 10), (0, 11, 11), (0, 12, 12)))
    assert last.tally == (0, 1, 0)
    world.input = [values[0] + [value(4, k) for k in range(7)]]
    end, _ = serve(world, plan(rows="any"), PACE)

    assert sorted(places(world)) == list(range(20))
    assert end.progress.tally == (0, 20, 0)
    assert end.progress.learned == ()


def test_what_was_learned_ahead_and_is_not_yet_read_again():
    """After a restart another partition closes a minibatch before it comes by again: it stays learned."""
    chosen = plan("full", "arrival", "one-per-chain")
    world = World([[value(0, draw) for draw in range(10)] + [value(chain, 0) for chain in (1, 2, 3)], []])
    serve(world, chosen, PACE)
    world.input[1] = [value(chain, 0) for chain in (4, 5, 6, 7)]
    serve(world, chosen, PACE, silent={0})
    last = JournalRecord.from_bytes(world.stream("journal")[-1])
    assert last.learned == ((0, 10, 10), (0, 11, 11), (0, 12, 12))
    world.input[0] += [value(1, 1)]
    end, _ = serve(world, plan("linger", "arrival"), PACE)

    assert len(world.codes()) == len({code.position for code in world.codes()}) == 18
    assert end.progress.tally == (0, 18, 0)


def test_lingering_takes_one_of_each_chain():
    """What waits is taken in several minibatches, none of which has a chain twice."""
    world = World([[value(0, 0), value(0, 1), value(1, 0), value(0, 2)]])
    serve(world, plan("linger", "arrival", "one-per-chain"), PACE, chunk=10)

    assert places(world) == [0, 2, 1, 3]


# ── on the wire ────────────────────────────────────────────────────────────────────────────────────────────────


def test_manifests_have_the_chains():
    """What is known goes with a checkpoint; one without draws is as it was before there were any."""
    world = World([[value(k % 3, k) for k in range(20)]])
    end, _ = serve(world, plan(), PACE)
    manifest, _ = world.checkpoints[0]
    found = Manifest.from_bytes(manifest.to_bytes())

    assert found == manifest
    assert found.chains == end.progress.draws.known
    assert found.draws == end.progress.draws.counts
    assert b"chains" not in replace(manifest, chains=None, draws=None).to_bytes()


def test_a_checkpoint_of_many_chains_is_small():
    """The manifest is one record of a topic: at its largest it stays far below what a broker takes."""
    chains = {f"{k:016x}": (2**62, tuple((2**61 + j, 2**61 + j) for j in range(GAPS))) for k in range(CHAINS)}
    manifest = Manifest("m", 1, 1, 1, "ab" * 32, "t", "l", "f", 1, "cd" * 32, chains=chains)

    assert len(manifest.to_bytes()) < 500_000


@pytest.mark.parametrize("point", ["never", "before-rollback", "after-answer"])
def test_what_is_known_of_chains_does_not_go_back(point):
    """A rollback gives back an older dictionary; a draw that was learned since stays learned, also after a crash."""
    world, crashed = World([[value(0, draw) for draw in (*range(32), 30, *range(32, 40))]]), []
    world.requests = [(8, Request("a", "rollback", t=2, epoch=0, present=0).to_bytes())]

    def at(name):
        if name == point and not crashed:
            crashed.append(name)
            raise Crash(name)

    end = live(world, plan(), at)

    assert crashed == ([] if point == "never" else [point])
    (back,) = [k for k, found in enumerate(journal(world)) if found.event == "rollback"]
    assert journal(world)[back - 1].reached[0] > 8  # more was learned than the state it went back to knows of
    assert [letter.record.position.offset for letter in letters(world)] == [32]
    assert end.progress.draws.counts == Counts(repeated=1)


def journal(world):
    return [JournalRecord.from_bytes(found) for found in world.stream("journal")]
