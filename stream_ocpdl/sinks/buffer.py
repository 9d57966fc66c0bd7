"""What a sampler has handed over and a thread has not written yet: bounded, and cheap for the sampler."""

import threading
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Parcel(NamedTuple, Generic[T]):
    """Something for the other side, so many draws of so many bytes."""

    content: T
    draws: int
    bytes: int


class Buffer(Generic[T]):
    """Parcels in order. Those that were taken count until they are done with, so that no more wait than there is room.

    A parcel that is larger than all the room is taken when there is no other.
    """

    def __init__(self, room: int, room_bytes: int) -> None:
        self._room, self._room_bytes = room, room_bytes
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)
        self._parcels: list[Parcel[T]] = []
        self._blocked = 0
        self._bytes = self.pending = 0
        self.many = threading.Event()
        """Set when half of the room is used, and by whoever wants it emptied."""

    def put(self, parcel: Parcel[T], wait: float) -> bool:
        """Hand a parcel over; false if there was no room for it within so many seconds."""
        _, draws, size = parcel
        with self._lock:
            pending, held = self.pending + draws, self._bytes + size
            if 2 * pending >= self._room or 2 * held >= self._room_bytes:
                if not self._fits(parcel) and not self._waited(parcel, wait):
                    return False
                self.many.set()
                pending, held = self.pending + draws, self._bytes + size
            self._parcels.append(parcel)
            self.pending, self._bytes = pending, held
        return True

    def take(self, rest: float) -> list[Parcel[T]]:
        """All that is there, after a rest in which it gathers; the rest ends when there is much."""
        self.many.wait(rest)
        with self._lock:
            self.many.clear()
            taken, self._parcels = self._parcels, []
        return taken

    def done(self, parcels: Sequence[Parcel[T]]) -> None:
        """Some that were taken are written."""
        with self._lock:
            self.pending -= sum(parcel.draws for parcel in parcels)
            self._bytes -= sum(parcel.bytes for parcel in parcels)
            if self._blocked:
                self._free.notify_all()

    def _fits(self, parcel: Parcel[T]) -> bool:
        room = self.pending + parcel.draws <= self._room and self._bytes + parcel.bytes <= self._room_bytes
        return room or self.pending == 0

    def _waited(self, parcel: Parcel[T], wait: float) -> bool:
        self.many.set()
        self._blocked += 1
        try:
            return wait > 0 and self._free.wait_for(lambda: self._fits(parcel), wait)
        finally:
            self._blocked -= 1
