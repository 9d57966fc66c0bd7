"""`stream-ocpdl validate`: whether a service could run with these settings."""

import json
import sys
from pathlib import Path

import click

from stream_ocpdl.cli.options import topics_create, with_settings
from stream_ocpdl.config.loading import load
from stream_ocpdl.config.validation import validate as layers_of


@click.command()
@with_settings
@click.option("--connect", is_flag=True, help="Also ask the broker, and look at the topics.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON on standard output.")
def validate(config: Path | None, overrides: tuple[str, ...], connect: bool, as_json: bool) -> None:
    """Check the settings in layers, up to the first that fails. Nothing is changed.

    Ends with 2 for syntax (YAML, names, types), 7 for semantics (what makes no sense), 6 for the connection, 4 for
    a model that was begun with other settings, and 8 for topics that are not as they must be.

    Example: stream-ocpdl validate --config service.yaml --connect
    """
    code, told = 0, []
    for layer in layers_of(lambda: load(config, overrides).settings, connect, topics_create(config, overrides)):
        code, count = layer.exit_code, len(layer.errors)
        told.append({"layer": layer.name, "errors": list(layer.errors), "warnings": list(layer.warnings)})
        if as_json:
            continue
        click.echo(f"{layer.name}: " + (f"{count} error{'s' * (count > 1)}" if count else "ok"))
        click.echo("".join(f"  {line}\n" for line in layer.errors), nl=False)
        click.echo("".join(f"  warning: {line}\n" for line in layer.warnings), nl=False)
    if as_json:
        click.echo(json.dumps(told, indent=1))
    sys.exit(code)
