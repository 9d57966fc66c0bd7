"""What the paper proves of Algorithm 2, on every step of random runs, against the oracle that keeps all data."""

import pickle
from dataclasses import dataclass, field, is_dataclass
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_ocpdl import (
    Balanced,
    Constant,
    DataError,
    Learner,
    NonnegativeBall,
    NonnegativeColumns,
    NumericError,
    PowerLaw,
    Problem,
    State,
    StateError,
    Workers,
    stationarity,
)
from stream_ocpdl.ocpdl import aggregates as aggregates_module
from stream_ocpdl.ocpdl import learner as learner_module
from stream_ocpdl.ocpdl import small as small_module
from stream_ocpdl.ocpdl.batch import gather
from stream_ocpdl.ocpdl.blocks import Blocks
from stream_ocpdl.ocpdl.constraints import Projected
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.ocpdl.quadratic import residual
from stream_ocpdl.ocpdl.solvers import project_near
from tests import paper

SLACK = {"float64": 1e-10, "float32": 2e-5}
"""Relative agreement with the oracle; float32 keeps X and B in single precision, all else in double."""


@dataclass
class Run:
    """A learner, and all the data it has seen."""

    problem: Problem
    learner: Learner = None
    observed: list = field(default_factory=list)
    past: list = field(default_factory=list)
    """The same with missing cells filled."""
    weights: list = field(default_factory=list)

    def __post_init__(self):
        self.learner = Learner(self.problem)

    def step(self, X):
        """One step; what the oracle needs of it is kept."""
        known, loadings = self.learner.state.scale > 0, self.learner.state.loadings
        step = self.learner.step(X)
        loadings = loadings if known else first_loadings(self.problem, self.learner.state)
        X = np.asarray(X, self.problem.dtype).astype(float)
        self.observed.append((X, step.codes))
        self.past.append((paper.filled(X, loadings, step.codes), step.codes))
        self.weights.append(step.weight)
        return step

    @property
    def penalties(self):
        return self.problem.sparsity, self.problem.ridge

    def surrogate(self, loadings, last=None):
        return paper.surrogate(self.past[:last], self.weights[:last], loadings, *self.penalties)

    def empirical(self, loadings, last=None):
        upper = self.problem.sets(self.learner.state.scale or 1.0).h_max
        signed = self.problem.codes == "signed"
        return paper.empirical(self.observed[:last], self.weights[:last], loadings, *self.penalties, upper, signed)


@st.composite
def runs(draw):
    """A problem and minibatches for it: 1 to 4 modes, sizes that vary, zeros, any scale, every option."""
    modes = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 4 if modes > 2 else 6)) for _ in range(modes))
    if modes == 2 and draw(st.booleans()):
        shape = (shape[0], 48 + shape[1])  # enough in a row for two groups of modes
    rank, scale = draw(st.integers(1, 4)), 10.0 ** draw(st.integers(-3, 3))
    penalty = st.sampled_from([0.0, 0.0, 0.01, 0.3])
    problem = Problem(
        shape=shape,
        rank=rank,
        sparsity=scale * draw(penalty),
        ridge=draw(penalty),
        weights=draw(st.sampled_from([PowerLaw(0.76), PowerLaw(0.75, 1.0), Balanced(), Constant(0.3)])),
        per=draw(st.sampled_from(["tensor", "step"])),
        batch_size=draw(st.integers(1, 6)),
        radius=draw(st.sampled_from(["auto", None, 0.02, 0.5])),
        constraints=draw(st.sampled_from(["auto", "auto", NonnegativeBall(1.5), NonnegativeColumns(0.7)])),
        dtype=draw(st.sampled_from(["float64", "float64", "float32"])),
        seed=draw(st.integers(0, 99)),
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    zeros, sizes = draw(st.sampled_from([0.0, 0.5, 0.95])), draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    return problem, [scale * random.random((b, *shape)) * (random.random((b, *shape)) >= zeros) for b in sizes]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs())
def test_every_step_obeys_the_paper(run):
    """Algorithm 2 is Algorithm 1; lem:main_analytic_lemma, prop:Wt_bd, f̂ ≥ f and both KKT conditions hold."""
    check_run(*run)


def test_a_poor_first_guess_does_not_end_the_search():
    """B in single precision is out of the range of A: sweeps and prices of the columns fail, proximal steps do not."""
    problem = Problem(shape=(1,), rank=4, ridge=0.01, batch_size=1, dtype="float32", seed=2)
    check_run(problem, [np.array([[6.36961687], [2.69786714]])])


def check_run(problem, batches):
    """Every step of a run, with or without missing cells."""
    run = Run(problem)
    for X in batches:
        before = run.learner.state
        step = run.step(X)
        after = run.learner.state
        if before.scale == 0.0:  # the scale is fixed by the first energy, and the first loadings with it
            before = State(before.t, before.N, after.scale, 0, first_loadings(problem, after), before.aggregates)
        rounding = 1e-15 * max(cancelled(before.loadings, after), cancelled(after.loadings, after))
        slack = SLACK[problem.dtype] * after.aggregates.E + 10 * rounding + 1e-300

        risen = step.surrogate - step.surrogate_before
        assert risen <= 1e-12 * after.aggregates.E + rounding  # lem:main_analytic_lemma (i)
        check_surrogate(run, step, before, after, slack)
        check_movement(problem, step, before, after)
        check_coding(problem, run.observed[-1][0], step, before, slack)
        check_loadings(problem, step, before, after)


def cancelled(loadings, state):
    """Σ|A ⊙ G|, of which tr(AG) may be a small part where codes are signed: its rounding is that of the surrogate."""
    G = np.prod([U.T @ U for U in loadings], axis=0)
    return np.abs(state.aggregates.A * G).sum() if state.aggregates.A.min() < 0 or G.min() < 0 else 0.0


def first_loadings(problem, state):
    """U₀ at the scale that the data fixed."""
    return problem.initial_loadings(state.scale or 1.0)


def check_surrogate(run, step, before, after, slack):
    """The surrogate is exact, majorises, and its growth is bounded."""
    was, now = run.surrogate(before.loadings), run.surrogate(after.loadings)
    assert step.surrogate_before == pytest.approx(was, rel=1e-9, abs=slack)
    assert step.surrogate == pytest.approx(now, rel=1e-9, abs=slack)
    assert now >= run.empirical(after.loadings) - slack  # f̂_t ≥ f_t
    if step.t > 1:  # prop:Wt_bd
        old, old_empirical = run.surrogate(before.loadings, -1), run.empirical(before.loadings, -1)
        drop = step.weight * (step.prequential_loss - old_empirical)
        assert now - old <= drop + slack
        assert -slack <= step.weight * (old - old_empirical) <= drop + old - now + slack


def check_movement(problem, step, before, after):
    """lem:main_analytic_lemma (ii), and loadings stay in their sets."""
    for i, (U, V) in enumerate(zip(after.loadings, before.loadings, strict=True)):
        assert step.movements[i] == pytest.approx(np.linalg.norm(U - V), rel=1e-9, abs=1e-300)
        assert step.movements[i] <= step.radii[i] * (1 + 1e-12)
        if step.radius_active[i] and step.settled[i] and problem.dtype == "float64":
            assert step.movements[i] == pytest.approx(step.radii[i], rel=1e-6)
    sets = problem.sets(after.scale or 1.0)
    assert step.radii == tuple(step.weight * c for c in sets.radii)
    for U, C in zip(after.loadings, sets.loadings, strict=True):
        assert np.allclose(C.project(U), U, rtol=1e-12, atol=0)


def check_coding(problem, X, step, before, slack):
    """Codes are minimisers: losses are the oracle's, and the oracle finds none lower."""
    H, penalties, signed = step.codes, (problem.sparsity, problem.ridge), problem.codes == "signed"
    upper = problem.sets(before.scale or 1.0).h_max
    assert H.min() >= (-upper if signed else 0)
    assert H.max() <= upper
    assert np.allclose(step.coding.losses, paper.losses(X, before.loadings, H, *penalties), rtol=1e-9, atol=slack)
    best = paper.losses(X, before.loadings, paper.coding(X, before.loadings, *penalties, upper, signed), *penalties)
    energies = np.nansum(X**2, axis=tuple(range(1, X.ndim)))
    assert (step.coding.losses <= best * (1 + 1e-10) + 1e-10 * energies).all()
    for k in range(len(X)):
        Q, L = paper.normal(X[k : k + 1], before.loadings, 0.0 if signed else problem.sparsity, problem.ridge)
        price = problem.sparsity / 2 / max(np.linalg.eigvalsh(Q)[-1], 1e-300)
        prox = near_zero(price, upper) if signed else lambda V: np.clip(V, 0, upper)
        assert residual(H[k : k + 1].copy(), Q, L, prox) <= 1e-10


def near_zero(price, upper):
    """Soft-thresholding, then the box: what a projection is where codes are signed."""
    return lambda V: np.clip(np.sign(V) * np.maximum(np.abs(V) - price, 0.0), -upper, upper)


def check_loadings(problem, step, before, after):
    """Each mode in its turn minimises f̂_t over C ∩ ball, to a residual of 1e-10.

    Where B is in tiles and in single precision, that is of the B before it was rounded.
    """
    loadings = list(before.loadings)
    rounded = isinstance(after.aggregates.B, Blocks) and problem.dtype == "float32"
    sets = problem.sets(after.scale or 1.0)
    for i, (U, C) in enumerate(zip(after.loadings, sets.loadings, strict=True)):
        A, B = paper.intermediate(after.aggregates.A, np.asarray(after.aggregates.B, float), loadings, i)
        project = C.project if problem.radius is None else near(C, loadings[i], step.radii[i])
        users = not is_dataclass(C) or isinstance(C, Projected)
        exact = 1e-6 if rounded or users else 1e-10 if step.settled[i] else 1e-8
        assert residual(np.ascontiguousarray(U), A, np.ascontiguousarray(B), project) <= exact
        loadings[i] = U


def near(C, centre, radius):
    """Π of C ∩ ball."""
    return lambda V: project_near(V, C, centre, radius)


def mixture(shape=(5, 4, 3), rank=3, b=8, seed=0, noise=0.1):
    """An endless stream of noisy mixtures of a known dictionary."""
    random = np.random.default_rng(seed + 1000)
    atoms = paper.out([random.random((rows, rank)) for rows in shape])
    while True:
        X = np.einsum("br,r...->b...", random.exponential(size=(b, rank)), atoms)
        yield X + noise * random.random(X.shape)


@pytest.mark.parametrize(("sparsity", "ridge"), [(0.0, 0.0), (0.5, 0.1)])
def test_the_surrogate_is_exact_for_200_steps(sparsity, ridge):
    """f̂_t from (A, B, E, P) equals the sum over all past data to 1e-10.

    Fails with the unweighted constants of prop:g_t_derivation (i), and with sums not divided by the batch size.
    """
    run = Run(Problem(shape=(5, 4, 3), rank=3, batch_size=4, sparsity=sparsity, ridge=ridge))
    sizes = np.random.default_rng(0).integers(1, 9, 200)
    for b, X in zip(sizes, mixture(), strict=False):
        step = run.step(X[:b])
        if step.t % 10 == 0:
            assert step.surrogate == pytest.approx(run.surrogate(run.learner.state.loadings), rel=1e-10)

    assert step.t == 200


@pytest.mark.parametrize("radius", ["auto", 0.05])
@pytest.mark.parametrize("shape", [(6,), (5, 4), (4, 3, 2), (3, 2, 2, 2)], ids=str)
def test_the_run_is_the_oracles(shape, radius):
    """Ten steps equal ten steps of the paper's slow Algorithm 1, coded and updated by other means."""
    problem = Problem(shape=shape, rank=2, batch_size=8, radius=radius, ridge=0.01)
    check_against_the_oracle(problem, islice(mixture(shape, 2), 10))


def check_against_the_oracle(problem, batches):
    """Every step equals one of the slow Algorithm 1, on tensors that are coded, and filled, by brute force."""
    learner = Learner(problem)
    past, weights, loadings = [], [], None
    for t, X in enumerate(batches, 1):
        step = learner.step(X)
        loadings = loadings or list(problem.initial_loadings(learner.state.scale))
        H = paper.coding(X, loadings, problem.sparsity, problem.ridge, signed=problem.codes == "signed")
        past.append((paper.filled(X, loadings, H), H))
        weights.append(1.0 if t == 1 else t**-0.76)
        A, B = paper.aggregates(past, weights)
        for i, C in enumerate(problem.sets(learner.state.scale).loadings):
            bars = paper.intermediate(A, B, loadings, i)
            loadings[i] = paper.update(*bars, C.project, loadings[i], step.radii[i])

        for ours, theirs in zip(learner.state.loadings, loadings, strict=True):
            assert np.allclose(ours, theirs, atol=2e-6)
    assert t == 10


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_stopping_changes_no_bit(dtype):
    """snapshot → restore → continue equals never stopping, bit for bit, at every step."""
    problem = Problem(shape=(5, 4, 3), rank=3, batch_size=8, dtype=dtype)
    steady, broken = Learner(problem), Learner(problem)
    for _, X in zip(range(12), mixture(), strict=False):
        steady.step(X)
        broken = Learner(problem, State.from_bytes(broken.state.to_bytes()))
        broken.step(X)

        assert broken.state.digest() == steady.state.digest()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_threads_change_no_bit(ridge, dtype):
    """Runs on 1, 2 and 3 threads have equal states, on a problem large enough to be split."""
    problem = Problem(shape=(60, 700), rank=6, batch_size=8, ridge=ridge, dtype=dtype)
    digests = []
    for threads in (1, 2, 3):
        with Workers(threads) as workers:
            learner = Learner(problem, workers=workers)
            for _, X in zip(range(4), mixture((60, 700), 6), strict=False):
                learner.step(X)
        digests.append(learner.state.digest())

    assert digests[0] == digests[1] == digests[2]


def test_single_precision_agrees():
    """float32 stays within 1e-4 of float64 after 100 steps: in the surrogate and in every loading."""
    learners = [Learner(Problem(shape=(5, 4, 3), rank=3, batch_size=8, dtype=d)) for d in ("float64", "float32")]
    for _, X in zip(range(100), mixture(), strict=False):
        double, single = (learner.step(X) for learner in learners)

    assert single.surrogate == pytest.approx(double.surrogate, rel=1e-4)
    for U, V in zip(*(learner.state.loadings for learner in learners), strict=True):
        assert np.linalg.norm(U - V) <= 1e-4 * np.linalg.norm(U)


def test_learning_approaches_stationarity():
    """The residual of D_t for f̂_t falls by a factor of ten from step 10 to step 400, in every mode."""
    problem = Problem(shape=(5, 4, 3), rank=3, batch_size=8)
    learner, seen = Learner(problem), {}
    for _, X in zip(range(400), mixture(), strict=False):
        seen[learner.step(X).t] = max(stationarity(problem, learner.state))

    assert seen[400] < 0.1 * seen[10]


def test_zeros_fix_nothing():
    """A first minibatch of zeros leaves the scale open; the next one sets it, and learning goes on."""
    problem = Problem(shape=(5, 4, 3), rank=3, batch_size=8)
    learner = Learner(problem)
    step = learner.step(np.zeros((8, 5, 4, 3)))

    assert learner.state.scale == 0.0
    assert step.surrogate == 0.0
    assert not step.codes.any()
    for _, X in zip(range(20), mixture(), strict=False):
        learner.step(X)
    assert learner.state.scale > 0.0
    assert learner.step(X).surrogate < 0.5 * learner.state.aggregates.E


def test_equal_weights_whatever_the_batches():
    """With 1/t per tensor, every tensor weighs the same, however the stream was cut into minibatches."""
    X = next(mixture(b=30))
    means = []
    for cuts in ([30], [7, 23], [1] * 30, [10, 1, 19]):
        learner = Learner(Problem(shape=(5, 4, 3), rank=3, weights=Balanced(), batch_size=10))
        for part in np.split(X, np.cumsum(cuts)[:-1]):
            learner.step(part)
        means.append(learner.state.aggregates.E)

    assert np.allclose(means, np.sum(X**2) / 30, rtol=1e-12)


BAD = {
    "NaN": (np.where(np.arange(6).reshape(1, 2, 3) == 4, np.nan, 1.0), r"X\[0, 1, 1\] = nan is not finite"),
    "infinity": (np.full((1, 2, 3), np.inf), r"X\[0, 0, 0\] = inf is not finite"),
    "too many modes": (np.ones((1, 2, 3, 4)), r"shape \(1, 2, 3, 4\); .* \(b, 2, 3\)"),
    "a tensor without its batch": (np.ones((2, 3)), r"shape \(2, 3\); .* \(b, 2, 3\)"),
    "wrong sizes": (np.ones((4, 3, 2)), r"\(b, 2, 3\)"),
    "negative": (-np.ones((1, 2, 3)), r"X\[0, 0, 0\] = -1.0 is negative"),
    "empty": (np.ones((0, 2, 3)), "X is empty"),
    "objects": (np.full((1, 2, 3), None), "X has dtype object"),
    "complex": (np.ones((1, 2, 3), complex), "X has dtype complex128"),
    "text": ("hello", "X has dtype <U5"),
    "ragged": ([[1.0], [1.0, 2.0]], "X is not an array"),
    "too large": (np.full((1, 2, 3), 1e150), "norm too far from one"),
    "masked": (np.ma.ones((1, 2, 3)), "masked array"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_nothing_learned(name):
    """Each has a typed error that names the argument, and the state is the one before, bit for bit."""
    X, message = BAD[name]
    learner = Learner(Problem(shape=(2, 3), rank=2))
    learner.step(np.ones((4, 2, 3)))
    before = learner.state.digest()

    with pytest.raises(DataError, match=message):
        learner.step(X)
    assert learner.state.digest() == before


def test_overflow_in_single_precision_is_refused():
    """A double that single precision cannot hold is not finite, and said so."""
    with pytest.raises(DataError, match="is not finite"):
        Learner(Problem(shape=(3,), rank=1, dtype="float32")).step(np.full((1, 3), 1e39))


@pytest.mark.parametrize(
    ("dtype", "scale"), [("float32", 1e-20), ("float32", 1e18), ("float64", 1e-90), ("float64", 1e80)]
)
def test_a_scale_out_of_range_is_refused(dtype, scale):
    """Data whose squares lose their digits are refused before they fix the scale."""
    learner = Learner(Problem(shape=(3,), rank=1, dtype=dtype))

    with pytest.raises(DataError, match="rescale the data"):
        learner.step(np.full((1, 3), scale))
    assert learner.state.scale == 0.0


def test_large_minibatches_do_not_erase_the_past():
    """A minibatch of 30 ordinary sizes weighs what its tensors would have weighed together."""
    problem = Problem(shape=(3,), rank=1, batch_size=2)
    apart = np.prod([1 - problem.weight(k, 2 * k, 2) for k in range(31, 61)])

    assert 1 - problem.weight(2, 120, 60) == pytest.approx(apart, rel=1e-12)
    assert apart > 0.1


class Faulty:
    """A user's set whose projection fails one day."""

    nonnegative, broken = True, False

    def project(self, V):
        return np.maximum(V, 0) * (np.nan if self.broken else 1.0)

    def norm_bound(self, rows, rank):
        return 1e3


def test_a_step_that_is_not_finite_never_happened():
    """Finite input, but the step has a result that is not: a typed error, the state untouched."""
    faulty = Faulty()
    learner, X = Learner(Problem(shape=(5, 4, 3), rank=3, constraints=faulty)), next(mixture())
    learner.step(X)
    before, faulty.broken = learner.state.digest(), True

    with pytest.raises(NumericError, match="discarded"):
        learner.step(X)
    assert learner.state.digest() == before


@pytest.mark.parametrize("change", ["integers", "booleans", "half", "strided", "fortran", "read-only", "byte order"])
def test_unusual_but_good_input(change):
    """Other dtypes and layouts give the same state as the plain array with the same numbers."""
    X = np.random.default_rng(0).integers(0, 2, (6, 2, 3)).astype(float)
    frozen = X.copy()
    frozen.flags.writeable = False
    other = {
        "integers": X.astype(np.int16),
        "booleans": X.astype(bool),
        "half": X.astype(np.float16),
        "strided": np.repeat(X, 2, axis=1)[:, ::2],
        "fortran": np.asfortranarray(X),
        "read-only": frozen,
        "byte order": X.astype(">f8"),
    }[change]
    digests = []
    for batch in (X, other):
        learner = Learner(Problem(shape=(2, 3), rank=2))
        learner.step(batch)
        digests.append(learner.state.digest())

    assert digests[0] == digests[1]


def test_coding_learns_nothing():
    """Coding, also before the first step, leaves the state as it was."""
    problem = Problem(shape=(5, 4, 3), rank=3)
    learner, X = Learner(problem), next(mixture())
    before = learner.state.digest()

    assert learner.code(X).H.shape == (8, 3)
    assert learner.state.digest() == before


def test_a_state_of_another_problem_is_refused():
    """A learner takes only a state of its own shape, rank and dtype."""
    state = State.initial(Problem(shape=(2, 3), rank=2))

    with pytest.raises(StateError, match="rank"):
        Learner(Problem(shape=(2, 3), rank=3), state)


def test_small_and_large_problems_are_learned_alike(monkeypatch):
    """Fused or in single calls, in place or not: the same codes and loadings, but for rounding."""
    stream = mixture((12, 9, 7), 3, 10, seed=1)
    X = np.concatenate([next(stream) for _ in range(20)])
    found = []
    for small in (small_module.SMALL, 0):
        for module in (small_module, aggregates_module):
            monkeypatch.setattr(module, "SMALL", small)
        learner = Learner(Problem(shape=(12, 9, 7), rank=3, batch_size=10))
        steps = [learner.step(X[k : k + 10]) for k in range(0, 200, 10)]
        found.append((steps[-1].codes, *learner.state.loadings, steps[-1].surrogate))

    for fused, single in zip(*found, strict=True):
        assert np.allclose(fused, single, rtol=1e-7, atol=1e-9)


def test_in_place_has_the_same_bits():
    """A step that writes over the state it comes from leads to the same one; data that are refused change nothing."""
    X = np.random.default_rng(2).random((60, 8, 7))
    problem = Problem(shape=(8, 7), rank=3, batch_size=10)
    pure, in_place = Learner(problem), Learner(problem, in_place=True)
    for k in range(0, 60, 10):
        pure.step(X[k : k + 10])
        in_place.step(X[k : k + 10])
        with pytest.raises(DataError):
            in_place.step(-X[:3])

    assert in_place.state.digest() == pure.state.digest()


def test_warm_up_leaves_no_trace():
    """It works for every kind of problem."""
    for options in ({}, {"dtype": "float32"}, {"missing": "impute"}, {"sparsity": 0.1, "ridge": 0.1}):
        warm_up(Problem(shape=(5, 4), rank=2, batch_size=3, **options))


def test_warm_up_meets_the_radius(monkeypatch):
    """Or the kernels for that would be compiled in the middle of a stream, which stands still for most of a minute."""
    held = []

    def spied(*args, update=learner_module.update_loadings):
        found = update(*args)
        held.extend(found[1].radius_active)
        return found

    monkeypatch.setattr(learner_module, "update_loadings", spied)
    warm_up(Problem(shape=(5, 4), rank=2, batch_size=3))

    assert any(held)


def test_in_single_precision_all_modes_see_one_B():
    """The surrogate does not rise: what the first modes are solved from was rounded as B is."""
    learner = Learner(Problem(shape=(4, 197), rank=27, batch_size=8, dtype="float32", radius=None))
    for _ in range(12):
        step = learner.step(np.ones((8, 4, 197), "float32"))

        assert step.surrogate - step.surrogate_before <= 1e-12 * learner.state.aggregates.E


def test_loadings_may_lie_in_any_order():
    """A state that was made elsewhere, in Fortran's order, is the same state."""
    problem, X = Problem(shape=(5, 200), rank=3, batch_size=4), np.random.default_rng(0).random((4, 5, 200))
    learner = Learner(problem)
    learner.step(X)
    turned = learner.state._replace(loadings=tuple(map(np.asfortranarray, learner.state.loadings)))

    assert Learner(problem, turned).step(X).surrogate == Learner(problem, learner.state).step(X).surrogate
    assert np.allclose(stationarity(problem, turned), stationarity(problem, learner.state), rtol=1e-9, atol=1e-12)


@dataclass(frozen=True)
class Coarse:
    """A user's set, which projects in single precision."""

    nonnegative: bool = True

    def project(self, V):
        """Onto [0, 3]."""
        return np.clip(V, 0, 3).astype("float32")

    def norm_bound(self, rows, rank):
        """Of the whole matrix."""
        return 3 * np.sqrt(rows * rank)


def test_a_set_may_project_in_single_precision():
    """It is learned in double precision all the same."""
    learner = Learner(Problem(shape=(6, 60), rank=3, batch_size=4, constraints=Coarse()))
    learner.step(np.ones((4, 6, 60)))

    assert all(U.dtype == np.float64 for U in learner.state.loadings)


def test_a_batch_survives_a_pickle():
    """A minibatch that was gathered in another process is learned as it is."""
    problem, X = Problem(shape=(5, 20), rank=3, batch_size=4), np.random.default_rng(0).random((4, 5, 20))
    batch, _ = gather(problem, list(X))

    assert Learner(problem).step(pickle.loads(pickle.dumps(batch))).t == 1
