"""Motifs of a graph: chains of k nodes, each a neighbour of the one before, drawn so that all are equally likely.

What is drawn is the patch of the adjacency matrix that the nodes of the chain span, k × k: a mesoscale picture of the
graph (Lyu, Memoli, Sivakoff: *Sampling random graph homomorphisms*; Lyu, Kureh, Vendrow, Porter: *Learning low-rank
latent mesoscale structures in networks*). Nodes may come twice. Two ways from one chain x₁…x_k to the next:

    glauber   a place is drawn, and its node drawn anew among the common neighbours of those beside it; quick, and slow
              to mix. `steps` of these lie between two draws.
    pivot     x₁ walks: a neighbour v of u is taken with probability min(1, N(v)d(u) / N(u)d(v)), where d is the degree
              and N = A^{k−1}1 the number of chains that begin at a node; then x₂…x_k are drawn anew, given x₁.

Of a graph in several parts the largest is taken: no chain could leave it. On a bipartite graph Glauber's chain could
not leave its half, and is refused; the pivot then rests every other time, or it would go round in a period of two.
"""

import gzip
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from stream_ocpdl.errors import ConfigError, DataError
from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices
from stream_ocpdl.ocpdl.compiled import kernel


@kernel
def adjacent(starts: Any, ends: Any, u: int, v: int) -> bool:
    """Whether v is in the sorted list of u's neighbours."""
    low, high = starts[u], starts[u + 1]
    while low < high:
        middle = (low + high) // 2
        if ends[middle] < v:
            low = middle + 1
        else:
            high = middle
    return bool(low < starts[u + 1] and ends[low] == v)


@kernel
def patch(starts: Any, ends: Any, nodes: Any, out: Any) -> None:
    """out[a, b] = A(x_a, x_b)."""
    k = len(nodes)
    for a in range(k):
        for b in range(k):
            out[a, b] = 1 if adjacent(starts, ends, nodes[a], nodes[b]) else 0


@kernel
def extend(starts: Any, ends: Any, walks: Any, uniforms: Any, out: Any) -> None:
    """x_{i+1} given x_i, ∝ A(x_i, ·) N_{k−1−i}(·), so that all chains from x₁ are equally likely; out[0] is x₁."""
    k = len(out)
    for i in range(k - 1):
        first, last, more = starts[out[i]], starts[out[i] + 1], walks[k - 2 - i]
        total = 0.0
        for e in range(first, last):
            total += more[ends[e]]
        left, e = uniforms[i] * total, first
        while e + 1 < last and left >= more[ends[e]]:
            left -= more[ends[e]]
            e += 1
        out[i + 1] = ends[e]


@kernel
def pivot(starts: Any, ends: Any, walks: Any, uniforms: Any, out: Any) -> None:
    """A step of x₁, taken or not by uniforms (2,)."""
    u = out[0]
    degree = starts[u + 1] - starts[u]
    v = ends[starts[u] + min(int(uniforms[0] * degree), degree - 1)]
    count, other = walks[len(out) - 1], starts[v + 1] - starts[v]
    if uniforms[1] * count[u] * other < count[v] * degree:
        out[0] = v


@kernel
def glauber(starts: Any, ends: Any, uniforms: Any, out: Any) -> None:
    """Steps of Glauber's chain, two uniforms each: a place, and which of the common neighbours of those beside it."""
    k = len(out)
    for u in uniforms:
        place = min(int(u[0] * k), k - 1)
        one = out[place - 1] if place > 0 else out[1]
        other = out[place + 1] if place + 1 < k else one
        common = 0
        for e in range(starts[one], starts[one + 1]):
            common += one == other or adjacent(starts, ends, other, ends[e])
        which = min(int(u[1] * common), common - 1)  # the node that is there is one of them
        for e in range(starts[one], starts[one + 1]):
            if one == other or adjacent(starts, ends, other, ends[e]):
                if which == 0:
                    out[place] = ends[e]
                which -= 1


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """An undirected graph by the neighbours of each node, sorted: those of u are ends[starts[u] : starts[u + 1]]."""

    starts: Indices
    ends: Indices
    bipartite: bool

    @property
    def nodes(self) -> int:
        """How many there are."""
        return len(self.starts) - 1

    @classmethod
    def of(cls, edges: Any) -> Self:
        """The largest part of the graph with these edges, (m, 2) node numbers; loops and repetitions do not count."""
        pairs = np.asarray(edges)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
            raise DataError(f"edges must be pairs of node numbers, (m, 2), not {pairs.dtype} of shape {pairs.shape}")
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        if len(pairs) == 0:
            raise DataError("the graph has no edges")
        pairs = np.unique(np.unique(pairs, return_inverse=True)[1].reshape(pairs.shape), axis=0)
        both = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
        sides = _sides(both)
        part, side = sides[0] == np.bincount(sides[0]).argmax(), sides[1]
        both = both[part[both[:, 0]]]
        names, ends = np.unique(both, return_inverse=True)
        ends = ends.reshape(both.shape)
        starts = np.concatenate([[0], np.cumsum(np.bincount(ends[:, 0], minlength=len(names)))])
        bipartite = bool(np.all(side[both[:, 0]] != side[both[:, 1]]))
        return cls(starts.astype(np.int64), np.ascontiguousarray(ends[:, 1], np.int64), bipartite)

    @classmethod
    def read(cls, path: Path) -> Self:
        """An edge list, gzipped or not: two names a line, whatever comes after them; # and % begin a comment."""
        numbers: dict[str, int] = {}
        edges = []
        try:
            with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    words = line.replace(",", " ").split()
                    if not words or words[0][0] in "#%":
                        continue
                    if len(words) < 2:
                        raise DataError(f"{path}, line {number}: an edge has two nodes, not {line.strip()[:40]!r}")
                    edges.append([numbers.setdefault(word, len(numbers)) for word in words[:2]])
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path} is damaged: {error}") from error
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is no text in UTF-8") from error
        return cls.of(np.array(edges, np.int64).reshape(-1, 2))


def _sides(both: Indices) -> tuple[Indices, Indices]:
    """Of each node the part that it is in, and its side in a walk through that part."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(both[:, 0]))])
    part, side = np.full(len(starts) - 1, -1), np.zeros(len(starts) - 1, np.int64)
    for root in range(len(part)):
        if part[root] >= 0:
            continue
        part[root], waiting = root, [root]
        while waiting:
            u = waiting.pop()
            near = both[starts[u] : starts[u + 1], 1]
            fresh = near[part[near] < 0]
            part[fresh], side[fresh] = root, 1 - side[u]
            waiting.extend(fresh.tolist())
    return part, side


@dataclass(frozen=True, slots=True, eq=False)
class Motif:
    """Chains of `k` nodes of a graph; without `steps` Glauber's chain has k of them from draw to draw."""

    graph: Graph
    k: int
    chain: Literal["pivot", "glauber"] = "pivot"
    steps: int | None = None
    name: str = "motif"
    _walks: Array = field(init=False)
    """N_j = A^j 1, each divided by its mean: only ratios count, and they would overflow."""

    def __post_init__(self) -> None:
        if self.k < 2:
            raise ConfigError(f"a chain has at least 2 nodes, not {self.k}")
        if self.chain not in ("pivot", "glauber"):
            raise ConfigError(f"chain must be 'pivot' or 'glauber', not {self.chain!r}")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"steps must be at least 1, not {self.steps}")
        if self.chain == "glauber" and self.graph.bipartite:
            raise ConfigError("the graph is bipartite, and Glauber's chain could not leave its half: take chain=pivot")
        walks = [np.ones(self.graph.nodes)]
        for _ in range(self.k - 1):
            walks.append(np.add.reduceat(walks[-1][self.graph.ends], self.graph.starts[:-1]))
            walks[-1] /= walks[-1].mean()
        object.__setattr__(self, "_walks", np.stack(walks))

    def first(self, random: np.random.Generator) -> BigArray:
        """All chains are equally likely: it is stationary from its beginning."""
        at = np.zeros(self.k, np.int64)
        count = np.cumsum(self._walks[-1])
        at[0] = min(int(np.searchsorted(count, random.random() * count[-1], "right")), self.graph.nodes - 1)
        extend(self.graph.starts, self.graph.ends, self._walks, random.random(self.k), at)
        return at

    def move(self, place: BigArray, random: np.random.Generator) -> BigArray:
        """The next chain of nodes."""
        starts, ends, out = self.graph.starts, self.graph.ends, place.copy()
        if self.chain == "glauber":
            glauber(starts, ends, random.random((self.steps or self.k, 2)), out)
            return out
        for _ in range(self.steps or 1):
            if not self.graph.bipartite or random.random() < 0.5:
                pivot(starts, ends, self._walks, random.random(2), out)
        extend(starts, ends, self._walks, random.random(self.k), out)
        return out

    def tensor(self, place: BigArray) -> BigArray:
        """The patch of the adjacency matrix."""
        out = np.empty((self.k, self.k), np.uint8)
        patch(self.graph.starts, self.graph.ends, place, out)
        return out
