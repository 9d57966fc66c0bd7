"""For how long this process is the one that writes a shard.

A term begins when the group assigns the shard. It ends in order (`finish`: commit what is learned, write a checkpoint)
or at once (`lose`: nothing may be published any more, whatever is in memory is void). Flags only, set by the thread
that polls the group and read by the one that writes.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from stream_ocpdl.errors import Fenced

PATIENCE = 1.0
"""Seconds to wait for the token of the next generation."""


@dataclass(slots=True, eq=False)
class Term:
    """One shard, written by this process."""

    shard: int
    token: bytes
    """What a transaction shows to be taken: who we are in the group, in its present generation."""
    began: float = field(default_factory=time.monotonic)
    finishing: bool = False
    lost: bool = False
    idle: threading.Event = field(default_factory=threading.Event)
    """Set for as long as nobody works in this term."""

    name: str = ""
    """What it is of, for people; without one the shard."""

    _shown: bytes = b""

    def __post_init__(self) -> None:
        self.idle.set()

    def finish(self) -> None:
        """Ask for an end in order."""
        self.finishing = True

    def lose(self) -> None:
        """It is over."""
        self.lost = True

    def check(self) -> None:
        """Raise if it is over."""
        if self.lost:
            raise Fenced(f"{self.name or f'shard {self.shard}'} is no longer ours")

    def ending(self) -> bool:
        """Whether to come to an end in order."""
        self.check()
        return self.finishing

    def show(self, refused: bool = False) -> bytes:
        """The token, for as long as there is one. If the last was refused, wait a moment for the next."""
        deadline = time.monotonic() + PATIENCE
        while refused and self.token == self._shown and not self.lost and time.monotonic() < deadline:
            time.sleep(0.02)
        self.check()
        self._shown = self.token
        return self._shown


class Ours:
    """Terms that end in one way out: a transaction with something of each needs all of them."""

    def __init__(self) -> None:
        self.terms: dict[int, Term] = {}

    def take(self, number: int, term: Term) -> None:
        """Work in a term."""
        term.idle.clear()
        self.terms[number] = term

    def let_go(self, number: int) -> None:
        """Work in it no more."""
        self.terms.pop(number).idle.set()

    def check(self) -> None:
        """Raise if one is over."""
        for term in list(self.terms.values()):
            term.check()

    def show(self, refused: bool = False) -> bytes:
        """The token of all of them; one that ends in order may have an old one."""
        terms = sorted(self.terms.values(), key=lambda term: term.finishing)
        if not terms:
            raise Fenced("nothing is ours any more")
        self.check()
        return terms[0].show(refused)


def await_end(terms: Iterable[Term], seconds: float) -> None:
    """Wait until nobody works in these terms, for so long at most."""
    deadline = time.monotonic() + seconds
    for term in terms:
        while not term.idle.wait(0.05) and time.monotonic() < deadline:
            pass  # in small pieces, so that a signal is heard
