"""How contenders run: online ones step by step, offline ones iteration by iteration; several take turns.

**Online.** Each step is under the clock, drawing and learning. When the run is over, all slices along the last mode get
their optimal nonnegative codes under the dictionaries that were kept, and the error is that of the whole tensor.

**Offline.** These tell nothing before they end. So a run of K iterations is timed as a whole, and an iteration is taken
to cost a K-th of it; errors come from the same iterations made once more outside of the clock.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TypeAlias

import numpy as np

from stream_ocpdl.experiments.offline import Iterate
from stream_ocpdl.experiments.races import Curve, Mark, marks, one_thread, seconds
from stream_ocpdl.experiments.tensors import Factors, Tensor, error_of
from stream_ocpdl.ocpdl.baselines import start
from stream_ocpdl.ocpdl.solvers import box_solver

Race: TypeAlias = Callable[[int, bool], Curve]
"""A seed, and whether it is only to warm up → the curve."""

Stream: TypeAlias = Callable[[int], Iterator[tuple[float, Factors]]]
"""A seed → endless steps: CPU seconds of each, and the loadings after it."""

Marks: TypeAlias = Callable[[int], list[int]]
"""The last step → the steps after which there is an error."""


def every(last: int) -> list[int]:
    """All steps.

    >>> every(3)
    [1, 2, 3]
    """
    return list(range(1, last + 1))


def online(data: Tensor, stream: Stream, steps: int, at: Marks = marks) -> Race:
    """A contender that learns step by step."""

    def race(seed: int, warming: bool) -> Curve:
        last, spent, kept = 3 if warming else steps, 0.0, []
        due = set(at(last))
        for t, (took, loadings) in enumerate(islice(stream(seed), last), 1):
            spent += took
            if t in due:
                kept.append((t, spent, [U.copy() for U in loadings]))
        return [Mark(t, when, coded_error(data, U)) for t, when, U in kept]

    return race


def coded_error(data: Tensor, loadings: Factors) -> float:
    """The error of the whole tensor with the optimal nonnegative codes of its slices along the last mode."""
    rank = loadings[0].shape[1]
    Q = np.ones((rank, rank))
    for U in loadings:
        Q = Q * (U.T @ U)
    empty = np.zeros((data.shape[-1], rank))
    L = data.correlations([*loadings, empty], len(loadings))
    H = np.asarray(box_solver(np.inf, 1e-10)(Q, L, empty).Y)
    return error_of(data, [*loadings, H], L)


def offline(data: Tensor, rank: int, iterate: Iterate, iterations: int, at: Marks = marks) -> Race:
    """A contender that iterates over the whole tensor, from factors of the seed."""

    def race(seed: int, warming: bool) -> Curve:
        K = 2 if warming else iterations
        factors = [U.copy() for U in start(data.shape, rank, seed)]
        each = seconds(lambda: iterate([U.copy() for U in factors], K)) / K
        curve, before = [], 0
        for k in at(K):
            found = iterate([U.copy() for U in factors], k - before)
            factors, before = [np.ascontiguousarray(U) for U in found], k
            curve.append(Mark(k, k * each, error_of(data, factors)))
        return curve

    return race


def in_turns(racers: Mapping[str, Race], count: int, say: Callable[[int], None]) -> dict[str, list[Curve]]:
    """The curves of all, seed by seed on one thread; a first run of each, which compiles and warms, does not count."""
    runs: dict[str, list[Curve]] = {name: [] for name in racers}
    with one_thread():
        for race in racers.values():
            race(count, True)
        for seed in range(count):
            for name, race in racers.items():
                runs[name].append(race(seed, False))
            say(seed + 1)
    return runs
