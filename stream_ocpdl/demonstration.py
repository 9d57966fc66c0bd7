"""A demonstration: a stream with a known dictionary, the service that learns it, and how near it has come.

Several chains mix the true atoms, each so slowly (`ocpdl.synthetic`) that a few of them are heard for a hundred tensors
before others are: what comes one after the other is far from independent, which is the paper's setting. A producer
writes the tensors to a topic, and the service is the one that production runs.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import cycle
from typing import NamedTuple

import numpy as np

from stream_ocpdl.errors import Stopped
from stream_ocpdl.observe.board import Board, Shard
from stream_ocpdl.observe.watched import WatchedOutbox
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.matching import match_atoms
from stream_ocpdl.ocpdl.synthetic import SLOW, chain
from stream_ocpdl.stream.ahead import Ahead
from stream_ocpdl.stream.beside import aside
from stream_ocpdl.stream.checkpoint import NoStore
from stream_ocpdl.stream.client import TensorProducer
from stream_ocpdl.stream.kafka import Connection, KafkaSource, topic_id
from stream_ocpdl.stream.pipeline import Outcome, Pipeline
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Source
from stream_ocpdl.stream.service import Pace, Service
from stream_ocpdl.stream.topics import TopicJournal, TopicOutbox, Topics
from stream_ocpdl.stream.world import Ports

CHAINS = 4
"""How many chains there are."""

AHEAD = 256
"""Tensors that the producer may be ahead of the learner: a stand-in for a broker keeps few."""


TRAIL, RECENT = 2000, 200
"""Steps of which something is kept: of all times, and the last ones."""


def tensors(truth: Sequence[Array], seed: int) -> Iterator[tuple[int, BigArray]]:
    """Endless tensors (I₁…Iₙ), each with the number of its chain."""
    return in_turn([chain(truth, seed * CHAINS + k, mixing=SLOW) for k in range(CHAINS)])


def in_turn(chains: Sequence[Iterator[BigArray]]) -> Iterator[tuple[int, BigArray]]:
    """What chains give, each with the number of its chain; they take turns."""
    for k in cycle(range(len(chains))):
        yield k, next(chains[k])


class Mark(NamedTuple):
    """What is kept of a step."""

    t: int
    loss: float
    """Before learning."""
    surrogate: float
    movements: tuple[float, ...]
    radii: tuple[float, ...]


@dataclass(slots=True)
class Seen(Shard):
    """What a spectator sees: the numbers of an operator, the dictionary, and the way to it."""

    loadings: Sequence[Array] = ()
    trail: list[Mark] = field(default_factory=list)
    """Some of all steps, evenly."""
    every: int = 1
    codes: deque[Array] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Of the last steps."""

    def stepped(self, pipeline: Pipeline, outcome: Outcome, seconds: float) -> None:
        """It made a step."""
        Shard.stepped(self, pipeline, outcome, seconds)
        state, step = pipeline.progress.state, outcome.step
        self.loadings = state.loadings
        if step is None:
            return
        self.codes.append(np.array(step.codes))  # the learner's own memory is used again
        if step.t % self.every == 0:
            self.trail.append(Mark(step.t, step.prequential_loss, step.surrogate, step.movements, step.radii))
            if len(self.trail) > TRAIL:
                self.trail, self.every = self.trail[1::2], 2 * self.every


@dataclass(slots=True)
class Demonstration:
    """A producer and a service, each in a thread, until so many tensors are learned or it is told to stop."""

    connection: Connection
    topics: Topics
    plan: Plan
    stream: Iterator[tuple[int, BigArray]]
    count: int
    rate: float
    """Tensors a second."""
    board: Board
    truth: Sequence[Array] = ()
    called: Callable[[Connection, str], str] = topic_id
    over: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    """What a spectator has seen of the losses, by step."""
    shard: Seen = field(init=False)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin."""
        self.shard = Seen(self.plan, self.board.now)
        self.shard.turned()
        self.board.shards[0], self.board.starting = self.shard, None
        for work in (self._serve, self._produce):
            self._threads.append(threading.Thread(target=self._guarded, args=(work,), daemon=True))
            self._threads[-1].start()

    @property
    def done(self) -> bool:
        """Whether it is over, or something went wrong."""
        return self.over.is_set() or self.shard.N >= self.count or bool(self.errors)

    def end(self, patience: float = 10.0) -> None:
        """Stop both, and raise what went wrong."""
        self.over.set()
        for thread in self._threads:
            thread.join(patience)
        if self.errors:
            raise self.errors[0]

    def matched(self) -> dict[int, tuple[int, float]]:
        """For each true atom the learned one that is nearest to it, one to one, and their cosine."""
        if not self.shard.loadings or not self.truth:
            return {}
        found = match_atoms(self.truth, self.shard.loadings, threshold=1e-9)
        return {int(r): (int(s), float(c)) for (r, s), c in zip(found.pairs, found.cosines, strict=True)}

    def matches(self) -> list[float]:
        """The cosines of all true atoms."""
        found = self.matched()
        return [found.get(r, (0, 0.0))[1] for r in range(self.truth[0].shape[1])] if found else []

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Stopped:
            return  # it was told to
        except BaseException as error:
            self.errors.append(error)

    def _produce(self) -> None:
        """Write tensors at the rate, never further ahead of the learner than may be; the first once it is ready."""
        options = self.connection.options
        while self.shard.doing != "running" and not self.done:
            time.sleep(0.01)
        began = time.monotonic()
        with TensorProducer(self.connection.bootstrap_servers, self.topics.input, options=options) as producer:
            for sent, (chain, X) in enumerate(self.stream):
                due = began + sent / self.rate
                while (time.monotonic() < due or sent - self._done_with() >= AHEAD) and not self.done:
                    time.sleep(0.002)
                if self.done or sent >= self.count:
                    return
                producer.send(X.astype(np.float32), key=b"chain %d" % chain)

    def _done_with(self) -> int:
        """Tensors that the learner has, or has refused."""
        return self.shard.N + self.shard.refused.total()

    def _serve(self) -> None:
        """The service, with everything that it has in production but the election and checkpoints."""
        with closing(
            KafkaSource(self.connection, self.topics.input, self.plan.model, counting=True, called=self.called)
        ) as source:
            self.shard.statistics = lambda: source.statistics
            outbox = TopicOutbox(self.connection, self.topics, self.plan.model, source)
            with closing(Ahead(source)) as ahead:
                Service(self.plan, self._ports(ahead, outbox), Pace(commit_interval_ms=100)).run()

    def _ports(self, source: Source, outbox: TopicOutbox) -> Ports:
        return Ports(
            source=source,
            journal=TopicJournal(self.connection, self.topics.journal),
            outbox=WatchedOutbox(outbox, self.shard),
            store=NoStore(),
            now=time.monotonic,
            stopping=lambda: self.done,
            report=lambda _: None,
            aside=aside,
            watch=self.shard,
        )
