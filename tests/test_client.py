"""Writers of tensors and readers of codes, on a real Apache Kafka."""

import time
import uuid
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import scipy.sparse

from stream_ocpdl import ConfigError, DataError, Sparse, TensorProducer, read_codes, read_snapshots
from stream_ocpdl.errors import BrokerError, DecodeError, QueueFull
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.client import read
from stream_ocpdl.stream.messages import Code, Position, Tensor, Version, split
from tests.samples import ARRAY, SAMPLES


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
        assert len({r.position.partition for r in mine}) == 1


def test_a_full_queue(broker, topic):
    """With "raise" a full queue is an error at once, with "block" when the time is up; nothing is lost in silence."""
    large = np.zeros(100_000)
    for when_full, timeout, least, most in (("raise", 30.0, 0.0, 3.0), ("block", 2.0, 1.5, 6.0)):
        producer = TensorProducer("127.0.0.1:1", topic, when_full=when_full, timeout=timeout, queue_bytes=3_000_000)
        began = time.monotonic()
        with pytest.raises(BrokerError) as raised:  # while it blocks, what is queued times out as well
            producer.send_many([large] * 20)
        assert least <= time.monotonic() - began < most
        assert isinstance(raised.value, QueueFull) or when_full == "block"


def test_what_cannot_be_delivered_is_said(broker):
    """A topic that is not there is an error of the flush, not silence."""
    producer = TensorProducer(broker, f"no-such-{uuid.uuid4().hex}", timeout=3.0)
    producer.send(np.ones(3))

    with pytest.raises(BrokerError, match="no-such"):
        producer.flush(30.0)  # the client gives it up after three seconds, a moment later on a busy machine


def test_what_is_no_tensor_is_not_sent(broker, topic):
    """Objects and text are refused where they are sent."""
    with TensorProducer(broker, topic) as producer, pytest.raises(DataError, match="array has dtype"):
        producer.send(["a", "b"])
    with pytest.raises(ConfigError, match="when_full"):
        TensorProducer(broker, topic, when_full="drop")
    for wrong in ({"chunk_bytes": 10}, {"queue_bytes": 1_000_000}, {"timeout": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            TensorProducer(broker, topic, **wrong)


def test_codes_and_snapshots_are_read(broker, topic):
    """From the earliest, from given offsets, and as they come."""
    code = Code(Version("m", 2), 3, Position(0, 5), 0.5, np.array([1.0, 2.0])).to_bytes()
    kafka.produce(kafka.Connection(broker), topic, [(p, code) for p in (0, 0, 0, 1)])

    assert [c.step for c in read_codes(broker, topic)] == [3] * 4
    assert len(list(read_codes(broker, topic, starts={0: 2}))) == 1
    waited = iter([False] * 50 + [True])
    assert len(list(read_codes(broker, topic, until=lambda: next(waited)))) == 4


def test_codes_are_read_by_time(broker, topic):
    """From the first that was written at a time or after, in every partition; from a time to come, none."""
    with TensorProducer(broker, topic) as producer:
        producer.send_many([np.ones(3)] * 5, key=b"a")
    time.sleep(0.05)
    now = datetime.now(UTC)
    time.sleep(0.05)
    with TensorProducer(broker, topic) as producer:
        producer.send_many([np.zeros(2)] * 3, key=b"b")
        producer.send_many([np.zeros(2)] * 2, key=b"a")

    assert len(list(read(broker, topic, Tensor.from_bytes))) == 10
    assert [t.shape for t in read(broker, topic, Tensor.from_bytes, since=now)] == [(2,)] * 5
    assert list(read(broker, topic, Tensor.from_bytes, since=now + timedelta(days=1))) == []


def test_snapshots(broker, topic):
    """A dictionary comes back as it was."""
    kafka.produce(kafka.Connection(broker), topic, [(0, SAMPLES["snapshot"])])
    (snapshot,) = read_snapshots(broker, topic)

    assert snapshot.step == 42
    assert snapshot.axes == ("row", "column")
    assert np.array_equal(snapshot.loadings[0], ARRAY)


@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_large_tensors_come_in_pieces(broker, topic, key):
    """Cut by the producer, put together by the reader, whole and in one partition; with others between them."""
    tensors = [np.random.default_rng(k).random(20_000) for k in range(4)]
    with TensorProducer(broker, topic, chunk_bytes=50_000, checksums=True) as one, TensorProducer(broker, topic) as two:
        for k, tensor in enumerate(tensors):
            one.send(tensor, key=key)
            two.send(np.full(3, k), key=key)
            two.flush()

    found = list(read(broker, topic, Tensor.from_bytes))
    large = sorted((t.array for t in found if t.shape == (20_000,)), key=lambda x: x[0])
    assert [x.tobytes() for x in large] == [x.tobytes() for x in sorted(tensors, key=lambda x: x[0])]
    assert len(found) == 8


def test_what_was_cut_short_is_passed_over(broker, topic, caplog):
    """A reader that begins in the middle of a message, or finds one without its end, goes on with the next."""
    first, *others = (chunk.to_bytes() for chunk in split(Tensor(np.ones(100)).to_bytes(), "id", 300))
    values = [*others, first, *others[:-1], Tensor(np.zeros(3)).to_bytes(), first, *others]
    kafka.produce(kafka.Connection(broker), topic, [(0, value) for value in values])

    assert [t.shape for t in read(broker, topic, Tensor.from_bytes)] == [(3,), (100,)]
    assert "belongs to no open message" in caplog.text
    assert "is repeated" in caplog.text


def test_sparse_tensors_are_sent(broker, topic):
    """Ours, in any order of entries, and SciPy's, of two modes and more; entries of one place are added up."""
    entries = Sparse((2, 3, 4), np.array([7, 1]), np.array([2.0, 1.0]))
    counts = Sparse((4,), np.array([1, 1]), np.array([200, 100], np.uint8))
    matrix = scipy.sparse.csr_matrix(([1.0, 2.0, 5.0], ([0, 1, 1], [2, 0, 0])), (2, 3))
    cube = scipy.sparse.coo_array((np.array([3, 4], np.int16), ([1, 0], [0, 2], [3, 1])), (2, 3, 4))
    with TensorProducer(broker, topic) as producer:
        for tensor in (entries, matrix, cube):
            producer.send(tensor, key=b"one", axes=["a", "b", "c"][: len(tensor.shape)])
        with pytest.raises(DataError, match="more than once"):
            producer.send(counts)
        with pytest.raises(DataError, match="indices of shape"):
            producer.send(Sparse((2, 3), np.array([1, 2]), np.array([1.0])))
        with pytest.raises(DataError, match="indices are not"):
            producer.send(Sparse((2, 3), np.array([1, 6]), np.array([1.0, 2.0])))

    one, two, three = read(broker, topic, Tensor.from_bytes)
    assert (one.array.indices.tolist(), one.array.values.tolist()) == ([1, 7], [1.0, 2.0])
    assert (two.array.indices.tolist(), two.array.values.tolist()) == ([2, 3], [1.0, 7.0])
    assert (three.array.indices.tolist(), three.array.values.tolist()) == ([9, 15], [4, 3])
    assert three.array.values.dtype == np.int16
    assert [t.axes for t in (one, two, three)] == [("a", "b", "c"), ("a", "b"), ("a", "b", "c")]


def test_a_damaged_message_is_not_the_end(broker, topic):
    """It is said where it is, and the next can be read."""
    kafka.produce(kafka.Connection(broker), topic, [(0, SAMPLES["code"]), (0, b"junk"), (0, SAMPLES["code"])])
    codes = read_codes(broker, topic)

    assert next(codes).step == 42
    with pytest.raises(DecodeError, match=rf"{topic}\[0\] at offset 1: value has 4 bytes"):
        next(codes)
    assert [code.step for code in codes] == [42]


def test_where_to_begin_is_said_once(broker, topic):
    """Offsets and a time contradict each other, and a time has a zone."""
    with pytest.raises(ConfigError, match="starts and since"):
        read_codes(broker, topic, starts={0: 0}, since=datetime.now(UTC))
    with pytest.raises(ConfigError, match="time zone"):
        read_codes(broker, topic, since=datetime.now())


def test_a_topic_that_is_not_there(broker):
    """It is named."""
    with pytest.raises(BrokerError, match="no-such-topic"):
        list(read(broker, "no-such-topic", Code.from_bytes))
