"""What a model will take: memory, messages, checkpoints, partitions; and how fast this machine learns it, by learning.

The sizes are those of the arrays that are kept (`State`, a minibatch, records that wait); a step has some working
memory beside them, which is in the peak that is measured. An answer to *will it fit* before anything runs.
"""

import time
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil, prod
from pathlib import Path

import numpy as np

from stream_ocpdl.ocpdl.learner import Learner, warm_up
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.synthetic import chain, truth
from stream_ocpdl.ocpdl.workers import Workers
from stream_ocpdl.stream.ahead import MOST
from stream_ocpdl.stream.batching import PLENTY
from stream_ocpdl.stream.checkpoint import KEPT
from stream_ocpdl.stream.kafka.connection import LARGEST
from stream_ocpdl.stream.messages import CHUNK, Code, Position, Tensor, Version

BROKER_DEFAULT = 1_048_588
"""Bytes that a record may have at a broker whose message.max.bytes nobody has set."""

QUEUE = 65_536 * 1024
"""Bytes that the client of the input fetches ahead."""

PARTITION_RATE = 10_000_000
"""Bytes a second that a partition takes without any trouble."""

BUSY = 0.7
"""The share of its time that a shard may learn, so that it can catch up."""

MATERIAL = 200_000_000
"""Bytes of minibatches that are made to learn from."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of everything."""

    B: int
    A: int
    loadings: int
    minibatch: int
    records: int
    """Messages that wait: in the client, read ahead, for their minibatch."""
    message: int
    pieces: int
    """Records of one message."""
    code: int
    snapshot: int
    checkpoint: int
    checkpoints: int
    """Of all that are kept."""

    @property
    def learner(self) -> int:
        """State and minibatch, without the working memory of a step."""
        return self.B + self.A + self.loadings + self.minibatch

    @classmethod
    def of(cls, problem: Problem, partitions: int = 1, dtype: str = "<f8") -> "Sizes":
        """Of a model whose tensors are written with this dtype."""
        M, R, item = prod(problem.shape), problem.rank, np.dtype(problem.dtype).itemsize
        header = len(Tensor(np.zeros(1, dtype)).to_bytes()) - np.dtype(dtype).itemsize
        message = header + M * np.dtype(dtype).itemsize
        share = 2 * problem.batch_size // partitions + 1
        loadings, A, B = 8 * R * sum(problem.shape), 8 * R * R, item * R * M
        return cls(
            B=B,
            A=A,
            loadings=loadings,
            minibatch=item * problem.batch_size * M,
            records=partitions * max(PLENTY, share * message) + MOST + QUEUE,
            message=message,
            pieces=ceil(message / CHUNK),
            code=len(Code(Version("model", 0), 1, Position(0, 0), 0.0, np.zeros(R)).to_bytes()),
            snapshot=loadings,
            checkpoint=loadings + A + B,
            checkpoints=KEPT * (loadings + A + B),
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """A setting of a broker or topic that has to be at least so large."""

    where: str
    setting: str
    least: int
    why: str


def limits(sizes: Sizes) -> list[Limit]:
    """What must be raised beyond a broker's defaults."""
    found = [
        Limit("MODEL.journal", "max.message.bytes", LARGEST, "its records stay whole; topics create sets it"),
    ]
    if sizes.message > BROKER_DEFAULT:
        why = "only if the producers write another format than the native one, which goes in pieces"
        found.append(Limit("the input", "max.message.bytes", ceil(sizes.message * 1.01), why))
    return found


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a machine learns."""

    steps: int
    seconds: float
    """Of one step, the median."""
    peak: int | None
    """Bytes of this process at its peak, all in all; none if the machine does not tell."""


def calibrate(problem: Problem, workers: Workers, seconds: float) -> Pace:
    """Learn minibatches for so long: at least three, the first of which does not count."""
    warm_up(problem, workers)
    size = problem.batch_size * prod(problem.shape) * 8
    loadings = truth(problem.shape, problem.rank, problem.seed)
    count = max(1, min(8, MATERIAL // size))
    tensors = chain(loadings, problem.seed)
    batches = [np.stack(list(islice(tensors, problem.batch_size))) for _ in range(count)]
    learner, took = Learner(problem, workers=workers, in_place=True), []
    end = time.monotonic() + seconds
    for X in cycle(batches):
        began = time.perf_counter()
        learner.step(X)
        took.append(time.perf_counter() - began)
        if len(took) > 2 and time.monotonic() > end:
            break
    return Pace(len(took), float(np.median(took[1:])), status("VmHWM"))


def status(name: str, path: Path = Path("/proc/self/status")) -> int | None:
    """A number of bytes as Linux has it: of this process, or with another path of the machine."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)


def available() -> int | None:
    """Bytes of memory that can be had."""
    return status("MemAvailable", Path("/proc/meminfo"))


@dataclass(frozen=True, slots=True)
class Advice:
    """How many shards and partitions a rate wants."""

    load: float | None
    """The share of its time that one shard would learn; none if the pace is not known."""
    shards: int
    partitions: int


def advise(problem: Problem, sizes: Sizes, rate: float, pace: Pace | None) -> Advice:
    """For so many tensors a second.

    >>> problem = Problem(shape=(10, 10), rank=2, batch_size=10)
    >>> advise(problem, Sizes.of(problem), 1000.0, Pace(9, 0.01, None))
    Advice(load=1.0, shards=2, partitions=2)
    """
    load = None if pace is None else rate / problem.batch_size * pace.seconds
    shards = 1 if load is None else max(1, ceil(load / BUSY))
    return Advice(load, shards, max(shards, ceil(rate * sizes.message / PARTITION_RATE)))
