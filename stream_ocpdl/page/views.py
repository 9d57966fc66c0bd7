"""What an atom is drawn as: plain values that a script in a browser makes a picture of (`static/atoms.js`).

An atom is a tensor in the shape and the units of the data, and is drawn as one where that can be seen:

    one axis                       bars; a line if it is long, or time
    two axes                       a heat map; along time, or a far longer axis, lines: one for each index of the other
    height, width and 3 colours    a patch in colour
    more                           its loadings mode by mode, those of a group of modes by the same rules, and what has
                                   more than two axes even there in slices

**A view** is a dict that JSON can have: `kind` (heat, colour, lines, bars), `title`, `axes` (each with its `name`, its
`size`, how many points of it are `drawn`, and the `step` of indices between two of them), `shape` of what is drawn,
`signed`, `range` and `dtype`, `values`, and a `note` for people where not all is shown. The number of a point is
lo + (hi − lo)·x with x between 0 and 1: in base64, C order, either `u1` (x·255) or `f4` (x, little-endian). Lines are
(lines, points); the other axis comes first. Axes with more than 200 indices are drawn as the means of blocks. All
of it is decided before anything large is made: the product of two long axes never is.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.reshape import Layout

Json = dict[str, Any]

POINTS = 200
"""The most of an axis that is drawn."""

BARS = 32
"""More indices than these are a line."""

LINES = 12
"""More lines than these nobody can tell apart: they are a heat map."""

SLICES = 12
"""Pictures of one tensor, at most."""

TOGETHER = 8
"""Atoms that are prepared at a time: those of a video are large, and a copy of all would be as large as the model."""

LONGER = 8
"""So many times longer than the other an axis is one to go along."""

LARGEST = 1e300
"""What is larger is drawn as this: products of loadings that a file has may be infinite."""

TIME = frozenset(["time", "date", "second", "minute", "hour", "day", "week", "month", "year", "frame", "lag", "step"])
COLOUR = frozenset(["colour", "color", "rgb", "channel"])


class Axis(NamedTuple):
    """An axis of a tensor, and how many of its indices are one point of the picture."""

    name: str
    size: int
    step: int = 1

    @classmethod
    def of(cls, name: str, size: int) -> "Axis":
        """The axis with as many points as can be drawn."""
        return cls(name, size, -(-size // POINTS))

    @property
    def drawn(self) -> int:
        """Points."""
        return -(-self.size // self.step)

    @property
    def is_time(self) -> bool:
        """By its name."""
        return not TIME.isdisjoint(_words(self.name))

    @property
    def is_nameless(self) -> bool:
        """Whether it only has a number."""
        return re.fullmatch(r"(mode )?\d+", self.name) is not None


def atoms(
    loadings: Sequence[Array],
    layout: Layout | None = None,
    axes: Sequence[str] | None = None,
    which: Iterable[int] | None = None,
    slices: int = SLICES,
) -> list[Json]:
    """The pictures of the atoms of a dictionary: {"atom": r, "views": […]} for each, or for those of these numbers.

    The loadings are in the units of the data, as those of a snapshot are. What is cut has at most so many slices.

    >>> [found] = atoms([np.ones((4, 1)), np.ones((3, 1))], axes=("latitude", "variable"))
    >>> found["atom"], [(view["kind"], view["shape"]) for view in found["views"]]
    (0, [('heat', [4, 3])])
    """
    layout = layout or Layout(tuple(len(U) for U in loadings))
    names = axes or [f"mode {i + 1}" for i in range(len(layout.shape))]
    every = [Axis.of(name, size) for name, size in zip(names, layout.shape, strict=True)]
    wanted = list(range(loadings[0].shape[1]) if which is None else which)
    found: list[Json] = []
    for k in range(0, len(wanted), TOGETHER):
        these = wanted[k : k + TOGETHER]
        views = _views([np.asarray(U)[:, these] for U in loadings], layout, every, slices)
        found += ({"atom": r, "views": own} for r, own in zip(these, views, strict=True))
    return found


def _views(loadings: Sequence[Array], layout: Layout, axes: Sequence[Axis], slices: int) -> Iterator[list[Json]]:
    """The pictures of each of some atoms."""
    groups = [[axes[mode] for mode in group] for group in layout.groups]
    whole = layout.ungrouped([_finite(U) for U in loadings])
    parts = [shrunk(T, group) for T, group in zip(whole, groups, strict=True)]
    if len(axes) <= 2 or is_colour(axes):
        small = Layout(tuple(axis.drawn for axis in axes), layout.groups)
        yield from ([picture(T, axes)] for T in small.atoms([T.reshape(-1, T.shape[-1]) for T in parts]))
        return
    for k in range(loadings[0].shape[1]):
        yield [view for T, g in zip(parts, groups, strict=True) for view in pictures(T[..., k], g, slices)]


def pictures(T: Array, axes: Sequence[Axis], count: int = SLICES) -> list[Json]:
    """A tensor that is small enough, as one picture or in slices."""
    title, n = " × ".join(axis.name for axis in axes), len(axes)
    if n <= 2 or (n == 3 and is_colour(axes)):
        return [picture(T, axes, title)]
    if is_colour(axes[-3:]):
        kept = list(range(n - 3, n))
    else:  # those that are not time, and the longer ones
        kept = sorted(sorted(range(n), key=lambda i: (axes[i].is_time, -axes[i].drawn))[:2])
    rest = [i for i in range(n) if i not in kept]
    sizes = [axes[i].drawn for i in rest]
    slices = np.transpose(T, (*rest, *kept)).reshape(prod(sizes), *(axes[i].drawn for i in kept))
    shown = np.unique(np.linspace(0, len(slices) - 1, min(count, len(slices))).round().astype(int))
    note = f"{len(shown)} of {len(slices)} slices" if len(shown) < len(slices) else ""
    found = []
    for k in shown:
        places = np.unravel_index(int(k), sizes)
        named = ", ".join(f"{axes[i].name} {int(p) * axes[i].step}" for i, p in zip(rest, places, strict=True))
        found.append(picture(slices[k], [axes[i] for i in kept], f"{title}: {named}", note))
    return found


def picture(T: Array, axes: Sequence[Axis], title: str = "", note: str = "") -> Json:
    """One view of a tensor with one or two axes, or a patch in colour."""
    kind, axes, T = _arranged(T, axes)
    T = np.clip(np.nan_to_num(T), -LARGEST, LARGEST)
    signed, bound = bool((T < 0).any()), float(np.abs(T).max(initial=0.0))
    low, high = (-bound if signed else 0.0), bound
    x = (T - low) / (high - low) if bound > 0 else np.zeros_like(T)
    coded = np.rint(255 * x).astype(np.uint8) if kind in ("heat", "colour") else x.astype("<f4")
    means = [f"{axis.name}: a point is the mean of {axis.step}" for axis in axes if axis.step > 1]
    return {
        "kind": kind,
        "title": title,
        "axes": [{"name": a.name, "size": a.size, "drawn": a.drawn, "step": a.step} for a in axes],
        "shape": list(T.shape),
        "signed": signed,
        "range": [low, high],
        "dtype": "u1" if coded.dtype == np.uint8 else "f4",
        "values": b64encode(np.ascontiguousarray(coded).tobytes()).decode(),
        "note": "; ".join([*means, *([note] if note else [])]),
    }


def _arranged(T: Array, axes: Sequence[Axis]) -> tuple[str, Sequence[Axis], Array]:
    """Of which kind the picture is, and the tensor as that kind has it."""
    if len(axes) == 1:
        (axis,) = axes
        return ("lines", axes, T[None]) if axis.is_time or axis.size > BARS else ("bars", axes, T)
    if len(axes) == 3:
        return "colour", axes, T
    along = _along(axes)
    if along is None or axes[1 - along].size > LINES:
        return "heat", axes, T
    return ("lines", axes, T) if along == 1 else ("lines", axes[::-1], T.T)


def _along(axes: Sequence[Axis]) -> int | None:
    """The axis that lines go along: the one that is time, or far longer; none if neither is, or both."""
    time = [i for i, axis in enumerate(axes) if axis.is_time]
    if len(time) == 1:
        return time[0]
    longer = int(axes[1].size > axes[0].size)
    return longer if not time and axes[longer].size >= LONGER * axes[1 - longer].size else None


def is_colour(axes: Sequence[Axis]) -> bool:
    """Whether these are height, width and colours: by the name of the last, or its size where there are no names."""
    if len(axes) != 3 or axes[2].size != 3:
        return False
    if not COLOUR.isdisjoint(_words(axes[2].name)):
        return True
    sides = sorted(axis.size for axis in axes[:2])
    return all(axis.is_nameless for axis in axes) and sides[0] >= 4 and sides[1] <= LONGER * sides[0]


def shrunk(T: Array, axes: Sequence[Axis]) -> Array:
    """The means of blocks along the first axes, as long as their steps are.

    >>> shrunk(np.array([1.0, 3.0, 5.0]), [Axis("hour", 3, step=2)])
    array([2., 5.])
    """
    for i, axis in enumerate(axes):
        if axis.step > 1:
            starts = np.arange(0, axis.size, axis.step)
            counts = np.diff([*starts, axis.size]).reshape(-1, *(1 for _ in T.shape[i + 1 :]))
            T = np.add.reduceat(T, starts, axis=i) / counts
    return T


def _finite(T: Array) -> Array:
    """A file may have anything."""
    return np.nan_to_num(np.array(T, np.float64), copy=False, posinf=0.0, neginf=0.0)


def _words(name: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall("[a-z]+", name.lower())}
