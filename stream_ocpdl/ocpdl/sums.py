"""Sums in place of tensors: all that a step asks of a minibatch, once it is coded.

By eq:main_alg_aggregate_tensors that is ΣHᵀH, ΣHᵀ·X, Σ‖X‖², Σ‖H‖₁, and how many tensors there were. Sums over parts of
a minibatch add up to those over all of it. So whoever has the dictionary D_{t−1} can code a part, and a step that
absorbs the sums of all parts is that of Algorithm 2 with the whole minibatch, but for the order of additions.

Parts that were coded with an earlier dictionary D_{t−1−τ} still majorise (any codes do); what is lost is tightness at
D_{t−1}, by O(‖D_{t−1} − D_{t−1−τ}‖).

**Scale.** It is fixed by the first minibatch that has any energy, and initial loadings are brought to it (`problem`).
Whoever coded that one did not know it, and had initial loadings of scale one. Where sets grow with the scale, atoms of
scale s are those of scale one times a factor ρ, and so codes are divided by it: minimisers, since there is no penalty.
Where they do not grow, ρ = 1. Sets that do neither cannot be used here (`scalable`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod, sqrt

import numpy as np

from stream_ocpdl.errors import NumericError
from stream_ocpdl.ocpdl import arrays, sparse
from stream_ocpdl.ocpdl.aggregates import Aggregates, absorb
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.blocks import Blocks
from stream_ocpdl.ocpdl.entries import AnyBatch, SparseBatch
from stream_ocpdl.ocpdl.learner import update_loadings
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.results import Coding, Step
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

UNBOUNDED = 1e150
"""The bound of codes that are made before the scale is known."""


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Of coded tensors; as long as there are many."""

    count: int
    energy: float
    """Σ‖X‖²."""
    mass: float
    """Σ‖H‖₁."""
    A: Array
    """ΣHᵀH (R, R)."""
    B: BigArray
    """ΣHᵀ·X (R, I₁…Iₙ)."""
    loss: float = 0.0
    """Σℓ(X_j, D, h_j), with the dictionary that coded them."""
    at_bound: int = 0

    def __len__(self) -> int:
        return self.count


def sums_of(loadings: Sequence[Array], batch: AnyBatch, coding: Coding, workers: Workers = SERIAL) -> Sums:
    """The sums of a minibatch without missing cells. A step from nothing with weight b: what is divided by b is not."""
    b, R, shape = len(batch), coding.H.shape[1], tuple(len(U) for U in loadings)
    dtype = (batch.values if isinstance(batch, SparseBatch) else batch.X).dtype.name
    past = Aggregates(np.zeros((R, R)), arrays.zeros((R, *shape), dtype), 0.0, 0.0)
    if isinstance(batch, SparseBatch):
        found, _ = sparse.absorb(past, loadings, batch, coding.H, float(b), workers, consume=True)
    else:
        found = absorb(past, batch.X, batch.energy, coding.H, float(b), workers, consume=True)
    return Sums(b, found.E, found.P, found.A, np.asarray(found.B), float(coding.losses.sum()), coding.at_bound)


def added(parts: Sequence[Sums]) -> Sums:
    """The sums over all parts, added one after the other in float64."""
    first = parts[0]
    A, B = np.array(first.A), np.array(first.B, np.float64, order="C")
    for part in parts[1:]:
        A += part.A
        B += part.B
    return Sums(
        sum(part.count for part in parts),
        sum(part.energy for part in parts),
        sum(part.mass for part in parts),
        A,
        B,
        sum(part.loss for part in parts),
        sum(part.at_bound for part in parts),
    )


def check_finite(sums: Sums) -> None:
    """Raise if a sum is not finite: finite numbers whose products are not."""
    scalars = isfinite(sums.energy) and isfinite(sums.mass) and isfinite(sums.loss)
    if not (scalars and np.isfinite(sums.A).all() and np.isfinite(sums.B).all()):
        raise NumericError("the sums over coded tensors are not finite; rescale the data")


def scalable(problem: Problem) -> bool:
    """Whether codes that were made before the scale was known can be brought to it."""
    if problem.penalised:
        return problem.sets(1.0).norms == problem.sets(1e3).norms
    return all(isinstance(choice, str) for choice in problem.choices()) and problem.code_bound == "auto"


def settle(problem: Problem, state: State, sums: Sums) -> tuple[State, Sums]:
    """Fix the scale with the first sums that have any energy; loadings and sums are brought to it."""
    if state.scale > 0.0 or sums.energy == 0.0:
        return state, sums
    scale = sqrt(sums.energy / sums.count)
    rho = prod(b / a for a, b in zip(problem.sets(1.0).norms, problem.sets(scale).norms, strict=True))
    state = state._replace(scale=scale, loadings=problem.initial_loadings(scale), folded=None)
    return state, replace(sums, mass=sums.mass / rho, A=sums.A / rho**2, B=sums.B / rho)


def absorb_sums(past: Aggregates, sums: Sums, w: float, consume: bool = False) -> Aggregates:
    """eq:main_alg_aggregate_tensors. A consumed past gives its B away."""
    share = w / sums.count
    return Aggregates(
        A=(1 - w) * past.A + share * sums.A,
        B=_absorbed(past.B, sums.B, 1 - w, share, consume),
        E=(1 - w) * past.E + share * sums.energy,
        P=(1 - w) * past.P + share * sums.mass,
    )


def _absorbed(past: BigArray | Blocks, new: BigArray, keep: float, share: float, consume: bool) -> BigArray | Blocks:
    """keep · past + share · new, atom by atom, in float64 and then rounded once."""
    if isinstance(past, Blocks):
        tiles = past if consume else past.empty()
        if not consume:
            tiles.tiles[...] = 0.0  # the columns that the last tile has too many
        for r in range(len(past)):
            tiles.write_atom(r, np.multiply(past.atom(r), keep, dtype=np.float64) + share * new[r])
        return tiles
    B = past if consume else arrays.empty(past.shape, past.dtype.name)
    for r in range(len(past)):
        B[r] = np.multiply(past[r], keep, dtype=np.float64) + share * new[r]
    return B


def advance_sums(
    problem: Problem, state: State, sums: Sums, workers: Workers = SERIAL, consume: bool = False
) -> tuple[State, Step]:
    """`learner.advance` with the sums of a minibatch in its place."""
    state, sums = settle(problem, state, sums)
    sets, b = problem.sets(state.scale or 1.0), sums.count
    t, N = state.t + 1, state.N + b
    w = problem.weight(t, N, b)
    aggregates = absorb_sums(state.aggregates, sums, w, consume)
    loadings, update = update_loadings(problem, sets, state.loadings, aggregates, w, workers)
    at_bound = state.at_bound + sums.at_bound
    next_state = State(t, N, state.scale, at_bound, loadings, aggregates, factors=state.factors)
    coding = Coding(np.empty((0, problem.rank)), np.array([sums.loss / b]), sums.at_bound, 0, True)
    return next_state, Step(t, N, w, coding, update)
