"""Which tensors of a minibatch it is because of that a step has a result which is not finite.

Every tensor is checked before it is learned, so this is rare: finite numbers whose products are not. The minibatch is
bisected: rows are kept from the first to the last for as long as a step with all that are kept is finite.
"""

from collections.abc import Sequence

import numpy as np

from stream_ocpdl.errors import NumericError
from stream_ocpdl.ocpdl import arrays
from stream_ocpdl.ocpdl.batch import Batch
from stream_ocpdl.ocpdl.entries import AnyBatch, SparseBatch
from stream_ocpdl.ocpdl.learner import advance
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL, Workers

ALONE = "a step with this tensor has a result that is not finite; rescale the data"
TOGETHER = "a step with this tensor and those before it has a result that is not finite, though not with it alone"


def blame(problem: Problem, state: State, batch: AnyBatch, workers: Workers = SERIAL) -> dict[int, str]:
    """The rows without which the step is finite, each with the reason; none if it is. The state is left as it was.

    If not even a tensor of zeros can be learned, it is not because of the minibatch: that raises.
    """

    def works(rows: Sequence[int]) -> bool:
        try:
            advance(problem, state, _part(batch, rows), workers)
        except NumericError:
            return False
        return True

    def sift(rows: Sequence[int]) -> None:
        if works([*kept, *rows]):
            kept.extend(rows)
        elif len(rows) == 1:
            guilty[rows[0]] = ALONE if not works(rows) else TOGETHER
        else:
            sift(rows[: len(rows) // 2])
            sift(rows[len(rows) // 2 :])

    kept: list[int] = []
    guilty: dict[int, str] = {}
    everything = range(len(batch))
    if not works(everything):
        advance(problem, state, _zeros(batch), workers)
        sift(everything)
    return guilty


def _part(batch: AnyBatch, rows: Sequence[int]) -> AnyBatch:
    """Some rows of a minibatch, in memory of their own."""
    if isinstance(batch, SparseBatch):
        return batch.part(rows)
    X = arrays.empty((len(rows), *batch.X.shape[1:]), batch.X.dtype.name)
    np.take(batch.X, rows, axis=0, out=X)
    return Batch(X, batch.energies[list(rows)], None if batch.missing is None else batch.missing[list(rows)])


def _zeros(batch: AnyBatch) -> AnyBatch:
    if isinstance(batch, SparseBatch):
        return batch.nothing()
    return Batch(np.zeros_like(batch.X[:1]), np.zeros(1))
