"""What a sampler has handed over and a thread has not written yet: bounded, and cheap for the sampler.

Draws of one kind that follow each other are put into one parcel, two lists for all of them. Python looks for garbage
the more often the more objects there are, which takes a quarter of a second in a process with a large model.

Between two draws the sampler has filled the caches of the processor with its own. Then what takes three microseconds in
a loop takes ten, and the sampler may find as much of its own gone. So a chain has a lane, with room for some draws
ahead: a draw is added to a list, and numbers, limits and locks are seen to once for all in it.
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

AHEAD = 64
"""Draws for which a lane has room when it is opened."""


class Parcel(Generic[K]):
    """Draws of one kind: their numbers, and their arrays, of which one may have several draws."""

    __slots__ = ("arrays", "bytes", "kind", "numbers")

    def __init__(self, kind: K, numbers: Sequence[int], arrays: Sequence[BigArray]) -> None:
        self.kind, self.numbers, self.arrays, self.bytes = kind, [*numbers], [*arrays], _bytes(arrays)

    def add(self, kind: K, numbers: Sequence[int], arrays: Sequence[BigArray]) -> bool:
        """Add some of the same kind; false if they are not, or there are enough."""
        if kind is not self.kind or len(self.numbers) >= FULL or self.bytes >= LARGE:
            return False
        self.numbers += numbers
        self.arrays += arrays
        self.bytes += _bytes(arrays)
        return True


class Lane(Generic[K]):
    """Draws of one kind with numbers that follow each other. One thread may append arrays, while there is room.

    Whoever takes arrays out lessens the room first, so that there never are more than it was opened for.
    """

    __slots__ = ("arrays", "bytes", "kind", "number", "room")

    def __init__(self, kind: K, number: int, size: int) -> None:
        """`number` is that of the first, `size` are the bytes of each."""
        self.kind, self.number, self.bytes, self.room = kind, number, size, AHEAD
        self.arrays: list[BigArray] = []

    def taken(self) -> tuple[range, list[BigArray]]:
        """The numbers of those that are there, and they themselves; they are no longer there."""
        arrays, first = self.arrays[:], self.number
        self.number += len(arrays)
        self.room -= len(arrays)
        del self.arrays[: len(arrays)]
        return range(first, self.number), arrays

    @property
    def left(self) -> int:
        """For how many there is room."""
        return self.room - len(self.arrays)


class Buffer(Generic[K]):
    """Parcels in order. Those that were taken count until they are done with, so that no more wait than there is room.

    What is larger than all the room is taken when there is nothing else.
    """

    def __init__(self, room: int, room_bytes: int) -> None:
        self._room, self._room_bytes = room, room_bytes
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)
        self._parcels: list[Parcel[K]] = []
        self._lanes: list[Lane[K]] = []
        self._blocked = 0
        self._bytes = self._draws = 0
        """Also those for which lanes have room."""
        self.many = threading.Event()
        """Set when half of the room is used, and by whoever wants it emptied."""

    def put(self, kind: K, numbers: Sequence[int], arrays: BigArray, wait: float) -> bool:
        """Hand draws over; false if there was no room for them within so many seconds."""
        draws, size = len(numbers), arrays.nbytes
        with self._lock:
            if self._halved(draws, size):
                if not self._fits(draws, size) and not self._waited(draws, size, wait):
                    return False
                self.many.set()
            self._append(kind, numbers, (arrays,))
            self._draws += draws
            self._bytes += size
        return True

    def open(self, kind: K, number: int, size: int) -> Lane[K] | None:
        """A lane for draws from this number on, of so many bytes each; none where half of the room would be used, or
        a quarter by lanes: of very many chains most have none, and what they hand over counts for what it is.
        """
        with self._lock:
            if self._halved(AHEAD, AHEAD * size) or 4 * AHEAD * (len(self._lanes) + 1) > self._room:
                return None
            lane = Lane(kind, number, size)
            self._draws += AHEAD  # first: without the lock nobody may find fewer pending than there are
            self._bytes += AHEAD * size
            self._lanes.append(lane)
        return lane

    def close(self, lane: Lane[K]) -> int:
        """Nothing is appended to it any more; the number that follows."""
        with self._lock:
            self._settle(lane)
            self._lanes.remove(lane)
            self._draws -= lane.room
            self._bytes -= lane.room * lane.bytes
            if self._blocked:
                self._free.notify_all()
        return lane.number

    @property
    def pending(self) -> int:
        """Draws that were handed over and are not done with."""
        return self._draws - sum(lane.left for lane in self._lanes)

    def take(self, rest: float) -> list[Parcel[K]]:
        """All that is there, after a rest in which it gathers; the rest ends when there is much."""
        self.many.wait(rest)
        with self._lock:
            self.many.clear()
            for lane in self._lanes:
                self._settle(lane)
            taken, self._parcels = self._parcels, []
        return taken

    def done(self, parcels: Sequence[Parcel[K]]) -> None:
        """Some that were taken are written."""
        with self._lock:
            self._draws -= sum(len(parcel.numbers) for parcel in parcels)
            self._bytes -= sum(parcel.bytes for parcel in parcels)
            if self._blocked:
                self._free.notify_all()

    def _settle(self, lane: Lane[K]) -> None:
        numbers, arrays = lane.taken()
        if arrays:
            self._append(lane.kind, numbers, arrays)

    def _append(self, kind: K, numbers: Sequence[int], arrays: Sequence[BigArray]) -> None:
        if not self._parcels or not self._parcels[-1].add(kind, numbers, arrays):
            self._parcels.append(Parcel(kind, numbers, arrays))

    def _halved(self, draws: int, size: int) -> bool:
        """Whether half of the room would be used."""
        return 2 * (self._draws + draws) >= self._room or 2 * (self._bytes + size) >= self._room_bytes

    def _fits(self, draws: int, size: int) -> bool:
        room = self._draws + draws <= self._room and self._bytes + size <= self._room_bytes
        return room or self.pending == 0

    def _waited(self, draws: int, size: int, wait: float) -> bool:
        self.many.set()
        self._blocked += 1
        try:
            return wait > 0 and self._free.wait_for(lambda: self._fits(draws, size), wait)
        finally:
            self._blocked -= 1


def _bytes(arrays: Sequence[BigArray]) -> int:
    return sum(array.nbytes for array in arrays)


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
