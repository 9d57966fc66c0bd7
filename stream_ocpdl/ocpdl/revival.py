"""Atoms that no tensor uses any more, and, for those who ask for it (`Problem.revive`), another life for them.

**Dead.** e_r = A_rr ‖U₁(:, r)‖² … ‖Uₙ(:, r)‖² is the mean energy that atom r had in the tensors of the past, each with
its weight wₛᵗ: the same however an atom's size is shared between codes and modes. An atom is dead if that is less than
a thousandth of the atoms' mean, so neither the scale of the data nor any clock has a say.

**Revival**, after every k-th step, and a function of the state and the minibatch alone, so that a replay has its bits:

    1. Dead are atoms with e_r below DEAD · min(1, k w_t) of the mean: a new one had k steps to gather its energy in.
    2. Of each of the worst coded tensors of the minibatch one dead atom takes the best rank-one part of the residual.
    3. A(r, ·), A(·, r) and B(r, …) become zero; E and P stay.

By 3 the aggregates are those of codes H′ that are H with zeros at the revived atoms. Hence f̂ stays what it says it is,
the weighted loss of past tensors under codes that they may have, and majorises the empirical loss f_t as before; with
λ > 0 P counts the codes that are gone, a constant on the safe side. At a stationary D it rises by e_r, which is small,
or the atom were not dead. With A_rr = 0 the new column is flat, and stays until a tensor uses it.

What is lost: D leaps, so lem:main_analytic_lemma (ii) fails at that step, and f̂ may rise there (prop:Wt_bd). The
theorem can only speak of what comes after the last revival, if there is one. An atom that is rare looks dead, too.
"""

from collections.abc import Sequence

import numpy as np

from stream_ocpdl.ocpdl.aggregates import Aggregates, reconstruction
from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices
from stream_ocpdl.ocpdl.blocks import Blocks
from stream_ocpdl.ocpdl.entries import AnyBatch, SparseBatch
from stream_ocpdl.ocpdl.problem import Problem, Sets
from stream_ocpdl.ocpdl.results import Coding
from stream_ocpdl.ocpdl.state import State

DEAD = 1e-3
"""The share of the atoms' mean energy below which one is dead."""

SWEEPS = 5
"""Alternations over the modes by which a residual's rank-one part is found; a start needs no more digits."""


def atom_energies(state: State) -> Array:
    """e_r (R,): the mean energy of atom r in the tensors of the past."""
    norms = np.prod([np.sum(U * U, axis=0) for U in state.loadings], axis=0)
    return np.asarray(state.aggregates.A.diagonal() * norms)


def dead_atoms(state: State, threshold: float = DEAD) -> tuple[int, ...]:
    """The atoms with less than that share of the mean energy; none, while there is no energy at all.

    >>> dead_atoms(State.initial(Problem(shape=(3, 2), rank=2)))
    ()
    """
    energies = atom_energies(state)
    return tuple(np.flatnonzero(energies < threshold * energies.mean()).tolist())


def revive(
    problem: Problem, sets: Sets, state: State, batch: AnyBatch, coding: Coding, w: float
) -> tuple[State, tuple[int, ...]]:
    """The state after step t with its dead atoms drawn anew, and which these are. Its B is written."""
    k = problem.revive
    if k is None or state.t % k != 0:
        return state, ()
    dead = dead_atoms(state, DEAD * min(1.0, k * w))  # 1
    loadings = [np.array(U) for U in state.loadings]
    alive = np.setdiff1d(np.arange(problem.rank), dead)
    revived = []
    for r, j in zip(dead, np.argsort(-coding.losses, kind="stable"), strict=False):  # 2
        X = batch.whole(int(j)) if isinstance(batch, SparseBatch) else batch.X[j]
        rest = residual(X, [U[:, alive] for U in loadings], coding.H[j, alive])
        vectors = rank_one(np.maximum(rest, 0.0) if problem.nonnegative else rest)
        if vectors is not None:
            for U, u in zip(loadings, turned(vectors, sets, problem.codes == "signed"), strict=True):
                U[:, r] = u * float(np.sqrt(np.sum(U[:, alive] ** 2) / len(alive)))
            revived.append(int(r))
    if not revived:
        return state, ()
    inside = tuple(np.ascontiguousarray(C.project(U)) for C, U in zip(sets.loadings, loadings, strict=True))
    aggregates = without(state.aggregates, revived)  # 3
    return state._replace(loadings=inside, aggregates=aggregates, folded=None), tuple(revived)


def residual(X: Array, loadings: Sequence[Array], h: Array) -> Array:
    """X − Out(D) ×ₙ₊₁ h, zero where X was not observed."""
    return np.asarray(np.nan_to_num(X - reconstruction(loadings, h)))


def rank_one(T: Array) -> list[Array] | None:
    """Vectors of norm one whose outer product is close to T up to scale, by alternation; none if T is zero.

    >>> [u.round(2).tolist() for u in rank_one(np.outer([3.0, 4.0], [0.0, 2.0]))]
    [[0.6, 0.8], [0.0, 1.0]]
    """
    large = float(np.abs(T).max())
    if large == 0.0:
        return None
    T = T / large
    modes = range(T.ndim)
    vectors = [_unit(np.abs(T).sum(axis=tuple(j for j in modes if j != i))) for i in modes]
    for _ in range(SWEEPS):
        for i in modes:
            found = np.moveaxis(T, i, 0)
            for j in reversed([j for j in modes if j != i]):
                found = np.einsum("...j,j->...", found, vectors[j])  # unlike BLAS: the same bits on any threads
            if not found.any():
                return None
            vectors[i] = _unit(found)
    return vectors


def turned(vectors: Sequence[Array], sets: Sets, signed_codes: bool) -> list[Array]:
    """The same with most of each vector above zero where the set has nothing below: it would be cut off.

    Signs change in pairs, unless a code can make up for one.
    """
    below = [C.nonnegative and float(np.sum(u * np.abs(u))) < 0.0 for C, u in zip(sets.loadings, vectors, strict=True)]
    if sum(below) % 2 == 1 and not signed_codes:
        free = [i for i, C in enumerate(sets.loadings) if not C.nonnegative]
        for i in free[-1:]:
            below[i] = True
    return [-u if turn else u for u, turn in zip(vectors, below, strict=True)]


def without(past: Aggregates, atoms: Sequence[int]) -> Aggregates:
    """The aggregates of the past if it had not used these atoms; B is written."""
    A, rows = past.A.copy(), np.asarray(atoms, np.int64)
    A[rows, :] = A[:, rows] = 0.0
    _clear(past.B, rows)
    return past._replace(A=A)


def _clear(B: BigArray | Blocks, atoms: Indices) -> None:
    for r in atoms:
        if isinstance(B, Blocks):
            B.tiles[:, r] = 0.0
        else:
            B[r] = 0.0


def _unit(u: Array) -> Array:
    u = u / float(np.abs(u).max())
    return np.asarray(u / float(np.sqrt(np.sum(u * u))))
