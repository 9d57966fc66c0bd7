"""`stream-ocpdl replay`: the past of a model, made again from its journal."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from stream_ocpdl.audit import Audit, Past, past
from stream_ocpdl.cli.options import Failures, check_shard, one_shard, reached, store_of, with_settings, with_shard
from stream_ocpdl.errors import ConfigError, OcpdlError
from stream_ocpdl.machine import processors
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.stream.history import find
from stream_ocpdl.stream.kafka import Connection
from stream_ocpdl.stream.recovery import Recovered
from stream_ocpdl.stream.snapshots import published
from stream_ocpdl.stream.topics import Topics


@click.command()
@with_settings
@with_shard
@click.option("--to-step", type=click.IntRange(0), help="Rebuild the state after this step.")
@click.option("--epoch", type=click.IntRange(0), help="Of that step; without it the newest epoch that has it.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write that state: FILE.npz (arrays) or FILE.state (bytes)."
)
@click.option("--window", "show_window", is_flag=True, help="Print which steps can be rebuilt, and why not more.")
@click.option("--audit", "show_audit", is_flag=True, help="Replay all that can be, and compare; this is the default.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output.")
def replay(
    config: Path | None,
    overrides: tuple[str, ...],
    shard: int,
    to_step: int | None,
    epoch: int | None,
    out: Path | None,
    show_window: bool,
    show_audit: bool,
    as_json: bool,
) -> None:
    """Make the past of a model again, from journal, input and checkpoints, and check every link and digest on the way.

    With --to-step the state after a step; with --window which steps there are, both of shard 0 unless --shard says
    otherwise; else everything is replayed, of all shards, and compared with the snapshots that were published, byte for
    byte, which ends with 1 if one differs. Nothing of the model is changed, and it may be running meanwhile.

    Example: stream-ocpdl replay --config service.yaml --to-step 400 --out state.npz
    """
    if (to_step is not None) + show_window + show_audit > 1:
        raise ConfigError("--to-step, --window and --audit exclude each other")
    if (out is not None or epoch is not None) and to_step is None:
        raise ConfigError("--out and --epoch go with --to-step")
    if out is not None and out.suffix not in (".npz", ".state"):
        raise ConfigError(f"--out must end with .npz or .state, not {out.name!r}")
    settings, connection = reached(config, overrides)
    check_shard(settings, shard)
    every = to_step is None and not show_window and not one_shard(settings)
    told: list[dict[str, Any]] = []
    good, failures = True, Failures(settings)
    for k in range(settings.shards) if every else [shard]:
        store = store_of(settings, connection, shard=k)
        plan = replace(settings.plan(), shard=k)
        try:
            with past(connection, plan, store, settings.threads or processors(), say) as found:
                if show_window:
                    result, lines, well = windowed(found)
                elif to_step is not None:
                    result, lines, well = rebuilt(found, to_step, epoch, out)
                else:
                    result, lines, well = audited(found, connection, settings.topics())
        except OcpdlError as error:
            failures.add(k, error)
            continue
        told.append({"shard": k} | result)
        good = good and well
        if not as_json:
            click.echo("\n".join([*([f"shard {k}:"] if settings.shards > 1 else []), *lines]))
    if as_json and told:
        click.echo(json.dumps(told if every else told[0], indent=1))
    failures.tell()
    sys.exit(0 if good else 1)


Result = tuple[dict[str, Any], list[str], bool]
"""For machines, for people, and whether all is well."""


def say(text: str) -> None:
    """How far it is."""
    click.echo(text, err=True)


def windowed(found: Past) -> Result:
    """Which steps can be rebuilt."""
    spans = found.window().spans
    lines = [f"{'epoch':>5}  {'steps':>17}  can be rebuilt"]
    for span in spans:
        steps = f"{span.first} … {span.last}" if span.first < span.last else f"{span.first}"
        lines.append(f"{span.epoch:5}  {steps:>17}  {'yes' if span.rebuilt else f'no: {span.why}'}")
    return {"spans": [span._asdict() for span in spans]}, lines, True


def rebuilt(found: Past, t: int, epoch: int | None, out: Path | None) -> Result:
    """The state after a step."""
    entry = find(found.journal, t, epoch)
    made = found.at(entry.offset)
    state, progress = made.progress.state, made.progress
    origin = "the genesis" if made.base < 0 else f"the checkpoint at offset {made.base} of the journal"
    if out is not None:
        write(out, state)
    told = {
        "step": state.t,
        "epoch": progress.epoch,
        "tensors": state.N,
        "digest": state.digest(),
        "exact": progress.exact,
        "journal_offset": made.journal_offset,
        "base": made.base,
        "replayed": made.replayed,
        "out": None if out is None else str(out),
    }
    lines = [
        f"step {state.t} of epoch {progress.epoch}, {state.N} tensors",
        f"digest {told['digest']}",
        f"made from {origin}, {made.replayed} steps replayed; links, inputs and digests agree",
    ]
    if not progress.exact:
        lines.append("made under another numeric fingerprint than the journal's: equal but for rounding")
    return told, lines + ([f"written to {out}"] if out else []), True


def write(path: Path, state: State) -> None:
    """A state as arrays or as canonical bytes."""
    try:
        with path.open("wb") as file:
            if path.suffix == ".state":
                file.writelines(state.parts())
                return
            past, loadings = state.aggregates, {f"U{i + 1}": U for i, U in enumerate(state.loadings)}
            B = past.B if isinstance(past.B, np.ndarray) else np.stack([past.B.atom(r) for r in range(state.rank)])
            scalars = {"t": state.t, "N": state.N, "scale": state.scale, "E": past.E, "P": past.P}
            loadings |= {"factors": np.array(state.factors)} if state.factors else {}
            np.savez(file, A=past.A, B=B, **loadings, **{k: np.array(v) for k, v in scalars.items()})  # type: ignore[arg-type]
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def audited(found: Past, connection: Connection, topics: Topics) -> Result:
    """All that can be replayed, against what was published."""
    audit = found.audit(published(connection, topics.snapshots))
    made = audit.replayed
    assert made is not None  # noqa: S101  (it was just set)
    return verdict(audit, made)


def verdict(audit: Audit, made: Recovered) -> Result:
    """What an audit comes to."""
    state = made.progress.state
    names = {"agree": audit.agree, "differ": audit.differ, "unchecked": audit.unchecked}
    told: dict[str, Any] = {name: [str(version) for version in versions] for name, versions in names.items()}
    told |= {"step": state.t, "epoch": made.progress.epoch, "digest": state.digest(), "replayed": made.replayed}
    told |= {"exact": made.progress.exact, "base": made.base}
    origin = "from scratch" if made.base < 0 else f"from the checkpoint at offset {made.base} of the journal"
    lines = [
        f"{made.replayed} steps replayed {origin}, to step {state.t} of epoch {made.progress.epoch}",
        f"digest {told['digest']}; links, inputs and digests agree",
        f"of {len(audit.published)} published snapshots {len(audit.agree)} agree byte for byte,"
        f" {len(audit.differ)} differ, {len(audit.unchecked)} could not be checked",
        *(f"differs: {version}" for version in audit.differ),
    ]
    if not made.progress.exact:
        lines.append("some steps were made under another numeric fingerprint: they agree but for rounding")
    return told, lines, not audit.differ
