"""What is known of a running service at this moment: plain numbers, written by those that work, read by who asks.

A writer stores a number and goes on: everything that takes time (quotients, JSON, labels) is left to the reader. What a
reader finds may be a moment old, and two numbers from two different moments; none is torn.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from stream_ocpdl.observe.silence import Silence
from stream_ocpdl.observe.spectators import Spectators
from stream_ocpdl.observe.statistics import Client
from stream_ocpdl.observe.wellness import Wellness
from stream_ocpdl.ocpdl.diagnostics import Assumption, assumption_card, stationarity
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.ocpdl.revival import dead_atoms
from stream_ocpdl.stream.draws import Chain, Counts
from stream_ocpdl.stream.pipeline import Outcome, Pipeline
from stream_ocpdl.stream.plan import Plan

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends, in seconds, of what durations are sorted into; the last bucket has no end."""


class Durations:
    """How long something took, each time."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Once more."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds


@dataclass(slots=True)
class Shard:
    """A shard that this process writes. It is a `Watch`."""

    plan: Plan
    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    doing: str = "starting"
    beat: float = 0.0
    """When its loop went round last."""
    t: int = 0
    N: int = 0
    epoch: int = 0
    energy: float = 0.0
    """E of the aggregates."""
    step: Step | None = None
    learned: int = 0
    """Tensors learned in this life; `t` and `N` are of all lives."""
    steps: int = 0
    records: int = 0
    waited: float = 0.0
    """Seconds of waiting for input, and decoding it."""
    awaited: Mapping[int, float] = field(default_factory=dict)
    """Partitions that hold up what others have, and since when."""
    at_bound: int = 0
    held_back: Counter[int] = field(default_factory=Counter)
    """How often the radius held a mode back."""
    refused: Counter[str] = field(default_factory=Counter)
    draws: Counts = Counts()  # noqa: RUF009
    chains: Mapping[str, Chain] = field(default_factory=dict)
    silence: Silence = field(default_factory=Silence)
    together: int = 0
    """Chains of the last minibatch that had draws."""
    products: int = 0
    """How often a new epoch began here because those were others."""
    staleness: int | None = None
    """Of the last round of partials: by how many steps the oldest of their dictionaries was behind."""
    unusual: int = 0
    """Tensors that are explained worse than 99 in 100 earlier ones."""
    changes: Counter[str] = field(default_factory=Counter)
    """How often it was noticed that the data have changed, in structure or in scale."""
    resume: Mapping[int, int] = field(default_factory=dict)
    newest: int = -1
    """The timestamp of the tensor that was learned last, in milliseconds."""
    card: tuple[Assumption, ...] = ()
    residuals: tuple[float, ...] = ()
    dead: int | None = None
    """Atoms that are."""
    stepping: Durations = field(default_factory=Durations)
    committing: Durations = field(default_factory=Durations)
    written: Counter[str] = field(default_factory=Counter)
    checkpointing: Durations = field(default_factory=Durations)
    checkpoint: tuple[int, int, float] | None = None
    """Step, bytes and time of the last checkpoint."""
    unsaved: int = 0
    """Steps that were made or replayed here since the last checkpoint."""
    unsaved_since: float | None = None
    """When the first of them was."""
    recoveries: Counter[str] = field(default_factory=Counter)
    recovery: tuple[float, int] = (0.0, 0)
    """Seconds and replayed steps of the last one."""
    statistics: Callable[[], str] = lambda: ""
    """What the client of the input counts."""
    began: float = field(init=False)
    """When this process began to write it, in seconds since 1970."""

    spectators: Spectators = field(init=False)
    wellness: Wellness = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.wall()
        self.spectators = Spectators(self.plan, self.now, self.wall)
        self.wellness = Wellness(self.now)

    def phase(self, name: str) -> None:
        """What it does from now on."""
        self.doing = name
        self.turned()

    def turned(self) -> None:
        """Its loop went round."""
        self.beat = self.now()
        if self.doing == "running":  # else a state may be void, or about to be
            self.spectators.turned()

    def ready(self, pipeline: Pipeline, replayed: int, standby: str, seconds: float | None) -> None:
        """It has recovered."""
        self.recoveries[standby] += 1
        self.recovery = (seconds or 0.0, replayed)
        self._look(pipeline)
        self._examine(pipeline)
        self.unsaved, self.unsaved_since = 0, None
        if self.checkpoint is None or self.checkpoint[0] < self.t:
            self._unsaved(replayed)
        self.spectators.ready(pipeline)
        self.wellness.forget()
        self.awaited = {}
        self.phase("running")

    def polled(self, records: int, seconds: float, awaited: Collection[int] = ()) -> None:
        """It waited for input, and still waits for that of some partitions."""
        self.records += records
        self.waited += seconds
        if awaited or self.awaited:
            now = self.now()
            self.awaited = {p: self.awaited.get(p, now) for p in awaited}

    def stepped(self, pipeline: Pipeline, outcome: Outcome, seconds: float) -> None:
        """It made a step."""
        self._look(pipeline)
        self.awaited = {}
        self.products += outcome.begun is not None
        self.refused.update(outcome.refused)
        self.spectators.stepped(pipeline, outcome, self._lagging)
        step = outcome.step
        if step is None:
            return
        if outcome.origins and outcome.energies is not None:
            self.wellness.stepped(outcome.origins, outcome.energies, step, pipeline.progress.state)
        self.step = step
        self.steps += 1
        self._unsaved(1)
        self.learned += outcome.tensors
        self.staleness = outcome.staleness
        self.stepping.add(seconds)
        if step.judged is not None:
            self.unusual += step.judged.unusual
            if step.judged.change is not None:
                self.changes[step.judged.change] += 1
        for i, active in enumerate(step.radius_active):
            self.held_back[i] += active
        self.newest = max(outcome.newest, 0)
        if step.t % self.plan.digest_every == 0:
            self._examine(pipeline)

    def _look(self, pipeline: Pipeline) -> None:
        progress = pipeline.progress
        self.t, self.N, self.epoch = progress.state.t, progress.state.N, progress.epoch
        self.energy = progress.state.aggregates.E
        self.at_bound, self.resume = progress.state.at_bound, progress.resume
        self.draws, self.chains = progress.draws.counts, progress.draws.known
        self.together = len(progress.product.chains)

    def _unsaved(self, steps: int) -> None:
        """There are more steps that no checkpoint has."""
        self.unsaved += steps
        if steps and self.unsaved_since is None:
            self.unsaved_since = self.now()

    def saved(self, step: int, size: int) -> None:
        """A checkpoint was written."""
        self.checkpoint = (step, size, self.now())
        self.unsaved, self.unsaved_since = 0, None

    @property
    def known(self) -> bool:
        """Whether it is known where the model stands: not before the first recovery."""
        return bool(self.recoveries)

    def _examine(self, pipeline: Pipeline) -> None:
        """What takes longer: it reads B."""
        state = pipeline.progress.state
        self.card = assumption_card(pipeline.problem, state)
        if self.chains:  # not on snapshots: settings may change what an audit compares
            first = self.card[0]
            more = self.plan.batching.with_draws(len(self.chains))
            self.card = (replace(first, reason=f"{first.reason}; {more}"), *self.card[1:])
        if state.t > 0:
            self.dead = len(dead_atoms(state))
            self.residuals = stationarity(pipeline.problem, state)

    @property
    def modes(self) -> Sequence[str]:
        """The names of the modes; that of a group has those of all its axes."""
        names = self.plan.axes or [str(i) for i in range(len(self.plan.shape))]
        groups = self.plan.layout.groups if self.plan.layout else [(i,) for i in range(len(names))]
        return [" × ".join(names[mode] for mode in group) for group in groups]

    @property
    def sparsity(self) -> float | None:
        """The share of codes of the last step that are zero; not known where others have them."""
        if self.step is None:
            return 0.0
        return float((self.step.codes == 0.0).mean()) if len(self.step.codes) else None

    def client(self) -> Client:
        """What the client of the input counts."""
        return Client.read(self.statistics())

    def lag(self, client: Client) -> dict[int, int]:
        """Records of each partition that are not done with; a partition of which the end is not known is not there."""
        return {p: max(end - self.resume[p], 0) for p, end in client.ends.items() if p in self.resume}

    def held_up(self) -> dict[int, float]:
        """For each partition how many seconds what others have waits for it."""
        now, awaited = self.now(), self.awaited
        return {p: now - awaited.get(p, now) for p in self.resume}

    def _lagging(self) -> tuple[int | None, float]:
        lag = self.lag(self.client())
        return sum(lag.values()) if lag else None, self.lag_seconds(lag)

    def lag_seconds(self, lag: Mapping[int, int]) -> float:
        """How long ago the tensor was written that was learned last; zero if nothing waits."""
        return max(self.wall() - self.newest / 1000, 0.0) if any(lag.values()) and self.newest >= 0 else 0.0


class Membership(Protocol):
    """The place of a process among the others."""

    @property
    def rebalances(self) -> int:
        """How often the group has shared out the shards anew."""
        ...


class Board:
    """All shards of a process, and the process itself."""

    def __init__(self, model: str, shards: int, now: Callable[[], float] = time.monotonic) -> None:
        self.model, self.count, self.now = model, shards, now
        self.shards: dict[int, Shard] = {}
        self.starting: str | None = "starting"
        """What has to be done before the first term; none if that is over."""
        self.missing: Sequence[str] = ()
        """Topics that are not there."""
        self.election: Membership | None = None
        self.address: str | None = None
        """Where this can be seen."""
        self.idle = False
        """Whether the group has no shard for us."""
        self.beat = now()

    def turned(self, idle: bool = False) -> None:
        """The loop of the process went round."""
        self.beat, self.idle = self.now(), idle

    def begin(self, shard: int, plan: Plan) -> Shard:
        """A term begins."""
        self.shards[shard] = found = Shard(plan, self.now)
        found.turned()
        return found

    def end(self, shard: int, board: Shard) -> None:
        """A term is over; the next one may have begun."""
        if self.shards.get(shard) is board:
            del self.shards[shard]

    @property
    def role(self) -> str:
        """What this process is at the moment."""
        if self.shards:
            return "writer"
        return "standby" if self.idle else "starting"

    def stuck(self, limit: float) -> list[str]:
        """The loops that did not go round for so many seconds."""
        now = self.now()
        loops = {"the process": self.beat} | {f"shard {s}": board.beat for s, board in list(self.shards.items())}
        return [f"{name} is stuck for {now - beat:.0f} s" for name, beat in loops.items() if now - beat > limit]

    def unready(self) -> list[str]:
        """Why it is not ready; nothing if it is. A standby is ready: it does what it is there for."""
        reasons = [f"the topic {name} is missing" for name in self.missing]
        if self.starting is not None:
            reasons.append(self.starting)
        elif self.role == "starting":
            reasons.append("waiting for the group to share out the shards")
        shards = list(self.shards.items())
        return reasons + [f"shard {s} is {board.doing}" for s, board in shards if board.doing != "running"]
