"""What goes out: codes, dictionaries, and what could not be learned."""

import struct
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from itertools import repeat
from typing import Self, TypeAlias

import msgpack
import numpy as np

from stream_ocpdl.errors import DecodeError
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.diagnostics import Assumption, Standing
from stream_ocpdl.ocpdl.reshape import Layout
from stream_ocpdl.stream.messages.fields import Fields, pairs, to_base64
from stream_ocpdl.stream.messages.framing import OWN, Payload, around, brief, frame, unframe
from stream_ocpdl.stream.messages.layout import layout_of, written_layout
from stream_ocpdl.stream.messages.records import Position, Record, Version
from stream_ocpdl.stream.messages.tensor import dense

F8 = np.dtype("<f8")
CHANGES = ("structure", "scale")
SOFTWARE = f"stream_ocpdl {version('stream-ocpdl')}"


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """The code of one tensor, made with the dictionary of the step before."""

    dictionary: Version
    step: int
    position: Position
    loss: float
    """ℓ(X, D_{t−1}), before the tensor was learned."""
    code: Array
    residual: float | None = None
    """‖X − X̂‖ / ‖X‖, before the tensor was learned."""
    quantiles: tuple[float, float] | None = None
    """The share of earlier tensors that had a smaller residual, and of those that had a smaller norm; none at first."""
    change: str | None = None
    """Whether the step that learned it noticed that the data have changed: in "structure" or in "scale"."""

    def to_bytes(self) -> bytes:
        """Header with where and when, payload the R numbers."""
        residuals = None if self.residual is None else [self.residual]
        quantiles = None if self.quantiles is None else [self.quantiles]
        codes = Codes(self.dictionary, self.step, self.code[None], [self.loss], residuals, quantiles, self.change)
        return codes.to_bytes([self.position])[0]

    @classmethod
    def from_bytes(cls, value: Payload | None) -> Self:
        """The code, its numbers in the memory of the message."""
        header, payload = unframe(value)
        fields = Fields(header, "code")
        fields.one_of("dtype", ("<f8",))
        shape = fields.shape()
        if len(shape) != 1:
            raise DecodeError(f"shape is {brief(list(shape))}, not [R]")
        return cls(
            fields.version("dictionary"),
            fields.size("step"),
            fields.position("input"),
            fields.number("loss"),
            dense(F8, shape, payload),
            fields.optional("residual", fields.number),
            fields.optional("quantiles", fields.two_shares),
            fields.optional("change", lambda name: fields.one_of(name, CHANGES)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """The codes of one minibatch. There are many of them, and what they have in common is packed once."""

    dictionary: Version
    step: int
    H: Array
    losses: Sequence[float]
    residuals: Sequence[float] | None = None
    quantiles: Sequence[tuple[float, float]] | None = None
    change: str | None = None

    def to_bytes(self, positions: Sequence[Position]) -> list[bytes]:
        """The message of each, as `Code` reads it: one form to fill in, as long as positions are equally wide."""
        if not positions:
            return []
        partitions, offsets = zip(*positions, strict=True)
        widths = _width(partitions), _width(offsets)
        if widths[0] is None or widths[1] is None:
            return self._apart(positions)
        form, columns, end = self._header(partitions, offsets, _INTEGERS[widths[0]], _INTEGERS[widths[1]])
        before, behind = around(struct.calcsize(f">{form}") + len(end))
        end, size = end + behind, F8.itemsize * self.H.shape[1]
        whole = _form(f">{len(before)}s{form}{len(end)}s{size}s")
        payloads = np.ascontiguousarray(self.H, F8).view(f"V{size}").ravel().tolist()
        return list(map(whole.pack, repeat(before), *columns, repeat(end), payloads))

    def _header(
        self, partitions: Sequence[int], offsets: Sequence[int], partition: "_Integer", offset: "_Integer"
    ) -> tuple[str, list[Iterable[bytes | float]], bytes]:
        """How `struct` writes the headers with positions of these widths up to the last number, of what, and the rest.

        In turn it is given what all of them have in common, and a number of each.
        """
        residuals, quantiles, change = self.residuals, self.quantiles, self.change
        fields = 7 + (residuals is not None) + (quantiles is not None) + (change is not None)
        first = _body("kind", "code", "dictionary", str(self.dictionary), "step", self.step, "input")
        first = bytes([0x80 | fields]) + first + _PAIR + partition[0]
        form = f"{len(first)}s{partition[1]}{len(offset[0])}s{offset[1]}{len(_LOSS)}sd"
        columns: list[Iterable[bytes | float]]
        columns = [repeat(first), partitions, repeat(offset[0]), offsets, repeat(_LOSS), self.losses]
        then = _shape(self.H.shape[1])
        if residuals is not None:
            then += _RESIDUAL
            form, columns, then = f"{form}{len(then)}sd", [*columns, repeat(then), residuals], b""
        if quantiles is not None:
            then += _QUANTILES
            of_residual, of_norm = zip(*quantiles, strict=True)
            form, columns = f"{form}{len(then)}sd1sd", [*columns, repeat(then), of_residual, repeat(_FLOAT), of_norm]
            then = b""
        return form, columns, then if change is None else then + _body("change", change)

    def _apart(self, positions: Sequence[Position]) -> list[bytes]:
        """The same for positions of several widths: those of one together."""
        groups: dict[tuple[int, int], list[int]] = {}
        for j, (partition, offset) in enumerate(positions):
            groups.setdefault((bisect(_WIDER, partition), bisect(_WIDER, offset)), []).append(j)
        found: dict[int, bytes] = {}
        for rows in groups.values():
            some = replace(
                self,
                H=self.H[rows],
                losses=[self.losses[j] for j in rows],
                residuals=None if self.residuals is None else [self.residuals[j] for j in rows],
                quantiles=None if self.quantiles is None else [self.quantiles[j] for j in rows],
            )
            found.update(zip(rows, some.to_bytes([positions[j] for j in rows]), strict=True))
        return [found[j] for j in range(len(positions))]


_Integer: TypeAlias = tuple[bytes, str]
"""What msgpack writes before an unsigned integer of some width, and how `struct` writes the integer."""

_INTEGERS: tuple[_Integer, ...] = ((b"", "B"), (b"\xcc", "B"), (b"\xcd", "H"), (b"\xce", "I"), (b"\xcf", "Q"))
_WIDER = (1 << 7, 1 << 8, 1 << 16, 1 << 32)
"""Where each of these but the first begins."""

_FLOAT, _PAIR = b"\xcb", b"\x92"
"""What msgpack writes before a float, and before a list of two."""

_LOSS, _RESIDUAL, _QUANTILES = b"\xa4loss" + _FLOAT, b"\xa8residual" + _FLOAT, b"\xa9quantiles" + _PAIR + _FLOAT
"""Names, each with what stands before its first number."""

_form = lru_cache(256)(struct.Struct)


def _width(numbers: Sequence[int]) -> int | None:
    """Which of the integers of msgpack they all are, if they are all the same."""
    width = bisect(_WIDER, min(numbers))
    return width if width == bisect(_WIDER, max(numbers)) else None


def _body(*items: str | int | list[int]) -> bytes:
    """Names and values, at most 15 in all, as they are in a map of msgpack: the head of a short list is one byte."""
    packed: bytes = msgpack.packb(items)
    return packed[1:]


@lru_cache(16)
def _shape(rank: int) -> bytes:
    return _body("dtype", F8.str, "shape", [rank])


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The dictionary after a step, and all one needs to know to use it."""

    version: Version
    tensors: int
    loadings: Sequence[Array]
    axes: tuple[str, ...] | None
    weight: float
    schedule: str
    card: tuple[Assumption, ...]
    atoms: tuple[int, ...]
    """The identity of each atom."""
    input: str
    positions: dict[int, int]
    software: str = SOFTWARE
    layout: Layout | None = None
    """How tensors became those of the problem, with the factors in force; none if they are learned as they come."""
    penalties: tuple[float, float] | None = None
    """λ and λ₂ of the loss that the next codes minimise; earlier releases did not say."""
    code_bound: float | None = None
    """The largest code; none if there is no limit, or if the penalties are not known."""
    partials: tuple[int, ...] | None = None
    """Of a learner from partials: tensors of one, partials of a round, staleness, and rounds at first without any."""

    @property
    def step(self) -> int:
        """t."""
        return self.version.t

    @property
    def rank(self) -> int:
        """R."""
        return len(self.atoms)

    @property
    def modes(self) -> tuple[str, ...]:
        """A name for each loading matrix; that of a group has the names of all its axes."""
        groups = self.layout.groups if self.layout else tuple((i,) for i in range(len(self.loadings)))
        names = self.axes or tuple(f"mode {i + 1}" for i in range(sum(map(len, groups))))
        return tuple(" × ".join(names[mode] for mode in group) for group in groups)

    def atom(self, r: int) -> Array:
        """The atom in column r as a tensor, in the shape and the units of the data; its modes are named by `axes`."""
        columns = [np.asarray(U[:, [r]]) for U in self.loadings]
        layout = self.layout or Layout(tuple(len(U) for U in self.loadings))
        return np.asarray(layout.atoms(columns)[0])

    def to_bytes(self) -> bytes:
        """Header with all but the loadings, payload U₁ … Uₙ one after the other."""
        header = {
            "kind": "snapshot",
            "version": str(self.version),
            "step": self.version.t,
            "tensors": self.tensors,
            "rank": self.rank,
            "shape": [len(U) for U in self.loadings],
            "weight": self.weight,
            "schedule": self.schedule,
            "card": [asdict(line) for line in self.card],
            "atoms": self.atoms,
            "input": self.input,
            "positions": pairs(self.positions),
            "software": self.software,
        }
        header |= {"axes": self.axes} if self.axes is not None else {}
        header |= {"layout": written_layout(self.layout)} if self.layout is not None else {}
        header |= dict(zip(("sparsity", "ridge"), self.penalties, strict=True)) if self.penalties is not None else {}
        header |= {"code_bound": self.code_bound} if self.code_bound is not None else {}
        header |= {"partials": list(self.partials)} if self.partials is not None else {}
        return frame(header, *(np.ascontiguousarray(U, F8).data.cast("B") for U in self.loadings))

    @classmethod
    def from_bytes(cls, value: Payload | None) -> Self:
        """The snapshot, its loadings in the memory of the message."""
        header, payload = unframe(value, OWN)
        fields = Fields(header, "snapshot")
        version, rank, shape = fields.version("version"), fields.size("rank"), fields.shape()
        if fields.count("step") != version.t:
            raise DecodeError(f"step is {header['step']}, and that of the version {version.t}")
        axes, layout = fields.optional("axes", fields.axes), layout_of(fields, shape)
        modes = len(shape if layout is None else layout.shape)
        if axes is not None and len(axes) != modes:
            raise DecodeError(f"axes is {brief(list(axes))}, {len(axes)} names for {modes} modes")
        return cls(
            version,
            fields.count("tensors"),
            _loadings(shape, rank, payload),
            axes,
            fields.number("weight", 1.0),
            fields.text("schedule"),
            _card(fields),
            _atoms(fields, rank),
            fields.text("input"),
            fields.positions("positions"),
            fields.text("software"),
            layout,
            *_coding(fields),
            fields.optional("partials", lambda name: fields.some_counts(name, 4)),
        )


def _loadings(shape: Sequence[int], rank: int, payload: memoryview) -> list[Array]:
    if len(payload) != 8 * rank * sum(shape):
        raise DecodeError(f"shape {list(shape)} of rank {rank} does not fit a payload of {len(payload)} bytes")
    whole = np.frombuffer(payload, F8).reshape(-1, rank)
    return np.split(whole, np.cumsum(shape)[:-1])


def _coding(fields: Fields) -> tuple[tuple[float, float] | None, float | None]:
    """The penalties, which go together, and the largest code."""
    bound = fields.optional("code_bound", fields.number)
    if "sparsity" not in fields.header and "ridge" not in fields.header:
        return None, bound
    return (fields.number("sparsity"), fields.number("ridge")), bound


def _card(fields: Fields) -> tuple[Assumption, ...]:
    card = fields.header.get("card")
    if not isinstance(card, list) or not all(isinstance(line, dict) for line in card):
        raise DecodeError(f"card is {brief(card)}, not a list of maps")
    lines = []
    for entry in card:
        line = Fields(entry | {"kind": "card"}, "card")
        try:
            standing = Standing(line.one_of("standing", [s.value for s in Standing]))
            lines.append(Assumption(line.text("name"), standing, line.text("reason")))
        except DecodeError as error:
            raise DecodeError(f"card: {error}") from None
    return tuple(lines)


def _atoms(fields: Fields, rank: int) -> tuple[int, ...]:
    atoms = fields.counts("atoms")
    if len(atoms) != rank:
        raise DecodeError(f"atoms is {brief(list(atoms))}, {len(atoms)} of them for rank {rank}")
    return atoms


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that cannot be learned, with all that it was, and why."""

    topic: str
    record: Record
    error: str
    """The class of the error."""
    reason: str
    software: str = SOFTWARE

    def to_bytes(self) -> bytes:
        """Header with where and why, payload the original bytes."""
        record = self.record
        header = {
            "kind": "dead-letter",
            "topic": self.topic,
            "input": record.position,
            "timestamp": record.timestamp,
            "key": to_base64(record.key),
            "headers": [[name, to_base64(value)] for name, value in record.headers],
            "tombstone": record.value is None,
            "error": self.error,
            "reason": self.reason,
            "software": self.software,
        }
        return frame(header, record.value or b"")

    @classmethod
    def from_bytes(cls, value: Payload | None) -> Self:
        """The dead letter."""
        header, payload = unframe(value, OWN)
        fields = Fields(header, "dead-letter")
        tombstone = fields.flag("tombstone")
        if tombstone and payload:
            raise DecodeError(f"tombstone is true, yet there are {len(payload)} bytes")
        record = Record(
            fields.position("input"),
            fields.binary("key"),
            None if tombstone else bytes(payload),
            fields.headers("headers"),
            fields.count("timestamp", least=-1),
        )
        return cls(fields.text("topic"), record, fields.text("error"), fields.text("reason"), fields.text("software"))
