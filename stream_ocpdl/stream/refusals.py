"""When too much is refused: by counts of messages in the order of the stream, never by a clock (but for partitions that
wait for one that is silent: what is refused in these leaves ahead of its turn, and counts as it leaves).

A message that is refused goes to the dead letters, and the stream goes on. A topic of which nearly nothing can be
learned is another matter: a wrong shape, a wrong format, a broken producer. Going on would drain it into the dead
letters, so the service stops, before it commits what is beyond the limit.

A `Tally` counts up to where all is done. It is part of the progress and of the journal, so a service that is started
again counts on where it stopped: a restart does not forgive anything. A message in pieces counts once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from stream_ocpdl.errors import ConfigError, TooMuchRefused

History = tuple[int, ...]
"""What became of messages, in the order of the stream: n for n of them learned, −n for n refused."""


class Tally(NamedTuple):
    """What was refused so far, as far as it matters."""

    consecutive: int = 0
    """Refused in a row, up to now."""
    seen: int = 0
    """Messages of the present window."""
    refused: int = 0
    """Of those."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """How much may be refused.

    Windows lie one after the other. So a wrong topic is noticed after `consecutive` messages, one that is wrong by more
    than `ratio` within two windows, and one in a hundred may be poison for ever.
    """

    consecutive: int | None = 1000
    ratio: float | None = 0.5
    window: int = 10_000

    def __post_init__(self) -> None:
        for name in ("consecutive", "window"):
            value, least = getattr(self, name), 0 if name == "consecutive" else 1
            if (value is not None or name == "window") and (type(value) is not int or value < least):
                raise ConfigError(f"refusals.{name} must be a whole number, at least {least}, not {value!r}")
        if self.ratio is not None and not (type(self.ratio) in (int, float) and 0 <= self.ratio <= 1):
            raise ConfigError(f"refusals.ratio must be a number from 0 to 1, or null, not {self.ratio!r}")

    def count(self, tally: Tally, history: Iterable[int], last: str) -> Tally:
        """The tally after more messages; raise if that is too much. `last` is why the last one was refused."""
        for many in history:
            left = abs(many)
            while left > 0:
                if tally.seen >= self.window:
                    tally = tally._replace(seen=0, refused=0)
                some = min(left, self.window - tally.seen)
                left -= some
                bad = some if many < 0 else 0
                tally = Tally(tally.consecutive + bad if bad else 0, tally.seen + some, tally.refused + bad)
                self._check(tally, last)
        return tally

    def _check(self, tally: Tally, last: str) -> None:
        if self.consecutive is not None and tally.consecutive > self.consecutive:
            raise _stop(f"{tally.consecutive} messages in a row were refused", last, "consecutive")
        if self.ratio is not None and tally.refused > self.ratio * self.window:
            raise _stop(f"{tally.refused} of {tally.seen} messages were refused", last, "ratio")


def merged(histories: Iterable[History]) -> History:
    """One history after the other.

    >>> merged([(1,), (1, -1), (-2,)])
    (2, -3)
    """
    found: list[int] = []
    for history in histories:
        for many in history:
            if found and (found[-1] < 0) == (many < 0):
                found[-1] += many
            else:
                found.append(many)
    return tuple(found)


def _stop(what: str, last: str, name: str) -> TooMuchRefused:
    return TooMuchRefused(
        f"{what}, the last because {last}; stopped before these go to the dead letters. Is the input wrong? Correct"
        f" its producer, and let them go with --set refusals.{name}=null for once. Is the model? Correct"
        " input.format or problem.shape"
    )
