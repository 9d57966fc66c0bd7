"""The alerts: when somebody should look, and where to read what to do.

From this the rules file of Prometheus and the PrometheusRule of its operator are made (`make reference`). Three rules
hold for all of them: a shard is one series, whichever process writes it; what is not known is no reason, so nothing
fires while a service starts, stands by or replays; and each has a page of docs/runbooks.

Severities: critical, nothing is learned any more; warning, look at it today; info, it happened, and may be meant.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

RUNBOOKS = "docs/runbooks"


@dataclass(frozen=True, slots=True)
class Alert:
    """A condition, how long it has to hold, and a line for the person who is woken."""

    name: str
    expression: str
    wait: str
    severity: Literal["critical", "warning", "info"]
    summary: str

    @property
    def runbook(self) -> str:
        """The page that says what to do."""
        return f"{RUNBOOKS}/{self.name}.md"


ALERTS = (
    Alert(
        "OcpdlNobodyWrites",
        """
        max by (model) (ocpdl_shards)
          - (count by (model) (count by (model, shard) (ocpdl_phase)) or 0 * max by (model) (ocpdl_shards))
          > 0
        """,
        "10m",
        "critical",
        "{{ $value }} of the shards of {{ $labels.model }} have no process that writes them",
    ),
    Alert(
        "OcpdlStalled",
        """
        sum by (model, shard) (ocpdl_lag_records) >= max by (model, shard) (ocpdl_batch_size)
          and sum by (model, shard) (increase(ocpdl_steps_total[5m])) == 0
          and max by (model, shard) (ocpdl_phase{phase="running"}) == 1
        """,
        "5m",
        "critical",
        "{{ $labels.model }}/{{ $labels.shard }} makes no step, and {{ $value }} records wait",
    ),
    Alert(
        "OcpdlLagGrowing",
        """
        deriv((sum by (model, shard) (ocpdl_lag_records))[15m:1m]) > 0
          and sum by (model, shard) (ocpdl_lag_records) > 2 * max by (model, shard) (ocpdl_batch_size)
          and max by (model, shard) (ocpdl_lag_seconds) > 60
        """,
        "15m",
        "warning",
        "{{ $labels.model }}/{{ $labels.shard }} falls behind by {{ $value | humanize }} records a second",
    ),
    Alert(
        "OcpdlDeadLetters",
        """
        sum by (model, shard) (increase(ocpdl_dead_letters_total[15m]))
          / (
            sum by (model, shard) (increase(ocpdl_dead_letters_total[15m]))
            + sum by (model, shard) (increase(ocpdl_tensors_total[15m]))
          )
          > 0.01
        """,
        "5m",
        "warning",
        "{{ $labels.model }}/{{ $labels.shard }} refuses {{ $value | humanizePercentage }} of its input",
    ),
    Alert(
        "OcpdlCheckpointStale",
        """
        max by (model, shard) (ocpdl_unsaved_seconds) > 6 * 3600
        """,
        "10m",
        "warning",
        "{{ $labels.model }}/{{ $labels.shard }} has steps that no checkpoint has,"
        " the first of them {{ $value | humanizeDuration }} old",
    ),
    Alert(
        "OcpdlRecoveryLooping",
        """
        changes((max by (model, shard) (ocpdl_term_timestamp_seconds))[30m:1m]) > 3
          or sum by (model, shard) (increase(ocpdl_recoveries_total[30m])) > 3
        """,
        "0m",
        "critical",
        '{{ $labels.model }}/{{ $labels.shard }} was started or taken over {{ $value | printf "%.0f" }} times in half'
        " an hour",
    ),
    Alert(
        "OcpdlEpochChanged",
        """
        changes((max by (model, shard) (ocpdl_epoch))[1h:1m]) > 0
        """,
        "0m",
        "info",
        "{{ $labels.model }}/{{ $labels.shard }} began a new epoch: its bits, its state, or the chains that it learns"
        " are no longer those of the steps before",
    ),
    Alert(
        "OcpdlLossNotFinite",
        """
        max by (model, shard) (ocpdl_surrogate_loss * 0 != 0 or ocpdl_prequential_loss * 0 != 0)
          or sum by (model, shard) (increase(ocpdl_dead_letters_total{error="NumericError"}[15m])) > 0
        """,
        "0m",
        "critical",
        "{{ $labels.model }}/{{ $labels.shard }} had a step whose result is not finite",
    ),
    Alert(
        "OcpdlLossDiverging",
        """
        avg_over_time((max by (model, shard) (ocpdl_prequential_loss))[30m:1m])
          > 2 * avg_over_time((max by (model, shard) (ocpdl_prequential_loss))[30m:1m] offset 2h)
          and max by (model, shard) (ocpdl_prequential_loss) > 1e-4 * max by (model, shard) (ocpdl_energy)
        """,
        "15m",
        "warning",
        "{{ $labels.model }}/{{ $labels.shard }} explains new tensors half as well as two hours ago, or worse",
    ),
    Alert(
        "OcpdlStructureChanged",
        """
        sum by (model, shard) (increase(ocpdl_changes_total{change="structure"}[30m])) > 0
        """,
        "0m",
        "warning",
        "the data of {{ $labels.model }}/{{ $labels.shard }} have changed in structure: they are explained worse",
    ),
    Alert(
        "OcpdlScaleChanged",
        """
        sum by (model, shard) (increase(ocpdl_changes_total{change="scale"}[30m])) > 0
        """,
        "0m",
        "info",
        "the data of {{ $labels.model }}/{{ $labels.shard }} have changed in scale, and not in structure",
    ),
    Alert(
        "OcpdlRadiusAlwaysActive",
        """
        sum by (model, shard, mode) (increase(ocpdl_radius_active_total[1h]))
          / on (model, shard) group_left () (sum by (model, shard) (increase(ocpdl_steps_total[1h])) > 100)
          > 0.95
        """,
        "1h",
        "warning",
        "the search radius holds mode {{ $labels.mode }} of {{ $labels.model }}/{{ $labels.shard }} back in"
        " {{ $value | humanizePercentage }} of the steps",
    ),
    Alert(
        "OcpdlChainStuck",
        """
        max by (model, shard) (ocpdl_chains{state="silent"}) > 0
          and max by (model, shard) (ocpdl_chains{state="active"}) > 0
        """,
        "10m",
        "warning",
        "{{ $value }} chains of {{ $labels.model }}/{{ $labels.shard }} have no more draws, and the others go on",
    ),
    Alert(
        "OcpdlAssumptionLost",
        """
        max by (model, shard, assumption) (ocpdl_assumption{standing="holds"}) == 0
          and max_over_time((max by (model, shard, assumption) (ocpdl_assumption{standing="holds"}))[1d:5m]) == 1
        """,
        "5m",
        "warning",
        "{{ $labels.assumption }} of the theorem held for {{ $labels.model }}/{{ $labels.shard }}, and does no more",
    ),
    Alert(
        "OcpdlPartitionAwaited",
        """
        max by (model, shard, partition) (ocpdl_awaited_seconds) > 300
          and on (model, shard)
            sum by (model, shard) (ocpdl_lag_records) >= max by (model, shard) (ocpdl_batch_size)
          or max by (model, shard, partition) (ocpdl_awaited_seconds) > 300
          and on (model)
            max by (model) (ocpdl_encoder_lag_records) > max by (model) (ocpdl_encoder_batch_size)
        """,
        "5m",
        "critical",
        "{{ $labels.model }}/{{ $labels.shard }} waits for partition {{ $labels.partition }} since"
        " {{ $value | humanizeDuration }}, and the others have more",
    ),
    Alert(
        "OcpdlNobodyEncodes",
        """
        (
          sum by (model) (ocpdl_encoder_role{role="encoder"})
          or 0 * max by (model) (ocpdl_round_partials)
        )
          == 0
        """,
        "10m",
        "critical",
        "no encoder of {{ $labels.model }} has a partition",
    ),
    Alert(
        "OcpdlEncodersStalled",
        """
        max by (model) (ocpdl_encoder_lag_records) > max by (model) (ocpdl_encoder_batch_size)
          and sum by (model) (increase(ocpdl_encoder_tensors_total[5m])) == 0
        """,
        "5m",
        "critical",
        "the encoders of {{ $labels.model }} code nothing, and {{ $value }} records of a partition wait",
    ),
    Alert(
        "OcpdlEncodersWaiting",
        """
        sum by (model) (ocpdl_encoder_waiting_partitions) > 0
        """,
        "10m",
        "warning",
        "{{ $value }} partitions of {{ $labels.model }} are not coded: there is no dictionary, or nobody knows where"
        " the group stands",
    ),
    Alert(
        "OcpdlEncodersLagGrowing",
        """
        deriv((sum by (model) (ocpdl_encoder_lag_records))[15m:1m]) > 0
          and sum by (model) (ocpdl_encoder_lag_records)
            > 300 * sum by (model) (rate(ocpdl_encoder_tensors_total[15m]))
          and max by (model) (ocpdl_encoder_lag_records) > 2 * max by (model) (ocpdl_encoder_batch_size)
        """,
        "15m",
        "warning",
        "the encoders of {{ $labels.model }} fall behind by {{ $value | humanize }} records a second",
    ),
    Alert(
        "OcpdlDictionaryOld",
        """
        max by (model, shard) (ocpdl_encoder_dictionary_age_seconds) > 900
          and sum by (model, shard) (increase(ocpdl_outputs_total{stream="snapshots"}[10m])) > 0
        """,
        "5m",
        "warning",
        "an encoder of {{ $labels.model }}/{{ $labels.shard }} has had its dictionary for"
        " {{ $value | humanizeDuration }}, and newer ones are published",
    ),
)


def rules() -> dict[str, Any]:
    """The rules file; the `spec` of a PrometheusRule is the same."""
    return {"groups": [{"name": "stream-ocpdl", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": dedented(alert.expression),
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook": alert.runbook},
    }


def dedented(expression: str) -> str:
    """Without the indentation that it has here."""
    lines = expression.strip("\n").rstrip().split("\n")
    indentation = min(len(line) - len(line.lstrip()) for line in lines)
    return "\n".join(line[indentation:] for line in lines)


def manifest() -> dict[str, Any]:
    """The same as a resource of the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "stream-ocpdl", "labels": {"app.kubernetes.io/name": "stream-ocpdl"}},
        "spec": rules(),
    }


def table() -> str:
    """The list in docs/runbooks/README.md."""
    rows = [f"| [{a.name}]({a.name}.md) | {a.severity} | {a.wait} | {_plainly(a.summary)} |" for a in ALERTS]
    return "\n".join(["| alert | severity | for | says |", "|---|---|---|---|", *rows]) + "\n"


def _plainly(summary: str) -> str:
    """A summary without the syntax of templates."""
    return re.sub(
        r"{{ \$(?:labels\.)?(\w+)[^}]*}}", lambda found: "…" if found[1] == "value" else found[1].upper(), summary
    )
