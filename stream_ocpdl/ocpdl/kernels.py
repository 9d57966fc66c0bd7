"""Every compiled function of the package.

They live in one file because Numba's cache does not notice a change in a function defined in another one. They
are serial, release the GIL, and take first a range [lo, hi) of *independent* outputs: `workers.Workers` runs
several ranges side by side. What an output is computed from, and in which order, never depends on the range, so
results do not depend on the number of threads, to the last bit.

Flags: reassociation and contraction, so that loops become vector instructions; never `nnan` or `ninf`, because a
NaN or an infinity must survive until somebody notices it. `error_model="numpy"` spares the division checks.

Shapes: R atoms, M = I₁⋯Iₙ cells, b tensors. Reductions are accumulated in float64 whatever the data are.
"""

from collections.abc import Callable
from math import inf, sqrt
from typing import Any, TypeVar, cast

import numba
import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, BigArray, Flags, Indices

F = TypeVar("F", bound=Callable[..., Any])

TILE = 256
"""Cells of a tile: ranges of cells begin at multiples of it, and a tile's accumulators stay in the first cache."""


SPAN = 256
"""Terms of a sum that are taken at a time: what is turned for them stays in the cache."""

LANES = 32
"""Running sums of an energy. Cell m of a tensor belongs to lane m mod LANES: an order of summation that is fixed, and
still becomes vector instructions."""


def kernel(function: F) -> F:
    """Compile once per signature, and keep the result on disk."""
    flags = {"nsz", "arcp", "contract", "afn", "reassoc"}
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=flags)(function))


def exact(function: F) -> F:
    """The same in the order that is written, for sums that two kernels must have to the last bit."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


# ── reading a minibatch ────────────────────────────────────────────────────────────────────────────────────────


@exact
def scan(lo: int, hi: int, X: BigArray, energies: Array, negative: Flags) -> None:
    """‖X_j‖² of each tensor j in [lo, hi), and whether a cell is below zero. X (b, M) → energies (b), negative (b)."""
    sums = np.empty(LANES)
    whole = X.shape[1] // TILE * TILE
    for j in range(lo, hi):
        sums[:] = 0.0
        below = False
        for first in range(0, whole, TILE):
            below |= measure_tile(X[j, first : first + TILE], sums)
        below |= measure_rest(X[j, whole:], sums)
        energies[j] = total(sums)
        negative[j] = below


@exact
def copy(source: BigArray, out: BigArray) -> tuple[float, bool]:
    """A tensor (M) → out (M) of any dtype; and what `scan` finds in the copy, read while it is in the first cache."""
    sums = np.zeros(LANES)
    whole = out.size // TILE * TILE
    below = False
    for first in range(0, whole, TILE):
        here, there = out[first : first + TILE], source[first : first + TILE]
        for m in range(TILE):
            here[m] = there[m]
        below |= measure_tile(here, sums)
    for m in range(whole, out.size):
        out[m] = source[m]
    below |= measure_rest(out[whole:], sums)
    return total(sums), below


@exact
def scatter(indices: Indices, values: BigArray, out: BigArray) -> tuple[float, bool, int]:
    """The tensor (M) with these entries, and zeros elsewhere → out; what `scan` finds in it; how many entries fit.

    The first index that is not above the one before, or not a cell, ends it.
    """
    sums = np.zeros(LANES)
    below = False
    out[:] = 0.0
    last = -1
    for k in range(indices.size):
        m = indices[k]
        if m <= last or m >= out.size:
            return 0.0, False, k
        last = m
        x = np.float64(values[k])
        if x < 0.0:
            below = True
        out[m] = values[k]
        sums[m % LANES] += x * x
    return total(sums), below, indices.size


@exact
def measure_tile(x: BigArray, sums: Array) -> bool:
    """x² of a tile, cell m added to sums[m mod LANES]; whether a cell is below zero. A NaN shows in the sums only.

    Lane after lane, so that a sum stays in its register; each adds its cells in ascending order.
    """
    for k in range(LANES):
        energy = sums[k]
        for row in range(TILE // LANES):
            v = np.float64(x[row * LANES + k])
            energy += v * v
        sums[k] = energy
    below = False
    for m in range(TILE):
        below |= x[m] < 0.0
    return below


@exact
def measure_rest(x: BigArray, sums: Array) -> bool:
    """The same for the cells that fill no tile."""
    below = False
    for m in range(x.size):
        v = np.float64(x[m])
        sums[m % LANES] += v * v
        if v < 0.0:
            below = True
    return below


@exact
def total(sums: Array) -> float:
    """The sum of the lanes, by halves. The sums are written."""
    size = LANES
    while size > 1:
        size //= 2
        for k in range(size):
            sums[k] += sums[size + k]
    return float(sums[0])


@kernel
def contract(lo: int, hi: int, X: BigArray, W: Array, out: Array) -> None:
    """XW, rows [lo, hi) (Algorithm 4's WᵀX for one group of modes). X (N, Q), W (Q, R) → out (N, R).

    By spans of the sum, for which W is turned so that all loops run along memory; two rows and four atoms at a time, so
    that a number that was loaded is used several times.
    """
    Q, R = W.shape
    turned = np.empty((R, SPAN))
    out[lo:hi, :] = 0.0
    for first in range(0, Q, SPAN):
        size = min(SPAN, Q - first)
        for q in range(size):
            for r in range(R):
                turned[r, q] = W[first + q, r]
        for n in range(lo, hi - 1, 2):
            x, y = X[n, first : first + size], X[n + 1, first : first + size]
            for r in range(0, R - 3, 4):
                dots(x, y, turned[r : r + 4, :size], out[n, r : r + 4], out[n + 1, r : r + 4])
            for r in range(R // 4 * 4, R):
                out[n, r] += dot(x, turned[r, :size])
                out[n + 1, r] += dot(y, turned[r, :size])
        if (hi - lo) % 2:
            for r in range(R):
                out[hi - 1, r] += dot(X[hi - 1, first : first + size], turned[r, :size])


@kernel
def dots(x: BigArray, y: BigArray, W: Array, to_x: Array, to_y: Array) -> None:
    """⟨x, w⟩ and ⟨y, w⟩ for the four rows w of W, added."""
    u, v, w, z = W[0], W[1], W[2], W[3]
    xu = xv = xw = xz = yu = yv = yw = yz = 0.0
    for q in range(x.size):
        a, b = np.float64(x[q]), np.float64(y[q])
        xu += a * u[q]
        xv += a * v[q]
        xw += a * w[q]
        xz += a * z[q]
        yu += b * u[q]
        yv += b * v[q]
        yw += b * w[q]
        yz += b * z[q]
    to_x[0] += xu
    to_x[1] += xv
    to_x[2] += xw
    to_x[3] += xz
    to_y[0] += yu
    to_y[1] += yv
    to_y[2] += yw
    to_y[3] += yz


@kernel
def dot(x: BigArray, y: Array) -> float:
    """⟨x, y⟩."""
    total = 0.0
    for q in range(x.size):
        total += np.float64(x[q]) * y[q]
    return total


@kernel
def contract_next(lo: int, hi: int, T: Array, U: Array, out: Array) -> None:
    """The next mode, atom by atom. T (P, I, R), U (I, R) → out[p, r] = Σᵢ T[p, i, r] U[i, r], p in [lo, hi)."""
    for p in range(lo, hi):
        out[p, :] = 0.0
        for i in range(T.shape[1]):
            for r in range(T.shape[2]):
                out[p, r] += T[p, i, r] * U[i, r]


# ── missing cells ──────────────────────────────────────────────────────────────────────────────────────────────


@kernel
def scan_observed(lo: int, hi: int, rows: Indices, X: BigArray, energies: Array, missing: Indices) -> None:
    """Σx² over the cells of tensor rows[k] that are not NaN, and how many are, k in [lo, hi). X (b, M) → two of (b)."""
    for k in range(lo, hi):
        energy, gaps = 0.0, 0
        for m in range(X.shape[1]):
            x = np.float64(X[rows[k], m])
            if x == x:
                energy += x * x
            else:
                gaps += 1
        energies[rows[k]] = energy
        missing[rows[k]] = gaps


@kernel
def observed_normal(X: BigArray, V: Array, U: Array, Q: Array, L: Array) -> None:
    """Σ d dᵀ and Σ x d over the observed cells x of X (P, I), d = V[p] ⊙ U[i]. V (P, R), U (I, R) → Q (R, R), L (R).

    Observed cells are collected by the tile, so that the sums become vector instructions.
    """
    x, D = np.empty(TILE), np.empty((U.shape[1], TILE))
    Q[:, :] = 0.0
    L[:] = 0.0
    size = 0
    for p in range(X.shape[0]):
        for i in range(X.shape[1]):
            if X[p, i] == X[p, i]:
                x[size] = X[p, i]
                for r in range(U.shape[1]):
                    D[r, size] = V[p, r] * U[i, r]
                size += 1
                if size == TILE:
                    add_normal(x, D, Q, L)
                    size = 0
    add_normal(x[:size], D, Q, L)


@kernel
def add_normal(x: Array, D: Array, Q: Array, L: Array) -> None:
    """Q + DDᵀ, L + Dx for the first columns of D (R, TILE), one for each cell of x."""
    for r in range(L.size):
        total = 0.0
        for m in range(x.size):
            total += D[r, m] * x[m]
        L[r] += total
        for s in range(r + 1):
            total = 0.0
            for m in range(x.size):
                total += D[r, m] * D[s, m]
            Q[r, s] += total
            Q[s, r] = Q[r, s]


@kernel
def fill_missing(V: Array, U: Array, out: BigArray) -> None:
    """The cells of out (P, I) that are NaN become (VUᵀ)[p, i]; V (P, R) carries the code, U (I, R)."""
    for p in range(out.shape[0]):
        for i in range(out.shape[1]):
            if out[p, i] != out[p, i]:
                total = 0.0
                for r in range(U.shape[1]):
                    total += V[p, r] * U[i, r]
                out[p, i] = total


# ── aggregates ─────────────────────────────────────────────────────────────────────────────────────────────────


@kernel
def gram(U: Array, out: Array) -> None:
    """UᵀU. U (I, R) → out (R, R)."""
    out[:, :] = 0.0
    for i in range(U.shape[0]):
        for r in range(U.shape[1]):
            u = U[i, r]
            for s in range(U.shape[1]):
                out[r, s] += u * U[i, s]


@kernel
def absorb(lo: int, hi: int, B: BigArray, X: BigArray, H: Array, w: float, out: BigArray) -> None:
    """(1−w)B + (w/b) Hᵀ·X, eq:main_alg_aggregate_tensors. B (R, M), X (b, M), H (b, R) → out (R, M), cells [lo, hi).

    Four tensors and four atoms at a time, so that a number that was loaded is used several times.
    """
    b, R = H.shape
    sums = np.empty((R, TILE))
    keep, take = 1.0 - w, w / b
    for first in range(lo, hi, TILE):
        last = min(first + TILE, hi)
        S = sums[:, : last - first]
        S[:, :] = 0.0
        for j in range(0, b - 3, 4):
            X4 = X[j : j + 4, first:last]
            for r in range(0, R - 3, 4):
                add_four_to_four(H[j : j + 4, r : r + 4], X4, S[r : r + 4])
            for r in range(R // 4 * 4, R):
                add_four(H[j : j + 4, r], X4, S[r])
        for j in range(b // 4 * 4, b):
            for r in range(R):
                add(H[j, r], X[j, first:last], S[r])
        for r in range(R):
            blend(keep, B[r, first:last], take, S[r], out[r, first:last])


@kernel
def add_four_to_four(H: Array, X: BigArray, out: Array) -> None:
    """out + HᵀX. H (4, 4), X (4, m), out (4, m)."""
    x0, x1, x2, x3 = X[0], X[1], X[2], X[3]
    o0, o1, o2, o3 = out[0], out[1], out[2], out[3]
    a0, a1, a2, a3 = H[0, 0], H[1, 0], H[2, 0], H[3, 0]
    b0, b1, b2, b3 = H[0, 1], H[1, 1], H[2, 1], H[3, 1]
    c0, c1, c2, c3 = H[0, 2], H[1, 2], H[2, 2], H[3, 2]
    d0, d1, d2, d3 = H[0, 3], H[1, 3], H[2, 3], H[3, 3]
    for m in range(x0.size):
        p, q, r, s = np.float64(x0[m]), np.float64(x1[m]), np.float64(x2[m]), np.float64(x3[m])
        o0[m] += (a0 * p + a1 * q) + (a2 * r + a3 * s)
        o1[m] += (b0 * p + b1 * q) + (b2 * r + b3 * s)
        o2[m] += (c0 * p + c1 * q) + (c2 * r + c3 * s)
        o3[m] += (d0 * p + d1 * q) + (d2 * r + d3 * s)


@kernel
def add_four(h: Array, X: BigArray, out: Array) -> None:
    """out + hX. h (4), X (4, m), out (m)."""
    x0, x1, x2, x3 = X[0], X[1], X[2], X[3]
    h0, h1, h2, h3 = h[0], h[1], h[2], h[3]
    for m in range(x0.size):
        out[m] += (h0 * x0[m] + h1 * x1[m]) + (h2 * x2[m] + h3 * x3[m])


@kernel
def add(h: float, x: BigArray, out: Array) -> None:
    """out + hx."""
    if h != 0.0:
        for m in range(x.size):
            out[m] += h * x[m]


@kernel
def blend(keep: float, x: BigArray, take: float, y: Array, out: BigArray) -> None:
    """keep·x + take·y → out."""
    for m in range(x.size):
        out[m] = keep * x[m] + take * y[m]


@kernel
def fold_last(lo: int, hi: int, T: BigArray, W: Array, out: Array) -> None:
    """B(,r) contracted with W(r, :) over the last group of modes (eq:def_Btrj). T (R, P, Q), W (R, Q) → out (R, P),
    places [lo, hi) of out.
    """
    P = T.shape[1]
    for place in range(lo, hi):
        out[place // P, place % P] = dot(T[place // P, place % P], W[place // P])


@kernel
def fold_first(lo: int, hi: int, T: BigArray, V: Array, out: Array) -> None:
    """B(,r) contracted with V(:, r) over the first group of modes (eq:def_Btrj). T (R, P, Q), V (P, R) → out (R, Q),
    columns [lo, hi).
    """
    for first in range(lo, hi, TILE):
        last = min(first + TILE, hi)
        for r in range(T.shape[0]):
            out[r, first:last] = 0.0
            for p in range(0, T.shape[1] - 3, 4):
                add_four(V[p : p + 4, r], T[r, p : p + 4, first:last], out[r, first:last])
            for p in range(T.shape[1] // 4 * 4, T.shape[1]):
                add(V[p, r], T[r, p, first:last], out[r, first:last])


# ── small reductions ───────────────────────────────────────────────────────────────────────────────────────────


@kernel
def inner(Y: Array, Z: Array) -> float:
    """⟨Y, Z⟩ of two matrices of one shape."""
    total = 0.0
    for i in range(Y.shape[0]):
        for r in range(Y.shape[1]):
            total += Y[i, r] * Z[i, r]
    return total


@kernel
def distance(Y: Array, Z: Array) -> float:
    """‖Y − Z‖_F of two matrices of one shape."""
    total = 0.0
    for i in range(Y.shape[0]):
        for r in range(Y.shape[1]):
            total += (Y[i, r] - Z[i, r]) ** 2
    return sqrt(total)


@kernel
def multiply(Y: Array, Q: Array, out: Array) -> None:
    """YQ for a symmetric Q. Y (I, R), Q (R, R) → out (I, R)."""
    for i in range(Y.shape[0]):
        for r in range(Q.shape[0]):
            total = 0.0
            for s in range(Q.shape[0]):
                total += Y[i, s] * Q[r, s]
            out[i, r] = total


# ── the sub-problem, row by row: 0 ≤ y ≤ upper ─────────────────────────────────────────────────────────────────


@kernel
def solve_rows(lo: int, hi: int, Q: Array, L: Array, upper: float, tolerance: float, Y: Array, rounds: Indices) -> None:
    """min of yQyᵀ − 2⟨y, l⟩ over 0 ≤ y ≤ upper for each row l of L in [lo, hi); Y holds the start, then the minimisers.

    A round is two sweeps of coordinate descent, which guess the face of the box on which the minimiser lies, and
    Newton steps on that face, which find its minimiser. The objective never rises and a face's minimiser is never
    met twice, so the rounds end; rounds[i] says after how many. There is at least one: where Q is nearly flat, a start
    may satisfy the tolerance and still be far from the minimiser. All this in units in which Q has a unit diagonal, so
    that an atom of tiny norm is coded as exactly as any other.
    """
    R = Q.shape[0]
    y, g, d, load, bound = np.empty(R), np.empty(R), np.empty(R), np.empty(R), np.empty(R)
    face, C, S, unit = np.empty(R, np.int64), np.empty((R, R)), np.empty((R, R)), np.empty(R)
    to_unit_diagonal(Q, S, unit)
    most = most_rounds(R)
    for r in range(R):
        bound[r] = upper * unit[r]
    for i in range(lo, hi):
        for r in range(R):
            y[r] = min(max(Y[i, r] * unit[r], 0.0), bound[r])
            load[r] = L[i, r] / unit[r]
        gradient(S, load, y, g)
        used = 0
        while used < most:
            bad = row_residual(S, y, g, bound)
            if bad == 0.0 or (used > 0 and bad <= tolerance * length(S, y)):
                break
            used += 1
            for _ in range(2):
                sweep_row(S, y, g, bound)
            gradient(S, load, y, g)
            for _ in range(R):
                size = free_face(y, bound, face)
                if size == 0 or newton_on_face(S, load, y, g, bound, face[:size], C, d):
                    break
        rounds[i] = used
        if used > 0:
            for r in range(R):
                Y[i, r] = min(y[r] / unit[r], upper)


@kernel
def most_rounds(R: int) -> int:
    """After so many rounds a row is left as it is; it takes a handful."""
    return 100 + 4 * R


@kernel
def to_unit_diagonal(Q: Array, S: Array, unit: Array) -> None:
    """Q in units √Qᵣᵣ → S with a unit diagonal, and the units; an atom with Qᵣᵣ = 0 keeps its own."""
    for r in range(Q.shape[0]):
        unit[r] = sqrt(Q[r, r]) if Q[r, r] > 0.0 else 1.0
    for r in range(Q.shape[0]):
        for s in range(Q.shape[0]):
            S[r, s] = Q[r, s] / unit[r] / unit[s]


@kernel
def gradient(S: Array, load: Array, y: Array, g: Array) -> None:
    """yS − load, half of the gradient → g."""
    for r in range(y.size):
        total = -load[r]
        for s in range(y.size):
            total += S[r, s] * y[s]
        g[r] = total


@kernel
def row_residual(S: Array, y: Array, g: Array, bound: Array) -> float:
    """‖y − Π(y − g)‖; with a unit diagonal this is at least the residual with the step 1/‖S‖. A flat atom has none."""
    total = 0.0
    for r in range(y.size):
        if S[r, r] > 0.0:
            total += (y[r] - min(max(y[r] - g[r], 0.0), bound[r])) ** 2
    return sqrt(total)


@kernel
def length(S: Array, y: Array) -> float:
    """‖y‖ over the atoms that are not flat: those have units of their own."""
    total = 0.0
    for r in range(y.size):
        if S[r, r] > 0.0:
            total += y[r] * y[r]
    return sqrt(total)


@kernel
def sweep_row(S: Array, y: Array, g: Array, bound: Array) -> None:
    """Each coordinate to its own minimiser in turn; a flat one goes to the bound it is drawn to, or stays."""
    for r in range(y.size):
        if S[r, r] > 0.0:
            new = min(max(y[r] - g[r] / S[r, r], 0.0), bound[r])
        elif g[r] > 0.0:
            new = 0.0
        elif g[r] < 0.0 and bound[r] < inf:
            new = bound[r]
        else:
            continue
        step = new - y[r]
        if step != 0.0:
            y[r] = new
            for s in range(y.size):
                g[s] += step * S[r, s]


@kernel
def free_face(y: Array, bound: Array, face: Indices) -> int:
    """The coordinates strictly inside of their bounds → face; how many they are."""
    size = 0
    for r in range(y.size):
        if 0.0 < y[r] < bound[r]:
            face[size] = r
            size += 1
    return size


@kernel
def newton_on_face(S: Array, load: Array, y: Array, g: Array, bound: Array, face: Indices, C: Array, d: Array) -> bool:
    """A Newton step on a face and a second one to refine it; false if a bound was met, where the step ends.

    y and its gradient g are written.
    """
    if not factor_face(S, face, C):
        return True
    for _ in range(2):
        for k in range(face.size):
            d[k] = -g[face[k]]
        solve_factored(C, d[: face.size])
        share, first = 1.0, -1
        for k in range(face.size):
            room = -y[face[k]] if d[k] < 0.0 else bound[face[k]] - y[face[k]]
            if d[k] != 0.0 and room / d[k] < share:
                share, first = room / d[k], k
        for k in range(face.size):
            y[face[k]] = min(max(y[face[k]] + share * d[k], 0.0), bound[face[k]])
        if first >= 0:
            y[face[first]] = 0.0 if d[first] < 0.0 else bound[face[first]]
        gradient(S, load, y, g)
        if first >= 0:
            return False
    return True


@kernel
def factor_face(Q: Array, face: Indices, C: Array) -> bool:
    """Cholesky factor of Q[face, face] → C; false where that block is zero.

    The block may be singular: the factor gets a ridge of rounding size. A flat direction then has no step, and a
    direction without a minimum a huge one, which the caller stops at a bound.
    """
    steepest = 0.0
    for k in range(face.size):
        steepest = max(steepest, Q[face[k], face[k]])
    if steepest <= 0.0:
        return False
    ridge = 1e-15 * face.size * steepest
    for k in range(face.size):
        for m in range(k):
            total = Q[face[k], face[m]]
            for q in range(m):
                total -= C[k, q] * C[m, q]
            C[k, m] = total / C[m, m]
        total = Q[face[k], face[k]] + ridge
        for q in range(k):
            total -= C[k, q] ** 2
        C[k, k] = sqrt(max(total, ridge))
    return True


@kernel
def solve_factored(C: Array, d: Array) -> None:
    """(CCᵀ)⁻¹ d → d."""
    n = d.size
    for k in range(n):
        total = d[k]
        for q in range(k):
            total -= C[k, q] * d[q]
        d[k] = total / C[k, k]
    for k in range(n - 1, -1, -1):
        total = d[k]
        for q in range(k + 1, n):
            total -= C[q, k] * d[q]
        d[k] = total / C[k, k]


# ── the sub-problem under a norm bound on each column ──────────────────────────────────────────────────────────


@kernel
def sweep_columns(Q: Array, Lt: Array, bound: float, Yt: Array, work: Array) -> float:
    """Algorithm 5 with its exact step: each column to its minimiser over {y ≥ 0, ‖y‖ ≤ bound}, in turn.

    With the other columns fixed the objective is Qᵣᵣ‖y − v‖² + const, so the minimiser is the projection of v; the
    paper's step 1/(Qᵣᵣ + 1) only approaches it. Lt, Yt (R, I) are transposed; Yt is written. Returns
    max Qᵣᵣ‖Δ‖, the size of the largest change of gradient. A column with Qᵣᵣ = 0 stays.
    """
    R, I = Yt.shape  # noqa: E741  (the paper's letter for a mode's size)
    largest = 0.0
    for r in range(R):
        q = Q[r, r]
        if q <= 0.0:
            continue
        for i in range(I):
            work[i] = -Lt[r, i]
        for s in range(R):
            c = Q[r, s]
            for i in range(I):
                work[i] += c * Yt[s, i]
        norm = 0.0
        for i in range(I):
            v = max(Yt[r, i] - work[i] / q, 0.0)
            work[i] = v
            norm += v * v
        shrink = min(1.0, bound / sqrt(norm)) if norm > 0.0 else 1.0
        change = 0.0
        for i in range(I):
            v = shrink * work[i]
            change += (v - Yt[r, i]) ** 2
            Yt[r, i] = v
        largest = max(largest, q * sqrt(change))
    return largest


@kernel
def column_curvature(Q: Array, Y: Array, out: Array) -> None:
    """Σᵢ diag(yᵢ) Q[Fᵢ, Fᵢ]⁻¹ diag(yᵢ) over the rows yᵢ with supports Fᵢ: how ‖y_r‖²/2 falls as a multiplier rises.

    Minus half the Hessian, in the columns' multipliers, of the dual of the column-bounded problem. Q (R, R), Y (I, R)
    → out (R, R).
    """
    R = Q.shape[0]
    face, d, C, unbounded = np.empty(R, np.int64), np.empty(R), np.empty((R, R)), np.full(R, inf)
    out[:, :] = 0.0
    for i in range(Y.shape[0]):
        size = free_face(Y[i], unbounded, face)
        if size == 0 or not factor_face(Q, face[:size], C):
            continue
        for k in range(size):
            d[:size] = 0.0
            d[k] = 1.0
            solve_factored(C, d[:size])
            for m in range(size):
                out[face[k], face[m]] += Y[i, face[k]] * d[m] * Y[i, face[m]]
