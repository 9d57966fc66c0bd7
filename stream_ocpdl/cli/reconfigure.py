"""`stream-ocpdl reconfigure`: other penalties, weights or radius for a model that is running."""

import json
import uuid
from pathlib import Path
from typing import Any

import click

from stream_ocpdl.cli.options import Failures, name_of, reached, with_settings
from stream_ocpdl.errors import ConfigError, OcpdlError
from stream_ocpdl.ocpdl.schedules import named
from stream_ocpdl.stream.asking import ask_shards, done
from stream_ocpdl.stream.messages import JournalRecord, Request


@click.command()
@with_settings
@click.option("--sparsity", type=float, help="λ: a penalty on the sum of the codes.")
@click.option("--ridge", type=float, help="λ₂: a penalty on their squares.")
@click.option("--weights", help="The schedule: 'power 0.76', 'power 0.75 0.6', 'balanced', 'constant 0.05'.")
@click.option("--radius", help="c′: a number, 'auto', or 'none' for no limit.")
@click.option("--wait", type=click.FloatRange(0), default=60, show_default=True, help="Seconds to wait for the answer.")
@click.option("--json", "as_json", is_flag=True, help="What it has now as JSON, a line for each shard.")
def reconfigure(
    config: Path | None,
    overrides: tuple[str, ...],
    sparsity: float | None,
    ridge: float | None,
    weights: str | None,
    radius: str | None,
    wait: float,
    as_json: bool,
) -> None:
    """Give a running model other terms from its next step on. What is not named stays.

    The service does it between two steps, and journals it; every later replay and recovery knows. Files of settings may
    keep the values that the model began with, or have the new ones.

    Example: stream-ocpdl reconfigure --config service.yaml --sparsity 0.2 --weights 'constant 0.05'
    """
    given = {"sparsity": sparsity, "ridge": ridge, "weights": weights}
    change: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if radius is not None:
        change["radius"] = as_radius(radius)
    if not change:
        raise ConfigError("there is nothing to change: give --sparsity, --ridge, --weights or --radius")
    if weights is not None:
        named(weights)
    for name in ("sparsity", "ridge"):
        if not 0 <= change.get(name, 0.0) < float("inf"):
            raise ConfigError(f"{name} must be nonnegative and finite, not {change[name]}")
    settings, connection = reached(config, overrides)
    requests = {shard: Request(uuid.uuid4().hex, "reconfigure", change) for shard in range(settings.shards)}
    answers = ask_shards(connection, settings.topics(), requests, wait)
    failures = Failures(settings)
    for shard in requests:
        try:
            record = done(answers.get(shard), settings.topics(), wait)
        except OcpdlError as error:
            failures.add(shard, error)
            continue
        if as_json:
            terms = record.terms._asdict() if record.terms else {}
            told = {"model": settings.model, "shard": shard, "step": record.t, "epoch": record.epoch or 0}
            click.echo(json.dumps(told | {"terms": terms, "new": sorted(change)}))
        else:
            tell(name_of(settings, shard), record, change)
    failures.tell()


def tell(name: str, record: JournalRecord, change: dict[str, Any]) -> None:
    """What a model has now."""
    terms = record.terms._asdict() if record.terms else {}
    click.echo(f"{name}: after step {record.t} of epoch {record.epoch or 0} it has")
    for name, value in terms.items():
        click.echo(f"  {name:9} {'none' if value is None else value}{'' if name not in change else '  (new)'}")


def as_radius(text: str) -> float | str | None:
    """A radius as the command line has it.

    >>> as_radius("none"), as_radius("auto"), as_radius("2")
    (None, 'auto', 2.0)
    """
    if text in ("none", "null"):
        return None
    if text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"radius must be a positive number, 'auto' or 'none', not {text!r}")
    return value
