"""What a sink costs a sampler: the same run with it and without, in turns; also with the broker away for 10 s.

The sampler has one processor, which it shares with everything of the sink: its thread, the client's threads. The broker
has another, for it stands in for one that is elsewhere. Wall is what a user waits for until the sampler is done; CPU is
that of the process, which knows nothing of what others do on the machine. Ratios are of neighbouring runs. Afterwards
the topic must have every draw, once and in the order of its chain.

PyMC and emcee are measured where they are installed.
"""

import logging
import os
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import FULL, Options, Row, spread, table
from stream_ocpdl import DrawSink
from stream_ocpdl.sinks import adapters
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.messages import Draw
from tests.broker.cluster import Cluster

KEYS = ("sampler", "broker")
RATIOS = {"wall": "lower", "cpu": "lower"}

AWAY = 10.0
"""Seconds for which the broker is away."""

Sample = Callable[[int, DrawSink | None], None]


@dataclass(frozen=True, slots=True)
class Contender:
    """A sampler: what it is, how many chains it has, how it makes so many draws of each, and its map to tensors."""

    name: str
    chains: int
    sample: Sample
    to_tensor: Callable[[Any], Any]


class Took(NamedTuple):
    """Seconds of a run."""

    wall: float
    cpu: float


def run(options: Options = FULL) -> list[Row]:
    """Rows: sampler and broker, microseconds a draw, ratios with the sink to without."""
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    lasting, turns, away = (0.5, 2, 1.0) if options.quick else (4.0, 5, AWAY)
    rows: list[Row] = []
    with processors() as (ours, theirs), on(theirs):
        cluster = Cluster.start()
        with cluster, on(ours):
            for contender in contenders():
                each = draws_in(contender, lasting)
                rows.append(compared(cluster, contender, each, turns))
                each = draws_in(contender, 1.6 * away + 2.0)
                rows.append(compared(cluster, contender, each, 1 if options.quick else 2, away, theirs))
                table(rows[-2:], COLUMNS)
    print()
    table(rows, COLUMNS)
    return rows


COLUMNS = {
    "sampler": "",
    "broker": "",
    "draws": "d",
    "us_a_draw": ".1f",
    "wall": ".3f",
    "least": ".3f",
    "most": ".3f",
    "cpu": ".3f",
    "us_more": ".2f",
    "complete": "",
}


@contextmanager
def processors() -> Iterator[tuple[set[int], set[int]]]:
    """One for the sampler, and the others for the broker; all for both where there is but one."""
    found = os.sched_getaffinity(0) if sys.platform == "linux" else set()
    if len(found) < 2:
        print("one processor for sampler and broker: the broker's time counts as the sink's")
        yield found, found
    else:
        ours = max(found)
        print(f"the sampler and the sink's threads on processor {ours}, the broker on others")
        yield {ours}, found - {ours}
    if found:
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


def contenders() -> Iterator[Contender]:
    """Those whose sampler is installed."""
    if find_spec("pymc") is None:
        print("PyMC is not installed, and not measured")
    else:
        yield Contender("PyMC, eight schools, 4 chains", 4, eight_schools(), lambda point: np.exp(point["z"]))
    if find_spec("emcee") is None:
        print("emcee is not installed, and not measured")
    else:
        yield Contender("emcee, 32 walkers, lynxes and hares", 32, predators(), np.exp)
        yield Contender("emcee, 32 walkers, a curve through 2000 points", 32, ensemble(2000, repeat=8), np.exp)
        yield Contender("emcee, 32 walkers, a curve through 400 points", 32, ensemble(400), np.exp)
        yield Contender("emcee, 32 walkers, vectorised", 32, ensemble(400, vectorise=True), np.exp)


def eight_schools() -> Sample:
    """PyMC's NUTS on the eight schools, not centred; one chain after the other in this process."""
    import pymc as pm

    effects, errors = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model() as model:
        mu, tau, z = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5), pm.Normal("z", 0, 1, shape=8)
        pm.Normal("y", mu + tau * z, errors, observed=effects)

    def sample(each: int, sink: DrawSink | None) -> None:
        quiet = {"progressbar": False, "compute_convergence_checks": False, "return_inferencedata": False}
        callback = None if sink is None else adapters.pymc(sink)
        with model:
            pm.sample(each, tune=200, chains=4, cores=1, random_seed=1, nuts_sampler="pymc", callback=callback, **quiet)

    return sample


def predators() -> Sample:
    """emcee on the rates of Lotka and Volterra, given twenty years of two kinds of animals: each draw solves them."""
    rates, years = np.array([0.55, 0.028, 0.8, 0.024]), 20
    seen = np.array(populations(rates, years)) * np.exp(0.1 * np.random.default_rng(0).standard_normal((years, 2)))

    def density(place: Any) -> float:
        found = np.array(populations(np.exp(place), years))
        good = np.isfinite(found).all() and found.min() > 0
        return float(-50.0 * np.sum(np.log(found / seen) ** 2)) if good else -np.inf

    return sampled(density, np.log(rates), 0.01)


def populations(rates: np.ndarray, years: int) -> list[tuple[float, float]]:
    """Of prey and predators, year after year: dx = (a − by) x, dy = (dx − c) y, by Heun's steps, fifty a year."""
    a, b, c, d = map(float, rates)
    x, y, h, found = 30.0, 5.0, 0.02, []
    for _ in range(years):
        for _ in range(50):
            u, v = (a - b * y) * x, (d * x - c) * y
            p, q = x + h * u, y + h * v
            x, y = x + h / 2 * (u + (a - b * q) * p), y + h / 2 * (v + (d * p - c) * q)
        found.append((x, y))
    return found


def ensemble(points: int, repeat: int = 1, vectorise: bool = False) -> Sample:
    """emcee on a polynomial of degree four through so many points, its likelihood asked for several times."""
    random = np.random.default_rng(0)
    x = np.linspace(0, 1, points)
    y, basis = np.sin(3 * x) + 0.1 * random.standard_normal(points), np.stack([x**k for k in range(5)])

    def density(place: Any) -> Any:
        for _ in range(repeat):
            found = -0.5 * np.sum((y - place @ basis) ** 2, axis=-1) / 0.1**2
        return found

    return sampled(density, np.zeros(5), 0.1, vectorise)


def sampled(density: Callable[[Any], Any], start: np.ndarray, apart: float, vectorise: bool = False) -> Sample:
    """32 walkers that begin around a place, so far apart."""
    import emcee

    random = np.random.default_rng(0)

    def sample(each: int, sink: DrawSink | None) -> None:
        np.random.seed(1)  # noqa: NPY002  (emcee's own)
        sampler = emcee.EnsembleSampler(32, len(start), density, vectorize=vectorise)
        states = sampler.sample(start + apart * random.standard_normal((32, len(start))), iterations=each)
        for _ in states if sink is None else adapters.emcee(sink, states):
            pass

    return sample


def draws_in(contender: Contender, seconds: float) -> int:
    """How many draws of each chain it makes in so many seconds of CPU: others may be on the machine."""
    contender.sample(50, None)
    few, many = timed(lambda: contender.sample(100, None)).cpu, timed(lambda: contender.sample(400, None)).cpu
    return max(100, int(300 * seconds / max(many - few, 1e-3)))


def timed(action: Callable[[], object]) -> Took:
    """What an action took."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def compared(
    cluster: Cluster, contender: Contender, each: int, turns: int, away: float = 0.0, theirs: set[int] | None = None
) -> Row:
    """Runs in turns: without the sink, with it."""
    without, having, complete = list[Took](), list[Took](), True
    for _ in range(turns):
        without.append(timed(lambda: contender.sample(each, None)))
        took, good = sunk(cluster, contender, each, away, theirs or set())
        having.append(took)
        complete &= good
    wall = spread(b.wall / a.wall for a, b in zip(without, having, strict=True))
    cpu = spread(b.cpu / a.cpu for a, b in zip(without, having, strict=True))
    draws = each * contender.chains
    more = spread(1e6 * (b.wall - a.wall) / draws for a, b in zip(without, having, strict=True))[0]
    return {
        "sampler": contender.name,
        "broker": f"away for {away:g} s" if away else "there",
        "draws": draws,
        "us_a_draw": 1e6 * spread(took.wall for took in without)[0] / draws,
        "wall": wall[0],
        "least": wall[1],
        "most": wall[2],
        "cpu": cpu[0],
        "us_more": more,
        "complete": "yes" if complete else "NO",
    }


def sunk(cluster: Cluster, contender: Contender, each: int, away: float, theirs: set[int]) -> tuple[Took, bool]:
    """A run with the sink, without the time of opening and closing it; and whether the topic has all of it."""
    servers, topic = cluster.bootstrap_servers, f"sink-{uuid.uuid4().hex[:8]}"
    connection = kafka.Connection(servers)
    kafka.create_topics(connection, {topic: (2, {})})
    kafka.await_topics(connection, [topic])
    leaving = threading.Thread(target=lambda: leave(cluster, away, theirs))
    with DrawSink(servers, topic, "run", to_tensor=contender.to_tensor, room=10**7, timeout=120.0) as sink:
        if away:
            leaving.start()
        took = timed(lambda: contender.sample(each, sink))
        if away:
            leaving.join()
    good = whole(connection, topic, contender.chains, each)
    with suppress(Exception):
        kafka.delete_topics(connection, [topic])
    return took, good


def leave(cluster: Cluster, seconds: float, theirs: set[int]) -> None:
    """Kill the broker after a while, and start it again so many seconds later."""
    time.sleep(0.2 * seconds)
    cluster.kill(1)
    time.sleep(seconds)
    with on(theirs):
        cluster.restart(1)


def whole(connection: kafka.Connection, topic: str, chains: int, each: int) -> bool:
    """Whether a topic has every draw of every chain, once and in order."""
    found: dict[int, list[int]] = {}
    for partition in (0, 1):
        for record in kafka.read_committed(connection, topic, partition):
            draw = Draw.from_bytes(record.value)
            found.setdefault(draw.chain, []).append(draw.draw)
    return found == {chain: list(range(each)) for chain in range(chains)}
