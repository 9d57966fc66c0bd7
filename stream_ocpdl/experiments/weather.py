"""Weather of 36 cities (fig:weather): windows of 24 hours that overlap by 4, in three groupings of their modes.

A window is cities × hours × measurements. As it is, an atom has one curve of a day for all cities and measurements;
with hours and measurements as one mode each measurement has its own, the same in all cities up to a factor; with cities
and hours as one mode each city has its own, the same for all measurements. Windows come in their order, one a step,
with w_t = 1/t and no penalty, once with a single atom, as the paper draws it, and once with 25. Measurements lie in
[0, 1].

The raw year has gaps, and goes the way of missing data: windows as they come with units made comparable (`Scaling`),
one in ten of the observed cells held out. Beside it stands the mean of city and hour of the day, of what was not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stream_ocpdl.errors import DataError
from stream_ocpdl.estimator import OnlineCPDL
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.reshape import Scaling
from stream_ocpdl.ocpdl.schedules import Balanced
from stream_ocpdl.sources import DAMAGED

SMOOTH, RAW = "weather_36x2998x4.npz", "weather_36x8737x4_raw.npz"
HOURS, OVERLAP, HELD, MEASURES = 24, 4, 0.1, ("temperature", "humidity", "pressure", "wind")
RANKS = (1, 25)

MASKS = 5
"""How often cells are held out anew."""

GROUPINGS: dict[str, tuple[tuple[int, ...], ...]] = {
    "cities × hours × measurements": ((0,), (1,), (2,)),
    "cities × (hours, measurements)": ((0,), (1, 2)),
    "(cities, hours) × measurements": ((0, 1), (2,)),
}


@dataclass(frozen=True)
class Found:
    """Figures, and the atoms (R, cities, hours, measurements) by grouping and rank, the most used first."""

    body: dict[str, Any]
    atoms: dict[tuple[str, int], Array]


def run(data: Path | None, quick: bool, say: Callable[[str], None]) -> Found:
    """All groupings, with one atom and with many; then the year with gaps."""
    X, source = read(data, SMOOTH, "X_minmax", quick)
    days = windows(X)
    rows, atoms = [], {}
    for name, groups in GROUPINGS.items():
        for rank in RANKS:
            model = OnlineCPDL(rank, weights=Balanced(), batch_size=1, groups=groups, random_state=0)
            for day in days:
                model.partial_fit(day[None])
            atoms[name, rank] = by_use(model, days)
            error, cycle = float(np.sqrt(1.0 - model.score(days))), float(swing(drawn_of(atoms[name, rank])[None])[0])
            rows.append({"grouping": name, "rank": rank, "error": error, "swing": cycle})
        say(f"{name}: {len(days)} windows")
    year, raw = read(data, RAW, "X", quick)
    gaps = with_gaps(year, 1 if quick else MASKS)
    say(f"the year with gaps: {gaps['windows']} windows")
    body = {"source": source, "shape": list(X.shape), "windows": len(days), "rows": rows}
    return Found(body | {"gaps": {"source": raw, **gaps}}, atoms)


def by_use(model: OnlineCPDL, days: Array) -> Array:
    """The atoms, each as large as it is in the mean, those with the largest share of the windows first."""
    atoms = model.transform(days).mean(axis=0)[:, None, None, None] * model.atoms_
    return np.asarray(atoms[np.argsort(-np.square(atoms).sum(axis=(1, 2, 3)), kind="stable")])


def drawn_of(atoms: Array) -> Array:
    """The atom that is drawn: the one with the largest swing, of those at least a quarter as large as the first."""
    norms = np.sqrt(np.square(atoms).sum(axis=(1, 2, 3)))
    strong = atoms[norms >= 0.25 * norms[0]]
    return np.asarray(strong[int(np.argmax(swing(strong)))])


def swing(atoms: Array) -> Array:
    """How far each atom varies over the hours, as a share of it: ‖atom − its mean over the hours‖/‖atom‖."""
    rest = atoms - atoms.mean(axis=2, keepdims=True)
    norms = np.sqrt(np.square(atoms).sum(axis=(1, 2, 3)))
    return np.asarray(np.sqrt(np.square(rest).sum(axis=(1, 2, 3))) / np.maximum(norms, 1e-300))


def with_gaps(X: Array, masks: int = MASKS, rank: int = 25, batch: int = 5) -> dict[str, Any]:
    """Errors at held-out cells, each measurement by its own deviation: ours, and that of the mean of city and hour.

    Which cells are held out moves the result, so they are drawn several times.
    """
    observed, found = ~np.isnan(X), []
    for seed in range(masks):
        held = observed & (np.random.default_rng(seed).random(X.shape) < HELD)
        found.append(_held_out(X, held, rank, batch))
    errors, means = zip(*found, strict=True)
    return {
        "windows": len(windows(observed)),
        "missing": float(1.0 - observed.mean()),
        "masks": masks,
        "error": float(np.mean(errors)),
        "deviation": float(np.std(errors)),
        "mean": float(np.mean(means)),
    }


def _held_out(X: Array, held: BigArray, rank: int, batch: int) -> tuple[float, float]:
    """Cells are held out of the year, not of windows: these overlap, and one would tell what another must not know."""
    seen, hidden, units = np.where(held, np.nan, X), windows(held), np.nanstd(X, axis=(0, 1))
    days = windows(seen)
    model = OnlineCPDL(rank, batch_size=batch, missing="impute", scaling=Scaling(2, "deviation"), random_state=0)
    for start in range(0, len(days), batch):
        model.partial_fit(days[start : start + batch])
    ours = _rms((model.held_out(windows(X), hidden) / units)[hidden])
    return ours, _rms(((X - mean_of_hours(seen)) / units)[held])


def mean_of_hours(X: Array) -> Array:
    """Of each city and measurement at each hour of the day, wherever it is observed."""
    out = np.empty_like(X)
    for hour in range(HOURS):
        cells = X[:, hour::HOURS]
        count = np.maximum((~np.isnan(cells)).sum(axis=1, keepdims=True), 1)
        out[:, hour::HOURS] = np.nansum(cells, axis=1, keepdims=True) / count
    return out


def windows(X: BigArray) -> BigArray:
    """(windows, cities, 24, measurements); a new one begins every 20 hours."""
    starts = range(0, X.shape[1] - HOURS + 1, HOURS - OVERLAP)
    return np.ascontiguousarray(np.stack([X[:, start : start + HOURS] for start in starts]))


def read(data: Path | None, file: str, array: str, quick: bool) -> tuple[Array, str]:
    """(cities, hours, measurements), and what it is; a stand-in where there is no such file."""
    path = None if data is None or quick else data / file
    if path is None or not path.exists():
        return drawn(gaps=file == RAW, hours=240 if quick else 2998), "drawn curves"
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as found:
            X = found[array].astype(np.float64)
    except (OSError, *DAMAGED) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if X.ndim != 3 or X.shape[1] < HOURS or X.shape[2] != len(MEASURES):
        raise DataError(f"{path} has shape {list(X.shape)}; cities, hours and {len(MEASURES)} measurements are needed")
    return X, path.name


def drawn(cities: int = 36, hours: int = 2998, gaps: bool = False) -> Array:
    """Days and seasons with a phase and a strength of each city, in [0, 1]; humidity is low when it is warm."""
    random, t = np.random.default_rng(0x3EA7), np.arange(hours)
    phase, strength = random.uniform(0, 4, (cities, 1)), random.uniform(0.4, 1.0, (cities, 1))
    warm = 0.5 + 0.25 * strength * np.sin(2 * np.pi * (t + phase) / HOURS) + 0.2 * np.sin(2 * np.pi * t / 2998)
    front = 0.8 + 0.1 * np.cumsum(random.normal(0, 0.05, (cities, hours)), axis=1).clip(-1, 1)
    wind = 0.3 * strength + 0.1 * np.sin(2 * np.pi * (t + phase) / HOURS)
    X = np.stack([warm, 1.1 - warm, front, wind], axis=-1) + random.normal(0, 0.02, (cities, hours, 4))
    X = np.clip(X, 0.0, 1.0)
    return np.where(random.random(X.shape) < 0.025, np.nan, X) if gaps else X


def _rms(cells: Array) -> float:
    return float(np.sqrt(np.mean(np.square(cells))))
