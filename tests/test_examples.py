"""The examples in the help of every command, run as they stand, against a service that is running."""

import shlex
import uuid

import click
import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl.cli import main
from stream_ocpdl.experiments import image, records
from stream_ocpdl.observe.remote import look
from stream_ocpdl.stream import kafka
from tests.test_docs import SEEN
from tests.test_fleet import ENCODE
from tests.test_kafka import PARTITIONS, Model, eventually, process
from tests.test_top import free_port

ELSEWHERE = {"run", "encode"}
"""Of which an example does not end by itself: the README has the one, which is run by test_docs.py, and test_fleet.py
the other."""
LONG = {"verify": "verified: nothing lost, nothing repeated", "drill": "[x] verify"}
"""Of which an example takes minutes, and what it says in the end: make test-slow."""


def commands(group, *path):
    """Every command below a group, and the group itself if it has an example."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


ALL = [
    (" ".join(path), line.split("Example: ")[1].strip())
    for path, command in commands(main)
    for line in (command.help or "").splitlines()
    if "Example: " in line
]
EXAMPLES = [(name, line) for name, line in ALL if name not in ELSEWHERE | set(LONG)]
MINUTES = [(line, LONG[name]) for name, line in ALL if name in LONG]


@pytest.fixture(scope="module")
def service(broker, tmp_path_factory):
    """A service with 420 steps behind it, in a directory with what the examples speak of."""
    directory = tmp_path_factory.mktemp("examples")
    model, port = Model(broker, f"test-{uuid.uuid4().hex[:8]}"), free_port()
    layout = {model.topics.input: (len(PARTITIONS), {})} | model.topics.outputs(len(PARTITIONS))
    kafka.create_topics(model.connection, layout)
    model.set(problem={"shape": [4, 3], "rank": 2, "sparsity": 0.01})  # or it could not be given another one
    model.feed(1050)
    model.settings.save(directory / "service.yaml")
    np.save(directory / "tensors.npy", np.ones((10, 4, 3)))
    quick = image.run(None, True, None, lambda _: None)
    records.keep(
        directory / "results", records.document("image", "stream-ocpdl bench image --quick", True, **quick.body)
    )
    url = f"http://127.0.0.1:{port}"
    with process(model, directory, "--set", f"http.port={port}"):
        assert eventually(lambda: look(url).shards.get("0", {}).get("step") == 420, 100)
        yield directory, {"localhost:9092": broker, "http://127.0.0.1:9464": url}
    kafka.delete_topics(model.connection, layout)


def test_every_command_has_an_example():
    """There is one for each, and it is of that command."""
    assert {" ".join(path) for path, _ in commands(main)} == {name for name, _ in ALL}
    assert all(line.startswith(f"stream-ocpdl {name} ") or " " not in name for name, line in ALL)


def test_what_is_run_elsewhere_is():
    """The README has the example of `run` as it stands, and waits until the service is there; so does test_fleet.py."""
    assert {f"{line} &" for name, line in ALL if name == "run"} <= set(SEEN)
    assert {line for name, line in ALL if name == "encode"} == {ENCODE}


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_the_example_works(service, monkeypatch, name, line):
    """It ends well and says something."""
    directory, places = service
    monkeypatch.chdir(directory)
    for said, meant in places.items():
        line = line.replace(said, meant)
    result = CliRunner().invoke(main, shlex.split(line)[1:])

    assert result.exit_code == 0, result.output
    assert result.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("line", "told"), MINUTES)
def test_an_example_that_takes_minutes_works(broker, line, told):
    """It ends well, and says so."""
    result = CliRunner().invoke(main, shlex.split(line.replace("localhost:9092", broker))[1:])

    assert result.exit_code == 0, result.output
    assert told in result.stdout
