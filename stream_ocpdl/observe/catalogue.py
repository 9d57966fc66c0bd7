"""The metrics: every one that there is, with what it means, and how it is read off the board.

The reference in docs/metrics.md is made of this.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, TypeAlias

from stream_ocpdl.observe.board import Shard
from stream_ocpdl.observe.statistics import Client
from stream_ocpdl.ocpdl.diagnostics import Standing

Samples: TypeAlias = Iterable[tuple[tuple[str, ...], Any]]
"""Values of labels, and the number."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A shard at the moment of a scrape; what its client says is read once."""

    shard: Shard
    client: Client
    lag: Mapping[int, int]

    @classmethod
    def of(cls, shard: Shard) -> "Seen":
        """The same now."""
        client = shard.client()
        return cls(shard, client, shard.lag(client))


@dataclass(frozen=True, slots=True)
class Entry:
    """A metric of a shard. All have the labels model and shard, before their own."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    read: Callable[[Seen], Samples]
    labels: tuple[str, ...] = ()


def one(number: Callable[[Seen], Any]) -> Callable[[Seen], Samples]:
    """A metric without labels of its own; none if there is no number."""

    def read(seen: Seen) -> Samples:
        value = number(seen)
        return () if value is None else (((), value),)

    return read


def by_mode(numbers: Callable[[Seen], Iterable[float]]) -> Callable[[Seen], Samples]:
    """A number for each mode."""
    return lambda seen: (((name,), value) for name, value in zip(seen.shard.modes, numbers(seen), strict=False))


def counted(numbers: Callable[[Seen], Mapping[Any, float]]) -> Callable[[Seen], Samples]:
    """A number for each name."""
    return lambda seen: (((str(name),), value) for name, value in sorted(numbers(seen).items()))


def held_back(seen: Seen) -> Iterable[float]:
    """How often the radius held each mode back."""
    return (seen.shard.held_back[i] for i in range(seen.shard.plan.problem.modes))


def evidence(seen: Seen) -> Iterable[tuple[str, float]]:
    """That the data have changed."""
    judged = seen.shard.step.judged if seen.shard.step else None
    return () if judged is None else zip(("structure", "scale"), judged.evidence, strict=True)


def card(seen: Seen) -> Samples:
    """For each line of the card which standing it has."""
    for line in seen.shard.card:
        for standing in Standing:
            yield (line.name, standing.value), float(line.standing is standing)


PHASES = ("starting", "fencing", "recovering", "running")

STREAMS = ("codes", "dead-letters", "journal", "snapshots")

ERRORS = ("DataError", "DecodeError", "NumericError", "RepeatedDraw")
"""Why tensors are refused, mostly. These are counted from zero on, so that a rate can tell the first."""

CONVERGENCE = (
    Entry(
        "ocpdl_steps",
        "counter",
        "Steps since the process began to write. Flat while input waits: it is stuck.",
        one(lambda s: s.shard.steps),
    ),
    Entry(
        "ocpdl_tensors",
        "counter",
        "Tensors learned since the process began to write.",
        one(lambda s: s.shard.learned),
    ),
    Entry(
        "ocpdl_step",
        "gauge",
        "t, the step at which the model stands. It falls with a rollback only.",
        one(lambda s: s.shard.t if s.shard.known else None),
    ),
    Entry(
        "ocpdl_seen_tensors",
        "gauge",
        "N, the tensors that the model has learned in all its lives.",
        one(lambda s: s.shard.N if s.shard.known else None),
    ),
    Entry(
        "ocpdl_surrogate_loss",
        "gauge",
        "The surrogate loss f̂_t(D_t) of a tensor after the last step. It falls, then flattens.",
        one(lambda s: s.shard.step and s.shard.step.surrogate),
    ),
    Entry(
        "ocpdl_prequential_loss",
        "gauge",
        "Mean loss of the tensors of the last step under the dictionary before it: the honest test error. Rising for"
        " long means that the data have changed.",
        one(lambda s: s.shard.step and s.shard.step.prequential_loss),
    ),
    Entry(
        "ocpdl_energy",
        "gauge",
        "E, the mean ‖X‖² of a tensor, weighted as the surrogate is: what losses are to be compared with.",
        one(lambda s: s.shard.energy if s.shard.t else None),
    ),
    Entry(
        "ocpdl_residual_ratio",
        "gauge",
        "Mean relative residual ‖X − X̂‖/‖X‖ of the tensors of the last step, before they were learned.",
        one(lambda s: s.shard.step and s.shard.step.judged and fmean(s.shard.step.judged.residuals)),
    ),
    Entry(
        "ocpdl_unusual_tensors",
        "counter",
        "Tensors, since the process began, with a larger residual than 99 in 100 of those before: one in a hundred, if"
        " nothing changes.",
        one(lambda s: s.shard.unusual),
    ),
    Entry(
        "ocpdl_change_evidence_ratio",
        "gauge",
        "The evidence that the data have changed, in structure or in scale; beyond 1 a change is told.",
        lambda s: (((name,), value) for name, value in evidence(s)),
        ("change",),
    ),
    Entry(
        "ocpdl_changes",
        "counter",
        "Changes of the data noticed since the process began: of structure (they are explained worse), or of scale.",
        counted(lambda s: {"structure": 0, "scale": 0} | s.shard.changes),
        ("change",),
    ),
    Entry(
        "ocpdl_movement",
        "gauge",
        "How far the loadings of a mode moved in the last step. It goes to zero with the weights.",
        by_mode(lambda s: s.shard.step.movements if s.shard.step else ()),
        ("mode",),
    ),
    Entry(
        "ocpdl_movement_radius",
        "gauge",
        "How far they might have moved: c′w_t (lem:main_analytic_lemma ii). No radius is +Inf.",
        by_mode(lambda s: s.shard.step.radii if s.shard.step else ()),
        ("mode",),
    ),
    Entry(
        "ocpdl_radius_active",
        "counter",
        "Steps, since the process began, in which the radius held a mode back. Always so: the radius is too small.",
        by_mode(held_back),
        ("mode",),
    ),
    Entry(
        "ocpdl_weight",
        "gauge",
        "w_t of the last step: the share that its minibatch has in the aggregates.",
        one(lambda s: s.shard.step and s.shard.step.weight),
    ),
    Entry(
        "ocpdl_partials_staleness_steps",
        "gauge",
        "Of the last round of partials: by how many steps the oldest of their dictionaries was behind. Zero where"
        " rounds are synchronous, never more than `partials.staleness`; not there where tensors are learned.",
        one(lambda s: s.shard.staleness),
    ),
    Entry(
        "ocpdl_stationarity_residual",
        "gauge",
        "How far a mode is from a minimiser of f̂_t, relatively; zero is stationary. Every digest_every steps.",
        by_mode(lambda s: s.shard.residuals),
        ("mode",),
    ),
    Entry(
        "ocpdl_code_zeros_ratio",
        "gauge",
        "The share of codes of the last step that are zero; not there where encoders have them.",
        one(lambda s: s.shard.sparsity if s.shard.step else None),
    ),
    Entry(
        "ocpdl_dead_atoms",
        "gauge",
        "Atoms with less than a thousandth of the mean energy. Every digest_every steps. Many: the rank is too large.",
        one(lambda s: s.shard.dead),
    ),
    Entry(
        "ocpdl_codes_at_bound",
        "gauge",
        "Codes that were cut at their bound, in all lives: more than a few, and (A2) is in doubt.",
        one(lambda s: s.shard.at_bound),
    ),
    Entry(
        "ocpdl_assumption",
        "gauge",
        "1 for the standing that a hypothesis of the theorem has: holds, open, or fails.",
        card,
        ("assumption", "standing"),
    ),
    Entry(
        "ocpdl_draws",
        "gauge",
        "Draws of samplers that were repeated, behind a gap, late, or of tuning, in all lives.",
        lambda s: (((name,), value) for name, value in s.shard.draws._asdict().items()),
        ("kind",),
    ),
    Entry(
        "ocpdl_chains",
        "gauge",
        "Chains of samplers that had draws since the process began: active, or silent while the others had 20 draws"
        " each. After 1000 a chain counts as ended.",
        lambda s: s.shard.silence.look(s.shard.chains),
        ("state",),
    ),
    Entry(
        "ocpdl_chains_in_minibatch",
        "gauge",
        "Chains of samplers of which the last minibatch with draws had some; with batching.rows one-per-chain it is a"
        " draw of their product.",
        one(lambda s: s.shard.together),
    ),
    Entry(
        "ocpdl_product_epochs",
        "counter",
        "New epochs since the process began because another product of chains did: with batching.rows one-per-chain, a"
        " chain ended, stalled, began, or came back.",
        one(lambda s: s.shard.products),
    ),
    Entry(
        "ocpdl_chains_followed",
        "gauge",
        "Chains whose health is known, by draws since the process began: 64 at most. What follows is of these.",
        one(lambda s: len(s.shard.wellness.report().chains) or None),
    ),
    Entry(
        "ocpdl_chain_classical_split_rhat",
        "gauge",
        "Classical split-R̂, not rank-normalised, of the chains of a run; of several runs the largest. Above 1.1, the"
        " limit for this one, they have not mixed. Large for the norm: it is the chains; for loss and codes alone: the"
        " dictionary still moves.",
        counted(lambda s: s.shard.wellness.report().worst_rhats),
        ("quantity",),
    ),
    Entry(
        "ocpdl_chain_autocorrelation_draws",
        "gauge",
        "Autocorrelation time τ in draws, from block means of all draws; of the chains the longest that is known.",
        counted(lambda s: s.shard.wellness.report().longest_times),
        ("quantity",),
    ),
    Entry(
        "ocpdl_chain_effective_draws",
        "gauge",
        "Effective sample size n/τ of a chain, by all its draws; of the chains the smallest that is known. Below 100 a"
        " chain τ and R̂ themselves are not to be trusted.",
        counted(lambda s: s.shard.wellness.report().least_ess),
        ("quantity",),
    ),
)

OPERATION = (
    Entry(
        "ocpdl_phase",
        "gauge",
        "1 for what the shard is doing: starting, fencing, recovering, running.",
        lambda s: (((name,), float(s.shard.doing == name)) for name in PHASES),
        ("phase",),
    ),
    Entry(
        "ocpdl_term_timestamp_seconds",
        "gauge",
        "When this process began to write the shard, in seconds since 1970. A value that changes again and again: it is"
        " started, or handed over, again and again.",
        one(lambda s: s.shard.began),
    ),
    Entry(
        "ocpdl_batch_size",
        "gauge",
        "Tensors of a full minibatch: fewer than that may wait for the rest, and nothing is wrong. Where partials are"
        " learned, records of a round: each of them, and the mark of its transaction.",
        one(lambda s: 2 * rounds.partials if (rounds := s.shard.plan.rounds) else s.shard.plan.batching.size),
    ),
    Entry(
        "ocpdl_round_partials",
        "gauge",
        "Partials of a round, one of each partition of the input: encoders have to make them. Not there where tensors"
        " are learned.",
        one(lambda s: s.shard.plan.rounds and s.shard.plan.rounds.partials),
    ),
    Entry(
        "ocpdl_lag_records",
        "gauge",
        "Records of a partition of the input that are not done with. Growing: the service is too slow.",
        counted(lambda s: s.lag),
        ("partition",),
    ),
    Entry(
        "ocpdl_lag_seconds",
        "gauge",
        "How long ago the tensor was written that was learned last; 0 if nothing waits.",
        one(lambda s: s.shard.lag_seconds(s.lag)),
    ),
    Entry(
        "ocpdl_awaited_seconds",
        "gauge",
        "How long a minibatch, or a round of partials, has been waiting for this partition, while others have something"
        " for it; 0 if nothing waits for it. Minutes: its producer, or its encoder, is silent.",
        lambda s: (((str(p),), seconds) for p, seconds in sorted(s.shard.held_up().items())),
        ("partition",),
    ),
    Entry(
        "ocpdl_input_records",
        "counter",
        "Records read since the process began.",
        one(lambda s: s.shard.records),
    ),
    Entry(
        "ocpdl_input_bytes",
        "counter",
        "Bytes that the client of the input has received since the process began.",
        one(lambda s: s.client.received),
    ),
    Entry(
        "ocpdl_input_queue_records",
        "gauge",
        "Records that the client has fetched and that wait in its queue. Empty while there is lag: the broker is slow.",
        one(lambda s: s.client.queued),
    ),
    Entry(
        "ocpdl_input_wait_seconds",
        "counter",
        "Time spent on waiting for input and decoding it. One second a second: there is nothing to do.",
        one(lambda s: s.shard.waited),
    ),
    Entry(
        "ocpdl_step_duration_seconds",
        "histogram",
        "A step, from records in memory to outputs in memory.",
        one(lambda s: s.shard.stepping),
    ),
    Entry(
        "ocpdl_commit_duration_seconds",
        "histogram",
        "A transaction: outputs and positions, written and committed.",
        one(lambda s: s.shard.committing),
    ),
    Entry(
        "ocpdl_outputs",
        "counter",
        "Records written to each stream of outputs since the process began.",
        counted(lambda s: dict.fromkeys(STREAMS, 0) | s.shard.written),
        ("stream",),
    ),
    Entry(
        "ocpdl_dead_letters",
        "counter",
        "Tensors refused since the process began, by the kind of error.",
        counted(lambda s: dict.fromkeys(ERRORS, 0) | s.shard.refused),
        ("error",),
    ),
    Entry(
        "ocpdl_checkpoint_duration_seconds",
        "histogram",
        "Writing a checkpoint.",
        one(lambda s: s.shard.checkpointing),
    ),
    Entry(
        "ocpdl_checkpoint_step",
        "gauge",
        "The step of the last checkpoint that this process wrote: what is behind it a recovery has to replay.",
        one(lambda s: s.shard.checkpoint and s.shard.checkpoint[0]),
    ),
    Entry(
        "ocpdl_checkpoint_size_bytes",
        "gauge",
        "The size of that checkpoint.",
        one(lambda s: s.shard.checkpoint and s.shard.checkpoint[1]),
    ),
    Entry(
        "ocpdl_checkpoint_age_seconds",
        "gauge",
        "How long ago it was written.",
        one(lambda s: s.shard.checkpoint and s.shard.now() - s.shard.checkpoint[2]),
    ),
    Entry(
        "ocpdl_unsaved_steps",
        "gauge",
        "Steps that this process made or replayed since the last checkpoint: a recovery has to replay them.",
        one(lambda s: s.shard.unsaved),
    ),
    Entry(
        "ocpdl_unsaved_seconds",
        "gauge",
        "How long ago the first of them was; 0 if there is none. Near the retention of the input: write checkpoints"
        " more often, or a recovery finds its input gone.",
        one(lambda s: 0.0 if s.shard.unsaved_since is None else s.shard.now() - s.shard.unsaved_since),
    ),
    Entry(
        "ocpdl_recoveries",
        "counter",
        "Recoveries since the process began, warm or cold. Rising all the time: something brings it down again.",
        counted(lambda s: s.shard.recoveries),
        ("standby",),
    ),
    Entry(
        "ocpdl_recovery_seconds",
        "gauge",
        "How long the last recovery took, from the election on.",
        one(lambda s: s.shard.recovery[0] if s.shard.recoveries else None),
    ),
    Entry(
        "ocpdl_recovery_replayed_steps",
        "gauge",
        "Steps that the last recovery replayed.",
        one(lambda s: s.shard.recovery[1] if s.shard.recoveries else None),
    ),
    Entry(
        "ocpdl_epoch",
        "gauge",
        "The epoch. It rises with a rollback, a loss of input, another numeric fingerprint, or another product of"
        " chains.",
        one(lambda s: s.shard.epoch if s.shard.known else None),
    ),
)

CATALOGUE = CONVERGENCE + OPERATION

PROCESS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("ocpdl_role", "gauge", "1 for what this process is: starting, standby, or writer of a shard.", ("model", "role")),
    ("ocpdl_shards", "gauge", "How many shards the model has; each needs a process that writes it.", ("model",)),
    ("ocpdl_rebalances", "counter", "How often the group has shared out the shards anew.", ("model",)),
    ("ocpdl_build", "info", "The release, and the numeric fingerprint under which bits are made.", ()),
)
"""Metrics of the process, for the reference."""

ROLES = ("starting", "standby", "writer")

ENCODERS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("ocpdl_encoder_role", "gauge", "1 for what this encoder is: starting, standby, or encoder.", ("model", "role")),
    ("ocpdl_encoder_tensors", "counter", "Tensors coded since the process began.", ("model",)),
    ("ocpdl_encoder_partials", "counter", "Partials made since the process began.", ("model",)),
    (
        "ocpdl_encoder_round",
        "gauge",
        "Partials of a partition that were committed, by all encoders so far. One that lags holds up the others.",
        ("model", "partition"),
    ),
    ("ocpdl_encoder_refused", "counter", "Records refused since the process began, by error.", ("model", "error")),
    (
        "ocpdl_encoder_dictionary_step",
        "gauge",
        "t of the dictionary that is in use. Far behind `ocpdl_step`: see `snapshot_every`.",
        ("model", "shard"),
    ),
    ("ocpdl_encoder_dictionary_epoch", "gauge", "Its epoch.", ("model", "shard")),
    (
        "ocpdl_encoder_dictionary_age_seconds",
        "gauge",
        "How long ago it came into use. Growing while the learner publishes: the newer ones cannot be used, or read.",
        ("model", "shard"),
    ),
    ("ocpdl_encoder_dictionaries", "counter", "Dictionaries that came into use.", ("model", "shard")),
    (
        "ocpdl_encoder_batch_size",
        "gauge",
        "Tensors of a partition that are coded together: those of a partial; 1 where only codes are made. Fewer may"
        " wait for the rest, and nothing is wrong.",
        ("model",),
    ),
    ("ocpdl_encoder_batch_seconds", "histogram", "How long the records of one poll took to be coded.", ("model",)),
    ("ocpdl_encoder_commit_seconds", "histogram", "How long a transaction took; the next batches go on.", ("model",)),
    ("ocpdl_encoder_partitions", "gauge", "Partitions that the group has given to this encoder.", ("model",)),
    (
        "ocpdl_encoder_waiting_partitions",
        "gauge",
        "Those of them that are not read: there is no dictionary yet, or somebody died in the middle of a transaction,"
        " and it is not known where the group stands. For longer than `encoders.transaction_s` and a minute: look.",
        ("model",),
    ),
    ("ocpdl_encoder_lag_records", "gauge", "Records that are not coded yet.", ("model", "partition")),
    ("ocpdl_encoder_rebalances", "counter", "How often the group has shared out the partitions anew.", ("model",)),
)
"""Metrics of an encoder."""


def reference() -> str:
    """The tables of docs/metrics.md."""
    lines = []
    for title, entries in (("Convergence", CONVERGENCE), ("Operation", OPERATION)):
        lines += [f"## {title}", "", "| metric | kind | labels | how to read it |", "|---|---|---|---|"]
        lines += [_row(e.name, e.kind, e.help, ("model", "shard", *e.labels)) for e in entries] + [""]
    lines += ["## The process", "", "| metric | kind | labels | how to read it |", "|---|---|---|---|"]
    lines += [_row(*one) for one in PROCESS]
    lines += ["", "## Encoders", "", "| metric | kind | labels | how to read it |", "|---|---|---|---|"]
    lines += [_row(*one) for one in ENCODERS]
    return "\n".join(lines) + "\n"


def series() -> dict[str, tuple[str, ...]]:
    """The names under which Prometheus knows the metrics, and their labels.

    >>> series()["ocpdl_lag_records"]
    ('model', 'shard', 'partition')
    """
    suffixes = {"counter": ("_total",), "info": ("_info",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    entries = ((e.name, e.kind, e.help, ("model", "shard", *e.labels)) for e in CATALOGUE)
    return {
        name + suffix: (*labels, "le") if suffix == "_bucket" else labels
        for name, kind, _, labels in (*entries, *PROCESS, *ENCODERS)
        for suffix in suffixes[kind]
    }


def _row(name: str, kind: str, text: str, labels: tuple[str, ...]) -> str:
    full = name + {"counter": "_total", "info": "_info"}.get(kind, "")
    return f"| `{full}` | {kind} | {', '.join(labels)} | {text} |"
