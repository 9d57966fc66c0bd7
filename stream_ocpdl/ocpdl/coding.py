"""Codes from the normal equations of Algorithm 4: nonnegative ones, or signed ones, for which λ‖H‖₁ has a kink."""

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.fewzeros import solve_range
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.signed import solve_signed
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

SMALLEST = 1e-11
"""A pull of signed codes towards zero, relative to Q: where atoms are nearly alike, they must not run away in pairs."""


def solve_codes(
    problem: Problem, h_max: float, Q: Array, L: Array, H: Array, rounds: Indices, workers: Workers = SERIAL
) -> None:
    """argmin of tr(HQHᵀ) − 2tr(HLᵀ) + λ‖H‖₁ over 0 ≤ H ≤ h_max, or |H| ≤ h_max, from the start in H (b, R) → H.

    The linear term is λ/2: Algorithm 4 subtracts λ from half the gradient, which minimises with 2λ. L, which is WᵀX of
    Algorithm 4, becomes L − λ/2 · sign(H): with it the objective is that of `quadratic`.
    """
    if problem.codes == "signed":
        cost, price = Q.size * (5.0 + len(Q) / 3), problem.sparsity / 2
        near = Q + np.diag(SMALLEST * np.diag(Q))
        workers.run(solve_signed, len(H), cost, near, L, -h_max, h_max, price, problem.tolerance, H, rounds)
        L -= price * np.sign(H)
    else:
        L -= problem.sparsity / 2
        workers.run(solve_range, len(H), 5.0 * Q.size, Q, L, h_max, problem.tolerance, H, rounds)
