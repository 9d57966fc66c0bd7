"""A minibatch from messages: copied exactly, checked in the same pass, and with the same bits as one array."""

from itertools import product

import numpy as np
import pytest

from stream_ocpdl import DataError, Learner, Problem, Workers
from stream_ocpdl.ocpdl import batch as batch_module
from stream_ocpdl.ocpdl.arrays import Sparse
from stream_ocpdl.ocpdl.batch import gather, read_batch
from stream_ocpdl.ocpdl.learner import advance
from stream_ocpdl.ocpdl.state import State
from tests.test_kernels import mode  # noqa: F401  (a fixture)

DTYPES = ("f8", "f4", "f2", "i8", "i4", "i2", "u8", "u4", "u2", "i1", "u1", "b1", ">f8", ">i4")
SHAPES = [(1,), (5,), (256,), (7, 300), (9, 11, 13), (2, 3, 4, 5)]
LAYOUTS = {
    "message": lambda X: from_message(X),
    "own memory": lambda X: X.copy(),
    "misaligned": lambda X: from_message(X, 1),
    "fortran": lambda X: np.asfortranarray(X),
    "strided": lambda X: np.repeat(X, 2, axis=-1)[..., ::2],
    "backwards": lambda X: np.flip(np.flip(X).copy()),
    "broadcast": lambda X: np.broadcast_to(X.flat[0], X.shape),
}


def from_message(X, offset=16):
    """A read-only view into the memory of a message."""
    return np.frombuffer(bytes(offset) + X.tobytes(), X.dtype, offset=offset).reshape(X.shape)


def tensor(shape, dtype="f8", seed=0):
    """Numbers that no conversion keeps by luck: large integers, and fractions that single precision must round."""
    random = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return random.random(shape) < 0.5
    if kind.kind in "iu":
        return random.integers(0, min(np.iinfo(kind).max, 2**40), shape, kind.newbyteorder("=")).astype(kind)
    return (100 * random.random(shape)).astype(kind)


def sparse(X):
    """A tensor by its nonzero entries."""
    indices = np.flatnonzero(X)
    return Sparse(X.shape, indices, X.reshape(-1)[indices])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_copy_is_exact(dtype, source, layout, monkeypatch):
    """Every dtype in every layout becomes what astype says, and its energy has the bits that read_batch finds: where a
    minibatch is copied at once, and where each tensor is copied and measured in one pass.
    """
    for shape, small in product(SHAPES, (batch_module.SMALL, 0)):
        monkeypatch.setattr(batch_module, "SMALL", small)
        problem = Problem(shape=shape, rank=1, dtype=dtype)
        rows = [LAYOUTS[layout](tensor(shape, source, seed)) for seed in range(3)]
        batch, refusals = gather(problem, rows)
        expected = np.stack([np.array(row).astype(dtype) for row in rows])

        assert not refusals
        assert batch.X.dtype == dtype
        assert np.array_equal(batch.X, expected)
        assert np.array_equal(batch.energies, read_batch(problem, expected).energies)
        assert np.allclose(batch.energies, np.sum(expected.astype(float).reshape(3, -1) ** 2, axis=1), rtol=1e-13)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sparse_is_dense(dtype, source):
    """A tensor by its entries gives the bits of the whole one, also of its energy; without entries it is zero."""
    for shape in SHAPES:
        problem = Problem(shape=shape, rank=1, dtype=dtype)
        rows = [np.where(tensor(shape, seed=seed) < 20, tensor(shape, source), 0).astype(source) for seed in range(3)]
        rows.append(np.zeros(shape, source))
        dense, refusals = gather(problem, rows)
        entries, refusals_too = gather(problem, [sparse(row) for row in rows])

        assert not refusals
        assert not refusals_too
        assert np.array_equal(dense.X, entries.X)
        assert np.array_equal(dense.energies, entries.energies)


def with_cell(value, dtype="f8"):
    X = tensor((7, 300), dtype)
    X[1, 2] = value
    return X


NEGATIVE = "is negative, but loadings and codes are constrained to be nonnegative"
NORM = "X has a tensor of a norm too far from one for {}; rescale the data"
REFUSED = {
    "NaN": (with_cell(np.nan), "X[1, 2] = nan is not finite"),
    "infinity": (with_cell(np.inf), "X[1, 2] = inf is not finite"),
    "minus infinity": (with_cell(-np.inf), "X[1, 2] = -inf is not finite"),
    "NaN in single precision": (with_cell(np.nan, "f4"), "X[1, 2] = nan is not finite"),
    "NaN in half precision": (with_cell(np.nan, "f2"), "X[1, 2] = nan is not finite"),
    "negative": (with_cell(-3), f"X[1, 2] = -3.0 {NEGATIVE}"),
    "negative integer": (with_cell(-3, "i2"), f"X[1, 2] = -3.0 {NEGATIVE}"),
    "NaN and negative": (np.minimum(with_cell(np.nan), -1.0), "X[1, 2] = nan is not finite"),
    "too large": (with_cell(1e80), NORM),
    "too small": (1e-90 * tensor((7, 300)), NORM),
    "a square that overflows": (with_cell(1e200), NORM),
    "sparse NaN": (sparse(with_cell(np.nan)), "X[1, 2] = nan is not finite"),
    "sparse negative": (sparse(with_cell(-3)), f"X[1, 2] = -3.0 {NEGATIVE}"),
    "sparse, out of order": (
        Sparse((7, 300), np.array([4, 4]), np.ones(2)),
        "X has index 4 at entry 1; ascending ones, below 2100, are needed",
    ),
    "sparse, outside": (
        Sparse((7, 300), np.array([3, 2100]), np.ones(2)),
        "X has index 2100 at entry 1; ascending ones, below 2100, are needed",
    ),
    "sparse, before": (
        Sparse((7, 300), np.array([-1]), np.ones(1)),
        "X has index -1 at entry 0; ascending ones, below 2100, are needed",
    ),
    "sparse, lengths": (Sparse((7, 300), np.arange(3), np.ones(2)), "X has 3 indices and values of shape (2,)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_place(name):
    """A tensor that cannot be learned is refused by its row and first wrong place; the others are not."""
    bad, reason = REFUSED[name]
    problem = Problem(shape=(7, 300), rank=2)
    good = tensor((7, 300))

    assert gather(problem, [good, bad, good, bad])[1] == dict.fromkeys((1, 3), reason.format("float64"))


@pytest.mark.parametrize("source", ["f8", "i8", "u8"])
def test_conversion_to_single_precision(source):
    """A double that float32 cannot hold is refused as infinite, and large integers by their norm."""
    problem = Problem(shape=(7, 300), rank=2, dtype="float32")
    refusals = gather(problem, [with_cell(1e39 if source == "f8" else 2**62, source)])[1]

    assert refusals == {0: "X[1, 2] = inf is not finite" if source == "f8" else NORM.format("float32")}


def test_a_signed_problem_takes_negative_tensors():
    """Only where loadings and codes are nonnegative is a negative cell refused."""

    class Free:
        nonnegative = False

        def project(self, V):
            return V.copy()

        def norm_bound(self, rows, rank):
            return 1e9

    assert not gather(Problem(shape=(7, 300), rank=2, constraints=Free()), [with_cell(-3), with_cell(-3, "i1")])[1]


@pytest.mark.parametrize("bad", [np.ones((300, 7)), np.ones(2100), Sparse((2100,), np.arange(1), np.ones(1))])
def test_another_shape_is_an_error(bad):
    """The caller should have looked; nothing is read beyond a tensor's memory."""
    with pytest.raises(DataError, match="a tensor of this problem has shape"):
        gather(Problem(shape=(7, 300), rank=2), [np.ones((7, 300)), bad])


def test_nothing_to_gather():
    """A minibatch has at least one tensor, and tensors have real numbers."""
    with pytest.raises(DataError, match="X is empty"):
        gather(Problem(shape=(3,), rank=1), [])
    with pytest.raises(DataError, match="X has dtype complex128"):
        gather(Problem(shape=(3,), rank=1), [np.ones(3, complex)])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_threads_change_no_bit(dtype):
    """Batches gathered on 1, 2 and 3 threads are equal, and so are the refusals."""
    problem = Problem(shape=(90, 700), rank=2, dtype=dtype)
    rows = [tensor((90, 700), source, seed) for seed, source in enumerate(["f8", "f4", "u1", "f2", "i4", "f8"])]
    rows += [sparse(np.where(rows[0] < 20, rows[0], 0)), np.full((90, 700), np.nan)]
    outcomes = []
    for threads in (1, 2, 3):
        with Workers(threads) as workers:
            outcomes.append(gather(problem, rows, workers))

    assert list(outcomes[0][1]) == [7]
    for batch, refusals in outcomes[1:]:
        assert np.array_equal(batch.X, outcomes[0][0].X, equal_nan=True)
        assert np.array_equal(batch.energies, outcomes[0][0].energies, equal_nan=True)
        assert refusals == outcomes[0][1]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_gathered_batch_is_learned_as_the_array(dtype):
    """A step on a batch has, bit for bit, the state and the codes of a step on the array with the same numbers."""
    problem = Problem(shape=(9, 11, 13), rank=3, dtype=dtype, batch_size=4)
    rows = [tensor((9, 11, 13), dtype, seed) for seed in range(4)]
    batch, _ = gather(problem, rows)
    (one, step), (other, _) = (advance(problem, State.initial(problem), X) for X in (batch, np.stack(rows)))

    assert one.digest() == other.digest()
    assert np.array_equal(Learner(problem, one).code(batch).H, Learner(problem, other).code(np.stack(rows)).H)
    assert step.codes.shape == (4, 3)


def test_a_batch_of_another_problem_is_refused():
    """A batch is not converted: shape and dtype must be the problem's."""
    batch, _ = gather(Problem(shape=(3,), rank=1), [np.ones(3)])

    for other in (Problem(shape=(3,), rank=1, dtype="float32"), Problem(shape=(3, 1), rank=1)):
        with pytest.raises(DataError, match="of another problem"):
            Learner(other).step(batch)


def test_copying_is_the_same_uncompiled(mode):  # noqa: F811
    """The kernels as Python reads them give the same bits."""
    problem = Problem(shape=(3, 200), rank=1)
    X = tensor((3, 200))
    batch, _ = gather(problem, [X, sparse(X), X.astype("f2")])

    lanes = [sum((x * x for x in X.reshape(-1)[k::32]), 0.0) for k in range(32)]
    for half in (16, 8, 4, 2, 1):
        lanes = [lanes[k] + lanes[half + k] for k in range(half)]
    assert batch.energies[0] == batch.energies[1] == lanes[0]
    assert np.array_equal(batch.X[0], batch.X[1])


def test_numbers_whose_squares_vanish():
    """A tensor of zeros is one; a tensor whose energy only rounds to zero is too small."""
    problem = Problem(shape=(3,), rank=1)
    _, refused = gather(problem, [np.zeros(3), np.full(3, 1e-200)])

    assert list(refused) == [1]
    assert "norm too far from one" in refused[1]
