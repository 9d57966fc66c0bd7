"""The health of the chains that a service learns: what is told of them, what it costs, and that it changes no bit."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from stream_ocpdl import Learner, Problem
from stream_ocpdl.chains.streaming import split_rhat
from stream_ocpdl.chains.window import bulk_ess, rank_rhat, tail_ess
from stream_ocpdl.observe import wellness
from stream_ocpdl.observe.board import Board
from stream_ocpdl.observe.status import shard_of
from stream_ocpdl.observe.wellness import Wellness
from stream_ocpdl.page.events import Frames
from stream_ocpdl.page.meanings import health_of, wellness_of
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.draws import Counts
from stream_ocpdl.stream.messages import Draw, Origin, Tensor
from tests.fakes import World, serve
from tests.test_chains import autoregressive, health
from tests.test_live import served
from tests.test_pipeline import PACE, plan

STATE = Learner(Problem((3, 2), 3)).state
"""Of which no atom has any energy: the first two are followed."""


def step(t, losses, H):
    return SimpleNamespace(t=t, coding=SimpleNamespace(losses=np.asarray(losses), H=np.asarray(H)))


def follow(found, draws, run="r", first=1, tuning=False):
    """Every draw (chains, n) as a row of a step; norm and loss are the number, codes its square and nothing."""
    for k, row in enumerate(draws.T):
        origins = [Origin(run, c, k, tuning) for c in range(len(row))]
        H = np.stack([row**2, np.zeros_like(row), np.ones_like(row)], axis=1)
        found.stepped(origins, row**2, step(first + k, row, H), STATE)


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def chains(clock):
    return Wellness(lambda: clock[0])


def test_the_health_of_all_draws(chains):
    """Of every quantity what `streaming` says of it, one by one; a quantity that never moves has no number."""
    draws = 5.0 + autoregressive(0.5, 3, 3000, 1)
    follow(chains, draws)
    told = chains.report()
    single = [health(chain) for chain in draws]

    assert (told.since, told.atoms, told.names) == (1, (0, 1), ("norm", "loss", "code 1", "code 2"))
    assert [(c.run, c.chain, c.draws) for c in told.chains] == [("r", c, 3000) for c in range(3)]
    assert told.worst_rhats["norm"] == pytest.approx(split_rhat(single), rel=1e-9)
    assert told.longest_times["loss"] == pytest.approx(max(one.autocorrelation_time for one in single), rel=1e-9)
    assert told.least_ess["loss"] == pytest.approx(min(one.ess for one in single), rel=1e-9)
    assert told.longest_times["loss"] == pytest.approx(3.0, rel=0.25)
    assert set(told.longest_times) == {"norm", "loss", "code 1"}


def test_runs_are_not_mixed(chains):
    """Runs that lie apart are each well; of the same numbers as chains of one run it would be seen."""
    draws = 5.0 + autoregressive(0.2, 4, 1000, 2)
    follow(chains, draws[:2], "a")
    follow(chains, draws[2:] + 30.0, "b", first=2000)
    assert list(chains.report().runs) == ["a", "b"]
    assert chains.report().worst_rhats["norm"] < 1.05

    chains.forget()
    follow(chains, draws + 30.0 * (np.arange(4) >= 2)[:, None])
    clock_passes(chains)
    assert chains.report().worst_rhats["norm"] > 5


def clock_passes(chains):
    chains._now = lambda now=chains._now: now() + 10 * wellness.FRESH


def test_ranks_of_the_last_draws(chains):
    """Rank-normalised R̂ and bulk and tail ESS of the window are those of just these draws."""
    draws = 9.0 + autoregressive(0.7, 2, wellness.WINDOW + 777, 3)
    follow(chains, draws)
    [found], last = chains.ranked().values(), draws[:, -wellness.WINDOW :]

    assert (found.chains, found.draws) == (2, wellness.WINDOW)
    for told, wanted in ((found.rank_rhat, rank_rhat), (found.bulk_ess, bulk_ess), (found.tail_ess, tail_ess)):
        assert told["loss"] == wanted(last)


def test_a_chain_that_has_just_begun_does_not_cut_the_window(chains):
    """It is left out until it is a quarter as long as the longest."""
    follow(chains, np.random.default_rng(0).random((2, 400)) + 1)
    chains.stepped([Origin("r", 2, 0)], np.ones(1), step(401, [1.0], [[1.0, 1.0, 1.0]]), STATE)

    assert chains.ranked()["r"][:2] == (2, 400)


def test_tuning_tensors_and_too_many_chains(chains, monkeypatch):
    """Draws of tuning and plain tensors are not counted; of more chains than there is room for only draws are; one that
    has ended makes room.
    """
    monkeypatch.setattr(wellness, "CHAINS", 2)
    monkeypatch.setattr(wellness, "ENDED", 10)
    follow(chains, np.ones((1, 5)), tuning=True)
    chains.stepped([None, Origin("r", 0, 0)], np.ones(2), step(6, [1.0, 2.0], np.ones((2, 3))), STATE)
    assert [(c.chain, c.draws) for c in chains.report().chains] == [(0, 1)]

    follow(chains, np.ones((3, 4)), first=7)
    clock_passes(chains)
    assert [c.chain for c in chains.report().chains] == [0, 1]
    assert chains.report().unfollowed == 4
    follow(chains, np.ones((1, 30)), "new", first=11)
    follow(chains, np.ones((1, 30)), "new", first=41)
    clock_passes(chains)
    chains.report()
    follow(chains, np.ones((1, 30)), "new", first=71)
    clock_passes(chains)
    assert ("new", 0) in {(c.run, c.chain) for c in chains.report().chains}
    assert len(chains.report().chains) == 2


def test_memory_has_a_bound(chains):
    """What waits, the window and the sums do not grow with the draws; a batch larger than the window is taken whole."""
    n = 5 * wellness.WINDOW + 3
    random = np.random.default_rng(1).random(n)
    chains.stepped([Origin("r", 0, k) for k in range(n)], random**2, step(1, random, np.ones((n, 3))), STATE)
    [chain] = chains._chains.values()

    assert (len(chains._waiting), chain.count) == (0, n)
    assert np.array_equal(chain.window()[1], random[-wellness.WINDOW :])
    assert (len(chain._sums.levels), len(chain._sums.parts) < 64) == (n.bit_length(), True)


def test_a_model_that_went_back_begins_anew(chains):
    """Draws that are learned again would be counted twice."""
    follow(chains, np.ones((1, 50)))
    follow(chains, np.ones((1, 20)), first=31)

    assert chains.report().chains[0].draws == 20
    assert chains.report().since == 31


def drawn(chains=2, count=200):
    """Partitions with draws of as many chains."""
    random = np.random.default_rng(3)
    return [[Draw(Tensor(random.random((4, 3))), "<b>r", p, k).to_bytes() for k in range(count)] for p in range(chains)]


@pytest.fixture(scope="module")
def learned():
    board = Board("m", 1)
    shard = board.begin(0, plan())
    pipeline, _ = serve(World(drawn()), plan(), PACE, watch=shard)
    return board, shard, pipeline


def test_what_a_service_tells(learned):
    """In metrics, on the page and by /api/chains: of each chain and quantity, as JSON, also where nothing is known."""
    board, shard, _ = learned
    status = shard_of(shard)
    with served(board) as client:
        found = client.get("/api/chains").json()
    shard.silence.look(dict.fromkeys(shard.chains, (0, ())))  # as they were when somebody looked for the first time
    shown = Frames(board, "here").frame(0, 0.0)[0]["status"]

    assert shown["chains"] == {"active": 2, "silent": 0}
    assert [one["kind"] for one in shown["integrity"]] == list(Counts._fields)
    assert shown["chains_in_minibatch"] == 2
    assert status["chains_followed"] == 2
    assert 0.9 < status["chain_classical_split_rhat"]["norm"] < 1.1
    assert [one["quantity"] for one in health_of(shard)] == ["norm", "loss", "code 1", "code 2"]
    assert [(one["run"], one["chain"], one["draws"] > 90) for one in found["chains"]] == [
        ("<b>r", 0, True),
        ("<b>r", 1, True),
    ]
    assert found["runs"][0]["window"]["rank_rhat"]["norm"] < 1.1
    assert found["limits"] == {"classical_split_rhat": 1.1, "rank_rhat": 1.01, "ess_per_chain": 100}
    assert json.dumps(found, allow_nan=False)


def test_the_card_says_which_policy_runs(learned):
    """And what follows for (A1): mixed chains are no chain, one draw of each is a draw of their product."""
    _, shard, _ = learned
    assert "draws of chains (2 until now) are mixed" in shard.card[0].reason
    assert (shard.card[0].name, shard.card[0].standing) == ("(A1)", "open")

    one_each = Batching(4, rows="one-per-chain")
    assert "while the same chains (3 until now) go on together, 4 at most" in one_each.with_draws(3)
    assert one_each.with_draws(1) == Batching().with_draws(1)
    assert Batching().with_draws(1) == "draws of one chain, learned in its order: (A1) is about that chain"


def test_a_service_without_draws_tells_nothing():
    """Of tensors that are no draws there is no chain."""
    shard = Board("m", 1).begin(0, plan())

    assert health_of(shard) == []
    assert (wellness_of(shard)["chains"], wellness_of(shard)["runs"]) == ([], [])
    assert shard_of(shard)["chains_followed"] is None


def test_the_learner_knows_nothing_of_it(learned):
    """The state has the bits that it has unwatched, and a checkpoint nothing of it."""
    _, _, pipeline = learned
    other, _ = serve(World(drawn()), plan(), PACE)

    assert other.progress.state.digest() == pipeline.progress.state.digest()
    assert replace(other.progress.draws, counts=Counts()) == replace(pipeline.progress.draws, counts=Counts())
