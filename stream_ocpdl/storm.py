"""Replicas of a service that come and go: told to stop, killed, or frozen until others have taken over.

Half of them are warm standbys, half cold. What they do to each other in the meantime is their business; the promises
are checked by what is left in the end.
"""

import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable

from stream_ocpdl.config.settings import Settings
from stream_ocpdl.lives import Life, VerificationFailed

PAUSE = 2.5
"""Seconds between two events, in the mean, unless somebody wants a calmer one."""

SPREAD = (0.4, 1.6)
"""The shortest and the longest pause between two events, in terms of the mean."""

ORDERLY = 60.0
"""Seconds in which a replica that is told to stop has to do so."""


class Weather:
    """So many replicas of a model, and what befalls them."""

    def __init__(
        self,
        settings: Settings,
        replicas: int,
        session: float,
        pause: float,
        seed: int,
        report: Callable[[str], None],
    ) -> None:
        self._settings, self._replicas, self._report = settings, replicas, report
        self._session, self._pause = session, pause
        self._chance = random.Random(seed)  # noqa: S311  (instants, not secrets)
        self._here: list[Life] = []
        self._leaving: list[tuple[Life, float]] = []
        self._born = 0
        self.ends: Counter[str] = Counter()
        self.takeovers: defaultdict[str, list[float]] = defaultdict(list)

    def rage(self, seconds: float, zombies: int) -> None:
        """Let replicas come and go for so long, then freeze so many; in the end all have left in order."""
        try:
            self._fill()
            self._await_owner()
            self._storm(seconds)
            for _ in range(zombies):
                self._freeze()
            for life in list(self._here):
                self._terminate(life)
            self._reap(wait=True)
        except VerificationFailed as error:
            for life in self._everybody():
                error.add_note(life.log[-2000:])
            raise
        finally:
            for life in self._everybody():
                self._bury(life)

    def _everybody(self) -> list[Life]:
        return [*self._here, *(life for life, _ in self._leaving)]

    def _storm(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._sleep(self._pause * self._chance.uniform(*SPREAD))
            if len(self._here) < self._replicas and (not self._here or self._chance.random() < 0.7):
                self._fill()
            else:
                self._chance.choice((self._terminate, self._kill))(self._chance.choice(self._here))

    def _fill(self) -> None:
        while len(self._here) < self._replicas:
            self._born += 1
            standby = "warm" if self._born % 2 else "cold"
            self._here.append(Life(self._settings.model_copy(update={"standby": standby})))

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.1)
            self._reap()
            for life in self._here:
                if life.process.poll() is not None:
                    raise VerificationFailed(f"a replica ended by itself with code {life.process.returncode}")

    def _terminate(self, life: Life) -> None:
        self._report("a replica is told to stop")
        self._here.remove(life)
        life.process.terminate()
        self._leaving.append((life, time.monotonic() + ORDERLY))

    def _kill(self, life: Life) -> None:
        self._report("a replica is killed")
        self._here.remove(life)
        life.process.kill()
        self.ends["killed"] += 1
        self._bury(life)

    def _freeze(self) -> None:
        """Freeze one that writes, until it is missed and its shards have another owner; then let it go on."""
        self._fill()
        owner = self._await_owner()
        self._report("the owner of a shard is frozen past its session")
        owner.process.send_signal(signal.SIGSTOP)
        self._sleep(1.5 * self._session + 3.0)
        owner.process.send_signal(signal.SIGCONT)
        self.ends["frozen"] += 1
        self._sleep(3.0)

    def _await_owner(self) -> Life:
        deadline = time.monotonic() + 60 + 3 * self._session
        while True:
            owners = [life for life in self._here if owns(life)]
            if owners:
                return self._chance.choice(owners)
            if time.monotonic() > deadline:
                raise VerificationFailed("nobody was elected")
            self._sleep(0.2)

    def _reap(self, wait: bool = False) -> None:
        for life, deadline in list(self._leaving):
            while wait and life.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            if life.process.poll() is None and time.monotonic() < deadline:
                continue
            early = life.process.returncode == -signal.SIGTERM and "elected" not in life.log  # nothing to finish yet
            if life.process.returncode != 0 and not early:
                raise VerificationFailed(f"a replica ended with {life.process.returncode} when told to stop")
            self._leaving.remove((life, deadline))
            self.ends["terminated"] += 1
            self._bury(life)

    def _bury(self, life: Life) -> None:
        """Note how long its takeovers took."""
        life.close()
        for line in life.lines():
            if line["event"].startswith("ready at step"):
                self.takeovers[line["standby"]].append(line["seconds"])


def owns(life: Life) -> bool:
    """Whether it says that it writes a shard."""
    owned: set[int] = set()
    for line in life.lines():
        if line["event"].startswith("ready at step"):
            owned.add(line["shard"])
        elif line["event"].startswith(("stopped after", "dropped")):
            owned.discard(line["shard"])
    return bool(owned)


def quantile(times: list[float], share: float) -> float:
    """The time below which this share of them is.

    >>> quantile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]
