"""What is known of an encoder at this moment, and its metrics.

As on the board of a learner a writer stores a number and goes on, and who asks does the rest.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.core import Metric

from stream_ocpdl.observe.board import Durations
from stream_ocpdl.observe.catalogue import ENCODERS, ERRORS
from stream_ocpdl.observe.metrics import add, family_of
from stream_ocpdl.observe.statistics import Client
from stream_ocpdl.stream.dictionaries import Dictionary
from stream_ocpdl.stream.encoding import Coded
from stream_ocpdl.stream.messages import Output
from stream_ocpdl.stream.ports import Codebox, Stand
from stream_ocpdl.stream.tenure import Term

ROLES = ("starting", "standby", "encoder")


class Membership(Protocol):
    """The place of an encoder among the others."""

    terms: dict[int, Term]
    rebalances: int

    @property
    def joined(self) -> bool:
        """Whether the group knows us."""
        ...


class EncoderBoard:
    """One encoder. It is an `EncoderWatch`."""

    def __init__(self, model: str, shards: int, topic: str, now: Callable[[], float] = time.monotonic) -> None:
        """`topic` is where dictionaries come from."""
        self.model, self._shards, self._topic, self.now = model, shards, topic, now
        self.starting: str | None = "starting"
        self.missing: Sequence[str] = ()
        self.address: str | None = None
        self.group: Membership | None = None
        self.newest: Callable[[], Mapping[int, Dictionary]] = dict
        self.wrong: Callable[[], Mapping[int, str]] = dict
        """Why the newest dictionary of a shard cannot be used."""
        self.statistics: Callable[[], str] = lambda: ""
        self.beats = {"the process": now()}
        self.held: Sequence[int] = ()
        self.reading = 0
        self.tensors = 0
        self.partials = 0
        self.refused: Counter[str] = Counter()
        self.together = 1
        """Tensors of a partition that are coded together."""
        self.swaps: Counter[int] = Counter()
        self.came_at: dict[int, float] = {}
        """When the dictionary of a shard came into use."""
        self.stands: dict[int, Stand] = {}
        self.coding, self.committing = Durations(), Durations()

    # ── who works writes ───────────────────────────────────────────────────────────────────────────────────────

    def went_round(self) -> None:
        """The loop of the process did."""
        self.beats["the process"] = self.now()

    def turned(self, partitions: Sequence[int], reading: int) -> None:
        """The loop of the encoder did."""
        self.beats["the encoder"] = self.now()
        self.held, self.reading = partitions, reading

    def coded(self, coded: Coded, seconds: float) -> None:
        """It coded some records."""
        self.tensors += coded.tensors
        self.partials += coded.partials
        self.refused.update(coded.refused)
        self.coding.add(seconds)

    def came(self, dictionary: Dictionary) -> None:
        """Another dictionary is in use."""
        self.swaps[dictionary.version.shard] += 1
        self.came_at[dictionary.version.shard] = self.now()

    # ── who asks reads ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def role(self) -> str:
        """What this process is at the moment."""
        if self.starting is not None or self.group is None or not self.group.joined:
            return "starting"
        return "encoder" if self.group.terms else "standby"

    def stuck(self, limit: float) -> list[str]:
        """The loops that did not go round for so many seconds."""
        now = self.now()
        return [f"{name} is stuck for {now - t:.0f} s" for name, t in list(self.beats.items()) if now - t > limit]

    def unready(self) -> list[str]:
        """Why it is not ready; nothing if it is. One without a partition is: it is there for when another dies."""
        reasons = [f"the topic {name} is missing" for name in self.missing]
        if self.starting is not None:
            return [*reasons, self.starting]
        if self.role == "starting":
            reasons.append("waiting for the group to share out the partitions")
        return reasons + [self._without(shard) for shard in self.waiting()]

    def waiting(self) -> list[int]:
        """The shards of our partitions that have no dictionary; all of them, if there is none at all."""
        known, ours = self._known(), list(self.group.terms) if self.group else []
        needed = {p % self._shards for p in ours} if known else set(range(self._shards))
        return sorted(needed - set(known))

    def _without(self, shard: int) -> str:
        wrong = self.wrong().get(shard)
        return wrong or f"waiting for the first dictionary of shard {shard} on {self._topic}"

    def _known(self) -> Mapping[int, Dictionary]:
        try:
            return self.newest()
        except Exception:  # who codes says what is wrong
            return {}

    def samples(self) -> dict[str, list[tuple[tuple[str, ...], Any]]]:
        """All numbers, by the names of the catalogue."""
        ours = list(self.group.terms) if self.group else []
        versions = [d.version for d in self._known().values()]
        ends = Client.read(self.statistics()).ends
        lag = {p: max(end - self.stands[p].reached, 0) for p, end in ends.items() if p in self.stands and p in ours}
        return {
            "ocpdl_encoder_role": [((name,), float(self.role == name)) for name in ROLES],
            "ocpdl_encoder_tensors": [((), self.tensors)],
            "ocpdl_encoder_partials": [((), self.partials)],
            "ocpdl_encoder_round": [
                ((str(p),), s.round) for p, s in sorted(self.stands.items()) if s.round and p in ours
            ],
            "ocpdl_encoder_refused": [((name,), n) for name, n in (dict.fromkeys(ERRORS, 0) | self.refused).items()],
            "ocpdl_encoder_dictionary_step": [((str(v.shard),), v.t) for v in versions],
            "ocpdl_encoder_dictionary_epoch": [((str(v.shard),), v.epoch) for v in versions],
            "ocpdl_encoder_dictionary_age_seconds": [
                ((str(s),), self.now() - came) for s, came in sorted(self.came_at.items())
            ],
            "ocpdl_encoder_dictionaries": [((str(s),), n) for s, n in sorted(self.swaps.items())],
            "ocpdl_encoder_batch_size": [((), self.together)],
            "ocpdl_encoder_batch_seconds": [((), self.coding)],
            "ocpdl_encoder_commit_seconds": [((), self.committing)],
            "ocpdl_encoder_partitions": [((), len(ours))],
            "ocpdl_encoder_waiting_partitions": [((), max(len(ours) - self.reading, 0))],
            "ocpdl_encoder_lag_records": [((str(p),), n) for p, n in sorted(lag.items())],
            "ocpdl_encoder_rebalances": [((), self.group.rebalances if self.group else 0)],
        }

    def families(self) -> Iterator[Metric]:
        """A scrape."""
        found = self.samples()
        for name, kind, text, labels in ENCODERS:
            family = family_of(name, kind, text, labels)
            for own, value in found[name]:
                add(family, [self.model, *own], value)
            yield family

    def status(self) -> dict[str, Any]:
        """The same as JSON has it, without what has buckets."""
        numbers = {
            name.removeprefix("ocpdl_encoder_"): {"/".join(own): value for own, value in samples}
            for name, samples in self.samples().items()
            if name not in ("ocpdl_encoder_role", "ocpdl_encoder_batch_seconds", "ocpdl_encoder_commit_seconds")
        }
        told = {name: found.get("", found) for name, found in numbers.items()}
        return {"model": self.model, "role": self.role, "reasons": self.unready(), **told}


class WatchedCodebox:
    """A way out whose commits are counted."""

    def __init__(self, outbox: Codebox, board: EncoderBoard) -> None:
        self._outbox, self._board = outbox, board

    def open(self) -> None:
        """Make ready."""
        self._outbox.open()

    def commit(self, outputs: Sequence[Output], stands: Mapping[int, Stand]) -> int:
        """One transaction."""
        board = self._board
        began = board.now()
        offset = self._outbox.commit(outputs, stands)
        board.committing.add(board.now() - began)
        board.stands |= stands
        return offset
