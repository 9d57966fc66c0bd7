"""Encoders on a real Apache Kafka: every code once, whoever comes, goes, hangs or dies; dictionaries that change."""

import json
import random as chance
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from stream_ocpdl.cli.encode import EncoderWork, came
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.evidence import examine
from stream_ocpdl.observe.fleet import EncoderBoard
from stream_ocpdl.ocpdl.workers import SERIAL
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.client import read_codes, read_dead_letters
from stream_ocpdl.stream.kafka import Connection, Election, stands
from stream_ocpdl.stream.member import Member
from stream_ocpdl.stream.messages import Snapshot, Tensor, Version, split
from stream_ocpdl.stream.newest import Newest, followed
from stream_ocpdl.stream.ports import Stand
from stream_ocpdl.stream.preflight import Scripts, prepare
from tests.test_kafka import ROOT, eventually

PARTITIONS = 4
SESSION = {"session.timeout.ms": 1000}
SHAPE, RANK = (8, 6), 2
SMALL = ("--set", "pace.commit_interval_ms=0", "--set", "encoders.batch=4")
"""A transaction for every few tensors."""


class Model:
    """A model with topics of its own, and nobody who learns."""

    def __init__(self, servers, **settings):
        self.name = f"test-{uuid.uuid4().hex[:8]}"
        self.servers = servers
        self.settings = Settings(
            model=self.name,
            input=f"{self.name}.input",
            bootstrap_servers=servers,
            **{
                "problem": {"shape": list(SHAPE), "rank": RANK},
                "batching": {"size": 4},
                "pace": {"commit_interval_ms": 20, "checkpoint_every": 100},
                "kafka": {"extra": SESSION},
                "learner": {"codes": False},
                "encoders": {"transaction_s": 2.0, "batch": 16},
                "http": {"port": None},
                "snapshot_every": 5,
            }
            | settings,
        )
        self.connection = Connection(servers, options=SESSION)
        self.topics = self.settings.coded()
        self.fed = 0

    def create(self):
        layout = {topic: (PARTITIONS, {}) for topic in {self.settings.topic, self.topics.input}}
        kafka.create_topics(self.connection, layout)
        kafka.await_topics(self.connection, layout)
        prepare(self.connection, self.settings.topics(), Scripts(""))
        prepare(self.connection, self.topics, Scripts(""))

    def delete(self):
        named = {**self.settings.topics().outputs(1), **self.topics.outputs(1)}
        kafka.delete_topics(self.connection, [*{self.settings.topic, self.topics.input}, *named])

    def feed(self, rounds, seed=0):
        random = np.random.default_rng(seed)
        values = [(p, Tensor(random.random(SHAPE)).to_bytes()) for _ in range(rounds) for p in range(PARTITIONS)]
        kafka.produce(self.connection, self.topics.input, values)
        self.fed += rounds

    def publish(self, t, epoch=0):
        """A dictionary after step t."""
        random = np.random.default_rng(t)
        loadings = [random.random((size, RANK)) for size in SHAPE]
        version = Version(self.name, t, 0, epoch)
        snapshot = Snapshot(version, t, loadings, None, 1.0, "", (), (0, 1), "", {}, penalties=(0.0, 0.1))
        writer = kafka.Writer(self.connection)
        assert writer.write(self.topics.snapshots, snapshot.to_bytes(), b"0", 0, 30.0)
        writer.flush()

    def codes(self):
        return list(read_codes(self.servers, self.topics.codes))

    def done(self, wanted=None):
        wanted = wanted or dict.fromkeys(range(PARTITIONS), self.fed)
        found = stands(self.connection, self.settings.fleet(), self.topics.input, range(PARTITIONS))
        return {p: stand.reached for p, stand in found.items()} == wanted

    def check(self):
        """Every tensor has one code, which says with which dictionary it was made."""
        assert eventually(self.done)
        found = self.codes()
        assert Counter(code.position for code in found) == Counter(
            (p, k) for p in range(PARTITIONS) for k in range(self.fed)
        )
        return found


@pytest.fixture
def model(broker, request):
    """A model; the marker `model` may have settings."""
    marker = request.node.get_closest_marker("model")
    model = Model(broker, **(marker.kwargs if marker else {}))
    model.create()
    yield model
    model.delete()


def fed_until(model, holds, seconds=120.0):
    """Feed a few at a time, so that there are many transactions, until something holds."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        model.feed(1, model.fed)
        time.sleep(0.1)
    return holds()


class InThread:
    """An encoder in a thread of this process."""

    def __init__(self, model):
        self.settings, self.connection, self.stop, self.error = model.settings, model.connection, False, None
        self.board = EncoderBoard(model.name, 1, model.topics.snapshots)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        settings, topics = self.settings, self.settings.coded()
        plan, follow = settings.plan(), followed(self.connection, topics.snapshots, 1)
        try:
            with (
                Newest(plan, follow, came(self.board)) as newest,
                closing(Election(self.connection, topics.input, settings.fleet())) as election,
            ):
                self.board.newest, self.board.group, self.board.starting = newest, election, None
                parts = settings, plan, settings.rhythm(), self.connection, SERIAL, election, newest, self.board
                Member(election, EncoderWork(*parts).run, lambda: self.stop, self.board.went_round).run()
        except Exception as error:
            self.error = error

    def end(self):
        self.stop = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


ENCODE = "stream-ocpdl encode --config service.yaml --set http.port=0"
"""The example in the help."""


class Process:
    """An encoder as a process."""

    def __init__(self, model, directory, *more, **settings):
        name = uuid.uuid4().hex
        path, self._log = directory / f"{name}.json", directory / f"{name}.log"
        Settings(**model.settings.model_dump() | settings).save(path)
        command = [sys.executable, "-m", "stream_ocpdl", "encode", "--config", str(path), *more]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=log)

    @property
    def text(self):
        return self._log.read_text()

    def works(self):
        """Wait until it has a dictionary: it may have partitions by then."""
        assert eventually(lambda: "coding with" in self.text), self.text

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Told to stop, it ends with 0."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.text


def test_encoders_come_and_go(model):
    """Without a dictionary they wait, and say so; with one they share the partitions; who leaves loses nothing."""
    model.feed(40)
    with ExitStack() as stack:
        one = InThread(model)
        stack.callback(one.end)
        assert eventually(lambda: one.board.group and one.board.group.terms, 20)
        waiting = f"waiting for the first dictionary of shard 0 on {model.topics.snapshots}"
        assert one.board.unready() == [waiting]
        assert model.codes() == []
        model.publish(1)
        assert eventually(model.done, 30)
        assert one.board.unready() == []
        two = InThread(model)
        stack.callback(two.end)
        assert eventually(lambda: two.board.group and len(two.board.group.terms) == 2, 20)
        model.feed(40, 1)
        assert eventually(model.done, 30)
        assert one.board.tensors > 160
        assert two.board.tensors > 0
        one.end()
        model.feed(20, 2)
        model.check()
    assert {code.dictionary.t for code in model.codes()} == {1}


def test_dictionaries_change_under_load(model):
    """Versions never go back within a partition, each code has one, and the newest is in use soon."""
    model.publish(1)
    one = InThread(model)
    try:
        for t in range(2, 8):
            model.feed(20, t)
            model.publish(t)
            assert eventually(lambda t=t: [found.version.t for found in one.board.newest().values()] == [t], 20)
        model.feed(20, 9)
        found = model.check()
    finally:
        one.end()
    for p in range(PARTITIONS):
        mine = [code for code in found if code.position.partition == p]
        versions = [code.dictionary.t for code in sorted(mine, key=lambda code: code.position)]
        assert versions == sorted(versions)
        assert versions[-1] == 7


@pytest.mark.parametrize(
    "point",
    [
        "before-commit",
        pytest.param("after-produce", marks=pytest.mark.slow),
        pytest.param("after-commit", marks=pytest.mark.slow),
    ],
)
def test_a_killed_encoder_is_replaced(model, tmp_path, point):
    """Killed in the middle of a transaction, before and after its end: whoever comes next publishes the rest, once."""
    model.publish(1)
    model.feed(30)
    with closing_process(Process(model, tmp_path, *SMALL, "--crash-at", f"{point}:3")) as dying:
        assert fed_until(model, lambda: dying.process.poll() is not None), dying.text
        assert dying.process.returncode == -signal.SIGKILL, dying.text
    other = InThread(model)
    try:
        model.check()
    finally:
        other.end()


@pytest.mark.model(encoders={"input": "others", "transaction_s": 2.0}, learner={"codes": True})
def test_another_topic_has_codes_and_letters_of_its_own(model):
    """Also of messages in pieces: an open one is read again after a restart, and what lies behind it is not."""
    model.publish(3)
    random = np.random.default_rng(5)
    pieces = [chunk.to_bytes() for chunk in split(Tensor(random.random(SHAPE)).to_bytes(), "x", 150)]
    whole = [Tensor(random.random(SHAPE)).to_bytes() for _ in range(4)]
    topic = model.topics.input
    kafka.produce(model.connection, topic, [(0, v) for v in (whole[0], pieces[0], whole[1], b"poison", *pieces[1:-1])])
    last = 4 + len(pieces) - 2
    one = InThread(model)
    try:
        reached = dict.fromkeys(range(1, PARTITIONS), 0) | {0: last}
        assert eventually(lambda: model.done(reached), 30)
    finally:
        one.end()
    found = stands(model.connection, model.settings.fleet(), topic, [0])
    assert found == {0: Stand(1, last)}
    kafka.produce(model.connection, topic, [(0, pieces[-1]), (0, whole[2])])
    two = InThread(model)
    try:
        assert eventually(lambda: model.done(reached | {0: last + 2}), 30)
    finally:
        two.end()

    assert sorted(code.position.offset for code in model.codes()) == [0, 2, last, last + 1]
    (letter,) = read_dead_letters(model.servers, model.topics.dead_letters)
    assert (letter.topic, letter.record.position.offset) == (topic, 3)
    assert model.topics.codes == f"{model.name}.others.codes"


def test_a_probe_sees_that_it_waits(model, tmp_path):
    """/ready is 503 with the reason until the first dictionary comes, then 200; /metrics has what it coded."""
    with closing_process(Process(model, tmp_path, *ENCODE.split()[4:])) as encoder:
        assert eventually(lambda: "endpoints at" in encoder.text, 120), encoder.text
        line = next(line for line in encoder.text.splitlines() if "endpoints at" in line)
        address = json.loads(line)["event"].split()[-1]

        def ready():
            try:
                with urllib.request.urlopen(f"{address}/ready", timeout=5) as answer:
                    return answer.status, json.load(answer)["reasons"]
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)["reasons"]

        waiting = f"waiting for the first dictionary of shard 0 on {model.topics.snapshots}"
        assert eventually(lambda: ready() == (503, [waiting]), 30), ready()
        model.publish(1)
        model.feed(5)
        assert eventually(lambda: ready() == (200, []), 30), ready()
        model.check()
        with urllib.request.urlopen(f"{address}/metrics", timeout=5) as answer:
            scraped = answer.read().decode()
        assert f'ocpdl_encoder_tensors_total{{model="{model.name}"}} 20.0' in scraped
        with urllib.request.urlopen(f"{address}/api/status", timeout=5) as answer:
            assert json.load(answer)["dictionary_step"] == {"0": 1}
        encoder.end()


class closing_process:
    """Ends a process, whatever happens."""

    def __init__(self, *processes):
        self.processes = processes

    def __enter__(self):
        return self.processes[0] if len(self.processes) == 1 else self.processes

    def __exit__(self, *_):
        for one in self.processes:
            one.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_storm_of_kills(model, tmp_path):
    """Twenty times kill -9 of one of three encoders, each replaced, while tensors and dictionaries come."""
    draw = chance.Random(7)
    model.publish(1)
    fleet = [Process(model, tmp_path) for _ in range(3)]
    try:
        for k in range(20):
            model.feed(60, k)
            model.publish(k + 2)
            victim = draw.randrange(3)
            fleet[victim].works()
            model.feed(60, 100 + k)
            time.sleep(draw.uniform(0.0, 1.5))
            fleet[victim].kill()
            fleet[victim] = Process(model, tmp_path)
        model.feed(60, 99)
        found = model.check()
        for encoder in fleet:
            encoder.works()
            encoder.end()
    finally:
        for encoder in fleet:
            encoder.kill()
    assert len(found) == PARTITIONS * model.fed
    assert len({code.dictionary.t for code in found}) > 3


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["before-produce", "after-produce", "before-commit"])
def test_a_zombie_publishes_nothing(model, tmp_path, point):
    """One that sleeps in the middle of a transaction until others have its partitions wakes up, and is refused."""
    model.publish(1)
    model.feed(30)
    patch = (
        "import os, signal, sys\nimport stream_ocpdl.cli.encode as e\n"
        "def crasher(spec):\n"
        "    name, _, count = spec.partition(':'); seen = [0]\n"
        "    def at(place):\n"
        "        seen[0] += place == name\n"
        "        if place == name and seen[0] == int(count): os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return at\n"
        "e.crasher = crasher\nfrom stream_ocpdl.cli import main\nmain(sys.argv[1:])"
    )
    path = tmp_path / "zombie.json"
    model.settings.save(path)
    with (tmp_path / "zombie.log").open("wb") as log:
        command = [sys.executable, "-c", patch, "encode", "--config", str(path), *SMALL, "--crash-at", f"{point}:3"]
        zombie = subprocess.Popen(command, cwd=ROOT, stderr=log)
    try:
        status = Path(f"/proc/{zombie.pid}/stat")
        assert fed_until(model, lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
        other = InThread(model)
        try:
            model.check()
            zombie.send_signal(signal.SIGCONT)
            model.feed(30, 1)
            time.sleep(3)
            model.check()
        finally:
            other.end()
        model.feed(10, 2)
        model.check()  # by the one that woke up
        zombie.send_signal(signal.SIGTERM)
        assert zombie.wait(60) == 0, (tmp_path / "zombie.log").read_text()
    finally:
        zombie.kill()
        zombie.wait()


def test_a_learner_and_encoders(model, tmp_path):
    """A real learner without codes, and an encoder: what is learned is as ever, and every tensor has one code, made
    with a dictionary that was published. A poisoned record has one dead letter, the learner's.
    """
    model.feed(30)
    kafka.produce(model.connection, model.topics.input, [(p, b"poison") for p in range(PARTITIONS)])
    path = tmp_path / "learner.json"
    model.settings.save(path)
    with (tmp_path / "learner.log").open("wb") as log:
        command = [sys.executable, "-m", "stream_ocpdl", "run", "--config", str(path)]
        learner = subprocess.Popen(command, cwd=ROOT, stderr=log)
    encoder = InThread(model)
    try:
        everything = dict.fromkeys(range(PARTITIONS), 31)
        assert eventually(lambda: model.done(everything)), (tmp_path / "learner.log").read_text()
        assert eventually(lambda: kafka.committed(model.connection, model.name, model.topics.input) == everything)
        learner.send_signal(signal.SIGTERM)
        assert learner.wait(60) == 0
    finally:
        encoder.end()
        learner.kill()
        learner.wait()

    found = model.codes()
    assert Counter(code.position for code in found) == Counter((p, k) for p in range(PARTITIONS) for k in range(30))
    evidence = examine(model.connection, model.settings)
    assert evidence.broken == []
    assert evidence.dead_letters.total() == PARTITIONS
    known = {one.version for one in map(Snapshot.from_bytes, snapshots(model))}
    assert {code.dictionary for code in found} <= known


def snapshots(model):
    return [r.value for r in kafka.read_committed(model.connection, model.topics.snapshots, 0)]
