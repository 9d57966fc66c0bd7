"""Many workers, one dictionary, without a broker: bytes in, partials, bytes out; lives that end at any point."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ocpdl import Learner, Problem
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.errors import ConfigError, InputLost, LineageError
from stream_ocpdl.ocpdl.constraints import Box
from stream_ocpdl.ocpdl.reshape import Layout, Scaling
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.dictionaries import Dictionary
from stream_ocpdl.stream.draws import Draws
from stream_ocpdl.stream.encoders import Encoding
from stream_ocpdl.stream.encoding import Encoder
from stream_ocpdl.stream.messages import (
    Code,
    DeadLetter,
    Draw,
    JournalRecord,
    Partial,
    Position,
    Record,
    Request,
    Snapshot,
    Tensor,
    Version,
    split,
)
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Stand, no_crash
from stream_ocpdl.stream.rounds import Rounds
from stream_ocpdl.stream.service import Pace
from stream_ocpdl.stream.summing import Summing
from stream_ocpdl.stream.topics import Topics, rows_of
from tests.fakes import Crash, World, serve
from tests.test_encoders import Group, encode
from tests.test_pipeline import crashing

SHAPE, RANK, PARTS, SIZE = (6, 5), 2, 3, 4
PROBLEM = Problem(shape=SHAPE, rank=RANK, batch_size=PARTS * SIZE)
PLAN = Plan(
    "model",
    PROBLEM,
    Batching(PARTS * SIZE),
    digest_every=1,
    topic="model.partials",
    codes=False,
    rounds=Rounds(SIZE, PARTS),
)


TOPICS = replace(Topics.of("model", "model.partials"), partials="model.partials")


def tensors(rounds, seed=1, size=1.0):
    random = np.random.default_rng(seed)
    return [[Tensor(size * random.random(SHAPE)).to_bytes() for _ in range(rounds * SIZE)] for _ in range(PARTS)]


class Fleet:
    """What outlives encoders and learner: the input, the group, the partials, the journal."""

    def __init__(self, values, plan=PLAN):
        self.plan, self.group, self.world = plan, Group(values), World([[] for _ in values])
        self.moved = 0

    def newest(self):
        snapshot = Snapshot.from_bytes(self.world.stream("snapshots")[-1])
        return {0: Dictionary.of(self.plan, snapshot)}

    def encode(self, at=no_crash, **more):
        self.group.restart()
        try:
            return encode(self.group, self.plan, self.newest, at, still=5, emit="both", **more)
        finally:
            for output in self.group.written[self.moved :]:
                for _, partition, _, value, *_ in rows_of(TOPICS, [output]) if output.stream == "partials" else ():
                    self.world.input[partition].append(value)
            self.moved = len(self.group.written)

    def learn(self, at=no_crash, **more):
        return serve(self.world, self.plan, Pace(checkpoint_every=3), at, **more)[0]

    def run(self):
        """Take turns until there is nothing left to do."""
        pipeline = self.learn()
        while True:
            before = self.moved
            self.encode()
            if self.moved == before:
                return pipeline
            pipeline = self.learn()

    def partials(self):
        return [Partial.from_bytes(value) for line in self.world.input for value in line]

    def letters(self):
        values = [
            *self.world.stream("dead-letters"),
            *(o.value for o in self.group.written if o.stream == "dead-letters"),
        ]
        return [DeadLetter.from_bytes(value) for value in values]


def relative(found, wanted):
    return np.linalg.norm(np.subtract(found, wanted)) / np.linalg.norm(wanted)


def union(values, problem=PROBLEM):
    """A learner that has all tensors of each round."""
    learner = Learner(problem)
    arrays = np.array([[Tensor.from_bytes(value).array for value in line] for line in values])
    for start in range(0, arrays.shape[1], SIZE):
        learner.step(arrays[:, start : start + SIZE].reshape(-1, *SHAPE))
    return learner


def same(pipeline, learner):
    state, wanted = pipeline.progress.state, learner.state
    assert (state.t, state.N) == (wanted.t, wanted.N)
    for found, U in zip(state.loadings, wanted.loadings, strict=True):
        assert relative(found, U) <= 1e-10


# ── rounds ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "changes", [{}, {"ridge": 0.1, "sparsity": 0.05}, {"constraints": "signed", "codes": "signed"}], ids=str
)
def test_synchronous_rounds_are_algorithm_2(changes):
    """Loadings to 1e-10 of those of one process that has the same minibatches; every tensor in one partial."""
    problem = replace(PROBLEM, **changes)
    values = tensors(8, size=300.0)
    fleet = Fleet(values, replace(PLAN, problem=problem))
    pipeline = fleet.run()

    same(pipeline, union(values, problem))
    found = fleet.partials()
    assert [(p.round, p.dictionary.t) for p in found] == [(r, r - 1) for _ in range(PARTS) for r in range(1, 9)]
    assert [p.covers for p in found] == [(k, SIZE * r, SIZE * r + SIZE - 1) for k in range(PARTS) for r in range(8)]
    assert sum(p.count for p in found) == pipeline.progress.state.N == 8 * PARTS * SIZE
    versions = [Snapshot.from_bytes(value).version.t for value in fleet.world.stream("snapshots")]
    assert versions == list(range(9))
    assert fleet.letters() == []


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=12),
    st.integers(1, 5),
)
def test_lives_may_end_anywhere(ends, chunk):
    """Encoders and learners that die before and after commits: the bits are those of a run that was never disturbed."""
    values = tensors(4)
    undisturbed = Fleet(values)
    wanted = undisturbed.run()
    fleet = Fleet(values)
    for learner, visit in ends:
        with suppress(Crash):
            if learner or not fleet.world.stream("snapshots"):
                fleet.learn(crashing({visit}))
            else:
                fleet.encode(crashing({visit}), chunk=chunk)
    pipeline = fleet.run()

    assert pipeline.progress.state.digest() == wanted.progress.state.digest()
    assert fleet.world.input == undisturbed.world.input
    assert fleet.world.stream("journal") == undisturbed.world.stream("journal")


def test_codes_go_with_them():
    """With emit: both every tensor has a code, made with the dictionary of its partial; with partials none has."""
    values = tensors(3)
    both = Fleet(values)
    both.run()
    for codes in (True, False):
        core = Summing(PLAN, PLAN.rounds, codes)
        core.begin(0, Stand(0, 0))
        records = [Record(Position(0, k), None, value) for k, value in enumerate(values[0])]
        coded = core.feed(records, both_first(both))
        found = [Code.from_bytes(output.value) for output in coded.outputs if output.stream == "codes"]
        assert len(found) == (SIZE if codes else 0)
        assert {code.dictionary.t for code in found} <= {0}
        assert [output.stream for output in coded.outputs].count("partials") == 1
        assert coded.stands == {0: Stand(SIZE, SIZE, 1)}
        assert core.waiting
    found = [Code.from_bytes(output.value) for output in both.group.written if output.stream == "codes"]
    assert sorted(code.position for code in found) == [(p, k) for p in range(PARTS) for k in range(3 * SIZE)]


def both_first(fleet):
    return {0: Dictionary.of(PLAN, Snapshot.from_bytes(fleet.world.stream("snapshots")[0]))}


def test_refused_tensors_have_no_part_in_a_partial():
    """Poison, strangers and draws go to the dead letters, once; the partial is of the next good tensors."""
    values = tensors(2)
    random = np.random.default_rng(9)
    draw = Draw(Tensor(random.random(SHAPE)), "run", 0, 0).to_bytes()
    nan = Tensor(np.full(SHAPE, np.nan)).to_bytes()
    dirty = [[b"poison", *line[:2], nan, draw, *line[2:]] for line in values]
    fleet = Fleet(dirty)
    pipeline = fleet.run()

    same(pipeline, union(values))
    assert sorted(letter.record.position for letter in fleet.letters()) == [
        (p, k) for p in range(PARTS) for k in (0, 3, 4)
    ]
    assert {p.covers for p in fleet.partials() if p.round == 1} == {(p, 1, 6) for p in range(PARTS)}


def test_tensors_in_pieces():
    """A message in pieces around the end of a partial: nothing is lost or repeated by a restart in between."""
    values = tensors(2)
    pieces = [chunk.to_bytes() for chunk in split(values[0][4], "x", 100)]
    dirty = [[*values[0][:3], pieces[0], values[0][3], *pieces[1:], *values[0][5:]], *values[1:]]
    fleet = Fleet(dirty)
    fleet.learn()
    fleet.encode()
    assert fleet.group.stood[0] == Stand(3, 5, 1)
    pipeline = fleet.run()

    same(pipeline, union(values))


def test_partials_in_pieces():
    """One that is too large for a record comes in pieces, all in the partition of its tensors."""
    problem = Problem(shape=(60, 100), rank=20, batch_size=80)
    plan = replace(PLAN, problem=problem, batching=Batching(80), rounds=Rounds(40, 2))
    random = np.random.default_rng(2)
    arrays = random.random((2, 80, 60, 100))
    fleet = Fleet([[Tensor(X).to_bytes() for X in line] for line in arrays], plan)
    pipeline = fleet.run()

    learner = Learner(problem)
    for first in (0, 40):
        learner.step(arrays[:, first : first + 40].reshape(80, 60, 100))
    same(pipeline, learner)
    assert [len(line) for line in fleet.world.input] == [4, 4]
    assert len(fleet.world.stream("journal")) == 3


def test_partials_that_are_gone():
    """A learner cannot go on without them, and says what can be done."""
    fleet = Fleet(tensors(3))
    fleet.learn()
    fleet.encode()
    fleet.world.trimmed = {1: 1}
    with pytest.raises(InputLost, match="A round without one of its partials is none"):
        fleet.learn()


def test_a_long_line_is_not_read_on():
    """Of a partition with more than enough no more is wanted until a partial is made of it."""
    core = Summing(PLAN, PLAN.rounds, False)
    core.begin(0, Stand(0, 0))
    core.begin(1, Stand(0, 0))
    fleet = Fleet(tensors(8))
    fleet.learn()
    records = [Record(Position(0, k), None, value) for k, value in enumerate(fleet.group.input[0])]
    core.feed(records[: 5 * SIZE - 1], fleet.newest())
    assert core.hungry == {0, 1}
    core.feed(records[5 * SIZE - 1 : 5 * SIZE], fleet.newest())
    assert core.hungry == {1}
    core.end(0)
    assert core.hungry == {1}


# ── staleness ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_up_to_a_bound():
    """An encoder goes on with the dictionary it has for τ rounds more, and no further; the first rounds wait."""
    plan = replace(PLAN, rounds=Rounds(SIZE, PARTS, staleness=2, synchronous_first=2))
    fleet = Fleet(tensors(8), plan)
    fleet.learn()
    made = []
    for _ in range(6):
        fleet.encode()
        made.append(len(fleet.world.input[0]))
        pipeline = fleet.learn()

    assert made == [1, 4, 7, 8, 8, 8]
    assert [p.round - 1 - p.dictionary.t for p in fleet.partials()[:8]] == [0, 0, 1, 2, 0, 1, 2, 0]
    assert pipeline.progress.state.t == 8
    assert fleet.letters() == []


def test_what_is_too_stale_is_refused():
    """By a stranger: refused with the reason, journaled, and its place left for the true one."""
    fleet = Fleet(tensors(3))
    fleet.run()
    partial = Partial.from_bytes(fleet.world.input[1][2])
    stale = replace(partial, round=4, dictionary=Version("model", 1))
    wrongs = {
        "2 steps old, and 0 are allowed": stale,
        "was absorbed before": partial,
        "came, and 4 is missing": replace(partial, round=9),
        "which is to come": replace(partial, round=4, dictionary=Version("model", 4)),
        "of 3 tensors": replace(partial, round=4, dictionary=Version("model", 3), count=3),
        "of partition 0 of the input": replace(partial, round=4, covers=(0, 1, 2)),
        "does not say of which round": replace(partial, round=None),
        "a dictionary of another model": replace(partial, dictionary=Version("other", 3)),
        "(shape, rank, dtype)": replace(partial, B=partial.B[1:]),
        "not finite": replace(partial, A=np.full((RANK, RANK), np.nan)),
    }
    fleet.world.input[1] += [wrong.to_bytes() for wrong in wrongs.values()]
    fleet.group.input = [line + more for line, more in zip(fleet.group.input, tensors(2, 7), strict=True)]
    pipeline = fleet.run()

    assert pipeline.progress.state.t == 5
    reasons = [letter.reason for letter in fleet.letters()]
    assert len(reasons) == len(wrongs)
    for wanted, said in zip(wrongs, reasons, strict=True):
        assert wanted in said
    journal = [JournalRecord.from_bytes(value) for value in fleet.world.stream("journal")]
    assert sum(len(record.refused) for record in journal) == len(reasons)
    assert "StalePartial" in {refused.error for record in journal for refused in record.refused}


def test_offsets_that_were_set_are_noticed():
    """A group that has lost its count would make partials of other tensors, or twice."""
    fleet = Fleet(tensors(4))
    fleet.run()
    fleet.group.stood[1] = Stand(4, 4)
    with pytest.raises(LineageError, match="has made 0 partials of partition 1"):
        fleet.encode()


# ── what cannot be ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": Rounds(3, 4)}, "twice as many, 4, to be worth its way"),
        ({"rounds": Rounds(5, 3)}, "must be a multiple of partials.size, 5"),
        ({"batching": Batching(12, close="linger")}, "leave close, order and rows alone"),
        ({"codes": True}, "set it to off, and encoders.emit to both"),
        ({"shards": 2}, "partials are for one dictionary"),
        ({"problem": replace(PROBLEM, missing="impute")}, "sums have no cells to fill"),
        ({"problem": replace(PROBLEM, revive=5)}, "set it to null"),
        ({"layout": Layout(SHAPE, (), Scaling(0))}, "scale the data before"),
        ({"problem": replace(PROBLEM, constraints=Box(0, 1))}, "before the scale of the data is known"),
        ({"problem": replace(PROBLEM, code_bound=1.0)}, "before the scale of the data is known"),
        ({"draws": Draws(gaps="refuse")}, "encoders know no chains"),
    ],
)
def test_what_is_refused_at_configuration(changes, said):
    """What sums cannot do is refused with a line that says why."""
    with pytest.raises(ConfigError, match=said):
        replace(PLAN, **changes)


FILE = {
    "model": "weather",
    "input": "tensors",
    "bootstrap_servers": "localhost:9092",
    "problem": {"shape": [6, 5], "rank": 2},
    "batching": {"size": 12},
    "partials": {"size": 4},
    "learner": {"source": "partials", "codes": False},
    "encoders": {"emit": "both"},
}


def test_settings_of_many_workers():
    """The learner reads the partials, encoders the input; both know how large a round is."""
    found = Settings(**FILE)
    plan = found.plan()

    assert plan.rounds == Rounds(4, 3)
    assert (plan.topic, plan.problem.batch_size) == ("weather.partials", 12)
    assert (found.topics().input, found.coded().input, found.coded().partials) == (
        "weather.partials",
        "tensors",
        "weather.partials",
    )
    assert "weather.partials" in found.made().outputs(3)
    assert "weather.partials" not in found.topics().outputs(3)
    learner, encoder = (
        {(one.operation, one.name) for one in rights if one.kind == "topic"}
        for rights in (found.rights(), found.encoder_rights())
    )
    assert ("Read", "weather.partials") in learner
    assert ("Read", "tensors") in encoder - learner
    assert {("Write", "weather.partials"), ("Write", "weather.dead-letters"), ("Write", "weather.codes")} <= encoder


def test_who_makes_partials_alone_writes_no_codes():
    """Nor need it be allowed to, nor be there a topic for them, as far as it is concerned."""
    found = Settings(**FILE | {"encoders": {"emit": "partials"}})
    written = {one.name for one in found.encoder_rights() if one.kind == "topic" and one.operation == "Write"}

    assert written == {"weather.partials", "weather.dead-letters"}
    assert "weather.codes" not in found.coded().outputs(3)
    assert "weather.codes" in found.made().outputs(3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"encoders": {"emit": "codes"}}, "learner.source is partials, and encoders.emit codes"),
        ({"learner": {"codes": False}}, "learner.source is tensors, and encoders.emit both"),
        ({"partials": {}}, "partials.size is missing"),
        ({"encoders": {"emit": "both", "input": "others"}}, "needs encoders of its input"),
        ({"partials": {"size": 3}, "batching": {"size": 12}}, "twice as many, 4"),
        ({"partials": {"size": 5}}, "must be a multiple of partials.size, 5"),
        ({"partials": {"size": 24}}, "must be a multiple of partials.size, 24"),
        ({"partials": {"size": 4, "staleness": -1}}, "staleness must be a whole number, at least 0"),
        ({"learner": {"source": "partials"}}, "learner.codes is on"),
    ],
)
def test_settings_that_do_not_go_together(change, said):
    """Each with a line of its own."""
    with pytest.raises(ConfigError, match=said):
        Settings(**FILE | change).plan()


@pytest.mark.parametrize("change", [{"size": 0}, {"partials": 0}, {"staleness": -1}, {"synchronous_first": 0}])
def test_rounds_that_cannot_be(change):
    """The first round is always synchronous."""
    with pytest.raises(ConfigError, match="must be a whole number"):
        replace(PLAN.rounds, **change)


def test_a_model_stays_with_what_it_began_with():
    """Tensors or partials, of so many: the journal knows."""
    tensors_plan = replace(PLAN, rounds=None, codes=True)
    assert len({plan.lineage() for plan in (PLAN, tensors_plan, replace(PLAN, rounds=Rounds(6, 2)))}) == 3
    assert replace(PLAN, rounds=Rounds(SIZE, PARTS, 5)).lineage() != PLAN.lineage()


def test_encoders_of_other_settings_make_nothing():
    """Partials that the learner would refuse, or codes without partials, would take tensors away from it."""
    fleet = Fleet(tensors(1))
    fleet.learn()
    snapshot = Snapshot.from_bytes(fleet.world.stream("snapshots")[0])
    assert snapshot.partials == (SIZE, PARTS, 0, 10)
    for rounds in (None, Rounds(6, 2), Rounds(SIZE, PARTS, 1)):
        with pytest.raises(ConfigError, match="give encoders the settings of the learner"):
            Dictionary.of(replace(PLAN, rounds=rounds), snapshot)


def test_another_topic_is_only_coded():
    """Encoders of another topic have the same settings, and make no partials."""
    other = Settings(**FILE | {"encoders": {"emit": "codes", "input": "others"}})
    encoding = Encoding(other.plan(), None, emit=other.encoders.emit)
    assert other.plan().rounds == Settings(**FILE).plan().rounds
    assert type(encoding.core()) is Encoder


def test_nobody_rolls_back():
    """The request is declined with the reason, and the model goes on."""
    fleet = Fleet(tensors(3))
    fleet.world.requests = [(3, Request("r", "rollback", t=1, epoch=0, present=0).to_bytes())]
    pipeline = fleet.run()

    assert pipeline.progress.state.t == 3
    declined = [JournalRecord.from_bytes(value) for value in fleet.world.stream("journal")]
    (reason,) = [record.reason for record in declined if record.event == "declined"]
    assert "encoders count the rounds" in reason


def test_one_partition_too_many():
    """A partition that was added to the input has no place in a round."""
    with pytest.raises(ConfigError, match="is one too many"):
        Summing(PLAN, PLAN.rounds, False).begin(PARTS, Stand(0, 0))
