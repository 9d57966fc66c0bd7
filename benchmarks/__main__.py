"""Run the benchmarks and write their tables to benchmarks/results."""

import json
from pathlib import Path

from benchmarks import messages, recovery, schedules

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Each benchmark returns rows; a table is printed, the rows are kept as JSON."""
    RESULTS.mkdir(exist_ok=True)
    for benchmark in (schedules, messages, recovery):
        rows = benchmark.run()
        (RESULTS / f"{benchmark.__name__.rsplit('.', 1)[-1]}.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
