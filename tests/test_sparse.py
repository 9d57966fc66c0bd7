"""Sparse minibatches: the mathematics of the whole ones, entry by entry, and which of the two ways is taken."""

import pickle
import tracemalloc
from contextlib import contextmanager
from itertools import islice

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings

from stream_ocpdl import DataError, Learner, NumericError, OnlineCPDL, Problem, Sparse, State, Workers
from stream_ocpdl.ocpdl import aggregates, blocks, entries, kernels, sparse
from stream_ocpdl.ocpdl.batch import Batch, gather
from stream_ocpdl.ocpdl.blame import blame
from stream_ocpdl.ocpdl.blocks import Blocks
from stream_ocpdl.ocpdl.coordinates import as_sparse
from stream_ocpdl.ocpdl.entries import SparseBatch, are_few, collect, join, read_batch
from stream_ocpdl.ocpdl.learner import advance, warm_up
from tests import paper
from tests.test_batch import DTYPES, REFUSED, tensor, with_cell
from tests.test_learner import check_against_the_oracle, check_run, runs
from tests.test_onepass import OPTIONS, tiled  # noqa: F401  (a fixture)
from tests.test_onepass import SHAPES as TILED

SHAPES = [(60,), (9000,), (7, 60), (5, 4, 50), (2, 3, 4, 12), (300, 3), (1, 1), (3, 2, 2, 2)]


def by_entries(X):
    """A tensor by its nonzero entries."""
    indices = np.flatnonzero(X)
    return Sparse(X.shape, indices, np.asarray(X).reshape(-1)[indices])


def joined(problem, X):
    """A minibatch by its entries, however small it is."""
    batch, refusals = join(problem, [by_entries(x) for x in X])
    assert not refusals
    return batch


def drawn(shape, b=5, dtype="float64", density=0.2, seed=0):
    """Tensors with few entries; the first has none."""
    random = np.random.default_rng(seed)
    X = random.random((b, *shape)) * (random.random((b, *shape)) < density)
    X[0] = 0.0
    return X.astype(dtype)


@contextmanager
def sparse_steps():
    """Every minibatch that a Learner is given as a whole is learned by its entries."""
    step = Learner.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "step", lambda self, X: step(self, joined(self.problem, X)))
        yield


@pytest.fixture
def always(monkeypatch):
    """Whatever came by its entries is learned so."""
    monkeypatch.setattr(entries, "CELLS", 0)
    monkeypatch.setattr(entries, "CELLS_AN_ENTRY", 0)


# ── the mathematics ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["compiled", "interpreted"])
def mode(request, monkeypatch):
    """Run every kernel as Numba made it, and again as Python reads it."""
    if request.param == "interpreted":
        for module in (sparse, entries, kernels, blocks):
            for name, function in list(vars(module).items()):
                if hasattr(function, "py_func"):
                    monkeypatch.setattr(module, name, function.py_func)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != (9000,)], ids=str)
def test_coding_and_absorbing_are_the_papers(shape, dtype, mode):
    """⟨X_j, atom⟩, B and B contracted with the second group of modes equal their einsum, whichever B there was."""
    random, X = np.random.default_rng(1), drawn(shape, dtype=dtype)
    problem = Problem(shape=shape, rank=3, dtype=dtype)
    loadings, H = [random.random((rows, 3)) for rows in shape], random.random((len(X), 3))
    past = aggregates.nothing(shape, 3, dtype)
    past = past._replace(B=random.random(past.B.shape).astype(dtype), E=2.0)
    before, batch = past.B.copy(), joined(problem, X)
    got, folded = sparse.absorb(past, loadings, batch, H, 0.3)

    slack = {"float64": 1e-13, "float32": 1e-6}[dtype]
    assert np.allclose(sparse.correlate(batch, loadings), paper.correlations(X, loadings), rtol=1e-12, atol=1e-14)
    assert np.allclose(got.B, 0.7 * before + 0.3 * np.einsum("br,b...->r...", H, X) / len(X), rtol=slack, atol=slack)
    assert np.array_equal(past.B, before), "the past was written"
    assert got.E == pytest.approx(0.7 * 2.0 + 0.3 * np.sum(X.astype(float) ** 2) / len(X), rel=1e-13)
    split = aggregates.first_group(shape)
    if folded is not None:
        W = aggregates.khatri_rao(loadings[split:], 3)
        flat = got.B.reshape(3, -1, len(W)).astype(float)
        assert np.allclose(folded.T, np.einsum("rpq,qr->rp", flat, W), rtol=1e-12)
    assert (folded is None) == (split == 0)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs())
def test_every_sparse_step_obeys_the_paper(run):
    """All that the paper proves holds of steps by entries, with 1 to 4 modes and every option."""
    with sparse_steps():
        check_run(*run)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("shape", "rank"), TILED, ids=str)
def test_every_sparse_step_over_tiles_obeys_the_paper(shape, rank, dtype, options, tiled):  # noqa: F811
    """So it does where B is in tiles."""
    problem = Problem(shape=shape, rank=rank, batch_size=5, dtype=dtype, **options)
    with sparse_steps():
        assert isinstance(State.initial(problem).aggregates.B, Blocks)
        check_run(problem, [drawn(shape, seed=seed) for seed in range(4)])


@pytest.mark.parametrize("radius", ["auto", 0.05])
@pytest.mark.parametrize("shape", [(6,), (5, 4), (4, 3, 2), (3, 2, 2, 2), (3, 50)], ids=str)
def test_the_sparse_run_is_the_oracles(shape, radius):
    """Ten steps equal ten of the paper's slow Algorithm 1."""
    problem = Problem(shape=shape, rank=2, batch_size=8, radius=radius, ridge=0.01)
    with sparse_steps():
        check_against_the_oracle(problem, (drawn(shape, 8, density=0.6, seed=seed) for seed in range(10)))


def check_same(problem, batches):
    """By entries or as a whole: the same codes, losses and loadings, but for rounding."""
    whole, few = Learner(problem), Learner(problem)
    for X in batches:
        one, other = whole.step(X), few.step(joined(problem, X))

        near = {"float64": 1e-8, "float32": 1e-3}[problem.dtype]
        assert np.allclose(one.codes, other.codes, rtol=near, atol=near * np.abs(one.codes).max())
        assert np.allclose(one.coding.losses, other.coding.losses, rtol=near, atol=near * one.coding.losses.max())
        for U, V in zip(whole.state.loadings, few.state.loadings, strict=True):
            assert np.allclose(U, V, rtol=near, atol=near * np.abs(U).max())
        assert whole.state.aggregates.E == pytest.approx(few.state.aggregates.E, rel=1e-14)
        assert whole.state.scale == few.state.scale
        assert np.allclose(
            whole.code(X).H, few.code(joined(problem, X)).H, rtol=near, atol=near * np.abs(one.codes).max()
        )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("penalties", [{}, {"sparsity": 0.1, "ridge": 0.05}], ids=str)
@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
def test_sparse_is_dense(shape, penalties, dtype):
    """Every number of modes. In single precision with a ridge: data without structure leave A flat."""
    penalties = penalties or {"ridge": 0.05 if dtype == "float32" else 0.0}
    problem = Problem(shape=shape, rank=3, batch_size=5, dtype=dtype, **penalties)
    check_same(problem, [drawn(shape, seed=seed, density=0.4) for seed in range(10)])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("shape", "rank"), TILED, ids=str)
def test_sparse_is_dense_over_tiles(shape, rank, dtype, tiled):  # noqa: F811
    """Also over tiles, and whole and sparse minibatches may take turns."""
    problem = Problem(shape=shape, rank=rank, batch_size=5, dtype=dtype)
    check_same(problem, [drawn(shape, seed=seed, density=0.4) for seed in range(6)])
    one, other = Learner(problem), Learner(problem)
    for k in range(6):
        X = drawn(shape, seed=k, density=0.4)
        one.step(X)
        other.step(X if k % 2 else joined(problem, X))
    assert np.allclose(one.state.aggregates.B, other.state.aggregates.B, rtol=1e-6, atol=1e-6)


def few_batches(shape, b=8, steps=4):
    return [drawn(shape, b, density=0.05, seed=seed) for seed in range(steps)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("shape", "rank"), [((60, 700), 6), ((50000,), 50), ((4, 70000), 15), ((30, 40, 60), 40)])
def test_threads_change_no_bit(shape, rank, dtype):
    """1, 2 and 3 threads lead to one state, in rows, in pieces of one mode, and in tiles."""
    problem, digests = Problem(shape=shape, rank=rank, batch_size=8, dtype=dtype), []
    for threads in (1, 2, 3):
        with Workers(threads) as workers:
            learner = Learner(problem, workers=workers)
            for X in few_batches(shape, steps=3):
                learner.step(joined(problem, X))
        digests.append(learner.state.digest())

    assert isinstance(learner.state.aggregates.B, Blocks) == (shape == (4, 70000))
    assert len(set(digests)) == 1


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", [(9000,), (7, 60), (5, 4, 50)], ids=str)
def test_stopping_changes_no_bit(shape, dtype):
    """snapshot → restore → continue equals never stopping, and so does a step in place."""
    problem = Problem(shape=shape, rank=3, batch_size=8, dtype=dtype)
    steady, broken, in_place = Learner(problem), Learner(problem), Learner(problem, in_place=True)
    for X in few_batches(shape):
        broken = Learner(problem, State.from_bytes(broken.state.to_bytes()))
        for learner in (steady, broken, in_place):
            learner.step(joined(problem, X))

        assert steady.state.digest() == broken.state.digest() == in_place.state.digest()


def test_stopping_changes_no_bit_over_tiles(tiled):  # noqa: F811
    """So it does where a step leaves B folded behind, and a state from bytes has to fold it anew."""
    problem = Problem(shape=(5, 200), rank=3, batch_size=8)
    steady, broken = Learner(problem), Learner(problem)
    for X in few_batches((5, 200)):
        broken = Learner(problem, State.from_bytes(broken.state.to_bytes()))
        for learner in (steady, broken):
            learner.step(joined(problem, X))

        assert steady.state.digest() == broken.state.digest()


def test_a_step_never_makes_the_whole_minibatch():
    """Memory of a step beyond the state is less than a tensor, where the whole minibatch has a hundred."""
    problem = Problem(shape=(53, 5833), rank=3, batch_size=100)
    learner = Learner(problem, in_place=True)
    rows = [Sparse(problem.shape, np.arange(j, 309149, 3001), np.ones(len(range(j, 309149, 3001)))) for j in range(100)]
    learner.step(collect(problem, rows)[0])
    tracemalloc.start()
    learner.step(collect(problem, rows)[0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8 * 309149 * 3


def test_an_empty_minibatch_fixes_nothing():
    """Tensors without an entry leave the scale open."""
    problem = Problem(shape=(7, 60), rank=2)
    learner = Learner(problem)
    step = learner.step(joined(problem, np.zeros((3, 7, 60))))

    assert learner.state.scale == 0.0
    assert not step.codes.any()
    assert learner.step(joined(problem, drawn((7, 60)))).surrogate > 0.0


def test_who_is_to_blame(always):
    """A tensor because of which a step overflows is found among sparse ones, and the state stays as it was."""
    problem = Problem(shape=(3, 50), rank=2, batch_size=4, dtype="float32")
    learner = Learner(problem)
    learner.step(joined(problem, 1e-14 * drawn((3, 50), 4)))
    X = 1e-14 * drawn((3, 50), 4, seed=1)
    X[2] = np.where(np.arange(150).reshape(3, 50) % 9 == 0, 3e13, 0)
    batch, state = joined(problem, X), learner.state.digest()

    try:
        advance(problem, learner.state, batch)
    except NumericError:
        assert set(blame(problem, learner.state, batch)) == {2}
    else:
        assert blame(problem, learner.state, batch) == {}
    assert learner.state.digest() == state


# ── which way is taken ─────────────────────────────────────────────────────────────────────────────────────────


def kind(problem, rows):
    return type(collect(problem, rows)[0])


def test_the_minibatch_decides():
    """By entries where all came so and they are few; the threads, the state and the clock have no say."""
    problem = Problem(shape=(600, 600), rank=2)
    X = drawn((600, 600), 4, density=0.01)
    rows = [by_entries(x) for x in X]

    assert kind(problem, rows) is SparseBatch
    assert kind(problem, list(X)) is Batch
    assert kind(problem, [*rows[:3], X[3]]) is Batch
    assert kind(problem, rows[:2]) is Batch, "so few cells are learned faster as a whole"
    assert kind(problem, [by_entries(x) for x in drawn((600, 600), 4, density=0.3)]) is Batch
    assert are_few(rows, problem)
    with Workers(3) as workers:
        assert type(collect(problem, rows, workers)[0]) is SparseBatch


def test_the_two_ways_have_the_same_energies():
    """To the bit, for every dtype that a message may have."""
    for dtype in DTYPES:
        problem = Problem(shape=(300, 300), rank=2, dtype="float32")
        X = [np.where(tensor((300, 300), seed=seed) < 3, tensor((300, 300), dtype), 0).astype(dtype) for seed in (1, 2)]
        few, whole = join(problem, [by_entries(x) for x in X])[0], gather(problem, X)[0]
        assert np.array_equal(few.energies, whole.energies)
        assert np.array_equal(few.values, whole.X[whole.X != 0])


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_those_of_the_whole(name):
    """A sparse tensor that cannot be learned is refused in the words that its whole is; the others are not."""
    bad, _ = REFUSED[name]
    bad = bad if isinstance(bad, Sparse) else by_entries(bad)
    problem, good = Problem(shape=(7, 300), rank=2), by_entries(tensor((7, 300)))
    rows = [good, bad, good, bad]

    assert join(problem, rows)[1] == gather(problem, rows)[1]
    assert list(join(problem, rows)[1]) == [1, 3]


def test_a_missing_cell_is_an_entry(always):
    """With missing="impute" an entry that is NaN was not observed, and its minibatch is learned as a whole; an absent
    entry is zero.
    """
    problem = Problem(shape=(7, 300), rank=2, missing="impute")
    good, gap = by_entries(drawn((7, 300))[1]), by_entries(with_cell(np.nan))

    assert kind(problem, [good, good]) is SparseBatch
    batch, refusals = collect(problem, [good, gap])
    assert (type(batch), batch.missing.tolist(), refusals) == (Batch, [0, 1], {})


def test_explicit_zeros_are_zeros():
    """A tensor with zeros among its entries has the codes of one without."""
    problem, X = Problem(shape=(7, 60), rank=2), drawn((7, 60))
    everything = [Sparse((7, 60), np.arange(420), x.reshape(-1)) for x in X]

    assert np.allclose(
        Learner(problem).step(join(problem, everything)[0]).codes, Learner(problem).step(joined(problem, X)).codes
    )


def test_a_batch_of_another_problem_is_refused():
    """By its shape or its dtype."""
    batch = joined(Problem(shape=(7, 60), rank=2), drawn((7, 60)))

    for other in (Problem(shape=(60, 7), rank=2), Problem(shape=(7, 60), rank=2, dtype="float32")):
        with pytest.raises(DataError, match="of another problem"):
            Learner(other).step(batch)


def test_a_sparse_batch_survives_a_pickle():
    """A minibatch that was gathered in another process is learned as it is."""
    problem = Problem(shape=(7, 60), rank=2)
    batch = joined(problem, drawn((7, 60)))

    assert Learner(problem).step(pickle.loads(pickle.dumps(batch))).t == 1


def test_warm_up_compiles_both_ways(monkeypatch):
    """Where a minibatch may be sparse, a step of such a one was taken before the first that counts."""
    seen = []
    monkeypatch.setattr(sparse, "absorb", lambda *args, absorb=sparse.absorb: seen.append(1) or absorb(*args))
    warm_up(Problem(shape=(300, 900), rank=2, batch_size=4))
    assert seen
    seen.clear()
    warm_up(Problem(shape=(5, 4), rank=2, batch_size=4))
    assert not seen


def test_warm_up_takes_no_whole_minibatch():
    """A sparse stream may have minibatches that would not fit the memory as a whole: warming up needs none."""
    tracemalloc.start()
    warm_up(Problem(shape=(100, 1000), rank=30, batch_size=500))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8 * 100 * 1000 * 500 / 4


# ── what others have ───────────────────────────────────────────────────────────────────────────────────────────


class PyData:
    """What `sparse.COO` shows of itself."""

    def __init__(self, X, fill_value=0.0):
        self.coords, self.data, self.shape = np.array(np.nonzero(X)), X[np.nonzero(X)], X.shape
        self.fill_value = fill_value


FORMS = {
    "scipy csr": (1, scipy.sparse.csr_matrix),
    "scipy csc array": (1, scipy.sparse.csc_array),
    "scipy coo": (3, scipy.sparse.coo_array),
    "pydata": (2, PyData),
    "coordinates": (3, lambda X: (np.nonzero(X), X[np.nonzero(X)], X.shape)),
    "coordinates in lists": (2, lambda X: ([list(i) for i in np.nonzero(X)], list(X[np.nonzero(X)]), X.shape)),
    "ours": (2, by_entries),
    "a list of ours": (2, lambda X: [by_entries(x) for x in X]),
    "a list of matrices": (2, lambda X: [scipy.sparse.coo_matrix(x) for x in X]),
    "a list of coordinates": (2, lambda X: [(np.nonzero(x), x[np.nonzero(x)], x.shape) for x in X]),
    "a list of both": (2, lambda X: [by_entries(X[0]), *X[1:]]),
}


@pytest.mark.parametrize("form", FORMS)
def test_others_are_understood(form, always):
    """Codes and states are those of the whole array, in every form; a list of both kinds is learned as a whole."""
    modes, make = FORMS[form]
    shape = {1: (300,), 2: (7, 60), 3: (5, 4, 50)}[modes]
    problem, X = Problem(shape=shape, rank=2, batch_size=5), drawn(shape)
    few, whole = Learner(problem), Learner(problem)
    one, other = few.step(make(X)), whole.step(X)

    assert np.allclose(one.codes, other.codes, rtol=1e-10, atol=1e-12)
    assert np.allclose(few.code(make(X)).H, whole.code(X).H, rtol=1e-8, atol=1e-10)
    assert type(read_batch(problem, make(X))) is (Batch if form == "a list of both" else SparseBatch)


def test_entries_in_any_order_are_added_up():
    """Twice the same place is the sum, as SciPy means it; integers, whose sum may not fit, are refused."""
    found = as_sparse(([[1, 0, 1], [2, 0, 2]], [1.0, 5.0, 2.0], (2, 3)), "X")

    assert (found.indices.tolist(), found.values.tolist()) == ([0, 5], [5.0, 3.0])
    with pytest.raises(DataError, match="more than once"):
        as_sparse(([[1, 1]], np.array([1, 2]), (3,)), "X")


BAD = {
    "an index outside": ([[0, 7]], [1.0, 2.0], (7,)),
    "an index below": ([[0, -1]], [1.0, 2.0], (7,)),
    "too few modes": ([[0, 1], [0, 1]], [1.0, 2.0], (7,)),
    "too few values": ([[0, 1]], [1.0], (7,)),
    "indices that are no integers": ([[0.5, 1.5]], [1.0, 2.0], (7,)),
    "complex values": ([[0, 1]], [1j, 2j], (7,)),
    "a shape that overflows": ([[0, 1]] * 3, [1.0, 2.0], (2**40, 2**40, 2**40)),
    "other background": PyData(np.eye(3), fill_value=1.0),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_entries_are_refused(name):
    """Each with a typed error, before anything is learned or memory taken."""
    with pytest.raises(DataError):
        as_sparse(BAD[name], "X")


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (Sparse((2, 60, 7), np.arange(3), np.ones(3)), r"\(b, 7, 60\)"),
        (Sparse((2, 7, 60), np.array([3, 840]), np.ones(2)), "cells are 0 to 839"),
        (Sparse((2, 7, 60), np.array([-3, 84]), np.ones(2)), "cells are 0 to 839"),
        (Sparse((2, 7, 60), np.array([500]), np.array([-1.0])), r"tensor 1 .* X\[1, 20\] = -1.0 is negative"),
        (Sparse((2, 7, 60), np.array([500]), np.array([np.nan])), r"tensor 1 .* X\[1, 20\] = nan is not finite"),
        (Sparse((0, 7, 60), np.array([], int), np.array([])), "X is empty"),
        ([Sparse((7, 61), np.arange(1), np.ones(1))], "a tensor of this problem has shape"),
    ],
)
def test_bad_minibatches_are_refused(X, message, always):
    """The state is the one before, bit for bit."""
    learner = Learner(Problem(shape=(7, 60), rank=2))
    learner.step(drawn((7, 60)))
    before = learner.state.digest()

    with pytest.raises(DataError, match=message):
        learner.step(X)
    assert learner.state.digest() == before


def test_the_estimator_takes_sparse():
    """fit, partial_fit, transform and score, as with the whole array."""
    X = np.concatenate(list(islice((drawn((300,), 50, density=0.3, seed=seed) for seed in range(99)), 6)))
    matrix = scipy.sparse.csr_matrix(X)
    few, whole = (OnlineCPDL(rank=3, batch_size=50, random_state=0).fit(data) for data in (matrix, X))

    assert few.n_steps_ == whole.n_steps_ == 6
    for U, V in zip(few.loadings_, whole.loadings_, strict=True):
        assert np.allclose(U, V, rtol=1e-8, atol=1e-10)
    assert few.score(matrix) == pytest.approx(whole.score(X), rel=1e-9)
    assert np.allclose(few.partial_fit(matrix).transform(matrix), whole.partial_fit(X).transform(X), atol=1e-8)


def test_the_estimator_takes_sparse_by_its_entries(always):
    """The same where it is learned and scored by entries."""
    test_the_estimator_takes_sparse()
