"""One dictionary learned by several workers, on Apache Kafka: what they do, and what `plan --workers` says of them.

One learner and one to three encoders, a process and a thread each, in synchronous rounds of partials of four
partitions. What counts is the journal: tensors learned after the first third of the rounds, over the time between these
records. `model` is what the model says of as many workers with a core each: broker and learner have none of their own
here, so more processes than cores cannot be as fast.
"""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import FULL, Options, Row, table
from stream_ocpdl import Problem
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.scaling import Costs, Fleet, measure
from stream_ocpdl.stream.kafka import Connection, await_topics, create_topics, delete_topics, produce, read_committed
from stream_ocpdl.stream.messages import JournalRecord, Tensor
from stream_ocpdl.stream.preflight import Scripts, prepare
from tests.broker.cluster import obtain

KEYS = ("shape", "rank", "workers", "staleness")
RATIOS = {"ratio": "higher"}

PARTITIONS = 4
SHAPES = (((20, 20), 100, 400), ((60, 100), 20, 100))
COLUMNS = {
    "shape": "",
    "rank": "",
    "workers": "",
    "staleness": "",
    "tensors_a_second": ",.0f",
    "round_ms": ".1f",
    "model": ",.0f",
    "ratio": ".2f",
}


def run(options: Options = FULL) -> list[Row]:
    """A row for each shape and number of workers, synchronous and not."""
    rows: list[Row] = []
    with obtain() as broker:
        print(f"Apache Kafka from {broker.origin}; {os.cpu_count()} cores for the broker and everyone")
        connection = Connection(broker.bootstrap_servers)
        for shape, rank, batch in SHAPES[:1] if options.quick else SHAPES:
            message = len(Tensor(np.zeros(shape)).to_bytes())
            costs = measure(Problem(shape=shape, rank=rank, batch_size=batch), message, 3.0)
            for workers, staleness in ((1, 0), (2, 0), (2, 3)) if options.quick else ((1, 0), (2, 0), (3, 0), (2, 3)):
                rate, seconds = rounds(connection, shape, rank, batch, workers, staleness)
                rows.append(told(shape, rank, batch, workers, staleness, costs) | {"round_ms": 1000 * seconds})
                rows[-1] |= {"tensors_a_second": rate, "ratio": rate / rows[-1]["model"]}
                table(rows[-1:], COLUMNS)
    return rows


def told(shape: tuple[int, ...], rank: int, batch: int, workers: int, staleness: int, costs: Costs) -> Row:
    """What the model says."""
    fleet = Fleet(workers, batch, partials=PARTITIONS)
    found = (fleet.stale if staleness else fleet.synchronous)(costs)[0]
    name = "×".join(map(str, shape))
    return {"shape": name, "rank": rank, "workers": workers, "staleness": staleness, "model": found}


def rounds(
    connection: Connection, shape: tuple[int, ...], rank: int, batch: int, workers: int, staleness: int, count: int = 60
) -> tuple[float, float]:
    """Tensors a second of so many workers, and the median of a round."""
    problem, partials = {"shape": list(shape), "rank": rank}, {"size": batch, "staleness": staleness}
    settings = made(connection, PARTITIONS, problem, partials)
    random = np.random.default_rng(0)
    values = [Tensor(random.random(shape)).to_bytes() for _ in range(64)]
    each = [(p, values[(k + p) % 64]) for k in range(count * batch) for p in range(PARTITIONS)]
    produce(connection, settings.topic, each)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        path = Path(directory) / "service.json"
        settings.save(path)
        for command in ["run", *["encode"] * workers]:
            arguments = [sys.executable, "-m", "stream_ocpdl", command, "--config", str(path)]
            process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)  # noqa: S603
            stack.callback(process.wait)
            stack.callback(process.kill)
        while len(records := journal(connection, settings)) < count:
            time.sleep(0.5)
    delete_topics(connection, [settings.topic, *settings.topics().outputs(PARTITIONS)])
    later = records[count // 3 :]
    seconds = (later[-1][0] - later[0][0]) / 1000
    gaps = np.diff([time_ for time_, _ in later]) / 1000
    return (later[-1][1] - later[0][1]) / seconds, float(np.median(gaps))


def made(
    connection: Connection, partitions: int, problem: Mapping[str, Any], partials: Mapping[str, Any], **others: Any
) -> Settings:
    """A model that learns from partials, and of which nothing is learned, with its topics."""
    model = f"bench-{uuid.uuid4().hex[:6]}"
    settings = Settings.model_validate(
        {
            "model": model,
            "input": f"{model}.input",
            "bootstrap_servers": connection.bootstrap_servers,
            "problem": problem,
            "batching": {"size": partitions * partials["size"]},
            "partials": partials,
            "learner": {"codes": False, "source": "partials"},
            "encoders": {"emit": "partials"},
            "http": {"port": None},
            "threads": 1,
        }
        | others
    )
    wanted: dict[str, tuple[int, dict[str, str]]] = {settings.topic: (partitions, {})}
    create_topics(connection, wanted)
    await_topics(connection, wanted)
    prepare(connection, settings.coded(), Scripts(""))
    return settings


def journal(connection: Connection, settings: Settings) -> list[tuple[int, int]]:
    """When each step was committed, and how many tensors were learned by then."""
    records = read_committed(connection, settings.topics().journal, 0)
    found = [(record.timestamp, JournalRecord.from_bytes(record.value)) for record in records]
    return [(timestamp, record.N) for timestamp, record in found if record.event == "step"]
