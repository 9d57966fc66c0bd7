"""A topic filled from a source, each tensor once, also if the run is cut short and goes on later.

Every tensor of a run carries a header with the name of the run and its number; of a tensor in pieces the last piece
does, so that what has the header is whole. Whoever goes on reads which numbers are there, and writes the others.
Numbers go round the partitions: the order of the source is that in which a model takes one record of each in turn.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from stream_ocpdl.stream.client import TensorProducer
from stream_ocpdl.stream.kafka import Connection, partitions_of_topic, read_committed
from stream_ocpdl.stream.topics import nothing

MARK = "ocpdl-run"


@dataclass(frozen=True, slots=True)
class Filling:
    """A run that fills a topic."""

    producer: TensorProducer
    partitions: int
    run: str
    key: bytes | None = None
    """Keeps all tensors in order in one partition."""
    axes: tuple[str, ...] | None = None

    def write(self, tensors: Iterable[Any], there: frozenset[int] = frozenset()) -> Iterator[tuple[int, bool]]:
        """The number of each tensor, and whether it was written: those that are there already are not."""
        for number, tensor in enumerate(tensors):
            fresh = number not in there
            if fresh:
                partition = -1 if self.key else number % self.partitions
                mark = ((MARK, f"{self.run}:{number}".encode()),)
                self.producer.send(tensor, self.key, self.axes, partition=partition, headers=mark)
            yield number, fresh


def written(connection: Connection, topic: str, run: str, seen: Callable[[], None] = nothing) -> frozenset[int]:
    """The numbers of a run that a topic has; all of the topic is read, and `seen` called for every record."""
    begin = f"{run}:".encode()
    found = set()
    for partition in partitions_of_topic(connection, topic):
        for record in read_committed(connection, topic, partition):
            seen()
            for name, value in record.headers:
                if name == MARK and value is not None and value.startswith(begin):
                    number = value[len(begin) :]
                    if number.isdigit() and len(number) < 19:
                        found.add(int(number))
    return frozenset(found)
