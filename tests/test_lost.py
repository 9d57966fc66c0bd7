"""Input that is gone, or no longer the same: noticed, explained with its exact range, and gone on without if wanted."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ocpdl import Problem
from stream_ocpdl.audit import Past
from stream_ocpdl.errors import ConfigError, InputLost, LineageError
from stream_ocpdl.ocpdl.workers import SERIAL
from stream_ocpdl.stream.checkpoint import ReadOnly
from stream_ocpdl.stream.following import Follower
from stream_ocpdl.stream.history import entries, records_of
from stream_ocpdl.stream.lost import ranges
from stream_ocpdl.stream.messages import JournalRecord, Request, Tensor, split
from stream_ocpdl.stream.recovery import Recovery
from tests.fakes import Crash, Journal, Source, Store, World, serve
from tests.test_pipeline import PACE, crashing, inputs, live, plan

RESUME = {"on_lost_input": "resume"}


def journal(world):
    return [JournalRecord.from_bytes(value) for value in world.stream("journal")]


def learned(partitions=2, count=20):
    """A world that was learned to its end, with checkpoints of steps 3, 6 and the last."""
    world = World(inputs(partitions, count))
    world.identity = f"input (first, {partitions} partitions)"
    serve(world, plan(), PACE)
    return world


def more(world, count=20, seed=1):
    random = np.random.default_rng(seed)
    for line in world.input:
        line += [Tensor(random.random((4, 3))).to_bytes() for _ in range(count)]


# ── retention ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_never_read_is_gone():
    """By default the service ends, says what is missing, and has changed nothing."""
    world = learned()
    more(world)
    world.trimmed, before = {0: 27}, list(world.written)
    with pytest.raises(InputLost) as error:
        serve(world, plan(), PACE)

    assert "input[0] offsets 20 to 26 (7)" in str(error.value)
    assert "--set on_lost_input=resume" in str(error.value)
    assert world.written == before
    assert error.value.exit_code == 4


def test_going_on_without_it():
    """It is said and noted in the journal, the rest is learned, and nobody needs it any more after that."""
    world = learned()
    more(world)
    world.trimmed = {0: 27}
    end, reports = serve(world, plan(**RESUME), PACE)

    (noted,) = [record for record in journal(world) if record.event == "lost"]
    assert noted.lost == ((0, 20, 26),)
    assert (noted.resume, noted.t) == ({0: 27, 1: 20}, 8)
    assert "lost: input[0] offsets 20 to 26 (7)" in reports
    assert world.codes()[-1].position >= (0, 27)
    assert len({code.position for code in world.codes()}) == len(world.codes()) == end.progress.state.N
    again, reports = serve(world, plan(), PACE)  # also with the policy that ends where something is missing
    assert again.progress.state.digest() == end.progress.state.digest()
    assert not any("lost" in line for line in reports)


def test_what_was_refused_ahead_is_not_lost():
    """Of what is gone only that is lost which was neither used nor refused."""
    good = inputs(1, 20)[0]
    world = World([[*good[:6], *[b"poison"] * 200, *good[6:]]])
    world.identity = "input (first, 1 partitions)"
    early = World([world.input[0][:150]])
    early.identity = world.identity
    serve(early, plan(), PACE, chunk=50)
    assert journal(early)[-1].ahead == ((0, 6, 149),)
    early.input, early.trimmed = world.input, {0: 180}
    serve(early, plan(**RESUME), PACE)

    (noted,) = [record for record in journal(early) if record.event == "lost"]
    assert noted.lost == ((0, 5, 5), (0, 150, 179))
    assert noted.ahead == ()


@pytest.mark.parametrize("policy", ["fail", "resume"])
def test_all_that_is_gone_was_refused_ahead(policy):
    """Nothing is lost, and it goes on behind it: the poison of a partition may outlive that another one is silent."""
    good = inputs(2, 20)
    world, chosen = World([[], [b"poison"] * 5]), plan(on_lost_input=policy)
    serve(world, chosen, PACE)
    assert journal(world)[-1].ahead == ((1, 0, 4),)
    world.trimmed, world.input = {1: 5}, [good[0], [b"poison"] * 5 + good[1]]
    end, reports = serve(world, chosen, PACE)

    assert end.progress.state.N == 40
    assert len(world.stream("dead-letters")) == 5
    assert "input[1] begins at 5 now: what is gone was refused before" in reports
    again, reports = serve(world, chosen, PACE)
    assert again.progress.state.digest() == end.progress.state.digest()
    assert not any("begins at 5" in line for line in reports)


def test_retention_passes_while_it_runs():
    """Noticed in mid-run: with one policy it ends with the exact range, with the other it goes on."""
    for policy in ("fail", "resume"):
        world = learned()
        more(world, 40)

        def trim(place, world=world):
            if place == "after-commit" and not world.trimmed:
                world.trimmed = {1: 55}

        chosen = plan(on_lost_input=policy)
        if policy == "fail":
            with pytest.raises(InputLost, match=r"input\[1\] offsets \d+ to 54"):
                serve(world, chosen, PACE, trim)
            continue
        end, reports = serve(world, chosen, PACE, trim)
        assert any("lost: input[1] offsets" in line for line in reports)
        assert world.positions[1] == 60
        assert len({code.position for code in world.codes()}) == len(world.codes()) == end.progress.state.N


def test_pieces_of_messages_that_never_became_whole_may_go():
    """They are no reason to end: the rest of their message is refused when it comes."""
    good = inputs(1, 12)[0]
    first, second = (chunk.to_bytes() for chunk in split(good[11], "id", 100))
    world = World([[first, *good[:10]]])
    world.identity = "input (first, 1 partitions)"
    serve(world, plan(), PACE)
    assert world.positions == {0: 0}
    world.trimmed = {0: 5}
    world.input[0] += [second, *good[:5]]
    serve(world, plan(), PACE)

    assert len(world.codes()) == 15
    assert len(world.stream("dead-letters")) == 1


# ── steps whose input is gone ──────────────────────────────────────────────────────────────────────────────────


def behind(world, kept=1):
    """The newest checkpoints are damaged, and the input of the steps since is gone."""
    world.checkpoints = world.checkpoints[-kept:] if kept else []
    world.trimmed = {0: 18, 1: 20}
    more(world)
    return world


def test_steps_that_cannot_be_replayed():
    """By default it ends, and says which steps, and what would be lost."""
    world = behind(learned())
    with pytest.raises(InputLost) as error:
        serve(world, plan(), PACE)

    assert str(error.value) == (
        "partition 0 no longer has offset 8, which a step used that has to be replayed: it begins at 18 now: the state"
        " after step 8 cannot be made again. To go on with that of step 3, and without steps 4 to 8, whose codes are"
        " published: --set on_lost_input=resume"
    )


@pytest.mark.parametrize("kept", [1, 0], ids=["checkpoint", "beginning"])
def test_steps_are_lost_from_the_state(kept):
    """It goes on with an earlier state under the number of the last step, so that no version has two dictionaries."""
    world = behind(learned(), kept)
    whole = learned()
    end, reports = serve(world, plan(**RESUME), PACE)

    t = 3 * kept
    (noted,) = [record for record in journal(world) if record.event == "lost"]
    assert (noted.t, noted.N, noted.lost) == (8, 40, None)
    assert noted.base == (journal(world).index(next(r for r in journal(world) if r.t == t)), t)
    assert f"steps {t + 1} to 8 are lost from the state: their input is gone" in reports
    assert [record.t for record in journal(world)][-8:] == list(range(9, 17))
    assert len({code.position for code in world.codes()}) == len(world.codes()) == 80 == end.progress.state.N
    assert len({(code.step, code.position) for code in world.codes()}) == 80
    assert {code.dictionary.epoch for code in world.codes() if code.step > 8} == {1} == {end.progress.epoch}
    assert {code.dictionary.epoch for code in world.codes() if code.step <= 8} == {0}
    assert world.codes()[:40] == whole.codes()[:40] or len(whole.codes()) == 40
    again, _ = serve(world, plan(), PACE)
    assert again.progress.state.digest() == end.progress.state.digest()


@pytest.mark.parametrize("kept", [1, 0], ids=["checkpoint", "beginning"])
def test_killed_before_the_checkpoint_that_follows(kept):
    """The journal has noted the loss and no checkpoint has: recovery goes from the old one straight to that record."""
    world, calm = behind(learned(), kept), behind(learned(), kept)
    old = list(world.checkpoints)

    def at(place):
        if place == "in-checkpoint":
            raise Crash

    with pytest.raises(Crash):
        serve(world, plan(**RESUME), PACE, at)
    assert [record.event for record in journal(world)][-1] == "lost"
    assert world.checkpoints == old
    end, _ = serve(world, plan(), PACE)
    assert sum(record.event == "lost" for record in journal(world)) == 1
    undisturbed, _ = serve(calm, plan(**RESUME), PACE)
    assert end.progress.state.digest() == undisturbed.progress.state.digest()


def test_a_checkpoint_of_a_lost_step_is_passed_by():
    """One that could not be read when the loss was noted, and can be now, is of a state that nobody went on from."""
    world = learned()
    newest = world.checkpoints[0]
    behind(world)

    def at(place):
        if place == "in-checkpoint":
            raise Crash

    with pytest.raises(Crash):
        serve(world, plan(**RESUME), PACE, at)
    world.checkpoints.insert(0, newest)
    end, reports = serve(world, plan(), PACE)

    assert "restored the checkpoint of step 3" in reports
    assert "restored the checkpoint of step 8" not in reports
    assert end.progress.state.t == 16


def test_lost_twice():
    """What was noted is lost once more, from the same checkpoint: the last word counts."""
    world = behind(learned())

    def at(place):
        if place == "in-checkpoint":
            raise Crash

    old = list(world.checkpoints)
    with pytest.raises(Crash):
        serve(world, plan(**RESUME), PACE, at)
    serve(world, plan(**RESUME), replace(PACE, checkpoint_every=1000))
    world.checkpoints, world.trimmed = old, {0: 40, 1: 40}
    more(world, 10, seed=2)
    end, _ = serve(world, plan(**RESUME), PACE)

    assert sum(record.event == "lost" for record in journal(world)) == 2
    assert len({code.position for code in world.codes()}) == len(world.codes()) == 100 == end.progress.state.N
    assert serve(world, plan(), PACE)[0].progress.state.digest() == end.progress.state.digest()


# ── another topic ──────────────────────────────────────────────────────────────────────────────────────────────


def anew(world, count=15):
    world.input, world.identity = inputs(2, count), "input (second, 2 partitions)"
    return world


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_topic_that_was_made_anew(checkpoints):
    """By default it ends; told so it begins at the beginning of the new one, under its new identity."""
    world = anew(learned())
    world.checkpoints = world.checkpoints if checkpoints else []
    with pytest.raises(LineageError, match=r"made anew.*--set on_lost_input=resume"):
        serve(world, plan(), PACE)
    end, reports = serve(world, plan(**RESUME), PACE)

    (noted,) = [record for record in journal(world) if record.event == "lost"]
    assert (noted.input, noted.resume) == (world.identity, {0: 0, 1: 0})
    assert (noted.base is None) == checkpoints
    assert "input was made anew: reading from its beginning" in reports
    assert world.positions == {0: 15, 1: 15}
    assert end.progress.state.N == len(world.codes()) == 70
    again, _ = serve(world, plan(), PACE)
    assert again.progress.state.digest() == end.progress.state.digest()


def source(world):
    found = Source(world)
    found.identity = world.identity
    return found


@pytest.mark.parametrize("policy", ["resume", "fail"])
def test_killed_after_the_note_of_a_standby(policy):
    """It knew steps that nobody can make again, took over, noted the new topic, and was killed before its checkpoint:
    the next one finds all that it knew, whatever its policy is.
    """

    def followed():
        world = learned()
        world.checkpoints = world.checkpoints[-1:]
        follower = Follower(plan(**RESUME), Recovery(source(world), Journal(world), Store(world, str), str))
        follower.restore()
        assert follower.progress.state.t == 8
        return anew(world), lambda: follower

    def at(place):
        if place == "in-checkpoint" and journal(world)[-1].event == "lost":
            raise Crash

    (world, warm), (calm, other) = followed(), followed()
    with pytest.raises(Crash):
        serve(world, plan(**RESUME), PACE, at, warm=warm)
    end, _ = serve(world, plan(on_lost_input=policy), PACE)
    undisturbed, _ = serve(calm, plan(**RESUME), PACE, warm=other)

    assert [record.base for record in journal(world) if record.event == "lost"] == [None]
    assert end.progress.state.digest() == undisturbed.progress.state.digest()
    assert end.progress.state.N == len(world.codes()) == 70


def test_steps_of_a_topic_that_was_made_anew_without_a_checkpoint():
    """The one after the note is damaged, and so are all: what cannot be learned again is lost, and no other topic is
    taken for it, though it has records at those offsets.
    """
    world = anew(learned(), 30)
    serve(world, plan(**RESUME), PACE)
    world.checkpoints = []
    with pytest.raises(InputLost, match=r"step 1 learned from input \(first, .*made anew.*--set on_lost_input=resume"):
        serve(world, plan(), PACE)
    end, reports = serve(world, plan(**RESUME), PACE)

    assert "steps 1 to 20 are lost from the state: their input is gone" in reports
    assert serve(world, plan(), PACE)[0].progress.state.digest() == end.progress.state.digest()


# ── the past, after a loss ─────────────────────────────────────────────────────────────────────────────────────


def past(world):
    return Past(plan(), source(world), Journal(world), ReadOnly(Store(world, str)), SERIAL, str)


def rebuilt(world):
    """What the window says can be rebuilt, and what can be: by epoch, and step."""
    said, done = set(), set()
    for span in past(world).window().spans:
        said |= {(span.epoch, t) for t in range(span.first, span.last + 1) if span.rebuilt}
    for entry in entries(records_of(Journal(world))):
        with suppress(InputLost, LineageError):
            past(world).at(entry.offset)
            done.add((entry.epoch, entry.t))
    return said, done


@pytest.mark.parametrize("kept", [3, 1, 0])
@pytest.mark.parametrize(
    "change",
    [anew, behind, lambda world: behind(world, 0)],
    ids=["another topic", "retention", "retention from the beginning"],
)
def test_the_window_after_a_loss(change, kept):
    """It says what can be rebuilt, no more and no less, also when the checkpoint of the loss is there no more; and an
    audit begins where all can be replayed.
    """
    world = change(learned())
    end, _ = serve(world, plan(**RESUME), PACE)
    first = len(world.stream("journal"))
    more(world, 30, seed=3)
    end, _ = serve(world, plan(**RESUME), PACE)
    world.checkpoints = world.checkpoints[:kept]

    said, done = rebuilt(world)
    assert said == done
    assert (0, 0) in said
    assert (0, 5) not in said
    assert kept == 0 or (end.progress.epoch, end.progress.state.t) in said
    if kept:
        found = past(world).audit([]).replayed
        assert found.progress.state.digest() == end.progress.state.digest()
        assert found.base >= first
    else:
        with pytest.raises(LineageError, match="nothing can be replayed"):
            past(world).audit([])


def test_back_to_before_a_loss():
    """The beginning needs no input, so it can be gone back to; what is kept of it is of the old topic, and a step of
    that one is not looked for in the new one, though it has records at those offsets.
    """
    world = anew(learned(), 30)
    world.requests = [(len(world.stream("journal")) + 2, Request("a", "rollback", t=0, epoch=0, present=0).to_bytes())]
    kept = []

    def at(place):
        if place == "before-rollback":
            kept.extend((manifest.journal_offset, manifest.input) for manifest, _ in world.checkpoints[:1])

    end, _ = serve(world, plan(**RESUME), PACE, at)

    assert kept == [(0, "input (first, 2 partitions)")]
    assert [record.event for record in journal(world)].count("rollback") == 1
    assert serve(world, plan(), PACE)[0].progress.state.digest() == end.progress.state.digest()
    with pytest.raises(InputLost, match="step 1 learned from input"):
        past(world).at(1)
    said, done = rebuilt(world)
    assert said == done


def test_another_problem_is_refused_there_too():
    """Whose state is lost from the beginning on is still asked for its lineage."""
    world = anew(learned())
    world.checkpoints = []
    other = Problem(shape=(4, 3), rank=2, batch_size=5, sparsity=0.1)
    with pytest.raises(LineageError, match="another problem"):
        serve(world, replace(plan(**RESUME), problem=other), PACE)


def test_another_topic_is_never_taken():
    """A name is a choice: positions of one topic are not tried in another, whatever the policy."""
    world = learned()
    world.identity = "other (first, 2 partitions)"
    with pytest.raises(LineageError, match=r"Set input\.topic back"):
        serve(world, plan(**RESUME), PACE)


# ── partitions ─────────────────────────────────────────────────────────────────────────────────────────────────


def wider(world):
    more(world)
    world.input = [*world.input, inputs(3, 20)[2]]
    world.identity = "input (first, 3 partitions)"
    return world


@pytest.mark.parametrize("batching", [("full", "canonical"), ("linger", "arrival")], ids=" ".join)
def test_partitions_that_were_added(batching):
    """They are read from their beginning, without being told to; a replay from scratch finds the same."""
    world = World(inputs(2, 20))
    world.identity = "input (first, 2 partitions)"
    serve(world, plan(*batching), PACE)
    end, reports = serve(wider(world), plan(*batching), PACE)

    (noted,) = [record for record in journal(world) if record.event == "partitions"]
    assert (noted.input, noted.resume) == (world.identity, {0: 20, 1: 20, 2: 0})
    (said,) = [line for line in reports if "new partitions" in line]
    assert said.startswith("input has new partitions, 2: reading them from their beginning; the topic of the codes")
    assert end.progress.resume == {0: 40, 1: 40, 2: 20}
    world.checkpoints = []
    again, reports = serve(world, plan(*batching), PACE)
    assert again.progress.state.digest() == end.progress.state.digest()
    assert f"ready at step {end.progress.state.t}, {end.progress.state.t} steps replayed" in reports


def test_partitions_that_are_added_while_it_runs(monkeypatch):
    """It looks now and then, and goes on with them."""
    monkeypatch.setattr("stream_ocpdl.stream.service.LOOK", 0.1)
    world = learned()
    more(world)
    seen = []

    def at(place):
        seen.append(place)
        if seen.count("after-commit") == 3:
            seen.append("after-commit")
            wider(world)

    end, reports = serve(world, plan(), PACE, at)
    assert any("new partitions, 2" in line for line in reports)
    assert end.progress.resume[2] > 0
    assert len({code.position for code in world.codes()}) == len(world.codes()) == end.progress.state.N


# ── positions ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_that_was_there_before():
    """Without its journal, but with the positions of its group: it is begun, and that is said."""
    world = World(inputs(2, 20))
    _, calm = serve(World(inputs(2, 20)), plan(), PACE)
    world.positions = {0: 3}
    end, reports = serve(world, plan(), PACE)

    assert end.progress.state.N == 40
    assert any("a model of this name was there before" in line for line in reports)
    assert not any("was there before" in line for line in calm)


def test_positions_of_other_shards_say_nothing_of_this_one():
    """A shard that begins after another finds that one's positions, in partitions that are not its own."""
    world = World(inputs(2, 20))
    world.positions = {2: 3}
    _, reports = serve(world, plan(), PACE)

    assert not any("was there before" in line for line in reports)


def test_positions_that_somebody_set():
    """They are noticed and said; the journal wins."""
    world, calm = learned(), learned()
    world.positions = {0: 3}
    more(world)
    more(calm)
    end, reports = serve(world, plan(), PACE)

    assert "the group is at 3 in partition 0, which somebody else set, or time; the journal's 20 is used" in reports
    assert (
        "the group is at no offset in partition 1, which somebody else set, or time; the journal's 20 is used"
        in reports
    )
    assert end.progress.state.digest() == serve(calm, plan(), PACE)[0].progress.state.digest()
    assert not any("somebody" in line for line in serve(world, plan(), PACE)[1])


# ── anything at any time ───────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 60), max_size=10),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 1), st.integers(0, 60)), max_size=4),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 59)), max_size=20, unique=True),
    st.sampled_from([("full", "canonical"), ("linger", "arrival")]),
    st.integers(1, 9),
)
def test_crashes_and_losses(crashes, losses, poison, batching, chunk):
    """Killed and trimmed at any time: each input is in one step, refused, or noted as lost; each code published once;
    and a recovery from any checkpoint has the same state.
    """
    world = World(inputs(2, 60, poison))
    world.identity = "input (first, 2 partitions)"
    visits, crash = [0], crashing(crashes)

    def at(place):
        visits[0] += 1
        for visit, partition, offset in losses:
            if visit == visits[0]:
                world.trimmed[partition] = max(offset, world.trimmed.get(partition, 0))
        crash(place)

    chosen = plan(*batching, **RESUME)
    end = live(world, chosen, at, chunk)

    used, refused, lost = [], [], []
    for record in journal(world):
        used += [(p, k) for p, first, last in record.used for k in range(first, last + 1)]
        refused += [(p, k) for p, k, *_ in record.refused]
        lost += [(p, k) for p, first, last in record.lost or () for k in range(first, last + 1)]
    everything = [*used, *refused, *lost]
    assert len(set(everything)) == len(everything)
    done = {(p, k) for p, k in everything if k < end.progress.resume[p]}
    begun = journal(world)[0].resume
    assert done == {(p, k) for p in (0, 1) for k in range(begun[p], end.progress.resume[p])}
    assert sorted(code.position for code in world.codes()) == sorted(used)
    assert [record.t for record in journal(world) if record.event == "step"] == list(range(1, end.progress.state.t + 1))
    assert end.progress.state.N == len(used)
    end = live(world, chosen, crashing([]), chunk)  # what waited in memory may be gone, too
    before = len(world.written)
    again = live(world, chosen, crashing([]), chunk)
    assert again.progress.state.digest() == end.progress.state.digest()
    assert len(world.written) == before


def test_ranges():
    """One and many."""
    assert ranges("t", ((0, 5, 9), (1, 7, 7))) == "t[0] offsets 5 to 9 (5), t[1] offset 7 (1)"


def test_the_policy_has_two_names():
    """Another is refused."""
    with pytest.raises(ConfigError, match="on_lost_input must be"):
        plan(on_lost_input="skip")
