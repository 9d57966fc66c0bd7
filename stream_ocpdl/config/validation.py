"""A service's settings, looked at in layers. Each needs the one before it, and each has an exit code of its own.

syntax       YAML, names of settings, types
semantics    what the values mean together; what librdkafka says to its settings; files of secrets and certificates
connection   a broker answers
history      the model, if it has begun, was begun with these settings
topics       they are as they must be
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_ocpdl.config.settings import Settings, together
from stream_ocpdl.errors import SEMANTICS, TOPICS, BrokerError, ConfigError, LineageError, OcpdlError
from stream_ocpdl.stream.kafka import Connection, check_options, reach
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.preflight import Finding, Scripts, look, same_problem, same_shards
from stream_ocpdl.stream.rights import check_rights
from stream_ocpdl.stream.service import Pace

UNKNOWN = "{} could not be read to its end soon: somebody left a transaction open. run will compare its terms"


@dataclass(frozen=True, slots=True)
class Layer:
    """What was found in one of them."""

    name: str
    exit_code: int
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def semantics(settings: Settings) -> tuple[Plan, Pace, Connection]:
    """What a service needs, or all that makes no sense at once."""

    def options() -> dict[str, Any]:
        found = settings.kafka.options()
        check_options(found)
        return found

    plan, pace, accepted = together(settings.plan, settings.rhythm, options)
    return plan, pace, Connection(settings.bootstrap_servers, settings.kafka.patience_s, accepted, group=settings.model)


def validate(read: Callable[[], Settings], connect: bool, create: str) -> Iterator[Layer]:
    """The layers, up to the first with an error. `create` is the command that makes topics."""
    try:
        settings = read()
    except ConfigError as error:
        yield _failed("syntax", ConfigError.exit_code, error)
        return
    yield Layer("syntax", 0)
    try:
        plan, _, connection = semantics(settings)
    except ConfigError as error:
        yield _failed("semantics", SEMANTICS, error)
        return
    yield Layer("semantics", 0, warnings=tuple(_doubts(settings)))
    if connect:
        yield from _at_the_broker(settings, plan, connection, create)


def _doubts(settings: Settings) -> Iterator[str]:
    """What is an error for a model that is still to begin, and nothing to one that has begun."""
    warm = settings.warm_start
    if warm is not None and warm.endswith(".npz") and not Path(warm).is_file():
        yield f"warm_start: there is no file {warm}; a new model could not begin"


def _at_the_broker(settings: Settings, plan: Plan, connection: Connection, create: str) -> Iterator[Layer]:
    topics, scripts = settings.made(), Scripts(settings.bootstrap_servers, create)
    try:
        reach(connection)
        check_rights(connection, settings.rights())
        findings = look(connection, topics, scripts)
    except BrokerError as error:
        yield _failed("connection", BrokerError.exit_code, error)
        return
    yield Layer("connection", 0)
    known = True
    try:
        if not any(finding.topic == topics.journal and finding.level == "missing" for finding in findings):
            same_shards(connection, settings.topics())
            known = same_problem(connection, settings.topics(), plan)
    except LineageError as error:
        yield _failed("history", LineageError.exit_code, error)
        return
    yield Layer("history", 0, warnings=() if known else (UNKNOWN.format(topics.journal),))
    errors = _lines(finding for finding in findings if finding.level == "error")
    others = _lines(finding for finding in findings if finding.level != "error")
    yield Layer("topics", TOPICS if errors else 0, errors, others)


def _failed(name: str, exit_code: int, error: OcpdlError) -> Layer:
    return Layer(name, exit_code, tuple(str(error).splitlines()))


def _lines(findings: Iterator[Finding]) -> tuple[str, ...]:
    return tuple(str(finding) for finding in findings)
