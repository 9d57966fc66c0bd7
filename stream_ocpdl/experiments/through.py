"""An experiment streamed through a broker: a producer, and the service of production, on topics of its own."""

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from stream_ocpdl.demonstration import Demonstration
from stream_ocpdl.errors import OcpdlError
from stream_ocpdl.observe.board import Board
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.reshape import Layout
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.kafka import Connection, create_topics, delete_topics, reach
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.topics import Topics

PATIENCE = 10.0
"""Seconds for a broker to answer."""

FAST = 1e9
"""Tensors a second: as fast as they are taken."""


@dataclass(frozen=True)
class Streamed:
    """What the service has learned, and how long that took by the wall clock."""

    loadings: list[Array]
    seconds: float


def reached(servers: str) -> Connection:
    """A broker that answers."""
    connection = Connection(servers, patience=PATIENCE)
    reach(connection)
    return connection


def streamed(
    servers: str, layout: Layout, problem: Problem, minibatches: Iterable[BigArray], count: int | None = None
) -> Streamed:
    """Send all tensors to a topic with one partition, so that they are learned in their order; topics are removed.

    Who says how many tensors there are may make them when they are sent: no more of them are kept here.
    """
    connection, model = reached(servers), f"bench-{uuid.uuid4().hex[:8]}"
    topics = Topics.of(model, f"{model}.tensors")
    made: dict[str, tuple[int, dict[str, str]]] = {topics.input: (1, {}), **topics.outputs(1)}
    sent = list(minibatches) if count is None else minibatches
    count = sum(map(len, sent)) if count is None else count
    plan = Plan(model, problem, Batching(problem.batch_size), topic=topics.input, layout=layout)
    create_topics(connection, made)
    try:
        shown = Demonstration(connection, topics, plan, _each(sent), count, FAST, Board(model, 1))
        began = time.monotonic()
        shown.start()
        try:
            while not shown.done:
                time.sleep(0.02)
        finally:
            shown.end()
        if shown.shard.N != count:
            raise OcpdlError(f"{shown.shard.N} of {count} tensors were learned")
        return Streamed([np.array(U) for U in shown.shard.loadings], time.monotonic() - began)
    finally:
        delete_topics(connection, list(made))


def _each(minibatches: Iterable[BigArray]) -> Iterator[tuple[int, BigArray]]:
    for X in minibatches:
        yield from ((0, tensor) for tensor in X)
