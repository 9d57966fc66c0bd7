"""Run benchmarks, or compare what they wrote: `python -m benchmarks [NAME…] [--quick]`, `… compare OLD NEW`."""

import argparse
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from benchmarks import compare
from benchmarks.measure import Options, Row
from stream_ocpdl.fingerprint import conditions

RESULTS = Path(__file__).parent / "results"

NAMES = (
    "limit",
    "peers",
    "matrices",
    "sparse",
    "growth",
    "cold",
    "schedules",
    "drift",
    "theorem",
    "staleness",
    "delays",
    "weather",
    "messages",
    "sink",
    "recovery",
    "throughput",
    "encoders",
    "workers",
    "shards",
    "soak",
)
"""In the order in which they run."""


def main(arguments: list[str]) -> int:
    """Each benchmark prints a table and returns rows, which are kept as JSON, with a plot if there is one."""
    if arguments[:1] == ["compare"]:
        return compare.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="short runs: for a look, not for figures")
    parser.add_argument("--authors", type=Path, metavar="PATH", help="a checkout of HanbaekLyu/OnlineCPDL, for peers")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        default=os.environ.get("OCPDL_DATA"),
        help="data of weather and sparse, a file or a folder; OCPDL_DATA if it is not given",
    )
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="of sink, the rows that have it")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    options = Options(given.quick, given.authors, given.data, tuple(given.only))
    for name in given.names or NAMES:
        print(f"\n{name}", flush=True)
        benchmark = import_module(f"benchmarks.{name}")
        keep(name, benchmark, benchmark.run(options), options)
    return 0


def keep(name: str, benchmark: ModuleType, rows: list[Row], options: Options) -> None:
    """Write the rows, with what `compare` must know of them, and the plot."""
    RESULTS.mkdir(exist_ok=True)
    document = {
        "benchmark": name,
        "quick": options.quick,
        "conditions": conditions(),
        "keys": benchmark.KEYS,
        "ratios": benchmark.RATIOS,
        "rows": rows,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    if hasattr(benchmark, "plot"):
        benchmark.plot(rows, RESULTS / f"{name}.png")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
