"""`stream-ocpdl plan`: what a model will take, before there is one."""

import json
from dataclasses import asdict
from math import inf
from typing import Any

import click

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.machine import processors
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.workers import Workers
from stream_ocpdl.scaling import Outlook, measure, outlook
from stream_ocpdl.sizing import Advice, Limit, Pace, Sizes, advise, available, calibrate, limits

DAY = 86_400


@click.command()
@click.option("--shape", required=True, metavar="I1,I2,…", help="The shape of one tensor, such as 90,5000.")
@click.option("--rank", type=int, required=True, help="The number of atoms.")
@click.option("--batch", type=int, default=32, show_default=True, help="Tensors in a minibatch.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Tensors a second."
)
@click.option("--dtype", type=click.Choice(["float64", "float32"]), default="float64", show_default=True, help="Of B.")
@click.option(
    "--sent-as",
    type=click.Choice(["<f8", "<f4", "<f2", "|u1"]),
    default="<f8",
    show_default=True,
    help="Numbers of a message.",
)
@click.option("--threads", type=click.IntRange(1), help="Of the kernels; without it as many as there are processors.")
@click.option("--seconds", type=click.FloatRange(0), default=2.0, show_default=True, help="To learn for; 0 not at all.")
@click.option("--workers", type=click.IntRange(1), help="Also for up to so many workers that learn one dictionary.")
@click.option(
    "--bandwidth", type=click.FloatRange(0, min_open=True), metavar="MB/S", help="That the brokers move, for --workers."
)
@click.option("--json", "as_json", is_flag=True, help="The same as JSON on standard output.")
def plan(
    shape: str,
    rank: int,
    batch: int,
    rate: float,
    dtype: Any,
    sent_as: str,
    threads: int | None,
    seconds: float,
    workers: int | None,
    bandwidth: float | None,
    as_json: bool,
) -> None:
    """Say what a model would take, before there is one.

    Memory, messages, checkpoints, limits of the broker, partitions; and its speed on this machine. The speed is
    measured, by learning a few minibatches of made-up tensors. Needs no broker and no settings. Where the memory does
    not suffice nothing is measured, and the rest is said. With --workers it also says what many machines like this
    one would do, if each is one worker with partials of --batch tensors, by a model of what they wait for.

    Example: stream-ocpdl plan --shape 90,5000 --rank 20 --rate 50
    """
    problem = Problem(shape=sizes_of(shape), rank=rank, batch_size=batch, dtype=dtype)
    sizes = Sizes.of(problem, dtype=sent_as)
    pace, why = measured(problem, sizes, threads or processors(), seconds)
    advice = advise(problem, sizes, rate, pace)
    sizes = Sizes.of(problem, advice.partitions, sent_as)
    many = None if workers is None or pace is None else fleets(problem, sizes, workers, bandwidth, threads, seconds)
    if as_json:
        told = as_dict(sizes, rate, batch, pace, why, advice)
        click.echo(json.dumps(told | ({} if many is None else {"workers": asdict(many)}), indent=1))
    else:
        click.echo("\n".join([*page(sizes, rate, batch, pace, why, advice), *([] if many is None else table(many))]))


def sizes_of(shape: str) -> tuple[int, ...]:
    """The sizes of the modes.

    >>> sizes_of("90,5000"), sizes_of("8x8x3")
    ((90, 5000), (8, 8, 3))
    """
    parts = shape.lower().replace("x", ",").split(",")
    if len(parts) > 16 or not all(part.strip().isdecimal() and len(part.strip()) < 12 for part in parts):
        raise ConfigError(f"--shape must be the sizes of 1 to 16 modes, such as 90,5000, not {shape[:80]!r}")
    return tuple(int(part) for part in parts)


def measured(problem: Problem, sizes: Sizes, threads: int, seconds: float) -> tuple[Pace | None, str]:
    """How fast it is learned here; or why that was not measured."""
    if seconds == 0:
        return None, "not asked for"
    there, needed = available(), 3 * sizes.learner
    if there is not None and needed > there:
        return None, f"it takes up to {amount(needed)} of memory, and there are {amount(there)}"
    click.echo(
        f"learning for {seconds:g} s; the first time on a machine kernels are compiled, for half a minute", err=True
    )
    with Workers(threads) as workers:
        return calibrate(problem, workers, seconds), ""


def fleets(
    problem: Problem, sizes: Sizes, most: int, bandwidth: float | None, threads: int | None, seconds: float
) -> Outlook:
    """What up to so many machines like this one would do."""
    with Workers(threads or processors()) as workers:
        costs = measure(problem, sizes.message, seconds, workers)
    return outlook(costs, problem.batch_size, most, inf if bandwidth is None else 1e6 * bandwidth)


def table(many: Outlook) -> list[str]:
    """Of workers, for people."""
    costs, names = many.costs, ("workers", "together", "stale", "in a tree")
    numbers = [(f"{r.workers}", f"{r.synchronous:,.0f}", f"{r.stale:,.0f}", f"{r.merged:,.0f}") for r in many.rows]
    held_up = ["tensors a second, held up by", *(row.bound for row in many.rows)]
    return [
        f"a worker    {1 / costs.tensor:,.0f} tensors a second; a partial is {amount(costs.partial)}; the learner adds"
        f" one in {1000 * costs.merge:.3g} ms, and a round takes it {1000 * costs.update:.3g} ms more",
        *(
            " " * 12 + " ".join(f"{cell:>10}" for cell in row) + f"   {bound}"
            for row, bound in zip([names, *numbers], held_up, strict=True)
        ),
        f"            the learner takes {many.most:,.0f} at most with partials of {many.batch} tensors; with larger"
        " ones as much more",
    ]


def as_dict(sizes: Sizes, rate: float, batch: int, pace: Pace | None, why: str, advice: Advice) -> dict[str, Any]:
    """For machines."""
    return {
        "bytes": asdict(sizes) | {"learner": sizes.learner, "input_per_day": int(DAY * rate * sizes.message)},
        "speed": None if pace is None else {"step_seconds": pace.seconds, "steps": pace.steps, "peak_bytes": pace.peak},
        "speed_unknown": why or None,
        "steps_per_second": None if pace is None else 1 / pace.seconds,
        "tensors_per_second": None if pace is None else batch / pace.seconds,
        "limits": [asdict(limit) for limit in limits(sizes)],
        "advice": asdict(advice),
    }


def page(sizes: Sizes, rate: float, batch: int, pace: Pace | None, why: str, advice: Advice) -> list[str]:
    """For people."""
    return [
        f"memory      {amount(sizes.learner)} a shard: B {amount(sizes.B)}, A {amount(sizes.A)},"
        f" loadings {amount(sizes.loadings)}, a minibatch {amount(sizes.minibatch)};",
        f"            and up to {amount(sizes.records)} of records that wait",
        f"messages    a tensor {amount(sizes.message)}{pieces(sizes)}, a code {amount(sizes.code)},"
        f" a snapshot {amount(sizes.snapshot)}",
        f"            {amount(DAY * rate * sizes.message)} of input a day, {amount(DAY * rate * sizes.code)} of codes",
        f"checkpoint  {amount(sizes.checkpoint)}, of which {sizes.checkpoints // sizes.checkpoint} are kept",
        *(f"limit       {one(limit)}" for limit in limits(sizes)),
        *speed(rate, batch, pace, why, advice),
        f"partitions  {advice.partitions} of the input, {advice.shards} shard{'s' * (advice.shards > 1)}",
    ]


def pieces(sizes: Sizes) -> str:
    """In how many records a tensor goes."""
    return f" in {sizes.pieces} pieces" if sizes.pieces > 1 else ""


def one(limit: Limit) -> str:
    """A limit in words."""
    return f"{limit.setting} of {limit.where}: at least {limit.least} ({limit.why})"


def speed(rate: float, batch: int, pace: Pace | None, why: str, advice: Advice) -> list[str]:
    """What this machine does."""
    if pace is None or advice.load is None:
        return [f"speed       not measured: {why}"]
    peak = "" if pace.peak is None else f"; this process took {amount(pace.peak)} at its peak"
    return [
        f"speed       {1 / pace.seconds:,.1f} steps a second, {batch / pace.seconds:,.0f} tensors a second (median of"
        f" {pace.steps} steps of the learner alone){peak}",
        f"load        {advice.load:.1%} of one shard's time at {rate:g} tensors a second",
    ]


def amount(size: float) -> str:
    """Bytes as people say them.

    >>> amount(90 * 5000 * 20 * 8), amount(12)
    ('72 MB', '12 B')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
