"""How the time and the memory of a step grow with M = ∏Iᵢ, R, b and n; and what large problems take.

**Growth.** One size is varied at a time, by factors, around `BASE`; M stays what it is while n varies. Time is the
median CPU time of steps on one thread, all sizes in turns, on the stream of `limit` after some warming up. Memory is
the peak of what NumPy allocates (tracemalloc) for a learner and two of its steps, without the minibatch, which
was there before. What compiled kernels allocate inside is not seen by it; that is what the second table is for.
The slope is the exponent k of a power law through all sizes; `doubling` is 2ᵏ, the factor that a doubling costs. With
n = 1 the one loading matrix is as large as B, which is another kind of problem: it is shown, and no slope sees it.

**Peak.** A process of its own, with mixtures of R atoms and noise: peak resident memory (VmHWM of Linux) of a learner
and two steps beyond what the process held with its minibatches before, in multiples of B, and the time of the second
step. The full-resolution video clip must stay below `MOST_GB` in all.
"""

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import numpy as np

from benchmarks.limit import Case, blocks
from benchmarks.measure import FULL, Options, Row, one_thread, seconds, slope, table
from stream_ocpdl import Learner

KEYS = ("measured", "value", "dtype", "in_place")
RATIOS = {"doubling": "lower", "memory_doubling": "lower", "multiple": "lower"}

BASE = Case("base", (256, 256), 16, 8)

VARIED = {
    "M": [Case(f"{side * side}", (side, side), 16, 8) for side in (64, 128, 256, 512, 1024)],
    "R": [Case(f"{R}", (256, 256), 16, R) for R in (4, 8, 16, 32, 64)],
    "b": [Case(f"{b}", (256, 256), b, 8) for b in (4, 16, 64, 256)],
    "n": [Case(f"{n}", (2 ** (16 // n),) * n, 16, 8) for n in (1, 2, 4, 8, 16)],
}

LARGE = [(Case("a large", (1000, 1000), 20, 5), "float64"), (Case("c", (50, 60000), 1, 20), "float32")]
VIDEO = (Case("video clip", (50, 460_080), 1, 20), "float32")
MOST_GB = 6.0

GROWTH = {"measured": "", "value": "", "shape": "", "us": ".0f", "peak_mb": ".1f"}
GROWTH |= dict.fromkeys(("slope", "doubling", "memory_slope", "memory_doubling"), ".2f")
PEAK = {"value": "", "dtype": "", "in_place": "", "B_gb": ".2f", "multiple": ".2f", "peak_gb": ".2f", "step_s": ".2f"}


def run(options: Options = FULL) -> list[Row]:
    """Both tables."""
    warm, turns = (3, 5) if options.quick else (20, 40)
    rows: list[Row] = []
    with one_thread():
        for varied, cases in VARIED.items():
            rows += growth(varied, cases[:3] if options.quick else cases, warm, turns)
    print(f"around shape {BASE.shape}, b = {BASE.b}, R = {BASE.R}; tolerance {BASE.problem('float64').tolerance:g}")
    table(rows, GROWTH)
    sizes = LARGE if options.quick else [*LARGE, VIDEO]
    large = [peak(*one, in_place) for one in sizes for in_place in (True, False)]
    print("peak of a process with two steps, in place (as the service steps) and not: multiples of B beyond the data;")
    print(f"the video clip must stay below {MOST_GB:g} GB")
    table(large, PEAK)
    for row in large:
        if row["peak_gb"] > MOST_GB:
            print(f"{row['value']}: the peak is above {MOST_GB:g} GB")
    return [*rows, *large]


def growth(varied: str, cases: Sequence[Case], warm: int, turns: int) -> list[Row]:
    """A row for each size, and one for the slopes."""
    times, peaks = step_seconds(cases, warm, turns), [peak_bytes(case) for case in cases]
    sizes = [float(case.name) for case in cases]
    rows: list[Row] = [
        {
            "measured": varied,
            "value": case.name,
            "dtype": "float64",
            "shape": "×".join(map(str, case.shape)),
            "us": 1e6 * took,
            "peak_mb": peak / 1e6,
            "size": size,
        }
        for case, took, peak, size in zip(cases, times, peaks, sizes, strict=True)
    ]
    fitted = [j for j, case in enumerate(cases) if len(case.shape) > 1]
    time_slope, memory_slope = (
        slope([sizes[j] for j in fitted], [values[j] for j in fitted]) for values in (times, peaks)
    )
    slopes = {"slope": time_slope, "doubling": 2**time_slope}
    slopes |= {"memory_slope": memory_slope, "memory_doubling": 2**memory_slope}
    return [*rows, {"measured": varied, "value": "slope", "dtype": "float64", **slopes}]


def step_seconds(cases: Sequence[Case], warm: int, turns: int) -> list[float]:
    """Median CPU seconds of a step of each case, in turns."""
    streams = [minibatches(case) for case in cases]
    learners = [Learner(case.problem("float64")) for case in cases]
    took: list[list[float]] = [[] for _ in cases]
    for turn in range(warm + turns):
        for learner, stream, times in zip(learners, streams, took, strict=True):
            X = next(stream)
            spent = seconds(lambda learner=learner, X=X: learner.step(X))
            if turn >= warm:
                times.append(spent)
    return [float(np.median(times)) for times in took]


def minibatches(case: Case) -> Iterator[np.ndarray]:
    """Endless minibatches of the stream of `limit`."""
    for block in blocks(case):
        yield from block


def peak_bytes(case: Case) -> float:
    """The peak of NumPy's allocations for a learner and two steps, without the minibatches."""
    stream = minibatches(case)
    first, second = next(stream), next(stream)
    tracemalloc.start()
    learner = Learner(case.problem("float64"))
    learner.step(first)
    learner.step(second)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(peak)


PROGRAM = """
import json, sys, time
from math import prod
import numpy as np
from stream_ocpdl import Learner, Problem
from stream_ocpdl.ocpdl import blocks

def memory(name):
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(name + ":"))

def minibatches(shape, b, R, dtype):
    random = np.random.default_rng(0)
    first, last = (random.random((size, R), dtype=dtype) for size in (prod(shape[:-1]), shape[-1]))
    for _ in range(2):
        X = np.empty((b, len(first), len(last)), dtype)
        for Y, h in zip(X, random.exponential(size=(b, R)).astype(dtype)):
            Y[:] = (first * h) @ last.T
            Y += random.random(Y.shape, dtype=dtype)
        yield X.reshape(b, *shape)

shape, b, R, dtype, in_place = json.loads(sys.argv[1])
small, large = (*(min(size, 20) for size in shape[:-1]), min(shape[-1], 200)), blocks.LARGE
for blocks.LARGE in (0, large):  # the kernels of both ways are loaded before anything counts
    problem = Problem(shape=small, rank=R, batch_size=b, dtype=dtype)
    Learner(problem, in_place=in_place).step(next(minibatches(small, b, R, dtype)))
X = list(minibatches(shape, b, R, dtype))
held = memory("VmRSS")
learner = Learner(Problem(shape=tuple(shape), rank=R, batch_size=b, dtype=dtype), in_place=in_place)
learner.step(X[0])
began = time.perf_counter()
learner.step(X[1])
print(json.dumps({"step_s": time.perf_counter() - began, "held": held, "peak": memory("VmHWM")}))
"""


def peak(case: Case, dtype: str, in_place: bool) -> Row:
    """A process that makes two steps: its peak, what of it the learner had, and the time of the second step.

    Kernels are loaded before. All but small arrays are given back to the system when they end, so that none of what
    the making of the minibatches left behind is used again unseen.
    """
    arguments = json.dumps([case.shape, case.b, case.R, dtype, in_place])
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", PROGRAM, arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"},
    )
    found = json.loads(done.stdout)
    B = prod(case.shape) * case.R * np.dtype(dtype).itemsize
    return {
        "measured": "peak",
        "value": case.name,
        "dtype": dtype,
        "in_place": in_place,
        "B_gb": B / 1e9,
        "multiple": (found["peak"] - found["held"]) / B,
        "peak_gb": found["peak"] / 1e9,
        "step_s": found["step_s"],
    }


def plot(rows: Sequence[Row], path: Path) -> None:
    """Time and memory against each size, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6))
    axes = figure.subplots(2, len(VARIED), sharey="row")
    for column, varied in enumerate(VARIED):
        sizes = [row for row in rows if row["measured"] == varied and "us" in row]
        slopes = next(row for row in rows if row["measured"] == varied and row["value"] == "slope")
        for line, (name, exponent) in enumerate((("us", "slope"), ("peak_mb", "memory_slope"))):
            axes[line][column].loglog([row["size"] for row in sizes], [row[name] for row in sizes], "o-")
            axes[line][column].set_xscale("log", base=2)
            axes[line][column].set(xlabel=varied, title=f"slope {slopes[exponent]:.2f}")
    axes[0][0].set_ylabel("µs a step")
    axes[1][0].set_ylabel("peak, MB")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
