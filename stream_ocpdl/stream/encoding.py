"""Records in, codes out, nothing learned: the core of an encoder. No I/O, no clock, and nothing that a restart would
have to know but where it stands.

An encoder has some partitions for a while. Of each it knows up to where all is done (`reached`); pieces of a message
that is not whole are read again after a restart, from the first of them on (`offset`). What becomes of a message in
pieces follows from the records from its first piece on, so that what comes by again below `reached` was done with
before, to the last refusal, and is passed over.

    begin(partition, stand)  →  feed(records, dictionaries)  →  what belongs in one transaction
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from stream_ocpdl.errors import DataError, LineageError, NumericError, OcpdlError
from stream_ocpdl.ocpdl.anomaly import Senses, judge
from stream_ocpdl.ocpdl.entries import AnyBatch
from stream_ocpdl.ocpdl.results import Coding
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.dictionaries import Dictionary
from stream_ocpdl.stream.draws import TuningDraw
from stream_ocpdl.stream.intake import Intake
from stream_ocpdl.stream.items import Item, refuse
from stream_ocpdl.stream.messages import Output, Record, Tensor, Version
from stream_ocpdl.stream.outputs import codes_of, dead_letter
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Stand
from stream_ocpdl.stream.refusals import Tally, merged

MOST = 64_000_000
"""Bytes of tensors that are coded at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """What some records gave, all of which belongs in one transaction."""

    outputs: tuple[Output, ...]
    stands: Mapping[int, Stand]
    """Where the partitions stand after it."""
    tensors: int = 0
    refused: tuple[str, ...] = ()
    """The kinds of the errors of those that were refused."""
    versions: tuple[Version, ...] = ()
    """The dictionaries that were used, one for each minibatch."""
    partials: int = 0
    """How many were made of them."""


class Reader:
    """One partition."""

    def __init__(self, plan: Plan, partition: int, stand: Stand) -> None:
        self._intake = Intake(plan.format, plan.shape, [partition])
        self._partition, self._expected, self._reached = partition, stand.offset, stand.reached

    def read(self, record: Record) -> Item | None:
        """What a record brings; nothing if that was done with before."""
        offset = record.position.offset
        if offset < self._expected:
            raise LineageError(f"partition {self._partition} delivered offset {offset} again: a fault of the client")
        self._expected = offset + 1
        item = self._intake.read(record, 0.0)
        return None if offset < self._reached else item

    @property
    def stand(self) -> Stand:
        """Where it stands, if all that was read is done."""
        return self.stand_at(max(self._reached, self._expected))

    def stand_at(self, reached: int, number: int = 0) -> Stand:
        """Where it stands, if all below an offset is done, in so many rounds; none that is asked for may lie before."""
        waiting = self._intake.waiting({self._partition: reached})[self._partition]
        return Stand(min(waiting, default=reached), reached, number)


class Encoder:
    """Codes the partitions that it has. With `letters` what is refused becomes a dead letter."""

    eager = False
    """Whether somebody waits for what it makes, so that it is committed at once."""
    waiting = False
    """Whether there is work for which only another dictionary is missing."""

    def __init__(self, plan: Plan, batch: int, letters: bool, workers: Workers = SERIAL) -> None:
        self._plan, self._letters, self._workers = plan, letters, workers
        self._batch = max(1, min(batch, MOST // (8 * prod(plan.shape))))
        self._readers: dict[int, Reader] = {}
        self._tally = Tally()

    def begin(self, partition: int, stand: Stand) -> None:
        """Code a partition from here on."""
        self._readers[partition] = Reader(self._plan, partition, stand)

    def end(self, partition: int) -> None:
        """Know nothing of it any more."""
        self._readers.pop(partition, None)

    def shard_of(self, partition: int) -> int:
        """Whose dictionary is that of a partition."""
        return partition % self._plan.shards

    @property
    def hungry(self) -> Collection[int] | None:
        """The partitions of which more is wanted; none for all of them."""
        return None

    def feed(self, records: Iterable[Record], dictionaries: Mapping[int, Dictionary]) -> Coded:
        """Code records; each shard's with its dictionary, in minibatches. Raise if too much is refused."""
        items: dict[int, list[Item]] = {}
        touched: set[int] = set()
        for record in records:
            reader = self._readers.get(record.position.partition)
            if reader is None:  # it was taken away while this was on its way
                continue
            touched.add(record.position.partition)
            item = reader.read(record)
            if item is not None and not item.empty:
                items.setdefault(self.shard_of(record.position.partition), []).append(item)
        outputs: list[Output] = []
        done: list[Item] = []
        versions: list[Version] = []
        for shard, waiting in items.items():
            for some in self._minibatches(waiting):
                coded, rows = self._code(dictionaries[shard], some)
                outputs += rows
                done += coded
                versions.append(dictionaries[shard].version)
        refused = [refusal for item in done for refusal in item.refused]
        self._count(done, refused[-1].reason if refused else "")
        if self._letters:
            outputs += (dead_letter(self._plan, r.record, r.error, r.reason) for r in refused)
        return Coded(
            tuple(outputs),
            {p: self._readers[p].stand for p in sorted(touched)},
            sum(item.tensor is not None for item in done),
            tuple(r.error for r in refused),
            tuple(versions),
        )

    def _minibatches(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        for start in range(0, len(items), self._batch):
            yield items[start : start + self._batch]

    def _code(self, dictionary: Dictionary, items: Sequence[Item]) -> tuple[list[Item], list[Output]]:
        """Items, those that cannot be coded refused; and the codes of the others."""
        found = [self._judged(dictionary, item) for item in items]
        while rows := [(k, item.tensor) for k, item in enumerate(found) if isinstance(item.tensor, Tensor)]:
            batch, refused = dictionary.gather([tensor.array for _, tensor in rows], self._workers)
            wrong: dict[int, OcpdlError] = {rows[j][0]: DataError(reason) for j, reason in refused.items()}
            if not wrong:
                coding = dictionary.code(batch, self._workers)
                lost = np.flatnonzero(~np.isfinite(coding.losses) | ~np.isfinite(coding.H).all(axis=1))
                wrong = {rows[j][0]: NumericError("its code is not finite; rescale the data") for j in lost}
            if not wrong:
                return found, self._codes_of(dictionary, [found[k] for k, _ in rows], batch, coding)
            for k, error in wrong.items():
                found[k] = refuse(found[k], error)
        return found, []

    def _codes_of(self, dictionary: Dictionary, items: Sequence[Item], batch: AnyBatch, coding: Coding) -> list[Output]:
        """The codes of items, all of which have a tensor."""
        problem = dictionary.problem
        judged, _ = judge(Senses(), coding.losses, coding.H, batch.energies, problem.sparsity, problem.ridge)
        records = [item.parts[-1] for item in items]
        return list(codes_of(self._plan, dictionary.version, records, coding, judged.residuals))

    def _judged(self, dictionary: Dictionary, item: Item) -> Item:
        """An item, refused if its tensor is none of the model. Of chains of samplers an encoder remembers nothing."""
        tensor, misnamed = item.tensor, self._misnamed(dictionary, item)
        if misnamed is not None:
            return refuse(item, misnamed)
        if not isinstance(tensor, Tensor):
            return item
        if tensor.origin is not None and tensor.origin.tuning and self._plan.draws.tuning == "refuse":
            return refuse(item, TuningDraw(f"draw {tensor.origin.draw} is one of tuning"))
        return item

    def _misnamed(self, dictionary: Dictionary, item: Item) -> DataError | None:
        """Whether the modes of a tensor have other names than those of the model."""
        axes = item.tensor.axes if item.tensor is not None else None
        if axes is None or dictionary.axes is None or axes == dictionary.axes:
            return None
        return DataError(f"axes is {list(axes)}, those of the model are {list(dictionary.axes)}")

    def _count(self, done: Iterable[Item], last: str) -> None:
        """Count what was refused in this life; raise if it is too much."""
        self._tally = self._plan.refusals.count(self._tally, merged(item.history for item in done), last)
