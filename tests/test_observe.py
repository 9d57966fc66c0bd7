"""What an operator sees: metrics that are true, probes that mean something, endpoints that answer."""

import json
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from math import inf

import httpx
import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from stream_ocpdl import Learner, Problem
from stream_ocpdl.errors import ConfigError
from stream_ocpdl.observe.board import BUCKETS, Board, Durations, Shard
from stream_ocpdl.observe.catalogue import CATALOGUE
from stream_ocpdl.observe.endpoints import application
from stream_ocpdl.observe.metrics import registry_of
from stream_ocpdl.observe.presence import Presence
from stream_ocpdl.observe.server import Server
from stream_ocpdl.observe.statistics import Client
from stream_ocpdl.observe.watched import WatchedOutbox, WatchedStore
from stream_ocpdl.stream.batching import Batching
from stream_ocpdl.stream.kafka import create_topics, delete_topics, topic_names
from stream_ocpdl.stream.messages import Code, Manifest, Origin, Position, Record, Tensor
from stream_ocpdl.stream.pipeline import Outcome, Pipeline
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import beginning
from stream_ocpdl.stream.rounds import Rounds
from tests.fakes import World, serve
from tests.test_kafka import eventually, model, process  # noqa: F401
from tests.test_partials import Fleet, tensors
from tests.test_pipeline import PACE, inputs, plan
from tests.tools import tool

BUILD = {"version": "1.2.3", "fingerprint": "abc"}
STATISTICS = {
    "rx_bytes": 5000,
    "topics": {
        "t": {
            "partitions": {
                "0": {"partition": 0, "ls_offset": 45, "fetchq_cnt": 3},
                "1": {"partition": 1, "ls_offset": -1001, "fetchq_cnt": 0},
                "-1": {"partition": -1, "ls_offset": -1},
            }
        }
    },
}


@pytest.fixture
def asked():
    """The endpoints of a board, on a real server."""
    with ExitStack() as stack:

        def ask(board, stuck_after=60.0):
            app = application(board, registry_of(board, BUILD), BUILD, "model: m\n", stuck_after)
            server = stack.enter_context(Server(app, "127.0.0.1", 0))
            return stack.enter_context(httpx.Client(base_url=server.address))

        yield ask


def samples(text, parse=plain):
    """The numbers of a scrape by name and labels, without those that all have."""
    return {
        (
            sample.name,
            *(value for key, value in sorted(sample.labels.items()) if key not in ("model", "shard")),
        ): sample.value
        for family in parse(text)
        for sample in family.samples
    }


@pytest.fixture
def learned():
    """A board on which a service has written, and its pipeline."""
    board, world = Board("m", 1), World(inputs(poison=[(0, 3), (1, 7)]))
    shard = board.begin(0, plan())
    pipeline, _ = serve(world, plan(), PACE, watch=shard)
    return board, shard, pipeline


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0"])
def test_metrics_are_what_the_model_is(asked, learned, accept):
    """In both formats, each parsed by its own parser."""
    board, shard, pipeline = learned
    answer = asked(board).get("/metrics", headers={"accept": accept})
    found = samples(answer.text, openmetrics if "openmetrics" in accept else plain)
    state, step = pipeline.progress.state, shard.step

    assert found["ocpdl_step",] == state.t == found["ocpdl_steps_total",] > 10
    assert found["ocpdl_seen_tensors",] == state.N == found["ocpdl_tensors_total",]
    assert found["ocpdl_surrogate_loss",] == step.surrogate
    assert found["ocpdl_prequential_loss",] == pytest.approx(step.coding.losses.mean())
    assert found["ocpdl_movement", "1"] == step.movements[1] <= found["ocpdl_movement_radius", "1"]
    assert found["ocpdl_dead_letters_total", "DecodeError"] == 2
    assert found["ocpdl_assumption", "(A3)", "holds"] == 1
    assert found["ocpdl_step_duration_seconds_count",] == state.t
    assert 0 < found["ocpdl_stationarity_residual", "0"] < 1
    assert found["ocpdl_phase", "running"] == 1
    assert found["ocpdl_role", "writer"] == 1
    assert found["ocpdl_build_info", "abc", "1.2.3"] == 1
    assert found["ocpdl_recoveries_total", "cold"] == 1
    assert ("process_resident_memory_bytes",) in found
    assert answer.headers["content-type"].startswith(accept.split(";")[0])


def test_every_metric_is_in_a_scrape(asked, learned):
    """A catalogue with an entry that never has a number would teach nothing."""
    board, shard, _ = learned
    shard.statistics = lambda: json.dumps(STATISTICS)
    WatchedStore(FakeStore(), shard).save(manifest(), list)
    WatchedOutbox(FakeOutbox(), shard).commit([], {})
    shard.written["codes"] += 1
    shard.staleness = 1
    shard.plan = replace(shard.plan, batching=Batching(16), codes=False, rounds=Rounds(8, 2))
    shard.chains = {"a": (1, ())}
    asked(board).get("/metrics")
    shard.chains = {"a": (2, ())}
    for t in range(1, 17):
        shard.wellness.stepped([Origin("r", 0, 32 * t + k) for k in range(32)], *noise(shard, t))
    found = {name for name, *_ in samples(asked(board).get("/metrics").text)}
    suffixes = {"gauge": "", "counter": "_total", "histogram": "_count"}

    assert {entry.name + suffixes[entry.kind] for entry in CATALOGUE} <= found


def noise(shard, t):
    """Energies, and a step at t, of 32 draws."""
    random = np.random.default_rng(t)
    coding = shard.step.coding._replace(H=random.random((32, 2)), losses=random.random(32))
    return random.random(32), shard.step._replace(t=t, coding=coding), Learner(shard.plan.problem).state


def test_promtool_finds_nothing(asked, learned):
    """The names and the help are as Prometheus wants them."""
    text = asked(learned[0]).get("/metrics").content
    checked = subprocess.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, check=False)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_lag_is_never_negative():
    """What the client does not know is not there; what is beyond the end is zero."""
    client = Client.read(json.dumps(STATISTICS))
    shard = Shard(plan(), wall=lambda: 1000.0, resume={0: 40, 1: 7}, newest=990_000)

    assert (client.ends, client.queued, client.received) == ({0: 45}, 3, 5000)
    assert shard.lag(client) == {0: 5}
    assert shard.lag_seconds({0: 5}) == 10.0
    assert shard.lag_seconds({0: 0}) == 0.0
    shard.resume = {0: 50}
    assert shard.lag(client) == {0: 0}
    assert Client.read("") == Client()
    assert shard.lag_seconds({}) == Shard(plan(), newest=-1).lag_seconds({0: 3}) == 0.0


def test_durations():
    """A duration at the end of a bucket belongs to it; the last has no end."""
    durations = Durations()
    for seconds in (0.0, BUCKETS[0], BUCKETS[0] * 1.01, 1e9):
        durations.add(seconds)

    assert durations.counts == [2, 1, *[0] * (len(BUCKETS) - 2), 1]


def test_live_goes_red_when_a_loop_is_stuck(asked):
    """The process' own, or that of a shard; and green again when it turns."""
    clock = [0.0]
    board = Board("m", 2, lambda: clock[0])
    shard, client = board.begin(1, plan()), asked(board, 60)
    clock[0] = 61.0
    board.turned()

    assert client.get("/live").status_code == 503
    assert client.get("/live").json() == {"live": False, "reasons": ["shard 1 is stuck for 61 s"]}
    shard.turned()
    assert client.get("/live").json() == {"live": True, "reasons": []}
    board.end(1, shard)
    clock[0] = 200.0
    assert client.get("/live").json()["reasons"] == ["the process is stuck for 139 s"]


def test_live_is_red_while_a_real_loop_hangs(asked):
    """Injected: a poll that does not come back. The loop of the service stands still, and goes round again after it."""
    clock, world = [0.0], World(inputs())
    board, hanging, released = Board("m", 1, lambda: clock[0]), threading.Event(), threading.Event()
    shard, client = board.begin(0, plan()), asked(board, 60)

    def at(place):
        if place == "after-commit" and not released.is_set():
            hanging.set()
            assert released.wait(30)

    service = threading.Thread(target=serve, args=(world, plan(), PACE, at), kwargs={"watch": shard}, daemon=True)
    service.start()
    assert hanging.wait(30)
    assert client.get("/live").status_code == 200
    clock[0] = 61.0
    board.turned()
    assert client.get("/live").json() == {"live": False, "reasons": ["shard 0 is stuck for 61 s"]}
    released.set()
    service.join(30)
    assert client.get("/live").json() == {"live": True, "reasons": []}


def test_live_stays_green_in_a_long_replay():
    """Each record of the journal is a turn, although no step is made."""
    world, beats = World(inputs()), []

    class Beats(Shard):
        def turned(self):
            beats.append(self.doing)

    serve(world, plan(), PACE)
    world.checkpoints = []
    serve(world, plan(), PACE, watch=Beats(plan()))

    assert beats.count("recovering") > 16


def test_ready_says_why_not(asked):
    """What has to be done before, the group, the shards, a topic that is missing; and a standby is ready."""
    board, shard = Board("m", 1), None
    client = asked(board)

    def reasons():
        answer = client.get("/ready")
        assert (answer.status_code == 200) == answer.json()["ready"] == (not answer.json()["reasons"])
        return answer.json()["role"], answer.json()["reasons"]

    board.starting = "compiling the kernels"
    assert reasons() == ("starting", ["compiling the kernels"])
    board.starting = None
    assert reasons() == ("starting", ["waiting for the group to share out the shards"])
    board.turned(idle=True)
    assert reasons() == ("standby", [])
    shard = board.begin(0, plan())
    assert reasons() == ("writer", ["shard 0 is starting"])
    shard.phase("running")
    board.missing = ["weather"]
    assert reasons() == ("writer", ["the topic weather is missing"])
    board.missing = []
    assert reasons() == ("writer", [])


def test_a_term_that_ends_late_does_not_end_the_next():
    """A runner that hangs may end after its successor has begun."""
    board = Board("m", 1)
    first = board.begin(0, plan())
    second = board.begin(0, plan())
    board.end(0, first)

    assert board.shards == {0: second}


def test_status_is_json(asked, learned):
    """Also where a number is not finite."""
    board, shard, _ = learned
    shard.residuals = (inf, 0.5)
    found = asked(board).get("/api/status").json()["shards"]["0"]

    assert found["stationarity_residual"] == {"0": None, "1": 0.5}
    assert found["step"] == shard.t
    assert {"name": "(A3)", "standing": "holds"}.items() <= found["card"][3].items()


def test_other_endpoints(asked, learned):
    """What it is, what it was told, and nothing else; nothing can be written."""
    client = asked(learned[0])

    assert client.get("/version").json() == BUILD
    assert client.get("/config").text == "model: m\n"
    assert client.get("/nothing").status_code == 404
    assert client.post("/metrics").status_code == 405


def test_the_server_answers_and_ends():
    """On a port of its own choice; a port that is taken is told at once, with what to do."""
    board = Board("m", 1)
    with Server(application(board, registry_of(board, BUILD), BUILD, "", 60), "127.0.0.1", 0) as server:
        assert httpx.get(f"{server.address}/live").json() == {"live": True, "reasons": []}
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=rf"^port {port} of 127.0.0.1 is in use; choose another with http.port"):
            Server(None, "127.0.0.1", port)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.address}/live")
    with pytest.raises(ConfigError, match=r"^http cannot listen at 192\.0\.2\.1:0: "):
        Server(None, "192.0.2.1", 0)


def test_who_asks_at_the_end_leaves_no_trace(caplog):
    """An answer that takes longer than the service waits for is cut, and that is no error."""
    asked, answered = threading.Event(), threading.Event()

    def slow(_):
        asked.set()
        answered.wait(20)
        return Response()

    def ask(address):
        with suppress(httpx.HTTPError):
            httpx.get(address, timeout=20)

    with Server(Starlette(routes=[Route("/", slow)]), "127.0.0.1", 0) as server:
        client = threading.Thread(target=ask, args=(server.address,))
        client.start()
        assert asked.wait(20)
    client.join(20)
    answered.set()

    assert not client.is_alive()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_presence():
    """A topic that goes is missed, and one that comes back is not."""
    board, there = Board("m", 1), {"a", "b"}
    with Presence(board, ["a", "b"], lambda: there, every=0.01):
        there.discard("b")
        assert eventually(lambda: board.missing == ["b"], 5)
        there.add("b")
        assert eventually(lambda: board.missing == [], 5)


@pytest.mark.broker
def test_ready_names_a_topic_that_is_missing(asked, model):  # noqa: F811
    """As a real broker has them: one that somebody deletes, until it is there again."""
    board, letters = Board("m", 1), model.topics.dead_letters
    board.starting = None
    board.begin(0, plan()).phase("running")
    client, wanted = asked(board), [model.topics.input, *model.topics.outputs(1)]

    def answer():
        found = client.get("/ready")
        return found.status_code, found.json()["reasons"]

    with Presence(board, wanted, topic_names(model.connection), every=0.05):
        assert answer() == (200, [])
        delete_topics(model.connection, [letters])
        assert eventually(lambda: answer() == (503, [f"the topic {letters} is missing"]), 30)
        create_topics(model.connection, {letters: (1, {})})
        assert eventually(lambda: answer() == (200, []), 30)


@pytest.mark.parametrize("looking", [False, True])
def test_watching_costs_little(looking):
    """A few percent of a step of the pipeline, here one whose learning takes a tenth of a millisecond; also while
    somebody looks. Where learning is fast it is more of it: 1.2 to 2.5 were seen where a step takes 200 µs.
    """
    rarely = {"digest_every": 10**6, "snapshot_every": 10**6}  # what is done now and then costs what it may
    shard, (pipeline, _) = Shard(replace(plan(), **rarely)), serve(World(inputs()), plan(), PACE)
    small = Plan("small", Problem(shape=(20, 20, 3), rank=24, batch_size=10), Batching(size=10), **rarely)
    stepping, offsets = Pipeline(small, beginning(small, {0: 0}), "input"), count()
    values = [Tensor(X).to_bytes() for X in np.random.default_rng(0).random((10, 20, 20, 3))]

    def step():
        stepping.feed([Record(Position(0, next(offsets)), None, value, (), 0) for value in values], 0.0)
        return stepping.step(0.0)

    first = step()
    positions = tuple(Position(0, k) for k in range(10))
    outcomes = iter([Outcome((), first.step._replace(t=t), positions=positions) for t in range(2, 2000)])
    if looking:
        shard.spectators.look()

    def shortest(call):
        times = []
        for _ in range(7):
            began = time.perf_counter()
            for _ in range(200):
                call()
            times.append(time.perf_counter() - began)
        return min(times)

    watched = shortest(lambda: shard.stepped(pipeline, next(outcomes), 0.001))
    assert watched < 0.04 * shortest(step)


@pytest.mark.broker
def test_a_service_on_kafka_is_seen(model, tmp_path):  # noqa: F811
    """Ready, then its numbers, from a real one; the lag is counted down to zero; a secret is not shown; and who used an
    atom is told as the codes are published.
    """
    model.set(kafka={"extra": {"session.timeout.ms": 1000}, "sasl_password": "hidden"})
    model.feed(40)
    with process(model, tmp_path) as life:
        log = tmp_path / "log"
        assert eventually(lambda: "endpoints at " in log.read_text(), 60)
        line = next(line for line in log.read_text().splitlines() if "endpoints at" in line)
        address = json.loads(line)["event"].rpartition(" ")[2]
        assert eventually(lambda: httpx.get(f"{address}/ready").status_code == 200, 120)

        def numbers():
            return samples(httpx.get(f"{address}/metrics").text)

        assert eventually(lambda: numbers().get(("ocpdl_seen_tensors",)) == 80)
        assert eventually(lambda: numbers().get(("ocpdl_lag_records", "0")) == 0)
        found = numbers()
        assert found["ocpdl_lag_seconds",] == 0
        assert found["ocpdl_input_bytes_total",] > 80 * 96
        assert found["ocpdl_outputs_total", "codes"] == 80
        assert found["ocpdl_rebalances_total",] >= 1
        assert "hidden" not in httpx.get(f"{address}/config").text
        assert httpx.get(f"{address}/api/dictionary").json()["t"] == 16
        users = httpx.get(f"{address}/api/atoms/1").json()["positions"]
        published = [Code.from_bytes(value) for p in (0, 1) for value in model.seen("codes", p)]
        codes = {(model.topics.input, *code.position): code.code[1] for code in published}
        assert [one["code"] for one in users] == sorted(codes.values(), reverse=True)[:20]
        assert all(codes[one["topic"], one["partition"], one["offset"]] == one["code"] for one in users)
        life.terminate()
        assert life.wait(30) == 0


class FakeOutbox:
    """Takes everything."""

    def commit(self, outputs, positions):
        return 0


class FakeStore:
    """Keeps nothing."""

    def save(self, manifest, parts):
        pass


def manifest():
    return Manifest("m", 7, 70, 1, "", "", "", "", 123, "")


def test_a_learner_from_partials_is_watched(asked):
    """Tensors are counted though nobody saw any; staleness is there, what takes codes is not; pages have no gaps."""
    board, fleet = Board("model", 1), Fleet(tensors(4))
    shard, client = board.begin(0, fleet.plan), asked(board)
    fleet.learn()
    for _ in range(4):
        fleet.encode()
        shard.spectators.look()
        fleet.learn(watch=shard)
    found = samples(client.get("/metrics").text)

    assert found["ocpdl_seen_tensors",] == 48 == found["ocpdl_tensors_total",]
    assert found["ocpdl_partials_staleness_steps",] == 0
    assert found["ocpdl_round_partials",] == 3
    assert found["ocpdl_batch_size",] == 6
    assert ("ocpdl_code_zeros_ratio",) not in found
    for path in ("/", "/api/status", "/api/history", "/api/dictionary", "/api/atoms/0", "/api/dead-letters"):
        answer = client.get(path)
        assert answer.status_code == 200, path
        if path.startswith("/api"):
            assert json.dumps(answer.json(), allow_nan=False)


def test_a_partition_that_is_waited_for(asked):
    """Of a round one has no partial: how long the others wait for it is counted, until it comes."""
    clock, board = [0.0], Board("model", 1)
    values = tensors(2)
    late, values[1] = values[1], []
    fleet = Fleet(values)
    shard, client = board.begin(0, fleet.plan), asked(board)
    shard.now = lambda: clock[0]

    def waited():
        found = samples(client.get("/metrics").text)
        return [found["ocpdl_awaited_seconds", str(p)] for p in range(3)]

    fleet.learn(watch=shard)
    assert waited() == [0, 0, 0]
    fleet.encode()
    fleet.learn(watch=shard)
    clock[0] = 60.0
    assert waited() == [0, 60, 0]
    shard.polled(0, 0.0, {1})
    assert waited() == [0, 60, 0]
    fleet.group.input[1] = late
    fleet.encode()
    fleet.learn(watch=shard)
    assert shard.t == 1
    assert waited() == [0, 0, 0]
