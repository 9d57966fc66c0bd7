"""Motifs of graphs in the small: what chains meet, what a dictionary must beat, graphs from files."""

import numpy as np
import pytest

from stream_ocpdl.experiments import networks
from tests.benching import invoke


def test_motifs_are_those_of_the_graph():
    """The same numbers twice; a dictionary is better than the mean patch, and that of a graph is the best for it, but
    that four atoms of thin communities are much like those of a ring.
    """
    first, second = (networks.run(None, True, lambda _: None) for _ in range(2))
    body, crossed = first.body, np.array(first.body["crossed"])

    assert body == second.body
    assert [row["source"] for row in body["graphs"]] == [wanted.drawn for wanted in networks.GRAPHS.values()]
    assert crossed.argmin(axis=0).tolist()[1:] == [1, 2, 3]
    own = {row["graph"]: row["error"] for row in body["rows"] if row["shaping"] == networks.VECTORS}
    assert all(own[row["graph"]] < row["mean"]["error"] for row in body["graphs"])
    for key, atoms in first.atoms.items():
        assert atoms.shape == (networks.QUICK.rank, networks.QUICK.k, networks.QUICK.k)
        assert np.array_equal(atoms, second.atoms[key])


def test_held_out_motifs_are_of_other_chains():
    """None of the draws that are learned is one that is held out; and the chain of nodes is that of its patch."""
    graph = networks.Graph.of(networks.ring(60))
    stream = networks.drawn(graph, networks.Sizes(k=9, steps=5, chains=2, each=3, held=10), 0)
    held = {X.tobytes() for X in stream.held}

    assert not held & {X.tobytes() for batch in stream.minibatches for X in batch}
    edges = {(u, v) for u in range(graph.nodes) for v in graph.ends[graph.starts[u] : graph.starts[u + 1]].tolist()}
    for X, nodes in zip(stream.held, stream.nodes.tolist(), strict=True):
        assert X.tolist() == [[(u, v) in edges for v in nodes] for u in nodes]


def test_what_chains_meet_is_counted():
    """On a complete graph all cells off the chain are edges but those where a node comes twice, and chains are
    everywhere alike.
    """
    graph = networks.Graph.of(networks.communities((12,), 1.0))
    stream = networks.drawn(graph, networks.Sizes(k=3, steps=1, chains=4, each=1, held=400), 0)
    met = networks.looked_at(graph, stream)
    twice = np.mean([chain[0] == chain[2] for chain in stream.nodes.tolist()])

    assert (met["nodes"], met["edges"]) == (12, 66)
    assert met["differ"] == pytest.approx(3 - twice)
    assert met["gathered"] == pytest.approx(12, rel=0.05)
    assert met["off_chain"] == pytest.approx((2 * (1 - twice)) / 2)
    assert 0.03 < twice < 0.16  # one in eleven


def test_a_chain_that_goes_to_and_fro_is_seen():
    """On a graph with two sides no edge is between places an even number apart; on others some are."""
    star, whole = ([(0, v) for v in range(1, 9)], networks.communities((9,), 1.0))
    sizes = networks.Sizes(k=6, steps=1, chains=2, each=1, held=20)
    even = []
    for edges in (star, whole):
        graph = networks.Graph.of(edges)
        even.append(networks.looked_at(graph, networks.drawn(graph, sizes, 0))["even"])

    assert even[0] == 0
    assert even[1] > 0.5


def test_the_mean_patch_is_a_dictionary_of_one_atom():
    """Against least squares, patch by patch."""
    graph = networks.Graph.of(networks.hubs(50))
    stream = networks.drawn(graph, networks.Sizes(k=5, steps=3, chains=2, each=2, held=6), 1)
    M = np.concatenate(stream.minibatches).mean(axis=0).reshape(-1, 1)
    X = stream.held.reshape(len(stream.held), -1).T
    rest = X - M @ np.linalg.lstsq(M, X, rcond=None)[0]

    assert networks.mean_error(stream) == pytest.approx(np.linalg.norm(rest) / np.linalg.norm(X), rel=1e-12)


def test_drawn_graphs_have_what_they_are_named_for():
    """Hubs are known to many; a community knows itself; a ring without shortcuts has one degree."""
    degrees = {
        name: np.diff(networks.Graph.of(edges).starts)
        for name, edges in {"hubs": networks.hubs(), "ring": networks.ring(share=0.0)}.items()
    }
    u, v = networks.communities((30, 30), 0.5, 0.02).T

    assert degrees["hubs"].max() > 10 * np.median(degrees["hubs"])
    assert set(degrees["ring"].tolist()) == {6}
    assert ((u < 30) == (v < 30)).mean() > 0.9


def test_graphs_are_read_from_a_folder(tmp_path):
    """From its `networks`, or from itself; a file that is damaged is refused as data."""
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / "COVID_PPI_edges.csv").write_text("a,b\nb,c\nc,a\n")
    (tmp_path / "Caltech36_edges.csv").write_text("1,2\n2,3\n")
    (tmp_path / "facebook_combined_edges.csv.gz").write_bytes(b"no gzip")

    assert networks.read(tmp_path, "COVID PPI")[0].nodes == 3
    assert networks.read(tmp_path, "Caltech36")[1] == "Caltech36_edges.csv"
    assert invoke("networks", "--data", tmp_path).exit_code == 3
