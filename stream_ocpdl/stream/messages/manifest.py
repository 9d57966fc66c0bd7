"""What a checkpoint is of: the message that goes before or after its state."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from stream_ocpdl.stream.messages.fields import Chains, Fields, to_base64, written_chains
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
    chains: Chains | None = None
    """What is known of the chains of samplers: for each the draw that comes next, and which are missing before it."""
    draws: tuple[int, ...] | None = None
    """How many draws were repeated, behind a gap, late, of tuning."""
    senses: bytes | None = None
    """What tensors of the present epoch were like, by which those to come are judged (`anomaly`)."""
    product: bytes | None = None
    """Of which chains the last minibatch had draws (`product`)."""

    def to_bytes(self) -> bytes:
        """The message."""
        optional = ("place", "chains", "draws", "senses", "product")
        header = {name: getattr(self, name) for name in self.__slots__ if name not in optional}
        header |= self.place._asdict() if self.place else {}
        header |= {"chains": written_chains(self.chains)} if self.chains else {}
        header |= {"draws": self.draws} if self.draws else {}
        header |= {"senses": to_base64(self.senses)} if self.senses else {}
        header |= {"product": to_base64(self.product)} if self.product else {}
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
            chains=fields.optional("chains", fields.chains),
            draws=fields.optional("draws", lambda name: fields.some_counts(name, 4)),
            senses=fields.optional("senses", fields.binary),
            product=fields.optional("product", fields.binary),
        )
