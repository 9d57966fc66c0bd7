"""The health of the chains whose draws are learned: is it the chain that is the problem, or the dictionary?

Of each draw a few numbers are followed: its norm, which is the sampler's alone; its prequential loss, and the codes of
the two atoms that had the most energy when this began, which change with the dictionary, too. A chain of which the norm
is well and the loss is not is one whose dictionary still moves.

Of all draws sums are kept (`chains.several`), of the last ones the numbers themselves, so that what needs ranks can be
had when somebody asks. The thread that learns puts references into a line, and sums up once a thousand draws wait; it
never waits for those who read. All of it is of this life: nothing of it is in a checkpoint, and it begins anew with a
restart, a rollback, or input that is read again. Draws of tuning are left out.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf, isnan, nan
from typing import NamedTuple, TypeAlias

import numpy as np

from stream_ocpdl.chains.several import Several
from stream_ocpdl.chains.streaming import Health, split_rhat
from stream_ocpdl.chains.window import LEAST, bulk_ess, rank_rhat, tail_ess
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.ocpdl.revival import atom_energies
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.stream.messages import Origin

CODES = 2
"""Atoms whose codes are followed."""

CHAINS = 64
"""Chains that are followed at a time. One more has to wait until one of them has ended."""

ENDED = 1000
"""Draws of each of the others after which one has."""

WINDOW = 4096
"""Draws of a chain that are kept."""

BLOCK = WINDOW // 2
"""Draws that wait before they are summed up."""

RANKED = 20_000
"""Draws of all chains together of which ranks are taken: the last ones of each."""

FRESH = 5.0
"""Seconds for which an answer is given again, however many ask."""

Name: TypeAlias = tuple[str, int]
"""Run and chain."""


class Followed:
    """A chain."""

    def __init__(self, quantities: int) -> None:
        self.count, self.last = 0, 0
        self._sums, self._summed = Several(quantities), 0
        self._ring = np.empty((quantities, WINDOW))

    def extend(self, numbers: Array) -> None:
        """More draws, (F, n)."""
        for at in range(0, numbers.shape[1], BLOCK):
            some = numbers[:, at : at + BLOCK]
            self._ring[:, np.arange(self.count, self.count + some.shape[1]) % WINDOW] = some
            self.count += some.shape[1]
            if self.count - self._summed >= BLOCK:
                self._sum_up()

    def healths(self) -> list[Health]:
        """Of each quantity, of all draws."""
        self._sum_up()
        return [self._sums.health(k) for k in range(len(self._ring))]

    def window(self) -> Array:
        """The last draws, (F, n)."""
        return self._from(max(0, self.count - WINDOW))

    def _from(self, first: int) -> Array:
        return self._ring[:, np.arange(first, self.count) % WINDOW]

    def _sum_up(self) -> None:
        self._sums.extend(self._from(self._summed))
        self._summed = self.count


class Chain(NamedTuple):
    """A chain as it is told; times by the names of the quantities, NaN where too little is known."""

    run: str
    chain: int
    draws: int
    healths: dict[str, Health]


class Ranked(NamedTuple):
    """The windows of a run: how many chains and draws of each, and R̂ and ESS by the names of the quantities."""

    chains: int
    draws: int
    rank_rhat: dict[str, float]
    bulk_ess: dict[str, float]
    tail_ess: dict[str, float]


class Report(NamedTuple):
    """What is known of all chains."""

    since: int
    """The step with which it begins."""
    atoms: tuple[int, ...]
    """Those whose codes are followed."""
    unfollowed: int
    """Draws of chains that there was no room for."""
    chains: tuple[Chain, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def runs(self) -> dict[str, list[Chain]]:
        """The chains of each run: only those can be compared."""
        found: dict[str, list[Chain]] = {}
        for chain in self.chains:
            found.setdefault(chain.run, []).append(chain)
        return found

    def split_rhats(self, chains: Sequence[Chain]) -> dict[str, float]:
        """The classical split-R̂ of chains."""
        return {name: split_rhat([chain.healths[name] for chain in chains]) for name in self.names}

    @property
    def worst_rhats(self) -> dict[str, float]:
        """Of the runs the largest, where any is known."""
        each = [self.split_rhats(chains) for chains in self.runs.values()]
        return _known({name: [one[name] for one in each] for name in self.names}, max)

    @property
    def longest_times(self) -> dict[str, float]:
        """Autocorrelation times: of the chains the longest, where any is known."""
        return _known({name: [c.healths[name].autocorrelation_time for c in self.chains] for name in self.names}, max)

    @property
    def least_ess(self) -> dict[str, float]:
        """Of the chains the smallest, where any is known."""
        return _known({name: [c.healths[name].ess for c in self.chains] for name in self.names}, min)


class Wellness:
    """The chains of a shard."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self._begin(0)

    def _begin(self, t: int) -> None:
        self.since, self.atoms = t, tuple[int, ...]()
        self._t, self._rows, self._seen, self._unfollowed = 0, 0, 0, 0
        self._waiting: deque[tuple[Sequence[Origin | None], Array, Array, Array]] = deque()
        self._chains: dict[Name, Followed] = {}
        self._told: tuple[float, Report] = (-inf, Report(t, (), 0))
        self._ranked: tuple[float, dict[str, Ranked]] = (-inf, {})

    @property
    def names(self) -> tuple[str, ...]:
        """What is followed of each draw."""
        return ("norm", "loss", *(f"code {k + 1}" for k in range(len(self.atoms))))

    # ── by the thread that learns ──────────────────────────────────────────────────────────────────────────────

    def forget(self) -> None:
        """A life begins: draws may come again."""
        with self._lock:
            self._begin(0)

    def stepped(self, origins: Sequence[Origin | None], energies: Array, step: Step, state: State) -> None:
        """Draws were learned."""
        if step.t <= self._t:
            self.forget()
        self._t = step.t
        if not self.atoms:
            leading = np.argsort(-atom_energies(state), kind="stable")[:CODES]
            self.since, self.atoms = step.t, tuple(leading.tolist())
        self._waiting.append((origins, energies, step.coding.losses, step.coding.H))
        self._rows += len(origins)
        if self._rows >= BLOCK and self._lock.acquire(blocking=False):
            try:
                self._sort()
            finally:
                self._lock.release()

    def _sort(self) -> None:
        """Give what waits to the chains."""
        steps = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._rows = 0
        if not steps:
            return
        atoms = list(self.atoms)
        energies, losses = (np.concatenate([one[k] for one in steps]) for k in (1, 2))
        codes = np.concatenate([one[3][:, atoms] for one in steps])
        numbers = np.vstack([np.sqrt(energies), losses, codes.T])
        found: dict[Name, int] = {}
        which = np.array(
            [found.setdefault(o[:2], len(found)) if o and not o[3] else -1 for one in steps for o in one[0]]
        )
        for name, k in found.items():
            mine = np.flatnonzero(which == k)
            self._seen += len(mine)
            chain = self._followed(name, len(numbers))
            if chain is None:
                self._unfollowed += len(mine)
            else:
                chain.last = self._seen
                chain.extend(numbers[:, mine])

    def _followed(self, name: Name, quantities: int) -> Followed | None:
        """A chain; none if there is no room for it."""
        found = self._chains.get(name)
        if found is not None:
            return found
        if len(self._chains) >= CHAINS:
            oldest = min(self._chains, key=lambda other: self._chains[other].last)
            if self._seen - self._chains[oldest].last < ENDED * CHAINS:
                return None
            del self._chains[oldest]
        found = self._chains[name] = Followed(quantities)
        return found

    # ── by those who ask ───────────────────────────────────────────────────────────────────────────────────────

    def report(self) -> Report:
        """What is known of all draws; a few seconds old at most."""
        with self._lock:
            made, told = self._told
            if self._now() - made >= FRESH or not told.chains:
                self._sort()
                names = self.names
                chains = tuple(
                    Chain(run, chain, one.count, dict(zip(names, one.healths(), strict=True)))
                    for (run, chain), one in sorted(self._chains.items())
                )
                told = Report(self.since, self.atoms, self._unfollowed, chains, names)
                self._told = self._now(), told
            return told

    def ranked(self) -> dict[str, Ranked]:
        """Of each run what ranks tell of the last draws."""
        with self._lock:
            made, told = self._ranked
            if self._now() - made < FRESH and told:
                return told
            self._sort()
            names, windows = self.names, dict[str, list[Array]]()
            for (run, _), chain in sorted(self._chains.items()):
                windows.setdefault(run, []).append(chain.window())
            most = RANKED // max(1, len(self._chains))
        told = {run: _ranked(names, found, most) for run, found in windows.items()}
        self._ranked = self._now(), told
        return told


def _ranked(names: Sequence[str], windows: Sequence[Array], most: int) -> Ranked:
    """Of windows of equal length: those much shorter than the longest, of chains that began later, are left out."""
    longest = max(window.shape[1] for window in windows)
    kept = [window for window in windows if 4 * window.shape[1] >= longest]
    n = min(most, *(window.shape[1] for window in kept))
    draws = np.stack([window[:, window.shape[1] - n :] for window in kept])
    measures = (rank_rhat, bulk_ess, tail_ess)
    found = ({name: f(draws[:, k]) if n >= LEAST else nan for k, name in enumerate(names)} for f in measures)
    return Ranked(len(kept), n, *found)


def _known(numbers: dict[str, list[float]], choose: Callable[[list[float]], float]) -> dict[str, float]:
    """One of the numbers of each name, where there are any that are."""
    known = {name: [x for x in found if not isnan(x)] for name, found in numbers.items()}
    return {name: choose(found) for name, found in known.items() if found}
