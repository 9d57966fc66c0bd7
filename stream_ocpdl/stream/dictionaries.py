"""A dictionary to code with: a snapshot, made ready once, so that a batch finds all it needs.

Codes are those that the learner would give: the same kernels, the penalties and the bound that the snapshot says are in
force, data in the units that it says. Only the loadings have gone through the units of the data and back.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Literal, Self

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl import arrays
from stream_ocpdl.ocpdl.aggregates import Aggregates
from stream_ocpdl.ocpdl.arrays import Array, BigArray, Sparse
from stream_ocpdl.ocpdl.entries import AnyBatch
from stream_ocpdl.ocpdl.learner import encode
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.reshape import Layout, laid_out
from stream_ocpdl.ocpdl.results import Coding
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.messages import Snapshot, Version
from stream_ocpdl.stream.plan import Plan

NO_PAST = Aggregates(np.zeros((0, 0)), arrays.zeros((0,), "float64"), 0.0, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Dictionary:
    """What codes are made with."""

    version: Version
    problem: Problem
    """With the penalties and the bound of the codes that are in force."""
    loadings: tuple[Array, ...]
    """In the units of the problem."""
    axes: tuple[str, ...] | None
    layout: Layout | None
    """With the factors in force."""

    @classmethod
    def of(cls, plan: Plan, snapshot: Snapshot) -> Self:
        """That of a snapshot, if it is one of this plan; else why not."""
        wanted, found = (plan.problem.shape, plan.problem.rank), (tuple(map(len, snapshot.loadings)), snapshot.rank)
        if found != wanted or not _same_modes(plan.layout, snapshot.layout):
            raise ConfigError(
                f"the dictionary {snapshot.version} has shape {list(found[0])} and rank {found[1]}, or other groups of"
                " modes than the settings; give encoders the settings of the learner"
            )
        if snapshot.partials != (None if plan.rounds is None else astuple(plan.rounds)):
            raise ConfigError(
                f"the dictionary {snapshot.version} is of a learner with another source, or other partials, than the"
                " settings; give encoders the settings of the learner"
            )
        if snapshot.penalties is None:
            raise ConfigError(
                f"the dictionary {snapshot.version} is of an earlier release, which did not say how codes are made; the"
                " next one will"
            )
        if not all(np.isfinite(U).all() for U in snapshot.loadings):
            raise ConfigError(f"the dictionary {snapshot.version} has numbers that are not finite")
        sparsity, ridge = snapshot.penalties
        bound: float | Literal["auto"] = "auto" if snapshot.code_bound is None else snapshot.code_bound
        problem = replace(plan.problem, sparsity=sparsity, ridge=ridge, code_bound=bound)
        loadings, layout = snapshot.loadings, snapshot.layout
        if layout is not None and layout.scaling is not None and not isinstance(layout.scaling.by, str):
            loadings = layout.inward(loadings, layout.scaling.by)
        own = tuple(np.array(U, np.float64, order="C") for U in loadings)
        return cls(snapshot.version, problem, own, snapshot.axes, layout)

    def gather(self, rows: Sequence[BigArray | Sparse], workers: Workers = SERIAL) -> tuple[AnyBatch, dict[int, str]]:
        """Tensors as one minibatch, in the units of the problem; and why one cannot be coded, by its row."""
        _, batch, refused = laid_out(self.layout, self.problem, self._units(), rows, workers)
        return batch, refused

    def code(self, batch: AnyBatch, workers: Workers = SERIAL) -> Coding:
        """The codes of a minibatch, eq:coding_OCPDL."""
        return encode(self.problem, self.problem.sets(1.0), self.loadings, batch, workers)

    def _units(self) -> State:
        """A state of which only the factors are asked."""
        scaling = self.layout.scaling if self.layout is not None else None
        factors = () if scaling is None or isinstance(scaling.by, str) else scaling.by
        return State(0, 0, 1.0, 0, self.loadings, NO_PAST, factors=factors)


def _same_modes(mine: Layout | None, theirs: Layout | None) -> bool:
    """Whether two layouts group the same modes; units may be others."""
    return (mine and (mine.shape, mine.groups)) == (theirs and (theirs.shape, theirs.groups))
