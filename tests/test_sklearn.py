"""OnlineCPDL keeps scikit-learn's conventions, by scikit-learn's own checks, and does not need it."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import tensorly
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import check_is_fitted

from stream_ocpdl import ConfigError, Constant, DataError, Learner, OnlineCPDL, PowerLaw, Problem, StateError
from tests import paper

X = np.einsum("br,ir,jr->bij", *(np.random.default_rng(0).random((rows, 2)) for rows in (60, 6, 5)))

NEGATIVE = "a negative cell is refused with its place and value, not with the words 'Negative values in data'"
INFINITE = "a NaN is refused as X[0, 0] = nan, with its place and value; the check wants it to be spelled 'NaN'"
OBJECTS = "what is not a number is a DataError, which is a ValueError; the check wants NumPy's TypeError"

EXCLUDED = {
    "plain": {
        "check_positive_only_tag_during_fit": NEGATIVE,
        "check_estimators_nan_inf": INFINITE,
        "check_dtype_object": OBJECTS,
    },
    "gaps": {"check_positive_only_tag_during_fit": NEGATIVE, "check_dtype_object": OBJECTS},
}
"""What is not kept of the conventions, and why. Tests below say what is done in its place."""

MODELS = {
    "plain": OnlineCPDL(2, random_state=0),
    "gaps": OnlineCPDL(3, ridge=0.1, batch_size=7, missing="impute", weights=Constant(0.1), random_state=0),
}


def checks():
    """Every check that applies to a model; those that are known to fail must."""
    for name, model in MODELS.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not inherit from `sklearn.base.BaseEstimator`")
            found = list(estimator_checks_generator(model))
        for check in (check for _, check in found):
            reason = EXCLUDED[name].get(called(check))
            marks = [] if reason is None else pytest.mark.xfail(reason=reason, strict=True)
            yield pytest.param(model, check, marks=marks, id=f"{name}-{called(check)}")


def called(check):
    """The name of a check, with what it is given."""
    function = getattr(check, "func", check)
    given = getattr(check, "keywords", {})
    return "-".join([function.__name__, *(f"{k}={v}" for k, v in given.items())])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize(("model", "check"), list(checks()))
def test_the_checks_of_scikit_learn(model, check):
    """Each of scikit-learn's checks for data in tables passes, but for those that EXCLUDED gives a reason for."""
    check(model)


@pytest.mark.parametrize(("value", "said"), [(np.nan, "nan is not finite"), (np.inf, "inf is not finite"), (-1, "neg")])
@pytest.mark.parametrize("verb", ["fit", "partial_fit", "transform", "score"])
def test_what_cannot_be_learned_is_refused_by_its_place(value, said, verb):
    """Instead of two of the excluded checks: each verb names the cell."""
    model, bad = OnlineCPDL(2, random_state=0).fit(X), X.copy()
    bad[7, 1, 2] = value

    with pytest.raises(DataError, match=rf"X\[7, 1, 2\] = .*{said}"):
        getattr(model, verb)(bad)


def test_objects():
    """Instead of the third: numbers that are Python objects are learned as numbers, others are refused."""
    table = X.reshape(60, 30)
    plain, objects = (OnlineCPDL(2, random_state=0).fit(data) for data in (table, table.astype(object)))
    bad = table.astype(object)
    bad[0, 0] = {"a": 1}

    assert plain.learner_.state.digest() == objects.learner_.state.digest()
    with pytest.raises(DataError, match="X has what is not a number"):
        plain.transform(bad)


def test_it_does_without():
    """With scikit-learn and TensorLy gone it learns, codes and shows itself; a model that is not fitted says so."""
    code = """
import sys
sys.modules["sklearn"] = sys.modules["tensorly"] = None
import numpy as np
from stream_ocpdl import OnlineCPDL, StateError
model = OnlineCPDL(2, random_state=0)
assert not hasattr(model, "loadings_")
try:
    model.transform(np.ones((3, 4)))
except StateError as error:
    print(error)
weights, factors = model.fit(np.ones((9, 4))).to_tensorly()
print(repr(model), weights.shape, factors[0].shape, model.set_params(rank=3).get_params()["rank"])
"""
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()

    assert told == [
        "this OnlineCPDL has learned nothing yet; call fit or partial_fit first",
        "OnlineCPDL(rank=2, random_state=0) (2,) (4, 2) 3",
    ]


def test_not_fitted_is_both():
    """Who catches scikit-learn's error catches ours, and the other way round."""
    for kind in (NotFittedError, StateError):
        with pytest.raises(kind, match="call fit or partial_fit first"):
            OnlineCPDL(2).score(X)
    with pytest.raises(NotFittedError):
        check_is_fitted(OnlineCPDL(2))
    check_is_fitted(OnlineCPDL(2).fit(X))


def test_tags_follow_the_parameters():
    """Negative data are excluded where the sets are, NaN are allowed where they mean a gap."""
    tags = get_tags(OnlineCPDL(2)).input_tags, get_tags(OnlineCPDL(2, missing="impute")).input_tags

    assert [(t.positive_only, t.allow_nan, t.three_d_array) for t in tags] == [(True, False, True), (True, True, True)]
    assert not is_classifier(OnlineCPDL(2))


@pytest.mark.parametrize("copied", [clone, lambda model: pickle.loads(pickle.dumps(model))], ids=["clone", "pickle"])
def test_copies_go_on_alike(copied):
    """A copy that learns what the model learns has its bits: clones from nothing, pickles from where it is."""
    model = OnlineCPDL(2, sparsity=0.1, weights=PowerLaw(beta=0.8), random_state=4)
    model = model if copied is clone else model.fit(X)
    other = copied(model)

    assert other.partial_fit(X).learner_.state.digest() == model.partial_fit(X).learner_.state.digest()
    assert (
        repr(other)
        == repr(model)
        == "OnlineCPDL(rank=2, sparsity=0.1, weights=PowerLaw(beta=0.8, delta=0.0), random_state=4)"
    )


def test_a_search_finds_the_rank():
    """In a pipeline and a grid search, tensors as well as tables; the score prefers the true rank to a smaller one."""
    found = GridSearchCV(OnlineCPDL(1, batch_size=10, random_state=0), {"rank": [1, 2]}, cv=2).fit(X)
    line = make_pipeline(MinMaxScaler(), OnlineCPDL(2, random_state=0)).fit(X.reshape(60, 30))

    assert found.best_params_ == {"rank": 2}
    assert line.transform(X.reshape(60, 30)).shape == (60, 2)
    assert line.get_feature_names_out().tolist() == ["onlinecpdl0", "onlinecpdl1"]


@pytest.mark.parametrize("kind", [np.random.RandomState, np.random.default_rng])
def test_what_draws_seeds(kind):
    """A generator gives another seed each time, and the same ones when it begins anew; NumPy's own for None."""

    def digests(source):
        return [OnlineCPDL(2, random_state=source).fit(X).learner_.state.digest() for _ in range(2)]

    first, again = digests(kind(5)), digests(kind(5))
    np.random.seed(3)  # noqa: NPY002
    of_none = digests(None)
    np.random.seed(3)  # noqa: NPY002

    assert first == again
    assert first[0] != first[1]
    assert of_none == digests(None)


@pytest.mark.parametrize("bad", ["7", 1.5, True, -1], ids=repr)
def test_bad_seeds(bad):
    """What is no seed is a ConfigError."""
    with pytest.raises(ConfigError, match=r"random_state|seed"):
        OnlineCPDL(2, random_state=bad).fit(X)


def test_unknown_parameters():
    """set_params names the parameters that there are, and sets none if one is wrong."""
    model = OnlineCPDL(2)

    with pytest.raises(ConfigError, match="no parameter 'ranks'; it has rank, sparsity"):
        model.set_params(sparsity=1.0, ranks=3)
    assert model.sparsity == 0.0


def test_parameters_that_are_set_on_the_way_hold():
    """The next step has the new weights, as a Learner of the new problem would; what was learned stays."""
    model = OnlineCPDL(2, batch_size=60, random_state=1).partial_fit(X)
    model.set_params(weights=Constant(0.5)).partial_fit(X)
    old = Learner(Problem((6, 5), 2, batch_size=60, seed=1))
    old.step(X)
    new = Learner(Problem((6, 5), 2, batch_size=60, seed=1, weights=Constant(0.5)), old.state)
    new.step(X)

    assert model.last_step_.weight == 0.5
    assert model.learner_.state.digest() == new.state.digest()


@pytest.mark.parametrize("change", [{"rank": 3}, {"dtype": "float32"}, {"rank": 0}], ids=repr)
def test_parameters_that_would_need_another_state(change):
    """They are refused by partial_fit, and the model is the one before."""
    model = OnlineCPDL(2, random_state=1).fit(X)
    before = model.learner_.state.digest()

    with pytest.raises(ConfigError):
        model.set_params(**change).partial_fit(X)
    assert model.learner_.state.digest() == before


def test_tensorly_takes_the_dictionary():
    """Its CPTensor of ours is the sum of our atoms."""
    model = OnlineCPDL(2, random_state=0).fit(X)
    found = model.to_tensorly()

    assert np.allclose(tensorly.cp_to_tensor(found), np.einsum("rij->ij", paper.out(model.loadings_)))
