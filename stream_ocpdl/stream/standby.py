"""A shard that another process writes, followed: its journal replayed as it grows, outputs off.

It is there to be taken over. Then only the tail of the journal is left to be read; without it a checkpoint would have
to be loaded, and everything after that replayed. Nothing is written, and no fault of it matters: then it is cold. One
that is so far behind that a checkpoint must be nearer is cold, too.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol

from stream_ocpdl.errors import BrokerError, InputLost, LineageError, OcpdlError, Stopped
from stream_ocpdl.stream.following import Follower, WentBack
from stream_ocpdl.stream.ports import Warned
from stream_ocpdl.stream.recovery import Report

AGAIN = 10.0
"""Seconds until it is tried again, after a broker was away, or input gone that its writer may do without."""


class Growing(Protocol):
    """A journal that somebody else writes."""

    def follow(self, start: int, ended: Callable[[], bool]) -> Iterator[tuple[int, bytes]]:
        """Offset and value of all committed records from an offset on, until told to end; asked when none came."""
        ...

    def end(self) -> int:
        """The offset after the last record."""
        ...


class Standby:
    """A thread that follows one shard."""

    def __init__(self, shard: int, begin: Callable[[], tuple[Follower, Growing]], report: Report, far: int) -> None:
        """`begin` makes what is needed, in the thread. To be so many records behind the journal is too far."""
        self.shard, self._begin, self._report, self._far = shard, begin, report, far
        self._ended = threading.Event()
        self._found: tuple[Follower, Growing] | None = None
        self._thread = threading.Thread(target=self._run, name=f"standby-{shard}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Follow no more. It comes to its end after the record that it is at."""
        self._ended.set()

    def take_over(self) -> Follower | None:
        """What has been followed, if it can be used. Waits for the record that it is at."""
        self.end()
        self._thread.join()
        found, self._found = self._found, None
        if found is None:
            return None
        follower, journal = found
        return follower if journal.end() - follower.offset <= self._far else None

    def _run(self) -> None:
        said = False
        while not self._ended.is_set():
            try:
                self._follow()
            except Stopped:
                return
            except WentBack:
                self._ended.wait(AGAIN / 10)  # and begin again, from the checkpoint that its writer made then
            except Exception as error:  # whatever it is, the process has other things to do
                kind = "" if isinstance(error, OcpdlError) else f"{type(error).__name__}: "
                then = "may fail" if isinstance(error, LineageError) else "will be cold"
                why = f"shard {self.shard} is not followed any more, and a takeover {then}: {kind}{error}"
                if not said:
                    self._report(Warned(why, shard=self.shard))
                said = True
                if not isinstance(error, BrokerError | InputLost):
                    return  # the next attempt would end in the same way
                self._ended.wait(AGAIN)

    def _follow(self) -> None:
        follower, journal = self._begin()
        follower.world = replace(follower.world, on_record=partial(_go_on, self._ended))
        follower.restore()
        for offset, value in journal.follow(follower.offset + 1, self._ended.is_set):
            if self._ended.is_set():
                break
            follower.take(offset, value)
        self._found = follower, journal


def _go_on(ended: threading.Event, *_: object) -> None:
    """Raise at the end. It does not know the standby: the two would keep each other, and a client, alive."""
    if ended.is_set():
        raise Stopped("followed no more")
