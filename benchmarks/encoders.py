"""A fleet of encoders on Apache Kafka: two processes against one, and what a change of the dictionary costs.

Coding dominates: many atoms, one thread a process. The processes wait for their first dictionary; it is published, and
the clock runs from a tenth of the stream to its end. One and two processes take turns, over the same input.

Dictionaries that change: one encoder in this process, under load, with a new dictionary every tenth of a second. The
time from the end of one batch of 16 to that of the next is compared with a run without changes: whatever else the
machine does is in both. `stall_ms` is the longest such time without that in which the thread that codes was ready, and
others had the processors (Linux counts it): on a busy machine that is most of it.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from benchmarks.measure import FULL, Options, Row, table
from stream_ocpdl.cli.encode import EncoderWork
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.observe.fleet import EncoderBoard
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.ocpdl.workers import SERIAL
from stream_ocpdl.stream.client import read_codes
from stream_ocpdl.stream.encoding import Coded
from stream_ocpdl.stream.kafka import Connection, Election, Writer, create_topics, delete_topics, produce, stands
from stream_ocpdl.stream.member import Member
from stream_ocpdl.stream.messages import Record, Snapshot, Tensor, Version
from stream_ocpdl.stream.newest import Newest, followed
from stream_ocpdl.stream.preflight import Scripts, prepare
from tests.broker.cluster import obtain

KEYS = ("what",)
RATIOS: dict[str, str] = {"times": "higher"}

SHAPE, RANK, PARTITIONS, TOPIC = (20, 20), 200, 8, "bench-encoders"
COLUMNS = {
    "what": "",
    "tensors_a_second": ",.0f",
    "cores": ".2f",
    "times": ".2f",
    "swaps": "",
    "ready_ms": ".2f",
    "p99_ms": ".1f",
    "longest_ms": ".1f",
    "stall_ms": ".1f",
}


def run(options: Options = FULL) -> list[Row]:
    """Rows for one and two processes, and for a run with and without changes."""
    count, turns = (10_000, 2) if options.quick else (30_000, 3)
    with obtain() as broker:
        print(f"Apache Kafka from {broker.origin}")
        connection = Connection(broker.bootstrap_servers)
        create_topics(connection, {TOPIC: (PARTITIONS, {})})
        random = np.random.default_rng(0)
        values = [Tensor(random.random(SHAPE)).to_bytes() for _ in range(256)]
        produce(connection, TOPIC, ((k % PARTITIONS, values[k % 256]) for k in range(count)))
        found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for turn in range(turns):
            for processes in (1, 2):
                found[processes].append(fleet(connection, f"bench-{turn}-{processes}", processes, count))
                rate, cores = found[processes][-1]
                print(f"{processes}: {rate:,.0f} tensors a second, on {cores:.2f} cores", flush=True)
        (one, cores_of_one), (two, cores_of_two) = (np.median(found[n], axis=0).tolist() for n in (1, 2))
        rows: list[Row] = [
            {"what": "one process", "tensors_a_second": one, "cores": cores_of_one},
            {"what": "two processes", "tensors_a_second": two, "cores": cores_of_two, "times": two / one},
            swapping(connection, "bench-still", count, 0),
            swapping(connection, "bench-swap", count, 0.1),
        ]
        delete_topics(connection, [TOPIC])
    table(rows, COLUMNS)
    return rows


def made(connection: Connection, model: str, batch: int = 256) -> Settings:
    """A model of which nothing is learned, with its topics."""
    settings = Settings(
        model=model,
        input=TOPIC,
        bootstrap_servers=connection.bootstrap_servers,
        problem={"shape": list(SHAPE), "rank": RANK},  # type: ignore[arg-type]
        learner={"codes": False},  # type: ignore[arg-type]
        encoders={"batch": batch},  # type: ignore[arg-type]
        threads=1,
    )
    prepare(connection, settings.topics(), Scripts(""))
    return settings


def publish(connection: Connection, model: str, t: int) -> None:
    """A dictionary."""
    random = np.random.default_rng(t)
    loadings = [random.random((size, RANK)) for size in SHAPE]
    atoms = tuple(range(RANK))
    found = Snapshot(Version(model, t), t, loadings, None, 1.0, "", (), atoms, "", {}, penalties=(0.01, 0.01))
    writer = Writer(connection)
    writer.write(f"{model}.snapshots", found.to_bytes(), b"0", 0, connection.patience)
    writer.flush()


def done(connection: Connection, settings: Settings) -> int:
    """How much is coded and committed."""
    found = stands(connection, settings.fleet(), TOPIC, range(PARTITIONS))
    return sum(stand.reached for stand in found.values())


def fleet(connection: Connection, model: str, processes: int, count: int) -> tuple[float, float]:
    """Tensors a second of so many processes, and how many cores they had: others may want them, too."""
    settings = made(connection, model)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        path = Path(directory) / "service.json"
        settings.save(path)
        command = [sys.executable, "-m", "stream_ocpdl", "encode", "--config", str(path), "--set", "http.port=null"]
        logs = [Path(directory) / f"{k}.log" for k in range(processes)]
        pids = []
        for log in logs:
            with log.open("wb") as file:
                process = subprocess.Popen(command, stderr=file)  # noqa: S603
            pids.append(process.pid)
            stack.callback(process.wait)
            stack.callback(process.kill)
        until(lambda: all("waiting for the first dictionary" in log.read_text() for log in logs))
        time.sleep(5.0)  # the group shares out the partitions
        publish(connection, model, 1)
        until(lambda: done(connection, settings) >= count / 10)
        first, began, used = done(connection, settings), time.monotonic(), cpu(pids)
        until(lambda: done(connection, settings) >= count)
        seconds = time.monotonic() - began
        return (count - first) / seconds, (cpu(pids) - used) / seconds


def cpu(pids: Sequence[int]) -> float:
    """Seconds of processors that processes have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def until(holds: Callable[[], bool]) -> None:
    """Wait."""
    while not holds():
        time.sleep(0.2)


class Timed(Newest):
    """Notes what it takes to make a dictionary ready: for no longer could it hold up who codes."""

    longest = 0.0

    def take(self, record: Record) -> None:
        """Do it, by the clock of this thread alone."""
        began = time.thread_time()
        super().take(record)
        self.longest = max(self.longest, time.thread_time() - began)


class Clocked(EncoderBoard):
    """Notes when batches end."""

    def __init__(self, model: str) -> None:
        super().__init__(model, 1, f"{model}.snapshots")
        self.ends: list[float] = []
        self.delays: list[float] = []
        """Seconds that this thread has waited for a processor, at these times."""
        self.late = 0
        """Batches that were begun with an old dictionary after a new one was there, beyond the one in progress."""
        self.since = 0
        """Batches since the last dictionary came."""

    def coded(self, coded: Coded, seconds: float) -> None:
        """Note it."""
        super().coded(coded, seconds)
        self.ends.append(time.monotonic())
        self.delays.append(1e-9 * int(Path("/proc/thread-self/schedstat").read_text().split()[1]))
        self.since += 1
        newest = self.newest()[0].version
        self.late += self.since > 1 and any(version != newest for version in coded.versions)


def swapping(connection: Connection, model: str, count: int, every: float) -> Row:
    """One encoder under load; with changes every so many seconds, or none."""
    settings = made(connection, model, 16)
    plan, topics = settings.plan(), settings.coded()
    warm_up(plan.problem)
    publish(connection, model, 1)
    board = Clocked(model)
    over = threading.Event()

    def change() -> None:
        t = 1
        while every and not over.wait(every):
            t += 1
            publish(connection, model, t)

    def came(_: object) -> None:
        board.swaps[0] += 1
        board.since = 0

    changing = threading.Thread(target=change, daemon=True)
    with (
        Timed(plan, followed(connection, topics.snapshots, 1), came) as newest,
        closing(Election(connection, TOPIC, settings.fleet())) as election,
    ):
        board.newest, board.group = newest, election
        work = EncoderWork(settings, plan, settings.rhythm(), connection, SERIAL, election, newest, board)
        changing.start()
        Member(election, work.run, lambda: board.tensors >= count).run()
    over.set()
    pauses = 1000 * np.diff(board.ends)
    stalls = pauses - 1000 * np.diff(board.delays)
    versions = codes_by_version(connection, topics.codes)
    print(
        json.dumps({"versions": len(versions), "codes": sum(versions), "late": board.late, "batches": len(board.ends)})
    )
    return {
        "what": "dictionaries change" if every else "one dictionary",
        "tensors_a_second": count / (board.ends[-1] - board.ends[0]),
        "swaps": int(board.swaps[0]),
        "ready_ms": 1000 * newest.longest,
        "p99_ms": float(np.quantile(pauses, 0.99)),
        "longest_ms": float(pauses.max()),
        "stall_ms": float(stalls.max()),
    }


def codes_by_version(connection: Connection, topic: str) -> Sequence[int]:
    """How many codes each version has."""
    found: dict[Version, int] = {}
    for code in read_codes(connection.bootstrap_servers, topic):
        found[code.dictionary] = found.get(code.dictionary, 0) + 1
    return list(found.values())
