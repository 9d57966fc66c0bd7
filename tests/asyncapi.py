"""The parser of AsyncAPI's own project, installed once per version in the user's cache.

npm gets it, and runs no script of any package while it does. It is built under a temporary name and renamed when
complete: a process that finds it finds all of it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

VERSION = "3.6.3"
_PACKAGE = f"@asyncapi/parser@{VERSION}"
_QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
_FETCH_SECONDS = 240.0
_PARSE_SECONDS = 60.0
_SCRIPT = """
const { Parser, fromFile } = require("@asyncapi/parser");
const parse = (path) => fromFile(new Parser(), path).parse();
Promise.all(process.argv.slice(1).map(parse)).then((all) => console.log(JSON.stringify(
  all.map(({ document, diagnostics }) => ({ document: document?.json() ?? null, diagnostics })))));
"""


class NoParser(Exception):
    """The parser cannot be had here. The message says what to install."""


@dataclass(frozen=True)
class Parsed:
    """What the parser says of a document."""

    document: dict[str, Any] | None
    """With every reference resolved; None if it is not valid."""
    complaints: list[str]
    """Errors and warnings, each with its place."""


def parse(paths: Sequence[Path]) -> list[Parsed]:
    """Parse documents of AsyncAPI."""
    home = install()
    command = [_find("node"), "-e", _SCRIPT, *map(str, paths)]
    environment = os.environ | {"NODE_PATH": str(home / "node_modules")}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=_PARSE_SECONDS, check=True)
    return [Parsed(said["document"], _complaints(said["diagnostics"])) for said in json.loads(done.stdout)]


def install() -> Path:
    """Where the parser is; the first time it is fetched."""
    npm = _find("npm")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream_ocpdl"
    home = cache / f"asyncapi-{VERSION}"
    if not home.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f"{home.name}.", dir=cache) as directory:
            built = Path(directory) / "built"
            _fetch([npm, "install", *_QUIET, "--prefix", str(built), _PACKAGE])
            _publish(built, home)
    return home


def _find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise NoParser(f"{program} not found: it runs the parser of AsyncAPI documents; install Node.js with npm")
    return found


def _fetch(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        raise NoParser(f"npm could not install {_PACKAGE}: {' '.join(error.stderr.split())[:300]}") from error
    except subprocess.TimeoutExpired as error:
        raise NoParser(f"npm did not install {_PACKAGE} in {_FETCH_SECONDS:.0f} s") from error


def _publish(built: Path, home: Path) -> None:
    """Give a complete installation its name, unless another process was first."""
    try:
        built.rename(home)
    except OSError:
        if not home.is_dir():
            raise


def _complaints(diagnostics: list[dict[str, Any]]) -> list[str]:
    """Severity 0 is an error, 1 a warning; above are hints, such as that there is a newer AsyncAPI."""
    return [f"{'/'.join(map(str, d['path']))}: {d['message']}" for d in diagnostics if d["severity"] < 2]
