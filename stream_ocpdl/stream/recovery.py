"""How a model comes back: the newest checkpoint that the journal agrees with, and a replay of the steps after it.

    1. Of the checkpoints, newest first, take the first that is whole and whose link stands in the journal at the offset
       it names. One that is ahead of the journal, or of another history, is refused.
    2. Read the journal from there to its end; read the input that it names; learn it again, outputs off.
    3. Check what the records claim: the chain, the checksums of the input, the digests of the state.

The journal is the truth: offsets committed elsewhere serve monitors and fencing, and are not asked.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stream_ocpdl.errors import InputLost, LineageError, OcpdlError
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.checkpoint import Candidate, CheckpointStore, progress_of
from stream_ocpdl.stream.journal import JournalRecord, Run, link
from stream_ocpdl.stream.messages import Record
from stream_ocpdl.stream.pipeline import Plan, Progress, beginning, replay
from stream_ocpdl.stream.ports import Journal, Source

Report = Callable[[str], None]

AHEAD = 1000
"""Records of a partition that a replay reads ahead of the step it is at."""

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
    on_record: Callable[[], None] = lambda: None,
    workers: Workers = SERIAL,
) -> Recovered:
    """Where the model stands. `on_record` is called after every record replayed; it may raise to end the recovery."""
    progress, offset = beginning(plan, source.earliest()), -1
    for candidate in store.candidates():
        found = _accept(plan, candidate, journal, report)
        if found is not None:
            progress, offset = found, candidate.manifest.journal_offset
            report(f"restored the checkpoint of step {progress.state.t}")
            break
    return _replay(plan, progress, offset, source, journal, on_record, workers)


def _accept(plan: Plan, candidate: Candidate, journal: Journal, report: Report) -> Progress | None:
    """The checkpoint's progress, or none and why."""
    manifest = candidate.manifest
    if manifest.model != plan.model:
        return None
    if manifest.problem != plan.problem.digest():
        raise LineageError(f"the checkpoint of step {manifest.t} is of another problem; use another model name")
    standing = next(journal.read(manifest.journal_offset), None)
    if standing is None or standing[0] != manifest.journal_offset:
        report(f"refused the checkpoint of step {manifest.t}: it is ahead of the journal")
        return None
    if link(standing[1]) != manifest.link:
        report(f"refused the checkpoint of step {manifest.t}: the journal has another history")
        return None
    try:
        return progress_of(manifest, candidate.load())
    except OcpdlError as error:
        report(f"refused the checkpoint of step {manifest.t}: {error}")
        return None


def _replay(
    plan: Plan,
    progress: Progress,
    offset: int,
    source: Source,
    journal: Journal,
    on_record: Callable[[], None],
    workers: Workers,
) -> Recovered:
    inputs, begun, replayed = Inputs(source), False, 0
    for position, value in journal.read(offset + 1):
        record = JournalRecord.from_bytes(value)
        if record.event == "genesis":
            progress = Progress(progress.state, progress.link, dict(record.resume), progress.cursor)
        if not begun:
            inputs.start(progress.resume)
            begun = True
        rows = [row for run in record.used for row in inputs.take(run)]
        progress = replay(plan.problem, progress, value, rows, workers)
        inputs.drop(progress.resume)
        offset = position
        replayed += record.event == "step"
        on_record()
    return Recovered(progress, offset, replayed)


class Inputs:
    """The input once more, by position."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._fetched: dict[int, deque[Record]] = {partition: deque() for partition in source.partitions}

    def start(self, resume: dict[int, int]) -> None:
        """Read on from here."""
        self._source.start(resume)

    def take(self, run: Run) -> Iterator[Record]:
        """The records of a run, in order."""
        partition, first, last = run
        reached = first - 1
        while reached < last:
            queue = self._fetched[partition]
            for _ in range(PATIENCE):
                if queue:
                    break
                hungry = {p for p, waiting in self._fetched.items() if len(waiting) < AHEAD}
                for record in self._source.poll(AHEAD, 0.1, hungry):
                    self._fetched[record.position.partition].append(record)
            if not queue:
                raise InputLost(
                    f"partition {partition} has no record at offset {last}, which a step used: it was cut short"
                )
            record = queue.popleft()
            reached = record.position.offset
            if reached > last:
                raise LineageError(f"partition {partition} no longer has offset {last}, which a step used")
            if reached >= first:
                yield record

    def drop(self, resume: dict[int, int]) -> None:
        """Forget what lies behind: refused records that no run names."""
        for partition, queue in self._fetched.items():
            while queue and queue[0].position.offset < resume.get(partition, 0):
                queue.popleft()
