"""Encoders without a broker: records in, codes out, and crashes, rebalances and dictionaries as part of the input."""

from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ocpdl import Learner, Problem
from stream_ocpdl.cli import main
from stream_ocpdl.errors import ConfigError, Fenced, InputLost, TooMuchRefused
from stream_ocpdl.observe.fleet import EncoderBoard
from stream_ocpdl.ocpdl.reshape import Layout, Scaling
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.dictionaries import Dictionary
from stream_ocpdl.stream.draws import Draws
from stream_ocpdl.stream.encoders import EncoderPace, EncoderPorts, Encoding
from stream_ocpdl.stream.encoding import Coded, Encoder
from stream_ocpdl.stream.member import Member
from stream_ocpdl.stream.messages import Code, DeadLetter, Draw, Position, Record, Snapshot, Tensor, Version, split
from stream_ocpdl.stream.newest import Newest
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Stand, no_crash
from stream_ocpdl.stream.refusals import Refusals
from stream_ocpdl.stream.service import Pace
from stream_ocpdl.stream.tenure import Term
from tests.fakes import Crash, World, serve
from tests.test_pipeline import crashing

SHAPE, RANK = (8, 6), 2
PROBLEM = Problem(shape=SHAPE, rank=RANK, batch_size=5, ridge=0.01, sparsity=0.02)
PLAN = Plan("model", PROBLEM, Batching(5), snapshot_every=1)


def dictionary(t=1, seed=0, plan=PLAN, shard=0, **changes):
    """A dictionary that some learner might have published."""
    random = np.random.default_rng(seed)
    loadings = [random.random((size, RANK)) for size in plan.problem.shape]
    version = Version("model", t, shard)
    plain = Snapshot(version, 5, loadings, None, 1.0, "", (), (0, 1), "", {}, penalties=(0.02, 0.01))
    return Dictionary.of(plan, replace(plain, **changes))


def tensors(count, partitions=2, seed=1):
    random = np.random.default_rng(seed)
    return [[Tensor(random.random(SHAPE)).to_bytes() for _ in range(count)] for _ in range(partitions)]


class Group:
    """What outlives encoders: an input, where the group stands, what was committed, who has which partition."""

    def __init__(self, values):
        self.input, self.stood, self.written, self.commits = values, {}, [], 0
        self.terms = {p: Term(p, b"token") for p in range(len(values))}

    def codes(self):
        return [Code.from_bytes(output.value) for output in self.written if output.stream == "codes"]

    def letters(self):
        return [DeadLetter.from_bytes(output.value) for output in self.written if output.stream == "dead-letters"]

    def stands(self, partitions):
        return {p: self.stood.get(p, Stand(0, 0)) for p in partitions}

    def restart(self):
        """A new process: the group gives it everything."""
        self.terms = {p: Term(p, b"token") for p in self.terms}


class Partitions:
    """Delivers up to `chunk` records of the partitions in turn."""

    def __init__(self, group, chunk):
        self.group, self.chunk, self.at, self.turn = group, chunk, {}, 0

    def add(self, starts):
        self.at |= starts

    def drop(self, partition):
        del self.at[partition]

    def poll(self, limit, timeout, hungry=None):
        for _ in range(len(self.group.input)):
            self.turn = (self.turn + 1) % len(self.group.input)
            first = self.at.get(self.turn) if hungry is None or self.turn in hungry else None
            values = [] if first is None else self.group.input[self.turn][first : first + min(self.chunk, limit)]
            if values:
                self.at[self.turn] = first + len(values)
                return [Record(Position(self.turn, first + k), b"key", value) for k, value in enumerate(values)]
        return []

    def close(self):
        self.group.closed = True


class Codebox:
    """All or nothing; refused if a term is over."""

    def __init__(self, group, ours, at):
        self.group, self.ours, self.at = group, ours, at

    def open(self):
        pass

    def commit(self, outputs, stands):
        self.at("before-commit")
        self.ours.check()
        self.group.written = [*self.group.written, *outputs]
        self.group.stood = self.group.stood | stands
        self.group.commits += 1
        self.at("after-commit")
        return 0


def at_once(call):
    future = Future()
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
    return future


def encode(
    group,
    plan=PLAN,
    newest=None,
    at=no_crash,
    chunk=3,
    letters=True,
    turned=lambda turn: None,
    still=30,
    aside=at_once,
    emit="codes",
    **pace,
):
    """Run an encoder until nothing came for a while; what it reported. `turned` is called each time that it polls."""
    clock, quiet, turns, said = [0.0], [0], [0], []
    newest = newest or (lambda: {0: dictionary(plan=plan)})

    def source():
        found = Partitions(group, chunk)
        polled = found.poll

        def poll(limit, timeout, hungry=None):
            turned(turns[0])
            turns[0] += 1
            records = polled(limit, timeout, hungry)
            clock[0] += 0.005
            quiet[0] = 0 if records else quiet[0] + 1
            return records

        found.poll = poll
        return found

    ports = EncoderPorts(
        terms=lambda: dict(group.terms),
        stands=group.stands,
        source=source,
        outbox=lambda ours: Codebox(group, ours, at),
        newest=newest,
        aside=aside,
        now=lambda: clock[0],
        stopping=lambda: quiet[0] > still,
        report=said.append,
        pause=lambda seconds: quiet.__setitem__(0, quiet[0] + 1),
    )
    beat = EncoderPace(**{"batch": 4, "commit_interval_ms": 12} | pace)
    Encoding(plan, ports, letters, beat, emit=emit).run()
    return said


def everything(group):
    """The positions of all records of the input."""
    return sorted((p, k) for p, values in enumerate(group.input) for k in range(len(values)))


# ── codes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_codes_are_those_of_the_learner():
    """The same bits as `Learner.code` under the dictionary's loadings; version and place are on each."""
    group, found = Group(tensors(20)), dictionary(t=7)
    encode(group, newest=lambda: {0: found})

    learner = Learner(PROBLEM)
    learner.state = learner.state._replace(scale=1.0, loadings=found.loadings)
    assert sorted(code.position for code in group.codes()) == everything(group)
    for code in group.codes():
        X = Tensor.from_bytes(group.input[code.position.partition][code.position.offset]).array
        coding = learner.code(X[None])
        assert code.dictionary == Version("model", 7)
        assert code.step == 7
        assert code.code.tolist() == coding.H[0].tolist()
        assert code.loss == coding.losses[0]
        X_hat = np.einsum("r,ir,jr->ij", code.code, *found.loadings)
        assert code.residual == pytest.approx(np.linalg.norm(X - X_hat) / np.linalg.norm(X))


@pytest.mark.parametrize(
    "problem",
    [
        PROBLEM,
        Problem(shape=SHAPE, rank=RANK, batch_size=5),
        Problem(shape=SHAPE, rank=RANK, batch_size=5, codes="signed", constraints="signed"),
        Problem(shape=SHAPE, rank=RANK, batch_size=5, dtype="float32", code_bound=0.25),
    ],
    ids=["penalised", "bounded by the scale", "signed", "float32, bounded"],
)
@pytest.mark.parametrize(
    "layout",
    [None, Layout((4, 2, 6), ((0, 1), (2,)), Scaling(2, "rms"))],
    ids=["as it comes", "groups and units"],
)
def test_encoders_code_as_the_model_does(problem, layout):
    """From the snapshots of a real model: the code that step t + 1 gave to a tensor is that of an encoder with the
    dictionary of step t. An encoder that forgot penalties, bound, units or groups would differ.
    """
    plan = Plan("model", problem, Batching(5), snapshot_every=1, layout=layout)
    random = np.random.default_rng(3)
    shape = SHAPE if layout is None else layout.shape
    world = World([[Tensor(random.random(shape) * 3).to_bytes() for _ in range(20)]])
    serve(world, plan, Pace(20, 3))

    snapshots = {s.version: s for s in map(Snapshot.from_bytes, world.stream("snapshots"))}
    compared = 0
    for code in world.codes():
        if code.dictionary.t == 0:
            continue
        found = Dictionary.of(plan, Snapshot.from_bytes(snapshots[code.dictionary].to_bytes()))
        encoder = Encoder(plan, 8, letters=True)
        encoder.begin(0, Stand(code.position.offset, code.position.offset))
        value = world.input[0][code.position.offset]
        (output,) = encoder.feed([Record(code.position, b"key", value)], {0: found}).outputs
        mine = Code.from_bytes(output.value)
        assert mine.dictionary == code.dictionary
        np.testing.assert_allclose(mine.code, code.code, rtol=1e-9, atol=1e-12)
        assert mine.loss == pytest.approx(code.loss, rel=1e-6, abs=1e-9)
        compared += 1
    assert compared == 15


def test_shards_have_their_own_dictionaries():
    """Partition p is coded with the dictionary of shard p mod S; one whose shard has none is left alone."""
    plan = replace(PLAN, shards=3)
    group = Group(tensors(4, partitions=6))
    newest = {0: dictionary(t=3), 1: dictionary(t=4, seed=4, shard=1)}
    encode(group, plan, newest=lambda: newest)

    found = {(code.position.partition, str(code.dictionary)) for code in group.codes()}
    assert found == {(0, "model/0/0/3"), (3, "model/0/0/3"), (1, "model/1/0/4"), (4, "model/1/0/4")}
    assert {p for p, term in group.terms.items() if p % 3 == 2 and not term.idle.is_set()} == set()


# ── dictionaries that come ─────────────────────────────────────────────────────────────────────────────────────


def test_without_a_dictionary_it_waits():
    """No partition is taken, nothing is committed; with the first dictionary everything is coded."""
    group, known = Group(tensors(6)), {}

    def turned(turn):
        if turn == 10:
            assert group.commits == 0
            known[0] = dictionary(t=1)

    encode(group, newest=lambda: known, turned=turned)
    assert sorted(code.position for code in group.codes()) == everything(group)


def test_a_new_dictionary_is_used_from_the_next_batch_on():
    """Of the records polled after it came none is coded with the old one."""
    group, known, marks = Group(tensors(40, partitions=1)), {0: dictionary(t=1)}, {}

    def turned(turn):
        if turn % 3 == 0 and turn:
            known[0] = dictionary(t=turn)
        marks[turn] = known[0].version.t

    encode(group, newest=lambda: known, turned=turned, chunk=2)
    versions = [code.dictionary.t for code in group.codes()]
    assert len(set(versions)) > 3
    assert versions == sorted(versions)
    # poll n has records 2(n − 1) and 2(n − 1) + 1: at the first nothing is assigned yet
    assert all(code.dictionary.t == marks[code.position.offset // 2 + 1] for code in group.codes())


def record(value, offset=0):
    return Record(Position(0, offset), b"0", value)


def snapshot(t=1, **changes):
    """One that fits."""
    ones = [np.ones((size, RANK)) for size in SHAPE]
    plain = Snapshot(Version("model", t), 5, ones, None, 1.0, "", (), (0, 1), "", {}, penalties=(0.0, 0.1))
    return replace(plain, **changes).to_bytes()


def test_the_newest_dictionary_is_followed():
    """Also in pieces; what cannot be read or is of another model is passed over."""
    pieces = [chunk.to_bytes() for chunk in split(snapshot(4), "x", 300)]
    other = snapshot(9, version=Version("other", 9))
    values = [snapshot(2), b"nonsense", other, None, *pieces]
    seen = []
    with Newest(PLAN, lambda ended: map(record, values, range(99)), lambda d: seen.append(d.version.t)) as newest:
        newest._thread.join(5)

    assert len(pieces) > 1
    assert seen == [2, 4]
    assert newest()[0].version == Version("model", 4)
    assert newest.wrong == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loadings": [np.ones((8, 2)), np.ones((8, 2))]}, "shape"),
        ({"loadings": [np.ones((8, 3)), np.ones((6, 3))], "atoms": (0, 1, 2)}, "rank"),
        ({"penalties": None}, "earlier release"),
        ({"layout": Layout((4, 2, 6), ((0, 1), (2,)))}, "groups"),
        ({"loadings": [np.full((8, 2), np.nan), np.ones((6, 2))]}, "not finite"),
    ],
    ids=["shape", "rank", "earlier release", "groups", "not finite"],
)
def test_a_dictionary_that_does_not_fit_is_told(changes, reason):
    """The one before stays in use, and a good one makes it forgotten."""
    newest = Newest(PLAN, lambda ended: iter(()))
    newest.take(record(snapshot(2)))
    newest.take(record(snapshot(3, **changes)))

    assert newest()[0].version.t == 2
    assert reason in newest.wrong[0]
    newest.take(record(snapshot(4)))
    assert newest()[0].version.t == 4
    assert newest.wrong == {}


def test_who_cannot_follow_says_so():
    """An error of the thread is raised where dictionaries are asked for."""

    def fails(ended):
        raise InputLost("gone")
        yield

    with Newest(PLAN, fails) as newest:
        newest._thread.join(5)
    with pytest.raises(InputLost, match="gone"):
        newest()


# ── exactly once ───────────────────────────────────────────────────────────────────────────────────────────────


def with_pieces(seed):
    """Partitions with whole tensors, tensors in pieces that are mixed up with others, pieces without an end, poison."""
    random = np.random.default_rng(seed)
    values, expected = [], []
    for p in range(2):
        queues = [[Tensor(random.random(SHAPE)).to_bytes()] for _ in range(8)]
        for k in range(5):
            whole = [c.to_bytes() for c in split(Tensor(random.random(SHAPE)).to_bytes(), f"{seed}-{p}-{k}", 150)]
            queues.append(whole)
        queues += [queues[-1][:1], [b"poison"], [None]]
        queues[-3] = [next(iter(split(Tensor(random.random(SHAPE)).to_bytes(), f"{seed}-{p}-open", 150))).to_bytes()]
        line, codes, letters = [], [], []
        left = [list(queue) for queue in queues]
        while any(left):
            k = random.choice([k for k, queue in enumerate(left) if queue])
            line.append(left[k].pop(0))
            if not left[k] and k < 13:
                codes.append((p, len(line) - 1))
            elif k >= 14:
                letters.append((p, len(line) - 1))
        values.append(line)
        expected.append((codes, letters))
    return values, sorted(expected[0][0] + expected[1][0]), sorted(expected[0][1] + expected[1][1])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 5), st.lists(st.integers(1, 40), max_size=6), st.integers(1, 7))
def test_every_code_once_however_often_it_is_killed(seed, crashes, chunk):
    """Wherever a process dies, with pieces open or not: each tensor has one code, each poison one dead letter."""
    values, codes, letters = with_pieces(seed)
    group, at = Group(values), crashing(crashes)
    for _ in range(len(crashes) + 1):
        try:
            encode(group, at=at, chunk=chunk)
            break
        except Crash:
            group.restart()

    assert sorted(code.position for code in group.codes()) == codes
    assert sorted(letter.record.position for letter in group.letters()) == letters
    open_at = {p: stand.offset for p, stand in group.stood.items() if stand.offset < stand.reached}
    assert all(group.stood[p].reached == len(values[p]) for p in (0, 1))
    assert len(open_at) == 2  # the pieces without an end are waited for


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5), st.lists(st.tuples(st.integers(2, 40), st.integers(0, 1), st.booleans()), max_size=6))
def test_partitions_come_and_go(seed, changes):
    """Taken back in order or lost, and given back later: each tensor has one code."""
    values, codes, letters = with_pieces(seed)
    group, taken = Group(values), {}

    def turned(turn):
        for p, (when, term) in list(taken.items()):
            if turn == when + 6:
                assert term.idle.is_set()  # whoever had it has let it go
                group.terms[p] = Term(p, b"token")
                del taken[p]
        for when, p, lost in changes:
            if turn == when and p in group.terms:
                term = group.terms.pop(p)
                taken[p] = turn, term
                term.lose() if lost else term.finish()

    encode(group, turned=turned, still=60)
    assert sorted(code.position for code in group.codes()) == codes
    assert sorted(letter.record.position for letter in group.letters()) == letters


def test_what_is_finished_is_committed_first():
    """A partition that is taken back in order has all that was coded of it committed when it is let go."""
    group = Group(tensors(30))
    term = group.terms[0]

    def turned(turn):
        if turn == 6:
            del group.terms[0]
            term.finish()

    encode(group, turned=turned, commit_interval_ms=10_000)
    mine = [code.position.offset for code in group.codes() if code.position.partition == 0]
    assert term.idle.is_set()
    assert 0 < len(mine) < 30
    assert group.stood[0] == Stand(len(mine), len(mine))


def test_a_lost_partition_voids_what_was_not_committed():
    """After a loss nothing of the open transaction is written; the others begin again where the group stands."""
    group = Group(tensors(30))

    def turned(turn):
        if turn == 6:
            group.terms.pop(0).lose()

    said = encode(group, turned=turned, commit_interval_ms=10_000)
    assert {code.position.partition for code in group.codes()} == {1}
    assert len(group.codes()) == 30
    assert any("no longer ours" in line for line in said)


def test_asking_where_the_group_stands_holds_nobody_up():
    """While the answer for one partition does not come, the other is coded."""
    group, open_, pending = Group(tensors(10)), Future(), []
    one = group.terms.pop(1)

    def aside(call):
        if call.func == group.stands and call.args == ([1],):
            pending.append(call)
            return open_
        return at_once(call)

    def turned(turn):
        if turn == 3:
            group.terms[1] = one
        if turn == 20:
            assert {code.position.partition for code in group.codes()} == {0}
            assert len(group.codes()) == 10
            open_.set_result(pending[0]())

    encode(group, turned=turned, aside=aside)
    assert sorted(code.position for code in group.codes()) == everything(group)


def test_records_alone_move_the_group():
    """Where nothing is written, all being refused without letters, the group still goes on."""
    group = Group([[b"poison"] * 5])
    encode(group, letters=False)

    assert group.written == []
    assert group.stood == {0: Stand(5, 5)}


# ── what is refused ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"nonsense", "DecodeError"),
        (None, "DecodeError"),
        (Tensor(np.ones((6, 8))).to_bytes(), "DataError"),
        (Tensor(-np.ones(SHAPE)).to_bytes(), "DataError"),
        (Tensor(np.full(SHAPE, np.inf)).to_bytes(), "DataError"),
        (Tensor(np.ones(SHAPE), ("b", "a")).to_bytes(), "DataError"),
        (Draw(Tensor(np.ones(SHAPE)), "run", 0, 0, True).to_bytes(), "TuningDraw"),
    ],
    ids=["nonsense", "tombstone", "shape", "negative", "infinite", "axes", "tuning"],
)
def test_poison_is_a_dead_letter(value, error):
    """In the transaction of the others, which are coded."""
    plan = replace(PLAN, draws=Draws(tuning="refuse"))
    group = Group(tensors(4, partitions=1))
    group.input[0].insert(2, value)
    encode(group, plan, newest=lambda: {0: dictionary(axes=("a", "b"))})

    (letter,) = group.letters()
    assert (letter.record.position, letter.error, letter.record.value) == ((0, 2), error, value)
    assert [code.position.offset for code in group.codes()] == [0, 1, 3, 4]


def test_too_much_poison_ends_it():
    """As it ends the learner, and before anything beyond the limit is committed."""
    plan = replace(PLAN, refusals=Refusals(consecutive=5))
    group = Group([[b"poison"] * 20])

    with pytest.raises(TooMuchRefused, match="messages in a row"):
        encode(group, plan, chunk=20)
    assert len(group.letters()) <= 5
    assert group.stands([0])[0].reached == len(group.letters())


def test_lost_input_ends_it_or_is_passed_over():
    """As `on_lost_input` says."""
    group = Group(tensors(4, partitions=1))
    failed = []

    def turned(turn):
        if turn == 3 and not failed:
            failed.append(turn)
            raise InputLost("offset 3 is gone")

    with pytest.raises(InputLost):
        encode(group, turned=turned)
    failed.clear()
    said = encode(group, replace(PLAN, on_lost_input="resume"), turned=turned)
    assert any("going on with what is there" in line for line in said)
    assert sorted(code.position for code in group.codes()) == everything(group)


# ── what an operator sees ──────────────────────────────────────────────────────────────────────────────────────


class Joined:
    """A member."""

    joined, rebalances = True, 3

    def __init__(self, *partitions):
        self.terms = {p: Term(p, b"") for p in partitions}


def test_readiness_says_what_is_waited_for():
    """A dictionary, of the shards that are ours; a group; topics. A spare encoder is ready."""
    clock = [0.0]
    board = EncoderBoard("model", 2, "model.snapshots", lambda: clock[0])
    assert board.unready() == ["starting"]

    board.starting, known = None, {}
    board.newest = lambda: known
    assert board.unready()[0] == "waiting for the group to share out the partitions"
    board.group = Joined(0, 1)
    assert board.unready() == [
        "waiting for the first dictionary of shard 0 on model.snapshots",
        "waiting for the first dictionary of shard 1 on model.snapshots",
    ]
    known[0] = dictionary()
    assert board.unready() == ["waiting for the first dictionary of shard 1 on model.snapshots"]
    board.wrong = lambda: {1: "of an earlier release"}
    assert board.unready() == ["of an earlier release"]
    board.group = Joined(0, 2)
    assert (board.unready(), board.role) == ([], "encoder")
    board.group = Joined()
    assert (board.unready(), board.role) == ([], "standby")
    board.missing = ["model.codes"]
    assert board.unready() == ["the topic model.codes is missing"]

    board.turned([0], 1)
    clock[0] = 100.0
    assert board.stuck(60) == ["the process is stuck for 100 s", "the encoder is stuck for 100 s"]
    board.went_round()
    assert board.stuck(60) == ["the encoder is stuck for 100 s"]


def test_metrics_are_those_of_the_catalogue():
    """Every one has a family, and the numbers are those that were written down."""
    clock = [100.0]
    board = EncoderBoard("model", 1, "model.snapshots", lambda: clock[0])
    board.starting, board.group, board.newest = None, Joined(0, 1, 2), lambda: {0: dictionary(t=9)}
    board.turned([0, 1], 2)
    board.coded(Coded((), {}, 7, ("DataError", "DataError"), ()), 0.02)
    board.came(dictionary(t=9))
    clock[0] = 103.0
    found = {(s.name, *s.labels.values()): s.value for family in board.families() for s in family.samples}

    assert found["ocpdl_encoder_tensors_total", "model"] == 7
    assert found["ocpdl_encoder_refused_total", "model", "DataError"] == 2
    assert found["ocpdl_encoder_refused_total", "model", "DecodeError"] == 0
    assert found["ocpdl_encoder_dictionary_step", "model", "0"] == 9
    assert found["ocpdl_encoder_dictionaries_total", "model", "0"] == 1
    assert found["ocpdl_encoder_dictionary_age_seconds", "model", "0"] == 3
    assert found["ocpdl_encoder_batch_size", "model"] == 1
    assert found["ocpdl_encoder_waiting_partitions", "model"] == 1
    assert found["ocpdl_encoder_batch_seconds_count", "model"] == 1
    assert board.status()["tensors"] == 7


def test_the_group_is_polled_while_it_codes():
    """And the error of either ends both."""
    polls = []

    class Polled:
        def poll(self, timeout):
            polls.append(timeout)

    def work(stopping):
        while not stopping():
            pass

    Member(Polled(), work, lambda: len(polls) > 3).run()
    assert len(polls) > 3

    def fails(stopping):
        raise Fenced("gone")

    with pytest.raises(Fenced):
        Member(Polled(), fails, lambda: False).run()


def test_codes_are_not_published_twice(tmp_path):
    """An encoder does not start where the learner codes, unless it codes another topic."""
    path = tmp_path / "service.yaml"
    path.write_text(
        "{model: m, input: t, bootstrap_servers: 'nowhere:1', problem: {shape: [2], rank: 1}, kafka: {patience_s: 0.1}}"
    )
    found = CliRunner().invoke(main, ["encode", "--config", str(path), "--set", "http.port=null"])

    assert found.exit_code == ConfigError.exit_code
    assert "learner.codes" in found.stderr
    for more in ("learner.codes=off", "encoders.input=others"):
        found = CliRunner().invoke(main, ["encode", "--config", str(path), "--set", "http.port=null", "--set", more])
        assert found.exit_code == 6, more  # as far as the broker


def test_a_learner_without_codes_learns_the_same():
    """Its journal and state are those of one that publishes them."""
    worlds = [World(tensors(20)) for _ in range(2)]
    quiet = replace(PLAN, codes=False)
    (one, _), (other, _) = (serve(world, plan, Pace(20, 3)) for world, plan in zip(worlds, (PLAN, quiet), strict=True))

    assert len(worlds[0].codes()) == 40
    assert worlds[1].codes() == []
    assert worlds[0].stream("journal") == worlds[1].stream("journal")
    assert one.progress.state.digest() == other.progress.state.digest()
