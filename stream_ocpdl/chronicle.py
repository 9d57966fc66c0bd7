"""What a model has left on its topics, read for a report: a dictionary, how it came to be, and what it is used for.

Codes and journal may be longer than anybody wants to wait for: of each at most so many records are read, the newest
and some of all times. The snapshots are read all, and only one of them is kept at a time. What is not to be found is
said, and is no error.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from stream_ocpdl.errors import ConfigError, DecodeError, OcpdlError
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.page.charts import Series, chart
from stream_ocpdl.page.codes import Codes
from stream_ocpdl.page.views import Json
from stream_ocpdl.stream.checkpoint import CheckpointStore, state_of
from stream_ocpdl.stream.kafka import Connection, Window, read_windows, stable_ends, windows
from stream_ocpdl.stream.messages import Code, JournalRecord, Record, Snapshot
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.snapshots import Published, is_meant
from stream_ocpdl.stream.terms import in_force

LIMIT = 20_000
"""Records of the journal, and codes, that are read."""

LARGEST = 64_000_000
"""A checkpoint with more bytes is not read only for its scale."""

EVENTS = 40
"""Of what happened to a model, at most."""

Seen = Callable[[], None]


@dataclass(slots=True)
class Dictionaries:
    """The snapshot that is meant, and how far the dictionary went from each to the next."""

    wanted: str
    shard: int = 0
    found: Published | None = None
    moves: list[tuple[int, int, tuple[float, ...]]] = field(default_factory=list)
    """Steps from and to, and ‖U_t − U_s‖_F of each mode, in the units that are learned."""
    _last: Snapshot | None = None

    def read(self, one: Published) -> None:
        """The next snapshot of the topic."""
        version = one.snapshot.version
        if is_meant(version, self.wanted, self.shard):
            self.found = one
        if version.shard != self.shard:
            return
        last, self._last = self._last, one.snapshot
        while self.moves and self.moves[-1][1] >= version.t:  # the model went back
            self.moves.pop()
        if last is not None and last.version.epoch == version.epoch and last.step < version.t:
            ways = [float(np.linalg.norm(U - V)) for U, V in zip(inward(one.snapshot), inward(last), strict=True)]
            self.moves.append((last.step, version.t, tuple(ways)))


def inward(snapshot: Snapshot) -> Sequence[Array]:
    """The loadings in the units in which they are learned."""
    layout = snapshot.layout
    if layout is None or layout.scaling is None or isinstance(layout.scaling.by, str):
        return snapshot.loadings
    return layout.inward(snapshot.loadings, layout.scaling.by)


def dictionaries(found: Iterator[Published], wanted: str, shard: int, seen: Seen) -> Dictionaries:
    """All snapshots of a topic, of which one is meant."""
    read = Dictionaries(wanted, shard)
    for one in found:
        seen()
        read.read(one)
    if read.found is None:
        raise ConfigError(f"there is no snapshot {wanted} of shard {shard}; snapshot list shows those that there are")
    return read


@dataclass(slots=True)
class Steps:
    """What a journal says of a model's way, as far as it was read."""

    whole: bool = True
    """Whether all of it was."""
    weights: list[tuple[int, float]] = field(default_factory=list)
    """w_t by step."""
    surrogates: list[tuple[int, float]] = field(default_factory=list)
    """f̂_t(D_t), where a record has it."""
    radii: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    """c′ᵢ w_t."""
    events: list[tuple[str, str]] = field(default_factory=list)
    digest: str = ""
    fingerprint: str = ""
    forks: list[tuple[int, int]] = field(default_factory=list)
    """Epochs, and the step after which each parts from those before it."""

    def read(self, record: JournalRecord, plan: Plan, scale: float) -> None:
        """The next record; without a scale there are no radii."""
        t, epoch = record.t, record.epoch or 0
        self.fingerprint = record.fingerprint or self.fingerprint
        if record.state is not None:
            self.digest = f"{record.state} of step {t}, epoch {epoch}"
        if record.event not in ("step", "refusal", "genesis"):
            self.events = [*self.events, (f"step {t}, epoch {epoch}", happened(record))][-EVENTS:]
        if record.target is not None or record.base is not None:
            self.forks.append((epoch, t))
            for kept in (self.weights, self.surrogates, self.radii):
                while kept and kept[-1][0] > t:
                    kept.pop()
        if record.figures is not None and len(record.figures) > 1:
            self.surrogates.append((t, record.figures[1]))
        if record.event == "step":
            self.weights.append((t, record.weight))
            if scale > 0:
                radii = in_force(plan.problem, record.terms).sets(scale).radii
                self.radii.append((t, tuple(c * record.weight for c in radii)))

    def forgotten(self, code: Code) -> bool:
        """Whether the model went back behind the step of this code."""
        return any(code.dictionary.epoch < epoch and code.step > t for epoch, t in self.forks)


def happened(record: JournalRecord) -> str:
    """An event in words."""
    why = f": {record.reason}" if record.reason else ""
    if record.target is not None:
        return f"went back to step {record.target.t} of epoch {record.target.epoch}{why}"
    if record.event == "reconfigure" and record.terms is not None:
        return f"reconfigured: {', '.join(f'{name} {value}' for name, value in record.terms._asdict().items())}{why}"
    if record.lost:
        return f"input lost: {sum(last - first + 1 for _, first, last in record.lost)} records{why}"
    return f"{record.event}{why}"


def steps(connection: Connection, topic: str, plan: Plan, scale: float, limit: int, seen: Seen) -> Steps:
    """The journal of a shard."""
    found = Steps()
    wanted = windows(stable_ends(connection, topic, [plan.shard]), limit)
    found.whole = len(wanted) == 1
    for _, record in _records(connection, topic, wanted, seen):
        with suppress(DecodeError):
            found.read(JournalRecord.from_bytes(record.value), plan, scale)
    return found


@dataclass(slots=True)
class Coded:
    """What the codes of a shard say."""

    newest: Codes
    """Of the newest."""
    losses: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Sum and count of the losses before learning, by step."""
    whole: bool = True

    def curve(self) -> tuple[list[int], list[float]]:
        """Mean losses by step."""
        at = sorted(self.losses)
        return at, [self.losses[t][0] / self.losses[t][1] for t in at]


def coded(
    connection: Connection, topic: str, rank: int, shard: int, limit: int, forgotten: Callable[[Code], bool], seen: Seen
) -> Coded:
    """The codes of a shard: losses of all times, and statistics of the newest."""
    found = Coded(Codes(rank))
    wanted = windows(stable_ends(connection, topic), limit)
    found.whole = len(wanted) == 1
    for number, record in _records(connection, topic, wanted, seen):
        with suppress(DecodeError):
            code = Code.from_bytes(record.value)
            if code.dictionary.shard != shard or len(code.code) != rank or forgotten(code):
                continue
            total, count = found.losses.get(code.step, (0.0, 0))
            found.losses[code.step] = (total + code.loss, count + 1)
            if number == len(wanted) - 1:
                found.newest.add(code.code[None])
    return found


def _records(connection: Connection, topic: str, wanted: Sequence[Window], seen: Seen) -> Iterator[tuple[int, Record]]:
    for found in read_windows(connection, topic, wanted):
        seen()
        yield found


def scale_of(store: CheckpointStore) -> float:
    """The scale of a model by its newest checkpoint; zero if there is none, or too large a one."""
    for candidate in store.candidates():
        if candidate.manifest.size > LARGEST:
            return 0.0
        with suppress(OcpdlError):
            return state_of(candidate.manifest, candidate.load()).scale
    return 0.0


def curves(modes: Sequence[str], moves: Dictionaries, way: Steps, losses: Coded | None) -> list[Json]:
    """How it converged."""
    seen = "" if way.whole and (losses is None or losses.whole) else "The newest, and some of all times."
    found = []
    first = [Series("surrogate, of all that was learned", *_columns(way.surrogates))]
    if losses is not None:
        first.append(Series("before learning, of each minibatch", *losses.curve()))
    if any(len(curve.x) for curve in first):
        found.append(chart("Loss", "step", "loss of a tensor", first, seen))
    if moves.moves:
        ends = [to for _, to, _ in moves.moves]
        drawn = []
        for i, mode in enumerate(modes):
            ways = [m[i] / (to - since) for since, to, m in moves.moves]
            drawn.append(Series(f"{mode} moved", ends, ways, colour=i))
            limits = [(t, radii[i]) for t, radii in way.radii]
            drawn += [Series(f"{mode} might", *_columns(limits), dashed=True, colour=i)] if limits else []
        note = "A step's share of the way from one snapshot to the next; the radius bounds each step."
        found.append(chart("Movement against radius", "step", "‖ΔU‖ a step", drawn, note, log="xy"))
    if way.weights:
        found.append(chart("Weight of a step", "step", "w", [Series("w", *_columns(way.weights))], log="xy"))
    return found


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [t for t, _ in points], [value for _, value in points]
