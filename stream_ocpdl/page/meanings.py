"""What people should know of a hypothesis of the theorem, or of a chain, in a sentence."""

from dataclasses import asdict

from stream_ocpdl.observe.board import Shard
from stream_ocpdl.page.views import Json

ASSUMPTIONS = {
    "(A1)": "Tensors may depend on those before them, if their source is a Markov chain that forgets where it began."
    " The data alone cannot prove that; draws that are missing or repeated speak against it.",
    "(A2) loadings": "Loadings stay in a bounded, closed, convex set, so that the dictionary cannot run away.",
    "(A2) codes": "Codes are bounded, too; or an atom could shrink to nothing while its codes grow.",
    "(A3)": "The weights of new minibatches become small, but not too fast: the past settles, and what comes still"
    " counts. With it the losses converge.",
    "(A4)": "The expected loss is smooth, as it is where every tensor has just one best code. With it the dictionary"
    " comes close to stationary points of the expected loss.",
    "radius": "In a step the dictionary moves no further than the search radius, which shrinks with the weights: one"
    " strange minibatch cannot undo what was learned.",
}
"""By the names of the assumption card."""

CHAINS = {
    "repeated": "draws that came before; they are refused unless the settings accept them",
    "gaps": "draws before which others of their chain are missing: dropped draws void (A1)",
    "late": "draws that came after later ones of their chain, and filled a gap",
    "tuning": "draws of samplers that were still tuning themselves: no Markov chain with a fixed kernel",
}


def card_of(shard: Shard) -> list[Json]:
    """The lines of the assumption card, each with its meaning."""
    return [{**asdict(line), "meaning": ASSUMPTIONS.get(line.name, "")} for line in shard.card]


def chains_of(shard: Shard) -> list[Json]:
    """What was found about the draws of samplers."""
    return [{"kind": kind, "count": n, "meaning": CHAINS.get(kind, "")} for kind, n in shard.draws._asdict().items()]
