"""What the benchmarks share: options, clocks, turns, tables, and the arithmetic of curves.

Machines are noisy, so contenders take turns in one run, and what is compared are ratios of the same run. Clocks
are those of the paper's experiments.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log
from pathlib import Path
from typing import Any

import numpy as np

from stream_ocpdl.experiments.races import one_thread, seconds

__all__ = [
    "FULL",
    "Options",
    "Row",
    "finite",
    "in_turns",
    "one_thread",
    "seconds",
    "slope",
    "spread",
    "table",
    "time_to",
]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """How to run: `quick` for a look, `authors` for a checkout of the paper's code, `data` for a directory of data,
    `only` for what rows must have in their names.
    """

    quick: bool = False
    authors: Path | None = None
    data: Path | None = None
    only: tuple[str, ...] = ()


FULL = Options()
"""As `make bench` runs."""


def in_turns(contenders: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """CPU seconds of each contender, turn by turn; a turn that does not count goes before."""
    took: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, contender in contenders.items():
            spent = seconds(contender)
            if turn > 0:
                took[name].append(spent)
    return took


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent k of y ∝ xᵏ: least squares on both logarithms.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit([log(value) for value in x], [log(value) for value in y], 1)[0])


def time_to(curve: Sequence[tuple[float, float]], level: float) -> float:
    """When a curve of (seconds, error) first comes down to the level; inf if it never does.

    Between two points the logarithm of the error is taken to be linear in time: errors fall by factors. A curve that
    is below from its first point on got there at that point, since nothing is known of the time before.

    >>> time_to([(0.0, 8.0), (1.0, 2.0), (2.0, 1.0)], 4.0)
    0.5
    """
    before: tuple[float, float] | None = None
    for now, error in curve:
        if error <= level:
            return now if before is None else _crossing(before, (now, error), level)
        before = (now, error)
    return inf


def _crossing(before: tuple[float, float], after: tuple[float, float], level: float) -> float:
    """Where the straight line between two points, errors as logarithms, meets the level."""
    (t0, e0), (t1, e1) = before, after
    if not 0 < e1 < level:
        return t1
    return t0 + (t1 - t0) * log(e0 / level) / log(e0 / e1) if e0 < inf else t1


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Median, least and greatest. The median of an even number is the greater of the middle two: it may be inf."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[0], ordered[-1]


def table(rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    """Print rows; `columns` says which, and in what format."""
    cells = [[_cell(row.get(name), form) for name, form in columns.items()] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in ([*columns], *cells):
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)), flush=True)


def _cell(value: object, form: str) -> str:
    """A value as text; what is missing or was never reached is a dash."""
    return "–" if value is None or value == inf else format(value, form)


def finite(value: float) -> float | None:
    """JSON knows no infinity: what was never reached is null."""
    return float(value) if value < inf else None
