"""What a checkpoint is of: the message that goes before or after its state."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from stream_ocpdl.stream.messages.fields import COUNT, TEXT, Fields
from stream_ocpdl.stream.messages.framing import OWN, Payload, frame, unframe


class Place(NamedTuple):
    """Where the pieces of a checkpoint are in a topic."""

    slot: int
    begin: int
    """An offset before the first of them."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Names size and hash of the state's bytes, and the link and offset of the journal at that step."""

    model: str
    t: int
    N: int
    journal_offset: int
    link: str
    input: str
    lineage: str
    fingerprint: str
    size: int
    sha256: str
    place: Place | None = None
    chains: dict[str, tuple[int, tuple[tuple[int, int], ...]]] | None = None
    """What is known of the chains of samplers: for each the draw that comes next, and which are missing before it."""
    draws: tuple[int, ...] | None = None
    """How many draws were repeated, behind a gap, late, of tuning."""

    def to_bytes(self) -> bytes:
        """The message."""
        header = {name: getattr(self, name) for name in self.__slots__ if name not in ("place", "chains", "draws")}
        header |= self.place._asdict() if self.place else {}
        header |= {"chains": [[key, *chain] for key, chain in self.chains.items()]} if self.chains else {}
        header |= {"draws": self.draws} if self.draws else {}
        return frame({"kind": "checkpoint", **header})

    @classmethod
    def from_bytes(cls, value: Payload | None) -> Self:
        """The manifest; what follows it in a file is not looked at."""
        header, _ = unframe(value, OWN)
        fields = Fields(header, "checkpoint")
        placed = "slot" in header or "begin" in header
        return cls(
            model=fields.text("model"),
            t=fields.count("t"),
            N=fields.count("N"),
            journal_offset=fields.count("journal_offset"),
            link=fields.hash("link"),
            input=fields.text("input"),
            lineage=fields.text("lineage"),
            fingerprint=fields.text("fingerprint"),
            size=fields.size("size"),
            sha256=fields.hash("sha256"),
            place=Place(fields.count("slot"), fields.count("begin")) if placed else None,
            chains=fields.optional("chains", lambda name: _chains(fields, name)),
            draws=fields.optional("draws", lambda name: fields.some_counts(name, 4)),
        )


def _chains(fields: Fields, name: str) -> dict[str, tuple[int, tuple[tuple[int, int], ...]]]:
    found = fields.entries(name, _is_chain, "[key, next draw, [[first, last]]]")
    return {key: (following, tuple((a, b) for a, b in gaps)) for key, following, gaps in found}


def _is_chain(entry: list[Any]) -> bool:
    if len(entry) != 3 or not isinstance(entry[0], str) or not isinstance(entry[2], list):
        return False
    gaps = all(isinstance(gap, list) and len(gap) == 2 and all(map(_is_count, gap)) for gap in entry[2])
    return len(entry[0]) <= TEXT and _is_count(entry[1]) and gaps


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= COUNT
