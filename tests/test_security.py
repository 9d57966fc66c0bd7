"""A broker that asks who we are: an Apache Kafka with passwords."""

import json
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl import TensorProducer, read_codes
from stream_ocpdl.cli import main
from tests.broker.guarded import PASSWORD

ROOT = Path(__file__).parents[1]


@pytest.fixture
def config(guarded, tmp_path):
    """A service at the guarded door, with its password in a file of its own."""
    model = f"test-{uuid.uuid4().hex[:8]}"
    (tmp_path / "password").write_text(PASSWORD)
    kafka = {"security_protocol": "sasl_plaintext", "sasl_mechanism": "PLAIN", "sasl_username": "weather"}
    settings = {
        "model": model,
        "input": f"{model}.input",
        "bootstrap_servers": guarded,
        "problem": {"shape": [4, 3], "rank": 2},
        "batching": {"size": 5},
        "kafka": kafka | {"sasl_password_file": str(tmp_path / "password"), "patience_s": 20},
    }
    path = tmp_path / "service.json"
    path.write_text(json.dumps(settings))
    return path


def test_the_service_gets_in(config, guarded, tmp_path):
    """With its password it makes topics, learns and publishes; so do producers and readers; no log has the password."""
    settings = json.loads(config.read_text())
    options = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "weather",
        "sasl.password": PASSWORD,
    }
    created = CliRunner().invoke(main, ["topics", "create", "--config", str(config)])
    checked = CliRunner().invoke(main, ["validate", "--connect", "--config", str(config)])
    with TensorProducer(guarded, settings["input"], options=options) as producer:
        producer.send_many(np.random.default_rng(0).random((20, 4, 3)))
    command = [
        sys.executable,
        "-m",
        "stream_ocpdl",
        "run",
        "--config",
        config,
        "--set",
        "log.level=debug",
        "--set",
        "http.port=0",
    ]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, cwd=ROOT, stderr=log) as life:
        try:
            deadline, codes = time.monotonic() + 60, []
            while len(codes) < 20 and time.monotonic() < deadline:
                codes = list(read_codes(guarded, f"{settings['model']}.codes", options=options))
            life.terminate()
            assert life.wait(30) == 0
        finally:
            life.kill()

    log = (tmp_path / "log").read_text()
    assert (created.exit_code, checked.exit_code, len(codes)) == (0, 0, 20)
    assert "ready at step 0" in log
    assert {json.loads(line)["model"] for line in log.splitlines()} == {settings["model"]}
    assert not any(PASSWORD in text for text in (created.output, checked.output, log))


def test_a_wrong_password(config, tmp_path):
    """It is told at once, not when patience ends, and not repeated."""
    (tmp_path / "password").write_text("tr0ub4dor")
    began = time.monotonic()
    result = CliRunner().invoke(main, ["run", "--config", str(config), "--set", "log.format=plain"])

    assert result.exit_code == 6
    assert "does not let us in: " in result.stderr
    assert "Invalid username or password" in result.stderr
    assert "tr0ub4dor" not in result.stderr
    assert time.monotonic() - began < 15


def test_no_password(config):
    """Whoever comes without one to a door that asks is told which settings may be wrong, in time."""
    settings = json.loads(config.read_text())
    settings["kafka"] = {"patience_s": 3}
    config.write_text(json.dumps(settings))
    result = CliRunner().invoke(main, ["validate", "--connect", "--config", str(config)])

    assert result.exit_code == 6
    assert "is bootstrap_servers right, the broker up, kafka.security_protocol its own?" in result.stdout
