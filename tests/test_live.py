"""The live page: what is kept for people who look, what it costs, and what the endpoints tell."""

import base64
import gzip
import json
import socket
import threading
import time
import tracemalloc
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import httpx
import numpy as np
import pytest

from stream_ocpdl import Problem
from stream_ocpdl.observe.board import Board, Shard
from stream_ocpdl.observe.endpoints import application
from stream_ocpdl.observe.metrics import registry_of
from stream_ocpdl.observe.past import Past, Point
from stream_ocpdl.observe.server import Server
from stream_ocpdl.observe.spectators import Coded, Dictionary, Spectators
from stream_ocpdl.ocpdl.diagnostics import assumption_card
from stream_ocpdl.ocpdl.reshape import Layout
from stream_ocpdl.ocpdl.revival import atom_energies
from stream_ocpdl.page import events, live
from stream_ocpdl.page.live import Gallery, plain, users
from stream_ocpdl.page.meanings import ASSUMPTIONS, CHAINS
from stream_ocpdl.page.serving import KINDS, place_of
from stream_ocpdl.stream.draws import Counts
from stream_ocpdl.stream.messages import Output, Position, Refused, Tensor
from stream_ocpdl.stream.pipeline import Outcome
from tests.fakes import World, serve
from tests.test_kafka import eventually
from tests.test_pipeline import PACE, PROBLEM, inputs, plan

HOSTILE = "<img src=x onerror=alert(1)>"


@contextmanager
def served(board):
    """The endpoints of a board, on a real server."""
    app = application(board, registry_of(board, {}), {}, "", 60.0)
    with Server(app, "127.0.0.1", 0) as server, httpx.Client(base_url=server.address, timeout=20) as client:
        yield client


def watched(chosen=None, **options):
    """A board on which a service has written, which somebody looks at now; and the service's pipeline."""
    chosen = chosen or plan(**options)
    board = Board("m", 1)
    board.starting = None
    shard = board.begin(0, chosen)
    shard.spectators.past.spacing = 0.0
    pipeline, _ = serve(World(inputs(poison=[(0, 3), (1, 7)])), chosen, PACE, watch=shard)
    shard.spectators.look()
    shard.turned()
    return board, shard, pipeline


@pytest.fixture(scope="module")
def learned():
    """The same for all tests that only read."""
    return watched()


@pytest.fixture(scope="module")
def asked(learned):
    with served(learned[0]) as client:
        yield client


# ── the past ───────────────────────────────────────────────────────────────────────────────────────────────────


def point(t, at=None):
    return Point(float(t if at is None else at), t, t, 1.0, 2.0, 0.1, (0.1,), (0.2,), None, 0.0)


def test_the_past_is_whole_and_bounded():
    """However many points there were, a few hundred are left, of the whole life, and in order."""
    past = Past(spacing=1.0, capacity=10)
    for now in range(1000):
        if now >= past.due:
            past.add(point(now + 1), float(now))

    found = [p.t for p in past.points]
    assert len(found) <= 10
    assert found[0] == 1
    assert found[-1] > 1000 - past.spacing
    assert found == sorted(found)
    gaps = np.diff(found)
    assert gaps.max() <= 2 * gaps.min()


def test_the_past_since_and_before():
    """What is younger than a moment; and nothing from a step on to which a model went back."""
    past = Past(0.0)
    for t in range(1, 6):
        past.add(point(t), 0.0)

    assert [p.t for p in past.since(3.0)] == [4, 5]
    assert past.since(5.0) == []
    past.forget_from(3)
    assert [p.t for p in past.points] == [1, 2]


# ── what is kept for those who look ────────────────────────────────────────────────────────────────────────────


def spectators(clock, chosen=None):
    return Spectators(chosen or plan(), lambda: clock[0], lambda: clock[0])


def outcome_of(step, t, **more):
    return Outcome((), step._replace(t=t), **more)


@pytest.fixture(scope="module")
def step(learned):
    return learned[1].step


def places(step, first=0):
    return tuple(Position(0, first + k) for k in range(len(step.codes)))


def test_nothing_is_copied_while_nobody_looks(learned, step):
    """And while somebody does, once a second at most; a copy is not what learning writes into."""
    _, _, pipeline = learned
    clock = [100.0]
    seen = spectators(clock)
    seen.ready(pipeline)
    seen.stepped(pipeline, outcome_of(step, 1, positions=places(step)))
    seen.turned()
    assert seen.dictionary is None

    seen.look()
    seen.turned()
    first = seen.dictionary
    assert [(a == b).all() for a, b in zip(first.loadings, pipeline.progress.state.loadings, strict=True)] == [
        True,
        True,
    ]
    assert not any(
        np.shares_memory(a, b) for a, b in zip(first.loadings, pipeline.progress.state.loadings, strict=True)
    )
    seen.dictionary = None
    clock[0] += 0.9
    seen.turned()
    assert seen.dictionary is None
    clock[0] += 0.2
    seen.turned()
    assert seen.dictionary is not None
    seen.dictionary = None
    clock[0] += 10.0
    seen.stepped(pipeline, outcome_of(step, 2, positions=places(step)))
    assert seen.dictionary is None


def test_a_slow_copy_is_made_less_often(learned):
    """Never more than a hundredth of the time: after one of a quarter of a second none for 25 seconds."""
    _, _, pipeline = learned
    clock = [0.0]

    def now():
        clock[0] += 0.25
        return clock[0]

    seen = Spectators(plan(), now, lambda: 0.0)
    seen.ready(pipeline)
    seen.look()
    seen.turned()
    assert seen.dictionary is not None
    seen.dictionary = None
    for _ in range(40):
        seen.look()
        seen.turned()
    assert seen.dictionary is None


def test_what_is_kept_is_bounded(learned, step):
    """Codes of the last steps, the last dead letters, two snapshots: however long it goes on."""
    _, _, pipeline = learned
    clock = [0.0]
    seen = spectators(clock)
    seen.ready(pipeline)
    letters = tuple(Refused(0, k, "DataError", HOSTILE) for k in range(30))
    for t in range(1, 3001):
        snapshots = (Output("snapshots", b"0", b"s%d" % t),)
        seen.stepped(pipeline, Outcome(snapshots, step._replace(t=t), (), letters, places(step, t)))

    assert sum(len(one.H) for one in seen.coded) <= 4096
    assert [one.t for one in seen.coded][-1] == 3000
    assert len(seen.letters) == 50
    assert seen.refused == 90_000
    assert [t for t, _ in seen.snapshots] == [2996, 3000]
    assert len(seen.past.points) == 1  # the clock stands still
    clock[0] = 1.0
    seen.stepped(pipeline, outcome_of(step, 3001, positions=places(step)))
    assert len(seen.past.points) == 2


def test_a_large_snapshot_is_not_kept(learned, step, monkeypatch):
    """Twice the loadings of a video would be a burden."""
    monkeypatch.setattr("stream_ocpdl.observe.spectators.LARGEST", 2)
    seen = spectators([0.0])
    seen.stepped(learned[2], Outcome((Output("snapshots", b"0", b"abc"),), step._replace(t=4)))

    assert seen.snapshots == ()


def test_a_model_that_went_back(learned, step):
    """Takes the steps that have not been out of the past, with their codes, snapshots and births."""
    _, _, pipeline = learned
    clock = [0.0]
    seen = spectators(clock)
    seen.past.spacing = 0.0
    seen.ready(pipeline)
    for t in range(1, 10):
        snapshots = (Output("snapshots", b"0", b"s"),)
        told = Outcome(snapshots, step._replace(t=t, revived=(1,) if t == 6 else ()), positions=places(step))
        seen.stepped(pipeline, told)
    assert seen.revived == {1: 6}

    seen.stepped(pipeline, outcome_of(step, 5, positions=places(step)))
    assert [p.t for p in seen.past.points] == [1, 2, 3, 4, 5]
    assert [one.t for one in seen.coded] == [5]
    assert [t for t, _ in seen.snapshots] == [4]
    assert seen.revived == {}


def test_an_idle_service_shows_its_dictionary():
    """Somebody comes when nothing has been learned for long: the loop goes round all the same."""
    clock = [0.0]
    board, world = Board("m", 1), World(inputs())
    shard = board.begin(0, plan())
    shard.spectators = spectators(clock)
    pipeline, _ = serve(world, plan(), PACE, watch=shard)
    assert shard.spectators.dictionary is None

    shard.spectators.look()
    shard.turned()
    assert shard.spectators.dictionary.t == pipeline.progress.state.t


def test_a_state_that_may_be_void_is_not_copied():
    """While it recovers, its last state may be that of a step that failed."""
    _, shard, _ = watched()
    shard.spectators.dictionary = None
    shard.phase("recovering")
    shard.spectators.look()
    shard.turned()

    assert shard.spectators.dictionary is None


# ── what the endpoints tell ────────────────────────────────────────────────────────────────────────────────────


def decoded(view):
    """The numbers of a view."""
    kind = {"u1": np.uint8, "f4": "<f4"}[view["dtype"]]
    x = np.frombuffer(base64.b64decode(view["values"]), kind).astype(float) / (255 if view["dtype"] == "u1" else 1)
    low, high = view["range"]
    return (low + (high - low) * x).reshape(view["shape"])


def test_atoms_are_those_of_the_state(asked, learned):
    """The most used first, by their energy, and drawn with the numbers that they have."""
    _, _, pipeline = learned
    state = pipeline.progress.state
    found = asked.get("/api/dictionary").json()
    energies = atom_energies(state)

    assert (found["t"], found["N"], found["rank"]) == (state.t, state.N, 2)
    assert [one["atom"] for one in found["atoms"]] == np.argsort(-energies).tolist()
    for one in found["atoms"]:
        r = one["atom"]
        wanted = np.einsum("i,j->ij", *(U[:, r] for U in state.loadings))
        assert decoded(one["views"][0]) == pytest.approx(wanted, abs=one["views"][0]["range"][1] / 500)
        assert one["use"] == pytest.approx(energies[r] / energies.sum())
        assert (one["age"], one["at_least"]) == (state.t, False)
        assert 0 <= one["drift"] < 90
    assert sum(one["lately"] for one in found["atoms"]) == pytest.approx(1.0)
    assert found["compared_with"] == 8


def test_fewer_pictures_than_atoms(asked):
    """Numbers of all, pictures of as many as were asked for."""
    found = asked.get("/api/dictionary?atoms=1").json()

    assert ["views" in one for one in found["atoms"]] == [True, False]


@pytest.mark.parametrize("wanted", ["abc", "-1", "0", "", "9" * 30])
def test_no_number_of_pictures(asked, wanted):
    """As many as without one."""
    found = asked.get(f"/api/dictionary?atoms={wanted}").json()

    assert ["views" in one for one in found["atoms"]] == [True, True]


def test_an_atom_names_the_tensors_that_used_it(asked, learned):
    """By topic, partition and offset; the strongest first, with the codes that were published."""
    _, shard, _ = learned
    found = asked.get("/api/atoms/1").json()
    codes = {position: h[1] for one in shard.spectators.coded for position, h in zip(one.positions, one.H, strict=True)}
    order = sorted(codes.values(), reverse=True)

    assert found["atom"] == 1
    assert [one["code"] for one in found["positions"]] == order[:20]
    for one in found["positions"]:
        assert codes[Position(one["partition"], one["offset"])] == one["code"]
        assert one["topic"] == "input"
        assert 0 < one["share"] <= 1
    assert asked.get("/api/atoms/2").status_code == 404
    assert asked.get("/api/atoms/-1").status_code == 404


def test_positions_are_those_of_the_codes():
    """What the pipeline says of the rows of a step is what it publishes with their codes."""
    world = World(inputs(poison=[(0, 3)]))
    shard = Shard(plan())
    serve(world, plan(), PACE, watch=shard)
    told = [(p, one.t, h.tolist()) for one in shard.spectators.coded for p, h in zip(one.positions, one.H, strict=True)]

    assert told == [(code.position, code.step, code.code.tolist()) for code in world.codes()]


def test_users_without_any():
    """An atom that nobody used has no users."""
    coded = [Coded(1, (Position(0, 0),), np.array([[0.0, 1.0]]))]

    assert users([], np.ones(2), 0, "t") == users(coded, np.ones(2), 0, "t") == []
    assert users(coded, np.ones(2), 1, "t")[0]["share"] == 1.0


def test_history(asked, learned):
    """Every step here, with what the step told."""
    _, shard, _ = learned
    found = asked.get("/api/history").json()
    last = found["points"][-1]

    assert [p["t"] for p in found["points"]] == list(range(1, shard.t + 1))
    assert found["modes"] == ["mode 1", "mode 2"]
    assert last["surrogate"] == shard.step.surrogate
    assert last["prequential"] == shard.step.prequential_loss
    assert (last["movements"], last["radii"]) == (list(shard.step.movements), list(shard.step.radii))
    assert last["tensors"] == shard.learned


def test_dead_letters(asked, learned):
    """The newest first, with place and reason."""
    found = asked.get("/api/dead-letters").json()

    assert found["refused"] == 2
    assert {(one["topic"], one["partition"], one["offset"]) for one in found["letters"]} == {
        ("input", 0, 3),
        ("input", 1, 7),
    }
    assert all(one["error"] == "DecodeError" and one["reason"] for one in found["letters"])


def test_infinity_is_nothing():
    """JSON has none: no radius at all is +Inf."""
    assert plain({"radii": (np.inf, 1.0), "x": [float("nan")], "n": 3}) == {"radii": [None, 1.0], "x": [None], "n": 3}


def test_units_and_groups():
    """Atoms are drawn in the units and the shape of the data, whatever is learned."""
    layout = Layout((2, 2, 3), groups=((0, 1), (2,)))
    board, _, pipeline = watched(replace(plan(), layout=layout, axes=("row", "column", "time")))
    with served(board) as client:
        [first, _] = client.get("/api/dictionary").json()["atoms"]
        assert client.get("/api/history").json()["modes"] == ["row × column", "time"]

    r = first["atom"]
    U, V = (U[:, r] for U in pipeline.progress.state.loadings)
    assert [view["shape"] for view in first["views"]] == [[2, 2], [1, 3]]
    assert decoded(first["views"][0]) == pytest.approx(U.reshape(2, 2), abs=U.max() / 500)
    assert decoded(first["views"][1]) == pytest.approx(V[None], rel=1e-6)


def test_a_shard_that_is_not_here(asked):
    """Is said not to be; nonsense, too."""
    for query in ("1", "-1", "x", "9" * 50, "%00"):
        assert asked.get(f"/api/dictionary?shard={query}").status_code == 404
    assert asked.get("/api/dictionary?shard=0").status_code == 200


def test_before_there_is_anything():
    """A process without a shard, and one that has not recovered, answer at once."""
    board = Board("m", 1)
    with served(board) as client:
        assert client.get("/api/history").status_code == 404
        board.begin(0, plan())
        assert client.get("/api/history").json()["points"] == []
        assert client.get("/api/dictionary").json() == {"t": None, "atoms": []}
        assert client.get("/api/atoms/0").status_code == 404


def test_those_who_wait_take_no_thread(monkeypatch):
    """However many ask for a dictionary that is not there yet, probes and scrapes are answered: or a page that many
    open while a service starts would have it ended as stuck.
    """
    monkeypatch.setattr("stream_ocpdl.page.routes.WAIT", 60.0)
    board = Board("m", 1)
    board.begin(0, plan())
    with served(board) as client, ExitStack() as stack:
        for _ in range(60):  # more than a server has threads
            waiting = stack.enter_context(socket.create_connection((client.base_url.host, client.base_url.port)))
            waiting.sendall(b"GET /api/dictionary HTTP/1.1\r\nHost: x\r\n\r\n")
        assert eventually(lambda: board.shards[0].spectators._until > 0, 20)

        assert [client.get(path).status_code for path in ("/live", "/ready", "/metrics")] == [200, 503, 200]


def large(rank=20):
    """A shard with a dictionary that is large, and the codes of many steps."""
    layout = Layout((20, 30, 40), groups=((0, 1, 2),))
    chosen = replace(plan(), problem=Problem((24_000,), rank, batch_size=5), layout=layout, axes=("y", "x", "time"))
    shard = Board("m", 1).begin(0, chosen)
    random = np.random.default_rng(0)
    loadings = (random.random((24_000, rank)),)
    shard.spectators.dictionary = Dictionary(0.0, 9, 45, 0, loadings, np.ones(rank), (), ("y", "x", "time"))
    for t in range(100):
        shard.spectators._coded.append((t, places_of(5), random.random((5, rank))))
    return shard


def places_of(count):
    return tuple(Position(0, k) for k in range(count))


def test_a_large_dictionary_is_not_copied_to_be_drawn():
    """Atoms are prepared a few at a time, and their sizes found once: not all at once, nor for every step."""
    shard = large()
    whole = shard.spectators.dictionary.loadings[0].nbytes
    tracemalloc.start()
    try:
        found = Gallery().dictionary(shard)
        pictures = len(json.dumps(found))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert most < 1.5 * whole + 2 * pictures  # four times as much, if all were
    assert {len(one["views"]) for one in found["atoms"]} == {4}
    assert found["atoms"][0]["views"][0]["note"] == "4 of 40 slices"
    assert len(Gallery().atom(shard, 3)["views"]) == 12


def test_sizes_of_atoms_are_found_once(monkeypatch):
    """And not for each of the steps whose codes are remembered."""
    asked = []
    original = live.energies
    monkeypatch.setattr(live, "energies", lambda *given: asked.append(1) or original(*given))
    live.numbers(large(2).plan, large(2).spectators, large(2).spectators.dictionary)

    assert len(asked) == 2


def test_all_that_is_explained():
    """Every line of the card and every count of the chains has a sentence."""
    assert set(ASSUMPTIONS) == {line.name for line in assumption_card(PROBLEM)}
    assert set(CHAINS) == set(Counts._fields)


def test_revived_atoms_are_young():
    """An atom's age counts from its revival; of revivals before this life nothing is known, and that is said."""
    _, shard, pipeline = watched(replace(plan(), problem=Problem((4, 3), 2, batch_size=5, revive=100)))
    shard.spectators.revived = {1: pipeline.progress.state.t - 2}
    ages = {one["atom"]: (one["age"], one["at_least"]) for one in Gallery().dictionary(shard)["atoms"]}
    assert ages == {0: (pipeline.progress.state.t, False), 1: (2, False)}

    shard.spectators.known_from = 3
    ages = {one["atom"]: (one["age"], one["at_least"]) for one in Gallery().dictionary(shard)["atoms"]}
    assert ages == {0: (pipeline.progress.state.t - 3, True), 1: (2, False)}


# ── events ─────────────────────────────────────────────────────────────────────────────────────────────────────


def frames(response):
    """The events of a stream, as they come."""
    name = None
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_events_tell_how_things_are(learned, asked, monkeypatch):
    """At once, and then again and again; only points that are new."""
    _, shard, _ = learned
    monkeypatch.setattr(events, "EVERY", 0.05)
    with asked.stream("GET", "/api/events?since=0") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        told = frames(response)
        (name, first), (_, second) = next(told), next(told)

    assert name == "frame"
    assert (first["model"], first["role"], first["shard"], first["shards"]) == ("m", "writer", 0, [0])
    assert first["status"]["step"] == shard.t
    assert first["status"]["dictionary"] == {"t": shard.t, "epoch": 0}
    assert {line["name"]: line["standing"] for line in first["status"]["card"]}["(A3)"] == "holds"
    assert all(line["meaning"] for line in first["status"]["card"])
    assert len(first["points"]) == shard.t
    assert second["points"] == []
    assert second["instance"] == first["instance"]


def test_events_of_a_standby(monkeypatch):
    """Who writes nothing says so, and why it is not ready; a shard that is not here has no numbers."""
    monkeypatch.setattr(events, "EVERY", 0.05)
    board = Board("m", 2)
    board.starting = None
    with served(board) as client:
        with client.stream("GET", "/api/events") as response:
            told = frames(response)
            (_, found) = next(told)
            assert (found["role"], found["shards"], found["count"]) == ("starting", [], 2)
            assert found["reasons"] == ["waiting for the group to share out the shards"]
            board.turned(idle=True)
            assert eventually(lambda: next(told)[1]["role"] == "standby", 10)
        board.begin(0, plan())
        with client.stream("GET", "/api/events?shard=1") as response:
            (_, found) = next(frames(response))

    assert found["shards"] == [0]
    assert "status" not in found


def test_streams_are_counted(learned, asked, monkeypatch):
    """One too many is told to come later; who goes makes room."""
    monkeypatch.setattr(events, "EVERY", 0.05)
    monkeypatch.setattr("stream_ocpdl.page.routes.MOST", 2)

    def answered(stack):
        response = stack.enter_context(asked.stream("GET", "/api/events"))
        return response.status_code, response.headers.get("retry-after")

    with ExitStack() as stack:
        assert [answered(stack) for _ in range(3)] == [(200, None), (200, None), (503, "5")]
        assert asked.get("/live").status_code == 200

    def free():
        with ExitStack() as stack:
            return answered(stack)[0] == 200

    assert eventually(free, 10)


def test_a_reader_that_does_not_read_is_let_go(monkeypatch, caplog):
    """Nothing is kept for it, and its place is free again; all others are answered meanwhile, and it is no error."""
    caplog.set_level("WARNING")
    monkeypatch.setattr(events, "EVERY", 0.001)
    monkeypatch.setattr(events, "LOOK", 0.001)
    monkeypatch.setattr(events, "PATIENCE", 0.2)
    board, _, _ = watched()
    made = []
    original = events.Frames.frame

    def large(self, *given):
        found, since = original(self, *given)
        made.append(time.monotonic())
        return found | {"filling": "x" * 500_000}, since

    monkeypatch.setattr(events.Frames, "frame", large)
    with served(board) as client:
        host, port = client.base_url.host, client.base_url.port
        with socket.create_connection((host, port)) as deaf:
            deaf.sendall(b"GET /api/events HTTP/1.1\r\nHost: x\r\n\r\n")
            assert eventually(lambda: made, 10)
            assert eventually(lambda: time.monotonic() - made[-1] > 1.0, 20)  # it was given up
            assert len(made) < 200
            assert client.get("/live").status_code == 200
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_the_end_is_told_and_not_waited_for(monkeypatch):
    """A page that is open does not hold up the end of the service, and hears of it."""
    board, _, _ = watched()
    told = []

    def read(address, ready):
        with httpx.stream("GET", f"{address}/api/events", timeout=20) as response:
            for name, _ in frames(response):
                told.append(name)
                ready.set()

    app = application(board, registry_of(board, {}), {}, "", 60.0)
    ready = threading.Event()
    with Server(app, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=read, args=(server.address, ready))
        thread.start()
        assert ready.wait(20)
        began = time.monotonic()
    thread.join(10)

    assert told[-1] == "bye"
    assert time.monotonic() - began < 10


# ── files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_and_its_files(asked):
    """All that the page names is there, packed, guarded by a policy, and asked for once."""
    page = asked.get("/")
    named = {part.split('"')[0].removeprefix("/static/") for part in page.text.split('="')[1:] if "/static/" in part}

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"].replace("style-src-attr 'unsafe-inline'", "")
    assert "http" not in page.text
    assert named <= set(KINDS)
    for name in set(KINDS) - {"plotly.min.js"}:
        file = asked.get(f"/static/{name}")
        assert (file.status_code, file.headers["content-encoding"]) == (200, "gzip")
        assert asked.get(f"/static/{name}", headers={"if-none-match": file.headers["etag"]}).status_code == 304
    plain = asked.get("/static/page.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    for name in ("nothing.js", "..%2fviews.py", "%2e%2e/views.py", "report.js"):
        assert asked.get(f"/static/{name}").status_code == 404


def test_the_library_of_the_curves(asked):
    """Is that of the package, packed."""
    path = place_of("plotly.min.js")
    if path is None:
        pytest.skip("plotly is not installed: make test installs it")
    answer = asked.get("/static/plotly.min.js", headers={"accept-encoding": "gzip"})

    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < 2_500_000
    assert "max-age" in answer.headers["cache-control"]
    assert answer.content == path.read_bytes()
    assert gzip.decompress(gzip.compress(answer.content[:10])) == answer.content[:10]


def test_hostile_reasons_stay_json(learned):
    """What a message brings about is data, and never part of a page."""
    board = Board("m", 1)
    shard = board.begin(0, plan())
    bad = Tensor(np.ones((4, 3)), axes=(HOSTILE, "b")).to_bytes()
    good = Tensor(np.ones((4, 3)), axes=("a", "b")).to_bytes()
    serve(World([[good, bad, *[good] * 9]]), plan(), PACE, watch=shard)
    with served(board) as client:
        answer = client.get("/api/dead-letters")

    assert HOSTILE in answer.json()["letters"][0]["reason"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
