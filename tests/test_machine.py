"""What a container allows: processors by quota, kernels on a root that cannot be written."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from stream_ocpdl.machine import keep_kernels, processors

ROOT = Path(__file__).parents[1]
MINE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("max 100000", MINE),
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("250000 100000", min(2, MINE)),
        ("6400000 100000", MINE),
        ("-1", MINE),
        ("", MINE),
        ("nonsense", MINE),
    ],
)
def test_processors_by_quota(tmp_path, text, wanted):
    """The quota of a container, whole processors, at least one; none is no limit, and neither is what is no quota."""
    (tmp_path / "cpu.max").write_text(text)
    assert processors((str(tmp_path / "cpu.max"),)) == wanted


def test_processors_by_the_older_quota(tmp_path):
    """Quota and period in files of their own."""
    (tmp_path / "cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert processors((str(tmp_path / "missing"), str(tmp_path / "cpu.cfs_quota_us"))) == 1


CALL = """
import numpy as np
from stream_ocpdl import machine
from stream_ocpdl.ocpdl import kernels
assert kernels.largest_diagonal(np.eye(2)) == 1.0
print(machine.KERNELS)
"""


def kernels(**environment):
    """Where a process keeps its kernels under such an environment; it calls one."""
    given = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    command = [sys.executable, "-c", CALL]
    run = subprocess.run(command, env=given | environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_kernels_are_kept_where_one_can_write(tmp_path):
    """In the place that is named, else in the user's cache, else in the temporary directory."""
    nowhere = "/proc/nowhere"
    (tmp_path / "tmp").mkdir()
    assert kernels(NUMBA_CACHE_DIR=str(tmp_path / "named")).startswith(str(tmp_path / "named"))
    assert list((tmp_path / "named").rglob("*.nbi"))
    found = kernels(NUMBA_CACHE_DIR=nowhere, XDG_CACHE_HOME=nowhere, HOME=nowhere, TMPDIR=str(tmp_path / "tmp"))
    assert found.startswith(str(tmp_path / "tmp"))


def test_kernels_are_kept_nowhere_if_nothing_can_be_written(monkeypatch):
    """Not even a temporary directory: each process compiles for itself, and starts all the same."""

    def none_usable():
        raise FileNotFoundError

    monkeypatch.setattr("tempfile.gettempdir", none_usable)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")

    assert keep_kernels() is None


@pytest.mark.parametrize("trap", ["open to all", "a link", "ours"])
def test_kernels_of_others_are_not_taken(monkeypatch, tmp_path, trap):
    """Compiled kernels are code: from where everybody may write, nothing is taken that somebody else may have put."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("numba.config.CACHE_DIR", numba.config.CACHE_DIR)  # to be put back
    place = keep_kernels()
    assert place.parent == tmp_path
    assert place.stat().st_mode & 0o777 == 0o700
    if trap == "open to all":
        place.chmod(0o777)
    elif trap == "a link":
        place.rename(tmp_path / "elsewhere")
        place.symlink_to(tmp_path / "elsewhere")

    assert keep_kernels() == (place if trap == "ours" else None)
