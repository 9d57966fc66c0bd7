"""Input that is gone, on a real Apache Kafka."""

import time
from contextlib import closing

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.cimpl import NewPartitions

from stream_ocpdl import read_codes
from stream_ocpdl.errors import LineageError
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.kafka import Connection, committed
from stream_ocpdl.stream.messages import JournalRecord
from tests.test_kafka import PARTITIONS, eventually, learned, model, process  # noqa: F401  (fixtures)


def trim(world, partition, offset):
    """Take away what is below an offset, as retention does."""
    admin, beyond = world.connection.admin(), TopicPartition(world.topics.input, partition, offset)
    admin.delete_records([beyond])[beyond].result(30)


def events(world, name):
    records = [JournalRecord.from_bytes(value) for _, value in world.journal.read()]
    return [record for record in records if record.event == name]


def codes(world):
    return [code.position for code in read_codes(world.servers, world.topics.codes)]


def make_anew(world):
    kafka.delete_topics(world.connection, [world.topics.input])
    assert eventually(lambda: not kafka.describe(world.connection, [world.topics.input]))
    kafka.create_topics(world.connection, {world.topics.input: (len(PARTITIONS), {})})
    kafka.await_topics(world.connection, [world.topics.input])


def widen(world, count):
    wanted = [NewPartitions(world.topics.input, count), NewPartitions(world.topics.codes, count)]
    admin = world.connection.admin()
    for outcome in admin.create_partitions(wanted).values():
        outcome.result(30)
    assert eventually(
        lambda: kafka.describe(world.connection, [world.topics.input])[world.topics.input].partitions == count
    )


def test_going_on_behind_what_is_gone(learned):  # noqa: F811
    """Retention passed: the journal notes the offsets, the rest is learned, and a restart needs nothing of it."""
    learned.feed()
    learned.feed(5)
    first = learned.last().resume
    trim(learned, 1, first[1] + 5)
    learned.set(on_lost_input="resume")
    goal = learned.end()[1]
    digest = learned.live(until=lambda positions: positions[1] == goal)

    (noted,) = events(learned, "lost")
    assert noted.lost == ((1, first[1], first[1] + 4),)
    assert len(codes(learned)) == len(set(codes(learned))) == learned.last().N
    learned.set(on_lost_input="fail")
    assert learned.live(until=lambda _: True) == digest


def test_steps_whose_input_is_gone(learned):  # noqa: F811
    """No checkpoint but that of step 4: the model goes on with its state, under the number of the last step."""
    newest = next(learned.store().candidates()).manifest
    assert newest.t == 8
    learned.settings = learned.settings.model_copy(update={"on_lost_input": "resume"})
    for partition, end in learned.end().items():
        trim(learned, partition, end)
    learned.feed()

    class Old:
        """The store without its newest checkpoint."""

        def __init__(self):
            self._store = learned.store()
            self.open, self.save, self.discard = self._store.open, self._store.save, self._store.discard

        def candidates(self):
            return (found for found in self._store.candidates() if found.manifest.t != 8)

    learned.live(Old())

    (noted,) = events(learned, "lost")
    assert (noted.t, noted.base[1]) == (8, 4)
    assert any("steps 5 to 8 are lost from the state" in line for line in learned.reports)
    assert len(codes(learned)) == len(set(codes(learned))) == learned.last().N == 60
    digest = learned.live()
    assert digest == learned.live(until=lambda _: True)


def test_a_topic_that_was_made_anew(learned):  # noqa: F811
    """Refused, unless told to go on: then it is read from its beginning."""
    make_anew(learned)
    learned.feed()
    with pytest.raises(LineageError, match="made anew"):
        learned.live()
    learned.set(on_lost_input="resume")
    digest = learned.live()

    (noted,) = events(learned, "lost")
    assert noted.resume == {0: 0, 1: 0}
    assert learned.last().N == 60
    learned.set(on_lost_input="fail")
    assert learned.live(until=lambda _: True) == digest


@pytest.mark.parametrize("policy", ["resume", "fail"])
def test_a_topic_that_is_made_anew_while_it_runs(learned, monkeypatch, policy):  # noqa: F811
    """Noticed in the same life: it goes on from the beginning of the new one, or ends and says what to do. All that was
    learned of the old one stays, and so does what is published.
    """
    monkeypatch.setattr("stream_ocpdl.stream.service.LOOK", 0.5)
    learned.set(on_lost_input=policy)
    began, done = time.monotonic(), []

    def until(positions):
        if not done:
            done.append("made anew")
            make_anew(learned)
            learned.feed()
        return positions == {0: 10, 1: 10} or time.monotonic() - began > 60

    if policy == "fail":
        with pytest.raises(LineageError, match=r"deleted and made anew.*--set on_lost_input=resume"):
            learned.live(until=until)
        assert events(learned, "lost") == []
        assert learned.last().N == 40
        return
    digest = learned.live(until=until)
    (noted,) = events(learned, "lost")
    assert (noted.resume, noted.lost, noted.base) == ({0: 0, 1: 0}, None, None)
    assert learned.last().N == len(codes(learned)) == 60
    learned.set(on_lost_input="fail")
    assert learned.live(until=lambda _: True) == digest


def test_partitions_that_were_added(learned):  # noqa: F811
    """They are read from their beginning."""
    widen(learned, 3)
    learned.feed(5)
    value = next(iter(kafka.read_committed(learned.connection, learned.topics.input, 0))).value
    kafka.produce(learned.connection, learned.topics.input, [(2, value)] * 5)
    learned.live(until=lambda positions: positions.get(2) == 5)

    (noted,) = events(learned, "partitions")
    assert noted.input.endswith("3 partitions)")
    assert learned.last().N == 55
    assert committed(learned.connection, learned.name, learned.topics.input) == learned.last().resume


def test_partitions_that_are_added_while_it_runs(learned, monkeypatch):  # noqa: F811
    """It looks now and then, and goes on with them in the same process."""
    monkeypatch.setattr("stream_ocpdl.stream.service.LOOK", 0.5)
    value = next(iter(kafka.read_committed(learned.connection, learned.topics.input, 0))).value
    began = time.monotonic()
    steps = []

    def until(positions):
        if not steps:
            steps.append("widened")
            widen(learned, 3)
            learned.feed(5)
            kafka.produce(learned.connection, learned.topics.input, [(2, value)] * 5)
        return positions.get(2) == 5 or time.monotonic() - began > 60

    learned.live(until=until)
    assert len(events(learned, "partitions")) == 1
    assert learned.last().N == 55


def test_retention_passes_while_it_runs(learned):  # noqa: F811
    """The client asks for what is gone: the range is noted, and reading goes on behind it."""
    learned.set(on_lost_input="resume", batching={"size": 5, "close": "linger", "order": "arrival", "linger_ms": 20})
    small = {"queued.min.messages": 1, "queued.max.messages.kbytes": 1, "fetch.message.max.bytes": 1000}
    learned.connection = Connection(learned.servers, options=small)
    first, trimmed = learned.last().resume, []
    for _ in range(25):  # each a batch of its own at the broker, or the client would have them all at once
        learned.feed(20)
    end = learned.end()

    def until(positions):
        if not trimmed and positions[1] > first[1]:
            trimmed.append(positions[1])
            trim(learned, 1, first[1] + 400)
        return positions == end

    learned.live(until=until)
    (noted,) = events(learned, "lost")
    ((partition, low, high),) = noted.lost
    assert (partition, high) == (1, first[1] + 399)
    assert low >= trimmed[0]
    assert len(codes(learned)) == len(set(codes(learned))) == learned.last().N == 40 + 1000 - (high - low + 1)


def test_offsets_that_somebody_reset(learned):  # noqa: F811
    """The group's offsets are noticed where they differ; nothing is learned twice, and they are set right again."""
    with closing(learned.connection.consumer(**{"group.id": learned.name})) as consumer:
        consumer.commit(offsets=[TopicPartition(learned.topics.input, 0, 3)], asynchronous=False)
    learned.feed()
    learned.live()

    assert any("the group is at 3 in partition 0, which somebody else set" in line for line in learned.reports)
    assert len(codes(learned)) == len(set(codes(learned))) == 60
    assert committed(learned.connection, learned.name, learned.topics.input) == learned.last().resume


def test_made_anew_while_it_runs(learned, tmp_path):  # noqa: F811
    """The service ends, and does not take the new topic for the old one; the next start says what happened."""
    with process(learned, tmp_path) as life:
        assert eventually(lambda: "ready at step" in (tmp_path / "log").read_text())
        make_anew(learned)
        learned.feed(5)
        assert life.wait(120) in (4, 6)
    assert learned.last().N == 40
    with process(learned, tmp_path) as life:
        assert life.wait(30) == 4
    assert "it was deleted and made anew" in (tmp_path / "log").read_text()
