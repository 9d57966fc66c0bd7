"""How a life of a shard begins, once every predecessor is fenced.

1. Where the model stands: the tail of the journal, if somebody has followed it, or a recovery.
2. What of the input is missing or new since then, if that may be.
3. Whether the settings still ask for the problem that the journal has; only then is anything noted in it.
4. Whether bits are made as before: if not, a new epoch.
5. Read on.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from stream_ocpdl.errors import BrokerError, Fenced, OcpdlError, Stopped
from stream_ocpdl.ocpdl.diagnostics import figures
from stream_ocpdl.ocpdl.workers import SERIAL, Workers
from stream_ocpdl.stream.checkpoint import manifest_of
from stream_ocpdl.stream.following import Follower
from stream_ocpdl.stream.inputs import starts
from stream_ocpdl.stream.lost import Noted, reconcile
from stream_ocpdl.stream.messages import Output
from stream_ocpdl.stream.outputs import snapshot
from stream_ocpdl.stream.pipeline import Pipeline
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Said, Warned
from stream_ocpdl.stream.progress import Progress, here
from stream_ocpdl.stream.recovery import Recovered, recover
from stream_ocpdl.stream.terms import hold_to, terms_of, told_apart
from stream_ocpdl.stream.world import Ports


class Arrived(NamedTuple):
    """A pipeline where the model stands, the journal's last offset, and the step of the last checkpoint."""

    pipeline: Pipeline
    offset: int
    checkpointed: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """Everything that comes before the first step."""

    plan: Plan
    ports: Ports
    workers: Workers = SERIAL
    warm: Callable[[], Follower | None] = lambda: None
    """Asked once every predecessor is fenced: a replay that has come far already."""

    def arrive(self, care: bool = False) -> Arrived:
        """Come to where the model stands. A new one begins its journal. With `care` as after a step that was void."""
        ports = self.ports
        ports.watch.phase("recovering")
        found, standby = self._found()  # 1
        noted = reconcile(found.plan, found.progress, found.input, found.lost, ports.source)  # 2
        progress = found.progress if noted is None else noted.progress
        pipeline = Pipeline(found.plan, progress, ports.source.identity, self.workers, care)
        offset, t = found.journal_offset, progress.state.t
        checkpointed = t - (found.replayed if found.behind is None else found.behind)
        if offset < 0:
            self._warn_of_an_earlier_one()
            offset = ports.outbox.commit(self._first(pipeline, found), progress.resume)
        else:
            self._hold_to_terms(found)  # 3
            if noted is not None:
                if checkpointed < t and found.lost is None:
                    self._keep(found)
                offset, checkpointed = self._note(pipeline, noted), t
            elif not care:
                self._compare_positions(progress)
            if not progress.exact or progress.fingerprint != here():  # 4
                offset = self._begin_epoch(pipeline)
                checkpointed = ports.keep(pipeline, offset)
            elif found.went_back:
                checkpointed = ports.keep(pipeline, offset)
        ports.source.start(starts(pipeline.progress, ports.source))  # 5
        fields: dict[str, Any] = {"step": t, "replayed": found.replayed, "standby": standby}
        if ports.since is not None and not care:
            fields["seconds"] = round(ports.now() - ports.since, 3)
        ports.watch.ready(pipeline, found.replayed, standby, fields.get("seconds"))
        ports.report(Said(f"ready at step {t}, {found.replayed} steps replayed", **fields))
        return Arrived(pipeline, offset, checkpointed)

    def _first(self, pipeline: Pipeline, found: Recovered) -> list[Output]:
        """The genesis; before it the first dictionary, where others need one to begin."""
        plan, identity = found.plan, self.ports.source.identity
        shown = [] if plan.rounds is None else [snapshot(plan, pipeline.progress, 0.0, identity)]
        return [*shown, pipeline.genesis(found.warm)]

    def _found(self) -> tuple[Recovered, str]:
        """Where the model stands: the tail of the journal if somebody has followed it, or all that is needed of it."""
        ports, follower = self.ports, self.warm()
        if follower is not None:
            try:
                found = follower.catch_up(ports.between_replays)
            except (Stopped, Fenced):
                raise
            except OcpdlError as error:
                ports.report(Warned(f"what was followed cannot be used, and is begun again: {error}"))
            else:
                if found is not None and found.progress.exact:
                    return found, "warm"
        return recover(
            self.plan,
            ports.source,
            ports.journal,
            ports.store,
            ports.report,
            ports.between_replays,
            self.workers,
            ports.begin,
        ), "cold"

    def _keep(self, found: Recovered) -> None:
        """A checkpoint of what was found: after what is noted now, nobody could make it again.

        A standby knows steps whose input is gone.
        """
        manifest = manifest_of(found.plan, found.progress, found.journal_offset, found.input or "")
        self.ports.store.save(manifest, found.progress.state.parts)

    def _note(self, pipeline: Pipeline, noted: Noted) -> int:
        """Journal what is missing or new, and keep it at once: nothing before it will be needed again."""
        offset = self.ports.outbox.commit([pipeline.note(noted.event, **noted.more)], pipeline.progress.resume)
        for line in noted.said:
            self.ports.report(line)
        self.ports.keep(pipeline, offset)
        return offset

    def _hold_to_terms(self, found: Recovered) -> None:
        """Raise unless the settings have terms of this model; say so if they are not those in force."""
        mine, first = terms_of(self.plan.problem), terms_of(found.plan.problem)
        now = found.progress.terms or first
        hold_to(mine, first, now)
        if mine != now:
            self.ports.report(Said(f"the model was reconfigured, and the journal holds: {told_apart(mine, now)}"))

    def _begin_epoch(self, pipeline: Pipeline) -> int:
        """Journal that bits are others from here on, because they are made under other conditions."""
        before = pipeline.progress
        now = replace(before, epoch=before.epoch + 1, fingerprint=here(), exact=True)
        reason = f"numeric fingerprint {before.fingerprint} → {now.fingerprint}"
        self.ports.report(Warned(f"a new epoch, {now.epoch}: {reason}", step=now.state.t))
        figures_now = figures(now.problem(pipeline.plan), now.state, self.workers)
        told = {"state": now.state.digest(), "figures": figures_now, "fingerprint": now.fingerprint, "reason": reason}
        return self.ports.outbox.commit([pipeline.record(now, "epoch", **told)], now.resume)

    def _warn_of_an_earlier_one(self) -> None:
        """Say so if there is no journal, but somebody has learned under this name."""
        with suppress(BrokerError):
            mine = self.ports.source.partitions  # another shard may have begun a moment ago
            if any(partition in mine for partition in self.ports.source.committed()):
                said = "there is no journal, but the group has positions: a model of this name was there before, and"
                self.ports.report(Warned(f"{said} codes may be published again; else give the model another name"))

    def _compare_positions(self, progress: Progress) -> None:
        """Say so if somebody has moved the positions; the journal is the truth."""
        try:
            positions = self.ports.source.committed()
        except BrokerError as error:
            self.ports.report(Said(f"the positions of the group are not known: {error}"))
            return
        for partition, offset in progress.resume.items():
            if positions.get(partition, -1) != offset:
                told = f"the group is at {positions.get(partition, 'no offset')} in partition {partition}"
                said = f"{told}, which somebody else set, or time; the journal's {offset} is used"
                self.ports.report(Warned(said, partition=partition, offset=offset))
