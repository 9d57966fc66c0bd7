"""One step against the machine: which share of its limit a step of `Learner` reaches, and what a second thread brings.

**Limit.** With M = ∏Iᵢ cells, a step must do 4MRb + 4MR flops (X is contracted for the codes and added to B; B is
contracted for the loadings) and move B in, B out and X in. The limit is the larger of

    flops / (rate of a matrix product of that dtype)    and    bytes / (rate of a copy)

on one core. The copy moves just these bytes, half read and half written, so it works in a set of memory as large as
the problem's: what lives in a cache is measured against that cache.

**Step.** A stream of nonnegative mixtures of R atoms (a third of the loadings and half of the codes are zero) with
noise; `WARM` steps go before. Then blocks of fresh minibatches are made outside of the clock, and product, copy and all
contenders take turns on every block. As in the service, a minibatch is gathered into a place that is always the same,
which copies and checks it, and then learned in place: so it is as warm as there, and as what the yardstick copies. Who
comes first changes from block to block: yardsticks leave the caches to who comes after them.
`achieved` is the median of the steps, CPU time on one thread and wall time on two; `gather` that of what went before,
wall time. The limit is the median over the blocks, and `best` is the share that the shortest times give. Shares of two
threads are of the same limit of one core. `speedup` is the ratio of wall times; `products` and `copies` are those of
two matrix products and of the copy, half on each of two cores: what the machine's second core is worth at that time
(a step was seen to gain more than the copy, which writes more). How often a radius was active, and how often every
sub-problem settled, is in the JSON.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod

import numpy as np

from benchmarks.measure import FULL, Options, Row, one_thread, seconds, table
from stream_ocpdl import Learner, Problem, Step, Workers
from stream_ocpdl.ocpdl import arrays
from stream_ocpdl.ocpdl.batch import fill

KEYS = ("case", "dtype", "threads")
RATIOS = {"share": "higher", "speedup": "higher"}

WARM = 30
"""Steps before any counts: the loadings have settled, weights are small."""

BLOCK = 64e6
"""Bytes of minibatches that are made at once."""

MUCH = 50e6
"""Bytes from which on a copy is made by two threads, too: less stays in a cache."""

SIDE = 768
"""Rows and columns of the matrices whose product gives the rate."""

COLUMNS = {
    "case": "",
    "shape": "",
    "b": "",
    "R": "",
    "dtype": "",
    "threads": "",
    "bound": "",
    "limit_us": ".1f",
    "achieved_us": ".1f",
    "gather_us": ".1f",
    "share": ".1%",
    "best": ".1%",
    "speedup": ".2f",
    "products": ".2f",
    "copies": ".2f",
    "steps": "",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A problem by its sizes."""

    name: str
    shape: tuple[int, ...]
    b: int
    R: int

    def problem(self, dtype: str) -> Problem:
        """The problem with everything else as it is by default."""
        return Problem(shape=self.shape, rank=self.R, batch_size=self.b, dtype=dtype)

    @property
    def flops(self) -> int:
        """4MRb + 4MR."""
        return 4 * prod(self.shape) * self.R * (self.b + 1)

    def bytes(self, dtype: str) -> int:
        """B in, B out, X in."""
        return prod(self.shape) * (2 * self.R + self.b) * np.dtype(dtype).itemsize


CASES = (
    Case("a", (100, 100), 20, 5),
    Case("a large", (1000, 1000), 20, 5),
    Case("b", (20, 20, 3), 10, 24),
    Case("b'", (20, 20, 3), 100, 24),
    Case("c", (50, 60000), 1, 20),
    Case("d", (36, 24, 4), 1, 25),
)
DTYPES = ("float64", "float32")
THREADS = (1, 2)


def run(options: Options = FULL, cases: tuple[Case, ...] = CASES) -> list[Row]:
    """Every case, dtype and number of threads."""
    rows: list[Row] = []
    with one_thread():
        for case in cases:
            found = measure(case, *((1.5, 7) if options.quick else (5.0, 15)))
            rows += found
            print(f"tolerance {case.problem('float64').tolerance:g}, {os.cpu_count()} cores")
            table(found, COLUMNS)
    return rows


@dataclass(slots=True)
class Contender:
    """A learner and the times of its steps."""

    learner: Learner
    place: np.ndarray
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    gather: list[float] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def step(self, X: np.ndarray) -> None:
        """Gather, then learn, and take the time by both clocks."""
        began = time.perf_counter()
        minibatch, _ = fill(self.learner.problem, list(X), self.place, self.learner.workers)
        self.gather.append(time.perf_counter() - began)
        wall, cpu = time.perf_counter(), time.process_time()
        step = self.learner.step(minibatch)
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)
        self.steps.append(step)

    def forget(self) -> None:
        """What was measured so far was warming up."""
        for kept in (self.wall, self.cpu, self.gather, self.steps):
            kept.clear()

    @property
    def times(self) -> list[float]:
        """CPU time for one thread: others on the machine do not count. Wall time for more.

        The clock of CPU time was seen to stand still for a step: that one is left out.
        """
        return [cpu for cpu in self.cpu if cpu > 0.0] if self.learner.workers.threads == 1 else self.wall


def measure(case: Case, budget: float, least: int) -> list[Row]:
    """Rows of a case: blocks of steps until each contender has had at least `budget` seconds and `least` blocks."""
    stream, pool = blocks(case), [Workers(threads) for threads in THREADS]
    contenders = {
        (dtype, workers.threads): Contender(
            Learner(case.problem(dtype), workers=workers, in_place=True), arrays.empty((case.b, *case.shape), dtype)
        )
        for dtype in DTYPES
        for workers in pool
    }
    yardsticks = {dtype: Yardstick(case, dtype) for dtype in DTYPES}
    while min(one.learner.state.t for one in contenders.values()) < WARM:
        turn(next(stream), contenders, {})
    for contender in contenders.values():
        contender.forget()
    turns = 0
    while turns < least or min(sum(one.wall) for one in contenders.values()) < budget:
        turn(next(stream), contenders, yardsticks, THREADS if turns % 2 == 0 else THREADS[::-1])
        turns += 1
    for workers in pool:
        workers.close()
    return [row(case, *key, contenders, yardsticks) for key in contenders]


def turn(
    block: np.ndarray,
    contenders: dict[tuple[str, int], Contender],
    yardsticks: "dict[str, Yardstick]",
    order: tuple[int, ...] = THREADS,
) -> None:
    """One block for everyone, in this order. Yardsticks stand in the middle of those they measure."""
    for dtype in DTYPES:
        minibatches = block.astype(dtype)
        for threads in order:
            for X in minibatches:
                contenders[dtype, threads].step(X)
            if threads == order[0] and dtype in yardsticks:
                yardsticks[dtype].measure()


def blocks(case: Case) -> Iterator[np.ndarray]:
    """Endless blocks (k, b, I₁…Iₙ) of k fresh minibatches: H · atoms + noise of a tenth of the mean."""
    random, M = np.random.default_rng(0), prod(case.shape)
    atoms = np.ones((case.R, 1))
    for rows in case.shape:
        U = random.random((case.R, rows)) * (random.random((case.R, rows)) > 1 / 3)
        atoms = (atoms[:, :, None] * U[:, None, :]).reshape(case.R, -1)
    k = int(np.clip(BLOCK // (8 * case.b * M), 1, 50))
    cells = k * case.b * M
    # Drawing noise anew would take longer than a step: a long piece is drawn, and each block begins elsewhere in it.
    noise = 0.1 * atoms.mean() * case.R * random.random(cells + cells // 4 + 1)
    while True:
        H = random.exponential(size=(k * case.b, case.R)) * (random.random((k * case.b, case.R)) > 1 / 2)
        X = (H @ atoms).reshape(-1)
        start = random.integers(len(noise) - cells)
        X += noise[start : start + cells]
        yield X.reshape(k, case.b, *case.shape)


class Yardstick:
    """The rates of one core, measured for the sizes of a case: a product of matrices and a copy."""

    def __init__(self, case: Case, dtype: str) -> None:
        random = np.random.default_rng(0)
        self._factors = [random.random((SIDE, SIDE)).astype(dtype) for _ in range(2)]
        self._products = [np.empty((SIDE, SIDE), dtype) for _ in range(2)]
        self._from, self._to = (np.ones(case.bytes(dtype) // 2, np.uint8) for _ in range(2))
        self._repeats = max(1, int(4e6 // len(self._from)))
        self.flops, self.bytes = case.flops, 2 * len(self._from)
        self.product: list[float] = []
        self.copy: list[float] = []
        self.products: list[float] = []
        self.copies: list[float] = []

    def measure(self) -> None:
        """Seconds of a flop and of a byte; each after one that does not count, which brings its memory in."""
        for kept in (False, True):
            gemm = seconds(lambda: self._multiply(0))
            if kept:
                self.product.append(gemm / (2 * SIDE**3))
        for kept in (False, True):
            copy = seconds(lambda: [np.copyto(self._to, self._from) for _ in range(self._repeats)])
            if kept:
                self.copy.append(copy / (self._repeats * self.bytes))
        self.products.append(gained(lambda: self._multiply(0), lambda: self._multiply(1)))
        if self.bytes > MUCH:
            self.copies.append(gained(lambda: self._copy(0), lambda: self._copy(1)))

    def _multiply(self, which: int) -> None:
        np.matmul(*self._factors, out=self._products[which])

    def _copy(self, which: int) -> None:
        half = len(self._from) // 2
        part = slice(which * half, (which + 1) * half)
        np.copyto(self._to[part], self._from[part])

    def limit(self, statistic: Callable[[list[float]], float] = np.median) -> tuple[float, str]:
        """Seconds of the limit, and what sets it."""
        flops, moved = self.flops * statistic(self.product), self.bytes * statistic(self.copy)
        return (float(flops), "flops") if flops > moved else (float(moved), "bytes")


def gained(first: Callable[[], None], second: Callable[[], None]) -> float:
    """How many times as fast two threads are, with one call each, as one with both; wall time."""
    with ThreadPoolExecutor(1) as other:
        other.submit(int).result()
        began = time.perf_counter()
        first()
        second()
        alone = time.perf_counter() - began
        began = time.perf_counter()
        rest = other.submit(second)
        first()
        rest.result()
        both = time.perf_counter() - began
    return alone / both


def row(
    case: Case,
    dtype: str,
    threads: int,
    contenders: dict[tuple[str, int], Contender],
    yardsticks: dict[str, Yardstick],
) -> Row:
    """What a contender reached."""
    mine, yardstick = contenders[dtype, threads], yardsticks[dtype]
    limit, bound = yardstick.limit()
    alone = contenders[dtype, 1].wall
    return {
        "case": case.name,
        "shape": "×".join(map(str, case.shape)),
        "b": case.b,
        "R": case.R,
        "dtype": dtype,
        "threads": threads,
        "tolerance": mine.learner.problem.tolerance,
        "bound": bound,
        "limit_us": 1e6 * limit,
        "achieved_us": 1e6 * float(np.median(mine.times)),
        "gather_us": 1e6 * float(np.median(mine.gather)),
        "share": limit / float(np.median(mine.times)),
        "best": yardstick.limit(np.min)[0] / min(mine.times),
        "speedup": float(np.median(alone) / np.median(mine.wall)) if threads > 1 else None,
        "products": float(np.median(yardstick.products)) if threads > 1 else None,
        "copies": float(np.median(yardstick.copies)) if threads > 1 and yardstick.copies else None,
        "steps": len(mine.times),
        "radius_active": float(np.mean([any(step.radius_active) for step in mine.steps])),
        "settled": float(np.mean([all(step.settled) and step.coding.settled for step in mine.steps])),
        "gflops": 1e-9 / float(np.median(yardstick.product)),
        "gb_s": 1e-9 / float(np.median(yardstick.copy)),
    }
