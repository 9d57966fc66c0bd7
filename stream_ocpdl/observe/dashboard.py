"""Grafana's dashboard: six rows, from "is it alive" to "who codes for it".

Each panel has one line that says how to read it, and names what of the paper it shows, by the label in its source. From
this the JSON is made (`make reference`); variables are the data source, the model and the shards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

WIDTH, HEIGHT = 24, 8
"""Of the whole grid, and of a panel."""

CHOSEN = 'model="$model", shard=~"$shard"'
"""What the variables choose, in each expression."""

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, in which M stands for the chosen model and shards; and the name of its lines."""

    expression: str
    legend: str = "{{shard}}"

    @property
    def text(self) -> str:
        """The expression as Grafana has it."""
        return self.expression.replace("{M", "{" + CHOSEN)


@dataclass(frozen=True, slots=True)
class Panel:
    """What is shown, how to read it, and which statement of the paper it is about."""

    title: str
    reading: str
    shows: str
    """The label in the source of the paper; or "operation", where it is about the service."""
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Literal["timeseries", "stat", "table", "state-timeline"] = "timeseries"
    width: int = 8
    logarithmic: bool = False


def one(expression: str, legend: str = "{{shard}}") -> tuple[Query, ...]:
    """A panel with one expression."""
    return (Query(expression, legend),)


def times(metric: str, chosen: str = "M", by: str = "shard") -> tuple[Query, ...]:
    """Median and 99th percentile of durations, for each shard or of all."""
    labels = ", ".join(label for label in (by, "le") if label)
    return tuple(
        Query(
            f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{chosen}}}[$__rate_interval])))",
            f"{{{{{by}}}}}, {name}" if by else name,
        )
        for q, name in ((0.5, "median"), (0.99, "99 %"))
    )


HEALTH = (
    Panel(
        "What each shard is doing",
        "Running nearly always; recovering for long, or again and again, means that something brings it down.",
        "operation",
        one("max by (shard, phase) (ocpdl_phase{M} == 1)", "{{shard}}: {{phase}}"),
        kind="state-timeline",
    ),
    Panel(
        "Processes",
        "One writer for each shard, the rest standbys; no writer means that nothing is learned.",
        "operation",
        one('sum by (role) (ocpdl_role{model="$model"})', "{{role}}"),
        kind="stat",
    ),
    Panel(
        "Behind, in seconds",
        "Near zero; rising steadily means that it is too slow, or waits for a partition that is silent.",
        "operation",
        one("max by (shard) (ocpdl_lag_seconds{M})"),
        "s",
    ),
    Panel(
        "Hypotheses of the theorem",
        "1 where a hypothesis holds; one that falls to 0 means that convergence is no longer promised.",
        "thm:online NTF_convergence, assumption:A1 to assumption:A4",
        one('max by (assumption) (ocpdl_assumption{M, standing="holds"})', "{{assumption}}"),
        "bool_yes_no",
        "stat",
    ),
    Panel(
        "Steps that no checkpoint has",
        "A saw-tooth; a tooth that only grows means that a recovery takes longer and longer.",
        "operation",
        one("max by (shard) (ocpdl_unsaved_steps{M})"),
    ),
    Panel(
        "Epoch, and recoveries",
        "Flat; the epoch rises with a rollback, a loss, another machine or product of chains, a recovery with each"
        " start.",
        "operation",
        (
            Query("max by (shard) (ocpdl_epoch{M})", "{{shard}}, epoch"),
            Query("sum by (shard) (ocpdl_recoveries_total{M})", "{{shard}}, recoveries"),
        ),
    ),
)

FLOW = (
    Panel(
        "Tensors a second",
        "As many as come; a plateau while the lag grows means that this is all it can do.",
        "algorithm:online NTF",
        one("sum by (shard) (rate(ocpdl_tensors_total{M}[$__rate_interval]))"),
        "ops",
    ),
    Panel(
        "Records that wait",
        "A few minibatches; all growing means too slow, one at zero while others grow means that it is silent.",
        "operation",
        one("sum by (shard, partition) (ocpdl_lag_records{M})", "{{shard}}, partition {{partition}}"),
    ),
    Panel(
        "Refused, a second",
        "Zero, or nearly; a step upward means that a producer has changed: look at the dead letters.",
        "operation",
        one("sum by (shard, error) (rate(ocpdl_dead_letters_total{M}[$__rate_interval]))", "{{shard}}, {{error}}"),
        "ops",
    ),
    Panel(
        "A step takes",
        "Flat; rising means larger minibatches, harder sub-problems, or a busy machine.",
        "eq:coding_OCPDL, eq:dict_update_OCPDL",
        times("ocpdl_step_duration_seconds"),
        "s",
    ),
    Panel(
        "A commit takes",
        "A few milliseconds; rising means that the broker is slow.",
        "operation",
        times("ocpdl_commit_duration_seconds"),
        "s",
    ),
    Panel(
        "Waiting for input",
        "The share of time without work: near 100 % there is room, near 0 % the machine is full.",
        "operation",
        one("sum by (shard) (rate(ocpdl_input_wait_seconds_total{M}[$__rate_interval]))"),
        "percentunit",
    ),
    Panel(
        "Written, a second",
        "Codes as many as tensors, a record of the journal a step; codes alone missing means that nothing is learned.",
        "operation",
        one("sum by (shard, stream) (rate(ocpdl_outputs_total{M}[$__rate_interval]))", "{{shard}}, {{stream}}"),
        "ops",
    ),
    Panel(
        "Received",
        "Follows the producers; flat at a round number means a limit of the network or a quota.",
        "operation",
        one("sum by (shard) (rate(ocpdl_input_bytes_total{M}[$__rate_interval]))"),
        "Bps",
    ),
    Panel(
        "Fetched, and not asked for yet",
        "Some; empty while records wait means that the broker is slow, full that learning is.",
        "operation",
        one("sum by (shard) (ocpdl_input_queue_records{M})"),
    ),
)

CONVERGENCE = (
    Panel(
        "Surrogate loss",
        "Falls, then flattens; rising for long means that the data have changed, since its growth is summable.",
        "eq:Alg1_def_surrogate_loss, lemma:increment_bd",
        one("max by (shard) (ocpdl_surrogate_loss{M})"),
        logarithmic=True,
    ),
    Panel(
        "Prequential loss",
        "Falls to the noise of the data; rising means that new tensors are not like those learned.",
        "eq:def_loss",
        one("max by (shard) (ocpdl_prequential_loss{M})"),
        logarithmic=True,
    ),
    Panel(
        "Loss as a share of the energy",
        "Falls, then flattens at the noise; rising with a flat energy means another structure, not another scale.",
        "eq:def_loss_full",
        one("max by (shard) (ocpdl_prequential_loss{M}) / max by (shard) (ocpdl_energy{M})"),
        "percentunit",
    ),
    Panel(
        "Relative residual",
        "Falls to the noise of the data, in proportion to them; rising means that they are explained worse.",
        "eq:coding_OCPDL",
        one("max by (shard) (ocpdl_residual_ratio{M})"),
        "percentunit",
    ),
    Panel(
        "Unusual tensors",
        "One in a hundred by definition; more for long means that the data drift, a peak is an anomaly.",
        "eq:def_loss",
        one(
            "sum by (shard) (rate(ocpdl_unusual_tensors_total{M}[$__rate_interval]))"
            " / sum by (shard) (rate(ocpdl_tensors_total{M}[$__rate_interval]))"
        ),
        "percentunit",
    ),
    Panel(
        "Evidence of a change",
        "Below 1; beyond it a change of structure, or of scale alone, is told, and it begins anew.",
        "assumption:A1",
        one("max by (shard, change) (ocpdl_change_evidence_ratio{M})", "{{shard}}, {{change}}"),
    ),
    Panel(
        "Movement, and the most it may be",
        "Below its radius, and falling with it; at the radius for long means that the radius is too small.",
        "lem:main_analytic_lemma (ii), eq:Alg1_search_restriction",
        (
            Query("max by (shard, mode) (ocpdl_movement{M})", "{{shard}}, mode {{mode}}"),
            Query("max by (shard, mode) (ocpdl_movement_radius{M})", "{{shard}}, radius of mode {{mode}}"),
        ),
        logarithmic=True,
    ),
    Panel(
        "Held back by the radius",
        "The share of steps: some at first, none later; near 100 % for hours slows learning down.",
        "eq:Alg1_search_restriction",
        one(
            "sum by (shard, mode) (rate(ocpdl_radius_active_total{M}[$__rate_interval]))"
            " / on (shard) group_left () sum by (shard) (rate(ocpdl_steps_total{M}[$__rate_interval]))",
            "{{shard}}, mode {{mode}}",
        ),
        "percentunit",
    ),
    Panel(
        "Distance from stationary",
        "Falls toward zero, not in every step; flat at a large value means that radius or weights hold it back.",
        "lem:main_analytic_lemma (iv), prop:first_order_optimality",
        one("max by (shard, mode) (ocpdl_stationarity_residual{M})", "{{shard}}, mode {{mode}}"),
        logarithmic=True,
    ),
    Panel(
        "Weight of a minibatch",
        "Falls like a power of t; constant means that the past is forgotten, which leaves the theorem.",
        "assumption:A3",
        one("max by (shard) (ocpdl_weight{M})"),
        logarithmic=True,
    ),
    Panel(
        "Mean energy of a tensor",
        "Flat; a step means that the data have another scale.",
        "eq:main_alg_aggregate_tensors",
        one("max by (shard) (ocpdl_energy{M})"),
    ),
    Panel(
        "Codes that met their bound",
        "Zero; growing means that the first minibatch was not typical, and that codes are cut.",
        "assumption:A2, lem:H_bdd",
        one("max by (shard) (ocpdl_codes_at_bound{M})"),
    ),
)

CHAINS = (
    Panel(
        "Chains",
        "As many active ones as samplers run; a silent one has ended, or is stuck while the others go on.",
        "assumption:A1",
        (
            Query("max by (shard, state) (ocpdl_chains{M})", "{{shard}}, {{state}}"),
            Query("max by (shard) (ocpdl_chains_in_minibatch{M})", "{{shard}}, in a minibatch"),
            Query("max by (shard) (ocpdl_chains_followed{M})", "{{shard}}, followed"),
        ),
    ),
    Panel(
        "Draws out of order",
        "Flat; gaps and late draws mean that the stream is not the chain: (A1) is about the chain that was learned.",
        "assumption:A1, subsection:MCMC",
        one("max by (shard, kind) (ocpdl_draws{M})", "{{shard}}, {{kind}}"),
    ),
    Panel(
        "Classical split-R̂ of the chains",
        "Below 1.1, the limit of this one; a large one of the norm means that chains have not mixed, of losses or codes"
        " alone that the dictionary still moves.",
        "assumption:A1, subsection:MCMC",
        one("max by (shard, quantity) (ocpdl_chain_classical_split_rhat{M})", "{{shard}}, {{quantity}}"),
    ),
    Panel(
        "Autocorrelation time, in draws",
        "Flat once it is known; growing with the draws means that a chain is slower than it is long.",
        "assumption:A1, subsection:MCMC",
        one("max by (shard, quantity) (ocpdl_chain_autocorrelation_draws{M})", "{{shard}}, {{quantity}}"),
        logarithmic=True,
    ),
    Panel(
        "Effective draws of a chain",
        "Rises with the draws; below 100 the chain is too short for any of these numbers.",
        "assumption:A1, subsection:MCMC",
        one("min by (shard, quantity) (ocpdl_chain_effective_draws{M})", "{{shard}}, {{quantity}}"),
        logarithmic=True,
    ),
    Panel(
        "Draws refused, a second",
        "Zero; repeated ones after a sampler was started again are harmless.",
        "subsection:MCMC",
        one('sum by (shard) (rate(ocpdl_dead_letters_total{M, error="RepeatedDraw"}[$__rate_interval]))'),
        "ops",
    ),
)

DICTIONARY = (
    Panel(
        "Step",
        "Rises; it falls with a rollback only.",
        "algorithm:online NTF",
        one("max by (shard) (ocpdl_step{M})"),
        kind="stat",
    ),
    Panel(
        "Tensors learned in all lives",
        "Rises; flat means that nothing is learned.",
        "algorithm:online NTF",
        one("max by (shard) (ocpdl_seen_tensors{M})"),
        kind="stat",
    ),
    Panel(
        "Dead atoms",
        "None, or few; many means that the rank is too large for these data.",
        "eq:def_OUT",
        one("max by (shard) (ocpdl_dead_atoms{M})"),
    ),
    Panel(
        "Zeros among the codes",
        "Steady; near 100 % means that a penalty is too strong, near 0 % that atoms overlap.",
        "eq:coding_OCPDL",
        one("max by (shard) (ocpdl_code_zeros_ratio{M})"),
        "percentunit",
    ),
    Panel(
        "Size of a checkpoint",
        "Flat: memory is bounded, whatever the length of the stream.",
        "section:statement_alg_bounded_memeory",
        one("max by (shard) (ocpdl_checkpoint_size_bytes{M})"),
        "bytes",
    ),
    Panel(
        "Releases and numeric fingerprints",
        "One line; two fingerprints mean that a failover begins a new epoch.",
        "operation",
        one("count by (version, fingerprint) (ocpdl_build_info)", "{{version}} {{fingerprint}}"),
        kind="table",
    ),
)

FLEET = 'model="$model"'
"""Encoders have partitions, and no shards."""

ENCODERS = (
    Panel(
        "Encoders",
        "As many as were started, those without a partition standbys; none that codes means that nothing is coded.",
        "operation",
        one(f"sum by (role) (ocpdl_encoder_role{{{FLEET}}})", "{{role}}"),
        kind="stat",
    ),
    Panel(
        "Codes a second",
        "As many as come; a plateau while records wait means that more encoders are needed, or larger partials.",
        "eq:coding_OCPDL",
        (
            Query(f"sum by (model) (rate(ocpdl_encoder_tensors_total{{{FLEET}}}[$__rate_interval]))", "tensors"),
            Query(f"sum by (error) (rate(ocpdl_encoder_refused_total{{{FLEET}}}[$__rate_interval]))", "{{error}}"),
        ),
        "ops",
    ),
    Panel(
        "Records that are not coded",
        "Less than two partials of each partition; one that grows alone means that its encoder is stuck.",
        "operation",
        one(f"max by (partition) (ocpdl_encoder_lag_records{{{FLEET}}})", "partition {{partition}}"),
    ),
    Panel(
        "Partitions that are not read",
        "Zero; for minutes it means that there is no dictionary, or that somebody died in a transaction.",
        "operation",
        one(f"sum by (model) (ocpdl_encoder_waiting_partitions{{{FLEET}}})", "not read"),
    ),
    Panel(
        "Age of the dictionary in use",
        "A saw-tooth, as long as the learner needs for one; growing while it publishes means that they are not read.",
        "operation",
        one("max by (shard) (ocpdl_encoder_dictionary_age_seconds{M})"),
        "s",
    ),
    Panel(
        "Dictionary in use, behind the learner",
        "In steps: at most as many as between two snapshots, where rounds are synchronous none or one.",
        "eq:coding_OCPDL",
        one("max by (shard) (ocpdl_step{M}) - min by (shard) (ocpdl_encoder_dictionary_step{M})"),
    ),
    Panel(
        "Staleness of partials",
        "Of the last round, in steps: zero where rounds are synchronous, never above partials.staleness.",
        "prop:Wt_bd",
        one("max by (shard) (ocpdl_partials_staleness_steps{M})"),
    ),
    Panel(
        "Waiting for a partition",
        "Zero, or short; one that rises means that this partition is silent, and holds up the others.",
        "operation",
        one("max by (shard, partition) (ocpdl_awaited_seconds{M})", "{{shard}}, partition {{partition}}"),
        "s",
    ),
    Panel(
        "Rounds that are made",
        "All alike, and rising; one that lags means that the others wait for this partition.",
        "operation",
        one(f"max by (partition) (ocpdl_encoder_round{{{FLEET}}})", "partition {{partition}}"),
    ),
    Panel(
        "Coding what was read takes",
        "Flat; rising means larger portions, harder sub-problems, or a busy machine.",
        "eq:coding_OCPDL",
        times("ocpdl_encoder_batch_seconds", FLEET, ""),
        "s",
    ),
    Panel(
        "A commit of encoders takes",
        "Some milliseconds; rising means that the broker is slow, and with it every round.",
        "operation",
        times("ocpdl_encoder_commit_seconds", FLEET, ""),
        "s",
    ),
)

ROWS = (
    ("Health", HEALTH),
    ("Flow", FLOW),
    ("Convergence", CONVERGENCE),
    ("Chains", CHAINS),
    ("Dictionary", DICTIONARY),
    ("Encoders", ENCODERS),
)

VARIABLES = (
    ("model", "label_values(ocpdl_role, model)", False),
    ("shard", 'label_values(ocpdl_phase{model="$model"}, shard)', True),
)


def dashboard() -> dict[str, Any]:
    """What Grafana imports."""
    return {
        "uid": "stream-ocpdl",
        "title": "stream_ocpdl",
        "description": "Is it alive, does it keep up, does it converge, what has it learned, and who codes?",
        "tags": ["stream-ocpdl"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_epochs()]},
        "templating": {"list": [_source(), *(_variable(*one) for one in VARIABLES)]},
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Rows with their panels, laid out from left to right."""
    number, y = 0, 0
    for title, panels in ROWS:
        number += 1
        place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            number += 1
            yield _panel(number, panel, {"h": HEIGHT, "w": panel.width, "x": x, "y": y})
            x += panel.width
        y += HEIGHT


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    shows = "" if panel.shows == "operation" else f"\n\nPaper: {panel.shows}"
    instant = panel.kind == "table"
    scale = {"scaleDistribution": {"type": "log", "log": 10}} if panel.logarithmic else {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.reading + shows,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": scale}, "overrides": []},
        "options": _options(panel.kind),
        "targets": [
            {
                "refId": chr(ord("A") + k),
                "datasource": SOURCE,
                "editorMode": "code",
                "expr": query.text,
                "legendFormat": query.legend,
                "instant": instant,
                "range": not instant,
                "format": "table" if instant else "time_series",
            }
            for k, query in enumerate(panel.queries)
        ],
    }


def _options(kind: str) -> dict[str, Any]:
    if kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "value_and_name",
        }
    if kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return {}


def _source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(name: str, query: str, several: bool) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "label": name.capitalize(),
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": several,
        "includeAll": several,
        "allValue": ".*" if several else None,
        "current": {"text": "All", "value": "$__all"} if several else {},
    }


def _epochs() -> dict[str, Any]:
    """A line across all panels where an epoch begins."""
    return {
        "name": "Epochs",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "orange",
        "expr": Query("changes((max by (shard) (ocpdl_epoch{M}))[2m:30s]) > 0").text,
        "titleFormat": "a new epoch of shard {{shard}}",
    }
