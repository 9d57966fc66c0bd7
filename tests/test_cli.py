"""The command line."""

import re

from click.testing import CliRunner

from stream_ocpdl.cli import main


def test_the_demo_finds_the_truth():
    """A short demo ends well, and its atoms match the true ones."""
    result = CliRunner().invoke(main, ["demo", "--steps", "100"])

    assert result.exit_code == 0
    assert float(re.search(r"match with the truth: ([\d.]+)", result.output)[1]) > 0.95


def test_help_has_an_example():
    """The help of every command shows how to call it."""
    for name in main.commands:
        assert f"Example: stream-ocpdl {name}" in CliRunner().invoke(main, [name, "--help"]).output
