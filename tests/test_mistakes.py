"""Mistakes that operators make, typed as they type them: a readable line that says what to do, and an exit code."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from stream_ocpdl.cli import run
from stream_ocpdl.errors import ConfigError, StoreError
from stream_ocpdl.machine import KERNELS
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.workers import SERIAL
from stream_ocpdl.stream.kafka import Connection, create_topics, delete_topics, describe
from stream_ocpdl.stream.topics import Topics
from tests.test_pipeline import plan

SERVICE = """\
model: weather
input: weather.tensors
bootstrap_servers: 127.0.0.1:1
problem:
  shape: [4, 3]
  rank: 2
"""
BROKEN = SERVICE + "batching: {size: 5\n"


def typed(directory, line, **variables):
    """What a command line prints, and its exit code; it may not wait for a minute."""
    command = [sys.executable, "-m", "stream_ocpdl", *line.split()]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OCPDL_HTTP__PORT": "0", **variables}
    began = time.monotonic()
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60)
    assert time.monotonic() - began < 45
    assert "Traceback" not in done.stderr
    return (done.stdout + done.stderr).strip(), done.returncode


MISTAKES = {
    "no such file": (
        "run --config servcie.yaml",
        SERVICE,
        2,
        "stream-ocpdl: servcie.yaml cannot be read: No such file or directory",
    ),
    "not YAML": (
        "run --config service.yaml",
        BROKEN,
        2,
        "stream-ocpdl: service.yaml is not YAML: line 8, column 1: expected ',' or '}', but got '<stream end>'",
    ),
    "an unknown key": (
        "run --config service.yaml",
        SERVICE.replace("rank", "ranks"),
        2,
        "stream-ocpdl: service.yaml: problem.ranks is not a setting; did you mean problem.rank?",
    ),
    "a number in words": (
        "run --config service.yaml",
        SERVICE.replace("rank: 2", "rank: two"),
        2,
        "stream-ocpdl: service.yaml: problem.rank must be a whole number, not 'two'",
    ),
    "an axis too few": (
        "validate --config service.yaml",
        SERVICE + "axes: [latitude]\n",
        7,
        "syntax: ok\nsemantics: 1 error\n  axes must be a list of 2 different names, not ('latitude',)",
    ),
    "a password for all to see": (
        "run --config service.yaml",
        SERVICE + "kafka: {sasl_password: hunter2}\n",
        2,
        "stream-ocpdl: service.yaml: kafka.sasl_password is a secret, and can be seen here;"
        " set OCPDL_KAFKA__SASL_PASSWORD in the environment, or kafka.sasl_password_file",
    ),
    "a password that nobody asks for": (
        "run --config service.yaml --set kafka.sasl_username=weather",
        SERVICE,
        2,
        "stream-ocpdl: kafka.sasl_username has no effect with kafka.security_protocol plaintext; set that to sasl_ssl",
    ),
    "not exactly once": (
        "run --config service.yaml --set kafka.extra.enable.auto.commit=true",
        SERVICE,
        2,
        "stream-ocpdl: --set kafka.extra.enable.auto.commit: kafka.extra may not have enable.auto.commit:"
        " positions are committed with the step that used them, or inputs would be lost or repeated",
    ),
    "a setting in the wrong place": (
        "run --config service.yaml --set rank=5",
        SERVICE,
        2,
        "stream-ocpdl: --set rank: rank is not a setting; did you mean problem.rank?",
    ),
    "a poll that lasts": (
        "run --config service.yaml --set pace.poll_timeout_ms=60000",
        SERVICE,
        2,
        "stream-ocpdl: pace.poll_timeout_ms must be at most 1000, not 60000",
    ),
    "what it writes is what it reads": (
        "validate --config service.yaml --set input=weather.dead-letters",
        SERVICE,
        7,
        "syntax: ok\nsemantics: 1 error\n"
        "  input: weather.dead-letters is a topic that the model writes; name that of the tensors",
    ),
    "more partitions than there can be": (
        "topics create --config service.yaml --partitions 100000000",
        SERVICE,
        2,
        "Usage: python -m stream_ocpdl topics create [OPTIONS]\n"
        "Try 'python -m stream_ocpdl topics create --help' for help.\n\n"
        "Error: Invalid value for '--partitions': 100000000 is not in the range 1<=x<=100000.",
    ),
    "a storm of no length": (
        "verify --bootstrap-servers 127.0.0.1:1 --storm nan",
        SERVICE,
        2,
        "Usage: python -m stream_ocpdl verify [OPTIONS]\nTry 'python -m stream_ocpdl verify --help' for help.\n\n"
        "Error: Invalid value: --storm and --pause are seconds",
    ),
    "nothing to begin with": (
        "validate --config service.yaml --set warm_start=nowhere.npz",
        SERVICE,
        0,
        "syntax: ok\nsemantics: ok\n  warning: warm_start: there is no file nowhere.npz; a new model could not begin",
    ),
    "a pause in no storm": (
        "verify --bootstrap-servers 127.0.0.1:1 --pause 7",
        SERVICE,
        2,
        "Usage: python -m stream_ocpdl verify [OPTIONS]\nTry 'python -m stream_ocpdl verify --help' for help.\n\n"
        "Error: Invalid value: --pause is between the events of a --storm, and there is none",
    ),
    "no broker": (
        "run --config service.yaml --set kafka.patience_s=1 --set log.format=plain",
        SERVICE,
        6,
        "stream-ocpdl: no broker answers at 127.0.0.1:1 within 1 s: 127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1"
        " failed: Connection refused;"
        " is bootstrap_servers right, the broker up, kafka.security_protocol its own?",
    ),
    "an unknown option": (
        "run --confg service.yaml",
        SERVICE,
        2,
        "Usage: python -m stream_ocpdl run [OPTIONS]\nTry 'python -m stream_ocpdl run --help' for help.\n\n"
        "Error: No such option '--confg'. Did you mean '--config'?",
    ),
}


@pytest.mark.parametrize(("line", "file", "code", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(tmp_path, line, file, code, said):
    """Each is told in time, in a line that says what to do, with its exit code; no secret is repeated."""
    (tmp_path / "service.yaml").write_text(file)

    assert typed(tmp_path, line) == (said, code)


def test_a_service_that_waits_can_be_ended(tmp_path):
    """SIGTERM ends a service that waits for its broker at once, and not when its patience does."""
    (tmp_path / "service.yaml").write_text(SERVICE)
    command = [sys.executable, "-m", "stream_ocpdl", "run", "--config", "service.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as life:
        try:
            assert b"no broker answers at 127.0.0.1:1: " in life.stderr.readline()  # it has waited for five seconds
            life.terminate()
            assert life.wait(5) == -signal.SIGTERM
        finally:
            life.kill()


@pytest.mark.parametrize(
    "command", ["tap codes", "explain 0:0", "produce sampler", "dlq list", "snapshot list", "report"]
)
def test_commands_without_a_broker(tmp_path, command):
    """Every command that needs a broker says in one line that there is none, and ends with 6."""
    (tmp_path / "service.yaml").write_text(SERVICE)
    said, code = typed(tmp_path, f"{command} --config service.yaml --set kafka.patience_s=1")

    assert code == 6
    assert said.startswith("stream-ocpdl: no broker answers at 127.0.0.1:1 within 1 s")
    assert len(said.splitlines()) == 1


def test_a_misspelled_variable(tmp_path):
    """Also what is set in the environment has a name that can be wrong."""
    (tmp_path / "service.yaml").write_text(SERVICE)

    assert typed(tmp_path, "run --config service.yaml", OCPDL_PROBLEM__RNAK="5") == (
        "stream-ocpdl: OCPDL_PROBLEM__RNAK: problem.rnak is not a setting; did you mean problem.rank?",
        2,
    )


# ── at a broker ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def names(broker, tmp_path):
    """The topics of a model, none of which is there; its file of settings says plain logs."""
    model = f"test-{uuid.uuid4().hex[:8]}"
    found = Topics.of(model, f"{model}.input")
    problem = {"shape": [4, 3], "rank": 2}
    settings = {"model": model, "input": found.input, "bootstrap_servers": broker, "problem": problem}
    (tmp_path / "service.yaml").write_text(json.dumps(settings | {"log": {"format": "plain"}}))
    yield found
    delete_topics(Connection(broker), [found.input, *found.outputs(1)])


def test_no_input(names, tmp_path, broker):
    """A topic that is not there: its name may be wrong, so nothing is made."""
    said, code = typed(tmp_path, "run --config service.yaml")

    assert (said, code) == (
        f"stream-ocpdl: topic {names.input}: the input is not there, or has another name;"
        " mend it with: stream-ocpdl topics create --config service.yaml",
        2,
    )
    assert describe(Connection(broker), [names.journal]) == {}


def test_a_compacted_journal(names, tmp_path, broker):
    """A topic that somebody else made: the line has the command that mends it."""
    layout = {names.input: (1, {})} | names.outputs(1)
    layout[names.journal][1]["cleanup.policy"] = "compact"
    create_topics(Connection(broker), layout)
    said, code = typed(tmp_path, "run --config service.yaml")

    assert (said, code) == (
        f"stream-ocpdl: topic {names.journal}: its cleanup.policy is compact, which takes away what is needed;"
        " it must be delete; mend it with: kafka-configs.sh --bootstrap-server"
        f" {broker} --alter --entity-type topics --entity-name {names.journal} --add-config cleanup.policy=delete",
        2,
    )


def test_no_room_for_compiled_kernels(monkeypatch):
    """A disk that is full while kernels are compiled is told, with the directory and what to do, and is no bug."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run, "warm_up", full)
    with pytest.raises(StoreError, match=f"{KERNELS}: No space left on device.*NUMBA_CACHE_DIR") as told:
        run.compile_kernels(plan(), SERIAL)
    assert told.value.exit_code == 6


def test_no_memory_for_a_minibatch():
    """Tensors that no machine has the memory for are told, with the command that says what would fit."""
    vast = replace(plan(), problem=Problem(shape=(100_000, 100_000, 100_000), rank=2))
    with pytest.raises(ConfigError, match="do not fit into memory; stream-ocpdl plan says"):
        run.compile_kernels(vast, SERIAL)
