"""Every set in every mode, codes of either sign: the laws of Algorithm 2 hold whatever is mixed with what."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.utils import get_tags

from stream_ocpdl import (
    Ball,
    Box,
    Columns,
    ConfigError,
    DataError,
    Learner,
    NonnegativeBall,
    NonnegativeColumns,
    OnlineCPDL,
    Problem,
    Simplex,
    State,
    Workers,
    assumption_card,
    stationarity,
)
from stream_ocpdl.errors import LineageError
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.messages import Tensor
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.terms import changed
from tests.fakes import World
from tests.test_laws import Below, Disc
from tests.test_learner import check_against_the_oracle, check_run, mixture
from tests.test_missing import with_gaps
from tests.test_pipeline import crashing, live
from tests.test_sparse import check_same, sparse_steps

SETS = [
    "nonnegative",
    "signed",
    NonnegativeBall(1.5),
    NonnegativeColumns(0.7),
    Ball(1.5),
    Columns(0.7),
    Box(),
    Box(-0.5, 2.0),
    Box(0.2, 0.9),
    Simplex(),
    Simplex(2.5),
]


@st.composite
def runs(draw):
    """A problem with sets of its own in every mode, and minibatches for it, signed where that is allowed."""
    modes = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 3 if modes > 2 else 6)) for _ in range(modes))
    one = st.sampled_from([*SETS, Disc()])
    rank, scale = draw(st.integers(1, 3)), 10.0 ** draw(st.integers(-2, 2))
    penalty = st.sampled_from([0.0, 0.0, 0.01, 0.3])
    problem = Problem(
        shape=shape,
        rank=rank,
        sparsity=scale * draw(penalty),
        ridge=draw(penalty),
        batch_size=draw(st.integers(1, 6)),
        radius=draw(st.sampled_from(["auto", None, 0.02, 0.5])),
        constraints=draw(st.one_of(one, st.tuples(*[one] * modes))),
        codes=draw(st.sampled_from(["nonnegative", "signed"])),
        code_bound=draw(st.sampled_from(["auto", "auto", 0.5 * scale])),
        missing=draw(st.sampled_from(["reject", "impute"])),
        dtype=draw(st.sampled_from(["float64", "float64", "float32"])),
        seed=draw(st.integers(0, 99)),
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    batches = []
    for t, b in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))):
        X = scale * (random.random((b, *shape)) - (0.0 if problem.nonnegative else 0.5))
        batches.append(with_gaps(X, seed=t) if problem.missing == "impute" else X)
    return problem, batches


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs())
def test_every_step_obeys_the_paper(run):
    """The surrogate is exact, falls and majorises; codes and loadings are optimal, and in their sets; prop:Wt_bd.

    Fails with |H| forgotten in λ‖H‖₁, and with codes that are clipped after they were found.
    """
    check_run(*run)


@st.composite
def sparse_runs(draw):
    """The same without gaps, and with zeros in half of the cells."""
    problem, batches = draw(runs())
    zeros = [np.random.default_rng(t).random(X.shape) < 0.5 for t, X in enumerate(batches)]
    return replace(problem, missing="reject"), [
        np.where(none, 0.0, np.nan_to_num(X)) for none, X in zip(zeros, batches, strict=True)
    ]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sparse_runs())
def test_every_sparse_step_obeys_the_paper(run):
    """So it is where minibatches are learned by their entries."""
    with sparse_steps():
        check_run(*run)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sparse_runs())
def test_nothing_missing_nothing_changes(run):
    """Where cells may be missing, but none is, the state is that of a problem that rejects such, to the last bit."""
    problem, batches = run
    learners = [Learner(replace(problem, missing=missing)) for missing in ("reject", "impute")]
    for X in batches:
        for learner in learners:
            learner.step(X)

    assert learners[0].state.digest() == learners[1].state.digest()


MIXED = {
    "shares and a box": {"constraints": (Simplex(), Box(), "nonnegative"), "ridge": 0.01},
    "signed in one mode": {"constraints": ("signed", "nonnegative", Simplex()), "ridge": 0.01},
    "signed codes": {"codes": "signed", "ridge": 0.05, "constraints": (Columns(), Ball(2.0), Box(-0.5, 0.5))},
    "soft-thresholded": {"codes": "signed", "sparsity": 0.05, "ridge": 0.05, "constraints": "signed"},
    "codes in a box": {"code_bound": 0.8, "constraints": ("nonnegative", "nonnegative", Box(0.1, 0.9))},
}
"""Problems of three modes; the bounds of the codes, where there are any, are met."""


def signed_mixture(steps, **options):
    """A mixture with zero mean."""
    for X in islice(mixture(**options), steps):
        yield X - X.mean()


def stream(problem, steps, gaps=False):
    """Minibatches for a problem, with missing cells if wanted."""
    source = islice(mixture(problem.shape, 2), steps) if problem.nonnegative else signed_mixture(steps, rank=2)
    for t, X in enumerate(source):
        yield with_gaps(X, seed=t) if gaps else X


def mixed(name, **more):
    return Problem(**{"shape": (5, 4, 3), "rank": 2, "batch_size": 8} | MIXED[name] | more)


@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
@pytest.mark.parametrize("name", ["shares and a box", "signed codes", "soft-thresholded"])
def test_the_run_is_the_oracles(name, gaps):
    """Ten steps equal ten steps of the slow Algorithm 1, whose codes are found by trying every face."""
    problem = mixed(name, missing="impute" if gaps else "reject")
    check_against_the_oracle(problem, stream(problem, 10, gaps))


@pytest.mark.parametrize("name", MIXED)
def test_sparse_is_dense(name):
    """In every mix a run by entries is that of the whole minibatches, but for rounding."""
    problem, random = mixed(name, ridge=0.05), np.random.default_rng(0)
    check_same(problem, [X * (random.random(X.shape) < 0.5) for X in stream(problem, 10)])


@pytest.mark.parametrize("name", MIXED)
def test_stopping_and_threads_change_no_bit(name):
    """snapshot → restore → continue, and runs on 1, 2 and 3 threads, have equal states."""
    problem = mixed(name, missing="impute")
    ends = []
    for threads in (1, 2, 3):
        with Workers(threads) as workers:
            learner = Learner(problem, workers=workers)
            for t, X in enumerate(stream(problem, 6, gaps=True)):
                learner.step(X)
                if threads == 2 and t % 2:
                    learner = Learner(problem, State.from_bytes(learner.state.to_bytes()), workers)
        ends.append(learner.state.digest())

    assert len(set(ends)) == 1


@pytest.mark.parametrize("name", MIXED)
def test_learning_approaches_stationarity(name):
    """The residual of D_t for f̂_t falls in every mix."""
    problem = mixed(name)
    learner, seen = Learner(problem), []
    for X in stream(problem, 150):
        learner.step(X)
        seen.append(max(stationarity(problem, learner.state)))

    assert seen[-1] < 0.5 * seen[4] or seen[-1] < 1e-6


def test_signed_atoms_are_found():
    """A dictionary and codes of either sign, which no nonnegative model could explain, are learned to 1 %."""
    random = np.random.default_rng(0)
    U, V = random.normal(size=(12, 3)), random.normal(size=(9, 3))
    X = np.einsum("br,ir,jr->bij", random.normal(size=(4000, 3)), U, V)
    model = OnlineCPDL(3, constraints="signed", codes="signed", batch_size=50, random_state=0).fit(X)

    assert model.score(X[-500:]) > 0.99
    assert model.transform(X[:50]).min() < 0
    assert np.allclose(model.inverse_transform(model.transform(X[:50])), X[:50], atol=0.3 * np.abs(X[:50]).max())


def test_shares_are_shares():
    """Columns on a simplex stay there to the last bit that sums have, step after step."""
    problem = mixed("shares and a box")
    learner = Learner(problem)
    for X in stream(problem, 30):
        learner.step(X)
        U = learner.state.loadings[0]

        assert U.min() >= 0
        assert np.allclose(U.sum(axis=0), 1.0, rtol=1e-13)


def test_a_penalty_leaves_zeros():
    """Soft-thresholding: codes are exactly zero where |⟨X, atom⟩| is below λ/2, and shrink where it is not."""
    random = np.random.default_rng(0)
    X = random.normal(size=(40, 6))
    plain, sparse = (
        Learner(Problem(shape=(6,), rank=3, codes="signed", constraints="signed", sparsity=lam, ridge=0.1))
        for lam in (0.01, 1.0)
    )
    for learner in (plain, sparse):
        learner.step(X)

    assert (sparse.code(X).H == 0).mean() > (plain.code(X).H == 0).mean()
    assert np.abs(sparse.code(X).H).sum() < np.abs(plain.code(X).H).sum()
    assert sparse.code(X).H.min() < 0 < sparse.code(X).H.max()


def test_the_first_loadings_differ():
    """In every set a model begins with atoms that are not alike, in the set: alike ones would stay alike."""
    for C in (*SETS, Box(-2.0, -1.0), Box(100.0, 101.0), Box(-np.inf, -5.0), Box(3.0, np.inf), Box(0.0, 1e-6)):
        for scale in (1e-3, 1.0, 1e3):
            problem = Problem(shape=(6, 5), rank=3, constraints=C)
            (U, V), sets = problem.initial_loadings(scale), problem.sets(scale)

            assert np.linalg.matrix_rank(U / np.linalg.norm(U), tol=1e-6) == 3, (C, scale)
            assert all(np.allclose(D.project(W), W, rtol=1e-12) for D, W in zip(sets.loadings, (U, V), strict=True))
            norms = [np.linalg.norm(W) for W in (U, V)]
            assert np.allclose(norms, sets.norms, rtol=0.5), (C, scale)


def test_negative_data():
    """They are refused if nothing can be negative, and learned if a mode or the codes can."""
    X = -np.ones((2, 4, 3))
    for options in ({}, {"constraints": (Simplex(), Box())}, {"code_bound": 2.0}):
        with pytest.raises(DataError, match="is negative, but loadings and codes are constrained to be nonnegative"):
            Learner(Problem(shape=(4, 3), rank=2, **options)).step(X)
    for options in ({"codes": "signed"}, {"constraints": ("signed", Simplex())}, {"constraints": Box(-1.0, 1.0)}):
        assert Learner(Problem(shape=(4, 3), rank=2, **options)).step(X).t == 1


MISTAKES = [
    (lambda: Box(1.0, 0.0), "a box needs a lower bound below the upper one, not 1.0 and 0.0"),
    (lambda: Box(0.5, 0.5), "a box needs a lower bound below the upper one"),
    (lambda: Box("a", 1.0), "a box needs a lower bound below the upper one"),
    (lambda: Box(float("nan"), 1.0), "a box needs a lower bound below the upper one"),
    (lambda: Box(-np.inf, np.inf), "a box needs a bound; without one use Ball"),
    (lambda: Simplex(0.0), "the total of a simplex must be positive, not 0.0"),
    (lambda: Simplex(-1.0), "the total of a simplex must be positive"),
    (lambda: Simplex(np.inf), "the total of a simplex must be finite"),
    (lambda: Ball(-1.0), "must be positive, not -1.0"),
    (lambda: Columns(np.inf), "columns need a finite bound"),
    (lambda: Problem(shape=(3,), rank=1, codes="any"), "codes must be 'nonnegative' or 'signed', not 'any'"),
    (lambda: Problem(shape=(3,), rank=1, code_bound=0.0), "code_bound must be positive and finite, or 'auto', not 0.0"),
    (lambda: Problem(shape=(3,), rank=1, code_bound=None), "code_bound must be positive"),
    (lambda: Problem(shape=(3, 4), rank=1, constraints=(Box(), "large")), "constraints must be 'nonnegative'"),
    (lambda: Problem(shape=(3, 4), rank=1, constraints=["signed"]), "constraints must be one for each mode"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=lambda value: value if isinstance(value, str) else "")
def test_mistakes_are_named(wrong, message):
    """Each contradiction is one line that names it."""
    with pytest.raises(ConfigError, match=message) as caught:
        wrong()
    assert "\n" not in str(caught.value)


def test_an_object_with_project_is_a_set():
    """It need not say that it is bounded, nor of which sign: then (A2) is not said to hold, and all data are taken."""
    problem = Problem(shape=(5, 4, 3), rank=2, constraints=("nonnegative", Below(), Simplex()), ridge=0.05)
    check_run(problem, signed_mixture(5, rank=2))
    card = {line.name: str(line.standing) for line in assumption_card(problem)}
    model = OnlineCPDL(2, constraints=Below(), random_state=0)

    assert card["(A2) loadings"] == "fails"
    assert isinstance(clone(model).fit(np.random.default_rng(0).random((60, 5, 4)) - 0.5).constraints, Below)
    assert not get_tags(model).input_tags.positive_only
    with pytest.raises(ConfigError, match="or objects with project, not 3"):
        Problem(shape=(5, 4), rank=2, constraints=3)


def test_a_state_outside_of_its_set_is_refused():
    """Loadings that a set excludes do not become a learner's."""
    learner = Learner(Problem(shape=(4, 3), rank=2))
    learner.step(np.ones((2, 4, 3)))

    with pytest.raises(Exception, match=r"mode 0 are outside of their set Box\(lower=50.0, upper=60.0\)"):
        Learner(Problem(shape=(4, 3), rank=2, constraints=Box(50, 60)), learner.state)


def test_digests_of_old_problems_stay():
    """Journals that were written before there were other sets know the problem by this digest."""
    old = Problem(shape=(4, 3), rank=2)

    assert old.digest().startswith("be9026bf7ca3")
    assert "codes" not in repr(old)
    others = [Problem(shape=(4, 3), rank=2, **more) for more in ({"codes": "signed"}, {"code_bound": 1.0})]
    assert len({problem.digest() for problem in (old, *others)}) == 3


def test_the_card():
    """Unbounded sets fail (A2); a bound of the codes that was chosen is no evidence against it."""

    def standing(**options):
        problem = Problem(shape=(3, 4), rank=2, **options)
        return {line.name: str(line.standing) for line in assumption_card(problem, State.initial(problem))}

    for C in (Simplex(), Box(-1.0, 1.0), "signed", Ball(2.0), Columns()):
        assert standing(constraints=C)["(A2) loadings"] == "holds"
    for C in (Ball(), Box(0.0, np.inf), Box(-np.inf, 1.0)):
        assert standing(constraints=(Simplex(), C))["(A2) loadings"] == "fails"
    boxed = Problem(shape=(3, 4), rank=2, code_bound=0.1)
    learner = Learner(boxed)
    learner.step(np.ones((5, 3, 4)))
    assert learner.state.at_bound > 0
    assert {line.name: str(line.standing) for line in assumption_card(boxed, learner.state)}["(A2) codes"] == "holds"


def test_warm_up():
    """It works for every mix."""
    for name in MIXED:
        warm_up(mixed(name))


def test_the_service_learns_them_exactly_once():
    """With mixed sets and signed codes: crashes change no bit, negative cells are no dead letters, and a journal of
    other sets is not taken for one's own.
    """
    problem = Problem(shape=(4, 3), rank=2, batch_size=5, constraints=("signed", Simplex()), codes="signed")
    plan = Plan("model", problem, Batching(5, "full", "canonical"), snapshot_every=4, digest_every=2)
    random = np.random.default_rng(0)
    values = [[Tensor(random.normal(size=(4, 3))).to_bytes() for _ in range(40)] for _ in range(2)]
    world, calm = World(values), World(values)
    end, undisturbed = live(world, plan, crashing([3, 11, 17, 30])), live(calm, plan, crashing([]))

    assert end.progress.state.N == 80
    assert not world.stream("dead-letters")
    assert end.progress.state.digest() == undisturbed.progress.state.digest()
    assert world.stream("codes") == calm.stream("codes")
    assert min(code.code.min() for code in world.codes()) < 0
    with pytest.raises(LineageError):
        live(world, replace(plan, problem=replace(problem, constraints=("signed", Box()))), crashing([]))


def test_a_penalty_cannot_come_to_sets_that_it_decides():
    """If one mode is of automatic size; where all sets were chosen it may come."""
    for constraints, allowed in (("signed", False), ((Simplex(), "nonnegative"), False), ((Simplex(), Box()), True)):
        problem = Problem(shape=(4, 3), rank=2, constraints=constraints)
        if allowed:
            assert changed(problem, {"sparsity": 0.1}).sparsity == 0.1
        else:
            with pytest.raises(ConfigError, match="a penalty cannot come"):
                changed(problem, {"sparsity": 0.1})
