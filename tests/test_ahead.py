"""Reading ahead, and writing aside: the same records and the same transactions, in the same order."""

import threading
import time

import pytest

from stream_ocpdl.errors import BrokerError, InputLost
from stream_ocpdl.stream import beside
from stream_ocpdl.stream.ahead import Ahead
from stream_ocpdl.stream.beside import aside
from stream_ocpdl.stream.commits import Commits
from stream_ocpdl.stream.inputs import Inputs
from stream_ocpdl.stream.messages import Output, Position
from tests.fakes import Source, World
from tests.test_kafka import eventually


def drained(source, count, hungry=(0, 1)):
    """So many records, polled as the service does."""
    found, deadline = [], time.monotonic() + 10
    while len(found) < count and time.monotonic() < deadline:
        found += source.poll(7, 0.01, hungry)
    return found


def values(count=50):
    return [[b"%d:%d" % (p, k) for k in range(count)] for p in range(2)]


def test_everything_comes_once_and_in_order():
    """Each partition in order."""
    ahead = Ahead(Source(World(values())))
    ahead.start({0: 0, 1: 10})
    found = drained(ahead, 90)
    ahead.close()

    for partition, first in ((0, 0), (1, 10)):
        assert [r.position.offset for r in found if r.position.partition == partition] == list(range(first, 50))
    assert [record.value for record in found if record.position.partition == 0] == values()[0]


def test_starting_again_drops_what_was_read():
    """What was read ahead of a position is not delivered after another was asked for."""
    ahead = Ahead(Source(World(values())))
    ahead.start({0: 0, 1: 0})
    drained(ahead, 5)
    ahead.start({0: 40, 1: 50})
    found = drained(ahead, 10)
    ahead.close()

    assert [record.position for record in found] == [Position(0, k) for k in range(40, 50)]


def test_memory_is_bounded(monkeypatch):
    """It stops at the limit, and goes on when there is room."""
    monkeypatch.setattr("stream_ocpdl.stream.ahead.MOST", 20)
    source = Source(World(values()))
    ahead = Ahead(source)
    ahead.start({0: 0, 1: 0})
    time.sleep(0.2)
    assert sum(source.at.values()) < 30
    assert len(drained(ahead, 100)) == 100
    ahead.close()


@pytest.mark.parametrize(("minibatch", "most"), [(1, 3000), (4000, 8000), (10_000, 9000)])
def test_two_minibatches_are_read_ahead(monkeypatch, minibatch, most):
    """Or a little, where they are smaller, and never more than the limit."""
    monkeypatch.setattr("stream_ocpdl.stream.ahead.LEAST", 3000)
    monkeypatch.setattr("stream_ocpdl.stream.ahead.MOST", 9000)
    monkeypatch.setattr("stream_ocpdl.stream.ahead.PORTION", 1)
    source = Source(World([[bytes(500)] * 50] * 2))
    ahead = Ahead(source, minibatch=minibatch)
    ahead._wanted = 1
    ahead.start({0: 0, 1: 0})
    assert eventually(lambda: sum(source.at.values()) == -(-most // 1000))
    time.sleep(0.1)
    assert sum(source.at.values()) == -(-most // 1000)
    assert len(drained(ahead, 100)) == 100
    ahead.close()


def test_nothing_is_read_that_nobody_wants():
    """A partition that is not hungry is left alone, but for what was read before that was known."""
    source = Source(World(values()))
    ahead = Ahead(source)
    ahead.start({0: 0, 1: 0})
    drained(ahead, 100)
    source.world.input = [line + line for line in source.world.input]
    ahead.poll(1, 0.01, [0])
    drained(ahead, 50, [0])
    before = source.at[1]
    time.sleep(0.2)
    assert source.at[1] == before
    ahead.close()


def test_an_error_comes_after_what_was_read_before_it():
    """And comes again for as long as nobody starts anew."""
    source = Source(World(values(20)))
    poll = source.poll

    def failing(limit, timeout, hungry):
        found = poll(limit, timeout, hungry)
        if not found:
            raise InputLost("gone")
        return found

    source.poll = failing
    ahead = Ahead(source)
    ahead.start({0: 0, 1: 0})
    assert len(drained(ahead, 40)) == 40
    for _ in range(2):
        with pytest.raises(InputLost, match="gone"):
            drained(ahead, 1)
    ahead.close()


def test_no_thread_is_left():
    """Closed twice, or never started, it is gone."""
    before = threading.active_count()
    ahead = Ahead(Source(World(values())))
    ahead.close()
    ahead.start({0: 0, 1: 0})
    ahead.close()
    ahead.close()

    assert eventually(lambda: threading.active_count() == before)


def test_whoever_reads_looks():
    """Whether the topic is another is asked in the thread that reads, and that one goes on: nothing is lost by it.

    With a thread for each look memory grew by what one has read ahead, again and again.
    """
    source, looked = Source(World(values())), []
    source.changed = lambda: (looked.append(threading.current_thread()), len(looked) == 2)[1]
    ahead = Ahead(source)
    assert not ahead.changed()  # before anybody reads
    ahead.start({0: 0, 1: 0})
    found = drained(ahead, 20)
    assert ahead.changed()
    found += drained(ahead, 20)
    assert not ahead.changed()
    found += drained(ahead, 100 - len(found))
    ahead.close()

    assert looked[0] is threading.current_thread()
    assert looked[1] is looked[2] is not looked[0]
    assert sorted(record.position for record in found) == [Position(p, k) for p in range(2) for k in range(50)]


def test_looking_when_reading_has_failed():
    """Before or meanwhile: then nobody reads, and it is looked at here; what goes wrong with that is heard, too."""
    source, failing = Source(World(values(0))), threading.Event()

    def poll(limit, timeout, hungry):
        failing.wait()
        raise InputLost("gone")

    source.poll, source.changed = poll, lambda: True
    ahead = Ahead(source)
    ahead.start({0: 0, 1: 0})
    threading.Timer(0.1, failing.set).start()
    assert ahead.changed()
    assert ahead.changed()
    with pytest.raises(InputLost, match="gone"):
        drained(ahead, 1)

    source.poll, source.changed = lambda *_: [], lambda: 1 / 0
    ahead.start({0: 0, 1: 0})
    with pytest.raises(ZeroDivisionError):
        ahead.changed()
    ahead.close()


def test_a_client_that_hangs_is_not_asked_for_ever(monkeypatch):
    """It is an error in time; and one that takes long only to look is waited for."""
    monkeypatch.setattr("stream_ocpdl.stream.ahead.PATIENCE", 0.2)
    source, hangs = Source(World(values(0))), threading.Event()
    source.poll = lambda *_: hangs.wait() and []
    source.changed = lambda: bool(time.sleep(0.6) or True)
    ahead = Ahead(source)
    ahead.start({0: 0, 1: 0})
    with pytest.raises(BrokerError, match="does not come back"):
        ahead.changed()
    hangs.set()
    assert ahead.changed()
    ahead.close()


class Slow:
    """An outbox that takes its time."""

    def __init__(self, fails=()):
        self.written, self.fails, self.inside = [], list(fails), 0

    def commit(self, outputs, positions):
        self.inside += 1
        assert self.inside == 1, "two transactions at once"
        time.sleep(0.01)
        self.inside -= 1
        if outputs[0].value in self.fails:
            raise BrokerError("away")
        self.written.append((outputs[0].value, dict(positions)))
        return len(self.written) - 1


def output(k):
    return [Output("codes", None, b"%d" % k)]


@pytest.mark.parametrize("way", [aside, None])
def test_transactions_are_written_one_after_the_other(way):
    """Aside or at once: in order, each whole, and `end` knows the last."""
    outbox = Slow()
    commits = Commits(outbox, -1, way)
    assert commits.end() == -1
    for k in range(5):
        commits.begin(output(k), {0: k})
    assert commits.end() == 4
    assert commits.commit(output(5), {0: 5}) == 5

    assert outbox.written == [(b"%d" % k, {0: k}) for k in range(6)]


def test_what_goes_wrong_is_heard_at_the_next_turn():
    """And nothing is written after it."""
    outbox = Slow(fails=[b"1"])
    commits = Commits(outbox, -1, aside)
    commits.begin(output(0), {})
    commits.begin(output(1), {})
    with pytest.raises(BrokerError):
        commits.begin(output(2), {})

    assert [value for value, _ in outbox.written] == [b"0"]


def test_calls_beside_share_a_thread_unless_they_are_made_at_once():
    """A service makes many a second, for as long as it runs."""
    names = {aside(threading.current_thread).result() for _ in range(20)}
    assert len(names) <= 2  # one that has just answered may not wait yet

    both = threading.Barrier(2, timeout=10)
    one, other = (aside(lambda: (both.wait(), threading.current_thread())[1]) for _ in range(2))
    assert one.result(20) is not other.result(20)


def test_an_alarm_rings_if_nobody_comes_back(monkeypatch):
    """Once; and not for what was done in time."""
    monkeypatch.setattr(beside, "LOOK", 0.01)
    rung = []
    with beside.alarm(60, lambda: rung.append("early")):
        pass
    with beside.alarm(0.0, lambda: rung.append("late")):
        assert eventually(lambda: rung)
        time.sleep(0.05)
    assert rung == ["late"]


def test_a_transaction_that_failed_is_noticed_in_silence():
    """Nothing more is to be written, and still it is heard of."""
    commits = Commits(Slow(fails=[b"0"]), -1, aside)
    commits.begin(output(0), {})
    time.sleep(0.1)
    with pytest.raises(BrokerError):
        commits.look()
    commits.look()


def test_a_look_at_the_topic_does_not_read_on_behind_a_failure():
    """What failed stays failed until it is started anew: behind it there may be a hole."""
    source = Source(World(values(20)))
    poll, calls = source.poll, []

    def failing(limit, timeout, hungry):
        calls.append(1)
        if len(calls) == 3:
            source.at[0] += 3  # dropped with the error
            raise BrokerError("away")
        return poll(limit, timeout, hungry)

    source.poll = failing
    ahead = Ahead(source)
    ahead.start({0: 0, 1: 0})
    assert eventually(lambda: len(calls) == 3)
    time.sleep(0.05)
    ahead.changed()
    assert len(drained(ahead, 6)) == 6
    with pytest.raises(BrokerError, match="away"):
        drained(ahead, 1)
    ahead.start({0: 0, 1: 0})
    assert len(drained(ahead, 40)) == 40
    ahead.close()


def test_a_look_at_the_topic_loses_nothing():
    """What was being read when it was asked for comes all the same."""
    ahead = Ahead(Source(World(values())))
    ahead.start({0: 0, 1: 0})
    found = []
    while len(found) < 100:
        found += ahead.poll(7, 0.01, (0, 1))
        ahead.changed()
    ahead.close()

    for partition in (0, 1):
        assert [r.position.offset for r in found if r.position.partition == partition] == list(range(50))


def test_a_reader_that_hangs_has_no_say(monkeypatch):
    """Two may not read from one client: that is an error, and what the other brings later is dropped."""
    monkeypatch.setattr("stream_ocpdl.stream.ahead.PATIENCE", 0.1)
    source, hang = Source(World(values())), threading.Event()
    poll = source.poll
    source.poll = lambda *given: (hang.wait(5), poll(*given))[-1]
    ahead = Ahead(source)
    ahead.start({0: 0, 1: 0})
    with pytest.raises(BrokerError, match="does not come back"):
        ahead.start({0: 40, 1: 40})
    hang.set()
    time.sleep(0.2)
    ahead.start({0: 40, 1: 40})
    found = drained(ahead, 20)
    ahead.close()

    assert sorted(record.position for record in found) == [Position(p, k) for p in (0, 1) for k in range(40, 50)]


def test_a_partition_that_comes_late_is_not_lost(monkeypatch):
    """A replay waits for as long as anything comes, and asks whether the record is there before it calls it lost."""
    monkeypatch.setattr("stream_ocpdl.stream.inputs.PATIENCE", 5)
    source = Source(World(values(400)), chunk=1)
    poll, calls = source.poll, []

    def late(limit, timeout, hungry):
        calls.append(1)
        return poll(limit, timeout, [p for p in hungry if p == 1 or len(calls) > 100])

    source.poll = late
    assert next(Inputs(source, {0: 0, 1: 0}).take((0, 0, 0))).value == b"0:0"
    source.silent = (0,)
    with pytest.raises(BrokerError, match="has offset 0, and does not deliver it"):
        list(Inputs(source, {0: 0, 1: 0}).take((0, 0, 0)))
    with pytest.raises(InputLost, match="cut short"):
        list(Inputs(source, {0: 0, 1: 0}).take((0, 400, 400)))
