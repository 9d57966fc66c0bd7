"""A running service watched from outside: what it says, when it is gone, and what only claims to be one."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner
from rich.console import Console

from stream_ocpdl.cli import main
from stream_ocpdl.cli.top import lines, picture
from stream_ocpdl.errors import ConfigError
from stream_ocpdl.observe.remote import Look, address, look, rows
from tests.test_kafka import ROOT, eventually, model, process  # noqa: F401  (fixtures)

SHARD = {
    "doing": "running",
    "epoch": 0,
    "step": 812,
    "seen_tensors": 26040,
    "tensors": 4000,
    "steps": 80,
    "lag_records": {"0": 100, "1": 20},
    "lag_seconds": 0.5,
    "prequential_loss": 0.25,
    "surrogate_loss": None,
    "dead_letters": {"DataError": 2, "DecodeError": 1},
}


def said(at=0.0, **changes):
    shards = {"0": SHARD | changes}
    return Look("u", at, {"model": "m", "role": "writer", "reasons": [], "shards": shards})


def test_rates_are_between_two_looks():
    """The difference of the counters over the time; none at first, and none over a restart."""
    first, second = said(), said(2.0, tensors=5000, steps=100)

    (row,) = rows(second, first)
    assert (row.tensor_rate, row.step_rate, row.lag, row.refused) == (500.0, 10.0, 120, 3)
    assert rows(second)[0].tensor_rate is None
    assert rows(first, second)[0].tensor_rate is None


def test_in_lines_and_in_a_table():
    """What is known is shown, what is not is a dash, and a service that is gone is said to be."""
    gone = Look("http://h:1", 9.0, gone="Connection refused")
    (line,) = lines(said(), None)
    out = io.StringIO()
    table = picture([said(), gone], [None, None], {"http://h:1": said(2.0)})
    Console(file=out, width=80).print(table)

    assert "step 812" in line
    assert "surrogate –" in line
    assert lines(gone, None) == ["http://h:1: gone: Connection refused"]
    assert "│ step       │     812 │" in out.getvalue()
    assert "gone, last seen 7 s ago: Connection refused" in out.getvalue()


HOSTILE = [
    b"",
    b"hello",
    b"[]",
    b'{"shards": 5}',
    b"[" * 100_000,
    b'{"shards": {"0": 7}}',
    b'{"shards": {"0": {"lag_records": [1], "step": "x", "dead_letters": {"a": null}, "epoch": 1e999, "doing": [1]}}}',
    b'{"model": "[red]\\u001b[2J", "reasons": {"a": 1}, "shards": {"\\u0007": {"step": 1' + b"0" * 400 + b"}}}",
]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: body[:30].decode())
def test_whatever_answers(body):
    """Anything may stand at an address: it is shown or said to be no service, and cannot drive the terminal."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        found = look(f"127.0.0.1:{server.server_port}")
    out = io.StringIO()
    Console(file=out, width=200).print(picture([found], [None], {}))

    assert all(line.isprintable() for line in lines(found, None))
    assert out.getvalue().replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://h", "http://", "http://h:x", "h:99999", "a b", "http://\x1b"]
)
def test_what_is_no_address(url):
    """Only http and https are asked."""
    with pytest.raises(ConfigError, match="must be the address of a service"):
        address(url)


def test_nobody_there():
    """With --once that is exit code 6 and a line; a wrong address is 2."""
    result = CliRunner().invoke(main, ["top", "http://127.0.0.1:1", "--once"])

    assert result.exit_code == 6
    assert "gone: Connection refused" in result.stdout
    assert result.stderr == "stream-ocpdl: no service answers at http://127.0.0.1:1\n"
    assert CliRunner().invoke(main, ["top", "file:///etc/passwd"]).exit_code == 2


def test_a_service_that_goes_and_comes_back(model, tmp_path):  # noqa: F811
    """A real service is watched while it runs, when it is killed, and when it is back."""
    model.feed()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "stream_ocpdl", "top", url, "--interval", "0.2", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    seen = []

    def steps():
        shards = (seen[-1]["status"] or {}).get("shards", {}) if seen else {}
        return shards.get("0", {}).get("step")

    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as life:
        reader = (json.loads(line) for line in iter(life.stdout.readline, ""))
        threading.Thread(target=lambda: seen.extend(reader), daemon=True).start()
        try:
            assert eventually(lambda: seen and "refused" in (seen[-1]["gone"] or ""))
            for fed in (4, 8):
                with process(model, tmp_path, "--set", f"http.port={port}"):
                    assert eventually(lambda fed=fed: steps() == fed, 60)
                    shown = CliRunner().invoke(main, ["top", url, "--once"]).stdout
                    assert f"step {fed}, tensors {5 * fed}" in shown
                assert eventually(lambda: seen[-1]["gone"])
                model.feed()
            life.send_signal(signal.SIGINT)
            assert life.wait(20) == 0
        finally:
            life.kill()


def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]
