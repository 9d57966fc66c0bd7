"""From a record to what it brings: a tensor that fits the model, or the reason why not."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod
from typing import Generic, TypeVar

from stream_ocpdl.errors import DataError
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.stream.assembly import Assembler, Refusal
from stream_ocpdl.stream.formats import Format, largest
from stream_ocpdl.stream.items import Item
from stream_ocpdl.stream.messages import Chunk, Draw, Mould, Partial, Payload, Position, Record, Tensor, unframe

KEY = 16_384
"""Bytes of a key: it goes with the code, which has to stay small as well."""


HEADER = 10_000
"""Bytes of a partial beside its numbers, at most."""

T = TypeVar("T", bound=Tensor | Partial)


class Assembly(Generic[T]):
    """Records of a few partitions, each in order, as items for a Batcher. What they hold, those know that inherit."""

    def __init__(self, limit: int, partitions: Iterable[int]) -> None:
        """`limit` is the most bytes of a message."""
        self._assemblers = {p: Assembler(limit) for p in partitions}
        self.open: set[int] = set()
        """The partitions of which pieces wait for the rest of their message."""

    def read(self, record: Record, now: float) -> Item:
        """What the next record of a partition brings."""
        item = self._read(record, now)
        self._look(record.position.partition)
        return item

    def _read(self, record: Record, now: float) -> Item:
        assembler = self._assemblers[record.position.partition]
        parts: tuple[Record, ...] = (record,)
        others = assembler.pass_by(record.position.offset)
        try:
            found = self._open(record)
            if isinstance(found, Chunk):
                put = assembler.put(record, found)
                parts, others = put.parts, (*others, *put.refused)
                if put.whole is None:
                    return Item(record.position, now, refused=others)
                found = self._whole(put.whole)
            return Item(record.position, now, self._checked(found, record.key), parts, others)
        except DataError as error:
            return Item(record.position, now, refused=(*others, *(Refusal.of(part, error) for part in parts)))

    def pass_by(self, position: Position) -> tuple[Refusal, ...]:
        """What is refused because a plain record comes, which is not read: pieces that waited for too long."""
        given_up = self._assemblers[position.partition].pass_by(position.offset)
        self._look(position.partition)
        return given_up

    def _look(self, partition: int) -> None:
        """Note whether pieces wait for the rest of their message."""
        (self.open.add if self._assemblers[partition].waits else self.open.discard)(partition)

    def waiting(self, reached: dict[int, int]) -> dict[int, list[int]]:
        """For each partition the pieces below an offset that wait there for the rest of their message."""
        return {p: self._assemblers[p].waiting(offset) for p, offset in reached.items()}

    def rows(self, used: Iterable[Record]) -> Iterator[tuple[Record, T]]:
        """What is in records that were found good before, the pieces of each one after the other.

        Each comes with its record, or the one of its last piece.
        """
        pieces: list[Payload] = []
        for record in used:
            found = self._open(record)
            if not isinstance(found, Chunk):
                yield record, found
                continue
            pieces.append(found.piece)
            if found.index + 1 == found.count:
                yield record, self._whole(b"".join(pieces))
                pieces.clear()

    def _open(self, record: Record) -> T | Chunk:
        raise NotImplementedError

    def _whole(self, value: bytes) -> T:
        raise NotImplementedError

    def _checked(self, found: T, key: bytes | None) -> T:
        raise NotImplementedError


class Intake(Assembly[Tensor]):
    """Records with tensors."""

    def __init__(self, form: Format, shape: tuple[int, ...], partitions: Iterable[int]) -> None:
        self._format, self._shape = form, shape
        self._mould: Mould | None = None
        super().__init__(largest(shape), partitions)

    @property
    def mould(self) -> Mould | None:
        """What the last dense tensor that was read has in common with others."""
        return self._mould

    def _open(self, record: Record) -> Tensor | Chunk:
        if self._format.name != "native":
            return self._format.read(record.value, self._shape)
        mould = Mould.of(record.value)
        if mould is not None and record.value is not None:
            self._mould = mould if mould.shape == self._shape else self._mould
            return Tensor(mould.array(record.value), mould.axes)
        header, payload = unframe(record.value)
        return Chunk.read(header, payload) if header.get("kind") == "chunk" else _tensor(header, payload)

    def _whole(self, value: bytes) -> Tensor:
        return _tensor(*unframe(value))

    def _checked(self, tensor: Tensor, key: bytes | None) -> Tensor:
        """The tensor, if it is one of this model."""
        if tensor.shape != self._shape:
            raise DataError(f"shape is {list(tensor.shape)}, that of the model {list(self._shape)}")
        if key is not None and len(key) > KEY:
            raise DataError(f"key has {len(key)} bytes; at most {KEY} go with a code")
        return tensor


def is_plain(record: Record, mould: Mould) -> bool:
    """Whether a record is a tensor of this mould, with a key that goes with a code: there is no more to be known."""
    _, key, value, _, _, _ = record
    same = type(value) is bytes and len(value) == mould.size and value.startswith(mould.head)
    return same and (key is None or len(key) <= KEY)


class PartialIntake(Assembly[Partial]):
    """Records with partials."""

    def __init__(self, model: str, problem: Problem, partitions: Iterable[int]) -> None:
        self._model, self._problem = model, problem
        super().__init__(8 * problem.rank * (problem.rank + prod(problem.shape)) + HEADER, partitions)

    def _open(self, record: Record) -> Partial | Chunk:
        header, payload = unframe(record.value)
        return Chunk.read(header, payload) if header.get("kind") == "chunk" else Partial.read(header, payload)

    def _whole(self, value: bytes) -> Partial:
        return Partial.from_bytes(value)

    def _checked(self, partial: Partial, key: bytes | None) -> Partial:
        """The partial, if it is one of this model."""
        problem = self._problem
        mine = problem.shape, problem.rank, problem.dtype
        found = partial.B.shape[:-1], len(partial.A), partial.B.dtype.name
        if found != mine:
            raise DataError(f"(shape, rank, dtype) is {found}, that of the model {mine}")
        if (partial.dictionary.model, partial.dictionary.shard) != (self._model, 0):
            raise DataError(f"it was made with {partial.dictionary}, a dictionary of another model")
        return partial


def _tensor(header: dict[str, object], payload: memoryview) -> Tensor:
    if header.get("kind") != "draw":
        return Tensor.read(header, payload)
    draw = Draw.read(header, payload)
    return replace(draw.tensor, origin=draw.origin)
