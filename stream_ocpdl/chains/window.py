"""Rank-normalised split-R̂, and bulk and tail ESS, of a window of draws.

They are those of Vehtari, Gelman, Simpson, Carpenter, Bürkner: *Rank-normalization, folding, and localization* (2021),
in the arithmetic of ArviZ, with whose numbers tests compare them.

Draws are (chains, draws) of one quantity. R̂ above 1.01, or an ESS below 100 a chain, says: not yet.
"""

from math import isfinite, log10, nan, sqrt
from statistics import NormalDist

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array

LEAST = 4
"""Draws of a chain, at least."""


def rank_rhat(draws: Array) -> float:
    """The greater of R̂ of ranks (of places) and of folded ranks (of scales); NaN of fewer than two chains."""
    if not _valid(draws) or len(draws) < 2:
        return nan
    halves = split(draws)
    return max(rhat(normal_ranks(halves)), rhat(normal_ranks(np.abs(halves - np.median(halves)))))


def bulk_ess(draws: Array) -> float:
    """Of the ranks: how well the middle of the distribution is known."""
    return ess(normal_ranks(split(draws))) if _valid(draws) else nan


def tail_ess(draws: Array, share: float = 0.05) -> float:
    """Of the quantiles at both ends, the smaller."""
    if not _valid(draws):
        return nan
    ends = np.quantile(draws, (share, 1.0 - share))
    return min(ess(split(np.asarray(draws <= end, float))) for end in ends)


def split(draws: Array) -> Array:
    """Halves of chains as chains; of an odd number of draws the one in the middle is left out."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def normal_ranks(draws: Array) -> Array:
    """Φ⁻¹((rank − 3/8) / (size + 1/4)) of all draws together; equal draws have their mean rank."""
    _, where, counts = np.unique(draws, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2.0
    invert = NormalDist().inv_cdf
    scores = np.array([invert(float(p)) for p in (ranks - 0.375) / (draws.size + 0.25)])
    return np.asarray(scores[where].reshape(draws.shape))


def rhat(draws: Array) -> float:
    """√((B/W + n − 1)/n), of means and variances of chains as they are."""
    n = draws.shape[1]
    within = float(draws.var(axis=1, ddof=1).mean())
    between = n * float(draws.mean(axis=1).var(ddof=1))
    if within == 0.0:
        return nan if between == 0.0 else float("inf")
    return sqrt((between / within + n - 1) / n)


def ess(draws: Array) -> float:
    """Draws divided by their autocorrelation time, by Geyer's initial monotone sequence of all chains together."""
    if float(draws.max() - draws.min()) < np.finfo(float).resolution:
        return float(draws.size)
    chains, n = draws.shape
    covariances = autocovariances(draws).mean(axis=0)
    within = float(covariances[0]) * n / (n - 1.0)
    total = within * (n - 1.0) / n + (float(draws.mean(axis=1).var(ddof=1)) if chains > 1 else 0.0)
    rho = _monotone(1.0 - (within - covariances) / total)
    return float(chains * n / max(rho, 1.0 / log10(chains * n)))


def _monotone(found: Array) -> float:
    """τ of correlations at lags 0, 1, …: sums of pairs are taken while positive, and made not to rise."""
    n = len(found)
    rho = np.zeros(n)
    even, odd = 1.0, float(found[1])
    rho[:2] = even, odd
    t = 1
    while t < n - 3 and even + odd > 0.0:
        even, odd = float(found[t + 1]), float(found[t + 2])
        if even + odd >= 0.0:
            rho[t + 1 : t + 3] = even, odd
        t += 2
    last = t - 2
    if even > 0.0:
        rho[last + 1] = even
    for t in range(1, last - 1, 2):
        if rho[t + 1] + rho[t + 2] > rho[t - 1] + rho[t]:
            rho[t + 1 : t + 3] = (rho[t - 1] + rho[t]) / 2.0
    return float(-1.0 + 2.0 * rho[: last + 1].sum() + rho[last + 1 : last + 2].sum())


def autocovariances(draws: Array) -> Array:
    """Of each chain at lags 0 … n − 1, divided by n."""
    n = draws.shape[1]
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(draws - draws.mean(axis=1, keepdims=True), size, axis=1)
    return np.asarray(np.fft.irfft(spectrum * spectrum.conj(), size, axis=1)[:, :n] / n)


def _valid(draws: Array) -> bool:
    return draws.ndim == 2 and len(draws) >= 1 and draws.shape[1] >= LEAST and isfinite(float(draws.sum()))
