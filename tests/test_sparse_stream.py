"""Sparse messages stay sparse up to the learner, and the way that a minibatch was learned is the way it is replayed."""

import signal
import uuid
from dataclasses import replace

import numpy as np
import pytest

from stream_ocpdl import Problem, Sparse
from stream_ocpdl.errors import DataError, LineageError
from stream_ocpdl.ocpdl import entries, sparse
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.formats import Format
from stream_ocpdl.stream.intake import Intake
from stream_ocpdl.stream.messages import Code, DeadLetter, Position, Record, Tensor
from tests.fakes import World
from tests.test_kafka import PARTITIONS, Model, process
from tests.test_pipeline import crashing, live, plan


def few(shape, random, count=3):
    """A tensor with a few entries."""
    places = np.sort(random.choice(int(np.prod(shape)), count, replace=False))
    return Sparse(shape, places, random.random(count))


def inputs(kinds, count=30, shape=(4, 3)):
    """For each of two partitions tensors: sparse, dense, or not to be learned, as `kinds` says in turn."""
    random = np.random.default_rng(0)

    def value(kind):
        array = few(shape, random)
        match kind:
            case "dense":
                return Tensor(random.random(shape)).to_bytes()
            case "negative":
                return Tensor(array._replace(values=-array.values)).to_bytes()
            case "another shape":
                return Tensor(array._replace(shape=(6, 2))).to_bytes()
            case "cut off":
                return Tensor(array).to_bytes()[:-3]
        return Tensor(array).to_bytes()

    return [[value(kinds[(k + p) % len(kinds)]) for k in range(count)] for p in (0, 1)]


@pytest.fixture
def spied(monkeypatch):
    """Small minibatches are learned by their entries too; how many steps were."""
    seen = []
    monkeypatch.setattr(entries, "CELLS", 0)
    monkeypatch.setattr(entries, "CELLS_AN_ENTRY", 1)
    monkeypatch.setattr(sparse, "absorb", lambda *args, absorb=sparse.absorb: seen.append(1) or absorb(*args))
    return seen


BAD = ["sparse", "negative", "sparse", "another shape", "sparse", "cut off", "sparse", "sparse"]


@pytest.mark.parametrize("batching", [("full", "canonical"), ("linger", "arrival")])
@pytest.mark.parametrize("kinds", [["sparse"], ["sparse"] * 17 + ["dense"], BAD], ids=["all", "mixed", "poison"])
@pytest.mark.parametrize("crashes", [[], [3, 9, 14], list(range(2, 40, 5))], ids=str)
def test_crashes_change_no_bit(kinds, batching, crashes, spied):
    """Sparse minibatches, and now and then one that is not: a replay from scratch has the same state as the lives were,
    and in canonical order so has a life without crashes.
    """
    values, chosen = inputs(kinds), plan(*batching)
    world, calm, scratch = World(values), World(values), World(values)
    end = live(world, chosen, crashing(crashes))
    steps = len(spied)
    undisturbed = live(calm, chosen, crashing([]))
    scratch.written = [output for output in world.written if output.stream == "journal"]
    again = live(scratch, chosen, crashing([]))

    assert steps > 0
    assert again.progress.state.digest() == end.progress.state.digest()
    assert len({code.position for code in world.codes()}) == len(world.codes()) == end.progress.state.N
    refused = {DeadLetter.from_bytes(value).record.position for value in world.stream("dead-letters")}
    assert len(refused) == sum(kind not in ("sparse", "dense") for kind in kinds) * 60 // len(kinds) or kinds == BAD
    if batching == ("full", "canonical"):
        assert end.progress.state.digest() == undisturbed.progress.state.digest()
        assert world.stream("codes") == calm.stream("codes")


def test_refused_rows_leave_and_the_rest_is_sparse(spied):
    """A sparse tensor that is negative goes to the dead letters in the words of a dense one."""
    world = World(inputs(["sparse", "negative"]))
    live(world, plan(), crashing([]))
    letters = [DeadLetter.from_bytes(value) for value in world.stream("dead-letters")]

    assert spied
    assert len(letters) > 10
    assert all("is negative, but loadings and codes" in letter.reason for letter in letters)


def test_a_replay_that_chose_otherwise_would_be_noticed(spied, monkeypatch):
    """The bits of the two ways differ: the journal tells a replay that takes the other one from one that does not."""
    values, chosen = inputs(["sparse"], 10, (40, 30)), replace(plan(), problem=Problem(shape=(40, 30), rank=2))
    world, scratch = World(values), World(values)
    end = live(world, chosen, crashing([4, 7]))
    scratch.written = [output for output in world.written if output.stream == "journal"]

    assert live(scratch, chosen, crashing([])).progress.state.digest() == end.progress.state.digest()
    monkeypatch.setattr(entries, "CELLS", 10**9)
    scratch.checkpoints.clear()
    with pytest.raises(LineageError, match="is not the one that the journal has"):
        live(scratch, chosen, crashing([]))


@pytest.mark.parametrize(
    "shape", [(2**31, 2**31), (2**62, 2), (2**40,) * 16, (10**9, 4)], ids=["large", "half", "overflow", "modes"]
)
def test_gigantic_claims_take_no_memory(shape):
    """A message of a few bytes that claims a gigantic shape is refused by its shape; nothing is made of it."""
    value = Tensor(Sparse((2, 3), np.array([1, 5]), np.ones(2))).to_bytes()
    header = Tensor(Sparse(shape, np.array([1, 5]), np.ones(2))).to_bytes()
    intake = Intake(Format(), (2, 3), [0])

    assert intake.read(Record(Position(0, 0), None, value), 0.0).tensor is not None
    (refusal,) = intake.read(Record(Position(0, 1), None, header), 0.0).refused
    assert refusal.reason.startswith(f"shape is [{shape[0]}, ")
    with pytest.raises(DataError, match="a tensor of this problem has shape"):
        entries.collect(Problem(shape=(2, 3), rank=1), [Tensor.from_bytes(header).array])


# ── on a broker ────────────────────────────────────────────────────────────────────────────────────────────────

SHAPE = (128, 1024)
"""Eight such tensors are as many cells as make it worth while to go by entries."""


@pytest.fixture
def models(broker):
    """Two models of one input."""
    one, other = (Model(broker, f"test-{uuid.uuid4().hex[:8]}") for _ in range(2))
    other.topics = replace(other.topics, input=one.topics.input)
    layout = {one.topics.input: (len(PARTITIONS), {})}
    for model in (one, other):
        layout |= model.topics.outputs(len(PARTITIONS))
        model.set(
            input=one.topics.input,
            problem={"shape": list(SHAPE), "rank": 3},
            batching={"size": 8},
            pace={"commit_interval_ms": 0, "checkpoint_every": 10_000},
        )
    kafka.create_topics(one.connection, layout)
    yield one, other
    kafka.delete_topics(one.connection, layout)


@pytest.mark.broker
def test_kills_change_no_bit_of_what_sparse_messages_teach(models, tmp_path, monkeypatch):
    """A service that is killed before and after commits and in a replay ends in the state of one that never was, and
    publishes each code once.
    """
    model, calm = models
    random = np.random.default_rng(0)
    for point in ("before-commit:2", "after-commit:2", "in-replay:1", "after-commit:1"):
        values = [(p, Tensor(few(SHAPE, random, 100)).to_bytes()) for _ in range(20) for p in PARTITIONS]
        kafka.produce(model.connection, model.topics.input, values)
        with process(model, tmp_path, "--crash-at", point) as life:
            assert life.wait(120) == -signal.SIGKILL
    seen = []
    monkeypatch.setattr(sparse, "absorb", lambda *args, absorb=sparse.absorb: seen.append(1) or absorb(*args))
    digests = [each.live() for each in (model, calm)]

    assert len(seen) >= 20
    assert digests[0] == digests[1]
    for each in (model, calm):
        codes = [Code.from_bytes(value) for p in PARTITIONS for value in each.seen("codes", p)]
        assert len({code.position for code in codes}) == len(codes) == 160
