"""The kill test: a stream learned under SIGKILLs and learned undisturbed must leave the same traces.

    1. A stream goes to a temporary topic, some of it poison, for as long as the kills last.
    2. A service learns it and is killed at random instants and at named crash points, and started again each time.
    3. In canonical order another service learns the same topic undisturbed.
    4. What is left is compared: every input in one step or one dead letter, every code published once, positions at the
       end, the state equal to a replay of the journal from scratch, and in canonical order equal to the other's, codes
       byte for byte.

It knows the service only as a process, as an operator does, and reads the topics as any consumer would.
"""

import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stream_ocpdl.errors import OcpdlError
from stream_ocpdl.settings import Settings
from stream_ocpdl.stream.checkpoint import NoStore, progress_of
from stream_ocpdl.stream.journal import JournalRecord
from stream_ocpdl.stream.kafka import (
    Connection,
    KafkaSource,
    committed,
    create_topics,
    delete_topics,
    produce,
    read_committed,
    watermarks,
)
from stream_ocpdl.stream.messages import Code, DeadLetter, Position, Tensor
from stream_ocpdl.stream.recovery import Recovered, recover
from stream_ocpdl.stream.topics import TopicJournal, Topics, TopicStore

CRASH_POINTS = ("before-produce", "after-produce", "before-commit", "after-commit", "in-checkpoint", "in-replay")
SHAPE, RANK, BATCH = (6, 5, 4), 3, 8


class VerificationFailed(OcpdlError):
    """The service did not do what it is started for."""


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
    failures: list[str] = field(default_factory=list)

    def check(self, holds: bool, claim: str) -> None:
        """Note a claim that does not hold."""
        if not holds:
            self.failures.append(claim)

    def as_dict(self) -> dict[str, Any]:
        """For scripts."""
        return asdict(self)


def verify(trial: Trial) -> Verdict:
    """Run the kill test on temporary topics."""
    connection = Connection(trial.bootstrap_servers)
    name = f"ocpdl-verify-{uuid.uuid4().hex[:8]}"
    verdict, began = Verdict(), time.monotonic()
    disturbed, calm = (_settings(trial, f"{name}.{kind}", f"{name}.input") for kind in ("disturbed", "calm"))
    models = [disturbed, calm] if trial.canonical else [disturbed]
    topics = [Topics.of(settings.model, settings.input) for settings in models]
    try:
        for each in topics:
            create_topics(connection, each.layout(trial.partitions))
        feed = _Feed(trial, connection, disturbed.input)
        _disturb(trial, disturbed, verdict)
        feed.end()
        for settings in models:
            _finish(trial, settings)
        _compare(trial, connection, models, verdict)
    finally:
        delete_topics(connection, {name for each in topics for name in each.layout(1)})
    verdict.seconds = time.monotonic() - began
    return verdict


def _settings(trial: Trial, model: str, topic: str) -> Settings:
    order = {"close": "full", "order": "canonical"} if trial.canonical else {"close": "linger", "order": "arrival"}
    return Settings(
        model=model,
        input=topic,
        bootstrap_servers=trial.bootstrap_servers,
        problem={"shape": list(SHAPE), "rank": RANK, "seed": trial.seed},
        batching={"size": BATCH, "linger_ms": 40, **order},
        pace={"commit_interval_ms": 30, "checkpoint_every": 25},
        snapshot_every=20,
        digest_every=1,
    )


# ── the stream ─────────────────────────────────────────────────────────────────────────────────────────────────


class _Feed:
    """The stream: forty rounds a second of one record for each partition, in whole minibatches, until told to end."""

    def __init__(self, trial: Trial, connection: Connection, topic: str) -> None:
        self._trial = trial
        self._ending = threading.Event()
        self._failed: list[OcpdlError] = []
        self._thread = threading.Thread(target=self._run, args=(connection, topic), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Write the minibatch under way to its end, and wait until everything has arrived."""
        self._ending.set()
        self._thread.join()
        if self._failed:
            raise self._failed[0]

    def _run(self, connection: Connection, topic: str) -> None:
        try:
            produce(connection, topic, self._paced())
        except OcpdlError as error:
            self._failed.append(error)

    def _paced(self) -> Iterator[tuple[int, bytes | None]]:
        began, k = time.monotonic(), 0
        while not self._ending.is_set() or k % BATCH:
            yield from ((partition, _value(self._trial, k, partition)) for partition in range(self._trial.partitions))
            k += 1
            self._ending.wait(max(0.0, began + k / 40 - time.monotonic()))


def _value(trial: Trial, k: int, partition: int) -> bytes | None:
    """A tensor of a slowly moving mixture; in every hundred minibatches the rounds of one are poison."""
    generator = np.random.default_rng([trial.seed, k, partition])
    if k // BATCH % 100 == 37:
        return [b"poison", None, b"", Tensor(np.full(SHAPE, np.nan)).to_bytes()][k % 4]
    atoms = np.random.default_rng(trial.seed).random((RANK, *SHAPE))
    codes = 1 + np.sin(k / 50 + np.arange(RANK))
    return Tensor(np.tensordot(codes, atoms, 1) + 0.1 * generator.random(SHAPE)).to_bytes()


# ── lives and deaths ───────────────────────────────────────────────────────────────────────────────────────────


def _disturb(trial: Trial, settings: Settings, verdict: Verdict) -> None:
    """One life for each crash point and each random kill, in random order."""
    chance = random.Random(trial.seed)  # noqa: S311  (instants, not secrets)
    deaths: list[str | None] = [*CRASH_POINTS, *[None] * trial.kills]
    chance.shuffle(deaths)
    for number, point in enumerate(deaths, 1):
        trial.report(f"life {number} of {len(deaths)}: {'killed at ' + point if point else 'killed at random'}")
        if point:
            visit = 1 if point in ("in-checkpoint", "in-replay") else chance.randint(1, 5)
            with _service(settings, "--crash-at", f"{point}:{visit}") as life:
                _await_death(life, point)
            verdict.crash_points.append(point)
        else:
            with _service(settings) as life:
                _sleep_or_raise(life, chance.uniform(0.0, 2 * trial.seconds_a_life))
                life.kill()
            verdict.random_kills += 1


def _finish(trial: Trial, settings: Settings) -> None:
    """A last life that reaches the end of the input, and ends in order when it is told to."""
    connection = Connection(settings.bootstrap_servers)
    goals = {p: high for p, (_, high) in watermarks(connection, settings.input, range(trial.partitions)).items()}
    trial.report(f"{settings.model.rsplit('.', 1)[1]}: learning to the end")
    with _service(settings) as life:
        deadline = time.monotonic() + 300
        while committed(connection, settings.model, settings.input) != goals:
            _sleep_or_raise(life, 0.2)
            if time.monotonic() > deadline:
                raise VerificationFailed(f"{settings.model} did not reach the end of its input in 300 s")
        life.send_signal(signal.SIGTERM)
        if life.wait(60) != 0:
            raise VerificationFailed(f"{settings.model} ended with code {life.returncode} after SIGTERM")


class _service:
    """The service as a process; whatever is left of it at the end is killed."""

    def __init__(self, settings: Settings, *more: str) -> None:
        self._directory = tempfile.TemporaryDirectory()
        path = Path(self._directory.name)
        settings.save(path / "service.json")
        command = [sys.executable, "-m", "stream_ocpdl", "run", "--config", str(path / "service.json"), *more]
        self._log = (path / "log").open("w+b")
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self._log)  # noqa: S603

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._process

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._process.kill()
        self._process.wait()
        if isinstance(error, VerificationFailed):
            self._log.seek(0)
            error.add_note(self._log.read().decode(errors="replace")[-4000:])
        self._log.close()
        self._directory.cleanup()


def _sleep_or_raise(life: subprocess.Popen[bytes], seconds: float) -> None:
    """Sleep, unless the service ends by itself."""
    try:
        life.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise VerificationFailed(f"the service ended by itself with code {life.returncode}")


def _await_death(life: subprocess.Popen[bytes], point: str) -> None:
    try:
        life.wait(120)
    except subprocess.TimeoutExpired:
        raise VerificationFailed(f"the crash point {point} was not reached in 120 s") from None
    if life.returncode != -signal.SIGKILL:
        raise VerificationFailed(f"the service ended by itself with code {life.returncode} before {point}")


# ── what is left ───────────────────────────────────────────────────────────────────────────────────────────────


def _compare(trial: Trial, connection: Connection, models: list[Settings], verdict: Verdict) -> None:
    """Every claim, on what the topics hold."""
    trial.report("comparing")
    everything = set(_inputs(trial, connection, models[0].input))
    states, codes = [], []
    for settings in models:
        topics, name = Topics.of(settings.model, settings.input), settings.model.rsplit(".", 1)[1]
        published = [record.value or b"" for record in _all(connection, topics.codes)]
        coded = [Code.from_bytes(value).position for value in published]
        letters = [DeadLetter.from_bytes(r.value).record.position for r in _all(connection, topics.dead_letters)]
        journal = [JournalRecord.from_bytes(value) for _, value in TopicJournal(connection, topics.journal).read()]
        used = _used(journal, everything)
        verdict.check(len(set(coded)) == len(coded), f"{name}: a code was published twice")
        verdict.check(len(set(letters)) == len(letters), f"{name}: a dead letter was published twice")
        verdict.check(sorted(coded) == sorted(used), f"{name}: the codes are not those of the journal's inputs")
        verdict.check(set(coded) | set(letters) == everything, f"{name}: an input is in no code and no dead letter")
        verdict.check(not set(coded) & set(letters), f"{name}: an input is in a code and in a dead letter")
        replayed, kept = _replayed(connection, settings), _kept(connection, settings)
        verdict.check(replayed == kept, f"{name}: the state is not that of a replay of its journal")
        states.append(replayed)
        codes.append(dict(zip(coded, published, strict=True)))
        if settings is models[0]:
            verdict.inputs, verdict.codes, verdict.dead_letters = len(everything), len(coded), len(letters)
            verdict.steps, verdict.state = journal[-1].t, replayed
    if trial.canonical:
        verdict.check(states[0] == states[1], "the state is not that of an undisturbed run")
        stripped = [{p: replace(Code.from_bytes(v), model="").to_bytes() for p, v in each.items()} for each in codes]
        verdict.check(stripped[0] == stripped[1], "the codes are not those of an undisturbed run")


def _inputs(trial: Trial, connection: Connection, topic: str) -> Iterator[Position]:
    for partition in range(trial.partitions):
        for record in read_committed(connection, topic, partition):
            yield Position(partition, record.offset)


def _all(connection: Connection, topic: str) -> Iterator[Any]:
    """The committed records of all partitions."""
    source = KafkaSource(connection, topic, "verify")
    source.close()
    for partition in source.partitions:
        yield from read_committed(connection, topic, partition)


def _used(journal: list[JournalRecord], everything: set[Position]) -> list[Position]:
    found = []
    for record in journal:
        for partition, first, last in record.used:
            found += [place for o in range(first, last + 1) if (place := Position(partition, o)) in everything]
    return found


def _replayed(connection: Connection, settings: Settings) -> str:
    """The digest of the state after a replay of the whole journal, without any checkpoint."""
    topics = Topics.of(settings.model, settings.input)
    source = KafkaSource(connection, settings.input, f"{settings.model}.replay")
    try:
        journal = TopicJournal(connection, topics.journal)
        found: Recovered = recover(settings.plan(), source, journal, NoStore(), lambda _: None)
    finally:
        source.close()
    return found.progress.state.digest()


def _kept(connection: Connection, settings: Settings) -> str:
    """The digest of the state in the newest checkpoint, which the last life left behind."""
    topics = Topics.of(settings.model, settings.input)
    newest = next(TopicStore(connection, topics.state, settings.model).candidates())
    return progress_of(newest.manifest, newest.load()).state.digest()
