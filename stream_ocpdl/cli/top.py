"""`stream-ocpdl top`: running services, watched in a terminal."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stream_ocpdl.errors import Unanswered
from stream_ocpdl.observe.remote import Look, Row, address, look, rows
from stream_ocpdl.stream.describing import printable

HERE = "http://127.0.0.1:9464"


@click.command()
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option(
    "--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="Look once and end; with 6 if no service answers.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a look, with all that the service says.")
def top(urls: tuple[str, ...], interval: float, once: bool, as_json: bool) -> None:
    """Watch running services in a terminal.

    By their endpoints: steps, rates, lag, losses, what is refused, the last checkpoint. A table in a terminal, else a
    line for each shard and look. A service that is gone is said to be so, and comes back when it does. Without a URL it
    is http://127.0.0.1:9464, where a service is by default. An interrupt ends it.

    Example: stream-ocpdl top http://127.0.0.1:9464 --once
    """
    for url in urls:
        address(url)  # a mistake is said before anything else
    watched = urls or (HERE,)
    if once:
        found = [look(url) for url in watched]
        show(found, [None] * len(found), as_json)
        if all(one.status is None for one in found):
            raise Unanswered(f"no service answers at {', '.join(watched)}")
        return
    try:
        if sys.stdout.isatty() and not as_json:
            live(watched, interval)
        else:
            for found, before in looks(watched, interval):
                show(found, before, as_json)
    except KeyboardInterrupt:
        pass


def looks(urls: Sequence[str], interval: float) -> Iterator[tuple[list[Look], list[Look | None]]]:
    """A look at every service and the one before, again and again."""
    before: list[Look | None] = [None] * len(urls)
    while True:
        due = time.monotonic() + interval
        found = [look(url) for url in urls]
        yield found, before
        before = [*found]
        time.sleep(max(0.0, due - time.monotonic()))


def show(found: Sequence[Look], before: Sequence[Look | None], as_json: bool) -> None:
    """A look in lines."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for one, earlier in zip(found, before, strict=True):
        if as_json:
            click.echo(json.dumps({"time": now, "url": one.url, "status": one.status, "gone": one.gone or None}))
        else:
            click.echo("\n".join(f"{now}  {said}" for said in lines(one, earlier)))


def lines(one: Look, before: Look | None) -> list[str]:
    """A service in plain text, a line for each shard."""
    if one.status is None:
        return [f"{one.url}: gone: {printable(one.gone)}"]
    head = title(one)
    return [f"{head}  {line(row)}" for row in rows(one, before)] or [head]


def title(one: Look) -> str:
    """Which model, in which role, and why it is not ready."""
    status = one.status or {}
    reasons = status.get("reasons")
    why = "; ".join(map(str, reasons)) if isinstance(reasons, list) else ""
    return printable(f"{status.get('model', '?')} {status.get('role', '?')}" + (f" (not ready: {why})" if why else ""))


def line(row: Row) -> str:
    """A shard in plain text."""
    cells = dict(zip(COLUMNS, cells_of(row), strict=True))
    return ", ".join(f"{name} {value}" for name, value in cells.items())


COLUMNS = (
    *("shard", "doing", "epoch", "step", "tensors", "tensors/s", "steps/s", "lag", "lag s", "loss", "surrogate"),
    *("refused", "checkpoint", "age s"),
)


def cells_of(row: Row) -> list[str]:
    """A shard, cell by cell."""
    whole = [row.epoch, row.step, row.seen]
    return [
        *(printable(row.shard), printable(row.doing)),
        *(number(x, ".0f") for x in whole),
        *(number(x, ",.1f") for x in (row.tensor_rate, row.step_rate)),
        *(number(row.lag, ".0f"), number(row.lag_seconds, ".1f")),
        *(number(x, ".4g") for x in (row.loss, row.surrogate)),
        *(number(row.refused, ".0f"), number(row.checkpoint, ".0f"), number(row.checkpoint_age, ".0f")),
    ]


def number(value: float | None, form: str) -> str:
    """A number, or a dash."""
    return "–" if value is None else format(value, form)


def live(urls: Sequence[str], interval: float) -> None:
    """A table that is always of now."""
    known: dict[str, Look] = {}
    with Live(console=Console(), auto_refresh=False) as screen:
        for found, before in looks(urls, interval):
            screen.update(picture(found, before, known), refresh=True)
            known |= {one.url: one for one in found if one.status is not None}


def picture(found: Sequence[Look], before: Sequence[Look | None], known: dict[str, Look]) -> Group:
    """All services, each with a column for every shard; of one that is gone since when."""
    parts: list[Text | Table] = [Text(datetime.now(UTC).strftime("%H:%M:%SZ"))]
    for one, earlier in zip(found, before, strict=True):
        if one.status is None:
            last = f", last seen {one.at - known[one.url].at:.0f} s ago" if one.url in known else ""
            parts.append(Text(f"{one.url}: gone{last}: {printable(one.gone)}", style="red"))
            continue
        parts.append(Text(f"{one.url}: {title(one)}", style="yellow" if one.status.get("reasons") else "bold"))
        shards = [cells_of(row) for row in rows(one, earlier)]
        if shards:
            parts.append(table(shards))
    return Group(*parts)


def table(shards: Sequence[Sequence[str]]) -> Table:
    """Shards side by side: that many columns fit into any terminal."""
    names, *rest = zip(COLUMNS, *shards, strict=True)
    found = Table()
    for index, name in enumerate(names):
        found.add_column(Text(str(name)), justify="right" if index else "left")
    for name, *cells in rest:
        found.add_row(Text(name), *(Text(cell) for cell in cells))
    return found
