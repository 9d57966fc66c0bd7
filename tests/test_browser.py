"""The live page in a real browser: what is drawn is what the model is, and nothing is asked of anybody else."""

from dataclasses import replace

import numpy as np
import pytest

from stream_ocpdl.observe.board import Board
from stream_ocpdl.observe.endpoints import application
from stream_ocpdl.observe.metrics import registry_of
from stream_ocpdl.observe.server import Server
from stream_ocpdl.page.serving import place_of
from stream_ocpdl.stream.messages import Tensor
from tests.browser import Browser, missing
from tests.fakes import World, serve
from tests.test_kafka import eventually
from tests.test_pipeline import PACE, plan

HOSTILE = "<img src=x onerror=alert(1)>"
AXES = ("height", "width")

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


def tensors(count, seed=0):
    random = np.random.default_rng(seed)
    return [Tensor(random.random((4, 3)), axes=AXES).to_bytes() for _ in range(count)]


class Life:
    """A service in memory that is watched, on a port that stays the same from life to life."""

    def __init__(self):
        self.world = World([[*tensors(19), Tensor(np.ones((4, 3)), axes=(HOSTILE, "b")).to_bytes(), *tensors(11, 1)]])
        self.port = 0
        self.begin()

    def begin(self):
        """Another life begins."""
        self.board = Board("weather", 1)
        self.board.starting = None
        self.shard = self.board.begin(0, plan())
        self.shard.spectators.past.spacing = 0.0
        self.learn()
        app = application(self.board, registry_of(self.board, {}), {}, "", 60.0)
        self.server = Server(app, "127.0.0.1", self.port)
        self.server.__enter__()
        self.port = int(self.server.address.rpartition(":")[2])

    def learn(self):
        """Whatever has come."""
        self.pipeline, _ = serve(self.world, plan(), PACE, watch=self.shard)
        self.show()

    def show(self):
        """As the loop of a service does that has nothing to do."""
        self.shard.turned()

    def end(self):
        """It is gone."""
        self.server.__exit__(None, None, None)


@pytest.fixture
def life():
    found = Life()
    yield found
    found.end()


def opened(browser, life):
    """The page of a service, with its dictionary drawn."""
    browser.go(life.server.address)
    assert drawn(browser, life)


def drawn(browser, life):
    """Whether the page shows the dictionary of the step at which the model stands; the loop goes round meanwhile."""
    wanted = str(life.pipeline.progress.state.t)

    def there():
        life.show()
        return browser.run("return document.documentElement.dataset.drawn") == wanted

    return eventually(there, 120)


PIXELS = """
return [...document.querySelectorAll("#atoms .atom")].map((card) => {
  const canvas = card.querySelector("canvas");
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return [Number(card.dataset.atom), canvas.width, canvas.height, [...data]];
});
"""
COLOURS = """
const values = arguments[0];
return import("/static/atoms.js").then((atoms) => values.map((x) => atoms.colour(x).match(/\\d+/g).map(Number)));
"""


def test_what_is_drawn_is_the_state(browser, life):
    """Cell by cell: the colour of each is that of its number in the model."""
    opened(browser, life)
    loadings = life.pipeline.progress.state.loadings
    found = browser.run(PIXELS)

    assert len(found) == 2
    for r, width, height, data in found:
        atom = np.einsum("i,j->ij", *(U[:, r] for U in loadings))
        wanted = browser.run(COLOURS, (np.rint(255 * atom / atom.max()) / 255).ravel().tolist())
        assert (height, width) == (4, 3)
        assert np.reshape(data, (-1, 4))[:, :3].tolist() == wanted
    assert browser.run("return document.querySelector('#model').textContent") == "weather"
    assert "height" in browser.run("return document.querySelector('#atoms').textContent")


def test_it_is_alone_and_keeps_its_policy(browser, life):
    """Every request goes to the service, and the console has nothing to say of errors, or of what was forbidden."""
    browser.go("about:blank")  # the page of the test before asks for its own service, which is gone, again and again
    browser.complaints()
    browser.asked().clear()
    opened(browser, life)
    browser.until("return window.Plotly === undefined || document.querySelector('#losses .main-svg') !== null")

    asked = [url for url in browser.asked() if not url.startswith(("about:", "data:", "chrome:"))]  # its own empty page
    assert any(url.startswith(f"{life.server.address}/api/events") for url in asked)
    assert [url for url in asked if not url.startswith(f"{life.server.address}/")] == []
    if place_of("plotly.min.js") is not None:  # which brings a style sheet for maps, and may not
        assert [said for said in browser.complaints() if "plotly.min.js 20 Applying inline style" not in said] == []


def test_curves(browser, life):
    """Each has its points; what was learned later is added."""
    if place_of("plotly.min.js") is None:
        pytest.skip("plotly is not installed: make test installs it")
    opened(browser, life)
    count = "return document.getElementById(arguments[0]).data?.map((curve) => curve.x.length)"
    assert browser.until("return document.getElementById('lag').data?.length === 1")
    t = life.pipeline.progress.state.t

    assert browser.run(count, "losses") == [t, t]
    assert browser.run(count, "movements") == [t] * 3  # of two modes, and the radius that they share
    life.world.input[0] += tensors(10, 2)
    life.learn()
    assert drawn(browser, life)
    assert browser.until(f"return document.getElementById('losses').data[0].x.at(-1) === {t + 2}")


def test_without_the_library_of_the_curves(browser, life, monkeypatch):
    """All else is there, and in place of the curves why they are not."""
    monkeypatch.setattr("stream_ocpdl.page.serving.FOREIGN", ("no_such_package", "plotly.min.js"))
    opened(browser, life)

    assert browser.until("return document.querySelector('#losses').textContent.includes('pip install plotly')")


LEGEND = """
const name = arguments[0], place = document.body.appendChild(document.createElement("div"));
const curves = [0, 1].map((colour) => ({ name, x: [1, 2], y: [1, 2], colour }));
return import("/static/charts.js").then(async (charts) => {
  await charts.chart({ x: "step", y: "loss", log: "", curves }, place);
  return [place.querySelectorAll("a, image").length, place.querySelector(".legendtext").textContent];
});
"""


def test_a_hostile_name_of_a_curve_is_text(browser, life):
    """Names of axes come with tensors, and Plotly makes links of some names."""
    opened(browser, life)
    name = '<a href="https://example.invalid">height</a> & <b>width</b>'

    assert browser.run(LEGEND, name) == [0, name]


def test_a_hostile_reason_is_text(browser, life):
    """It is shown as it is, and is no part of the page."""
    opened(browser, life)

    assert browser.until(f"return document.querySelector('#letters').textContent.includes({HOSTILE!r})")
    assert browser.run("return document.querySelectorAll('#letters img').length") == 0


def test_by_keyboard(browser, life):
    """An atom can be reached and opened without a mouse, names the tensors that used it, and is left with Escape."""
    opened(browser, life)
    browser.run("document.querySelector('#pause').focus()")
    for _ in range(3):
        browser.key("Tab", 9)
        if browser.run("return document.activeElement.classList.contains('atom')"):
            break
    r = browser.run("return Number(document.activeElement.dataset.atom)")
    browser.key("Enter", 13, "\r")
    assert browser.until("return document.querySelector('#atom').open")
    rows = browser.run(
        "return [...document.querySelectorAll('#atom tbody tr')].map((row) => [...row.cells].map((c) => c.textContent))"
    )
    coded = life.shard.spectators.coded
    used = [(h[r], place) for one in coded for place, h in zip(one.positions, one.H, strict=True)]
    strongest = max(used)[1]

    assert rows[0][:2] == [str(strongest.partition), str(strongest.offset)]
    assert "tensors of input" in browser.run("return document.querySelector('#atom-body').textContent")
    browser.key("Escape", 27)
    assert browser.until("return !document.querySelector('#atom').open")
    assert browser.run("return Number(document.activeElement.dataset.atom)") == r


def test_it_is_paused_while_hidden(browser, life):
    """Whoever cannot see it costs nothing; and it goes on where it was."""
    opened(browser, life)
    hide = "Object.defineProperty(document, 'hidden', { value: arguments[0], configurable: true });"
    browser.run(hide + "document.dispatchEvent(new Event('visibilitychange'))", True)
    state = "return document.querySelector('#state').textContent"

    assert browser.run(state) == "paused while hidden"
    life.world.input[0] += tensors(10, 2)
    life.learn()
    browser.run(hide + "document.dispatchEvent(new Event('visibilitychange'))", False)
    assert drawn(browser, life)
    assert browser.run(state) == "live"


def test_a_restart_is_survived(browser, life):
    """The page says that the service is gone, and since when; and goes on with the next one, which is said, too."""
    opened(browser, life)
    before = life.pipeline.progress.state.t
    life.end()
    assert browser.until("return document.querySelector('#state').dataset.state === 'gone'")
    assert "gone since" in browser.run("return document.querySelector('#notice').textContent")

    life.world.input[0] += tensors(10, 2)
    life.begin()
    assert browser.until("return document.querySelector('#notice').textContent.includes('started again')")
    assert drawn(browser, life)
    assert life.pipeline.progress.state.t == before + 2
    assert browser.run("return document.querySelector('#state').dataset.state") == "live"


def test_a_service_that_is_watched_by_too_many_is_not_gone(browser, life, monkeypatch):
    """The page says what the service says, and goes on when there is room."""
    monkeypatch.setattr("stream_ocpdl.page.routes.MOST", 0)
    browser.go(life.server.address)
    state, notice = (f"return document.querySelector('#{name}').textContent" for name in ("state", "notice"))

    assert browser.until(state + " === 'full'")
    assert "0 pages are being watched already" in browser.run(notice)
    assert "gone" not in browser.run(notice)
    monkeypatch.setattr("stream_ocpdl.page.routes.MOST", 16)
    assert drawn(browser, life)
    assert browser.run(state) == "live"
    assert browser.run(notice) == ""


def test_a_shard_that_is_given_away(browser, life):
    """The page goes on with the next one that is here, and has no point of the one before; then it has none, and says
    so.
    """
    opened(browser, life)
    before = life.pipeline.progress.state.t
    second = life.board.begin(1, replace(plan(), shard=1, shards=2))
    second.spectators.past.spacing = 0.0
    pipeline, _ = serve(World([tensors(10, 3)]), plan(), PACE, watch=second)
    life.board.end(0, life.shard)
    life.shard, life.pipeline = second, pipeline
    assert before > pipeline.progress.state.t

    assert drawn(browser, life)
    curve = "return JSON.stringify(document.getElementById('losses').data?.[0].x) === '[1,2]'"
    assert place_of("plotly.min.js") is None or browser.until(curve)
    life.board.end(1, second)
    life.board.turned(idle=True)
    assert browser.until("return document.querySelector('#standing').textContent.includes('standby')")
    assert browser.run("return document.body.classList.contains('stale')")


DRAW = """
const place = document.querySelector("#atoms .atom").appendChild(document.createElement("div"));
return import("/static/atoms.js").then((atoms) => atoms.draw(arguments[0], place));
"""


def test_on_a_phone(browser, life):
    """Nothing is wider than the screen, however long the names are that tensors bring along."""
    try:
        browser.size(390, 844, phone=True)
        opened(browser, life)
        long = {"kind": "bars", "shape": [2], "signed": False, "range": [0, 1], "dtype": "u1", "values": "AP8="}
        axes = [{"name": "x" * 64, "size": 2, "drawn": 2, "step": 1}]
        browser.run(DRAW, {**long, "axes": axes, "title": "y" * 64, "note": "z" * 64})
        browser.run(DRAW, {**long, "axes": axes, "title": "", "note": ""})
        assert browser.run("return document.documentElement.scrollWidth") <= 390
        assert browser.run("return document.documentElement.clientWidth") == 390
    finally:
        browser.tool("Emulation.clearDeviceMetricsOverride")
