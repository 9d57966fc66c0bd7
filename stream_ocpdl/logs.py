"""The log, on standard error: one JSON object a line, or a line for people. Never a secret, never a tensor.

Modules log by the standard library, with fields in `extra` (topic, partition, offset, step); structlog writes what
they say. Every line has the model. A field that is neither a number nor a text is replaced by the name of its type, and
a secret that is known by stars, wherever it stands.
"""

import logging
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import structlog

LONGEST = 2000
"""Characters of a text in the log; what is longer is cut."""

Event = MutableMapping[str, Any]


@contextmanager
def written(
    form: Literal["json", "plain"], level: str = "info", secrets: Sequence[str] = (), **always: Any
) -> Iterator[None]:
    """Write the log for as long as this lasts; `always` are fields of every line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(form, secrets, always))
    handler.addFilter(_without_tensors)
    root, before = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def natural() -> Literal["json", "plain"]:
    """Text on a terminal, JSON for machines."""
    return "plain" if sys.stderr.isatty() else "json"


def _formatter(form: str, secrets: Sequence[str], always: dict[str, Any]) -> logging.Formatter:
    def bind(_: Any, __: str, event: Event) -> Event:
        return always | {name: value for name, value in event.items() if name not in ("message", "asctime")}

    last: Callable[..., Any] = structlog.processors.JSONRenderer(ensure_ascii=False)
    if form == "plain":
        colors = sys.stderr.isatty()
        last = structlog.dev.ConsoleRenderer(
            colors=colors, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            bind,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _harmless(secrets),
            last,
        ],
    )


def _without_tensors(record: logging.LogRecord) -> bool:
    """Before an array becomes text."""
    if isinstance(record.args, tuple):
        record.args = tuple(f"<{type(arg).__name__}>" if getattr(arg, "ndim", 0) else arg for arg in record.args)
    return True


def _harmless(secrets: Sequence[str]) -> Callable[[Any, str, Event], Event]:
    def clean(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if not isinstance(value, str):
            return f"<{type(value).__name__}>"
        for secret in secrets:
            value = value.replace(secret, "**********")
        return value if len(value) <= LONGEST else f"{value[:LONGEST]}…"

    def process(_: Any, __: str, event: Event) -> Event:
        return {name: clean(value) for name, value in event.items()}

    return process
