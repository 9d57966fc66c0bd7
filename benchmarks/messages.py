"""How long a message takes to read, and how fast tensors get from messages into a minibatch, checked.

Both write to the same memory, which has been written before: fresh memory costs a page fault every 4 KB (or 2 MB),
which is the system's price and not the copy's. What a step pays with fresh memory is in the columns of `gather` and
`np.stack`. Contenders take turns, and the best turn of each counts.
"""

import time
import timeit
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.measure import FULL, Options, Row
from stream_ocpdl import Problem
from stream_ocpdl.ocpdl.batch import fill, gather
from stream_ocpdl.stream.messages import Tensor, unframe

SIZES = (100_000, 1_000_000, 10_000_000)
MINIBATCH = 40_000_000
"""Bytes of all rows: more than the caches of one core hold."""

KEYS = ("source", "dtype", "bytes")
RATIOS = {"ratio": "higher", "fresh": "higher"}

COLUMNS = ("fill", "copyto", "ratio", "gather", "stack", "fresh")
"""The fused copy and the plain one into memory that is there, and the same two into fresh memory."""


def run(options: Options = FULL) -> list[Row]:
    """Microseconds of reading, then bytes of the source a second by the dtypes of source and problem and by size."""
    turns = 3 if options.quick else 15
    rows: list[Row] = list(reading())
    print("GB/s of the source, one core")
    print(f"{'from → to':18} {'bytes':>8}" + "".join(f"{name:>8}" for name in COLUMNS))
    for source, dtype in (("float64", "float64"), ("float32", "float32"), ("float32", "float64"), ("uint8", "float32")):
        for size in SIZES:
            row = measure(source, dtype, size, turns)
            row |= {"ratio": row["fill"] / row["copyto"], "fresh": row["gather"] / row["stack"]}
            rows.append({"source": source, "dtype": dtype, "bytes": size, **row})
            print(
                f"{source + ' → ' + dtype:18} {size:8}" + "".join(f"{row[name]:8.2f}" for name in COLUMNS), flush=True
            )
    return rows


def reading() -> Iterator[Row]:
    """Microseconds of Python until a message is an array: its header was seen before, or not, or has a checksum."""
    print("µs to read a message\n" + f"{'bytes':>10}" + "".join(f"{name:>12}" for name in ("known", "new", "checksum")))
    for size in (1_000, 1_000_000):
        X = np.random.default_rng(0).random(size // 8)
        known, checked = Tensor(X, ("cell",)).to_bytes(), Tensor(X, ("cell",)).to_bytes(crc=True)
        ways = {
            "known": lambda value=known: Tensor.from_bytes(value),
            "new": lambda value=known: Tensor.read(*unframe(value)),
            "checksum": lambda value=checked: Tensor.from_bytes(value),
        }
        took = {name: 1e6 * min(timeit.repeat(way, number=1000, repeat=9)) / 1000 for name, way in ways.items()}
        print(f"{size:10}" + "".join(f"{us:12.2f}" for us in took.values()), flush=True)
        yield {"reading": size, **took}


def measure(source: str, dtype: str, size: int, turns: int) -> dict[str, float]:
    """GB/s of the fused copy and of a plain one: into memory that is there, and into fresh memory."""
    cells, b = size // np.dtype(source).itemsize, MINIBATCH // size
    random = np.random.default_rng(0)
    rows = [np.frombuffer((255 * random.random(cells)).astype(source).tobytes(), source) for _ in range(b)]
    problem = Problem(shape=(cells,), rank=1, dtype=dtype)
    out = np.ones((b, cells), dtype)

    def plain() -> None:
        for j, row in enumerate(rows):
            np.copyto(out[j], row)

    contenders = {
        "fill": lambda: fill(problem, rows, out),
        "copyto": plain,
        "gather": lambda: gather(problem, rows),
        "stack": lambda: np.stack(rows, dtype=dtype, casting="unsafe"),
    }
    seconds = best(contenders, turns)
    return {name: b * size / took / 1e9 for name, took in seconds.items()}


def best(contenders: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """The shortest time of each, taken in turns after one that does not count."""
    seconds = dict.fromkeys(contenders, float("inf"))
    for turn in range(turns + 1):
        for name, contender in contenders.items():
            began = time.perf_counter()
            contender()
            took = time.perf_counter() - began
            if turn > 0:
                seconds[name] = min(seconds[name], took)
    return seconds
