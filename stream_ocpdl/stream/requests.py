"""What operators ask of a running model, answered by its owner between two steps.

    1. Read a request from the control topic. What is no request is passed over.
    2. Decide: other terms, the state of an earlier step, or why not.
    3. One transaction with the record of the journal that answers it. The record has the offset behind the request, so
       that it is answered once, whoever is killed when; and all that a replay needs.

A rollback makes the state of the earlier step first, as a recovery would, and keeps it as a checkpoint of that step
*before* it commits: whoever comes after a crash finds it there. Reading goes on where it was, so that no input is
learned twice.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stream_ocpdl.errors import ConfigError, DecodeError, InputLost, LineageError, StateError
from stream_ocpdl.stream.checkpoint import manifest_of
from stream_ocpdl.stream.history import find
from stream_ocpdl.stream.inputs import starts
from stream_ocpdl.stream.messages import Output, Request, Target
from stream_ocpdl.stream.messages.fields import TEXT
from stream_ocpdl.stream.outputs import snapshot
from stream_ocpdl.stream.pipeline import Pipeline
from stream_ocpdl.stream.ports import Control, CrashPoint, Outbox, Said
from stream_ocpdl.stream.progress import Progress, here
from stream_ocpdl.stream.recovery import Recovered, Recovery, rebuild
from stream_ocpdl.stream.terms import changed, terms_of, told_apart

log = logging.getLogger("stream_ocpdl.requests")


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """A model after a request: its pipeline (perhaps another), the offset of the answer, and whether it went back."""

    pipeline: Pipeline
    offset: int
    went_back: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Desk:
    """Answers requests, one after the other."""

    control: Control
    outbox: Outbox
    world: Recovery
    at: CrashPoint

    def answers(self, pipeline: Pipeline) -> Iterable[Answered]:
        """Answer what was asked since the last time. Nothing that was learned may be uncommitted."""
        for offset, value in self.control.read(pipeline.progress.control or 0):
            standing = replace(pipeline.progress, control=offset + 1)
            try:
                request = Request.from_bytes(value)
            except DecodeError as error:
                log.warning("passed over what is no request, at offset %d of the control topic: %s", offset, error)
                pipeline.progress = standing
                continue
            answered = self._answer(pipeline, standing, request)
            pipeline = answered.pipeline
            yield answered

    def _answer(self, pipeline: Pipeline, standing: Progress, request: Request) -> Answered:
        try:
            if request.action == "rollback":
                return self._roll_back(pipeline, standing, request)
            return self._reconfigure(pipeline, standing, request)
        except (ConfigError, LineageError, InputLost, StateError) as error:
            reason = str(error)[:TEXT]
            pipeline = self._anew(pipeline) if request.action == "rollback" else pipeline
            self._say(pipeline, f"declined the request {request.id} to {request.action}: {reason}")
            return self._commit(pipeline, [pipeline.record(standing, "declined", request=request.id, reason=reason)])

    def _reconfigure(self, pipeline: Pipeline, standing: Progress, request: Request) -> Answered:
        problem = standing.problem(pipeline.plan)
        terms = changed(problem, request.change)
        self._say(pipeline, f"other terms: {told_apart(terms_of(problem), terms) or 'the same as before'}")
        now = replace(standing, terms=terms)
        return self._commit(pipeline, [pipeline.record(now, "reconfigure", request=request.id)])

    def _roll_back(self, pipeline: Pipeline, standing: Progress, request: Request) -> Answered:
        if pipeline.plan.rounds is not None:
            raise ConfigError("encoders count the rounds that were absorbed, and cannot go back with the model")
        if request.present != standing.epoch:
            raise ConfigError(f"it was asked for in epoch {request.present}, and the model is in {standing.epoch} now")
        plan, world = pipeline.plan, self.world
        entry = find(world.journal, request.t, request.epoch)
        found = rebuild(plan, world, entry.offset)
        if not found.progress.exact:
            raise LineageError(
                f"step {request.t} was made under another numeric fingerprint: its bits are not to be had"
            )
        found.progress.state.belongs_to(standing.problem(plan))
        self._keep(plan.model, found)
        self.at("before-rollback")
        now = replace(standing, state=found.progress.state, epoch=standing.epoch + 1, fingerprint=here())
        self._say(pipeline, f"back to step {entry.t} of epoch {entry.epoch}, now epoch {now.epoch}")
        record = pipeline.record(
            now,
            "rollback",
            weight=entry.weight,
            request=request.id,
            target=Target(entry.epoch, entry.t, entry.offset),
            state=now.state.digest(),
            fingerprint=now.fingerprint,
            chains=now.draws.known or None,
            draws=now.draws.counts if any(now.draws.counts) else None,
        )
        shown = snapshot(plan, now, entry.weight, world.source.identity)
        answered = self._commit(pipeline, [shown, record])
        return replace(answered, pipeline=self._anew(pipeline), went_back=True)

    def _keep(self, model: str, found: Recovered) -> None:
        """A checkpoint of the step to go back to, unless there is one."""
        store, identity = self.world.store, found.input or self.world.source.identity
        manifest = manifest_of(found.plan, found.progress, found.journal_offset, identity)
        known = (c.manifest for c in store.candidates() if c.manifest.model == model)
        if all((m.journal_offset, m.sha256) != (manifest.journal_offset, manifest.sha256) for m in known):
            store.save(manifest, found.progress.state.parts)

    def _anew(self, pipeline: Pipeline) -> Pipeline:
        """A pipeline that reads on where this one stands, as after a recovery: its source was used for another."""
        self.world.source.start(starts(pipeline.progress, self.world.source))
        return Pipeline(pipeline.plan, pipeline.progress, self.world.source.identity, self.world.workers)

    def _commit(self, pipeline: Pipeline, outputs: list[Output]) -> Answered:
        return Answered(pipeline, self.outbox.commit(outputs, pipeline.progress.resume))

    def _say(self, pipeline: Pipeline, text: str) -> None:
        self.world.report(Said(text, step=pipeline.progress.state.t))
