"""Atoms are the same whatever their order, and however their size is shared among the modes."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from stream_ocpdl import ConfigError, match_atoms
from stream_ocpdl.cli.snapshot import compared, comparison
from stream_ocpdl.ocpdl.matching import assign, similarities
from stream_ocpdl.stream.messages import Snapshot, Version
from tests import paper

SHAPES = [(40,), (30, 9), (12, 8, 7), (6, 5, 4, 3)]


def drawn(shape, rank, random, power=3):
    """Nonnegative loadings that are not too much alike."""
    return [random.random((rows, rank)) ** power for rows in shape]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_a_planted_permutation_and_scale_are_found(shape, seed):
    """Exactly: every atom at its place, nothing born, no drift, the scales of every mode to the last digits."""
    random = np.random.default_rng(seed)
    one, places = drawn(shape, 6, random), random.permutation(6)
    scales = np.exp(random.normal(scale=5, size=(len(shape), 6)))
    other = [np.empty_like(U) for U in one]
    for V, U, scale in zip(other, one, scales, strict=True):
        V[:, places] = U * scale

    found = match_atoms(one, other)

    assert np.array_equal(found.permutation, places)
    assert (found.deaths, found.births) == ((), ())
    assert np.allclose(found.scales, scales, rtol=1e-14, atol=0)
    assert found.drift.max() < 1e-6
    assert found.turns.max() < 1e-15


def test_signs_in_two_modes_are_none():
    """An atom whose sign has changed in two modes is the same atom; in one mode it is another."""
    one = [np.random.default_rng(1).normal(size=(9, 3)) for _ in range(2)]
    twice, once = [-one[0], -2 * one[1]], [-one[0], one[1]]

    assert np.allclose(match_atoms(one, twice).scales, [[-1], [-2]])
    assert np.allclose(match_atoms(one, twice).sizes, 2)
    assert match_atoms(one, twice).drift.max() < 1e-6
    assert match_atoms(one, once).deaths == (0, 1, 2)


@given(st.integers(1, 6), st.integers(0, 2), st.integers(0, 2**32 - 1), st.sampled_from([3, 1000]))
@settings(deadline=None, max_examples=150)
def test_the_assignment_is_the_best(rows, more, seed, levels):
    """Against all that there are, ties included: few levels make many."""
    cost = np.random.default_rng(seed).integers(-levels, levels, (rows, rows + more)).astype(float)
    best = min(sum(cost[i, j] for i, j in enumerate(p)) for p in permutations(range(rows + more), rows))
    found = assign(cost)

    assert len(set(found.tolist())) == rows
    assert cost[range(rows), found].sum() == best


def test_a_large_assignment_is_scipys():
    """For 150 atoms of 200."""
    cost = -np.random.default_rng(0).random((150, 200))
    rows, columns = linear_sum_assignment(cost)

    assert np.isclose(cost[range(150), assign(cost)].sum(), cost[rows, columns].sum(), rtol=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_similarities_are_cosines_of_atoms(shape):
    """Against atoms made dense, also where columns are so large or small that their squares are not finite or zero."""
    random = np.random.default_rng(2)
    one, other = drawn(shape, 4, random), drawn(shape, 3, random)
    dense = [paper.out(loadings).reshape(len(loadings[0].T), -1) for loadings in (one, other)]
    units = [A / np.linalg.norm(A, axis=1, keepdims=True) for A in dense]
    one[0][:, 0] *= 1e200
    other[0][:, 1] *= 1e-200

    assert np.allclose(similarities(one, other), units[0] @ units[1].T, rtol=1e-12)


@pytest.mark.parametrize("angle", [1e-9, 1e-4, 0.3])
def test_drift_is_the_angle(angle):
    """Of one mode that turned by it; 1 − cosine of the smallest is below the rounding of a cosine."""
    U, V = np.array([[1.0], [0.0]]), np.array([[np.cos(angle)], [np.sin(angle)]])

    assert np.isclose(match_atoms([U, U], [U, V]).drift[0], np.degrees(angle), rtol=1e-6)


def test_births_deaths_and_drift():
    """An atom that is gone has died, one that is new was born, though they have the same place; the others moved."""
    random = np.random.default_rng(3)
    one = drawn((30, 20), 4, random)
    other = [U.copy() for U in one]
    for V in other:
        V[:, 2] = random.random(len(V)) < 0.1
        V[:, 0] += 0.02 * random.random(len(V))

    found = match_atoms(one, other)

    assert (found.deaths, found.births) == ((2,), (2,))
    assert found.permutation.tolist() == [0, 1, -1, 3]
    assert found.most_changed(1) == [0]
    assert found.drift[0] > 0.1
    assert found.drift[1:].max() < 1e-6


@pytest.mark.parametrize(("ranks", "deaths", "births"), [((3, 5), (), (3, 4)), ((5, 3), (3, 4), ())], ids=str)
def test_other_ranks(ranks, deaths, births):
    """A dictionary that grew has births, one that shrank deaths."""
    loadings = drawn((30, 20), 5, np.random.default_rng(4))
    found = match_atoms(*([U[:, :rank] for U in loadings] for rank in ranks))

    assert (found.deaths, found.births) == (deaths, births)
    assert found.pairs.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_a_weak_pair_does_not_cost_a_good_one():
    """Of pairs below the threshold the sum knows nothing: then 0.8 and 0 beat 0.6 and 0.6."""
    one, other = [np.eye(4)[:, :2]], [np.array([[0.8, 0.6, 0, 0], [0.6, 0, 0.8, 0]]).T]

    assert match_atoms(one, other, threshold=0.75).pairs.tolist() == [[0, 0]]
    assert match_atoms(one, other, threshold=0.5).pairs.tolist() == [[0, 1], [1, 0]]


def test_zeros():
    """Zero atoms stay where they are and are like no other; a dictionary of nothing else is the same as itself."""
    one = drawn((8, 6), 4, np.random.default_rng(5))
    one[0][:, 1] = one[1][:, 3] = 0.0
    zero = [np.zeros((8, 4)), np.zeros((6, 4))]

    assert match_atoms(one, one).pairs.tolist() == [[r, r] for r in range(4)]
    assert match_atoms(zero, zero).pairs.tolist() == [[r, r] for r in range(4)]
    assert match_atoms(one, zero).deaths == (0, 2)
    assert match_atoms(one, zero).drift.tolist() == [0.0, 0.0]


def test_what_cannot_be_compared():
    """Atoms of other shapes, thresholds that are none."""
    U = np.ones((3, 2))

    with pytest.raises(ConfigError, match=r"shapes \[3\] and \[1\]: they cannot be compared"):
        match_atoms([U], [U[:1]])
    with pytest.raises(ConfigError, match="threshold"):
        match_atoms([U], [U], threshold=0.0)


def snapshot(loadings, t, axes=("latitude", "variable")):
    atoms = tuple(range(loadings[0].shape[1]))
    return Snapshot(Version("m", t), 10 * t, loadings, axes, 0.1, "balanced", (), atoms, "in", {0: t})


def test_the_page():
    """`snapshot diff` says what became of each atom, in a table."""
    one = [np.eye(4)[:, :3], np.ones((3, 3))]
    other = [np.array([[0, 0, 2.0], [3, 0, 1], [0, 0, 0], [0, 1, 0]]), np.ones((3, 3))]
    told = compared(snapshot(one, 1), snapshot(other, 3), match_atoms(one, other), 5)

    assert comparison(told) == [
        "m/0/0/1 → m/0/0/3: 2 steps, 20 tensors",
        "mode               movement  cosine, least     mean",
        "latitude               1.73        0.89443  0.94721",
        "variable                  0        1.00000  1.00000",
        "2 atoms are the same, died: 2, born: 1",
        "the 2 that drifted furthest:",
        "  atom   now   angle     size  latitude  variable",
        "     0     2  26.57°        2   0.89443   1.00000",
        "     1     0   0.00°        3   1.00000   1.00000",
    ]


def test_nothing_in_common():
    """The page is written, too, if every atom has died."""
    one, other = [np.eye(4)[:, :2]], [np.eye(4)[:, 2:]]
    told = compared(snapshot(one, 1, None), snapshot(other, 2, None), match_atoms(one, other), 5)

    assert told["modes"] == [{"name": "mode 1", "movement": 0.0, "least": 1.0, "mean": 0.0}]
    assert "0 atoms are the same, died: 0, 1, born: 0, 1" in comparison(told)
