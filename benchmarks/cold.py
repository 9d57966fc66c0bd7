"""What a process pays before its first step is done.

Each measurement is a process of its own, wall time from outside, the shortest of several. `import` only imports the
package; `first` imports it and makes one step of a small problem. The kernels are compiled once a machine: into an
empty cache (a directory of this benchmark's own) for `empty`, from then on they are read, for `warm`, as Python's own
bytecode is. What the first
step costs is the difference to the import; with a warm cache it must be below `LIMIT` seconds.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import FULL, Options, Row, table

KEYS = ("dtype",)
RATIOS = {"share": "lower"}
"""The first step against the import, with a warm cache."""

LIMIT = 1.0

IMPORT = "import stream_ocpdl"
FIRST = """
import numpy as np
from stream_ocpdl import Learner, Problem
X = np.random.default_rng(0).random((10, 20, 20, 3), dtype="{dtype}")
Learner(Problem(shape=(20, 20, 3), rank=24, batch_size=10, dtype="{dtype}")).step(X)
"""

COLUMNS = {"dtype": "", "import_s": ".3f", "warm_s": ".3f", "step_s": ".3f", "share": ".2f", "empty_s": ".1f"}


def run(options: Options = FULL) -> list[Row]:
    """A row for each dtype."""
    turns = 3 if options.quick else 10
    rows = [measure(dtype, turns) for dtype in ("float64", "float32")]
    print(f"seconds of a process: shortest of {turns}; a first step with a warm cache must take less than {LIMIT:g} s")
    table(rows, COLUMNS)
    for row in rows:
        if not row["holds"]:
            print(f"{row['dtype']}: the first step takes {row['step_s']:.2f} s")
    return rows


def measure(dtype: str, turns: int) -> Row:
    """Import and first step in turns, after a first step that had to compile."""
    first = FIRST.format(dtype=dtype)
    with tempfile.TemporaryDirectory() as cache:
        empty = process(first, cache)
        pairs = [(process(IMPORT, cache), process(first, cache)) for _ in range(turns)]
    imported, warm = (min(times) for times in zip(*pairs, strict=True))
    return {
        "dtype": dtype,
        "import_s": imported,
        "warm_s": warm,
        "step_s": warm - imported,
        "share": (warm - imported) / imported,
        "holds": warm - imported < LIMIT,
        "empty_s": empty,
    }


def process(program: str, cache: str) -> float:
    """Wall seconds of a Python process that keeps its kernels in `cache`, and there its bytecode too.

    Where a machine forbids bytecode on disk, every process would compile the 300 modules of NumPy and Numba again.
    """
    root = str(Path(__file__).parents[1])
    environment = os.environ | {"NUMBA_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": cache, "PYTHONPATH": root}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)  # noqa: S603
    return time.perf_counter() - began
