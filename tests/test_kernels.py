"""Kernels against the oracle, compiled and not, in both precisions."""

import numpy as np
import pytest

from stream_ocpdl.ocpdl import aggregates, kernels
from stream_ocpdl.ocpdl.workers import Workers
from tests import paper

SHAPES = [(7,), (4, 6), (3, 5, 2), (2, 3, 4, 2), (1, 1), (300, 3), (3, 700)]


@pytest.fixture(params=["compiled", "interpreted"])
def mode(request, monkeypatch):
    """Run every kernel as Numba made it, and again as Python reads it."""
    if request.param == "interpreted":
        for name, function in vars(kernels).items():
            if hasattr(function, "py_func"):
                monkeypatch.setattr(kernels, name, function.py_func)
    return request.param


def draw(shape, dtype, rank=3, b=4):
    random = np.random.default_rng(sum(shape))
    X = random.random((b, *shape)).astype(dtype)
    return X, random.random((b, rank)), [random.random((rows, rank)) for rows in shape]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_aggregation_is_the_papers(shape, dtype, mode):
    """correlate, absorb and the intermediate aggregates of every mode equal their einsum."""
    X, H, loadings = draw(shape, dtype)
    past = aggregates.nothing(shape, 3, dtype)
    got = aggregates.absorb(past, X, float(np.sum(X.astype(float) ** 2)), H, 1.0)
    got = aggregates.absorb(got, X[:2], float(np.sum(X[:2].astype(float) ** 2)), H[:2], 0.3)
    exact = 1e-12 if dtype == "float64" else 1e-6

    A, B = paper.aggregates([(X, H), (X[:2], H[:2])], [1.0, 0.3])
    assert np.allclose(got.A, A, rtol=1e-12)
    assert np.allclose(got.B, B, rtol=exact)
    assert got.B.dtype == dtype
    assert np.allclose(aggregates.correlate(X, loadings), paper.correlations(X, loadings), rtol=1e-12)
    at = aggregates.Intermediate(got, loadings)
    for i in range(len(shape)):
        for ours, theirs in zip(at(i), paper.intermediate(A, B, loadings, i), strict=True):
            assert np.allclose(ours, theirs, rtol=exact)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_batch_is_scanned(dtype, mode):
    """Energies and signs, also of an infinity and a NaN: neither may be optimised away."""
    X = np.array([[3.0, -4.0], [np.inf, 0.0], [np.nan, 1.0]], dtype)
    energies, negative = np.empty(3), np.empty(3, bool)
    kernels.scan(0, 3, X, energies, negative)

    assert energies[0] == 25.0
    assert energies[1] == np.inf
    assert np.isnan(energies[2])
    assert negative.tolist() == [True, False, False]


def test_ranges_do_not_change_a_bit():
    """A kernel over [0, n) equals, bit for bit, the same kernel over any split of it."""
    X, H, loadings = draw((90, 700), "float64", rank=5, b=6)
    outcomes = []
    for threads in (1, 2, 3, 7):
        workers = Workers(threads)
        got = aggregates.absorb(aggregates.nothing((90, 700), 5, "float64"), X, 1.0, H, 0.4, workers)
        bars = [bar for i in (0, 1) for bar in aggregates.Intermediate(got, loadings, workers)(i)]
        outcomes.append([got.B, aggregates.correlate(X, loadings, workers), *bars])
        workers.close()

    for outcome in outcomes[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(outcomes[0], outcome, strict=True))
