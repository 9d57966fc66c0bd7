"""Products of chains: where another one begins an epoch does, the same one in a replay, and after a kill."""

from dataclasses import replace

import pytest

from stream_ocpdl.errors import StateError
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.draws import CHAINS
from stream_ocpdl.stream.messages import JournalRecord, Manifest, Origin
from stream_ocpdl.stream.product import Product
from tests.fakes import Crash, World, serve
from tests.test_draws import plan, value
from tests.test_kafka import check, eventually, model, process  # noqa: F401  (fixtures)
from tests.test_pipeline import PACE, crashing, live


def origins(chains):
    return [None, *(Origin("run", int(chain), 0) for chain in chains)]


@pytest.mark.parametrize(
    ("steps", "begin"),
    [
        ("01 01 01 01", []),
        ("01 01 0 0 0", [2]),
        ("0 0 0 01 01", [3]),
        ("01 01 02 02", [2]),
        ("01 01 0 01 01 01", [2, 4]),
        ("01 23 01 23 01 23", []),
        ("01 01 23 01 23 01 23", [2]),
        ("01 01 23 01 12 12 12 12", [2, 5]),
        ("0 01 012 012 012", [4 - 1]),
        ("01 01 - 01 - 0 0", [5]),
    ],
)
def test_where_another_product_begins(steps, begin):
    """Where chains end, begin or change places; not at each step of those that change from one to the next, as they do
    with more chains than rows; tensors that are no draws are none of its business.
    """
    product, epoch, found = Product(), 0, []
    for k, chains in enumerate(steps.split()):
        rows = origins(chains.strip("-"))
        if product.ended(rows, epoch):
            epoch, found = epoch + 1, [*found, k]
        product = product.after(rows, epoch)

    assert found == begin
    assert Product.from_bytes(product.to_bytes()) == product


def test_what_is_said():
    """How many are gone, and how many came."""
    product = Product().after(origins("012"), 0).after(origins("012"), 0)
    assert product.ended(origins("0"), 0) == "another product of chains, 1 chain after 3: 2 ended or stalled"
    assert product.ended(origins("013"), 0) == (
        "another product of chains, 3 chains after 3: 1 ended or stalled, 1 began or came back"
    )
    assert product.ended(origins("0"), 1) is None  # an epoch has begun for another reason


def test_memory_is_bounded():
    """Of very many chains it is known whether they are the same."""
    many = [Origin("run", chain, 0) for chain in range(CHAINS + 5)]
    product = Product().after(many, 0).after(many, 0)

    assert len(product.to_bytes()) < 20
    assert product.ended(many, 0) is None
    assert product.ended(many[1:], 0)


@pytest.mark.parametrize("wrong", [b"\x00", bytes(9), bytes(16), bytes(8) + b"\x03" + bytes(8)])
def test_what_makes_no_sense_is_refused(wrong):
    """A damaged checkpoint is no checkpoint."""
    with pytest.raises(StateError, match="make no sense"):
        Product.from_bytes(wrong)


# ── in the stream ──────────────────────────────────────────────────────────────────────────────────────────────


def journal(world):
    return [JournalRecord.from_bytes(found) for found in world.stream("journal")]


def chains(lengths, count=60):
    """Draws of chains side by side, each for so long; one that begins late has a number below zero."""
    return [value(c, k) for k in range(count) for c, n in enumerate(lengths) if (k < n if n > 0 else k >= -n)]


def test_a_chain_that_ends():
    """It is waited for; then an epoch begins before the first step without it, and it is said, and counted."""
    world = World([chains((60, 60, 60, 20))])
    end, reports = serve(world, plan(rows="one-per-chain"), PACE)
    records = journal(world)
    [at] = [k for k, record in enumerate(records) if record.event == "epoch"]

    assert (records[at].t, records[at].epoch, records[at].used) == (20, 1, ())
    assert "4: 1 ended or stalled" in records[at].reason
    assert [(r.t, r.epoch) for r in records[at - 1 : at + 2]] == [(20, None), (20, 1), (21, 1)]
    assert {code.dictionary.epoch for code in world.codes() if code.step <= 20} == {0}
    assert {code.dictionary.epoch for code in world.codes() if code.step > 20} == {1}
    assert sum("a new epoch, 1: another product of chains" in str(line) for line in reports) == 1
    assert end.progress.epoch == 1


def test_with_any_rows_there_is_no_product():
    """The same draws, mixed as they come, begin no epoch."""
    world = World([chains((60, 60, 60, 20))])
    serve(world, plan(), PACE)

    assert {record.event for record in journal(world)} == {"genesis", "step"}


@pytest.mark.parametrize("chunk", [2, 7])
@pytest.mark.parametrize(
    ("lengths", "begun"),
    [
        ((60, 60, 60, 20, -40), [20, 30]),  # one ends, another begins
        ((30, 30, 60, 60, -20), [21, 33]),  # for a while five chains for four rows, then three of them go on
        ((60,) * 8, []),  # always more chains than rows
    ],
)
def test_a_kill_changes_no_epoch(lengths, begun, chunk):
    """Killed at any place, with checkpoints or without: epochs, codes, and what is known in the end are those of a
    service that was not disturbed, and of a replay of the journal from scratch.
    """
    values, chosen = [chains(lengths)], plan(rows="one-per-chain")
    calm = World(values)
    undisturbed = live(calm, chosen, crashing([]), 3)
    epochs = [(r.t, r.epoch, r.reason) for r in journal(calm) if r.event == "epoch"]
    assert [t for t, _, _ in epochs] == begun
    for first in (2, 9, 31):
        world = World(values)
        end = live(world, chosen, crashing(range(first, 400, 13)), chunk)
        scratch = World(values)
        scratch.written = [output for output in world.written if output.stream == "journal"]
        again = live(scratch, chosen, crashing([]), chunk)

        assert [(r.t, r.epoch, r.reason) for r in journal(world) if r.event == "epoch"] == epochs
        assert world.stream("codes") == calm.stream("codes")
        assert end.progress.product == again.progress.product == undisturbed.progress.product
        assert end.progress.state.digest() == again.progress.state.digest() == undisturbed.progress.state.digest()


def test_a_checkpoint_knows_the_product():
    """A service that begins with a checkpoint begins an epoch where one that replays everything does."""
    values, chosen = chains((60, 60, 60, 20)), plan(rows="one-per-chain")
    world = World([values[:80]])  # up to where the chain ends
    serve(world, chosen, PACE)
    manifest, _ = world.checkpoints[0]
    assert manifest.t == 20
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert b"product" not in replace(manifest, product=None).to_bytes()
    world.input = [values]
    end, _ = serve(world, chosen, PACE)

    assert end.progress.epoch == 1
    assert [record.t for record in journal(world) if record.event == "epoch"] == [20]


def test_a_crash_between_two_commits():
    """An epoch and the step that it begins with are committed together, or neither is."""
    values, chosen, seen = [chains((60, 60, 60, 20))], plan(rows="one-per-chain"), []

    def at(name):
        last = journal(world)[-1].event if world.stream("journal") else ""
        seen.append(last)
        if name == "after-commit" and len(seen) % 3 == 0:
            raise Crash(name)

    world = World(values)
    live(world, chosen, at)

    assert "epoch" not in seen
    assert [record.t for record in journal(world) if record.event == "epoch"] == [20]


# ── on Apache Kafka ────────────────────────────────────────────────────────────────────────────────────────────


def test_killed_on_apache_kafka(model, tmp_path):  # noqa: F811
    """A service that is killed before a chain ends, and goes on: one epoch, and all that it left is what a replay of
    its journal finds, each draw in one step.
    """
    model.set(batching={"size": 4, "rows": "one-per-chain"})
    rows = [(c % 2, value(c, k)) for k in range(120) for c in range(4) if c < 3 or k < 60]
    kafka.produce(model.connection, model.topics.input, rows[:150])
    records = lambda: [JournalRecord.from_bytes(found) for _, found in model.journal.read()]  # noqa: E731
    with process(model, tmp_path) as life:
        assert eventually(lambda: len(records()) > 20)
        life.kill()
    kafka.produce(model.connection, model.topics.input, rows[150:])
    with process(model, tmp_path) as life:
        assert eventually(lambda: any(record.event == "epoch" for record in records()))
        assert eventually(lambda: records()[-1].t > 65)
        life.terminate()
        assert life.wait(60) == 0
    model.set(batching={"size": 4, "close": "linger"})
    model.live()

    assert [(r.t, r.epoch) for r in records() if r.event == "epoch"] == [(60, 1)]
    assert "a new epoch, 1" in (tmp_path / "log").read_text()
    check(model)
