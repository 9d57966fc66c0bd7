"""Rows of the sub-problem that may be of either sign, compiled: for each row l of L

    min of yQyᵀ − 2⟨y, l⟩ + 2p‖y‖₁   over   lower ≤ y ≤ upper.

With p = λ/2 these are signed codes (eq:coding_OCPDL), where optimality means soft-thresholding; with p = 0 they are the
rows of a box, or of no set at all. In units in which Q has a unit diagonal, S, as in `rows`.

Where p = 0 the minimiser over all of space comes first, by one factor of S for all rows: more often than not it is in
the box. Else a round is two sweeps of coordinate descent, which guess a face, and Newton steps on that face, each of
which finds its minimiser or ends at a bound, or at zero where the penalty has its kink. The objective never rises and
a face's minimiser is never met twice, so the rounds end. What happens to a row never depends on the others.
"""

from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.compiled import kernel
from stream_ocpdl.ocpdl.onerow import factor_face, gradient, most_rounds, solve_factored

ROUNDING = 2.3e-16
"""Of a residual, relative to its row, for each of R terms: no tolerance can be finer."""


class Rules(NamedTuple):
    """What is the same for all rows, in units of S (R, R): bounds and prices (R), and the atoms that are not flat."""

    S: Array
    low: Array
    high: Array
    price: Array
    live: Indices


@kernel
def solve_signed(
    lo: int,
    hi: int,
    Q: Array,
    L: Array,
    lower: float,
    upper: float,
    price: float,
    tolerance: float,
    Y: Array,
    rounds: Indices,
) -> None:
    """The rows [lo, hi) of L (I, R) for the price p of ‖y‖₁; Y holds the start, then the minimisers.

    rounds[i] says after how many rounds a row ended, `most_rounds` if it did not. A start that is exact stays.
    """
    R = Q.shape[0]
    unit = np.empty(R)
    for r in range(R):
        unit[r] = sqrt(Q[r, r]) if Q[r, r] > 0.0 else 1.0
    rules = rules_of(Q, unit, lower, upper, price)
    whole = np.empty((R, R))
    known = price == 0.0 and factor_face(rules.S, rules.live, whole)
    y, g, d, load, new = np.empty(R), np.empty(R), np.empty(R), np.empty(R), np.empty(R)
    face, C, least = np.empty(R, np.int64), np.empty((R, R)), max(tolerance, ROUNDING * R)
    for i in range(lo, hi):
        for r in range(R):
            y[r] = min(max(Y[i, r] * unit[r], rules.low[r]), rules.high[r])
            load[r] = L[i, r] / unit[r]
        moved = settle_flat(rules, load, y)
        gradient(rules.S, load, y, g)
        rounds[i] = 0
        if residual(rules, y, g) > 0.0:
            if known and free_minimiser(rules, load, least, whole, y, g, d, new):
                rounds[i] = 1
            else:
                rounds[i] = search(rules, load, least, y, g, d, face, C)
        if moved or rounds[i] > 0:
            for r in range(R):
                Y[i, r] = min(max(y[r] / unit[r], lower), upper)


@kernel
def rules_of(Q: Array, unit: Array, lower: float, upper: float, price: float) -> Rules:
    """The rules of a problem in these units."""
    R = Q.shape[0]
    S, low, high, prices = np.empty((R, R)), np.empty(R), np.empty(R), np.empty(R)
    live, size = np.empty(R, np.int64), 0
    for r in range(R):
        low[r], high[r], prices[r] = lower * unit[r], upper * unit[r], price / unit[r]
        for s in range(R):
            S[r, s] = Q[r, s] / (unit[r] * unit[s])
        if S[r, r] > 0.0:
            live[size] = r
            size += 1
    return Rules(S, low, high, prices, live[:size])


@kernel
def settle_flat(rules: Rules, load: Array, y: Array) -> bool:
    """A flat atom goes to the bound it is drawn to, to zero if it only costs, or stays; whether any was moved."""
    moved = False
    for r in range(y.size):
        if rules.S[r, r] <= 0.0:
            new = y[r]
            if abs(load[r]) > rules.price[r]:
                goal = rules.high[r] if load[r] > 0.0 else rules.low[r]
                new = goal if abs(goal) < inf else new
            elif rules.price[r] > 0.0:
                new = min(max(0.0, rules.low[r]), rules.high[r])
            moved |= new != y[r]
            y[r] = new
    return moved


@kernel
def free_minimiser(
    rules: Rules, load: Array, tolerance: float, whole: Array, y: Array, g: Array, d: Array, new: Array
) -> bool:
    """Whether the minimiser over all of space is in the box: then it is in y. `whole` is the factor of S.

    Else y is as it was, or where it was zero the nearest point of the box: a guess for rows without a start.
    """
    S, low, high, _, live = rules
    new[:] = y
    for _ in range(3):
        for k in range(live.size):
            d[k] = -g[live[k]]
        solve_factored(whole, d[: live.size])
        inside = True
        for k in range(live.size):
            new[live[k]] += d[k]
            inside &= low[live[k]] <= new[live[k]] <= high[live[k]]
        if not inside:
            if length(rules, y) == 0.0:
                for r in range(y.size):
                    y[r] = min(max(new[r], low[r]), high[r])
            break
        gradient(S, load, new, g)
        if residual(rules, new, g) <= tolerance * length(rules, new):
            y[:] = new
            return True
    gradient(S, load, y, g)
    return False


@kernel
def search(rules: Rules, load: Array, tolerance: float, y: Array, g: Array, d: Array, face: Indices, C: Array) -> int:
    """From y, with its gradient g, to the minimiser; the rounds that it took."""
    n = y.size
    used, most = 0, most_rounds(n)
    while used < most:
        used += 1
        for _ in range(2):
            sweep(rules, y, g)
        gradient(rules.S, load, y, g)
        for _ in range(2 * n):
            size = free_face(rules, y, face)
            if size == 0 or newton_on_face(rules, load, y, g, d, face[:size], C):
                break
        if residual(rules, y, g) <= tolerance * length(rules, y):
            break
    return used


@kernel
def shrunk(v: float, price: float, low: float, high: float) -> float:
    """The minimiser of (y − v)² + 2·price·|y| over the box: soft-thresholding, then the bounds."""
    v = v - price if v > price else v + price if v < -price else 0.0
    return min(max(v, low), high)


@kernel
def residual(rules: Rules, y: Array, g: Array) -> float:
    """‖y − prox(y − g)‖ over the atoms that are not flat; with a unit diagonal at least that of the step 1/‖S‖."""
    total = 0.0
    for r in rules.live:
        total += (y[r] - shrunk(y[r] - g[r], rules.price[r], rules.low[r], rules.high[r])) ** 2
    return sqrt(total)


@kernel
def length(rules: Rules, y: Array) -> float:
    """‖y‖ over the atoms that are not flat: those have units of their own."""
    total = 0.0
    for r in rules.live:
        total += y[r] * y[r]
    return sqrt(total)


@kernel
def sweep(rules: Rules, y: Array, g: Array) -> None:
    """Each coordinate to its own minimiser in turn."""
    S, low, high, price, live = rules
    for r in live:
        step = shrunk(y[r] - g[r] / S[r, r], price[r] / S[r, r], low[r], high[r]) - y[r]
        if step != 0.0:
            y[r] += step
            for s in range(y.size):
                g[s] += step * S[r, s]


@kernel
def free_face(rules: Rules, y: Array, face: Indices) -> int:
    """The coordinates strictly inside of their bounds, and not at the kink of a penalty → face; how many they are."""
    size = 0
    for r in rules.live:
        if rules.low[r] < y[r] < rules.high[r] and (y[r] != 0.0 or rules.price[r] == 0.0):
            face[size] = r
            size += 1
    return size


@kernel
def newton_on_face(rules: Rules, load: Array, y: Array, g: Array, d: Array, face: Indices, C: Array) -> bool:
    """A Newton step on a face and a second one to refine it; false if a bound or a kink was met, where the step ends.

    y and its gradient g are written.
    """
    if not factor_face(rules.S, face, C):
        return True
    for _ in range(2):
        for k in range(face.size):
            r = face[k]
            d[k] = -g[r] - (rules.price[r] if y[r] > 0.0 else -rules.price[r])
        solve_factored(C, d[: face.size])
        share, first, stop = 1.0, -1, 0.0
        for k in range(face.size):
            wall = wall_of(rules, face[k], y[face[k]], d[k])
            if d[k] != 0.0 and (wall - y[face[k]]) / d[k] < share:
                share, first, stop = (wall - y[face[k]]) / d[k], k, wall
        for k in range(face.size):
            r = face[k]
            new, wall = y[r] + share * d[k], wall_of(rules, r, y[r], d[k])
            y[r] = max(new, wall) if d[k] < 0.0 else min(new, wall) if d[k] > 0.0 else y[r]
        if first >= 0:
            y[face[first]] = stop
        gradient(rules.S, load, y, g)
        if first >= 0:
            return False
    return True


@kernel
def wall_of(rules: Rules, r: int, y: float, d: float) -> float:
    """Where a step d from y has to end: at the bound, or before it at the kink."""
    wall = float(rules.low[r] if d < 0.0 else rules.high[r])
    if rules.price[r] > 0.0 and y * d < 0.0:
        return max(wall, 0.0) if d < 0.0 else min(wall, 0.0)
    return wall
