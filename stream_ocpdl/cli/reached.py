"""What the commands begin with that speak to a broker."""

from pathlib import Path

from stream_ocpdl.config.loading import load
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.config.validation import semantics
from stream_ocpdl.stream.kafka import Connection, reach


def reached(config: Path | None, overrides: tuple[str, ...]) -> tuple[Settings, Connection]:
    """The settings, and a broker that answers."""
    settings = load(config, overrides).settings
    _, _, connection = semantics(settings)
    reach(connection)
    return settings, connection
