"""Algorithm 2 of the paper (algorithm:online NTF): online CP-dictionary learning in bounded memory.

    For t = 1, 2, …, upon arrival of X_t:
        H_t        = argmin over the codes of ℓ(X_t, D_{t−1}, H)                         eq:coding_OCPDL
        A, B, E, P ← (1 − w_t) · past + w_t · this minibatch, gaps filled                eq:main_alg_aggregate_tensors
        for i = 1 … n:
            U_t⁽ⁱ⁾ = argmin of f̂_t over C⁽ⁱ⁾ ∩ {‖U − U_{t−1}⁽ⁱ⁾‖_F ≤ c′ᵢ w_t}            eq:dict_update_OCPDL

`advance` is that step as a function: it makes a new state and leaves the old one alone, so that a step which fails has
not happened. `Learner` keeps the newest state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np

from stream_ocpdl.errors import NumericError
from stream_ocpdl.ocpdl import fused, kernels, onepass, rows
from stream_ocpdl.ocpdl.aggregates import Aggregates, Intermediate, absorb, correlate, first_group, gram_of_atoms
from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.batch import Batch, gather, read_batch
from stream_ocpdl.ocpdl.constraints import NonnegativeBall
from stream_ocpdl.ocpdl.missing import complete, encode_observed
from stream_ocpdl.ocpdl.problem import Problem, Sets
from stream_ocpdl.ocpdl.quadratic import objective, product
from stream_ocpdl.ocpdl.solvers import Solution, box_solver, minimise_near
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

SMALL = 1_000_000
"""Multiplications up to which a contraction is done in one call with what belongs to it, on one thread. It depends on
sizes alone, never on the number of threads, and so do the bits.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Coding:
    """Codes H (b, R), their losses ℓ(X_j, D, h_j) of the observed cells, and what finding them took."""

    H: Array
    losses: Array
    at_bound: int
    rounds: int
    settled: bool


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """The loadings D_t, f̂_t(D_{t−1}) and f̂_t(D_t), which modes the radius held back, and what finding them took."""

    loadings: tuple[Array, ...]
    before: float
    after: float
    radius_active: tuple[bool, ...]
    rounds: tuple[int, ...]
    settled: tuple[bool, ...]
    movements: tuple[float, ...] = ()
    """‖U_t⁽ⁱ⁾ − U_{t−1}⁽ⁱ⁾‖_F, where they were measured on the way."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What happened in step t."""

    t: int
    N: int
    weight: float
    coding: Coding
    """Codes and losses under D_{t−1}: the losses are prequential, each tensor is judged before it is learned."""
    surrogate_before: float
    """f̂_t(D_{t−1}), per tensor."""
    surrogate: float
    """f̂_t(D_t), never above the former (lem:main_analytic_lemma (i))."""
    movements: tuple[float, ...]
    """‖U_t⁽ⁱ⁾ − U_{t−1}⁽ⁱ⁾‖_F."""
    radii: tuple[float, ...]
    """c′ᵢ w_t, the bounds of the movements (lem:main_analytic_lemma (ii))."""
    radius_active: tuple[bool, ...]
    """Whether the radius held mode i back."""
    rounds: tuple[int, ...]
    """What the loading updates took."""
    settled: tuple[bool, ...]
    """Whether mode i was solved to the tolerance; rounding may forbid it where Q is nearly flat."""

    @property
    def codes(self) -> Array:
        """H_t (b, R)."""
        return self.coding.H

    @property
    def prequential_loss(self) -> float:
        """Mean ℓ(X_t, D_{t−1}) of a tensor."""
        return float(self.coding.losses.mean())


class Learner:
    """The newest state of a problem, and the step to the next.

    >>> import numpy as np
    >>> learner = Learner(Problem(shape=(6, 5), rank=2, batch_size=10))
    >>> step = learner.step(np.random.default_rng(0).random((10, 6, 5)))
    >>> step.t, step.codes.shape, step.surrogate <= step.surrogate_before
    (1, (10, 2), True)
    """

    def __init__(
        self, problem: Problem, state: State | None = None, workers: Workers = SERIAL, in_place: bool = False
    ) -> None:
        if state is not None:
            state.belongs_to(problem)
        self.problem = problem
        self.state = state if state is not None else State.initial(problem)
        self.workers = workers
        self.in_place = in_place

    def step(self, X: Any) -> Step:
        """Learn a minibatch X (b, I₁…Iₙ). If this raises, nothing was learned.

        In place a step takes no memory and less time; states that were asked for before are void then, and so is the
        learner if a step has a result that is not finite.
        """
        batch = read_batch(self.problem, X, self.workers)
        self.state, step = advance(self.problem, self.state, batch, self.workers, self.in_place)
        return step

    def code(self, X: Any) -> Coding:
        """Codes of X under the present dictionary; nothing is learned."""
        batch = read_batch(self.problem, X, self.workers)
        state = settle(self.problem, self.state, batch)
        return encode(self.problem, self.problem.sets(state.scale or 1.0), state.loadings, batch, self.workers)


def advance(
    problem: Problem, state: State, X: Any, workers: Workers = SERIAL, consume: bool = False
) -> tuple[State, Step]:
    """One step of Algorithm 2, from a state and a minibatch to the next state.

    The state is left as it was, at the price of a copy of B. Who has no use for it any more lets it be consumed: the
    next state then has its memory, and if the step raises, neither is of use.
    """
    batch = read_batch(problem, X, workers)
    state = settle(problem, state, batch)
    sets = problem.sets(state.scale or 1.0)
    t, N = state.t + 1, state.N + len(batch)
    w = problem.weight(t, N, len(batch))

    prepared = onepass.prepare(state, batch, workers)
    coding = encode(problem, sets, state.loadings, batch, workers, prepared)
    whole = complete(state.loadings, batch, coding.H, workers)
    folded = None
    if prepared is None:
        aggregates = absorb(state.aggregates, whole.X, whole.energy, coding.H, w, workers, consume)
        update = update_loadings(problem, sets, state.loadings, aggregates, w, workers)
    else:
        news = onepass.News(whole, batch.gaps, coding.H, w)
        outcome = onepass.learn(problem, sets, state, news, prepared, workers, consume)
        aggregates, folded = outcome.aggregates, outcome.folded
        update = update_of(outcome.solutions, outcome.before, outcome.after, outcome.movements)

    step = Step(
        t=t,
        N=N,
        weight=w,
        coding=coding,
        surrogate_before=update.before,
        surrogate=update.after,
        movements=update.movements
        or tuple(kernels.distance(U, V) for U, V in zip(update.loadings, state.loadings, strict=True)),
        radii=tuple(w * c for c in sets.radii),
        radius_active=update.radius_active,
        rounds=update.rounds,
        settled=update.settled,
    )
    if not all(map(isfinite, (step.surrogate, *step.movements))):
        raise NumericError(f"step {t} has a result that is not finite and was discarded; rescale the data")
    return State(t, N, state.scale, state.at_bound + coding.at_bound, update.loadings, aggregates, folded), step


def warm_up(problem: Problem, workers: Workers = SERIAL) -> None:
    """Two steps on data that mean nothing, so that everything is compiled, or loaded, before the first that counts."""
    learner = Learner(problem, workers=workers, in_place=True)
    random = np.random.default_rng(0)
    for _ in range(2):
        batch, _ = gather(problem, list(random.random((problem.batch_size, *problem.shape), np.float32)), workers)
        learner.step(batch)


def settle(problem: Problem, state: State, batch: Batch) -> State:
    """Fix the scale with the first minibatch that has any energy; the initial loadings are brought to it.

    A missing cell counts as the mean of its tensor's observed ones: s is to be the norm of whole tensors.
    """
    if state.scale > 0.0 or batch.energy == 0.0:
        return state
    cells, energies = batch.X[0].size, batch.energies
    if batch.missing is not None:
        energies = energies * (cells / (cells - batch.missing))
    scale = sqrt(float(energies.sum()) / len(batch))
    return replace(state, scale=scale, loadings=problem.initial_loadings(scale), folded=None)


def encode(
    problem: Problem,
    sets: Sets,
    loadings: Sequence[Array],
    batch: Batch,
    workers: Workers = SERIAL,
    prepared: onepass.Prepared | None = None,
) -> Coding:
    """H = argmin of ‖X − Out(D) ×ₙ₊₁ H‖² + λ‖H‖₁ + λ₂‖H‖² over 0 ≤ H ≤ h_max (eq:coding_OCPDL, Algorithm 4).

    The linear term is λ/2: Algorithm 4 subtracts λ from half the gradient, which minimises with 2λ. A tensor with
    missing cells has a problem of its own. Who has contracted the minibatch already says so.
    """
    if prepared is None and batch.X.size * problem.rank <= SMALL and batch.missing is None:
        return encode_small(problem, sets, loadings, batch)
    gaps = batch.gaps
    G = gram_of_atoms(loadings) if prepared is None else prepared.G
    Q = G + problem.ridge * np.eye(problem.rank)
    L = (correlate(batch.X, loadings, workers) if prepared is None else prepared.L) - problem.sparsity / 2
    L[gaps] = 0.0
    solution = box_solver(sets.h_max, problem.tolerance, workers)(Q, L, np.zeros_like(L))
    H, rounds = solution.Y, solution.rounds
    losses = np.maximum(batch.energies + np.sum(H * (product(H, Q) - 2.0 * L), axis=1), 0.0)
    if len(gaps) > 0:
        H[gaps], losses[gaps], more = encode_observed(problem, sets.h_max, loadings, batch, workers)
        rounds = max(rounds, more)
    at_bound = int(np.count_nonzero(H >= sets.h_max))
    return Coding(H, losses, at_bound, rounds, rounds < rows.most_rounds(problem.rank))


def encode_small(problem: Problem, sets: Sets, loadings: Sequence[Array], batch: Batch) -> Coding:
    """The same in one call."""
    b, R = len(batch), problem.rank
    split = first_group(problem.shape)
    X = batch.X.reshape(b, prod(problem.shape[:split]), -1)
    H, losses, rounds = np.zeros((b, R)), np.empty(b), np.zeros(b, np.int64)
    settings = (problem.ridge, problem.sparsity, sets.h_max, problem.tolerance)
    U, offsets = np.concatenate(loadings), offsets_of(problem.shape)
    used, at_bound = fused.code(X, U, offsets, split, *settings, batch.energies, H, losses, rounds)
    return Coding(H, losses, at_bound, used, used < rows.most_rounds(R))


@cache
def offsets_of(shape: tuple[int, ...]) -> Indices:
    """Where each mode begins if all stand in one array."""
    return np.cumsum([0, *shape])


def update_loadings(
    problem: Problem, sets: Sets, old: Sequence[Array], aggregates: Aggregates, w: float, workers: Workers = SERIAL
) -> Update:
    """One cycle over the modes: each minimises f̂_t over its set and radius, eq:dict_update_OCPDL."""
    balls = all(isinstance(C, NonnegativeBall) for C in sets.loadings)
    if balls and aggregates.B.size <= SMALL:
        update = update_small(problem, sets, old, aggregates, w)
        if update is not None:
            return update
    intermediate = Intermediate(aggregates, old, workers)
    constant = aggregates.E + problem.sparsity * aggregates.P + problem.ridge * float(np.trace(aggregates.A))
    solutions: list[Solution] = []
    surrogates: list[float] = []
    for i, (U, C, c) in enumerate(zip(old, sets.loadings, sets.radii, strict=True)):
        A, B = intermediate(i)
        surrogates.append(constant + objective(U, A, B))
        if not isfinite(surrogates[-1]):
            raise NumericError(f"the surrogate loss is {surrogates[-1]}: the step was discarded; rescale the data")
        solutions.append(minimise_near(A, B, C, U, c * w, problem.tolerance, workers))
        intermediate.update(i, solutions[-1].Y)
    return update_of(solutions, surrogates[0], constant + objective(solutions[-1].Y, A, B))


def update_of(solutions: Sequence[Solution], before: float, after: float, movements: tuple[float, ...] = ()) -> Update:
    """The update that these minimisers make."""
    return Update(
        loadings=tuple(solution.Y for solution in solutions),
        before=before,
        after=after,
        radius_active=tuple(solution.multiplier > 0.0 for solution in solutions),
        rounds=tuple(solution.rounds for solution in solutions),
        settled=tuple(solution.settled for solution in solutions),
        movements=movements,
    )


def update_small(problem: Problem, sets: Sets, old: Sequence[Array], aggregates: Aggregates, w: float) -> Update | None:
    """The same in one call, if no bound and no radius is active."""
    split, n = first_group(problem.shape), problem.modes
    B = np.asarray(aggregates.B).reshape(problem.rank, prod(problem.shape[:split]), -1)
    U, offsets = np.concatenate(old), offsets_of(problem.shape)
    new, surrogates, movements, rounds = np.empty_like(U), np.empty(2), np.empty(n), np.zeros(n, np.int64)
    bounds = np.array([C.bound for C in sets.loadings if isinstance(C, NonnegativeBall)])
    radii = np.array([w * c for c in sets.radii])
    done = fused.cycle(
        aggregates.A, B, U, offsets, split, bounds, radii, problem.tolerance, new, surrogates, movements, rounds
    )
    if done < n:
        return None
    constant = aggregates.E + problem.sparsity * aggregates.P + problem.ridge * float(np.trace(aggregates.A))
    return Update(
        loadings=tuple(new[offsets[i] : offsets[i + 1]] for i in range(n)),
        before=constant + float(surrogates[0]),
        after=constant + float(surrogates[1]),
        radius_active=(False,) * n,
        rounds=tuple(map(int, rounds)),
        settled=(True,) * n,
    )
