"""Time travel on a real Apache Kafka: the commands, end to end, and a service that is killed while it goes back."""

import json
import signal
import time
import uuid
from contextlib import closing
from datetime import UTC, datetime

import numpy as np
import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions

from stream_ocpdl import read_snapshots
from stream_ocpdl.cli import main
from stream_ocpdl.evidence import examine
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.stream import kafka, topics
from stream_ocpdl.stream.kafka import committed
from stream_ocpdl.stream.messages import JournalRecord, Request
from tests.test_kafka import PARTITIONS, Model, eventually, process


@pytest.fixture
def model(broker):
    """A model with topics of its own, which shows and digests every other step."""
    model = Model(broker, f"travel-{uuid.uuid4().hex[:8]}")
    model.set(snapshot_every=2, digest_every=2, problem={"shape": [4, 3], "rank": 2, "sparsity": 0.01})
    layout = {model.topics.input: (len(PARTITIONS), {})} | model.topics.outputs(len(PARTITIONS))
    kafka.create_topics(model.connection, layout)
    yield model
    kafka.delete_topics(model.connection, layout)


def call(directory, *words, code=0):
    """What a command says with the settings of a model."""
    group = 2 if words[0] == "snapshot" else 1
    config = ["--config", str(directory / "service.json")]
    result = CliRunner().invoke(main, [*words[:group], *config, *words[group:]])
    assert result.exit_code == code, result.output
    return result.stdout if "--json" in words else result.output


def learned(model):
    """Wait until everything is learned."""
    assert eventually(lambda: committed(model.connection, model.name, model.topics.input) == model.end(), 60)


def grow(connection, topic, count):
    """Give a topic so many partitions."""
    admin = connection.admin()
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)
    assert eventually(lambda: kafka.describe(connection, [topic])[topic].partitions == count)


def stop(life):
    life.send_signal(signal.SIGTERM)
    assert life.wait(60) == 0


def recorded(journal):
    return [JournalRecord.from_bytes(value) for _, value in journal.read()]


def records(model):
    return recorded(model.journal)


def test_the_commands(model, tmp_path):
    """List, show, compare, change the terms, go back, rebuild, audit: all of it while the service runs."""
    model.feed(20)
    with process(model, tmp_path) as life:
        learned(model)
        rows = json.loads(call(tmp_path, "snapshot", "list", "--json"))
        assert [row["step"] for row in rows] == [1, 2, 4, 6, 8]
        assert f"{model.name}/0/0/8" in call(tmp_path, "snapshot", "list")
        assert "(A2) loadings" in call(tmp_path, "snapshot", "show", "latest", "--out", str(tmp_path / "U.npz"))
        with np.load(tmp_path / "U.npz") as file:
            assert [file[name].shape for name in ("U1", "U2")] == [(4, 2), (3, 2)]
        told = json.loads(call(tmp_path, "snapshot", "diff", "2", "0/8", "--json"))
        assert (told["steps"], len(told["modes"]), told["same"] + len(told["deaths"])) == (6, 2, 2)
        assert 0 < told["modes"][0]["movement"] < 2
        assert "2 atoms are the same, died: none" in call(tmp_path, "snapshot", "diff", "latest", "0/8")
        assert "there is no snapshot 7" in call(tmp_path, "snapshot", "show", "7", code=2)

        assert "sparsity  0.2  (new)" in call(tmp_path, "reconfigure", "--sparsity", "0.2", "--radius", "none")
        now = json.loads(call(tmp_path, "reconfigure", "--radius", "none", "--json"))
        assert (now["step"], now["terms"]["sparsity"], now["terms"]["radius"], now["new"]) == (8, 0.2, None, ["radius"])
        assert "a penalty cannot come" in call(tmp_path, "reconfigure", "--sparsity", "0", code=2)
        model.feed(10)
        learned(model)
        back = json.loads(call(tmp_path, "snapshot", "rollback", "--to-step", "5", "--json"))
        assert (back["step"], back["of_epoch"], back["epoch"], len(back["digest"])) == (5, 0, 1, 64)
        model.feed(20)
        learned(model)
        assert "has no such step" in call(tmp_path, "snapshot", "rollback", "--to-step", "500", code=4)

        spans = json.loads(call(tmp_path, "replay", "--window", "--json"))["spans"]
        assert [(s["epoch"], s["first"], s["last"], s["rebuilt"]) for s in spans] == [
            (0, 0, 12, True),
            (1, 5, 13, True),
        ]
        told = json.loads(call(tmp_path, "replay", "--to-step", "5", "--out", str(tmp_path / "5.state"), "--json"))
        assert told["digest"] == back["digest"]
        assert (told["epoch"], told["exact"]) == (1, True)
        assert State.from_bytes((tmp_path / "5.state").read_bytes()).digest() == told["digest"]
        old = json.loads(
            call(tmp_path, "replay", "--to-step", "12", "--epoch", "0", "--out", str(tmp_path / "x.npz"), "--json")
        )
        snapshot = next(s for s in read_snapshots(model.servers, model.topics.snapshots) if s.version[1:] == (12, 0, 0))
        with np.load(tmp_path / "x.npz") as file:
            assert np.array_equal(file["U1"], snapshot.loadings[0])
            assert (int(file["t"]), old["step"]) == (12, 12)
        count = len(json.loads(call(tmp_path, "snapshot", "list", "--json")))
        said = call(tmp_path, "replay")
        assert f"of {count} published snapshots {count} agree byte for byte, 0 differ, 0 could not be checked" in said
        stop(life)
    evidence = examine(model.connection, model.settings)
    assert evidence.broken == []
    assert evidence.learned == 100


def test_nobody_answers(model, tmp_path):
    """Without a service a request times out in words; the next one does it, with settings from before or after."""
    model.feed(10)
    with process(model, tmp_path) as life:
        learned(model)
        stop(life)
    said = call(tmp_path, "reconfigure", "--ridge", "0.5", "--wait", "1", code=6)
    assert "no service answered within 1 s. The request stays" in said
    kafka.produce(model.connection, model.topics.control, [(0, b"nonsense"), (0, None)])
    for ridge in (0.0, 0.5):
        model.set(problem={"shape": [4, 3], "rank": 2, "sparsity": 0.01, "ridge": ridge})
        with process(model, tmp_path) as life:
            assert eventually(lambda: records(model)[-1].terms is not None)
            model.feed(10)
            learned(model)
            stop(life)
        assert records(model)[-1].terms.ridge == 0.5
    model.set(problem={"shape": [4, 3], "rank": 2, "sparsity": 0.01, "ridge": 0.7})
    with process(model, tmp_path) as life:
        assert life.wait(60) == 4
    assert "ridge 0.5 → 0.7" in (tmp_path / "log").read_text()
    assert "stream-ocpdl reconfigure" in (tmp_path / "log").read_text()
    model.set(problem={"shape": [4, 3], "rank": 2, "sparsity": 0.01})
    assert examine(model.connection, model.settings).broken == []


@pytest.mark.parametrize(
    ("point", "checkpoints"),
    [
        ("before-rollback", "topic"),
        ("before-commit", "topic"),
        ("after-commit", "topic"),
        ("in-checkpoint", "topic"),
        ("after-commit", "directory"),
    ],
)
def test_killed_while_going_back(model, tmp_path, point, checkpoints):
    """Killed before the commit of a rollback, after it, or in the checkpoint that follows: it is done once."""
    model.set(checkpoints="topic" if checkpoints == "topic" else str(tmp_path / "checkpoints"))
    model.feed(20)
    with process(model, tmp_path) as life:
        learned(model)
        stop(life)
    kafka.produce(
        model.connection, model.topics.control, [(0, Request("a", "rollback", t=3, epoch=0, present=0).to_bytes())]
    )
    visit = 2 if point == "in-checkpoint" else 1  # the first is that of the step to go back to
    with process(model, tmp_path, "--crash-at", f"{point}:{visit}") as life:
        assert life.wait(60) == -signal.SIGKILL
    with process(model, tmp_path) as life:
        assert eventually(lambda: any(r.request == "a" for r in records(model)))
        model.feed(10)
        learned(model)
        stop(life)

    assert [r.event for r in records(model) if r.request] == ["rollback"]
    if checkpoints == "topic":
        assert examine(model.connection, model.settings).broken == []
    audit = json.loads(call(tmp_path, "replay", "--json"))
    assert (audit["differ"], audit["unchecked"], audit["epoch"], audit["step"]) == ([], [], 1, 7)


def test_a_rollback_beyond_the_retention(model, tmp_path):
    """The input of that step is gone: it is declined in words, the window says why, and learning goes on."""
    model.feed(20)
    with process(model, tmp_path) as life:
        learned(model)
        stop(life)
    admin, gone = model.connection.admin(), [TopicPartition(model.topics.input, p, 8) for p in PARTITIONS]
    for outcome in admin.delete_records(gone).values():
        outcome.result(30)
    with process(model, tmp_path) as life:
        said = call(tmp_path, "snapshot", "rollback", "--to-step", "5", code=2)
        assert "declined: " in said
        assert "no longer has offset 0" in said
        assert "stream-ocpdl replay --window shows the steps that can be gone back to" in said
        assert "back to step 8" in call(tmp_path, "snapshot", "rollback", "--to-step", "8")
        model.feed(10)
        learned(model)
        assert "step 1 learned offset 0 of partition 0, and the input begins at 8 now" in call(
            tmp_path, "replay", "--window"
        )
        assert "no longer has offset 0" in call(tmp_path, "replay", "--to-step", "5", code=4)
        told = json.loads(call(tmp_path, "replay", "--json"))
        stop(life)
    grow(model.connection, model.topics.input, len(PARTITIONS) + 1)
    again = json.loads(call(tmp_path, "replay", "--json"))  # snapshots name the input as it was

    assert [r.event for r in records(model) if r.request] == ["declined", "rollback"]
    assert (told["differ"], told["step"], told["epoch"]) == ([], 12, 1)
    assert (again["differ"], again["agree"]) == ([], told["agree"])
    assert len(told["agree"]) > 0
    used = [(p, k) for r in records(model) for p, first, last in r.used for k in range(first, last + 1)]
    assert len(used) == len(set(used)) == 60


def test_every_shard_is_asked(model, tmp_path):
    """Who changes the terms changes those of all shards, whichever answers in time; who goes back says which."""
    model.set(shards=2)
    model.topics = model.settings.topics()
    kafka.delete_topics(model.connection, list(model.topics.outputs(1)))
    assert eventually(lambda: not kafka.describe(model.connection, list(model.topics.outputs(1))))
    kafka.create_topics(model.connection, model.topics.outputs(len(PARTITIONS)))
    model.feed(20)
    with process(model, tmp_path) as life:
        learned(model)
        stop(life)
    said = call(tmp_path, "reconfigure", "--sparsity", "0.2", "--wait", "1", code=6)
    assert [f"shard {k}: no service answered within 1 s" in said for k in (0, 1)] == [True, True]
    journals = [topics.TopicJournal(model.connection, model.topics.journal, shard) for shard in (0, 1)]
    with process(model, tmp_path) as life:
        for journal in journals:
            assert eventually(lambda journal=journal: any(r.event == "reconfigure" for r in recorded(journal)), 60)
            assert [r.terms.sparsity for r in recorded(journal) if r.event == "reconfigure"] == [0.2]
        said = call(tmp_path, "snapshot", "rollback", "--to-step", "2", code=2)
        assert "the model has 2 shards" in said
        assert ", shard 1: back to step 2" in call(tmp_path, "snapshot", "rollback", "--to-step", "2", "--shard", "1")
        stop(life)
    told = json.loads(call(tmp_path, "replay", "--json"))
    assert [(one["shard"], one["differ"], one["epoch"]) for one in told] == [(0, [], 0), (1, [], 1)]


def test_a_control_topic_that_was_made_anew(model):
    """Requests are read as they come, from where the journal says; in a topic that is another, from its beginning."""
    requests = model.topics.control

    def all_of(tail, start, count):
        found = []
        assert eventually(lambda: found.extend(tail.read(found[-1][0] + 1 if found else start)) or len(found) >= count)
        return found

    kafka.produce(model.connection, requests, [(0, b"%d" % k) for k in range(25)])
    with closing(kafka.Tail(model.connection, requests)) as tail:
        assert all_of(tail, 5, 20) == [(k, b"%d" % k) for k in range(5, 25)]
        assert tail.read(25) == []
        kafka.produce(model.connection, requests, [(0, b"25")])
        assert all_of(tail, 25, 1) == [(25, b"25")]
    kafka.delete_topics(model.connection, [requests])
    assert eventually(lambda: not kafka.describe(model.connection, [requests]))
    kafka.create_topics(model.connection, {requests: (1, {})})
    kafka.produce(model.connection, requests, [(0, b"new")])
    with closing(kafka.Tail(model.connection, requests)) as tail:
        assert all_of(tail, 26, 1) == [(0, b"new")]


def test_where_a_new_model_begins(model, tmp_path):
    """At the end, or at a time: what was written before is not learned; the genesis has the positions."""
    model.feed(10)
    time.sleep(0.05)
    between = datetime.now(UTC)
    time.sleep(0.05)
    middle = model.end()
    model.feed(10)
    model.set(start=between.isoformat())
    with process(model, tmp_path) as life:
        learned(model)
        stop(life)
    assert records(model)[0].resume == middle
    assert sum(map(len, (model.seen("codes", p) for p in PARTITIONS))) == 20

    other = Model(model.servers, f"{model.name}.late")
    other.topics = type(other.topics).of(other.name, model.topics.input)
    problem = {"shape": [4, 3], "rank": 2, "sparsity": 0.01}
    other.set(input=model.topics.input, start="latest", warm_start=f"{model.name}/0/0/4", problem=problem)
    with process(other, tmp_path) as life:
        assert eventually(lambda: "ready at step 0" in (tmp_path / "log").read_text())
        model.feed(10)
        assert eventually(lambda: committed(other.connection, other.name, model.topics.input) == model.end(), 60)
        stop(life)
    other.journal = topics.TopicJournal(other.connection, other.topics.journal)
    genesis = records(other)[0]
    assert genesis.reason == f"{model.name}/0/0/4"
    assert all(genesis.resume[p] >= middle[p] + 10 for p in PARTITIONS)
    wanted = next(s for s in read_snapshots(model.servers, model.topics.snapshots) if s.step == 4)
    assert genesis.loadings == b"".join(U.tobytes() for U in wanted.loadings)
    assert "agree byte for byte" in call(tmp_path, "replay")
    kafka.delete_topics(other.connection, list(other.topics.outputs(1)))


def test_a_warm_start_from_nothing(model, tmp_path):
    """A model that is not there, or a file that is none, is said in one line before anything is begun."""
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    for change, said in (
        ({"warm_start": "nowhere"}, "warm_start nowhere: topic nowhere.snapshots cannot be read"),
        ({"warm_start": str(tmp_path / "bad.npz")}, "cannot be read as a .npz file"),
        ({"warm_start": None, "start": "2131-05-04T12:00Z"}, "start is a time that is still to come"),
    ):
        model.set(**change)
        with process(model, tmp_path) as life:
            assert life.wait(60) == 2
        assert said in (tmp_path / "log").read_text()
    assert list(model.journal.read()) == []
