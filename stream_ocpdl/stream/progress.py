"""How far a model has come, and how a record of the journal takes it further.

A `Progress` is all that decides what comes next. `replay` makes it from the journal and the input alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stream_ocpdl.errors import DecodeError, LineageError
from stream_ocpdl.fingerprint import fingerprint
from stream_ocpdl.ocpdl.batch import gather
from stream_ocpdl.ocpdl.learner import Step, advance
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.draws import Chains
from stream_ocpdl.stream.intake import Intake
from stream_ocpdl.stream.messages import (
    GENESIS,
    JournalRecord,
    Origin,
    Record,
    Run,
    checksum,
    link,
)
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.refusals import Tally


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """How far a model has come. `link` is empty before the genesis."""

    state: State
    link: str
    resume: dict[int, int]
    """Where reading goes on."""
    reached: dict[int, int]
    """Below these offsets all is done, but for the open pieces."""
    open: tuple[Run, ...] = ()
    """Pieces that wait for the rest of their message."""
    cursor: int = 0
    ahead: tuple[Run, ...] = ()
    axes: tuple[str, ...] | None = None
    tally: Tally = Tally()  # noqa: RUF009  (frozen)
    """What was refused so far."""
    learned: tuple[Run, ...] = ()
    """What of `ahead` was learned, not refused."""
    draws: Chains = Chains()  # noqa: RUF009
    """What is known of the chains of samplers."""


def beginning(plan: Plan, resume: dict[int, int]) -> Progress:
    """The progress of a model that has seen nothing, and begins to read here."""
    return Progress(State.initial(plan.problem), "", resume, resume, cursor=min(resume, default=0), axes=plan.axes)


def replay(
    plan: Plan, progress: Progress, value: bytes, used: Sequence[Record], workers: Workers = SERIAL
) -> tuple[Progress, Step | None]:
    """The progress after a record of the journal, from the input that it names. The record decides, and is checked."""
    record = read_journal(value)
    if record.previous != (progress.link or GENESIS):
        raise LineageError(f"the journal record of step {record.t} does not follow the one before it")
    if record.event == "genesis":
        check_lineage(plan, record.lineage, record.fingerprint)
    state, step, origins = progress.state, None, list[Origin | None]()
    if record.event == "step":
        if checksum(*(row.value or b"" for row in used)) != record.checksum:
            raise LineageError(f"the input of step {record.t} is not what it was when it was learned")
        rows = [tensor for _, tensor in Intake(plan.format, plan.problem.shape, ()).rows(used)]
        origins = [tensor.origin for tensor in rows]
        batch, _ = gather(plan.problem, [tensor.array for tensor in rows], workers)
        state, step = advance(plan.problem, state, batch, workers, consume=True)
        if (step.t, step.N, step.weight) != (record.t, record.N, record.weight):
            raise LineageError(f"the journal has step {record.t}, {record.N} tensors; the replay {step.t}, {step.N}")
    if record.base is not None:
        state = replace(state, t=record.t, N=record.N)
    if record.state is not None and record.state != state.digest():
        raise LineageError(f"the state after step {record.t} is not the one that the journal has")
    return after(record, value, state, progress.draws.after(origins, record.refused)), step


def read_journal(value: bytes) -> JournalRecord:
    """A record of the journal; one that cannot be read is of another history, or of a later release."""
    try:
        return JournalRecord.from_bytes(value)
    except DecodeError as error:
        raise LineageError(f"the journal has a record that this release cannot read: {error}") from error


def after(record: JournalRecord, value: bytes, state: State, draws: Chains) -> Progress:
    """The progress after a record whose step led to this state, and to this knowledge of the chains."""
    return Progress(
        state,
        link(value),
        record.resume,
        record.reached,
        record.open,
        record.cursor,
        record.ahead,
        record.axes,
        Tally(*(record.tally or ())),
        record.learned or (),
        draws,
    )


def check_lineage(plan: Plan, lineage: str | None, made_under: str | None) -> None:
    """Raise unless a journal or a checkpoint was made for this problem, and under conditions that give its bits."""
    if lineage != plan.lineage():
        raise LineageError(
            "the model was begun with another problem (shape, rank, penalties, weights, seed …) or input format;"
            " restore those settings, or give the model another name"
        )
    if made_under != fingerprint():
        raise LineageError(
            f"the model's bits were made under the numeric fingerprint {made_under}, here it is {fingerprint()}:"
            " another CPU, library or release; run it where it ran, or give the model another name"
        )


def within(record: Record, places: Iterable[Run]) -> bool:
    """Whether a record is in one of these runs."""
    partition, offset = record.position
    return any(p == partition and first <= offset <= last for p, first, last in places)
