"""Another release takes over without loss, and an epoch is journaled; what a later one wrote is refused."""

import hashlib
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from stream_ocpdl.cli import main
from stream_ocpdl.drill import judged
from stream_ocpdl.errors import LineageError
from stream_ocpdl.evidence import Evidence
from stream_ocpdl.lives import VerificationFailed
from tests.fakes import World, serve
from tests.test_events import PACE, inputs, plan

LATER = 3
"""The byte of a message that has its version."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_drill(broker):
    """On a real broker: a standby after a kill, another release after a hand-over, the release before after that; an
    epoch each time, and every promise kept.
    """
    done = CliRunner().invoke(main, ["drill", "--bootstrap-servers", broker, "--json"])
    told = json.loads(done.stdout)

    assert done.exit_code == 0, told
    assert [line["name"] for line in told] == ["deploy", "stream", "kill", "recover", "hand over", "go back", "verify"]
    assert all(line["well"] for line in told)
    assert "epoch 1: numeric fingerprint" in told[4]["what"]
    assert "epoch 2: numeric fingerprint" in told[5]["what"]


def test_a_drill_can_fail():
    """A promise that is broken, or an input that is missing, is not passed over."""
    with pytest.raises(VerificationFailed, match="it does not hold that every code is published once"):
        judged(Evidence(broken=["every code is published once"]), 0)
    with pytest.raises(VerificationFailed, match="3 inputs, but 2 learned and 0 dead letters"):
        judged(Evidence(learned=2), 3)


def later(value):
    """The same message in the next version of the format."""
    return value[:LATER] + bytes([value[LATER] + 1]) + value[LATER + 1 :]


@pytest.mark.parametrize("which", ["the first", "the last"])
def test_a_journal_of_a_later_release(which):
    """It is refused, nothing is written, and the line says who can read it; it is 4, which wants a person."""
    world = World(inputs(count=30))
    serve(world, plan(), PACE)
    world.checkpoints = []
    places = [i for i, output in enumerate(world.written) if output.stream == "journal"]
    at = places[0] if which == "the first" else places[-1]
    world.written[at] = world.written[at]._replace(value=later(world.written[at].value))
    before = list(world.written)
    with pytest.raises(
        LineageError, match=r"cannot read: value has format version 2.*a later release wrote it"
    ) as told:
        serve(world, plan(), PACE)

    assert told.value.exit_code == 4
    assert world.written == before


def test_checkpoints_of_a_later_release():
    """They are refused, each with its reason, and the journal is replayed without them: the state is the same."""
    world = World(inputs(count=30))
    end, _ = serve(world, plan(), PACE)
    version = len(b"OCPDL")
    kept = []
    for manifest, data in world.checkpoints:
        changed = data[:version] + bytes([data[version] + 1]) + data[version + 1 :]
        kept.append((replace(manifest, sha256=hashlib.sha256(changed).hexdigest()), changed))
    world.checkpoints = kept
    again, reports = serve(world, plan(), PACE)

    refused = [line for line in reports if "refused the checkpoint" in line]
    assert len(refused) == len(kept) > 0
    assert all("the state has format version 2; this release reads version 1" in line for line in refused)
    assert again.progress.state.digest() == end.progress.state.digest()
