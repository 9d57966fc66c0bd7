"""A sampler's draws to a topic, while it samples, without holding it up.

`draw` copies a draw into a queue and returns; a thread writes what is in it, idempotently, in order. A broker that is
away is waited for: draws gather in the queue, and what becomes of the next one when that is full is a choice. Numbers
are counted chain by chain, so that a run that is done again with the same seeds has the same ones, and with `resume`
those that the topic has are left out.
"""

import atexit
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self, TypeVar

import numpy as np

from stream_ocpdl.errors import BrokerError, ConfigError, DataError, OcpdlError
from stream_ocpdl.stream.client import TensorProducer
from stream_ocpdl.stream.drawing import Numbers, drawn, nonnegative
from stream_ocpdl.stream.kafka import Connection, partitions_of_topic
from stream_ocpdl.stream.messages import Draw, Tensor

T = TypeVar("T")

PATIENCE = 86_400.0
"""Seconds for which the thread waits for a broker: longer than anybody does."""

REST = 0.05
"""Seconds for which the thread lets draws gather: one that woke up for each would take the interpreter from the sampler
as often. It wakes up earlier if the queue is half full.
"""


class DrawSink:
    """Writes the draws of a run to a topic.

        with DrawSink("localhost:9092", "weather.tensors", "run 7", to_tensor=np.exp) as sink:
            for point in sink.each(sampler):
                ...

    Parameters
    ----------
    to_tensor: makes the tensor of what a sampler calls a point; called in the sampler's thread.
    when_full: with "block" the sampler waits for room; with "drop" the draw is left out, and counted in `dropped`.
    room, queue_bytes: how many draws the queue has room for, and how many bytes of them the client behind it.
    tuning: whether draws of tuning are written as well: they come from a kernel that adapts, and (A1) does not hold.
    signed: whether tensors may have numbers below zero, for a model with signed constraints.
    resume: read which draws of the run the topic has, and leave them out.
    timeout: how long `flush`, and leaving the sink, wait for the broker.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        run_id: str,
        *,
        to_tensor: Callable[[Any], Any] | None = None,
        when_full: Literal["block", "drop"] = "block",
        room: int = 10_000,
        queue_bytes: int = 64_000_000,
        tuning: bool = False,
        signed: bool = False,
        resume: bool = False,
        sampler: str | None = None,
        axes: Sequence[str] | None = None,
        timeout: float = 60.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if when_full not in ("block", "drop"):
            raise ConfigError(f"when_full must be 'block' or 'drop', not {when_full!r}")
        if room < 1:
            raise ConfigError(f"room must be at least 1, not {room}")
        self.topic, self.run_id, self.dropped = topic, run_id, 0
        self.sampler, self._axes = sampler, None if axes is None else tuple(axes)
        self._to_tensor, self._drop, self._tuning, self._signed = to_tensor, when_full == "drop", tuning, signed
        self._timeout = timeout
        connection = Connection(bootstrap_servers, timeout, options or {})
        self._there: dict[int, Numbers] = drawn(connection, topic, run_id) if resume else {}
        self._following: dict[int, int] = {}
        self._waiting: queue.Queue[Draw] = queue.Queue(room)
        self._failed: OcpdlError | None = None
        self._reason = ""
        self._closing = threading.Event()
        self._many, self._half = threading.Event(), max(1, room // 2)
        self._expected: list[Callable[[], None]] = []
        self._producer = TensorProducer(
            bootstrap_servers, topic, timeout=PATIENCE, queue_bytes=queue_bytes, options=options
        )
        self._connection = connection
        self._thread = threading.Thread(target=self._write, name="draws", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def draw(self, point: Any, chain: int = 0, tuning: bool = False, number: int | None = None) -> bool:
        """Queue a draw; whether it will be written. Without a number it is the next one of its chain."""
        if tuning and not self._tuning:
            return False
        self._raise_failed()
        if number is None:
            number = self._following.get(chain, 0)
        self._following[chain] = number + 1
        if number in self._there.get(chain, ()):
            return False
        array = np.array(self._tensor(point))
        if not self._signed:
            nonnegative(array)
        return self._put(Draw(Tensor(array, self._axes), self.run_id, chain, number, tuning, self.sampler))

    def each(self, draws: Iterable[T], chain: int = 0) -> Iterator[T]:
        """The draws of any iterator, each queued on its way."""
        for point in draws:
            self.draw(point, chain)
            yield point

    def expect(self, check: Callable[[], None]) -> None:
        """Something to be asked when the sink is left in good order."""
        self._expected.append(check)

    def flush(self) -> None:
        """Wait until everything queued is at the broker; a BrokerError after `timeout` seconds."""
        deadline = time.monotonic() + self._timeout
        while self._waiting.unfinished_tasks and self._failed is None:
            if time.monotonic() > deadline:
                left = self._waiting.unfinished_tasks
                raise BrokerError(f"{left} draws and more could not be written in {self._timeout:g} s{self._reason}")
            time.sleep(0.005)
        self._raise_failed()
        self._producer.flush(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        """Flush, and end the thread. May be called again."""
        if self._closing.is_set():
            return
        try:
            self.flush()
        finally:
            atexit.unregister(self.close)
            self._closing.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with suppress(OcpdlError):  # what went wrong before is the news
                self.close()
            return
        self.close()
        for check in self._expected:
            check()

    def _tensor(self, point: Any) -> Any:
        if self._to_tensor is not None:
            return self._to_tensor(point)
        if isinstance(point, Mapping):
            if len(point) != 1:
                raise DataError(f"a draw has {', '.join(map(str, point))}: say with to_tensor which tensor they make")
            return next(iter(point.values()))
        return point

    def _put(self, draw: Draw) -> bool:
        while True:
            try:
                self._waiting.put(draw, not self._drop, 0.5)
            except queue.Full:
                if self._drop:
                    self.dropped += 1
                    return False
                self._raise_failed()
            else:
                if self._waiting.qsize() >= self._half:
                    self._many.set()
                return True

    def _write(self) -> None:
        """What the thread does."""
        partitions = 0
        while not (self._closing.is_set() and self._waiting.empty()):
            try:
                draw = self._waiting.get_nowait()
            except queue.Empty:
                self._many.wait(REST)
                self._many.clear()
                continue
            try:
                partitions = partitions or self._count()
                self._producer.send_draw(draw, partition=draw.chain % partitions)
            except OcpdlError as error:
                self._failed = error
                return
            self._waiting.task_done()

    def _count(self) -> int:
        """The partitions of the topic, once a broker answers."""
        while True:
            try:
                return len(partitions_of_topic(self._connection, self.topic))
            except BrokerError as error:
                self._reason = f": {error}"
                if self._closing.wait(0.5):
                    raise

    def _raise_failed(self) -> None:
        if self._closing.is_set():
            raise ConfigError("the sink is closed")
        if self._failed is not None:
            lost = self._waiting.unfinished_tasks
            raise type(self._failed)(f"{self._failed}; {lost} draws were not written") from self._failed
