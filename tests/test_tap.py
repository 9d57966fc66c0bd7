"""What is on the topics, looked at through the command, on a real Apache Kafka."""

import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from stream_ocpdl import TensorProducer
from stream_ocpdl.cli import main
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.messages import Tensor, split
from tests.test_kafka import ROOT, eventually, learned, lingering, model  # noqa: F401  (fixtures)


@pytest.fixture
def tap(model, tmp_path):  # noqa: F811
    """A function that calls `tap` for a model."""

    def call(*words, code=0):
        model.settings.save(tmp_path / "service.json")
        result = CliRunner().invoke(main, ["tap", *words, "--config", str(tmp_path / "service.json")])
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    return call


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def test_every_stream_of_a_model(learned, tap):  # noqa: F811
    """Input, codes, snapshots, journal, control and checkpoints, by the name of the stream or of the topic."""
    kinds = {"input": {"tensor"}, "codes": {"code"}, "snapshots": {"snapshot"}, "journal": {"journal"}}
    kinds |= {"state": {"chunk", "checkpoint"}, "control": set(), "dead-letters": set()}
    for stream, expected in kinds.items():
        found = objects(tap(stream, "--json", "--limit", "100"))
        assert {one["kind"] for one in found} == expected, stream
        assert objects(tap(learned.topics.named(stream), "--json", "--limit", "100")) == found
    events = [one["event"] for one in objects(tap("journal", "--json", "--from", "earliest", "--limit", "3"))]
    assert events == ["genesis", "step", "step"]
    said, newest = tap("codes", "--limit", "2").splitlines(), objects(tap("codes", "--json", "--limit", "100"))[-2:]
    assert len(said) == 2
    for line, one in zip(said, newest, strict=True):
        assert " code of " in line
        assert f"step {one['step']}, loss" in line
    assert newest[-1]["step"] > 4, "by the times of the tensors, which those of steps 5 to 8 may share"


def test_where_it_begins(learned, tap):  # noqa: F811
    """The oldest, the newest, or from a place on; a place that is not there is a mistake in one line."""
    places = lambda *words: [(m["partition"], m["offset"]) for m in objects(tap("input", "--json", *words))]  # noqa: E731

    assert sorted(places("--from", "earliest", "--limit", "4")) != []
    assert all(offset < 4 for _, offset in places("--from", "earliest", "--limit", "4"))
    assert places("--limit", "4")[-1] in ((0, 19), (1, 19))
    assert all(offset >= 16 for _, offset in places("--limit", "4"))
    assert places("--from", "1:17") == [(1, 17), (1, 18), (1, 19)]
    assert len(places()) == 10
    assert "has no partition 7; it has 2" in tap("input", "--from", "7:0", code=2)
    assert "has offsets from 0 to below 20, not 99" in tap("input", "--from", "0:99", code=2)
    assert "must be PARTITION:OFFSET" in tap("input", "--from", "soon", code=2)
    assert "cannot be read" in tap("nowhere", code=6)


def test_pieces_and_poison(model, tap):  # noqa: F811
    """A message in pieces is one; a stray piece, a tombstone and bytes of any kind have a line with the reason."""
    producer = Producer({"bootstrap.servers": model.servers})
    whole = Tensor(np.ones((4, 3))).to_bytes()
    pieces = [chunk.to_bytes() for chunk in split(whole, "a", 100)]
    for value in (*pieces, pieces[1], None, b"poison", b"OCT\x01\xff\xff\xff\xff", whole):
        producer.produce(model.topics.input, value, partition=0)
    producer.flush(30)
    one, stray, *poison, last = objects(tap("input", "--json", "--from", "earliest"))

    assert (one["kind"], one["pieces"], one["mean"]) == ("tensor", len(pieces), 1.0)
    assert stray["kind"] == "chunk"
    assert "belongs to no open message" in stray["reason"]
    assert [found["kind"] for found in poison] == ["unreadable"] * 3
    assert "tombstone" in poison[0]["reason"]
    assert last["kind"] == "tensor"
    assert "belongs to no open message" in tap("input", "--from", "earliest")


def test_the_newest_message_may_begin_far_back(model, tap):  # noqa: F811
    """The newest message is found also if it is in more pieces than are looked at first."""
    kafka.produce(model.connection, model.topics.input, [(0, Tensor(np.zeros((4, 3))).to_bytes())] * 50)
    with TensorProducer(model.servers, model.topics.input, chunk_bytes=1000) as producer:
        producer.send(np.ones((100, 100)), key=b"k")
    (found,) = objects(tap("input", "--json", "--limit", "1"))

    assert found["pieces"] > 50
    assert found["mean"] == 1.0


def test_following(model, tmp_path):  # noqa: F811
    """What comes is shown when it comes; an interrupt ends it with 0."""
    model.settings.save(tmp_path / "service.json")
    words = ["tap", "input", "--config", str(tmp_path / "service.json"), "--follow", "--json"]
    command = [sys.executable, "-m", "stream_ocpdl", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as life:
        lines = []
        threading.Thread(target=lambda: lines.extend(iter(life.stdout.readline, "")), daemon=True).start()
        try:
            assert eventually(lambda: model.feed(1) or lines)  # until it has found the end, it may miss some
            model.feed(1)
            count = len(lines)
            model.feed(1)
            assert eventually(lambda: len(lines) >= count + 2)
            life.send_signal(signal.SIGINT)
            assert life.wait(20) == 0
        finally:
            life.kill()
    assert all(json.loads(line)["kind"] == "tensor" for line in lines)
