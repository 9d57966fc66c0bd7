"""What a sink costs a sampler: the same run with it and without, side by side; also with the broker away for 10 s.

Whole runs are processes that take turns (benchmarks/wholes.py), with the same seeds and so the same draws. Where the
broker is away, it is so for all: what its end and its start do to the machine is not the sink's. Wall is all that a
user waits for, with opening and closing the sink, and CPU that of the process with all its threads; what opening and
closing took has a column, since a run of hours pays it once. Ratios are means over races with their 95 % intervals
(Student's): `wall` and `cpu` with the sink to without (the mean of two runs), `wall_own` with the sink to a callback
that does nothing, `nothing` that callback to without, and `again` one run without to the other, which is 1 but for
the scatter. Afterwards the topic must have every draw, once and in the order of its chain.

What a draw costs is measured once more within one run (benchmarks/blocks.py): µs of the sampler's thread and of all
others, and the ratio that follows, with its interval.

On one processor the sampler shares it with everything of the sink: its thread, the client's threads. The broker has
another, for it stands in for one that is elsewhere. On all processors the broker is beside them, and not sent away.

PyMC and emcee are measured where they are installed. `--only "eight schools" --only away` are the rows that have both
in their names.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from math import sqrt
from multiprocessing import get_context
from statistics import fmean, stdev

from scipy.stats import t as student

from benchmarks.blocks import Switch, others
from benchmarks.measure import FULL, Options, Row, table
from benchmarks.posteriors import Contender, contender, names
from benchmarks.wholes import Whole, complete, hush, new_topic, together, warm
from stream_ocpdl import DrawSink
from stream_ocpdl.stream import kafka
from tests.broker.cluster import Cluster

KEYS = ("sampler", "processors", "broker")
RATIOS = {"wall": "lower", "wall_own": "lower", "cpu": "lower", "blocks": "lower"}

AWAY = 10.0
"""Seconds of the sampler's own time for which the broker is away."""

RACES = {"there": 4, "away": 3}
"""With the broker there or away."""

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
    "wall_own": ".3f",
    "wall_own_from": ".3f",
    "wall_own_to": ".3f",
    "cpu": ".3f",
    "cpu_from": ".3f",
    "cpu_to": ".3f",
    "nothing": ".3f",
    "again": ".3f",
    "again_from": ".3f",
    "again_to": ".3f",
    "ends_ms": ".0f",
    "us_sampler": ".2f",
    "us_others": ".2f",
    "blocks": ".3f",
    "blocks_from": ".3f",
    "blocks_to": ".3f",
    "complete": "",
}


def run(options: Options = FULL) -> list[Row]:
    """Rows: sampler, processors and broker, microseconds of a run for each draw (tuning is in them), and ratios."""
    hush()
    rows: list[Row] = []
    with divided() as (one, others, every):
        for pinned in (True, False):
            ours, theirs = (one, others) if pinned else (every, every)
            wanted = [place for place in places(pinned) if all(part in ", ".join(place) for part in options.only)]
            if wanted:
                with on(theirs), Cluster.start() as cluster:
                    for place in wanted:
                        rows.append(compared(cluster, place, ours, options.quick))
                        table(rows[-1:], COLUMNS)
    print()
    table(rows, COLUMNS)
    return rows


def places(pinned: bool) -> Iterator[tuple[str, str, str]]:
    """Sampler, processors, and broker of each row."""
    for name in names():
        if pinned:
            yield name, "one", "there"
        elif name not in QUICK:
            yield name, "all", "there"
        if pinned and name not in QUICK:
            yield name, "one", "away"


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


def compared(cluster: Cluster, place: tuple[str, str, str], processors: set[int], quick: bool) -> Row:
    """Races of some seconds each; where the broker goes away, of so many that it comes back meanwhile."""
    name, among, broker = place
    gone = (1.0 if quick else AWAY) if broker == "away" else 0.0
    with on(processors):
        one = contender(name)
        each = draws_in(one, 2 * gone + 4.0 if gone else 1.0 if quick else 4.0)  # or closing waits for the broker
    found = [together(cluster, one, each, processors, gone) for _ in range(1 if quick else RACES[broker])]
    draws = each * one.chains
    costs = in_blocks(cluster, one, each if quick else 4 * each, processors) if among == "one" and not gone else {}
    good = costs.pop("complete", True) and all(whole.complete for whole in found)
    for whole in found:
        print(" ", *(f"{took.wall:.3f}" if took else "-" for took in whole[:4]), "s of wall", flush=True)
    return {
        "sampler": name,
        "processors": among,
        "broker": f"away for {gone:g} s" if gone else "there",
        "draws": draws,
        "us_a_draw": 1e6 * fmean(whole.without.wall for whole in found) / draws,
        **ratios(found),
        "ends_ms": 1e3 * fmean(whole.ends for whole in found),
        **costs,
        "complete": "yes" if good else "NO",
    }


def ratios(found: Sequence[Whole]) -> Row:
    """Of each kind the mean, and where it is with 95 %."""
    values = {
        "wall": [whole.having.wall / whole.base("wall") for whole in found],
        "wall_own": [whole.having.wall / whole.nothing.wall for whole in found],
        "cpu": [whole.having.cpu / whole.base("cpu") for whole in found],
        "nothing": [whole.nothing.wall / whole.base("wall") for whole in found],
        "again": [whole.again.wall / whole.without.wall for whole in found if whole.again],
    }
    bounds = {name: interval(of) for name, of in values.items() if of}
    ends = ("", "_from", "_to")
    return {name + end: value for name, of in bounds.items() for end, value in zip(ends, of, strict=True)}


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


def in_blocks(cluster: Cluster, one: Contender, each: int, processors: set[int]) -> Row:
    """What a draw costs within one run, in which every other block of draws is handed over."""
    connection, topic = kafka.Connection(cluster.bootstrap_servers), new_topic(cluster)
    with ProcessPoolExecutor(1, get_context("spawn"), stay, (processors,)) as pool:
        running = pool.submit(switched, one.name, each, cluster.bootstrap_servers, topic)
        more, single, beside, handed = running.result()
    centre, low, high = interval(more)
    ratios = {
        name: value and 1 + (value + beside) / single for name, value in (("", centre), ("_from", low), ("_to", high))
    }
    good = complete(connection, topic, handed)
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


def stay(processors: set[int]) -> None:
    """Have the present process on these processors."""
    if processors:
        os.sched_setaffinity(0, processors)
