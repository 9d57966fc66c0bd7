"""The files of the live page as a server gives them: packed once, and named by what is in them."""

import gzip
import threading
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent / "static"

KINDS = {
    "index.html": "text/html",
    "page.js": "text/javascript",
    "panels.js": "text/javascript",
    "atoms.js": "text/javascript",
    "charts.js": "text/javascript",
    "style.css": "text/css",
    "page.css": "text/css",
    "plotly.css": "text/css",
    "plotly.min.js": "text/javascript",
}
"""All that there is, and nothing else is ever read."""

FOREIGN = ("plotly", "package_data", "plotly.min.js")
"""The package that carries the library which draws curves, and where in it."""


@dataclass(frozen=True, slots=True)
class File:
    """A file in memory."""

    kind: str
    plain: bytes
    packed: bytes
    tag: str
    caching: str


class Files:
    """Each is read when it is first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, File] = {}

    def get(self, name: str) -> File | None:
        """A file by its name; none if there is none of it."""
        with self._lock:  # the largest takes a moment to pack
            if name not in self._known:
                path = place_of(name)
                if path is None:
                    return None
                self._known[name] = _read(path, KINDS[name])
            return self._known[name]


def place_of(name: str) -> Path | None:
    """Where a file is."""
    if name not in KINDS:
        return None
    if name != FOREIGN[-1]:
        return HERE / name
    found = find_spec(FOREIGN[0])
    places = [Path(place, *FOREIGN[1:]) for place in (found.submodule_search_locations or ())] if found else []
    return next((place for place in places if place.is_file()), None)


def _read(path: Path, kind: str) -> File:
    data = path.read_bytes()
    large = len(data) > 1_000_000  # that of others: it changes with a release of theirs
    caching = "public, max-age=86400" if large else "no-cache"
    return File(kind, data, gzip.compress(data, 6, mtime=0), f'"{sha256(data).hexdigest()[:20]}"', caching)
