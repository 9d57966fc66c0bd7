"""The election on a real Apache Kafka: one writer a shard, whoever comes, goes, hangs or dies."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from stream_ocpdl.cli.wiring import ShardWork
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.config.validation import validate
from stream_ocpdl.errors import IMPATIENT, BrokerError, ConfigError, LineageError
from stream_ocpdl.evidence import examine
from stream_ocpdl.ocpdl.workers import SERIAL
from stream_ocpdl.stream import kafka, pipeline, recovery
from stream_ocpdl.stream.checkpoint import NoStore
from stream_ocpdl.stream.following import Follower
from stream_ocpdl.stream.kafka import Connection, Election, committed
from stream_ocpdl.stream.messages import JournalRecord, Tensor
from stream_ocpdl.stream.preflight import Scripts, prepare, same_problem
from stream_ocpdl.stream.replicas import Replica
from stream_ocpdl.stream.service import Service
from stream_ocpdl.stream.topics import TopicJournal
from stream_ocpdl.stream.world import Ports
from tests.test_kafka import ROOT, eventually

PARTITIONS = 4
SESSION = {"session.timeout.ms": 1000}


class Model:
    """A model with topics of its own, of tensors that come in fours, one for each partition."""

    def __init__(self, servers, **settings):
        self.name = f"test-{uuid.uuid4().hex[:8]}"
        self.settings = Settings(
            model=self.name,
            input=f"{self.name}.input",
            bootstrap_servers=servers,
            **{
                "problem": {"shape": [4, 3], "rank": 2},
                "batching": {"size": 4},
                "pace": {"commit_interval_ms": 20, "checkpoint_every": 100},
                "kafka": {"extra": SESSION},
                "digest_every": 10,
            }
            | settings,
        )
        self.connection = Connection(servers, options=SESSION)
        self.fed = 0

    def create(self):
        layout = {self.settings.topic: (PARTITIONS, {})}
        kafka.create_topics(self.connection, layout)
        kafka.await_topics(self.connection, layout)
        prepare(self.connection, self.settings.topics(), Scripts(""))

    def feed(self, rounds):
        random = np.random.default_rng(self.fed)
        values = [(p, Tensor(random.random((4, 3))).to_bytes()) for _ in range(rounds) for p in range(PARTITIONS)]
        kafka.produce(self.connection, self.settings.topic, values)
        self.fed += rounds

    def learned(self, rounds=None):
        """Whether the group's positions are so far."""
        wanted = dict.fromkeys(range(PARTITIONS), self.fed if rounds is None else rounds)
        return committed(self.connection, self.name, self.settings.topic) == wanted

    def check(self):
        """Everything was learned, once; every code is there, once; the states are those of a replay."""
        assert eventually(self.learned)
        found = examine(self.connection, self.settings)
        assert found.broken == []
        assert found.learned == found.codes.total() == PARTITIONS * self.fed


@pytest.fixture
def model(broker, request):
    """A model; the marker `model` may have settings."""
    marker = request.node.get_closest_marker("model")
    model = Model(broker, **(marker.kwargs if marker else {}))
    model.create()
    yield model
    kafka.delete_topics(model.connection, [model.settings.topic, *model.settings.topics().outputs(1)])


class Member:
    """A replica in a thread of this process."""

    def __init__(self, model, **settings):
        self.said, self.error, self.stop = [], None, False
        self.settings = Settings(**model.settings.model_dump() | settings)
        self.connection = model.connection
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        parts = self.settings.plan(), self.settings.rhythm(), self.connection, SERIAL, self.said.append
        try:
            with closing(Election(self.connection, self.settings.topics().journal, self.settings.model)) as election:
                self.election = election
                work = ShardWork(self.settings, *parts)
                Replica(election, work, self.settings.shards, lambda: self.stop, self.said.append).run()
        except Exception as error:
            self.error = error

    def has(self, pattern, seconds=20.0):
        """Wait for a line, and give it."""
        assert eventually(lambda: any(re.search(pattern, line) for line in self.said), seconds), (pattern, self.said)
        return next(line for line in self.said if re.search(pattern, line))

    def count(self, pattern):
        return sum(bool(re.search(pattern, line)) for line in self.said)

    def end(self):
        self.stop = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@contextmanager
def members(model, count, **settings):
    """So many replicas; in the end all are told to stop."""
    found = [Member(model, **settings) for _ in range(count)]
    try:
        yield found
    finally:
        for member in found:
            member.stop = True
        for member in found:
            member.end()


class Life:
    """A replica as a process. `patch` is code that runs in it before the service does."""

    def __init__(self, model, directory, name, patch="", **settings):
        path, self._log = directory / f"{name}.json", directory / f"{name}.log"
        Settings(**model.settings.model_dump() | {"http": {"port": 0}} | settings).save(path)
        script = f"{patch}\nimport sys\nfrom stream_ocpdl.cli import main\nmain(['run', '--config', {str(path)!r}])"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=log)

    @property
    def lines(self):
        text = self._log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    @property
    def text(self):
        return self._log.read_text()

    def count(self, pattern):
        return sum(bool(re.search(pattern, line["event"])) for line in self.lines)

    def has(self, pattern, count=1, seconds=30.0):
        """Wait for a line, for the so many-th time, and give it."""

        def found():
            return [line for line in self.lines if re.search(pattern, line["event"])]

        assert eventually(lambda: len(found()) >= count, seconds), (pattern, self._log.read_text())
        return found()[count - 1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


# ── processes that hang or die ─────────────────────────────────────────────────────────────────────────────────


def test_a_zombie(model, tmp_path):
    """The owner is frozen past its session and a standby takes over; woken up it publishes nothing, stands by, and
    is elected again when the other leaves.
    """
    with Life(model, tmp_path, "first") as first, Life(model, tmp_path, "second") as second:
        assert eventually(lambda: any("ready" in line["event"] for life in (first, second) for line in life.lines))
        owner, other = (first, second) if any("ready" in line["event"] for line in first.lines) else (second, first)
        other.has("^standby$")
        model.feed(600)  # in the middle of which it is frozen
        assert eventually(lambda: sum(committed(model.connection, model.name, model.settings.topic).values()) > 0)
        owner.process.send_signal(signal.SIGSTOP)
        assert other.has("^ready")["standby"] == "warm"
        owner.process.send_signal(signal.SIGCONT)
        owner.has("^dropped shard 0")
        owner.has("^standby$")
        model.feed(10)
        assert eventually(model.learned)
        other.process.terminate()
        assert other.process.wait(30) == 0
        owner.has("^ready", count=2)
        model.feed(10)
        assert eventually(model.learned)
        owner.process.terminate()
        assert owner.process.wait(30) == 0
    model.check()


@pytest.mark.parametrize("standby", ["warm", "cold"])
def test_an_owner_is_killed(model, tmp_path, standby, monkeypatch):
    """The standby takes over; a warm one has next to nothing to replay, a cold one all since the last checkpoint."""
    model.settings = Settings(**model.settings.model_dump() | {"pace": {"commit_interval_ms": 20}})
    followed = []
    take = Follower.take
    monkeypatch.setattr(Follower, "take", lambda self, *record: (take(self, *record), followed.append(self)))
    with Life(model, tmp_path, "owner") as owner:
        owner.has("^ready")
        with members(model, 2, standby=standby) as others:
            for other in others:
                other.has("^standby$")
            model.feed(100)
            assert eventually(model.learned)
            assert standby == "cold" or eventually(
                lambda: len(set(followed)) == 2 and all(found.progress.state.t == 100 for found in followed)
            )
            owner.process.kill()
            assert eventually(lambda: any(other.count("^ready") for other in others))
            (successor,) = (other for other in others if other.count("^ready"))
            ready = successor.has("^ready at step 100")
            assert ready.fields["standby"] == standby
            assert ready.fields["replayed"] == (0 if standby == "warm" else 100)
            assert 0 < ready.fields["seconds"] < 10
            model.feed(10)
            assert eventually(model.learned)
            assert [other.count("^elected") for other in others] in ([0, 1], [1, 0])
    model.check()


SLOW_END = """
import time
from stream_ocpdl.stream.world import Ports
Ports.keep = lambda *_: time.sleep(60)
"""


def test_who_waits_for_the_kernels_is_told(model, tmp_path):
    """A first start compiles for a minute or two: that is said, and who does not want to wait need not."""
    slow = "run.warm_up, run.SILENT = lambda *_: time.sleep(300), 0.1"
    patch = f"import time\nimport stream_ocpdl.cli.run as run\n{slow}"
    with Life(model, tmp_path, "first", patch) as life:
        life.has("^compiling the kernels, once on this machine: it takes a minute or two$", seconds=60)
        life.process.terminate()
        assert life.process.wait(20) == -signal.SIGTERM


def test_a_second_signal_ends_it_at_once(model, tmp_path):
    """Told to stop twice it ends in the middle of what it does, with an exit code of its own; nothing is lost."""
    with Life(model, tmp_path, "impatient", SLOW_END) as life:
        life.has("^ready")
        model.feed(50)
        assert eventually(model.learned)
        life.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            life.process.wait(1.5)
        life.process.terminate()
        assert life.process.wait(2) == IMPATIENT == 10
    with members(model, 1) as (member,):
        member.has("^ready at step 50, 50 steps replayed")
    model.check()


# ── replicas that come and go ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.model(shards=2)
def test_two_shards_and_two_replicas(model):
    """One replica has both shards; a second gets one of them, a third none; who leaves gives its shard to another."""
    with ExitStack() as stack:
        (first,) = stack.enter_context(members(model, 1))
        first.has("^ready.*"), eventually(lambda: first.count("^ready") == 2)
        model.feed(50)
        second, third = stack.enter_context(members(model, 2))
        assert eventually(lambda: second.count("^ready") + third.count("^ready") == 1)
        owner, spare = (second, third) if second.count("^ready") else (third, second)
        spare.has("^standby$")
        model.feed(50)
        assert eventually(model.learned)
        assert first.count("^stopped after step") == 1  # the shard that moved was finished
        assert sorted(first.election.terms) + sorted(owner.election.terms) in ([0, 1], [1, 0])
        first.end()
        spare.has("^ready")
        model.feed(50)
        assert eventually(model.learned)
        for member in (first, second, third):
            assert not member.count("dropped|fenced")
    model.check()
    genesis = [next(TopicJournal(model.connection, f"{model.name}.journal", s).read())[1] for s in range(2)]
    assert [JournalRecord.from_bytes(value).input.rpartition(", ")[2] for value in genesis] == [
        "shard 0 of 2",
        "shard 1 of 2",
    ]
    assert [sorted(JournalRecord.from_bytes(value).resume) for value in genesis] == [[0, 2], [1, 3]]


@pytest.mark.model(shards=2, pace={"commit_interval_ms": 20, "checkpoint_every": 10_000})
def test_a_rebalance_in_the_middle_of_a_replay(model, monkeypatch):
    """It ends that replay at the next record; the new owner replays from the start, and nothing was changed."""
    model.feed(100)
    with members(model, 1):
        assert eventually(model.learned)
        monkeypatch.setattr(Ports, "keep", lambda _, pipeline, offset: pipeline.progress.state.t)
    taken, replay = [], recovery.replay
    monkeypatch.setattr(recovery, "replay", lambda *given: (time.sleep(0.05), taken.append(1), replay(*given))[-1])
    with members(model, 1) as (first,):
        assert eventually(lambda: len(taken) > 10)
        with members(model, 1, standby="cold") as (second,):
            first.has("asked to stop while recovering")
            assert not first.count("^ready")
            monkeypatch.undo()
            first.has("^ready at step 50, 50 steps replayed")
            second.has("^ready at step 50, 50 steps replayed")
            model.feed(8)
            assert eventually(model.learned)
    model.check()


@pytest.mark.model(kafka={"extra": SESSION | {"max.poll.interval.ms": 1500}}, batching={"size": 400})
def test_a_step_that_takes_longer_than_a_member_may_be_silent(model, monkeypatch):
    """Another thread polls: a step of four seconds, with a poll due each second and a half, costs no membership."""
    model.connection = Connection(model.connection.bootstrap_servers, options=model.settings.kafka.options())

    def slow(*args, learn=pipeline.learn, **options):
        time.sleep(4)
        return learn(*args, **options)

    monkeypatch.setattr(pipeline, "learn", slow)
    with members(model, 2) as both:
        model.feed(100)
        assert eventually(model.learned)
        assert sum(member.count("^elected") for member in both) == 1
        assert sum(member.count("dropped|fenced") for member in both) == 0
    model.check()


@pytest.mark.model(shards=2)
def test_past_the_budget_a_shard_is_given_up(model, monkeypatch):
    """A runner that does not come to its end in time is left behind: what it has learned it does not publish."""
    stuck = set()

    def work(self, pipeline, work=Service._work):
        outputs = work(self, pipeline)
        if outputs and self.plan.shard not in stuck and len(stuck) < 2:
            stuck.add(self.plan.shard)
            time.sleep(5)
        return outputs

    monkeypatch.setattr(Service, "_work", work)
    with members(model, 1) as (slow,):
        assert eventually(lambda: slow.count("^ready") == 2)
        slow.election._budget = 0.2
        model.feed(20)
        assert eventually(lambda: len(stuck) == 2)
        with members(model, 1) as (second,):
            assert second.has("^ready").fields["step"] == 0
            slow.has("^dropped shard .: shard . is no longer ours")
            assert eventually(model.learned)
    model.check()


def test_a_follower_writes_nothing_and_its_fault_is_nobodys(model, monkeypatch):
    """A standby that cannot follow says so once, stands by cold, and takes over all the same."""
    broken = partial(Follower.take)

    def take(self, offset, value):
        if threading.current_thread().name.startswith("standby"):
            raise ZeroDivisionError("a fault")
        broken(self, offset, value)

    monkeypatch.setattr(Follower, "take", take)
    with members(model, 1) as (owner,):
        owner.has("^ready")
        with members(model, 1) as (other,):
            other.has("^standby$")
            # What was there when it began to follow it has not taken from the journal record by record.
            assert eventually(lambda: model.feed(1) or other.count("not followed"))
            other.has("shard 0 is not followed any more.*ZeroDivisionError: a fault")
            time.sleep(0.5)
            assert other.count("not followed") == 1
            assert eventually(model.learned)
            owner.end()
            assert other.has(f"^ready at step {model.fed},").fields["standby"] == "cold"
    model.check()


def test_a_standby_that_is_ended_in_the_middle_of_its_rebuild(model, monkeypatch):
    """It stops after the record that it is at, says nothing, has nothing to be taken over, and is gone."""
    model.feed(20)
    with members(model, 1, standby="cold") as (owner,):
        assert eventually(model.learned)
        owner.end()
    at, go_on, records = threading.Event(), threading.Event(), []
    replay = recovery.replay

    def slow(*arguments):
        records.append(arguments)
        if len(records) == 5:
            at.set()
            assert go_on.wait(30)
        return replay(*arguments)

    said, before = [], own()
    work = ShardWork(model.settings, *plans(model), model.connection, SERIAL, said.append)
    monkeypatch.setattr(ShardWork, "_store", lambda *_: NoStore())
    monkeypatch.setattr(recovery, "replay", slow)
    standby = work.follow(0)
    assert at.wait(30)
    standby.end()
    go_on.set()

    assert standby.take_over() is None
    assert len(records) == 5
    assert said == []
    records.clear()
    assert eventually(lambda: own() <= before)


@pytest.mark.model(shards=2)
def test_replicas_come_and_go_and_leave_nothing_behind(model):
    """Terms begin and end, standbys follow and are let go: the owner has the same threads and files after all of it."""
    counts = []
    with members(model, 1) as (owner,):
        for turn in range(5):
            owner.has("^ready", 30)
            model.feed(5)
            with members(model, 2) as others:  # one of them gets a shard, and one is a standby
                assert eventually(lambda others=others: any(other.count("^standby$") for other in others))
                assert eventually(lambda others=others: any(other.count("^ready") for other in others))
                model.feed(5)
                assert eventually(model.learned)
            assert eventually(lambda turn=turn: owner.count("^ready") >= 3 + turn), owner.said  # one shard came back
            assert eventually(model.learned)
            counts.append(settled(own))
    assert counts[-1] <= max(counts[:2]), counts
    model.check()


def plans(model):
    return model.settings.plan(), model.settings.rhythm()


def own():
    """Threads and open files of this process, also those of librdkafka."""
    return tuple(len(list(Path("/proc/self", which).iterdir())) for which in ("task", "fd"))


def settled(ask, seconds=1.0):
    """What a question is answered with for a while."""
    answer, since = ask(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.05)
        now = ask()
        if now != answer:
            answer, since = now, time.monotonic()
    return answer


# ── what does not go together ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.model(shards=2)
def test_another_number_of_shards_is_refused(model):
    """Before anything is learned, whatever was done to the journal's partitions; the message says what to do."""
    model.feed(10)
    with members(model, 1):
        assert eventually(model.learned)
    for shards in (1, 4):
        topics = Settings(**model.settings.model_dump() | {"shards": shards}).topics()
        with pytest.raises(LineageError, match=f"begun with shards: 2, and is to have {shards} now"):
            prepare(model.connection, topics, Scripts("host"))
    many = Settings(**model.settings.model_dump() | {"model": "x", "shards": 5}).topics()
    with pytest.raises(ConfigError, match="with 5 shards some would have nothing to learn"):
        prepare(model.connection, many, Scripts("host"))


def test_another_problem_is_refused_before_it_stands_by(model):
    """A replica with settings that cannot take over ends at its start, and not when it is needed."""
    model.feed(10)
    with members(model, 1):
        assert eventually(model.learned)
    same_problem(model.connection, model.settings.topics(), model.settings.plan())
    other = model.settings.model_copy(update={"problem": model.settings.problem.model_copy(update={"rank": 3})})
    with pytest.raises(LineageError, match="begun with another problem"):
        same_problem(model.connection, other.topics(), other.plan())


@pytest.mark.model(shards=2)
def test_validate_knows_what_a_model_was_begun_with(model):
    """A layer of its own is the history: a problem or a number of shards that `run` would refuse."""
    assert ("history", 0, "") in layers(model.settings)  # there is none yet
    model.feed(10)
    with members(model, 1):
        assert eventually(model.learned)
    assert [*layers(model.settings)][-2:] == [("history", 0, ""), ("topics", 0, "")]
    rank, radius = (model.settings.problem.model_copy(update=change) for change in ({"rank": 3}, {"radius": 0.3}))
    for change, why in (
        ({"problem": rank}, "begun with another problem"),
        ({"problem": radius}, "the settings ask for another problem than the journal has: radius"),
        ({"shards": 1}, "begun with shards: 2"),
    ):
        name, code, error = [*layers(model.settings.model_copy(update=change))][-1]
        assert (name, code) == ("history", LineageError.exit_code)
        assert why in error


def test_what_was_aborted_hides_no_terms(model):
    """The last record is found behind what a writer that died has left; while its transaction is open, that is said."""
    model.feed(10)
    with members(model, 1):
        assert eventually(model.learned)
    journal = model.settings.topics().journal
    radius = model.settings.problem.model_copy(update={"radius": 0.3})
    other = model.settings.model_copy(update={"problem": radius})
    writer = model.connection.producer(f"{model.name}.dies")
    writer.init_transactions(30)
    writer.begin_transaction()
    for _ in range(40):
        writer.produce(journal, b"never committed", partition=0)
    writer.flush(30)

    (history,) = [layer for layer in validate(lambda: other, True, "create") if layer.name == "history"]
    assert history.exit_code == 0
    assert "could not be read to its end soon" in history.warnings[0]
    writer.abort_transaction(30)
    assert eventually(lambda: ("history", LineageError.exit_code) == [*layers(other)][-1][:2])


def layers(settings):
    """Name, exit code and errors of the layers of `validate --connect`."""
    for layer in validate(lambda: settings, True, "create"):
        yield layer.name, layer.exit_code, " ".join(layer.errors)


def test_a_session_that_the_broker_does_not_allow(model):
    """It is said, and not tried for ever."""
    strange = Connection(model.connection.bootstrap_servers, options={"session.timeout.ms": 10})

    def take_part(election):
        for _ in range(100):
            election.poll(0.1)

    with (
        closing(Election(strange, model.settings.topics().journal, model.name)) as election,
        pytest.raises(BrokerError, match=r"does not take us.*set another session\.timeout\.ms in kafka\.extra"),
    ):
        take_part(election)
