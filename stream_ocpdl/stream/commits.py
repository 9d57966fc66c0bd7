"""The way out beside the learning: one transaction at a time, written in a thread of its own."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

from stream_ocpdl.errors import LineageError
from stream_ocpdl.stream.messages import Output
from stream_ocpdl.stream.ports import Outbox

Aside: TypeAlias = Callable[[Callable[[], int]], Future[int]]
"""Makes a call somewhere else."""


class Commits:
    """The way out, one transaction at a time: each waits for the one before it, and says what went wrong."""

    def __init__(self, outbox: Outbox, offset: int, aside: Aside | None = None) -> None:
        self._outbox, self._offset, self._aside = outbox, offset, aside
        self._pending: Future[int] | None = None

    def open(self) -> None:
        """It is."""

    def begin(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> None:
        """Write outputs and positions; nothing of them changes any more."""
        self.end()
        if self._aside is None:
            self._went_on(self._outbox.commit(outputs, positions))
        else:
            self._pending = self._aside(partial(self._outbox.commit, outputs, positions))

    def look(self) -> None:
        """Hear of what went wrong, if that is known by now."""
        if self._pending is not None and self._pending.done():
            self.end()

    def end(self) -> int:
        """Wait until everything begun is committed; the offset of the journal's last record."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            try:
                self._went_on(pending.result())
            finally:
                del pending  # as in `beside`
        return self._offset

    def _went_on(self, offset: int) -> None:
        """Raise unless the journal has grown: another one of its name would begin in the middle, and prove nothing."""
        if offset <= self._offset:
            raise LineageError(
                f"the journal stood at offset {self._offset}, and the next record is at {offset}: it was deleted and"
                " made anew while it was written, and the past of the model is gone. Give the model another name"
            )
        self._offset = offset

    def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> int:
        """Both."""
        self.begin(outputs, positions)
        return self.end()
