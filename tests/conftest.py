"""The broker of the test session, and the closing lines that say which tiers ran and on what."""

import os
import signal

import pytest

from tests.broker.cluster import Broker, obtain
from tests.broker.guarded import Guarded
from tests.broker.jars import NoBroker, install

REQUIRED = "OCPDL_REQUIRE_BROKER"
"""Set where a missing broker is a failure and not a reason to skip."""

SLOW = "OCPDL_SLOW"
"""Set where tests that take minutes are run."""

_state: dict[str, str] = {}

# A shell that runs us in the background lets interrupts be ignored, and so they would be in every child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def threads_for_everything(monkeypatch):
    """However small a problem is, who asks for threads gets them: or tests of threads would run on one."""
    monkeypatch.setattr("stream_ocpdl.ocpdl.workers.WORTH_A_THREAD", 0)


@pytest.fixture(scope="session")
def broker():
    """One Apache Kafka for the whole session; the tests that want it are skipped where none can be had."""
    found: Broker = or_skip(obtain)
    _state["origin"] = found.origin
    with found:
        yield found.bootstrap_servers


@pytest.fixture(scope="session")
def installed():
    """The jars of Apache Kafka, for tests that start nodes of their own."""
    or_skip(install)
    _state.setdefault("origin", "jars")


@pytest.fixture(scope="session")
def fortress(installed):
    """A node that asks who comes, and what he may do; it has a door for everybody, too."""
    with Guarded.start() as running:
        yield running


@pytest.fixture(scope="session")
def guarded(fortress):
    """The address at which it asks for a password."""
    return fortress.door


def or_skip(get):
    """What a function gets; without a broker a skip, or a failure where one is required."""
    try:
        return get()
    except NoBroker as reason:
        _state["missing"] = str(reason)
        if os.environ.get(REQUIRED):
            raise
        pytest.skip(str(reason))


def pytest_collection_modifyitems(items):
    """Tests that use a broker belong to its tier."""
    for item in items:
        if {"broker", "installed"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("broker")
        if "slow" in item.keywords and not os.environ.get(SLOW):
            item.add_marker(pytest.mark.skip(reason=f"it takes minutes; make test-slow, or set {SLOW}"))


def pytest_sessionfinish(session):
    """A worker hands over what it knows of the broker."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["brokers"] = dict(_state)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Who writes the closing lines takes it."""
    _state.update(getattr(node, "workeroutput", {}).get("brokers", {}))


def pytest_terminal_summary(terminalreporter):
    """Say on which broker the tests ran, and how many did not, and why."""
    if "origin" in _state:
        terminalreporter.write_line(f"Apache Kafka: from {_state['origin']}")
    if "missing" in _state:
        skipped = [r for r in terminalreporter.stats.get("skipped", ()) if _state["missing"] in str(r.longrepr)]
        terminalreporter.write_line(f"{len(skipped)} broker tests were skipped: {_state['missing']}")
