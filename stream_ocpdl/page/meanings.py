"""What people should know of a hypothesis of the theorem, or of a chain, in a sentence or a few numbers."""

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


QUANTITIES = {
    "norm": "the size of a draw: the sampler's alone",
    "loss": "how well a draw is explained before it is learned: it drifts while the dictionary learns",
    "code": "the code of an atom that had much energy when this began: it drifts with the atom",
}
"""What is followed of each draw."""

LIMITS = {"classical_split_rhat": 1.1, "rank_rhat": 1.01, "ess_per_chain": 100}
"""Which limit suits which measure."""


NAMED = 100
"""Letters of a run's name that are shown."""


def card_of(shard: Shard) -> list[Json]:
    """The lines of the assumption card, each with its meaning."""
    return [{**asdict(line), "meaning": ASSUMPTIONS.get(line.name, "")} for line in shard.card]


def integrity_of(shard: Shard) -> list[Json]:
    """What was found about the draws of samplers."""
    return [{"kind": kind, "count": n, "meaning": CHAINS.get(kind, "")} for kind, n in shard.draws._asdict().items()]


def health_of(shard: Shard) -> list[Json]:
    """The health of the chains in a line for each quantity, of all draws since the process began."""
    told = shard.wellness.report()
    rhats, times, ess = told.worst_rhats, told.longest_times, told.least_ess
    return [
        {
            "quantity": name,
            "meaning": QUANTITIES[name.partition(" ")[0]],
            "classical_split_rhat": rhats.get(name),
            "autocorrelation_draws": times.get(name),
            "effective_draws": ess.get(name),
        }
        for name in (told.names if told.chains else ())
    ]


def wellness_of(shard: Shard) -> Json:
    """All that is known of the health of the chains, chain by chain and run by run; with ranks of the last draws."""
    told, ranked = shard.wellness.report(), shard.wellness.ranked()
    return {
        "since_step": told.since,
        "atoms": list(told.atoms),
        "limits": LIMITS,
        "draws_of_chains_not_followed": told.unfollowed,
        "chains": [
            {
                "run": chain.run[:NAMED],
                "chain": chain.chain,
                "draws": chain.draws,
                "autocorrelation_draws": {name: one.autocorrelation_time for name, one in chain.healths.items()},
                "effective_draws": {name: one.ess for name, one in chain.healths.items()},
            }
            for chain in told.chains
        ],
        "runs": [
            {
                "run": run[:NAMED],
                "chains": len(chains),
                "classical_split_rhat": told.split_rhats(chains),
                "window": ranked[run]._asdict() if run in ranked else None,
            }
            for run, chains in told.runs.items()
        ],
    }
