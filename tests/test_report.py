"""A model in one HTML file: from codes and curves to a page in a browser, and from topics of a real Apache Kafka."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl import Problem
from stream_ocpdl.chronicle import Dictionaries, Steps
from stream_ocpdl.cli import main
from stream_ocpdl.ocpdl.diagnostics import Assumption, Standing
from stream_ocpdl.page.charts import Series, chart
from stream_ocpdl.page.codes import Codes
from stream_ocpdl.page.report import DRAWN, Report, drawn, page
from stream_ocpdl.stream.kafka import read_windows, stable_ends, windows
from stream_ocpdl.stream.messages import Code, JournalRecord, Position, Snapshot, Target, Terms, Version
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.snapshots import Published
from tests.samples import SAMPLES
from tests.test_kafka import learned, model  # noqa: F401  (fixtures)

RANDOM = np.random.default_rng(0)
EVIL = "</script><script>document.title='owned'</script><img src=http://example.invalid/x>"


def loadings(*shape, rank=3):
    return [RANDOM.random((rows, rank)) for rows in shape]


def full(axes=("row", "column"), **more):
    """A report with everything."""
    codes = Codes(3)
    codes.add(RANDOM.exponential(size=(50, 3)) * (RANDOM.random((50, 3)) < 0.5))
    charts = [chart("Loss", "step", "loss", [Series("surrogate", [1, 2], [1.0, 0.5])])]
    card = [Assumption("(A3)", Standing.HOLDS, "the exponent is above 3/4")]
    return Report("weather, step 2", loadings(5, 4), None, axes, codes=codes, charts=charts, card=card, **more)


class Parts(HTMLParser):
    """The elements of a page, and the data in it."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.data, self._inside = [], [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = ("id", "data") in attrs

    def handle_data(self, data):
        self.data += data if self._inside else ""

    def handle_endtag(self, tag):
        self._inside = False


def test_codes_are_counted():
    """Use, zeros and correlations are those of all codes at once, however they come."""
    H = RANDOM.exponential(size=(300, 4)) * (RANDOM.random((300, 4)) < 0.3)
    H[:, 3] = 2.0
    codes = Codes(4)
    for part in np.split(H, [10, 11, 200]):
        codes.add(part)
    sizes = np.array([1.0, 2.0, 0.0, 3.0])
    energy = (H**2).sum(axis=0) * sizes**2

    assert codes.zeros == pytest.approx((H == 0).mean())
    assert codes.shares(sizes) == pytest.approx(energy / energy.sum())
    assert codes.correlations()[:3, :3] == pytest.approx(np.corrcoef(H[:, :3].T))
    assert (codes.correlations()[3] == 0).all()  # it never changes
    assert codes.together.sum() == codes.count == 300
    assert [view["shape"] for view in codes.views()] == [[4, 4], [4], [5]]


def test_no_codes_at_all():
    """Are no division by zero."""
    codes = Codes(2)

    assert (codes.zeros, codes.shares(np.ones(2)).tolist(), codes.correlations().any()) == (1.0, [0.0, 0.0], False)
    assert json.dumps(codes.views(), allow_nan=False)


def test_atoms_come_by_their_use():
    """The most used first, by its identity; without codes the largest; not more than can be looked at."""
    report = full(names=(7, 8, 9))
    shares = report.shares()

    assert [atom["name"] for atom in drawn(report)] == [f"atom {7 + r}" for r in np.argsort(-shares)]
    assert drawn(report)[0]["use"] == f"{shares.max():.1%} of what was reconstructed"
    many = Report("m", loadings(3, rank=DRAWN + 5))
    assert len(drawn(many)) == DRAWN
    assert drawn(many)[0]["use"] == f"norm {many.sizes.max():.3g}"


def test_the_page_is_alone_and_text_is_text():
    """Names that others gave cannot break out, and the page asks nobody for anything."""
    hostile = full(axes=(EVIL, "column"), events=[(EVIL, EVIL)], facts={EVIL: EVIL}, settings=EVIL, missing=[EVIL])
    text = page(hostile)
    parts = Parts(text)

    assert parts.tags.count("script") == 3
    assert not {"img", "link", "iframe"} & set(parts.tags)
    assert not [value for name, value in parts.attributes if name in ("src", "href")]
    assert json.loads(parts.data)["atoms"][0]["views"][0]["axes"][0]["name"] == EVIL
    assert "default-src 'none'" in text


def test_a_page_without_curves_is_small():
    """The library that draws them is five megabytes."""
    assert len(page(Report("m", loadings(5, 4)))) < 50_000 < 4_000_000 < len(page(full()))


@pytest.mark.parametrize("name", ["modes", "matrix"])
def test_a_browser_draws_it(tmp_path, name):
    """Every atom, curve and picture of the codes, without an error, under its own policy."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium (Debian: chromium)")
    report = full() if name == "matrix" else Report("m", loadings(5, 40, 3), axes=("a", "b", "c"))
    (tmp_path / "report.html").write_text(page(report))
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    command = [browser, *flags.split(), "--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=5000", "--dump-dom", f"file://{tmp_path}/report.html"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    found = dom.partition('id="data"')[0]

    assert 'data-drawn="yes"' in dom
    assert len(re.findall("<canvas", found)) == (3 + 1 if name == "matrix" else 0)
    assert len(re.findall('class="view-lines"', found)) == (2 if name == "matrix" else 9)
    assert ('class="main-svg"' in found) == (name == "matrix")  # Plotly's


# ── what the topics say ────────────────────────────────────────────────────────────────────────────────────────


def test_windows_are_bounded_and_of_all_times():
    """However long a topic is; none twice, none beyond it."""
    ends = {0: (1000, 1_000_000), 1: (0, 10), 2: (7, 7)}
    found = windows(ends, 2000)
    counts = [sum(high - low for low, high in window.values()) for window in found]

    assert sum(counts) <= 2100
    assert found[-1][0] == (1_000_000 - 1000, 1_000_000)
    assert found[0][0][0] == 1000
    for before, after in pairwise(found):
        assert all(before[p][1] <= after[p][0] for p in before if p in after)
    assert windows(ends, 10**7) == [ends]
    assert windows({}, 5) == [{}]


def snapshot(t, epoch=0, scale=1.0, shard=0):
    U = [np.full((2, 1), scale * t), np.ones((3, 1))]
    return Published(Snapshot(Version("m", t, shard, epoch), t, U, None, 1.0, "", (), (0,), "", {}), 0, b"")


def test_movements_between_snapshots():
    """Of one shard, by step; what a rollback has forgotten is not part of the way."""
    found = Dictionaries("latest")
    for one in (snapshot(1), snapshot(1, shard=1), snapshot(3), snapshot(5), snapshot(4, 1), snapshot(6, 1)):
        found.read(one)

    assert [(a, b) for a, b, _ in found.moves] == [(1, 3), (4, 6)]
    assert found.moves[0][2] == pytest.approx((2 * np.sqrt(2), 0.0))
    assert found.found.snapshot.version == Version("m", 6, 0, 1)


def test_the_way_by_the_journal():
    """Weights, surrogates and radii by step; other terms from a reconfiguration on; a rollback forgets."""
    plan, link = Plan("m", Problem((4, 3), 2, sparsity=0.1, radius=3.0)), "0" * 64
    terms, way = Terms(0.1, 0.0, "power 0.76", 1.5), Steps()
    for record in (
        JournalRecord("genesis", link, fingerprint="abc"),
        JournalRecord("step", link, t=1, weight=1.0),
        JournalRecord("step", link, t=2, weight=0.5, state="cd" * 32, figures=(9.0, 0.7, 1.0)),
        JournalRecord("reconfigure", link, t=2, terms=terms),
        JournalRecord("step", link, t=3, weight=0.25, terms=terms, figures=(9.0, 0.6, 1.0)),
        JournalRecord("rollback", link, t=2, epoch=1, terms=terms, target=Target(0, 2, 2), state="cd" * 32),
        JournalRecord("step", link, t=3, weight=0.2, epoch=1, terms=terms),
    ):
        way.read(record, plan, 1.0)
    code = Code(Version("m", 2), 3, Position(0, 0), 0.0, np.zeros(2))

    assert way.weights == [(1, 1.0), (2, 0.5), (3, 0.2)]
    assert way.surrogates == [(2, 0.7)]
    assert way.radii == [(1, (3.0, 3.0)), (2, (1.5, 1.5)), (3, pytest.approx((0.3, 0.3)))]
    assert [said for _, said in way.events] == [
        "reconfigured: sparsity 0.1, ridge 0.0, weights power 0.76, radius 1.5",
        "went back to step 2 of epoch 0",
    ]
    assert (way.fingerprint, way.digest) == ("abc", f"{'cd' * 32} of step 2, epoch 1")
    assert way.forgotten(code)
    assert not way.forgotten(Code(Version("m", 2, 0, 1), 3, Position(0, 0), 0.0, np.zeros(2)))


# ── the command ────────────────────────────────────────────────────────────────────────────────────────────────


def call(*words, code=0):
    result = CliRunner().invoke(main, ["report", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.mark.parametrize("name", ["snapshot", "snapshot-layout"])
def test_a_report_of_a_message(tmp_path, name):
    """With axes, units and the card that it carries."""
    (tmp_path / "a.snapshot").write_bytes(SAMPLES[name])
    told = json.loads(call(tmp_path / "a.snapshot", "--out", tmp_path / "a.html", "--json"))
    text = (tmp_path / "a.html").read_text()
    axes = [axis["name"] for view in json.loads(Parts(text).data)["atoms"][0]["views"] for axis in view["axes"]]

    assert (told["title"], told["atoms"], told["bytes"]) == ("weather, step 42", 2, len(text.encode()))
    assert axes == (["row", "column"] if name == "snapshot" else ["city", "measurement", "hour"])
    assert "the exponent is above 3/4" in text


def test_a_report_of_loadings(tmp_path):
    """Of a .npz file with nothing else in it."""
    np.savez(tmp_path / "a.npz", U1=np.ones((4, 2)), U2=np.ones((3, 2)))

    assert "axes, units, codes and curves are not known" in call(tmp_path / "a.npz", "--out", tmp_path / "a.html")


WRONG = {
    "not there": ("gone.npz", b"", "gone.npz cannot be read as a .npz file"),
    "not there either": ("gone.snapshot", b"", "gone.snapshot cannot be read: No such file or directory"),
    "damaged": ("a.npz", b"nonsense", "a.npz cannot be read as a .npz file"),
    "no message": ("a.snapshot", b"nonsense", "a.snapshot is no snapshot: "),
    "another message": ("a.snapshot", SAMPLES["code"], "a.snapshot is no snapshot: "),
}


@pytest.mark.parametrize(("name", "content", "said"), WRONG.values(), ids=WRONG)
def test_a_file_that_is_none(tmp_path, name, content, said):
    """One line that says so, and no report."""
    (tmp_path / "a.npz").write_bytes(content)
    (tmp_path / "a.snapshot").write_bytes(content)
    told = call(tmp_path / name, "--out", tmp_path / "a.html", code=2)

    assert said in told
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "a.html").exists()


def test_a_file_that_was_damaged_in_its_middle(tmp_path):
    """What is compressed cannot be unpacked: one line, and no traceback."""
    np.savez_compressed(tmp_path / "a.npz", U1=np.random.default_rng(0).random((40, 20)))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[100:3000] = bytes(255 - byte for byte in content[100:3000])
    (tmp_path / "a.npz").write_bytes(content)

    assert "a.npz cannot be read as a .npz file" in call(tmp_path / "a.npz", code=2)


def test_loadings_that_do_not_fit(tmp_path):
    """Are a mistake, not a bug."""
    np.savez(tmp_path / "x.npz", **{"": np.ones(3)})
    assert "has no loadings U1 … Un" in call(tmp_path / "x.npz", code=2)
    for k, arrays in enumerate(({}, {"U1": np.ones(3)}, {"U1": np.ones((2, 2)), "U2": np.ones((2, 3))})):
        np.savez(tmp_path / f"{k}.npz", **arrays)
        assert "has no loadings U1 … Un" in call(tmp_path / f"{k}.npz", code=2)


def test_both_or_nowhere_to_write(tmp_path):
    """Said before and after."""
    np.savez(tmp_path / "a.npz", U1=np.ones((4, 2)))

    assert "not both" in call(tmp_path / "a.npz", "--set", "model=m", code=2)
    said = call(tmp_path / "a.npz", "--out", tmp_path / "no" / "a.html", code=2)
    assert "a.html cannot be written: No such file or directory" in said


@pytest.mark.broker
def test_a_report_of_topics(learned, tmp_path):  # noqa: F811
    """Atoms, curves, codes, digest and settings, from what a model left; of part of it where there is too much; and a
    snapshot that `snapshot show` wrote says the same of itself.
    """
    learned.settings.save(tmp_path / "service.json")
    config = ["--config", tmp_path / "service.json"]
    told = json.loads(call(*config, "--out", tmp_path / "a.html", "--json"))
    text = (tmp_path / "a.html").read_text()
    data = json.loads(Parts(text).data)

    assert (told["atoms"], told["missing"]) == (2, [])
    assert [figure["title"] for figure in data["charts"]] == ["Loss", "Weight of a step"]  # it has one snapshot only
    weights = data["charts"][1]["curves"][0]
    assert weights["x"] == list(range(1, 9))
    assert weights["y"][0] == 1.0
    _, losses = data["charts"][0]["curves"]
    assert losses["x"] == list(range(1, 9))
    assert "of the 40 newest tensors" in text.lower()
    assert learned.settings.topic in text
    assert "problem:" in text
    CliRunner().invoke(main, ["snapshot", "show", "1", "--out", str(tmp_path / "a.snapshot"), *map(str, config)])
    assert "a, step 1" in call(tmp_path / "a.snapshot", "--out", tmp_path / "b.html").replace(learned.name, "a")
    assert "there is no snapshot 7" in call(*config, "--version", "7", code=2)
    assert "are of another model" in call(*config, "--set", "problem.rank=3", code=4)


@pytest.mark.broker
def test_windows_of_a_topic(learned):  # noqa: F811
    """Their records and no others, in order; transactions that are over leave gaps, which nobody waits for."""
    ends = stable_ends(learned.connection, learned.topics.codes)
    found = windows(ends, 16, spread=2)
    seen = list(read_windows(learned.connection, learned.topics.codes, found))
    places = [(number, record.position) for number, record in seen]

    assert len(found) == 3
    assert 0 < len(seen) <= sum(high - low for window in found for low, high in window.values())
    assert all(found[number][p][0] <= offset < found[number][p][1] for number, (p, offset) in places)
    assert [number for number, _ in places] == sorted(number for number, _ in places)
    whole = list(read_windows(learned.connection, learned.topics.codes, [ends]))
    assert len(whole) == 40
