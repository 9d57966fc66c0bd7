"""What the machine gives us: processors, and a place where compiled kernels are kept.

A container may be allowed less than the machine has: a quota of processor time, and a root that cannot be written.
"""

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba

QUOTAS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
"""Where Linux says how much processor time a container has, newest first."""


def processors(quotas: tuple[str, ...] = QUOTAS) -> int:
    """How many threads are worth starting: the processors we may run on, or fewer where a quota is smaller.

    >>> processors() >= 1
    True
    """
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for path in quotas:
        with suppress(OSError, ValueError):
            return max(1, min(mine, int(_quota(Path(path)))))
    return mine


def _quota(path: Path) -> float:
    """Processors by quota; a ValueError where there is none."""
    quota, *period = path.read_text().split()
    if not period:
        period = [path.with_name("cpu.cfs_period_us").read_text()]
    if int(quota) <= 0:  # "max" is no number either
        raise ValueError("no quota")
    return int(quota) / int(period[0])


def keep_kernels() -> Path | None:
    """Tell Numba where to keep what it compiles: under NUMBA_CACHE_DIR, the user's cache, or the temporary directory.

    The place has the hash of the mathematics in its name. Numba notices a change in a function, but not in one that it
    calls from another file; and it would keep nothing, and refuse to compile, where the package cannot be written.
    None if there is no place at all: then every process compiles for itself. What is kept is code, and is run: in the
    temporary directory, where everybody may write, only a place is taken that is ours alone.
    """
    config: Any = numba.config
    name = f"stream_ocpdl-{mathematics()}"
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache" if _has_home() else None
    shared = _temporary()
    for parent in (os.environ.get("NUMBA_CACHE_DIR"), user, shared):
        with suppress(OSError):
            if parent:
                place = Path(parent) / (f"{name}-{_who()}" if parent == shared else name)
                place.mkdir(mode=0o700 if parent == shared else 0o777, parents=True, exist_ok=True)
                if parent == shared and not _ours_alone(place):
                    continue
                tempfile.TemporaryFile(dir=place).close()
                config.CACHE_DIR = str(place)
                return place
    return None


def _who() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _ours_alone(place: Path) -> bool:
    """Whether nobody else can have put something there; a link is not taken."""
    found = place.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == _who() and not found.st_mode & 0o077


def _temporary() -> str | None:
    with suppress(OSError):  # where nothing at all can be written
        return tempfile.gettempdir()
    return None


def _has_home() -> bool:
    with suppress(RuntimeError):
        return Path.home().is_dir()
    return False


def mathematics() -> str:
    """The hash of the source of the mathematics."""
    sha = hashlib.sha256()
    for path in sorted((Path(__file__).parent / "ocpdl").glob("*.py")):
        sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()[:16]


KERNELS = keep_kernels()
