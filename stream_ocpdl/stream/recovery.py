"""How a model comes back: the newest checkpoint that the journal agrees with, and a replay of the steps after it.

    1. Of the checkpoints, newest first, take the first that is whole and whose link stands in the journal at the offset
       it names. One that is ahead of the journal, or of another history, is refused.
    2. Read the journal from there to its end; read the input that it names; learn it again, outputs off.
    3. Check what the records claim: the chain, the checksums of the input, the digests of the state.

The journal is the truth: offsets committed elsewhere serve monitors and fencing, and are not asked.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from stream_ocpdl.errors import InputLost, LineageError, StateError
from stream_ocpdl.ocpdl.learner import Step
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.batching import PLENTY
from stream_ocpdl.stream.checkpoint import Candidate, CheckpointStore, state_of
from stream_ocpdl.stream.messages import Manifest, Position, Record, Run, link
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Journal, Said, Source
from stream_ocpdl.stream.progress import Progress, after, beginning, check_lineage, read_journal, replay, within
from stream_ocpdl.stream.shards import check_shards, shards_in

Report = Callable[[str], None]

OnRecord = Callable[[Progress, Sequence[Record], Step | None], None]

POLLED = 1000
"""Records to ask for in one poll."""

PATIENCE = 600
"""Polls of a tenth of a second that a replay waits for a record which must be there."""


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """The progress, the journal's offset of its last record (−1: no journal yet), and how many steps were replayed."""

    progress: Progress
    journal_offset: int
    replayed: int


def recover(
    plan: Plan,
    source: Source,
    journal: Journal,
    store: CheckpointStore,
    report: Report,
    on_record: OnRecord = lambda *_: None,
    workers: Workers = SERIAL,
) -> Recovered:
    """Where the model stands. `on_record` is called after every record replayed; it may raise to end the recovery."""
    follower = Follower(plan, source, journal, report, on_record, workers)
    refused = follower.restore(store)
    for manifest in refused:
        store.discard(manifest)
    found = follower.catch_up()
    if found.journal_offset < 0 and refused:
        raise LineageError(
            f"the journal of {plan.model} is empty, yet there are checkpoints of it: it was deleted or trimmed, and"
            " beginning again would publish every code a second time; give the model another name"
        )
    return found


class Follower:
    """A replay that can go on: from a checkpoint, then as the journal grows. It writes nothing."""

    def __init__(
        self,
        plan: Plan,
        source: Source,
        journal: Journal,
        report: Report,
        on_record: OnRecord = lambda *_: None,
        workers: Workers = SERIAL,
    ) -> None:
        self.source, self.journal, self.report, self.on_record = source, journal, report, on_record
        self._plan, self._workers = plan, workers
        self.progress = beginning(plan, source.earliest())
        self.offset = -1
        """Of the last record of the journal that was taken; −1 before the first."""
        self.replayed = 0
        self._inputs: Inputs | None = None

    def restore(self, store: CheckpointStore) -> list[Manifest]:
        """Begin with the newest checkpoint that is acceptable, if there is one; those that are not."""
        refused = []
        for candidate in store.candidates():
            if candidate.manifest.model != self._plan.model:
                continue
            found = _accept(self._plan, candidate, self.source, self.journal, self.report)
            if found is not None:
                self.progress, self.offset = found, candidate.manifest.journal_offset
                self.report(Said(f"restored the checkpoint of step {found.state.t}", step=found.state.t))
                break
            refused.append(candidate.manifest)
        return refused

    def catch_up(self) -> Recovered:
        """Replay what the journal has by now."""
        before = self.replayed
        if self.offset < 0:
            self.progress = beginning(self._plan, self.source.earliest())
        for offset, value in self.journal.read(self.offset + 1):
            self.take(offset, value)
        return Recovered(self.progress, self.offset, self.replayed - before)

    def take(self, offset: int, value: bytes) -> None:
        """Replay the next record of the journal."""
        record = read_journal(value)
        if record.event == "genesis":
            _check_input(record.input, self.source)
        if self._inputs is None:
            if record.event == "genesis":
                self.progress = replace(self.progress, resume=record.resume)
            self.source.start(starts(self.progress, self.source))
            self._inputs = Inputs(self.source)
        used = [row for run in record.used for row in self._inputs.take(run)]
        self.progress, step = replay(self._plan, self.progress, value, used, self._workers)
        self._inputs.drop(self.progress)
        self.offset = offset
        self.replayed += step is not None
        self.on_record(self.progress, used, step)


def _accept(plan: Plan, candidate: Candidate, source: Source, journal: Journal, report: Report) -> Progress | None:
    """The checkpoint's state where the journal has its record, or none and why."""
    manifest = candidate.manifest
    standing = next(journal.read(manifest.journal_offset), None)
    if standing is None or standing[0] != manifest.journal_offset:
        report(Said(f"refused the checkpoint of step {manifest.t}: it is ahead of the journal", step=manifest.t))
        return None
    if link(standing[1]) != manifest.link:
        report(Said(f"refused the checkpoint of step {manifest.t}: the journal has another history", step=manifest.t))
        return None
    check_lineage(plan, manifest.lineage, manifest.fingerprint)
    _check_input(manifest.input, source)
    try:
        return after(read_journal(standing[1]), standing[1], state_of(manifest, candidate.load()))
    except StateError as error:
        report(Said(f"refused the checkpoint of step {manifest.t}: {error}", step=manifest.t))
        return None


def _check_input(identity: str | None, source: Source) -> None:
    check_shards(identity or "", shards_in(source.identity))
    if identity != source.identity:
        raise LineageError(
            f"the model learned from {identity}, the input is {source.identity}: another topic, made anew, or with"
            " partitions added; positions in one mean nothing in the other. Give the model another name"
        )


def starts(progress: Progress, source: Source) -> dict[int, int]:
    """Where to read on. Pieces of messages that never became whole may be gone; what was never read may not."""
    earliest, reached = source.earliest(), progress.reached
    return {p: max(k, earliest[p]) if earliest[p] <= reached.get(p, k) else k for p, k in progress.resume.items()}


class Inputs:
    """The input once more, by position; what was fetched is kept until it is dropped."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._fetched: dict[int, dict[int, Record]] = {partition: {} for partition in source.partitions}
        self._reached = dict.fromkeys(source.partitions, -1)
        self._bytes = dict.fromkeys(source.partitions, 0)

    def take(self, run: Run) -> Iterator[Record]:
        """The records of a run, in order."""
        partition, first, last = run
        for offset in range(first, last + 1):
            self._fetch(Position(partition, offset))
            if offset not in self._fetched[partition]:
                raise InputLost(f"partition {partition} no longer has offset {offset}, which a step used")
            record = self._fetched[partition].pop(offset)
            self._bytes[partition] -= len(record.value or b"")
            yield record

    def drop(self, progress: Progress) -> None:
        """Forget what is done with: refused records, but not the open pieces."""
        for partition, records in self._fetched.items():
            for offset in list(takewhile(progress.reached.get(partition, 0).__gt__, records)):
                if not within(records[offset], progress.open):
                    self._bytes[partition] -= len(records.pop(offset).value or b"")

    def _fetch(self, wanted: Position) -> None:
        partition, offset = wanted
        before, idle = self._reached[partition], 0
        while self._reached[partition] < offset and idle < PATIENCE:
            idle = idle + 1 if self._reached[partition] == before else 0
            before = self._reached[partition]
            hungry = {p for p, size in self._bytes.items() if size < PLENTY or p == partition}
            for record in self._source.poll(POLLED, 0.1, hungry):
                self._fetched[record.position.partition][record.position.offset] = record
                self._reached[record.position.partition] = record.position.offset
                self._bytes[record.position.partition] += len(record.value or b"")
        if self._reached[partition] < offset:
            raise InputLost(
                f"partition {partition} has no record at offset {offset}, which a step used: it was cut short"
            )
