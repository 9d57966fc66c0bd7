"""Options that several commands share."""

import shlex
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from stream_ocpdl.config.loading import load
from stream_ocpdl.config.places import all_places
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.config.validation import semantics
from stream_ocpdl.errors import ConfigError, OcpdlError
from stream_ocpdl.stream.checkpoint import CheckpointStore, DirectoryStore
from stream_ocpdl.stream.kafka import Connection, reach
from stream_ocpdl.stream.ports import CrashPoint, no_crash
from stream_ocpdl.stream.topics import TopicStore, nothing

F = TypeVar("F", bound=Callable[..., Any])


def with_settings(command: F) -> F:
    """The file of settings, and single ones."""
    file = click.option("--config", type=click.Path(path_type=Path), help="File with the settings, YAML or JSON.")
    one = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting, such as problem.rank=5; repeatable.",
        shell_complete=completed,
    )
    return file(one(command))


def completed(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    """The settings that begin with what was typed."""
    return [f"{name}=" for name in map(".".join, all_places()) if name.startswith(typed)]


def with_shard(command: F) -> F:
    """Which shard is meant."""
    return click.option("--shard", type=click.IntRange(0), default=0, help="Of a model with several: which is meant.")(
        command
    )


def one_shard(settings: Settings) -> bool:
    """Whether one shard is meant: the model has no other, or the command line names it."""
    named = click.get_current_context().get_parameter_source("shard") is not ParameterSource.DEFAULT
    return settings.shards == 1 or named


def name_of(settings: Settings, shard: int) -> str:
    """What a shard is called; the model, if it has no other."""
    return settings.model if settings.shards == 1 else f"{settings.model}, shard {shard}"


class Failures:
    """What went wrong with some shards, said when all are done."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._failed: list[OcpdlError] = []

    def add(self, shard: int, error: OcpdlError) -> None:
        """Note that a shard failed."""
        self._failed.append(error if self._settings.shards == 1 else type(error)(f"shard {shard}: {error}"))

    def tell(self) -> None:
        """Raise for all of them, if any did, with the exit code of the first."""
        if self._failed:
            raise type(self._failed[0])("\n".join(map(str, self._failed)))


def check_shard(settings: Settings, shard: int) -> None:
    """Raise unless the model has that shard."""
    if shard >= settings.shards:
        raise ConfigError(f"--shard must be below {settings.shards}, the number of shards, not {shard}")


def reached(config: Path | None, overrides: tuple[str, ...]) -> tuple[Settings, Connection]:
    """The settings, and a broker that answers."""
    settings = load(config, overrides).settings
    _, _, connection = semantics(settings)
    reach(connection)
    return settings, connection


def store_of(
    settings: Settings,
    connection: Connection,
    at: CrashPoint = no_crash,
    check: Callable[[], None] = nothing,
    shard: int = 0,
) -> CheckpointStore:
    """Where the checkpoints of a shard are."""
    if settings.checkpoints == "topic":
        return TopicStore(connection, settings.topics().state, settings.model, at, check, shard)
    return DirectoryStore(Path(settings.checkpoints), settings.model, at, shard if settings.shards > 1 else None)


class Reading:
    """Says now and then how much was read, while something long is read."""

    def __init__(self, what: str, every: float = 2.0) -> None:
        self._what, self._every = what, every
        self._count, self._told = 0, time.monotonic()

    def __call__(self) -> None:
        """One more."""
        self._count += 1
        if self._count % 256 == 0 and time.monotonic() - self._told > self._every:
            click.echo(f"{self._count} {self._what} read", err=True)
            self._told = time.monotonic()


def topics_create(config: Path | None, overrides: tuple[str, ...]) -> str:
    """The command that makes the topics of these settings.

    >>> topics_create(Path("service.yaml"), ("model=m",))
    'stream-ocpdl topics create --config service.yaml --set model=m'
    """
    options = ["--config", str(config)] if config else []
    return shlex.join(["stream-ocpdl", "topics", "create", *options, *chain(*(("--set", each) for each in overrides))])
