"""A regression check: `python -m benchmarks compare OLD.json NEW.json [--tolerance 1.15]`.

Absolute times of two runs say little: machines differ, and one machine differs from itself. What is compared are the
ratios that a benchmark measured within one run (shares of a limit, multiples of a rival's time), row by row. A file
says itself which columns name a row (`keys`) and which are ratios, with the direction that is better (`ratios`).
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.measure import Row

Document = Mapping[str, Any]


class NotComparableError(Exception):
    """Two files do not tell of the same thing."""


@dataclass(frozen=True, slots=True)
class Change:
    """A ratio that both files have. `factor` is how much worse it got: above one worse, below one better."""

    row: tuple[Any, ...]
    column: str
    old: float | None
    new: float | None
    factor: float

    def __str__(self) -> str:
        name = ", ".join(map(str, self.row))
        return f"{name}: {self.column} {_text(self.old)} → {_text(self.new)} ({self.factor:.2f}× worse)"


def main(arguments: Sequence[str]) -> int:
    """0 if nothing got worse, 1 if something did, 2 if the files cannot be compared."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--tolerance", type=float, default=1.15, help="by which factor a ratio may be worse")
    given = parser.parse_args(arguments)
    old, new = (json.loads(path.read_text()) for path in (given.old, given.new))
    try:
        found = list(changes(old, new))
    except NotComparableError as error:
        print(error)
        return 2
    worse = [change for change in found if change.factor > given.tolerance]
    for change in sorted(worse, key=lambda change: -change.factor):
        print(change)
    print(f"{len(found)} ratios compared, {len(worse)} worse by more than {given.tolerance:g}×")
    return 1 if worse else 0


def changes(old: Document, new: Document) -> Iterator[Change]:
    """Every ratio of every row that the old file has.

    A row that the new file has lost counts as infinitely worse, else a benchmark could be passed by measuring less. So
    does a value that was there and is not any more: a contender or a level that is never reached now.
    """
    for name in ("benchmark", "quick", "keys", "ratios"):
        if old[name] != new[name]:
            raise NotComparableError(f"the files differ in {name!r}: {old[name]!r}, {new[name]!r}")
    rows = by_name(new["rows"], new["keys"])
    for name, row in by_name(old["rows"], old["keys"]).items():
        for column, better in old["ratios"].items():
            before, after = row.get(column), rows.get(name, {}).get(column)
            if before is not None:
                yield Change(name, column, before, after, factor(before, after, better))


def by_name(rows: Sequence[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], Row]:
    """Rows by their identifying columns, which must tell them apart."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        name = tuple(row.get(key) for key in keys)
        if name in found:
            raise NotComparableError(f"two rows are called {name}")
        found[name] = row
    return found


def factor(old: float, new: float | None, better: str) -> float:
    """How many times worse `new` is.

    >>> factor(0.5, 0.25, "higher"), factor(2.0, 1.0, "lower")
    (2.0, 0.5)
    """
    if new is None:
        return inf
    worse, good = (old, new) if better == "higher" else (new, old)
    return worse / good if good > 0 else inf


def _text(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.4g}"
