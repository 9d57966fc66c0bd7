"""Curves as plain values that `static/charts.js` hands to Plotly."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stream_ocpdl.page.views import Json

POINTS = 600
"""Of a curve, at most; of more, means are drawn."""


class Series(NamedTuple):
    """A curve; dashed if it is a bound."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    colour: int | None = None
    """Which of the colours; without it the next."""


def chart(title: str, x: str, y: str, curves: Sequence[Series], note: str = "", log: str = "y") -> Json:
    """A picture with curves; `log` has the axes that are logarithmic. What is not finite is left out."""
    drawn = []
    for number, curve in enumerate(curves):
        at, value = thinned(curve.x, curve.y)
        colour = number if curve.colour is None else curve.colour
        drawn.append({"name": curve.name, "x": at, "y": value, "dashed": curve.dashed, "colour": colour})
    return {"title": title, "x": x, "y": y, "note": note, "log": log, "curves": drawn}


def thinned(x: Sequence[float], y: Sequence[float], count: int = POINTS) -> tuple[list[float], list[float]]:
    """The finite points; the means of as many stretches as may be drawn, if there are more.

    >>> thinned([1, 2, 3, 4], [1.0, 3.0, float("inf"), 5.0], 2)
    ([1.5, 4.0], [2.0, 5.0])
    """
    both = np.array([x, y], np.float64)
    both = both[:, np.isfinite(both).all(axis=0)]
    starts = np.arange(0, both.shape[1], -(-both.shape[1] // count) or 1)
    if both.shape[1] > count:
        both = np.add.reduceat(both, starts, axis=1) / np.diff([*starts, both.shape[1]])
    return both[0].tolist(), both[1].tolist()
