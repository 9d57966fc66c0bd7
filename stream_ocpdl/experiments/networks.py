"""Motifs of graphs: dictionaries of the patches that chains of 21 nodes span in an adjacency matrix.

Every chain of k nodes, each a neighbour of the one before, is equally likely (`samplers.motif`), and nodes may come
twice. Its patch, k × k, has the chain beside its diagonal, and beyond that what else its nodes have to do with each
other. Ten chains of draws walk over a graph, and a minibatch has the next ten draws of each; ten other chains are held
out. A patch is learned as a vector, as the authors' work on networks has it (Lyu, Kureh, Vendrow, Porter: *Learning
low-rank latent mesoscale structures in networks*), and as the matrix it is, where an atom has rank one.

- Their settings: λ = 1 and w_t = 1/t. Atoms look like whole patches.
- Without a penalty, our default. Atoms are parts of patches.

The error is ‖X − X̂‖/‖X‖ of held-out patches with nonnegative codes, with the penalty where there was one. Beside it is
that of one atom, the mean patch. A dictionary of one graph is also tried on the patches of the others.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stream_ocpdl.estimator import OnlineCPDL
from stream_ocpdl.ocpdl.arrays import Array, Indices
from stream_ocpdl.ocpdl.schedules import Balanced
from stream_ocpdl.samplers.chain import Chain
from stream_ocpdl.samplers.motif import Graph, Motif

VECTORS, MATRICES = "as vectors", "as matrices"
SHAPINGS: dict[str, tuple[tuple[int, ...], ...]] = {VECTORS: ((0, 1),), MATRICES: ((0,), (1,))}

THEIRS, OURS = "λ = 1, w = 1/t", "λ = 0, our default"
SETTINGS: dict[str, dict[str, Any]] = {THEIRS: {"sparsity": 1.0, "weights": Balanced()}, OURS: {}}


@dataclass(frozen=True)
class Sizes:
    """How much is learned."""

    k: int = 21
    rank: int = 25
    steps: int = 200
    chains: int = 10
    each: int = 10
    """Draws of a chain in a minibatch."""
    held: int = 100
    """Draws of each chain that is held out."""
    repeats: int = 3


FULL, QUICK = Sizes(), Sizes(7, 4, 12, 4, 5, 20, 1)

Edges = Indices
"""(m, 2) node numbers."""


# --- graphs ----------------------------------------------------------------------------------------------------------


def ring(nodes: int = 600, near: int = 3, share: float = 0.1, seed: int = 0) -> Edges:
    """A node knows those nearest to it on a ring; a share of the edges lead anywhere (Watts, Strogatz)."""
    random = np.random.default_rng(seed)
    edges = np.array([(u, (u + d) % nodes) for u in range(nodes) for d in range(1, near + 1)])
    anywhere = random.random(len(edges)) < share
    edges[anywhere, 1] = random.integers(0, nodes, anywhere.sum())
    return edges


def communities(sizes: tuple[int, ...] = (60,) * 5, inside: float = 0.3, outside: float = 0.01, seed: int = 0) -> Edges:
    """Nodes of one community know each other often, and others seldom."""
    random, of = np.random.default_rng(seed), np.repeat(np.arange(len(sizes)), sizes)
    u, v = np.triu_indices(len(of), 1)
    there = random.random(len(u)) < np.where(of[u] == of[v], inside, outside)
    return np.stack([u[there], v[there]], axis=1)


def hubs(nodes: int = 600, each: int = 2, seed: int = 0) -> Edges:
    """A node that comes knows `each` of those before it, the more likely the more they are known (Barabási, Albert)."""
    random, ends, edges = np.random.default_rng(seed), list(range(each)), []
    for u in range(each, nodes):
        known = {int(v) for v in random.choice(ends, each)}
        edges += [(u, v) for v in sorted(known)]
        ends += [u] * len(known) + sorted(known)
    return np.array(edges)


@dataclass(frozen=True)
class Wanted:
    """A graph: the file that has it, if one does, and what stands in for it."""

    file: str | None
    drawn: str
    draw: Callable[[], Edges]


GRAPHS = {
    "Caltech36": Wanted("Caltech36_edges.csv", "drawn communities", communities),
    "ego-Facebook": Wanted(
        "facebook_combined_edges.csv.gz", "drawn dense communities", lambda: communities((40, 30, 20, 20, 10), 0.8)
    ),
    "COVID PPI": Wanted("COVID_PPI_edges.csv", "drawn hubs", hubs),
    "ring": Wanted(None, "a drawn ring with shortcuts", ring),
}
"""Students of one college, friends of ten people, proteins that meet those of a virus; the ring is there to compare."""

FILES = tuple(wanted.file or wanted.drawn for wanted in GRAPHS.values())
"""The sources of all graphs, where the data are there."""


def read(data: Path | None, name: str, quick: bool = False) -> tuple[Graph, str]:
    """The largest part of a graph, and what it is."""
    wanted = GRAPHS[name]
    places = (
        [] if data is None or quick or wanted.file is None else [data / "networks" / wanted.file, data / wanted.file]
    )
    found = next((path for path in places if path.exists()), None)
    return (Graph.of(wanted.draw()), wanted.drawn) if found is None else (Graph.read(found), found.name)


# --- patches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """Minibatches (b, k, k) to learn, patches that are held out, and the nodes (count, k) of these."""

    minibatches: list[Array]
    held: Array
    nodes: Indices


def drawn(graph: Graph, sizes: Sizes, seed: int) -> Stream:
    """Chains with even numbers are learned, those with odd numbers held out."""
    motif = Motif(graph, sizes.k)
    walks = [Chain(motif, seed, 2 * c) for c in range(sizes.chains)]
    minibatches = [
        np.array([next(walk) for walk in walks for _ in range(sizes.each)], np.float64) for _ in range(sizes.steps)
    ]
    pairs = [pair for c in range(sizes.chains) for pair in _walked(Chain(motif, seed, 2 * c + 1), sizes.held)]
    return Stream(minibatches, np.array([X for X, _ in pairs], np.float64), np.array([at for _, at in pairs]))


def _walked(walk: Chain, count: int) -> Iterator[tuple[Array, Indices]]:
    """Patches, and the chain of each."""
    for _ in range(count):
        yield next(walk), walk.place.at


def looked_at(graph: Graph, stream: Stream) -> dict[str, Any]:
    """What chains meet: how many nodes of theirs differ, edges off the chain, and on how many nodes they gather.

    Edges are told once more of places an even number apart: where those are few, a chain goes to and fro. The
    last is 1/Σp² of the shares p that nodes have of all chains: all of them, if chains were everywhere alike.
    """
    k = stream.held.shape[1]
    apart = np.abs(np.subtract.outer(np.arange(k), np.arange(k)))
    shares = np.bincount(stream.nodes.reshape(-1), minlength=graph.nodes) / stream.nodes.size
    return {
        "nodes": graph.nodes,
        "edges": len(graph.ends) // 2,
        "differ": float(np.mean([len(set(chain)) for chain in stream.nodes.tolist()])),
        "off_chain": float(stream.held[:, apart > 1].mean()),
        "even": float(stream.held[:, (apart > 1) & (apart % 2 == 0)].mean()),
        "gathered": float(1.0 / np.vdot(shares, shares)),
    }


# --- dictionaries ----------------------------------------------------------------------------------------------------


def learn(stream: Stream, shaping: str, setting: str, sizes: Sizes, seed: int) -> OnlineCPDL:
    """A dictionary of the minibatches, in their order."""
    batch = sizes.chains * sizes.each
    model = OnlineCPDL(sizes.rank, groups=SHAPINGS[shaping], batch_size=batch, random_state=seed, **SETTINGS[setting])
    for X in stream.minibatches:
        model.partial_fit(X)
    return model


def error_of(model: OnlineCPDL, X: Array) -> float:
    """‖X − X̂‖/‖X‖."""
    return float(np.sqrt(1.0 - model.score(X)))


def mean_error(stream: Stream) -> float:
    """The error of held-out patches by the mean of those that were learned, each as strong as fits it best."""
    M, X = np.mean(stream.minibatches, axis=(0, 1)), stream.held
    explained = np.square(np.einsum("bij,ij->b", X, M)).sum() / np.vdot(M, M)
    return float(np.sqrt(1.0 - explained / np.vdot(X, X)))


def by_importance(model: OnlineCPDL, X: Array) -> Array:
    """The atoms (R, k, k), those with the most energy in patches X first."""
    atoms = model.atoms_
    energy = np.square(model.transform(X)).sum(axis=0) * np.square(atoms).sum(axis=(1, 2))
    return np.asarray(atoms[np.argsort(-energy, kind="stable")])


# --- the experiment --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Figures, and the atoms that are drawn, by setting and graph: those of the first run, as vectors."""

    body: dict[str, Any]
    atoms: dict[tuple[str, str], Array]


def run(data: Path | None, quick: bool, say: Callable[[str], None]) -> Found:
    """All graphs, several times; then every dictionary on the patches of every graph."""
    sizes = QUICK if quick else FULL
    graphs = {name: read(data, name, quick) for name in GRAPHS}
    errors: dict[tuple[str, str, str], list[float]] = {}
    means: dict[str, list[float]] = {name: [] for name in graphs}
    crosses, atoms, met = [], {}, {}
    for seed in range(sizes.repeats):
        streams = {name: drawn(graph, sizes, seed) for name, (graph, _) in graphs.items()}
        models = {}
        for name, stream in streams.items():
            for shaping in SHAPINGS:
                for setting in SETTINGS:
                    model = learn(stream, shaping, setting, sizes, seed)
                    errors.setdefault((name, shaping, setting), []).append(error_of(model, stream.held))
                    models[name, shaping, setting] = model
            means[name].append(mean_error(stream))
            say(f"{name}: run {seed + 1} of {sizes.repeats}")
        crosses.append(_crossed(models, streams))
        if seed == 0:
            met = {name: looked_at(graphs[name][0], stream) for name, stream in streams.items()}
            atoms = {
                (setting, name): by_importance(models[name, VECTORS, setting], stream.held)
                for setting in SETTINGS
                for name, stream in streams.items()
            }
    rows = [
        {"graph": name, "shaping": shaping, "setting": setting, **_spread(found)}
        for (name, shaping, setting), found in errors.items()
    ]
    body: dict[str, Any] = {"k": sizes.k, "rank": sizes.rank, "steps": sizes.steps, "batch": sizes.chains * sizes.each}
    body |= {"repeats": sizes.repeats, "held": sizes.chains * sizes.held, "rows": rows}
    body["graphs"] = [{"graph": n, "source": graphs[n][1], **met[n], "mean": _spread(means[n])} for n in graphs]
    return Found(body | {"crossed": np.mean(crosses, axis=0).tolist()}, atoms)


def _crossed(models: Mapping[tuple[str, str, str], OnlineCPDL], streams: Mapping[str, Stream]) -> list[list[float]]:
    """Our default, as vectors: a row for each dictionary, a column for the patches of each graph."""
    return [[error_of(models[name, VECTORS, OURS], stream.held) for stream in streams.values()] for name in streams]


def _spread(found: list[float]) -> dict[str, float]:
    return {"error": float(np.mean(found)), "deviation": float(np.std(found))}
