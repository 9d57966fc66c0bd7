"""Quantiles that are calibrated, changes that are noticed and told apart, few false alarms; the same after a crash."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from stream_ocpdl import Learner, Problem
from stream_ocpdl.errors import StateError
from stream_ocpdl.observe.board import Shard
from stream_ocpdl.ocpdl import anomaly
from stream_ocpdl.ocpdl.anomaly import HEAD, LEAST, LIMIT, RENEWED, WARM, WINDOW, Senses, judge
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.ocpdl.synthetic import chain, truth
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.messages import Request, Tensor
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import no_crash
from stream_ocpdl.stream.recovery import Recovery, rebuild
from tests.fakes import Journal, Source, Store, World, serve
from tests.test_pipeline import PACE, crashing, inputs, live, plan

SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


def scores(seed, steps, b, correlation):
    """Relative residuals and energies, squared, of a stationary stream whose tensors forget in so many tensors."""
    random, keeps = np.random.default_rng(seed), np.exp(-1 / correlation) if correlation else 0.0
    noise = random.standard_normal((2, steps * b)) * np.sqrt(1 - keeps**2)
    noise[:, 0] = random.standard_normal(2)
    x, y = lfilter([1], [1, -keeps], noise, axis=1)
    return np.exp(0.3 * x - 2).reshape(steps, b), np.exp(0.5 * y).reshape(steps, b)


def watched(relative, energies, senses=None):
    """Every judgement of a stream, and the senses in the end."""
    senses, found = senses or Senses(), []
    for r, e in zip(relative, energies, strict=True):
        judgement, senses = judge(senses, r * e, np.zeros((len(r), 1)), e)
        found.append(judgement)
    return found, senses


def same(one, other):
    """Whether two senses have all in common, what follows from the rest included."""
    return one._replace(ordered=None) == other._replace(ordered=None) and np.array_equal(one.ordered, other.ordered)


def changes(found):
    return [(t, judgement.change) for t, judgement in enumerate(found) if judgement.change]


def below(found):
    """The shares of tensors below some quantiles, by residual and by norm."""
    places = np.array([place for judgement in found for place in judgement.quantiles or ()])
    return np.array([(places <= share).mean(axis=0) for share in SHARES])


def error(shares):
    """How far these are from what they should be, at most."""
    return abs(shares - np.array(SHARES)[:, None]).max()


def test_quantiles_of_exchangeable_data_are_uniform():
    """Within two points, whatever the distribution: a histogram with bins that do not fit would not be."""
    random = np.random.default_rng(0)
    for residuals in (random.random((3000, 8)), random.pareto(0.5, (3000, 8)), 1 + 1e-9 * random.random((3000, 8))):
        found, _ = watched(np.minimum(residuals, 1e9), 1 + random.random((3000, 8)))

        assert error(below(found)) < 0.02


@pytest.mark.parametrize(("correlation", "b"), [(0, 32), (10, 32), (10, 5), (100, 32), (1000, 128)])
def test_stationary_streams_raise_no_alarm(correlation, b):
    """None in 6,000 steps, however dependent neighbours are; and quantiles within two points where a stream forgets
    within a window. Deviations of independent tensors would raise hundreds.
    """
    relative, energies = scores(b + correlation, 6000, b, correlation)
    found, _ = watched(relative, energies)

    assert changes(found) == []
    assert error(below(found)) < 0.02


def test_the_deviations_are_needed(monkeypatch):
    """The test above fails for a detector that takes tensors for independent."""
    monkeypatch.setattr(anomaly.Spread, "deviation", 1.0)

    assert len(changes(watched(*scores(5, 3000, 5, 100))[0])) > 5


AT = 400


@pytest.mark.parametrize("b", [1, 8, 32, 500])
@pytest.mark.parametrize(
    ("residual", "energy", "wanted"),
    [(1, 4, "scale"), (1, 0.25, "scale"), (3, 1, "structure"), (3, 1.5, "structure"), (0.5, 1, None), (1, 1, None)],
)
def test_changes_are_noticed_and_told_apart(residual, energy, wanted, b):
    """Norms twice as large or half: scale. Worse residuals: structure, also with larger norms. Better ones: nothing."""
    relative, energies = scores(b, AT + 60, b, 0)
    relative[AT:] *= residual
    energies[AT:] *= energy
    found = changes(watched(relative, energies)[0])

    assert [change for _, change in found] == ([wanted] if wanted else [])
    assert all(AT <= t < AT + 50 for t, _ in found)


def test_smaller_data_with_the_same_noise_are_no_change_of_structure():
    """Relatively they are explained worse, absolutely not."""
    relative, energies = scores(3, AT + 60, 16, 0)
    relative[AT:] *= 4
    energies[AT:] /= 4

    assert [change for _, change in changes(watched(relative, energies)[0])] == ["scale"]


def run(change, seed, steps=AT + 60, b=32, shape=(20, 10), rank=4, **options):
    """A learner on a Markovian stream, in which something changes; every judgement."""
    learner = Learner(Problem(shape=shape, rank=rank, batch_size=b, seed=seed, **options), in_place=True)
    whole = truth(shape, rank + 1, seed)
    before, after = chain([U[:, :rank] for U in whole], seed), chain(whole, seed)
    senses, found = Senses(), []
    for t in range(steps):
        source = after if change == "atom" and t >= AT else before
        X = np.array([next(source) for _ in range(b)])
        X *= 2.0 if change == "double" and t >= AT else 1.0
        step = learner.step(X)
        coding, problem = step.coding, learner.problem
        energies = np.square(X).reshape(b, -1).sum(axis=1)
        judgement, senses = judge(senses, coding.losses, coding.H, energies, problem.sparsity, problem.ridge)
        found.append(judgement)
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("change", "wanted"), [("atom", "structure"), ("double", "scale"), (None, None)])
def test_of_a_model_that_learns(change, wanted, seed):
    """A new atom, doubled data, nothing; while the residuals of the model still fall."""
    found = changes(run(change, seed))

    assert [kind for _, kind in found] == ([wanted] if wanted else [])
    assert all(AT <= t < AT + 50 for t, _ in found)


def test_a_residual_is_that_of_the_data():
    """The penalties of the loss are no part of it."""
    X = np.random.default_rng(0).random((4, 6, 5))
    learner = Learner(Problem(shape=(6, 5), rank=2, batch_size=4, sparsity=0.1, ridge=0.05))
    before = learner.state
    step = learner.step(X)
    U, V = before.loadings if before.scale else learner.problem.initial_loadings(learner.state.scale)
    rest = X - np.einsum("br,ir,jr->bij", step.codes, U, V)
    energies = np.square(X).sum(axis=(1, 2))
    judgement, _ = judge(Senses(), step.coding.losses, step.codes, energies, 0.1, 0.05)

    assert judgement.residuals == pytest.approx(np.sqrt(np.square(rest).sum(axis=(1, 2)) / energies), rel=1e-6)


def test_a_score_that_one_in_the_window_has_is_in_its_middle():
    """Also where no two in the window are equal."""
    relative, energies = scores(0, LEAST + 1, 1, 0)
    _, senses = watched(relative[:LEAST], energies[:LEAST])
    k = int(np.argsort(relative[:LEAST, 0])[10])
    judgement, _ = judge(senses, relative[k] * energies[k], np.zeros((1, 1)), energies[k])

    assert len(set(relative[:LEAST, 0])) == LEAST == len(senses.window)
    assert judgement.quantiles[0][0] == pytest.approx(11 / (LEAST + 1), rel=1e-12)


def test_judging_is_compiled_with_the_rest():
    """What `warm_up` has compiled is all that a long stream needs, whatever is known of earlier tensors."""
    warm_up(Problem(shape=(4, 3), rank=2, batch_size=5))
    before = list(anomaly.compare.signatures)
    _, senses = watched(*scores(0, LEAST + 2 * RENEWED, 5, 0))
    watched(*scores(1, 3, 5, 0), Senses.from_bytes(senses.to_bytes()))

    assert list(anomaly.compare.signatures) == before


def test_losses_and_energies_are_of_the_same_tensors():
    """A kernel would read beyond the end."""
    with pytest.raises(ValueError, match="3 losses and 2 energies"):
        judge(Senses(), np.ones(3), np.ones((3, 1)), np.ones(2))


def test_zeros_and_equal_tensors_are_judged():
    """Equal ones are in the middle of each other, and a tensor of zeros divides by nothing."""
    found, senses = watched(np.full((LEAST + RENEWED, 3), 0.25), np.full((LEAST + RENEWED, 3), 4.0))
    judgement, _ = judge(senses, np.zeros(2), np.zeros((2, 1)), np.zeros(2))

    assert found[-1].quantiles == [(0.5, 0.5)] * 3
    assert judgement.residuals == [1e-6, 1e-6]
    assert max(judgement.quantiles[0]) < 0.02


@pytest.mark.parametrize(("loss", "energy"), [(1e-300, 0.0), (1.0, 5e-324), (1e300, 1e-300)])
def test_what_has_no_size_is_judged(loss, energy):
    """A loss without a tensor, as rounding may leave one: no division by nothing, and a checkpoint that can be read."""
    judgement, senses = judge(Senses(), np.array([loss]), np.zeros((1, 1)), np.array([energy]))

    assert judgement.residuals == [1e6]
    assert same(Senses.from_bytes(senses.to_bytes()), senses)


def test_rounding_is_no_residual():
    """Data that are explained to the last digit stay so, however their rounding moves."""
    random = np.random.default_rng(0)
    rest = np.where(np.arange(AT + 100)[:, None] < AT, 1e-16, 1e-14) * random.random((AT + 100, 8))

    assert changes(watched(rest, np.ones_like(rest))[0]) == []


@settings(deadline=None, max_examples=30)
@given(st.integers(0, WINDOW + 3 * RENEWED), st.integers(0, 3))
def test_bytes_are_all_that_there_is(steps, epoch):
    """Senses that were kept and read go on as if they had not been."""
    relative, energies = scores(1, steps + 40, 2, 5)
    _, senses = watched(relative[:steps], energies[:steps], Senses(epoch))
    again = Senses.from_bytes(senses.to_bytes())

    assert same(again, senses) or not steps
    found, after = watched(relative[steps:], energies[steps:], again)
    wanted, then = watched(relative[steps:], energies[steps:], senses)
    assert found == wanted
    assert same(after, then)
    assert (senses.to_bytes() == b"") == (steps == epoch == 0)


def test_bytes_of_something_else_are_refused():
    """Cut short, too long, not finite, with impossible sizes."""
    good = np.frombuffer(watched(*scores(0, 100, 2, 0))[1].to_bytes(), "<f8")

    def bad(**changed):
        numbers = good.copy()
        for place, value in changed.items():
            numbers[int(place[1:])] = value
        return numbers.tobytes()

    assert len(good) > HEAD
    for data in (b"x", good.tobytes()[:-8], good.tobytes() + bytes(8), bad(_9=np.nan), bad(_3=1e9), bad(_1=0.5)):
        with pytest.raises(StateError, match=r"^what is known of "):
            Senses.from_bytes(data)
    with pytest.raises(StateError):
        Senses.from_bytes(bad(_0=-1.0))


# ── in the stream ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def soon(monkeypatch):
    """Senses that judge after four steps, and tell changes after eight."""
    for name, value in {"LEAST": 4, "RENEWED": 2, "WARM": 8, "LIMIT": 4.0, "PATIENCE": 2, "WINDOW": 8}.items():
        monkeypatch.setattr(anomaly, name, value)


def growing(partitions=2, count=60):
    """An input whose tensors are eight times as large from some place on."""
    values = inputs(partitions, count)
    random = np.random.default_rng(7)
    larger = [Tensor(8 * random.random((4, 3))).to_bytes() for _ in range(count // 3)]
    return [[*line[: count - len(larger)], *larger] for line in values]


def test_codes_say_how_unusual_a_tensor_is(soon):
    """Residual at once, quantiles when there are enough, and the change with the step that notices it; the board and
    the log know of it.
    """
    world, shard = World(growing()), Shard(plan())
    _, reports = serve(world, plan(), PACE, watch=shard)
    codes = world.codes()
    told = {code.step: code.change for code in codes if code.change}

    assert all(0 <= code.residual <= 1 for code in codes)
    assert all((code.quantiles is None) == (code.step <= 4) for code in codes if code.step < min(told))
    assert set(told.values()) == {"scale"}
    assert sum(code.change is not None for code in codes) == 5 * len(told)
    assert shard.changes == {"scale": len(told)}
    assert shard.unusual == sum(code.quantiles is not None and code.quantiles[0] > 0.99 for code in codes)
    said = [report for report in reports if "changed" in report]
    assert [report.fields for report in said] == [{"step": step, "change": "scale"} for step in told]


@pytest.mark.parametrize("crashes", [[3, 9, 20], [5, 6, 7, 30, 45], list(range(4, 60, 7))], ids=str)
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_crash_changes_no_judgement(soon, crashes, checkpoints):
    """Codes are the same bytes, with checkpoints and without; also as a replay of the journal finds them."""
    values, chosen = growing(), plan()
    world, calm = World(values), World(values)
    if not checkpoints:
        type(world).checkpoints = property(lambda _: [], lambda *_: None)
    try:
        live(world, chosen, crashing(crashes))
    finally:
        if not checkpoints:
            del type(world).checkpoints
    live(calm, chosen, crashing([]))

    assert sorted(world.stream("codes")) == sorted(calm.stream("codes"))
    assert any(code.change for code in calm.codes())


def test_a_checkpoint_without_senses_is_one(soon):
    """Of a release that had none: the state is taken, and tensors are judged anew."""
    values = growing()
    world = World([line[:30] for line in values])
    serve(world, plan(), PACE)
    manifest, data = world.checkpoints[0]
    assert len(manifest.senses) % 8 == 0
    world.checkpoints = [(replace(manifest, senses=None), data)]
    world.input = values
    pipeline, _ = serve(world, plan(), PACE)

    assert pipeline.progress.state.t == 24


def test_senses_that_cannot_be_read_are_no_checkpoint(soon):
    """It is refused, and the journal replayed."""
    values = growing()
    world, calm = World([line[:30] for line in values]), World(values)
    serve(world, plan(), PACE)
    serve(calm, plan(), PACE)
    world.checkpoints = [(replace(manifest, senses=b"x"), data) for manifest, data in world.checkpoints]
    world.input = values
    _, reports = serve(world, plan(), PACE)

    assert any("what is known of earlier tensors cannot be read" in report for report in reports)
    assert sorted(world.stream("codes")) == sorted(calm.stream("codes"))


def test_a_new_epoch_judges_anew(soon):
    """After a rollback there is nothing to compare with; a crash behind it, or a replay, finds the same."""
    values = growing()
    request = Request("r1", "rollback", t=6, epoch=0, present=0).to_bytes()
    worlds = []
    for crashes in ([], [30, 41], [28, 29, 33]):
        world = World(values)
        world.requests = [(15, request)]
        live(world, plan(), crashing(crashes))
        worlds.append(world)
    again = [code for code in worlds[0].codes() if code.dictionary.epoch == 1]

    first = min(code.step for code in again)
    assert first > 6
    assert {code.step - first for code in again if code.quantiles is None} >= set(range(4))
    assert len({tuple(sorted(world.stream("codes"))) for world in worlds}) == 1


def test_a_replay_judges_as_the_service_did(soon):
    """Step by step from the journal alone."""
    world = World(growing())
    pipeline, _ = serve(world, plan(), PACE)

    world.checkpoints = []
    recovery = Recovery(Source(world), Journal(world), Store(world, no_crash), lambda _: None)
    found = rebuild(plan(), recovery)

    assert same(found.progress.senses, pipeline.progress.senses)
    assert found.progress.senses.to_bytes() == pipeline.progress.senses.to_bytes()


@pytest.mark.parametrize("options", [{"missing": "impute"}, {"sparsity": 0.1}, {"ridge": 0.1}, {"dtype": "float32"}])
def test_every_kind_of_problem_is_judged(options):
    """With missing cells, penalties, single precision: residuals are shares."""
    problem = Problem(shape=(4, 3), rank=2, batch_size=5, **options)
    chosen = Plan("model", problem, Batching(5))
    values = inputs()
    if "missing" in options:
        holes = np.ones((4, 3))
        holes[1, 2] = np.nan
        values[0][3:5] = [Tensor(holes).to_bytes(), Tensor(np.full((4, 3), np.nan)).to_bytes()]
    world = World(values)
    serve(world, chosen, PACE)

    assert len(world.codes()) >= 75
    assert all(0 <= code.residual <= 1 for code in world.codes())


def test_constants_fit():
    """Spans end together, a change is told after the window is there, and one step is never one."""
    spans = anomaly.SPANS

    assert all(b % a == 0 for a, b in pairwise(spans))
    assert LEAST + RENEWED <= WARM
    assert LIMIT > 3 * anomaly.MOST
