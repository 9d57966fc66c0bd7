"""`stream-ocpdl dlq`: what was refused, and sending it back."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from stream_ocpdl.cli.options import reached, with_settings
from stream_ocpdl.stream.letters import Choice, Letter, read_letters, send_back, sent_back
from stream_ocpdl.stream.topics import Topics

F = TypeVar("F", bound=Callable[..., Any])

SAID = 1000
"""Letters between two lines that say how far it is."""


@click.group()
def dlq() -> None:
    """Look at the dead letters of a model, or send them back to its input.

    Example: stream-ocpdl dlq list --config service.yaml
    """


def with_choice(command: F) -> F:
    """Which letters are meant."""
    reason = click.option("--reason", help="Only letters that have this in the class of their error or in the reason.")
    at = click.option(
        "--at", "places", multiple=True, metavar="P:OFFSET", help="Only the record that was here; repeatable."
    )
    limit = click.option("--limit", type=click.IntRange(1), help="So many at most, the oldest first.")
    return reason(at(limit(command)))


@dlq.command("list")
@with_settings
@with_choice
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all of them.")
def show(
    config: Path | None,
    overrides: tuple[str, ...],
    reason: str | None,
    places: tuple[str, ...],
    limit: int | None,
    as_json: bool,
) -> None:
    """Show the dead letters: where the record was, when it was refused, the class of the error and the reason.

    In the end how many there are of each kind: all of those that are meant, also beyond the limit.

    Example: stream-ocpdl dlq list --config service.yaml --reason "not finite" --limit 20
    """
    choice = Choice(reason, places)
    settings, connection = reached(config, overrides)
    topic = Topics.of(settings.model, settings.topic).dead_letters
    shown: list[dict[str, Any]] = []
    kinds: Counter[str] = Counter()
    for found in read_letters(connection, topic, choice):
        kinds[found.kind] += 1
        if limit is None or kinds.total() <= limit:
            if as_json:
                shown.append(as_dict(found))
            else:
                click.echo(line(found))
    if as_json:
        click.echo(json.dumps({"letters": shown, "total": kinds.total(), "kinds": dict(kinds.most_common())}, indent=1))
        return
    click.echo(f"{kinds.total()} dead letters" + (":" if kinds else ""))
    for kind, count in kinds.most_common():
        click.echo(f"{count:8d}  {kind}")


@dlq.command()
@with_settings
@with_choice
@click.option("--to", "target", help="Another topic than the input.")
@click.option("--yes", is_flag=True, help="Do it; without it the command only says what it would do.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done, also with --yes.")
@click.option("--again", is_flag=True, help="Also what was sent back before.")
def replay(
    config: Path | None,
    overrides: tuple[str, ...],
    reason: str | None,
    places: tuple[str, ...],
    limit: int | None,
    target: str | None,
    yes: bool,
    dry_run: bool,
    again: bool,
) -> None:
    """Send dead letters back: each record as it was, with its key and headers, to the end of the input.

    It has one more header then, ocpdl-replayed-from, with the place that it had. What the topic has already with such
    a header is left out, so that the command can be repeated; for that the topic is read from the time of the first
    letter on. The letters stay where they are. A service takes what comes back as any other input: it learns it, or
    refuses it again.

    Example: stream-ocpdl dlq replay --config service.yaml --reason "shape is" --yes
    """
    choice = Choice(reason, places)
    settings, connection = reached(config, overrides)
    names = Topics.of(settings.model, settings.topic)
    topic = target or names.input
    since, total = None, 0
    for found in read_letters(connection, names.dead_letters, choice):
        since, total = found.written if since is None else min(since, found.written), total + 1
    there = set() if again or since is None else sent_back(connection, topic, since)
    kinds: Counter[str] = Counter()
    before: list[str] = []

    def left() -> Iterator[Letter]:
        for found in read_letters(connection, names.dead_letters, choice):
            if found.place in there:
                before.append(found.place)
            elif limit is None or kinds.total() < limit:
                yield found

    if not yes or dry_run:
        for found in left():
            kinds[found.kind] += 1
    else:
        for found in send_back(connection, topic, left()):
            kinds[found.kind] += 1
            if kinds.total() % SAID == 0:
                click.echo(f"{kinds.total()} of {total} sent back", err=True)
    for kind, count in kinds.most_common():
        click.echo(f"{count:8d}  {kind}")
    done = "sent back" if yes and not dry_run else "to be sent back with --yes"
    told = f"{kinds.total()} of {total} letters {done} to {topic}"
    click.echo(told + (f"; {len(before)} were sent back before" if before else ""))


def line(found: Letter) -> str:
    """A letter in a line."""
    letter, more = found.letter, f"  (was {found.replayed_from})" if found.replayed_from else ""
    return f"{found.place:>12}  {moment(found.written)}  {letter.error}: {letter.reason}{more}"


def as_dict(found: Letter) -> dict[str, Any]:
    """A letter for machines."""
    letter, record = found.letter, found.letter.record
    return {
        "topic": letter.topic,
        "partition": record.position.partition,
        "offset": record.position.offset,
        "refused": moment(found.written),
        "timestamp": moment(record.timestamp) if record.timestamp >= 0 else None,
        "error": letter.error,
        "reason": letter.reason,
        "key": None if record.key is None else record.key.decode(errors="replace"),
        "bytes": None if record.value is None else len(record.value),
        "replayed_from": found.replayed_from,
        "software": letter.software,
    }


def moment(milliseconds: int) -> str:
    """A time as people write it.

    >>> moment(1_700_000_000_000)
    '2023-11-14T22:13:20Z'
    """
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
