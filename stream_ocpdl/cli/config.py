"""`stream-ocpdl config`: the settings in force."""

import json
from pathlib import Path

import click

from stream_ocpdl.cli.options import with_settings
from stream_ocpdl.config.loading import load, show
from stream_ocpdl.config.reference import schema


@click.command()
@with_settings
@click.option("--schema", "as_schema", is_flag=True, help="Print the JSON Schema of a file of settings instead.")
def config(config: Path | None, overrides: tuple[str, ...], as_schema: bool) -> None:
    """Print the settings in force, and where each of those that were given comes from.

    Defaults, then the file, then variables such as OCPDL_PROBLEM__RANK, then --set. Secrets are not shown, and what is
    printed can be used as a file.

    Example: stream-ocpdl config --config service.yaml --set problem.rank=5
    """
    if as_schema:
        click.echo(json.dumps(schema(), indent=2, ensure_ascii=False))
    else:
        click.echo(show(load(config, overrides)), nl=False)
