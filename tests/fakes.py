"""A world in memory: an input, a journal, codes and checkpoints that survive a crash as a broker's would.

Not a broker, and no evidence of exactly-once: it drives the pipeline and the loop, bytes in, bytes out.
"""

from itertools import takewhile

from stream_ocpdl.errors import InputLost
from stream_ocpdl.stream.checkpoint import Candidate
from stream_ocpdl.stream.messages import Code, Position, Record
from stream_ocpdl.stream.ports import no_crash
from stream_ocpdl.stream.service import Service
from stream_ocpdl.stream.watch import Unwatched
from stream_ocpdl.stream.world import Ports

UNWATCHED = Unwatched()


class Crash(BaseException):
    """The process is gone at this instant: not an Exception, so that nothing of ours can catch it."""


class World:
    """What outlives a process."""

    def __init__(self, partitions):
        self.input = partitions
        self.written = []
        self.positions = {}
        self.checkpoints = []
        self.requests = []
        self.trimmed = {}
        """For each partition the lowest offset that is there, if it is not 0."""
        self.identity = None

    def stream(self, name):
        """The committed values of one stream."""
        return [output.value for output in self.written if output.stream == name]

    def codes(self):
        """Committed codes by the position of their input."""
        return [Code.from_bytes(value) for value in self.stream("codes")]


class Source:
    """Delivers partitions interleaved in chunks of a given size; some may be silent."""

    def __init__(self, world, chunk=3, silent=()):
        self.world, self.chunk, self.at, self.turn, self.silent = world, chunk, {}, 0, silent

    identity = "the input in memory"

    @property
    def partitions(self):
        return list(range(len(self.world.input)))

    def latest(self):
        return {p: len(values) for p, values in enumerate(self.world.input)}

    def earliest(self):
        return dict.fromkeys(self.partitions, 0) | self.world.trimmed

    def committed(self):
        return self.world.positions

    def changed(self):
        before, self.identity = self.identity, self.world.identity or self.identity
        return self.identity != before

    def start(self, positions):
        self.at = dict(positions)

    def poll(self, limit, timeout, hungry):
        for _ in self.partitions:
            self.turn = (self.turn + 1) % len(self.partitions)
            p, first = self.turn, self.at.get(self.turn, len(self.world.input[self.turn]))
            if first < self.world.trimmed.get(p, 0):
                raise InputLost(f"partition {p} no longer has offset {first}")
            values = self.world.input[p][first : first + min(self.chunk, limit)]
            if p in hungry and p not in self.silent and values:
                self.at[p] = first + len(values)
                return [Record(Position(p, first + k), b"key", value) for k, value in enumerate(values)]
        return []


class Journal:
    """The committed records."""

    def __init__(self, world):
        self.world = world

    def read(self, start=0):
        yield from list(enumerate(self.world.stream("journal")))[max(start, 0) :]


class Outbox:
    """All or nothing; `at` may crash before or after."""

    def __init__(self, world, at):
        self.world, self.at = world, at

    def open(self):
        pass

    def commit(self, outputs, positions):
        self.at("before-commit")
        self.world.written = [*self.world.written, *outputs]
        self.world.positions = dict(positions)
        self.at("after-commit")
        return len(self.world.stream("journal")) - 1


class Control:
    """Requests, each of which is written when the journal has so many records."""

    def __init__(self, world):
        self.world = world

    def read(self, start):
        length = len(self.world.stream("journal"))
        there = takewhile(lambda entry: entry[0] <= length, self.world.requests)
        return [(k, value) for k, (_, value) in enumerate(there) if k >= start][:2]


class Store:
    """Keeps the newest three."""

    def open(self):
        pass

    def __init__(self, world, at):
        self.world, self.at = world, at

    def save(self, manifest, parts):
        data = b"".join(parts())
        self.at("in-checkpoint")
        self.world.checkpoints = [(manifest, data), *self.world.checkpoints][:3]

    def discard(self, manifest):
        self.world.checkpoints = [kept for kept in self.world.checkpoints if kept[0] != manifest]

    def candidates(self):
        yield from [Candidate(manifest, lambda data=data: data) for manifest, data in self.world.checkpoints]


def serve(world, plan, pace, at=no_crash, chunk=3, silent=(), begin=None, watch=UNWATCHED, warm=lambda: None):
    """Run a service on the world until its input has been still for a while; its pipeline, and its reports."""
    source, clock, still, reports = Source(world, chunk, silent), [0.0], [0], []
    source.identity = world.identity or source.identity
    polled = source.poll

    def poll(limit, timeout, hungry):
        records = polled(limit, timeout, hungry)
        clock[0] += 0.005
        still[0] = 0 if records else still[0] + 1
        return records

    source.poll = poll
    ports = Ports(
        source,
        Journal(world),
        Outbox(world, at),
        Store(world, at),
        lambda: clock[0],
        lambda: still[0] > 250,
        reports.append,
        at,
        Control(world),
        begin,
        watch=watch,
    )
    return Service(plan, ports, pace, warm=warm).run(), reports
