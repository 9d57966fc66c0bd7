"""The terms of a problem that may change while it is learned: penalties, weights, radius."""

from math import isfinite
from typing import Any, NamedTuple

from stream_ocpdl.errors import DecodeError
from stream_ocpdl.stream.messages.fields import Fields
from stream_ocpdl.stream.messages.framing import brief

Radius = int | float | str | None


class Terms(NamedTuple):
    """λ, λ₂, the weights by name, c′."""

    sparsity: float
    ridge: float
    weights: str
    """Such as "power 0.76"; of a schedule that has no name, what it says of itself."""
    radius: Radius
    """A number, "auto", or None for no restriction."""

    @classmethod
    def read(cls, fields: Fields, name: str) -> "Terms":
        """The terms in a field of a header: all four."""
        found = fields.header.get(name)
        if not isinstance(found, dict):
            raise DecodeError(f"{name} is {brief(found)}, not a map")
        try:
            inner = Fields(found | {"kind": name}, name)
            return cls(inner.number("sparsity"), inner.number("ridge"), inner.text("weights"), radius(inner))
        except DecodeError as error:
            raise DecodeError(f"{name}: {error}") from None


CHANGES: tuple[str, ...] = Terms._fields


def changes(fields: Fields) -> dict[str, Any]:
    """Those of the terms that a header has."""
    readers: dict[str, Any] = {"sparsity": fields.number, "ridge": fields.number, "weights": fields.text}
    found = {name: read(name) for name, read in readers.items() if name in fields.header}
    return found | ({"radius": radius(fields)} if "radius" in fields.header else {})


def radius(fields: Fields) -> Radius:
    """A positive number, "auto", or null."""
    value = fields.header.get("radius", ())
    number = type(value) in (int, float) and 0 < value and isfinite(value)
    if not (number or value is None or value == "auto"):
        raise DecodeError(f"radius is {brief(value)}, not a positive number, 'auto' or null")
    found: Radius = value
    return found
