"""The least that the account of a service must be allowed: with these ACLs it runs, without each it says which."""

import json
import os
import re
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
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.stream.kafka import Connection, create_topics
from stream_ocpdl.stream.rights import needed, useful
from stream_ocpdl.stream.topics import Topics
from tests.broker.guarded import ACCOUNT, SECRET

ROOT = Path(__file__).parents[1]
MODEL = f"test-{uuid.uuid4().hex[:8]}"
TOPICS = Topics.of(MODEL, f"{MODEL}.input")
NEEDED = needed(MODEL, TOPICS)


@pytest.fixture(scope="module")
def service(fortress, tmp_path_factory):
    """Topics that somebody else has made, and the settings of a service with an account of its own: TLS and SCRAM."""
    here = tmp_path_factory.mktemp("acls")
    create_topics(Connection(fortress.bootstrap_servers), {TOPICS.input: (1, {})} | TOPICS.outputs(1))
    (here / "password").write_text(SECRET)
    settings = {
        "model": MODEL,
        "input": TOPICS.input,
        "bootstrap_servers": fortress.at("SASL"),
        "problem": {"shape": [4, 3], "rank": 2},
        "batching": {"size": 5},
        "http": {"port": None},
        "log": {"format": "plain"},
        "kafka": {
            "security_protocol": "sasl_ssl",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": ACCOUNT,
            "sasl_password_file": str(here / "password"),
            "ssl_ca": fortress.ca,
            "patience_s": 20,
        },
    }
    (here / "service.json").write_text(json.dumps(settings))
    with TensorProducer(fortress.bootstrap_servers, TOPICS.input) as producer:
        producer.send_many(np.random.default_rng(0).random((20, 4, 3)))
    return here / "service.json"


@pytest.fixture
def allowed(fortress):
    """All that is needed is allowed while a test lasts, and may be taken away."""
    fortress.allow(NEEDED)
    yield fortress
    fortress.forbid([*NEEDED, *useful(TOPICS)])


def started(service, *more):
    """A process of the service."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "stream_ocpdl", "run", "--config", str(service), *more]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def told(life):
    """The one line with which it ends, and its code."""
    _, errors = life.communicate(timeout=60)
    lines = [line for line in errors.splitlines() if line.startswith("stream-ocpdl: ")]
    assert "Traceback" not in errors
    assert len(lines) == 1, errors
    return lines[0], life.returncode


def codes(fortress):
    return list(read_codes(fortress.bootstrap_servers, TOPICS.codes))


def until(holds, seconds=200):  # kernels may have to be compiled
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_with_exactly_these_it_runs(allowed, service):
    """It learns, publishes, writes a checkpoint and leaves; only what it can do without is refused."""
    before = allowed.log(1).stat().st_size
    with started(service, "--set", "pace.checkpoint_every=1") as life:
        try:
            until(lambda: len(codes(allowed)) == 20)
            life.terminate()
            _, errors = life.communicate(timeout=30)
        finally:
            life.kill()

    assert life.returncode == 0, errors
    assert "stopped after step 4" in errors
    denials = set(re.findall(r"DENIED operation (\w+)", allowed.log(1).read_text()[before:]))
    assert denials <= {"DESCRIBE_CONFIGS"}


@pytest.mark.parametrize("lack", NEEDED, ids=str)
def test_without_one_it_says_which(allowed, service, lack):
    """One line with the ACL and the command that gives it, at once, and 6."""
    allowed.forbid([lack])
    if lack.kind == "transactional-id":  # of these a broker tells nothing beforehand
        with started(service) as life:
            try:
                line, code = told(life)
            finally:
                life.kill()
    else:
        done = CliRunner().invoke(main, ["run", "--config", str(service)])
        (line,), code = done.stderr.strip().splitlines(), done.exit_code

    assert code == 6
    assert f"the broker denies us {lack}" in line
    assert line.endswith(
        f"--add --allow-principal User:{ACCOUNT} --operation {lack.operation} --{lack.kind} {lack.name}"
    )


def test_all_that_is_missing_is_said_at_once(fortress, service):
    """By `validate --connect`, before anything runs."""
    done = CliRunner().invoke(main, ["validate", "--connect", "--config", str(service)])
    seen = [one for one in NEEDED if one.kind != "transactional-id"]

    assert done.exit_code == 6
    assert all(f"denies us {one}" in done.stdout for one in seen)


@pytest.mark.slow
@pytest.mark.parametrize("lack", [one for one in NEEDED if one.name in (TOPICS.codes, TOPICS.input)], ids=str)
def test_one_that_is_taken_away(allowed, service, lack):
    """A service that runs says the same, and does not try again and again."""
    with started(service) as life:
        try:
            said = iter(life.stderr.readline, "")
            assert any("ready at step" in line for line in said)
            allowed.forbid([lack])
            with TensorProducer(allowed.bootstrap_servers, TOPICS.input) as producer:
                producer.send_many(np.random.default_rng(1).random((5, 4, 3)))
            line, code = told(life)
        finally:
            life.kill()

    assert code == 6
    assert f"the broker denies us {lack}" in line


def test_topics_it_may_make(allowed, service):
    """Whoever may make topics needs one ACL for each, and is told which."""
    other = Settings(**json.loads(service.read_text()) | {"model": f"{MODEL}-b"})
    allowed.allow(rights := other.rights())
    try:
        done = CliRunner().invoke(main, ["run", "--config", str(service), "--set", f"model={other.model}"])
    finally:
        allowed.forbid(rights)

    assert done.exit_code == 6
    assert re.search(rf"the broker denies us Create on topic {other.model}\.\w+; allow it with", done.stderr)


def test_the_commands_are_printed(service):
    """For whoever keeps the accounts: what is needed, and what is useful, a command each."""
    done = CliRunner().invoke(main, ["topics", "acls", "--config", str(service)])
    optional = CliRunner().invoke(main, ["topics", "acls", "--config", str(service), "--optional"])
    lines = [f"--operation {one.operation} --{one.kind} {one.name}" for one in NEEDED]

    assert (done.exit_code, optional.exit_code) == (0, 0)
    assert [line.partition("User:learner ")[2] for line in done.stdout.splitlines()] == lines
    assert len(optional.stdout.splitlines()) == len(NEEDED) + len(useful(TOPICS))


def test_the_page_has_the_list():
    """docs/security.md, for the model `weather`."""
    page = (ROOT / "docs" / "security.md").read_text()
    table = re.findall(r"^\| (\w+) \| ([\w-]+) \| `([^`]+)` \| (.*) \|$", page, re.MULTILINE)

    assert table == [tuple(one) for one in needed("weather", Topics.of("weather", "weather.tensors"))]
