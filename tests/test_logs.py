"""The log: JSON for machines, text for people, never a secret, never a tensor."""

import json
import logging
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl.cli import main
from stream_ocpdl.cli.run import report
from stream_ocpdl.cli.wiring import ShardWork
from stream_ocpdl.logs import LONGEST, natural, written
from stream_ocpdl.stream.lost import reconcile
from stream_ocpdl.stream.ports import Said, Warned
from stream_ocpdl.stream.progress import beginning
from stream_ocpdl.stream.service import Pace
from tests.fakes import Source, World
from tests.fakes import serve as serve_world
from tests.test_pipeline import plan

log = logging.getLogger("stream_ocpdl.test")


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json(capsys):
    """One object a line: when, how bad, who, what, and the fields."""
    with written("json", model="weather"):
        log.warning("step %d is odd", 7, extra={"step": 7, "topic": "t", "partition": 0, "offset": 41})

    (line,) = lines(capsys)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "step 7 is odd",
        "level": "warning",
        "logger": "stream_ocpdl.test",
        "model": "weather",
        "step": 7,
        "topic": "t",
        "partition": 0,
        "offset": 41,
    }


def test_plain(capsys):
    """One line for people, with the same fields."""
    with written("plain", model="weather"):
        log.warning("odd", extra={"step": 7})

    (line,) = capsys.readouterr().err.splitlines()
    assert "[warning  ] odd [stream_ocpdl.test] model=weather step=7" in line


def test_the_level(capsys):
    """What is less than the level is not said; afterwards all is as it was."""
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    with written("json", "warning"):
        log.info("small talk")
        log.error("news")

    assert [line["event"] for line in lines(capsys)] == ["news"]
    assert (root.level, root.handlers) == before


@pytest.mark.parametrize("form", ["json", "plain"])
def test_no_secrets_and_no_tensors(capsys, form):
    """Not in texts, arguments, fields or tracebacks; and no text without end."""
    tensor = np.full((2, 3), 0.123456)
    with written(form, secrets=["hunter2"]):
        log.info("hunter2 %s %s", tensor, "hunter2", extra={"tensor": tensor, "bytes": b"0.123456", "topic": "hunter2"})
        log.info("x" * 10 * LONGEST)
        try:
            int("hunter2")
        except ValueError:
            log.exception("it failed")

    said = capsys.readouterr().err
    assert "hunter2" not in said
    assert "0.123456" not in said
    assert "<ndarray>" in said
    assert "ValueError: invalid literal for int() with base 10: '**********'" in said
    assert len(said) < 2 * LONGEST + 2000


def test_the_natural_form(monkeypatch):
    """Text on a terminal, JSON elsewhere."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert natural() == "plain"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    assert natural() == "json"


def test_a_bug_is_one_line(capsys, monkeypatch, tmp_path):
    """In JSON a traceback is one line, too, without secrets; and the service ends with 1."""

    def serve(settings, *_):
        raise RuntimeError(settings.kafka.secrets()[0])

    settings = {"model": "m", "input": "t", "bootstrap_servers": "x", "problem": {"shape": [2, 2], "rank": 1}}
    security = {"security_protocol": "sasl_ssl", "sasl_mechanism": "PLAIN", "sasl_username": "u"}
    (tmp_path / "service.json").write_text(json.dumps(settings | {"kafka": security}))
    monkeypatch.setattr("stream_ocpdl.cli.run.serve", serve)
    monkeypatch.setenv("OCPDL_KAFKA__SASL_PASSWORD", "hunter2")
    result = CliRunner().invoke(main, ["run", "--config", str(tmp_path / "service.json")])

    (line,) = result.stderr.splitlines()
    assert result.exit_code == 1
    assert json.loads(line)["exception"].endswith("RuntimeError: **********")


def test_what_the_service_says_has_fields():
    """A restart says its step, a refusal where the record was."""
    world = World([[b"poison"], []])
    _, reports = serve_world(world, plan("linger", "arrival"), Pace(commit_interval_ms=20))

    ready, refused = reports
    assert ready.fields == {"step": 0, "replayed": 0, "standby": "cold"}
    assert refused.fields == {"topic": "input", "partition": 0, "offset": 0}


def test_what_somebody_should_read_is_a_warning(capsys):
    """Lost input, say; the shard that says it changes nothing of that. Everything else is not."""
    work = ShardWork(None, None, None, None, None, report)
    with written("json", "warning"):
        work._report(2)(Warned("lost: t[0] offset 7 (1)", topic="t", partition=0))
        work._report(2)(Said("ready", step=0))
        work._report(2)("standby")

    (line,) = lines(capsys)
    assert (line["level"], line["shard"], line["topic"]) == ("warning", 2, "t")


def test_lost_input_is_a_warning():
    """Whoever reads warnings only hears of it."""
    world, resuming = World([[b""] * 10]), plan(on_lost_input="resume", topic="t")
    world.trimmed = {0: 5}

    noted = reconcile(resuming, beginning(resuming, {0: 2}), None, None, Source(world))

    assert [(type(line), str(line)) for line in noted.said] == [(Warned, "lost: t[0] offsets 2 to 4 (3)")]
