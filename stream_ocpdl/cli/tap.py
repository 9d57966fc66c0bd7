"""`stream-ocpdl tap`: what is on a topic, decoded."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import click

from stream_ocpdl.cli.options import reached, with_settings
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.errors import ConfigError
from stream_ocpdl.stream.describing import Fields, printable
from stream_ocpdl.stream.kafka import Connection
from stream_ocpdl.stream.sampling import Topic, place

STREAMS = ("input", "codes", "snapshots", "journal", "dead-letters", "control", "state", "partials")

USUAL = 10
"""Messages that are shown if nothing else is said."""


@click.command()
@with_settings
@click.argument("stream", metavar="[STREAM|TOPIC]", default="input")
@click.option("--limit", type=click.IntRange(1), help="So many at most; without it 10, or with --follow any number.")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|P:OFFSET",
    help="Where to begin; latest shows the newest, or with --follow what comes.",
)
@click.option("--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def tap(
    config: Path | None,
    overrides: tuple[str, ...],
    stream: str,
    limit: int | None,
    start: str,
    follow: bool,
    as_json: bool,
) -> None:
    """Show messages of a topic, decoded.

    Of the model's input, codes, snapshots, journal, dead-letters, control, state or partials; of another topic by its
    name.
    Committed records only; of a tensor its shape, its range and its first numbers. Messages in pieces are put together.
    What cannot be read is shown with the reason, and is no error: it ends with 0.

    Example: stream-ocpdl tap codes --config service.yaml --limit 5

    Example: stream-ocpdl tap input --config service.yaml --from 0:20 --json
    """
    settings, connection = reached(config, overrides)
    topic = chosen(settings, connection, stream)
    starts = beginning(topic, start)
    messages: Iterable[Fields]
    if follow:
        messages = islice(topic.follow(starts, lambda: False), limit)
    elif start == "latest":
        messages = topic.newest(limit or USUAL)
    else:
        messages = topic.first(starts, limit or USUAL)
    with suppress(KeyboardInterrupt):
        for message in messages:
            click.echo(json.dumps(message, allow_nan=False) if as_json else line(message))


def chosen(settings: Settings, connection: Connection, stream: str) -> Topic:
    """The topic that is meant: that of a stream, or the one of this name."""
    topics = settings.made()
    if stream == "partials" and topics.partials is None:
        raise ConfigError("there are no partials: learner.source is tensors")
    name = topics.named(stream) if stream in STREAMS else stream
    if name == topics.input:
        plan = settings.plan()
        return Topic(connection, name, plan.format, plan.shape)
    return Topic(connection, name, whole=name != topics.state)


def beginning(topic: Topic, start: str) -> dict[int, int]:
    """Where to read each partition from."""
    ends = topic.ends()
    if start in ("earliest", "latest"):
        return {p: low if start == "earliest" else high for p, (low, high) in ends.items()}
    partition, offset = place(start)
    if partition not in ends:
        raise ConfigError(f"{topic.name} has no partition {partition}; it has {len(ends)}, counted from 0")
    low, high = ends[partition]
    if not low <= offset <= high:
        raise ConfigError(f"{topic.name}[{partition}] has offsets from {low} to below {high}, not {offset}")
    return {partition: offset}


def line(found: Fields) -> str:
    """A message for people: where, when, what."""
    message = safe(found)
    where = f"{message['partition']}:{message['offset']}"
    key = "" if message["key"] is None else f"  key {message['key']}"
    parts = f"  in {message['pieces']} pieces" if "pieces" in message else ""
    said, *more = _SAID.get(message["kind"], plainly)(message).split("\n")
    return "\n".join([f"{where:>10}  {message['time'] or '':24}  {message['kind']} {said}{key}{parts}", *more])


def safe(value: Any) -> Any:
    """The same with all text as a terminal may see it."""
    if isinstance(value, dict):
        return {name: safe(below) for name, below in value.items()}
    if isinstance(value, list):
        return [safe(below) for below in value]
    return printable(value) if isinstance(value, str) else value


def array(found: Mapping[str, Any]) -> str:
    """An array in a few numbers."""
    size = "×".join(map(str, found["shape"]))
    entries = f" with {found['nonzero']} entries" if "nonzero" in found else ""
    gaps = f", {found['not_finite']} not finite" if "not_finite" in found else ""
    head = " ".join(short(x) for x in found["head"])
    span = (
        "" if found["min"] is None else f"  {short(found['min'])} … {short(found['max'])}, mean {short(found['mean'])}"
    )
    return f"{size} {found['dtype']}{entries}{span}{gaps}  [{head} …]"


def short(x: Any) -> str:
    """A number in a few digits."""
    return f"{x:.4g}" if isinstance(x, float) else str(x)


def _tensor(m: Fields) -> str:
    return array(m) + (f"  ({', '.join(m['axes'])})" if "axes" in m else "")


def _draw(m: Fields) -> str:
    return f"{m['draw']} of chain {m['chain']} of {m['run']}{', tuning' if m['tuning'] else ''}: {_tensor(m)}"


def _code(m: Fields) -> str:
    atoms = " ".join(f"{r}: {short(h)}" for r, h in m["atoms"].items()) or "all zero"
    loss = f"loss {short(m['loss'])}{_judged(m)}"
    return f"of {_place(m['input'])}, step {m['step']}, {loss}, by {m['dictionary']}  [{atoms}]"


def _judged(m: Fields) -> str:
    """Among which part of the earlier tensors one is, by residual and by norm; and whether the data have changed."""
    said = f", residual {short(m['residual'])}" if "residual" in m else ""
    if "quantiles" in m:
        residual, norm = (f"{100 * share:.1f} %" for share in m["quantiles"])
        said += f" (above {residual} of earlier ones, the norm above {norm})"
    return said + (f", a change of {m['change']}" if "change" in m else "")


def _snapshot(m: Fields) -> str:
    modes = "".join(f"\n{'':38}{name}: {array(U)}" for name, U in zip(m["modes"], m["loadings"], strict=True))
    return f"{m['version']}, {m['tensors']} tensors, rank {m['rank']}, weight {short(m['weight'])}{modes}"


def _letter(m: Fields) -> str:
    size = "a tombstone" if m["refused_bytes"] is None else f"{m['refused_bytes']} bytes ({m['refused_head']} …)"
    return f"of {_place(m['input'])}, {m['error']}: {m['reason']}; {size}"


def _journal(m: Fields) -> str:
    used = f", used {m['used_records']} records ({' '.join(m['used'])}{_more(m['used'])})" if m["used_records"] else ""
    refused = f", refused {m['refused_records']}: {'; '.join(m['refused'])}" if m["refused_records"] else ""
    lost = f", lost {m['lost_records']} records" if "lost" in m else ""
    reason = f", {m['reason']}" if "reason" in m else ""
    return f"{m['event']} {m['step']} of epoch {m['epoch']}, {m['tensors']} tensors{used}{refused}{lost}{reason}"


def _more(shown: list[str]) -> str:
    return " …" if len(shown) > 5 else ""


def _chunk(m: Fields) -> str:
    why = f": {m['reason']}" if "reason" in m else ""
    return f"{m['index'] + 1} of {m['count']} of {m['id']}, {m['size']} bytes in all{why}"


def _unreadable(m: Fields) -> str:
    return f"{'' if m['bytes'] is None else str(m['bytes']) + ' bytes, '}{m['error']}: {m['reason']}"


def plainly(m: Fields) -> str:
    """What has no better words: its fields, one after the other."""
    known = ("partition", "offset", "time", "key", "bytes", "kind", "pieces")
    return ", ".join(f"{name} {value}" for name, value in m.items() if name not in known)


def _place(position: list[int]) -> str:
    return f"{position[0]}:{position[1]}"


_SAID: dict[str, Callable[[Fields], str]] = {
    "tensor": _tensor,
    "draw": _draw,
    "code": _code,
    "snapshot": _snapshot,
    "dead-letter": _letter,
    "journal": _journal,
    "chunk": _chunk,
    "unreadable": _unreadable,
}
