"""One dictionary learned by several workers on a real Apache Kafka: whoever is killed, each tensor counts once."""

import random as chance
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl import Learner
from stream_ocpdl.cli import main
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.evidence import all_records, examine
from stream_ocpdl.ocpdl.entries import read_batch
from stream_ocpdl.ocpdl.learner import encode
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.assembly import whole
from stream_ocpdl.stream.client import read_codes
from stream_ocpdl.stream.messages import Partial, Snapshot, Tensor
from stream_ocpdl.stream.preflight import Scripts, check_rounds, prepare
from tests.test_fleet import PARTITIONS, InThread, Model, snapshots
from tests.test_kafka import ROOT, eventually
from tests.test_partials import Fleet, relative

SHAPE, RANK, SIZE = (8, 6), 2, 8
"""A partial is of SIZE tensors, a round of PARTITIONS partials."""


class Workers(Model):
    """A model that learns from partials; its tensors are whole numbers, so that energies are sums without rounding."""

    def __init__(self, servers, **settings):
        super().__init__(
            servers,
            **{
                "batching": {"size": PARTITIONS * SIZE},
                "partials": {"size": SIZE},
                "learner": {"codes": False, "source": "partials"},
                "encoders": {"transaction_s": 2.0, "batch": 16, "emit": "both"},
                "pace": {"commit_interval_ms": 20, "checkpoint_every": 10},
            }
            | settings,
        )
        self.tensors = [[] for _ in range(PARTITIONS)]

    def create(self):
        layout = {self.settings.topic: (PARTITIONS, {})}
        kafka.create_topics(self.connection, layout)
        kafka.await_topics(self.connection, layout)
        prepare(self.connection, self.topics, Scripts(""))
        check_rounds(self.connection, self.topics, self.settings.plan().rounds)

    def feed(self, rounds, seed=0):
        """So many rounds; seeds must differ."""
        random = np.random.default_rng(seed)
        values = []
        for _ in range(rounds * SIZE):
            for p in range(PARTITIONS):
                self.tensors[p].append(self.draw(random))
                values.append((p, Tensor(self.tensors[p][-1]).to_bytes()))
        kafka.produce(self.connection, self.topics.input, values)
        self.fed += rounds

    def draw(self, random):
        """A tensor of a few patterns and some noise."""
        atoms = [np.outer(*(np.random.default_rng(k).integers(0, 4, n) for n in SHAPE)) for k in range(RANK)]
        noise = random.integers(0, 3, SHAPE)
        return np.asarray(np.tensordot(random.integers(0, 5, RANK), atoms, 1) + noise, np.float64)

    def learned(self):
        """Steps of the newest dictionary."""
        found = snapshots(self)
        return Snapshot.from_bytes(found[-1]).version.t if found else -1

    def minibatch(self, number):
        """The tensors of a round, in order."""
        return np.array([self.tensors[p][(number - 1) * SIZE : number * SIZE] for p in range(PARTITIONS)]).reshape(
            -1, *SHAPE
        )

    def alone(self):
        """One process that learns the same minibatches."""
        learner = Learner(self.settings.plan().problem)
        for number in range(1, self.fed + 1):
            learner.step(self.minibatch(number))
        return learner

    def partials(self):
        return [Partial.from_bytes(r.value) for r in whole(all_records(self.connection, self.topics.partials))]

    def check(self, staleness=0):
        """Nothing is lost, nothing counts twice: in partials, in the journal, in codes, in the dictionary."""
        found = self.partials()
        assert Counter((p.covers[0], p.round) for p in found) == Counter(
            (p, r) for p in range(PARTITIONS) for r in range(1, self.fed + 1)
        )
        assert {p.covers for p in found} == {
            (p, (r - 1) * SIZE, r * SIZE - 1) for p in range(PARTITIONS) for r in range(1, self.fed + 1)
        }
        energy = sum(float(np.sum(X * X)) for line in self.tensors for X in line)
        assert sum(p.energy for p in found) == energy
        evidence = examine(self.connection, self.settings)
        assert evidence.broken == []
        assert evidence.steps == self.fed
        assert evidence.learned == len(found)
        newest = Snapshot.from_bytes(snapshots(self)[-1])
        assert newest.tensors == sum(p.count for p in found) == PARTITIONS * SIZE * self.fed
        codes = [code.position for code in read_codes(self.servers, self.topics.codes)]
        assert Counter(codes) == Counter((p, k) for p in range(PARTITIONS) for k in range(self.fed * SIZE))
        assert {p.round - 1 - p.dictionary.t for p in found} <= set(range(staleness + 1))
        assert all(p.round - 1 == p.dictionary.t for p in found if p.round <= 5)
        return newest


class Life:
    """A learner or an encoder, as a process."""

    def __init__(self, model, directory, command):
        name = uuid.uuid4().hex
        path, self._log = directory / f"{name}.json", directory / f"{name}.log"
        model.settings.save(path)
        told = [sys.executable, "-m", "stream_ocpdl", command, "--config", str(path)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(told, cwd=ROOT, stderr=log)
        self.command = command

    @property
    def text(self):
        return self._log.read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def works(self):
        """Wait until it is past its start."""
        said = "ready at step" if self.command == "run" else "coding with"
        assert eventually(lambda: said in self.text), self.text

    def end(self):
        """Told to stop, it ends with 0."""
        self.works()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.text


@pytest.fixture
def model(broker, request):
    """A model; the marker `model` may have settings."""
    marker = request.node.get_closest_marker("model")
    model = Workers(broker, **(marker.kwargs if marker else {}))
    model.create()
    yield model
    kafka.delete_topics(model.connection, [model.settings.topic, *model.settings.made().outputs(1)])


def in_turns(model):
    """The same, in memory: partials made and absorbed by nobody but us."""
    values = [[Tensor(X).to_bytes() for X in line] for line in model.tensors]
    return Fleet(values, model.settings.plan()).run().progress.state


def same(found, wanted):
    return all(np.array_equal(U, V) for U, V in zip(found.loadings, wanted.loadings, strict=True))


def apart(found, wanted):
    return max(
        np.linalg.norm(U - V) / np.linalg.norm(V) for U, V in zip(found.loadings, wanted.state.loadings, strict=True)
    )


def test_workers_that_are_killed(model, tmp_path):
    """Two encoders and a learner: an encoder, the learner, and again an encoder are killed in the middle of rounds. In
    the end all is as if nobody had been: the loadings are those of one process that has the same minibatches, to 1e-10,
    and their bits those of one that makes the same partials.
    """
    lives, other = [Life(model, tmp_path, command) for command in ("run", "encode")], InThread(model)
    try:
        model.feed(12, 1)
        for k, victim in enumerate((1, 0, 1)):
            lives[victim].works()
            assert eventually(lambda k=k: model.learned() >= 2 + 3 * k), lives[0].text
            lives[victim].kill()
            if k < 2:
                lives[victim] = Life(model, tmp_path, lives[victim].command)
        assert eventually(lambda: model.learned() == 12), lives[0].text
        lives[0].end()
    finally:
        other.end()
        for life in lives:
            life.kill()
    newest = model.check()
    assert apart(newest, model.alone()) <= 1e-10
    assert same(newest, in_turns(model))


def commands(model, path):
    """What operators ask of such a model."""
    model.settings.save(path)

    def ask(*told, code=0):
        result = CliRunner().invoke(main, [*told, "--config", str(path)])
        assert result.exit_code == code, result.output
        return result.output

    assert f"round {model.fed}" in ask("tap", "partials", "--limit", "1")
    assert "tensor" in ask("tap", "input", "--limit", "1")
    assert "single tensors are not told apart" in ask("explain", "0:0", code=2)
    assert f"of {model.fed + 1} published snapshots {model.fed + 1} agree" in ask("replay")
    assert f"{model.topics.partials}" in ask("topics", "check")
    ask("validate", "--connect")


def heldout(model, loadings):
    """The mean loss of tensors that nobody has seen."""
    random, problem = np.random.default_rng(999), model.settings.plan().problem
    X = np.array([model.draw(random) for _ in range(400)])
    batch = read_batch(problem, X)
    return float(encode(problem, problem.sets(1.0), loadings, batch).losses.mean())


@pytest.mark.slow
def test_four_workers_learn_what_one_process_does(model, tmp_path):
    """The same topic, learned by a service of its own with the same minibatches, and by four workers: the held-out loss
    is the same within a per cent, and so are the loadings, to 1e-10.
    """
    model.feed(15, 3)
    other = Model(model.servers, batching={"size": PARTITIONS * SIZE}, snapshot_every=1)
    other.settings = Settings(**other.settings.model_dump() | {"input": model.settings.topic})
    other.topics = other.settings.topics()
    prepare(other.connection, other.topics, Scripts(""))
    with ExitStack() as stack:
        lives = [Life(model, tmp_path, "run"), Life(other, tmp_path, "run")]
        for life in lives:
            stack.callback(life.kill)
        workers = [InThread(model) for _ in range(PARTITIONS)]
        assert eventually(lambda: all(len(one.board.held) == 1 for one in workers))
        assert eventually(lambda: model.learned() == 15), lives[0].text
        assert eventually(lambda: bool(snapshots(other)) and Snapshot.from_bytes(snapshots(other)[-1]).version.t == 15)
        for one in workers:
            one.end()
        for life in lives:
            life.end()
    many, alone = (Snapshot.from_bytes(snapshots(one)[-1]) for one in (model, other))
    kafka.delete_topics(other.connection, list(other.topics.outputs(1)))

    assert model.check().version == many.version
    commands(model, tmp_path / "service.json")
    assert heldout(model, many.loadings) == pytest.approx(heldout(model, alone.loadings), rel=0.01)
    assert max(map(relative, many.loadings, alone.loadings)) <= 1e-10
    assert sum(one.board.partials for one in workers) == 15 * PARTITIONS
    assert all(one.board.tensors > 0 for one in workers)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("staleness", [0, 3])
def test_a_storm_of_kills(broker, tmp_path, staleness):
    """Twenty times kill -9 of one of four encoders or of the learner, while tensors come: nothing is lost, nothing
    counts twice; and in synchronous rounds the bits are those of a run without a broker, where nobody is killed.
    """
    draw = chance.Random(11 + staleness)
    model = Workers(broker, partials={"size": SIZE, "staleness": staleness, "synchronous_first": 5})
    model.create()
    lives = [Life(model, tmp_path, command) for command in ("run", *["encode"] * 4)]
    victims, busy = Counter(), 0
    try:
        for k in range(20):
            model.feed(max(10, 30 - model.fed + model.learned()), k)
            victim = draw.randrange(5)
            lives[victim].works()
            before = model.learned()
            assert eventually(lambda before=before: model.learned() > before or before == model.fed), lives[0].text
            time.sleep(draw.uniform(0.0, 1.0))
            busy += model.learned() < model.fed
            lives[victim].kill()
            victims[lives[victim].command] += 1
            lives[victim] = Life(model, tmp_path, lives[victim].command)
        model.feed(6, 99)
        assert eventually(lambda: model.learned() == model.fed, 300), [life.text for life in lives]
        for life in lives:
            life.end()
    finally:
        for life in lives:
            life.kill()
    newest = model.check(staleness)
    assert victims["run"] > 1
    assert busy >= 10
    if staleness == 0:
        assert apart(newest, model.alone()) <= 1e-10
        assert same(newest, in_turns(model))
    kafka.delete_topics(model.connection, [model.settings.topic, *model.settings.made().outputs(1)])
