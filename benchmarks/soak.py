"""Whether a service that runs for long stays as it is: resident memory, open files, threads.

A service learns a long stream of small tensors. While it does, `/proc` tells what its process holds, again and again.
The first third of the stream is warming up; a straight line through the rest gives the growth of memory for 100,000
tensors.
"""

import time
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.measure import FULL, Options, Row, table
from benchmarks.throughput import BATCH, PARTITIONS, Size, started
from stream_ocpdl.stream.kafka import Connection, Writer, committed, create_topics, delete_topics
from stream_ocpdl.stream.messages import Tensor
from tests.broker.cluster import obtain

KEYS = ("tensors",)
RATIOS: dict[str, str] = {}

SMALL = Size("1 KB", (10, 12), 1_500_000)
COLUMNS = {
    "tensors": ",",
    "rss_MB": ".1f",
    "growth_MB_per_100k": ".3f",
    "files": "",
    "threads": "",
    "tensors_a_second": ",.0f",
}


def run(options: Options = FULL) -> list[Row]:
    """One row."""
    count = (100_000 if options.quick else SMALL.tensors) // BATCH * BATCH
    with obtain() as broker:
        print(f"Apache Kafka from {broker.origin}")
        rows = [soak(Connection(broker.bootstrap_servers), count)]
    table(rows, COLUMNS)
    return rows


def soak(connection: Connection, count: int) -> Row:
    """Feed and look."""
    topic = "bench-soak"
    create_topics(connection, {topic: (PARTITIONS, {})})
    values = [Tensor(array).to_bytes() for array in islice(SMALL.stream(), BATCH)]
    seen: list[tuple[int, float, int, int]] = []
    with started(connection, topic, SMALL) as (topics, process):
        writer, model = Writer(connection), topics.journal.rpartition(".")[0]
        began, written, done = time.monotonic(), 0, 0
        while done < count:
            for _ in range(min(5_000, count - written, done + 50_000 - written)):
                writer.write(topic, values[written % BATCH], None, written % PARTITIONS, connection.patience)
                written += 1
            done = sum(committed(connection, model, topic).values())
            seen.append((done, *held(process.pid)))
            time.sleep(0.1)
        seconds = time.monotonic() - began
    delete_topics(connection, [topic])
    later = np.array([entry for entry in seen if entry[0] > count / 3], float)
    growth = float(np.polyfit(later[:, 0], later[:, 1], 1)[0]) * 1e5
    files, threads = ([int(later[:, k].min()), int(later[:, k].max())] for k in (2, 3))
    return {
        "tensors": count,
        "rss_MB": float(later[-1, 1]),
        "growth_MB_per_100k": growth,
        "files": f"{files[0]}–{files[1]}",
        "threads": f"{threads[0]}–{threads[1]}",
        "tensors_a_second": count / seconds,
    }


def held(pid: int) -> tuple[float, int, int]:
    """Resident MB, open files and threads of a process."""
    place = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) / 1000, len(list((place / "fd").iterdir())), int(status["Threads"])
