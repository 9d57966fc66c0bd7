"""What a step gives to the world: codes, dead letters, snapshots. The same from a replay as from the step itself."""

from collections.abc import Sequence
from dataclasses import astuple
from math import isfinite

import numpy as np

from stream_ocpdl.ocpdl.diagnostics import assumption_card
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.results import Coding, Step
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.sums import UNBOUNDED, Sums
from stream_ocpdl.stream.intake import KEY
from stream_ocpdl.stream.messages import (
    Codes,
    DeadLetter,
    Headers,
    Output,
    Partial,
    Record,
    Run,
    Snapshot,
    Version,
)
from stream_ocpdl.stream.messages.fields import TEXT
from stream_ocpdl.stream.messages.records import new_output
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import Progress

CARRIED = ("traceparent", "tracestate")
"""The headers of a tensor that go with its code."""

CARRIED_BYTES = 1024
"""The most that one of them may have; W3C asks for 512 of a tracestate."""


def codes(plan: Plan, step: Step, rows: Sequence[Record], epoch: int = 0) -> list[Output]:
    """The codes of a step; each row is given by its record, or the one of its last piece."""
    dictionary = Version(plan.model, step.t - 1, plan.shard, epoch)
    losses, judged = step.coding.losses.tolist(), step.judged
    found = Codes(dictionary, step.t, step.codes, losses, *(judged[:3] if judged else ()))
    return _codes(plan, found, rows)


def codes_of(
    plan: Plan, dictionary: Version, rows: Sequence[Record], coding: Coding, residuals: Sequence[float]
) -> list[Output]:
    """Codes of tensors that nobody learned here; each row is given by its record, or the one of its last piece."""
    return _codes(plan, Codes(dictionary, max(dictionary.t, 1), coding.H, coding.losses.tolist(), residuals), rows)


def _codes(plan: Plan, codes: Codes, rows: Sequence[Record]) -> list[Output]:
    """Codes as records, each with what it has of the tensor's."""
    common, found = _event(plan, "code", b"")[:-1], []
    values = codes.to_bytes([record.position for record in rows])
    for (position, key, _, headers, timestamp, _), value in zip(rows, values, strict=True):
        event = (*common, ("ce_id", b"%d:%d" % position))
        if headers:
            event += _carried(headers)
        found.append(new_output(("codes", key, value, event, timestamp if timestamp > 0 else 0, -1)))
    return found


def _carried(headers: Headers) -> Headers:
    """The headers of a tensor that go with its code: one of each name, and none so long that a code could not go."""
    first = {name: value for name, value in reversed(headers) if name in CARRIED and len(value or b"") <= CARRIED_BYTES}
    return tuple(first.items())


def shown(plan: Plan, t: int) -> bool:
    """Whether the dictionary is shown after step t: after the first, and then now and then.

    Who makes partials waits for it after every step, and before the first.
    """
    return t == 1 or t % plan.snapshot_every == 0 or plan.rounds is not None


def snapshot(plan: Plan, progress: Progress, weight: float, identity: str) -> Output:
    """The dictionary after a step of this weight."""
    state, problem = progress.state, progress.problem(plan)
    version = Version(plan.model, state.t, plan.shard, progress.epoch)
    found = Snapshot(
        version=version,
        tensors=state.N,
        loadings=state.loadings if plan.layout is None else plan.layout.outward(state.loadings, state.factors),
        axes=progress.axes,
        weight=weight,
        schedule=str(problem.weights)[:TEXT],
        card=assumption_card(problem, state),
        atoms=tuple(range(plan.problem.rank)),
        input=identity,
        positions=progress.resume,
        layout=None if plan.layout is None else plan.layout.on(state.factors),
        penalties=(problem.sparsity, problem.ridge),
        code_bound=bound if isfinite(bound := _code_bound(plan, problem, state)) else None,
        partials=None if plan.rounds is None else astuple(plan.rounds),
    )
    return Output("snapshots", b"%d" % version.shard, found.to_bytes(), _event(plan, "snapshot", str(version).encode()))


def _code_bound(plan: Plan, problem: Problem, state: State) -> float:
    """The largest code; none that matters where codes are brought to scale afterwards."""
    if plan.rounds is not None and state.scale == 0.0 and not problem.penalised:
        return UNBOUNDED
    return problem.sets(state.scale or 1.0).h_max


def partial_of(plan: Plan, dictionary: Version, sums: Sums, number: int, covers: Run) -> Output:
    """The sums of a round over these records of a partition; in the partition of the same number."""
    found = Partial(
        dictionary,
        sums.count,
        sums.energy,
        sums.mass,
        sums.A,
        np.moveaxis(sums.B, 0, -1),
        number,
        covers,
        max(sums.loss, 0.0),
        sums.at_bound,
    )
    headers = _event(plan, "partial", b"%d:%d" % (covers[0], number))
    return Output("partials", None, found.to_bytes(), headers, partition=covers[0])


def dead_letter(plan: Plan, record: Record, error: str, reason: str) -> Output:
    """A record that was refused."""
    letter = DeadLetter(plan.topic, record, error, reason)
    key = record.key if record.key and len(record.key) <= KEY else None
    return Output("dead-letters", key, letter.to_bytes(), _event(plan, "dead-letter", b"%d:%d" % record.position))


def _event(plan: Plan, kind: str, name: bytes) -> Headers:
    """Headers as CloudEvents has them in its binary mode."""
    return (
        ("ce_specversion", b"1.0"),
        ("ce_type", f"stream_ocpdl.{kind}".encode()),
        ("ce_source", f"/stream_ocpdl/{plan.model}".encode()),
        ("content-type", b"application/vnd.stream-ocpdl.v1"),
        ("ce_id", name),
    )
