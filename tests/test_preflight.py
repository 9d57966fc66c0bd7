"""The topics of a model: what is wrong with them, and what mends it."""

import json
import uuid
from dataclasses import replace

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from stream_ocpdl.cli import main
from stream_ocpdl.cli.topics import milliseconds
from stream_ocpdl.errors import TOPICS, BrokerError, ConfigError
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.kafka import Connection, Described, create_topics, delete_topics, describe, reach
from stream_ocpdl.stream.preflight import EVERY, Scripts, create, inspect, refuse
from stream_ocpdl.stream.topics import Topics

NAMES = Topics.of("weather", "tensors")
USUAL = {
    "max.message.bytes": "1048588",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "min.insync.replicas": "2",
}
SCRIPTS = Scripts("host:9092")


def sound():
    """Topics as `create` makes them, with three replicas."""
    layout = {NAMES.input: (2, {})} | NAMES.outputs(2)
    return {
        name: Described(count, 3, USUAL | {"cleanup.policy": "delete"} | config)
        for name, (count, config) in layout.items()
    }


def changed(topic, partitions=None, replicas=None, **config):
    """Sound topics but for one."""
    name, found = NAMES.named(topic), sound()
    config = {setting.replace("_", "."): value for setting, value in config.items()}
    found[name] = replace(found[name], config=found[name].config | config)
    found[name] = replace(found[name], partitions=partitions or found[name].partitions)
    found[name] = replace(found[name], replicas=replicas or found[name].replicas)
    return found


def test_sound_topics():
    """What `create` makes has nothing wrong with it."""
    assert inspect(NAMES, sound(), SCRIPTS) == []


@pytest.mark.parametrize("level", ["missing", "error"])
def test_a_topic_is_missing(level):
    """Without its input the service cannot start; the others it makes."""
    name = NAMES.input if level == "error" else NAMES.journal
    found = {topic: description for topic, description in sound().items() if topic != name}
    (finding,) = inspect(NAMES, found, Scripts("host:9092", "stream-ocpdl topics create --config f"))

    assert (finding.level, finding.topic) == (level, name)
    assert finding.mend == "stream-ocpdl topics create --config f"


WRONG = {
    "input compacted": ("error", "input", {"cleanup_policy": "compact"}, "cleanup.policy=delete"),
    "input compacted, too": ("error", "input", {"cleanup_policy": "compact,delete"}, "cleanup.policy=delete"),
    "input gone at once": ("error", "input", {"retention_ms": "599999"}, "retention.ms=604800000"),
    "input gone in an hour": ("warning", "input", {"retention_ms": "3600000"}, "retention.ms=604800000"),
    "input of some size": ("warning", "input", {"retention_bytes": "1000"}, "retention.bytes=-1"),
    "journal compacted": ("error", "journal", {"cleanup_policy": "compact"}, "cleanup.policy=delete"),
    "journal of a week": ("error", "journal", {"retention_ms": "604800000"}, "retention.ms=-1"),
    "journal of some size": ("error", "journal", {"retention_bytes": "1000"}, "retention.bytes=-1"),
    "journal of small records": ("error", "journal", {"max_message_bytes": "1048588"}, "max.message.bytes=64000000"),
    "state deleted": ("error", "state", {"cleanup_policy": "delete"}, "cleanup.policy=compact"),
    "state deleted, too": ("error", "state", {"cleanup_policy": "compact,delete"}, "cleanup.policy=compact"),
    "state of small records": ("error", "state", {"max_message_bytes": "500000"}, "max.message.bytes=1000000"),
    "snapshots deleted": ("error", "snapshots", {"cleanup_policy": "delete"}, "cleanup.policy=compact"),
    "letters compacted": ("error", "dead-letters", {"cleanup_policy": "compact"}, "cleanup.policy=delete"),
    "codes of small records": ("error", "codes", {"max_message_bytes": "500000"}, "max.message.bytes=1000000"),
    "one in sync": ("warning", "journal", {"min_insync_replicas": "1"}, "min.insync.replicas=2"),
}


@pytest.mark.parametrize(("level", "topic", "config", "mend"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting(level, topic, config, mend):
    """It is named, with Kafka's own command that mends it."""
    (finding,) = inspect(NAMES, changed(topic, **config), SCRIPTS)

    assert finding.level == level
    (setting,) = (name.replace("_", ".") for name in config)
    assert setting.removesuffix(".replicas")[:8] in finding.what
    assert finding.mend == (
        "kafka-configs.sh --bootstrap-server host:9092 --alter --entity-type topics"
        f" --entity-name {NAMES.named(topic)} --add-config {mend}"
    )


FINE = {
    "snapshots that go": ("snapshots", {"cleanup_policy": "compact,delete"}),
    "codes for a day": ("codes", {"retention_ms": "86400000"}),
    "codes compacted": ("codes", {"cleanup_policy": "compact"}),
    "letters for a day": ("dead-letters", {"retention_ms": "86400000"}),
    "input for ever": ("input", {"retention_ms": "-1"}),
}


@pytest.mark.parametrize(("topic", "config"), FINE.values(), ids=FINE)
def test_what_is_the_operators_choice(topic, config):
    """Nothing is said of what costs nothing."""
    assert inspect(NAMES, changed(topic, **config), SCRIPTS) == []


@pytest.mark.parametrize(("topic", "needed"), [("codes", 2), ("state", 2)])
def test_too_few_partitions(topic, needed):
    """Codes have as many as the input, the state has two."""
    (finding,) = inspect(NAMES, changed(topic, partitions=1), SCRIPTS)

    assert finding.what == f"it has 1 partitions, and {needed} are needed"
    assert finding.mend == (
        f"kafka-topics.sh --bootstrap-server host:9092 --alter --topic {NAMES.named(topic)} --partitions {needed}"
    )


def test_shards():
    """A partition of the journal for each, two of the state; exactly so many, and none without a share of the input."""
    names = replace(NAMES, shards=2)
    layout = {names.input: (2, {})} | names.outputs(2)
    found = {
        name: Described(count, 3, USUAL | {"cleanup.policy": "delete"} | config)
        for name, (count, config) in layout.items()
    }
    assert (found[names.journal].partitions, found[names.state].partitions) == (2, 4)
    assert inspect(names, found, SCRIPTS) == []

    said = [(f.topic, f.what) for f in inspect(replace(names, shards=3), found, SCRIPTS)]
    assert said == [
        (names.input, "it has 2 partitions, and with 3 shards some would have nothing to learn"),
        (names.journal, "it has 2 partitions, one a shard, and shards is 3"),
    ]
    for shards in (1, 3):  # a journal with more partitions would be of no model at all
        finding = inspect(replace(NAMES, shards=shards), found, SCRIPTS)[-1]
        assert finding.what == f"it has 2 partitions, one a shard, and shards is {shards}"
        assert finding.mend == "--set shards=2, if the model was begun so, or another name for the model"


def test_single_replicas_are_one_warning():
    """However many topics have only one."""
    single = {name: replace(topic, replicas=1) for name, topic in sound().items()}
    (every,) = inspect(NAMES, single, SCRIPTS)
    (two,) = inspect(NAMES, sound() | {name: single[name] for name in (NAMES.journal, NAMES.state)}, SCRIPTS)

    assert (every.level, every.topic) == ("warning", EVERY)
    assert (two.level, two.topic) == ("warning", "weather.journal, weather.state")


def test_settings_that_may_not_be_seen():
    """What cannot be checked is said, and is no error."""
    findings = inspect(NAMES, {name: replace(topic, config=None) for name, topic in sound().items()}, SCRIPTS)

    assert {finding.level for finding in findings} == {"warning"}
    assert len(findings) == len(sound())
    assert "DescribeConfigs" in findings[0].mend


def test_errors_are_a_line_each():
    """And warnings are none."""
    found = changed("journal", cleanup_policy="compact", retention_ms="1", min_insync_replicas="1")
    with pytest.raises(ConfigError) as error:
        refuse(inspect(NAMES, found, SCRIPTS))

    assert [line.split(";")[0] for line in str(error.value).splitlines()] == [
        "topic weather.journal: its cleanup.policy is compact, which takes away what is needed",
        "topic weather.journal: its retention.ms is 1",
    ]


@pytest.mark.parametrize(("text", "ms"), [("30m", 1_800_000), ("12h", 43_200_000), ("7d", 604_800_000)])
def test_times(text, ms):
    """As people write them."""
    assert milliseconds(text) == ms


def test_no_broker():
    """It is given up in time, and said what was tried and why it failed."""
    with pytest.raises(BrokerError, match=r"no broker answers at 127.0.0.1:1 within 0.5 s: .*Connection refused"):
        reach(Connection("127.0.0.1:1", patience=0.5))


def test_it_says_that_it_waits(caplog):
    """Whoever watches the log of a service that waits for its broker sees why."""
    with pytest.raises(BrokerError):
        reach(Connection("127.0.0.1:1", patience=6))

    (said,) = caplog.messages
    assert said.startswith("no broker answers at 127.0.0.1:1: ")
    assert said.endswith("Connection refused; trying for another 1 s")


def test_who_decides_what(monkeypatch):
    """An operator's settings go over our tuning, and what delivery depends on over both."""
    for kind in ("Consumer", "Producer"):
        monkeypatch.setattr(kafka.connection, kind, lambda settings, **_: settings)
    monkeypatch.setattr(kafka.writing, "Producer", lambda settings, **_: settings)
    options = {
        "linger.ms": 77,
        "fetch.queue.backoff.ms": 77,
        "isolation.level": "read_uncommitted",
        "transactional.id": "",
    }
    connection = Connection("x", options=options | {"enable.idempotence": False})
    consumer, producer = connection.consumer(), connection.producer("mine")

    assert (consumer["fetch.queue.backoff.ms"], consumer["isolation.level"]) == (77, "read_committed")
    assert (producer["linger.ms"], producer["transactional.id"]) == (77, "mine")
    assert kafka.Writer(connection)._producer["enable.idempotence"] is True


# ── at a broker ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def service(broker, tmp_path):
    """A model without any topics: its file of settings, its connection and its names."""
    model = f"test-{uuid.uuid4().hex[:8]}"
    names, connection, path = Topics.of(model, f"{model}.input"), Connection(broker), tmp_path / "service.json"
    settings = {"model": model, "input": names.input, "bootstrap_servers": broker}
    path.write_text(json.dumps(settings | {"problem": {"shape": [2, 2], "rank": 1}}))
    yield path, connection, names
    delete_topics(connection, [names.input, *names.outputs(1)])


def alter(connection, topic, **config):
    """As the commands of Kafka do."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = connection.admin()  # it must live until the outcome is there
    admin.incremental_alter_configs([resource])[resource].result(30)


def command(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    return result.exit_code, result.output


def test_create_then_check(service):
    """First all are missing; then they are made as they must be; then there is nothing to be made."""
    path, connection, names = service
    everything = [names.input, *names.outputs(1)]

    code, said = command("topics", "check", "--config", path)
    assert code == TOPICS == 8
    assert said.count(f"mend: stream-ocpdl topics create --config {path}") == len(everything)
    code, said = command("topics", "create", "--config", path, "--partitions", 3, "--retention", "2d")
    assert (code, said.splitlines()) == (0, [f"{name}: made" for name in everything])
    found = describe(connection, everything)
    assert (found[names.input].partitions, found[names.codes].partitions, found[names.state].partitions) == (3, 3, 2)
    assert found[names.input].config["retention.ms"] == "172800000"
    code, said = command("topics", "check", "--config", path)
    assert code == 0
    assert "error" not in said
    code, said = command("topics", "create", "--config", path)
    assert (code, said.count("is there already, and was not changed")) == (0, len(everything))


def test_create_makes_those_of_encoders(service):
    """Of another topic that is coded: that one, its codes and its dead letters, and of the model's none twice."""
    path, connection, names = service
    other = f"{names.input}-b"
    theirs = [other, *(f"{names.codes.removesuffix('.codes')}.{other}.{name}" for name in ("codes", "dead-letters"))]
    try:
        words = ("--config", path, "--set", f"encoders.input={other}", "--partitions", 2)
        code, said = command("topics", "create", *words)
        found = describe(connection, theirs)
    finally:
        delete_topics(connection, theirs)

    assert (code, said.splitlines()) == (0, [f"{name}: made" for name in (names.input, *names.outputs(1), *theirs)])
    assert [found[name].partitions for name in theirs] == [2, 2, 1]


def test_create_makes_codes_like_the_input(service):
    """If the input is there, the codes get as many partitions as it has."""
    _, connection, names = service
    create_topics(connection, {names.input: (4, {})})

    assert set(create(connection, names, partitions=1)) == set(names.outputs(1))
    assert describe(connection, [names.codes])[names.codes].partitions == 4


def test_validate_at_the_broker(service):
    """Missing outputs are made at the start, and no error; a compacted journal is one, with a code of its own."""
    path, connection, names = service
    create_topics(connection, {names.input: (1, {})})

    code, said = command("validate", "--config", path, "--connect")
    assert code == 0
    assert f"  warning: topic {names.journal}: it is not there" in said
    create(connection, names, 1)
    alter(connection, names.journal, cleanup_policy="compact")
    code, said = command("validate", "--config", path, "--connect")
    assert code == TOPICS
    assert said.splitlines()[2:5] == ["connection: ok", "history: ok", "topics: 1 error"]


def test_the_service_does_not_start_on_wrong_topics(service):
    """It says all that is wrong, in its log, ends with 2, and has written nothing."""
    path, connection, names = service
    create(connection, names, 1)
    alter(connection, names.journal, cleanup_policy="compact", max_message_bytes="1000000")
    alter(connection, names.state, cleanup_policy="delete")

    result = CliRunner().invoke(main, ["run", "--config", str(path)])
    assert result.exit_code == 2
    said = [json.loads(line) for line in result.stderr.splitlines()]
    assert [line["level"] for line in said] == ["critical"] * 3
    assert [line["event"].split(":")[0] for line in said] == [f"topic {names.journal}"] * 2 + [f"topic {names.state}"]
