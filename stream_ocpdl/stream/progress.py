"""How far a model has come, and how a record of the journal takes it further.

A `Progress` is all that decides what comes next. `replay` makes it from the journal and the input alone.

**Epochs.** One begins where another product of chains does (`product`), which changes no bit. Bits can only be the same
where they were made under the same numeric fingerprint. Steps that were made under another one are replayed all the
same; then figures are compared, within a tolerance, and no digests, and the progress is not `exact` until a record has
the digest of just this state. The service begins a new epoch before it goes on from there. Under the same fingerprint
another digest is an error.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isclose

from stream_ocpdl.errors import DecodeError, LineageError
from stream_ocpdl.fingerprint import fingerprint
from stream_ocpdl.ocpdl.anomaly import Senses, judge
from stream_ocpdl.ocpdl.diagnostics import figures
from stream_ocpdl.ocpdl.entries import AnyBatch
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.sums import Sums
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.absorbing import intake_of, learn, minibatch
from stream_ocpdl.stream.draws import Chains
from stream_ocpdl.stream.messages import (
    GENESIS,
    JournalRecord,
    Origin,
    Position,
    Record,
    Run,
    Terms,
    checksum,
    input_hash,
    link,
)
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.product import Product
from stream_ocpdl.stream.refusals import Tally
from stream_ocpdl.stream.terms import in_force
from stream_ocpdl.stream.warm import Warm, loadings_of, warm_loadings, warmed

TOLERANCE = 1e-6
"""How far figures may be from those that were journaled under another fingerprint, relatively."""


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
    epoch: int = 0
    terms: Terms | None = None
    """The terms of the problem, if they are no longer those that it began with."""
    control: int | None = None
    """The offset of the next request, once there was one."""
    fingerprint: str = field(default_factory=lambda: here())
    """Under which the bits were made, since the last record that says it."""
    exact: bool = True
    """Whether the bits of the state are those that the journal means."""
    senses: Senses = Senses()  # noqa: RUF009
    """What tensors of this epoch were like, by which those to come are judged."""
    product: Product = Product()  # noqa: RUF009
    """Of which chains the minibatches of this epoch are draws."""

    def problem(self, plan: Plan) -> Problem:
        """The problem on the terms in force."""
        return in_force(plan.problem, self.terms)


def beginning(plan: Plan, resume: dict[int, int], warm: Warm | None = None) -> Progress:
    """The progress of a model that has seen nothing, and begins to read here."""
    state = State.initial(plan.problem) if warm is None else warmed(plan.problem, warm_loadings(plan, warm))
    return Progress(state, "", resume, resume, cursor=min(resume, default=0), axes=plan.axes)


def replay(
    plan: Plan,
    progress: Progress,
    value: bytes,
    used: Sequence[Record],
    workers: Workers = SERIAL,
    restored: Progress | None = None,
) -> tuple[Progress, Step | None]:
    """The progress after a record of the journal, from the input that it names. The record decides, and is checked.

    Of a rollback, `restored` is the progress whose state it goes back to.
    """
    record = read_journal(value)
    if record.previous != (progress.link or GENESIS):
        raise LineageError(f"the journal record of step {record.t} does not follow the one before it")
    state, step, exact, bits, senses = progress.state, None, progress.exact, progress.fingerprint, progress.senses
    origins: list[Origin | None] = []
    match record.event:
        case "genesis":
            check_lineage(plan, record.lineage)
            if record.loadings is not None:
                state = warmed(plan.problem, loadings_of(plan.problem, record.loadings))
            exact = record.fingerprint == here()
        case "step":
            state, step, senses, origins = _learn_again(plan, progress, record, used, workers)
            exact = exact and bits == here()
            _check_counts(record, step, exact)
        case "rollback":
            if restored is None:
                raise LineageError(f"the state of step {record.t}, to which the model went back, is not at hand")
            state, exact = restored.state, restored.exact
        case "lost" if record.base is not None:
            if restored is None:
                raise LineageError(f"the state of step {record.base[1]}, with which the model went on, is not at hand")
            state, exact = restored.state._replace(t=record.t, N=record.N), restored.exact
    known = progress.draws if restored is None or record.base is None else restored.draws
    draws = known.after(origins, record.refused)
    product = progress.product.after(origins, progress.epoch)
    made = replace(after(record, value, state, draws), senses=senses, fingerprint=record.fingerprint or bits)
    made = replace(made, product=product)
    _check_standing(progress, record, made)
    return replace(made, exact=_agrees(record, made.problem(plan), state, exact)), step


def _learn_again(
    plan: Plan, progress: Progress, record: JournalRecord, used: Sequence[Record], workers: Workers
) -> tuple[State, Step, Senses, list[Origin | None]]:
    if not _same(record, used):
        raise LineageError(f"the input of step {record.t} is not what it was when it was learned")
    problem = progress.problem(plan)
    rows = [row for _, row in intake_of(plan, ()).rows(used)]
    state, batch, _ = minibatch(plan, problem, progress.state, rows, workers)
    state, step = learn(problem, state, batch, workers)
    return state, *judged(problem, progress, batch, step), [row.origin for row in rows]


def _same(record: JournalRecord, used: Sequence[Record]) -> bool:
    """Whether this is the input that a step had."""
    if record.xxh3 is not None:
        return record.xxh3 == input_hash(used)
    return record.checksum == checksum(*(row.value or b"" for row in used))


def judged(problem: Problem, progress: Progress, batch: AnyBatch | Sums, step: Step) -> tuple[Step, Senses]:
    """A step with its tensors judged by those before them, and what they were like. Of sums nothing can be said.

    In a new epoch the senses begin anew. So what is judged follows from the steps of the epoch alone, whichever
    checkpoint, standby or release a model came by.
    """
    if isinstance(batch, Sums):
        return step, progress.senses
    senses = progress.senses if progress.senses.epoch == progress.epoch else Senses(progress.epoch)
    H, losses = step.coding.H, step.coding.losses
    found, senses = judge(senses, losses, H, batch.energies, problem.sparsity, problem.ridge)
    return step._replace(judged=found), senses


def _check_counts(record: JournalRecord, step: Step, exact: bool) -> None:
    same = step.weight == record.weight if exact else isclose(step.weight, record.weight, rel_tol=TOLERANCE)
    if (step.t, step.N) != (record.t, record.N) or not same:
        raise LineageError(f"the journal has step {record.t}, {record.N} tensors; the replay {step.t}, {step.N}")


def _check_standing(before: Progress, record: JournalRecord, now: Progress) -> None:
    """Raise unless epoch, terms and counts go on as such a record lets them."""
    begun = record.event in ("rollback", "epoch") or record.base is not None
    if now.epoch != before.epoch + begun:
        raise LineageError(f"the journal record of step {record.t} is of epoch {now.epoch}, after {before.epoch}")
    if record.event != "reconfigure" and now.terms != before.terms:
        raise LineageError(f"the journal record of step {record.t} has other terms than the one before it")
    if (record.t, record.N) != (now.state.t, now.state.N):
        raise LineageError(f"the journal has step {record.t}, {record.N} tensors; the replay {now.state.t}")


def _agrees(record: JournalRecord, problem: Problem, state: State, exact: bool) -> bool:
    """Whether this is the state of which the record has the digest; where that cannot be, it must come close."""
    if record.state is None:
        return exact
    if record.state == state.digest():
        return True
    if exact and record.event != "epoch":
        raise LineageError(f"the state after step {record.t} is not the one that the journal has")
    mine = figures(problem, state) if record.figures else ()
    for k, (name, found, wanted) in enumerate(zip(_figure_names(problem), mine, record.figures or (), strict=False)):
        near = TOLERANCE * mine[0] if k == 1 else 0.0  # f̂ is what is left of E, and may be nothing
        if not isclose(found, wanted, rel_tol=TOLERANCE, abs_tol=near):
            raise LineageError(
                f"after step {record.t} {name} is {found:.9g}, and was {wanted:.9g} under another numeric fingerprint:"
                " that is more than rounding"
            )
    return False


def _figure_names(problem: Problem) -> list[str]:
    """The names of the figures."""
    return ["E", "the surrogate loss", "‖A‖", *(f"‖U{i + 1}‖" for i in range(problem.modes))]


def read_journal(value: bytes) -> JournalRecord:
    """A record of the journal; one that cannot be read is of another history, or of a later release."""
    try:
        return JournalRecord.from_bytes(value)
    except DecodeError as error:
        raise LineageError(
            f"the journal has a record that this release cannot read: {error}. Go on with the release that wrote it; if"
            " a stranger did, begin a model of another name, with warm_start its dictionary"
        ) from error


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
        record.epoch or 0,
        None if record.event == "genesis" else record.terms,
        record.control,
    )


def check_lineage(plan: Plan, lineage: str | None) -> None:
    """Raise unless a journal or a checkpoint was made for this problem."""
    if lineage != plan.lineage():
        raise LineageError(
            "the model was begun with another problem (shape, rank, penalties, weights, seed …), batching.size, input"
            " format or partials; restore those settings, or give the model another name"
        )


def here() -> str:
    """The numeric fingerprint under which bits are made now."""
    return fingerprint()


def within(position: Position, places: Iterable[Run]) -> bool:
    """Whether a record is in one of these runs.

    >>> within(Position(0, 5), [(0, 3, 5)]), within(Position(1, 5), [(0, 3, 5)])
    (True, False)
    """
    partition, offset = position
    return any(p == partition and first <= offset <= last for p, first, last in places)
