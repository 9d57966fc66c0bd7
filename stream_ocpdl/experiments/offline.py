"""Offline methods as races take them: a tensor, factors and a number of iterations → the factors after them.

ALS and MU (Algorithms 6 and 7) are those of `ocpdl.baselines` where a tensor has all its cells, and the same formulas
over its entries where it has few. TensorLy's HALS knows whole tensors only.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.experiments.tensors import Factors, Tensor, Whole, error_of
from stream_ocpdl.ocpdl import baselines
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.baselines import start
from stream_ocpdl.ocpdl.solvers import box_solver

Iterate: TypeAlias = Callable[[list[Array], int], list[Array]]

MOST = 30_000_000
"""Cells of a tensor that methods which know no entries are given: they copy its unfoldings, and take several."""


def als(data: Tensor) -> Iterate:
    """Each factor in turn to optimality (Algorithm 6)."""
    if isinstance(data, Whole):
        return lambda factors, rounds: list(baselines.als(data.X, factors, rounds).loadings)
    solve = box_solver(np.inf, 1e-10)

    def update(U: Array, Q: Array, L: Array) -> Array:
        kept = Q.diagonal() == 0.0
        Y = np.asarray(solve(Q, L, U).Y)
        Y[:, kept] = U[:, kept]
        return Y

    return lambda factors, rounds: _cycles(data, factors, rounds, update)


def mu(data: Tensor) -> Iterate:
    """Each factor in turn multiplied (Algorithm 7)."""
    if isinstance(data, Whole):
        return lambda factors, rounds: list(baselines.mu(data.X, factors, rounds).loadings)

    def update(U: Array, Q: Array, L: Array) -> Array:
        below = U @ Q
        return np.asarray(U * np.divide(L, below, out=np.zeros_like(L), where=below > 0.0))

    return lambda factors, rounds: _cycles(data, factors, rounds, update)


def hals(data: Whole) -> Iterate:
    """TensorLy's best nonnegative decomposition."""
    return tensorly(data, "non_negative_parafac_hals")


def tensorly(data: Whole, name: str) -> Iterate:
    """A decomposition of TensorLy, which with tol = 0 neither stops nor computes errors."""
    try:
        from tensorly import decomposition
        from tensorly.cp_tensor import CPTensor
    except ImportError:
        raise ConfigError("TensorLy is not installed: pip install 'stream-ocpdl[bench]'") from None

    def iterate(factors: list[Array], rounds: int) -> list[Array]:
        rank = factors[0].shape[1]
        start = CPTensor((np.ones(rank), [U.copy() for U in factors]))
        found = getattr(decomposition, name)(data.X, rank, n_iter_max=rounds, init=start, tol=0)
        return [found.factors[0] * found.weights, *found.factors[1:]]

    return iterate


def least_error(data: Tensor, rank: int, rounds: int = 150, seeds: int = 3) -> float:
    """What ALS comes to in the end, the best of a few starts."""
    iterate = als(data)
    return min(error_of(data, iterate(list(start(data.shape, rank, seed)), rounds)) for seed in range(seeds))


def _cycles(data: Tensor, given: Factors, rounds: int, update: Callable[[Array, Array, Array], Array]) -> list[Array]:
    """Rounds over the factors, each from Q = BᵀB and L = unfold(X, i)ᵀB, as `ocpdl.baselines` makes them."""
    factors = [U.copy() for U in given]
    for _ in range(rounds):
        for i, U in enumerate(factors):
            Q = np.ones((U.shape[1],) * 2)
            for j, V in enumerate(factors):
                Q = Q * (V.T @ V) if j != i else Q
            factors[i] = update(U, Q, data.correlations(factors, i))
    return factors
