"""Offline: nonnegative CP-decomposition of one tensor (eq:NCPD_experiment), and the learner as a way to it.

- `als`: alternating least squares (algorithm:ALS, Algorithm 6), every block solved to optimality.
- `mu`: multiplicative updates (algorithm:MU, Algorithm 7).
- `online`: Algorithm 2 on minibatches that are drawn from the slices along the last mode, a fifth of them a step; the
  last factor is the codes of all slices (section:experimanl_validation). Only the minibatch is ever copied.

As printed, Algorithms 6 and 7 update every block from the factors of the round before, which need not lower the error;
what is meant, and done here, is that a block sees the new factors of the blocks before it. Both leave the bound on the
norms aside, as the paper does for its comparison.
"""

from collections.abc import Iterator, Sequence
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from stream_ocpdl.errors import ConfigError, DataError
from stream_ocpdl.ocpdl import kernels, panels
from stream_ocpdl.ocpdl.aggregates import correlate, gram, gram_of_atoms, khatri_rao, without_second
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.batch import as_array
from stream_ocpdl.ocpdl.learner import Learner
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.quadratic import product
from stream_ocpdl.ocpdl.solvers import box_solver
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

DRAWN, STREAM = 0.2, 0x5AB5
"""The paper's share of the last mode; and what tells these random numbers from any others of the same seed."""


class Decomposition(NamedTuple):
    """Factors U₁ … Uₘ, each (Iᵢ, R), of which Out(U₁ … Uₘ) is near X, and how near: ‖X − Out‖/‖X‖."""

    loadings: tuple[Array, ...]
    error: float


def als(
    X: Any, loadings: Sequence[Array], iterations: int = 100, tolerance: float = 1e-10, workers: Workers = SERIAL
) -> Decomposition:
    """Algorithm 6: each factor in turn minimises ‖X − Out‖² over the nonnegative ones, the others fixed.

    >>> factors = [np.random.default_rng(k).random((9, 2)) for k in range(6)]
    >>> X = np.einsum("ir,jr,kr->ijk", *factors[:3])
    >>> als(X, factors[3:]).error < 1e-3
    True
    """
    solve = box_solver(np.inf, tolerance, workers)

    def update(U: Array, Q: Array, L: Array) -> Array:
        kept = Q.diagonal() == 0.0  # an atom that is zero in another factor: every column minimises
        Y = solve(Q, L, U).Y
        Y[:, kept] = U[:, kept]
        return Y

    return _cycles(X, loadings, iterations, update, workers)


def mu(X: Any, loadings: Sequence[Array], iterations: int = 100, workers: Workers = SERIAL) -> Decomposition:
    """Algorithm 7: each factor in turn is multiplied by XᵀB ⊘ UBᵀB, which keeps it positive. A zero stays one."""

    def update(U: Array, Q: Array, L: Array) -> Array:
        below = product(U, Q)
        return U * np.divide(L, below, out=np.zeros_like(L), where=below > 0.0)

    if np.any(as_array(X, "X") < 0):
        raise DataError("X has negative numbers, which multiplicative updates cannot take")
    return _cycles(X, loadings, iterations, update, workers)


def start(shape: Sequence[int], rank: int, seed: int = 0) -> tuple[Array, ...]:
    """Factors with uniform entries in [0, 1], as the paper starts from."""
    random = np.random.default_rng(seed)
    return tuple(random.random((rows, rank)) for rows in shape)


def online(
    X: Any, rank: int, steps: int = 100, share: float = DRAWN, workers: Workers = SERIAL, **options: Any
) -> Decomposition:
    """Algorithm 2 on `steps` minibatches drawn from X, then the codes of all slices; `options` are those of `Problem`.

    >>> X = np.einsum("ir,jr,kr->ijk", *(np.random.default_rng(k).random((20, 3)) for k in range(3)))
    >>> found = online(X, rank=3, steps=200, seed=1)
    >>> [U.shape for U in found.loadings], found.error < 0.02
    ([(20, 3), (20, 3), (20, 3)], True)
    """
    X = _tensor(X)
    problem = Problem(shape=X.shape[:-1], rank=rank, batch_size=_drawn(X, share), **options)
    learner = Learner(problem, workers=workers, in_place=True)
    for _, minibatch in zip(range(steps), subsampled(X, share, problem.seed), strict=False):
        learner.step(minibatch)
    coding = learner.code(np.moveaxis(X, -1, 0))
    loadings = (*learner.state.loadings, coding.H)
    return Decomposition(loadings, _error(X, loadings, gram_of_atoms(loadings[:-1]), correlations(X, loadings, -1)))


def subsampled(X: Any, share: float = DRAWN, seed: int = 0) -> Iterator[BigArray]:
    """Endless minibatches (b, I₁ … Iₘ₋₁): a share of the slices along the last mode of X, none twice, in any order."""
    X = _tensor(X)
    b, slices = _drawn(X, share), np.moveaxis(X, -1, 0)
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, STREAM])))
    while True:
        yield np.ascontiguousarray(slices[random.choice(len(slices), b, replace=False)])


def correlations(X: BigArray, loadings: Sequence[Array], i: int, workers: Workers = SERIAL) -> Array:
    """unfold(X, i)ᵀB with B = Out of the other factors (algorithm:ALS), as (Iᵢ, R); X is read once and not copied."""
    i, R = i % X.ndim, loadings[0].shape[1]
    before, after = khatri_rao(loadings[:i], R), loadings[i + 1 :]
    if i == 0:
        return correlate(X, after, workers) if after else np.outer(X, np.ones(R))
    if after:
        Y = without_second(X.reshape(-1, prod(X.shape[i + 1 :])), khatri_rao(after, R), workers)
        return np.asarray(np.einsum("pir,pr->ir", Y.reshape(len(before), -1, R), before))
    out = np.zeros((R, X.shape[-1]))
    matrix = X.reshape(len(before), -1)
    workers.run(panels.add_product, X.shape[-1], before.size, before, matrix, 0.0, out, grain=kernels.TILE)
    return np.ascontiguousarray(out.T)


def _cycles(X: Any, given: Sequence[Array], iterations: int, update: Any, workers: Workers) -> Decomposition:
    """So many rounds over the factors, each from Q = BᵀB and L = unfold(X, i)ᵀB."""
    X, loadings = _tensor(X), _factors(given)
    if [len(U) for U in loadings] != list(X.shape) or len({U.shape[1] for U in loadings}) != 1:
        raise DataError(f"factors of shapes {[U.shape for U in loadings]} are not those of a tensor {X.shape}")
    if iterations < 1:
        raise ConfigError(f"iterations must be at least 1, not {iterations!r}")
    grams = [gram(U) for U in loadings]
    for _ in range(iterations):
        for i, U in enumerate(loadings):
            L = correlations(X, loadings, i, workers)
            Q = prod((G for j, G in enumerate(grams) if j != i), start=np.ones_like(grams[0]))
            loadings[i] = update(U, Q, L)
            grams[i] = gram(loadings[i])
    return Decomposition(tuple(loadings), _error(X, loadings, Q, L))


def _error(X: BigArray, loadings: Sequence[Array], Q: Array, L: Array) -> float:
    """‖X − Out‖/‖X‖ from Q and L of the last factor: ‖X‖² − 2⟨L, U⟩ + ⟨Q, UᵀU⟩ has digits down to 1e-8 of ‖X‖."""
    energy, U = float(np.vdot(X, X)), loadings[-1]
    rest = energy - 2.0 * kernels.inner(L, U) + kernels.inner(product(U, Q), U)
    return sqrt(max(rest, 0.0) / energy) if energy > 0.0 else 0.0


def _tensor(X: Any) -> BigArray:
    """X in doubles and C order, checked."""
    array = np.require(as_array(X, "X"), np.float64, ["C", "A", "W"])
    if array.ndim < 1 or array.size == 0 or not np.isfinite(array).all():
        raise DataError(f"X has shape {array.shape}; a tensor of finite numbers is needed, with at least one mode")
    return array


def _factors(given: Sequence[Array]) -> list[Array]:
    """The factors in C order, each checked to be a nonnegative matrix."""
    factors = [np.array(as_array(U, "a factor"), np.float64, order="C") for U in given]
    if any(U.ndim != 2 or not np.isfinite(U).all() or np.any(U < 0) for U in factors):
        raise DataError("a factor is not a matrix of finite, nonnegative numbers")
    return factors


def _drawn(X: BigArray, share: float) -> int:
    """How many slices a minibatch has."""
    if not 0 < share <= 1:
        raise ConfigError(f"share must be in (0, 1], not {share!r}")
    if X.ndim < 2:
        raise DataError(f"X has shape {X.shape}; slices along the last mode need a mode before it")
    return int(max(1, round(share * X.shape[-1])))
