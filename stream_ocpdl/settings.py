"""The settings of a service, from a file. JSON for now, which is also YAML."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.formats import Format
from stream_ocpdl.stream.pipeline import Plan
from stream_ocpdl.stream.service import Pace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Input:
    """Where tensors come from, and how they are written there."""

    topic: str
    format: Any = "native"
    dtype: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str) or not self.topic:
            raise ConfigError(f"input.topic must be the name of a topic, not {self.topic!r}")
        if self.dtype is not None and self.format != "raw":
            raise ConfigError(f"input.dtype is for input.format raw; {self.format} says its own")


@dataclass(frozen=True, slots=True)
class Settings:
    """A model, its input, and where its checkpoints go: "topic", or a directory.

    `input` is the name of a topic, or an object with `topic`, `format` and, for raw bytes, `dtype`.
    """

    model: str
    input: str | dict[str, Any]
    bootstrap_servers: str
    problem: dict[str, Any]
    batching: dict[str, Any] = field(default_factory=dict)
    pace: dict[str, Any] = field(default_factory=dict)
    checkpoints: str = "topic"
    snapshot_every: int = 100
    digest_every: int = 100
    axes: list[str] | None = None
    """Names of the modes, for readers of the snapshots."""
    threads: int | None = None
    """Threads of the kernels; without it as many as there are processors, or as a container may use."""

    @property
    def topic(self) -> str:
        """The name of the input's topic."""
        return self._input().topic

    def plan(self) -> Plan:
        """What is to be learned."""
        given, batching = self._input(), _build(Batching, "batching", self.batching)
        if not isinstance(self.problem, dict):
            raise ConfigError(f"problem must be an object with settings, not {self.problem!r}")
        return Plan(
            model=self.model,
            problem=_build(Problem, "problem", {"batch_size": batching.size} | self.problem),
            batching=batching,
            snapshot_every=self.snapshot_every,
            digest_every=self.digest_every,
            topic=given.topic,
            format=Format(given.format, given.dtype or "<f8"),
            axes=tuple(self.axes) if isinstance(self.axes, list) else self.axes,
        )

    def _input(self) -> "Input":
        return _build(Input, "input", {"topic": self.input} if isinstance(self.input, str) else self.input)

    def rhythm(self) -> Pace:
        """How often what is written."""
        return _build(Pace, "pace", self.pace)

    def save(self, path: Path) -> None:
        """Write a file that `load` reads."""
        path.write_text(json.dumps({name: getattr(self, name) for name in self.__slots__}, indent=1) + "\n")


def load(path: Path) -> Settings:
    """Read a file of settings."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold an object with the settings")
    return _build(Settings, str(path), data)


def _build(kind: type[T], where: str, values: Any) -> T:
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be an object with settings, not {values!r}")
    try:
        return kind(**values)
    except TypeError as error:
        known = ", ".join(kind.__slots__)  # type: ignore[attr-defined]
        raise ConfigError(f"{where}: {str(error).split(') ')[-1]}; the settings are {known}") from error
