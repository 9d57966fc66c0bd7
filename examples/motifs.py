"""Mesoscale motifs of a graph: python examples/motifs.py --edges graph.csv --out motifs.svg

Chains of k nodes walk over the graph; each draw is the patch of the adjacency matrix that they span. The graph is an
edge list by its path; without one it is Zachary's karate club of networkx, or, without networkx, a ring with shortcuts.
"""

import argparse
from pathlib import Path

import numpy as np
from pictures import atoms, picture

from stream_ocpdl import OnlineCPDL
from stream_ocpdl.experiments.networks import ring
from stream_ocpdl.samplers import Chain, Graph, Motif


def graph_of(path):
    """The graph and its name."""
    if path is not None:
        return Graph.read(path), path.name
    try:
        from networkx import karate_club_graph
    except ImportError:
        return Graph.of(ring(200)), "a ring with shortcuts"
    return Graph.of(np.array(karate_club_graph().edges())), "the karate club"


def learn(sampler, chains, count, rank):
    """A model of every draw of several chains, one of each a minibatch, and the last draws."""
    model = OnlineCPDL(rank, groups=((0, 1),), sparsity=0.2, batch_size=chains, random_state=0)
    walks = [Chain(sampler, 1, c) for c in range(chains)]
    kept = []
    for k in range(count):
        draws = np.stack([next(walk) for walk in walks]).astype(float)
        model.partial_fit(draws)
        if k >= count - 100:
            kept.extend(draws)
    return model, np.stack(kept)


def main():
    """Sample, learn, draw."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--edges", type=Path)
    options.add_argument("--k", type=int, default=15)
    options.add_argument("--chain", choices=("pivot", "glauber"), default="pivot")
    options.add_argument("--count", type=int, default=2000)
    options.add_argument("--rank", type=int, default=9)
    options.add_argument("--out", default="motifs.svg")
    chosen = options.parse_args()
    graph, name = graph_of(chosen.edges)
    model, last = learn(Motif(graph, chosen.k, chosen.chain), 8, chosen.count, chosen.rank)
    shapes, shares = atoms(model, model.transform(last))
    title = f"motifs of {name}, the most used first; the first has {shares[0]:.0%} of the energy"
    picture(chosen.out, [("some patches", last[-len(shapes) :]), (title, shapes)])
    print(f"{name}: {graph.nodes} nodes; explained: {model.score(last):.0%} of the energy of the last patches")
    print(f"see {chosen.out}")


if __name__ == "__main__":
    main()
