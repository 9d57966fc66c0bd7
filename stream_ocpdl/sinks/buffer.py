"""What a sampler has handed over and a thread has not written yet: bounded, and cheap for the sampler.

Draws of one kind that follow each other are put into one parcel, two lists for all of them. Python looks for garbage
the more often the more objects there are, which takes a quarter of a second in a process with a large model.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from stream_ocpdl.ocpdl.arrays import BigArray

K = TypeVar("K")

FULL = 256
"""Draws of a parcel to which no others are added."""

LARGE = 1_000_000
"""Bytes of such a parcel."""


class Parcel(Generic[K]):
    """Draws of one kind: their numbers, and their arrays, of which one may have several draws."""

    __slots__ = ("arrays", "bytes", "kind", "numbers")

    def __init__(self, kind: K, numbers: Sequence[int], arrays: BigArray) -> None:
        self.kind, self.numbers, self.arrays, self.bytes = kind, [*numbers], [arrays], arrays.nbytes

    def add(self, kind: K, numbers: Sequence[int], arrays: BigArray) -> bool:
        """Add some of the same kind; false if they are not, or there are enough."""
        if kind is not self.kind or len(self.numbers) >= FULL or self.bytes >= LARGE:
            return False
        self.numbers += numbers
        self.arrays.append(arrays)
        self.bytes += arrays.nbytes
        return True


class Buffer(Generic[K]):
    """Parcels in order. Those that were taken count until they are done with, so that no more wait than there is room.

    What is larger than all the room is taken when there is nothing else.
    """

    def __init__(self, room: int, room_bytes: int) -> None:
        self._room, self._room_bytes = room, room_bytes
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)
        self._parcels: list[Parcel[K]] = []
        self._blocked = 0
        self._bytes = self.pending = 0
        self.many = threading.Event()
        """Set when half of the room is used, and by whoever wants it emptied."""

    def put(self, kind: K, numbers: Sequence[int], arrays: BigArray, wait: float) -> bool:
        """Hand draws over; false if there was no room for them within so many seconds."""
        draws, size = len(numbers), arrays.nbytes
        with self._lock:
            if 2 * (self.pending + draws) >= self._room or 2 * (self._bytes + size) >= self._room_bytes:
                if not self._fits(draws, size) and not self._waited(draws, size, wait):
                    return False
                self.many.set()
            if not self._parcels or not self._parcels[-1].add(kind, numbers, arrays):
                self._parcels.append(Parcel(kind, numbers, arrays))
            self.pending += draws
            self._bytes += size
        return True

    def take(self, rest: float) -> list[Parcel[K]]:
        """All that is there, after a rest in which it gathers; the rest ends when there is much."""
        self.many.wait(rest)
        with self._lock:
            self.many.clear()
            taken, self._parcels = self._parcels, []
        return taken

    def done(self, parcels: Sequence[Parcel[K]]) -> None:
        """Some that were taken are written."""
        with self._lock:
            self.pending -= sum(len(parcel.numbers) for parcel in parcels)
            self._bytes -= sum(parcel.bytes for parcel in parcels)
            if self._blocked:
                self._free.notify_all()

    def _fits(self, draws: int, size: int) -> bool:
        room = self.pending + draws <= self._room and self._bytes + size <= self._room_bytes
        return room or self.pending == 0

    def _waited(self, draws: int, size: int, wait: float) -> bool:
        self.many.set()
        self._blocked += 1
        try:
            return wait > 0 and self._free.wait_for(lambda: self._fits(draws, size), wait)
        finally:
            self._blocked -= 1


def loads(parcels: Sequence[Parcel[K]]) -> Iterator[list[Parcel[K]]]:
    """Parcels, so many together that they have as many draws as a full one, or as many bytes."""
    load, draws, size = list[Parcel[K]](), 0, 0
    for parcel in parcels:
        load.append(parcel)
        draws, size = draws + len(parcel.numbers), size + parcel.bytes
        if draws >= FULL or size >= LARGE:
            yield load
            load, draws, size = [], 0, 0
    if load:
        yield load
