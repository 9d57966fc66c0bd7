"""The broker tier: what the stream promises, on a real Apache Kafka. Every test has topics of its own."""

import errno
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import uuid
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgpack
import numpy as np
import pytest
from confluent_kafka import Producer, TopicPartition

from stream_ocpdl import Problem, TensorProducer, read_codes, read_dead_letters, read_snapshots
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.errors import BrokerError, Fenced, InputLost, LineageError, StoreError
from stream_ocpdl.evidence import examine
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.stream import kafka, topics
from stream_ocpdl.stream.checkpoint import DirectoryStore, manifest_of, state_of
from stream_ocpdl.stream.kafka import Connection, KafkaSource, Transactions, committed, read_committed
from stream_ocpdl.stream.messages import GENESIS, Code, JournalRecord, Output, Tensor, split
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import Progress
from stream_ocpdl.stream.service import Service
from stream_ocpdl.stream.topics import CHUNKS, TopicJournal, TopicOutbox, Topics, TopicStore
from stream_ocpdl.stream.world import Ports
from tests.conftest import REQUIRED
from tests.fakes import Crash

ROOT = Path(__file__).parents[1]
PARTITIONS = (0, 1)
PACE = {"commit_interval_ms": 20, "checkpoint_every": 10_000}


class Source(KafkaSource):
    """The input; `at` is where the service stands in it."""

    def start(self, positions):
        self.at = dict(positions)
        super().start(positions)

    def positions(self, offsets, token=None):
        self.at = dict(offsets)
        return super().positions(offsets, token)


class Model:
    """A model that learns five tensors a step, with a checkpoint at the end of each of its lives."""

    def __init__(self, servers, name):
        self.name, self.connection, self.topics = name, Connection(servers), Topics.of(name, f"{name}.input")
        self.servers = servers
        self.settings = Settings(
            model=name,
            input=self.topics.input,
            bootstrap_servers=servers,
            problem={"shape": [4, 3], "rank": 2},
            batching={"size": 5},
            pace=PACE,
            kafka={"extra": {"session.timeout.ms": 1000}},
        )
        self.journal = TopicJournal(self.connection, self.topics.journal)
        self.reports = []

    def set(self, **changes):
        """Other settings."""
        self.settings = Settings(**self.settings.model_dump() | changes)

    def feed(self, count=10):
        """So many tensors in each partition."""
        random = np.random.default_rng(count)
        values = [(p, Tensor(random.random((4, 3))).to_bytes()) for _ in range(count) for p in PARTITIONS]
        kafka.produce(self.connection, self.topics.input, values)

    def live(self, store=None, until=None):
        """Learn all that there is, or until the positions are such; the digest of the state in the end."""
        self.reports, end = [], self.end()
        enough = until or (lambda positions: positions == end)
        with closing(Source(self.connection, self.topics.input, self.name)) as source:
            outbox = TopicOutbox(self.connection, self.topics, self.name, source)
            world = (source, self.journal, outbox, store or self.store(), time.monotonic, lambda: enough(source.at))
            service = Service(self.settings.plan(), Ports(*world, self.reports.append), self.settings.rhythm())
            return service.run().progress.state.digest()

    def learn(self, store=None):
        """Learn eight steps in two lives; the digest of the state in the end."""
        self.feed()
        self.live(store)
        self.feed()
        return self.live(store)

    def store(self, **options):
        return TopicStore(self.connection, self.topics.state, self.name, **options)

    def last(self):
        """The last record of the journal."""
        *_, (_, value) = self.journal.read()
        return JournalRecord.from_bytes(value)

    def end(self):
        """The end of the input."""
        return {p: self.high("input", p) for p in PARTITIONS}

    def high(self, stream, partition=0):
        """The high watermark."""
        return kafka.watermarks(self.connection, self.topics.named(stream), [partition])[partition][1]

    def stable(self, stream, partition=0):
        """The last stable offset: what a read_committed consumer takes for the end."""
        with closing(self.connection.consumer()) as consumer:
            return consumer.get_watermark_offsets(TopicPartition(self.topics.named(stream), partition), timeout=30)[1]

    def seen(self, stream, partition=0):
        """The values that a reader of committed records sees."""
        return [found.value for found in read_committed(self.connection, self.topics.named(stream), partition)]


@pytest.fixture
def model(broker):
    """A model with a name and topics of its own."""
    model = Model(broker, f"test-{uuid.uuid4().hex[:8]}")
    layout = {model.topics.input: (len(PARTITIONS), {})} | model.topics.outputs(len(PARTITIONS))
    kafka.create_topics(model.connection, layout)
    yield model
    kafka.delete_topics(model.connection, layout)


@pytest.fixture
def learned(model):
    """A model that has learned eight steps, with checkpoints of steps 4 and 8."""
    model.digest = model.learn()
    return model


ANYWHERE = ("--set", "http.port=0")
"""Many services on one machine."""


@contextmanager
def process(model, directory, *more):
    """The service as a process with a log; killed if it is still there in the end."""
    model.settings.save(directory / "service.json")
    command = [sys.executable, "-m", "stream_ocpdl", "run", "--config", directory / "service.json", *ANYWHERE, *more]
    with (directory / "log").open("wb") as log, subprocess.Popen(command, cwd=ROOT, stderr=log) as life:
        try:
            yield life
        finally:
            life.kill()


def eventually(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


# ── transactions ───────────────────────────────────────────────────────────────────────────────────────────────


def rows(model, *values):
    return lambda: [kafka.Row(model.topics.codes, 0, None, value) for value in values]


def test_a_successor_fences(model):
    """Once a second writer has opened, the first can write no more, and of what it tries nothing is seen."""
    first, second = (Transactions(model.connection, model.name) for _ in range(2))
    first.open()
    first.write(rows(model, b"before"))
    second.open()

    with pytest.raises(Fenced, match=model.name):
        first.write(rows(model, b"late"))
    second.write(rows(model, b"after"))
    assert model.seen("codes") == [b"before", b"after"]


def test_what_was_not_committed_is_never_seen(model):
    """A writer dies before its commit: its records are at the broker, and no reader sees them, then or later."""
    first, second = (Transactions(model.connection, model.name) for _ in range(2))

    def crash(place):
        if place == "before-commit" and eventually(lambda: model.high("codes") == 2):
            raise Crash

    first.open()
    with pytest.raises(Crash):
        first.write(rows(model, b"half", b"done"), at=crash)
    assert model.stable("codes") == 0
    second.open()
    second.write(rows(model, b"whole"))
    assert model.seen("codes") == [b"whole"]


def scribble(stranger, topic):
    """Begin a transaction; its records have reached the broker."""
    stranger.begin_transaction()
    for partition in PARTITIONS:
        stranger.produce(topic, b"not a code", partition=partition)
    assert stranger.flush(30) == 0


def test_a_strangers_open_transaction_hides_nothing_in_silence(model):
    """Behind one that we cannot end, committed records are not seen: that is an error in time, not an early end."""
    stranger, writer = model.connection.producer(f"{model.name}.stranger"), Transactions(model.connection, model.name)
    stranger.init_transactions(30)
    scribble(stranger, model.topics.codes)
    writer.open()
    writer.write(rows(model, b"behind"))

    with pytest.raises(BrokerError, match="left a transaction open"):
        list(read_committed(replace(model.connection, patience=2), model.topics.codes, 0))
    stranger.abort_transaction(30)
    assert model.seen("codes") == [b"behind"]


def test_a_record_that_is_too_large(model):
    """The error names the setting to change; the transaction is gone, and holds up nobody."""
    writer = Transactions(model.connection, model.name)
    writer.open()

    with pytest.raises(BrokerError, match=r"max\.message\.bytes"):
        writer.write(rows(model, b"small", bytes(3_000_000)))
    assert eventually(lambda: model.stable("codes") == model.high("codes"), seconds=5)
    assert model.seen("codes") == []


def test_a_missing_topic_is_an_error_at_once(broker):
    """A wrong name is said, not waited for."""
    began = time.monotonic()
    with pytest.raises(BrokerError, match="no-such-topic"):
        KafkaSource(Connection(broker, patience=5), "no-such-topic", "group")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("call", [lambda c: KafkaSource(c, "topic", "group"), lambda c: Transactions(c, "id").open()])
def test_no_broker_is_an_error_in_time(call):
    """Where nothing listens, reader and writer give up when patience ends."""
    began = time.monotonic()
    with pytest.raises(BrokerError):
        call(Connection("127.0.0.1:1", patience=2))
    assert time.monotonic() - began < 4


# ── checkpoints ────────────────────────────────────────────────────────────────────────────────────────────────

PIECES = Problem(shape=(300, 300), rank=5)
"""A state in five pieces."""


def checkpoint(name, problem, t):
    """A state with numbers in it, and its manifest."""
    empty = State.initial(problem)
    B = np.random.default_rng(t).random(empty.aggregates.B.shape)
    state = empty._replace(t=t, N=t, aggregates=empty.aggregates._replace(B=B))
    return manifest_of(Plan(name, problem), Progress(state, GENESIS, {0: 0}, {0: 0}), t, "input"), state


def die_in_checkpoint(servers, name):
    """To be run as a process: keep a checkpoint, and die when pieces of the next are at the broker."""
    model, kept = Model(servers, name), []
    high, stable = (partial(which, "state", CHUNKS) for which in (model.high, model.stable))

    def at(place):
        if kept and eventually(lambda: high() > kept[0]):
            os.kill(os.getpid(), signal.SIGKILL)

    store = model.store(at=at)
    store.open()
    for t in (1, 2):
        manifest, state = checkpoint(name, PIECES, t)
        store.save(manifest, state.parts)
        assert eventually(lambda: stable() == high())
        kept.append(high())


def test_a_killed_writer_hides_no_checkpoint(model):
    """A writer killed in a checkpoint leaves a transaction open; its successor finds the one before, whole and soon."""
    script = "import sys; from tests.test_kafka import die_in_checkpoint; die_in_checkpoint(*sys.argv[1:])"
    command = [sys.executable, "-c", script, model.connection.bootstrap_servers, model.name]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == -signal.SIGKILL
    assert model.stable("state", CHUNKS) < model.high("state", CHUNKS)

    began, store = time.monotonic(), model.store()
    store.open()
    (newest,) = store.candidates()
    assert state_of(newest.manifest, newest.load()).digest() == checkpoint(model.name, PIECES, 1)[1].digest()
    assert time.monotonic() - began < 10


def test_a_state_of_100_mb(model):
    """It goes to the topic and comes back, bit for bit, in reasonable time."""
    manifest, state = checkpoint(model.name, Problem(shape=(2000, 700), rank=10), 1)
    assert manifest.size >= 100_000_000
    began, store = time.monotonic(), model.store()
    store.open()
    store.save(manifest, state.parts)

    (found,) = model.store().candidates()
    assert state_of(found.manifest, found.load()).digest() == state.digest()
    assert time.monotonic() - began < 60


def flipped(value):
    return value[:-1] + bytes([value[-1] ^ 1])


@pytest.mark.parametrize(("damage", "said"), [(flipped, "is damaged"), (lambda _: None, "lacks 1 of its")])
def test_a_damaged_checkpoint_is_passed_over(model, monkeypatch, damage, said):
    """A flipped byte or a missing piece in the newest: it is said, the one before is used, the state is the same."""
    monkeypatch.setattr(topics, "CHUNK", 100)
    digest = model.learn()
    *_, piece = (each for each in read_committed(model.connection, model.topics.state, CHUNKS) if each.value)
    outsider = Producer(model.connection.common())
    outsider.produce(model.topics.state, damage(piece.value), piece.key, CHUNKS)
    assert outsider.flush(30) == 0

    assert model.live() == digest
    assert said in model.reports[0]
    assert model.reports[1:] == ["restored the checkpoint of step 4", "ready at step 8, 4 steps replayed"]


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (lambda manifest: {"journal_offset": manifest.journal_offset + 5}, "ahead of the journal"),
        (lambda manifest: {"link": GENESIS}, "another history"),
    ],
)
def test_a_checkpoint_without_a_place_in_the_journal_is_refused(learned, forge, said):
    """One ahead of the journal or of another lineage is refused, and the one before it used."""
    store = learned.store()
    store.open()
    newest = next(store.candidates())
    store.save(replace(newest.manifest, t=9, **forge(newest.manifest)), lambda: [newest.load()])

    assert learned.live() == learned.digest
    assert learned.reports[0].startswith("refused the checkpoint of step 9: ")
    assert said in learned.reports[0]
    assert learned.reports[1:] == ["restored the checkpoint of step 8", "ready at step 8, 0 steps replayed"]


@pytest.mark.parametrize(("size", "said"), [(-1, "step 8 is damaged"), (20, "checkpoint is not usable")])
def test_checkpoints_in_a_directory(model, tmp_path, caplog, size, said):
    """The journal is on Kafka, the checkpoints are files: they are found again, and a truncated one is passed over."""
    digest = model.learn(DirectoryStore(tmp_path, model.name))
    _, newest = sorted((tmp_path / model.name).iterdir())

    assert model.live(DirectoryStore(tmp_path, model.name)) == digest
    assert model.reports == ["restored the checkpoint of step 8", "ready at step 8, 0 steps replayed"]
    newest.write_bytes(newest.read_bytes()[:size])
    assert model.live(DirectoryStore(tmp_path, model.name)) == digest
    assert said in caplog.text + model.reports[0]
    assert model.reports[-2:] == ["restored the checkpoint of step 4", "ready at step 8, 4 steps replayed"]


def test_a_successor_fences_a_directory(tmp_path):
    """It removes what its predecessor has half written, which then cannot be made a checkpoint; shards do not meet."""
    manifest, state = checkpoint("model", Problem(shape=(4, 3), rank=2), 1)
    DirectoryStore(tmp_path, "model", shard=1).open()
    successor = DirectoryStore(tmp_path, "model", shard=0)
    late = DirectoryStore(tmp_path, "model", lambda _: successor.open(), shard=0)
    late.open()

    with pytest.raises(Fenced, match="another process writes this model now"):
        late.save(manifest, state.parts)
    assert list(successor.candidates()) == []
    successor.save(manifest, state.parts)
    assert len(list(successor.candidates())) == 1
    assert list(DirectoryStore(tmp_path, "model", shard=1).candidates()) == []


def test_a_directory_that_cannot_be_written(tmp_path):
    """One line that names it and says what to do, and nothing half written is left; what was there stays."""
    manifest, state = checkpoint("model", Problem(shape=(4, 3), rank=2), 1)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"checkpoints: .*file/model cannot be written: Not a directory\. Nothing is"):
        DirectoryStore(tmp_path / "file", "model").open()
    store = DirectoryStore(tmp_path, "model")
    store.open()
    store.save(manifest, state.parts)

    def full():
        yield b"half"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StoreError, match="No space left on device") as error:
        store.save(replace(manifest, journal_offset=2), full)
    assert error.value.exit_code == 6
    assert [path.suffix for path in (tmp_path / "model").iterdir()] == [".checkpoint"]
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(StoreError, match="No such file or directory"):
        store.save(manifest, state.parts)


def test_a_directory_that_goes_while_it_runs(model, tmp_path):
    """The service ends with 6 and a line, not with a traceback; a directory that is there again, and all is well."""
    model.set(checkpoints=str(tmp_path / "kept"), pace=PACE | {"checkpoint_every": 4}, log={"format": "plain"})
    model.feed()
    with process(model, tmp_path) as life:
        assert eventually(lambda: any((tmp_path / "kept").rglob("*.checkpoint")), 120)
        shutil.rmtree(tmp_path / "kept")
        (tmp_path / "kept").touch()
        model.feed()
        assert life.wait(60) == StoreError.exit_code == 6
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert f"checkpoints: {tmp_path / 'kept' / model.name} cannot be written: Not a directory" in said

    (tmp_path / "kept").unlink()
    model.feed()
    end = model.end()
    with process(model, tmp_path) as life:
        assert eventually(lambda: committed(model.connection, model.name, model.topics.input) == end, 60)
        life.terminate()
        assert life.wait(60) == 0
    codes = [code.position for code in read_codes(model.servers, model.topics.codes)]
    assert len(set(codes)) == len(codes) == sum(end.values()) == model.last().N


# ── messages ───────────────────────────────────────────────────────────────────────────────────────────────────


def lingering(model, size=5, **settings):
    """Let the model take what there is, and show every dictionary."""
    batching = {"size": size, "close": "linger", "order": "canonical", "linger_ms": 20}
    model.set(batching=batching, snapshot_every=1, **settings)


def check(model):
    """All that the model left is as a replay of its journal finds it."""
    assert examine(model.connection, model.settings).broken == []


def test_a_video_clip(model):
    """Two clips of 184 MB, as in the paper, go through the service in pieces; one without a piece is a dead letter."""
    shape = (50, 460_080)
    lingering(model, 1, problem={"shape": list(shape), "rank": 2}, axes=["frame", "pixel"])
    clip = np.random.default_rng(0).random(shape)
    with TensorProducer(model.servers, model.topics.input) as producer:
        producer.send(clip, axes=("frame", "pixel"))
    torn = [chunk.to_bytes() for chunk in split(Tensor(clip[:, :200_000]).to_bytes(), "torn")]
    kafka.produce(model.connection, model.topics.input, [(0, value) for value in [*torn[:3], *torn[4:]]])
    with TensorProducer(model.servers, model.topics.input) as producer:
        producer.send(clip, key=b"clip")
    model.live()

    codes = list(read_codes(model.servers, model.topics.codes))
    assert [code.step for code in sorted(codes, key=lambda code: code.step)] == [1, 2]
    letters = list(read_dead_letters(model.servers, model.topics.dead_letters))
    assert len(letters) == len(torn) - 1
    assert {letter.reason for letter in letters[:4]} == {"chunk 3 of 'torn' is missing"}
    assert {letter.record.value for letter in letters} == {*torn[:3], *torn[4:]}
    *_, newest = read_snapshots(model.servers, model.topics.snapshots)
    assert newest.step == 2
    assert [U.shape for U in newest.loadings] == [(50, 2), (460_080, 2)]
    assert newest.axes == ("frame", "pixel")


def test_an_open_message_is_not_lost(model):
    """A life ends between two pieces: the position stays at the first, and the next life learns the whole."""
    lingering(model)
    value = Tensor(np.ones((4, 3))).to_bytes()
    first, second = (chunk.to_bytes() for chunk in split(value, "id", 100))
    model.feed(1)
    kafka.produce(model.connection, model.topics.input, [(0, first), (1, value), (0, value)])
    model.live(until=lambda resume: resume == {0: 1, 1: 2} and model.high("codes", 0) + model.high("codes", 1) >= 4)
    assert committed(model.connection, model.name, model.topics.input) == {0: 1, 1: 2}
    kafka.produce(model.connection, model.topics.input, [(0, second)])
    model.live()

    places = [tuple(code.position) for code in read_codes(model.servers, model.topics.codes)]
    assert sorted(places) == [(0, 0), (0, 2), (0, 3), (1, 0), (1, 1)]
    check(model)


def test_an_orphan_is_outlived(model):
    """A first piece whose message never becomes whole, and which retention takes away, does not keep a model from
    starting; what is left of the message is refused.
    """
    lingering(model)
    pieces = [chunk.to_bytes() for chunk in split(Tensor(np.ones((4, 3))).to_bytes(), "orphan", 70)]
    assert len(pieces) > 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stream_ocpdl.stream.messages.chunk.SMALLEST", 10)
        kafka.produce(model.connection, model.topics.input, [(0, pieces[0]), (0, pieces[1])])
        model.feed(2)
        model.live(until=lambda resume: resume == {0: 0, 1: 2} and model.last().N == 4)
        assert model.last().open == ((0, 0, 1),)
        beyond = TopicPartition(model.topics.input, 0, 1)
        admin = model.connection.admin()
        admin.delete_records([beyond])[beyond].result(30)
        model.feed(2)
        model.live()

    (letter,) = read_dead_letters(model.servers, model.topics.dead_letters)
    assert letter.record.position == (0, 1)
    assert "belongs to no open message" in letter.reason
    assert model.last().N == 8
    assert model.last().open == ()


def test_tensors_of_tomorrow(model):
    """A broker takes no record that is dated too far ahead; the code of a tensor that is gets the present time."""
    layout = {f"{model.name}.ahead": (2, {"message.timestamp.after.max.ms": "9223372036854775807"})}
    kafka.create_topics(model.connection, layout)
    lingering(model, input=f"{model.name}.ahead")
    tomorrow = int(time.time() + 86400) * 1000
    outsider = Producer(model.connection.common())
    outsider.produce(f"{model.name}.ahead", Tensor(np.ones((4, 3))).to_bytes(), None, 0, timestamp=tomorrow)
    assert outsider.flush(30) == 0
    model.topics = replace(model.topics, input=f"{model.name}.ahead")
    model.live()

    (code,) = (r for p in PARTITIONS for r in read_committed(model.connection, model.topics.codes, p))
    assert code.timestamp < tomorrow - 3_600_000
    kafka.delete_topics(model.connection, layout)


def largest(model):
    """The largest record that the broker takes without being told to take larger ones."""
    outsider = Producer(model.connection.common() | {"message.max.bytes": 1_100_000})
    for size in range(1_048_588, 1_048_000, -4):
        outcome = []
        outsider.produce(model.topics.input, bytes(size), partition=0, on_delivery=lambda e, m, o=outcome: o.append(e))
        assert outsider.flush(30) == 0
        if outcome[0] is None:
            return size
    raise AssertionError


def test_poison_of_the_largest_size(model):
    """Its dead letter is larger than a record may be: it comes in pieces, and has every byte."""
    lingering(model)
    size = largest(model)
    model.feed(3)
    model.live()

    (letter,) = read_dead_letters(model.servers, model.topics.dead_letters)
    assert letter.record.value == bytes(size)
    assert letter.reason.startswith("value does not begin with")
    assert model.high("dead-letters") > 2
    check(model)


def test_keys_and_headers_of_anybody(model):
    """A key of a megabyte, and headers that are no text, are nobody's end; what can be carried is carried."""
    lingering(model)
    good = Tensor(np.ones((4, 3))).to_bytes()
    outsider = Producer(model.connection.common() | {"message.max.bytes": 1_040_000, "enable.idempotence": True})
    trace = [("traceparent", b"00-abc-def-01"), ("other", b"\xff\x00"), ("none", None)]
    many = [("traceparent", bytes([k % 256]) * 230) for k in range(3900)]
    outsider.produce(model.topics.input, good, b"many", 1, headers=many)
    outsider.produce(model.topics.input, good, b"k" * 1_000_000, 0)
    outsider.produce(model.topics.input, b"poison", b"k" * 1_000_000, 0)
    outsider.produce(model.topics.input, good, b"\xffkey", 0, headers=trace, timestamp=1_600_000_000_000)
    assert outsider.flush(30) == 0
    subprocess.run(
        ["kcat", "-b", model.servers, "-P", "-t", model.topics.input, "-p", "1", "-H", b"\xff\xfe=\xff"],
        input=b"poison",
        check=True,
        timeout=30,
    )
    model.live()

    letters = sorted(read_dead_letters(model.servers, model.topics.dead_letters), key=lambda x: x.record.position)
    assert [letter.record.position for letter in letters] == [(0, 0), (0, 1), (1, 1)]
    assert [len(letter.record.key or b"") for letter in letters] == [1_000_000, 1_000_000, 0]
    assert letters[0].reason == "key has 1000000 bytes; at most 16384 go with a code"
    codes = {r.key: r for p in PARTITIONS for r in read_committed(model.connection, model.topics.codes, p)}
    assert set(codes) == {b"\xffkey", b"many"}
    assert [name for name, _ in codes[b"many"].headers].count("traceparent") == 1
    assert dict(codes[b"many"].headers)["traceparent"] == bytes(230)
    code = codes[b"\xffkey"]
    assert (code.key, code.timestamp) == (b"\xffkey", 1_600_000_000_000)
    assert dict(code.headers)["traceparent"] == b"00-abc-def-01"
    assert dict(code.headers)["ce_id"] == b"0:2"
    assert "other" not in dict(code.headers)


def test_strangers(model):
    """The examples for those who do not import us: msgpack and struct alone, and kcat from the shell."""
    lingering(model)
    for command in (["stranger.py"], ["kcat.sh"]):
        interpreter = [sys.executable] if command[0].endswith("py") else ["bash"]
        script = str(ROOT / "examples" / command[0])
        subprocess.run([*interpreter, script, model.servers, model.topics.input], check=True, timeout=60)
    model.live()

    assert len(list(read_codes(model.servers, model.topics.codes))) == 11
    assert list(read_dead_letters(model.servers, model.topics.dead_letters)) == []
    source = (ROOT / "examples" / "stranger.py").read_text()
    assert "stream_ocpdl" not in source.split('"""', 4)[2].replace("that stream_ocpdl reads", "")
    assert len(source.splitlines()) <= 30


@pytest.mark.parametrize("form", ["raw", "npy", "msgpack", "json"])
def test_other_formats(model, form):
    """Producers that exist already are understood, and their mistakes refused."""
    more = {"dtype": "<f4"} if form == "raw" else {}
    lingering(model, input={"topic": model.topics.input, "format": form, **more})
    X = np.arange(12, dtype="<f4").reshape(4, 3)
    buffer = io.BytesIO()
    np.save(buffer, X)
    good = {
        "raw": X.tobytes(),
        "npy": buffer.getvalue(),
        "msgpack": msgpack.packb({"data": X.tobytes(), "dtype": "<f4"}),
        "json": json.dumps(X.tolist()).encode(),
    }[form]
    kafka.produce(model.connection, model.topics.input, [(0, good), (1, good[:-1]), (0, good)])
    model.live()

    assert len(list(read_codes(model.servers, model.topics.codes))) == 2
    (letter,) = read_dead_letters(model.servers, model.topics.dead_letters)
    assert letter.record.value == good[:-1]
    check(model)


# ── the service ────────────────────────────────────────────────────────────────────────────────────────────────


def test_positions_are_those_of_the_journal(learned):
    """The group's committed offsets, which monitors see, are where the journal says that reading goes on."""
    assert committed(learned.connection, learned.name, learned.topics.input) == learned.last().resume == learned.end()


def test_sigterm(model, tmp_path):
    """In the middle of a stream: all that was learned is committed and kept, and a restart has nothing to replay."""
    model.feed(20_000)
    model.set(pace=PACE | {"commit_interval_ms": 300})
    positions = partial(committed, model.connection, model.name, model.topics.input)
    with process(model, tmp_path) as life:
        assert eventually(lambda: sum(positions().values()) > 0)
        life.terminate()
        assert life.wait(20) == 0

    last = model.last()
    assert positions() == last.resume
    assert 0 < last.N == sum(len(model.seen("codes", p)) for p in PARTITIONS) == sum(last.resume.values()) < 40_000
    assert next(model.store().candidates()).manifest.t == last.t
    with process(model, tmp_path):
        ready = f"ready at step {last.t}, 0 steps replayed"
        assert eventually(lambda: ready in (tmp_path / "log").read_text())


def test_a_journal_that_is_made_anew_while_it_is_written(learned):
    """It would go on with step 9 and without a genesis, which no replay could check: that is said at once."""
    journal, done = learned.topics.journal, []

    def until(positions):
        if not done:
            done.append("made anew")
            kafka.delete_topics(learned.connection, [journal])
            assert eventually(lambda: not kafka.describe(learned.connection, [journal]))
            kafka.create_topics(learned.connection, {journal: learned.topics.outputs(2)[journal]})
            kafka.await_topics(learned.connection, [journal])
            learned.feed()
        return positions == {0: 30, 1: 30}

    with pytest.raises(
        LineageError, match=r"stood at offset \d+, and the next record is at \d: it was deleted and made"
    ):
        learned.live(until=until)
    with pytest.raises(LineageError):
        learned.live()


def test_a_topic_that_is_gone_while_it_is_written(broker):
    """The error names it, and what makes it again."""
    impatient = kafka.Connection(broker, options={"topic.metadata.propagation.max.ms": 500})
    transactions = kafka.Transactions(impatient, uuid.uuid4().hex)
    transactions.open()
    rows = [kafka.Row("is-gone.codes", -1, None, b"code"), kafka.Row("is-gone.journal", 0, None, b"record")]

    with pytest.raises(BrokerError, match=r"is-gone\.codes is not there any more.*stream-ocpdl topics create"):
        transactions.write(lambda: rows)


@pytest.mark.parametrize(
    ("stream", "advice"), [("journal", "another name, with warm_start"), ("codes", "topics create")]
)
def test_what_to_do_depends_on_the_topic_that_is_gone(broker, stream, advice):
    """A journal that is made again would be a model without a past; codes are only codes."""
    impatient = kafka.Connection(broker, options={"topic.metadata.propagation.max.ms": 500})
    model = uuid.uuid4().hex
    names = Topics.of(model, f"{model}.input")
    kafka.create_topics(impatient, {names.input: (1, {})})
    outbox = TopicOutbox(impatient, names, model, KafkaSource(impatient, names.input, model))
    outbox.open()

    with pytest.raises(BrokerError, match=rf"{model}\.{stream} is not there any more: .*{advice}"):
        outbox.commit([Output(stream, b"", b"value")], {})


def test_a_topic_that_is_deleted_while_it_is_written(broker):
    """A client that knew it hopes for its return; when that is given up, the error names it all the same."""
    impatient = kafka.Connection(broker, 5.0, {"topic.metadata.propagation.max.ms": 500})
    names = [f"{uuid.uuid4().hex}.{kind}" for kind in ("codes", "journal")]
    kafka.create_topics(impatient, {name: (1, {}) for name in names})
    transactions = kafka.Transactions(impatient, uuid.uuid4().hex)
    transactions.open()
    rows = [kafka.Row(name, 0, None, b"record") for name in names]
    transactions.write(lambda: rows)
    kafka.delete_topics(impatient, names[:1])

    with pytest.raises(BrokerError, match=rf"{names[0]} is not there any more.*stream-ocpdl topics create"):
        transactions.write(lambda: rows)


def test_retention_has_passed(learned, tmp_path):
    """If input that was never read is gone, the service ends with its exit code and names topic and partition."""
    learned.feed()
    beyond = TopicPartition(learned.topics.input, 1, learned.last().resume[1] + 3)
    admin = learned.connection.admin()
    admin.delete_records([beyond])[beyond].result(30)

    with process(learned, tmp_path) as life:
        assert life.wait(30) == InputLost.exit_code == 4
    first = learned.last().resume[1]
    gone = f"{learned.topics.input}[1] offsets {first} to {first + 2} (3)"
    assert gone in (tmp_path / "log").read_text()


def test_kcat_sees_the_committed_codes(learned):
    """A client that is not ours reads one code for each input, past an aborted transaction and up to an open one."""
    if not shutil.which("kcat"):
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)("kcat is not installed (Debian: apt install kcat)")
    stranger = learned.connection.producer(f"{learned.name}.stranger")
    stranger.init_transactions(30)
    scribble(stranger, learned.topics.codes)
    stranger.abort_transaction(30)
    learned.feed()
    learned.live()
    scribble(stranger, learned.topics.codes)

    command = ["kcat", "-b", learned.connection.bootstrap_servers, "-C", "-e", "-q", "-t", learned.topics.codes]
    command += ["-X", "isolation.level=read_committed", "-f", "%R%s"]
    printed = subprocess.run(command, capture_output=True, check=True, timeout=30).stdout
    stranger.abort_transaction(30)
    inputs = [(p, offset) for p, end in learned.end().items() for offset in range(end)]
    assert sorted(Code.from_bytes(value).position for value in values_of(printed)) == inputs


def values_of(printed):
    """The values that kcat printed, each after its length."""
    while printed:
        (length,) = struct.unpack_from(">i", printed)
        yield printed[4 : 4 + length]
        printed = printed[4 + length :]
