"""The section of the page on motifs of graphs."""

from pathlib import Path
from typing import Any

from stream_ocpdl.experiments import networks
from stream_ocpdl.experiments.markdown import shown, table
from stream_ocpdl.experiments.records import Document

MOTIFS = """\
## Motifs of graphs

Not in this paper, but what its authors did with its method's forerunner: dictionaries of the patches that chains of
nodes, each a neighbour of the one before, span in the adjacency matrix. All chains are equally likely, and a node may
come twice. What is learned comes from ten chains of draws, what is held out from ten others. Patches are learned as
vectors, as in that work, and as the matrices they are, where an atom has rank one. The error is that of held-out
patches, ‖X − X̂‖/‖X‖; the mean patch is a dictionary of one atom."""

MET = """\
What the chains meet: how many nodes of a chain differ, how many of the cells off the chain are edges, how many of
those between places an even number apart, and on how many nodes the chains gather (1/Σp² of the shares p that nodes
have of them):
"""

DRAWN = """\
Each dictionary as vectors, the atoms with the most energy first, dark where there is an edge:
"""

CROSSED = """\
The dictionary of one graph (our default, as vectors) on the held-out patches of another:
"""

SEEN = """\
Looked at (the first run): with λ = 1 atoms are like whole patches, and without a penalty they are parts. The chain
itself, the two lines beside the diagonal, is the first atom of Caltech36 and of the ring. Then Caltech36 has crosses,
a row and the same column: one node of the chain knows many others, a hub; beside them are small dark blocks, groups
that the chain stays in for a while. ego-Facebook is nearly full: its chains stay in one dense community, and what
tells patches apart is who does not belong, white rows and columns. COVID PPI is a chessboard: chains go to and fro
between two sides, so that a node knows those an odd number of places away, and few others; its parts are the dotted
crosses and blocks of that board, and one of its 25 atoms is nothing. The ring has dark squares beside the diagonal and
away from it, where a chain comes back to where it was, and no crosses: it has no hubs.

Two things to know. Chains of 21 nodes are most numerous where a graph is densest, and if all are equally likely, that
is where they are: these are the motifs of about 192 nodes of ego-Facebook and of 13 of COVID PPI, not of the graphs at
large. And a chain beside the diagonal has full rank: atoms of rank one hardly spell it, so that matrices, which take 42
numbers an atom and not 441, are little better than the mean patch on Caltech36, and with the penalty worse. Each graph
is best told by its own dictionary; the ring's is second best or nearly so for the others, and that of COVID PPI is
worse for them than their mean patch.
"""


def section(document: Document, results: Path) -> list[str]:
    """What chains meet, errors, dictionaries, and each on the patches of the others."""
    graphs = document["graphs"]
    names = [row["graph"] for row in graphs]
    by = {(row["graph"], row["shaping"], row["setting"]): row for row in document["rows"]}
    choices = [(shaping, setting) for shaping in networks.SHAPINGS for setting in networks.SETTINGS]
    errors = [["the mean patch", *(_spread(row["mean"]) for row in graphs)]]
    errors += [[f"{a}, {b}", *(_spread(by[name, a, b]) for name in names)] for a, b in choices]
    crossed = zip(names, document["crossed"], strict=True)
    return [
        MOTIFS + "\n",
        f"Chains of {document['k']} nodes, {document['rank']} atoms, {document['steps']} steps of"
        f" {document['batch']} patches; {document['repeats']} runs, each with {document['held']} held-out patches.\n",
        MET,
        table(
            ["", "source", "nodes", "edges", "differ", "edges off the chain", "evenly apart", "gathered on"],
            list(map(_met, graphs)),
        ),
        "Held-out errors:\n",
        table(["", *names], errors),
        *([DRAWN] if (results / "networks.png").exists() else []),
        *shown(results, "networks.png", "Motifs of four graphs, with a penalty and without"),
        CROSSED,
        table(["dictionary of", *names], [[name, *(f"{error:.4f}" for error in row)] for name, row in crossed]),
        *([SEEN] if tuple(row["source"] for row in graphs) == networks.FILES and not document["quick"] else []),
    ]


def _met(row: dict[str, Any]) -> list[str]:
    """A graph, and what its chains meet."""
    counts = [row["graph"], row["source"], str(row["nodes"]), str(row["edges"])]
    return [
        *counts,
        f"{row['differ']:.1f}",
        *(f"{100 * row[key]:.2g} %" for key in ("off_chain", "even")),
        f"{row['gathered']:.0f}",
    ]


def _spread(row: dict[str, float]) -> str:
    return f"{row['error']:.4f} ± {row['deviation']:.4f}"
