"""A year of weather with gaps: the error on observed cells that were held out.

**Data.** `weather_36x8737x4_raw.npz` in the directory that --data or OCPDL_DATA names: 36 cities × hours ×
(temperature in K, humidity in %, pressure in hPa, wind in m/s), with NaN. A tensor is a day, 36 × 24 × 4; 14 of them
are a minibatch, in their order. Of the observed cells 10 % are held out, drawn with a seed, from learning as well as
from coding.

**Beside it** stands the mean of city and hour: of each city, hour of the day and measurement over all days of the
year, from the cells that were not held out; and the mean of the measurement alone. They see the whole year before they
answer, as the learner does: all days are coded with its last dictionary. Where cells are missing one by one, the hours
before and after say most: the line between them, which no dictionary knows of, has a row of its own.

**Units.** Each measurement is scaled by one factor (`Scaling`). Errors are root mean squares: by measurement in its own
units, and over all cells with each measurement divided by the standard deviation of its cells ("all, σ"), or by their
root mean square ("all, rms"), which is how the paper's relative errors weigh. `gain` is the mean's error over ours.
"""

from pathlib import Path

import numpy as np

from benchmarks.measure import FULL, Options, Row, table
from stream_ocpdl import OnlineCPDL
from stream_ocpdl.ocpdl.reshape import Scaling

KEYS = ("method", "rank", "passes")
RATIOS = {"gain": "higher"}

FILE = "weather_36x8737x4_raw.npz"
MEASURES = ("temperature", "humidity", "pressure", "wind")
MEAN = "mean of city and hour"
AXIS, BATCH, HELD = 2, 14, 0.1

GROUPINGS: dict[str, tuple[tuple[int, ...], ...]] = {
    "city, hour, measurement": (),
    "(city, measurement), hour": ((0, 2), (1,)),
    "city, (hour, measurement)": ((0,), (1, 2)),
    "(city, hour), measurement": ((0, 1), (2,)),
}


def run(options: Options = FULL) -> list[Row]:
    """A row for each grouping, scaling, rank and number of passes; none without the data."""
    path = options.data and options.data / FILE
    if path is None or not path.exists():
        print(f"the weather: not seen (--data PATH, or OCPDL_DATA, with {FILE})")
        return []
    found = results(days_of(path), *((10,), (1,)) if options.quick else ((10, 25, 50, 100), (1, 5)))
    report(found)
    return found


def results(days: np.ndarray, ranks: tuple[int, ...], passes: tuple[int, ...]) -> list[Row]:
    """Means first; then every grouping at the largest rank, and every rank and scaling without groups."""
    held = ~np.isnan(days) & (np.random.default_rng(0).random(days.shape) < HELD)
    seen = np.where(held, np.nan, days)
    guesses = {
        "mean of measurement": np.nanmean(seen, axis=(0, 1, 2), keepdims=True),
        "line between the hours": between_the_hours(seen),
        MEAN: np.nanmean(seen, axis=0, keepdims=True),
    }
    rows: list[Row] = [
        {"method": name, "rank": None, "passes": None} | errors(days - guess, held, days)
        for name, guess in guesses.items()
    ]
    mean = rows[-1]
    contenders = [((), by, rank) for rank in ranks for by in ("deviation", "rms")]
    contenders += [(groups, "deviation", ranks[-1]) for groups in GROUPINGS.values() if groups]
    names = {groups: name for name, groups in GROUPINGS.items()}
    for groups, by, rank in contenders:
        model = OnlineCPDL(
            rank, batch_size=BATCH, missing="impute", groups=groups, scaling=Scaling(AXIS, by), random_state=0
        )
        for turn in range(1, max(passes) + 1):
            one_pass(model, seen, turn)
            if turn in passes:
                told = errors(model.held_out(days, held), held, days)
                rows.append({"method": f"{names[groups]}; {by}", "rank": rank, "passes": turn} | told)
    return [row | {"gain": mean["all, σ"] / row["all, σ"]} for row in rows]


def one_pass(model: OnlineCPDL, seen: np.ndarray, turn: int) -> None:
    """The first in the order of the days, as they would arrive; later ones in any."""
    order = np.arange(len(seen)) if turn == 1 else np.random.default_rng(turn).permutation(len(seen))
    for start in range(0, len(seen), BATCH):
        model.partial_fit(seen[order[start : start + BATCH]])


def between_the_hours(seen: np.ndarray) -> np.ndarray:
    """The line from the last observed hour to the next, city by city."""
    series = np.moveaxis(seen, 1, 0).reshape(seen.shape[1], -1, seen.shape[-1])
    filled, hours = np.empty_like(series), np.arange(series.shape[1])
    for city, k in np.ndindex(series.shape[0], series.shape[2]):
        known = ~np.isnan(series[city, :, k])
        filled[city, :, k] = np.interp(hours, hours[known], series[city, known, k])
    return np.moveaxis(filled.reshape(seen.shape[1], len(seen), -1, seen.shape[-1]), 0, 1)


def errors(rest: np.ndarray, held: np.ndarray, days: np.ndarray) -> Row:
    """Root mean squares of the rest at the held-out cells."""
    by_measure = [rest[..., k][held[..., k]] for k in range(days.shape[-1])]
    told: Row = {name: _rms(cells) for name, cells in zip(MEASURES, by_measure, strict=True)}
    for name, units in (("σ", np.nanstd(days, axis=(0, 1, 2))), ("rms", np.sqrt(np.nanmean(days**2, axis=(0, 1, 2))))):
        told[f"all, {name}"] = _rms(np.concatenate([cells / u for cells, u in zip(by_measure, units, strict=True)]))
    return told


def days_of(path: Path) -> np.ndarray:
    """Whole days, (days, cities, 24, measurements)."""
    with np.load(path) as file:
        X = file["X"].astype(np.float64)
    count = X.shape[1] // 24
    return np.ascontiguousarray(X[:, : 24 * count].reshape(len(X), count, 24, -1).transpose(1, 0, 2, 3))


def report(rows: list[Row]) -> None:
    """One line a method."""
    figures = dict.fromkeys((*MEASURES, "all, σ", "all, rms"), ".3f")
    table(rows, {"method": "", "rank": "", "passes": ""} | figures | {"gain": ".2f"})


def _rms(cells: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(cells))))
