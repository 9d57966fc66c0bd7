"""How tensors became those of the problem, in the header of a snapshot."""

from typing import Any

from stream_ocpdl.errors import ConfigError, DecodeError
from stream_ocpdl.ocpdl.reshape import Layout, Scaling
from stream_ocpdl.stream.messages.fields import Fields
from stream_ocpdl.stream.messages.framing import brief


def written_layout(layout: Layout) -> dict[str, Any]:
    """A layout as a header has it; axis and factors are there once they are known."""
    found: dict[str, Any] = {"shape": layout.shape, "groups": layout.groups}
    if layout.scaling is not None and not isinstance(layout.scaling.by, str):
        found |= {"axis": layout.scaling.axis, "factors": layout.scaling.by}
    return found


def layout_of(fields: Fields, shape: tuple[int, ...]) -> Layout | None:
    """The layout that a header has, if any, of tensors that have this shape when their modes are in groups."""
    given = fields.header.get("layout")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise DecodeError(f"layout is {brief(given)}, not a map")
    inner = Fields(given | {"kind": "layout"}, "layout")
    try:
        groups = inner.entries("groups", lambda group: all(type(mode) is int for mode in group), "[mode, …]")
        layout = Layout(inner.shape(), tuple(map(tuple, groups)), _scaling(inner))
    except (DecodeError, ConfigError) as error:
        raise DecodeError(f"layout: {error}") from None
    if layout.grouped != shape:
        raise DecodeError(f"layout: shape is {list(layout.grouped)} in groups, and that of the loadings {list(shape)}")
    return layout


def _scaling(fields: Fields) -> Scaling | None:
    """Axis and factors, which go together."""
    factors = fields.header.get("factors")
    if factors is None and "axis" not in fields.header:
        return None
    if not isinstance(factors, list) or not all(type(factor) in (int, float) for factor in factors):
        raise DecodeError(f"factors is {brief(factors)}, not a list of numbers")
    return Scaling(fields.count("axis"), tuple(factors))
