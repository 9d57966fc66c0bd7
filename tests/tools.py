"""Programs beside Python that tests ask: skipped where they are not there, required where all is."""

import os
import shutil

import pytest

REQUIRED = "OCPDL_REQUIRE_BROKER"


def tool(name):
    """The path of a program of Prometheus."""
    found = shutil.which(name)
    if found is None:
        told = f"{name} is not there (Debian: prometheus)"
        if os.environ.get(REQUIRED):
            pytest.fail(told)
        pytest.skip(told)
    return found
