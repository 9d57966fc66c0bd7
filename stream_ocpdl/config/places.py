"""Settings by their names: which there are, which one was meant, and what is wrong with what was given."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from stream_ocpdl.config.clients import hidden
from stream_ocpdl.config.settings import Settings

Place: TypeAlias = tuple[str, ...]
"""Of a setting: ("problem", "rank"). Those of librdkafka are one part: ("kafka", "extra", "linger.ms")."""

PREFIX = "OCPDL_"
"""Of the names of settings in the environment."""

WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object with settings",
    "model_type": "an object with settings",
    "model_attributes_type": "an object with settings",
    "string_too_short": "a text that is not empty",
    "string_pattern_mismatch": "a name of letters, digits and . _ -",
    "literal_error": "{expected}",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
"""What pydantic wants, in our words."""

RAW = ("kafka", "extra")
"""Where the settings of librdkafka are."""


# ── which there are ────────────────────────────────────────────────────────────────────────────────────────────


def field_at(place: Place) -> FieldInfo | None:
    """The setting or the section of this name, if there is one."""
    section: type[BaseModel] | None = Settings
    field = None
    for part in place:
        if section is None:
            return None
        field = section.model_fields.get(part)
        section = _section_of(field)
    return field


def _section_of(field: FieldInfo | None) -> type[BaseModel] | None:
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def section_at(place: Place) -> type[BaseModel] | None:
    """The section of this name, if it is one."""
    return _section_of(field_at(place)) if place else Settings


def all_places(place: Place = ()) -> Iterator[Place]:
    """Every setting there is.

    >>> ("problem", "rank") in all_places()
    True
    """
    section = section_at(place)
    if section is None:
        yield place
    else:
        for name in section.model_fields:
            yield from all_places((*place, name))


def kinds_of(place: Place) -> set[Any]:
    """The types that a setting may have."""
    field = field_at(place)
    return {field.annotation, *get_args(field.annotation)} if field else set()


def is_secret(place: Place) -> bool:
    """Whether the value of a setting may not be seen."""
    return hidden(place[-1]) if place[:2] == RAW else SecretStr in kinds_of(place)


def variable(place: Place) -> str:
    """The name of a setting in the environment.

    >>> variable(("kafka", "extra", "linger.ms"))
    'OCPDL_KAFKA__EXTRA__LINGER_MS'
    """
    return PREFIX + "__".join(place).replace(".", "_").upper()


# ── what is wrong ──────────────────────────────────────────────────────────────────────────────────────────────


def open_secrets(origins: Mapping[Place, str]) -> Iterator[str]:
    """Secrets that were given where others can see them."""
    for place, origin in origins.items():
        if is_secret(place) and origin != variable(place):
            name = ".".join(place)
            other = f", or {name}_file" if field_at((*place[:-1], f"{place[-1]}_file")) else ""
            yield f"{origin}: {name} is a secret, and can be seen here; set {variable(place)} in the environment{other}"


def unknown_variables(variables: Mapping[str, str]) -> Iterator[str]:
    """Variables that look like settings and are none. Others with our prefix may be anybody's: Kubernetes sets some."""
    for name in (name for name in variables if name.startswith(PREFIX)):
        place = tuple(name.removeprefix(PREFIX).lower().split("__"))
        like_ours = "__" in name or difflib.get_close_matches(place[0], Settings.model_fields, 1, 0.8)
        if like_ours and field_at(place) is None and place[:2] != RAW:
            yield f"{name}: {_unknown(place)}"


def complaints(error: ValidationError, origins: Mapping[Place, str]) -> Iterator[str]:
    """A line for each setting that is wrong, with where it was given."""
    missing: dict[str, str] = {}
    wanted: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    for one in error.errors(include_url=False):
        place, entry = _place_of(one["loc"])
        name, prefix = ".".join(place), _origin(place, origins)
        match one["type"]:
            case "missing":
                missing[name] = f"put it into the file, or set {variable(place)} or --set {name}=…"
            case "extra_forbidden":
                yield prefix + _unknown(place)
                missing.pop(_meant(place), None)  # one mistake, one line
            case "value_error":
                yield from (prefix + line for line in str(one["ctx"]["error"]).splitlines())
            case kind:
                want = WORDS[kind].format(**one.get("ctx", {})) if kind in WORDS else one["msg"]
                wanted.setdefault(f"{prefix}{name}{entry}", []).append(want)
                given[f"{prefix}{name}{entry}"] = _brief(one["input"], place)
    yield from (f"{name} is missing; {what_to_do}" for name, what_to_do in missing.items())
    for subject, words in wanted.items():
        yield f"{subject} must be {_either(words)}, not {given[subject]}"


def _place_of(loc: tuple[int | str, ...]) -> tuple[Place, str]:
    """The setting that an error is about, and the entry of a list; what a union would have taken is left out."""
    parts = tuple(str(part) for part in loc)
    if parts[:2] == RAW:
        return parts[:3], ""
    known = next(k for k in range(len(parts), -1, -1) if k == 0 or field_at(parts[:k]))
    if section_at(parts[:known]) is not None:  # the next part is a key that is not known
        return parts[: known + 1], ""
    return parts[:known], "".join(f"[{part}]" for part in loc[known:] if isinstance(part, int))


def _origin(place: Place, origins: Mapping[Place, str]) -> str:
    """Where a setting, a part of it or its section was given last."""
    related = [origin for p, origin in origins.items() if p[: len(place)] == place or place[: len(p)] == p]
    return f"{related[-1]}: " if related else ""


def _unknown(place: Place) -> str:
    """An unknown key, and what to write instead."""
    *above, _ = place
    if above and field_at(tuple(above)) and not section_at(tuple(above)):
        return f"{'.'.join(place)} is not a setting; {'.'.join(above)} is one, with nothing below it"
    meant = _meant(place)
    hint = f"did you mean {meant}?" if meant else f"there are {', '.join(_here(place).values())}"
    return f"{'.'.join(place)} is not a setting; {hint}"


def _here(place: Place) -> dict[str, str]:
    """The settings of the same section, or the outermost ones; with their full names."""
    section = section_at(place[:-1])
    known = (section or Settings).model_fields
    return {key: ".".join((*place[:-1], key)) if section else key for key in known}


def _meant(place: Place) -> str:
    """The nearest of the keys in the same section, or else anywhere; nothing if none is near."""
    anywhere = {found[-1]: ".".join(found) for found in all_places()}
    for known in (_here(place), anywhere):
        if near := difflib.get_close_matches(place[-1], known, 1):
            return known[near[0]]
    return ""


def _either(words: list[str]) -> str:
    """What a union would have taken."""
    known = dict.fromkeys(word for word in words if word != "a whole number" or "a number" not in words)
    return " or ".join(known)


def _brief(value: Any, place: Place) -> str:
    """What was given, in one line that is not too long, and without a secret that may be in the wrong place."""
    if is_secret(place) or place == RAW[:1]:
        return "what was given"
    if isinstance(value, dict):
        return "an object"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
