"""The world of a shard: all ports in one place."""

from collections.abc import Callable
from dataclasses import dataclass

from stream_ocpdl.errors import Stopped
from stream_ocpdl.stream.checkpoint import CheckpointStore, manifest_of
from stream_ocpdl.stream.commits import Aside
from stream_ocpdl.stream.genesis import Beginning
from stream_ocpdl.stream.pipeline import Pipeline
from stream_ocpdl.stream.ports import Control, CrashPoint, Journal, NoControl, Outbox, Source, no_crash
from stream_ocpdl.stream.recovery import Report
from stream_ocpdl.stream.watch import Unwatched, Watch


@dataclass(frozen=True, slots=True)
class Ports:
    """The world."""

    source: Source
    journal: Journal
    outbox: Outbox
    store: CheckpointStore
    now: Callable[[], float]
    """Seconds of a clock that only goes forward."""
    stopping: Callable[[], bool]
    report: Report
    at: CrashPoint = no_crash
    control: Control = NoControl()  # noqa: RUF009  (it has no state)
    begin: Beginning | None = None
    """How a new model begins; without it with the earliest input."""
    since: float | None = None
    """When it was asked to run, by the same clock."""
    aside: Aside | None = None
    """How a transaction is written beside the learning; without it it is written at once."""
    watch: Watch = Unwatched()  # noqa: RUF009

    def keep(self, pipeline: Pipeline, journal_offset: int) -> int:
        """Write a checkpoint; the step that it is of."""
        progress = pipeline.progress
        manifest = manifest_of(pipeline.plan, progress, journal_offset, pipeline.identity)
        self.store.save(manifest, progress.state.parts)
        return progress.state.t

    def between_replays(self, *_: object) -> None:
        """Called after every record that is replayed."""
        self.watch.turned()
        self.at("in-replay")
        if self.stopping():
            raise Stopped("asked to stop while recovering; nothing was changed")
