"""`stream-ocpdl produce`: tensors from files, a pipe or a sampler, to a topic."""

import json
import re
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click

from stream_ocpdl.cli.options import Reading, reached, with_settings
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.errors import ConfigError, OcpdlError
from stream_ocpdl.ocpdl.synthetic import truth
from stream_ocpdl.samplers.chain import Chain
from stream_ocpdl.samplers.named import KINDS, named
from stream_ocpdl.sources import Tensors, from_file, from_pipe, from_sampler
from stream_ocpdl.stream.client import TensorProducer
from stream_ocpdl.stream.drawing import Drawing, drawn
from stream_ocpdl.stream.filling import Filling, written
from stream_ocpdl.stream.kafka import partitions_of_topic
from stream_ocpdl.stream.snapshots import save

SAID = 2.0
"""Seconds between two lines that say how far it is."""

SAMPLED = 1000
"""Tensors of the sampler, or draws of each chain, if nothing else is said."""


@click.command()
@with_settings
@click.argument("sources", metavar="FILE...|sampler|ising|motif|markov|metropolis|-", nargs=-1, required=True)
@click.option("--to", "target", help="Another topic than the input.")
@click.option("--array", help="Of a .npz file: which array.")
@click.option("--stride", type=click.IntRange(1), help="From one patch or window to the next; without it they touch.")
@click.option(
    "--count",
    type=click.IntRange(1),
    help="So many tensors at most, or draws of each chain; of samplers 1000 without it.",
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Tensors a second; without it as fast as it goes."
)
@click.option("--key", help="A key for all of them: they stay in order in one partition.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the sampler.")
@click.option("--chains", type=click.IntRange(1, 1000), default=1, show_default=True, help="Chains side by side.")
@click.option(
    "--with", "words", multiple=True, metavar="NAME=VALUE", help="Of a chain, such as temperature=2.3; repeatable."
)
@click.option(
    "--truth", "truth_file", type=click.Path(path_type=Path), help="Write the sampler's dictionary here, .npz."
)
@click.option("--run", help="The name of this run, by which it can go on; without it one is made up, and said.")
@click.option("--resume", is_flag=True, help="Go on with the run: leave out what the topic has of it.")
@click.option("--json", "as_json", is_flag=True, help="What was done as JSON on standard output.")
def produce(
    config: Path | None,
    overrides: tuple[str, ...],
    sources: tuple[str, ...],
    target: str | None,
    array: str | None,
    stride: int | None,
    count: int | None,
    rate: float | None,
    key: str | None,
    seed: int,
    chains: int,
    words: tuple[str, ...],
    truth_file: Path | None,
    run: str | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Write tensors to the input of a model.

    From files, from a pipe (-), or from a built-in sampler; all of the model's shape.

    .npy and .npz: one tensor, or many along the first axis. Images: patches (Pillow reads them). .csv: windows of rows.
    A pipe: arrays in .npy format, one after the other. The sampler: mixtures of a known dictionary along a Markov
    chain. Tensors go round the partitions in their order. A run that was cut short goes on with --run and --resume.

    Chains, --chains of them side by side, write draws, which say of which run and chain they are: ising (--with
    temperature=, field=, sweeps=), motif (edges=FILE, chain=pivot or glauber, steps=), markov (relaxation=,
    states=FILE), metropolis (density=MODULE:FUNCTION, map=MODULE:FUNCTION, scale=, steps=).

    Example: stream-ocpdl produce sampler --config service.yaml --count 500 --truth truth.npz

    Example: stream-ocpdl produce ising --config service.yaml --chains 4 --with temperature=2.3 --run ising

    Example: stream-ocpdl produce tensors.npy --config service.yaml --rate 2000 --run monday --resume
    """
    if resume and run is None:
        raise ConfigError("--resume goes on with a run: say which with --run")
    if run is not None and not re.fullmatch("[A-Za-z0-9._-]{1,100}", run):
        raise ConfigError(f"--run must be 1 to 100 letters, digits, dots, dashes or underscores, not {run[:100]!r}")
    settings, connection = reached(config, overrides)
    if settings.input.format != "native" and target is None:
        raise ConfigError(f"the model reads its input as {settings.input.format}, and this writes the native format")
    walking = walks(settings, sources, chains, words, seed, key)
    tensors = None if walking else gathered(settings, sources, array, stride, seed, count, truth_file)
    topic, run = target or settings.topic, run or uuid.uuid4().hex[:8]
    producer = TensorProducer(settings.bootstrap_servers, topic, options=connection.options)
    axes, total = None if settings.axes is None else tuple(settings.axes), count
    partitions = len(partitions_of_topic(connection, topic))
    if tensors is None:
        known = drawn(connection, topic, run, Reading("records")) if resume else {}
        had, each = sum(b - a for n in known.values() for a, b in n.runs), count or SAMPLED
        drawing = Drawing(producer, partitions, run, sources[0], axes, signed=not settings.plan().problem.nonnegative)
        writing, total = drawing.write(walking, each, known), each * chains
    else:
        there = written(connection, topic, run, Reading("records")) if resume else frozenset()
        filling = Filling(producer, partitions, run, None if key is None else key.encode(), axes)
        had, writing, total = len(there), filling.write(tensors.each, there), tensors.count
    what = f"run {run}: to {topic}, {partitions} partitions"
    click.echo(what + (f"; it has {had} already" if had else ""), err=True)
    if walking and chains < partitions:
        click.echo(f"{chains} chains fill {chains} partitions: canonical minibatches wait for the others", err=True)
    progress = Progress(total, rate)
    try:
        for _, fresh in writing:
            progress.one(fresh)
        producer.flush()
    except KeyboardInterrupt:
        producer.flush()
        click.echo(f"interrupted; the same command with --run {run} --resume goes on", err=True)
    except OcpdlError as error:
        error.add_note(f"the same command with --run {run} --resume goes on, once that is mended")
        raise
    if as_json:
        done = {"run": run, "topic": topic, "written": progress.fresh, "there": progress.old}
        click.echo(json.dumps(done))
    else:
        before = f", {progress.old} were there" if progress.old else ""
        click.echo(f"{progress.fresh} tensors written to {topic}{before}")


def walks(
    settings: Settings, sources: tuple[str, ...], chains: int, words: tuple[str, ...], seed: int, key: str | None
) -> dict[int, Chain]:
    """The chains by their numbers; none if the sources are no sampler of chains."""
    found = [source for source in sources if source in KINDS]
    if not found:
        if words or chains > 1:
            raise ConfigError(f"--with and --chains are for {', '.join(KINDS)}")
        return {}
    if len(sources) > 1:
        raise ConfigError(f"{found[0]} is a sampler, and stands alone")
    if key is not None:
        raise ConfigError("draws have keys of their own, run:chain; --key is for other tensors")
    told = dict(word.partition("=")[::2] for word in words)
    sampler = named(found[0], tuple(settings.problem.shape), settings.problem.rank, seed, told)
    return {number: Chain(sampler, seed, number) for number in range(chains)}


def gathered(
    settings: Settings,
    sources: tuple[str, ...],
    array: str | None,
    stride: int | None,
    seed: int,
    count: int | None,
    truth_file: Path | None,
) -> Tensors:
    """The tensors of all sources, one after the other."""
    shape, found = tuple(settings.problem.shape), []
    for source in sources:
        if source == "sampler":
            loadings = truth(shape, settings.problem.rank, seed)
            if truth_file is not None:
                save(truth_file, loadings, f"sampler, seed {seed}")
            found.append(from_sampler(loadings, seed, count or SAMPLED))
        elif source == "-":
            found.append(from_pipe(sys.stdin.buffer, shape))
        else:
            found.append(from_file(Path(source), shape, array, stride))
    known = [one.count for one in found if one.count is not None]
    total = sum(known) if len(known) == len(found) else None
    each: Iterator[Any] = chain.from_iterable(one.each for one in found)
    return Tensors(total if count is None or total is None else min(total, count), islice(each, count))


@dataclass(slots=True)
class Progress:
    """How far it is, at the pace that is wanted."""

    total: int | None
    rate: float | None
    fresh: int = 0
    old: int = 0
    began: float = 0.0
    told: float = 0.0

    def one(self, fresh: bool) -> None:
        """One more tensor; waits until the next one is due."""
        now = time.monotonic()
        self.began, self.told = self.began or now, self.told or now
        self.fresh, self.old = self.fresh + fresh, self.old + (not fresh)
        if now - self.told > SAID:
            done = f"{self.fresh + self.old}" + (f" of {self.total}" if self.total is not None else "")
            click.echo(f"{done} tensors, {self.fresh / (now - self.began):.0f} a second", err=True)
            self.told = now
        if fresh and self.rate is not None:
            time.sleep(max(0.0, self.began + self.fresh / self.rate - now))
