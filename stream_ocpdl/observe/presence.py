"""Whether the topics of a model are still there, asked now and then, beside everything else."""

import threading
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Protocol, Self

from stream_ocpdl.errors import BrokerError

EVERY = 10.0
"""Seconds between two looks."""


class Told(Protocol):
    """Who is told."""

    missing: Sequence[str]


class Presence:
    """Looks in a thread of its own, and tells the board. A broker that does not answer says nothing of its topics."""

    def __init__(
        self, board: Told, wanted: Sequence[str], there: Callable[[], Collection[str]], every: float = EVERY
    ) -> None:
        self._board, self._wanted, self._there, self._every = board, wanted, there, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="presence", daemon=True)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look no more; a look that is under way is not waited for."""
        self._over.set()

    def _look(self) -> None:
        while not self._over.wait(self._every):
            try:
                there = self._there()
            except BrokerError:
                continue
            self._board.missing = [name for name in self._wanted if name not in there]
