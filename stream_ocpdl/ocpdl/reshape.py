"""Between tensors as they come and the problem that is learned: modes in groups, and units.

**Groups** (subsection:reshaping). A mode of the problem may be several modes of the tensors, taken as one. What an atom
has in them is then any tensor, and not an outer product: joint features are kept, and only groups are disentangled. A
learner knows nothing of it; whoever reads its loadings undoes it (`atoms`).

**Scaling.** Measurements in different units lie side by side along an axis, and the loss would see the largest alone.
So each index k of that axis has a factor fₖ: data are multiplied by it before they are learned. Codes are what they
are; losses are those of the scaled data; loadings are divided when they are shown, so that atoms have the data's own
units. The factors are given, or fixed by the first minibatch with any energy and kept in the state, as the scale is:
1/fₖ is the root mean square of the observed cells with index k ("rms"), or their standard deviation ("deviation"),
which suits what varies little about a large mean. Where that is zero, but for rounding, fₖ is 1/rms, and where there is
nothing at all, or numbers too small to be divided by, one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from operator import index
from typing import Any, Literal

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl import arrays
from stream_ocpdl.ocpdl.aggregates import khatri_rao
from stream_ocpdl.ocpdl.arrays import Array, BigArray, Sparse
from stream_ocpdl.ocpdl.batch import Batch, Packed, fill, gather
from stream_ocpdl.ocpdl.entries import AnyBatch, collect
from stream_ocpdl.ocpdl.problem import WHOLE, Problem
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

STEADY = 1e-12
"""The deviation, relative to the root mean square, that rounding gives to cells which are all the same."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """One factor for each index of an axis: given, or by which measure they are found."""

    axis: int
    by: Literal["rms", "deviation"] | tuple[float, ...] = "rms"

    def __post_init__(self) -> None:
        if not isinstance(self.axis, WHOLE) or isinstance(self.axis, bool) or self.axis < 0:
            raise ConfigError(f"scaling.axis must be the number of a mode, from 0 on, not {self.axis!r}")
        object.__setattr__(self, "axis", int(self.axis))
        if isinstance(self.by, str):
            if self.by not in ("rms", "deviation"):
                raise ConfigError(f"scaling.by must be 'rms', 'deviation' or a list of factors, not {self.by!r}")
            return
        try:
            object.__setattr__(self, "by", tuple(float(factor) for factor in self.by))
        except (TypeError, ValueError):
            raise ConfigError(f"scaling.by must be 'rms', 'deviation' or a list of factors, not {self.by!r}") from None
        if not all(0 < factor < inf for factor in self.by):
            raise ConfigError(f"scaling.by must have positive, finite factors, not {list(self.by)}")


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of tensors as they come, which of their modes are one mode of the problem, and their units.

    Groups need not be in order, nor their modes; without any, each mode is one by itself.

    >>> layout = Layout((36, 24, 4), groups=((0, 1), (2,)))
    >>> layout.grouped, [T.shape for T in layout.ungrouped([np.ones((864, 5)), np.ones((4, 5))])]
    ((864, 4), [(36, 24, 5), (4, 5)])
    """

    shape: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        modes = range(len(self.shape))
        try:
            groups = tuple(tuple(index(mode) for mode in group) for group in self.groups) or tuple((m,) for m in modes)
        except TypeError:
            raise ConfigError(f"groups must be lists of modes, such as [[0, 1], [2]], not {self.groups!r}") from None
        if sorted(sum(groups, ())) != list(modes) or not all(groups):
            wanted = f"each of the modes 0 to {len(modes) - 1} once" if modes else "the modes of a shape"
            raise ConfigError(f"groups must have {wanted}, such as [[0, 1], [2]], not {[list(g) for g in groups]}")
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "groups", groups)
        if self.scaling is None:
            return
        if not isinstance(self.scaling, Scaling):
            raise ConfigError(f"scaling must be a Scaling, such as Scaling(axis=0, by='rms'), not {self.scaling!r}")
        if self.scaling.axis >= len(self.shape):
            raise ConfigError(f"scaling.axis is {self.scaling.axis}; the last mode is {len(self.shape) - 1}")
        sizes = {len(self.scaling.by)} if not isinstance(self.scaling.by, str) else set()
        if sizes - {self.shape[self.scaling.axis]}:
            size = self.shape[self.scaling.axis]
            raise ConfigError(f"scaling.by has {sizes.pop()} factors; axis {self.scaling.axis} has {size} indices")

    # ── groups ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def order(self) -> tuple[int, ...]:
        """The modes as they stand in the groups."""
        return sum(self.groups, ())

    @property
    def plain(self) -> bool:
        """Whether tensors are learned just as they come."""
        return self.scaling is None and self.groups == tuple((mode,) for mode in range(len(self.shape)))

    @property
    def grouped(self) -> tuple[int, ...]:
        """The shape of the problem."""
        return tuple(prod(self.shape[mode] for mode in group) for group in self.groups)

    def fold(self, T: BigArray) -> BigArray:
        """A tensor, or with its batch in front a minibatch, in the shape of the problem; copied only if it must be."""
        rest = T.shape[: T.ndim - len(self.shape)]
        axes = (*range(len(rest)), *(len(rest) + mode for mode in self.order))
        return T.transpose(axes).reshape(*rest, *self.grouped)

    def unfold(self, T: BigArray) -> BigArray:
        """The same undone."""
        rest = T.shape[: T.ndim - len(self.groups)]
        back = (*range(len(rest)), *(len(rest) + int(k) for k in np.argsort(self.order)))
        return T.reshape(*rest, *(self.shape[mode] for mode in self.order)).transpose(back)

    def fold_row(self, row: BigArray | Sparse) -> BigArray | Sparse:
        """A tensor as it came, whichever its layout, in the shape of the problem."""
        if not isinstance(row, Sparse):
            return self.fold(row)
        if self.order == tuple(range(len(self.shape))) or not _are_cells(row.indices, row.values, prod(self.shape)):
            return row._replace(shape=self.grouped)  # what is wrong with it, those say who check it
        places = np.unravel_index(row.indices, self.shape)
        sizes = tuple(self.shape[mode] for mode in self.order)
        indices = np.ravel_multi_index(tuple(places[mode] for mode in self.order), sizes)
        ascending = np.argsort(indices, kind="stable")
        return Sparse(self.grouped, indices[ascending].astype(np.int64), row.values[ascending])

    def ungrouped(self, loadings: Sequence[Array]) -> list[Array]:
        """Each loading matrix with its modes apart: (I, J, …, R) for a group of several."""
        return [
            np.asarray(U).reshape(*(self.shape[mode] for mode in group), -1)
            for U, group in zip(loadings, self.groups, strict=True)
        ]

    def atoms(self, loadings: Sequence[Array]) -> Array:
        """All atoms (R, I₁…Iₙ), in the shape of the tensors: rank one between groups, anything inside of one."""
        R = loadings[0].shape[1]
        return self.unfold(np.ascontiguousarray(khatri_rao(loadings, R).T).reshape(R, *self.grouped))

    # ── units ──────────────────────────────────────────────────────────────────────────────────────────────────

    def factors(self, X: BigArray) -> tuple[float, ...]:
        """The factors: those given, or those that a minibatch in the shape of the problem fixes; none if neither.

        Only the cells are asked, in one order: the same minibatch has the same factors to the last bit.
        """
        if self.scaling is None:
            return ()
        if not isinstance(self.scaling.by, str):
            return self.scaling.by
        cells = np.moveaxis(self.unfold(X), 1 + self.scaling.axis, 0).reshape(self.shape[self.scaling.axis], -1)
        found = [_unit(row[~np.isnan(row)].astype(np.float64), self.scaling.by) for row in cells]
        least = float(np.finfo(X.dtype).tiny)  # one divided by less would be infinite
        return tuple(1.0 / unit if unit >= least else 1.0 for unit in found) if any(found) else ()

    def on(self, factors: tuple[float, ...]) -> "Layout":
        """The same with these factors given; without any nothing is scaled yet."""
        return replace(self, scaling=replace(self.scaling, by=factors) if self.scaling and factors else None)

    def scaled(self, X: BigArray, factors: Sequence[float]) -> BigArray:
        """X (…, grouped), multiplied; a new array."""
        mode, v = self._along(factors)
        return np.asarray(X * v.astype(X.dtype).reshape(-1, *(1 for _ in self.groups[mode + 1 :])))

    def unscaled(self, X: BigArray, factors: Sequence[float]) -> BigArray:
        """X (…, grouped), divided; X itself where nothing is scaled."""
        if not factors:
            return X
        mode, v = self._along(factors)
        return np.asarray(X / v.reshape(-1, *(1 for _ in self.groups[mode + 1 :])))

    def outward(self, loadings: Sequence[Array], factors: Sequence[float]) -> Sequence[Array]:
        """Loadings in the units of the data: divided where the scaled axis is."""
        return self._each(loadings, factors, np.divide)

    def inward(self, loadings: Sequence[Array], factors: Sequence[float]) -> Sequence[Array]:
        """The same undone."""
        return self._each(loadings, factors, np.multiply)

    def _each(self, loadings: Sequence[Array], factors: Sequence[float], change: Any) -> Sequence[Array]:
        if not factors:
            return loadings
        mode, v = self._along(factors)
        return tuple(change(U, v[:, None]) if i == mode else U for i, U in enumerate(loadings))

    def _along(self, factors: Sequence[float]) -> tuple[int, Array]:
        """The mode of the problem that the scaled axis is in, and the factor of each of its indices."""
        if self.scaling is None:
            raise ConfigError("there are factors, but no axis that is scaled")
        mode = next(i for i, group in enumerate(self.groups) if self.scaling.axis in group)
        group = self.groups[mode]
        sizes = [self.shape[m] if m == self.scaling.axis else 1 for m in group]
        whole = np.ones([self.shape[m] for m in group]) * np.asarray(factors, np.float64).reshape(sizes)
        return mode, whole.reshape(-1)


def laid_out(
    layout: Layout | None,
    problem: Problem,
    state: State,
    rows: Sequence[BigArray | Sparse] | Packed,
    workers: Workers = SERIAL,
    room: Callable[[int], BigArray] | None = None,
) -> tuple[State, AnyBatch, dict[int, str]]:
    """`collect` for tensors as they come; the state has the units, if they were fixed now. Units make them whole."""
    if layout is None:
        return state, *collect(problem, rows, workers, room)
    rows = rows.arrays() if isinstance(rows, Packed) else rows
    if layout.scaling is None:
        found, refused = collect(problem, [layout.fold_row(row) for row in rows], workers, room)
        return state, found, as_they_came(layout, problem, rows, refused)
    place = arrays.empty((len(rows), *problem.shape), problem.dtype) if room is None else room(len(rows))
    batch, refused = fill(problem, [layout.fold_row(row) for row in rows], place, workers)
    if refused:
        return state, batch, as_they_came(layout, problem, rows, refused)
    return in_units(layout, problem, state, batch, workers)


def as_they_came(
    layout: Layout, problem: Problem, rows: Sequence[BigArray | Sparse], refused: dict[int, str]
) -> dict[int, str]:
    """The reasons with places in tensors as they came: whoever sent them knows of no groups."""
    if not refused:
        return refused
    own = problem_of_tensors(layout, problem)
    return {j: gather(own, [rows[j]])[1].get(0, reason) for j, reason in refused.items()}


def problem_of_tensors(layout: Layout, problem: Problem) -> Problem:
    """One that refuses what the problem does, and has tensors as they come."""
    sets: Literal["auto", "signed"] = "auto" if problem.nonnegative else "signed"
    return replace(problem, shape=layout.shape, constraints=sets, codes="nonnegative")


def in_units(
    layout: Layout, problem: Problem, state: State, batch: Batch, workers: Workers = SERIAL
) -> tuple[State, Batch, dict[int, str]]:
    """The state, with factors fixed now if they were not; the minibatch multiplied by them, in its own memory; and the
    rows that are refused. A minibatch without energy fixes nothing, and is what it was.
    """
    factors = state.factors or layout.factors(batch.X)
    if not factors:
        return state, batch, {}
    with np.errstate(over="ignore"):  # what is too large is refused
        scaled = layout.scaled(batch.X, factors)
    return state._replace(factors=factors), *fill(problem, list(scaled), batch.X, workers)


def _unit(cells: Array, by: str) -> float:
    """What is one, for cells of one unit: their standard deviation, or root mean square; zero without any."""
    if len(cells) == 0:
        return 0.0
    size = float(np.sqrt(np.mean(np.square(cells))))
    deviation = float(np.std(cells)) if by == "deviation" else 0.0
    return deviation if deviation > STEADY * size else size


def _are_cells(indices: Any, values: Any, size: int) -> bool:
    """Whether these are entries of a tensor of that size, in order."""
    if np.ndim(indices) != 1 or np.shape(values) != np.shape(indices):
        return False
    return len(indices) == 0 or bool(indices[0] >= 0 and indices[-1] < size and (indices[1:] > indices[:-1]).all())
