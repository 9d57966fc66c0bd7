"""The journal: one record a step, and from it alone the model can be made again.

A record says which input a step used, in the order of its rows; which input was refused and why; and where reading
goes on. On a replay the journal decides: nobody's policy is asked a second time. Each record carries the hash of the
one before it, so a journal is a chain, and a checkpoint names the link it belongs to. Now and then a record carries the
hash of the state that its step led to.

The chain begins with a record of event "genesis", which names the problem.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from stream_ocpdl.errors import DecodeError
from stream_ocpdl.stream.codec import frame, unframe
from stream_ocpdl.stream.messages import Position, Run, kind_of

GENESIS = bytes(32)
"""What the first record has in place of a hash."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One link of the chain."""

    event: str
    """"genesis", "step", or "refusal" where input was refused and nothing learned."""
    previous: bytes
    """The SHA-256 of the record before."""
    t: int = 0
    N: int = 0
    weight: float = 0.0
    used: tuple[Run, ...] = ()
    """The input of the step, in the order of its rows."""
    refused: tuple[tuple[int, int, str], ...] = ()
    """(partition, offset, reason)."""
    resume: dict[int, int] = field(default_factory=dict)
    """For each partition the lowest offset that is neither used nor refused."""
    ahead: tuple[Run, ...] = ()
    """Records at or behind `resume` that were refused already."""
    cursor: int = 0
    """The partition whose turn is next, where batches are canonical."""
    checksum: int = 0
    """CRC-32 over the values of the used records, in order."""
    state: str | None = None
    """The digest of the state after this record."""
    input: str | None = None
    """In a genesis: the identity of the input."""
    problem: str | None = None
    """In a genesis: the digest of the problem and of all else that decides bits."""
    fingerprint: str | None = None
    """In a genesis: the numeric fingerprint under which the bits hold."""

    def to_bytes(self) -> bytes:
        """The bytes whose hash is the next link."""
        return frame({"kind": "journal"} | {name: value for name, value in asdict(self).items() if value is not None})

    @classmethod
    def from_bytes(cls, value: bytes | None) -> Self:
        """The record."""
        header, _ = unframe(value)
        kind_of(header, "journal")
        fields: dict[str, Any] = {name: value for name, value in header.items() if name in cls.__slots__}
        try:
            for name in ("used", "refused", "ahead"):
                fields[name] = tuple(tuple(entry) for entry in fields.get(name, ()))
            return cls(**fields)
        except TypeError as error:
            raise DecodeError(f"the journal record is incomplete: {error}") from error


def link(value: bytes) -> bytes:
    """The hash of a record."""
    return hashlib.sha256(value).digest()


def runs(positions: Iterable[Position], gaps: Sequence[Run] = ()) -> tuple[Run, ...]:
    """Positions in order as runs. Offsets between two neighbours belong to a run unless they are in a gap: what is not
    delivered at all (a transaction's marker) needs no name.

    >>> runs([Position(0, 4), Position(0, 5), Position(1, 9), Position(0, 7)], gaps=[(0, 6, 6)])
    ((0, 4, 5), (1, 9, 9), (0, 7, 7))
    """
    found: list[Run] = []
    for partition, offset in positions:
        if found and found[-1][0] == partition and found[-1][2] < offset:
            between = (found[-1][2], offset)
            if not any(p == partition and first < between[1] and last > between[0] for p, first, last in gaps):
                found[-1] = (partition, found[-1][1], offset)
                continue
        found.append((partition, offset, offset))
    return tuple(found)
