"""ALS and MU for NCPD are the paper's, and as good as other people's; the learner does offline what they do."""

from itertools import islice, pairwise

import numpy as np
import pytest

from stream_ocpdl import ConfigError, DataError, Learner, Problem
from stream_ocpdl.experiments.tensors import synthetic
from stream_ocpdl.ocpdl import baselines
from tests import paper
from tests.test_synthetic import RANK

SHAPES = [(7,), (6, 5), (5, 4, 6), (3, 4, 2, 5)]


def tensor(shape, rank=3, noise=0.1):
    random = np.random.default_rng(0)
    X = paper.out([random.random((rows, rank)) for rows in shape]).sum(axis=0)
    return X + noise * random.random(shape)


def relative_error(X, factors):
    return np.linalg.norm(X - paper.out(factors).sum(axis=0)) / np.linalg.norm(X)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["als", "mu"])
def test_five_rounds_are_the_oracles(name, shape):
    """Factors after five rounds, for 1 to 4 modes, and the error that is said of them.

    Fails if a block sees the factors of the round before, as Algorithms 6 and 7 print it.
    """
    X, start = tensor(shape), baselines.start(shape, 3, seed=1)
    found = getattr(baselines, name)(X, start, 5)
    wanted = getattr(paper, name)(X, start, 5)

    if len(shape) > 1:  # with one mode every sum of columns is as good
        assert all(np.allclose(U, V, rtol=1e-8, atol=1e-10) for U, V in zip(found.loadings, wanted, strict=True))
    assert found.error == pytest.approx(relative_error(X, wanted), abs=1e-7)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_correlations_are_the_oracles(shape):
    """unfold(X, i)ᵀB of every mode, without an unfolding."""
    X, factors = tensor(shape), baselines.start(shape, 3)

    for i in range(len(shape)):
        assert np.allclose(baselines.correlations(X, factors, i), paper.unfolded_normal(X, factors, i)[0], rtol=1e-12)


@pytest.mark.parametrize("name", ["als", "mu"])
def test_errors_fall(name):
    """No round raises the error, the start is not written, and K rounds are K times one round to the last bit."""
    X, start = tensor((8, 7, 6)), baselines.start((8, 7, 6), 3)
    kept, method = [U.copy() for U in start], getattr(baselines, name)
    factors, errors = start, []
    for _ in range(30):
        factors, error = method(X, factors, 1)
        errors.append(error)

    assert all(after <= before + 1e-12 for before, after in pairwise(errors))
    assert all(np.array_equal(U, V) for U, V in zip(start, kept, strict=True))
    assert all(np.array_equal(U, V) for U, V in zip(factors, method(X, start, 30).loadings, strict=True))


@pytest.mark.parametrize("name", ["als", "mu"])
def test_an_atom_of_zeros_does_no_harm(name):
    """A column of zeros in one factor gives no NaN, and the rest is decomposed without it."""
    X, start = tensor((8, 7, 6), rank=2, noise=0.0), baselines.start((8, 7, 6), 3)
    start[1][:, 0] = 0.0
    found = getattr(baselines, name)(X, start, 200)

    assert all(np.isfinite(U).all() for U in found.loadings)
    assert found.error < 0.05


def test_an_empty_tensor_is_matched():
    """All zeros: factors come to zero, and the error is said as zero, not as a NaN."""
    for method in (baselines.als, baselines.mu):
        found = method(np.zeros((4, 3)), baselines.start((4, 3), 2), 3)
        assert found.error == 0.0
        assert np.array_equal(found.loadings[0] @ found.loadings[1].T, np.zeros((4, 3)))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("name", "rounds", "peer"), [("als", 100, "non_negative_parafac_hals"), ("mu", 200, "non_negative_parafac")]
)
def test_they_reach_the_errors_of_tensorly(name, rounds, peer, seed):
    """On the paper's synthetic tensor, from the same factors and after as many rounds, the error is at most TensorLy's;
    that of MU, which is the same algorithm, is the same.
    """
    decomposition = pytest.importorskip("tensorly.decomposition", reason="TensorLy is in the extra `bench`")
    from tensorly.cp_tensor import CPTensor

    X = np.ascontiguousarray(np.moveaxis(synthetic().X, 0, -1))
    start = baselines.start(X.shape, RANK, seed)
    error = getattr(baselines, name)(X, start, rounds).error
    given = CPTensor((np.ones(RANK), [U.copy() for U in start]))
    found = getattr(decomposition, peer)(X, RANK, n_iter_max=rounds, init=given, tol=0)
    theirs = relative_error(X, [found.factors[0] * found.weights, *found.factors[1:]])

    assert error <= theirs * (1 + 1e-6)
    assert name == "als" or error == pytest.approx(theirs, rel=1e-6)


def test_the_learner_is_a_way_to_a_decomposition():
    """`online` is a Learner on a seeded fifth of the last mode a step, then codes; its error is that of its factors."""
    X = np.moveaxis(synthetic().X, 0, -1)
    found = baselines.online(X, RANK, steps=30, seed=3)
    learner = Learner(Problem(shape=(100, 100), rank=RANK, batch_size=20, seed=3))
    for minibatch in islice(baselines.subsampled(X, seed=3), 30):
        learner.step(minibatch)

    assert all(np.array_equal(U, V) for U, V in zip(found.loadings, learner.state.loadings, strict=False))
    assert np.array_equal(found.loadings[-1], learner.code(np.moveaxis(X, -1, 0)).H)
    assert found.error == pytest.approx(relative_error(X, found.loadings), abs=1e-7)
    assert found.error < 1.02 * baselines.als(X, baselines.start(X.shape, RANK), 100).error


def test_a_minibatch_has_each_slice_at_most_once():
    """A fifth of the slices, drawn anew each time, the same for the same seed, and never one twice."""
    X = np.arange(2 * 3 * 25, dtype=float).reshape(2, 3, 25)
    drawn = [list(islice(baselines.subsampled(X, seed=seed), 8)) for seed in (0, 0, 1)]
    slices = [set(minibatch[:, 0, 0]) for minibatch in drawn[0]]

    assert all(minibatch.shape == (5, 2, 3) for minibatch in drawn[0])
    assert all(len(those) == 5 and those <= set(X[0, 0]) for those in slices)
    assert len(set().union(*slices)) > 15
    assert all(np.array_equal(one, other) for one, other in zip(*drawn[:2], strict=True))
    assert not all(np.array_equal(one, other) for one, other in zip(drawn[0], drawn[2], strict=True))
    assert np.array_equal(drawn[0][0][0], X[:, :, int(drawn[0][0][0, 0, 0])])


BAD = {
    "other shape": lambda: baselines.als(np.ones((3, 2)), baselines.start((2, 3), 1)),
    "other rank": lambda: baselines.mu(np.ones((3, 2)), [np.ones((3, 2)), np.ones((2, 1))]),
    "a NaN": lambda: baselines.als(np.full((3, 2), np.nan), baselines.start((3, 2), 1)),
    "nothing": lambda: baselines.als(np.ones((0, 2)), baselines.start((0, 2), 1)),
    "a negative factor": lambda: baselines.als(np.ones((3, 2)), [-np.ones((3, 1)), np.ones((2, 1))]),
    "negative data": lambda: baselines.mu(-np.ones((3, 2)), baselines.start((3, 2), 1)),
    "one mode": lambda: baselines.online(np.ones(9), 2),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    """What cannot be decomposed is a DataError, not a broken result."""
    with pytest.raises(DataError):
        BAD[name]()


def test_bad_settings_are_named():
    """So are a share that is none and no rounds at all."""
    for share in (0.0, 1.5, -1.0):
        with pytest.raises(ConfigError, match="share"):
            next(baselines.subsampled(np.ones((3, 4)), share))
    with pytest.raises(ConfigError, match="iterations"):
        baselines.als(np.ones((3, 2)), baselines.start((3, 2), 1), 0)
