"""Modes in groups and data in units: what a learner sees, and how it is undone for those who read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ocpdl import ConfigError, DataError, Learner, OnlineCPDL, Problem, State, StateError
from stream_ocpdl.ocpdl.arrays import Sparse
from stream_ocpdl.ocpdl.batch import gather
from stream_ocpdl.ocpdl.learner import advance
from stream_ocpdl.ocpdl.reshape import Layout, Scaling, in_units
from tests import paper
from tests.test_learner import mixture
from tests.test_missing import with_gaps


@st.composite
def layouts(draw, most=4):
    """A shape, its modes in any order, cut anywhere into groups."""
    n = draw(st.integers(1, most))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(n))
    order = draw(st.permutations(range(n)))
    cuts = [k for k in range(1, n) if draw(st.booleans())]
    groups = tuple(tuple(order[lo:hi]) for lo, hi in zip([0, *cuts], [*cuts, n], strict=True))
    return Layout(shape, groups)


def numbers(shape, seed=0):
    return np.random.default_rng(seed).random(shape)


@settings(max_examples=100, deadline=None)
@given(layouts())
def test_folding_is_undone(layout):
    """unfold ∘ fold is the identity, of one tensor and of a minibatch; each fold is a permutation of the cells."""
    X = numbers((3, *layout.shape))

    assert layout.fold(X).shape == (3, *layout.grouped)
    assert np.array_equal(layout.unfold(layout.fold(X)), X)
    assert np.array_equal(layout.fold(X[1]), layout.fold(X)[1])


@settings(max_examples=100, deadline=None)
@given(layouts())
def test_a_sparse_tensor_folds_as_the_dense_one(layout):
    """Its indices go where the cells go, ascending."""
    dense = numbers(layout.shape)
    dense[dense < 0.5] = 0.0
    indices = np.flatnonzero(dense)
    folded = layout.fold_row(Sparse(layout.shape, indices, dense.reshape(-1)[indices]))
    again = np.zeros(dense.size)
    again[folded.indices] = folded.values

    assert np.all(np.diff(folded.indices) > 0)
    assert np.array_equal(again.reshape(folded.shape), layout.fold(dense))


@settings(max_examples=100, deadline=None)
@given(layouts())
def test_ungrouped_atoms_reconstruct_the_same_tensors(layout):
    """Σ h · atom in the shape of the tensors is what the learner means, folded; in a group an atom is any tensor."""
    loadings, H = [numbers((rows, 3), k) for k, rows in enumerate(layout.grouped)], numbers((2, 3), 9)
    atoms = layout.atoms(loadings)

    assert atoms.shape == (3, *layout.shape)
    meant = np.einsum("br,r...->b...", H, paper.out(loadings))
    assert np.allclose(layout.fold(np.einsum("br,r...->b...", H, atoms)), meant, rtol=1e-13)
    for U, T, group in zip(loadings, layout.ungrouped(loadings), layout.groups, strict=True):
        assert T.shape == (*(layout.shape[mode] for mode in group), 3)
        assert np.array_equal(T.reshape(U.shape), U)


def test_joint_features_are_kept():
    """With (0, 1) as one mode a checkerboard of both is one atom; apart it takes more than one.

    Fails if groups are reshaped in another order than they are undone.
    """
    board = np.indices((4, 4)).sum(axis=0) % 2 + 0.1
    X = np.einsum("b,ij,k->bijk", numbers(60) + 0.5, board, np.array([1.0, 2.0, 3.0]))
    scores = [OnlineCPDL(1, batch_size=10, groups=groups, random_state=0).fit(X) for groups in (((0, 1), (2,)), ())]

    assert scores[0].score(X) > 1 - 1e-9
    assert scores[1].score(X) < 0.9
    atom = scores[0].atoms_[0]
    assert np.allclose(atom / atom.max(), np.einsum("ij,k->ijk", board, [1.0, 2.0, 3.0]) / 3.3)


def run(groups=(), scaling=None, data=None, **options):
    """A model after a few steps of a stream."""
    model = OnlineCPDL(3, batch_size=8, random_state=0, groups=groups, scaling=scaling, **options)
    for X in data if data is not None else [X for X, _ in zip(mixture(), range(6), strict=False)]:
        model.partial_fit(X)
    return model


STREAM = [X for X, _ in zip(mixture(), range(6), strict=False)]


def test_trivial_groups_change_no_bit():
    """Each mode by itself, in order, is no grouping."""
    assert run(((0,), (1,), (2,))).learner_.state.digest() == run().learner_.state.digest()


@pytest.mark.parametrize("groups", [((0, 1), (2,)), ((2,), (1, 0)), ((0, 1, 2),)], ids=str)
def test_a_grouped_model_is_a_learner_on_reshaped_data(groups):
    """Bit for bit the state of a Learner that is given reshaped tensors; codes and loadings are its own."""
    model, layout = run(groups), Layout((5, 4, 3), groups)
    learner = Learner(Problem(shape=layout.grouped, rank=3, batch_size=8))
    for X in STREAM:
        learner.step(np.ascontiguousarray(layout.fold(X)))

    assert model.learner_.state.digest() == learner.state.digest()
    assert np.array_equal(model.transform(STREAM[0]), learner.code(np.ascontiguousarray(layout.fold(STREAM[0]))).H)
    assert model.inverse_transform(model.transform(STREAM[0])).shape == STREAM[0].shape


def test_factors_of_one_change_only_what_is_said_of_them():
    """Loadings, codes and aggregates are those of the plain model to the last bit."""
    scaled, plain = run(scaling=Scaling(2, (1.0, 1.0, 1.0))), run()

    assert scaled.learner_.state._replace(factors=()).digest() == plain.learner_.state.digest()
    assert scaled.learner_.state.factors == (1.0, 1.0, 1.0)
    assert np.array_equal(
        scaled.inverse_transform(scaled.transform(STREAM[0])), plain.inverse_transform(plain.transform(STREAM[0]))
    )


@pytest.mark.parametrize("groups", [(), ((0, 2), (1,)), ((1,), (2, 0))], ids=str)
@pytest.mark.parametrize("by", ["rms", "deviation"])
def test_units_come_back(groups, by):
    """Data in other units, undone by the factors, give the same codes and, in those units, the same reconstructions.

    Fails if factors are not divided out of the mode that has the axis, or are laid along the wrong index of a group.
    """
    units = np.array([300.0, 0.01, 7.0])
    model, other = (run(groups, Scaling(2, by), [X * u for X in STREAM]) for u in (1.0, units))
    X = STREAM[0]

    assert np.allclose(other.learner_.state.factors, model.learner_.state.factors / units, rtol=1e-12)
    assert np.allclose(other.transform(X * units), model.transform(X), rtol=1e-6)
    assert np.allclose(
        other.inverse_transform(other.transform(X * units)),
        model.inverse_transform(model.transform(X)) * units,
        rtol=1e-6,
    )
    assert np.allclose(
        np.einsum("br,r...->b...", other.transform(X * units), other.atoms_),
        other.inverse_transform(other.transform(X * units)),
    )
    assert other.score(X * units) > 0.8


def test_what_the_factors_are():
    """1/rms or 1/σ of the observed cells of the first minibatch with energy; σ = 0 has rms, nothing at all has one."""
    X = with_gaps(numbers((8, 4, 3)) + 5.0)
    X[..., 1] = 2.0
    X[..., 2] = np.nan
    X[:, 0, 2] = 0.0
    rms, deviation = (Layout((4, 3), scaling=Scaling(1, by)).factors(X) for by in ("rms", "deviation"))

    assert rms[0] == pytest.approx(1 / np.sqrt(np.nanmean(X[..., 0] ** 2)))
    assert deviation[0] == pytest.approx(1 / np.nanstd(X[..., 0]))
    assert rms[1:] == deviation[1:] == (0.5, 1.0)
    assert Layout((4, 3), scaling=Scaling(1)).factors(np.zeros((8, 4, 3))) == ()


def test_factors_are_fixed_once():
    """Zeros fix nothing; the first minibatch with energy does; later ones do not."""
    model = run(scaling=Scaling(2), data=[np.zeros((8, 5, 4, 3))])
    assert model.learner_.state.factors == ()
    fixed = model.partial_fit(STREAM[0]).learner_.state.factors

    assert fixed == Layout((5, 4, 3), scaling=Scaling(2)).factors(STREAM[0])
    assert model.partial_fit(STREAM[1] * 100).learner_.state.factors == fixed


def test_factors_are_in_the_state():
    """They come back from the bytes; a state without any has the bytes that it had before there were factors."""
    state = run(scaling=Scaling(2)).learner_.state
    again = State.from_bytes(state.to_bytes())

    assert again.factors == state.factors
    assert again.digest() == state.digest() != state._replace(factors=()).digest()
    assert b"factors" not in run().learner_.state.to_bytes()
    broken = state._replace(factors=(1.0, float("inf"), 1.0)).to_bytes()
    with pytest.raises(StateError, match="factors"):
        State.from_bytes(broken)


def test_restored_and_continued():
    """snapshot → restore → continue has the same bits as never stopping, factors included."""
    layout, problem = Layout((5, 4, 3), ((0, 1), (2,)), Scaling(2)), Problem(shape=(20, 3), rank=3, batch_size=8)

    def step(state, X):
        batch, _ = gather(problem, [layout.fold_row(row) for row in X])
        state, batch, refused = in_units(layout, problem, state, batch)
        assert not refused
        return advance(problem, state, batch)[0]

    through = stopped = State.initial(problem)
    for X in STREAM:
        through = step(through, X)
        stopped = step(State.from_bytes(stopped.to_bytes()), X)

    assert through.digest() == stopped.digest()


def test_missing_cells_stay_missing():
    """A NaN is a NaN in any unit, and held-out cells are predicted in the units of the data."""
    units = np.array([300.0, 60.0, 1000.0])
    seen = [with_gaps(X, 0.2, k) * units for k, X in enumerate(STREAM)]
    model = run(((0, 1), (2,)), Scaling(2), seen, missing="impute")
    cells = ~np.isnan(seen[0]) & (numbers(seen[0].shape) < 0.1)
    rest = model.held_out(seen[0], cells)

    assert np.array_equal(np.isnan(rest), ~cells)
    assert model.score_cells(seen[0], cells) > 0.5
    assert model.score(seen[0]) > 0.5


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_tensor_that_scaling_makes_too_large_is_refused(dtype):
    """Row by row, with the reason; the others could be learned."""
    layout, problem = Layout((2, 3), scaling=Scaling(1, (1.0, 1e74, 1.0))), Problem(shape=(2, 3), rank=1, dtype=dtype)
    X = np.ones((3, 2, 3), dtype) * np.array([1e-5, 1e10, 1e-5], dtype)[:, None, None]
    batch, refused = gather(problem, list(X))
    _, _, wrong = in_units(layout, problem, State.initial(problem), batch)

    assert not refused
    assert list(wrong) == ([1] if dtype == "float64" else [0, 1, 2])


def test_a_step_that_fails_fixes_nothing():
    """A bad first minibatch leaves a new model without factors, and an old one as it was."""
    model = run(scaling=Scaling(2), data=[np.zeros((8, 5, 4, 3))])
    before = model.learner_.state
    with pytest.raises(DataError):
        model.partial_fit(-STREAM[0])

    assert model.learner_.state is before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"groups": ((0, 1),)}, "each of the modes 0 to 2 once"),
        ({"groups": ((0, 1), (1, 2))}, "each of the modes"),
        ({"groups": ((0, 1), (2,), ())}, "each of the modes"),
        ({"groups": ((0, 1), (3,))}, "each of the modes"),
        ({"groups": (0, 1, 2)}, "lists of modes"),
        ({"groups": (("a",), (1,), (2,))}, "lists of modes"),
        ({"scaling": (3, "rms")}, "the last mode is 2"),
        ({"scaling": (-1, "rms")}, "number of a mode"),
        ({"scaling": (2, "max")}, "'rms', 'deviation' or a list"),
        ({"scaling": (2, (1.0, 2.0))}, "axis 2 has 4"),
        ({"scaling": (2, (1.0, 0.0, 1.0, 1.0))}, "positive, finite"),
        ({"scaling": (2, (1.0, float("nan"), 1.0, 1.0))}, "positive, finite"),
        ({"scaling": (2, 3.0)}, "list of factors"),
    ],
)
def test_bad_layouts_are_named(arguments, reason):
    """What is no grouping or no scaling is a ConfigError that says what is wanted."""
    with pytest.raises(ConfigError, match=reason):
        Layout(
            (36, 24, 4), arguments.get("groups", ()), Scaling(*arguments["scaling"]) if "scaling" in arguments else None
        )


@pytest.mark.parametrize("scaling", ["rms", (0, "rms")], ids=repr)
def test_what_is_no_scaling_is_named(scaling):
    """Also what looks like one; a whole number of NumPy's is the number of an axis as well."""
    with pytest.raises(ConfigError, match=r"scaling must be a Scaling, such as Scaling\(axis=0, by='rms'\), not"):
        OnlineCPDL(2, scaling=scaling).fit(numbers((8, 5, 4)))
    assert Scaling(np.int64(1)) == Scaling(1)
    with pytest.raises(ConfigError, match="number of a mode"):
        Scaling(True)


LAID_OUT = {
    "plain": {},
    "grouped": {"groups": ((0, 1), (2,))},
    "turned": {"groups": ((2,), (1, 0))},
    "scaled": {"scaling": Scaling(2, (2.0, 5.0, 3.0)), "groups": ((2, 0), (1,))},
}


@pytest.mark.parametrize("value", [np.inf, -2.0])
@pytest.mark.parametrize("layout", LAID_OUT)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("verb", ["fit", "partial_fit", "transform", "score"])
def test_a_refusal_speaks_of_the_data_as_they_came(verb, sparse, layout, value):
    """Row 17 is row 17 though it is the second of a minibatch, the cell is that of the data, the number is theirs."""
    X = numbers((20, 5, 4, 3))
    model, bad = OnlineCPDL(2, batch_size=8, random_state=0, **LAID_OUT[layout]).fit(X), X.copy()
    bad[17, 3, 1, 2] = value
    given = [Sparse(x.shape, np.arange(x.size), x.reshape(-1)) for x in bad] if sparse else bad
    before = model.learner_.state.digest()

    with pytest.raises(DataError) as caught:
        getattr(model, verb)(given)
    place = "tensor 17 cannot be learned: X[3, 1, 2]" if sparse else "X[17, 3, 1, 2]"
    assert str(caught.value).startswith(f"{place} = {value} is ")
    assert model.learner_.state.digest() == before


def test_tensors_of_another_shape_are_refused():
    """Also those that have as many cells."""
    model = run(((0, 1), (2,)))
    with pytest.raises(DataError, match=r"X has tensors of shape"):
        model.partial_fit(np.ones((8, 4, 5, 3)))
    with pytest.raises(DataError, match=r"X has tensors of shape"):
        model.transform(np.ones((8, 20, 3)))
