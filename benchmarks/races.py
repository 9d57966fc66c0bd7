"""Time to error: what a benchmark makes of the curves of contenders that ran for the same seeds."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path

import numpy as np

from benchmarks.measure import Row, finite, spread, table, time_to

OURS = "stream_ocpdl"

KEYS = ("contender", "within")
RATIOS = {"ratio": "higher"}
"""How many times longer than ours a contender takes, in the same run."""

Curve = list[tuple[float, float]]
"""(CPU seconds, error), step by step."""


def lowest(curves: Iterable[Curve]) -> float:
    """The least error of all curves."""
    return min(error for curve in curves for _, error in curve)


def results(curves: Mapping[str, Sequence[Curve]], best: float, percents: Sequence[int]) -> list[Row]:
    """A row for each contender and percentage above the best error: CPU ms, over the seeds, to come so near."""
    return [_row(name, within, best, curves) for name in curves for within in percents]


def _row(name: str, within: int, best: float, curves: Mapping[str, Sequence[Curve]]) -> Row:
    """Median, least and greatest; null is never."""
    level = best * (1 + within / 100)
    median, least, greatest = spread(time_to(curve, level) for curve in curves[name])
    ours = spread(time_to(curve, level) for curve in curves[OURS])[0]
    return {
        "contender": name,
        "within": within,
        "best": best,
        "final": spread(lowest([curve]) for curve in curves[name])[0],
        "ms": finite(1e3 * median),
        "least": finite(1e3 * least),
        "greatest": finite(1e3 * greatest),
        "ratio": finite(median / ours) if ours < inf else None,
        "curve": [(1e3 * spent, error) for spent, error in curves[name][0]],
    }


def report(rows: Sequence[Row]) -> None:
    """One line a contender."""
    lines: dict[str, Row] = {}
    for row in rows:
        line = lines.setdefault(row["contender"], {"contender": row["contender"], "final": f"{row['final']:.5f}"})
        line[f"{row['within']} %"] = _cell(row)
    table(list(lines.values()), dict.fromkeys((name for line in lines.values() for name in line), ""))


def _cell(row: Row) -> str | None:
    """Median (least – greatest) ×ratio."""
    if row["ms"] is None:
        return None
    greatest = "never" if row["greatest"] is None else f"{row['greatest']:.1f}"
    times = f" ×{row['ratio']:.1f}" if row["ratio"] is not None and row["contender"] != OURS else ""
    return f"{row['ms']:.1f} ({row['least']:.1f} – {greatest}){times}"


def plot(rows: Sequence[Row], path: Path) -> None:
    """Error above the best against CPU time, of the first seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    for name, row in {row["contender"]: row for row in rows}.items():
        spent, error = np.array(row["curve"]).T
        axes.loglog(spent, np.maximum(100 * (error / row["best"] - 1), 1e-2), label=name)
    axes.set(xlabel="ms of CPU", ylabel="above the best of the run, %", ylim=(0.05, 300))
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120, bbox_inches="tight")
