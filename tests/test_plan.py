"""What a model will take: sizes that are true, and a speed that was measured."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl import Learner, Problem
from stream_ocpdl.cli import main
from stream_ocpdl.scaling import Costs, Fleet, outlook
from stream_ocpdl.sizing import BROKER_DEFAULT, Pace, Sizes, advise, limits
from stream_ocpdl.stream.messages import Tensor, split


def plan(*words, code=0):
    result = CliRunner().invoke(main, ["plan", *words])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sizes_are_those_of_the_bytes(dtype):
    """A checkpoint and a message are as large as was said, but for their headers."""
    problem = Problem(shape=(30, 20), rank=3, batch_size=7, dtype=dtype)
    learner = Learner(problem)
    learner.step(np.random.default_rng(0).random((7, 30, 20)))
    sizes = Sizes.of(problem)

    assert 0 <= len(learner.state.to_bytes()) - sizes.checkpoint < 400
    assert abs(len(Tensor(np.zeros((30, 20))).to_bytes()) - sizes.message) <= 16
    assert sizes.learner == sizes.checkpoint + 7 * 600 * np.dtype(dtype).itemsize


def test_large_messages_go_in_pieces():
    """The number of pieces is that of the producer; only a foreign format asks for a larger record."""
    problem = Problem(shape=(90, 5000), rank=20)
    sizes = Sizes.of(problem)
    pieces = list(split(Tensor(np.zeros((90, 5000))).to_bytes(), "a"))

    assert sizes.pieces == len(pieces) == 5
    assert max(len(chunk.to_bytes()) for chunk in pieces) < BROKER_DEFAULT
    (journal, foreign) = limits(sizes)
    assert journal.least == 64_000_000
    assert foreign.least > 3_600_000
    assert len(limits(Sizes.of(Problem(shape=(4, 3), rank=2)))) == 1


def test_shards_and_partitions_follow_the_rate():
    """Twice what a shard can do wants three shards, seven tenths of one each; bytes want partitions."""
    problem = Problem(shape=(100, 100), rank=2, batch_size=10)
    sizes = Sizes.of(problem)

    assert advise(problem, sizes, 100.0, Pace(5, 0.2, None)).shards == 3
    assert advise(problem, sizes, 10_000.0, None).partitions == 81
    assert advise(problem, sizes, 0.001, Pace(5, 0.2, None)).partitions == 1


def test_the_command():
    """It learns, and says for machines what it says for people."""
    found = json.loads(plan("--shape", "6,5", "--rank", "2", "--rate", "10", "--seconds", "0.1", "--json"))
    text = plan("--shape", "6x5", "--rank", "2", "--seconds", "0")

    assert found["bytes"]["B"] == 8 * 2 * 30
    assert found["steps_per_second"] > 1
    assert found["tensors_per_second"] == pytest.approx(32 * found["steps_per_second"])
    assert found["advice"]["load"] == pytest.approx(10 / found["tensors_per_second"])
    assert "B 480 B" in text
    assert "speed       not measured: not asked for" in text


def test_what_does_not_fit_is_not_tried():
    """A model that is larger than the memory is only reckoned."""
    text = plan("--shape", "100000,100000,10", "--rank", "50")

    assert "not measured: it takes up to" in text
    assert "B 40 TB" in text


@pytest.mark.parametrize("shape", ["", "a,b", "4,,3", "-1,2", "0,2", "9" * 5000, ",".join("2" * 17)])
def test_shapes_that_are_none(shape):
    """A mistake is one line and exit code 2."""
    assert len(plan("--shape", shape, "--rank", "2", code=2).strip().splitlines()) == 1
    assert "rank must be" in plan("--shape", "4", "--rank", "0", code=2)


COSTS = Costs(tensor=1e-3, merge=1e-2, update=0.02, message=1000, partial=100_000)


def test_workers_are_held_up_by_the_learner_in_the_end():
    """Twice as many are twice as fast until the learner has no time left; then only larger partials help, or a tree."""
    few, many = Fleet(2, 100), Fleet(1000, 100)

    assert Fleet(4, 100).stale(COSTS)[0] == pytest.approx(2 * few.stale(COSTS)[0])
    assert few.stale(COSTS)[1] == "workers"  # 0.1 s of coding, 0.04 s of learning
    assert many.stale(COSTS) == (pytest.approx(100_000 / 10.02), "learner")
    assert outlook(COSTS, 100, 1000).most == pytest.approx(100 / 1e-2)
    assert Fleet(1000, 200).stale(COSTS)[0] == pytest.approx(2 * many.stale(COSTS)[0])
    assert many.merged(COSTS)[1] == pytest.approx(100_000 / 0.1)  # it has four partials, and time


def test_waiting_for_all_is_never_faster():
    """And a round of several partials for one worker takes as many times longer to code."""
    for workers in (1, 3, 16, 64):
        fleet = Fleet(workers, 50, bandwidth=1e8)
        assert fleet.synchronous(COSTS)[0] < fleet.stale(COSTS)[0]
    one = Fleet(1, 50, way=0.0, partials=4)

    assert one.synchronous(COSTS)[0] == pytest.approx(200 / (0.2 + 0.04 + 0.02))


def test_brokers_may_be_what_holds_them_up():
    """Tensors are read, partials are written and read: no tree helps there."""
    fleet = Fleet(64, 100, bandwidth=1e6)
    rate, bound = fleet.stale(COSTS)

    assert bound == "brokers"
    assert rate == pytest.approx(100 / (0.1 + 0.2))
    assert fleet.merged(COSTS)[1] < rate


def test_the_command_for_many():
    """What is said of workers was measured here."""
    words = ["--shape", "6,5", "--rank", "2", "--seconds", "0.1", "--workers", "6"]
    found = json.loads(plan(*words, "--json"))["workers"]

    assert [row["workers"] for row in found["rows"]] == [1, 2, 4, 6]
    assert 0 < found["rows"][0]["synchronous"] < found["rows"][0]["stale"] <= 1.001 / found["costs"]["tensor"]
    assert "held up by" in plan(*words)
