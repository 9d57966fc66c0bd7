"""One row of the sub-problem, by a method that always ends; and the factor of a face, which others need too."""

from math import inf, sqrt

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.compiled import kernel


@kernel
def solve_row(
    i: int,
    S: Array,
    unit: Array,
    inverse: Array,
    bound: Array,
    L: Array,
    upper: float,
    tolerance: float,
    Y: Array,
    rounds: Indices,
) -> None:
    """Row i from its start, however hard it is.

    A round is two sweeps of coordinate descent, which guess a face, and Newton steps on that face, which find its
    minimiser or end at a bound. The objective never rises and a face's minimiser is never met twice, so the rounds
    end.
    """
    R, n = L.shape[1], S.shape[0]
    y, g, d, load = np.zeros(n), np.empty(n), np.empty(n), np.zeros(n)
    face, C = np.empty(n, np.int64), np.empty((n, n))
    for r in range(R):
        y[r] = min(max(Y[i, r] * unit[r], 0.0), bound[r])
        load[r] = L[i, r] * inverse[r]
    gradient(S, load, y, g)
    used, most = 0, most_rounds(R)
    while used < most:
        bad = row_residual(S, y, g, bound)
        if bad == 0.0 or (used > 0 and bad <= tolerance * length(S, y)):
            break
        used += 1
        for _ in range(2):
            sweep_row(S, y, g, bound)
        gradient(S, load, y, g)
        for _ in range(n):
            size = free_face(y, bound, face)
            if size == 0 or newton_on_face(S, load, y, g, bound, face[:size], C, d):
                break
    rounds[i] = used
    if used > 0:
        for r in range(R):
            Y[i, r] = min(y[r] * inverse[r], upper)


@kernel
def most_rounds(R: int) -> int:
    """After so many rounds a row is left as it is; it takes a handful."""
    return 100 + 4 * R


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
