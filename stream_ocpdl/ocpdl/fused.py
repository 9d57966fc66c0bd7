"""A step of a small problem in one call: what Python and NumPy cost in between would be more than the step.

`step` is Algorithm 4, the aggregates, and one cycle of Algorithm 5 over the modes, for the ordinary case that no norm
bound and no radius is active. Where one is, or rounding is in the way, it says at which mode it stopped, and the caller
goes the long way from there, which has an answer for everything. `code` is Algorithm 4 alone.

The loadings of all modes stand in one array U (ΣIᵢ, R), mode i in its rows offsets[i] … offsets[i + 1]. Below them a
step leaves their Gram matrices, R rows each, so that the next need not make them again. The modes are in two groups, as
in `aggregates`, so that an atom is V(:, r) ⊗ W(r, :), and a tensor (P, Q).
"""

from math import frexp, inf, ldexp

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices
from stream_ocpdl.ocpdl.compiled import kernel, written_in
from stream_ocpdl.ocpdl.fewzeros import solve_all
from stream_ocpdl.ocpdl.kernels import all_good, distance, fold_first, inner, losses_of, pull_left, pulled, scan
from stream_ocpdl.ocpdl.onerow import most_rounds
from stream_ocpdl.ocpdl.panels import absorb_and_fold, add_product, correlate, gram, multiply, turned, turned_in_lanes
from stream_ocpdl.ocpdl.solvers import FLAT, ROUNDING

NORMS, SIGNED, SPARSITY, RIDGE, UPPER, TOLERANCE = range(6)
"""What the rules of a problem are: how far from one a norm may be, whether cells may be negative, λ of ‖H‖₁, λ₂ of
‖H‖², the upper bound of a code, and the residual at which a sub-problem counts as solved."""

BOUNDS, RADII = range(2)
"""What its limits are, by mode; none at all if modes have sets that are not balls."""

BEFORE, AFTER, MODES = range(3)
"""What the sums of a step are: f̂_t before and after; from there, by mode, the movements, then the radii, then the
rounds."""

UNFIT = -1
"""Nothing was learned: some tensor is not finite, negative where it must not be, or of an impossible norm."""

OVERFLOWN = -2
"""Something was learned, and it is not finite."""


@kernel
def step(
    X: BigArray,
    energies: Array,
    U: Array,
    offsets: Indices,
    split: int,
    rules: Array,
    limits: Array,
    w: float,
    past: Array,
    E: float,
    P: float,
    B: BigArray,
) -> tuple[int, int, int, float, float, Array, Array, Array, Array, Array]:
    """X (b, P, Q) learned; past is A, and B (R, P, Q) is written. Energies may be none: then X is measured here.

    The mode at which it stopped: n if all is well, 0 if there are no limits, UNFIT or OVERFLOWN. Then rounds of the
    coding and codes at their bound, E, P, A, H (b, R), losses (b), the new loadings and the sums.
    """
    n, R = offsets.size - 1, U.shape[1]
    sums, keep, share, fit = np.empty(MODES + 3 * n), 1.0 - w, w / X.shape[0], True
    if energies.size == 0:
        energies, fit = measured(X, rules[NORMS], rules[SIGNED] != 0.0)
    if not fit:
        return UNFIT, 0, 0, E, P, past, U, energies, U, sums
    new = with_grams(U, offsets)
    grams = new[offsets[n] :].reshape(n, R, R)
    V, W = khatri_rao(U, offsets, 0, split), turned_in_lanes(khatri_rao(U, offsets, split, n))
    H, losses, used, at_bound = encode(X, energies, V, W, grams, rules)
    A, scaled = past.copy(), H * share
    add_product(0, R, scaled, H, keep, A)
    E = keep * E + share * energies.sum()
    P = keep * P + share * np.abs(H).sum()
    constant = E + rules[SPARSITY] * P + rules[RIDGE] * np.trace(A)
    T = np.empty((R, V.shape[0]))
    absorb_and_fold(B, X, scaled, keep, W, T)
    T, lo, hi = turned(T), 0, split
    moved = 0.0
    for i in range(limits.shape[1]):
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
        radius = w * limits[RADII, i]
        rounds, way = solve_near(Q, L, start, limits[BOUNDS, i], radius, rules[TOLERANCE], Y)
        if rounds < 0:
            return i, used, at_bound, E, P, A, H, losses, new, sums
        sums[MODES + i], sums[MODES + n + i], sums[MODES + 2 * n + i] = way, radius, rounds
        moved += way
        gram(Y, grams[i])
        if i == n - 1:
            sums[AFTER] = constant + inner(grams[i], Q) - 2.0 * inner(Y, L)
            moved += sums[AFTER]
    done = limits.shape[1] if np.isfinite(moved) else OVERFLOWN
    return done, used, at_bound, E, P, A, H, losses, new, sums


@kernel
def measured(X: BigArray, norms: float, signed: bool) -> tuple[Array, bool]:
    """‖X_j‖² of each tensor, and whether all can be learned: norms in (1/norms, norms), no cell below zero."""
    energies, negative = np.empty(X.shape[0]), np.empty(X.shape[0], np.bool_)
    scan(0, X.shape[0], X.reshape(X.shape[0], X.shape[1] * X.shape[2]), energies, negative)
    return energies, all_good(energies, negative, 1.0 / norms**2, norms**2, signed)


@kernel
def code(
    X: BigArray, energies: Array, U: Array, offsets: Indices, split: int, rules: Array
) -> tuple[Array, Array, int, int]:
    """Codes H (b, R) of X (b, P, Q), losses (b), rounds, and how many codes are at their bound."""
    n, R = offsets.size - 1, U.shape[1]
    grams = with_grams(U, offsets)[offsets[n] :].reshape(n, R, R)
    V, W = khatri_rao(U, offsets, 0, split), turned_in_lanes(khatri_rao(U, offsets, split, n))
    return encode(X, energies, V, W, grams, rules)


@written_in
def encode(
    X: BigArray, energies: Array, V: Array, W: Array, grams: Array, rules: Array
) -> tuple[Array, Array, int, int]:
    """`code` for loadings V (P, R) and W (R, Q or more) of the two groups, and Gram matrices (n, R, R)."""
    sparsity, ridge, upper = rules[SPARSITY], rules[RIDGE], rules[UPPER]
    b, R, n = X.shape[0], V.shape[1], grams.shape[0]
    H, rounds, used, at_bound = np.zeros((b, R)), np.zeros(b, np.int64), 0, 0
    room = np.empty((R + 2 * b, R))
    Q, L, QH = room[:R], room[R : R + b], room[R + b :]
    Q[:, :] = 1.0
    for i in range(n):
        Q *= grams[i]
    for r in range(R):
        Q[r, r] += ridge
    correlate(X, V, W, L)
    L -= sparsity / 2
    solve_all(Q, L, upper, rules[TOLERANCE], H, rounds)
    multiply(H, Q, QH)
    for j in range(b):
        for r in range(R):
            at_bound += H[j, r] >= upper
        used = max(used, rounds[j])
    return H, losses_of(energies, H, QH, L), used, at_bound


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
def with_grams(U: Array, offsets: Indices) -> Array:
    """A copy of U with UᵢᵀUᵢ of all modes below the loadings; made here if they are not there yet."""
    n, R, rows = offsets.size - 1, U.shape[1], offsets[-1]
    if U.shape[0] > rows:
        return U.copy()
    out = np.empty((rows + n * R, R))
    for k in range(rows):  # Numba compiles a copy of arrays for seconds, for the sake of its error message
        for r in range(R):
            out[k, r] = U[k, r]
    for i in range(n):
        gram(U[offsets[i] : offsets[i + 1]], out[rows + i * R : rows + (i + 1) * R])
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


@written_in
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
    R = Q.shape[0]
    room, rounds = np.empty((R + L.shape[0], R)), np.zeros(Y.shape[0], np.int64)
    S, load = room[:R], room[R:]
    pulled(Q, L, unit, FLAT, start, S, load)
    solve_all(S, load, inf, max(1e-3 * tolerance, 2e-14), Y, rounds)
    left, size = pull_left(Q, unit, FLAT, start, Y)
    used, moved = rounds.max(), distance(Y, start)
    inside = size <= bound * (1.0 + ROUNDING) and moved <= radius * (1.0 + ROUNDING)
    good = inside and used < most_rounds(Q.shape[0]) and left <= 0.1 * tolerance * size
    return used if good else -1, moved
