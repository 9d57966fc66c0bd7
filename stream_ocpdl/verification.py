"""The kill test: a stream learned under SIGKILLs and learned undisturbed must leave the same traces.

    1. A stream goes to a temporary topic, some of it poison, for as long as the kills last.
    2. A service learns it and is killed at random instants and at named crash points, and started again each time; or
       several replicas of it come and go in a storm, and some of them are frozen until they are given up (`storm`).
    3. In canonical order another service learns the same topic undisturbed.
    4. What each left is examined (`evidence`): every code, dead letter and snapshot published once and as a replay of
       the journal from scratch finds it, every input learned or refused, positions at the end, the state that of the
       replay. In canonical order state and codes are also those of the other service.

It knows the service only as a process, as an operator does, and reads the topics as any consumer would.
"""

import random
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from stream_ocpdl.config.clients import Kafka
from stream_ocpdl.config.settings import BatchingSettings, Input, PaceSettings, ProblemSettings, Settings
from stream_ocpdl.errors import OcpdlError
from stream_ocpdl.evidence import Evidence, examine
from stream_ocpdl.lives import Life, VerificationFailed
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.storm import PAUSE, Weather, owns
from stream_ocpdl.stream.kafka import Connection, committed, create_topics, delete_topics, produce, watermarks
from stream_ocpdl.stream.messages import Code, Draw, Tensor, split

CRASH_POINTS = ("before-produce", "after-produce", "before-commit", "after-commit", "in-checkpoint", "in-replay")
SHAPE, RANK, BATCH = (6, 5, 4), 3, 8


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried."""

    bootstrap_servers: str
    kills: int = 10
    """SIGKILLs at random instants."""
    partitions: int = 3
    canonical: bool = True
    """Full batches in canonical order; else batches that linger, in order of arrival."""
    seed: int = 0
    shards: int = 1
    replicas: int = 1
    """Processes at once, in a storm."""
    storm: float = 0.0
    """Seconds for which replicas come and go."""
    pause: float = PAUSE
    """Mean seconds until the next comes or goes; standbys that are to be warm need some."""
    zombies: int = 0
    """How often the owner of a shard is frozen past its session."""
    session_ms: int = 6000
    """After which a replica that was killed is missed: the least that a broker takes by default."""
    seconds_a_life: float = 3.0
    """Mean time from a start to a kill; a start takes about two of them."""
    report: Callable[[str], None] = print


@dataclass(slots=True)
class Verdict:
    """What was found. `failures` is empty if all is well."""

    inputs: int = 0
    codes: int = 0
    dead_letters: int = 0
    steps: int = 0
    random_kills: int = 0
    crash_points: list[str] = field(default_factory=list)
    state: str = ""
    seconds: float = 0.0
    ends: dict[str, int] = field(default_factory=dict)
    """How replicas ended in a storm: terminated, killed, frozen."""
    takeovers: dict[str, list[float]] = field(default_factory=dict)
    """Warm and cold: the seconds from an election to the first poll."""
    failures: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For scripts."""
        return asdict(self)


def verify(trial: Trial) -> Verdict:
    """Run the kill test on temporary topics."""
    connection = Connection(trial.bootstrap_servers)
    prefix, verdict, began = f"ocpdl-verify-{uuid.uuid4().hex[:8]}", Verdict(), time.monotonic()
    models = [settings_of(trial, f"{prefix}.{kind}", f"{prefix}.input") for kind in ("disturbed", "calm")]
    models = models if trial.canonical else models[:1]
    topics = {prefix + ".input": (trial.partitions, dict[str, str]())}
    create_topics(connection, topics)
    feed = Feed(trial)
    try:
        warm_up(models[0].plan().problem)  # what is compiled here no life has to compile
        feed.begin(connection, models[0].topic)
        _disturb(trial, models[0], verdict)
        if trial.storm or trial.zombies:
            weather = Weather(models[0], trial.replicas, trial.session_ms / 1000, trial.pause, trial.seed, trial.report)
            weather.rage(trial.storm, trial.zombies)
            verdict.ends, verdict.takeovers = dict(weather.ends), dict(weather.takeovers)
        verdict.inputs = feed.end()
        for settings in models:
            finish(trial, settings)
        trial.report("examining")
        _judge(verdict, [examine(connection, settings) for settings in models])
    finally:
        feed.stop()  # else it would write on, and a broker that makes topics by itself would make this one again
        for settings in models:
            topics |= settings.topics().outputs(1)
        delete_topics(connection, topics)
    verdict.seconds = time.monotonic() - began
    return verdict


def _judge(verdict: Verdict, found: list[Evidence]) -> None:
    """What the evidence comes to."""
    first = found[0]
    verdict.codes, verdict.dead_letters = first.codes.total(), first.dead_letters.total()
    verdict.steps, verdict.state = first.steps, first.state
    for name, evidence in zip(("disturbed", "calm"), found, strict=False):
        verdict.failures += [f"{name}: it does not hold that {promise}" for promise in evidence.broken]
    if first.learned + verdict.dead_letters != verdict.inputs:
        verdict.failures.append(
            f"{verdict.inputs} inputs, but {first.learned} learned and {verdict.dead_letters} dead letters"
        )
    if len(found) > 1 and found[0].state != found[1].state:
        verdict.failures.append("the state is not that of an undisturbed run")
    if len(found) > 1 and _nameless(found[0].codes) != _nameless(found[1].codes):
        verdict.failures.append("the codes are not those of an undisturbed run")


def _nameless(codes: Counter[bytes]) -> Counter[bytes]:
    """Codes without the name of their model."""
    found: Counter[bytes] = Counter()
    for value, count in codes.items():
        code = Code.from_bytes(value)
        found[replace(code, dictionary=code.dictionary._replace(model="")).to_bytes()] = count
    return found


def settings_of(trial: Trial, model: str, topic: str) -> Settings:
    """The settings of a model of a trial."""
    batching = BatchingSettings(
        size=BATCH,
        linger_ms=40,
        close="full" if trial.canonical else "linger",
        order="canonical" if trial.canonical else "arrival",
    )
    return Settings(
        model=model,
        input=Input(topic=topic),
        bootstrap_servers=trial.bootstrap_servers,
        problem=ProblemSettings(shape=list(SHAPE), rank=RANK, seed=trial.seed),
        batching=batching,
        pace=PaceSettings(commit_interval_ms=30, checkpoint_every=25),
        snapshot_every=20,
        digest_every=1,
        shards=trial.shards,
        kafka=Kafka(extra={"session.timeout.ms": trial.session_ms}),
    )


# ── the stream ─────────────────────────────────────────────────────────────────────────────────────────────────


class Feed:
    """The stream: a hundred rounds a second of one record for each partition, until told to end.

    One in fifty is poison, a draw that came before among it, and one in fifty comes in pieces, some of them repeated or
    lost. The last rounds are such
    that all tensors fill whole minibatches.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._ending = threading.Event()
        self._stopped = False
        self._failed: list[OcpdlError] = []
        self._written = 0
        self._planned = dict.fromkeys(range(trial.shards), 0)
        """The tensors of each shard."""
        self._unseen = dict.fromkeys(range(trial.shards), False)
        """Whether a tensor that is poison was written after the last good one: only the next minibatch finds it out."""
        self._drawn: dict[int, bytes] = {}
        """For each partition the last draw that came in one."""
        self._thread: threading.Thread | None = None

    def begin(self, connection: Connection, topic: str) -> None:
        """Write to this topic from now on."""
        self._thread = threading.Thread(target=self._run, args=(connection, topic), daemon=True)
        self._thread.start()

    def end(self) -> int:
        """Write what is left, and wait until everything has arrived; how many records it was."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        if self._failed:
            raise self._failed[0]
        return self._written

    def stop(self) -> None:
        """Write no more, whatever is left."""
        self._stopped = True
        with suppress(OcpdlError):
            self.end()

    def _run(self, connection: Connection, topic: str) -> None:
        try:
            produce(connection, topic, self._paced())
        except OcpdlError as error:
            self._failed.append(error)

    def _paced(self) -> Iterator[tuple[int, bytes | None]]:
        began, rounds = time.monotonic(), 0
        lines: list[deque[bytes | None]] = [deque() for _ in range(self._trial.partitions)]
        while not self._ending.is_set() or not all(map(self._even, self._planned)) or any(lines):
            if self._stopped:
                return
            for partition, line in enumerate(lines):
                if not line:
                    shard = partition % self._trial.shards
                    values, tensors = self._next(rounds, partition, shard)
                    self._unseen[shard] &= tensors == 0
                    line.extend(values)
                    self._planned[shard] += tensors
                yield partition, line.popleft()
                self._written += 1
            rounds += 1
            self._ending.wait(max(0.0, began + rounds / 100 - time.monotonic()))

    def _even(self, shard: int) -> bool:
        """Whether the tensors of a shard fill whole minibatches."""
        return self._planned[shard] % BATCH == 0 and not self._unseen[shard]

    def _next(self, k: int, partition: int, shard: int) -> tuple[list[bytes | None], int]:
        """The next records of a partition, and how many tensors they make."""
        luck = _chance(self._trial, k, partition).random()
        if self._ending.is_set() and self._even(shard):
            return [b"the end"], 0
        if luck < 0.02 and not self._ending.is_set():
            self._unseen[shard] |= k % 5 >= 3
            return [_poison(k, self._drawn.get(partition))], 0
        value = _draw(self._trial, k, partition)
        if luck > 0.04 or self._ending.is_set():
            self._drawn[partition] = value
            return [value], 1
        first, *others = [chunk.to_bytes() for chunk in split(value, f"{partition}:{k}", len(value) // 3)]
        if k % 2:
            return [first, *others], 1
        return ([first, first, *others], 1) if k % 4 else ([first, *others[1:]], 0)


def _chance(trial: Trial, k: int, partition: int) -> np.random.Generator:
    return np.random.default_rng([trial.seed, k, partition])


def _poison(k: int, drawn: bytes | None) -> bytes | None:
    """What is none, or not finite, or a draw that came before."""
    bad = Tensor(np.full(SHAPE, np.nan)).to_bytes()
    return [b"poison", None, b"", bad, drawn or bad][k % 5]


def _draw(trial: Trial, k: int, partition: int) -> bytes:
    """A slowly moving mixture of fixed atoms; each partition has a chain."""
    atoms = np.random.default_rng(trial.seed).random((RANK, *SHAPE))
    codes = 1 + np.sin(k / 50 + np.arange(RANK))
    array = np.tensordot(codes, atoms, 1) + 0.1 * _chance(trial, k, partition).random(SHAPE)
    return Draw(Tensor(array), "verify", partition, k).to_bytes()


# ── lives and deaths ───────────────────────────────────────────────────────────────────────────────────────────


def _disturb(trial: Trial, settings: Settings, verdict: Verdict) -> None:
    """One life for each crash point and each random kill, in random order."""
    chance = random.Random(trial.seed)  # noqa: S311  (instants, not secrets)
    deaths = [*(CRASH_POINTS if trial.kills else ()), *["random"] * trial.kills]
    chance.shuffle(deaths)
    lives = 0
    while deaths:
        lives += 1
        point = deaths.pop()
        if point == "random":
            trial.report(f"life {lives}: killed at random")
            with Life(settings) as life:
                life.sleep(chance.uniform(0.0, 2 * trial.seconds_a_life))
                life.process.kill()
            verdict.random_kills += 1
        else:
            trial.report(f"life {lives}: killed {point}")
            visit = 1 if point.startswith("in-") else chance.randint(1, 5)
            with Life(settings, "--crash-at", f"{point}:{visit}") as life:
                died = life.dies(point)
            if died:
                verdict.crash_points.append(point)
            else:  # nothing to replay this time; it ends at random, and leaves something to the next
                deaths.insert(len(deaths) // 2, point)


def finish(trial: Trial, settings: Settings) -> None:
    """A last life that reaches the end of the input, and ends in order when it is told to."""
    connection = Connection(settings.bootstrap_servers)
    goals = {p: high for p, (_, high) in watermarks(connection, settings.topic, range(trial.partitions)).items()}
    trial.report(f"{settings.model.rsplit('.', 1)[1]}: learning to the end")
    with Life(settings) as life:
        deadline = time.monotonic() + 300
        while not owns(life) or committed(connection, settings.model, settings.topic) != goals:
            life.sleep(0.2)
            if time.monotonic() > deadline:
                raise VerificationFailed(f"{settings.model} did not reach the end of its input in 300 s")
        life.process.terminate()
        if life.process.wait(60) != 0:
            raise VerificationFailed(f"{settings.model} ended with code {life.process.returncode} after SIGTERM")
