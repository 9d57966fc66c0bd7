"""A large B lies in tiles and a step goes over it once: the same mathematics, and the same bytes."""

import tracemalloc
from itertools import islice

import numpy as np
import pytest

from stream_ocpdl import (
    Learner,
    NonnegativeBall,
    NonnegativeColumns,
    NumericError,
    Problem,
    Simplex,
    State,
    Workers,
    stationarity,
)
from stream_ocpdl.ocpdl import aggregates, blocks, contraction
from stream_ocpdl.ocpdl.blocks import Blocks
from stream_ocpdl.ocpdl.learner import advance
from tests import paper
from tests.test_kernels import mode  # noqa: F401  (a fixture)
from tests.test_learner import Faulty, check_against_the_oracle, check_run, mixture
from tests.test_missing import with_gaps

SHAPES = [((5, 200), 3), ((1, 130), 2), ((3, 2, 150), 4), ((4, 128), 1)]
"""Shapes and ranks: columns that fill their tiles and that do not, one cell beside the last mode, odd ranks."""

OPTIONS = {
    "default": {},
    "penalties, columns": {"sparsity": 0.3, "ridge": 0.1},
    "radius": {"radius": 0.02},
    "bound": {"constraints": NonnegativeBall(1.5)},
    "no radius": {"radius": None},
    "columns": {"constraints": NonnegativeColumns(0.7)},
    "shares": {"constraints": Simplex()},
    "signed": {"constraints": "signed", "codes": "signed", "sparsity": 0.1},
}


@pytest.fixture
def tiled(monkeypatch):
    """However small B is, it is cut into tiles, of which none has more than one span of columns."""
    monkeypatch.setattr(blocks, "LARGE", 0)
    monkeypatch.setattr(blocks, "TILE", 2000)


def in_tiles(learner):
    return isinstance(learner.state.aggregates.B, Blocks)


def data(shape, rank, b, steps=6, seed=0):
    return list(islice(mixture(shape, rank, b, seed), steps))


# ── the layout ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("shape", "rank"), SHAPES, ids=str)
def test_tiles_hold_what_they_were_given(shape, rank, dtype):
    """Atoms go in and come out, in every cell; the columns behind the last are zero."""
    plain = np.random.default_rng(0).random((rank, *shape)).astype(dtype)
    B = Blocks.zeros(shape, rank, dtype, 64)
    for r in range(rank):
        B.write_atom(r, plain[r])

    assert np.array_equal(np.asarray(B), plain)
    assert (B.shape, B.size, len(B), B.dtype) == (plain.shape, plain.size, rank, plain.dtype)
    assert B.tiles.sum() == pytest.approx(plain.sum(), rel=1e-5)
    assert B.tiles.ctypes.data % 64 == 0


@pytest.mark.parametrize("width", [blocks.SPAN, 2 * blocks.SPAN])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("shape", "rank"), [*SHAPES, ((2, 1300), 3)], ids=str)
def test_contractions_of_tiles_are_the_oracles(shape, rank, dtype, width, mode):  # noqa: F811
    """B with the last mode, with all others, and UᵀU equal their einsum, on one stretch of tiles and on several."""
    random = np.random.default_rng(0)
    B, U, V = Blocks.zeros(shape, rank, dtype, width), random.random((shape[-1], rank)), None
    plain = random.random((rank, *shape)).astype(dtype)
    for r in range(rank):
        B.write_atom(r, plain[r])
    V, flat = random.random((plain[0].size // shape[-1], rank)), plain.reshape(rank, -1, shape[-1]).astype(float)

    T, G = B.fold_last(U)
    assert np.allclose(T, np.einsum("rpq,qr->rp", flat, U), rtol=1e-13)
    assert np.allclose(G, U.T @ U, rtol=1e-13)
    assert np.array_equal(G, G.T)
    assert np.allclose(B.fold_first(V), np.einsum("rpq,pr->rq", flat, V), rtol=1e-13)


def test_only_large_problems_are_cut():
    """By sizes alone: not one mode, not a small B, not where a tile would outgrow the cache, nor a short last mode."""
    assert blocks.width_of((50, 60000), 20) == blocks.SPAN
    assert blocks.width_of((50, 51120), 20) == blocks.SPAN
    assert blocks.width_of((5, 60000), 20) == 10 * blocks.SPAN
    for shape, rank in [((60_000_000,), 20), ((100, 100), 5), ((1000, 1000), 5), ((10**6, 100), 5), ((20, 20, 3), 24)]:
        assert blocks.width_of(shape, rank) == 0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("rank", [*range(1, 10), 13, 60])
@pytest.mark.parametrize(("rows", "cells"), [(7, 1500), (4, 64), (1, 3), (5, 1025), (13, 1), (6, 5125), (3, 8)])
def test_the_long_contraction_is_a_product(rows, cells, rank, dtype):
    """XW, whatever is left over of rows, cells, atoms and spans; a row has one sum whatever its range."""
    random = np.random.default_rng(0)
    X, W = random.random((rows, cells)).astype(dtype), random.random((cells, rank))
    whole, parts = np.empty((rows, rank)), np.empty((rows, rank))
    contraction.contract(0, rows, X, W, whole)
    for n in range(rows):
        contraction.contract(n, n + 1, X, W, parts)

    assert np.allclose(whole, X.astype(float) @ W, rtol=1e-13)
    assert np.array_equal(whole, parts)


# ── the step ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("b", [1, 5])
@pytest.mark.parametrize("options", OPTIONS)
def test_every_step_obeys_the_paper(tiled, options, b, dtype):
    """The laws of the learner's own test, with bounds and radius active and not."""
    problem = Problem(shape=(5, 200), rank=3, batch_size=b, dtype=dtype, **OPTIONS[options])

    check_run(problem, data((5, 200), 3, b))


@pytest.mark.parametrize("radius", ["auto", 0.05])
@pytest.mark.parametrize(("shape", "rank"), SHAPES, ids=str)
def test_the_run_is_the_oracles(tiled, shape, rank, radius):
    """Ten steps equal ten steps of the paper's slow Algorithm 1."""
    problem = Problem(shape=shape, rank=rank, batch_size=8, radius=radius, ridge=0.01)
    check_against_the_oracle(problem, data(shape, rank, 8, 10))


@pytest.mark.parametrize("b", [1, 8])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("shape", "rank"), SHAPES, ids=str)
def test_one_pass_or_three(monkeypatch, shape, rank, options, b):
    """A step from the same state is that of a B that was not cut, in all that is reported, but for rounding."""
    problem = Problem(shape=shape, rank=rank, batch_size=8, **OPTIONS[options] | {"ridge": 0.01})
    plain = Learner(problem)
    for X in data(shape, rank, 8):
        plain.step(X)
    monkeypatch.setattr(blocks, "LARGE", 0)
    monkeypatch.setattr(blocks, "TILE", 2000)
    for X in data(shape, rank, b, seed=1):
        cut = Learner(problem, State.from_bytes(plain.state.to_bytes()))
        assert in_tiles(cut)
        assert not in_tiles(plain)

        check_alike(cut.step(X), plain.step(X))
        for U, V in zip(cut.state.loadings, plain.state.loadings, strict=True):
            assert np.linalg.norm(U - V) <= 1e-10 * np.linalg.norm(V)
        assert np.allclose(np.asarray(cut.state.aggregates.B), plain.state.aggregates.B, rtol=1e-12, atol=1e-14)
    assert stationarity(problem, cut.state) == pytest.approx(stationarity(problem, plain.state), rel=1e-3, abs=1e-9)


def check_alike(one, other):
    """Two steps report the same."""
    assert np.allclose(one.codes, other.codes, rtol=1e-10, atol=1e-12)
    assert (one.radius_active, one.settled) == (other.radius_active, other.settled)
    assert one.surrogate == pytest.approx(other.surrogate, rel=1e-10)
    assert one.surrogate_before == pytest.approx(other.surrogate_before, rel=1e-10)
    assert one.movements == pytest.approx(other.movements, rel=1e-7, abs=1e-10)


@pytest.mark.parametrize("b", [1, 6])
def test_missing_cells(tiled, b):
    """Tensors with missing cells are filled before they are absorbed, and contracted again: the laws hold."""
    problem = Problem(shape=(5, 200), rank=3, batch_size=b, missing="impute")
    batches = [with_gaps(X, seed=t) for t, X in enumerate(data((5, 200), 3, b))]
    for X, whole in zip(batches[::2], data((5, 200), 3, b)[::2], strict=True):
        X[: b // 2] = whole[: b // 2]

    check_run(problem, batches)


# ── bits ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", ["default", "radius", "columns"])
@pytest.mark.parametrize("b", [1, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_stopping_changes_no_bit(tiled, dtype, b, options):
    """What a step leaves behind beside its state can be had from the state, to the last bit, at every step."""
    problem = Problem(shape=(4, 1300), rank=3, batch_size=b, dtype=dtype, **OPTIONS[options])
    steady, broken = Learner(problem, in_place=True), Learner(problem)
    assert in_tiles(steady)
    for X in data((4, 1300), 3, b):
        steady.step(X)
        broken = Learner(problem, State.from_bytes(broken.state.to_bytes()))
        assert broken.state.folded is None
        broken.step(X)

        assert broken.state.digest() == steady.state.digest()
        for mine, theirs in zip(broken.state.folded, steady.state.folded, strict=True):
            assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("options", ["default", "radius", "columns"])
@pytest.mark.parametrize("b", [1, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_threads_change_no_bit(tiled, dtype, b, options):
    """Runs on 1, 2 and 3 threads have equal states and report equal surrogates."""
    problem = Problem(shape=(4, 1300), rank=3, batch_size=b, dtype=dtype, **OPTIONS[options])
    found = set()
    for threads in (1, 2, 3):
        with Workers(threads) as workers:
            learner = Learner(problem, workers=workers)
            steps = [learner.step(X) for X in data((4, 1300), 3, b, 4)]
        found.add((learner.state.digest(), *((step.surrogate_before, step.surrogate) for step in steps)))

    assert len(found) == 1


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_bytes_know_no_tiles(monkeypatch, dtype):
    """A state in tiles has the bytes of the same state in C order, and is read from them."""
    problem = Problem(shape=(4, 200), rank=3, batch_size=2, dtype=dtype)
    learner = Learner(problem)
    learner.step(data((4, 200), 3, 2, 1)[0])
    monkeypatch.setattr(blocks, "LARGE", 0)
    monkeypatch.setattr(blocks, "TILE", 1000)
    cut = State.from_bytes(learner.state.to_bytes())

    assert isinstance(cut.aggregates.B, Blocks)
    assert cut.to_bytes() == learner.state.to_bytes()
    assert cut.digest() == learner.state.digest()


def test_the_old_state_is_left_alone(tiled):
    """A step that does not consume its state leaves every bit of it; one that does has its memory."""
    problem, (X, Y) = Problem(shape=(4, 200), rank=3, batch_size=2), data((4, 200), 3, 2, 2)
    state, _ = advance(problem, State.initial(problem), X)
    before = state.digest()
    following, _ = advance(problem, state, Y)

    assert state.digest() == before
    consumed, _ = advance(problem, state, Y, consume=True)
    assert consumed.aggregates.B is state.aggregates.B
    assert consumed.digest() == following.digest()


def test_a_step_that_is_not_finite_never_happened(tiled):
    """A user's set whose projection fails: a typed error, the state untouched."""
    faulty = Faulty()
    learner = Learner(Problem(shape=(4, 200), rank=3, constraints=faulty))
    X = data((4, 200), 3, 8, 1)[0]
    learner.step(X)
    before, faulty.broken = learner.state.digest(), True

    with pytest.raises(NumericError, match="discarded"):
        learner.step(X)
    assert learner.state.digest() == before


def test_a_step_in_place_needs_little_memory():
    """Beside B itself: no second copy, neither for a step nor for the bytes of the state."""
    problem = Problem(shape=(20, 12000), rank=20, batch_size=1)
    learner = Learner(problem, in_place=True)
    assert in_tiles(learner)
    batches = data((20, 12000), 20, 1, 4)
    for X in batches[:3]:
        learner.step(X)
    tracemalloc.start()
    learner.step(batches[3])
    learner.state.digest()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 0.2 * learner.state.aggregates.B.tiles.nbytes


def test_aggregates_in_tiles_are_the_oracles(tiled):
    """Ā and B̄ of every mode, as diagnostics ask for them."""
    random = np.random.default_rng(0)
    past, plain = aggregates.nothing((3, 2, 150), 4, "float64"), random.random((4, 3, 2, 150))
    for r in range(4):
        past.B.write_atom(r, plain[r])
    A, loadings = random.random((4, 4)), [random.random((rows, 4)) for rows in (3, 2, 150)]
    at = aggregates.Intermediate(aggregates.Aggregates(A, past.B, 1.0, 1.0), loadings)

    for i in range(3):
        for got, wanted in zip(at(i), paper.intermediate(A, plain, loadings, i), strict=True):
            assert np.allclose(got, wanted, rtol=1e-12)
