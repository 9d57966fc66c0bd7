"""The delay of `staleness`, on Apache Kafka: a learner of partials, and an encoder that may be no fresher than it.

The learner is `stream-ocpdl run`. The encoder is that of `stream-ocpdl encode`, with a group, transactions and the
snapshots topic; `partials.staleness` keeps it from a dictionary that is older than τ steps. That it has no younger one
is up to this experiment: dictionaries that come are kept, and the encoder is handed the one of which its next partial
is to be made. Rounds after the synchronous ones come in once those are committed, for there the service would go on
with the dictionary that it has. In the end the partials on their topic say with which they were made: all, or it is an
error.

The stream, the problem and the held-out tensors are those of `staleness`; a round is two partials of ten tensors.
`memory` is the same delay without a broker, `apart` how far the two losses are from each other, relatively, at most.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from benchmarks.measure import FULL, Options, Row, table
from benchmarks.staleness import BATCH, DELAYS, RANK, RIDGE, SHAPE, delayed, held_out, made_with, minibatches
from benchmarks.workers import made
from stream_ocpdl.cli.encode import EncoderWork
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.evidence import all_records
from stream_ocpdl.observe.fleet import EncoderBoard
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.workers import SERIAL
from stream_ocpdl.stream.assembly import whole
from stream_ocpdl.stream.dictionaries import Dictionary
from stream_ocpdl.stream.kafka import Connection, Election, delete_topics, produce
from stream_ocpdl.stream.member import Member
from stream_ocpdl.stream.messages import Partial, Tensor
from stream_ocpdl.stream.newest import Newest, followed
from tests.broker.cluster import obtain

KEYS = ("radius", "first", "tau")
RATIOS = {"loss": "lower"}

PARTITIONS, SIZE, OLDEST = 2, BATCH // 2, 1
"""A partial has to be of twice the rank, at least; and the dictionary before the first step knows no scale."""
RADII: tuple[float | str | None, ...] = ("auto", 1.0, None)
CASES = (*((radius, 10) for radius in RADII), ("auto", 1))
"""Radii, and how many rounds are synchronous at first: not less than one."""
COLUMNS = {
    "radius": "",
    "first": "",
    "tau": "",
    "loss": ".4f",
    "worst": ".4f",
    "memory": ".4f",
    "apart": ".1e",
    "seconds": ".0f",
}


def run(options: Options = FULL) -> list[Row]:
    """Every delay, with a radius and without."""
    steps, seeds = (60, 1) if options.quick else (200, 3)
    rows: list[Row] = []
    with obtain() as broker:
        print(f"Apache Kafka from {broker.origin}")
        connection = Connection(broker.bootstrap_servers)
        for radius, first in CASES:
            base: Array | None = None
            for tau in DELAYS:
                began = time.monotonic()
                found = [through(connection, radius, tau, first, steps, seed) for seed in range(seeds)]
                alone = [delayed(radius, None, tau, first, steps, seed, OLDEST) for seed in range(seeds)]
                both = np.array([found, alone])
                base = both if base is None else base
                row: Row = {"radius": str(radius), "first": first, "tau": tau, **told(both, base)}
                rows.append(row | {"seconds": (time.monotonic() - began) / seeds})
                table(rows[-1:], COLUMNS)
    return rows


def told(both: Array, base: Array) -> Row:
    """Losses relative to those without a delay; and how far broker and memory are apart."""
    (found, alone), (relative, memory) = both, both / base
    return {
        "loss": float(np.median(relative)),
        "worst": float(relative.max()),
        "memory": float(np.median(memory)),
        "apart": float((abs(found - alone) / alone).max()),
    }


class Held(Newest):
    """Hands out, of all dictionaries that came, the one of which the next partials are to be made."""

    def __init__(self, settings: Settings, connection: Connection, wanted: Callable[[], int]) -> None:
        follow = followed(connection, settings.coded().snapshots, 1)
        super().__init__(settings.plan(), follow, self._keep)
        self._wanted, self.past = wanted, dict[int, Dictionary]()
        self._last: int | None = None

    def _keep(self, dictionary: Dictionary) -> None:
        t = dictionary.version.t
        self.past[t], self._last = dictionary, t

    def __call__(self) -> Mapping[int, Dictionary]:
        """One that is not there yet is waited for, by the encoder, which has an older one meanwhile."""
        super().__call__()  # it may have failed
        last = self._last
        return {} if last is None else {0: self.past[min(self._wanted(), last)]}


def through(connection: Connection, radius: float | str | None, tau: int, first: int, steps: int, seed: int) -> float:
    """The loss of held-out tensors after so many rounds whose partials are of a dictionary τ steps old."""
    problem = {"shape": list(SHAPE), "rank": RANK, "ridge": RIDGE, "radius": radius, "seed": seed}
    partials = {"size": SIZE, "staleness": tau, "synchronous_first": first}
    settings = made(connection, PARTITIONS, problem, partials, pace={"poll_timeout_ms": 2})
    topics, board = settings.coded(), EncoderBoard(settings.model, 1, settings.coded().snapshots)

    def done() -> int:
        rounds = [stand.round for stand in list(board.stands.values())]
        return min(rounds) if len(rounds) == PARTITIONS else 0

    try:
        held = Held(settings, connection, lambda: made_with(done() + 1, tau, first, OLDEST))
        stream = list(minibatches(seed, steps))
        with learner(settings) as log, held, encoder(settings, connection, held, board) as ended:

            def until(holds: Callable[[], bool]) -> None:
                while not holds():
                    if ended.done():
                        raise RuntimeError(log.read_text()) from ended.exception()
                    time.sleep(0.02)

            send(connection, settings.topic, stream[:first])
            until(lambda: done() == first)
            send(connection, settings.topic, stream[first:])
            until(lambda: steps in held.past)
        check(connection, topics.partials or "", tau, first, steps)
        dictionary = held.past[steps]
        batch, _ = dictionary.gather(list(held_out(seed)))
        return float(dictionary.code(batch).losses.mean())
    finally:
        delete_topics(connection, [settings.topic, *settings.made().outputs(1)])


def send(connection: Connection, topic: str, rounds: Sequence[Array]) -> None:
    """The first half of each minibatch to one partition, the second to the other."""
    values = ((k // SIZE, Tensor(X).to_bytes()) for minibatch in rounds for k, X in enumerate(minibatch))
    produce(connection, topic, values)


@contextmanager
def learner(settings: Settings) -> Iterator[Path]:
    """A process that learns; what it says."""
    with tempfile.TemporaryDirectory() as directory:
        path, log = Path(directory) / "service.json", Path(directory) / "log"
        settings.save(path)
        command = [sys.executable, "-m", "stream_ocpdl", "run", "--config", str(path)]
        with log.open("wb") as file:
            process = subprocess.Popen(command, stderr=file)  # noqa: S603
        try:
            yield log
        finally:
            process.kill()
            process.wait()


@contextmanager
def encoder(settings: Settings, connection: Connection, held: Held, board: EncoderBoard) -> Iterator["Future[None]"]:
    """An encoder in a thread; it ends with what is done here, or earlier with an error."""
    over: list[bool] = []

    def work() -> None:
        with closing(Election(connection, settings.topic, settings.fleet())) as election:
            board.newest, board.group = held, election
            parts = settings, settings.plan(), settings.rhythm(), connection, SERIAL, election, held, board
            Member(election, EncoderWork(*parts).run, lambda: bool(over)).run()

    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(work)
        finally:
            over.append(True)


def check(connection: Connection, topic: str, tau: int, first: int, steps: int) -> None:
    """Raise unless each round has its partials, all of the dictionary that was to be."""
    found = [Partial.from_bytes(record.value) for record in whole(all_records(connection, topic))]
    made = sorted((partial.round or 0, partial.dictionary.t) for partial in found)
    wanted = [(r, made_with(r, tau, first, OLDEST)) for r in range(1, steps + 1) for _ in range(PARTITIONS)]
    if made != wanted:
        raise RuntimeError(f"the delay of {tau} was not held: {sorted(set(made) ^ set(wanted))[:10]}")


def plot(rows: list[Row], path: Path) -> None:
    """What a delay costs, through the broker (lines) and in memory (crosses)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    ax = figure.subplots()
    for k, (radius, first) in enumerate(CASES):
        mine = [row for row in rows if (row["radius"], row["first"], row["tau"] > 0) == (str(radius), first, True)]
        label = (
            f"c′ {'none' if radius is None else radius}, {first} synchronous round{'s' if first > 1 else ''} at first"
        )
        tau, style = [row["tau"] for row in mine], "--" if radius is None else "-"
        ax.plot(tau, [row["loss"] - 1 for row in mine], f"C{k}{style}", marker="o", mfc="none", label=label)
        ax.plot(tau, [row["memory"] - 1 for row in mine], f"C{k}x")
    ax.plot([], [], "kx", label="the same in memory")
    ax.set(
        xlabel="delay τ in steps", xscale="log", yscale="log", ylabel="held-out loss beyond that of τ = 0, relatively"
    )
    ax.set(xticks=DELAYS[1:], xticklabels=DELAYS[1:])
    ax.minorticks_off()
    ax.legend(fontsize=8)
    figure.savefig(path, dpi=120)
