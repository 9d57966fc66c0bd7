"""A replay that can go on as the journal grows: for a standby, which is to take over. It writes nothing."""

from collections.abc import Callable
from dataclasses import replace

from stream_ocpdl.errors import LineageError
from stream_ocpdl.stream.checkpoint import ReadOnly
from stream_ocpdl.stream.genesis import begun
from stream_ocpdl.stream.history import went_back_to
from stream_ocpdl.stream.inputs import Inputs
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import Progress, read_journal, replay
from stream_ocpdl.stream.recovery import Recovered, Recovery, rebuild


class WentBack(LineageError):
    """The journal goes on with an earlier state, or with another input: the follower has to begin again."""


class Follower:
    """A model that somebody else writes."""

    def __init__(self, plan: Plan, world: Recovery) -> None:
        self.world = replace(world, store=ReadOnly(world.store))
        self._plan = plan
        self._inputs: Inputs | None = None
        self._found: Recovered | None = None
        self.replayed = self._behind = 0

    @property
    def offset(self) -> int:
        """Of the last record of the journal that was taken; −1 before the first."""
        return -1 if self._found is None else self._found.journal_offset

    def restore(self) -> None:
        """Begin where the model stands now; there need not be one yet."""
        plan = begun(self._plan, self.world.journal)
        if plan is not None:
            self._found = rebuild(plan, self.world)
            self._behind = self._found.replayed

    def catch_up(self, on_record: Callable[..., None] = lambda *_: None) -> Recovered | None:
        """Replay what the journal has by now; none if there is no journal. The steps that count are those of now."""
        self.world, before = replace(self.world, on_record=on_record), self.replayed
        if self._found is None:
            self.restore()
            return self._found
        for offset, value in self.world.journal.read(self.offset + 1):
            self.take(offset, value)
        behind = self._behind + self.replayed  # of the checkpoint it began with; there may be newer ones by now
        return replace(self._found, replayed=self.replayed - before, behind=behind, went_back=False)

    def take(self, offset: int, value: bytes) -> None:
        """Replay the next record of the journal."""
        if self._found is None:
            self.restore()
        if self._found is None or offset <= self.offset:
            return
        found, record = self._found, read_journal(value)
        if record.event in ("lost", "partitions") or went_back_to(record) is not None:
            raise WentBack(f"the model went on from another state, or another input, after step {record.t}")
        self._inputs = self._inputs or Inputs(self.world.source, found.progress.resume)
        used = [row for run in record.used for row in self._inputs.take(run)]
        progress, step = replay(found.plan, found.progress, value, used, self.world.workers)
        self._inputs.drop(progress)
        self._found = replace(found, progress=progress, journal_offset=offset)
        self.replayed += step is not None
        self.world.on_record(progress, used, step, record)

    @property
    def progress(self) -> Progress | None:
        """How far it has come."""
        return None if self._found is None else self._found.progress
