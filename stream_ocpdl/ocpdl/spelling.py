"""How sets are written in settings: `box 0 1`, `simplex`, `nonnegative columns 1`."""

from collections.abc import Callable
from dataclasses import astuple, is_dataclass
from typing import Literal, TypeAlias, get_args

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.constraints import (
    Ball,
    Box,
    Columns,
    Constraint,
    NonnegativeBall,
    NonnegativeColumns,
    Projects,
    Simplex,
)

Automatic: TypeAlias = Literal["auto", "nonnegative", "signed"]
"""Sets whose size the data decide."""

Choice: TypeAlias = Projects | Automatic
"""What may be chosen for a mode."""

AUTOMATIC: tuple[Automatic, ...] = get_args(Automatic)

NAMED: dict[str, tuple[Callable[..., Constraint], int, int]] = {
    "box": (Box, 2, 2),
    "simplex": (Simplex, 0, 1),
    "nonnegative ball": (NonnegativeBall, 1, 1),
    "nonnegative columns": (NonnegativeColumns, 1, 1),
    "ball": (Ball, 1, 1),
    "columns": (Columns, 1, 1),
}
"""The others: what makes them, and how many numbers that takes, from and to."""


def sets_named(given: str | list[str]) -> Choice | tuple[Choice, ...]:
    """One set for all modes, or one for each: a list, or a text with commas.

    >>> sets_named("nonnegative, box 0 1")
    ('nonnegative', Box(lower=0.0, upper=1.0))
    """
    if isinstance(given, str):
        inside = given.strip().removeprefix("[").removesuffix("]")
        if inside == given.strip() and "," not in inside:
            return named(inside)
        given = inside.split(",")
    return tuple(map(named, given))


def named(text: str) -> Choice:
    """The set of a name; the name itself where the data decide the size.

    >>> named("box 0 1"), named("simplex"), named("signed")
    (Box(lower=0.0, upper=1.0), Simplex(total=1.0), 'signed')
    """
    for automatic in AUTOMATIC:
        if text.strip() == automatic:
            return automatic
    words = text.split()
    kind = " ".join(word for word in words if not _is_number(word))
    numbers = [float(word) for word in words if _is_number(word)]
    make, least, most = NAMED.get(kind, (None, 0, 0))
    if make is None or not least <= len(numbers) <= most or not " ".join(words).startswith(kind):
        known = "nonnegative, signed, box L U, simplex, simplex TOTAL, ball B, columns B, nonnegative ball B"
        raise ConfigError(f"constraints must be auto, {known} or nonnegative columns B, not {text.strip()[:80]!r}")
    try:
        return make(*numbers)
    except ConfigError as error:
        raise ConfigError(f"constraints: {error}") from None


def name_of(C: Choice) -> str:
    """What `named` reads; of a set that has no name, what it says of itself.

    >>> name_of(Box(0, 1)), name_of(NonnegativeColumns(2.0)), name_of("auto")
    ('box 0.0 1.0', 'nonnegative columns 2.0', 'auto')
    """
    for name, (kind, _, _) in NAMED.items():
        if type(C) is kind and is_dataclass(C):
            return " ".join((name, *(repr(float(number)) for number in astuple(C))))
    return str(C)[:512]


def _is_number(word: str) -> bool:
    try:
        return float(word) == float(word)
    except ValueError:
        return False
