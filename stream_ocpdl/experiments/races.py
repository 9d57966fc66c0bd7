"""Races by CPU time on one thread: curves of error, what is said of several of them, and who is ahead when.

A contender runs with several seeds. Errors are evaluated at marks, steps 1, 2, 3 … and then ever fewer, outside of the
clock; so they depend on seeds alone, and the times on the machine.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.arrays import Array

GRID = 60
"""Times at which contenders are compared."""


class Mark(NamedTuple):
    """After so many steps, and seconds of CPU: the error."""

    step: int
    seconds: float
    error: float


Curve = list[Mark]
Runs = Mapping[str, Sequence[Curve]]
"""Curves of each contender, one a seed."""


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS and OpenMP on one thread: a core is compared with a core."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise ConfigError("threadpoolctl is not installed: pip install 'stream-ocpdl[bench]'") from None
    with threadpool_limits(limits=1):
        yield


def seconds(action: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """What the action took by that clock."""
    began = clock()
    action()
    return clock() - began


def marks(last: int, growth: float = 1.15) -> list[int]:
    """1, 2, 3 …, then ever fewer, and the last.

    >>> marks(20)
    [1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15, 18, 20]
    """
    found, at = [], 1
    while at < last:
        found.append(at)
        at = max(at + 1, int(growth * at + 0.999))
    return [*found, last]


def at_times(curve: Curve, times: Array) -> Array:
    """The error that was reached by each time: that of the last mark before it."""
    when, errors = (np.array([getattr(mark, name) for mark in curve]) for name in ("seconds", "error"))
    return np.asarray(errors[np.maximum(np.searchsorted(when, times, side="right") - 1, 0)])


def grid_of(runs: Runs) -> Array:
    """Times from the first mark of the quickest contender to the end of the slowest."""
    first = min(mark.seconds for curves in runs.values() for curve in curves for mark in curve if mark.step > 0)
    last = max(curve[-1].seconds for curves in runs.values() for curve in curves)
    return np.geomspace(max(first, 1e-6), max(last, 2e-6), GRID)


@dataclass(frozen=True)
class Comparison:
    """At how many of the times that both ran one was at or below the other, in the mean over seeds."""

    peer: str
    times: int
    at_or_below: int
    above_from: float | None
    """Seconds, where it was above."""
    above_until: float | None
    worst: float
    """The largest excess, relative to the peer's error."""


def compare(runs: Runs, ours: str, peer: str) -> Comparison:
    """Ours against a peer, from the time that both have made a step until one of them has ended.

    Errors that agree to a part in a million count as equal.
    """
    both = [curve for name in (ours, peer) for curve in runs[name]]
    begins, ends = max(curve[0].seconds for curve in both), min(curve[-1].seconds for curve in both)
    times = np.geomspace(max(min(begins, ends), 1e-6), max(ends, 2e-6), GRID)
    mine, other = (np.mean([at_times(curve, times) for curve in runs[name]], axis=0) for name in (ours, peer))
    above = mine > other * (1 + 1e-6)
    where = times[above]
    return Comparison(
        peer,
        len(times),
        int((~above).sum()),
        float(where[0]) if len(where) else None,
        float(where[-1]) if len(where) else None,
        float(np.max(mine / other - 1.0)) if len(where) else 0.0,
    )


def time_to(curve: Curve, level: float) -> float:
    """When a curve first comes down to a level; inf if it never does."""
    return next((mark.seconds for mark in curve if mark.error <= level), inf)


NEAR = (10.0, 1.0, 0.1)
"""Percent of the way from nothing (no factors, error 1) to the best that are left to go."""


def told(name: str, curves: Sequence[Curve], best: float) -> dict[str, Any]:
    """A contender in a row: last error, mean and deviation over seeds, and CPU ms to come near the best (median)."""
    last = np.array([curve[-1].error for curve in curves])
    row: dict[str, Any] = {
        "contender": name,
        "steps": curves[0][-1].step,
        "error": float(last.mean()),
        "deviation": float(last.std()),
        "ms": 1e3 * float(np.mean([curve[-1].seconds for curve in curves])),
        "near": [],
    }
    for percent in NEAR:
        times = sorted(time_to(curve, best + (1 - best) * percent / 100) for curve in curves)
        median = times[len(times) // 2]
        row["near"].append(1e3 * median if median < inf else None)
    return row | {"curves": [[list(mark) for mark in curve] for curve in curves]}
