"""A step that absorbs sums over parts of a minibatch is the step of Algorithm 2 with all of it."""

from dataclasses import replace

import numpy as np
import pytest

from stream_ocpdl import Balanced, Box, Constant, Learner, NonnegativeColumns, NumericError, Problem, Workers
from stream_ocpdl.ocpdl import blocks
from stream_ocpdl.ocpdl.arrays import Sparse
from stream_ocpdl.ocpdl.blocks import Blocks
from stream_ocpdl.ocpdl.entries import SparseBatch, collect, read_batch
from stream_ocpdl.ocpdl.learner import encode
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.sums import UNBOUNDED, Sums, added, advance_sums, check_finite, scalable, sums_of
from tests import paper


def coded(problem, loadings, X, workers=None):
    """A part, coded by somebody who has the dictionary alone."""
    batch = read_batch(problem, X)
    bound = problem.code_bound if problem.penalised else UNBOUNDED
    sets = replace(problem, code_bound=bound).sets(1.0)
    return sums_of(loadings, batch, encode(problem, sets, loadings, batch), *([workers] if workers else []))


def rounds(problem, stream, parts):
    """Learn a stream of minibatches by the sums of their parts."""
    state, steps = State.initial(problem), []
    for X in stream:
        state, step = advance_sums(
            problem, state, added([coded(problem, state.loadings, part) for part in np.split(X, parts)])
        )
        steps.append(step)
    return state, steps


def relative(found, wanted):
    return np.linalg.norm(np.subtract(found, wanted)) / np.linalg.norm(wanted)


PROBLEMS = {
    "plain": Problem(shape=(6, 5), rank=3, batch_size=24),
    "one mode": Problem(shape=(9,), rank=2, batch_size=24, weights=Balanced()),
    "penalised": Problem(shape=(4, 3, 5), rank=3, batch_size=24, sparsity=0.1, ridge=0.05),
    "signed": Problem(shape=(6, 5), rank=3, batch_size=24, constraints="signed", codes="signed"),
    "forgetting": Problem(shape=(3, 2, 2, 4), rank=2, batch_size=24, weights=Constant(0.1), radius=None),
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("size", [1.0, 3e4])
def test_sums_of_parts_are_the_minibatch(problem, size):
    """Whatever the scale of the data: loadings, aggregates and surrogate are those of a learner that has all of it."""
    random = np.random.default_rng(3)
    stream = [size * random.random((24, *problem.shape)) for _ in range(6)]
    learner = Learner(problem)
    known = [learner.step(X) for X in stream]
    state, steps = rounds(problem, stream, 4)

    assert (state.t, state.N) == (learner.state.t, learner.state.N) == (6, 144)
    for found, wanted in zip(state.loadings, learner.state.loadings, strict=True):
        assert relative(found, wanted) <= 1e-10
    mine, theirs = state.aggregates, learner.state.aggregates
    assert relative(mine.A, theirs.A) <= 1e-10
    assert relative(mine.B, theirs.B) <= 1e-10
    assert (mine.E, mine.P) == pytest.approx((theirs.E, theirs.P), rel=1e-12)
    for found, wanted in zip(steps, known, strict=True):
        assert found.weight == wanted.weight
        assert found.surrogate == pytest.approx(wanted.surrogate, rel=1e-9)
        assert found.prequential_loss == pytest.approx(wanted.prequential_loss, rel=1e-9)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_sums_against_the_oracle(problem):
    """Parts that are coded with D_{t−1} give A and B of the oracle, which has the union; f̂ has its E and P, exactly."""
    random = np.random.default_rng(4)
    state, past, weights = State.initial(problem), [], []
    lam, ridge, signed = problem.sparsity, problem.ridge, problem.codes == "signed"
    for _ in range(5):
        X, before = random.random((24, *problem.shape)), state.loadings
        parts = [coded(problem, state.loadings, part) for part in np.split(X, 3)]
        state, step = advance_sums(problem, state, added(parts))
        before = before if past else problem.initial_loadings(state.scale)
        past.append((X, paper.coding(X, before, lam, ridge, signed=signed)))
        weights.append(step.weight)

    A, B = paper.aggregates(past, weights)
    assert relative(state.aggregates.A, A) <= 1e-10
    assert relative(state.aggregates.B, B) <= 1e-10
    wanted = paper.surrogate(past, weights, state.loadings, lam, ridge)
    assert step.surrogate == pytest.approx(wanted, rel=1e-10)


def test_a_stale_part_still_majorises():
    """With codes of an earlier dictionary f̂_t is the loss of these codes, exactly, and so above that of the best."""
    problem = Problem(shape=(6, 5), rank=3, batch_size=24, ridge=0.1)
    random = np.random.default_rng(5)
    state, past, weights, loadings = State.initial(problem), [], [], []
    for t in range(6):
        X, used = random.random((24, 6, 5)), loadings[max(0, t - 3)] if loadings else state.loadings
        loadings.append(state.loadings)
        state, step = advance_sums(problem, state, coded(problem, used, X))
        past.append((X, paper.coding(X, used, ridge=0.1)))
        weights.append(step.weight)

    exact = paper.surrogate(past, weights, state.loadings, ridge=0.1)
    assert step.surrogate == pytest.approx(exact, rel=1e-10)
    assert step.surrogate >= paper.empirical(past, weights, state.loadings, ridge=0.1)


def test_a_large_b_in_tiles(monkeypatch):
    """Where B is kept in tiles the step is the same, in place or not, and nothing is left in the columns too many."""
    monkeypatch.setattr(blocks, "LARGE", 1000)
    problem = Problem(shape=(4, 300), rank=3, batch_size=12)
    stream = [np.random.default_rng(k).random((12, 4, 300)) for k in range(3)]
    learner, states = Learner(problem), [State.initial(problem)] * 2
    assert isinstance(states[0].aggregates.B, Blocks)
    states[1] = State.initial(problem)
    for X in stream:
        learner.step(X)
        sums = added([coded(problem, states[0].loadings, part) for part in np.split(X, 2)])
        states = [advance_sums(problem, state, sums, consume=k == 1)[0] for k, state in enumerate(states)]

    assert states[0].digest() == states[1].digest()
    assert relative(states[0].loadings[1], learner.state.loadings[1]) <= 1e-10
    assert isinstance(states[0].aggregates.B, Blocks)
    assert float(np.abs(states[0].aggregates.B.tiles).sum()) == pytest.approx(float(np.sum(states[0].aggregates.B)))


def test_sparse_tensors_have_the_sums_of_dense_ones():
    """By entries or as a whole, and on any number of threads, to the last bits."""
    problem = Problem(shape=(300, 400), rank=3, batch_size=12)
    random = np.random.default_rng(6)
    rows = [Sparse((300, 400), np.sort(random.choice(120_000, 5, False)), random.random(5)) for _ in range(12)]
    batch, _ = collect(problem, rows)
    assert isinstance(batch, SparseBatch)
    X = np.zeros((12, 120_000))
    for x, row in zip(X, rows, strict=True):
        x[row.indices] = row.values
    loadings, sets = problem.initial_loadings(1.0), problem.sets(1.0)
    few = sums_of(loadings, batch, encode(problem, sets, loadings, batch))
    with Workers(2) as workers:
        many = coded(problem, loadings, X.reshape(12, 300, 400), workers)

    assert relative(few.B, many.B) <= 1e-12
    assert relative(few.A, many.A) <= 1e-12
    assert (few.energy, few.count) == (pytest.approx(many.energy, rel=1e-14), 12)


def test_sums_in_single_precision():
    """B is kept in float32 as ever; parts are added in float64."""
    problem = Problem(shape=(6, 5), rank=3, batch_size=24, dtype="float32")
    stream = [np.random.default_rng(k).random((24, 6, 5)) for k in range(4)]
    learner = Learner(problem)
    for X in stream:
        learner.step(X)
    state, _ = rounds(problem, stream, 4)

    assert state.aggregates.B.dtype == np.float32
    assert relative(state.loadings[0], learner.state.loadings[0]) <= 2e-5


def test_nothing_fixes_no_scale():
    """Minibatches without energy come and go; the first that has some fixes the scale."""
    problem = PROBLEMS["plain"]
    stream = [np.zeros((24, 6, 5)), np.zeros((24, 6, 5)), 50 * np.random.default_rng(1).random((24, 6, 5))]
    learner = Learner(problem)
    for X in stream:
        learner.step(X)
    state, _ = rounds(problem, stream, 2)

    assert state.scale == pytest.approx(learner.state.scale, rel=1e-12)
    assert relative(state.loadings[0], learner.state.loadings[0]) <= 1e-10


def test_which_sets_can_be_brought_to_scale():
    """Those that grow with the data, or not at all; a box without penalties begins in another place."""
    plain = Problem(shape=(6, 5), rank=3)
    assert scalable(plain)
    assert scalable(replace(plain, constraints="signed", codes="signed"))
    assert scalable(replace(plain, ridge=0.1, constraints=NonnegativeColumns(2.0)))
    assert not scalable(replace(plain, constraints=("nonnegative", Box(0, 1))))
    assert not scalable(replace(plain, code_bound=1.0))
    assert not scalable(replace(plain, ridge=0.1, constraints=Box(0, np.inf)))


def test_what_is_not_finite_is_noticed():
    """By the one who makes the sums: nobody could absorb them."""
    sums = Sums(2, 1.0, 1.0, np.eye(2), np.ones((2, 3)))
    check_finite(sums)
    for wrong in (replace(sums, energy=np.inf), replace(sums, B=np.full((2, 3), np.nan))):
        with pytest.raises(NumericError, match="rescale"):
            check_finite(wrong)
