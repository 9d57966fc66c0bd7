"""A sampler's draws to a topic, while it samples, without holding it up.

`draw` copies a draw into a buffer and returns; a thread writes what is in it, idempotently, in order. A broker that is
away is waited for: draws gather in the buffer, and what becomes of the next one when that is full is a choice. Numbers
are counted chain by chain, so that a run that is done again with the same seeds has the same ones, and with `resume`
those that the topic has are left out.

The thread has the interpreter only when the sampler has not, so all of its work is the sampler's loss. It wakes up
seldom, and then writes many: of a draw it copies the numbers behind a header that is made once a chain, and hands them
to the client, whose own threads do not need the interpreter.
"""

import atexit
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self, TypeVar

import numpy as np

from stream_ocpdl.errors import BrokerError, ConfigError, DataError, OcpdlError
from stream_ocpdl.ocpdl.arrays import BigArray
from stream_ocpdl.sinks.buffer import Buffer, Lane, loads
from stream_ocpdl.sinks.together import SMALL, Kind, messages, negative
from stream_ocpdl.stream.client import TensorProducer
from stream_ocpdl.stream.drawing import SIGNED, Numbers, drawn
from stream_ocpdl.stream.kafka import Connection, partitions_of_topic
from stream_ocpdl.stream.messages import Draft, Draw, Tensor

T = TypeVar("T")

PATIENCE = 86_400.0
"""Seconds for which the thread waits for a broker: longer than anybody does."""

REST = 0.25
"""Seconds for which the thread lets draws gather: one that woke up for each would take the interpreter from the sampler
as often. It wakes up earlier if the buffer is half full.
"""


class DrawSink:
    """Writes the draws of a run to a topic.

        with DrawSink("localhost:9092", "weather.tensors", "run 7", to_tensor=np.exp) as sink:
            for point in sink.each(sampler):
                ...

    Parameters
    ----------
    to_tensor: makes the tensor of what a sampler calls a point; called in the sampler's thread. A ufunc of NumPy's (as
        np.exp) is called once for all points that come together.
    when_full: with "block" the sampler waits for room; with "drop" the draw is left out, and counted in `dropped`.
    room, queue_bytes: for how many draws, and how many bytes, there is room; the client behind has as many bytes again.
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
        self._tensor, self._drop, self._tuning, self._signed = to_tensor or _only, when_full == "drop", tuning, signed
        self._timeout = timeout
        connection = Connection(bootstrap_servers, timeout, options or {})
        self._there: dict[int, Numbers] = drawn(connection, topic, run_id) if resume else {}
        self._following: dict[int, int] = {}
        self._kinds: dict[tuple[int | range, bool], Kind] = {}
        self._waiting: Buffer[Kind] = Buffer(room, queue_bytes)
        self._lanes: dict[int, Lane[Kind]] = {}
        self._failed: OcpdlError | None = None
        self._over = False
        self._reason = ""
        self._closing = threading.Event()
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
        if self._over:
            self._raise_failed()
        lane, array = self._lanes.get(chain), None
        if lane is not None and not tuning and number is None and len(lane.arrays) < lane.room:
            try:
                array = np.array(self._tensor(point))
            except BaseException:
                self._next(chain, None)  # a draw that cannot be made has a number, too
                raise
            if array.dtype is lane.kind.dtype and array.shape == lane.kind.shape:
                lane.arrays.append(array)
                return True
        return self._draw(point, array, chain, tuning, number)

    def _draw(self, point: Any, array: BigArray | None, chain: int, tuning: bool, number: int | None) -> bool:
        """Queue a draw that is in no lane, and open one for those that follow."""
        following = self._next(chain, number)
        if self._there and following in self._there.get(chain, ()):
            return False
        if array is None:
            array = np.array(self._tensor(point))
        kind = self._kind(chain, array, array.shape, tuning)
        if not self._put(kind, (following,), array):
            return False
        if not (tuning or self._there) and number is None and array.nbytes <= SMALL and array.dtype.isbuiltin == 1:
            lane = self._waiting.open(kind, following + 1, array.nbytes)
            if lane is not None:
                self._lanes[chain] = lane
        return True

    def draws(self, points: Any, number: int | None = None) -> int:
        """Queue a draw of each of the chains from 0 on, such as an ensemble's walkers; how many will be written."""
        if self._over:
            self._raise_failed()
        chains: range | list[int] = range(len(points))
        numbers = [self._next(chain, number) for chain in chains]
        if self._there:
            chains = [chain for chain in chains if numbers[chain] not in self._there.get(chain, ())]
            numbers, points = [numbers[chain] for chain in chains], [points[chain] for chain in chains]
        if not chains:
            return 0
        arrays = self._tensors(points)
        shape = arrays.shape[1:]
        if isinstance(chains, range):
            kind = self._kind(chains, arrays, shape, False)
        else:  # some of an ensemble: others the next time
            drafts = [self._kind(chain, arrays, shape, False).drafts[0] for chain in chains]
            kind = Kind(arrays.dtype, shape, chains, drafts)
        return len(chains) if self._put(kind, numbers, arrays) else 0

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
        while self._waiting.pending and self._failed is None:
            self._waiting.many.set()
            if time.monotonic() > deadline:
                left = self._waiting.pending
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
            self._over = True

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

    def _next(self, chain: int, number: int | None) -> int:
        """The number of the next draw of a chain, which has no lane any more."""
        if lane := self._lanes.pop(chain, None):
            self._following[chain] = self._waiting.close(lane)
        if number is None:
            number = self._following.get(chain, 0)
        self._following[chain] = number + 1
        return number

    def _tensors(self, points: Any) -> BigArray:
        """The tensors of several points, copied."""
        if isinstance(self._tensor, np.ufunc):
            return np.asarray(self._tensor(points))
        if self._tensor is _only and isinstance(points, np.ndarray):
            return np.array(points)
        return np.array([self._tensor(point) for point in points])

    def _put(self, kind: Kind, numbers: Sequence[int], arrays: BigArray) -> bool:
        """Queue draws of different chains."""
        while not self._waiting.put(kind, numbers, arrays, 0.0 if self._drop else 0.5):
            if self._drop:
                self.dropped += len(numbers)
                return False
            self._raise_failed()
        return True

    def _kind(self, chains: int | range, arrays: BigArray, shape: tuple[int, ...], tuning: bool) -> Kind:
        """That of draws of this shape, of these chains or of one. What cannot be written is said here, and of the first
        draws whether they are negative; of others the thread finds that out, and the next draw says it.
        """
        kind = self._kinds.get((chains, tuning))
        if kind is None or kind.shape != shape or kind.dtype != arrays.dtype:
            tensor = Tensor(arrays.reshape(-1, *shape)[0], self._axes)
            every = chains if isinstance(chains, range) else (chains,)
            drafts = [Draft(Draw(tensor, self.run_id, chain, 0, tuning, self.sampler)) for chain in every]
            if not self._signed and negative(arrays):
                raise DataError(SIGNED)
            kind = self._kinds[chains, tuning] = Kind(arrays.dtype, shape, every, drafts)
        return kind

    def _write(self) -> None:
        """What the thread does."""
        partitions = 0
        while not (self._closing.is_set() and self._waiting.pending == 0):
            parcels = self._waiting.take(REST)
            try:
                partitions = partitions or (self._count() if parcels else 0)
                for load in loads(parcels):
                    self._producer.send_written(messages(load, partitions, self._signed))
                    self._waiting.done(load)
            except OcpdlError as error:
                self._failed, self._over = error, True
                return

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
            lost = self._waiting.pending
            raise type(self._failed)(f"{self._failed}; {lost} draws were not written") from self._failed


def _only(point: Any) -> Any:
    """The tensor that a point is, or has as its only part."""
    if not isinstance(point, Mapping):
        return point
    if len(point) != 1:
        raise DataError(f"a draw has {', '.join(map(str, point))}: say with to_tensor which tensor they make")
    return next(iter(point.values()))
