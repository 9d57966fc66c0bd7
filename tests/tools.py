"""Programs beside Python that tests ask: skipped where they are not there, required where all is."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

REQUIRED = "OCPDL_REQUIRE_BROKER"


def missing(told):
    """Skip; or fail, where all has to be there."""
    if os.environ.get(REQUIRED):
        pytest.fail(told)
    pytest.skip(told)


BESIDE = f"{Path(sys.executable).parent}:{Path(__file__).parents[1] / 'build' / 'bin'}"


def tool(name, hint="Debian: prometheus"):
    """The path of a program: anywhere, beside this Python, or built by make."""
    return shutil.which(name) or shutil.which(name, path=BESIDE) or missing(f"{name} is not there ({hint})")


def library(name):
    """A module of Python that only some have."""
    try:
        return import_module(name)
    except ImportError:
        return missing(f"{name} is not there (pip)")


@cache
def go_module(name):
    """The directory of a Go module, PATH@VERSION: where schemas are read that are not ours to keep."""
    command = [tool("go", "https://go.dev"), "mod", "download", "-json", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found = json.loads(done.stdout or "{}").get("Dir")
    return Path(found) if found else missing(f"{name} cannot be had: {done.stdout}{done.stderr}")
