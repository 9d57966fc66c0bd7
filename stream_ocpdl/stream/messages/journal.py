"""The journal: one record a step, and from it alone the model can be made again.

A record says which input a step used, in the order of its rows; which input was refused and why; and where reading
goes on. On a replay the journal decides: nobody's policy is asked a second time. Each record carries the hash of the
one before it, so a journal is a chain, and a checkpoint names the link it belongs to. Now and then a record carries the
hash of the state that its step led to.

The chain begins with a record of event "genesis", which names all that decides bits. What an operator asked for stands
between the steps: "reconfigure", "rollback", or "declined" with the reason; each names the request. An "epoch" begins
where bits are no longer those that were, under another numeric fingerprint; or where minibatches become draws of
another product of chains.
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple, Self

import xxhash

from stream_ocpdl.errors import DecodeError
from stream_ocpdl.stream.messages.fields import COUNT, TEXT, Chains, Fields, pairs, written_chains
from stream_ocpdl.stream.messages.framing import OWN, Payload, brief, frame, unframe
from stream_ocpdl.stream.messages.records import Position, Record, Run, hashed
from stream_ocpdl.stream.messages.terms import Terms

GENESIS = "0" * 64
"""What the first record has in place of a hash."""

EVENTS = ("genesis", "step", "refusal", "lost", "partitions", "reconfigure", "rollback", "declined", "epoch")

ANSWERS = ("reconfigure", "rollback", "declined")
"""Those that answer a request."""


class Target(NamedTuple):
    """The record to whose state a model went back."""

    epoch: int
    t: int
    offset: int
    """Where it stands in the journal."""


class Refused(NamedTuple):
    """A record of the input that could not be learned."""

    partition: int
    offset: int
    error: str
    """The class of the error."""
    reason: str


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One link of the chain."""

    event: str
    """"genesis", "step", "refusal" where input was refused and nothing learned; "lost" where input is gone,
    "partitions" where some were added; or what was asked for, and done or not."""
    previous: str
    """The SHA-256 of the record before."""
    t: int = 0
    N: int = 0
    weight: float = 0.0
    used: tuple[Run, ...] = ()
    """The input of the step, in the order of its rows; a row that came in pieces has all of them."""
    refused: tuple[Refused, ...] = ()
    resume: dict[int, int] = field(default_factory=dict)
    """For each partition the lowest offset that is neither used nor refused."""
    reached: dict[int, int] = field(default_factory=dict)
    """For each partition the offset below which all is done but the open pieces."""
    open: tuple[Run, ...] = ()
    """Pieces below `reached` that wait for the rest of their message."""
    ahead: tuple[Run, ...] = ()
    """Records from `reached` on whose refusals were let go already."""
    cursor: int = 0
    """The partition whose turn is next, where batches are canonical."""
    xxh3: int | None = None
    """Of a step: XXH3 over those of the values of the used records, in order."""
    checksum: int | None = None
    """CRC-32 over these values, where a journal was written before there was `xxh3`."""
    axes: tuple[str, ...] | None = None
    """The names of the modes, once the settings or a tensor have told them."""
    state: str | None = None
    """The digest of the state after this record."""
    input: str | None = None
    """In a genesis, and where it has changed: the identity of the input."""
    lineage: str | None = None
    """In a genesis: the digest of all that decides bits."""
    fingerprint: str | None = None
    """In a genesis or an epoch: the numeric fingerprint under which the bits hold from here on."""
    epoch: int | None = None
    """How often the state was not that of the step before; none for 0."""
    terms: Terms | None = None
    """The terms of the problem in force, in a genesis and once they were changed."""
    control: int | None = None
    """The offset of the next request on the control topic, once there was one."""
    request: str | None = None
    """The id of the request that this record answers."""
    reason: str | None = None
    """Why a request was declined; of an epoch why it began; of a genesis where its loadings come from."""
    target: Target | None = None
    """Of a rollback: whose state it is now."""
    figures: tuple[float, ...] | None = None
    """E, f̂, ‖A‖, ‖U₁‖ … ‖Uₙ‖ of the state, where it has a digest: they can be compared where bits cannot."""
    loadings: bytes | None = None
    """The payload, of a genesis with loadings from elsewhere: U₁ … Uₙ as in a snapshot."""
    tally: tuple[int, ...] | None = None
    """What was refused so far: in a row; of how many messages of the present window; and how many of those."""
    learned: tuple[Run, ...] | None = None
    """What of `ahead` was used, not refused."""
    chains: Chains | None = None
    """Of a rollback: what is known of the chains of samplers, which does not go back."""
    draws: tuple[int, ...] | None = None
    """And how many draws were repeated, behind a gap, late, of tuning."""
    lost: tuple[Run, ...] | None = None
    """Input that was neither used nor refused, and is gone."""
    base: tuple[int, ...] | None = None
    """Where steps are lost from the state: the offset in the journal, and the step, of the record whose state it is."""

    def to_bytes(self) -> bytes:
        """The bytes whose hash is the next link."""
        header: dict[str, Any] = {"kind": "journal"}
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and name != "loadings":
                header[name] = written_chains(value) if name == "chains" else _plain(value)
        return frame(header, self.loadings or b"")

    @classmethod
    def from_bytes(cls, value: Payload | None) -> Self:
        """The record."""
        header, payload = unframe(value, OWN)
        fields = Fields(header, "journal")
        event = fields.one_of("event", EVENTS)
        if event != "genesis":
            fields.nothing(payload)
        if event == "genesis" and header.get("previous") != GENESIS:
            raise DecodeError(f"previous is {brief(header.get('previous'))}, of a genesis it is 64 zeros")
        told = "xxh3" in header or (event == "step" and "checksum" not in header)
        only_genesis = fields.text if event == "genesis" else lambda name: fields.optional(name, fields.text)
        return cls(
            event=event,
            previous=fields.hash("previous"),
            t=fields.count("t"),
            N=fields.count("N"),
            weight=fields.number("weight", 1.0),
            used=fields.runs("used"),
            refused=_refused(fields),
            resume=fields.positions("resume"),
            reached=fields.positions("reached"),
            open=fields.runs("open"),
            ahead=fields.runs("ahead"),
            cursor=fields.count("cursor"),
            xxh3=fields.count("xxh3", most=2**64 - 1) if told else None,
            checksum=fields.optional("checksum", lambda name: fields.count(name, most=2**32 - 1)),
            axes=fields.optional("axes", fields.axes),
            state=fields.hash("state") if event == "rollback" else fields.optional("state", fields.hash),
            input=only_genesis("input"),
            lineage=only_genesis("lineage"),
            fingerprint=fields.text("fingerprint") if event == "epoch" else only_genesis("fingerprint"),
            epoch=fields.optional("epoch", fields.count),
            terms=Terms.read(fields, "terms") if event == "reconfigure" or "terms" in header else None,
            control=fields.optional("control", fields.count),
            request=fields.text("request", 1, 64) if event in ANSWERS else None,
            reason=fields.text("reason") if event == "declined" else fields.optional("reason", fields.text),
            target=_target(fields) if event == "rollback" else None,
            figures=_figures(fields) if "figures" in header else None,
            loadings=bytes(payload) or None,
            learned=fields.optional("learned", fields.runs),
            chains=fields.optional("chains", fields.chains),
            draws=fields.optional("draws", lambda name: fields.some_counts(name, 4)),
            lost=fields.optional("lost", fields.runs),
            base=fields.optional("base", lambda name: fields.some_counts(name, 2)),
            tally=fields.optional("tally", lambda name: fields.some_counts(name, 3)),
        )


def _plain(value: Any) -> Any:
    """A value as a header has it."""
    if isinstance(value, Terms):
        return value._asdict()
    return pairs(value) if isinstance(value, dict) else value


def _target(fields: Fields) -> Target:
    value = fields.counted("target", 3, "[epoch, t, offset]")
    return Target(*value)


def _figures(fields: Fields) -> tuple[float, ...]:
    value = fields.header["figures"]
    if not isinstance(value, list) or not all(type(x) in (int, float) and isfinite(x) for x in value):
        raise DecodeError(f"figures is {brief(value)}, not a list of finite numbers")
    return tuple(map(float, value))


def _refused(fields: Fields) -> tuple[Refused, ...]:
    def good(entry: list[Any]) -> bool:
        counts = all(type(n) is int and 0 <= n <= COUNT for n in entry[:2])
        return len(entry) == 4 and counts and all(isinstance(x, str) and len(x) <= TEXT for x in entry[2:])

    entries = fields.entries("refused", good, "[partition, offset, error, reason]")
    return tuple(Refused(*entry) for entry in entries)


def link(value: bytes) -> str:
    """The hash of a record."""
    return hashlib.sha256(value).hexdigest()


def input_hash(used: Iterable[Record]) -> int:
    """XXH3 over the XXH3 of each value, eight bytes the first of which is the highest, one after the other.

    >>> values = b"one", b"two"
    >>> input_hash(Record(Position(0, k), None, value) for k, value in enumerate(values))
    14301085150108475907
    """
    found = [hashed(record.value) if record.hash < 0 else record.hash for record in used]
    return xxhash.xxh3_64_intdigest(struct.pack(f">{len(found)}Q", *found))


def runs(positions: Iterable[Position]) -> tuple[Run, ...]:
    """Positions in order as runs.

    >>> runs([Position(0, 4), Position(0, 5), Position(1, 9), Position(0, 7)])
    ((0, 4, 5), (1, 9, 9), (0, 7, 7))
    """
    found: list[Run] = []
    where = first = next_ = -1
    for partition, offset in positions:
        if offset != next_ or partition != where:
            if where >= 0:
                found.append((where, first, next_ - 1))
            where, first = partition, offset
        next_ = offset + 1
    return (*found, (where, first, next_ - 1)) if where >= 0 else ()
