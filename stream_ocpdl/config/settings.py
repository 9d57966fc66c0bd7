"""The settings of a service, typed. Where they come from, `loading` knows.

Types are checked here; what the values mean is checked by those that use them (`Problem`, `Batching`, `Pace`, `Plan`),
and their word is passed on with the place of the setting. Defaults are theirs, too.
"""

import json
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr

from stream_ocpdl.config.clients import Kafka, Section
from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.problem import WEIGHTS, Problem
from stream_ocpdl.ocpdl.reshape import Layout, Scaling
from stream_ocpdl.ocpdl.schedules import name_of, named
from stream_ocpdl.ocpdl.spelling import sets_named
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.draws import Draws, Treatment
from stream_ocpdl.stream.formats import Format, Name
from stream_ocpdl.stream.permissions import Permission
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.refusals import Refusals
from stream_ocpdl.stream.rights import coding, needed
from stream_ocpdl.stream.rounds import Rounds
from stream_ocpdl.stream.service import Pace
from stream_ocpdl.stream.starting import Start, snapshots_of
from stream_ocpdl.stream.topics import Topics


def _field(kind: Any, name: str, description: str) -> Any:
    """A setting with the default that the one who uses it has."""
    default = next(field.default for field in fields(kind) if field.name == name)
    return Field(description=description) if default is MISSING else Field(default, description=description)


class Input(Section):
    """Where tensors come from, and how they are written there."""

    topic: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]{1,249}$", description="The name of the topic.")
    format: Name = _field(Format, "name", "How the tensors are written there.")
    dtype: str | None = Field(None, description="Of raw numbers, such as <f4; without it <f8.")


class ScalingSettings(Section):
    """How measurements are made comparable that have different units along an axis."""

    axis: int | None = Field(None, description="The axis, from 0 on; null for none.")
    by: Literal["rms", "deviation"] | list[float] = _field(
        Scaling, "by", "One factor for each index; or 1/rms, 1/σ of the first minibatch, fixed from then on."
    )


class ProblemSettings(Section):
    """What is to be learned."""

    shape: list[int] = _field(Problem, "shape", "The shape of one tensor, I₁ … Iₙ.")
    rank: int = _field(Problem, "rank", "The number of atoms.")
    sparsity: float = _field(Problem, "sparsity", "λ of the loss: a penalty on the sum of the codes.")
    ridge: float = _field(Problem, "ridge", "λ₂ of the loss: a penalty on their squares, which makes codes unique.")
    weights: str = Field(
        name_of(WEIGHTS), description="The schedule w(t): power β, power β δ, balanced (1/t), or constant c."
    )
    per: Literal["tensor", "step"] = _field(Problem, "per", "Whether weights count time in tensors or in steps.")
    batch_size: int | None = Field(None, description="The unit of time of the weights; without it batching.size.")
    radius: int | float | Literal["auto"] | None = _field(
        Problem, "radius", "c′, how far a loading may move in a step; null for no limit, which leaves the theory."
    )
    constraints: str | list[str] = _field(
        Problem,
        "constraints",
        "Where loadings may be, one for all modes or a list (of groups, if there are any): nonnegative, signed (as"
        " large as the data ask for), box L U, simplex, ball B, columns B, nonnegative ball B, nonnegative columns B.",
    )
    codes: Literal["nonnegative", "signed"] = _field(
        Problem, "codes", "Whether atoms are only added, or may also be taken away."
    )
    code_bound: int | float | Literal["auto"] = _field(
        Problem, "code_bound", "The largest code, where codes have a range of their own, such as shares."
    )
    dtype: Literal["float64", "float32"] = _field(Problem, "dtype", "Of minibatches and of B, the only large arrays.")
    seed: int = _field(Problem, "seed", "Of the first loadings.")
    tolerance: float = _field(Problem, "tolerance", "The relative residual at which a sub-problem counts as solved.")
    missing: Literal["reject", "impute"] = _field(
        Problem, "missing", "Whether a NaN is a mistake, or a cell that was not observed."
    )
    revive: int | None = _field(
        Problem, "revive", "Steps after which dead atoms are drawn anew, which leaves the theory; null for never."
    )
    groups: list[list[int]] = Field(
        default_factory=list, description="Modes that are learned as one, such as [[0, 1], [2]]; each once."
    )
    scaling: ScalingSettings = Field(default_factory=ScalingSettings, description="Factors along an axis.")


class BatchingSettings(Section):
    """When a minibatch is complete, and the order of its rows."""

    size: int = _field(Batching, "size", "Tensors in a minibatch.")
    close: Literal["full", "linger"] = _field(Batching, "close", "Wait for a full one, or take what there is in time.")
    order: Literal["arrival", "canonical"] = _field(Batching, "order", "Of the rows: as they came, or always the same.")
    linger_ms: int = _field(Batching, "linger_ms", "How long the oldest tensor waits, with close: linger.")
    rows: Literal["any", "one-per-chain"] = _field(Batching, "rows", "Any, or of each chain of a sampler one at most.")


class DrawSettings(Section):
    """What is done with the draws of samplers; who is refused goes to the dead letters."""

    repeated: Treatment = _field(Draws, "repeated", "A draw of a chain that came before.")
    gaps: Treatment = _field(Draws, "gaps", "One before which some are missing; refused until those have come.")
    late: Treatment = _field(Draws, "late", "One that comes after later ones.")
    tuning: Treatment = _field(Draws, "tuning", "One of a sampler that was still tuning itself.")


class LearnerSettings(Section):
    """What a learner does, and what it leaves to encoders."""

    codes: bool = _field(Plan, "codes", "Whether it publishes a code for every tensor; off where encoders do.")
    source: Literal["tensors", "partials"] = Field(
        "tensors", description="What it learns from: the tensors, or sums over them that encoders make."
    )


class EncoderSettings(Section):
    """How encoders work: processes that code with the dictionaries of the model, and learn nothing."""

    input: str | None = Field(
        None,
        min_length=1,
        description="Another topic to code, of tensors like the model's; codes go to MODEL.TOPIC.codes then.",
    )
    emit: Literal["codes", "partials", "both"] = Field(
        "codes", description="What they publish: codes, sums for the learner (learner.source: partials), or both."
    )
    batch: int = Field(256, ge=1, description="Tensors that are coded at once, at most.")
    transaction_s: float = Field(
        10.0,
        ge=1,
        description="Seconds after which the broker ends what a killed encoder left open; its partitions wait for it.",
    )


class PartialSettings(Section):
    """How many workers learn one dictionary: encoders publish sums, the learner absorbs them, round by round."""

    size: int | None = Field(
        None,
        ge=1,
        description="Tensors of one partition in a partial, at least twice the rank; batching.size is a multiple of it,"
        " and the input has so many partitions.",
    )
    staleness: int = _field(
        Rounds, "staleness", "τ: steps by which the dictionary of a partial may be behind; 0 waits for each round."
    )
    synchronous_first: int = _field(Rounds, "synchronous_first", "Rounds at the beginning in which it may not.")


class PaceSettings(Section):
    """How often what is written."""

    commit_interval_ms: int = _field(Pace, "commit_interval_ms", "Time between two transactions, at least.")
    checkpoint_every: int = _field(Pace, "checkpoint_every", "Steps between two checkpoints.")
    poll_timeout_ms: int = _field(Pace, "poll_timeout_ms", "How long one poll waits for records.")


class RefusalSettings(Section):
    """How much may be refused before the service stops."""

    consecutive: int | None = _field(Refusals, "consecutive", "Messages refused in a row; null for any number.")
    ratio: float | None = _field(Refusals, "ratio", "The share of a window that may be refused; null for all of it.")
    window: int = _field(Refusals, "window", "Messages in a window; windows lie one after the other.")


class Http(Section):
    """Where the endpoints are: metrics, probes, status."""

    host: str = Field("127.0.0.1", min_length=1, description="The address to listen at; 0.0.0.0 for every one.")
    port: int | None = Field(9464, ge=0, le=65535, description="The port: 0 for any free one, null for no endpoints.")
    stuck_after_s: float = Field(
        180.0, gt=0, description="Seconds without a turn of the loop after which /live is red; beyond kafka.patience_s."
    )


class Log(Section):
    """What is said on standard error."""

    format: Literal["json", "plain"] | None = Field(
        None, description="One JSON object a line, or text; without it text on a terminal and JSON elsewhere."
    )
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is said.")


def _as_section(value: Any) -> Any:
    """The name of a topic stands for an input with that topic."""
    return {"topic": value} if isinstance(value, str) else value


class Settings(Section):
    """A model, its input, and where its checkpoints go."""

    model: str = Field(description="The name of the model; its topics and its group are named after it.")
    input: Annotated[Input, BeforeValidator(_as_section, json_schema_input_type=str | Input)] = Field(
        description="The topic of the tensors: its name, or an object with topic, format and dtype."
    )
    bootstrap_servers: str = Field(min_length=1, description="Where the broker is: host:port, or several with commas.")
    problem: ProblemSettings = Field(description="What is to be learned.")
    batching: BatchingSettings = Field(default_factory=BatchingSettings, description="When a minibatch is complete.")
    refusals: RefusalSettings = Field(
        default_factory=RefusalSettings, description="How much may be refused before the service stops."
    )
    draws: DrawSettings = Field(default_factory=DrawSettings, description="What is done with the draws of samplers.")
    on_lost_input: Literal["fail", "resume"] = _field(
        Plan,
        "on_lost_input",
        "What to do if input is gone that has to be read: end, or note it in the journal and go on.",
    )
    pace: PaceSettings = Field(default_factory=PaceSettings, description="How often what is written.")
    checkpoints: str = Field("topic", min_length=1, description='Where checkpoints go: "topic", or a directory.')
    snapshot_every: int = _field(Plan, "snapshot_every", "Steps between two snapshots of the dictionary.")
    digest_every: int = _field(Plan, "digest_every", "Steps between two digests of the state in the journal.")
    start: str = Field(
        "earliest",
        description="Where a new model begins to read: earliest, latest, or a time such as 2031-05-04T12:00Z.",
    )
    warm_start: str | None = Field(
        None,
        description="Loadings that a new model, with all its shards, begins with: MODEL (the newest snapshot of its"
        " shard 0), MODEL/SHARD/EPOCH/T, or a .npz file.",
    )
    axes: list[str] | None = Field(
        None, description="Names of the modes; without them the first tensor that has names gives them."
    )
    threads: int | None = Field(
        None, ge=1, description="Threads of the kernels; without it as many as there are processors."
    )
    shards: int = _field(
        Plan, "shards", "Dictionaries of their own, each of every S-th partition; it cannot be changed."
    )
    standby: Literal["warm", "cold"] = Field(
        "warm", description="Whether a replica without a shard follows the journals, to take over at once."
    )
    learner: LearnerSettings = Field(default_factory=LearnerSettings, description="What is left to encoders.")
    encoders: EncoderSettings = Field(default_factory=EncoderSettings, description="How encoders work.")
    partials: PartialSettings = Field(
        default_factory=PartialSettings, description="How many workers learn one dictionary, with learner.source."
    )
    kafka: Kafka = Field(default_factory=Kafka, description="How the clients reach the broker.")
    log: Log = Field(default_factory=Log, description="What is said on standard error.")
    http: Http = Field(default_factory=Http, description="Where the endpoints are.")

    @property
    def topic(self) -> str:
        """The name of the input's topic."""
        return self.input.topic

    def plan(self) -> Plan:
        """What is to be learned."""
        batching, (problem, layout), form, refusals, draws, rounds, *_ = together(
            self._batching,
            self._problem,
            self._format,
            self._refusals,
            self._draws,
            self._rounds,
            lambda: Start.read(self.start),
            self._apart,
        )
        return Plan(
            model=self.model,
            problem=problem,
            batching=batching,
            snapshot_every=self.snapshot_every,
            digest_every=self.digest_every,
            topic=self.topics().input,
            format=form,
            axes=None if self.axes is None else tuple(self.axes),
            refusals=refusals,
            draws=draws,
            on_lost_input=self.on_lost_input,
            shards=self.shards,
            layout=layout,
            codes=self.learner.codes,
            rounds=rounds,
        )

    def _apart(self) -> None:
        if self.topic in Topics.of(self.model, self.topic, self.shards).outputs(1):
            raise ConfigError(f"input: {self.topic} is a topic that the model writes; name that of the tensors")

    def topics(self) -> Topics:
        """Where the learner reads and writes."""
        topics = Topics.of(self.model, self.topic, self.shards)
        if self.learner.source == "tensors":
            return topics
        partials = f"{self.model}.partials"
        return replace(topics, input=partials, partials=partials)

    def coded(self) -> Topics:
        """What encoders use; of another topic than the model's the codes are others, and dead letters are theirs.

        They are also where encoders alone read the input, since the learner has their partials.
        """
        topics, other = replace(self.topics(), input=self.topic), self.encoders.input
        used = {topics.journal, topics.snapshots}
        own = {topics.codes} if self.encoders.emit != "partials" else set()
        own |= set() if topics.partials is None else {topics.partials, topics.dead_letters}
        if other is None or other == self.topic:
            return replace(topics, part=frozenset({*used, *own}))
        codes, letters = (f"{self.model}.{other}.{name}" for name in ("codes", "dead-letters"))
        return replace(topics, input=other, codes=codes, dead_letters=letters, part=frozenset({*used, codes, letters}))

    def fleet(self) -> str:
        """The group of the encoders of a topic."""
        other = self.coded().input
        return f"{self.model}.encoders" if other == self.topic else f"{self.model}.{other}.encoders"

    def made(self) -> Topics:
        """Where the model reads and writes, encoders that it needs included."""
        return replace(self.topics(), input=self.topic)

    def rights(self) -> list[Permission]:
        """The least that the account of a learner must be allowed to do."""
        warm = snapshots_of(self.warm_start) if self.warm_start else None
        return needed(self.model, self.topics(), self.checkpoints == "topic", warm, self.learner.codes)

    def encoder_rights(self) -> list[Permission]:
        """The same of an encoder."""
        return coding(self.fleet(), self.coded())

    def rhythm(self) -> Pace:
        """How often what is written."""
        return Pace(**self.pace.model_dump())

    def save(self, path: Path) -> None:
        """Write a file that `loading.load` reads. It has no secrets: those stay where they came from."""
        path.write_text(json.dumps(without_secrets(self.model_dump(exclude_defaults=True)), indent=1) + "\n")

    def _batching(self) -> Batching:
        return Batching(**self.batching.model_dump())

    def _draws(self) -> Draws:
        return Draws(**self.draws.model_dump())

    def _rounds(self) -> Rounds | None:
        """How partials are made and absorbed, if they are."""
        source, emit, size = self.learner.source, self.encoders.emit, self.partials.size
        own = self.encoders.input in (None, self.topic)
        if (source == "partials" and own) != (emit != "codes"):
            raise ConfigError(
                f"learner.source is {source}, and encoders.emit {emit}: who learns from partials needs encoders of its"
                " input with partials or both, and nobody else has any use for them"
            )
        if source == "tensors":
            return None
        if size is None:
            raise ConfigError("partials.size is missing: how many tensors of a partition are in a partial")
        partials = max(1, self.batching.size // size)
        return Rounds(size, partials, self.partials.staleness, self.partials.synchronous_first)

    def _refusals(self) -> Refusals:
        return Refusals(**self.refusals.model_dump())

    def _problem(self) -> tuple[Problem, Layout | None]:
        """The problem, and how tensors become its own, unless they are learned just as they come."""
        given = self.problem.model_dump(exclude={"groups", "scaling"}) | {"shape": tuple(self.problem.shape)}
        try:
            given["weights"] = named(self.problem.weights)
            given["constraints"] = sets_named(self.problem.constraints)
        except ConfigError as error:
            raise ConfigError(f"problem.{error}") from None
        if self.problem.batch_size is None:
            given["batch_size"] = max(1, self.batching.size)  # what is wrong with it, `Batching` says
        try:
            groups, sets = tuple(map(tuple, self.problem.groups)), given["constraints"]
            problem = Problem(**given | ({"constraints": "auto"} if groups else {}))
            layout = Layout(problem.shape, groups, self._scaling())
            if groups:  # sets are theirs
                problem = replace(problem, shape=layout.grouped, constraints=sets)
        except ConfigError as error:
            raise ConfigError(f"problem.{error}") from None
        return problem, None if layout.plain else layout

    def _scaling(self) -> Scaling | None:
        axis, by = self.problem.scaling.axis, self.problem.scaling.by
        if axis is None and by != Scaling(0).by:
            raise ConfigError("scaling.by is for an axis; say which: problem.scaling.axis")
        return None if axis is None else Scaling(axis, by if isinstance(by, str) else tuple(by))

    def _format(self) -> Format:
        if self.input.dtype is not None and self.input.format != "raw":
            raise ConfigError(f"input.dtype is for input.format raw; {self.input.format} says its own")
        return Format(self.input.format, self.input.dtype or "<f8")


def without_secrets(value: Any) -> Any:
    """The same settings, without those that are secrets."""
    if not isinstance(value, dict):
        return value
    return {name: without_secrets(below) for name, below in value.items() if not isinstance(below, SecretStr)}


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What all calls return; or one error with what each of them has to say, a line each."""
    found, problems = [], []
    for call in calls:
        try:
            found.append(call())
        except ConfigError as error:
            problems += str(error).splitlines()
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return found
