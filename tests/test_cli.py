"""The command line."""

import re

import pytest
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[]", "must hold an object"),
        ('{"model": "m", "topic": "t"}', "unexpected keyword argument 'topic'"),
        (
            '{"model": "m", "input": "t", "bootstrap_servers": "x", "problem": {"shape": [2], "rank": 0}}',
            "rank must be",
        ),
        (
            '{"model": "m", "input": "t", "bootstrap_servers": "x", "problem": {"shape": [2], "rank": 1},'
            ' "batching": {"close": "soon"}}',
            "batch.close must be",
        ),
    ],
    ids=["missing", "broken", "a list", "unknown key", "rank 0", "unknown choice"],
)
def test_wrong_settings_are_one_line_and_code_2(tmp_path, text, said):
    """A mistake in the file of settings is said in one line, without a traceback, and ends with 2."""
    path = tmp_path / "service.json"
    if text is not None:
        path.write_text(text)
    result = CliRunner().invoke(main, ["run", "--config", str(path)])

    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.startswith("stream-ocpdl: ")
    assert len(result.stderr.strip().splitlines()) == 1
