"""From a record to what it brings: a tensor that fits the model, or the reason why not."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from stream_ocpdl.errors import DataError
from stream_ocpdl.stream.assembly import Assembler, Refusal
from stream_ocpdl.stream.formats import Format, largest
from stream_ocpdl.stream.items import Item
from stream_ocpdl.stream.messages import Chunk, Draw, Payload, Record, Tensor, unframe

KEY = 16_384
"""Bytes of a key: it goes with the code, which has to stay small as well."""


class Intake:
    """Records of a few partitions, each in order, as items for a Batcher."""

    def __init__(self, form: Format, shape: tuple[int, ...], partitions: Iterable[int]) -> None:
        self._format, self._shape = form, shape
        self._assemblers = {p: Assembler(largest(shape)) for p in partitions}

    def read(self, record: Record, now: float) -> Item:
        """What the next record of a partition brings."""
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

    def waiting(self, reached: dict[int, int]) -> dict[int, list[int]]:
        """For each partition the pieces below an offset that wait there for the rest of their message."""
        return {p: self._assemblers[p].waiting(offset) for p, offset in reached.items()}

    def rows(self, used: Iterable[Record]) -> Iterator[tuple[Record, Tensor]]:
        """The tensors of records that were found good before, the pieces of each one after the other.

        Each comes with its record, or the one of its last piece.
        """
        pieces: list[Payload] = []
        for record in used:
            found = self._open(record)
            if isinstance(found, Tensor):
                yield record, found
                continue
            pieces.append(found.piece)
            if found.index + 1 == found.count:
                yield record, self._whole(b"".join(pieces))
                pieces.clear()

    def _open(self, record: Record) -> Tensor | Chunk:
        if self._format.name != "native":
            return self._format.read(record.value, self._shape)
        plain = Tensor.plain(record.value)
        if plain is not None:
            return plain
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


def _tensor(header: dict[str, object], payload: memoryview) -> Tensor:
    if header.get("kind") != "draw":
        return Tensor.read(header, payload)
    draw = Draw.read(header, payload)
    return replace(draw.tensor, origin=draw.origin)
