"""The fields of a header, each read as what it must be, or refused by its name."""

import base64
import binascii
import re
from collections.abc import Callable, Collection
from math import inf, isfinite
from typing import Any, TypeVar

from stream_ocpdl.errors import DecodeError
from stream_ocpdl.stream.messages.framing import brief
from stream_ocpdl.stream.messages.records import Position, Run, Version

T = TypeVar("T")

MODES = 16
"""The most modes a tensor may have."""

COUNT = 2**63 - 1
TEXT, NAME = 512, 64
"""Characters of a text, and of the name of an axis."""

Chains = dict[str, tuple[int, tuple[tuple[int, int], ...]]]
"""Of each chain the draw that comes next, and the gaps before it: first and last draw that is missing."""

_HASH = re.compile("[0-9a-f]{64}")


class Fields:
    """A header of one kind, field by field."""

    __slots__ = ("header",)

    def __init__(self, header: dict[str, Any], kind: str) -> None:
        if header.get("kind") != kind:
            raise DecodeError(f"kind is {brief(header.get('kind'))}, not {kind!r}")
        self.header = header

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """A field that may be absent: `fields.optional("axes", fields.text)`."""
        return read(name) if name in self.header else None

    def count(self, name: str, least: int = 0, most: int = COUNT) -> int:
        """An integer in a range."""
        value = self._get(name)
        if not _is_count(value, least, most):
            raise DecodeError(f"{name} is {brief(value)}, not an integer from {least} to {most}")
        return int(value)

    def size(self, name: str) -> int:
        """An integer from 1."""
        return self.count(name, 1)

    def number(self, name: str, most: float = inf) -> float:
        """A finite number from 0."""
        value = self._get(name)
        if type(value) not in (int, float) or not (0 <= value <= most and isfinite(value)):
            raise DecodeError(
                f"{name} is {brief(value)}, not a finite number from 0{'' if most == inf else f' to {most:g}'}"
            )
        return float(value)

    def text(self, name: str, least: int = 0, most: int = TEXT) -> str:
        """Text of a length in a range."""
        value = self._get(name)
        if not isinstance(value, str) or not least <= len(value) <= most:
            raise DecodeError(f"{name} is {brief(value)}, not text of {least} to {most} characters")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._get(name)
        if not isinstance(value, bool):
            raise DecodeError(f"{name} is {brief(value)}, not a boolean")
        return value

    def one_of(self, name: str, choices: Collection[str]) -> str:
        """One of a few texts."""
        value = self._get(name)
        if not isinstance(value, str) or value not in choices:
            raise DecodeError(f"{name} is {brief(value)}, not one of {', '.join(choices)}")
        return value

    def hash(self, name: str) -> str:
        """64 hexadecimal digits."""
        value = self._get(name)
        if not isinstance(value, str) or not _HASH.fullmatch(value):
            raise DecodeError(f"{name} is {brief(value)}, not 64 hexadecimal digits")
        return value

    def version(self, name: str) -> Version:
        """The name of a dictionary."""
        text = self.text(name)
        try:
            return Version.parse(text)
        except DecodeError as error:
            raise DecodeError(f"{name} is {error}") from None

    def binary(self, name: str) -> bytes | None:
        """Bytes in base64, or null."""
        return _base64(name, self._get(name))

    def headers(self, name: str) -> tuple[tuple[str, bytes | None], ...]:
        """Headers of a record: pairs of a text and bytes."""
        pairs = self.entries(name, lambda entry: len(entry) == 2 and isinstance(entry[0], str), "[name, base64]")
        return tuple((key, _base64(name, value)) for key, value in pairs)

    def shape(self, name: str = "shape") -> tuple[int, ...]:
        """1 to 16 sizes."""
        value = self._get(name)
        if not isinstance(value, list) or not 1 <= len(value) <= MODES or not all(_is_count(n, 1) for n in value):
            raise DecodeError(f"{name} is {brief(value)}, not a list of 1 to {MODES} positive sizes")
        return tuple(value)

    def axes(self, name: str = "axes") -> tuple[str, ...]:
        """Names of modes, all different."""
        value = self._get(name)
        good = isinstance(value, list) and 1 <= len(value) <= MODES and all(map(_is_name, value))
        if not good or len(set(value)) < len(value):
            raise DecodeError(f"{name} is {brief(value)}, not a list of different names of 1 to {NAME} characters")
        return tuple(value)

    def counts(self, name: str) -> tuple[int, ...]:
        """Different counts."""
        value = self._get(name)
        if not isinstance(value, list) or not all(map(_is_count, value)) or len(set(value)) < len(value):
            raise DecodeError(f"{name} is {brief(value)}, not a list of different counts")
        return tuple(value)

    def some_counts(self, name: str, length: int) -> tuple[int, ...]:
        """So many counts."""
        value = self._get(name)
        if not isinstance(value, list) or not _are_counts(value, length):
            raise DecodeError(f"{name} is {brief(value)}, not a list of {length} counts")
        return tuple(value)

    def two_shares(self, name: str) -> tuple[float, float]:
        """Two numbers from 0 to 1."""
        value = self._get(name)
        if not isinstance(value, list) or len(value) != 2 or not all(map(_is_share, value)):
            raise DecodeError(f"{name} is {brief(value)}, not two numbers from 0 to 1")
        return float(value[0]), float(value[1])

    def nothing(self, payload: memoryview) -> None:
        """Refuse a payload where there is none."""
        if len(payload) > 0:
            raise DecodeError(f"payload has {len(payload)} bytes; a message of kind {self.header['kind']} has none")

    def entries(self, name: str, good: Callable[[Any], bool], what: str) -> list[Any]:
        """A list of lists that are all good."""
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(entry, list) and good(entry) for entry in value):
            raise DecodeError(f"{name} is {brief(value)}, not a list of {what}")
        return value

    def position(self, name: str) -> Position:
        """[partition, offset]."""
        return Position(*self.counted(name, 2, "[partition, offset]"))

    def counted(self, name: str, length: int, what: str) -> list[int]:
        """A list of so many counts."""
        value = self._get(name)
        if not isinstance(value, list) or not _are_counts(value, length):
            raise DecodeError(f"{name} is {brief(value)}, not {what}")
        return value

    def positions(self, name: str) -> dict[int, int]:
        """Offsets by partition, each partition once."""
        found = dict(self.entries(name, lambda entry: _are_counts(entry, 2), "[partition, offset]"))
        if len(found) < len(self.header[name]):
            raise DecodeError(f"{name} is {brief(self.header[name])}, with a partition twice")
        return found

    def runs(self, name: str) -> tuple[Run, ...]:
        """Runs of records."""
        found = self.entries(name, _is_run, "[partition, first, last]")
        return tuple((partition, first, last) for partition, first, last in found)

    def run(self, name: str) -> Run:
        """One of them."""
        value = self._get(name)
        if not isinstance(value, list) or not _is_run(value):
            raise DecodeError(f"{name} is {brief(value)}, not [partition, first, last]")
        return value[0], value[1], value[2]

    def chains(self, name: str) -> Chains:
        """What is known of the chains of samplers."""
        found = self.entries(name, _is_chain, "[key, next draw, [[first, last]]]")
        return {key: (following, tuple((a, b) for a, b in gaps)) for key, following, gaps in found}

    def _get(self, name: str) -> Any:
        try:
            return self.header[name]
        except KeyError:
            raise DecodeError(f"{name} is missing") from None


def _is_chain(entry: list[Any]) -> bool:
    if len(entry) != 3 or not isinstance(entry[0], str) or not isinstance(entry[2], list):
        return False
    gaps = all(isinstance(gap, list) and _are_counts(gap, 2) for gap in entry[2])
    return len(entry[0]) <= TEXT and _is_count(entry[1]) and gaps


def written_chains(chains: Chains) -> list[list[Any]]:
    """Chains as a header has them."""
    return [[key, *chain] for key, chain in chains.items()]


def pairs(positions: dict[int, int]) -> list[list[int]]:
    """Offsets by partition as a header has them."""
    return [[partition, offset] for partition, offset in sorted(positions.items())]


def to_base64(data: bytes | None) -> str | None:
    """Bytes as a header has them."""
    return None if data is None else base64.b64encode(data).decode()


def _base64(name: str, value: Any) -> bytes | None:
    if value is None:
        return None
    try:
        return base64.b64decode(value if isinstance(value, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise DecodeError(f"{name} is {brief(value)}, not base64") from None


def _is_count(value: Any, least: int = 0, most: int = COUNT) -> bool:
    return type(value) is int and least <= value <= most


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _are_counts(entry: list[Any], length: int) -> bool:
    return len(entry) == length and all(map(_is_count, entry))


def _is_run(entry: list[Any]) -> bool:
    return _are_counts(entry, 3) and entry[1] <= entry[2]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= NAME and value.encode(errors="ignore").decode() == value
