"""A step of a small problem in one call: what Python and NumPy cost in between would be more than the step.

`step` is Algorithm 4, the aggregates, and one cycle of Algorithm 5 over the modes, for the ordinary case that no norm
bound and no radius is active. Where one is, or rounding is in the way, it says at which mode it stopped, and the caller
goes the long way from there, which has an answer for everything. `code` is Algorithm 4 alone.

The loadings of all modes stand in one array U (ΣIᵢ, R), mode i in its rows offsets[i] … offsets[i + 1]. The modes are
in two groups, as in `aggregates`, so that an atom is V(:, r) ⊗ W(r, :), and a tensor (P, Q).
"""

from math import frexp, inf, ldexp

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices
from stream_ocpdl.ocpdl.compiled import kernel
from stream_ocpdl.ocpdl.kernels import all_good, distance, fold_first, inner, pull_left, pulled, scan
from stream_ocpdl.ocpdl.panels import absorb_and_fold, add_product, correlate, gram, multiply, turned, turned_in_lanes
from stream_ocpdl.ocpdl.rows import most_rounds, solve_rows
from stream_ocpdl.ocpdl.solvers import FLAT, ROUNDING

USED, AT_BOUND, ROUNDS = 0, 1, 2
"""What the counts of a step are: rounds of the coding, codes at their upper bound, and from there rounds by mode."""

E, P, BEFORE, AFTER, MOVEMENTS = 0, 1, 2, 3, 4
"""What its sums are: E and P of the aggregates (those of the past before), f̂_t before and after, from there
‖U_t − U_{t−1}‖ by mode, and then the radii."""

UNFIT = -1
"""Nothing was learned: some tensor is not finite, negative where it must not be, or of an impossible norm."""


@kernel
def step(
    X: BigArray,
    energies: Array,
    norms: float,
    signed: bool,
    U: Array,
    offsets: Indices,
    split: int,
    w: float,
    penalties: tuple[float, float, float],
    tolerance: float,
    bounds: Array,
    reach: Array,
    past: tuple[Array, float, float],
    B: BigArray,
) -> tuple[int, Array, Array, Array, Array, Array, Indices]:
    """X (b, P, Q) learned; B (R, P, Q) is written. The mode at which it stopped: n if all is well, 0 if there are no
    bounds, and UNFIT if X has to be looked at. Then A, H (b, R), losses (b), the new loadings, sums and counts.
    """
    n, R = offsets.size - 1, U.shape[1]
    sums, keep, share, fit = np.empty(MOVEMENTS + 2 * n), 1.0 - w, w / X.shape[0], True
    if energies.size == 0:
        energies, fit = measured(X, norms, signed)
    if not fit:
        return UNFIT, past[0], U, energies, U, sums, np.empty(0, np.int64)
    grams = all_grams(U, offsets)
    V, W = khatri_rao(U, offsets, 0, split), turned_in_lanes(khatri_rao(U, offsets, split, n))
    H, losses, counts = encode(X, energies, V, W, grams, penalties, tolerance)
    A, new, scaled = past[0].copy(), U.copy(), H * share
    add_product(0, R, scaled, H, keep, A)
    sums[E] = keep * past[1] + share * energies.sum()
    sums[P] = keep * past[2] + share * np.abs(H).sum()
    constant = sums[E] + penalties[0] * sums[P] + penalties[1] * np.trace(A)
    T = np.empty((R, V.shape[0]))
    absorb_and_fold(B, X, scaled, keep, W, T)
    T, lo, hi = turned(T), 0, split
    for i in range(bounds.size):
        if i == split:
            T = np.empty((R, X.shape[2]))
            fold_first(0, X.shape[2], B, khatri_rao(new, offsets, 0, split), T)
            T, lo, hi = turned(T), split, n
        Q, L = A.copy(), right_side(T, new, offsets, lo, i, hi)
        for j in range(n):
            if j != i:
                Q *= grams[j]
        start, Y = U[offsets[i] : offsets[i + 1]], new[offsets[i] : offsets[i + 1]]
        if i == 0:
            sums[BEFORE] = constant + inner(grams[i], Q) - 2.0 * inner(Y, L)
        sums[MOVEMENTS + n + i] = w * reach[i]
        used, moved = solve_near(Q, L, start, bounds[i], w * reach[i], tolerance, Y)
        if used < 0:
            return i, A, H, losses, new, sums, counts
        counts[ROUNDS + i], sums[MOVEMENTS + i] = used, moved
        gram(Y, grams[i])
        if i == n - 1:
            sums[AFTER] = constant + inner(grams[i], Q) - 2.0 * inner(Y, L)
    return bounds.size, A, H, losses, new, sums, counts


@kernel
def measured(X: BigArray, norms: float, signed: bool) -> tuple[Array, bool]:
    """‖X_j‖² of each tensor, and whether all can be learned: norms in (1/norms, norms), no cell below zero."""
    energies, negative = np.empty(X.shape[0]), np.empty(X.shape[0], np.bool_)
    scan(0, X.shape[0], X.reshape(X.shape[0], X.shape[1] * X.shape[2]), energies, negative)
    return energies, all_good(energies, negative, 1.0 / norms**2, norms**2, signed)


@kernel
def code(
    X: BigArray,
    energies: Array,
    U: Array,
    offsets: Indices,
    split: int,
    penalties: tuple[float, float, float],
    tolerance: float,
) -> tuple[Array, Array, Indices]:
    """Codes H (b, R) of X (b, P, Q), losses (b) and counts."""
    V, W = khatri_rao(U, offsets, 0, split), turned_in_lanes(khatri_rao(U, offsets, split, offsets.size - 1))
    return encode(X, energies, V, W, all_grams(U, offsets), penalties, tolerance)


@kernel
def encode(
    X: BigArray,
    energies: Array,
    V: Array,
    W: Array,
    grams: Array,
    penalties: tuple[float, float, float],
    tolerance: float,
) -> tuple[Array, Array, Indices]:
    """`code` for loadings V (P, R) and W (R, Q or more) of the two groups, and Gram matrices (n, R, R).

    penalties: λ of ‖H‖₁, λ₂ of ‖H‖², and the upper bound of a code.
    """
    sparsity, ridge, upper = penalties
    b, R, n = X.shape[0], V.shape[1], grams.shape[0]
    H, losses, counts = np.zeros((b, R)), np.empty(b), np.zeros(ROUNDS + n, np.int64)
    Q, L, QH, rounds = np.ones((R, R)), np.empty((b, R)), np.empty((b, R)), np.zeros(b, np.int64)
    for i in range(n):
        Q *= grams[i]
    for r in range(R):
        Q[r, r] += ridge
    correlate(X, V, W, L)
    L -= sparsity / 2
    solve_rows(0, b, Q, L, upper, tolerance, H, rounds)
    multiply(H, Q, QH)
    for j in range(b):
        total = 0.0
        for r in range(R):
            total += H[j, r] * (QH[j, r] - 2.0 * L[j, r])
            counts[AT_BOUND] += H[j, r] >= upper
        losses[j] = max(energies[j] + total, 0.0)
        counts[USED] = max(counts[USED], rounds[j])
    return H, losses, counts


@kernel
def khatri_rao(U: Array, offsets: Indices, lo: int, hi: int) -> Array:
    """Column by column the outer product of modes [lo, hi), as one mode (cells, R); of no modes a row of ones."""
    R = U.shape[1]
    out = np.ones((1, R))
    for i in range(lo, hi):
        mode = U[offsets[i] : offsets[i + 1]]
        if i == lo:
            out = np.copy(mode)
            continue
        wider = np.empty((out.shape[0] * mode.shape[0], R))
        for p in range(out.shape[0]):
            for q in range(mode.shape[0]):
                for r in range(R):
                    wider[p * mode.shape[0] + q, r] = out[p, r] * mode[q, r]
        out = wider
    return out


@kernel
def all_grams(U: Array, offsets: Indices) -> Array:
    """UᵢᵀUᵢ of all modes (n, R, R)."""
    out = np.empty((offsets.size - 1, U.shape[1], U.shape[1]))
    for i in range(out.shape[0]):
        gram(U[offsets[i] : offsets[i + 1]], out[i])
    return out


@kernel
def right_side(T: Array, U: Array, offsets: Indices, lo: int, i: int, hi: int) -> Array:
    """B̄ (Iᵢ, R) of mode i, eq:def_Btrj, from T (cells of modes [lo, hi), R)."""
    R, size = T.shape[1], offsets[i + 1] - offsets[i]
    if i + 1 < hi:
        right = khatri_rao(U, offsets, i + 1, hi)
        T = weighted(T.reshape(T.shape[0] // right.shape[0], right.shape[0], R), right)
    if lo < i:
        left = khatri_rao(U, offsets, lo, i)
        out = np.zeros((size, R))
        for p in range(left.shape[0]):
            for m in range(size):
                for r in range(R):
                    out[m, r] += left[p, r] * T[p * size + m, r]
        T = out
    return T


@kernel
def weighted(T: Array, W: Array) -> Array:
    """Σ_q T[p, q, r] W[q, r]."""
    out = np.zeros((T.shape[0], T.shape[2]))
    for p in range(T.shape[0]):
        for q in range(T.shape[1]):
            for r in range(T.shape[2]):
                out[p, r] += T[p, q, r] * W[q, r]
    return out


@kernel
def solve_near(
    Q: Array, L: Array, start: Array, bound: float, radius: float, tolerance: float, Y: Array
) -> tuple[int, float]:
    """`solvers.minimise_near` where neither bound nor radius is active: rounds, or −1 where not; and the way.

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
    used, moved = rounds.max(), distance(Y, start)
    inside = size <= bound * (1.0 + ROUNDING) and moved <= radius * (1.0 + ROUNDING)
    good = inside and used < most_rounds(Q.shape[0]) and left <= 0.1 * tolerance * size
    return used if good else -1, moved
