"""Tensors with missing cells: coded by what was observed, filled, learned; and nothing else changes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_ocpdl import DataError, Learner, OnlineCPDL, Problem, State, Workers
from stream_ocpdl.ocpdl.arrays import Sparse
from stream_ocpdl.ocpdl.batch import gather
from stream_ocpdl.ocpdl.learner import advance
from stream_ocpdl.ocpdl.missing import complete, encode_observed
from tests import paper
from tests.test_kernels import mode  # noqa: F401  (a fixture)
from tests.test_learner import check_against_the_oracle, check_run, mixture, runs


def with_gaps(X, share=0.3, seed=0):
    """X with this share of its cells missing, and at least one cell of every tensor observed."""
    random = np.random.default_rng(seed)
    gaps = (random.random(X.shape) < share).reshape(len(X), -1)
    gaps[np.arange(len(X)), random.integers(0, gaps.shape[1], len(X))] = False
    return np.where(gaps.reshape(X.shape), np.nan, X)


def imputing(**options):
    return Problem(**({"shape": (5, 4, 3), "rank": 3, "batch_size": 8, "missing": "impute"} | options))


def stream(steps, share=0.3, **options):
    """Minibatches of a mixture, the even ones with missing cells in every second tensor only."""
    for t, X in zip(range(steps), mixture(**options), strict=False):
        Y = with_gaps(X, share, t)
        if t % 2 == 0:
            Y[::2] = X[::2]
        yield Y


@st.composite
def runs_with_gaps(draw):
    """The runs of the learner's own test, with 30 % of the cells missing."""
    problem, batches = draw(runs())
    options = {name: getattr(problem, name) for name in problem.__slots__}
    return Problem(**options | {"missing": "impute"}), [with_gaps(X, seed=t) for t, X in enumerate(batches)]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs_with_gaps())
def test_every_step_obeys_the_paper(run):
    """Codes minimise the loss of the observed cells; f̂ of the filled tensors falls, majorises f of the observed cells,
    and grows no more than prop:Wt_bd allows.

    Fails with zeros for the fill, with codes of tensors filled before, and with losses of filled tensors.
    """
    check_run(*run)


@pytest.mark.parametrize("shape", [(6,), (5, 4), (4, 3, 2)], ids=str)
def test_the_run_is_the_oracles(shape):
    """Ten steps equal ten steps of the slow Algorithm 1 on tensors that are coded and filled by brute force."""
    check_against_the_oracle(imputing(shape=shape, rank=2, ridge=0.01), stream(10, shape=shape, rank=2))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", [(7,), (4, 6), (3, 5, 2), (2, 3, 4, 2), (30, 40)], ids=str)
def test_codes_and_fill_are_the_oracles(shape, dtype, mode):  # noqa: F811
    """Codes and losses of the observed cells, and X̃ with its energies, compiled and not, in both precisions."""
    problem = imputing(shape=shape, dtype=dtype, ridge=0.1, sparsity=0.2)
    random = np.random.default_rng(0)
    loadings = [random.random((rows, 3)) for rows in shape]
    X = with_gaps(random.random((4, *shape)).astype(dtype))
    batch, _ = gather(problem, list(X))
    masked = encode_observed(problem, np.inf, loadings, batch)
    H = np.zeros((4, 3))
    H[batch.gaps] = masked.H
    whole = complete(loadings, batch, H)
    single = 1e-6 if dtype == "float32" else 1e-12

    seen = X[batch.gaps].astype(float)
    assert np.allclose(masked.H, paper.coding(seen, loadings, 0.2, 0.1), rtol=1e-8, atol=1e-12)
    assert np.allclose(masked.losses, paper.losses(seen, loadings, masked.H, 0.2, 0.1), rtol=1e-10)
    assert np.allclose(whole.X, paper.filled(X, loadings, H), rtol=single)
    assert np.allclose(whole.energies, np.sum(whole.X.astype(float) ** 2, axis=tuple(range(1, X.ndim))), rtol=1e-12)
    assert len(whole.gaps) == 0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("seed", range(4))
def test_a_dictionary_is_recovered(seed, dtype):
    """Of a low-rank stream with 40 % of its cells missing, unseen cells are predicted to 2 % after 100 steps.

    With zeros in the missing cells the error stays above 7 %.
    """
    shape, random = (12, 10, 8), np.random.default_rng(1000 + seed)
    atoms = paper.out([random.exponential(size=(rows, 3)) ** 2 for rows in shape])
    learner = Learner(imputing(shape=shape, batch_size=20, dtype=dtype, seed=seed))
    for t in range(101):
        X = np.einsum("br,r...->b...", random.exponential(size=(20, 3)), atoms)
        seen = with_gaps(X, 0.4, t)
        if t < 100:
            learner.step(seen)
    predicted = np.einsum("br,r...->b...", learner.code(seen).H, paper.out(learner.state.loadings))
    gaps = np.isnan(seen)

    assert np.linalg.norm((predicted - X)[gaps]) <= 0.02 * np.linalg.norm(X[gaps])


def test_nothing_missing_nothing_changes():
    """Without a NaN the state is, bit for bit, that of the problem that rejects them."""
    digests = []
    for missing in ("reject", "impute"):
        learner = Learner(imputing(missing=missing))
        for _, X in zip(range(5), mixture(), strict=False):
            learner.step(X)
        digests.append(learner.state.digest())

    assert digests[0] == digests[1]


def test_the_others_keep_their_bits():
    """A tensor without missing cells has the code and the loss it has among whole tensors."""
    source = mixture()
    learner = Learner(imputing())
    for _, X in zip(range(5), source, strict=False):
        learner.step(X)
    mixed = X.copy()
    mixed[1::2] = with_gaps(X[1::2])
    plain, among = learner.code(X), learner.code(mixed)

    assert np.array_equal(plain.H[::2], among.H[::2])
    assert np.array_equal(plain.losses[::2], among.losses[::2])
    assert not np.array_equal(plain.H[1::2], among.H[1::2])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_threads_change_no_bit(dtype):
    """Runs on 1, 2 and 3 threads have equal states, on a problem large enough to be split."""
    problem = imputing(shape=(60, 700), rank=6, dtype=dtype)
    digests = []
    for threads in (1, 2, 3):
        with Workers(threads) as workers:
            learner = Learner(problem, workers=workers)
            for X in stream(4, shape=(60, 700), rank=6):
                learner.step(X)
        digests.append(learner.state.digest())

    assert digests[0] == digests[1] == digests[2]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_stopping_changes_no_bit(dtype):
    """snapshot → restore → continue equals never stopping, from messages or from one array."""
    problem = imputing(dtype=dtype)
    steady, state = Learner(problem), State.initial(problem)
    for X in stream(12):
        steady.step(X)
        batch, refusals = gather(problem, list(X))
        state, _ = advance(problem, State.from_bytes(state.to_bytes()), batch)

        assert not refusals
        assert state.digest() == steady.state.digest()


def test_single_precision_agrees():
    """float32 stays within 1e-4 of float64 after 50 steps with missing cells."""
    learners = [Learner(imputing(dtype=dtype)) for dtype in ("float64", "float32")]
    for X in stream(50):
        double, single = (learner.step(X) for learner in learners)

    assert single.surrogate == pytest.approx(double.surrogate, rel=1e-4)
    for U, V in zip(*(learner.state.loadings for learner in learners), strict=True):
        assert np.linalg.norm(U - V) <= 1e-4 * np.linalg.norm(U)


def test_the_data_are_not_written():
    """Neither the user's array nor a batch is filled in place: a step that fails can be tried again."""
    problem = imputing()
    X = with_gaps(next(mixture()))
    batch, _ = gather(problem, list(X))
    kept = X.copy()
    for data in (X, batch):
        Learner(problem).step(data)

    assert np.array_equal(X, kept, equal_nan=True)
    assert np.array_equal(batch.X, kept, equal_nan=True)


def test_the_scale_is_that_of_whole_tensors():
    """Missing cells of the first minibatch count as their tensor's mean: the scale does not shrink with them."""
    learner = Learner(imputing())
    learner.step(with_gaps(np.full((8, 5, 4, 3), 2.0)))

    assert learner.state.scale == pytest.approx(2.0 * np.sqrt(60))


def with_cells(*values):
    X = np.ones((5, 4, 3))
    X[1, 2, : len(values)] = values
    return X


REFUSED = {
    "infinity": (with_cells(np.nan, np.inf), "[1, 2, 1] = inf is not finite"),
    "minus infinity": (with_cells(np.nan, -np.inf), "[1, 2, 1] = -inf is not finite"),
    "negative": (with_cells(np.nan, -1.0), "[1, 2, 1] = -1.0 is negative"),
    "nothing observed": (np.full((5, 4, 3), np.nan), " has no observed cell"),
    "too large": (with_cells(np.nan, 1e80), " has a tensor of a norm too far from one"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_observed_cells_are_checked(name):
    """What was observed must be finite, of the right sign and scale, and something must have been."""
    bad, reason = REFUSED[name]
    problem = imputing()
    _, refusals = gather(problem, [with_cells(np.nan), bad, with_cells(1.0)])

    assert list(refusals) == [1]
    assert refusals[1].startswith("X" + reason)
    with pytest.raises(DataError, match=reason.split("]")[-1].split(" = ")[-1]):
        Learner(problem).step(np.stack([with_cells(np.nan), bad]))


def test_the_place_in_a_minibatch_is_named():
    """A tensor of which nothing was observed is found."""
    with pytest.raises(DataError, match=r"X\[1\] has no observed cell"):
        Learner(imputing()).step(np.stack([with_cells(np.nan), np.full((5, 4, 3), np.nan)]))


def test_reject_is_the_default():
    """A NaN is refused unless the problem says otherwise, and so is a batch that has one; the digests differ."""
    plain = Problem(shape=(5, 4, 3), rank=3)
    batch, _ = gather(imputing(), [with_cells(np.nan)])

    for X in (with_cells(np.nan)[None], batch):
        with pytest.raises(DataError, match=r"is not finite|missing cells"):
            Learner(plain).step(X)
    assert plain.digest() != imputing(batch_size=32).digest()


def test_sparse_zeros_were_observed():
    """An entry that is not given is zero; one that is NaN is missing."""
    values, indices = np.array([1.0, np.nan, 2.0]), np.array([3, 7, 59])
    dense = np.zeros(60)
    dense[indices] = values
    one, other = (gather(imputing(), [row])[0] for row in (Sparse((5, 4, 3), indices, values), dense.reshape(5, 4, 3)))

    assert one.missing.tolist() == other.missing.tolist() == [1]
    assert one.energies.tolist() == other.energies.tolist() == [5.0]
    assert np.array_equal(one.X, other.X, equal_nan=True)


def test_the_estimator():
    """fit, transform and score take missing cells; a score is of the observed ones."""
    X = next(mixture((6, 5), 2, b=400, noise=0.0))
    seen = with_gaps(X, 0.4)
    model = OnlineCPDL(2, batch_size=20, random_state=0, missing="impute")
    for start in list(range(0, 400, 20)) * 5:
        model.partial_fit(seen[start : start + 20])

    assert model.score(seen) > 0.999
    assert np.linalg.norm(model.inverse_transform(model.transform(seen)) - X) <= 0.05 * np.linalg.norm(X)
    assert OnlineCPDL(2, random_state=0, missing="impute").fit(seen).transform(seen).shape == (400, 2)
    with pytest.raises(DataError, match="is not finite"):
        OnlineCPDL(2).fit(seen)
