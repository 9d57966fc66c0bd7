"""Which shards this process runs: those that the election gives to it, each in a thread of its own.

    1. The main thread polls the election and does nothing that takes long: so a step may take as long as it likes,
       and the group still hears from us.
    2. A term that begins gets a runner, once the one before it in that shard has ended, or hangs in a call into the
       client that does not come back. It fences (that one, too), recovers, works.
    3. A term that ends is finished by its runner, within a budget, or dropped.
    4. A runner that is fenced while its shard still is ours: two processes must not fence each other for ever. Leave,
       pause, join again; each time the pause is longer.
    5. Without a shard this is a standby, and follows the journals of the others if it is to be a warm one.
    6. Told to stop, or after the error of a runner: finish all shards, then leave.

What is said here in order is marked so in the code.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from stream_ocpdl.errors import Fenced, OcpdlError, Stopped
from stream_ocpdl.stream.following import Follower
from stream_ocpdl.stream.ports import Said, Warned
from stream_ocpdl.stream.recovery import Report
from stream_ocpdl.stream.standby import Standby
from stream_ocpdl.stream.tenure import Term

POLL = 0.1
"""Seconds of one poll of the election."""

SETTLED = 1.0
"""Seconds without a shard after which this is a standby: a rebalance takes two rounds."""

HANGS = 10.0
"""Seconds after which a runner that has lost its shard, and is still there, is waited for no longer."""

NOTICED = 3.0
"""Seconds in which a process that was fenced hears from the group that its shard is gone."""

PAUSE, LONGEST = 1.0, 60.0
"""Seconds to stay away after a fence: at first, and at most."""


class Elected(Protocol):
    """A membership in the group that elects the writers."""

    @property
    def terms(self) -> Mapping[int, Term]:
        """The shards that are ours."""
        ...

    @property
    def joined(self) -> bool:
        """Whether the group knows us."""
        ...

    def poll(self, timeout: float) -> None:
        """Take part; terms begin and end in here."""
        ...

    def leave(self) -> None:
        """Give everything back."""
        ...

    def rejoin(self) -> None:
        """Take part again."""
        ...


class Work(Protocol):
    """What is to be done for a shard."""

    def run(self, term: Term, warm: Callable[[], Follower | None]) -> None:
        """Write it, for as long as the term lasts."""
        ...

    def follow(self, shard: int) -> Standby | None:
        """Follow it, if that is wanted."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Runner:
    """One shard at work."""

    term: Term
    thread: threading.Thread
    errors: list[BaseException]


class Replica:
    """A process among its like."""

    def __init__(
        self,
        election: Elected,
        work: Work,
        shards: int,
        stopping: Callable[[], bool],
        report: Report,
        now: Callable[[], float] = time.monotonic,
        turned: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._election, self._work, self._shards = election, work, shards
        self._stopping, self._report, self._now, self._turned = stopping, report, now, turned
        self._runners: list[Runner] = []
        self._standbys: dict[int, Standby | None] = {}
        self._idle_since: float | None = None
        self._said_standby = False
        self._fenced: dict[Term, float] = {}
        """Terms that ended by a fence, and when; kept until the group has taken them."""
        self._leaving = False
        self._rejoin_at: float | None = None
        self._pause = PAUSE
        self._error: BaseException | None = None

    def run(self) -> None:
        """Work until told to stop; raises the error of a runner after the others have finished."""
        while not self._stopping() and self._error is None:  # 1
            self._turned(self._said_standby)
            self._poll()
            if self._error is None:
                self._begin()
                self._stay_away()
                self._stand_by()
        self._finish()
        if self._error is not None:
            raise self._error

    def _poll(self) -> None:
        try:
            self._election.poll(POLL)
        except OcpdlError as error:
            self._error = self._error or error
        self._reap()

    def _begin(self) -> None:
        """2. A runner for each term that has none."""
        running = {runner.term for runner in self._runners}
        busy = {term.shard for term in running}
        for shard, term in list(self._election.terms.items()):
            hangs = term not in running and self._now() - term.began >= HANGS
            if (shard not in busy or hangs) and term not in self._fenced:
                self._report(Said(f"elected to write shard {shard}", shard=shard))
                self._start(term)

    def _start(self, term: Term) -> None:
        standby = self._standbys.pop(term.shard, None)
        warm = standby.take_over if standby is not None else lambda: None
        errors: list[BaseException] = []

        def work() -> None:
            try:
                self._work.run(term, warm)
            except BaseException as error:
                errors.append(error)
            finally:
                if standby is not None:
                    standby.end()
                term.idle.set()

        term.idle.clear()
        thread = threading.Thread(target=work, name=f"shard-{term.shard}", daemon=True)
        self._runners.append(Runner(term, thread, errors))
        thread.start()

    def _reap(self) -> None:
        """3. What has become of runners that ended."""
        for runner in [runner for runner in self._runners if not runner.thread.is_alive()]:
            self._runners.remove(runner)
            self._judge(runner.term, runner.errors[0] if runner.errors else None)

    def _judge(self, term: Term, error: BaseException | None) -> None:
        if error is None:
            self._pause = PAUSE
        elif isinstance(error, Stopped):
            self._report(Said(str(error), shard=term.shard))
        elif (term.lost and isinstance(error, OcpdlError | OSError)) or (term.finishing and isinstance(error, Fenced)):
            self._report(Said(f"dropped shard {term.shard}: {error}", shard=term.shard))
        elif isinstance(error, Fenced):
            self._fenced[term] = self._now()
        else:
            self._error = self._error or error

    def _stay_away(self) -> None:
        """4. After a fence, unless the group has an explanation."""
        now = self._now()
        self._fenced = {term: when for term, when in self._fenced.items() if not term.lost}
        if self._leaving and not self._election.terms:  # what other shards took to finish is no pause
            self._leaving = False
            self._rejoin_at = now + self._pause
            self._pause = min(2 * self._pause, LONGEST)
        elif self._rejoin_at is not None and now >= self._rejoin_at:
            self._rejoin_at = None
            self._election.rejoin()
        elif (
            not self._leaving
            and self._rejoin_at is None
            and any(now - when >= NOTICED for when in self._fenced.values())
        ):
            self._report(Warned(f"fenced, and not told why: leaving for {self._pause:g} s, to be elected again"))
            self._election.leave()
            self._leaving = True

    def _stand_by(self) -> None:
        """5. Without a shard."""
        if self._election.terms:
            self._said_standby = False
            self._forget()
        if self._election.terms or self._runners or not self._election.joined:
            self._idle_since = None
            return
        self._idle_since = self._now() if self._idle_since is None else self._idle_since
        if self._now() - self._idle_since < SETTLED:
            return
        if not self._said_standby:
            self._said_standby = True
            self._report("standby")
        for shard in range(self._shards):
            if shard not in self._standbys:
                self._standbys[shard] = self._work.follow(shard)

    def _forget(self) -> None:
        for standby in self._standbys.values():
            if standby is not None:
                standby.end()
        self._standbys.clear()

    def _finish(self) -> None:
        """6. The group keeps us for as long as this takes."""
        self._forget()
        for runner in self._runners:
            runner.term.finish()
        while any(not runner.term.lost for runner in self._runners):  # the others have nothing to finish
            self._poll()
            if self._error is not None:
                time.sleep(POLL)  # a poll that fails does not wait
