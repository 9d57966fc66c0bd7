"""The kill test, in its short form, on a real Apache Kafka."""

import json

import pytest
from click.testing import CliRunner

from stream_ocpdl.cli import main
from stream_ocpdl.verification import CRASH_POINTS, Trial, verify


@pytest.mark.timeout(600)
@pytest.mark.parametrize("canonical", [True, False], ids=["canonical", "linger"])
def test_killed_at_every_crash_point_and_at_random(broker, canonical):
    """Inputs = codes + dead letters, none twice, none lost; the state is the journal's, and the undisturbed run's."""
    lines = []
    verdict = verify(Trial(broker, kills=3, canonical=canonical, session_ms=1000, report=lines.append))

    assert verdict.failures == []
    assert sorted(verdict.crash_points) == sorted(CRASH_POINTS)
    assert verdict.random_kills == 3
    assert verdict.codes > 1000
    assert verdict.inputs > verdict.codes + verdict.dead_letters  # some came in pieces
    assert verdict.dead_letters > 0
    assert verdict.steps > 100


def test_a_broken_promise_is_told(broker, monkeypatch):
    """The verdict names what does not hold, and the command ends with 1: here positions that are not there."""
    monkeypatch.setattr("stream_ocpdl.verification.CRASH_POINTS", ())
    monkeypatch.setattr("stream_ocpdl.evidence.committed", lambda *_: {})
    result = CliRunner().invoke(
        main, ["verify", "--bootstrap-servers", broker, "--kills", "1", "--session-ms", "1000", "--json"]
    )

    assert result.exit_code == 1
    failures = json.loads(result.stdout)["failures"]
    assert failures == [
        f"{model}: it does not hold that positions are the journal's" for model in ("disturbed", "calm")
    ]
