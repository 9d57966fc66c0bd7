"""Tensors judged by those before them: how unusual each is, and whether the data have changed.

**Scores.** Of each tensor its relative residual ‖X − X̂‖/‖X‖ under D_{t−1}, before it is learned (eq:coding_OCPDL);
its residual ‖X − X̂‖; and its norm ‖X‖. A window has those of one tensor of each of the last 256 steps or so. The
*quantile* of a tensor is its rank among them, (smaller + ½ equal + ½)/(n + 1): conformal, so that on exchangeable data
it is uniform, whatever the distribution and the units are.

**Changes.** If nothing has changed the mean rank of the tensors of a step moves about ½. How far it moves in 4, 16 and
64 steps together says how dependent the stream is: neighbours in a Markov chain are alike, and many of them are little
evidence. So means are compared with the largest of these long-run deviations. A sum max(0, sum + mean/deviation −
slack) that passes a limit (Page's CUSUM) is a change. Of *structure*, if residuals are larger, both relatively and
absolutely; of *scale*, if norms are larger or smaller, and some steps later there is still little to be said for a
change of structure, which mostly shows in the norms as well.

After a change all begins anew. Everything follows from the steps alone: a replay finds the same bits.

Tensors are scored and ranked in one call (`compare`). What becomes of a step are few numbers, and these are Python's: a
call of NumPy would take longer than what it does.
"""

from collections.abc import Sequence
from math import isfinite, sqrt
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from stream_ocpdl.errors import StateError
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.compiled import exact

WINDOW, LEAST, RENEWED = 256, 64, 16
"""Tensors in the window; how many it takes to judge; and after how many steps, with one of each, it is renewed."""

SPANS = (4, 16, 64)
"""Steps over which means are compared; each is a multiple of the one before."""

HORIZON = 1024
"""Steps over which their variances are averaged."""

ENOUGH = 8
"""Tensors of a step that count. More tell no more of a change, and as much more of what is accidental in the window."""

SLACK, MOST, LIMIT = 0.4, 4.0, 20.0
"""What is taken off the evidence of a step, the most that one step counts, and the sum that is a change."""

WARM, PATIENCE = 256, 10
"""Steps before any change is told, and for which one of scale waits for one of structure."""

FLOOR, CEILING = 1e-12, 1e12
"""Squares of relative residuals: below the one there is only rounding, above the other a tensor of no size."""

UNUSUAL = 0.99
"""The quantile of the residual above which a tensor is counted as unusual."""

Change: TypeAlias = Literal["structure", "scale"]


Places: TypeAlias = list[tuple[float, float]]


class Judgement(NamedTuple):
    """The tensors of a step, judged before they were learned."""

    residuals: list[float]
    """‖X − X̂‖/‖X‖ of each."""
    quantiles: Places | None = None
    """Of its relative residual and of its norm; none until there are enough tensors to compare with."""
    change: Change | None = None
    evidence: tuple[float, float] = (0.0, 0.0)
    """For a change of structure, and of scale; beyond 1 it is one."""

    @property
    def unusual(self) -> int:
        """How many have a residual above that of 99 in 100 earlier tensors."""
        return sum(place[0] > UNUSUAL for place in self.quantiles or ())


Score: TypeAlias = tuple[float, float, float]
"""The squares of relative residual, norm and residual."""

NOTHING: Array = np.empty((3, 0))
"""No scores."""


class Spread(NamedTuple):
    """How far a mean moves if nothing changes."""

    total: float = 0.0
    """The sum of all that the means of steps were above ½, in deviations of independent tensors."""
    begun: tuple[float, ...] = (0.0,) * len(SPANS)
    """What it was when each span began."""
    before: tuple[float, ...] = (0.0,) * len(SPANS)
    """By how much it grew in the span before."""
    variances: tuple[float, ...] = (1.0,) * len(SPANS)
    """Of that, by the length of the span."""

    @property
    def deviation(self) -> float:
        """The largest that some span knows of, at least that of independent tensors."""
        return sqrt(max(1.0, *self.variances))

    def after(self, steps: int, z: float, falling: bool) -> "Spread":
        """The same after one more step.

        What falls, as residuals do while a model learns, has only its rises and its differences to be judged by.
        """
        total = self.total + z
        if steps % SPANS[0]:
            return Spread(total, self.begun, self.before, self.variances)
        begun, before, variances = list(self.begun), list(self.before), list(self.variances)
        for k, span in enumerate(SPANS):
            if steps % span == 0:
                grown = total - begun[k]
                square = max(2.0 * max(grown, 0.0) ** 2, 0.5 * (grown - before[k]) ** 2) if falling else grown**2
                share = max(span / HORIZON, min(1.0, span / steps))
                variances[k] += share * (min(square / span, 9.0 * max(variances[k], 1.0)) - variances[k])
                begun[k], before[k] = total, grown
        return Spread(total, tuple(begun), tuple(before), tuple(variances))


class Senses(NamedTuple):
    """What is left of the tensors of an epoch."""

    epoch: int = 0
    steps: int = 0
    """Since it began, or began anew."""
    waiting: int = 0
    """Steps since norms have changed."""
    sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Of the evidence for worse residuals, larger norms, smaller norms."""
    residuals: Spread = Spread()
    norms: Spread = Spread()
    window: tuple[Score, ...] = ()
    """The scores of earlier tensors, in their order."""
    news: tuple[Score, ...] = ()
    """Those that come into it next."""
    ordered: Array = NOTHING
    """Those of the window by size (3, n)."""

    def to_bytes(self) -> bytes:
        """All but what follows from the rest, as little-endian floats; nothing of senses that have seen nothing."""
        if self.steps == 0 and self.epoch == 0:
            return b""
        spreads = (x for spread in (self.residuals, self.norms) for part in spread for x in _several(part))
        sizes = (len(self.window), len(self.news))
        scores = (x for score in (*self.window, *self.news) for x in score)
        numbers = [self.epoch, self.steps, self.waiting, *sizes, *self.sums, *spreads, *scores]
        return np.array(numbers, "<f8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Senses":
        """The same; no bytes are those of senses that have seen nothing."""
        if not data:
            return cls()
        numbers = np.frombuffer(data, "<f8").tolist() if len(data) % 8 == 0 else []
        if len(numbers) < HEAD or not all(map(isfinite, numbers)):
            raise StateError("what is known of earlier tensors cannot be read")
        epoch, steps, waiting, n, m = (int(x) for x in numbers[:5])
        if [epoch, steps, waiting, n, m] != numbers[:5] or min(numbers[:5]) < 0 or n > WINDOW or m >= RENEWED:
            raise StateError(f"what is known of earlier tensors has impossible sizes: {numbers[:5]}")
        if len(numbers) != HEAD + 3 * (n + m):
            raise StateError(f"what is known of {n + m} earlier tensors has {len(data)} bytes")
        spreads, scores = [_spread(numbers[8:]), _spread(numbers[8 + WIDTH :])], numbers[HEAD:]
        each = tuple(zip(scores[::3], scores[1::3], scores[2::3], strict=True))
        sums = (numbers[5], numbers[6], numbers[7])
        return cls(epoch, steps, waiting, sums, spreads[0], spreads[1], each[:n], each[n:]).in_order()

    def in_order(self) -> "Senses":
        """With the window by size, too."""
        return self._replace(ordered=np.sort(np.ascontiguousarray(np.array(self.window).T)) if self.window else NOTHING)

    def noting(self, score: Score) -> "Senses":
        """After one more step, of which this tensor goes into the window."""
        news = (*self.news, score)
        if len(news) < RENEWED:
            return self._replace(steps=self.steps + 1, news=news)
        return self._replace(steps=self.steps + 1, news=(), window=(self.window + news)[-WINDOW:]).in_order()


WIDTH = 1 + 3 * len(SPANS)
HEAD = 8 + 2 * WIDTH
"""Numbers of a spread, and of all but window and news."""


def judge(
    senses: Senses, losses: Array, H: Array, energies: Array, sparsity: float = 0.0, ridge: float = 0.0
) -> tuple[Judgement, Senses]:
    """Judge the tensors of a step by their losses, codes and energies ‖X‖², and note what they are like.

    >>> judgement, senses = judge(Senses(), np.array([1.0, 0.0]), np.ones((2, 1)), np.array([4.0, 9.0]))
    >>> judgement.residuals, judgement.quantiles, senses.steps
    ([0.5, 1e-06], None, 1)
    """
    if sparsity > 0.0:
        losses = losses - sparsity * np.abs(H).sum(axis=1)
    if ridge > 0.0:
        losses = losses - ridge * np.square(H).sum(axis=1)
    b = len(losses)
    if len(energies) != b:
        raise ValueError(f"{b} losses and {len(energies)} energies")
    k = senses.steps % b  # not always the same: rows are sorted, and partitions may differ
    out = np.empty((3, b))
    relative, sums = compare(losses, energies, senses.ordered, k, out)
    residuals, by_residual, by_norm = out.tolist()
    energy = float(energies[k])
    noted = (relative, energy, relative * energy)
    if len(senses.window) < LEAST:
        return Judgement(residuals), senses.noting(noted)
    size = sqrt(12.0 * min(b, ENOUGH)) / b  # a uniform number has the variance 1/12
    worse, norm, absolute = (size * (total - 0.5 * b) for total in sums)
    if worse > 0.0:
        worse = min(worse, absolute)
    change, evidence, senses = look(senses, worse, norm)
    after = Senses(senses.epoch) if change else senses.noting(noted)
    return Judgement(residuals, list(zip(by_residual, by_norm, strict=True)), change, evidence), after


@exact
def compare(
    losses: Array, energies: Array, ordered: Array, k: int, out: Array
) -> tuple[float, tuple[float, float, float]]:
    """‖X − X̂‖/‖X‖ of each tensor, its rank by that and by its norm → out (3, b); the square of the first of tensor k;
    and the sums of the ranks, also of those by ‖X − X̂‖.
    """
    noted = by_residual = by_norm = absolute = 0.0
    for j in range(losses.size):
        x, e = losses[j], energies[j]
        relative = FLOOR
        if x > FLOOR * e:
            relative = x / e if x < CEILING * e else CEILING
        if j == k:
            noted = relative
        out[0, j] = sqrt(relative)
        out[1, j] = rank(ordered[0], relative)
        out[2, j] = rank(ordered[1], e)
        by_residual += out[1, j]
        by_norm += out[2, j]
        absolute += rank(ordered[2], relative * e)
    return noted, (by_residual, by_norm, absolute)


@exact
def rank(ordered: Array, score: float) -> float:
    """(smaller + ½ equal + ½)/(n + 1) of a score among others."""
    low, high = 0, ordered.size
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] < score:
            low = middle + 1
        else:
            high = middle
    while high < ordered.size and ordered[high] == score:
        high += 1
    return (low + high + 1) * 0.5 * (1.0 / (ordered.size + 1))


def look(senses: Senses, worse: float, norm: float) -> tuple[Change | None, tuple[float, float], Senses]:
    """Whether the data have changed, by how far the means of a step are above ½; the evidence; what is known now."""
    steps, (residuals, norms) = senses.steps + 1, (senses.residuals, senses.norms)
    x = min(max(worse / residuals.deviation, -MOST), MOST)
    y = min(max(norm / norms.deviation, -MOST), MOST)
    senses = senses._replace(residuals=residuals.after(steps, worse, True), norms=norms.after(steps, norm, False))
    if steps <= WARM:
        return None, (0.0, 0.0), senses
    structure, larger, smaller = senses.sums
    structure, larger = max(0.0, structure + x - SLACK), max(0.0, larger + y - SLACK)
    smaller = max(0.0, smaller - y - SLACK)
    scale = max(larger, smaller)
    waiting = senses.waiting + 1 if senses.waiting or scale > LIMIT else 0
    change: Change | None = None
    if structure > LIMIT or waiting > PATIENCE:
        change = "structure" if structure > LIMIT / 2 else "scale"
    sums = (structure, larger, smaller)
    return change, (structure / LIMIT, scale / LIMIT), senses._replace(waiting=waiting, sums=sums)


def _several(part: float | tuple[float, ...]) -> tuple[float, ...]:
    return part if isinstance(part, tuple) else (part,)


def _spread(numbers: Sequence[float]) -> Spread:
    k = len(SPANS)
    begun, before, variances = (tuple(numbers[1 + i * k : 1 + (i + 1) * k]) for i in range(3))
    return Spread(numbers[0], begun, before, variances)
