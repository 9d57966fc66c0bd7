"""Where features meet: groups, units, sparse tensors, sets and revival, two or three at a time."""

import numpy as np
import pytest

from stream_ocpdl import ConfigError, DataError, Problem
from stream_ocpdl.cli.explain import explanation, folded
from stream_ocpdl.cli.replay import write
from stream_ocpdl.config.loading import load
from stream_ocpdl.estimator import OnlineCPDL
from stream_ocpdl.observe.board import Shard
from stream_ocpdl.ocpdl import entries as minibatches
from stream_ocpdl.ocpdl.arrays import Sparse
from stream_ocpdl.ocpdl.constraints import NonnegativeBall, Simplex
from stream_ocpdl.ocpdl.explanation import explain
from stream_ocpdl.ocpdl.learner import Learner
from stream_ocpdl.ocpdl.quadratic import residual
from stream_ocpdl.ocpdl.reshape import Layout, Scaling, laid_out
from stream_ocpdl.ocpdl.revival import turned
from stream_ocpdl.ocpdl.simplices import simplex_solver
from stream_ocpdl.ocpdl.solvers import box_solver
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.stream.formats import Format
from stream_ocpdl.stream.lookup import _intake
from stream_ocpdl.stream.messages import Code, Position, Record, Snapshot, Tensor, Version
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.snapshots import load as load_loadings

SHAPE = (4, 5, 3)
LAYOUTS = [
    {"groups": ((0, 1), (2,))},
    {"groups": ((2, 0), (1,))},
    {"scaling": Scaling(2)},
    {"groups": ((2, 0), (1,)), "scaling": Scaling(0)},
]


def data(count=40, seed=0):
    random = np.random.default_rng(seed)
    return random.random((count, *SHAPE)) * (random.random((count, *SHAPE)) < 0.3) * [1.0, 30.0, 0.01]


def entries(X):
    return [Sparse(row.shape, np.flatnonzero(row), row.reshape(-1)[np.flatnonzero(row)]) for row in X]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_tensors_in_groups_and_units_have_the_score_of_dense_ones(layout):
    """The share of the energy in the data's own units, however they came."""
    X = data()
    model = OnlineCPDL(3, batch_size=10, random_state=0, **layout).fit(entries(X))
    rest = X - model.inverse_transform(model.transform(X))

    assert model.score(X) == pytest.approx(1 - np.sum(rest**2) / np.sum(X**2))
    assert model.score(entries(X)) == pytest.approx(model.score(X))


BAD = [
    Sparse(SHAPE, np.array([5, 3]), np.array([1.0, 2.0])),
    Sparse(SHAPE, np.array([5, 60]), np.array([1.0, 2.0])),
    Sparse(SHAPE, np.array([-1, 3]), np.array([1.0, 2.0])),
    Sparse(SHAPE, np.array([3, 3]), np.array([1.0, 2.0])),
]


@pytest.mark.parametrize("layout", [None, *(Layout(SHAPE, **layout) for layout in LAYOUTS)])
def test_bad_entries_are_refused_whatever_the_layout(layout):
    """With the same reason; none is put in order where it was not."""
    problem = Problem(shape=layout.grouped if layout else SHAPE, rank=2)
    for bad in BAD:
        _, _, refused = laid_out(layout, problem, State.initial(problem), [*entries(data(2)), bad])
        assert list(refused) == [2]
        assert "ascending ones, below 60, are needed" in refused[2]


@pytest.mark.parametrize("by_entries", [True, False])
@pytest.mark.parametrize("layout", [None, *(Layout(SHAPE, **layout) for layout in LAYOUTS)])
def test_a_bad_cell_has_its_place_in_the_tensor_that_came(layout, by_entries, monkeypatch):
    """Who sent it knows of no groups."""
    monkeypatch.setattr(minibatches, "CELLS", 0 if by_entries else 10**9)
    monkeypatch.setattr(minibatches, "CELLS_AN_ENTRY", 1)
    problem = Problem(shape=layout.grouped if layout else SHAPE, rank=2)
    X = data(3)
    X[1, 3, 1, 2] = -7.0
    for rows in (list(X), entries(X)):
        _, _, refused = laid_out(layout, problem, State.initial(problem), rows)
        assert list(refused) == [1]
        assert refused[1].startswith("X[3, 1, 2] = -7.0 is negative")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bad_entries_are_refused_by_the_estimator(layout):
    """Learned or coded, they are an error, and the model is as it was."""
    X = entries(data())
    model = OnlineCPDL(2, random_state=0, **layout).fit(X)
    before = model.learner_.state.digest()
    for act in (model.partial_fit, model.transform, model.score):
        with pytest.raises(DataError, match="index 60"):
            act([*X[:3], BAD[1]])
    assert model.learner_.state.digest() == before


def test_what_does_not_vary_has_its_size_for_a_unit():
    """The deviation of 0.1, many times, is not zero, since rounding is not."""
    X = np.random.default_rng(0).random((32, *SHAPE))
    X[..., 1] = 0.1
    factors = Layout(SHAPE, (), Scaling(2, "deviation")).factors(X)

    assert np.std(X[..., 1].reshape(-1)) > 0.0
    assert factors[1] == pytest.approx(10.0)


@pytest.mark.parametrize(("dtype", "tiny"), [("float32", 1e-41), ("float64", 1e-310)])
def test_numbers_too_small_for_a_unit(dtype, tiny):
    """One divided by them is infinite: they are as good as nothing, and refuse no tensor."""
    X = np.random.default_rng(0).random((40, *SHAPE)).astype(dtype)
    X[..., 1] *= tiny
    model = OnlineCPDL(2, dtype=dtype, scaling=Scaling(2), random_state=0).fit(X)

    assert X[..., 1].any()
    assert model.learner_.state.factors[1] == 1.0


FILE = '{"model": "m", "input": "t", "bootstrap_servers": "x:1", "problem": {"shape": [4, 5, 3], "rank": 1}}'


def test_sets_of_groups_in_settings(tmp_path):
    """One for each group, as in the estimator: those are the modes of the problem."""
    path = tmp_path / "service.json"
    path.write_text(FILE)
    overrides = ["problem.groups=[[0, 1], [2]]", "problem.constraints=[nonnegative, simplex]"]

    assert load(path, overrides, {}).settings.plan().problem.constraints == ("nonnegative", Simplex())


def test_modes_on_the_board_are_groups():
    """A name for each mode of the problem."""
    layout = Layout(SHAPE, ((2, 0), (1,)))
    problem = Problem(shape=layout.grouped, rank=2)
    named = Plan("m", problem, layout=layout, axes=("city", "hour", "unit"))

    assert list(Shard(named).modes) == ["unit × city", "hour"]
    assert list(Shard(Plan("m", problem, layout=layout)).modes) == ["2 × 0", "1"]
    assert list(Shard(Plan("m", Problem(shape=(3, 2), rank=2))).modes) == ["0", "1"]


def test_how_often_atoms_are_revived_is_a_number_whoever_says_it():
    """A digest must not depend on the kind of a number."""
    one, other = (Problem(shape=(3, 3), rank=2, revive=k) for k in (5, np.int64(5)))
    assert one.digest() == other.digest()


@pytest.mark.parametrize(
    ("constraints", "codes"),
    [("auto", "signed"), (("nonnegative", "signed"), "nonnegative"), ("signed", "nonnegative")],
)
def test_an_atom_is_revived_of_what_is_below_zero(constraints, codes):
    """A residual below zero asks for an atom that is taken away, or has a mode below zero; never for one of zeros."""
    problem = Problem(
        shape=(6, 5), rank=2, batch_size=4, constraints=constraints, codes=codes, revive=3, radius=None, seed=1
    )
    random = np.random.default_rng(0)
    learner = Learner(problem)
    one, other = np.outer(random.random(6), random.random(5)), -np.outer(random.random(6), random.random(5))
    for _ in range(2):
        learner.step(np.full((4, 1, 1), 1.0) * one)
    state = learner.state
    dead = int(np.argmin(state.aggregates.A.diagonal()))
    loadings = [U.copy() for U in state.loadings]
    loadings[0][:, dead] = 0.0
    A = state.aggregates.A.copy()
    A[dead], A[:, dead] = 0.0, 0.0
    learner.state = state._replace(loadings=tuple(loadings), aggregates=state.aggregates._replace(A=A))
    step = learner.step(np.full((4, 1, 1), 1.0) * other)

    assert step.revived == (dead,)
    assert all(U[:, dead].any() for U in learner.state.loadings)
    assert learner.code(other[None]).losses[0] < 0.1 * np.sum(other**2)


def test_signs_change_in_pairs_unless_codes_can_make_up():
    """Where no mode is free, nonnegative data have no such residual."""
    sets = Problem(shape=(2, 2), rank=1, constraints=("nonnegative", "signed")).sets(1.0)
    a, b = np.array([-0.6, -0.8]), np.array([1.0, 0.0])

    assert [u.tolist() for u in turned([a, b], sets, False)] == [[0.6, 0.8], [-1.0, -0.0]]
    assert [u.tolist() for u in turned([a, b], sets, True)] == [[0.6, 0.8], [1.0, 0.0]]
    assert isinstance(sets.loadings[0], NonnegativeBall)


def test_long_columns_on_a_simplex_settle():
    """Rounding leaves more of a long column's residual than of a short one's: no reason to search on for minutes."""
    random = np.random.default_rng(0)
    W, U = random.random((50, 5)), random.gamma(0.05, size=(3000, 5))
    Q, C, U = W.T @ W, Simplex(), U / U.sum(axis=0)
    start = C.project(random.random(U.shape) / 1500)
    found = simplex_solver(1.0, 1e-13, box_solver(np.inf, 1e-14))(Q, U @ Q, start)

    assert found.settled
    assert found.rounds < 80
    assert residual(found.Y, Q, U @ Q, C.project) < 1e-11


def test_the_state_of_a_scaled_model_is_no_warm_start(tmp_path):
    """Its loadings are in the units that were learned: the factors would come in twice."""
    X = data()
    state = OnlineCPDL(2, random_state=0, scaling=Scaling(2)).fit(X).learner_.state
    write(tmp_path / "scaled.npz", state)
    write(tmp_path / "plain.npz", state._replace(factors=()))

    assert len(load_loadings(tmp_path / "plain.npz")) == 3
    with pytest.raises(ConfigError, match="snapshot show --out"):
        load_loadings(tmp_path / "scaled.npz")


@pytest.mark.parametrize(
    ("parameters", "positive"),
    [
        ({}, True),
        ({"constraints": "nonnegative"}, True),
        ({"constraints": (Simplex(), "nonnegative")}, True),
        ({"constraints": (Simplex(), "signed")}, False),
        ({"codes": "signed"}, False),
    ],
)
def test_who_asks_for_nonnegative_data_says_so(parameters, positive):
    """scikit-learn's tag, whichever way the sets are spelled."""
    sklearn_utils = pytest.importorskip("sklearn.utils")
    assert sklearn_utils.get_tags(OnlineCPDL(2, **parameters)).input_tags.positive_only is positive


def test_who_looks_a_record_up_reads_it_in_the_shape_it_came_in():
    """A raw tensor says no shape of its own."""
    layout = Layout(SHAPE, ((2, 0), (1,)))
    plan = Plan("m", Problem(shape=layout.grouped, rank=2), layout=layout, format=Format("raw"))
    record = Record(Position(0, 0), None, data(1).tobytes())

    ((_, tensor),) = _intake(plan, record).rows([record])
    assert tensor.shape == SHAPE


def test_a_record_is_explained_in_groups():
    """Its tensor is folded as it was when it was learned; modes have the names of their groups."""
    layout, X = Layout(SHAPE, ((2, 0), (1,))), data(1)[0]
    axes = ("city", "hour", "unit")
    loadings = [np.ones((12, 1)), np.ones((5, 1))]
    snapshot = Snapshot(Version("m", 1), 5, loadings, axes, 1.0, "", (), (0,), "", {}, layout=layout)
    code = Code(Version("m", 0), 1, Position(0, 0), 0.0, np.array([0.5]))
    made = explain(folded(Tensor(X), snapshot), loadings, code.code)
    told = explanation(made, snapshot, code, 3)

    assert told["error"] == pytest.approx(np.sum((X - 0.5) ** 2))
    assert [mode["mode"] for mode in told["residual"]] == ["unit × city", "hour"]
