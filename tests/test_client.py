"""Writers of tensors and readers of codes, on a real Apache Kafka."""

import time
import uuid

import numpy as np
import pytest

from stream_ocpdl import ConfigError, DataError, TensorProducer, read_codes, read_snapshots
from stream_ocpdl.errors import BrokerError
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.client import QueueFull, read
from stream_ocpdl.stream.messages import Code, Position, Snapshot, Tensor


@pytest.fixture
def topic(broker):
    """A topic with two partitions."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kafka.create_topics(kafka.Connection(broker), {name: (2, {})})
    yield name
    kafka.delete_topics(kafka.Connection(broker), [name])


def test_tensors_arrive_in_the_order_of_their_key(broker, topic):
    """What was sent is there when the producer is left, each key in order in one partition."""
    with TensorProducer(broker, topic) as producer:
        for k in range(200):
            producer.send(np.full((2, 3), k, np.float32), key=b"odd" if k % 2 else b"even")
        producer.send_many(np.arange(6).reshape(3, 2), key=b"even")

    records = [r for p in (0, 1) for r in kafka.read_committed(kafka.Connection(broker), topic, p)]
    for key, wanted in ((b"odd", [*range(1, 200, 2)]), (b"even", [*range(0, 200, 2), 0, 2, 4])):
        mine = [r for r in records if r.key == key]
        assert [Tensor.from_bytes(r.value).array.ravel()[0] for r in mine] == wanted
        assert len({r.partition for r in mine}) == 1


def test_a_full_queue(broker, topic):
    """With "raise" a full queue is an error at once, with "block" when the time is up; nothing is lost in silence."""
    large = np.zeros(100_000)
    for when_full, timeout in (("raise", 30.0), ("block", 1.0)):
        producer = TensorProducer("127.0.0.1:1", topic, when_full=when_full, timeout=timeout, queue_bytes=3_000_000)
        began = time.monotonic()
        with pytest.raises((QueueFull, BrokerError), match=r"full|not delivered"):
            producer.send_many([large] * 20)
        assert time.monotonic() - began < 3


def test_what_cannot_be_delivered_is_said(broker):
    """A topic that is not there is an error of the flush, not silence."""
    producer = TensorProducer(broker, f"no-such-{uuid.uuid4().hex}", timeout=3.0)
    producer.send(np.ones(3))

    with pytest.raises(BrokerError, match="no-such"):
        producer.flush()


def test_what_is_no_tensor_is_not_sent(broker, topic):
    """Objects and text are refused where they are sent."""
    with TensorProducer(broker, topic) as producer, pytest.raises(DataError, match="array has dtype"):
        producer.send(["a", "b"])
    with pytest.raises(ConfigError, match="when_full"):
        TensorProducer(broker, topic, when_full="drop")


def test_codes_and_snapshots_are_read(broker, topic):
    """From the earliest, from given offsets, and as they come."""
    code = Code("m", Position(0, 5), 3, 0.5, np.array([1.0, 2.0])).to_bytes()
    kafka.produce(kafka.Connection(broker), topic, [(p, code) for p in (0, 0, 0, 1)])

    assert [c.t for c in read_codes(broker, topic)] == [3] * 4
    assert len(list(read_codes(broker, topic, starts={0: 2}))) == 1
    waited = iter([False] * 50 + [True])
    assert len(list(read_codes(broker, topic, until=lambda: next(waited)))) == 4


def test_snapshots(broker, topic):
    """A dictionary comes back as it was."""
    kafka.produce(kafka.Connection(broker), topic, [(0, Snapshot("m", 7, [np.eye(3), np.ones((2, 3))]).to_bytes())])
    (snapshot,) = read_snapshots(broker, topic)

    assert snapshot.t == 7
    assert np.array_equal(snapshot.loadings[0], np.eye(3))


def test_a_topic_that_is_not_there(broker):
    """It is named."""
    with pytest.raises(BrokerError, match="no-such-topic"):
        list(read(broker, "no-such-topic", Code.from_bytes))
