"""The ten mistakes that are made most often: each is one readable line, and an exit code that docs/settings.md has."""

import ctypes
import os
import re
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl.cli import main
from stream_ocpdl.stream.kafka import Connection, create_topics, delete_topics
from stream_ocpdl.stream.topics import Topics

ROOT = Path(__file__).parents[1]
SERVICE = """\
model: MODEL
input: MODEL.input
bootstrap_servers: BROKER
problem:
  shape: [4, 3]
  rank: 2
http: {port: 0}
log: {format: plain}
kafka: {patience_s: 20}
"""
RUN = "run --config service.yaml"

TEN = {
    "wrong host": (
        f"{RUN} --set bootstrap_servers=nobody.invalid:9092 --set kafka.patience_s=1",
        6,
        r"no broker answers at nobody\.invalid:9092 within 1 s: .*; is bootstrap_servers right, .*",
    ),
    "missing topic": (
        f"{RUN} --set input.topic=wether",
        2,
        r"topic wether: the input is not there, or has another name; mend it with: stream-ocpdl topics create .*",
    ),
    "unknown key": (
        f"{RUN} --set problem.ranks=3",
        2,
        r"--set problem\.ranks: problem\.ranks is not a setting; did you mean problem\.rank\?",
    ),
    "bad YAML": ("run --config broken.yaml", 2, r"broken\.yaml is not YAML: line 1, column 10: .*"),
    "wrong shape": (
        "produce tensors.npy --config service.yaml",
        3,
        r"tensors\.npy has shape \[5, 2, 2\], not \[4, 3\] or any number of those",
    ),
    "no permission on the checkpoint directory": (
        f"{RUN} --set checkpoints=closed",
        6,
        r"checkpoints: closed/\S+ cannot be written: Permission denied\. Nothing is lost: .*",
    ),
    "port in use": (f"{RUN} --set http.port=PORT", 2, r"port PORT of 127\.0\.0\.1 is in use; choose another with .*"),
    "wrong password": (
        f"{RUN} --set bootstrap_servers=GUARDED --set kafka.security_protocol=sasl_plaintext"
        " --set kafka.sasl_mechanism=PLAIN --set kafka.sasl_username=weather --set kafka.sasl_password_file=password",
        6,
        r".* does not let us in: .*Invalid username or password.*",
    ),
    "rank 0": (f"{RUN} --set problem.rank=0", 2, r"problem\.rank must be a whole number, at least 1, not 0"),
    "file not found": ("run --config servcie.yaml", 2, r"servcie\.yaml cannot be read: No such file or directory"),
}


def bound_by_permissions():
    """Also root is: without this capability the bits of a directory hold for it."""
    drop, override = 24, 1
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(drop, override)


@pytest.fixture(scope="module")
def places(broker, guarded, tmp_path_factory):
    """A directory with what the mistakes speak of, the model's topics, and the names that are filled in."""
    here, model = tmp_path_factory.mktemp("mistakes"), f"test-{uuid.uuid4().hex[:8]}"
    topics = Topics.of(model, f"{model}.input")
    layout = {topics.input: (1, {})} | topics.outputs(1)
    create_topics(Connection(broker), layout)
    (here / "service.yaml").write_text(SERVICE.replace("MODEL", model).replace("BROKER", broker))
    (here / "broken.yaml").write_text("model: {x")
    (here / "password").write_text("not that one")
    (here / "closed").mkdir(mode=0o500)
    np.save(here / "tensors.npy", np.ones((5, 2, 2)))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield here, {"PORT": str(taken.getsockname()[1]), "GUARDED": guarded}
    delete_topics(Connection(broker), layout)


def as_a_process(words):
    """Standard error and exit code of a command that gets as far as its signals, and obeys permissions."""
    done = subprocess.run(
        [sys.executable, "-m", "stream_ocpdl", *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=bound_by_permissions,
    )
    return done.stderr, done.returncode


def inside(words):
    """The same of one that ends before that."""
    done = CliRunner().invoke(main, words)
    assert isinstance(done.exception, SystemExit), done.exception
    return done.stderr, done.exit_code


@pytest.mark.broker
@pytest.mark.parametrize(("line", "code", "said"), TEN.values(), ids=TEN)
def test_a_mistake_is_one_line(places, monkeypatch, line, code, said):
    """Of ours there is one line, the last, without a traceback or a secret; and the code is documented."""
    here, names = places
    monkeypatch.chdir(here)
    for name, meant in names.items():
        line, said = line.replace(name, meant), said.replace(name, meant)
    call = as_a_process if "checkpoints" in line else inside
    told, ended = call(line.split())
    lines = told.strip().splitlines()

    assert re.fullmatch(f"stream-ocpdl: {said}", lines[-1]), told
    assert [entry for entry in lines if entry.startswith("stream-ocpdl: ")] == lines[-1:]
    assert "Traceback" not in told
    assert "not that one" not in told
    assert ended == code
    assert f"\n| {code} |" in (ROOT / "docs" / "settings.md").read_text()
