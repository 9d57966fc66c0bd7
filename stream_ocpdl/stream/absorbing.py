"""What a minibatch of a plan is, and how a step learns it: tensors, or sums over them."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from stream_ocpdl.ocpdl.arrays import BigArray
from stream_ocpdl.ocpdl.batch import Packed
from stream_ocpdl.ocpdl.entries import AnyBatch
from stream_ocpdl.ocpdl.learner import advance
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.reshape import laid_out
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.sums import Sums, added, advance_sums
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.intake import Intake, PartialIntake
from stream_ocpdl.stream.messages import Partial, Tensor
from stream_ocpdl.stream.plan import Plan


def intake_of(plan: Plan, partitions: Iterable[int]) -> Intake | PartialIntake:
    """What reads the records that a plan learns from."""
    if plan.rounds is not None:
        return PartialIntake(plan.model, plan.problem, partitions)
    return Intake(plan.format, plan.shape, partitions)


def minibatch(
    plan: Plan,
    problem: Problem,
    state: State,
    rows: Sequence[Tensor | Partial] | Packed,
    workers: Workers = SERIAL,
    room: Callable[[int], BigArray] | None = None,
) -> tuple[State, AnyBatch | Sums, dict[int, str]]:
    """Rows as one minibatch, the state with the units if they were fixed now, and why one cannot be learned."""
    if isinstance(rows, Packed):
        return laid_out(plan.layout, problem, state, rows, workers, room)
    if plan.rounds is not None:
        return state, added([sums_in(row) for row in rows if isinstance(row, Partial)]), {}
    arrays = [row.array for row in rows if isinstance(row, Tensor)]
    return laid_out(plan.layout, problem, state, arrays, workers, room)


def learn(problem: Problem, state: State, batch: AnyBatch | Sums, workers: Workers = SERIAL) -> tuple[State, Step]:
    """One step of Algorithm 2, in the memory of the state."""
    if isinstance(batch, Sums):
        return advance_sums(problem, state, batch, workers, consume=True)
    return advance(problem, state, batch, workers, consume=True)


def sums_in(partial: Partial) -> Sums:
    """The sums of a partial, in its memory."""
    B = np.moveaxis(partial.B, -1, 0)
    return Sums(partial.count, partial.energy, partial.mass, partial.A, B, partial.loss or 0.0, partial.at_bound)
