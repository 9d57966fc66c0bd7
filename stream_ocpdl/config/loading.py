"""Where settings come from, and what came from where.

    defaults  <  file (YAML, of which JSON is a part)  <  environment  <  --set

The environment has `OCPDL_PROBLEM__RANK=5` for what `--set problem.rank=5` is on the command line; in both the value is
YAML, but for settings that are texts. Secrets come from the environment, or from files of their own: a file of settings
is copied and committed, and a command line is seen by everybody on the machine.

All that is wrong is said at once, a line each, with where it was given.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from stream_ocpdl.config.places import (
    PREFIX,
    RAW,
    Place,
    complaints,
    is_secret,
    kinds_of,
    open_secrets,
    section_at,
    unknown_variables,
    variable,
)
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and where each of those that were given was given."""

    settings: Settings
    origins: dict[Place, str]


def load(path: Path | None, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Loaded:
    """The settings of a file, the environment and the command line."""
    variables = os.environ if environment is None else environment
    merged: dict[str, Any] = {}
    origins: dict[Place, str] = {}
    problems = list(unknown_variables(variables))
    for given, origin in (
        *([(_file(path), str(path))] if path else []),
        *_environment(variables),
        *(_override(text) for text in overrides),
    ):
        merged = _merge(merged, given)
        for place in _leaves(given):
            origins.pop(place, None)  # so that the last one given stands last
            origins[place] = origin
    problems += open_secrets(origins)
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        problems += complaints(error, origins)
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return Loaded(settings, origins)


# ── sources ────────────────────────────────────────────────────────────────────────────────────────────────────


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-8 is a number, as in JSON, and a key that stands twice is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping with each key once."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse(text: str, where: str) -> Any:
    """A value in YAML."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506  (a safe one)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{where} is not YAML: {at}{getattr(error, 'problem', None) or error}") from None


def _file(path: Path) -> dict[str, Any]:
    try:
        data = parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeError as error:
        raise ConfigError(f"{path} is not YAML: it is not UTF-8") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold an object with the settings, such as model: weather")
    return {name: {} if value is None and section_at((str(name),)) else value for name, value in data.items()}


class _InTheEnvironment(Settings, BaseSettings):
    """The settings by the names that they have there."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__")


class _Variables(EnvSettingsSource):
    """The environment as pydantic-settings reads it, with values in YAML."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        super().__init__(_InTheEnvironment)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._variables.items()}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """A list or an object."""
        return parse(value, PREFIX + field_name.upper())


def _environment(variables: Mapping[str, str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each variable as the setting that it is."""
    try:
        found = _Variables(variables)()
    except SettingsError as error:
        raise error.__cause__ or error from None  # what `parse` says
    for place, value in _walk(found):
        name = variable(place)
        if place[:2] == ("kafka", "extra"):  # FETCH_MIN_BYTES is fetch.min.bytes
            place = (*place[:2], *(part.replace("_", ".") for part in place[2:]))
        yield _nest(place, _typed(place, value, name) if isinstance(value, str) else value), name


def _override(text: str) -> tuple[dict[str, Any], str]:
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set {text}: it must be like --set problem.rank=5")
    parts = path.strip().split(".")
    place = (*parts[:2], ".".join(parts[2:])) if parts[:2] == ["kafka", "extra"] and parts[2:] else tuple(parts)
    return _nest(place, _typed(place, value, f"--set {path}")), f"--set {path}"


def _typed(place: Place, text: str, where: str) -> Any:
    """A text as the setting wants it: itself where that is a text, else read as YAML."""
    if is_secret(place):
        return text
    return text if str in kinds_of(place) and text != "null" and place != RAW else parse(text, where)


def _nest(place: Place, value: Any) -> dict[str, Any]:
    for part in reversed(place):
        value = {part: value}
    found: dict[str, Any] = value
    return found


def _merge(below: Any, above: Any) -> Any:
    """Two sources, the second over the first; the name of a topic stands for an input."""
    if not isinstance(above, dict):
        return above
    merged = dict(below) if isinstance(below, dict) else {"topic": below} if isinstance(below, str) else {}
    for name, value in above.items():
        merged[str(name)] = _merge(merged.get(str(name)), value)
    return merged


def _walk(data: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _walk(value, (*place, str(name)))
    else:
        yield place, data


def _leaves(data: dict[str, Any]) -> Iterator[Place]:
    for place, _ in _walk(data):
        yield ("input", "topic") if place == ("input",) else place


# ── what is in force ───────────────────────────────────────────────────────────────────────────────────────────


def show(loaded: Loaded) -> str:
    """The settings in force as YAML that can be read again, without secrets; behind each that was given, where."""
    return "\n".join(_shown(loaded.settings, (), loaded.origins)) + "\n"


def _shown(section: BaseModel, place: Place, origins: dict[Place, str]) -> Iterator[str]:
    indent = "  " * len(place)
    for name, value in section:
        here = (*place, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _shown(value, here, origins)
        elif isinstance(value, dict) and value:
            yield f"{indent}{name}:"
            for key, raw in value.items():
                yield _setting(indent + "  ", key, raw, origins.get((*here, key)))
        else:
            yield _setting(indent, name, value, origins.get(here), secret=is_secret(here))


def _setting(indent: str, name: str, value: Any, origin: str | None, secret: bool = False) -> str:
    if secret or isinstance(value, SecretStr):
        return f"{indent}# {name}: " + (f"set, and not shown  (from {origin or 'the program'})" if value else "not set")
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    text = text.removesuffix("...\n").strip()
    return f"{indent}{name}: {text}" + (f"  # {origin}" if origin else "")
