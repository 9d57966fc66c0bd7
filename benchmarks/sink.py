"""What a sink costs a sampler: the same run with it and without, side by side; also with the broker away for 10 s.

The two runs are two processes that take turns of half a second (benchmarks/stopping.py), with the same seeds and so the
same draws. Where the broker is away, it is so for both: what its end and its start do to the machine is not the sink's.
Wall is all that a user waits for, with opening and closing the sink, and CPU that of the process with all its threads;
what opening and closing took has a column, since a run of hours pays it once. Ratios are with the sink to without,
means over pairs of runs with their 95 % intervals (Student's). Afterwards the topic must have every draw, once and in
the order of its chain.

Two processes differ by a few percent by themselves, so what a draw costs is measured once more within one run
(benchmarks/blocks.py): µs of the sampler's thread and of all others, and the ratio that follows, with its interval.

On one processor the sampler shares it with everything of the sink: its thread, the client's threads. The broker has
another, for it stands in for one that is elsewhere. On all processors the broker is beside them.

PyMC and emcee are measured where they are installed.
"""

import logging
import os
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from math import sqrt
from multiprocessing import get_context
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.stats import t as student

from benchmarks.blocks import Switch, others
from benchmarks.measure import FULL, Options, Row, table
from benchmarks.posteriors import Contender, contender, names
from benchmarks.stopping import Took, Work, race
from stream_ocpdl import DrawSink
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.messages import Draw
from tests.broker.cluster import Cluster

KEYS = ("sampler", "processors", "broker")
RATIOS = {"wall": "lower", "cpu": "lower", "blocks": "lower"}

AWAY = 10.0
"""Seconds of the sampler's own time for which the broker is away."""

BLOCK = 0.1
"""Seconds of a block of draws, about."""

QUICK = ("emcee, 32 walkers, a curve through 400 points", "emcee, 32 walkers, vectorised")
"""Their draws are too quick for five percent: they tell what a draw costs, on one processor, the broker there."""

COLUMNS = {
    "sampler": "",
    "processors": "",
    "broker": "",
    "draws": "d",
    "us_a_draw": ".1f",
    "wall": ".3f",
    "wall_from": ".3f",
    "wall_to": ".3f",
    "cpu": ".3f",
    "cpu_from": ".3f",
    "cpu_to": ".3f",
    "ends_ms": ".0f",
    "us_sampler": ".2f",
    "us_others": ".2f",
    "blocks": ".3f",
    "blocks_from": ".3f",
    "blocks_to": ".3f",
    "complete": "",
}


class Pair(NamedTuple):
    """Two runs at the same time."""

    without: Took
    having: Took
    ends: float
    """Seconds of the second in which the sink was opened and closed."""
    complete: bool


def run(options: Options = FULL) -> list[Row]:
    """Rows: sampler, processors and broker, microseconds a draw, ratios with the sink to without."""
    hush()
    lasting, pairs, away = (1.0, 1, 1.0) if options.quick else (16.0, 4, AWAY)
    rows: list[Row] = []
    with divided() as (one, others, every):
        for pinned in (True, False):
            ours, theirs = (one, others) if pinned else (every, every)
            with on(theirs), Cluster.start() as cluster:
                for name in names():
                    if pinned or name not in QUICK:
                        for gone in (0.0,) if name in QUICK else (0.0, away):
                            row = compared(cluster, name, lasting, pairs, ours, gone)
                            rows.append({"processors": "one" if pinned else "all"} | row)
                            table(rows[-1:], COLUMNS)
    print()
    table(rows, COLUMNS)
    return rows


def hush() -> None:
    """A broker that goes away is not to be told of."""
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")


@contextmanager
def divided() -> Iterator[tuple[set[int], set[int], set[int]]]:
    """One processor, the others, and all; all three times where there is but one."""
    found = os.sched_getaffinity(0) if sys.platform == "linux" else set()
    if len(found) < 2:
        print("one processor for sampler and broker: the broker's time counts as the sink's")
        yield found, found, found
    else:
        yield {max(found)}, found - {max(found)}, found
        os.sched_setaffinity(0, found)


@contextmanager
def on(processors: set[int]) -> Iterator[None]:
    """The present thread, and the threads and processes that it starts, on these processors."""
    before = os.sched_getaffinity(0) if processors else set()
    if processors:
        os.sched_setaffinity(0, processors)
    yield
    if before:
        os.sched_setaffinity(0, before)


def compared(cluster: Cluster, name: str, lasting: float, pairs: int, processors: set[int], away: float = 0.0) -> Row:
    """Pairs of runs that last so many seconds at least, and have a broker that goes away and comes back."""
    with on(processors):
        one = contender(name)
        each = draws_in(one, max(lasting, 1.6 * away + 2.0))
    found = [paired(cluster, one, each, processors, away, k % 2 == 1) for k in range(pairs)]
    draws = each * one.chains
    costs = in_blocks(cluster, one, each, processors, away)
    wall = interval([pair.having.wall / pair.without.wall for pair in found])
    cpu = interval([pair.having.cpu / pair.without.cpu for pair in found])
    return {
        "sampler": name,
        "broker": f"away for {away:g} s" if away else "there",
        "draws": draws,
        "us_a_draw": 1e6 * fmean(pair.without.wall for pair in found) / draws,
        "wall": wall[0],
        "wall_from": wall[1],
        "wall_to": wall[2],
        "cpu": cpu[0],
        "cpu_from": cpu[1],
        "cpu_to": cpu[2],
        "ends_ms": 1e3 * fmean(pair.ends for pair in found),
        **{name: value for name, value in costs.items() if name != "complete"},
        "complete": "yes" if costs["complete"] and all(pair.complete for pair in found) else "NO",
    }


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean, and where it is with 95 %, by Student's t; of one value that is not known.

    >>> [round(bound, 3) for bound in interval([1.0, 1.02, 0.98, 1.04])]
    [1.01, 0.969, 1.051]
    """
    centre, count = fmean(values), len(values)
    if count < 2:
        return centre, None, None
    wide = float(student.ppf(0.975, count - 1)) * stdev(values) / sqrt(count)
    return centre, centre - wide, centre + wide


def draws_in(contender: Contender, seconds: float) -> int:
    """How many draws of each chain it makes in so many seconds of CPU, beside what it takes before the first."""
    contender.sample(50, None)
    few, many = spent(lambda: contender.sample(100, None)), spent(lambda: contender.sample(400, None))
    return max(100, int(300 * seconds / max(many - few, 1e-3)))


def spent(action: Callable[[], object]) -> float:
    """Seconds of CPU."""
    began = time.process_time()
    action()
    return time.process_time() - began


def paired(cluster: Cluster, one: Contender, each: int, processors: set[int], away: float, sink_first: bool) -> Pair:
    """A run without the sink and one with it."""
    connection, topic = kafka.Connection(cluster.bootstrap_servers), new_topic(cluster)
    leaving = threading.Thread(target=lambda: leave(cluster, 2 * away))  # each has half of the time
    contenders = [(alone, (one.name, each)), (sunk, (one.name, each, cluster.bootstrap_servers, topic))]
    order = -1 if sink_first else 1
    taken = race(contenders[::order], processors, leaving.start if away else lambda: None)[::order]
    if away:
        leaving.join()
    (without,), (opening, sampling, closing) = taken
    ends = opening.wall + closing.wall
    having = Took(ends + sampling.wall, opening.cpu + sampling.cpu + closing.cpu)
    good = whole(connection, topic, dict.fromkeys(range(one.chains), each))
    with suppress(Exception):
        kafka.delete_topics(connection, [topic])
    return Pair(without, having, ends, good)


def alone(name: str, each: int) -> Work:
    """A run without a sink: between two marks."""
    one = warm(name)

    def work(mark: Callable[[], None]) -> None:
        mark()
        one.sample(each, None)
        mark()

    return work


def sunk(name: str, each: int, servers: str, topic: str) -> Work:
    """A run with one: opening, sampling, closing."""
    one = warm(name)

    def work(mark: Callable[[], None]) -> None:
        mark()
        with DrawSink(servers, topic, "run", to_tensor=one.to_tensor, room=10**7, timeout=120.0) as sink:
            mark()
            one.sample(each, sink)
            mark()
        mark()

    return work


def warm(name: str) -> Contender:
    """One that has sampled before."""
    hush()
    one = contender(name)
    one.sample(50, None)
    return one


def in_blocks(cluster: Cluster, one: Contender, each: int, processors: set[int], away: float) -> Row:
    """What a draw costs within one run, in which every other block of draws is handed over."""
    connection, topic = kafka.Connection(cluster.bootstrap_servers), new_topic(cluster)
    with ProcessPoolExecutor(1, get_context("spawn"), stay, (processors,)) as pool:
        running = pool.submit(switched, one.name, each, cluster.bootstrap_servers, topic)
        while away and not begun(connection, topic) and not running.done():
            time.sleep(0.1)
        if away:
            leave(cluster, away)
        more, single, beside, handed = running.result()
    centre, low, high = interval(more)
    ratios = {
        name: value and 1 + (value + beside) / single for name, value in (("", centre), ("_from", low), ("_to", high))
    }
    good = whole(connection, topic, handed)
    with suppress(Exception):
        kafka.delete_topics(connection, [topic])
    costs = {f"blocks{name}": value for name, value in ratios.items()}
    return {"us_sampler": 1e6 * centre, "us_others": 1e6 * beside, "complete": good} | costs


def switched(name: str, each: int, servers: str, topic: str) -> tuple[list[float], float, float, dict[int, int]]:
    """A run of blocks. Seconds of a draw: more in the sampler's thread, alone, in others; how many were handed over."""
    one = warm(name)
    block = one.chains * max(1, int(BLOCK / spent(lambda: one.sample(100, None)) * 100))
    with DrawSink(servers, topic, "run", to_tensor=one.to_tensor, room=10**7, timeout=120.0) as sink:
        switch = Switch(sink, block)

        def sample() -> None:
            one.sample(each, switch)  # type: ignore[arg-type]
            sink.flush()

        took = others(sample)
    return switch.more(), switch.alone(), took / sum(switch.handed.values()), switch.handed


def begun(connection: kafka.Connection, topic: str) -> bool:
    """Whether there is a draw."""
    return any(high for _, high in kafka.watermarks(connection, topic, (0, 1)).values())


def stay(processors: set[int]) -> None:
    """Have the present process on these processors."""
    if processors:
        os.sched_setaffinity(0, processors)


def new_topic(cluster: Cluster) -> str:
    """Of two partitions."""
    connection, topic = kafka.Connection(cluster.bootstrap_servers), f"sink-{uuid.uuid4().hex[:8]}"
    kafka.create_topics(connection, {topic: (2, {})})
    kafka.await_topics(connection, [topic])
    return topic


def leave(cluster: Cluster, seconds: float) -> None:
    """Kill the broker after a while, and start it again later."""
    time.sleep(0.2 * seconds)
    cluster.kill(1)
    time.sleep(seconds)
    cluster.restart(1)


def whole(connection: kafka.Connection, topic: str, wanted: Mapping[int, int]) -> bool:
    """Whether a topic has so many draws of every chain, each once and in order."""
    found: dict[int, list[int]] = {}
    for partition in (0, 1):
        for record in kafka.read_committed(connection, topic, partition):
            draw = Draw.from_bytes(record.value)
            found.setdefault(draw.chain, []).append(draw.draw)
    return found == {chain: list(range(each)) for chain, each in wanted.items()}
