"""Dead letters looked at and sent back, on a real Apache Kafka."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from stream_ocpdl import read_codes
from stream_ocpdl.cli import main
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.letters import MARK, Choice, Letter
from stream_ocpdl.stream.messages import DeadLetter, Position, Record, Tensor, split
from tests.test_kafka import lingering, model, process  # noqa: F401  (fixtures)


def letter(reason="value has 6 bytes, fewer than the 8 of a prefix", offset=5, headers=()):
    record = Record(Position(0, offset), b"key", b"value", headers)
    return Letter(DeadLetter("topic", record, "DecodeError", reason), 1_700_000_000_000)


def test_which_letters_are_meant():
    """By a part of the class or the reason, and by place."""
    found = letter()

    assert found in Choice()
    assert found in Choice("prefix", ["0:5"])
    assert found in Choice("DecodeError: value")
    assert found not in Choice("shape")
    assert found not in Choice(None, ["0:6"])


def test_kinds_have_no_numbers():
    """A thousand letters that differ in a number are one kind."""
    assert letter("X[3, 1] = -1e-05 is negative").kind == letter("X[0, 2] = -7.5 is negative").kind
    assert letter("a").kind != letter("b").kind


@pytest.fixture
def refused(model, tmp_path):  # noqa: F811
    """A model that has refused a few records, and a function that calls `dlq` for it."""
    lingering(model)
    good, wrong = np.ones((4, 3)), Tensor(np.ones((3, 4))).to_bytes()
    producer = Producer({"bootstrap.servers": model.servers})
    producer.produce(model.topics.input, Tensor(good).to_bytes(), partition=0)
    producer.produce(model.topics.input, wrong, b"sensor \xff", 1, headers=[("trace", b"1"), ("none", None)])
    producer.produce(model.topics.input, None, partition=1)
    for _ in range(3):
        producer.produce(model.topics.input, b"poison", partition=0)
    producer.flush(30)
    model.live()
    model.settings.save(tmp_path / "service.json")

    def dlq(*words, code=0):
        result = CliRunner().invoke(main, ["dlq", words[0], "--config", str(tmp_path / "service.json"), *words[1:]])
        assert result.exit_code == code, result.output
        return result.stdout

    return dlq


def test_list(refused):
    """Position, time, class and reason of each; then how many of each kind."""
    lines = refused("list").splitlines()

    assert len(lines) == 5 + 1 + 3
    assert lines[5] == "5 dead letters:"
    assert "       3  DecodeError: value has # bytes, fewer than the # of a prefix" in lines
    assert sum("shape is [3, 4], that of the model [4, 3]" in line for line in lines) == 1
    assert any(line.split()[0] == "1:0" for line in lines)
    short = refused("list", "--reason", "prefix", "--limit", "1").splitlines()
    assert len(short) == 3
    assert short[1] == "3 dead letters:"
    assert refused("list", "--at", "7:7") == "0 dead letters\n"


def test_list_for_machines(refused):
    """The same as JSON."""
    found = json.loads(refused("list", "--json", "--reason", "DataError"))

    assert found["total"] == 1
    assert found["kinds"] == {"DataError: shape is [#, #], that of the model [#, #]": 1}
    (only,) = found["letters"]
    assert (only["partition"], only["offset"], only["error"]) == (1, 0, "DataError")
    assert only["bytes"] > 0
    assert only["replayed_from"] is None


def test_nothing_is_written_without_yes(refused, model):  # noqa: F811
    """It says what it would do."""
    before = model.end()
    for options in ((), ("--yes", "--dry-run")):
        lines = refused("replay", *options).splitlines()
        assert lines[-1] == f"5 of 5 letters to be sent back with --yes to {model.topics.input}"
    assert model.end() == before


def test_records_come_back_as_they_were(refused, model):  # noqa: F811
    """Value, key and headers, in the partition that they came from, with the place that they had."""
    refused("replay", "--reason", "shape is", "--yes")
    *_, original, _, back = kafka.read_committed(model.connection, model.topics.input, 1)

    assert (back.key, back.value) == (original.key, original.value) == (b"sensor \xff", original.value)
    assert back.headers == (*original.headers, (MARK, b"1:0"))
    refused("replay", "--reason", "tombstone", "--yes")
    *_, back = kafka.read_committed(model.connection, model.topics.input, 1)
    assert back.value is None


def test_a_replay_can_be_repeated(refused, model):  # noqa: F811
    """What was sent back is not sent back again, unless one asks for it; what is left is."""
    assert "2 of 5 letters sent back" in refused("replay", "--limit", "2", "--yes")
    assert "3 of 5 letters sent back" in refused("replay", "--yes")
    before = model.end()
    said = refused("replay", "--yes").splitlines()[-1]
    assert said == f"0 of 5 letters sent back to {model.topics.input}; 5 were sent back before"
    assert model.end() == before
    assert "5 of 5" in refused("replay", "--yes", "--again")


def test_refused_again(refused, model):  # noqa: F811
    """A record that comes back and is refused again is one letter more, which says where it was before."""
    refused("replay", "--reason", "shape is", "--yes")
    model.live()
    lines = refused("list", "--reason", "shape is").splitlines()

    assert lines[2] == "2 dead letters:"
    assert lines[1].endswith("(was 1:0)")
    assert "1 of 2 letters sent back" in refused("replay", "--reason", "shape is", "--yes")


def test_to_another_topic(refused, model):  # noqa: F811
    """Where somebody mends them; a topic with fewer partitions takes them by their key."""
    target = f"{model.name}.mend"
    kafka.create_topics(model.connection, {target: (1, {})})
    try:
        assert f"5 of 5 letters sent back to {target}" in refused("replay", "--to", target, "--yes")
        assert len(list(kafka.read_committed(model.connection, target, 0))) == 5
    finally:
        kafka.delete_topics(model.connection, [target])
    refused("replay", "--to", f"{model.name}.nowhere", "--yes", code=6)


def test_a_broken_topic_ends_the_service(model, tmp_path):  # noqa: F811
    """With exit code 9 and one line; started again and again it refuses nothing more, until it is told that it may."""
    kafka.produce(model.connection, model.topics.input, [(k % 2, b"poison") for k in range(1000)])
    lingering(model, refusals={"consecutive": 300})
    counts = []
    for _ in range(2):
        with process(model, tmp_path) as life:
            assert life.wait(60) == 9
        counts.append(len(model.seen("dead-letters")))
        (said,) = [found for found in (tmp_path / "log").read_text().splitlines() if '"critical"' in found]
        assert "messages in a row were refused, the last because value has 6 bytes" in said
    assert counts[0] == counts[1] <= 300
    model.set(refusals={"consecutive": None, "ratio": None})
    model.live()
    assert len(model.seen("dead-letters")) == 1000


def test_mended_by_waiting(model, tmp_path):  # noqa: F811
    """Pieces without their first one are refused; sent back behind it, in order, they make the tensor whole."""
    lingering(model)
    value = Tensor(np.ones((4, 3))).to_bytes()
    pieces = [chunk.to_bytes() for chunk in split(value, "id", 100)]
    kafka.produce(model.connection, model.topics.input, [(1, piece) for piece in pieces[1:]])
    model.live()
    kafka.produce(model.connection, model.topics.input, [(1, pieces[0])])
    model.settings.save(tmp_path / "service.json")
    words = ["dlq", "replay", "--config", str(tmp_path / "service.json"), "--yes"]
    assert CliRunner().invoke(main, words).exit_code == 0
    goal = model.end()[1]
    model.live(until=lambda positions: positions[1] == goal)

    assert len(list(read_codes(model.servers, model.topics.codes))) == 1
