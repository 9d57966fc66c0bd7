"""A step of a small problem in two calls: what Python and NumPy cost in between would be more than the step.

`code` is Algorithm 4, `cycle` one cycle of Algorithm 5 over the modes, for the ordinary case that no norm bound and no
radius is active. Where one is, or rounding is in the way, `cycle` says at which mode it stopped, and the caller goes
the long way, which has an answer for everything. Both are what the long way does, kernel by kernel.

The loadings of all modes stand in one array U (ΣIᵢ, R), mode i in its rows offsets[i] … offsets[i + 1].
"""

from math import frexp, inf, ldexp

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices
from stream_ocpdl.ocpdl.compiled import kernel
from stream_ocpdl.ocpdl.kernels import (
    contract,
    contract_next,
    distance,
    fold_first,
    fold_last,
    gram,
    inner,
    multiply,
    pull_left,
    pulled,
)
from stream_ocpdl.ocpdl.rows import most_rounds, solve_rows
from stream_ocpdl.ocpdl.solvers import FLAT, ROUNDING


@kernel
def khatri_rao(U: Array, offsets: Indices, lo: int, hi: int) -> Array:
    """Column by column the outer product of modes [lo, hi), as one mode (cells, R); of no modes a row of ones."""
    R = U.shape[1]
    out = np.ones((1, R))
    for i in range(lo, hi):
        mode = U[offsets[i] : offsets[i + 1]]
        wider = np.empty((out.shape[0] * mode.shape[0], R))
        for p in range(out.shape[0]):
            for q in range(mode.shape[0]):
                for r in range(R):
                    wider[p * mode.shape[0] + q, r] = out[p, r] * mode[q, r]
        out = wider
    return out


@kernel
def code(
    X: BigArray,
    U: Array,
    offsets: Indices,
    split: int,
    ridge: float,
    sparsity: float,
    upper: float,
    tolerance: float,
    energies: Array,
    H: Array,
    losses: Array,
    rounds: Indices,
) -> tuple[int, int]:
    """Codes of X (b, P, Q) → H (b, R), which is zero before; losses (b). The most rounds, how many are at the bound."""
    b, R = H.shape
    V, W = khatri_rao(U, offsets, 0, split), khatri_rao(U, offsets, split, offsets.size - 1)
    G, Q = np.empty((R, R)), np.ones((R, R))
    for i in range(offsets.size - 1):
        gram(U[offsets[i] : offsets[i + 1]], G)
        Q *= G
    for r in range(R):
        Q[r, r] += ridge
    Y, L, QH = np.empty((b * V.shape[0], R)), np.empty((b, R)), np.empty((b, R))
    contract(0, Y.shape[0], X.reshape(b * V.shape[0], W.shape[0]), W, Y)
    contract_next(0, b, Y.reshape(b, V.shape[0], R), V, L)
    L -= sparsity / 2
    solve_rows(0, b, Q, L, upper, tolerance, H, rounds)
    multiply(H, Q, QH)
    used, at_bound = 0, 0
    for j in range(b):
        total = 0.0
        for r in range(R):
            total += H[j, r] * (QH[j, r] - 2.0 * L[j, r])
            at_bound += H[j, r] >= upper
        losses[j] = max(energies[j] + total, 0.0)
        used = max(used, rounds[j])
    return used, at_bound


@kernel
def cycle(
    A: Array,
    B: BigArray,
    old: Array,
    offsets: Indices,
    split: int,
    bounds: Array,
    radii: Array,
    tolerance: float,
    new: Array,
    surrogates: Array,
    movements: Array,
    rounds: Indices,
) -> int:
    """One cycle over the modes, eq:dict_update_OCPDL; B (R, P, Q). The mode at which it stopped: n if all is well.

    old (ΣIᵢ, R) → new; the quadratic part of f̂_t before and after → surrogates (2); movements (n), rounds (n).
    """
    n, R = offsets.size - 1, A.shape[0]
    new[:, :] = old
    grams = np.empty((n, R, R))
    for i in range(n):
        gram(old[offsets[i] : offsets[i + 1]], grams[i])
    T = np.empty((R, 1))
    lo, hi = 0, 0
    for i in range(n):
        if i == 0 or i == split:
            lo, hi = (0, split) if i < split else (split, n)
            T = without_others(B, new, offsets, split, i < split)
        Q, L = np.copy(A), right_side(T, new, offsets, lo, i, hi)
        for j in range(n):
            if j != i:
                Q *= grams[j]
        start, Y = old[offsets[i] : offsets[i + 1]], new[offsets[i] : offsets[i + 1]]
        if i == 0:
            surrogates[0] = value(start, Q, L)
        used = solve_near(Q, L, start, bounds[i], radii[i], tolerance, Y)
        if used < 0:
            return i
        rounds[i], movements[i] = used, distance(Y, start)
        gram(Y, grams[i])
        if i == n - 1:
            surrogates[1] = value(Y, Q, L)
    return n


@kernel
def value(Y: Array, Q: Array, L: Array) -> float:
    """tr(Y Q Yᵀ) − 2 tr(Y Lᵀ)."""
    YQ = np.empty_like(Y)
    multiply(Y, Q, YQ)
    return inner(Y, YQ) - 2.0 * inner(Y, L)


@kernel
def without_others(B: BigArray, U: Array, offsets: Indices, split: int, first: bool) -> Array:
    """B contracted with the modes of the other group: (R, P) for the first group, (R, Q) for the second."""
    R, P, Q = B.shape
    if first:
        W = khatri_rao(U, offsets, split, offsets.size - 1)
        turned = np.empty((R, Q))
        for q in range(Q):
            for r in range(R):
                turned[r, q] = W[q, r]
        out = np.empty((R, P))
        fold_last(0, R * P, B, turned, out)
    else:
        out = np.empty((R, Q))
        fold_first(0, Q, B, khatri_rao(U, offsets, 0, split), out)
    return out


@kernel
def right_side(T: Array, U: Array, offsets: Indices, lo: int, i: int, hi: int) -> Array:
    """B̄ (Iᵢ, R) of mode i, eq:def_Btrj, from T (R, cells of modes [lo, hi))."""
    R, size = T.shape[0], offsets[i + 1] - offsets[i]
    left, right = khatri_rao(U, offsets, lo, i), khatri_rao(U, offsets, i + 1, hi)
    out = np.zeros((size, R))
    for r in range(R):
        cell = 0
        for p in range(left.shape[0]):
            for m in range(size):
                total = 0.0
                for q in range(right.shape[0]):
                    total += T[r, cell + q] * right[q, r]
                out[m, r] += left[p, r] * total
                cell += right.shape[0]
    return out


@kernel
def solve_near(Q: Array, L: Array, start: Array, bound: float, radius: float, tolerance: float, Y: Array) -> int:
    """`solvers.minimise_near` where neither bound nor radius is active: rounds, or −1 where that is not so.

    Y is the start before, and the minimiser after.
    """
    steepest = 0.0
    for r in range(Q.shape[0]):
        steepest = max(steepest, Q[r, r])
    unit = ldexp(1.0, -frexp(steepest)[1])  # a power of two, which changes no digit: squares must not overflow
    S, load, rounds = np.empty_like(Q), np.empty_like(L), np.zeros(Y.shape[0], np.int64)
    pulled(Q, L, unit, FLAT, start, S, load)
    solve_rows(0, Y.shape[0], S, load, inf, max(1e-3 * tolerance, 2e-14), Y, rounds)
    left, size = pull_left(Q, unit, FLAT, start, Y)
    used = rounds.max()
    inside = size <= bound * (1.0 + ROUNDING) and distance(Y, start) <= radius * (1.0 + ROUNDING)
    return used if inside and used < most_rounds(Q.shape[0]) and left <= 0.1 * tolerance * size else -1
