"""What a model is to learn, and from what."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from stream_ocpdl.errors import ConfigError, DecodeError
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.reshape import Layout
from stream_ocpdl.ocpdl.sums import scalable
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.draws import Draws
from stream_ocpdl.stream.formats import Format
from stream_ocpdl.stream.messages.fields import Fields
from stream_ocpdl.stream.refusals import Refusals
from stream_ocpdl.stream.rounds import Rounds

MODEL = "[A-Za-z0-9._-]{1,200}"
"""The name of a model: topics are named after it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a model is to learn, from what, and how often it shows its dictionary."""

    model: str
    problem: Problem
    batching: Batching = Batching()  # noqa: RUF009  (frozen)
    snapshot_every: int = 100
    """Steps between two snapshots."""
    digest_every: int = 100
    """Steps between two records of the journal that carry the digest of the state."""
    topic: str = "input"
    """The name of the input, for dead letters."""
    format: Format = Format()  # noqa: RUF009
    axes: tuple[str, ...] | None = None
    """Names of the modes; without them the first tensor that has names gives them."""
    refusals: Refusals = Refusals()  # noqa: RUF009
    draws: Draws = Draws()  # noqa: RUF009
    on_lost_input: Literal["fail", "resume"] = "fail"
    shard: int = 0
    """Which of the model's shards this is the plan of."""
    shards: int = 1
    layout: Layout | None = None
    """How tensors become those of the problem, if they are not learned just as they come."""
    codes: bool = True
    """Whether the learner publishes a code for every tensor; encoders may do so in its place."""

    rounds: Rounds | None = None
    """How partials are made and absorbed, if it learns from these and not from tensors."""

    def __post_init__(self) -> None:
        if self.layout is not None and self.layout.grouped != self.problem.shape:
            raise ConfigError(f"the layout gives tensors of shape {self.layout.grouped}, not {self.problem.shape}")
        if not re.fullmatch(MODEL, self.model):
            raise ConfigError(
                f"model must be 1 to 200 letters, digits, dots, dashes or underscores, not {self.model!r}"
            )
        if self.axes is not None and not (isinstance(self.axes, tuple) and self._named_right(self.axes)):
            raise ConfigError(f"axes must be a list of {len(self.shape)} different names, not {self.axes!r}")
        if self.on_lost_input not in ("fail", "resume"):
            raise ConfigError(f"on_lost_input must be 'fail' or 'resume', not {self.on_lost_input!r}")
        for name in ("snapshot_every", "digest_every", "shards"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} must be a whole number, at least 1, not {value!r}")
        if not 0 <= self.shard < self.shards:
            raise ConfigError(f"shard must be a whole number below {self.shards}, not {self.shard!r}")
        if self.rounds is not None and (wrong := list(against(self, self.rounds))):
            raise ConfigError("\n".join(wrong))

    def _named_right(self, axes: tuple[str, ...]) -> bool:
        with suppress(DecodeError):
            return len(Fields({"kind": "", "axes": list(axes)}, "").axes()) == len(self.shape)
        return False

    def lineage(self) -> str:
        """The digest of all that decides bits, beside the input and the order of its rows."""
        layout = "" if self.layout is None else f" {self.layout}"
        source = "" if self.rounds is None else f" {self.rounds}"
        return sha256(f"{self.problem.digest()} {self.format}{layout}{source}".encode()).hexdigest()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a tensor as it comes."""
        return self.problem.shape if self.layout is None else self.layout.shape


def against(plan: Plan, rounds: Rounds) -> Iterator[str]:
    """What of a plan cannot be learned from partials, a line each."""
    problem, batching, needed = plan.problem, plan.batching, 2 * plan.problem.rank
    if rounds.size < needed:
        yield (
            f"partials.size is {rounds.size}: a partial has as many numbers as {problem.rank} tensors or more, whatever"
            f" it is the sum of, and so it must be of twice as many, {needed}, to be worth its way"
        )
    if rounds.size * rounds.partials != batching.size:
        yield (
            f"batching.size is {batching.size}: a minibatch is a round of partials, and must be a multiple of"
            f" partials.size, {rounds.size}"
        )
    if (batching.close, batching.order, batching.rows) != ("full", "canonical", "any"):
        yield "batching: a round of partials is full, canonical, and of any rows; leave close, order and rows alone"
    if plan.codes:
        yield "learner.codes is on: a learner from partials sees no tensor; set it to off, and encoders.emit to both"
    if plan.shards > 1:
        yield f"shards is {plan.shards}: partials are for one dictionary that many workers learn"
    if problem.missing != "reject":
        yield "problem.missing is impute: sums have no cells to fill; learn from the tensors"
    if problem.revive is not None:
        yield "problem.revive draws atoms from tensors, which a learner from partials does not see; set it to null"
    if plan.layout is not None and plan.layout.scaling is not None:
        yield "problem.scaling: the units of partials are those of the data; scale the data before they are produced"
    if not scalable(problem):
        yield (
            "problem.constraints or code_bound: the first partials are made before the scale of the data is known, so"
            " without a penalty sets must be nonnegative or signed, of a size of their own, and with one bounded"
        )
    if (plan.draws.repeated, plan.draws.gaps, plan.draws.late, plan.draws.tuning) != ("refuse", *["accept"] * 3):
        yield "draws: encoders know no chains, and refuse draws of samplers; leave these settings alone"
