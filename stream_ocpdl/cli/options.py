"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def with_settings(command: F) -> F:
    """The file of settings, and single ones."""
    file = click.option("--config", type=click.Path(path_type=Path), help="File with the settings, YAML or JSON.")
    one = click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting, such as problem.rank=5; repeatable."
    )
    return file(one(command))


def topics_create(config: Path | None) -> str:
    """The command that makes the topics of these settings."""
    return "stream-ocpdl topics create" + (f" --config {config}" if config else "")
