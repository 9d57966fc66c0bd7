"""What the service needs of the world, as small protocols. `kafka` and `topics` have the real ones, the tests fakes."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

from stream_ocpdl.stream.messages import Output, Record

CrashPoint = Callable[[str], None]
"""Called with the name of each place where a crash is worth a test; does nothing in production."""


def no_crash(_: str) -> None:
    """Go on."""


class Said(str):
    """A line for people, with fields for machines."""

    fields: dict[str, Any]

    def __new__(cls, text: str, **fields: Any) -> Self:
        """The text; it has the fields with it."""
        said = super().__new__(cls, text)
        said.fields = fields
        return said


class Warned(Said):
    """A line that somebody should read: a warning of the log."""


class Source(Protocol):
    """The input."""

    @property
    def partitions(self) -> Sequence[int]:
        """The partitions to be read."""
        ...

    @property
    def identity(self) -> str:
        """What tells this input from another, also from one of the same name that was made anew."""
        ...

    def earliest(self) -> dict[int, int]:
        """For each partition the lowest offset that is there."""
        ...

    def latest(self) -> dict[int, int]:
        """For each partition the offset behind the last record that is there."""
        ...

    def committed(self) -> dict[int, int]:
        """The positions that were committed last, as monitors see them."""
        ...

    def changed(self) -> bool:
        """Whether it has more partitions now, or was made anew; identity and partitions are those of now then."""
        ...

    def start(self, positions: Mapping[int, int]) -> None:
        """Read on from these offsets; what was fetched before is dropped."""
        ...

    def poll(self, limit: int, timeout: float, hungry: Collection[int]) -> list[Record]:
        """Up to so many records of the hungry partitions, or what came until the timeout; each partition in order."""
        ...


class Stand(NamedTuple):
    """Where a group stands in a partition."""

    offset: int
    """Where reading goes on."""
    reached: int
    """Below this all is done; what lies between the two is read again for the sake of pieces that wait."""
    round: int = 0
    """How many partials were made of it."""


class Partitions(Protocol):
    """The partitions of a topic that a member of a group has; they come and go."""

    def add(self, starts: Mapping[int, int]) -> None:
        """Read these, too, from these offsets on."""
        ...

    def drop(self, partition: int) -> None:
        """Read it no more."""
        ...

    def poll(self, limit: int, timeout: float, hungry: Collection[int] | None = None) -> list[Record]:
        """Up to so many records of the hungry partitions, or of all, or what came until the timeout; each in order."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class Codebox(Protocol):
    """The way out of an encoder: outputs and stands, or nothing."""

    def open(self) -> None:
        """Make ready."""
        ...

    def commit(self, outputs: Sequence[Output], stands: Mapping[int, Stand]) -> int:
        """Write both in one transaction."""
        ...


class Journal(Protocol):
    """The records that were committed."""

    def read(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Offset and value of all committed records from an offset to the present end."""
        ...


class Outbox(Protocol):
    """The way out: all outputs of a commit and the positions, or nothing."""

    def open(self) -> None:
        """Fence every predecessor and end what it left open. Before this returned nothing may be read."""
        ...

    def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> int:
        """Write outputs and positions in one transaction; the offset of the last record of the journal among them."""
        ...


class Control(Protocol):
    """What operators ask for."""

    def read(self, start: int) -> Sequence[tuple[int, bytes | None]]:
        """Offset and value of requests from an offset on, those that are there by now; at once."""
        ...


class NoControl:
    """Nobody asks for anything."""

    def read(self, start: int) -> Sequence[tuple[int, bytes | None]]:
        """Nothing."""
        return ()
