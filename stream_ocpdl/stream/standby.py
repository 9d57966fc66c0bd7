"""A shard that another process writes, followed: its journal replayed as it grows, outputs off.

It is there to be taken over. Then only the tail of the journal is left to be read; without it a checkpoint would have
to be loaded, and everything after that replayed. Nothing is written, and no fault of it matters: then it is cold.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from stream_ocpdl.errors import OcpdlError
from stream_ocpdl.stream.checkpoint import CheckpointStore
from stream_ocpdl.stream.ports import Said
from stream_ocpdl.stream.recovery import Follower, Report


class Growing(Protocol):
    """A journal that somebody else writes."""

    def follow(self, start: int, ended: Callable[[], bool]) -> Iterator[tuple[int, bytes]]:
        """Offset and value of all committed records from an offset on, until told to end; asked when none came."""
        ...


class Standby:
    """A thread that follows one shard."""

    def __init__(
        self,
        shard: int,
        begin: Callable[[], tuple[Follower, Growing, CheckpointStore]],
        report: Report,
    ) -> None:
        """`begin` makes what is needed, in the thread."""
        self.shard, self._begin, self._report = shard, begin, report
        self._ended = threading.Event()
        self._follower: Follower | None = None
        self._thread = threading.Thread(target=self._run, name=f"standby-{shard}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Follow no more. It comes to its end after the record that it is at."""
        self._ended.set()

    def take_over(self) -> Follower | None:
        """What has been followed, if it can be used. Waits for the record that it is at."""
        self.end()
        self._thread.join()
        follower, self._follower = self._follower, None
        return follower

    def _run(self) -> None:
        try:
            follower, journal, store = self._begin()
            follower.restore(store)
            for offset, value in journal.follow(follower.offset + 1, self._ended.is_set):
                if self._ended.is_set():
                    break
                follower.take(offset, value)
            self._follower = follower
        except Exception as error:  # whatever it is, the process has other things to do
            kind = "" if isinstance(error, OcpdlError) else f"{type(error).__name__}: "
            why = f"shard {self.shard} is not followed any more, and a takeover will be cold: {kind}{error}"
            self._report(Said(why, shard=self.shard))
