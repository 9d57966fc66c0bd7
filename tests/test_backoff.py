"""Waiting for what does not work: pauses that grow, and a log that is not flooded."""

import logging
from types import SimpleNamespace

import pytest

from stream_ocpdl.stream.kafka import backoff
from stream_ocpdl.stream.kafka.backoff import MOST, Backoff, Fences, Seldom


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on when the module sleeps; what was slept. Threads of other tests have the clock of all."""
    now, slept = [100.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now, slept


def test_pauses_grow_and_lines_are_few(clock, caplog):
    """A minute of trouble: pauses up to some seconds, and about as many lines as a person wants to read."""
    now, slept = clock
    caplog.set_level(logging.INFO)
    trouble = Backoff("model.steps.0")
    while now[0] < 160:
        trouble.wait("no broker", began=100.0)
    trouble.worked()

    assert slept == sorted(slept)
    assert (slept[0], slept[-1]) == (0.05, MOST)
    said = [record.getMessage() for record in caplog.records]
    assert 3 <= len(said) <= 6
    assert said[0].startswith("model.steps.0: for 1 s: no broker; trying again")
    assert said[-1].startswith("model.steps.0: works again after 6")


def test_a_hiccup_is_not_worth_a_line(clock, caplog):
    """What works again within a second is not said, and the next trouble begins anew."""
    now, slept = clock
    caplog.set_level(logging.INFO)
    trouble = Backoff("x")
    for _ in range(3):
        trouble.wait("busy", began=now[0])
        trouble.worked()

    assert slept == [0.05] * 3
    assert not caplog.records


def test_a_call_that_failed_after_long_is_said_at_once(clock, caplog):
    """A call may have waited for ten seconds before it failed: those count."""
    now, _ = clock
    Backoff("x").wait("timed out", began=now[0] - 10)

    assert "for 10 s: timed out" in caplog.text


def test_librdkafka_is_heard_seldom(clock, caplog):
    """A thousand lines of a kind are one every ten seconds, with how many were not said; other kinds are heard."""
    now, _ = clock
    log = logging.getLogger("stream_ocpdl.kafka.client.test")
    log.addFilter(Seldom())
    for _ in range(1000):
        log.error("%s [%s] %s", "FAIL", "rdkafka#producer-1", "Connect failed")
        log.error("%s [%s] %s", "TXNERR", "rdkafka#producer-1", "aborted")
        now[0] += 0.011

    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert said[0] == "FAIL [rdkafka#producer-1] Connect failed"
    assert said[2].startswith("FAIL [rdkafka#producer-1] Connect failed (and 9")


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ("FATAL [x] Fatal error: Local: This instance has been fenced by a newer instance", "WARNING"),
        ("ADDPARTS [x] Failed: Broker: Producer attempted an operation with an old epoch", "WARNING"),
        ("OTHERFATAL [x] Fatal error: Broker: Topic authorization failed", "CRITICAL"),
    ],
)
def test_a_fence_alarms_nobody(said, level):
    """librdkafka calls it fatal; to be fenced is how a process ends that was given up. What else is fatal stays so."""
    record = logging.LogRecord("client", logging.CRITICAL, "", 0, said, (), None)

    assert Fences().filter(record)
    assert (record.levelname, logging.getLevelName(record.levelno)) == (level, level)
