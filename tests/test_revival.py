"""Which atoms are dead, and what another life for them leaves of what the paper proves."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest

from stream_ocpdl import ConfigError, Learner, Problem, State, Workers, assumption_card, dead_atoms
from stream_ocpdl.ocpdl import blocks, revival
from stream_ocpdl.ocpdl.arrays import Sparse
from stream_ocpdl.ocpdl.blocks import Blocks
from stream_ocpdl.ocpdl.entries import SparseBatch, open_batch
from stream_ocpdl.ocpdl.learner import advance
from stream_ocpdl.ocpdl.revival import DEAD, atom_energies, rank_one
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.messages import Tensor
from stream_ocpdl.stream.plan import Plan
from tests import paper
from tests.fakes import World
from tests.test_events import check_promise
from tests.test_learner import Run, mixture
from tests.test_pipeline import crashing, live

HARSH = {"sparsity": 2.0, "batch_size": 8}
"""A penalty that kills atoms."""


def rare(shape, rank, b, seed, steps):
    """Mixtures of few of the atoms at a time, each of which has many zeros."""
    random = np.random.default_rng(seed)
    loadings = [random.random((rows, rank)) * (random.random((rows, rank)) < 0.4) for rows in shape]
    for _ in range(steps):
        H = random.exponential(size=(b, rank)) * (random.random((b, rank)) < 0.3)
        yield np.einsum("br,r...->b...", H, paper.out(loadings)) + 0.01 * random.random((b, *shape))


def run(problem, batches, **options):
    """A learner that has learned them, and the steps."""
    learner = Learner(problem, **options)
    return learner, [learner.step(X) for X in batches]


def killed(state, atoms):
    """The state of a learner that never used these atoms: they are zero, and stay it."""
    aggregates = state.aggregates
    loadings = [U.copy() for U in state.loadings]
    for U in loadings:
        U[:, atoms] = 0.0
    B = np.array(aggregates.B)
    B[atoms] = 0.0
    A = aggregates.A.copy()
    A[atoms, :] = A[:, atoms] = 0.0
    return state._replace(aggregates=aggregates._replace(A=A, B=B), loadings=loadings, folded=None)


# ── dead ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_dead_is_what_has_no_energy_whatever_the_scale(scale):
    """An atom that the data never use is dead, the others are not; and so it is in other units, and before any data.

    Fails with a threshold for codes or for loadings alone.
    """
    problem = Problem(shape=(6, 5), rank=3, batch_size=8)
    state, _ = advance(problem, State.initial(problem), scale * next(mixture((6, 5), 2)))
    loadings = [U.copy() for U in state.loadings]
    loadings[1][:, 2] *= 1e-3 * np.sqrt(atom_energies(state).mean() * DEAD / atom_energies(state)[2])

    assert dead_atoms(State.initial(problem)) == ()
    assert dead_atoms(state) == ()
    assert dead_atoms(state._replace(loadings=loadings)) == (2,)


def test_energies_are_those_of_the_atoms_in_the_past():
    """e_r is the weighted mean of ‖h_r · atom r‖² over all past tensors; the size of codes and modes has no say."""
    problem = Problem(shape=(5, 4), rank=3, batch_size=8)
    run = Run(problem)
    for X, _ in zip(mixture((5, 4)), range(12), strict=False):
        run.step(X)
    state = run.learner.state
    squares = paper.weights_of_the_past(run.weights) @ [np.mean(H**2, axis=0) for _, H in run.past]
    norms = np.sum(paper.out(state.loadings) ** 2, axis=(1, 2))
    D = np.diag([1.0, 10.0, 0.1])
    other = state._replace(
        loadings=[state.loadings[0] @ D, state.loadings[1]],
        aggregates=state.aggregates._replace(A=np.linalg.inv(D) @ state.aggregates.A @ np.linalg.inv(D)),
    )

    assert np.allclose(atom_energies(state), squares * norms, rtol=1e-10)
    assert np.allclose(atom_energies(other), atom_energies(state), rtol=1e-12)


@pytest.mark.parametrize("shape", [(9,), (6, 5), (5, 4, 3), (3, 4, 2, 3)], ids=str)
def test_the_rank_one_part(shape):
    """Of a tensor of rank one it is the tensor; of one with a little more nearly; of none nothing."""
    random = np.random.default_rng(1)
    vectors = [random.random(rows) for rows in shape]
    T = paper.out([u[:, None] for u in vectors])[0]

    for noise, within in ((0.0, 1e-12), (1e-3, 1e-2)):
        found = rank_one(1e80 * (T + noise * random.random(shape)))
        assert all(np.allclose(u, v / np.linalg.norm(v), atol=within) for u, v in zip(found, vectors, strict=True))
    assert rank_one(np.zeros(shape)) is None


# ── revival ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_it_nothing_changes():
    """The default is off, and the digest of a problem is that of the releases which knew nothing of it."""
    old = (
        "Problem(shape=(4, 3), rank=2, sparsity=0.0, ridge=0.0, weights=PowerLaw(beta=0.76, delta=0.0), per='tensor', "
        "batch_size=32, radius='auto', constraints='auto', dtype='float64', seed=0, tolerance=1e-10, missing='reject')"
    )

    assert Problem((4, 3), 2).digest() == hashlib.sha256(old.encode()).hexdigest()
    assert len({Problem((4, 3), 2, revive=k).digest() for k in (None, 1, 2)}) == 3
    _, steps = run(Problem((12, 10), 8, seed=4, **HARSH), rare((12, 10), 8, 8, 4, 50))
    assert not any(step.revived for step in steps)


@pytest.mark.parametrize("bad", [0, -1, 2.5, "10", True], ids=repr)
def test_how_often_must_make_sense(bad):
    """A ConfigError that names it."""
    with pytest.raises(ConfigError, match="revive must be a whole number of steps"):
        Problem((4, 3), 2, revive=bad)


def test_it_helps():
    """Where an atom has died, the data are explained better with it alive; where none has, nothing is done."""

    def losses(sparsity, seed, revive):
        problem = Problem((12, 10), 8, sparsity=sparsity, batch_size=16, seed=seed, revive=revive)
        learner, steps = run(problem, rare((12, 10), 8, 16, seed, 200))
        lost = np.mean([step.prequential_loss for step in steps[-50:]])
        return lost, sum(len(step.revived) for step in steps), len(dead_atoms(learner.state))

    without, with_it = losses(0.5, 4, None), losses(0.5, 4, 10)
    assert (without[2], with_it[2]) == (1, 0)
    assert with_it[1] == 1
    assert with_it[0] < 0.95 * without[0]
    assert losses(0.5, 0, None)[0] == losses(0.5, 0, 10)[0]


@pytest.mark.parametrize("shape", [(30,), (12, 10), (6, 5, 4)], ids=str)
@pytest.mark.parametrize("sparsity", [0.0, 1.0])
def test_the_surrogate_is_that_of_the_codes_without_the_dead(shape, sparsity, monkeypatch):
    """f̂ from the aggregates is the sum over past data whose codes have zeros at revived atoms, up to λ times the codes
    that are gone; it majorises the empirical loss; and every later step falls.

    Fails if rows of A or B of a revived atom stay, or only the diagonal goes: the atoms here are weak, and not dead.
    """
    monkeypatch.setattr(revival, "DEAD", 0.9)
    problem = Problem(shape, 5, sparsity=sparsity, ridge=0.01, batch_size=6, revive=4)
    run, gone, revived = Run(problem), 0.0, []
    for X in rare(shape, 5, 6, 3, 20):
        if run.learner.state.t in (6, 13):
            run.learner.state = killed(run.learner.state, [1, 4])
            gone += forgotten(run, [1, 4])
        step = run.step(X)
        gone = (1 - step.weight) * gone + forgotten(run, step.revived)
        revived += step.revived
        state, past = run.learner.state, run.learner.state.aggregates
        atoms = paper.out(state.loadings).reshape(5, -1)
        value = np.sum(past.A * (atoms @ atoms.T)) - 2 * np.sum(past.B.reshape(5, -1) * atoms)
        value += past.E + sparsity * past.P + 0.01 * past.A.trace()

        assert value == pytest.approx(run.surrogate(state.loadings) + sparsity * gone, rel=1e-9)
        assert value >= run.empirical(state.loadings) * (1 - 1e-9)
        assert step.surrogate <= step.surrogate_before * (1 + 1e-12)
        for U, C in zip(state.loadings, problem.sets(state.scale).loadings, strict=True):
            assert np.allclose(C.project(U), U, rtol=1e-12)
    assert revived.count(1) >= 2
    assert revived.count(4) >= 2


def forgotten(run, atoms):
    """Take these atoms out of all past codes; the weighted mean of the codes that are gone."""
    weights, lost = paper.weights_of_the_past(run.weights), 0.0
    for r in atoms:
        lost += weights @ [H[:, r].mean() for _, H in run.past]
        for _, H in run.past:
            H[:, r] = 0.0
    return lost


def test_the_rise_is_the_energy_that_was_left():
    """f̂ rises by about e_r where the dictionary is stationary: little, or the atom were not dead."""
    problem = Problem((12, 10), 8, batch_size=16, seed=4, sparsity=0.5, revive=10)
    calm = Problem((12, 10), 8, batch_size=16, seed=4, sparsity=0.5)
    batches = list(rare((12, 10), 8, 16, 4, 200))
    learner = Learner(problem)
    for X in batches:
        before = learner.state
        step = learner.step(X)
        if step.revived:
            same, _ = advance(calm, before, X)
            after, energies = learner.state, atom_energies(same)
            break

    def surrogate(state, atoms):
        A, B = state.aggregates.A, state.aggregates.B.reshape(8, -1)
        return np.sum(A * (atoms @ atoms.T)) - 2 * np.sum(B * atoms) + state.aggregates.E

    rise = surrogate(after, paper.out(after.loadings).reshape(8, -1)) - surrogate(
        same, paper.out(same.loadings).reshape(8, -1)
    )
    assert rise <= 2 * DEAD * energies.mean() + 1e-9 * same.aggregates.E


def test_a_new_atom_is_not_dead_at_once():
    """Late, with small weights, it has gathered little after k steps; that is measured by what it could have gathered.

    Fails with DEAD as the share in step 1: the atom would be drawn anew every k steps.
    """
    problem = Problem((12, 10), 4, batch_size=8, revive=2)
    batches = list(rare((12, 10), 4, 8, 5, 12))
    learner = Learner(problem)
    learner.step(batches[0])
    learner = Learner(problem, killed(learner.state, [3])._replace(t=2_000_000, N=16_000_000))
    steps = [learner.step(X) for X in batches[1:]]

    assert steps[1].weight < 1e-4
    assert [step.revived for step in steps].count((3,)) == 1
    assert sum(len(step.revived) for step in steps) == 1
    assert 3 in dead_atoms(learner.state), "by the plain measure it is still dead"


def test_no_more_than_there_are_tensors():
    """One tensor gives one atom; tensors that are explained, or zero, give none."""
    problem = Problem((6, 5), 4, batch_size=1, revive=1)
    learner = Learner(problem)
    learner.step(next(mixture((6, 5)))[:1])
    state = killed(learner.state, [1, 2, 3])
    one = advance(problem, state, next(mixture((6, 5), seed=3))[:1])[1]
    zero = advance(problem, state, np.zeros((1, 6, 5)))[1]

    assert one.revived == (1,)
    assert zero.revived == ()


# ── bits ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["plain", "tiled"])
def layout(request, monkeypatch):
    """B as it is, or in tiles."""
    if request.param == "tiled":
        monkeypatch.setattr(blocks, "LARGE", 0)
        monkeypatch.setattr(blocks, "TILE", 4000)
    return request.param


def test_the_same_bits_however_it_is_run(layout):
    """Stopped and restored after every step, in place, on 1, 2 and 3 threads."""
    problem = Problem((5, 130), 10, revive=2, seed=1, **HARSH)
    batches = list(rare((5, 130), 3, 8, 1, 30))
    learner, steps = run(problem, batches)
    digests = {learner.state.digest()}
    for options in ({"in_place": True}, {"workers": Workers(2)}, {"workers": Workers(3), "in_place": True}):
        digests.add(run(problem, batches, **options)[0].state.digest())
    stopped = State.initial(problem)
    for X in batches:
        stopped, _ = advance(problem, State.from_bytes(stopped.to_bytes()), X)
    digests.add(stopped.digest())

    assert sum(len(step.revived) for step in steps) >= 2
    assert isinstance(learner.state.aggregates.B, Blocks) == (layout == "tiled")
    assert len(digests) == 1


def test_what_was_given_is_left_alone():
    """A state that was not to be consumed is as it was, though its atoms were revived in the next."""
    problem = Problem((12, 10), 8, revive=1, seed=4, **HARSH)
    state, revived = State.initial(problem), 0
    for X in rare((12, 10), 8, 8, 4, 40):
        before, (new, step) = state.digest(), advance(problem, state, X)
        assert state.digest() == before
        state, revived = new, revived + len(step.revived)

    assert revived > 0


def test_gaps():
    """With missing cells the residual counts where there was something to see."""
    problem = Problem((12, 10), 8, revive=2, seed=4, missing="impute", **HARSH)
    random = np.random.default_rng(0)
    batches = [np.where(random.random(X.shape) < 0.2, np.nan, X) for X in rare((12, 10), 8, 8, 4, 40)]
    learner, steps = run(problem, batches)

    assert any(step.revived for step in steps)
    assert all(np.isfinite(U).all() for U in learner.state.loadings)
    assert all(b.prequential_loss < np.inf for _, b in pairwise(steps))


@pytest.mark.parametrize("crashes", [(), (3, 9, 20, 31), tuple(range(2, 60, 3))], ids=["calm", "some", "many"])
def test_the_service_keeps_its_promises(crashes):
    """Killed or not: each input once, and the live state is that of a replay and of a life without crashes."""
    problem = Problem((12, 10), 8, revive=3, seed=4, **{**HARSH, "batch_size": 5})
    plan = Plan("model", problem, Batching(5, "full", "canonical"), snapshot_every=4, digest_every=2)
    tensors = np.concatenate(list(rare((12, 10), 8, 10, 4, 20)))
    values = [[Tensor(X).to_bytes() for X in tensors[p::2]] for p in range(2)]
    world, calm = World(values), World(values)
    end, undisturbed = live(world, plan, crashing(crashes)), live(calm, plan, crashing([]))

    check_promise(world, plan, end)
    assert end.progress.state.digest() == undisturbed.progress.state.digest()
    state, revived = State.initial(problem), 0
    for start in range(0, 200, 5):
        state, step = advance(problem, state, tensors[start : start + 5])
        revived += len(step.revived)
    assert revived > 0


def test_the_card_says_so():
    """Movement is not bounded any more."""
    lines = {line.name: line for line in assumption_card(Problem((4, 3), 2, revive=5))}

    assert lines["radius"].standing == "fails"
    assert "every 5 steps dead atoms are drawn anew" in lines["radius"].reason


def test_a_sparse_minibatch_revives_as_its_whole_does():
    """The worst coded tensor is made whole for it."""
    problem = Problem(shape=(60, 50), rank=4, batch_size=400, revive=1)
    random = np.random.default_rng(0)
    X = random.random((400, 60, 50)) * (random.random((400, 60, 50)) < 0.002)
    entries = [Sparse((60, 50), np.flatnonzero(x), x[x != 0]) for x in X]
    found = []
    for given in (X, entries):
        learner = Learner(problem)
        learner.step(given)
        loadings = [np.array(U) for U in learner.state.loadings]
        loadings[0][:, 2] = 0.0
        past = revival.without(learner.state.aggregates, [2])
        learner.state = learner.state._replace(loadings=tuple(loadings), aggregates=past, folded=None)
        found.append((learner.step(given), learner.state))

    assert isinstance(open_batch(problem, entries), SparseBatch)
    assert 2 in found[0][0].revived
    assert found[0][0].revived == found[1][0].revived
    assert all(np.allclose(U, V, atol=1e-7) for U, V in zip(found[0][1].loadings, found[1][1].loadings, strict=True))
