"""OnlineCPDL is the learner with scikit-learn's verbs."""

import numpy as np
import pytest

from stream_ocpdl import ConfigError, DataError, Learner, OnlineCPDL, Problem, StateError
from tests import paper

X = np.einsum("br,ir,jr->bij", *(np.random.default_rng(0).random((rows, 2)) for rows in (60, 6, 5)))


def test_it_is_the_learner():
    """fit gives, bit for bit, the state of a Learner that steps through the same minibatches."""
    model = OnlineCPDL(2, batch_size=25, random_state=3).fit(X)
    learner = Learner(Problem(shape=(6, 5), rank=2, batch_size=25, seed=3))
    for start in (0, 25, 50):
        step = learner.step(X[start : start + 25])

    assert model.learner_.state.digest() == learner.state.digest()
    assert model.n_steps_ == 3
    assert model.surrogate_ == step.surrogate


def test_it_reconstructs():
    """Rank-two data are explained, and inverse_transform is Out(D) ×ₙ₊₁ H."""
    model = OnlineCPDL(2, batch_size=10, random_state=0)
    for _ in range(60):
        model.partial_fit(X)
    H = model.transform(X)

    assert model.score(X) > 0.999
    assert np.allclose(model.inverse_transform(H), np.einsum("br,rij->bij", H, paper.out(model.loadings_)))


def test_one_mode():
    """n = 1 is online nonnegative matrix factorisation."""
    model = OnlineCPDL(3, random_state=0).fit(X.reshape(60, 30))

    assert model.inverse_transform(model.transform(X.reshape(60, 30))).shape == (60, 30)


def test_fit_begins_anew():
    """A second fit forgets the first; partial_fit does not."""
    model = OnlineCPDL(2, random_state=0).fit(X).fit(X)

    assert model.n_steps_ == 2
    assert model.partial_fit(X).n_steps_ == 3


def test_seeds():
    """The same random_state gives the same model; none gives another each time."""
    models = [OnlineCPDL(2, random_state=seed).fit(X).learner_.state.digest() for seed in (1, 1, 2, None, None)]

    assert models[0] == models[1]
    assert len(set(models)) == 4


def test_too_early():
    """A model that has learned nothing says what to call."""
    with pytest.raises(StateError, match="call fit or partial_fit first"):
        OnlineCPDL(2).transform(X)


@pytest.mark.parametrize("bad", [np.float64(1.0), np.ones(3), np.empty((0, 3)), "text", [[1.0], [1.0, 2.0]]], ids=repr)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_input_leaves_the_model(bad, method):
    """What is not a batch of tensors is a typed error that names X, and the model is the one before."""
    model = OnlineCPDL(2, random_state=0).fit(X)
    before = model.learner_.state.digest()

    with pytest.raises(DataError, match=r"^X "):
        getattr(model, method)(bad)
    assert model.learner_.state.digest() == before


def test_a_bad_row_late_in_fit_leaves_the_model():
    """The error names the row of the user's X, and nothing was forgotten."""
    model = OnlineCPDL(2, batch_size=5, random_state=0).fit(X)
    before, bad = model.learner_.state.digest(), X.copy()
    bad[12, 3, 1] = np.nan

    with pytest.raises(DataError, match=r"X\[12, 3, 1\]"):
        model.fit(bad)
    assert model.learner_.state.digest() == before


@pytest.mark.parametrize("size", [0, -1, 2.5, "a"])
def test_bad_settings_are_named(size):
    """A wrong parameter is a ConfigError."""
    with pytest.raises(ConfigError, match="batch_size"):
        OnlineCPDL(2, batch_size=size).fit(X)


def test_scores_of_other_dtypes():
    """Bytes and halves score as the same numbers in double do."""
    whole = np.random.default_rng(1).integers(0, 256, (60, 6, 5))
    scores = [OnlineCPDL(2, random_state=0).fit(whole).score(whole.astype(kind)) for kind in ("f8", "u1", "f2", "i4")]

    assert np.allclose(scores, scores[0], rtol=1e-12)
    assert 0 < scores[0] < 1


@pytest.mark.parametrize("bad", ["ab", [[np.nan, 1.0]], [[1j, 1.0]], None], ids=repr)
def test_bad_codes(bad):
    """inverse_transform refuses what are no codes, and names H."""
    with pytest.raises(DataError, match=r"^H "):
        OnlineCPDL(2).fit(X).inverse_transform(bad)


def test_codes_of_the_wrong_rank():
    """inverse_transform names the shape it wants."""
    with pytest.raises(DataError, match=r"\(b, 2\)"):
        OnlineCPDL(2).fit(X).inverse_transform(np.ones((4, 3)))
