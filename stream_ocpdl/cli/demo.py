"""`stream-ocpdl demo`: a stream with a known dictionary, and the service finding it."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from itertools import count, cycle
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.live import Live

from stream_ocpdl.cli.spectacle import line, picture, summary
from stream_ocpdl.demonstration import CHAINS, Demonstration, tensors
from stream_ocpdl.errors import ConfigError, OcpdlError
from stream_ocpdl.fingerprint import build
from stream_ocpdl.observe.board import Board
from stream_ocpdl.observe.endpoints import application
from stream_ocpdl.observe.metrics import registry_of
from stream_ocpdl.observe.server import Server
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.synthetic import truth as dictionary
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.kafka import (
    Connection,
    Embedded,
    called_embedded,
    create_topics,
    delete_topics,
    reach,
    topic_id,
)
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.topics import Topics

SHAPE, RANK, BATCH = (24, 20, 6), 6, 16
POOR = 0.9
"""Below this match with the truth the demo has not shown what it should."""

PARTITIONS = 4
STAND_IN = "a stand-in inside of this process: fine for a look, no evidence of delivery. Production uses Apache Kafka."


@click.command()
@click.option("--seconds", type=click.FloatRange(1), default=40.0, show_default=True, help="How long it streams.")
@click.option("--rate", type=click.FloatRange(1), default=150.0, show_default=True, help="Tensors a second.")
@click.option("--rank", type=click.IntRange(1), default=RANK, show_default=True, help="Atoms.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the truth and of the stream.")
@click.option("--bootstrap-servers", help="A real Kafka, where topics are made and removed again.")
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Other data: a .npy file with tensors along its first axis.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the endpoints; any free one without it.")
def demo(
    seconds: float, rate: float, rank: int, seed: int, bootstrap_servers: str | None, data: Path | None, port: int
) -> None:
    """Learn the dictionary of a Markovian stream, through a broker, and watch it being found.

    Tensors are mixtures of a few known atoms; several chains mix them, slowly, with noise. The service that learns them
    is the one of production.

    Example: stream-ocpdl demo --seconds 20
    """
    truth: list[Array] = [] if data else dictionary(SHAPE, rank, seed)
    stream = _file(data) if data else tensors(truth, seed)
    shape = next(stream)[1].shape
    plan = Plan("demo", Problem(shape, rank, batch_size=BATCH, seed=seed), Batching(BATCH, order="arrival"))
    console = Console()
    click.echo("compiling the kernels (the first time takes most of a minute) …")
    warm_up(plan.problem)
    board, built = Board("demo", 1), build()
    with ExitStack() as stack:
        connection, topics, called = _broker(stack, bootstrap_servers)
        app = application(board, registry_of(board, built), built, "demo: true\n", 60.0)
        board.address = stack.enter_context(Server(app, "127.0.0.1", port)).address
        where = f"Kafka at {bootstrap_servers}" if bootstrap_servers else STAND_IN
        click.echo(f"broker: {where}\nmetrics and status: {board.address}")
        steps = max(1, round(seconds * rate / BATCH))
        shown = Demonstration(connection, topics, plan, stream, steps * BATCH, rate, board, truth, called)
        finished = _watch(shown, console)
        click.echo(summary(shown, finished))
    matches = shown.matches()
    if finished and matches and sum(matches) / len(matches) < POOR:
        raise OcpdlError("the truth was not found in this time: try --seconds 60, or another --seed")


def _watch(shown: Demonstration, console: Console) -> bool:
    """Until it is over; false if somebody had enough of it."""
    said, began = -5.0, time.monotonic()
    try:
        shown.start()
        with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
            for _ in count():
                if live is not None:
                    live.update(picture(shown, time.monotonic() - began), refresh=True)
                elif time.monotonic() - began - said >= 5.0:
                    said = time.monotonic() - began
                    click.echo(line(shown))
                if shown.done:
                    break
                time.sleep(0.1)
    except KeyboardInterrupt:
        return False
    finally:
        shown.end()
    return True


def _broker(stack: ExitStack, servers: str | None) -> tuple[Connection, Topics, Callable[[Connection, str], str]]:
    """Where the stream goes through: the stand-in, or topics of our own at a real one."""
    if servers is None:
        embedded = stack.enter_context(Embedded())
        topics = Topics.of("demo", "demo.tensors")
        embedded.make([topics.input, *topics.outputs(1)])
        return embedded.connection, topics, called_embedded
    connection, model = Connection(servers, patience=10.0), f"demo-{uuid.uuid4().hex[:8]}"
    reach(connection)
    topics = Topics.of(model, f"{model}.tensors")
    made: dict[str, tuple[int, dict[str, str]]] = {topics.input: (PARTITIONS, {}), **topics.outputs(PARTITIONS)}
    create_topics(connection, made)
    stack.callback(delete_topics, connection, list(made))
    return connection, topics, topic_id


def _file(path: Path) -> Iterator[tuple[int, Array]]:
    """The tensors of a file, again and again."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a .npy file: {error}") from None
    if array.ndim < 2 or len(array) == 0 or array.dtype.kind not in "fiu":
        raise ConfigError(f"{path} has shape {array.shape} and dtype {array.dtype}; numbers (tensors, I₁ …) are needed")
    for k in cycle(range(len(array))):
        yield k % CHAINS, np.asarray(array[k], np.float64)
