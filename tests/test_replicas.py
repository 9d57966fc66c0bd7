"""Which shards a process runs: the rules, with a group and with work that are made up."""

import threading
import time

import pytest

from stream_ocpdl.errors import BrokerError, Fenced, InputLost, LineageError, Stopped
from stream_ocpdl.stream import replicas, standby
from stream_ocpdl.stream.ports import Warned
from stream_ocpdl.stream.recovery import Recovery
from stream_ocpdl.stream.replicas import Replica
from stream_ocpdl.stream.tenure import Term, await_end
from tests.test_kafka import eventually


class Group:
    """A group that does what a script says, one line a poll."""

    def __init__(self, *script):
        self.terms, self.joined, self.script, self.log = {}, True, list(script), []

    def poll(self, timeout):
        time.sleep(0.01)
        if self.script:
            self.script.pop(0)(self)

    def leave(self):
        self.log.append("leave")
        for term in self.terms.values():
            term.lose()
        self.terms.clear()

    def rejoin(self):
        self.log.append("rejoin")
        self.give(0)

    def give(self, *shards):
        self.terms |= {shard: Term(shard, b"token") for shard in shards}


def give(*shards):
    return lambda group: group.give(*shards)


def revoke(shard):
    def callback(group):
        term = group.terms.pop(shard)
        term.finish()
        await_end([term], 0.3)
        term.lose()

    return callback


def lose(shard):
    return lambda group: group.terms.pop(shard).lose()


def nothing(group):
    pass


class Work:
    """Runs until its term ends; `fails` has what a shard raises, one error a life."""

    def __init__(self, fails=None, slow=0.0):
        self.fails, self.slow, self.log, self.followed = fails or {}, slow, [], []

    def run(self, term, warm):
        self.log.append(("run", term.shard, warm()))
        if self.fails.get(term.shard):
            raise self.fails[term.shard].pop(0)
        while not term.ending():
            time.sleep(0.005)
        time.sleep(self.slow)
        term.check()
        self.log.append(("finished", term.shard))

    def follow(self, shard):
        self.followed.append(shard)
        return Followed(shard)


class Followed:
    """A shard that was followed."""

    def __init__(self, shard):
        self.shard, self.ended = shard, False

    def take_over(self):
        return f"warm {self.shard}"

    def end(self):
        self.ended = True


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What takes seconds takes hundredths of them."""
    for name, seconds in (("SETTLED", 0.03), ("NOTICED", 0.05), ("PAUSE", 0.05), ("LONGEST", 0.2)):
        monkeypatch.setattr(replicas, name, seconds)


def live(group, work, shards=2, polls=30):
    """Let a process live for so many polls; what it said."""
    said, left = [], [polls]

    def stopping():
        left[0] -= 1
        return left[0] < 0

    Replica(group, work, shards, stopping, said.append).run()
    return said


def test_each_shard_has_a_runner_and_all_finish():
    """Two shards run side by side, and both come to an end in order when the process is told to stop."""
    work = Work()
    live(Group(give(0), give(1)), work)

    assert work.log[:2] == [("run", 0, None), ("run", 1, None)]
    assert sorted(work.log[2:]) == [("finished", 0), ("finished", 1)]


def test_a_shard_that_is_taken_back_is_finished_and_the_other_goes_on():
    """Revoked: its runner finishes before the group goes on, and is not started again."""
    work = Work()
    live(Group(give(0, 1), *[nothing] * 5, revoke(0), *[nothing] * 5, lambda g: work.log.append("later")), work)

    assert work.log == [("run", 0, None), ("run", 1, None), ("finished", 0), "later", ("finished", 1)]


@pytest.mark.parametrize("end", [revoke(0), lose(0)], ids=["out of time", "lost"])
def test_a_shard_that_is_gone_is_dropped(end):
    """Past the budget, or lost: what the runner has is void, it finishes nothing, and that is no error."""
    work = Work(slow=0.6)
    said = live(Group(give(0), *[nothing] * 5, end), work, polls=120)

    assert work.log == [("run", 0, None)]
    assert "dropped shard 0: shard 0 is no longer ours" in said


def test_a_shard_comes_back_while_its_old_runner_is_still_there():
    """The new term waits for the old runner to be gone: never two of one shard in a process."""
    work = Work(slow=0.6)
    live(Group(give(0), *[nothing] * 3, revoke(0), give(0)), work, polls=100)

    assert work.log == [("run", 0, None), ("run", 0, None), ("finished", 0)]


def test_a_runner_that_hangs_holds_up_nobody(monkeypatch):
    """A call into the client may never come back: the shard gets another runner after a while, and an end is an end."""
    monkeypatch.setattr(replicas, "HANGS", 0.2)
    work, hung = Work(), threading.Event()

    def run(term, warm, run=work.run):
        if not work.log:
            work.log.append("hangs")
            hung.wait(5)
            term.check()
        run(term, warm)

    work.run = run
    began = time.monotonic()
    live(Group(give(0), *[nothing] * 3, revoke(0), give(0)), work, polls=100)

    assert work.log == ["hangs", ("run", 0, None), ("finished", 0)]
    assert time.monotonic() - began < 4
    hung.set()


def test_after_a_fence_it_leaves_and_each_time_for_longer(monkeypatch):
    """Fenced in a shard that is ours: leave, pause, join again; or two would fence each other for ever."""
    work, group = Work(fails={0: [Fenced("x")] * 3}), Group(give(0))
    pauses = []
    monkeypatch.setattr(group, "leave", lambda leave=group.leave: (pauses.append(time.monotonic()), leave()))
    monkeypatch.setattr(group, "rejoin", lambda join=group.rejoin: (pauses.append(time.monotonic()), join()))
    said = live(group, work, polls=120)

    assert group.log == ["leave", "rejoin"] * 3
    away = [back - left for left, back in zip(pauses[::2], pauses[1::2], strict=True)]
    assert away[0] >= 0.05
    assert away[1] >= 0.1
    assert away[2] >= 0.2
    assert work.log.count(("run", 0, None)) == 4
    assert work.log[-1] == ("finished", 0)
    assert sum("fenced, and not told why" in line for line in said) == 3


def test_the_pause_begins_when_all_is_given_back():
    """A real group takes the shards back in the polls after: the time in which they finish is not the pause."""

    class Slow(Group):
        def leave(self):
            self.log.append("leave")
            self.script.insert(0, self.take_back)

        def take_back(self, _):
            time.sleep(0.1)  # longer than the pause
            for term in self.terms.values():
                term.lose()
            self.terms.clear()
            self.left = time.monotonic()

        def rejoin(self):
            self.back = time.monotonic()
            super().rejoin()

    group = Slow(give(0))
    live(group, Work(fails={0: [Fenced("x")]}), polls=60)

    assert group.log == ["leave", "rejoin"]
    assert group.back - group.left >= 0.05


def test_two_fences_at_once_are_one_leave():
    """Neither shard is begun again before the group has taken both."""
    work, group = Work(fails={0: [Fenced("x")], 1: [Fenced("x")]}), Group(give(0, 1))
    live(group, work, polls=60)

    assert group.log == ["leave", "rejoin"]
    assert [entry for entry in work.log if entry[0] == "run"] == [("run", 0, None), ("run", 1, None), ("run", 0, None)]


def test_a_fence_that_the_group_explains():
    """Fenced because another was elected, which the group says a moment later: nobody leaves."""
    work, group = Work(fails={0: [Fenced("x")]}), Group(give(0), nothing, nothing, lose(0))
    live(group, work)

    assert group.log == []
    assert work.followed == [0, 1]


@pytest.mark.parametrize("error", [LineageError("wrong"), ZeroDivisionError("bug"), BrokerError("gone")])
def test_an_error_ends_the_process_after_the_others_have_finished(error):
    """The other shard is finished in order; then the error comes out, and with it its exit code."""
    work = Work(fails={0: [error]})

    with pytest.raises(type(error)) as raised:
        live(Group(give(0, 1)), work)
    assert raised.value is error
    assert work.log[-1] == ("finished", 1)


def test_a_group_that_fails_ends_the_process_in_order():
    """An error of the election itself, too, lets the shards finish."""
    work = Work()

    def fail(group):
        raise BrokerError("no broker")

    with pytest.raises(BrokerError, match="no broker"):
        live(Group(give(0), nothing, nothing, fail), work)
    assert work.log[-1] == ("finished", 0)


def test_stopped_in_a_recovery():
    """A replay that was ended by a rebalance is no error."""
    said = live(Group(give(0), nothing, revoke(0)), Work(fails={0: [Stopped("nothing was changed")]}))

    assert "nothing was changed" in said


def test_a_standby_follows_and_takes_over_warm():
    """Without a shard all are followed, said once; the one that is given is taken over, the others are let go."""
    work, group = Work(), Group(*[nothing] * 10, give(1))
    said = live(group, work)

    assert work.followed == [0, 1]
    assert said.count("standby") == 1
    assert work.log[0] == ("run", 1, "warm 1")


def test_who_is_in_no_group_is_no_standby():
    """Before it has joined it follows nobody, and says nothing."""
    group, work = Group(), Work()
    group.joined = False

    assert live(group, work) == []
    assert work.followed == []


def test_a_term():
    """Its token is shown until it is lost; nobody works in it at first."""
    term = Term(3, b"first")
    assert term.idle.is_set()
    term.token = b"second"
    assert term.show() == b"second"
    assert not term.ending()
    term.finish()
    assert term.ending()
    term.lose()

    for question in (term.show, term.ending, term.check):
        with pytest.raises(Fenced, match="shard 3 is no longer ours"):
            question()


def test_the_budget_is_one_for_all():
    """However many shards are finished at once, the group waits for so long and no longer."""
    terms = [Term(shard, b"") for shard in range(4)]
    for term in terms:
        term.idle.clear()
    began = time.monotonic()
    threading.Timer(0.05, terms[0].idle.set).start()
    await_end(terms, 0.3)

    assert 0.3 <= time.monotonic() - began < 1.1


class Quiet:
    """A follower with nothing to follow."""

    world, offset = Recovery(None, None, None, None), -1

    def restore(self):
        pass

    def follow(self, start, ended):
        while not ended():
            time.sleep(0.01)
        return iter(())

    def end(self):
        return 0


@pytest.mark.parametrize(("error", "warm"), [(InputLost("gone"), True), (LineageError("of another model"), False)])
def test_a_standby_tries_again_what_its_writer_may_mend(monkeypatch, error, warm):
    """Input that is gone can be noted by whoever writes: then there is something to follow again. A warning says so."""
    monkeypatch.setattr(standby, "AGAIN", 0.01)
    begun, said = [], []

    def begin():
        begun.append(1)
        if len(begun) < 3:
            raise error
        return Quiet(), Quiet()

    life = standby.Standby(0, begin, said.append, far=10)
    assert eventually(lambda: len(begun) == 3 or not life._thread.is_alive())

    assert (life.take_over() is not None) == warm
    assert [type(line) for line in said] == [Warned]
