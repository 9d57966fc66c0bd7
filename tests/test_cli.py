"""The command line."""

import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl.cli import main
from stream_ocpdl.cli.dlq import dlq
from stream_ocpdl.cli.snapshot import snapshot
from stream_ocpdl.cli.topics import topics
from stream_ocpdl.errors import ConfigError
from stream_ocpdl.stream import kafka


def test_the_demo_finds_the_truth():
    """A short demo, through the stand-in for a broker, ends well, and its atoms match the true ones."""
    result = CliRunner().invoke(main, ["demo", "--seconds", "2", "--rate", "600"])

    assert (result.exit_code, result.exception) == (0, None)
    assert "a stand-in inside of this process" in result.output
    assert float(re.search(r"match with the truth: ([\d.]+)", result.output)[1]) > 0.95


@pytest.mark.broker
def test_the_demo_on_a_real_broker(broker):
    """The same; and it removes its topics."""
    before = kafka.topic_names(kafka.Connection(broker))()
    result = CliRunner().invoke(main, ["demo", "--seconds", "2", "--rate", "600", "--bootstrap-servers", broker])

    assert (result.exit_code, result.exception) == (0, None)
    assert float(re.search(r"match with the truth: ([\d.]+)", result.output)[1]) > 0.95
    assert not [name for name in kafka.topic_names(kafka.Connection(broker))() - before if name.startswith("demo")]


def test_the_demo_with_other_data(tmp_path):
    """A file of tensors; one that is none is told in a line."""
    good, bad = tmp_path / "good.npy", tmp_path / "bad.npy"
    np.save(good, np.random.default_rng(0).random((40, 5, 4)))
    bad.write_bytes(b"nonsense")
    result = CliRunner().invoke(main, ["demo", "--seconds", "1", "--rate", "200", "--data", str(good)])

    assert (result.exit_code, result.exception) == (0, None)
    assert "match" not in result.output.partition("next:")[0]
    result = CliRunner().invoke(main, ["demo", "--data", str(bad)])
    assert result.exit_code == ConfigError.exit_code
    assert f"stream-ocpdl: {bad} is not a .npy file: " in result.output


@pytest.mark.parametrize("after", [0.2, 1.0])
def test_the_demo_can_be_interrupted(after):
    """Ctrl-C ends it with what was seen so far, without a traceback; also while the service still begins."""
    command = [sys.executable, "-m", "stream_ocpdl", "demo", "--seconds", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as life:
        try:
            while "metrics and status" not in life.stdout.readline():
                pass
            time.sleep(after)
            life.send_signal(signal.SIGINT)
            out, err = life.communicate(timeout=30)
        finally:
            life.kill()

    assert (life.returncode, err) == (0, "")
    assert "stopped early" in out


def test_help_has_an_example():
    """The help of every command shows how to call it."""
    for name in main.names:
        assert f"Example: stream-ocpdl {name}" in CliRunner().invoke(main, [name, "--help"]).output
    for group in (topics, snapshot, dlq):
        for name in group.commands:
            said = CliRunner().invoke(main, [group.name, name, "--help"]).output
            assert f"Example: stream-ocpdl {group.name} {name}" in said


def settings(**changes):
    """A file of settings with some that are wrong."""
    good = {"model": "m", "input": "t", "bootstrap_servers": "x", "problem": {"shape": [2, 2], "rank": 1}}
    return json.dumps(good | changes)


WRONG = {
    "missing": (None, "cannot be read"),
    "broken": ("{", "is not YAML"),
    "a list": ("[]", "must hold an object"),
    "unknown key": (settings(topic="t"), "topic is not a setting; did you mean input.topic?"),
    "rank 0": (settings(problem={"shape": [2], "rank": 0}), "problem.rank must be"),
    "problem a list": (settings(problem=[]), "problem must be an object"),
    "unknown choice": (settings(batching={"close": "soon"}), "batching.close must be"),
    "batching a list": (settings(batching=[]), "batching must be an object"),
    "batch of 2.5": (settings(batching={"size": 2.5}), "batching.size must be"),
    "linger back": (settings(batching={"linger_ms": -5}), "batching.linger_ms must be"),
    "pace in words": (settings(pace={"commit_interval_ms": "x"}), "pace.commit_interval_ms must be"),
    "no snapshots": (settings(snapshot_every=0), "snapshot_every must be"),
    "no digests": (settings(digest_every=0), "digest_every must be"),
    "a model with a slash": (settings(model="a/b"), "model must be"),
    "input a number": (settings(input=5), "input must be an object"),
    "topic a number": (settings(input={"topic": 7}), "input.topic must be"),
    "unknown format": (settings(input={"topic": "t", "format": "xml"}), "input.format must be 'native'"),
    "unknown dtype": (settings(input={"topic": "t", "format": "raw", "dtype": "f"}), "input.dtype is 'f'"),
    "dtype of json": (settings(input={"topic": "t", "format": "json", "dtype": "<f4"}), "input.dtype is for"),
    "an axis too few": (settings(axes=["a"]), "axes must be a list of 2 different names"),
    "axes a text": (settings(axes="ab"), "axes must be a list, not 'ab'"),
    "no such weights": (settings(problem={"shape": [2], "rank": 1, "weights": "heavy"}), "problem.weights must be"),
    "a start in words": (settings(start="soon"), "start must be earliest, latest or a time with its zone"),
    "half a letter": (settings(axes=["\ud800", "b"]), "axes must be a list of 2 different names"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
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


def test_ctrl_c_is_no_verdict(monkeypatch):
    """A command that is interrupted has found nothing wrong, which 1 would say."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("stream_ocpdl.cli.replay.reached", interrupted)
    result = CliRunner().invoke(main, ["replay"])

    assert result.exit_code == 130
    assert result.output == ""
