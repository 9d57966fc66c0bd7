"""Models of other ranks beside the one that counts say which rank is enough, and change nothing about it."""

import pickle
from itertools import islice

import numpy as np
import pytest

from stream_ocpdl import ConfigError, Constant, Learner, NumericError, OnlineCPDL, Problem, Shadows
from stream_ocpdl.ocpdl.shadows import LEAST
from tests.test_learner import mixture
from tests.test_revival import rare

SHAPE = (8, 7, 6)


def advised(rank, by=1, steps=200):
    """By three atoms in noise, whose mean is a fourth."""
    shadows = Shadows(Problem(SHAPE, rank, batch_size=8), by, share=1.0)
    for X in rare(SHAPE, 3, 8, 0, steps):
        shadows.step(X)
    return shadows.advice()


def test_a_rank_too_small_is_told_to_grow():
    """With fewer atoms than there are in the data the larger candidate explains new tensors better."""
    advice = advised(2)

    assert advice.rank == 3
    assert advice.reason.startswith("rank 3 is better: it gains ")
    assert list(advice.losses) == [1, 2, 3]
    assert advice.losses[1] > advice.losses[2] > advice.losses[3]


def test_a_rank_too_large_is_told_to_shrink():
    """An atom more than the data have is not worth its price. Fails if the lowest loss wins: noise is learned, too."""
    advice = advised(6)

    assert advice.rank == 5
    assert advice.reason.startswith("rank 5 is enough: 6 gains 0.")


@pytest.mark.parametrize("rank", [4, 5])
def test_the_right_rank_is_enough(rank):
    """Whether it is the model's own, or the smaller candidate."""
    assert advised(rank)[:2] == (4, "rank 4 is enough: 5 gains 0.3 %")


def test_too_early():
    """Nothing is said of a few minibatches, nor are the first, when all are poor, among those that are compared."""
    shadows = Shadows(Problem(SHAPE, 2, batch_size=8), 1, share=1.0)
    for X in islice(mixture(SHAPE), 2 * LEAST - 1):
        shadows.step(X)

    assert shadows.advice()[:2] == (None, "too early to say: 19 of 20 minibatches")
    shadows.step(next(mixture(SHAPE)))
    assert shadows.advice().rank is not None


@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
@pytest.mark.parametrize("sizes", [[8], [1, 20, 3]], ids=str)
def test_the_share(share, sizes):
    """Of the tensors, however minibatches vary; and the same minibatches each time."""
    random = np.random.default_rng(0)
    batches = [random.random((sizes[k % len(sizes)], 4, 3)) for k in range(120)]
    runs = []
    for _ in range(2):
        shadows = Shadows(Problem((4, 3), 2, batch_size=8), 1, share)
        runs.append([shadows.step(X) for X in batches])

    assert runs[0] == runs[1]
    assert shadows.taken == sum(len(X) for X, took in zip(batches, runs[0], strict=True) if took)
    assert abs(shadows.taken - share * shadows.seen) <= max(sizes)


def test_rank_one_has_no_smaller_one():
    """Only larger ones are beside it."""
    shadows = Shadows(Problem((5, 4), 1), 2)

    assert [learner.problem.rank for learner in shadows.learners] == [1, 3]


@pytest.mark.parametrize(
    ("given", "said"), [((0, 0.1), "by"), ((1.5, 0.1), "by"), ((1, 0.0), "share"), ((1, 2), "share")]
)
def test_mistakes(given, said):
    """They are named."""
    with pytest.raises(ConfigError, match=f"^{said} must be"):
        Shadows(Problem((5, 4), 2), *given)


def test_a_minibatch_that_one_cannot_learn_judges_nobody(monkeypatch):
    """The shadows go on without it, and the error does not come to the model."""
    shadows = Shadows(Problem((5, 4), 2), 1, share=1.0)
    X = next(mixture((5, 4)))

    def overflown(X):
        raise NumericError("not finite")

    with monkeypatch.context() as patch:
        patch.setattr(shadows.learners[1], "step", overflown)
        assert not shadows.step(X)
    assert shadows.step(X)
    assert (shadows.compared, shadows.taken) == (1, 16)


# ── beside the estimator ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", ["fit", "partial_fit"])
def test_the_model_is_the_same_with_shadows(verb):
    """To the last bit, and to that of a Learner; and the advice can be had."""
    X = np.concatenate(list(islice(mixture(SHAPE, 3), 300)))
    parts = [X] if verb == "fit" else np.split(X, 300)
    models = [OnlineCPDL(2, batch_size=8, shadows=shadows, random_state=0) for shadows in (None, 1)]
    for part in parts:
        for model in models:
            getattr(model, verb)(part)
    learner = Learner(Problem(SHAPE, 2, batch_size=8))
    for part in np.split(X, 300):
        learner.step(part)

    assert {model.learner_.state.digest() for model in models} == {learner.state.digest()}
    assert models[1].rank_advice_.rank == 3
    assert pickle.loads(pickle.dumps(models[1])).rank_advice_ == models[1].rank_advice_
    with pytest.raises(ConfigError, match="give it shadows"):
        _ = models[0].rank_advice_


@pytest.mark.parametrize("change", [{"missing": "impute"}, {"codes": "signed"}, {"weights": Constant(0.1)}], ids=repr)
def test_parameters_that_are_set_on_the_way_hold_for_shadows(change):
    """What the model may learn from now on, they may: data that its old parameters refuse are no error."""
    X = next(mixture(SHAPE, 3, b=40))
    odd = {"missing": np.where(X < np.quantile(X, 0.1), np.nan, X), "codes": X - X.mean()}.get(next(iter(change)), X)
    model, plain = (OnlineCPDL(2, batch_size=40, shadows=shadows, random_state=0).fit(X) for shadows in (1, None))
    for _ in range(25):
        model.set_params(**change).partial_fit(odd)
        plain.set_params(**change).partial_fit(odd)

    assert model.learner_.state.digest() == plain.learner_.state.digest()
    assert model.rank_advice_.reason == "too early to say: 3 of 20 minibatches"


def test_shadows_that_are_none():
    """The parameter is named."""
    with pytest.raises(ConfigError, match=r"^shadows: by must be a whole number"):
        OnlineCPDL(2, shadows=0).fit(np.ones((9, 5, 4)))
