"""The way to and from the one call of a small problem's step (`fused`), with as little Python as can be.

A step of a small problem takes a hundred microseconds, and Python would take a fifth of that. So what does not change
from step to step is made once; the loadings of all modes stay in the one array that the call gave them in; and numbers
that few will ask for are read when they are.
"""

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import NamedTuple, overload

import numpy as np

from stream_ocpdl.ocpdl import arrays, fused
from stream_ocpdl.ocpdl.aggregates import SMALL, Aggregates, first_group
from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices
from stream_ocpdl.ocpdl.batch import NORMS, Batch
from stream_ocpdl.ocpdl.onerow import most_rounds
from stream_ocpdl.ocpdl.problem import Problem, Sets
from stream_ocpdl.ocpdl.results import Coding
from stream_ocpdl.ocpdl.state import State

SMALL_B = 1_000_000
"""Cells of B up to which a step is done in one call, if its coding is."""


class Loadings(Sequence[Array]):
    """The loading matrices of all modes, one above the other in one array (ΣIᵢ, R), with what `fused` left below."""

    __slots__ = ("joined", "offsets")

    def __init__(self, joined: Array, offsets: Indices) -> None:
        self.joined = joined
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, which: int) -> Array: ...
    @overload
    def __getitem__(self, which: slice) -> tuple[Array, ...]: ...
    def __getitem__(self, which: int | slice) -> Array | tuple[Array, ...]:
        if isinstance(which, slice):
            return tuple(self[i] for i in range(len(self))[which])
        i = range(len(self))[which]
        return self.joined[self.offsets[i] : self.offsets[i + 1]]


class Quick:
    """The update of a call that did all modes, no bound and no radius being active."""

    __slots__ = ("sums",)

    def __init__(self, sums: Array) -> None:
        self.sums = sums

    @property
    def before(self) -> float:
        """f̂_t(D_{t−1})."""
        return float(self.sums[fused.BEFORE])

    @property
    def after(self) -> float:
        """f̂_t(D_t)."""
        return float(self.sums[fused.AFTER])

    @property
    def movements(self) -> tuple[float, ...]:
        """How far each mode moved."""
        return tuple(self._thirds()[0].tolist())

    @property
    def radii(self) -> tuple[float, ...]:
        """How far it might have."""
        return tuple(self._thirds()[1].tolist())

    @property
    def rounds(self) -> tuple[int, ...]:
        """What it took."""
        return tuple(self._thirds()[2].astype(int).tolist())

    @property
    def radius_active(self) -> tuple[bool, ...]:
        """Never."""
        return (False,) * len(self._thirds()[0])

    @property
    def settled(self) -> tuple[bool, ...]:
        """Always."""
        return (True,) * len(self._thirds()[0])

    def _thirds(self) -> Array:
        return self.sums[fused.MODES :].reshape(3, -1)


class Call(NamedTuple):
    """All of a call that stays the same for a problem and its sets."""

    sets: Sets
    most: int
    """The largest minibatch that is learned in one call; 0 if none is."""
    cells: tuple[int, int]
    """P and Q of the two groups of modes."""
    offsets: Indices
    split: int
    rules: Array
    limits: Array
    settled: int
    """Rounds below which codes are settled."""


_KNOWN: dict[int, Call] = {}
"""The calls that were asked for last, by the sets' identity: every step asks for the same one."""


def call_of(problem: Problem, sets: Sets) -> Call:
    """The call of a problem with these sets."""
    call = _KNOWN.get(id(sets))
    if call is None or call.sets is not sets:
        if len(_KNOWN) > 100:
            _KNOWN.clear()
        call = _KNOWN[id(sets)] = _call(problem, sets)
    return call


def _call(problem: Problem, sets: Sets) -> Call:
    signed, penalties = not problem.nonnegative, (problem.sparsity, problem.ridge, sets.h_max)
    split, offsets = places_of(problem.shape)
    B = prod(problem.shape) * problem.rank
    return Call(
        sets,
        most=SMALL // B if B <= SMALL_B and problem.codes == "nonnegative" else 0,
        cells=(prod(problem.shape[:split]), prod(problem.shape[split:])),
        offsets=offsets,
        split=split,
        rules=np.array([NORMS[problem.dtype], signed, *penalties, problem.tolerance]),
        limits=np.array([sets.bounds, sets.radii[: len(sets.bounds)]]),
        settled=most_rounds(problem.rank),
    )


@cache
def places_of(shape: tuple[int, ...]) -> tuple[int, Indices]:
    """How many modes are in the first of the two groups, and where each mode begins in one array of all."""
    return first_group(shape), np.cumsum([0, *shape])


def joined(loadings: Sequence[Array]) -> Array:
    """All modes in one array."""
    return loadings.joined if isinstance(loadings, Loadings) else np.concatenate(loadings)


def encode(call: Call, loadings: Sequence[Array], batch: Batch) -> Coding:
    """Codes of a minibatch, measured."""
    X = batch.X.reshape(-1, *call.cells)
    H, losses, used, at_bound = fused.code(X, batch.energies, joined(loadings), call.offsets, call.split, call.rules)
    return Coding(H, losses, at_bound, used, used < call.settled)


def learn(
    call: Call, state: State, batch: Batch, w: float, consume: bool
) -> tuple[int, Coding, Aggregates, Loadings, Quick]:
    """Codes, aggregates, loadings and their update for a minibatch, measured or not; and how far the call came."""
    A, B, E, P = state.aggregates
    kept: BigArray = B if consume else arrays.copy(B)  # type: ignore[assignment]  # a small B is not in tiles
    X, cells, offsets = batch.X, call.cells, call.offsets
    flat = kept
    if X.shape[1:] != cells:
        X, flat = X.reshape(-1, *cells), kept.reshape(-1, *cells)
    done, used, at_bound, E, P, A, H, losses, U, sums = fused.step(
        X, batch.energies, joined(state.loadings), offsets, call.split, call.rules, call.limits, w, A, E, P, flat
    )
    coding = Coding(H, losses, at_bound, used, used < call.settled)
    return done, coding, Aggregates(A, kept, E, P), Loadings(U, offsets), Quick(sums)
