"""Records in, sums over coded tensors out: the core of an encoder that makes partials. No I/O, no clock.

Which tensors a partial is of, and which dictionary it may be made with, `rounds` says. The tensors of a partition wait
in a line until there are enough of them and the dictionary has come; then they are coded, and a partial, perhaps their
codes, the dead letters of what was refused between them, and where the partition stands belong in one transaction. The
stand has the number of the round with it: whoever has the partition next makes the partial after that one.

What is refused before the first tensor of a partial waits for nothing. What is refused between has a place in its run.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from stream_ocpdl.errors import ConfigError, DataError, LineageError, NumericError, OcpdlError
from stream_ocpdl.ocpdl.sums import UNBOUNDED, Sums, added, check_finite, sums_of
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.dictionaries import Dictionary
from stream_ocpdl.stream.encoding import Coded, Encoder, Reader
from stream_ocpdl.stream.items import Item, held_by, refuse
from stream_ocpdl.stream.messages import Output, Record, Run, Tensor, Version
from stream_ocpdl.stream.outputs import dead_letter, partial_of
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Stand
from stream_ocpdl.stream.rounds import Rounds

PLENTY = 64_000_000
"""Bytes of a partition that may wait before no more of it is read; or two partials, if that is more."""


@dataclass(slots=True)
class Line:
    """One partition: what waits, and up to which round all is done."""

    reader: Reader
    reached: int
    """Below this all is done."""
    round: int
    items: deque[Item] = field(default_factory=deque)
    tensors: int = 0
    held: int = 0
    """Bytes that wait."""

    def add(self, item: Item) -> None:
        """Let an item wait."""
        self.items.append(item)
        self._count(item, 1)

    def pop(self) -> Item:
        """The first item; it is done with."""
        item = self.items.popleft()
        self._count(item, -1)
        self.reached = item.position.offset + 1
        return item

    def refuse(self, wrong: Mapping[int, Exception]) -> None:
        """Take tensors out, by their offsets; their places stay."""
        for k, item in enumerate(self.items):
            error = wrong.get(item.position.offset)
            if error is not None:
                self._count(item, -1)
                self.items[k] = refuse(item, error)
                self._count(self.items[k], 1)

    def first(self, count: int) -> list[Item]:
        """The items of the first tensors."""
        return list(islice((item for item in self.items if item.tensor is not None), count))

    def _count(self, item: Item, sign: int) -> None:
        self.tensors += sign * (item.tensor is not None)
        self.held += sign * held_by(item)


class Summing(Encoder):
    """Makes the partials of the partitions that it has. With `codes` it publishes the codes as well."""

    eager = True

    def __init__(self, plan: Plan, rounds: Rounds, codes: bool, workers: Workers = SERIAL) -> None:
        super().__init__(plan, rounds.size, True, workers)  # sums have the same bits, however much is read at once
        self._rounds, self._codes = rounds, codes
        self._lines: dict[int, Line] = {}
        self._full: set[int] = set()
        self.waiting = False

    def begin(self, partition: int, stand: Stand) -> None:
        """Make the partials of a partition from here on."""
        if partition >= self._rounds.partials:
            raise ConfigError(
                f"partition {partition} of {self._plan.topic} is one too many: batching.size is"
                f" {self._rounds.partials} times partials.size, and a model that has begun stays with that"
            )
        self._lines[partition] = Line(Reader(self._plan, partition, stand), stand.reached, stand.round)

    def end(self, partition: int) -> None:
        """Know nothing of it any more."""
        self._lines.pop(partition, None)
        self._full.discard(partition)

    @property
    def hungry(self) -> Collection[int] | None:
        """The partitions of which more is wanted. Between enough and too much nothing changes: pausing costs."""
        size = self._rounds.size
        for partition, line in self._lines.items():
            if line.tensors >= 2 * size and (line.tensors >= 4 * size or line.held >= PLENTY):
                self._full.add(partition)
            elif line.tensors < 2 * size:
                self._full.discard(partition)
        return self._lines.keys() - self._full

    def feed(self, records: Iterable[Record], dictionaries: Mapping[int, Dictionary]) -> Coded:
        """Let records wait, and make the partials that can be made. Raise if too much is refused."""
        came = list(self._let_wait(records))
        refused = [refusal for item in came for refusal in item.refused]
        self._count(came, refused[-1].reason if refused else "")
        found = [self._made(p, line, dictionaries[0]) for p, line in sorted(self._lines.items())]
        self.waiting = any(line.tensors >= self._rounds.size for line in self._lines.values())
        return Coded(
            tuple(output for coded in found for output in coded.outputs),
            {p: stand for coded in found for p, stand in coded.stands.items()},
            sum(coded.tensors for coded in found),
            tuple(error for coded in found for error in coded.refused),
            tuple(version for coded in found for version in coded.versions),
            sum(coded.partials for coded in found),
        )

    def _let_wait(self, records: Iterable[Record]) -> Iterator[Item]:
        """Put what records bring into the lines of their partitions."""
        for record in records:
            line = self._lines.get(record.position.partition)
            item = None if line is None else line.reader.read(record)
            if line is not None and item is not None and not item.empty:
                line.add(item)
                yield item

    def _made(self, partition: int, line: Line, dictionary: Dictionary) -> Coded:
        """All that a partition gives now."""
        outputs: list[Output] = []
        done: list[Item] = []
        versions: list[Version] = []
        before = line.reached
        while True:
            done += self._refused_first(line)
            items = self._coded_items(line, dictionary, outputs) if self._may(partition, line, dictionary) else None
            if items is None:
                break
            done += items
            versions.append(dictionary.version)
        refused = [refusal for item in done for refusal in item.refused]
        outputs += (dead_letter(self._plan, r.record, r.error, r.reason) for r in refused)
        moved = line.reached > before
        stands = {partition: line.reader.stand_at(line.reached, line.round)} if moved else {}
        tensors = sum(item.tensor is not None for item in done)
        errors = tuple(r.error for r in refused)
        return Coded(tuple(outputs), stands, tensors, errors, tuple(versions), len(versions))

    def _refused_first(self, line: Line) -> Iterator[Item]:
        while line.items and line.items[0].tensor is None:
            yield line.pop()

    def _may(self, partition: int, line: Line, dictionary: Dictionary) -> bool:
        """Whether the next partial can be made with this dictionary."""
        done, t = line.round, dictionary.version.t
        if t > done:
            raise LineageError(
                f"the group of encoders has made {done} partials of partition {partition} of {self._plan.topic}, and"
                f" the dictionary {dictionary.version} knows of {t}: its offsets have expired, or were set by somebody."
                " Begin a model of another name, with this one's dictionary for its warm_start"
            )
        unsettled = dictionary.problem.code_bound == UNBOUNDED  # codes are brought to scale by the next step alone
        behind = 0 if unsettled else self._rounds.bound(done + 1)
        return line.tensors >= self._rounds.size and t >= done - behind

    def _coded_items(self, line: Line, dictionary: Dictionary, outputs: list[Output]) -> list[Item] | None:
        """The items of the next partial, which is added to the outputs; none if too many tensors turned out wrong."""
        while line.tensors >= self._rounds.size:
            rows = line.first(self._rounds.size)
            wrong, sums, codes = self._sums(dictionary, rows)
            if wrong:
                line.refuse(wrong)
                self._count([Item(rows[0].position, 0.0, done=(-len(wrong),))], str(next(iter(wrong.values()))))
                continue
            last, first = rows[-1].position, line.reached
            covers: Run = (last.partition, first, last.offset)
            items: list[Item] = []
            while not items or items[-1] is not rows[-1]:
                items.append(line.pop())
            line.round += 1
            outputs += codes
            outputs.append(partial_of(self._plan, dictionary.version, sums, line.round, covers))
            return items
        return None

    def _sums(self, dictionary: Dictionary, rows: Sequence[Item]) -> tuple[dict[int, OcpdlError], Sums, list[Output]]:
        """The tensors that cannot be coded, by their offsets; if there are none the sums, and the codes."""
        wrong: dict[int, OcpdlError] = {}
        parts: list[Sums] = []
        codes: list[Output] = []
        for some in self._minibatches(rows):
            found = self._wrong(dictionary, some)
            tensors = [item.tensor.array for item in some if isinstance(item.tensor, Tensor)]
            if not found:
                batch, refused = dictionary.gather(tensors, self._workers)
                found = {some[j].position.offset: DataError(reason) for j, reason in refused.items()}
            if not found:
                coding = dictionary.code(batch, self._workers)
                lost = np.flatnonzero(~np.isfinite(coding.losses) | ~np.isfinite(coding.H).all(axis=1))
                told = "its code is not finite; rescale the data"
                found = {some[j].position.offset: NumericError(told) for j in lost.tolist()}
            if not found:
                parts.append(sums_of(dictionary.loadings, batch, coding, self._workers))
                codes += self._codes_of(dictionary, some, batch, coding) if self._codes else []
            wrong |= found
        if wrong:
            return wrong, NOTHING, []
        dtype = parts[0].B.dtype
        sums = parts[0] if len(parts) == 1 else added(parts)
        sums = replace(sums, B=sums.B.astype(dtype, copy=False))
        check_finite(sums)
        return {}, sums, codes

    def _wrong(self, dictionary: Dictionary, items: Sequence[Item]) -> dict[int, OcpdlError]:
        """Tensors that are none of the model, and draws, of whose chains nothing is known here."""
        found: dict[int, OcpdlError] = {}
        for item in items:
            tensor = item.tensor
            if isinstance(tensor, Tensor) and tensor.origin is not None:
                told = "a draw of a sampler: encoders that make partials know no chains; learn from the tensors"
                found[item.position.offset] = DataError(told)
            elif (error := self._misnamed(dictionary, item)) is not None:
                found[item.position.offset] = error
        return found


NOTHING = Sums(0, 0.0, 0.0, np.zeros((0, 0)), np.zeros((0, 0)))
