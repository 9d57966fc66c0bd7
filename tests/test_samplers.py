"""The samplers that we ship draw from what they say: compared with sums over all states, correlation paid for."""

import gzip
from itertools import islice, pairwise, product
from math import sqrt

import numba
import numpy as np
import pytest

from stream_ocpdl.errors import ConfigError, DataError, StateError
from stream_ocpdl.samplers import Chain, Graph, Ising, Markov, Metropolis, Motif, Place
from tests.statistics import p_value, shares

KITE = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (3, 5), (1, 3)]
"""Six nodes with triangles and an end that is far away: degrees 2 to 4."""

SURE = 1e-3
"""With fixed seeds a test passes or fails for ever; a right sampler fails for one seed in a thousand."""


def flat(x):
    return 0.0


SAMPLERS = {
    "ising": Ising((4, 3), 2.0, 0.1),
    "pivot": Motif(Graph.of(KITE), 4),
    "glauber": Motif(Graph.of(KITE), 4, "glauber"),
    "markov": Markov(np.arange(12.0).reshape(3, 2, 2), [1, 2, 3], 4.0),
    "metropolis": Metropolis(lambda x: -0.5 * float(x @ x), np.zeros(3)),
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_chain_goes_on_where_it_stood(sampler):
    """Left and taken up again anywhere it has the same draws; with another seed or number it has others."""
    whole = list(islice(Chain(sampler, 3, 1), 40))
    first = Chain(sampler, 3, 1)
    begun = list(islice(first, 17))
    again = Chain(sampler, 3, 1, Place(*first.place))

    assert np.array_equal(whole, begun + list(islice(again, 23)))
    assert not np.array_equal(whole, list(islice(Chain(sampler, 4, 1), 40)))
    assert not np.array_equal(whole, list(islice(Chain(sampler, 3, 2), 40)))


def test_places_that_are_none():
    """Seeds below zero and draws before the first are refused."""
    with pytest.raises(ConfigError, match="seed must be"):
        Chain(SAMPLERS["markov"], -1)
    with pytest.raises(StateError, match="no draw -1"):
        Chain(SAMPLERS["markov"], place=Place(-1, np.array(0)))


def ising_means(temperature, field):
    """Exact means of magnetisation, its square, and energy, on a 3 × 3 torus: a sum over 512 states."""
    states = np.array(list(product((-1, 1), repeat=9))).reshape(-1, 3, 3)
    m, E = measured(states, field)
    weights = np.exp(-E / temperature)
    return np.array([weights @ f for f in (m, m**2, E)]) / weights.sum()


def measured(states, field):
    """Magnetisation and energy of lattices of ±1."""
    pairs = states * (np.roll(states, 1, 1) + np.roll(states, 1, 2))
    return states.sum(axis=(1, 2)), -pairs.sum(axis=(1, 2)) - field * states.sum(axis=(1, 2))


@pytest.mark.parametrize(("temperature", "field"), [(2.269, 0.0), (4.0, 0.3), (1.5, 0.5)])
def test_ising_against_all_states(temperature, field):
    """Magnetisation, its square and energy have their exact means; half the coldness, or a missing neighbour, fails."""
    draws = np.stack(list(islice(Chain(Ising((3, 3), temperature, field), 1), 20_000))).astype(int) * 2 - 1
    m, E = measured(draws, field)

    assert p_value(np.stack([m, m**2, E], axis=1), ising_means(temperature, field)) > SURE
    assert p_value(np.stack([m, m**2, E], axis=1), ising_means(1.05 * temperature, field)) < 1e-6


def walks(k):
    """All chains of k nodes of the kite."""
    A = np.zeros((6, 6), int)
    for u, v in KITE:
        A[u, v] = A[v, u] = 1
    return A, [x for x in product(range(6), repeat=k) if all(A[a, b] for a, b in pairwise(x))]


@pytest.mark.parametrize(("chain", "count"), [("pivot", 30_000), ("glauber", 60_000)])
def test_motifs_against_all_chains(chain, count):
    """Of all 46 chains of three nodes each comes as often as any other; patches are those of the adjacency matrix.

    A pivot that walks without Metropolis' ratio, or chains that go on to any neighbour, would fail.
    """
    A, all_chains = walks(3)
    sampler, seen = Motif(Graph.of(KITE), 3, chain), []
    walking = Chain(sampler, 5)
    for X in islice(walking, count):
        seen.append(all_chains.index(tuple(walking.place.at)))
        if len(seen) % 100 == 0:
            assert np.array_equal(X, A[np.ix_(walking.place.at, walking.place.at)])
    n = len(all_chains)
    degrees = np.array([1.0 / A[x[1]].sum() for x in all_chains])

    assert p_value(shares(seen, n), np.full(n - 1, 1 / n), 300) > SURE
    assert p_value(shares(seen, n), (degrees / degrees.sum())[:-1], 300) < 1e-6


def test_pivots_of_long_chains_and_even_cycles():
    """On a cycle of four nodes, which is bipartite, chains of 1200 nodes, of which there are more than a float holds,
    begin anywhere, at even and odd draws alike.
    """
    sampler, random = Motif(Graph.of([(0, 1), (1, 2), (2, 3), (3, 0)]), 1200), np.random.default_rng(0)
    at, begun = sampler.first(random), []
    for _ in range(2000):
        at = sampler.move(at, random)
        begun.append(int(at[0]))

    assert p_value(shares(begun, 4), np.full(3, 0.25)) > SURE
    assert {start % 2 for start in begun[::2]} == {0, 1}


def test_graphs(tmp_path):
    """The largest part, without loops and repetitions, whatever nodes are called; what is no graph is refused."""
    graph = Graph.of([(10, 30), (30, 10), (30, 30), (30, 7), (1, 2)])
    (tmp_path / "edges.txt").write_text("# two columns\nanna, bob\nbob cleo 0.5\n\ncleo anna\n")
    triangle = Graph.read(tmp_path / "edges.txt")

    assert graph.nodes == 3
    assert graph.starts.tolist() == [0, 1, 2, 4]  # 7 and 10 have one neighbour, 30 has both
    assert graph.bipartite
    assert (triangle.nodes, triangle.ends.tolist(), triangle.bipartite) == (3, [1, 2, 0, 2, 0, 1], False)
    with pytest.raises(DataError, match="no edges"):
        Graph.of([(1, 1)])
    with pytest.raises(DataError, match="pairs of node numbers"):
        Graph.of(np.ones((3, 2)))
    (tmp_path / "edges.txt").write_text("a b\nc\n")
    with pytest.raises(DataError, match="line 2: an edge has two nodes"):
        Graph.read(tmp_path / "edges.txt")
    packed = gzip.compress(b"anna bob\nbob cleo\ncleo anna\n")
    (tmp_path / "edges.txt.gz").write_bytes(packed)
    assert Graph.read(tmp_path / "edges.txt.gz").ends.tolist() == triangle.ends.tolist()
    for damaged in (packed[:-9], b"no gzip", packed[:-8] + bytes(8), packed[:10] + b"\xff" * 20):
        (tmp_path / "edges.txt.gz").write_bytes(damaged)
        with pytest.raises(DataError, match="damaged"):
            Graph.read(tmp_path / "edges.txt.gz")
    (tmp_path / "edges.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="no text"):
        Graph.read(tmp_path / "edges.txt")
    with pytest.raises(ConfigError, match="cannot be read"):
        Graph.read(tmp_path / "nothing.txt")
    with pytest.raises(ConfigError, match="take chain=pivot"):
        Motif(graph, 3, "glauber")


@pytest.mark.parametrize("groups", [None, [0, 1, 1, 0]])
def test_markov_has_its_distribution_and_its_memory(groups):
    """States come as π says, and stay for as long as they should; P has π as its own, and mixes in its mixing time."""
    sampler = Markov(np.arange(4.0)[:, None], [1, 2, 3, 4], 10.0, groups)
    draws = np.array([int(X[0]) for X in islice(Chain(sampler, 1), 40_000)])
    mixed = np.linalg.matrix_power(sampler.transition, sampler.mixing_time)
    before = np.linalg.matrix_power(sampler.transition, sampler.mixing_time - 1)
    steps = 4 * draws[:-1] + draws[1:]
    pairs = (sampler.stationary[:, None] * sampler.transition).ravel()
    possible = np.flatnonzero(pairs)

    assert p_value(shares(draws, 4), sampler.stationary[:-1]) > SURE
    assert p_value(np.eye(16)[steps][:, possible[:-1]], pairs[possible[:-1]], 400) > SURE
    assert np.allclose(sampler.stationary @ sampler.transition, sampler.stationary)
    assert 0.5 * np.abs(mixed - sampler.stationary).sum(axis=1).max() <= 0.25
    assert 0.5 * np.abs(before - sampler.stationary).sum(axis=1).max() > 0.25
    assert Markov(np.zeros((1, 2))).mixing_time == Markov(np.zeros((5, 2))).mixing_time == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_metropolis_has_its_density(compiled):
    """Means and variances of a normal density with its own scales, on either side of a wall; compiled or not."""

    def density(x):
        return -0.5 * (x[0] ** 2 + (x[1] / 3.0) ** 2) if x[0] > 0.0 else -np.inf

    chain = Chain(Metropolis(numba.njit(density) if compiled else density, [1.0, 0.0], 2.0, 3), 1)
    draws = np.stack(list(islice(chain, 20_000)))
    values = np.stack([draws[:, 0], draws[:, 0] ** 2, draws[:, 1], draws[:, 1] ** 2], axis=1)

    assert draws[:, 0].min() > 0.0
    assert p_value(values, [sqrt(2 / np.pi), 1.0, 0.0, 9.0]) > SURE


def test_densities_that_are_none():
    """A start without mass, or a density that is NaN on the way, is said."""
    with pytest.raises(ConfigError, match="begin where there is mass"):
        Metropolis(lambda x: -np.inf, [0.0])
    with pytest.raises(DataError, match="NaN"):
        next(Chain(Metropolis(lambda x: np.nan if x[0] != 0.0 else 0.0, [0.0])))


WRONG = [
    (lambda: Ising((2, 5)), "at least 3"),
    (lambda: Ising((4, 4), 0.0), "temperature above 0"),
    (lambda: Ising((4, 4), sweeps=0), "sweeps must be"),
    (lambda: Markov(np.zeros((2, 3)), [1.0]), "each must have one"),
    (lambda: Markov(np.zeros((2, 3)), [1.0, 0.0]), "must be positive"),
    (lambda: Markov(np.zeros((2, 3)), relaxation=0.5), "relaxation must be"),
    (lambda: Markov(np.zeros((2, 3)), groups=[1]), "each must be in one"),
    (lambda: Metropolis(flat, [0.0], scale=0.0), "scale must be"),
    (lambda: Metropolis(flat, [0.0], steps=0), "steps must be"),
    (lambda: Motif(Graph.of(KITE), 1), "at least 2 nodes"),
    (lambda: Motif(Graph.of(KITE), 3, "walk"), "'pivot' or 'glauber'"),
    (lambda: Motif(Graph.of(KITE), 3, steps=0), "steps must be"),
]


@pytest.mark.parametrize(("make", "said"), WRONG, ids=[said for _, said in WRONG])
def test_samplers_that_are_none(make, said):
    """What makes no sense is refused, and named."""
    with pytest.raises(ConfigError, match=said):
        make()


def test_kernels_are_their_python():
    """Compiled and not, a sweep does the same: e.g. of a wrong index Numba says nothing."""
    from stream_ocpdl.samplers import ising, motif

    random, graph = np.random.default_rng(0), Graph.of(KITE)
    spins, again = np.ones((4, 5), np.int8), np.ones((4, 5), np.int8)
    u = random.random((3, 4, 5))
    ising.sweep(u, 0.4, 0.1, spins)
    ising.sweep.py_func(u, 0.4, 0.1, again)
    assert np.array_equal(spins, again)
    u = random.random((50, 2))
    one, other = np.array([0, 1, 2, 3]), np.array([0, 1, 2, 3])
    motif.glauber(graph.starts, graph.ends, u, one)
    motif.glauber.py_func(graph.starts, graph.ends, u, other)
    assert np.array_equal(one, other)
