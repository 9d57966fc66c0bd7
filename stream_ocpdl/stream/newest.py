"""The newest dictionary of each shard, followed in a thread: whoever codes has a reference, and looks at it each time.

A dictionary that comes is read and made ready beside the coding; then the reference is another. So nobody waits, and
the old one is used for at most the batch that is being coded.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self

from stream_ocpdl.errors import DecodeError, OcpdlError
from stream_ocpdl.stream.assembly import whole
from stream_ocpdl.stream.dictionaries import Dictionary
from stream_ocpdl.stream.kafka import Connection, follow, newest_starts
from stream_ocpdl.stream.messages import Record, Snapshot
from stream_ocpdl.stream.plan import Plan

log = logging.getLogger("stream_ocpdl.newest")

Follow = Callable[[Callable[[], bool]], Iterator[Record]]
"""The records of the snapshots topic from the newest dictionaries on, until told to end."""

PATIENCE = 2.0
"""Seconds to wait for the thread when the process ends."""


class Newest:
    """Follows the dictionaries of a model."""

    def __init__(self, plan: Plan, records: Follow, came: Callable[[Dictionary], None] = lambda _: None) -> None:
        """`came` is called in the thread, once a dictionary is in use."""
        self._plan, self._records, self._came = plan, records, came
        self._found: Mapping[int, Dictionary] = {}
        self._over = False
        self._failed: BaseException | None = None
        self.wrong: Mapping[int, str] = {}
        """Why the newest dictionary of a shard cannot be used, if it cannot; the one before it is, if there is one."""
        self._thread = threading.Thread(target=self._follow, name="dictionaries", daemon=True)

    def __call__(self) -> Mapping[int, Dictionary]:
        """The newest of each shard; raises if they can no longer be followed."""
        if self._failed is not None:
            raise self._failed
        return self._found

    def __enter__(self) -> Self:
        """Begin to follow."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Follow no more."""
        self._over = True
        self._thread.join(PATIENCE)

    def _follow(self) -> None:
        try:
            for record in whole(self._records(lambda: self._over)):
                self.take(record)
                if self._over:
                    return
        except BaseException as error:  # whoever codes is to hear of it
            self._failed = error

    def take(self, record: Record) -> None:
        """Use the dictionary in a record, if it is one of this model."""
        try:
            snapshot = Snapshot.from_bytes(record.value)
        except DecodeError as error:
            log.warning("a snapshot cannot be read: %s", error, extra={"offset": record.position.offset})
            return
        shard = snapshot.version.shard
        if snapshot.version.model != self._plan.model or shard >= self._plan.shards:
            log.warning("the snapshot %s is of another model", snapshot.version)
            return
        try:
            found = Dictionary.of(self._plan, snapshot)
        except OcpdlError as error:
            log.warning("%s", error)
            self.wrong = {**self.wrong, shard: str(error)}
            return
        self._found = {**self._found, shard: found}
        self.wrong = {s: why for s, why in self.wrong.items() if s != shard}
        self._came(found)


def followed(connection: Connection, topic: str, shards: int) -> Follow:
    """The snapshots of a topic: of each shard the newest that is there, and those that are still to come."""

    def records(ended: Callable[[], bool]) -> Iterator[Record]:
        firsts = [(b"%d" % shard, b"%d:0" % shard) for shard in range(shards)]
        return follow(connection, topic, {0: newest_starts(connection, topic, firsts)}, ended)

    return records
