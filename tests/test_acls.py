"""The least that the account of a service must be allowed: with these ACLs it runs, without each it says which.

What that costs the broker is counted: connections at the door that it tells to clients, and denials in its own log.
"""

import json
import os
import re
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from stream_ocpdl import TensorProducer, read_codes, read_dead_letters
from stream_ocpdl.cli import main
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.errors import Denied
from stream_ocpdl.stream.kafka import Connection, Writer, create_topics, produce, read_committed, watermarks
from stream_ocpdl.stream.kafka.reading import committed_places
from stream_ocpdl.stream.messages import Snapshot, Version
from stream_ocpdl.stream.rights import needed, useful
from stream_ocpdl.stream.topics import Topics
from tests.broker.guarded import ACCOUNT, SECRET

ROOT = Path(__file__).parents[1]
MODEL = f"test-{os.environ.get('PYTEST_XDIST_TESTRUNUID', uuid.uuid4().hex)[:8]}"
"""The names of tests have it, and all processes must know the same ones."""
TOPICS = Topics.of(MODEL, f"{MODEL}.input")
NEEDED = needed(MODEL, TOPICS)
OTHER = f"{MODEL}.other"
"""A topic that encoders code: their codes and dead letters are their own then."""
LEAST = {"bootstrap_servers": "kafka:9092", "problem": {"shape": [4, 3], "rank": 2}}
CODED = Settings(model=MODEL, input=TOPICS.input, encoders={"input": OTHER}, **LEAST)
RIGHTS = {"run": NEEDED, "encode": CODED.encoder_rights()}
WORDS = {"run": (), "encode": ("--set", f"encoders.input={OTHER}")}
OPTIONAL = "DESCRIBE_CONFIGS"
"""What it asks for, and does without."""
FEW, MANY = 10, 60
"""Connections that a mistake may cost: of three clients that look for it, two each; or of a service that has started,
which has a dozen. librdkafka by itself would make twenty a second."""
ATTEMPTS = 3
"""How often what is denied may be asked for."""


@pytest.fixture(scope="module")
def service(fortress, tmp_path_factory):
    """Topics that somebody else has made, and the settings of a service with an account of its own: TLS and SCRAM."""
    here = tmp_path_factory.mktemp("acls")
    made(fortress, CODED)
    (here / "password").write_text(SECRET)
    settings = {
        "model": MODEL,
        "input": TOPICS.input,
        "bootstrap_servers": fortress.at("SASL"),
        "problem": {"shape": [4, 3], "rank": 2},
        "batching": {"size": 5},
        "http": {"port": None},
        "log": {"format": "plain"},
        "kafka": {
            "security_protocol": "sasl_ssl",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": ACCOUNT,
            "sasl_password_file": str(here / "password"),
            "ssl_ca": fortress.ca,
            "patience_s": 20,
        },
    }
    (here / "service.json").write_text(json.dumps(settings))
    with TensorProducer(fortress.bootstrap_servers, TOPICS.input) as producer:
        producer.send_many(np.random.default_rng(0).random((20, 4, 3)))
    return here / "service.json"


def made(fortress, settings):
    """The topics of a learner and of encoders."""
    topics, coded = settings.topics(), settings.coded()
    inputs = {name: (1, {}) for name in (topics.input, coded.input)}
    create_topics(Connection(fortress.bootstrap_servers), inputs | topics.outputs(1) | coded.outputs(1))


@contextmanager
def granted(fortress, rights):
    """What is allowed meanwhile; it may be taken away."""
    fortress.allow(rights)
    try:
        yield
    finally:
        fortress.forbid(rights)


@pytest.fixture
def allowed(fortress):
    """All that a learner needs is allowed while a test lasts."""
    with granted(fortress, NEEDED):
        yield fortress


class Cost:
    """What the broker has had to do since."""

    def __init__(self, fortress):
        self._fortress, self._before = fortress, fortress.counted.count
        self._read = fortress.log(1).stat().st_size

    @property
    def connections(self):
        return self._fortress.counted.count - self._before

    @property
    def denials(self):
        """The operations that it has denied, and on what."""
        said = self._fortress.log(1).read_bytes()[self._read :].decode()
        return re.findall(r" is Denied operation = (\w+) .* on resource = \w+:\w+:(\S+) ", said)

    @property
    def denied(self):
        """The operations alone."""
        return {operation for operation, _ in self.denials}


def started(service, *more, command="run"):
    """A process of the service."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    words = [sys.executable, "-m", "stream_ocpdl", command, "--config", str(service), *more]
    return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)


def ran(holds, service, *more, command="run"):
    """What a process said until something held, whereupon it was told to stop; it does so with 0."""
    with started(service, *more, command=command) as life:
        try:
            until(lambda: holds() or life.poll() is not None)
            life.terminate()
            _, errors = life.communicate(timeout=30)
        finally:
            life.kill()
    assert life.returncode == 0, errors
    return errors


def told(life):
    """The one line with which it ends, and its code."""
    _, errors = life.communicate(timeout=60)
    lines = [line for line in errors.splitlines() if line.startswith("stream-ocpdl: ")]
    assert "Traceback" not in errors
    assert len(lines) == 1, errors
    return lines[0], life.returncode


def has_codes(fortress, count, topics=TOPICS):
    return len(list(read_codes(fortress.bootstrap_servers, topics.codes))) == count


def until(holds, seconds=200):  # kernels may have to be compiled
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_with_exactly_these_it_runs(allowed, service):
    """It learns, publishes, writes a checkpoint and leaves; only what it can do without is refused."""
    cost = Cost(allowed)
    errors = ran(partial(has_codes, allowed, 20), service, "--set", "pace.checkpoint_every=1")

    assert "stopped after step 4" in errors
    assert cost.denied == {OPTIONAL}


def test_encoders_with_an_account_of_their_own(fortress, service):
    """A learner leaves codes to them, and has no right to write any; they have their own list, and code.

    One of them the learner's input, another a topic with codes and dead letters of its own.
    """
    servers, given = fortress.bootstrap_servers, json.loads(service.read_text())
    given |= {"model": f"{MODEL}-e", "input": f"{MODEL}-e.input", "learner": {"codes": False}, "snapshot_every": 1}
    path, settings = service.with_name("codeless.json"), Settings(**given)
    other = Settings(**given | {"encoders": {"input": OTHER}})
    path.write_text(json.dumps(given))
    made(fortress, settings)
    made(fortress, other)
    for topic in (settings.topic, OTHER):
        with TensorProducer(servers, topic) as producer:
            producer.send_many(np.random.default_rng(0).random((20, 4, 3)))
    produce(Connection(servers), OTHER, [(0, b"no tensor")])
    cost = Cost(fortress)

    with granted(fortress, settings.rights()):
        dictionary = settings.topics().snapshots
        ran(lambda: watermarks(Connection(servers), dictionary, [0])[0][1] > 0, path)
    for fleet, words in ((settings, ()), (other, WORDS["encode"])):
        with granted(fortress, fleet.encoder_rights()):
            there = partial(has_codes, fortress, 20, fleet.coded())
            errors = ran(there, path, *words, command="encode")
        assert "stopped, 20 tensors coded" in errors
    assert len(list(read_dead_letters(servers, other.coded().dead_letters))) == 1
    assert cost.denied == {OPTIONAL}


def with_partials(service, emit):
    """Settings of a learner that has them, and of encoders; and where they are."""
    given, name = json.loads(service.read_text()), f"{MODEL}-{emit}"
    given |= {"model": name, "input": f"{name}.input", "partials": {"size": 5}}
    given |= {"learner": {"codes": False, "source": "partials"}, "encoders": {"emit": emit}}
    path = service.with_name(f"{emit}.json")
    path.write_text(json.dumps(given))
    return Settings(**given), path


@pytest.mark.parametrize("emit", ["partials", pytest.param("both", marks=pytest.mark.slow)])
def test_who_learns_from_partials_and_who_makes_them(fortress, service, emit):
    """Each has its own list, and no more: the learner does not see the tensors, encoders change no dictionary, and who
    makes no codes may write none.
    """
    settings, path = with_partials(service, emit)
    servers, topics = Connection(fortress.bootstrap_servers), settings.coded()
    made(fortress, settings)
    produce(servers, settings.topic, [(0, b"no tensor")])
    with TensorProducer(fortress.bootstrap_servers, settings.topic) as producer:
        producer.send_many(np.random.default_rng(0).random((5, 4, 3)))
    cost = Cost(fortress)

    def published():
        return [Snapshot.from_bytes(r.value).version.t for r in read_committed(servers, topics.snapshots, 0)]

    with granted(fortress, settings.rights()):
        ran(lambda: published() == [0], path)
    with granted(fortress, settings.encoder_rights()):
        made_one = ran(lambda: len(list(read_committed(servers, topics.partials, 0))) == 1, path, command="encode")
    with granted(fortress, settings.rights()):
        ran(lambda: published() == [0, 1], path)
    assert "stopped, 5 tensors coded" in made_one
    assert len(list(read_dead_letters(fortress.bootstrap_servers, topics.dead_letters))) == 1
    assert has_codes(fortress, 5 if emit == "both" else 0, topics)
    assert cost.denied == {OPTIONAL}


def test_without_the_right_to_write_partials(fortress, service):
    """It is missed before anything is begun."""
    settings, path = with_partials(service, "partials")
    made(fortress, settings)
    (lack,) = (one for one in settings.encoder_rights() if one.name == settings.coded().partials)
    with granted(fortress, [one for one in settings.encoder_rights() if one != lack]):
        done = CliRunner().invoke(main, ["encode", "--config", str(path)])

    assert done.exit_code == 6
    assert f"the broker denies us Write on topic {settings.coded().partials} (sums for the learner)" in done.stderr


@pytest.mark.parametrize(
    ("command", "lack"), [(name, one) for name, rights in RIGHTS.items() for one in rights], ids=str
)
def test_without_one_it_says_which(fortress, service, command, lack):
    """One line with the ACL and the command that gives it, at once, and 6; the broker is not asked again and again."""
    cost = Cost(fortress)
    with granted(fortress, [one for one in RIGHTS[command] if one != lack]):
        if lack.kind == "transactional-id":  # of these a broker tells nothing beforehand
            with started(service, *WORDS[command], command=command) as life:
                try:
                    line, code = told(life)
                finally:
                    life.kill()
        else:
            done = CliRunner().invoke(main, [command, "--config", str(service), *WORDS[command]])
            (line,), code = done.stderr.strip().splitlines(), done.exit_code

    refused = [(operation, name) for operation, name in cost.denials if operation != OPTIONAL]
    pattern = " --resource-pattern-type prefixed" if lack.prefixed else ""
    assert code == 6
    assert f"the broker denies us {lack}" in line
    assert line.endswith(
        f"--add --allow-principal User:{ACCOUNT} --operation {lack.operation} --{lack.kind} {lack.name}{pattern}"
    )
    assert 1 <= cost.connections <= (FEW if lack.kind != "transactional-id" else MANY)
    assert all(name.startswith(lack.name) for _, name in refused)
    assert len(refused) <= ATTEMPTS


def test_all_that_is_missing_is_said_at_once(fortress, service):
    """By `validate --connect`, before anything runs."""
    done = CliRunner().invoke(main, ["validate", "--connect", "--config", str(service)])
    seen = [one for one in NEEDED if one.kind != "transactional-id"]

    assert done.exit_code == 6
    assert all(f"denies us {one}" in done.stdout for one in seen)


def published(fortress):
    """A dictionary for encoders."""
    loadings = [np.random.default_rng(0).random((size, 2)) for size in (4, 3)]
    snapshot = Snapshot(Version(MODEL, 1, 0, 0), 1, loadings, None, 1.0, "", (), (0, 1), "", {}, penalties=(0.0, 0.1))
    writer = Writer(Connection(fortress.bootstrap_servers))
    assert writer.write(TOPICS.snapshots, snapshot.to_bytes(), b"0", 0, 30.0)
    writer.flush()


def settled(fortress):
    """Wait until all clients have come: nobody else does for a second."""
    count = -1
    while count != fortress.counted.count:
        count = fortress.counted.count
        time.sleep(1)


BEGUN = {"run": "ready at step", "encode": "coding with"}
LATER = {"run": {TOPICS.input, TOPICS.codes}, "encode": {OTHER, CODED.coded().codes, TOPICS.snapshots, CODED.fleet()}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "lack"),
    [(name, one) for name, names in LATER.items() for one in RIGHTS[name] if one.name in names],
    ids=str,
)
def test_one_that_is_taken_away(fortress, service, command, lack):
    """A service that runs says the same, and does not try again and again."""
    published(fortress)
    topic = OTHER if command == "encode" else TOPICS.input
    with granted(fortress, RIGHTS[command]), started(service, *WORDS[command], command=command) as life:
        try:
            said = iter(life.stderr.readline, "")
            assert any(BEGUN[command] in line for line in said)
            settled(fortress)
            cost, began = Cost(fortress), time.monotonic()
            fortress.forbid([lack])
            with TensorProducer(fortress.bootstrap_servers, topic) as producer:
                producer.send_many(np.random.default_rng(1).random((5, 4, 3)))
            line, code = told(life)
        finally:
            life.kill()

    seconds = time.monotonic() - began
    assert code == 6
    assert f"the broker denies us {lack}" in line
    assert cost.connections <= FEW
    assert {name for _, name in cost.denials} == {lack.name}
    assert len(cost.denials) <= FEW + 10 * seconds  # a producer goes on asking until it is ended


class Coordinator:
    """A consumer whose group is asked where it stands."""

    def __init__(self, *, group=None, topic=None):
        self._group, self._topic, self.asked = group, topic, 0

    def committed(self, wanted, timeout):
        self.asked += 1
        if self._group is not None:
            raise KafkaException(KafkaError(self._group))
        error = None if self._topic is None else KafkaError(self._topic)
        return [SimpleNamespace(topic=one.topic, partition=one.partition, offset=-1001, error=error) for one in wanted]


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ({"group": KafkaError.GROUP_AUTHORIZATION_FAILED}, "Read on group g"),
        ({"topic": KafkaError.TOPIC_AUTHORIZATION_FAILED}, "Read on topic t"),
    ],
)
def test_where_a_group_stands_is_not_asked_again(refusal, said):
    """A denial comes at once: to ask until patience ends would be a storm, and to take it for an empty answer would let
    a group begin anew, and code everything twice.
    """
    coordinator = Coordinator(**refusal)

    with pytest.raises(Denied, match=said):
        committed_places(Connection("kafka:9092"), coordinator, "g", [TopicPartition("t", 0)])
    assert coordinator.asked == 1


def test_topics_it_may_make(allowed, service):
    """Whoever may make topics needs one ACL for each, and is told which."""
    other = Settings(**json.loads(service.read_text()) | {"model": f"{MODEL}-b"})
    allowed.allow(rights := other.rights())
    try:
        done = CliRunner().invoke(main, ["run", "--config", str(service), "--set", f"model={other.model}"])
    finally:
        allowed.forbid(rights)

    assert done.exit_code == 6
    assert re.search(rf"the broker denies us Create on topic {other.model}\.\w+; allow it with", done.stderr)


@pytest.mark.parametrize(
    ("command", "words", "topics"), [("run", (), TOPICS), ("encode", ("--for", "encoder"), CODED.coded())]
)
def test_the_commands_are_printed(service, command, words, topics):
    """For whoever keeps the accounts: what is needed, and what is useful, a command each."""
    given = ["topics", "acls", "--config", str(service), *WORDS[command], *words]
    done, optional = CliRunner().invoke(main, given), CliRunner().invoke(main, [*given, "--optional"])
    servers = json.loads(service.read_text())["bootstrap_servers"]
    commands = [one.command(servers, f"User:{ACCOUNT}") for one in RIGHTS[command]]

    assert (done.exit_code, optional.exit_code) == (0, 0)
    assert done.stdout.splitlines() == commands
    assert len(optional.stdout.splitlines()) == len(commands) + len(useful(topics))


def test_the_page_has_the_list():
    """docs/security.md, for the model `weather`: that of a learner, and that of an encoder."""
    page = (ROOT / "docs" / "security.md").read_text()
    table = re.findall(r"^\| (\w+) \| ([\w-]+) \| `([^`]+)` \| (.*) \|$", page, re.MULTILINE)

    weather = Settings(model="weather", input="weather.tensors", **LEAST)
    lists = [*weather.rights(), *weather.encoder_rights()]
    assert table == [(one.operation, one.kind, f"{one.name}{'…' if one.prefixed else ''}", one.why) for one in lists]
