"""The kill test, in its short form, on a real Apache Kafka."""

import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from stream_ocpdl.cli import main
from stream_ocpdl.evidence import links_of_the_end
from stream_ocpdl.stream.kafka import Connection, topic_names
from stream_ocpdl.stream.messages import JournalRecord
from stream_ocpdl.verification import CRASH_POINTS, Feed, Trial, verify
from tests.test_kafka import eventually


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


def test_what_is_only_refused_after_the_last_step_changes_no_state():
    """A life that has nothing more to learn writes no checkpoint, though it let poison go: the one before is good."""
    records = [
        JournalRecord(event, f"before {event} {k}", t=k) for k, event in enumerate(("step", "refusal", "refusal"))
    ]

    assert links_of_the_end("end", records) == {"end", "before refusal 1", "before refusal 2"}
    assert links_of_the_end("end", records[:1]) == {"end"}


def test_a_feed_that_is_stopped_writes_no_more():
    """Not even what would fill the last minibatches: its topic is about to be removed."""
    feed = Feed(Trial("nowhere", partitions=3))
    rows = feed._paced()
    next(rows)
    feed.stop()

    assert len(list(rows)) == 2  # of the round that was begun


def test_who_is_told_to_stop_leaves_no_topic(broker):
    """SIGTERM in the middle of it: the topics of the test are removed."""

    def made():
        return {name for name in topic_names(Connection(broker))() if name.startswith("ocpdl-verify-")}

    before = made()
    command = [sys.executable, "-m", "stream_ocpdl", "verify", "--bootstrap-servers", broker, "--session-ms", "1000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as life:
        assert any("killed" in line for line in life.stderr)
        assert made() > before
        life.send_signal(signal.SIGTERM)
        life.communicate(timeout=60)

    assert life.returncode == 128 + signal.SIGTERM
    assert eventually(lambda: made() == before)
