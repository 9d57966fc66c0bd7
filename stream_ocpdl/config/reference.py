"""The settings for those who write files of them: a JSON Schema, and a table."""

import json
from typing import Any, get_args

from pydantic_core import PydanticUndefined

from stream_ocpdl.config.places import Place, all_places, field_at, is_secret, variable
from stream_ocpdl.config.settings import Settings

WORDS = {int: "whole number", float: "number", str: "text", type(None): "null", bool: "true or false"}


def schema() -> dict[str, Any]:
    """The JSON Schema of a file of settings."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://stream-ocpdl.invalid/schemas/1/settings.schema.json",
    }
    return {**head, **_untitled(Settings.model_json_schema())}


def _untitled(value: Any) -> Any:
    """Without the titles that say no more than the names."""
    if isinstance(value, dict):
        return {name: _untitled(below) for name, below in value.items() if name != "title"}
    return [_untitled(below) for below in value] if isinstance(value, list) else value


def table() -> str:
    """Every setting, in Markdown."""
    rows = ["| setting | in the environment | value | default | |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *(_row(place) for place in all_places())]) + "\n"


def _row(place: Place) -> str:
    field = field_at(place)
    assert field is not None  # noqa: S101  (for the type checker)
    name = f"`{'.'.join(place)}`" + (" (secret)" if is_secret(place) else "")
    default = _default(field.get_default(call_default_factory=True, validated_data={}))
    cells = (name, f"`{variable(place)}`", _kind(field.annotation), default)
    return "| " + " | ".join((*cells, (field.description or "").replace("|", "\\|"))) + " |"


def _kind(annotation: Any) -> str:
    """The type of a setting in words."""
    if annotation in WORDS:
        return WORDS[annotation]
    arguments = get_args(annotation)
    name = getattr(annotation, "__name__", str(annotation))
    if name == "list":
        return f"list of {WORDS[arguments[0]]}s" if arguments[0] in WORDS else f"list, each a {_kind(arguments[0])}"
    if name == "dict":
        return "object"
    if not arguments:
        return "text"
    if all(isinstance(argument, str) for argument in arguments):
        return ", ".join(f"`{argument}`" for argument in arguments)
    words = dict.fromkeys(_kind(argument) for argument in arguments if argument is not type(None))
    return " or ".join(word for word in words if word != "whole number" or "number" not in words)


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    return "" if value is None else f"`{json.dumps(value)}`"
