"""A broker that asks who we are: every way in, what is said when there is none, and that no secret gets out."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
import uuid
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl import TensorProducer, read_codes
from stream_ocpdl.cli import main
from stream_ocpdl.stream.kafka import Connection, create_topics
from stream_ocpdl.stream.permissions import Permission
from stream_ocpdl.stream.rights import needed
from stream_ocpdl.stream.topics import Topics
from tests.broker.guarded import ACCOUNT, HERE, PASSWORD, SECRET
from tests.broker.proxy import Counting

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
            deadline, codes = time.monotonic() + 200, []
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


# ── every way in ───────────────────────────────────────────────────────────────────────────────────────────────

CERTIFICATE = "certificate-canary-71"
"""The password of a key."""


def tls(fortress, _):
    return fortress.at("TLS"), {"security_protocol": "ssl", "ssl_ca": fortress.ca}, {}


def mutual(fortress, here):
    certificate, key = fortress.authority.sign(ACCOUNT, HERE, password=CERTIFICATE)
    (here / "key-password").write_text(CERTIFICATE)
    files = {"ssl_certificate": certificate, "ssl_key": key, "ssl_key_password_file": str(here / "key-password")}
    return fortress.at("MUTUAL"), {"security_protocol": "ssl", "ssl_ca": fortress.ca, **files}, {}


def sasl(fortress, mechanism):
    return {"security_protocol": "sasl_ssl", "sasl_mechanism": mechanism, "ssl_ca": fortress.ca}


def scram(fortress, here):
    (here / "password").write_text(SECRET)
    account = {"sasl_username": ACCOUNT, "sasl_password_file": str(here / "password")}
    return fortress.at("SASL"), sasl(fortress, "SCRAM-SHA-512") | account, {}


def plain(fortress, _):
    account = {"sasl_username": ACCOUNT}
    return fortress.at("SASL"), sasl(fortress, "PLAIN") | account, {"OCPDL_KAFKA__SASL_PASSWORD": SECRET}


def token(fortress, _):
    extra = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": ACCOUNT,
        "sasl.oauthbearer.token.endpoint.url": f"{fortress.issuer.url}/token",
    }
    secret = {"OCPDL_KAFKA__EXTRA__SASL_OAUTHBEARER_CLIENT_SECRET": SECRET}
    return fortress.at("SASL"), sasl(fortress, "OAUTHBEARER") | {"extra": extra}, secret


WAYS = {"TLS": tls, "mTLS": mutual, "SCRAM": scram, "PLAIN": plain, "OAUTHBEARER": token}


def written(here, servers, kafka, **more):
    """A file of settings for a model of its own."""
    model = f"test-{uuid.uuid4().hex[:8]}"
    settings = {
        "model": model,
        "input": f"{model}.input",
        "bootstrap_servers": servers,
        "problem": {"shape": [4, 3], "rank": 2},
        "batching": {"size": 5},
        "kafka": kafka | {"patience_s": 20},
    }
    path = here / "service.json"
    path.write_text(json.dumps(settings | more))
    return path, model


def started(path, variables, *words):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", **variables}
    command = [sys.executable, "-m", "stream_ocpdl", "run", "--config", str(path), *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def asked(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode(errors="replace")


API = ("status", "history", "dictionary", "dead-letters", "chains")
PATHS = ("/config", "/metrics", "/ready", "/live", "/version", "/", *(f"/api/{name}" for name in API))


SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in ("TLS", "PLAIN")]
"""Ways that are part of another, or of another test."""


@pytest.mark.parametrize("way", [*(way for way in WAYS if way not in ("TLS", "PLAIN")), *SLOW])
def test_every_way_in(fortress, tmp_path, way):
    """By settings alone, with the least that must be allowed: it learns and leaves; and nothing has a secret in it.

    Looked for in the log (of librdkafka, too), in what the endpoints answer, in what it prints, in its arguments, in
    its report and in its file of settings.
    """
    servers, kafka, variables = WAYS[way](fortress, tmp_path)
    path, model = written(tmp_path, servers, kafka)
    topics = Topics.of(model, f"{model}.input")
    create_topics(Connection(fortress.bootstrap_servers), {topics.input: (1, {})} | topics.outputs(1))
    fortress.allow(rights := needed(model, topics))
    with TensorProducer(fortress.bootstrap_servers, topics.input) as producer:
        producer.send_many(np.random.default_rng(0).random((20, 4, 3)))
    seen = {"settings": path.read_text()}
    loud = ("--set", "log.level=debug", "--set", "http.port=0", "--set", "kafka.extra.debug=security,broker,conf")
    with started(path, variables, *loud) as life:
        try:
            said = []
            for line in life.stderr:
                said.append(line)
                if "endpoints at" in line:
                    url = json.loads(line)["event"].rpartition(" ")[2]
                if "ready at step" in line:
                    break
            deadline, codes = time.monotonic() + 200, []
            while len(codes) < 20 and time.monotonic() < deadline:
                codes = list(read_codes(fortress.bootstrap_servers, topics.codes))
            seen |= {place: asked(url + place) for place in PATHS}
            seen["arguments"] = Path(f"/proc/{life.pid}/cmdline").read_text()
            life.terminate()
            seen["stdout"], errors = life.communicate(timeout=30)
        finally:
            life.kill()
    seen["stderr"] = "".join(said) + errors
    read = [Permission("Read", "topic", name) for name in (topics.codes, topics.snapshots, topics.dead_letters)]
    fortress.allow(read)
    page = tmp_path / "report.html"
    reports = [["report", "--out", str(page)]] if way == "SCRAM" else []
    for words in (["config"], ["validate", "--connect"], *reports):
        done = CliRunner(env={**os.environ, **variables}).invoke(main, [*words, "--config", str(path)])
        assert done.exit_code == 0, done.output
        seen[words[0]] = done.output
    seen["page"] = page.read_text() if reports else ""
    fortress.forbid([*rights, *read])

    assert life.returncode == 0, seen["stderr"][-3000:]
    assert len(codes) == 20
    assert [place for place, text in seen.items() if SECRET in text or CERTIFICATE in text] == []


def test_the_canary_would_be_seen(fortress, tmp_path):
    """Or the test above could not fail: the secrets are where they have to be, and are what lets us in."""
    _, kafka, _ = mutual(fortress, tmp_path)
    _, other, _ = scram(fortress, tmp_path)

    assert Path(kafka["ssl_key_password_file"]).read_text() == CERTIFICATE
    assert Path(other["sasl_password_file"]).read_text() == SECRET
    assert "ENCRYPTED" in Path(kafka["ssl_key"]).read_text()


# ── and what is said where there is none ───────────────────────────────────────────────────────────────────────

FEW = 5
"""Connections that a mistake may cost; librdkafka by itself would make twenty a second."""


def wrong_password(fortress, here):
    address, kafka, variables = scram(fortress, here)
    (here / "password").write_text("canary-wrong")
    return address, kafka, variables


def wrong_secret(fortress, here):
    address, kafka, variables = token(fortress, here)
    return address, kafka, dict.fromkeys(variables, "canary-wrong")


def expired(fortress, here):
    return fortress.at("EXPIRED"), {"security_protocol": "ssl", "ssl_ca": fortress.ca}, {}


def unknown_authority(fortress, here):
    other = type(fortress.authority)(here, "other")
    return fortress.at("TLS"), {"security_protocol": "ssl", "ssl_ca": str(other.certificate)}, {}


def no_certificate(fortress, here):
    return fortress.at("MUTUAL"), {"security_protocol": "ssl", "ssl_ca": fortress.ca}, {}


def stale_certificate(fortress, here):
    certificate, key = fortress.authority.sign("late", HERE, timedelta(days=-1))
    files = {"ssl_certificate": certificate, "ssl_key": key}
    return fortress.at("MUTUAL"), {"security_protocol": "ssl", "ssl_ca": fortress.ca, **files}, {}


LET_US_IN = r"the broker at \S+ does not let us in: "
TRUSTED = r"the certificate of the broker at \S+ is not trusted: "
TAKEN = r"the broker at \S+ does not take our certificate, or we show none: .*; see kafka\.ssl_certificate .*"
MISTAKES = {
    "wrong password": (wrong_password, "127.0.0.1", LET_US_IN + r".*invalid credentials.*; see kafka\.sasl_…"),
    "wrong secret of a client": (wrong_secret, "127.0.0.1", LET_US_IN + r".*Invalid client.*; see kafka\.sasl_…"),
    "expired certificate": (
        expired,
        "127.0.0.1",
        TRUSTED + "certificate has expired; it has to be renewed .*",
    ),
    "wrong host name": (
        tls,
        "localhost",
        TRUSTED + r"Hostname mismatch, certificate is not valid for 'localhost'; bootstrap_servers has to name .*",
    ),
    "unknown authority": (unknown_authority, "127.0.0.1", TRUSTED + r".*; kafka\.ssl_ca has to have the authority .*"),
    "no certificate of our own": (no_certificate, "127.0.0.1", TAKEN),
    "one of our own that expired": (stale_certificate, "127.0.0.1", TAKEN),
}


@pytest.mark.parametrize(("mistake", "host", "said"), MISTAKES.values(), ids=MISTAKES)
def test_who_is_not_let_in(fortress, tmp_path, monkeypatch, mistake, host, said):
    """One readable line, at once, with a code that is documented; a broker is not asked again and again."""
    address, kafka, variables = mistake(fortress, tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    door = Counting(address)
    path, _ = written(tmp_path, f"{host}:{door.port}", kafka, log={"format": "plain"}, http={"port": None})
    began = time.monotonic()
    try:
        done = CliRunner().invoke(main, ["run", "--config", str(path)])
    finally:
        door.close()
    (line,) = done.stderr.strip().splitlines()

    assert re.fullmatch(f"stream-ocpdl: {said}", line), line
    assert done.exit_code == 6
    assert "canary" not in done.output
    assert (mistake is not wrong_secret) <= door.count <= FEW  # without a token nobody goes to the broker
    assert time.monotonic() - began < 15
    assert "\n| 6 |" in (ROOT / "docs" / "settings.md").read_text()
