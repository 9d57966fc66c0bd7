"""A service whose tensors are learned in groups of modes and in other units, bytes in, bytes out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stream_ocpdl import ConfigError, Problem
from stream_ocpdl.cli.snapshot import described, page
from stream_ocpdl.config.loading import load
from stream_ocpdl.errors import LineageError
from stream_ocpdl.ocpdl.arrays import Sparse
from stream_ocpdl.ocpdl.learner import Learner
from stream_ocpdl.ocpdl.reshape import Layout, Scaling
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.messages import DeadLetter, Snapshot, Tensor
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import beginning
from stream_ocpdl.stream.warm import Warm
from tests.fakes import World, serve
from tests.test_pipeline import PACE, crashing, live

SHAPE, UNITS, AXES = (3, 2, 2), np.array([300.0, 0.01]), ("city", "hour", "measurement")
GROUPED = Layout(SHAPE, ((0, 2), (1,)), Scaling(2))
ORDERED = Layout(SHAPE, ((0, 1), (2,)), Scaling(2, "deviation"))


def plan(layout=GROUPED, **options):
    problem = Problem(shape=layout.grouped if layout else SHAPE, rank=2, batch_size=5)
    return Plan(
        "model", problem, Batching(5), snapshot_every=2, digest_every=2, **{"layout": layout, "axes": AXES} | options
    )


def arrays(count=40, seed=0):
    random = np.random.default_rng(seed)
    return [random.random(SHAPE) * UNITS for _ in range(count)]


def inputs(poison=()):
    """Two partitions; at the poisoned places a tensor that is refused, by its shape or by what is in it."""
    lines = [[Tensor(array).to_bytes() for array in arrays(seed=p)] for p in range(2)]
    for k, (p, offset) in enumerate(poison):
        lines[p][offset] = Tensor((np.ones((3, 4)), -np.ones(SHAPE), np.full(SHAPE, np.nan))[k % 3]).to_bytes()
    return lines


def snapshots(world):
    return [Snapshot.from_bytes(value) for value in world.stream("snapshots")]


def told(snapshot):
    """All but the positions: whether a refused record behind the minibatch is done with depends on how far was read."""
    return replace(snapshot, positions={}).to_bytes()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([GROUPED, ORDERED, Layout(SHAPE, ((1,), (2, 0))), Layout(SHAPE, (), Scaling(2, (2.0, 0.5)))]),
    st.lists(st.integers(1, 40), max_size=8),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20)), max_size=10, unique=True),
    st.integers(1, 7),
)
@example(GROUPED, [], [(0, 5)], 1)
def test_crashes_change_no_bit(layout, crashes, poison, chunk):
    """Killed anywhere, with refused rows in the minibatch that fixes the factors: state, codes and snapshots are those
    of an undisturbed life, and of a replay from the journal alone.
    """
    values, chosen = inputs(poison), plan(layout)
    world, calm, scratch = World(values), World(values), World(values)
    end = live(world, chosen, crashing(crashes), chunk)
    undisturbed = live(calm, chosen, crashing([]))
    scratch.written = [output for output in world.written if output.stream == "journal"]
    again = live(scratch, chosen, crashing([]))

    state = end.progress.state
    assert state.digest() == undisturbed.progress.state.digest() == again.progress.state.digest()
    assert len(state.factors) == (2 if layout.scaling else 0)
    assert world.stream("codes") == calm.stream("codes")
    assert {told(s) for s in snapshots(world)} == {told(s) for s in snapshots(calm)}


@pytest.mark.parametrize("layout", [GROUPED, ORDERED], ids=["transposed", "in order"])
def test_it_is_a_learner_on_data_in_other_units(layout):
    """The state is, bit for bit, that of a Learner on folded data times the factors of the first minibatch; a snapshot
    has that dictionary in the shape and units of the data.
    """
    world = World([[Tensor(array).to_bytes() for array in arrays(20)]])
    end, _ = serve(world, plan(layout), PACE)
    X = np.ascontiguousarray(layout.fold(np.stack(arrays(20))))
    factors = layout.factors(X[:5])
    learner = Learner(plan(layout).problem)
    for start in range(0, 20, 5):
        learner.step(np.ascontiguousarray(layout.scaled(X[start : start + 5], factors)))
    last = snapshots(world)[-1]
    codes = np.stack([code.code for code in world.codes()])

    assert end.progress.state.factors == factors
    assert end.progress.state._replace(factors=()).digest() == learner.state.digest()
    assert last.layout == replace(layout, scaling=replace(layout.scaling, by=factors))
    assert last.axes == AXES
    for r in range(2):
        alone = [U[:, r : r + 1] for U in learner.state.loadings]
        atom = layout.unfold(layout.unscaled(np.multiply.outer(*(U[:, 0] for U in alone)), factors))
        assert last.atom(r).shape == SHAPE
        assert np.allclose(last.atom(r), atom, rtol=1e-12)
    mixed = np.einsum("br,r...->b...", codes[-5:], np.stack([snapshots(world)[-2].atom(r) for r in range(2)]))
    assert np.linalg.norm((mixed - np.stack(arrays(20))[-5:]) / UNITS) < 0.7 * np.linalg.norm(
        np.stack(arrays(20))[-5:] / UNITS
    )


def test_sparse_tensors_are_learned_as_dense_ones():
    """To the last bit, though their modes change places."""
    dense = [np.where(array > 0.5 * UNITS, array, 0.0) for array in arrays(20)]
    sparse = [Sparse(SHAPE, np.flatnonzero(array), array.reshape(-1)[np.flatnonzero(array)]) for array in dense]
    ends = [serve(World([[Tensor(row).to_bytes() for row in rows]]), plan(), PACE)[0] for rows in (dense, sparse)]

    assert ends[0].progress.state.digest() == ends[1].progress.state.digest()


def test_what_scaling_makes_too_large_is_refused():
    """A tensor that cannot be learned in these units goes to the dead letters; it has no part in the factors."""
    values = [Tensor(array).to_bytes() for array in arrays(11)]
    values[3] = Tensor(np.full(SHAPE, 1e60)).to_bytes()
    world = World([values])
    end, _ = serve(world, plan(Layout(SHAPE, (), Scaling(2, (1e20, 1.0)))), PACE)

    (letter,) = [DeadLetter.from_bytes(value) for value in world.stream("dead-letters")]
    assert letter.record.position.offset == 3
    assert "norm too far from one" in letter.reason
    assert end.progress.state.N == 10


def test_another_layout_is_another_model():
    """A journal is not gone on with under other groups or units; without a layout the lineage is what it always was."""
    world = World(inputs())
    serve(world, plan(), PACE)
    lineages = {plan(layout).lineage() for layout in (GROUPED, ORDERED, replace(GROUPED, scaling=None))}

    with pytest.raises(LineageError, match="another problem"):
        serve(world, plan(replace(GROUPED, scaling=Scaling(2, "deviation"))), PACE)
    assert len(lineages) == 3
    assert plan(None).lineage() == Plan("other", Problem(shape=SHAPE, rank=2, batch_size=5)).lineage()


def test_a_warm_start_is_in_the_units_of_the_data():
    """Loadings of a snapshot are brought to the learner's units if those are given; else they are not known yet."""
    given = Layout(SHAPE, ((0, 2), (1,)), Scaling(2, (1 / 300, 100.0)))
    world = World(inputs())
    end, _ = serve(world, plan(given), PACE)
    shown = snapshots(world)[-1]
    warm = Warm(tuple(shown.loadings), "test")

    state = beginning(plan(given), {0: 0}, warm).state
    assert all(np.allclose(U, V, rtol=1e-12) for U, V in zip(state.loadings, end.progress.state.loadings, strict=True))
    with pytest.raises(ConfigError, match="give the factors"):
        beginning(plan(), {0: 0}, warm)
    again, _ = serve(World(inputs()), plan(given), PACE)
    assert again.progress.state.digest() == end.progress.state.digest()


def test_a_snapshot_is_shown_with_its_axes():
    """A group has the names of its axes, the tensor its own sizes, and the factors are told."""
    world = World(inputs())
    serve(world, plan(), PACE)
    shown = snapshots(world)[-1]
    rest = {"version": "v", "tensors": 1, "weight": 1.0, "time": "", "bytes": 1}
    text = "\n".join(page(rest | described(shown)))

    assert shown.modes == ("city × measurement", "hour")
    assert "city × measurement           6 × 2" in text
    assert "tensors: city 3, hour 2, measurement 2; loadings are in the units of the data" in text
    assert f"measurement was multiplied by {shown.layout.scaling.by[0]:.6g}, " in text
    assert replace(shown, axes=None).modes == ("mode 1 × mode 3", "mode 2")
    plain = replace(shown, axes=None, layout=None)
    assert plain.modes == ("mode 1", "mode 2")
    assert plain.atom(1).shape == (6, 2)
    assert "tensors: " not in "\n".join(page(rest | described(plain)))


def test_names_are_those_of_the_tensors():
    """As many as a tensor has modes, however these are grouped."""
    with pytest.raises(ConfigError, match="axes must be a list of 3 different names"):
        plan(axes=("a", "b"))


# ── settings ───────────────────────────────────────────────────────────────────────────────────────────────────


FILE = '{"model": "m", "input": "t", "bootstrap_servers": "x:1", "problem": {"shape": [36, 24, 4], "rank": 1}}'


def test_settings_make_a_layout(tmp_path):
    """problem.groups and problem.scaling, also from the environment; groups that are none make no layout."""
    path = tmp_path / "service.json"
    path.write_text(FILE)
    variables = {"OCPDL_PROBLEM__GROUPS": "[[0, 1], [2]]", "OCPDL_PROBLEM__SCALING__AXIS": "2"}
    chosen = load(path, ["problem.scaling.by=deviation"], variables).settings.plan()
    given = load(path, ["problem.scaling.axis=2", "problem.scaling.by=[1, 2.5, 1, 1]"], {}).settings.plan()

    assert chosen.layout == Layout((36, 24, 4), ((0, 1), (2,)), Scaling(2, "deviation"))
    assert chosen.problem.shape == (864, 4)
    assert chosen.shape == (36, 24, 4)
    assert given.layout.scaling.by == (1.0, 2.5, 1.0, 1.0)
    for overrides in ([], ["problem.groups=[[0], [1], [2]]"]):
        assert load(path, overrides, {}).settings.plan().layout is None


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("problem.groups=[[0, 1]]", "problem.groups must have each of the modes 0 to 2 once"),
        ("problem.groups=[[0, 1], [2, 3]]", "problem.groups must have"),
        ("problem.scaling.axis=3", "problem.scaling.axis is 3; the last mode is 2"),
        ("problem.scaling.by=deviation", "problem.scaling.axis"),
    ],
)
def test_mistakes_are_named(override, reason, tmp_path):
    """With the place of the setting."""
    path = tmp_path / "service.json"
    path.write_text(FILE)
    with pytest.raises(ConfigError, match=reason.replace("[", r"\[")):
        load(path, [override], {}).settings.plan()
