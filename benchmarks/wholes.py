"""Whole runs of a sampler, side by side: without a sink (twice, mostly), with a callback that does nothing, with one.

The two without one say how far runs of the very same differ by the way of measuring (benchmarks/stopping.py). What the
sampler does for any callback is in the third, and so the sink has to answer for the rest alone.
"""

import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from statistics import fmean
from typing import Literal, NamedTuple
from uuid import uuid4

from benchmarks.posteriors import NOTHING, Contender, Nothing, contender
from benchmarks.stopping import Took, Work, race
from stream_ocpdl import DrawSink
from stream_ocpdl.sinks import sink as settings
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.messages import Draw
from tests.broker.cluster import Cluster


class Whole(NamedTuple):
    """Runs at the same time."""

    without: Took
    again: Took | None
    """Without, once more; not where the broker goes away, for whom each of them takes so long."""
    nothing: Took
    """With a callback that does nothing."""
    having: Took
    """With the sink."""
    ends: float
    """Seconds of the last in which the sink was opened and closed."""
    complete: bool

    def base(self, clock: Literal["wall", "cpu"]) -> float:
        """Seconds without, the mean where there are two."""
        return fmean(getattr(took, clock) for took in (self.without, self.again) if took)


def together(cluster: Cluster, one: Contender, each: int, processors: set[int], away: float) -> Whole:
    """Runs that take turns, with a broker that is away for so many seconds of their own."""
    connection, topic = kafka.Connection(cluster.bootstrap_servers), new_topic(cluster)
    runs = [(alone, (one.name, each, callback)) for callback in ((None, NOTHING) if away else (None, NOTHING, None))]
    contenders = [*runs, (sunk, (one.name, each, cluster.bootstrap_servers, topic, len(runs) + 1))]
    leaving = threading.Thread(target=lambda: leave(cluster, len(contenders) * away))  # of which each has its part
    taken = race(contenders, processors, leaving.start if away else lambda: None)
    if away:
        leaving.join()
    *others, (opening, sampling, closing) = taken
    ends = opening.wall + closing.wall
    having = Took(ends + sampling.wall, opening.cpu + sampling.cpu + closing.cpu)
    good = complete(connection, topic, dict.fromkeys(range(one.chains), each))
    with suppress(Exception):
        kafka.delete_topics(connection, [topic])
    without, nothing, *again = (took for (took,) in others)
    return Whole(without, again[0] if again else None, nothing, having, ends, good)


def alone(name: str, each: int, callback: Nothing | None) -> Work:
    """A run without a sink: between two marks."""
    one = warm(name)

    def work(mark: Callable[[], None]) -> None:
        mark()
        one.sample(each, callback)
        mark()

    return work


def sunk(name: str, each: int, servers: str, topic: str, contenders: int) -> Work:
    """A run with one: opening, sampling, closing."""
    one, rest = warm(name), contenders * settings.REST

    def work(mark: Callable[[], None]) -> None:
        settings.REST = rest  # of which a process that is stopped for the others has its part
        mark()
        with DrawSink(servers, topic, "run", to_tensor=one.to_tensor, room=10**7, timeout=120.0) as sink:
            mark()
            one.sample(each, sink)
            mark()
        mark()

    return work


@cache
def warm(name: str) -> Contender:
    """One that has sampled before."""
    hush()
    one = contender(name)
    one.sample(50, None)
    return one


def hush() -> None:
    """A broker that goes away is not to be told of."""
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")


def new_topic(cluster: Cluster) -> str:
    """Of two partitions."""
    connection, topic = kafka.Connection(cluster.bootstrap_servers), f"sink-{uuid4().hex[:8]}"
    kafka.create_topics(connection, {topic: (2, {})})
    kafka.await_topics(connection, [topic])
    return topic


def leave(cluster: Cluster, seconds: float) -> None:
    """Kill the broker after a while, and start it again later."""
    time.sleep(0.2 * seconds)
    cluster.kill(1)
    time.sleep(seconds)
    cluster.restart(1)


def complete(connection: kafka.Connection, topic: str, wanted: Mapping[int, int]) -> bool:
    """Whether a topic has so many draws of every chain, each once and in order."""
    found: dict[int, list[int]] = {}
    for partition in (0, 1):
        for record in kafka.read_committed(connection, topic, partition):
            draw = Draw.from_bytes(record.value)
            found.setdefault(draw.chain, []).append(draw.draw)
    return found == {chain: list(range(each)) for chain, each in wanted.items()}
