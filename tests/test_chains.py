"""The health of chains: of a window as ArviZ has it, of all draws within a fifth of the truth."""

import json
from math import inf, isnan
from pathlib import Path

import numpy as np
import pytest

from stream_ocpdl.chains.several import Several
from stream_ocpdl.chains.streaming import PARTS, Health, Moments, split_rhat
from stream_ocpdl.chains.window import bulk_ess, rank_rhat, rhat, split, tail_ess

GOLDEN = Path(__file__).parent / "golden" / "arviz.json"
"""Numbers of ArviZ on `cases`; `python -m tests.arviz_numbers` writes them."""


def autoregressive(phi, chains, count, seed=0):
    """Chains x ← φx + noise, stationary: their autocorrelation time is (1 + φ)/(1 − φ)."""
    random = np.random.default_rng(seed)
    noise = random.standard_normal((chains, count))
    out = np.empty_like(noise)
    out[:, 0] = noise[:, 0] / np.sqrt(1 - phi**2)
    for t in range(1, count):
        out[:, t] = phi * out[:, t - 1] + noise[:, t]
    return out


def funnel():
    """Log scales that stick at their narrow end, as those of the centred eight schools do: long stays, heavy tails."""
    random, draws = np.random.default_rng(8), autoregressive(0.98, 4, 500, 8)
    stuck = np.repeat(random.random((4, 20)) < 0.3, 25, axis=1)
    return np.where(stuck, np.round(draws, 1) - 3.0, draws * random.standard_t(2, (4, 500)))


def cases():
    """Windows of draws, good and bad."""
    mixed = autoregressive(0.3, 4, 250)
    return {
        "good": mixed,
        "sluggish": autoregressive(0.95, 4, 400, 1),
        "negative": autoregressive(-0.6, 2, 101, 2),
        "apart": mixed + np.arange(4)[:, None],
        "scales": mixed * np.array([1, 1, 1, 4])[:, None],
        "heavy": np.random.default_rng(3).standard_cauchy((3, 300)),
        "ties": np.round(mixed),
        "few": np.random.default_rng(4).random((2, 5)),
        "funnel": funnel(),
    }


@pytest.mark.parametrize("name", cases())
def test_a_window_as_arviz_has_it(name):
    """Rank-normalised R̂, bulk and tail ESS equal ArviZ's to 1e-6; one without folding, or the classical R̂, does not."""
    draws = cases()[name]
    found = [rank_rhat(draws), bulk_ess(draws), tail_ess(draws)]

    assert np.allclose(found, json.loads(GOLDEN.read_text())["values"][name], rtol=1e-6, atol=0)


def test_windows_that_say_nothing():
    """Too few draws, one chain (for R̂), or NaN: no number; chains that stand still have all their draws."""
    assert isnan(rank_rhat(np.ones((2, 3))))
    assert isnan(rank_rhat(np.random.default_rng(0).random((1, 50))))
    assert isnan(bulk_ess(np.full((2, 10), np.nan)))
    assert isnan(tail_ess(np.full((2, 10), inf)))
    assert bulk_ess(np.ones((2, 10))) == 20
    assert rhat(np.array([[1.0, 1.0], [2.0, 2.0]])) == inf
    assert isnan(rhat(np.ones((2, 4))))


def health(draws):
    found = Health()
    for x in draws.tolist():
        found.add(x)
    return found


@pytest.mark.parametrize(
    ("phi", "count"), [(0.0, 20_000), (0.5, 30_000), (0.9, 60_000), (0.97, 200_000), (-0.4, 20_000)]
)
def test_autocorrelation_time(phi, count):
    """Within a fifth of the truth for chains of known autocorrelation time, and so is the effective sample size.

    The variance of blocks of any one length, such as half of τ, is further off.
    """
    truth, found = (1 + phi) / (1 - phi), health(autoregressive(phi, 1, count, 5)[0])

    assert abs(found.autocorrelation_time / truth - 1) < 0.2
    assert found.ess == count / found.autocorrelation_time
    assert (len(found.levels), len(found.parts) <= PARTS) == (count.bit_length(), True)


def test_too_little_is_known():
    """Of few draws, of a chain that has hardly moved, and of one that stands still, there is no time."""
    assert isnan(health(np.arange(10.0)).autocorrelation_time)
    assert isnan(health(np.arange(5000.0)).autocorrelation_time)
    assert isnan(health(np.ones(100)).autocorrelation_time)
    assert isnan(split_rhat([health(np.arange(3.0))]))
    assert isnan(split_rhat([health(np.ones(64))]))
    assert split_rhat([health(np.ones(64)), health(np.zeros(64))]) == inf


@pytest.mark.parametrize("count", [64, 128, 4096])
def test_split_rhat_is_that_of_the_halves(count):
    """Where no block is unfinished it is the classical split-R̂, to rounding; chains that lie apart are seen."""
    draws = autoregressive(0.5, 3, count, 6)
    apart = draws + 2.0 * np.arange(3)[:, None]

    assert np.isclose(split_rhat([health(chain) for chain in draws]), rhat(split(draws)), rtol=1e-12)
    assert np.isclose(split_rhat([health(chain) for chain in apart]), rhat(split(apart)), rtol=1e-12)
    assert split_rhat([health(chain) for chain in apart]) > 1.3


def test_a_chain_that_drifts_is_seen():
    """One chain alone, whose second half is elsewhere: halves of it are compared; whole chains would show nothing."""
    draws = autoregressive(0.2, 1, 5000, 7)[0] + np.linspace(0, 3, 5000)

    assert split_rhat([health(draws)]) > 1.1
    assert split_rhat([health(autoregressive(0.2, 1, 5000, 7)[0])]) < 1.01


def test_moments_add_up():
    """In any cut they are those of all numbers, also far from zero."""
    x = 1e8 + np.random.default_rng(0).random(1000)
    parts = [Moments(), Moments()]
    for k, value in enumerate(x):
        parts[k >= 300].add(float(value))
    both = parts[0].plus(parts[1])

    assert np.isclose(both.variance, x.var(ddof=1), rtol=1e-6)
    assert both.plus(Moments()) == both
    assert Moments().plus(Moments()).count == 0


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_several_quantities_in_blocks(block):
    """In any cut into blocks they are known as one by one; one that lost a block that is open would not be."""
    draws = np.stack([autoregressive(0.6, 1, 1543, 9)[0] + 5.0, autoregressive(-0.3, 1, 1543, 10)[0]])
    several = Several(2)
    for at in range(0, draws.shape[1], block):
        several.extend(draws[:, at : at + block])

    for k, one in enumerate(map(health, draws)):
        found = several.health(k)
        assert (found.count, len(found.levels), len(found.parts)) == (1543, len(one.levels), len(one.parts))
        assert np.isclose(found.autocorrelation_time, one.autocorrelation_time, rtol=1e-9)
        assert np.isclose(split_rhat([found]), split_rhat([one]), rtol=1e-9)
        one.add(2.5)
        found.add(2.5)
        assert np.isclose(found.autocorrelation_time, one.autocorrelation_time, rtol=1e-9)
