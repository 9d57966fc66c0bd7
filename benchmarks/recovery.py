"""What exactness costs on Apache Kafka: a transaction, a checkpoint by its size, a replay by its steps."""

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from benchmarks.measure import FULL, Options, Row
from stream_ocpdl import Problem
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.checkpoint import NoStore, manifest_of
from stream_ocpdl.stream.kafka import Connection, KafkaSource, create_topics, produce
from stream_ocpdl.stream.messages import GENESIS, Output, Tensor
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import beginning
from stream_ocpdl.stream.recovery import recover
from stream_ocpdl.stream.service import Pace, Service
from stream_ocpdl.stream.topics import TopicJournal, TopicOutbox, Topics, TopicStore
from stream_ocpdl.stream.world import Ports
from tests.broker.cluster import obtain

SHAPE, RANK, BATCH = (20, 10), 4, 32

KEYS = ("measured", "MB")
RATIOS: dict[str, str] = {}


def run(options: Options = FULL) -> list[Row]:
    """Rows: what, how much, seconds."""
    steps = 200 if options.quick else 2000
    logging.disable(logging.WARNING)
    with obtain() as broker:
        connection = Connection(broker.bootstrap_servers)
        print(f"Apache Kafka from {broker.origin}")
        rows = [*transactions(connection, steps), *checkpoints(connection)]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    return rows


def world(connection: Connection, steps: int) -> tuple[Plan, Topics]:
    """A new model with an input of so many minibatches."""
    model = f"bench-{uuid.uuid4().hex[:8]}"
    topics = Topics.of(model, f"{model}.input")
    create_topics(connection, {topics.input: (1, {})} | topics.outputs(1))
    random = np.random.default_rng(0)
    produce(connection, topics.input, ((0, Tensor(random.random(SHAPE)).to_bytes()) for _ in range(steps * BATCH)))
    return Plan(model, Problem(shape=SHAPE, rank=RANK, batch_size=BATCH), Batching(BATCH), 10**9, 10**9), topics


def transactions(connection: Connection, steps: int) -> list[Row]:
    """A service learns a prefilled topic with one commit a step, and with one every 50 ms; then all is replayed."""
    rows: list[Row] = []
    for interval in (0, 50):
        plan, topics = world(connection, steps)
        began = time.perf_counter()
        spent = serve(connection, plan, topics, interval, steps)
        seconds = time.perf_counter() - began
        rows.append(
            {
                "measured": f"service, commit every {interval} ms",
                "steps_a_second": round(steps / seconds),
                "transactions": len(spent),
                "ms_a_transaction": round(1e3 * float(np.median(spent)), 2),
                "ms_a_step": round(1e3 * sum(spent) / steps, 3),
            }
        )
    journal = TopicJournal(connection, topics.journal)
    with closing(KafkaSource(connection, topics.input, plan.model)) as source:
        began = time.perf_counter()
        found = recover(plan, source, journal, NoStore(), str)
        seconds = time.perf_counter() - began
    return [*rows, {"measured": "replay", "steps": found.replayed, "s_per_1000_steps": 1e3 * seconds / found.replayed}]


def serve(connection: Connection, plan: Plan, topics: Topics, interval: int, steps: int) -> list[float]:
    """Run a service until so many steps are committed; the seconds of each commit."""
    spent: list[float] = []
    reached: dict[int, int] = {}

    class Timed(TopicOutbox):
        def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> int:
            began = time.perf_counter()
            offset = super().commit(outputs, positions)
            spent.append(time.perf_counter() - began)
            reached.update(positions)
            return offset

    with closing(KafkaSource(connection, topics.input, plan.model)) as source:
        ports = Ports(
            source=source,
            journal=TopicJournal(connection, topics.journal),
            outbox=Timed(connection, topics, plan.model, source),
            store=NoStore(),
            now=time.monotonic,
            stopping=lambda: reached.get(0, 0) >= steps * BATCH,
            report=str,
        )
        Service(plan, ports, Pace(commit_interval_ms=interval, checkpoint_every=10**9)).run()
    return spent


def checkpoints(connection: Connection) -> list[Row]:
    """Write and read back states of several sizes."""
    rows: list[Row] = []
    for rows_of_mode in (100, 1000, 10_000):
        plan = Plan("bench", Problem(shape=(rows_of_mode, 125), rank=10), Batching(1))
        topics = Topics.of(f"bench-{uuid.uuid4().hex[:8]}", "bench-none")
        create_topics(connection, {topics.input: (1, {})} | topics.outputs(1))
        progress = replace(beginning(plan, {0: 0}), link=GENESIS)
        store = TopicStore(connection, topics.state, plan.model)
        store.open()
        began = time.perf_counter()
        store.save(manifest_of(plan, progress, 0, "bench"), progress.state.parts)
        written = time.perf_counter()
        next(store.candidates()).load()
        read = time.perf_counter()
        size = manifest_of(plan, progress, 0, "bench").size / 1e6
        rows.append(
            {
                "measured": "checkpoint",
                "MB": round(size, 1),
                "write_s": round(written - began, 2),
                "read_s": round(read - written, 2),
                "write_ms_a_MB": round(1e3 * (written - began) / size, 1),
                "read_ms_a_MB": round(1e3 * (read - written) / size, 1),
            }
        )
    return rows
