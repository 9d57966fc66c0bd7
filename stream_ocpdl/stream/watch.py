"""Who watches a service: told of everything that happens, asked nothing, and so quick that it is not noticed."""

from collections.abc import Collection
from typing import Protocol

from stream_ocpdl.stream.pipeline import Outcome, Pipeline


class Watch(Protocol):
    """Is told what happens in a shard, by the thread that writes it."""

    def phase(self, name: str) -> None:
        """What it does from now on: fencing, recovering, running."""
        ...

    def turned(self) -> None:
        """Its loop went round, or a replay came a record further."""
        ...

    def ready(self, pipeline: Pipeline, replayed: int, standby: str, seconds: float | None) -> None:
        """It has recovered, warm or cold, after so many steps of replay and so many seconds."""
        ...

    def polled(self, records: int, seconds: float, awaited: Collection[int]) -> None:
        """It waited for input and decoded it; of these partitions it still lacks something that others have."""
        ...

    def stepped(self, pipeline: Pipeline, outcome: Outcome, seconds: float) -> None:
        """It made a step; a step that learned nothing is one, too."""
        ...


class Unwatched:
    """Nobody watches."""

    def phase(self, name: str) -> None:
        """Nobody."""

    def turned(self) -> None:
        """Nobody."""

    def ready(self, pipeline: Pipeline, replayed: int, standby: str, seconds: float | None) -> None:
        """Nobody."""

    def polled(self, records: int, seconds: float, awaited: Collection[int]) -> None:
        """Nobody."""

    def stepped(self, pipeline: Pipeline, outcome: Outcome, seconds: float) -> None:
        """Nobody."""
