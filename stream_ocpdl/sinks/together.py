"""Draws that waited together become messages together: what can be asked of all at once is not asked of each."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, cycle, groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from stream_ocpdl.errors import DataError
from stream_ocpdl.ocpdl.arrays import BigArray
from stream_ocpdl.sinks.buffer import Parcel
from stream_ocpdl.stream.drawing import SIGNED
from stream_ocpdl.stream.kafka import Sent
from stream_ocpdl.stream.messages import Draft, raw

SMALL = 4096
"""Draws of more bytes are not copied once more to be with others: they take their time anyway."""


class Kind(NamedTuple):
    """What the draws of some chains, or of one, are like, and the beginnings of their messages."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chains: Sequence[int]
    drafts: Sequence[Draft]


def messages(parcels: Iterable[Parcel[Kind]], partitions: int, signed: bool) -> Iterator[Sent]:
    """The messages of draws, in order; a DataError where one is negative and must not be, after those before it."""
    for (_, size), group in groupby(parcels, _alike):
        alike = list(group)
        arrays = [array for parcel in alike for array in parcel.arrays]
        whole = arrays if size > SMALL else [np.concatenate(arrays, axis=None)]
        payloads = chain.from_iterable(_payloads(array, size, signed) for array in whole)
        for (draft, number, partition), payload in zip(_draws(alike, partitions), payloads, strict=True):
            yield draft.written(number, payload), draft.key, partition


def negative(arrays: BigArray) -> bool:
    """Whether there is a number below zero."""
    return arrays.size > 0 and bool(np.minimum.reduce(arrays, axis=None) < 0)


def _alike(parcel: Parcel[Kind]) -> tuple[np.dtype[Any], int]:
    """Draws of one type and of so many bytes."""
    kind = parcel.kind
    return kind.dtype, kind.dtype.itemsize * prod(kind.shape)


def _draws(parcels: Iterable[Parcel[Kind]], partitions: int) -> Iterator[tuple[Draft, int, int]]:
    """Of each draw the beginning of its message, its number, and where it goes."""
    for (_, _, chains, drafts), numbers in ((parcel.kind, parcel.numbers) for parcel in parcels):
        yield from zip(cycle(drafts), numbers, cycle([number % partitions for number in chains]), strict=False)


def _payloads(arrays: BigArray, size: int, signed: bool) -> Iterator[memoryview]:
    """The bytes of each draw, up to one that is negative."""
    data = raw(arrays)
    bad = -1 if signed or not negative(arrays) else _first_negative(arrays, size)
    for at in range(0, len(data), size):
        if at == bad:
            raise DataError(SIGNED)
        yield data[at : at + size]


def _first_negative(arrays: BigArray, size: int) -> int:
    """Where the first draw with a number below zero begins, in bytes."""
    at = int(np.argmax(arrays.reshape(-1) < 0)) * arrays.itemsize
    return at - at % size
