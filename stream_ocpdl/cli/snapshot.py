"""`stream-ocpdl snapshot`: the dictionaries that a model has published, and the way back to one."""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from stream_ocpdl.cli.options import check_shard, name_of, one_shard, reached, with_settings, with_shard
from stream_ocpdl.errors import ConfigError, LineageError
from stream_ocpdl.ocpdl.matching import SAME, Matching, match_atoms
from stream_ocpdl.stream.asking import ask, versions
from stream_ocpdl.stream.messages import Request, Snapshot
from stream_ocpdl.stream.messages.layout import written_layout
from stream_ocpdl.stream.snapshots import Published, choose, published, save

SHOWN = 12
"""Factors on a page."""

AS_JSON = click.option("--json", "as_json", is_flag=True, help="The same as JSON on standard output.")


@click.group()
def snapshot() -> None:
    """List, show and compare the dictionaries that a model has published, or go back to one.

    A VERSION is `latest`, a step (of the newest epoch that has it), EPOCH/T, or MODEL/SHARD/EPOCH/T.

    Example: stream-ocpdl snapshot list --config service.yaml
    """


def found(config: Path | None, overrides: tuple[str, ...], shard: int = 0) -> Iterator[Published]:
    """The snapshots of the model of these settings, which has that shard."""
    settings, connection = reached(config, overrides)
    check_shard(settings, shard)
    return published(connection, settings.topics().snapshots)


@snapshot.command("list")
@with_settings
@AS_JSON
def list_(config: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """The snapshots on the topic, the oldest first.

    Example: stream-ocpdl snapshot list --config service.yaml
    """
    rows = [row(one) for one in found(config, overrides)]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    width = max((len(r["version"]) for r in rows), default=7)
    click.echo(f"{'version':{width}}  {'tensors':>10}  {'weight':>9}  {'time':20}  {'bytes':>10}")
    for r in rows:
        click.echo(f"{r['version']:{width}}  {r['tensors']:10}  {r['weight']:9.3g}  {r['time']:20}  {r['bytes']:10}")


def row(one: Published) -> dict[str, Any]:
    """A snapshot as one line."""
    snapshot = one.snapshot
    return {
        "version": str(snapshot.version),
        "step": snapshot.step,
        "epoch": snapshot.version.epoch,
        "tensors": snapshot.tensors,
        "weight": snapshot.weight,
        "time": datetime.fromtimestamp(one.timestamp / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "bytes": len(one.value),
    }


@snapshot.command()
@with_settings
@click.argument("version")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write the loadings to this .npz file, or FILE.snapshot: the message.",
)
@with_shard
@AS_JSON
def show(
    config: Path | None, overrides: tuple[str, ...], version: str, out: Path | None, shard: int, as_json: bool
) -> None:
    """One snapshot: the loadings' shapes and norms, the assumption card, positions and axes.

    Example: stream-ocpdl snapshot show latest --config service.yaml --out loadings.npz
    """
    (chosen,) = choose(found(config, overrides, shard), version, shard=shard)
    if out is not None:
        keep(out, chosen)
    told = row(chosen) | described(chosen.snapshot)
    click.echo(json.dumps(told, indent=1) if as_json else "\n".join(page(told)))
    if out is not None and not as_json:
        click.echo(f"written to {out}")


def keep(out: Path, chosen: Published) -> None:
    """Write the loadings, or the message with all that it says."""
    if out.suffix != ".snapshot":
        return save(out, chosen.snapshot.loadings, str(chosen.snapshot.version))
    try:
        out.write_bytes(chosen.value)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from error


def described(snapshot: Snapshot) -> dict[str, Any]:
    """What is in a snapshot besides its line."""
    modes = [
        {"name": name, "shape": list(U.shape), "norm": float(np.linalg.norm(U)), "zeros": float(np.mean(U == 0))}
        for name, U in zip(snapshot.modes, snapshot.loadings, strict=True)
    ]
    card = [{"name": line.name, "standing": str(line.standing), "reason": line.reason} for line in snapshot.card]
    return {
        "modes": modes,
        "axes": snapshot.axes,
        "layout": None if snapshot.layout is None else written_layout(snapshot.layout),
        "schedule": snapshot.schedule,
        "card": card,
        "input": snapshot.input,
        "positions": {str(p): offset for p, offset in sorted(snapshot.positions.items())},
        "software": snapshot.software,
    }


def page(told: dict[str, Any]) -> list[str]:
    """A snapshot for people."""
    positions = ", ".join(f"{p}: {offset}" for p, offset in told["positions"].items())
    return [
        f"{told['version']}, {told['tensors']} tensors, weight {told['weight']:.3g} of {told['schedule']}",
        f"written {told['time']} by {told['software']}, {told['bytes']} bytes",
        f"input {told['input']}, to be read on at {positions}",
        f"{'mode':16}  {'shape':>14}  {'norm':>10}  {'zeros':>6}",
        *(
            f"{m['name']:16}  {' × '.join(map(str, m['shape'])):>14}  {m['norm']:10.4g}  {m['zeros']:6.1%}"
            for m in told["modes"]
        ),
        *_layout(told["layout"], told["axes"]),
        *(f"{line['name']:14} {line['standing']:6} {line['reason']}" for line in told["card"]),
    ]


def _layout(layout: dict[str, Any] | None, axes: tuple[str, ...] | None) -> list[str]:
    """What there is to say of tensors that are not learned just as they come."""
    if layout is None:
        return []
    names = axes or [f"mode {mode + 1}" for mode in range(len(layout["shape"]))]
    tensors = ", ".join(f"{name} {size}" for name, size in zip(names, layout["shape"], strict=True))
    lines = [f"tensors: {tensors}; loadings are in the units of the data, losses in those that were learned"]
    if "factors" in layout:
        factors = ", ".join(f"{factor:.6g}" for factor in layout["factors"][:SHOWN])
        more = ", …" if len(layout["factors"]) > SHOWN else ""
        lines.append(f"{names[layout['axis']]} was multiplied by {factors}{more}")
    return lines


@snapshot.command()
@with_settings
@click.argument("a")
@click.argument("b")
@click.option("--atoms", type=click.IntRange(1), default=5, show_default=True, help="How many atoms to show.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1, min_open=True),
    default=SAME,
    show_default=True,
    help="The cosine from which on two atoms are the same.",
)
@with_shard
@AS_JSON
def diff(
    config: Path | None,
    overrides: tuple[str, ...],
    a: str,
    b: str,
    atoms: int,
    threshold: float,
    shard: int,
    as_json: bool,
) -> None:
    """What became of the atoms of snapshot A in snapshot B: which drifted furthest, which died, which were born.

    Atoms are matched by their cosines, wherever they are and however large. The angle is that between an atom and its
    successor, the size how many times larger it has become; the mode's columns are cosines.

    Example: stream-ocpdl snapshot diff 100 latest --config service.yaml
    """
    one, other = (chosen.snapshot for chosen in choose(found(config, overrides, shard), a, b, shard=shard))
    told = compared(one, other, match_atoms(one.loadings, other.loadings, threshold), atoms)
    click.echo(json.dumps(told, indent=1) if as_json else "\n".join(comparison(told)))


def compared(one: Snapshot, other: Snapshot, found: Matching, atoms: int) -> dict[str, Any]:
    """A comparison for machines."""
    cosines = 1.0 - found.turns
    modes = [
        {
            "name": name,
            "movement": movement,
            "least": float(row.min(initial=1.0)),
            "mean": float(row.sum() / max(len(row), 1)),
        }
        for name, movement, row in zip(one.modes, found.movements, cosines, strict=True)
    ]
    most = [
        {
            "atom": one.atoms[found.pairs[p, 0]],
            "now": other.atoms[found.pairs[p, 1]],
            "cosine": float(found.cosines[p]),
            "angle": float(found.drift[p]),
            "size": float(found.sizes[p]),
            "cosines": [float(row[p]) for row in cosines],
        }
        for p in found.most_changed(atoms)
    ]
    return {
        "from": str(one.version),
        "to": str(other.version),
        "steps": other.step - one.step,
        "tensors": other.tensors - one.tensors,
        "modes": modes,
        "same": len(found.pairs),
        "deaths": [one.atoms[r] for r in found.deaths],
        "births": [other.atoms[r] for r in found.births],
        "atoms": most,
    }


def comparison(told: dict[str, Any]) -> list[str]:
    """A comparison for people."""
    names = [mode["name"] for mode in told["modes"]]
    wide = [max(len(name), 7) for name in names]

    def listed(atoms: list[int]) -> str:
        return ", ".join(map(str, atoms)) or "none"

    return [
        f"{told['from']} → {told['to']}: {told['steps']} steps, {told['tensors']} tensors",
        f"{'mode':16}  {'movement':>9}  {'cosine, least':>13}  {'mean':>7}",
        *(f"{m['name']:16}  {m['movement']:9.3g}  {m['least']:13.5f}  {m['mean']:7.5f}" for m in told["modes"]),
        f"{told['same']} atoms are the same, died: {listed(told['deaths'])}, born: {listed(told['births'])}",
        f"the {len(told['atoms'])} that drifted furthest:",
        "  ".join([f"{'atom':>6}{'now':>6}{'angle':>8}{'size':>9}", *map(str.rjust, names, wide)]),
        *(
            "  ".join(
                [f"{a['atom']:6}{a['now']:6}{a['angle']:7.2f}°{a['size']:9.4g}"]
                + [f"{cosine:{width}.5f}" for cosine, width in zip(a["cosines"], wide, strict=True)]
            )
            for a in told["atoms"]
        ),
    ]


@snapshot.command()
@with_settings
@click.option("--to-step", type=click.IntRange(0), required=True, help="The step whose state is wanted.")
@click.option("--epoch", type=click.IntRange(0), help="Of that step; without it the newest epoch that has it.")
@click.option("--wait", type=click.FloatRange(0), default=60, show_default=True, help="Seconds to wait for the answer.")
@with_shard
@AS_JSON
def rollback(
    config: Path | None,
    overrides: tuple[str, ...],
    to_step: int,
    epoch: int | None,
    wait: float,
    shard: int,
    as_json: bool,
) -> None:
    """Give a running model the state that it had after an earlier step, any that `replay --window` shows.

    Reading goes on where it is: what was learned since is forgotten, and not read again. A new epoch begins, so that
    versions stay unique; an abandoned one can be gone back to in the same way.

    Example: stream-ocpdl snapshot rollback --config service.yaml --to-step 400
    """
    settings, connection = reached(config, overrides)
    check_shard(settings, shard)
    if not one_shard(settings):
        raise ConfigError(
            f"the model has {settings.shards} shards, each with a dictionary of its own: say which goes back, --shard 0"
        )
    topics = settings.topics()
    known = versions(connection, topics, shard)
    meant = [entry for entry in known if entry.t == to_step and epoch in (None, entry.epoch)]
    now = known[-1]
    if not meant:
        raise LineageError(f"{topics.journal} has no such step; it stands at step {now.t} of epoch {now.epoch}")
    request = Request(uuid.uuid4().hex, "rollback", t=to_step, epoch=meant[-1].epoch, present=now.epoch)
    try:
        record = ask(connection, topics, request, wait, shard)
    except ConfigError as error:
        which = "" if settings.shards == 1 else f" --shard {shard}"
        raise ConfigError(
            f"{error}. stream-ocpdl replay --window{which} shows the steps that can be gone back to"
        ) from None
    if as_json:
        told = {"model": settings.model, "shard": shard, "step": to_step, "of_epoch": meant[-1].epoch}
        click.echo(json.dumps(told | {"epoch": record.epoch, "digest": record.state}))
        return
    click.echo(
        f"{name_of(settings, shard)}: back to step {to_step} of epoch {meant[-1].epoch};"
        f" it goes on as epoch {record.epoch}\n"
        f"digest {record.state}"
    )
