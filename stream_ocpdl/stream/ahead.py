"""A source that reads ahead in a thread of its own, so that records are there when the learner asks for them.

Waiting for the broker and copying what the client has fetched take as long as learning does, and most of that time the
interpreter is free: so they go on beside it.

It is one thread for as long as the same is read: memory that a thread has used is kept for it by the C library, and
another one would fill as much again.
"""

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import NamedTuple

from stream_ocpdl.errors import BrokerError
from stream_ocpdl.stream.items import record_bytes
from stream_ocpdl.stream.messages import Record
from stream_ocpdl.stream.ports import Source

MOST = 32_000_000
"""Bytes that are read ahead, at most."""

LEAST = 6_000_000
"""So many at least, or two minibatches. More gain nothing: what waits for long has left the cache of the processor, and
takes memory that has to be made each time, where little is always in the same."""

PATIENCE = 10.0
"""Seconds to wait for the thread to end, or to look."""

POLLED, WAIT = 256, 0.05
"""Records and seconds of one poll of the thread: it ends within that time when it is told to."""

SOON = 0.005
"""Seconds of a poll where somebody waits for what becomes of few records."""

PORTION = 2_000_000
"""Bytes of one poll, about, where records are large: the client copies them, and nobody else has the interpreter until
it is done. Small portions are copied while kernels run, which do not need it."""


_HANGS = f"a call into the client does not come back within {PATIENCE:g} s"


class Portion(NamedTuple):
    """What one poll brought, and its bytes."""

    records: list[Record]
    size: int


class Ahead:
    """Another source, read ahead. `start`, `poll`, `changed`, `close` know of the thread; they are for one caller."""

    def __init__(self, source: Source, wait: float = WAIT, minibatch: int = MOST) -> None:
        """`minibatch` is about how many bytes are wanted at once."""
        self._source, self._wait = source, wait
        self._most = min(max(LEAST, 2 * minibatch), MOST)
        self._changed = threading.Condition()
        self._portions: deque[Portion] = deque()
        self._bytes = 0
        self._wanted = POLLED
        """Records of the next poll."""
        self._hungry: Collection[int] = ()
        self._failed: BaseException | None = None
        self._life: object | None = None
        """Of the thread that may read; none if none may."""
        self._thread: threading.Thread | None = None
        self._asked: Future[bool] | None = None
        """Whether the topic is another: to be answered by the thread, between two polls."""

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

    def latest(self) -> dict[int, int]:
        """For each partition the offset behind the last record."""
        return self._source.latest()

    def committed(self) -> dict[int, int]:
        """The positions of the group."""
        return self._source.committed()

    def changed(self) -> bool:
        """Whether the topic is another. Whoever reads looks, too, since a client may hang if two ask at once."""
        asked: Future[bool] = Future()
        with self._changed:
            if self._life is None or self._failed is not None:
                return self._source.changed()  # nobody reads
            self._asked = asked
            self._changed.notify()
        with suppress(CancelledError):
            try:
                return asked.result(PATIENCE)
            except TimeoutError:
                if asked.cancel():
                    raise BrokerError(_HANGS) from None
                return asked.result()  # it looks, and has a patience of its own
        return self._source.changed()  # it has failed meanwhile

    def start(self, positions: Mapping[int, int]) -> None:
        """Read on from these offsets; what was read ahead is dropped."""
        self.close()
        self._source.start(positions)
        self._portions.clear()
        self._bytes, self._failed, self._hungry = 0, None, self.partitions
        self._begin()

    def _begin(self) -> None:
        self._life = life = object()
        self._thread = threading.Thread(target=self._read, args=(life,), name="ahead", daemon=True)
        self._thread.start()

    def poll(self, limit: int, timeout: float, hungry: Collection[int]) -> list[Record]:
        """Up to so many records; among them may be some of a partition that was hungry when they were read."""
        with self._changed:
            self._hungry = hungry
            self._changed.notify()
            if not self._portions and self._failed is None:
                self._changed.wait(timeout)
            if not self._portions and self._failed is not None:
                raise self._failed
            taken = self._take(limit)
            self._changed.notify()
            return taken

    def _take(self, limit: int) -> list[Record]:
        """Up to so many records, in portions as they came; of the first only a part, if it is larger."""
        taken: list[Record] = []
        while self._portions and len(taken) + len(self._portions[0].records) <= limit:
            records, size = self._portions.popleft()
            taken += records
            self._bytes -= size
        if self._portions and not taken:
            taken, rest = self._portions[0].records[:limit], self._portions[0].records[limit:]
            size = sum(map(record_bytes, taken))
            self._portions[0] = Portion(rest, self._portions[0].size - size)
            self._bytes -= size
        return taken

    def close(self) -> None:
        """End the thread; the source stays open."""
        with self._changed:
            self._life = None
            self._changed.notify()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(PATIENCE)
            if thread.is_alive():  # it has no say any more, but two may not read from one client
                raise BrokerError(_HANGS)

    def _read(self, life: object) -> None:
        try:
            while self._room(life):
                if self._asked is not None:
                    self._look()
                else:
                    self._put(life, self._source.poll(self._wanted, self._wait, self._hungry))
        except BaseException as error:  # whoever polls is to hear of it
            with self._changed:
                if self._life is life:
                    self._failed = error
                    self._changed.notify()
                if self._asked is not None:
                    self._asked.cancel()

    def _look(self) -> None:
        """Answer what was asked, unless nobody waits for it any more."""
        asked, self._asked = self._asked, None
        if asked is not None and asked.set_running_or_notify_cancel():
            try:
                asked.set_result(self._source.changed())
            except BaseException as error:  # whoever asked is to hear of it
                asked.set_exception(error)

    def _room(self, life: object) -> bool:
        """Wait until there is room, and somebody hungry, or something to be looked at; whether to go on."""
        with self._changed:
            while self._life is life and self._asked is None and (self._bytes >= self._most or not self._hungry):
                self._changed.wait()
            return self._life is life

    def _put(self, life: object, records: list[Record]) -> None:
        size = sum(map(record_bytes, records))
        if records:
            self._wanted = min(max(PORTION * len(records) // size, 1), POLLED)
        with self._changed:
            if records and self._life is life:
                self._portions.append(Portion(records, size))
                self._bytes += size
                self._changed.notify()
