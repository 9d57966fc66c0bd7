"""A new model that begins with the loadings of another: they come from a snapshot or a file, the aggregates are empty.

The genesis carries the loadings themselves, so that the journal alone can rebuild the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from stream_ocpdl.errors import ConfigError, LineageError, OcpdlError
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.problem import MARGIN, Problem
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.stream.plan import Plan

LARGEST = 60_000_000
"""Bytes of loadings that a genesis can carry: a record of the journal is not cut into pieces."""


@dataclass(frozen=True, slots=True, eq=False)
class Warm:
    """Loadings, and where they come from."""

    loadings: tuple[Array, ...]
    origin: str


def warmed(problem: Problem, loadings: Sequence[Array]) -> State:
    """The state before any data that has these loadings.

    The scale, which decides how large loadings may get, is that of data for which these would be ordinary: an atom's
    norm, or more if one mode is much larger than the others.
    """
    _check(problem, loadings)
    root = sqrt(problem.rank)
    norms = [sqrt(float(np.sum(np.square(U)))) / root for U in loadings]
    scale = max(prod(norms), max(norms) ** problem.modes / MARGIN**problem.modes * (1 + 1e-9))
    own = tuple(np.array(U, np.float64, order="C") for U in loadings)
    state = State.initial(problem)._replace(scale=scale, loadings=own)
    try:
        state.belongs_to(problem)
    except OcpdlError as error:
        raise ConfigError(f"warm_start: {error}") from None
    return state


def warm_loadings(plan: Plan, warm: Warm) -> Sequence[Array]:
    """The loadings as the learner of a plan has them: in its units, which must be known."""
    if plan.layout is None or plan.layout.scaling is None:
        return warm.loadings
    factors = plan.layout.scaling.by
    if isinstance(factors, str):
        raise ConfigError(f"warm_start: problem.scaling.by is {factors!r}, known only after data; give the factors")
    _check(plan.problem, warm.loadings)
    return plan.layout.inward(warm.loadings, factors)


def _check(problem: Problem, loadings: Sequence[Array]) -> None:
    wanted = [(rows, problem.rank) for rows in problem.shape]
    found = [U.shape for U in loadings]
    if found != wanted:
        raise ConfigError(f"warm_start: the loadings have the shapes {found}, those of this problem {wanted}")
    if not all(np.isfinite(U).all() for U in loadings) or not all(U.any() for U in loadings):
        raise ConfigError("warm_start: the loadings have numbers that are not finite, or a mode that is all zero")
    if sum(U.size for U in loadings) * 8 > LARGEST:
        raise ConfigError(f"warm_start: the loadings have more than {LARGEST} bytes, which a genesis cannot carry")


def to_bytes(loadings: Sequence[Array]) -> bytes:
    """Loadings as a genesis has them."""
    return b"".join(np.ascontiguousarray(U, "<f8").tobytes() for U in loadings)


def loadings_of(problem: Problem, data: bytes) -> list[Array]:
    """The loadings in a genesis."""
    if len(data) != 8 * problem.rank * sum(problem.shape):
        raise LineageError(f"the genesis has {len(data)} bytes of loadings, which are none of this problem")
    whole = np.frombuffer(data, "<f8").reshape(-1, problem.rank)
    return np.split(whole, np.cumsum(problem.shape)[:-1])
