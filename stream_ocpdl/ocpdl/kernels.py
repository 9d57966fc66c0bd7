"""Compiled functions for all: reading a minibatch, missing cells, contractions of B, reductions.

They are serial, release the GIL, and take first a range [lo, hi) of *independent* outputs: `workers.Workers` runs
several ranges side by side. What an output is computed from, and in which order, never depends on the range, so
results do not depend on the number of threads, to the last bit.

Shapes: R atoms, M = I₁⋯Iₙ cells, b tensors. Reductions are accumulated in float64 whatever the data are.
"""

from math import sqrt

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, BigArray, Flags, Indices
from stream_ocpdl.ocpdl.compiled import exact, kernel, part
from stream_ocpdl.ocpdl.lanes import GROUP, fma, load, load_some, smaller, some, spread, store, store_some
from stream_ocpdl.ocpdl.pointers import there

TILE = 256
"""Cells of a tile: ranges of cells begin at multiples of it, and a tile's accumulators stay in the first cache."""

COLUMNS = 512
"""Of a strip: its sums are in the first cache while rows go by."""

SUMS = 32
"""Running sums of an energy. Cell m of a tensor belongs to sum m mod SUMS: an order of summation that is fixed, and
still becomes vector instructions."""


# ── reading a minibatch ────────────────────────────────────────────────────────────────────────────────────────


@exact
def scan(lo: int, hi: int, X: BigArray, energies: Array, negative: Flags) -> None:
    """‖X_j‖² of each tensor j in [lo, hi), and whether a cell is below zero. X (b, M) → energies (b), negative (b)."""
    sums = np.empty(SUMS)
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
def all_good(energies: Array, negative: Flags, low: float, high: float, signed: bool) -> bool:
    """Whether all energies are numbers in a range, and no cell is below zero unless that is allowed."""
    good = True
    for j in range(energies.size):
        good &= low <= energies[j] <= high and (signed or not negative[j])
    return good


@exact
def copy(source: BigArray, out: BigArray) -> tuple[float, bool]:
    """A tensor (M) → out (M) of any dtype; and what `scan` finds in the copy, read while it is in the first cache."""
    sums = np.zeros(SUMS)
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
def copy_rows(
    lo: int, hi: int, places: Indices, like: BigArray, out: BigArray, energies: Array, negative: Flags
) -> None:
    """`copy` of the tensors j in [lo, hi) at these addresses, which all are `like` one (M) → out (b, M)."""
    for j in range(lo, hi):
        energies[j], negative[j] = copy(there(places[j], like), out[j])


@exact
def scatter(indices: Indices, values: BigArray, out: BigArray) -> tuple[float, bool, int]:
    """The tensor (M) with these entries, and zeros elsewhere → out; what `scan` finds in it; how many entries fit.

    The first index that is not above the one before, or not a cell, ends it.
    """
    sums = np.zeros(SUMS)
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
        sums[m % SUMS] += x * x
    return total(sums), below, indices.size


@exact
def measure_tile(x: BigArray, sums: Array) -> bool:
    """x² of a tile, cell m added to sums[m mod SUMS]; whether a cell is below zero. A NaN shows in the sums only.

    Lanes are registers side by side; each adds its cells in ascending order.
    """
    zero = lowest = spread(0.0)
    for k in range(0, SUMS, 2 * GROUP):
        s, t = load(sums, k), load(sums, k + GROUP)
        for m in range(k, TILE, SUMS):
            u, v = load(x, m), load(x, m + GROUP)
            s, t = s + u * u, t + v * v
            lowest = smaller(smaller(lowest, u), v)
        store(sums, k, s)
        store(sums, k + GROUP, t)
    return some(zero - lowest)


@exact
def measure_rest(x: BigArray, sums: Array) -> bool:
    """The same for the cells that fill no tile."""
    zero = lowest = spread(0.0)
    for m in range(0, x.size, GROUP):
        v = load_some(x, m, x.size - m)
        store(sums, m % SUMS, load(sums, m % SUMS) + v * v)
        lowest = smaller(lowest, v)
    return some(zero - lowest)


@exact
def total(sums: Array) -> float:
    """The sum of the lanes, by halves. The sums are written."""
    size = SUMS
    while size > 1:
        size //= 2
        for k in range(size):
            sums[k] += sums[size + k]
    return float(sums[0])


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
def fold_last(lo: int, hi: int, T: BigArray, W: Array, out: Array) -> None:
    """B(,r) contracted with W(r, :) over the last group of modes (eq:def_Btrj). T (R, P, Q), W (R, Q) → out (R, P),
    places [lo, hi) of out.
    """
    P = T.shape[1]
    for place in range(lo, hi):
        out[place // P, place % P] = dot(T[place // P, place % P], W[place // P])


@exact
def fold_first(lo: int, hi: int, T: BigArray, V: Array, out: Array) -> None:
    """B(,r) contracted with V(:, r) over the first group of modes (eq:def_Btrj). T (R, P, Q), V (P, R) → out (R, Q),
    columns [lo, hi), whose sums stay in registers, four of them or the last by itself.
    """
    R = T.shape[0]
    for r in range(R):
        q = lo
        while hi - q > GROUP:
            fold_four(T, V, r, q, hi - q, out)
            q += 4 * GROUP
        if q < hi:
            fold_one(T, V, r, q, hi - q, out)


@part
def fold_four(T: BigArray, V: Array, r: int, q: int, left: int, out: Array) -> None:
    """Up to 4·GROUP columns of `fold_first` from q on."""
    P, Q = T.shape[1], T.shape[2]
    a = b = c = d = spread(0.0)
    at = r * P * Q + q
    for p in range(P):
        v = spread(V[p, r])
        a = fma(v, load_some(T, at, left), a)
        b = fma(v, load_some(T, at + GROUP, left - GROUP), b)
        c = fma(v, load_some(T, at + 2 * GROUP, left - 2 * GROUP), c)
        d = fma(v, load_some(T, at + 3 * GROUP, left - 3 * GROUP), d)
        at += Q
    at = r * Q + q
    store_some(out, at, left, a)
    store_some(out, at + GROUP, left - GROUP, b)
    store_some(out, at + 2 * GROUP, left - 2 * GROUP, c)
    store_some(out, at + 3 * GROUP, left - 3 * GROUP, d)


@part
def fold_one(T: BigArray, V: Array, r: int, q: int, left: int, out: Array) -> None:
    """Up to GROUP columns of it."""
    P, Q = T.shape[1], T.shape[2]
    a = spread(0.0)
    for p in range(P):
        a = fma(spread(V[p, r]), load_some(T, (r * P + p) * Q + q, left), a)
    store_some(out, r * Q + q, left, a)


@exact
def fold_strips(lo: int, hi: int, T: BigArray, V: Array, out: Array) -> None:
    """`fold_first`, to the bit, for a T of any size: strips [lo, hi) of columns, atom by atom.

    T is read as it lies, four rows at a time, and the sums of a strip stay in the first cache.
    """
    P, Q = T.shape[1:]
    count = -(-Q // COLUMNS)
    for place in range(lo, hi):
        r, first = place // count, place % count * COLUMNS
        last = min(first + COLUMNS, Q)
        out[r, first:last] = 0.0
        for p in range(0, P - P % 4, 4):
            add_four_rows(T, V, r, p, first, last, out)
        for p in range(P - P % 4, P):
            add_row(T, V, r, p, first, last, out)


@part
def add_four_rows(T: BigArray, V: Array, r: int, p: int, first: int, last: int, out: Array) -> None:
    """Columns [first, last) of rows [p, p + 4) of T(r, :, :), times V(:, r), added to out(r, :) one after the other."""
    Q = T.shape[2]
    at = (r * T.shape[1] + p) * Q
    i, j, k, m = spread(V[p, r]), spread(V[p + 1, r]), spread(V[p + 2, r]), spread(V[p + 3, r])
    for q in range(first, last, GROUP):
        left = last - q
        a = fma(i, load_some(T, at + q, left), load_some(out, r * Q + q, left))
        a = fma(j, load_some(T, at + Q + q, left), a)
        a = fma(k, load_some(T, at + 2 * Q + q, left), a)
        store_some(out, r * Q + q, left, fma(m, load_some(T, at + 3 * Q + q, left), a))


@part
def add_row(T: BigArray, V: Array, r: int, p: int, first: int, last: int, out: Array) -> None:
    """The same of row p."""
    Q, v = T.shape[2], spread(V[p, r])
    for q in range(first, last, GROUP):
        left, at = last - q, r * Q + q
        store_some(out, at, left, fma(v, load_some(T, (r * T.shape[1] + p) * Q + q, left), load_some(out, at, left)))


@exact
def losses_of(energies: Array, H: Array, QH: Array, L: Array) -> Array:
    """‖X_j‖² + ⟨h_j, Qh_j − 2l_j⟩, not below zero: the loss of each code, with the same bits however it was coded."""
    out = np.empty(energies.size)
    for j in range(out.size):
        total = 0.0
        for r in range(H.shape[1]):
            total += H[j, r] * (QH[j, r] - 2.0 * L[j, r])
        out[j] = max(energies[j] + total, 0.0)
    return out


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
def largest(values: Indices) -> int:
    """max over a vector."""
    most = values[0]
    for i in range(1, values.size):
        most = max(most, values[i])
    return int(most)


@kernel
def largest_diagonal(Q: Array) -> float:
    """max Qᵣᵣ, at most ‖Q‖."""
    most = Q[0, 0]
    for r in range(1, Q.shape[0]):
        most = max(most, Q[r, r])
    return float(most)


@exact
def pulled(Q: Array, L: Array, unit: float, pull: float, towards: Array, out_Q: Array, out_L: Array) -> None:
    """unit·(Q + P) and unit·(L + towards·P) with P = pull·diag(Q): pulled towards a point, in units of Q's diagonal.

    The unit comes first: it keeps what follows from overflow.
    """
    for r in range(Q.shape[0]):
        for s in range(Q.shape[0]):
            out_Q[r, s] = unit * Q[r, s]
        out_Q[r, r] += pull * (unit * Q[r, r])
    for i in range(L.shape[0]):
        for r in range(Q.shape[0]):
            out_L[i, r] = unit * L[i, r] + pull * (unit * Q[r, r]) * towards[i, r]


@kernel
def pull_left(Q: Array, unit: float, pull: float, towards: Array, Y: Array) -> tuple[float, float]:
    """‖(Y − towards)·unit·P‖_F, by how much a minimiser so found misses the gradient of Q and L; and ‖Y‖_F."""
    left, size = 0.0, 0.0
    for i in range(Y.shape[0]):
        for r in range(Q.shape[0]):
            left += (pull * (unit * Q[r, r]) * (Y[i, r] - towards[i, r])) ** 2
            size += Y[i, r] ** 2
    return sqrt(left), sqrt(size)


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
