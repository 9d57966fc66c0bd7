"""All that a learner knows after step t: loadings, aggregates, two counters and the scale.

Nothing of ours writes a state after it was made, unless it was given away to be consumed (`advance`). It has one
canonical form in bytes:

    b"OCPDL" · version (1 byte) · header length (4 bytes, little-endian) · header (JSON) · arrays

The header has sorted keys and no spaces; floats are written as `float.hex`, which is exact. The arrays follow in the
order U₁ … Uₙ, A, B: raw, little-endian, C order. Equal states give equal bytes on every machine, and the SHA-256 of
these bytes names the state. The bytes carry no checksum: whoever stores them keeps the digest beside them.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from math import isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from stream_ocpdl.errors import StateError
from stream_ocpdl.ocpdl import arrays
from stream_ocpdl.ocpdl.aggregates import Aggregates, nothing
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.blocks import Blocks, Folded, width_of
from stream_ocpdl.ocpdl.problem import Problem

MAGIC = b"OCPDL"
VERSION = 1


class State(NamedTuple):
    """What is left of t minibatches with N tensors in all."""

    t: int
    N: int
    scale: float
    """s, the typical norm of a tensor, fixed by the first minibatch with any energy; zero until then."""
    at_bound: int
    """How many codes so far met their upper bound h_max; any at all is evidence against (A2) as chosen."""
    loadings: Sequence[Array]
    aggregates: Aggregates
    folded: Folded | None = None
    """B and the last mode folded, if a step has left it behind: it can be had from them, to the last bit, at any time.
    """
    factors: tuple[float, ...] = ()
    """By which data are multiplied along a scaled axis, once they are known (module `reshape`); in the bytes if any."""

    @classmethod
    def initial(cls, problem: Problem) -> "State":
        """The state before any data."""
        empty = nothing(problem.shape, problem.rank, problem.dtype)
        return cls(0, 0, 0.0, 0, problem.initial_loadings(1.0), empty)

    @property
    def shape(self) -> tuple[int, ...]:
        """I₁ … Iₙ."""
        return self.aggregates.B.shape[1:]

    @property
    def rank(self) -> int:
        """R."""
        return len(self.aggregates.B)

    @property
    def dtype(self) -> str:
        """The dtype of B."""
        return self.aggregates.B.dtype.name

    def parts(self) -> Iterator[memoryview | bytes]:
        """The canonical bytes, piece by piece and without a copy of the arrays; at most of one atom's part of B."""
        header = json.dumps(self._header(), sort_keys=True, separators=(",", ":")).encode()
        yield MAGIC + bytes([VERSION]) + len(header).to_bytes(4, "little") + header
        for array in chain(self.loadings, (self.aggregates.A,), _contiguous(self.aggregates.B)):
            yield memoryview(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)

    def to_bytes(self) -> bytes:
        """The canonical bytes."""
        return b"".join(self.parts())

    def digest(self) -> str:
        """SHA-256 of the canonical bytes, in hexadecimal."""
        sha = hashlib.sha256()
        for part in self.parts():
            sha.update(part)
        return sha.hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> "State":
        """The state that these canonical bytes describe.

        >>> state = State.initial(Problem(shape=(3, 2), rank=2))
        >>> State.from_bytes(state.to_bytes()).digest() == state.digest()
        True
        """
        try:
            view = memoryview(data).cast("B")
            header, offset = _read_header(view)
            shape, rank, dtype = tuple(map(int, header["shape"])), int(header["rank"]), str(header["dtype"])
            loadings, A, B = _read_arrays(view, offset, shape, rank, dtype)
            E, P, scale = (float.fromhex(header[name]) for name in ("E", "P", "scale"))
            t, N, at_bound = (int(header[name]) for name in ("t", "N", "at_bound"))
            factors = tuple(float.fromhex(factor) for factor in header.get("factors", ()))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise (
                error if isinstance(error, StateError) else StateError(f"the state cannot be read: {error}")
            ) from error
        state = cls(t, N, scale, at_bound, loadings, Aggregates(A, B, E, P), factors=factors)
        if bytes(next(state.parts())) != bytes(view[:offset]):
            raise StateError("the header of the state is not in its canonical form")
        state._check()
        return state

    def _check(self) -> None:
        """Raise unless the numbers can be those of a state."""
        past = self.aggregates
        if not 0 <= self.t <= self.N <= 1 << 62 or self.at_bound < 0:
            raise StateError(f"the state has impossible counters: t = {self.t}, N = {self.N}")
        if not all(isfinite(value) and value >= 0 for value in (self.scale, past.E, past.P)):
            raise StateError(f"the state has impossible scalars: scale {self.scale}, E {past.E}, P {past.P}")
        if not all(isfinite(factor) and factor > 0 for factor in self.factors):
            raise StateError(f"the state has impossible factors {self.factors}")
        B = past.B.tiles if isinstance(past.B, Blocks) else past.B
        if not all(np.isfinite(array).all() for array in (*self.loadings, past.A, B)):
            raise StateError("the state has numbers that are not finite")

    def belongs_to(self, problem: Problem) -> None:
        """Raise unless this can be a state of the problem."""
        mine, theirs = (self.shape, self.rank, self.dtype), (problem.shape, problem.rank, problem.dtype)
        if mine != theirs:
            raise StateError(f"the state has (shape, rank, dtype) {mine}, the problem {theirs}")
        for i, (U, C) in enumerate(zip(self.loadings, problem.sets(self.scale or 1.0).loadings, strict=True)):
            if not np.allclose(C.project(U), U, rtol=1e-9, atol=0):
                raise StateError(f"the loadings of mode {i} are outside of their set {C}: a state of another problem")

    def _header(self) -> dict[str, Any]:
        factors = {"factors": [factor.hex() for factor in self.factors]} if self.factors else {}
        return factors | {
            "E": self.aggregates.E.hex(),
            "N": self.N,
            "P": self.aggregates.P.hex(),
            "at_bound": self.at_bound,
            "dtype": self.dtype,
            "rank": self.rank,
            "scale": self.scale.hex(),
            "shape": self.shape,
            "t": self.t,
        }


def _read_header(view: memoryview) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays begin."""
    start = len(MAGIC) + 5
    if len(view) < start or bytes(view[: len(MAGIC)]) != MAGIC:
        raise StateError("these bytes are not a state: they do not begin with OCPDL")
    if view[len(MAGIC)] != VERSION:
        raise StateError(f"the state has format version {view[len(MAGIC)]}; this release reads version {VERSION}")
    end = start + int.from_bytes(view[start - 4 : start], "little")
    try:
        header = json.loads(bytes(view[start:end]))
    except ValueError as error:
        raise StateError(f"the header of the state is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise StateError("the header of the state is not a JSON object")
    return header, end


def _contiguous(B: BigArray | Blocks) -> Iterator[BigArray]:
    """B in C order, in one piece or atom by atom."""
    if isinstance(B, Blocks):
        yield from map(B.atom, range(len(B)))
    else:
        yield B


def _read_arrays(
    view: memoryview, offset: int, shape: tuple[int, ...], rank: int, dtype: str
) -> tuple[tuple[Array, ...], Array, BigArray | Blocks]:
    """U₁ … Uₙ, A, B as arrays of their own."""
    if dtype not in ("float64", "float32") or rank < 1 or not shape or min(shape) < 1:
        raise StateError(f"the state has an impossible shape {shape}, rank {rank} or dtype {dtype!r}")
    wanted: list[tuple[tuple[int, ...], str]] = [((rows, rank), "float64") for rows in shape]
    wanted += [((rank, rank), "float64"), ((rank, *shape), dtype)]
    sizes = [prod(dims) * np.dtype(kind).itemsize for dims, kind in wanted]
    if len(view) != offset + sum(sizes):
        raise StateError(f"the state should have {offset + sum(sizes)} bytes and has {len(view)}")
    found = []
    for (dims, kind), size in zip(wanted, sizes, strict=True):
        little = np.frombuffer(view[offset : offset + size], np.dtype(kind).newbyteorder("<"))
        found.append(little.reshape(dims))
        offset += size
    *loadings, A = (np.array(array, np.float64) for array in found[:-1])
    return tuple(loadings), A, _owned(found[-1], shape, rank, dtype)


def _owned(plain: BigArray, shape: tuple[int, ...], rank: int, dtype: str) -> BigArray | Blocks:
    """B with memory of its own, in the layout that its sizes ask for."""
    width = width_of(shape, rank)
    if width == 0:
        return arrays.copy(plain.astype(dtype, copy=False))
    B = Blocks.zeros(shape, rank, dtype, width)
    for r in range(rank):
        B.write_atom(r, plain[r])
    return B
