"""From samplers to a topic: each draw once and in order, on a real Apache Kafka, also when it goes away meanwhile."""

import subprocess
import sys
import threading
import time
import uuid
from collections import namedtuple
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from stream_ocpdl import DrawSink
from stream_ocpdl.errors import BrokerError, ConfigError, DataError
from stream_ocpdl.sinks.adapters import Backend, CsvTail, chunk, emcee, pymc
from stream_ocpdl.sinks.buffer import AHEAD, Buffer, Parcel, loads
from stream_ocpdl.sinks.together import Kind, messages
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.messages import Draft, Draw, Tensor
from tests.broker.cluster import Cluster
from tests.test_kafka import ROOT, eventually


@pytest.fixture
def topic(broker):
    """A topic with two partitions."""
    connection, name = kafka.Connection(broker), f"draws-{uuid.uuid4().hex[:8]}"
    kafka.create_topics(connection, {name: (2, {})})
    kafka.await_topics(connection, [name])
    yield name
    kafka.delete_topics(connection, [name])


def arrived(servers, topic):
    """(partition, draw) in the order of each partition."""
    records = [r for p in (0, 1) for r in kafka.read_committed(kafka.Connection(servers), topic, p)]
    assert all(r.key == Draw.from_bytes(r.value).key for r in records)
    return [(r.position.partition, Draw.from_bytes(r.value)) for r in records]


def numbers(servers, topic, chain=0):
    return [d.draw for _, d in arrived(servers, topic) if d.chain == chain]


def test_draws_of_two_chains(broker, topic):
    """Each chain in one partition and in order; draws of tuning are left out, and not counted; others are passed on."""
    with DrawSink(broker, topic, "r", to_tensor=np.exp, sampler="mine", axes=("place",)) as sink:
        assert sink.draw(np.zeros(3), 0, tuning=True) is False
        for k in range(5):
            assert sink.draw(np.full(3, -float(k)), 1)
        assert list(sink.each(iter([[1.0], [2.0]]), chain=0)) == [[1.0], [2.0]]
    found = arrived(broker, topic)

    assert [(p, d.draw) for p, d in found] == [(0, 0), (0, 1), *((1, k) for k in range(5))]
    assert np.allclose([d.tensor.array for p, d in found if p == 1], np.exp(-np.arange(5.0))[:, None] * np.ones(3))
    assert {(d.run, d.sampler, d.tuning, d.tensor.axes) for _, d in found} == {("r", "mine", False, ("place",))}
    assert sink.dropped == 0
    with pytest.raises(ConfigError, match="is closed"):
        sink.draw(np.zeros(3))


def test_a_run_goes_on(broker, topic):
    """Done again with `resume` it leaves out what is there: what is missing of each chain comes once; so does tuning
    where it is wanted.
    """
    with DrawSink(broker, topic, "r", tuning=True) as sink:
        for k in range(4):
            sink.draw([1.0], 0, tuning=k < 2)
        sink.draw([1.0], 1, number=1)
    with DrawSink(broker, topic, "r", tuning=True, resume=True) as sink:
        for k in range(6):
            assert sink.draw([2.0], 0, tuning=k < 2) == (k >= 4)
            assert sink.draw([2.0], 1) == (k != 1)

    assert numbers(broker, topic, 0) == list(range(6))
    assert sorted(numbers(broker, topic, 1)) == list(range(6))
    assert [d.tuning for _, d in arrived(broker, topic) if d.chain == 0] == [True] * 2 + [False] * 4


def test_draws_of_an_ensemble(broker, topic):
    """One of each chain at once, as if they had come one by one; what is there already is left out, chain by chain."""
    places = np.arange(12.0).reshape(2, 3, 2)
    with DrawSink(broker, topic, "r", to_tensor=np.exp) as sink:
        sink.draw(places[0, 1], 1)
    with DrawSink(broker, topic, "r", to_tensor=lambda place: np.exp(place), resume=True) as sink:
        assert sink.draws(places[0]) == 2
    with DrawSink(broker, topic, "r", to_tensor=np.exp, resume=True) as sink:
        assert sink.draws(places[0]) == 0
        assert sink.draws(places[1]) == 3
        places[1] = 0.0  # the sampler goes on in the same memory
    with DrawSink(broker, topic, "s") as sink:
        with pytest.raises(DataError, match=r"to_tensor, such as np\.exp"):
            sink.draws(-np.ones((3, 2)))
        with pytest.raises(DataError, match="cannot be written: dtype"):
            sink.draw(np.array(["text"]))

    found = {(d.chain, d.draw): d.tensor.array.tolist() for _, d in arrived(broker, topic)}
    wanted = np.exp(np.arange(12.0).reshape(2, 3, 2))
    assert found == {(chain, draw): wanted[draw, chain].tolist() for chain in range(3) for draw in range(2)}


def test_signed_draws_and_points_of_many_parts(broker, topic):
    """The error says what a model needs; with signed=True it is taken as it is. Of two parts, to_tensor makes one."""
    with DrawSink(broker, topic, "r") as sink:
        with pytest.raises(DataError, match=r"to_tensor, such as np.exp.*signed constraints"):
            sink.draw([-1.0])
        with pytest.raises(DataError, match="mu, tau: say with to_tensor"):
            sink.draw({"mu": 1.0, "tau": 2.0})
        assert sink.draw({"mu": [3.0]})
    with DrawSink(broker, topic, "s", signed=True, to_tensor=lambda p: [p["mu"], p["tau"]]) as sink:
        assert sink.draw({"mu": -1.0, "tau": 2.0})

    assert [d.tensor.array.tolist() for _, d in arrived(broker, topic)] == [[3.0], [-1.0, 2.0]]


def test_a_later_draw_that_is_negative(broker, topic):
    """The thread finds it: what came before is written, it and what follows is not, and whoever draws next is told."""
    sink = DrawSink(broker, topic, "r")
    for k in (1.0, 2.0, -3.0, 4.0):
        sink.draw([k])

    assert eventually(lambda: sink._over)
    with pytest.raises(DataError, match=r"to_tensor, such as np\.exp.* draws were not written"):
        sink.draw([5.0])
    with pytest.raises(DataError, match="to_tensor"):
        sink.close()
    assert eventually(lambda: len(arrived(broker, topic)) == 2)
    assert [d.tensor.array.tolist() for _, d in arrived(broker, topic)] == [[1.0], [2.0]]
    with pytest.raises(ConfigError, match="is closed"):
        sink.draw([6.0])


def test_a_topic_that_is_not_there(broker):
    """It is said at the end, with how many draws are lost, and the reason."""
    with (
        pytest.raises((BrokerError, ConfigError), match=r"1 draws .*no-"),
        DrawSink(broker, f"no-{uuid.uuid4().hex}", "r", timeout=2.0) as sink,
    ):
        sink.draw([1.0])


def test_what_is_queued_when_a_process_ends(broker, topic):
    """A process that ends without closing its sink has written all draws."""
    code = (
        f"from stream_ocpdl import DrawSink\ns = DrawSink({broker!r}, {topic!r}, 'r')\nfor k in range(500): s.draw([k])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)

    assert numbers(broker, topic) == list(range(500))


SAMPLER = """
import sys, time
import numpy as np
from stream_ocpdl import DrawSink
random = np.random.default_rng(3)
with DrawSink(sys.argv[1], sys.argv[2], "r", to_tensor=np.exp, resume=True) as sink:
    for k in range(600):
        sink.draws(random.standard_normal((4, 3)))
        time.sleep(float(sys.argv[3]))
"""


def test_a_sampler_that_is_killed(broker, topic):
    """And is run again with the same seed: every draw is there once, in order, as if it had never been killed."""
    run = [sys.executable, "-c", SAMPLER, broker, topic]
    with subprocess.Popen([*run, "0.01"], cwd=ROOT) as life:
        assert eventually(lambda: len(arrived(broker, topic)) > 200)
        life.kill()
    some = len(arrived(broker, topic))
    subprocess.run([*run, "0"], check=True, cwd=ROOT, timeout=120)
    found, random = arrived(broker, topic), np.random.default_rng(3)
    wanted = np.exp([random.standard_normal((4, 3)) for _ in range(600)])

    assert some < len(found) == 2400
    for chain in range(4):
        mine = [d for _, d in found if d.chain == chain]
        assert [d.draw for d in mine] == list(range(600))
        assert np.array_equal([d.tensor.array for d in mine], wanted[:, chain])


def test_a_broker_that_goes_away(installed):
    """Killed while a sampler samples, and back later: no draw is lost or repeated, and the sampler did not wait; where
    draws are dropped, all but those are there, and they are counted.
    """
    with Cluster.start() as cluster:
        servers = cluster.bootstrap_servers
        connection = kafka.Connection(servers)
        kafka.create_topics(connection, {"all": (2, {}), "some": (2, {})})
        kafka.await_topics(connection, ["all", "some"])
        every = DrawSink(servers, "all", "r", timeout=120.0)
        some = DrawSink(servers, "some", "r", when_full="drop", room=5, queue_bytes=3_000_000, timeout=120.0)
        taken = []
        for k in range(200):
            if k == 100:
                every.flush()
                some.flush()
                cluster.kill(1)
            began = time.perf_counter()
            every.draw([float(k)], k % 2)
            taken.append(time.perf_counter() - began)
            some.draw(np.full(12_500, k))  # 100 kB: after some 30 of them the queues are full
        cluster.restart(1)
        every.close()
        some.close()
        kept = numbers(servers, "some")

        for chain in (0, 1):
            assert numbers(servers, "all", chain) == list(range(100))
        assert sorted(taken)[150] < 0.05
        assert kept == sorted(set(kept))
        assert 0 < some.dropped == 200 - len(kept)


def test_a_buffer_is_bounded():
    """By draws and by bytes, with what was taken and is not written yet; one that is larger than all goes alone."""
    buffer = Buffer(4, 96)
    one, large = np.zeros(4), np.zeros((9, 8))  # 32 bytes, 576 bytes
    assert [buffer.put("a", [k], one, 0.0) for k in range(4)] == [True, True, True, False]
    assert buffer.many.is_set()
    taken = buffer.take(60.0)
    assert [(parcel.kind, parcel.numbers, parcel.bytes) for parcel in taken] == [("a", [0, 1, 2], 96)]
    assert buffer.pending == 3
    assert not buffer.put("a", [3], one, 0.01)
    buffer.done(taken)
    assert buffer.put("a", [3], one, 0.0)
    buffer.done(buffer.take(0.0))
    assert buffer.put("a", range(9), large, 0.0)
    assert not buffer.put("a", [4], one, 0.0)
    waiting = threading.Timer(0.05, lambda: buffer.done(buffer.take(0.0)))
    waiting.start()
    assert buffer.put("b", [4], one, 30.0)
    assert [parcel.kind for parcel in buffer.take(0.0)] == ["b"]


def test_draws_that_follow_each_other_wait_together():
    """In one parcel as long as they are of one kind and it is not full; in the order in which they came otherwise."""
    buffer, kinds = Buffer(10_000, 10**9), [object(), object()]
    for k in range(300):
        buffer.put(kinds[0], [k], np.zeros(1), 0.0)
    for k in range(4):
        buffer.put(kinds[k % 2], [k], np.zeros(1), 0.0)
    buffer.put(kinds[1], [4, 5], np.zeros((2, 200_000)), 0.0)
    buffer.put(kinds[1], [6, 7], np.zeros((2, 1)), 0.0)
    parcels = buffer.take(0.0)

    found = [(kinds.index(parcel.kind), len(parcel.numbers), len(parcel.arrays)) for parcel in parcels]
    assert found == [(0, 256, 256), (0, 45, 45), (1, 1, 1), (0, 1, 1), (1, 3, 2), (1, 2, 1)]
    assert [len(load) for load in loads(parcels)] == [1, 4, 1]  # 256 draws, 3,200,000 bytes, the rest
    assert list(loads([])) == []


def test_a_lane_has_room_ahead():
    """Which counts, but is not waited for; what is in it comes after what was there, and is done with like the rest."""
    buffer = Buffer(4 * AHEAD, 10**9)
    buffer.put("a", [0], np.zeros(1), 0.0)
    lane = buffer.open("a", 1, 8)
    assert (lane.room, buffer.pending) == (AHEAD, 1)
    lane.arrays += [np.zeros(1)] * 3
    assert buffer.pending == 4
    taken = buffer.take(0.0)
    assert [parcel.numbers for parcel in taken] == [[0, 1, 2, 3]]
    assert (lane.left, buffer.pending) == (AHEAD - 3, 4)
    buffer.done(taken)
    lane.arrays.append(np.zeros(1))
    assert buffer.open("b", 0, 8) is None  # lanes have a quarter of the room
    assert buffer.close(lane) == 5
    assert buffer.pending == 1
    lane = buffer.open("b", 0, 8)
    assert lane is not None
    buffer.close(lane)
    buffer.put("a", range(AHEAD), np.zeros(AHEAD), 0.0)
    assert buffer.open("b", 0, 8) is None  # half of it


def test_lanes_are_not_to_be_seen(broker, topic):
    """Whatever ends one, numbers are those of draws one by one: another shape or type, a number, an ensemble, an error
    of the map, tuning; also while the thread takes draws out of it.
    """

    def to_tensor(point):
        if point is None:
            raise LookupError
        return point

    with DrawSink(broker, topic, "r", to_tensor=to_tensor, tuning=True) as sink:
        for k in range(5000):
            assert sink.draw([float(k)])
            if k == 2500:
                time.sleep(0.3)
        sink.draw([5000.0, 0.0])
        sink.draw([5001])
        with pytest.raises(LookupError):  # after one that opened a lane
            sink.draw(None)
        sink.draw([5003.0])
        sink.draws([[5004.0], [0.0]])
        sink.draw([5005.0], tuning=True)
        sink.draw([5006.0], number=5006)
        sink.draw([5007.0])
    mine = [d for _, d in arrived(broker, topic) if d.chain == 0]

    assert [d.draw for d in mine] == [k for k in range(5008) if k != 5002]
    assert [float(d.tensor.array[0]) for d in mine] == [d.draw for d in mine]
    assert [d.draw for d in mine if d.tuning] == [5005]


def test_what_a_lane_had_no_room_for_is_counted(broker, topic):
    """A sampler that is faster than the thread: each draw is on the topic, or it was said that it is not."""
    with DrawSink(broker, topic, "r", when_full="drop", room=300) as sink:
        written = [k for k in range(20_000) if sink.draw([float(k)])]

    assert numbers(broker, topic) == written
    assert 0 < sink.dropped == 20_000 - len(written)


def drafted(chain, *shape):
    """The beginning of the messages of a chain."""
    return Draft(Draw(Tensor(np.ones(shape)), "r", chain, 0))


def test_messages_of_draws_that_waited_together():
    """Are those of each draw alone, to the byte, whatever their sizes; up to the first that must not be negative."""
    pair = Kind(np.dtype("f8"), (2, 3), (0, 1), [drafted(0, 2, 3), drafted(1, 2, 3)])
    single = Kind(np.dtype("f8"), (6,), (3,), [drafted(3, 6)])
    large = Kind(np.dtype("f8"), (600,), (4,), [drafted(4, 600)])
    steps, wide = np.arange(24.0).reshape(2, 2, 2, 3), np.asfortranarray(np.arange(12.0).reshape(2, 2, 3))
    kinds, first = (pair, single, large), ((7, 8), (5,), (0,))
    arrays = [steps[0]], [np.arange(6.0)], [np.ones(600)]
    parcels = [Parcel(*of) for of in zip(kinds, first, arrays, strict=True)]
    assert parcels[0].add(pair, [8, 300], [steps[1]])
    assert parcels[0].add(pair, [9, 301], [wide])
    assert parcels[2].add(large, [1], [np.full(600, 2.0)])
    wanted = [
        *((0, 7, steps[0, 0]), (1, 8, steps[0, 1]), (0, 8, steps[1, 0]), (1, 300, steps[1, 1]), (0, 9, wide[0])),
        *((1, 301, wide[1]), (3, 5, np.arange(6.0)), (4, 0, np.ones(600)), (4, 1, np.full(600, 2.0))),
    ]
    expected = [
        (Draw(Tensor(array), "r", chain, number).to_bytes(), f"r:{chain}".encode(), chain % 2)
        for chain, number, array in wanted
    ]
    assert list(messages(parcels, 2, False)) == expected

    steps[1, 0, 1, 2] = -1.0
    found = messages(parcels, 2, False)
    assert [next(found), next(found)] == expected[:2]
    with pytest.raises(DataError, match="to_tensor"):
        next(found)
    assert len(list(messages(parcels, 2, True))) == len(expected)


class Client:
    """Takes records, of which some wait for ever."""

    def __init__(self, waiting):
        self.waiting, self.together, self.single = waiting, 0, 0

    def __len__(self):
        return self.waiting

    def produce_batch(self, topic, messages, partition, report):
        self.together += len(messages)
        return len(messages)

    def produce(self, topic, value, key, partition, report):
        self.single += 1


def written_by(client, size, times=1):
    """How many records of so many bytes came together, and how many one by one."""
    writer = kafka.Writer(kafka.Connection("127.0.0.1:1"), 8_000_000)
    writer._producer = client
    for _ in range(times):
        assert writer.put_together("t", [(bytes(size), b"k", p) for p in (0, 1)], 0.0)
    return client.together, client.single


def test_records_that_come_together():
    """However many came before, while few wait; one by one where they might not fit, in bytes or in number."""
    assert written_by(Client(10), 100_000, 200) == (400, 0)  # 40 MB
    assert written_by(Client(39), 100_000) == (0, 2)
    assert written_by(Client(99_998), 10) == (2, 0)
    assert written_by(Client(99_999), 10) == (0, 2)


# ── adapters: what they hand to a sink ─────────────────────────────────────────────────────────────────────────


class Recorder:
    """A sink that keeps what it is given."""

    def __init__(self):
        self.sampler, self.kept, self.checks = None, [], []

    def draw(self, point, chain=0, tuning=False, number=None):
        self.kept.append((point, chain, tuning, number))

    def draws(self, points, number=None):
        self.kept.extend((point, chain, False, number) for chain, point in enumerate(points))

    def expect(self, check):
        self.checks.append(check)


def test_pymc():
    """Points with chain and tuning, as PyMC's callback gets them; one that was never called is an error in the end."""
    PyMCDraw = namedtuple("Draw", "chain is_last draw_idx tuning stats point")
    sink = Recorder()
    callback = pymc(sink)
    with pytest.raises(ConfigError, match="nuts_sampler='pymc'"):
        sink.checks[0]()
    callback(trace=None, draw=PyMCDraw(2, False, 0, True, {}, {"mu": 1.0}))
    sink.checks[0]()

    assert sink.kept == [({"mu": 1.0}, 2, True, None)]
    assert sink.sampler == "pymc"


def test_emcee():
    """Every walker is a chain; with a backend draws have the number of its iteration, so that a run goes on."""

    class Kept:
        iteration, random_state = 7, "state"

        def save_step(self, state, accepted):
            self.iteration += 1

    sink, states = Recorder(), [SimpleNamespace(coords=np.array([[1.0], [2.0]])) for _ in range(2)]
    assert list(emcee(sink, iter(states))) == states
    backend = Backend(sink, Kept())
    backend.save_step(states[0], None)
    backend.save_step(states[1], None)

    assert [(float(p[0]), c, n) for p, c, _, n in sink.kept[:3]] == [(1.0, 0, None), (2.0, 1, None), (1.0, 0, None)]
    assert [(c, n) for _, c, _, n in sink.kept[4:]] == [(0, 7), (1, 7), (0, 8), (1, 8)]
    assert (backend.iteration, backend.random_state) == (9, "state")


def test_chunks():
    """(chains, draws, …), by names or not, draw after draw of all chains; what is not so grouped is refused."""
    sink = Recorder()
    chunk(sink, {"mu": np.arange(6).reshape(2, 3), "tau": np.zeros((2, 3, 4))})
    assert [(int(p["mu"]), p["tau"].shape, c) for p, c, _, _ in sink.kept[:3]] == [
        (0, (4,), 0),
        (3, (4,), 1),
        (1, (4,), 0),
    ]
    for wrong in ({"mu": np.zeros(6)}, {"mu": np.zeros((2, 3)), "tau": np.zeros((3, 2))}, np.zeros(3), {}):
        with pytest.raises(DataError, match="group_by_chain"):
            chunk(sink, wrong)


STAN = """# method = sample
#     save_warmup = 1
lp__,accept_stat__,mu,theta.1
-1,0.9,0.5,1.5
# Adaptation terminated
# Step size = 0.8
-2,0.8,0.25,2.5
-3,0.7,0.125,3.5
#  Elapsed Time: 0.01 seconds (Warm-up)
"""


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
def test_a_file_of_cmdstan(tmp_path, size):
    """Cut anywhere, as it grows: each line once, the sampler's own columns left out, warm-up marked."""
    sink, path = Recorder(), tmp_path / "out.csv"
    tail, content = CsvTail(sink, path, 3), STAN.encode()
    assert tail.poll() == 0
    cuts = [*range(0, len(content), size), len(content)]
    seen = 0
    for a, b in pairwise(cuts):
        with path.open("ab") as file:
            file.write(content[a:b])
        seen += tail.poll()

    assert seen == 3
    assert [(p["mu"], p["theta.1"], c, t) for p, c, t, _ in sink.kept] == [
        (0.5, 1.5, 3, True),
        (0.25, 2.5, 3, False),
        (0.125, 3.5, 3, False),
    ]
    assert set(sink.kept[0][0]) == {"mu", "theta.1"}
    with path.open("ab") as file:
        file.write(b"1,2\n")
    with pytest.raises(DataError, match="line 10 is no draw"):
        tail.poll()
