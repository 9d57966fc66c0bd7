"""A source that reads ahead in a thread of its own, so that records are there when the learner asks for them.

Waiting for the broker and copying what the client has fetched take as long as learning does, and most of that time the
interpreter is free: so they go on beside it.
"""

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from stream_ocpdl.stream.messages import Record
from stream_ocpdl.stream.ports import Source

MOST = 32_000_000
"""Bytes that are read ahead."""

PATIENCE = 10.0
"""Seconds to wait for the thread to end."""

POLLED, WAIT = 256, 0.05
"""Records and seconds of one poll of the thread: it ends within that time when it is told to."""


class Ahead:
    """Another source, read ahead. Only `start`, `poll` and `close` know of the thread; they are for one caller."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._changed = threading.Condition()
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._hungry: Collection[int] = ()
        self._failed: BaseException | None = None
        self._running = False
        self._thread: threading.Thread | None = None

    @property
    def partitions(self) -> Sequence[int]:
        """The partitions to be read."""
        return self._source.partitions

    @property
    def identity(self) -> str:
        """What tells this input from another."""
        return self._source.identity

    def earliest(self) -> dict[int, int]:
        """For each partition the lowest offset that is there."""
        return self._source.earliest()

    def committed(self) -> dict[int, int]:
        """The positions of the group."""
        return self._source.committed()

    def changed(self) -> bool:
        """Whether the topic is another; asked while nobody reads, since a client may hang if two ask at once."""
        self.close()
        try:
            return self._source.changed()
        finally:
            self._begin()

    def start(self, positions: Mapping[int, int]) -> None:
        """Read on from these offsets; what was read ahead is dropped."""
        self.close()
        self._source.start(positions)
        self._records.clear()
        self._bytes, self._failed, self._hungry = 0, None, self.partitions
        self._begin()

    def _begin(self) -> None:
        self._running = True
        self._thread = threading.Thread(target=self._read, name="ahead", daemon=True)
        self._thread.start()

    def poll(self, limit: int, timeout: float, hungry: Collection[int]) -> list[Record]:
        """Up to so many records; among them may be some of a partition that was hungry when they were read."""
        with self._changed:
            self._hungry = hungry
            self._changed.notify()
            if not self._records and self._failed is None:
                self._changed.wait(timeout)
            if not self._records and self._failed is not None:
                raise self._failed
            taken = [self._records.popleft() for _ in range(min(limit, len(self._records)))]
            self._bytes -= sum(len(record.value or b"") for record in taken)
            self._changed.notify()
            return taken

    def close(self) -> None:
        """End the thread; the source stays open."""
        with self._changed:
            self._running = False
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(PATIENCE)  # a call into the client may hang; the thread ends with the process then
            self._thread = None

    def _read(self) -> None:
        try:
            while self._room():
                self._put(self._source.poll(POLLED, WAIT, self._hungry))
        except BaseException as error:  # whoever polls is to hear of it
            with self._changed:
                self._failed = error
                self._changed.notify()

    def _room(self) -> bool:
        """Wait until there is room, and somebody hungry; whether to go on."""
        with self._changed:
            while self._running and (self._bytes >= MOST or not self._hungry):
                self._changed.wait()
            return self._running

    def _put(self, records: list[Record]) -> None:
        if records:
            with self._changed:
                self._records.extend(records)
                self._bytes += sum(len(record.value or b"") for record in records)
                self._changed.notify()
