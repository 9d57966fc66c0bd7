"""What a shard costs the process that runs it: resident memory, threads, open files.

The dictionaries are small, so that what is seen is the clients and the bookkeeping; B, R·∏Iᵢ numbers a shard, comes on
top. Each model learns a few steps in every shard before its process is looked at.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import FULL, Options, Row, table
from benchmarks.soak import held
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.stream.kafka import Connection, committed, create_topics, delete_topics, produce
from stream_ocpdl.stream.messages import Tensor
from tests.broker.cluster import obtain

KEYS = ("shards",)
RATIOS: dict[str, str] = {}

SHAPE, RANK, ROUNDS = (10, 12), 5, 96
COLUMNS = {"shards": "", "rss_MB": ".1f", "threads": "", "files": ""}


def run(options: Options = FULL) -> list[Row]:
    """A row for each number of shards, and one for what each costs."""
    counts = (1, 8) if options.quick else (1, 4, 16, 32)
    with obtain() as broker:
        print(f"Apache Kafka from {broker.origin}")
        connection = Connection(broker.bootstrap_servers)
        rows = [looked(connection, shards) for shards in counts]
    each = {
        name: (rows[-1][name] - rows[0][name]) / (counts[-1] - counts[0]) for name in ("rss_MB", "threads", "files")
    }
    table([*rows, {"shards": "each", **each}], COLUMNS)
    return rows


def looked(connection: Connection, shards: int) -> Row:
    """What a process holds that runs all shards of a model."""
    model = f"bench-shards-{shards}"
    topic = f"{model}.input"
    create_topics(connection, {topic: (shards, {})})
    random = np.random.default_rng(0)
    values = [Tensor(random.random(SHAPE)).to_bytes() for _ in range(ROUNDS)]
    produce(connection, topic, ((p, value) for value in values for p in range(shards)))
    settings = Settings(
        model=model,
        input=topic,
        bootstrap_servers=connection.bootstrap_servers,
        problem={"shape": list(SHAPE), "rank": RANK},  # type: ignore[arg-type]
        http={"port": None},  # type: ignore[arg-type]
        shards=shards,
        threads=1,
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "service.json"
        settings.save(path)
        command = [sys.executable, "-m", "stream_ocpdl", "run", "--config", str(path)]
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log)  # noqa: S603
        try:
            while sum(committed(connection, model, topic).values()) < ROUNDS * shards:
                time.sleep(0.5)
            time.sleep(2.0)
            memory, files, threads = held(process.pid)
        finally:
            process.kill()
            process.wait()
    delete_topics(connection, [topic, *settings.topics().outputs(1)])
    return {"shards": shards, "rss_MB": memory, "threads": threads, "files": files}
