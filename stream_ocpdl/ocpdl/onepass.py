"""A step that goes over B once, where B is in tiles.

Three things are asked of B in a step: it absorbs the minibatch, and it is contracted for the modes before the last and
for the last. By themselves they read it three times. But with T = B ×ₙ Uₙ of the step before, which `Folded` carries,

    B ×ₙ Uₙ ← (1 − w) T + (w/b) Σⱼ H[j, ·] Yⱼ,      Y = X ×ₙ Uₙ,

and coding has Y anyway. From this the modes before the last are solved. Then comes the pass: each tile

    1. absorbs its columns of the minibatch                          eq:main_alg_aggregate_tensors
    2. is contracted with the new loadings of the other modes        eq:def_Btrj
    3. has its rows of the last mode solved                          eq:dict_update_OCPDL
    4. is contracted with them, for the next step

while it is in the second cache. The rows are separate problems only if neither the norm bound nor the radius, which
couple them, is active. That is found out when all are done. If one is, B is read again for 2, the mode is solved as a
whole, and B is read again for 4. Where the set is no ball, 2 is kept.

In float32, T and 2 are those of a B that was not yet rounded.
"""

from collections.abc import Sequence
from math import frexp, inf, isfinite, sqrt
from typing import NamedTuple

import numpy as np

from stream_ocpdl.errors import NumericError
from stream_ocpdl.ocpdl import kernels, sparse
from stream_ocpdl.ocpdl.aggregates import (
    Aggregates,
    Intermediate,
    gram_of_atoms,
    khatri_rao,
    with_new,
    without_first,
    without_second,
)
from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices
from stream_ocpdl.ocpdl.blocks import (
    STRETCH,
    Blocks,
    Folded,
    absorb_one,
    absorb_several,
    add_lanes,
    fold_tile,
    gram_tile,
    mirror,
    take_columns,
    turn,
)
from stream_ocpdl.ocpdl.compiled import kernel, part
from stream_ocpdl.ocpdl.constraints import NonnegativeBall
from stream_ocpdl.ocpdl.entries import AnyBatch, SparseBatch
from stream_ocpdl.ocpdl.lanes import GROUP, aligned, fma, put, spread, take, total
from stream_ocpdl.ocpdl.multipliers import HARD, Room, Soon, inverse_of, judge, on_faces, spaces, units_of
from stream_ocpdl.ocpdl.onerow import most_rounds
from stream_ocpdl.ocpdl.problem import Problem, Sets
from stream_ocpdl.ocpdl.quadratic import Solution, largest_diagonal, objective
from stream_ocpdl.ocpdl.rows import solve_left
from stream_ocpdl.ocpdl.solvers import FLAT, ROUNDING, minimise_near
from stream_ocpdl.ocpdl.sparse import absorb_entries
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

SIZE, MOVED, LEFT, WAS, IS = 0, 1, 2, 3, 4
"""What a pass measures of the last mode: ‖Y‖², ‖Y − U‖², the square of `kernels.pull_left`, ⟨U, L⟩ and ⟨Y, L⟩."""


class Prepared(NamedTuple):
    """What a minibatch is coded from, and a pass begins with."""

    B: Blocks
    folded: Folded
    Y: Array
    """X ×ₙ Uₙ (b, P, R), of a minibatch that is whole."""
    G: Array
    """Inner products of the atoms (R, R)."""
    L: Array
    """⟨X_j, atom r⟩ (b, R)."""


class News(NamedTuple):
    """A minibatch X̃ without missing cells, which of its tensors had some, their codes H (b, R), and the weight w."""

    batch: AnyBatch
    gaps: Indices
    H: Array
    w: float


class Outcome(NamedTuple):
    """A step's aggregates, B folded anew, the minimisers, the surrogate before and after, and how far modes moved."""

    aggregates: Aggregates
    folded: Folded
    solutions: list[Solution]
    before: float
    after: float
    movements: tuple[float, ...]


def prepare(state: State, batch: AnyBatch, workers: Workers = SERIAL) -> Prepared | None:
    """The minibatch contracted with D_{t−1}; None where B is not in tiles."""
    B, U = state.aggregates.B, state.loadings
    if not isinstance(B, Blocks):
        return None
    folded = state.folded or B.fold_last(U[-1], workers)
    G = gram_of_atoms(U[:-1]) * folded.G
    if isinstance(batch, SparseBatch):
        return Prepared(B, folded, np.empty((0, 0, 0)), G, sparse.correlate(batch, U, workers))
    V, Y = khatri_rao(U[:-1], len(B)), without_second(batch.X, U[-1], workers)
    return Prepared(B, folded, Y, G, without_first(Y, V, workers))


def learn(
    problem: Problem,
    sets: Sets,
    state: State,
    news: News,
    prepared: Prepared,
    workers: Workers = SERIAL,
    consume: bool = False,
) -> Outcome:
    """Absorb a minibatch and update the loadings: eq:main_alg_aggregate_tensors and eq:dict_update_OCPDL in one pass.

    f̂_t(D_{t−1}) is f̂_t(D_t) and what each mode took off it: in float32 B changes a little as it is written, and the
    two would not be of one function.
    """
    past, loadings = state.aggregates, list(state.loadings)
    B = prepared.B if consume else prepared.B.empty()
    aggregates = with_new(past, B, news.batch.energy, news.H, news.w)
    at = Intermediate(aggregates, loadings, workers, absorbed(state, news, prepared, workers))
    solutions, movements, fallen = [], [], 0.0
    for i, (U, C, c) in enumerate(zip(loadings[:-1], sets.loadings, sets.radii, strict=False)):
        Q, L = at(i)
        was = objective(U, Q, L)
        if not isfinite(was):
            raise NumericError(f"the surrogate loss is {was}: the step was discarded; rescale the data")
        solutions.append(minimise_near(Q, L, C, U, c * news.w, problem.tolerance, workers))
        loadings[i] = solutions[-1].Y
        movements.append(kernels.distance(loadings[i], U))
        fallen += was - objective(loadings[i], Q, L)
        at.update(i, loadings[i])
    last = Last(at.A(len(loadings) - 1), loadings, sets, news.w, problem.tolerance)
    found = last.solve(prepared.B, B, news, prepared.folded.G, workers)
    constant = aggregates.E + problem.sparsity * aggregates.P + problem.ridge * float(np.trace(aggregates.A))
    before, after = constant + found.before + fallen, constant + found.after
    solutions, movements = [*solutions, found.solution], [*movements, found.movement]
    return Outcome(aggregates, found.folded, solutions, before, after, tuple(movements))


def absorbed(state: State, news: News, prepared: Prepared, workers: Workers) -> Folded:
    """B ×ₙ Uₙ with the minibatch in it. Tensors that were filled since they were contracted are contracted again."""
    (T, G), Y = prepared.folded, prepared.Y
    if isinstance(news.batch, SparseBatch):
        share = (news.w / len(news.H)) * news.H
        return Folded((1 - news.w) * T + sparse.fold_minibatch(news.batch, share, state.loadings[-1], workers), G)
    if len(news.gaps) > 0:
        Y[news.gaps] = without_second(news.batch.X[news.gaps], state.loadings[-1], workers)
    return Folded((1 - news.w) * T + (news.w / len(news.H)) * np.einsum("jr,jpr->rp", news.H, Y), G)


class Minibatch(NamedTuple):
    """X (b·P, Q), H (b, R) already times w/b, and 1 − w; or, b being 0, the entries tile by tile."""

    X: BigArray
    H: Array
    keep: float
    entries: sparse.Entries


class Mode(NamedTuple):
    """The last mode's problem: whether to solve it, V (P, R) of the others, and Q of the rows with its pull.

    The rows have unit·Q + diag(pull) and unit·L + pull·start; see `kernels.pulled`. The inverse is for `multipliers`,
    and of no rows where it would mean nothing.
    """

    solved: bool
    V: Array
    Q: Array
    inverse: Array
    unit: float
    pull: Array
    tolerance: float
    start: Array


class Out(NamedTuple):
    """What a pass writes: B in tiles; then Y (Q, R), rounds (Q) and, by stretches, T, G and what was measured; or L."""

    B: BigArray
    L: Array
    Y: Array
    rounds: Indices
    T: Array
    G: Array
    sums: Array


class Found(NamedTuple):
    """The last mode's minimiser, how far it is from the old loadings, B folded with it, and the surrogate before and
    after without its constant.
    """

    solution: Solution
    movement: float
    folded: Folded
    before: float
    after: float


class Last:
    """The last mode: everything that is asked of B happens here."""

    def __init__(self, A: Array, loadings: Sequence[Array], sets: Sets, w: float, tolerance: float) -> None:
        self.A, self.start, self.tolerance = A, loadings[-1], tolerance
        self.C, self.radius = sets.loadings[-1], sets.radii[-1] * w
        self.V = khatri_rao(loadings[:-1], len(A))
        self.unit = 0.5 ** frexp(largest_diagonal(A))[1]

    def solve(self, past: Blocks, B: Blocks, news: News, G: Array, workers: Workers) -> Found:
        """The minimiser, after B has become what the past and the minibatch make it; G = UₙᵀUₙ of the old loadings."""
        mode = self.mode()
        out = self.go_over(past, B, news, mode, workers)
        solution = self.separate(out) if mode.solved else None
        if solution is not None:
            folded, sums = Folded(out.T.sum(axis=0), out.G.sum(axis=0)), out.sums.sum(axis=0)
            movement, was, now = sqrt(sums[MOVED]), float(sums[WAS]), float(sums[IS])
        else:
            L = np.ascontiguousarray(B.fold_first(self.V, workers).T) if mode.solved else out.L
            solution = minimise_near(self.A, L, self.C, self.start, self.radius, self.tolerance, workers)
            folded = B.fold_last(solution.Y, workers)
            was, now = kernels.inner(self.start, L), kernels.inner(solution.Y, L)
            movement = kernels.distance(solution.Y, self.start)
        before, after = float(np.sum(G * self.A)) - 2.0 * was, float(np.sum(folded.G * self.A)) - 2.0 * now
        return Found(solution, movement, folded, before, after)

    def go_over(self, past: Blocks, B: Blocks, news: News, mode: "Mode", workers: Workers) -> "Out":
        """The pass."""
        (Q, R), count, b = self.start.shape, B.stretches, len(news.H)
        out = Out(
            B=B.tiles,
            L=np.empty((0 if mode.solved else Q, R)),
            Y=np.empty((Q, R)),
            rounds=np.zeros(Q, np.int64),
            T=np.empty((count, R, len(self.V))),
            G=np.empty((count, R, R)),
            sums=np.empty((count, 5)),
        )
        share, keep = (news.w / b) * news.H, 1 - news.w
        if isinstance(news.batch, SparseBatch):
            entries = sparse.by_tiles(news.batch, B.tiles.shape[-1], share)
            minibatch = Minibatch(np.empty((0, Q), B.dtype), share[:0], keep, entries)
        else:
            minibatch = Minibatch(news.batch.X.reshape(-1, Q), share, keep, sparse.no_entries(R, B.dtype))
        workers.run(go_over, count, B.size * b / count, past.tiles, minibatch, mode, out)
        return out

    def mode(self) -> "Mode":
        """The problem as the pass wants it. A user's set is not for rows; nor are numbers that are none."""
        pulled, none = np.empty_like(self.A), self.start[:0]
        kernels.pulled(self.A, none, self.unit, FLAT, none, pulled, np.empty_like(none))
        solved = isinstance(self.C, NonnegativeBall) and bool(np.isfinite(self.A).all())
        return Mode(
            solved,
            V=self.V,
            Q=pulled,
            inverse=inverse_of(pulled if solved else pulled[:0]),
            unit=self.unit,
            pull=FLAT * (self.unit * np.diag(self.A)),
            tolerance=max(1e-3 * self.tolerance, 2e-14),
            start=self.start,
        )

    def separate(self, out: "Out") -> Solution | None:
        """The rows' minimisers, if all settled and nothing couples them: what `minimise_near` would find first."""
        if not isinstance(self.C, NonnegativeBall):
            return None
        size, moved, left = (sqrt(value) if value >= 0.0 else inf for value in out.sums.sum(axis=0)[: LEFT + 1])
        used = kernels.largest(out.rounds)
        inside = size <= self.C.bound * (1.0 + ROUNDING) and moved <= self.radius * (1.0 + ROUNDING)
        settled = used < most_rounds(len(self.A)) and left <= 0.1 * self.tolerance * size
        return Solution(out.Y, used) if inside and settled else None


@kernel
def go_over(lo: int, hi: int, past: BigArray, minibatch: Minibatch, mode: Mode, out: Out) -> None:
    """The pass, stretches [lo, hi) of tiles: steps 1 to 4 of the module's docstring."""
    X, H, keep, entries = minibatch
    B, (tiles, R, P, width), Q = out.B, out.B.shape, X.shape[1]
    x, L, loads = aligned(X.shape[0], width // GROUP), aligned(R, width // GROUP), aligned(R, width // GROUP)
    before, now, rest = aligned(R, width // GROUP), aligned(R, width // GROUP), np.empty((width, R))
    sums, grams, units, room = aligned(R, P), aligned(R, R), units_of(mode.Q), spaces(mode.inverse, width)
    soon = Soon(past, np.zeros(2, np.int64))
    for s in range(lo, hi):
        sums[:] = 0.0
        grams[:] = 0.0
        out.sums[s, :] = 0.0
        for k in range(s * STRETCH, min((s + 1) * STRETCH, tiles)):
            first, last = k * width, min((k + 1) * width, Q)
            take_columns(X, first, x)
            if H.shape[0] == 1:  # 1, 2
                absorb_one(past, k, x, H[0], keep, mode.V, B, L)
            else:
                absorb_several(past, k, x, H, keep, mode.V, B, L)
            if entries.ends.size > 0:
                absorb_entries(entries, k, mode.V, B, L)
            if mode.solved:  # 3, 4
                start, Y, rounds = mode.start[first:last], out.Y[first:last], out.rounds[first:last]
                soon.at[0], soon.at[1] = (k + 1) * R * P * width, min(k + 2, tiles) * R * P * width
                turn(start, 0, before)
                solve_tile(mode, units, L, before, start, loads, rest, room, Y, now, rounds, soon)
                fold_tile(B, k, now, sums)
                gram_tile(now, grams)
                measure(mode, L, before, now, out.sums[s])
            else:
                turn_back(L, last - first, out.L[first:last])
        add_lanes(sums, out.T[s])
        add_lanes(grams, out.G[s])
        mirror(out.G[s])


@part
def solve_tile(
    mode: Mode,
    units: Array,
    L: Array,
    before: Array,
    start: Array,
    loads: Array,
    rest: Array,
    room: Room,
    Y: Array,
    now: Array,
    rounds: Indices,
    soon: Soon,
) -> None:
    """The rows of a tile → Y, rounds, and, as columns, now; L and before, the start, are columns (R, ·, GROUP)."""
    pull(mode, L, before, loads)
    hard = Y.shape[0]
    if mode.inverse.shape[0] > 0:
        on_faces(mode.inverse, loads, start, Y, rounds, room, soon)
        turn(Y, 0, now)
        hard = judge(mode.Q, units, now, mode.tolerance, loads, rounds, soon)
    else:
        rounds[:] = HARD
    if hard > 0:
        pull(mode, L, before, loads)
        turn_back(loads, Y.shape[0], rest)
        solve_left(hard, mode.Q, rest, start, inf, mode.tolerance, Y, rounds)
        turn(Y, 0, now)


@part
def turn_back(turned: Array, count: int, L: Array) -> None:
    """The first `count` of the columns (R, width/GROUP, GROUP) → rows (count, R)."""
    for q in range(count):
        for r in range(L.shape[1]):
            L[q, r] = turned[r, q // GROUP, q % GROUP]


@part
def pull(mode: Mode, L: Array, start: Array, loads: Array) -> None:
    """L of a tile pulled towards the start, as `kernels.pulled` does → loads; all (R, width/GROUP, GROUP)."""
    R, registers, _ = L.shape
    unit = spread(mode.unit)
    for r in range(R):
        for m in range(registers):
            put(loads, r, m, fma(spread(mode.pull[r]), take(start, r, m), unit * take(L, r, m)))


@part
def measure(mode: Mode, L: Array, start: Array, Y: Array, out: Array) -> None:
    """SIZE, MOVED, LEFT, WAS and IS of a tile, added to out; columns (R, width/GROUP, GROUP), zeros behind the last."""
    zero = spread(0.0)
    size, moved, left, was, now = zero, zero, zero, zero, zero
    for r in range(L.shape[0]):
        pulls = spread(mode.pull[r])
        for m in range(L.shape[1]):
            y, load, there = take(Y, r, m), take(L, r, m), take(start, r, m)
            step = y - there
            pulled = pulls * step
            size, moved, left = fma(y, y, size), fma(step, step, moved), fma(pulled, pulled, left)
            was, now = fma(there, load, was), fma(y, load, now)
    out[SIZE] += total(size)
    out[MOVED] += total(moved)
    out[LEFT] += total(left)
    out[WAS] += total(was)
    out[IS] += total(now)
