"""What an experiment leaves behind: its figures as JSON, with the command and the conditions that they hold under."""

import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stream_ocpdl.errors import ConfigError, DataError
from stream_ocpdl.fingerprint import conditions
from stream_ocpdl.machine import processors

Document = dict[str, Any]

OTHERS = ("scikit-learn", "tensorly", "threadpoolctl", "av")
"""Whose versions are told, where they are installed."""


FOLDERS = {"--data": "DATA", "--authors": "AUTHORS"}
"""What stands for a path."""


def document(experiment: str, command: str, quick: bool, **body: Any) -> Document:
    """The figures of an experiment, with what they hold under."""
    held = {name: conditions()[name] for name in ("cpu", "python", "numpy", "numba")}
    under = held | {"cores": processors()} | {name: found for name in OTHERS if (found := _version(name))}
    return {"experiment": experiment, "command": command, "quick": quick, "conditions": under, **body}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def spelled(name: str, options: Sequence[tuple[str, Any]]) -> str:
    """The command that was given, with no path in it: a folder of data is DATA for everybody.

    >>> spelled("paper", [("--data", "/anywhere"), ("--quick", True), ("--repeats", None)])
    'stream-ocpdl bench paper --data DATA --quick'
    >>> spelled("paper", [("--authors", "/their/code")])
    'stream-ocpdl bench paper --authors AUTHORS'
    """
    words = ["stream-ocpdl", "bench", name]
    for option, value in options:
        if value is True:
            words.append(option)
        elif option in FOLDERS and value is not None:
            words += [option, FOLDERS[option]]
        elif value not in (None, False, ()):
            for one in value if isinstance(value, tuple) else (value,):
                words += [option, f"'{one}'" if " " in str(one) else str(one)]
    return " ".join(words)


def keep(out: Path, found: Document) -> Path:
    """Write the figures into a folder, which is made if need be."""
    path = out / f"{found['experiment']}.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose another folder with --out") from error
    return path


def kept(folder: Path, experiment: str) -> Document | None:
    """What was kept, if anything was."""
    path = folder / f"{experiment}.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("experiment") != experiment:
        raise DataError(f"{path} is not what `stream-ocpdl bench {experiment} --out` writes")
    return found
