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
from math import isfinite, prod, sqrt
from typing import Any, TypeAlias

import numpy as np

from stream_ocpdl.errors import NumericError
from stream_ocpdl.ocpdl import fused, kernels, onepass, small, sparse
from stream_ocpdl.ocpdl.aggregates import (
    SMALL,
    Aggregates,
    Intermediate,
    absorb_and_fold,
    correlate,
    gram_of_atoms,
)
from stream_ocpdl.ocpdl.anomaly import Senses, judge
from stream_ocpdl.ocpdl.arrays import Array, Sparse
from stream_ocpdl.ocpdl.batch import NONE, Batch, Packed
from stream_ocpdl.ocpdl.batch import read_batch as read_whole
from stream_ocpdl.ocpdl.blocks import Blocks, Folded
from stream_ocpdl.ocpdl.coding import solve_codes
from stream_ocpdl.ocpdl.entries import AnyBatch, SparseBatch, are_few, collect, open_batch, read_batch
from stream_ocpdl.ocpdl.missing import complete, encode_observed
from stream_ocpdl.ocpdl.onerow import most_rounds
from stream_ocpdl.ocpdl.problem import Problem, Sets
from stream_ocpdl.ocpdl.quadratic import Solution, objective, product
from stream_ocpdl.ocpdl.results import Coding, Step, Update, Updated
from stream_ocpdl.ocpdl.revival import revive
from stream_ocpdl.ocpdl.solvers import minimise_near
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

DISCARDED = "a step has a result that is not finite and was discarded; rescale the data"

NARROW = 1e-9
"""A weight with which every radius is active."""


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
            if not all(U.flags.c_contiguous for U in state.loadings):
                state = state._replace(loadings=tuple(map(np.ascontiguousarray, state.loadings)))
        self.problem = problem
        self.state = state if state is not None else State.initial(problem)
        self.workers = workers
        self.in_place = in_place

    def step(self, X: Any) -> Step:
        """Learn a minibatch X (b, I₁…Iₙ), dense or sparse (`coordinates`). If this raises, nothing was learned.

        In place a step takes no memory and less time; states that were asked for before are void then, and so is the
        learner if a step has a result that is not finite.
        """
        self.state, step = advance(self.problem, self.state, X, self.workers, self.in_place)
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
    batch = open_batch(problem, X)
    if state.scale == 0.0:
        batch = read_batch(problem, batch, workers)
        state = settle(problem, state, batch)
    sets, b = problem.sets(state.scale or 1.0), len(batch)
    t, N = state.t + 1, state.N + b
    w = problem.weight(t, N, b)
    call = small.call_of(problem, sets)
    in_tiles = isinstance(state.aggregates.B, Blocks)
    if isinstance(batch, SparseBatch):
        found = learn_sparse(problem, sets, state, batch, w, workers, consume)
    elif b <= call.most and not in_tiles and batch.missing is None:  # sizes alone, never the number of threads
        found = learn_small(problem, call, state, batch, w, workers, consume)
    else:
        found = learn(problem, sets, state, batch, w, workers, consume)
    coding, aggregates, loadings, update, folded = found
    next_state = State(t, N, state.scale, state.at_bound + coding.at_bound, loadings, aggregates, folded, state.factors)
    if problem.revive is None:
        return next_state, Step(t, N, w, coding, update)
    next_state, revived = revive(problem, sets, next_state, batch, coding, w)
    return next_state, Step(t, N, w, coding, update, revived)


Learned: TypeAlias = tuple[Coding, Aggregates, Sequence[Array], Update, Folded | None]
"""What a step finds: codes, aggregates, loadings, what their update did, and B folded if a step leaves it behind."""


def learn(
    problem: Problem, sets: Sets, state: State, batch: Batch, w: float, workers: Workers, consume: bool
) -> Learned:
    """A step by single kernels: over B as it is, or once over its tiles."""
    batch = read_whole(problem, batch, workers)
    prepared = onepass.prepare(state, batch, workers)
    coding = encode(problem, sets, state.loadings, batch, workers, prepared)
    whole = complete(state.loadings, batch, coding.H, workers)
    if prepared is None:
        past, old = state.aggregates, state.loadings
        aggregates, known = absorb_and_fold(past, old, whole.X, whole.energy, coding.H, w, workers, consume)
        return coding, aggregates, *update_loadings(problem, sets, old, aggregates, w, workers, known), None
    news = onepass.News(whole, batch.gaps, coding.H, w)
    found = onepass.learn(problem, sets, state, news, prepared, workers, consume)
    updated = update_of(found.solutions, found.before, found.after, found.movements, sets, w)
    return coding, found.aggregates, *updated, found.folded


def learn_sparse(
    problem: Problem, sets: Sets, state: State, batch: SparseBatch, w: float, workers: Workers, consume: bool
) -> Learned:
    """`learn` by entries."""
    prepared = onepass.prepare(state, batch, workers)
    coding = encode(problem, sets, state.loadings, batch, workers, prepared)
    if prepared is None:
        past, old = state.aggregates, state.loadings
        aggregates, known = sparse.absorb(past, old, batch, coding.H, w, workers, consume)
        return coding, aggregates, *update_loadings(problem, sets, old, aggregates, w, workers, known), None
    news = onepass.News(batch, NONE, coding.H, w)
    found = onepass.learn(problem, sets, state, news, prepared, workers, consume)
    updated = update_of(found.solutions, found.before, found.after, found.movements, sets, w)
    return coding, found.aggregates, *updated, found.folded


def learn_small(
    problem: Problem, call: small.Call, state: State, batch: Batch, w: float, workers: Workers, consume: bool
) -> Learned:
    """`learn` in one call, if no bound and no radius is active; else what is left of it goes the long way."""
    done, coding, aggregates, loadings, update = small.learn(call, state, batch, w, consume)
    if done == problem.modes:
        return coding, aggregates, loadings, update, None
    if done == fused.UNFIT:
        batch = read_whole(problem, batch, workers)  # raises, unless what is odd about it is allowed
        if batch.missing is None:
            return learn_small(problem, call, state, batch, w, workers, consume)
        return learn(problem, call.sets, state, batch, w, workers, consume)
    if done == fused.OVERFLOWN:
        raise NumericError(DISCARDED)
    updated = update_loadings(problem, call.sets, state.loadings, aggregates, w, workers)
    return coding, aggregates, *updated, None


def warm_up(problem: Problem, workers: Workers = SERIAL) -> None:
    """Two steps on data that mean nothing, so that everything is compiled, or loaded, before the first that counts.

    Small ones hardly ever meet the radius: loadings are held back once by one that is nearly nothing.
    """
    learner = Learner(problem, workers=workers, in_place=True)
    random = np.random.default_rng(0)
    most = 2 + SMALL // (problem.rank * prod(problem.shape))  # more take no other way, and may not fit the memory
    few = [Sparse(problem.shape, NONE, np.empty(0))] * problem.batch_size
    for _ in range(2):
        X = random.random((min(problem.batch_size, most), *problem.shape), np.float32)
        step = learner.step(collect(problem, list(X), workers)[0])
        judge(Senses(), step.coding.losses, step.coding.H, step.coding.losses)
        for dtype in (np.dtype(np.float64), X.dtype):
            collect(problem, Packed([X[0].astype(dtype).tobytes()], 0, problem.shape, dtype), workers)
        if are_few(few, problem):
            learner.step(collect(problem, few, workers)[0])
    state = learner.state
    if not isinstance(state.aggregates.B, Blocks):
        update_loadings(problem, problem.sets(state.scale), state.loadings, state.aggregates, NARROW, workers)


def settle(problem: Problem, state: State, batch: AnyBatch) -> State:
    """Fix the scale with the first minibatch that has any energy; the initial loadings are brought to it.

    A missing cell counts as the mean of its tensor's observed ones: s is to be the norm of whole tensors.
    """
    if state.scale > 0.0 or batch.energy == 0.0:
        return state
    cells, energies = prod(problem.shape), batch.energies
    if batch.missing is not None:
        energies = energies * (cells / (cells - batch.missing))
    scale = sqrt(float(energies.sum()) / len(batch))
    return state._replace(scale=scale, loadings=problem.initial_loadings(scale), folded=None)


def encode(
    problem: Problem,
    sets: Sets,
    loadings: Sequence[Array],
    batch: AnyBatch,
    workers: Workers = SERIAL,
    prepared: onepass.Prepared | sparse.Contracted | None = None,
) -> Coding:
    """H = argmin of ‖X − Out(D) ×ₙ₊₁ H‖² + λ‖H‖₁ + λ₂‖H‖² over 0 ≤ H ≤ h_max (eq:coding_OCPDL, Algorithm 4).

    Signed codes are in [−h_max, h_max]. A tensor with missing cells has a problem of its own. Who has contracted the
    minibatch already says so.
    """
    call = small.call_of(problem, sets)
    if isinstance(batch, SparseBatch):
        prepared = prepared or sparse.contracted(loadings, batch, workers)
    elif prepared is None and batch.missing is None and len(batch) <= call.most:
        return small.encode(call, loadings, batch)
    elif prepared is None:
        prepared = sparse.Contracted(gram_of_atoms(loadings), correlate(batch.X, loadings, workers))
    gaps = batch.gaps
    Q = prepared.G + problem.ridge * np.eye(problem.rank)
    L = prepared.L.copy()
    L[gaps] = 0.0
    H, used = np.zeros_like(L), np.zeros(len(L), np.int64)
    solve_codes(problem, sets.h_max, Q, L, H, used, workers)
    rounds = kernels.largest(used)
    losses = kernels.losses_of(batch.energies, H, product(H, Q), L)
    if isinstance(batch, Batch) and len(gaps) > 0:
        H[gaps], losses[gaps], more = encode_observed(problem, sets.h_max, loadings, batch, workers)
        rounds = max(rounds, more)
    at_bound = int(np.count_nonzero(np.abs(H) >= sets.h_max))
    return Coding(H, losses, at_bound, rounds, rounds < most_rounds(problem.rank))


def update_loadings(
    problem: Problem,
    sets: Sets,
    old: Sequence[Array],
    aggregates: Aggregates,
    w: float,
    workers: Workers = SERIAL,
    known: Folded | None = None,
) -> tuple[tuple[Array, ...], Update]:
    """One cycle over the modes: each minimises f̂_t over its set and radius, eq:dict_update_OCPDL.

    Who has folded B with the old loadings of the second group of modes already says so.
    """
    intermediate = Intermediate(aggregates, old, workers, known)
    constant = aggregates.E + problem.sparsity * aggregates.P + problem.ridge * float(aggregates.A.trace())
    solutions: list[Solution] = []
    surrogates: list[float] = []
    for i, (U, C, c) in enumerate(zip(old, sets.loadings, sets.radii, strict=True)):
        A, B = intermediate(i)
        surrogates.append(constant + objective(U, A, B))
        if not isfinite(surrogates[-1]):
            raise NumericError(f"the surrogate loss is {surrogates[-1]}: the step was discarded; rescale the data")
        solutions.append(minimise_near(A, B, C, U, c * w, problem.tolerance, workers))
        intermediate.update(i, solutions[-1].Y)
    movements = tuple(kernels.distance(solution.Y, U) for solution, U in zip(solutions, old, strict=True))
    after = constant + objective(solutions[-1].Y, A, B)
    return update_of(solutions, surrogates[0], after, movements, sets, w)


def update_of(
    solutions: Sequence[Solution], before: float, after: float, movements: tuple[float, ...], sets: Sets, w: float
) -> tuple[tuple[Array, ...], Update]:
    """The loadings that these minimisers are, and the update that they make."""
    if not isfinite(sum(movements, after)):
        raise NumericError(DISCARDED)
    return tuple(solution.Y for solution in solutions), Updated(
        before,
        after,
        movements,
        radii=tuple(w * c for c in sets.radii),
        radius_active=tuple(solution.multiplier > 0.0 for solution in solutions),
        rounds=tuple(solution.rounds for solution in solutions),
        settled=tuple(solution.settled for solution in solutions),
    )
