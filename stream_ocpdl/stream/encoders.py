"""The loop of an encoder: partitions come and go, their tensors are coded, codes and stands are committed together.

    1. A partition that the group gives to us, and whose shard has a dictionary: ask where the group stands in it, and
       read it from there. Asking may take long, if somebody died in the middle of a transaction: the others go on.
    2. Poll; code with the newest dictionaries, which are looked up for each batch; collect.
    3. After the commit interval, and once the transaction before is over: codes, dead letters and stands in one
       transaction, written while the next batches are coded.
    4. A partition that the group takes back: commit what was collected, and let it go, within the group's budget. One
       that is lost: nothing that was not committed counts.
    5. Told to stop: commit what was collected, let everything go.

It sees ports, not Kafka. Nothing is kept but where the group stands, so whoever is fenced, or finds that a partition is
lost, begins another life from there.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Literal, Protocol

from stream_ocpdl.errors import Fenced, InputLost
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.dictionaries import Dictionary
from stream_ocpdl.stream.encoding import Coded, Encoder
from stream_ocpdl.stream.messages import Output
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Codebox, Partitions, Said, Stand
from stream_ocpdl.stream.summing import Summing
from stream_ocpdl.stream.tenure import Ours, Term

PAUSE = 1.0
"""Seconds between two lives."""

WAITING = 2
"""Milliseconds of a poll while a dictionary is waited for."""

MOST = 16_000_000
"""Bytes of outputs that wait for their transaction."""


class EncoderWatch(Protocol):
    """Who watches an encoder."""

    def turned(self, partitions: Sequence[int], reading: int) -> None:
        """Its loop went round; it has these partitions, and reads so many of them."""
        ...

    def coded(self, coded: Coded, seconds: float) -> None:
        """It coded some records."""
        ...


class Unseen:
    """Nobody watches."""

    def turned(self, partitions: Sequence[int], reading: int) -> None:
        """Nothing."""

    def coded(self, coded: Coded, seconds: float) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class EncoderPorts:
    """The world of an encoder."""

    terms: Callable[[], Mapping[int, Term]]
    """The partitions that the group has given to us."""
    stands: Callable[[Sequence[int]], Mapping[int, Stand]]
    """Where the group stands in all of these; it may take long."""
    source: Callable[[], Partitions]
    outbox: Callable[[Ours], Codebox]
    newest: Callable[[], Mapping[int, Dictionary]]
    """The newest dictionary of each shard that has one."""
    aside: Callable[[Callable[[], Any]], "Future[Any]"]
    """How a call is made beside the coding."""
    now: Callable[[], float]
    stopping: Callable[[], bool]
    report: Callable[[str], None]
    watch: EncoderWatch = Unseen()  # noqa: RUF009  (it has no state)
    pause: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class EncoderPace:
    """How much at once, and how often."""

    batch: int = 256
    commit_interval_ms: int = 50
    poll_timeout_ms: int = 20


@dataclass(slots=True)
class Encoding:
    """One encoder among its like."""

    plan: Plan
    ports: EncoderPorts
    letters: bool = True
    """Whether what is refused becomes a dead letter: not where the learner reads the same topic, and writes it."""
    pace: EncoderPace = field(default_factory=EncoderPace)
    workers: Workers = SERIAL
    emit: Literal["codes", "partials", "both"] = "codes"

    def core(self) -> Encoder:
        """What codes, or what makes partials, from the beginning."""
        if self.plan.rounds is not None and self.emit != "codes":
            return Summing(self.plan, self.plan.rounds, self.emit == "both", self.workers)
        return Encoder(self.plan, self.pace.batch, self.letters, self.workers)

    def run(self) -> None:
        """Code until told to stop, one life after the other."""
        ports = self.ports
        while not ports.stopping():
            try:
                with closing(ports.source()) as source:
                    Life(self, source).run()
            except Fenced as error:
                ports.report(Said(f"{error}; going back to the last commit"))
                ports.pause(PAUSE)
            except InputLost as error:
                if self.plan.on_lost_input == "fail":
                    raise
                ports.report(Said(f"{error}; going on with what is there"))
                ports.pause(PAUSE)


class Life:
    """An encoder, from a stand to a fence."""

    def __init__(self, encoding: Encoding, source: Partitions) -> None:
        self._ports, self._pace, self._source = encoding.ports, encoding.pace, source
        self._core = encoding.core()
        self._ours = Ours()
        self._outbox = encoding.ports.outbox(self._ours)
        self._asked: tuple[list[int], Future[Mapping[int, Stand]]] | None = None
        self._reading: set[int] = set()
        self._outputs: list[Output] = []
        self._bytes = 0
        self._stands: dict[int, Stand] = {}
        self._pending: Future[int] | None = None

    def run(self) -> None:
        """Work until told to stop."""
        ports = self._ports
        try:
            self._outbox.open()
            while not ports.stopping():
                deadline = ports.now() + self._pace.commit_interval_ms / 1000
                while True:
                    self._part()
                    self._begin()
                    self._work()
                    awaited = self._core.eager and len(self._stands) > 0
                    due = (awaited or ports.now() >= deadline) and (self._pending is None or self._pending.done())
                    if due or ports.stopping() or self._bytes >= MOST:
                        break
                self._commit()  # 3
            self._commit()  # 5
            self._await()
        finally:
            for partition in list(self._ours.terms):
                self._ours.let_go(partition)

    def _begin(self) -> None:
        """1. Take what is new; read what is known."""
        if self._asked is not None:
            self._hear(*self._asked)
        if self._asked is not None:
            return
        known, terms = self._ports.newest(), self._ports.terms()
        fresh = sorted(p for p in terms if p not in self._ours.terms and self._core.shard_of(p) in known)
        for partition in fresh:
            self._ours.take(partition, terms[partition])
        if fresh:
            self._asked = fresh, self._ports.aside(partial(self._ports.stands, fresh))

    def _hear(self, partitions: Sequence[int], future: "Future[Mapping[int, Stand]]") -> None:
        if not future.done():
            return
        self._asked = None
        stands = {p: stand for p, stand in future.result().items() if p in self._ours.terms and p in partitions}
        for partition, stand in stands.items():
            self._core.begin(partition, stand)
            self._reading.add(partition)
        if stands:
            self._source.add({p: stand.offset for p, stand in stands.items()})
            self._stands |= stands  # a group that begins is to stand there, whoever has the partition next

    def _part(self) -> None:
        """4. Let go what the group takes back."""
        self._ours.check()
        ending = [p for p, term in self._ours.terms.items() if term.finishing]
        if ending:
            self._commit()
            self._await()
        for partition in ending:
            if partition in self._reading:
                self._reading.remove(partition)
                self._source.drop(partition)
                self._core.end(partition)
            self._ours.let_go(partition)

    def _work(self) -> None:
        """2. Code what there is."""
        ports = self._ports
        ports.watch.turned(sorted(self._ours.terms), len(self._reading))
        core = self._core
        timeout = 0.001 * min(self._pace.poll_timeout_ms, WAITING if core.waiting else inf)
        records = self._source.poll(self._pace.batch, timeout, core.hungry)
        if not records and not core.waiting:
            return
        began = ports.now()
        coded = core.feed(records, ports.newest())
        if not records and not coded.stands:
            return
        self._outputs += coded.outputs
        self._bytes += sum(len(output.value) for output in coded.outputs)
        self._stands |= coded.stands
        ports.watch.coded(coded, ports.now() - began)

    def _commit(self) -> None:
        """Begin to write what was collected, once what was begun before is written."""
        if self._pending is not None and (self._stands or self._pending.done()):
            self._await()
        if self._stands:
            call = partial(self._outbox.commit, self._outputs, self._stands)
            self._outputs, self._stands, self._bytes = [], {}, 0
            self._pending = self._ports.aside(call)

    def _await(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            try:
                pending.result()
            finally:
                del pending  # its error has our frames, and would keep the client
