"""Pictures of experiments, by Matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.experiments.races import Mark, at_times, grid_of
from stream_ocpdl.ocpdl.arrays import Array, BigArray

STYLES = {
    "OCPDL, our default": {"color": "#c1121f", "lw": 2.2, "zorder": 5},
    "OCPDL, β = 0.75": {"color": "#f4a261", "lw": 1.1},
    "OCPDL, β = 1": {"color": "#9b5de5", "lw": 1.1},
    "OCPDL, β = None": {"color": "#6c757d", "lw": 1.1},
    "ALS": {"color": "#0077b6", "lw": 1.6},
    "MU": {"color": "#2a9d8f", "lw": 1.6},
    "TensorLy HALS": {"color": "#000000", "lw": 1.2, "ls": (0, (5, 2))},
    "authors' OCPDL": {"color": "#bc6c25", "lw": 1.4},
    "authors' ALS": {"color": "#606c38", "lw": 1.4},
}
"""By how a contender's name begins; the longest that fits."""

RADII = {"c′ = 1": ":", "c′ = 10": "-.", "c′ = 100": "--", "c′ = 1000": "-"}


def figure_of(width: float, height: float) -> Any:
    """A new figure; or what is to be installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("pictures are drawn by Matplotlib: pip install 'stream-ocpdl[bench]'") from None
    return Figure(figsize=(width, height))


def style_of(name: str) -> dict[str, Any]:
    """Colour by method, dashes by radius; what goes over all cells is pale."""
    known = max((key for key in STYLES if name.startswith(key)), key=len)
    style = dict(STYLES[known])
    dashes = next((dash for radius, dash in RADII.items() if name.endswith(radius)), None)
    return style | ({"ls": dashes} if dashes else {}) | ({"alpha": 0.4} if "all cells" in name else {})


def races(cases: Sequence[dict[str, Any]], path: Path) -> None:
    """Error against CPU time, the mean over runs with one deviation about it: a panel for each tensor."""
    columns = min(3, len(cases))
    rows = -(-len(cases) // columns)
    figure = figure_of(4.2 * columns, 3.3 * rows + 0.9)
    panels = np.atleast_1d(figure.subplots(rows, columns)).reshape(-1)
    for panel, case in zip(panels, cases, strict=False):
        _panel(panel, case)
    for panel in panels[len(cases) :]:
        panel.axis("off")
    known = {name: line for panel in panels for line, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(known.values(), known.keys(), loc="lower center", ncols=5, frameon=False, fontsize=7)
    figure.tight_layout(rect=(0, 0.9 / (3.3 * rows + 0.9), 1, 1))
    save(figure, path, dpi=72)


def _panel(panel: Any, case: dict[str, Any]) -> None:
    runs = {row["contender"]: [[Mark(*mark) for mark in curve] for curve in row["curves"]] for row in case["rows"]}
    times = grid_of(runs)
    for name, curves in runs.items():
        reached = times[times <= max(curve[-1].seconds for curve in curves)]
        reached = reached[reached >= min(curve[0].seconds for curve in curves)]
        if not len(reached):
            continue
        errors = np.array([at_times(curve, reached) for curve in curves])
        mean, deviation = errors.mean(axis=0), errors.std(axis=0)
        style = style_of(name)
        panel.plot(1e3 * reached, mean, label=name, **style)
        panel.fill_between(1e3 * reached, mean - deviation, mean + deviation, color=style["color"], alpha=0.12, lw=0)
    best = case["best"]
    panel.set(
        xscale="log", ylim=(best - 0.05 * (1 - best), min(1.02, best + (0.35 if best < 0.5 else 1.1 * (1 - best))))
    )
    panel.set_title(f"{case['case']}, {' × '.join(map(str, case['tensor']['shape']))}", fontsize=9)
    panel.set_xlabel("ms of CPU", fontsize=8)
    panel.set_ylabel("‖X − Out‖ / ‖X‖", fontsize=8)
    panel.tick_params(labelsize=7)


def dictionaries(titles: Sequence[str], atoms: Sequence[Array], path: Path) -> None:
    """Atoms (R, y, x, colour) as patches in colour, each brought to its own brightest, side by side."""
    figure = figure_of(4.0 * len(titles), 3.0)
    for panel, title, these in zip(np.atleast_1d(figure.subplots(1, len(titles))), titles, atoms, strict=True):
        panel.imshow(tiled(these), interpolation="nearest")
        panel.set_title(title, fontsize=9)
        panel.axis("off")
    figure.tight_layout()
    save(figure, path)


def tiled(atoms: Array, columns: int = 6, gap: int = 2, fill: float = 1.0) -> Array:
    """Patches beside and below one another, on white unless told."""
    count, height, width, colours = atoms.shape
    rows = -(-count // columns)
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, colours), fill)
    for k, atom in enumerate(atoms):
        y, x = (k // columns) * (height + gap), (k % columns) * (width + gap)
        sheet[y : y + height, x : x + width] = atom / max(float(atom.max()), 1e-12)
    return sheet


def paintings(titles: Sequence[str], images: Sequence[BigArray], path: Path) -> None:
    """Pictures side by side."""
    height, width = images[0].shape[:2]
    figure = figure_of(2.6 * len(titles), 2.6 * height / width + 0.4)
    for panel, title, image in zip(np.atleast_1d(figure.subplots(1, len(titles))), titles, images, strict=True):
        panel.imshow(np.clip(image, 0.0, 1.0))
        panel.set_title(title, fontsize=9)
        panel.axis("off")
    figure.tight_layout()
    save(figure, path, quality=80)


def curves(rows: Sequence[tuple[str, Array]], measures: Sequence[str], path: Path, columns: int = 3) -> None:
    """Atoms (cities, hours, measurements) as the paper draws them: a small panel a measurement, a line a city."""
    outer = figure_of(4.0 * columns, 2.9 * -(-len(rows) // columns))
    for block, (title, atom) in zip(outer.subfigures(-(-len(rows) // columns), columns).flat, rows, strict=False):
        block.suptitle(title, fontsize=8)
        panels = block.subplots(2, 2, sharex=True, gridspec_kw={"hspace": 0.35, "wspace": 0.35, "top": 0.8})
        for panel, name, k in zip(panels.T.flat, measures, range(len(measures)), strict=True):
            panel.plot(atom[:, :, k].T, lw=0.5)
            panel.set_title(name, fontsize=6, pad=2)
            panel.tick_params(labelsize=5)
    save(outer, path, dpi=62)


def motifs(rows: Sequence[str], columns: Sequence[str], atoms: Sequence[Array], path: Path) -> None:
    """Dictionaries of motifs (R, k, k), row by row, each atom brought to its own darkest."""
    figure = figure_of(3.1 * len(columns), 3.2 * len(rows))
    panels = np.atleast_2d(figure.subplots(len(rows), len(columns), squeeze=False))
    for panel, these in zip(panels.flat, atoms, strict=True):
        side = int(np.ceil(np.sqrt(len(these))))
        sheet = np.round(15 * tiled(these[..., None], side, fill=0.45)[..., 0]) / 15  # few greys make a small file
        panel.imshow(1.0 - sheet, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        panel.set(xticks=[], yticks=[])
    for panel, name in zip(panels[0], columns, strict=True):
        panel.set_title(name, fontsize=9)
    for panel, name in zip(panels[:, 0], rows, strict=True):
        panel.set_ylabel(name, fontsize=9)
    figure.tight_layout()
    save(figure, path)


def activities(names: Sequence[str], activity: Array, path: Path) -> None:
    """Atoms × times, each row brought to its own largest."""
    figure = figure_of(9.0, 0.26 * len(names) + 0.7)
    panel = figure.subplots()
    panel.imshow(activity / np.maximum(activity.max(axis=1, keepdims=True), 1e-300), aspect="auto", cmap="magma_r")
    panel.set_yticks(range(len(names)), names, fontsize=7)
    panel.set_xlabel("week", fontsize=8)
    panel.tick_params(labelsize=7)
    figure.tight_layout()
    save(figure, path)


def beside_courses(atoms: Array, courses: Array, path: Path, columns: int = 5) -> None:
    """Pictures (R, y, x, colour), each brought to its own brightest, and beside them their courses (R, time), in one
    scale and downwards, as the paper draws them.
    """
    few = atoms[:, :: -(-atoms.shape[1] // 130), :: -(-atoms.shape[2] // 130)]
    rows = -(-len(few) // columns)
    figure = figure_of(9.6, 1.35 * rows + 0.3)
    left, right = figure.subfigures(1, 2, width_ratios=(2.3, 1.0))
    panels = np.atleast_1d(left.subplots(rows, columns, gridspec_kw=_CLOSE)).reshape(-1)
    for k, panel in enumerate(panels):
        panel.axis("off")
        if k < len(few):
            panel.imshow(few[k] / max(float(few[k].max()), 1e-12))
            panel.set_title(str(k + 1), fontsize=7, pad=1)
    panel = right.subplots(gridspec_kw={"left": 0.16, "right": 0.98, "top": 0.92, "bottom": 0.1})
    panel.imshow(courses.T, aspect="auto", cmap="viridis", interpolation="nearest", vmin=0.0)
    panel.set_xticks(range(len(courses)), [str(k + 1) for k in range(len(courses))], fontsize=6)
    panel.set_ylabel("frame", fontsize=8)
    panel.tick_params(labelsize=6)
    save(figure, path, quality=85, dpi=100)


_CLOSE = {"left": 0.01, "right": 0.99, "top": 0.95, "bottom": 0.01, "wspace": 0.04, "hspace": 0.14}


def save(figure: Any, path: Path, quality: int | None = None, dpi: int = 85) -> None:
    """Write it; a photograph with so much quality."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi, **({"pil_kwargs": {"quality": quality}} if quality else {}))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
