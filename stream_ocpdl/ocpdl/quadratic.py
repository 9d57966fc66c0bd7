"""The one sub-problem of the algorithm, and when a point solves it.

Coding (Algorithm 4, eq:coding_OCPDL) and the loading update (Algorithm 5, eq:dict_update_OCPDL) are one problem,

    min over Y in C of  tr(Y Q Yᵀ) − 2 tr(Y Lᵀ),      Q (R, R) positive semidefinite, Y and L (rows, R).

A point Y of C is a minimiser exactly where the residual ‖Y − Π_C(Y − (YQ − L)/‖Q‖)‖, here relative to ‖Y‖, is zero.
`solvers` has the ways to get there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from stream_ocpdl.ocpdl import kernels, panels
from stream_ocpdl.ocpdl.arrays import Array


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A minimiser, the rounds that finding it took, the multiplier of the ball it was sought in, and whether the
    search met its tolerance.
    """

    Y: Array
    rounds: int
    multiplier: float = 0.0
    settled: bool = True


Solver = Callable[[Array, Array, Array], Solution]
"""Q, L, a start → the minimiser over the solver's set."""


def objective(Y: Array, Q: Array, L: Array) -> float:
    """tr(Y Q Yᵀ) − 2 tr(Y Lᵀ), prop:g_t_derivation (ii)."""
    return kernels.inner(Y, product(Y, Q)) - 2.0 * kernels.inner(Y, L)


def half_gradient(Y: Array, Q: Array, L: Array) -> Array:
    """YQ − L."""
    return product(Y, Q) - L


def residual(Y: Array, Q: Array, L: Array, project: Callable[[Array], Array]) -> float:
    """‖Y − Π(Y − (YQ − L)/‖Q‖)‖ / ‖Y‖ for the projection Π onto the set. Zero too where Q is."""
    return moved(Y, Q, L, project, float(np.linalg.eigvalsh(Q)[-1].clip(0.0)))


def moved(Y: Array, Q: Array, L: Array, project: Callable[[Array], Array], steepness: float) -> float:
    """The same with any step 1/steepness; with max Qᵣᵣ ≤ ‖Q‖ it is no smaller and asks no eigenvalue."""
    if steepness == 0.0:
        return 0.0
    distance = kernels.distance(Y, project(Y - half_gradient(Y, Q, L) / steepness))
    return distance / max(norm(Y), 1e-300) if distance > 0.0 else 0.0


def product(Y: Array, Q: Array) -> Array:
    """YQ for a symmetric Q."""
    out = np.empty(Y.shape)
    panels.multiply(np.ascontiguousarray(Y), np.ascontiguousarray(Q), out)
    return out


def norm(Y: Array) -> float:
    """‖Y‖_F."""
    return sqrt(kernels.inner(Y, Y))


def largest_diagonal(Q: Array) -> float:
    """max Qᵣᵣ, at most ‖Q‖."""
    return kernels.largest_diagonal(Q)


def largest_row(Q: Array) -> float:
    """max over r of Σₛ|Qᵣₛ|, at least ‖Q‖."""
    return float(np.abs(Q).sum(axis=0).max())
