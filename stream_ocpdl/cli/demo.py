"""`stream-ocpdl demo`: a stream with a known dictionary, and the service finding it."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

from stream_ocpdl import interrupts
from stream_ocpdl.cli.spectacle import line, next_steps, picture, report_of, summary
from stream_ocpdl.demonstration import CHAINS, Demonstration, in_turn, tensors
from stream_ocpdl.errors import ConfigError, OcpdlError
from stream_ocpdl.fingerprint import build
from stream_ocpdl.observe.board import Board
from stream_ocpdl.observe.endpoints import application
from stream_ocpdl.observe.metrics import registry_of
from stream_ocpdl.observe.server import Server
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.learner import warm_up
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.reshape import Layout
from stream_ocpdl.ocpdl.synthetic import truth as dictionary
from stream_ocpdl.page.report import page
from stream_ocpdl.sources import IMAGES, from_file, in_colour, painted, shape_of, walk
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
PATCH, PATCHES = (12, 12, 3), 16
"""Of an image: the shape of a patch, and how many atoms."""

POOR = 0.9
"""Below this match with the truth the demo has not shown what it should."""

SHOW_CURSOR = b"\x1b[?25h\n"
"""What a terminal is told that something moved in."""

PARTITIONS = 4
STAND_IN = "a stand-in inside of this process: fine for a look, no evidence of delivery. Production uses Apache Kafka."


@click.command()
@click.option("--seconds", type=click.FloatRange(1), default=15.0, show_default=True, help="How long it streams.")
@click.option("--rate", type=click.FloatRange(1), default=150.0, show_default=True, help="Tensors a second.")
@click.option("--rank", type=click.IntRange(1), help=f"Atoms; without it {RANK}, of an image {PATCHES}.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the truth and of the stream.")
@click.option("--bootstrap-servers", help="A real Kafka, where topics are made and removed again.")
@click.option(
    "--data",
    metavar="image|FILE",
    help="Other data: patches of a picture with many textures, or of an image in a FILE; or a .npy FILE with tensors"
    " along its first axis.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the endpoints; any free one without it.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("demo.html"),
    show_default=True,
    help="Where the report is written in the end.",
)
def demo(
    seconds: float,
    rate: float,
    rank: int | None,
    seed: int,
    bootstrap_servers: str | None,
    data: str | None,
    port: int,
    report: Path,
) -> None:
    """Learn the dictionary of a Markovian stream, through a broker, and watch it being found.

    Tensors are mixtures of a few known atoms; several chains mix them, slowly, with noise. The service that learns them
    is the one of production. It ends by itself, with a report in HTML.

    Example: stream-ocpdl demo --seconds 10
    """
    if not report.absolute().parent.is_dir():  # now, and not when all is over
        raise ConfigError(f"{report} cannot be written: there is no such directory; choose another with --report")
    shown = _material(data, rank, seed)
    console = Console()
    _compile(shown.plan.problem, console)
    board, built = Board("demo", 1), build()
    with ExitStack() as stack:
        connection, topics, called = _broker(stack, bootstrap_servers)
        app = application(board, registry_of(board, built), built, "demo: true\n", 60.0)
        board.address = stack.enter_context(Server(app, "127.0.0.1", port)).address
        where = f"Kafka at {bootstrap_servers}" if bootstrap_servers else STAND_IN
        click.echo(f"broker: {where}\nmetrics and status: {board.address}/metrics, {board.address}/api/status")
        click.echo(f"in a browser: {board.address}/")
        steps = max(1, round(seconds * rate / BATCH))
        plan = replace(shown.plan, topic=topics.input)
        found = Demonstration(connection, topics, plan, shown.stream, steps * BATCH, rate, board, shown.truth, called)
        finished = _watch(found, console)
        click.echo(summary(found, finished))
    if finished:
        _write(report, page(report_of(found, built)))
        click.echo(f"report: {report.absolute().as_uri()}")
    click.echo(next_steps())
    matches = found.matches()
    if finished and matches and sum(matches) / len(matches) < POOR:
        raise OcpdlError("the truth was not found in this time: try --seconds 60, or another --seed")


def _compile(problem: Problem, console: Console) -> None:
    """Everything that will be called; in a terminal something moves meanwhile."""
    click.echo("compiling the kernels (the first time takes about a minute) …")
    columns = (SpinnerColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) if console.is_terminal else nullcontext() as progress:
        if progress is not None:
            progress.add_task("", total=None)
        interrupts.fatal(SHOW_CURSOR if progress is not None else b"")
        try:
            warm_up(problem)
        finally:
            interrupts.quiet()
            interrupts.heard()


class Material(NamedTuple):
    """What is shown: what is to be learned, from what, and the truth, where it is known."""

    plan: Plan
    stream: Iterator[tuple[int, BigArray]]
    truth: list[Array]


def _material(data: str | None, rank: int | None, seed: int) -> Material:
    if data is None:
        truth = dictionary(SHAPE, rank or RANK, seed)
        return Material(_plan(SHAPE, rank or RANK, seed, None), tensors(truth, seed), truth)
    path = Path(data)
    if data == "image" or path.suffix.lower() in IMAGES:
        image = painted(seed=seed) if data == "image" else in_colour(path) / 255.0
        stream = in_turn([walk(image, PATCH, seed * CHAINS + k) for k in range(CHAINS)])
        plan = _plan(PATCH, rank or PATCHES, seed, ("y", "x", "colour"), Layout(PATCH, ((0, 1), (2,))))
        return Material(plan, stream, [])
    shape = shape_of(path)
    return Material(_plan(shape, rank or RANK, seed, None), in_turn([_again(path, shape)]), [])


def _plan(
    shape: tuple[int, ...], rank: int, seed: int, axes: tuple[str, ...] | None, layout: Layout | None = None
) -> Plan:
    problem = Problem(layout.grouped if layout else shape, rank, batch_size=BATCH, seed=seed)
    return Plan("demo", problem, Batching(BATCH, order="arrival"), axes=axes, layout=layout)


def _again(path: Path, shape: tuple[int, ...]) -> Iterator[BigArray]:
    """The tensors of a file, over and over."""
    while True:
        yield from from_file(path, shape).each


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose another with --report") from error


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
