"""The command line."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from stream_ocpdl.cli import main
from stream_ocpdl.cli.dlq import dlq
from stream_ocpdl.cli.snapshot import snapshot
from stream_ocpdl.cli.spectacle import next_steps, picture
from stream_ocpdl.cli.topics import topics
from stream_ocpdl.demonstration import Demonstration, Seen
from stream_ocpdl.observe.board import Board
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.synthetic import FAST, SLOW, chain
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.kafka import Connection
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.topics import Topics


def test_the_demo_finds_the_truth(tmp_path):
    """A short demo, through the stand-in for a broker, ends well; its atoms match the true ones, as its report says."""
    report = tmp_path / "demo.html"
    result = CliRunner().invoke(main, ["demo", "--seconds", "2", "--rate", "600", "--report", str(report)])

    assert (result.exit_code, result.exception) == (0, None)
    assert "a stand-in inside of this process" in result.output
    score = re.search(r"match with the truth: ([\d.]+)", result.output)[1]
    assert float(score) > 0.95
    assert f"report: {report.as_uri()}" in result.output
    text = report.read_text()
    assert score in text
    assert text.count("true atom") == 6
    assert '"title": "Movement against radius"' in text


@pytest.mark.broker
def test_the_demo_on_a_real_broker(broker, tmp_path):
    """The same; and it removes its topics."""
    before = kafka.topic_names(kafka.Connection(broker))()
    words = ["--seconds", "2", "--rate", "600", "--bootstrap-servers", broker, "--report", str(tmp_path / "demo.html")]
    result = CliRunner().invoke(main, ["demo", *words])

    assert (result.exit_code, result.exception) == (0, None)
    assert float(re.search(r"match with the truth: ([\d.]+)", result.output)[1]) > 0.95
    assert not [name for name in kafka.topic_names(kafka.Connection(broker))() - before if name.startswith("demo")]


def test_demo_says_at_once_that_there_is_no_place_for_its_report(monkeypatch):
    """And not when a minute is over."""
    monkeypatch.setattr("stream_ocpdl.cli.demo.warm_up", lambda _: pytest.fail("it has begun"))
    result = CliRunner().invoke(main, ["demo", "--report", "nowhere/demo.html"])

    assert result.exit_code == 2
    assert "nowhere/demo.html cannot be written" in result.output


def test_the_demo_with_other_data(tmp_path, monkeypatch):
    """A file of tensors, or patches of the picture that is painted: there is nothing to match."""
    monkeypatch.chdir(tmp_path)
    np.save("good.npy", np.random.default_rng(0).random((40, 5, 4)))
    for data in ("good.npy", "image"):
        result = CliRunner().invoke(main, ["demo", "--seconds", "1", "--rate", "200", "--data", data])
        assert (result.exit_code, result.exception) == (0, None)
        assert "match" not in result.output
        assert Path("demo.html").exists()
    assert '"kind": "colour"' in Path("demo.html").read_text()


BAD = {
    "damaged": ("bad.npy", 3, "bad.npy cannot be read: "),
    "not there": ("none.npy", 2, "none.npy cannot be read: No such file or directory"),
    "no such picture": ("none.png", 2, "none.png cannot be read: No such file or directory"),
    "something else": ("bad.txt", 2, "bad.txt is neither a .npy file with tensors along its first axis nor an image"),
    "one number": ("flat.npy", 3, "flat.npy has shape [4]; tensors along the first axis are needed"),
    "negative": ("negative.npy", 9, " messages in a row were refused, the last because X[0, 0] = -1.0 is negative"),
}


@pytest.mark.parametrize(("name", "code", "said"), BAD.values(), ids=BAD)
def test_data_that_cannot_be_shown(tmp_path, monkeypatch, name, code, said):
    """One line, and an end."""
    monkeypatch.chdir(tmp_path)
    Path("bad.npy").write_bytes(b"nonsense")
    Path("bad.txt").write_bytes(b"nonsense")
    np.save("flat.npy", np.ones(4))
    np.save("negative.npy", -np.ones((5, 3, 2)))
    result = CliRunner().invoke(main, ["demo", "--seconds", "5", "--rate", "5000", "--data", name])

    assert result.exit_code == code, result.output
    assert said in result.stderr


def test_what_the_demo_says_to_try_next_works(tmp_path, monkeypatch):
    """Each command as it is printed, but for the time that it may take."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [".venv/bin/stream-ocpdl"])
    commands = [line.split("# ")[0] for line in next_steps().splitlines() if " --" in line and "HOST:PORT" not in line]

    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command)[1:]
        brief = {"demo": ["--seconds", "1"], "plan": ["--seconds", "0"]}.get(words[0], [])
        result = CliRunner().invoke(main, [*words, *brief])
        assert (result.exit_code, result.exception) == (0, None), result.output
    Path("service.yaml").write_text(result.output)
    assert CliRunner().invoke(main, ["validate", "--config", "service.yaml"]).exit_code == 0


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


def test_an_interrupt_while_kernels_are_compiled(tmp_path):
    """On a machine that has none yet it is the longest part, and the first that somebody has enough of."""
    command = [sys.executable, "-m", "stream_ocpdl", "demo", "--report", str(tmp_path / "demo.html")]
    empty = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=empty) as life:
        try:
            while "compiling the kernels" not in life.stdout.readline():
                pass
            time.sleep(2)
            life.send_signal(signal.SIGINT)
            _, err = life.communicate(timeout=60)
        finally:
            life.kill()

    assert (life.returncode, err) == (130, "")


def test_before_the_first_step_the_demo_says_what_it_does():
    """In a line of its own, below the bar."""
    problem = Problem((2, 2), 1)
    board = Board("demo", 1)
    shown = Demonstration(Connection(""), Topics.of("demo", "t"), Plan("demo", problem), iter(()), 16, 1.0, board)
    shown.shard = Seen(shown.plan, board.now)
    out = io.StringIO()
    Console(file=out, width=100).print(picture(shown, 0.0))

    assert "│ starting …" in out.getvalue()


def test_the_chains_of_the_demo_are_slow():
    """A tensor is nearly the one before, and few of six atoms are in it; a chain of `produce sampler` has them all."""
    loadings = [np.eye(6), np.ones((1, 6))]  # so that a tensor shows its code
    slow, fast = (
        np.array([X.ravel() for X in islice(chain(loadings, 0, noise=0.0, mixing=mixing), 5000)])
        for mixing in (SLOW, FAST)
    )

    def alike(codes):
        return np.corrcoef(codes[1:].ravel(), codes[:-1].ravel())[0, 1]

    assert alike(slow) > 0.98
    assert alike(fast) < 0.95
    assert np.mean(slow > 0.5) < 0.5 < np.mean(fast > 0.5)
    assert slow.mean() == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("after", [0.1, 0.4])
def test_an_interrupt_while_it_is_imported(after):
    """It is gone at once, and has nothing to say."""
    command = [sys.executable, "-m", "stream_ocpdl", "demo", "--seconds", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as life:
        try:
            deadline = time.monotonic() + 30
            while not imports(life.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(after)
            life.send_signal(signal.SIGINT)
            out, err = life.communicate(timeout=30)
        finally:
            life.kill()

    assert "Traceback" not in err
    assert life.returncode in (-signal.SIGINT, 130, 0), out  # 0 where all is there within that time


def imports(pid):
    """Whether a process has begun to import what takes long: NumPy is in its memory."""
    maps = Path(f"/proc/{pid}/maps")
    return "numpy" in maps.read_text() if maps.exists() else True


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


def completions(*words):
    """What bash is told to complete the last word with."""
    told = {"_STREAM_OCPDL_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["stream-ocpdl", *words])}
    told["COMP_CWORD"] = str(len(words))
    result = CliRunner().invoke(main, [], prog_name="stream-ocpdl", env=told)
    return [line.partition(",")[2] for line in result.output.splitlines()]


def test_the_shell_completes():
    """Commands, what is below them, options, and settings."""
    assert completions("re") == ["reconfigure", "replay", "report"]
    assert completions("snapshot", "d") == ["diff"]
    assert "--config" in completions("run", "--c")
    assert completions("run", "--set", "problem.ra") == ["problem.rank=", "problem.radius="]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_is_told_how(shell):
    """By the line in docs/commands.md."""
    line = f"_STREAM_OCPDL_COMPLETE={shell}_source stream-ocpdl"
    told = CliRunner().invoke(main, [], prog_name="stream-ocpdl", env={"_STREAM_OCPDL_COMPLETE": f"{shell}_source"})

    assert line in (Path(__file__).parents[1] / "docs" / "commands.md").read_text()
    assert told.exit_code == 0
    assert "_STREAM_OCPDL_COMPLETE" in told.output
