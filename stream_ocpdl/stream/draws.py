"""The draws of samplers: which of a chain came already, which are missing, which come late.

Of each chain is known up to where it came, and what is missing before that. So a draw is the next one; or comes behind
a gap; or fills one, and is late; or is repeated. The first draw that is seen of a chain may be any: what is before it
may still come.

What is known follows from the draws that were learned, in the order of the rows, and from nothing else: a replay finds
the same, and a checkpoint has it. Memory is bounded: of the chains that had no draw for the longest time, and of the
oldest gaps of a chain, nothing is known any more; a draw of a forgotten gap counts as repeated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, NamedTuple, get_args

from stream_ocpdl.errors import ConfigError, DataError
from stream_ocpdl.stream.messages import Origin, Refused

CHAINS = 1000
"""Of so many chains it is known where they are."""

GAPS = 8
"""So many gaps are remembered of each."""

Treatment = Literal["accept", "refuse"]

Chain = tuple[int, tuple[tuple[int, int], ...]]
"""The draw that comes next, and the gaps before it: first and last draw that is missing."""


class RepeatedDraw(DataError):
    """A draw that came before."""


class DrawBehindGap(DataError):
    """A draw before which some are missing."""


class LateDraw(DataError):
    """A draw that comes after later ones."""


class TuningDraw(DataError):
    """A draw of a sampler that was still tuning itself."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Which draws are learned. With `gaps: refuse` a chain has to be whole: what is behind a gap is refused until the
    missing draws have come.
    """

    repeated: Treatment = "refuse"
    gaps: Treatment = "accept"
    late: Treatment = "accept"
    tuning: Treatment = "accept"

    def __post_init__(self) -> None:
        for name in ("repeated", "gaps", "late", "tuning"):
            if getattr(self, name) not in get_args(Treatment):
                raise ConfigError(f"draws.{name} must be 'accept' or 'refuse', not {getattr(self, name)!r}")

    def judge(self, chains: "Chains", rows: Sequence[Origin | None]) -> dict[int, DataError]:
        """The rows that are not to be learned, each with the reason."""
        if not any(rows):
            return {}
        wrong, known = {}, dict(chains.known)
        for j, origin in enumerate(rows):
            if origin is None:
                continue
            found = self._wrong(known, origin)
            if found is None:
                _learn(known, origin)
            else:
                wrong[j] = found
        return wrong

    def _wrong(self, known: dict[str, Chain], origin: Origin) -> DataError | None:
        name = f"draw {origin.draw} of chain {origin.chain} of run {origin.run!r:.60}"
        place, chain = _place(known, origin), known.get(key_of(origin))
        if place == "repeated" and self.repeated == "refuse":
            return RepeatedDraw(f"{name} came before")
        if place == "behind a gap" and chain is not None and self.gaps == "refuse":
            return DrawBehindGap(f"{name} comes behind a gap: {chain[0]} is missing")
        if place == "late" and self.late == "refuse":
            return LateDraw(f"{name} comes late")
        if origin.tuning and self.tuning == "refuse":
            return TuningDraw(f"{name} is one of tuning")
        return None


class Counts(NamedTuple):
    """How many there were so far, learned or refused."""

    repeated: int = 0
    gaps: int = 0
    late: int = 0
    tuning: int = 0


_COUNTED = {"RepeatedDraw": "repeated", "DrawBehindGap": "gaps", "LateDraw": "late", "TuningDraw": "tuning"}
_PLACES = {"repeated": "repeated", "behind a gap": "gaps", "late": "late"}


@dataclass(frozen=True, slots=True)
class Chains:
    """What is known of the chains; the one that had no draw for the longest time comes first."""

    known: dict[str, Chain] = field(default_factory=dict)
    counts: Counts = Counts()  # noqa: RUF009  (frozen)

    def after(self, rows: Sequence[Origin | None], refused: Iterable[Refused]) -> "Chains":
        """What is known after draws were learned and records refused."""
        counts = self.counts._asdict()
        for entry in refused:
            if entry.error in _COUNTED:
                counts[_COUNTED[entry.error]] += 1
        known = dict(self.known) if any(rows) else self.known
        for origin in rows:
            if origin is not None:
                place = _place(known, origin)
                if place in _PLACES:
                    counts[_PLACES[place]] += 1
                counts["tuning"] += origin.tuning
                _learn(known, origin)
        return Chains(known, Counts(**counts))


def key_of(origin: Origin) -> str:
    """A short name of a chain, however long that of its run is."""
    return _key(origin.chain, origin.run)


@lru_cache(maxsize=4 * CHAINS)
def _key(chain: int, run: str) -> str:
    """It is asked for several times a draw."""
    return blake2b(f"{chain}:{run}".encode(), digest_size=8).hexdigest()


def _place(known: dict[str, Chain], origin: Origin) -> str:
    """Where in its chain a draw comes."""
    chain = known.get(key_of(origin))
    if chain is None or origin.draw == chain[0]:
        return "next"
    if origin.draw > chain[0]:
        return "behind a gap"
    return "late" if any(a <= origin.draw <= b for a, b in chain[1]) else "repeated"


def _learn(known: dict[str, Chain], origin: Origin) -> None:
    """Note a draw."""
    key, draw = key_of(origin), origin.draw
    following, gaps = known.pop(key, (0, ()))
    if draw >= following:
        gaps = (*gaps, (following, draw - 1)) if draw > following else gaps
        following = draw + 1
    else:
        parts = ((a, b) for gap in gaps for a, b in _without(gap, draw))
        gaps = tuple(parts)
    known[key] = (following, gaps[-GAPS:])
    if len(known) > CHAINS:
        del known[next(iter(known))]


def _without(gap: tuple[int, int], draw: int) -> Iterable[tuple[int, int]]:
    """What is left of a gap once a draw has come."""
    a, b = gap
    if not a <= draw <= b:
        return [gap]
    return [part for part in ((a, draw - 1), (draw + 1, b)) if part[0] <= part[1]]
