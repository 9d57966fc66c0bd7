"""How fast the service is on Apache Kafka, against what bounds it; and how long a tensor waits for its code.

**Throughput.** A topic is filled with tensors of 10 KB, 100 KB and 1 MB. From it four contenders drink in turns:

- `service`: `stream-ocpdl run`, a process of its own. What counts is the journal: tensors learned between its first and
  its last record, over the time between these records.
- `bare`: a loop that does what no service can do without: consume the same records, for each write one of the size of
  its code, and commit these with the positions in a transaction as often as the service does. From its first commit
  to its last. Its client has the settings of the service's.
- `learner`: the same minibatches, gathered and learned in memory.
- `narrow`: the bare loop once more, with fetches as large as the client's own (1 MB).

`ratio` is service over the smaller of bare and learner, `to_narrow` over that of narrow and learner: the medians of all
turns, in one run. The broker is compiled in full, as brokers are that run for long (those of the tests start sooner),
and some turns that do not count go first: a broker that has just begun compiles beside its work for most of a minute,
and takes up to a third of two cores for it.

**Latency.** A producer writes at half the rate that the service reached; a consumer reads committed codes. A code has
the timestamp of its tensor, so the time from producing a tensor to reading its committed code is known for each. The
minibatch has to fill first: that time is in it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import TopicPartition

from benchmarks.measure import FULL, Options, Row, table
from stream_ocpdl import Learner, Problem
from stream_ocpdl.ocpdl.batch import gather
from stream_ocpdl.stream.kafka import Connection, Writer, create_topics, delete_topics, read_committed
from stream_ocpdl.stream.kafka.reading import committed_places
from stream_ocpdl.stream.messages import JournalRecord, Tensor
from stream_ocpdl.stream.topics import Topics
from tests.broker.cluster import Broker, Cluster, from_docker, from_environment, obtain

KEYS = ("size",)
RATIOS = {"ratio": "higher", "to_narrow": "higher"}

RANK, BATCH, INTERVAL = 10, 32, 50
PARTITIONS = 2
NOTHING: Mapping[str, Any] = {}
TICK = 0.002
"""Seconds for which a feeder may be ahead of its time."""
WARM = 4
"""Turns that do not count."""
NARROW = {"fetch.message.max.bytes": 1 << 20}
COLUMNS = {
    "size": "",
    "tensors": "",
    "service": ",.0f",
    "bare": ",.0f",
    "narrow": ",.0f",
    "learner": ",.0f",
    "ratio": ".2f",
    "to_narrow": ".2f",
    "MB_s": ".0f",
    "p50_ms": ".0f",
    "p99_ms": ".0f",
    "load": ",.0f",
}


@dataclass(frozen=True, slots=True)
class Size:
    """A tensor, and how many of them."""

    name: str
    shape: tuple[int, int]
    tensors: int

    @property
    def problem(self) -> Problem:
        """What is learned of them."""
        return Problem(shape=self.shape, rank=RANK, batch_size=BATCH)

    def stream(self) -> Iterator[np.ndarray]:
        """Nonnegative tensors; a few are made, and come again and again."""
        random = np.random.default_rng(0)
        made = [random.random(self.shape) for _ in range(max(BATCH, int(5e7 // (8 * prod(self.shape)))))]
        while True:
            yield from made


SIZES = (Size("10 KB", (32, 40), 100_000), Size("100 KB", (100, 125), 30_000), Size("1 MB", (250, 450), 3_000))


class _Compiled(Cluster):
    """A node as it runs in production: its code compiled as far as it goes, and garbage collected beside."""

    def _options(self) -> tuple[str, ...]:
        return ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC")


def _compiled() -> Broker:
    cluster = _Compiled.start()
    return Broker("jars", cluster.bootstrap_servers, cluster.close)


def run(options: Options = FULL) -> list[Row]:
    """A row for each size: tensors a second of everyone, and the latency at half of the service's rate."""
    rows: list[Row] = []
    with obtain((from_environment, from_docker, _compiled)) as broker:
        print(f"Apache Kafka from {broker.origin}; {os.cpu_count()} cores for the broker and everyone")
        for size in SIZES:
            rows.append(measure(broker.bootstrap_servers, size, turns=1 if options.quick else 5))
            table(rows[-1:], COLUMNS)
    return rows


def measure(servers: str, size: Size, turns: int) -> Row:
    """Everyone in turns, then the latency."""
    connection = Connection(servers)
    with filled(connection, size) as topic:
        rates: dict[str, list[float]] = {"service": [], "bare": [], "narrow": [], "learner": []}
        for _ in range(WARM if turns > 1 else 1):
            bare(connection, topic, size)
            service(connection, topic, size)
        for _ in range(turns):
            rates["bare"].append(bare(connection, topic, size))
            rates["narrow"].append(bare(connection, topic, size, NARROW))
            rates["service"].append(service(connection, topic, size))
            rates["learner"].append(learner(size))
    found = {name: float(np.median(values)) for name, values in rates.items()}
    ratios = {
        name: found["service"] / min(found[other], found["learner"])
        for name, other in (("ratio", "bare"), ("to_narrow", "narrow"))
    }
    row = {"size": size.name, "tensors": size.tensors, **found, **ratios}
    row["MB_s"] = found["service"] * 8e-6 * prod(size.shape)
    return row | latency(connection, size, found["service"] / 2)


@contextmanager
def filled(connection: Connection, size: Size, tensors: int | None = None) -> Iterator[str]:
    """A topic with these tensors."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    create_topics(connection, {topic: (PARTITIONS, {"max.message.bytes": "10000000"})})
    writer = Writer(connection)
    count = size.tensors if tensors is None else tensors
    for k, array in enumerate(islice(size.stream(), count)):
        writer.write(topic, Tensor(array).to_bytes(), None, k % PARTITIONS, connection.patience)
    writer.flush()
    try:
        yield topic
    finally:
        delete_topics(connection, [topic])


def learner(size: Size) -> float:
    """Tensors a second in memory."""
    learner, stream = Learner(size.problem, in_place=True), size.stream()
    steps = max(10, min(200, size.tensors // BATCH))
    minibatches = [list(islice(stream, BATCH)) for _ in range(2)]
    for rows in minibatches:
        learner.step(gather(size.problem, rows)[0])
    began = time.perf_counter()
    for k in range(steps):
        learner.step(gather(size.problem, minibatches[k % 2])[0])
    return steps * BATCH / (time.perf_counter() - began)


def bare(connection: Connection, topic: str, size: Size, settings: Mapping[str, Any] = NOTHING) -> float:
    """Tensors a second of a loop that only consumes, produces and commits."""
    out, group, value = f"{topic}.bare", uuid.uuid4().hex, bytes(8 * RANK + 200)
    create_topics(connection, {out: (PARTITIONS, {})})
    producer = connection.producer(group)
    producer.init_transactions(30)
    with closing(connection.consumer(**{"group.id": group, **settings})) as consumer:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        read, first, positions = 0, (0, 0.0), dict.fromkeys(range(PARTITIONS), 0)
        while read < size.tensors:
            producer.begin_transaction()
            deadline = time.monotonic() + INTERVAL / 1000
            while time.monotonic() < deadline and read < size.tensors:
                for message in consumer.consume(256, 0.02):
                    producer.produce(out, value, partition=message.partition())
                    producer.poll(0)
                    positions[message.partition()] = message.offset() + 1
                    read += 1
            offsets = [TopicPartition(topic, p, k) for p, k in positions.items()]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
            producer.commit_transaction()
            first = first if first[0] else (read, time.perf_counter())
        took = time.perf_counter() - first[1]
    delete_topics(connection, [out])
    return (read - first[0]) / took


def service(connection: Connection, topic: str, size: Size) -> float:
    """Tensors a second of the service, by its journal."""
    with started(connection, topic, size) as (topics, _):
        learned, group = size.tensors // BATCH * BATCH, topics.journal.rpartition(".")[0]
        places = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        with closing(connection.consumer(**{"group.id": group})) as looker:  # one for all looks: making it takes long
            while sum(found.offset for found in committed_places(connection, looker, group, places)) < learned:
                time.sleep(0.2)
        records = list(read_committed(connection, topics.journal, 0))
    when = [record.timestamp for record in records[1:]]
    N = [JournalRecord.from_bytes(record.value).N for record in records[1:]]
    start = next(k for k, time_ in enumerate(when) if time_ > when[0])  # after the first transaction
    return (N[-1] - N[start - 1]) / (when[-1] - when[0]) * 1000


@contextmanager
def started(connection: Connection, topic: str, size: Size) -> Iterator[tuple[Topics, "subprocess.Popen[bytes]"]]:
    """A service on the topic, as a process; it and its topics are gone afterwards."""
    model = f"bench-{uuid.uuid4().hex[:8]}"
    topics = Topics.of(model, topic)
    settings: dict[str, Any] = {
        "model": model,
        "input": topic,
        "bootstrap_servers": connection.bootstrap_servers,
        "problem": {"shape": list(size.shape), "rank": RANK},
        "batching": {"size": BATCH},
        "pace": {"commit_interval_ms": INTERVAL},
        "log": {"level": "warning"},
        "http": {"port": 0},
    }
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "service.yaml"
        path.write_text(json.dumps(settings))
        process = subprocess.Popen([sys.executable, "-m", "stream_ocpdl", "run", "--config", str(path)])  # noqa: S603
        try:
            yield topics, process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            delete_topics(connection, list(topics.outputs(PARTITIONS)))


def latency(connection: Connection, size: Size, rate: float, seconds: float = 15.0) -> Row:
    """Milliseconds from producing a tensor to reading its code, at a steady rate."""
    values = [Tensor(array).to_bytes() for array in islice(size.stream(), BATCH)]
    count, waits = int(rate * seconds), []
    with filled(connection, size, tensors=4 * BATCH) as topic, started(connection, topic, size) as (topics, _):
        ready = threading.Event()
        with closing(connection.consumer(**{"fetch.wait.max.ms": 5})) as consumer:
            wanted = 4 * BATCH + count // BATCH * BATCH
            seen, deadline = 0, time.monotonic() + 120
            feeder = threading.Thread(target=feed, args=(connection, topic, values, rate, count, ready), daemon=True)
            feeder.start()
            while seen < wanted - 2 * BATCH and time.monotonic() < deadline:
                if not consumer.assignment():
                    consumer.assign([TopicPartition(topics.codes, p, 0) for p in range(PARTITIONS)])
                for message in consumer.consume(500, 0.01):
                    if message.error() is None:
                        seen += 1
                        if seen > 4 * BATCH + count // 5:  # a fifth of the stream goes before
                            waits.append(time.time() * 1000 - message.timestamp()[1])
                if seen >= 4 * BATCH:
                    ready.set()
    return {"p50_ms": float(np.median(waits)), "p99_ms": float(np.percentile(waits, 99)), "load": rate}


def feed(
    connection: Connection, topic: str, values: list[bytes], rate: float, count: int, ready: threading.Event
) -> None:
    """Write so many records at a steady rate, once the service is."""
    ready.wait()
    writer, began = Writer(connection), time.monotonic()
    for k in range(count):
        if began + k / rate - time.monotonic() > TICK:  # to sleep for each would cost more than to write it
            time.sleep(TICK)
        writer.write(topic, values[k % len(values)], None, k % PARTITIONS, connection.patience)
    writer.flush()
