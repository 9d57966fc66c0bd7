"""`stream-ocpdl topics`: make the topics of a model, or see whether they are as they must be."""

import json
import re
import sys
from pathlib import Path

import click

from stream_ocpdl.cli.options import reached, topics_create, with_settings
from stream_ocpdl.config.loading import load
from stream_ocpdl.errors import TOPICS
from stream_ocpdl.stream.preflight import Scripts, look
from stream_ocpdl.stream.preflight import create as make
from stream_ocpdl.stream.rights import useful

MANY = 100_000
"""Partitions that a client makes of one topic, at most."""

UNITS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}


@click.group()
def topics() -> None:
    """Make the topics of a model, or see whether they are as they must be.

    Example: stream-ocpdl topics check --config service.yaml
    """


@topics.command()
@with_settings
@click.option("--partitions", type=click.IntRange(1, MANY), default=1, show_default=True, help="Of the input.")
@click.option(
    "--replication-factor", type=click.IntRange(1), help="Of all that are made; without it the broker's default."
)
@click.option("--retention", help="Of the input, such as 7d, 12h or 30m; without it the broker's default.")
def create(
    config: Path | None,
    overrides: tuple[str, ...],
    partitions: int,
    replication_factor: int | None,
    retention: str | None,
) -> None:
    """Make the topics that are missing, the input too, with the right settings. What is there is not changed.

    With encoders.input also that topic, and those that encoders write.

    Example: stream-ocpdl topics create --config service.yaml --partitions 6 --replication-factor 3
    """
    keep = None if retention is None else milliseconds(retention)
    settings, connection = reached(config, overrides)
    parts = (settings.made(), settings.coded())
    made = [name for names in parts for name in make(connection, names, partitions, keep, replication_factor or -1)]
    for name in dict.fromkeys(name for names in parts for name in (names.input, *names.outputs(1))):
        click.echo(f"{name}: " + ("made" if name in made else "is there already, and was not changed"))


@topics.command()
@with_settings
@click.option("--json", "as_json", is_flag=True, help="The same as JSON on standard output.")
def check(config: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """See whether the topics are such that nothing can be lost; else say what mends them, and end with 8.

    Example: stream-ocpdl topics check --config service.yaml
    """
    settings, connection = reached(config, overrides)
    names = settings.made()
    findings = look(connection, names, Scripts(settings.bootstrap_servers, topics_create(config, overrides)))
    concerned = {name for finding in findings for name in finding.topic.split(", ")}
    width = max(len(name) for name in (names.input, *names.outputs(1)))
    if as_json:
        told = [{"topic": f.topic, "level": f.level, "what": f.what, "mend": f.mend} for f in findings]
        click.echo(json.dumps(told, indent=1))
    for name in () if as_json else (names.input, *names.outputs(1)):
        if name not in concerned:
            click.echo(f"{name:{width}}  ok")
    for finding in () if as_json else findings:
        click.echo(f"{finding.topic:{width}}  {finding.level}: {finding.what}\n{'':{width}}  mend: {finding.mend}")
    sys.exit(TOPICS if any(finding.level != "warning" for finding in findings) else 0)


@topics.command()
@with_settings
@click.option("--principal", help="Whose; without it the name that the settings have.")
@click.option(
    "--for",
    "service",
    type=click.Choice(["learner", "encoder"]),
    default="learner",
    show_default=True,
    help="What runs with that account: run, or encode.",
)
@click.option("--optional", is_flag=True, help="Also what it can do without: to see settings, to make topics.")
def acls(config: Path | None, overrides: tuple[str, ...], principal: str | None, service: str, optional: bool) -> None:
    """Print the commands that let an account do what the service needs, and nothing else. No broker is asked.

    Example: stream-ocpdl topics acls --config service.yaml --principal User:learner

    Example: stream-ocpdl topics acls --config service.yaml --principal User:encoder --for encoder
    """
    settings = load(config, overrides).settings
    who = principal or f"User:{settings.kafka.sasl_username or '…'}"
    encodes = service == "encoder"
    names = settings.coded() if encodes else settings.topics()
    rights = settings.encoder_rights() if encodes else settings.rights()
    for one in [*rights, *(useful(names) if optional else ())]:
        click.echo(one.command(settings.bootstrap_servers, who))


def milliseconds(text: str) -> int:
    """A time as people write it.

    >>> milliseconds("12h")
    43200000
    """
    found = re.fullmatch(r"(\d+)([mhd])", text)
    if not found:
        raise click.BadParameter(f"{text} must be a number of minutes, hours or days, such as 30m, 12h or 7d")
    return int(found[1]) * UNITS[found[2]]
