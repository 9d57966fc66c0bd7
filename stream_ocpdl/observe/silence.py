"""Which chains of samplers have fallen silent while others go on.

By draws, not by a clock: a sampler may take a millisecond or an hour for a draw. A chain is silent if the others had
`PATIENCE` draws each, in the mean, since its last one. One that stays so for `FORGOTTEN` draws has ended, and is not
counted any more. Of a chain that had no draw since the process began to write nothing is known.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stream_ocpdl.stream.draws import Chain

PATIENCE = 20
"""Draws of each of the others after which a chain is silent."""

FORGOTTEN = 1000
"""And after which it is not missed any more."""


@dataclass(slots=True)
class Silence:
    """What was seen of the chains, from one look to the next; a look takes as long as there are chains."""

    following: dict[str, int] = field(default_factory=dict)
    """Of each chain the draw that came next, at the last look."""
    advanced: dict[str, int] = field(default_factory=dict)
    """Of each that has advanced: how many draws there were of all then."""
    draws: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, known: Mapping[str, Chain]) -> Iterable[tuple[tuple[str, ...], int]]:
        """How many chains go on, and how many are silent; nothing before any has advanced."""
        with self.lock:
            more = {key: chain[0] - self.following.get(key, chain[0]) for key, chain in known.items()}
            moved = [key for key, count in more.items() if count > 0]
            self.draws += sum(more[key] for key in moved)
            self.following = {key: chain[0] for key, chain in known.items()}
            self.advanced |= dict.fromkeys(moved, self.draws)
            others = max(len(self.advanced) - 1, 1)
            behind = {key: (self.draws - at) / others for key, at in self.advanced.items()}
            self.advanced = {key: at for key, at in self.advanced.items() if behind[key] < FORGOTTEN}
            silent = sum(PATIENCE <= behind[key] for key in self.advanced)
            counted = {"active": len(self.advanced) - silent, "silent": silent}
        return [((state,), number) for state, number in counted.items()] if self.advanced else []
