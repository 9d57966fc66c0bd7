"""Sums over coded tensors, which a learner absorbs in place of the tensors."""

from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np

from stream_ocpdl.errors import DecodeError
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.stream.messages.fields import Fields
from stream_ocpdl.stream.messages.framing import Payload, frame, unframe
from stream_ocpdl.stream.messages.records import Run, Version
from stream_ocpdl.stream.messages.results import F8
from stream_ocpdl.stream.messages.tensor import dense


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """Sums over tensors that were coded with one dictionary."""

    dictionary: Version
    count: int
    energy: float
    """Σ‖X‖²."""
    mass: float
    """Σ‖H‖₁."""
    A: Array
    """ΣHᵀH (R, R)."""
    B: BigArray
    """ΣX ⊗ H (I₁, …, Iₙ, R)."""
    round: int | None = None
    """The how-manieth partial of its partition of the input this is; none where nobody counts."""
    covers: Run | None = None
    """The records of the input that are done with by it."""
    loss: float | None = None
    """Σℓ(X_j, D, h_j), per tensor as everywhere, and summed."""
    at_bound: int = 0
    """How many codes met their bound."""

    @property
    def origin(self) -> None:
        """Sums are no draw of a chain."""
        return

    @property
    def axes(self) -> None:
        """The names of the modes are those of the dictionary."""
        return

    def to_bytes(self) -> bytes:
        """Header with the scalars, payload A, then B."""
        dtype = self.B.dtype.newbyteorder("<")
        header: dict[str, Any] = {
            "kind": "partial",
            "dictionary": str(self.dictionary),
            "count": self.count,
            "energy": self.energy,
            "mass": self.mass,
            "rank": len(self.A),
            "shape": list(self.B.shape[:-1]),
            "dtype": dtype.str,
        }
        more = {"round": self.round, "covers": self.covers and list(self.covers), "loss": self.loss}
        header |= {name: value for name, value in more.items() if value is not None}
        header |= {"at_bound": self.at_bound} if self.at_bound else {}
        A, B = np.ascontiguousarray(self.A, F8), np.ascontiguousarray(self.B, dtype)
        return frame(header, A.data.cast("B"), B.data.cast("B"))

    @classmethod
    def from_bytes(cls, value: Payload | None) -> Self:
        """The sums, in the memory of the message."""
        return cls.read(*unframe(value))

    @classmethod
    def read(cls, header: dict[str, Any], payload: memoryview) -> Self:
        """The sums of a message that was taken apart."""
        fields = Fields(header, "partial")
        rank, shape = fields.size("rank"), fields.shape()
        dtype = np.dtype(fields.one_of("dtype", ("<f8", "<f4")))
        if len(payload) != 8 * rank**2 + dtype.itemsize * rank * prod(shape):
            raise DecodeError(f"shape {list(shape)} of rank {rank} does not fit a payload of {len(payload)} bytes")
        A = dense(F8, (rank, rank), payload[: 8 * rank**2])
        B = dense(dtype, (*shape, rank), payload[8 * rank**2 :])
        if not (np.isfinite(A).all() and np.isfinite(B).all()):
            raise DecodeError("payload has numbers that are not finite")
        return cls(
            fields.version("dictionary"),
            fields.size("count"),
            fields.number("energy"),
            fields.number("mass"),
            A,
            B,
            fields.optional("round", fields.size),
            fields.optional("covers", fields.run),
            fields.optional("loss", fields.number),
            fields.optional("at_bound", fields.count) or 0,
        )
