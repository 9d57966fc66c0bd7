"""What a checkpoint is of: the message that goes before or after its state."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from stream_ocpdl.stream.messages.fields import Fields
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

    def to_bytes(self) -> bytes:
        """The message."""
        header = {name: getattr(self, name) for name in self.__slots__ if name != "place"}
        return frame({"kind": "checkpoint", **header, **(self.place._asdict() if self.place else {})})

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
        )
