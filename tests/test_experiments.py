"""The paper's experiments in the small: the same numbers twice, by entries as by cells, and what is said of them."""

import json
import re
import sys
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl.cli import main
from stream_ocpdl.errors import DataError
from stream_ocpdl.experiments import (
    authors,
    image,
    ncpd,
    networks,
    offline,
    page,
    racers,
    text,
    through,
    video,
    weather,
)
from stream_ocpdl.experiments.races import Mark, at_times, compare
from stream_ocpdl.experiments.records import spelled
from stream_ocpdl.experiments.tensors import Entries, Whole, coordinates, documents, error_of, read, synthetic
from stream_ocpdl.ocpdl.baselines import start
from stream_ocpdl.ocpdl.learner import Learner

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def few():
    """A sparse tensor, by entries and as a whole."""
    entries = documents((6, 40, 9), 5, 3)
    return entries, Whole(np.ascontiguousarray(entries.whole()))


def invoke(*arguments):
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def test_entries_stand_for_the_whole(few):
    """Products with every unfolding, the energy, slices and errors are those of the array, to rounding."""
    entries, whole = few
    factors = start(whole.shape, 4, 1)
    chosen = np.array([3, 0, 8])

    assert entries.energy == pytest.approx(whole.energy, rel=1e-12)
    for i in range(3):
        assert np.allclose(entries.correlations(factors, i), whole.correlations(factors, i), rtol=1e-12, atol=0)
    for sparse, dense in zip(entries.minibatch(chosen), whole.minibatch(chosen), strict=True):
        assert np.array_equal(sparse.whole(), dense)
    direct = np.linalg.norm(whole.X - np.einsum("ir,jr,kr->ijk", *factors)) / np.linalg.norm(whole.X)
    assert error_of(entries, factors) == pytest.approx(direct, rel=1e-10)
    assert error_of(whole, factors) == pytest.approx(direct, rel=1e-10)


@pytest.mark.parametrize("method", [offline.als, offline.mu])
def test_offline_methods_see_entries_as_cells(few, method):
    """Five rounds over entries are five over the array; a factor that is updated from the old others would differ."""
    entries, whole = few
    factors = list(start(whole.shape, 4, 2))

    for U, V in zip(method(entries)(factors, 5), method(whole)(factors, 5), strict=True):
        assert np.allclose(U, V, rtol=1e-7, atol=1e-9)


def test_stand_ins_have_the_shape_and_the_size_of_what_is_missing():
    """Documents have norm one, so that the norm of all is the root of their number; a tweet has about ten words."""
    tensor = documents((9, 500, 100), 12)

    assert tensor.energy == pytest.approx(900, rel=1e-12)
    assert 8 < len(tensor.values) / 900 < 12
    assert read(None, "synthetic")[0].shape == (100, 100, 100)
    assert synthetic().X.mean() == pytest.approx(0.01 * 50 / 8, rel=0.05)


def test_a3_of_the_papers_weights():
    """With β = 1 the third condition fails for good, for every c′, and with 3/4 it holds; as printed w₁ = c′ is a
    weight for c′ = 1 alone. The paper says that all of them satisfy it.
    """
    growth = {
        beta: [1 / ncpd.Printed(beta)(t + 1) - 1 / ncpd.Printed(beta)(t) for t in (10**k for k in range(3, 12, 2))]
        for beta in ncpd.BETAS
    }

    assert all(low < high for low, high in pairwise(growth[1.0]))
    assert growth[1.0][0] > 1
    assert all(low > high for low, high in pairwise(growth[0.75]))
    assert growth[0.75][1] < 1  # the condition is for large t
    assert [ncpd.printed(0.75, c).split(" ")[0] for c in ncpd.RADII] == ["yes", "no", "no", "no"]
    assert {ncpd.printed(1.0, c).split(",")[0] for c in ncpd.RADII} == {"no"}
    assert ncpd.printed(None, None).endswith("no radius")


def test_who_is_ahead_is_told_while_both_run():
    """Ours is at 0.5 from 2 s on, the peer at 0.4 from 4 s on: behind from there, by a quarter, until ours ends."""
    ours = [Mark(1, 1.0, 0.9), Mark(2, 2.0, 0.5), Mark(3, 8.0, 0.5)]
    peer = [Mark(1, 1.0, 1.0), Mark(2, 4.0, 0.4), Mark(3, 64.0, 0.1)]
    found = compare({"ours": [ours], "peer": [peer]}, "ours", "peer")

    assert at_times(peer, np.array([0.5, 3.9, 4.0])).tolist() == [1.0, 1.0, 0.4]
    assert 4.0 <= found.above_from < 4.2
    assert found.above_until == pytest.approx(8.0)
    assert found.worst == pytest.approx(0.25)
    assert found.at_or_below == pytest.approx(found.times * 2 / 3, abs=1)


def numbers(found):
    """All errors of a case, step by step."""
    return {row["contender"]: [[(t, e) for t, _, e in curve] for curve in row["curves"]] for row in found["rows"]}


@pytest.mark.parametrize("name", ["synthetic", "20news"])
def test_the_same_numbers_twice(name):
    """Errors depend on seeds alone; nobody's is above where it began, nor below zero."""
    first, second = (ncpd.run(name, None, True, 1, lambda _: None) for _ in range(2))

    assert numbers(first) == numbers(second)
    assert {ncpd.OURS, *ncpd.PEERS[:2], ncpd.HALS, "OCPDL, β = 1, c′ = 1000"} <= set(numbers(first))
    assert all(0 < curve[-1][1] <= curve[0][1] + 1e-9 for curves in numbers(first).values() for curve in curves)


def test_the_smallest_radius_is_too_small():
    """As the paper finds for c′ = 1: loadings that begin far from the data's scale do not get there."""
    rows = {row["contender"]: row["error"] for row in ncpd.run("20news", None, True, 1, lambda _: None)["rows"]}

    assert rows["OCPDL, β = 1, c′ = 1"] > rows["OCPDL, β = 1, c′ = 1000"] + 0.02
    assert rows["OCPDL, β = 0.75, c′ = 1"] > rows[ncpd.OURS] + 0.02


THEIRS = {
    "utils/ocpdl.py": """
import numpy as np
class Online_CPDL:
    def __init__(self, X, batch_size, n_components, alpha, beta):
        self.shape = X.shape
        self.ini_A, self.ini_B = 0.0, 0.0
        self.loading = {f"U{i}": np.random.rand(X.shape[i], n_components) for i in range(X.ndim - 1)}
    def step(self, X, A, B, loading, t, radius, beta):
        print("they print")
        assert X.shape[:-1] == self.shape[:-1]
        moved = {name: U * (1 + np.random.rand(*U.shape) / t) for name, U in loading.items()}
        return None, A, B, {name: np.asfortranarray(U) for name, U in moved.items()}
""",
    "utils/BCD_DR.py": """
import numpy as np
class ALS_DR:
    def __init__(self, X, n_components, alpha):
        self.size = np.product(X.shape)
    def ALS(self, iter, ini_loading, if_compute_recons_error):
        return {name: 0.5**iter * U for name, U in ini_loading.items()} | {"other": None}
""",
}
"""What a checkout of the authors' code has, as far as it is asked for."""


@pytest.fixture
def theirs(tmp_path):
    """A checkout that learns nothing."""
    (tmp_path / "utils").mkdir()
    for file, code in THEIRS.items():
        (tmp_path / file).write_text(code)
    return tmp_path


def test_the_authors_code_takes_part(theirs):
    """Its steps are coded as ours are, its iterations go on from where they were, and the same numbers come twice; the
    page names it, with no path.
    """
    arguments = ("paper", "--quick", "--only", "synthetic", "--repeats", 1, "--authors", theirs, "--json")
    first, second = (invoke(*arguments) for _ in range(2))
    found = json.loads(first.stdout)
    (case,) = found["cases"]
    rows = {row["contender"]: row for row in case["rows"]}

    assert numbers(case) == numbers(json.loads(second.stdout)["cases"][0])
    assert found["command"].endswith("--authors AUTHORS")
    assert str(theirs) not in first.stdout
    assert set(found["authors"]) == set(THEIRS)
    assert "they print" not in first.output
    named = {*map(ncpd.authors_name, ncpd.AUTHORS_RADII), ncpd.AUTHORS_ALS}
    assert named <= {row["peer"] for row in case["against"]}
    assert rows[ncpd.authors_name(1.0)]["steps"] == ncpd.QUICK.theirs
    X, U = read(None, "synthetic", True)[0], start((30, 30, 30), ncpd.RANK, 0)
    halved = [error_of(X, [0.5**k * V for V in U]) for k in (1, 2, 3)]
    assert [error for _, _, error in rows[ncpd.AUTHORS_ALS]["curves"][0]] == pytest.approx(halved)
    for name in ("authors", "text"):
        one = found if name == "authors" else json.loads(invoke("text", "--quick", "--json").stdout)
        (theirs / f"{name}.json").write_text(json.dumps(one))
    assert invoke("page", "--results", theirs, "--out", theirs / "paper.md").exit_code == 0
    told = (theirs / "paper.md").read_text()
    assert f"| {ncpd.AUTHORS_ALS} | {rows[ncpd.AUTHORS_ALS]['error']:.5f} ± 0.00000 |" in told
    assert found["command"] in told
    assert str(theirs) not in told


def test_their_dictionary_is_judged_by_its_own_stream(theirs):
    """Drawn and learned from the seed alone; errors are those with the optimal codes."""
    X = synthetic(12, 5)
    stream = authors.ocpdl(theirs, X, 3, 4, 1.0)
    (_, first), (_, second) = islice(stream(7), 2)
    curve = racers.online(X, stream, 2)(7, False)

    assert [mark.error for mark in curve] == [racers.coded_error(X, first), racers.coded_error(X, second)]
    assert not np.array_equal(first[0], second[0])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (None, "has no utils/BCD_DR.py"),
        ("import a_module_that_nobody_has", "needs a_module_that_nobody_has"),
        ("def (", "cannot be read"),
    ],
)
def test_what_is_no_checkout(theirs, damage, said):
    """Is said in one line, before anything is run, with exit code 2."""
    file = theirs / "utils" / "BCD_DR.py"
    file.unlink() if damage is None else file.write_text(damage)
    result = invoke("paper", "--quick", "--only", "synthetic", "--authors", theirs)

    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert "run 1" not in result.stderr


@pytest.mark.parametrize(
    "damage",
    [
        {"v": np.array([1.0])},
        {"v": np.array([1.0, np.nan])},
        {"v": np.array([1.0, -1.0])},
        {"k": np.array([0, 5])},
        {"i": np.array([-1, 0])},
        {"shape": np.array([2, 2])},
    ],
    ids=lambda damage: f"{next(iter(damage))}",
)
def test_damaged_data_are_refused(tmp_path, damage):
    """As data that cannot be learned, whatever is wrong with them."""
    good = {"shape": np.array([2, 3, 4]), "i": np.array([0, 1]), "j": np.array([2, 0]), "k": np.array([3, 3])}
    np.savez(tmp_path / "good.npz", **good, v=np.ones(2))
    np.savez(tmp_path / "bad.npz", **(good | {"v": np.ones(2)} | damage))

    assert coordinates(tmp_path / "good.npz").whole().sum() == 2
    with pytest.raises(DataError):
        coordinates(tmp_path / "bad.npz")


def test_a_file_that_is_cut_short_is_refused(tmp_path):
    """With exit code 3, and in one line."""
    (tmp_path / "20news_tfidf_40x5000x26_coo.npz").write_bytes(b"PK\x03\x04 and no more")
    result = invoke("paper", "--only", "20news", "--data", tmp_path)

    assert result.exit_code == 3, result.output
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("paper", "--data", "nowhere"), "no such folder"),
        (("image", "--data", "nowhere"), "no such file or folder"),
        (("video", "--data", "nowhere"), "no such file or folder"),
        (("page", "--results", "nowhere"), "there is nothing in nowhere"),
        (("paper", "--only", "everything"), "is not one of"),
    ],
)
def test_what_is_asked_for_wrongly(arguments, said, tmp_path, monkeypatch):
    """Is said, before anything is run, with exit code 2."""
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)

    assert result.exit_code == 2
    assert said in result.stderr


def test_results_that_are_not_ours(tmp_path):
    """Are refused as data."""
    for written in ("{", "[]", '{"experiment": "image"}'):
        (tmp_path / "paper.json").write_text(written)
        assert invoke("page", "--results", tmp_path, "--out", tmp_path / "paper.md").exit_code == 3


def test_a_machine_gets_json(tmp_path):
    """On standard output, and nothing else there; with the command, without any path, and the conditions."""
    result = invoke("paper", "--quick", "--only", "synthetic", "--repeats", 1, "--data", tmp_path, "--json")
    found = json.loads(result.stdout)

    assert found["command"] == "stream-ocpdl bench paper --data DATA --quick --only synthetic --repeats 1"
    assert {"cpu", "cores", "numpy", "numba"} <= set(found["conditions"])
    assert str(tmp_path) not in result.stdout
    assert spelled("image", [("--only", ("headlines weeks",))]) == "stream-ocpdl bench image --only 'headlines weeks'"


def test_patches_are_learned_in_three_shapings():
    """The same numbers twice; every shaping has atoms of the patch's shape, and of its own rank as a matrix."""
    first, second = (image.run(None, True, None, lambda _: None) for _ in range(2))

    assert first.body == second.body
    for shaping, atoms in first.atoms.items():
        assert atoms.shape == (image.QUICK.rank, *image.PATCH), shaping
        assert np.array_equal(atoms, second.atoms[shaping])
    space, colour = (
        [np.linalg.matrix_rank(atom.reshape(rows, -1), 1e-6 * atom.max()) for atom in first.atoms["400 × 3"]]
        for rows in (20, 400)
    )
    assert max(colour) == 1 < max(space)
    flat = [np.linalg.matrix_rank(atom.reshape(20, -1), 1e-6 * atom.max()) for atom in first.atoms[image.PLAIN]]
    assert max(flat) == 1


def test_a_picture_is_put_together_from_its_patches():
    """One that the dictionary can make is made again everywhere, also at edges that the stride does not meet."""
    y, x = np.mgrid[:47, :53]
    picture = (0.2 + 0.5 * (y // 20 % 2)[..., None] * np.ones(3) + 0.0 * x[..., None]).astype(np.float32)
    stripes = np.tril(np.ones((20, 20)))
    loadings = [np.hstack([stripes, stripes.T]), np.ones((20, 40)), np.ones((3, 40))]
    found = image.restored(picture, image.PLAIN, loadings, 9)

    assert found.shape == picture.shape
    assert image.error_of(picture, found) < 1e-5


def test_unit_columns_and_penalties_are_as_the_settings_say():
    """With λ = 1 columns have norm at most one, and so without it where that is asked for; by default they are free."""
    sizes = image.Sizes(4, 20, 6, 60)
    pool = image.patches(image.picture(None, True)[0], 60, 0)
    norms = {
        setting: max(np.linalg.norm(U, axis=0).max() for U in image.learn(image.PLAIN, setting, sizes, pool, 0)[-1])
        for setting in image.SETTINGS
    }

    assert norms[image.PAPER] <= 1 + 1e-9
    assert norms[image.UNIT] <= 1 + 1e-9
    assert norms[image.FREE] > 1.5


def test_clips_are_learned_twice_the_same():
    """But for what it took. The dictionary is better than the mean frame, and its atoms are of frames and of a clip."""
    first, second = (video.run(None, True, None, lambda _: None) for _ in range(2))
    sizes, costs = video.QUICK, [found.body.pop("cost") for found in (first, second)]

    assert first.body == second.body
    assert first.bits == second.bits
    assert np.array_equal(first.pictures, second.pictures)
    assert np.array_equal(first.courses, second.courses)
    assert first.pictures.shape == (sizes.rank, sizes.side, sizes.side, 3)
    assert first.courses.shape == (sizes.rank, sizes.length)
    assert len(first.body["before"]) == sizes.clips
    assert first.body["error"] < first.body["mean"]
    assert all(cost["peak_bytes"] is None or cost["peak_bytes"] > 1e7 for cost in costs)


def test_fewer_clips_are_the_first_ones():
    """So that those which go through a broker are those that were learned here."""
    frames, _ = video.frames_of(None, True)

    assert video.starts(frames, video.QUICK, 3) == video.starts(frames, video.QUICK, 200)[:3]
    assert max(video.starts(frames, video.QUICK, 2000)) == len(frames) - video.QUICK.length


def test_a_spot_with_its_own_course_is_an_atom():
    """Two spots that take turns on a grey ground: each has an atom that is red there alone, and at its times."""
    frames = np.full((64, 12, 12, 3), 40, np.uint8)
    for t in range(64):
        y = 2 if t % 16 < 8 else 8
        frames[t, y : y + 2, y : y + 2] = (240, 40, 40)
    layout, problem = video.problem_of(frames, video.Sizes(16, 3))
    learner = Learner(problem, in_place=True)
    for clip in video.clips_of(frames, [0, 16, 32, 48] * 5, 16):
        learner.step(layout.fold(clip).astype(np.float32))
    error, _ = video.represented(learner, layout, frames, 16)
    red = learner.state.loadings[1].T.reshape(3, 12, 12, 3)[..., 0]
    ground = red[:, 5:7].mean(axis=(1, 2))
    over = {
        (y, bool(course[:8].sum() > course[8:].sum()))
        for picture, level, course in zip(red, ground, learner.state.loadings[0].T, strict=True)
        for y in (2, 8)
        if picture[y, y] > 3 * level and picture[y, y] > 3 * picture[10 - y, 10 - y]
    }

    assert over == {(2, True), (8, False)}
    assert error < 0.05
    assert video.mean_error(frames, 16) == pytest.approx((8 * 100**2 / (428 * 40**2 + 4 * 240**2)) ** 0.5)


def test_the_mean_frame_has_a_factor_for_each_clip():
    """A picture that only gets brighter from one clip to the next is all of it; one that moves is not."""
    still = np.random.default_rng(0).integers(1, 60, (6, 5, 3))
    brighter = [(still * (1 + t // 4)).astype(np.uint8) for t in range(16)]

    assert video.mean_error(brighter, 4) < 1e-7
    assert video.mean_error([np.roll(frame, t, axis=1) for t, frame in enumerate(brighter)], 4) > 0.3


def test_a_video_is_read(tmp_path):
    """Frame by frame in its colours, by its own name as in a folder; one that is cut short is refused in a line."""
    av = pytest.importorskip("av")
    path, pictures = tmp_path / "media" / video.VIDEO, np.repeat(video.drawn(2, 32), 30, axis=0)
    path.parent.mkdir()
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25, width=32, height=32, pix_fmt="yuv420p", bit_rate=4_000_000)
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")))
        container.mux(stream.encode())
    frames, source = video.frames_of(tmp_path)

    assert source == video.VIDEO
    assert np.array(frames).shape == pictures.shape
    assert np.abs(np.array(frames, float) - pictures).mean() < 8
    assert len(video.frames_of(path)[0]) == len(frames)
    path.write_bytes(path.read_bytes()[:500])
    result = invoke("video", "--data", path)
    assert result.exit_code == 3, result.output
    assert len(result.stderr.splitlines()) == 1


def test_what_reads_videos_is_said(tmp_path, monkeypatch):
    """Where it is not installed; a stand-in needs nothing."""
    (tmp_path / video.VIDEO).write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "av", None)
    result = invoke("video", "--data", tmp_path)

    assert result.exit_code == 2, result.output
    assert "pip install 'stream-ocpdl[bench]'" in result.stderr
    assert invoke("video", "--quick", "--clips", 2, "--data", tmp_path).exit_code == 0


def test_days_are_learned_in_three_groupings():
    """The same numbers twice; in each grouping an atom has as many curves as it may, and no more."""
    first, second = (weather.run(None, True, lambda _: None) for _ in range(2))
    ranks = {}
    for name in weather.GROUPINGS:
        atom = first.atoms[name, 25][0]
        ranks[name] = [
            np.linalg.matrix_rank(np.moveaxis(atom, i, 0).reshape(len(m), -1), 1e-6)
            for i, m in enumerate(map(range, atom.shape))
        ]

    assert first.body == second.body
    assert [ranks[name][0] for name in weather.GROUPINGS][:2] == [1, 1]
    assert ranks["(cities, hours) × measurements"][0] > 1
    assert [ranks[name][2] for name in weather.GROUPINGS][::2] == [1, 1]
    assert ranks["cities × (hours, measurements)"][2] > 1
    by = {(row["grouping"], row["rank"]): row["error"] for row in first.body["rows"]}
    assert all(by[name, 25] < by[name, 1] for name in weather.GROUPINGS)


def test_held_out_cells_are_predicted_from_the_others():
    """Three patterns of cities that come and go, whatever the hour: the mean of the hour knows nothing of them."""
    random = np.random.default_rng(0)
    cities, measures = random.random((12, 3)), random.random((4, 3))
    strength = np.repeat(random.exponential(size=(30, 3)), 40, axis=0)
    X = np.einsum("cr,tr,kr->ctk", cities, strength, measures)
    X[random.random(X.shape) < 0.03] = np.nan
    found = weather.with_gaps(X, masks=2, rank=8)

    assert found["missing"] == pytest.approx(0.03, abs=0.01)
    assert found["error"] + found["deviation"] < 0.5 * found["mean"]


def test_windows_overlap_by_four_hours():
    """The last four of one are the first of the next; an end that is no whole window is left out."""
    X = np.arange(70.0)[None, :, None] * np.ones((2, 1, 4))
    found = weather.windows(X)

    assert found.shape == (3, 2, 24, 4)
    assert np.array_equal(found[0, :, 20:], found[1, :, :4])


def test_the_mean_of_an_hour_is_of_the_hour_of_the_day():
    """A series that is the hour of the day has itself for a mean, also where cells are missing."""
    X = (np.arange(96.0) % 24)[None, :, None] * np.ones((2, 1, 4))
    seen = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)

    assert np.array_equal(weather.mean_of_hours(seen), X)


def test_weather_of_another_shape_is_refused(tmp_path):
    """Before anything is learned, as data."""
    np.savez(tmp_path / weather.SMOOTH, X_minmax=np.ones((3, 10, 4)))

    assert invoke("weather", "--data", tmp_path).exit_code == 3


def test_topics_are_found_with_their_weeks():
    """Two topics with words and weeks of their own: each atom has the words of one, and its peak where that one is."""
    random = np.random.default_rng(0)
    places = []
    for topic, weeks in enumerate((range(3), range(6, 10))):
        for k in range(60):
            drawn = [(week, 10 * topic + word, k) for week in weeks for word in random.choice(5, 3, replace=False)]
            places += drawn
    i, j, k = np.array(places).T
    tensor = Entries((10, 20, 60), (i, j, k), np.ones(len(i)))
    activity, words = text.learn(tensor, 2, 40, 20)
    rows = [
        text.row(*pair, [str(w) for w in range(20)], [f"{w}/x" for w in range(10)])
        for pair in zip(activity, words, strict=True)
    ]
    found = {frozenset(row["words"][:5]): (int(row["peak"]), row["spread"]) for row in rows}

    assert set(found) == {frozenset("01234"), frozenset(("10", "11", "12", "13", "14"))}
    assert found[frozenset("01234")][0] < 3
    assert found[frozenset("01234")][1] == pytest.approx(3, rel=0.1)
    assert [(r["words"], r["peak"]) for r in text.run(None, True, print)[0]["rows"]] == [
        (r["words"], r["peak"]) for r in text.run(None, True, print)[0]["rows"]
    ]


def test_headlines_whose_names_do_not_fit_are_refused(tmp_path):
    """As data: a word too few would give every later one another's name."""
    i = np.zeros(1, int)
    named = {"words": np.array(["a"]), "slices": np.array(["w"])}
    np.savez(tmp_path / text.HEADLINES.file, shape=np.array([1, 2, 3]), i=i, j=i, k=i, v=np.ones(1), **named)

    assert invoke("text", "--data", tmp_path).exit_code == 3


def test_motifs_are_those_of_the_graph():
    """The same numbers twice; a dictionary is better than the mean patch, and that of a graph is the best for it, but
    that four atoms of thin communities are much like those of a ring.
    """
    first, second = (networks.run(None, True, lambda _: None) for _ in range(2))
    body, crossed = first.body, np.array(first.body["crossed"])

    assert body == second.body
    assert [row["source"] for row in body["graphs"]] == [wanted.drawn for wanted in networks.GRAPHS.values()]
    assert crossed.argmin(axis=0).tolist()[1:] == [1, 2, 3]
    own = {row["graph"]: row["error"] for row in body["rows"] if row["shaping"] == networks.VECTORS}
    assert all(own[row["graph"]] < row["mean"]["error"] for row in body["graphs"])
    for key, atoms in first.atoms.items():
        assert atoms.shape == (networks.QUICK.rank, networks.QUICK.k, networks.QUICK.k)
        assert np.array_equal(atoms, second.atoms[key])


def test_held_out_motifs_are_of_other_chains():
    """None of the draws that are learned is one that is held out; and the chain of nodes is that of its patch."""
    graph = networks.Graph.of(networks.ring(60))
    stream = networks.drawn(graph, networks.Sizes(k=9, steps=5, chains=2, each=3, held=10), 0)
    held = {X.tobytes() for X in stream.held}

    assert not held & {X.tobytes() for batch in stream.minibatches for X in batch}
    edges = {(u, v) for u in range(graph.nodes) for v in graph.ends[graph.starts[u] : graph.starts[u + 1]].tolist()}
    for X, nodes in zip(stream.held, stream.nodes.tolist(), strict=True):
        assert X.tolist() == [[(u, v) in edges for v in nodes] for u in nodes]


def test_what_chains_meet_is_counted():
    """On a complete graph all cells off the chain are edges but those where a node comes twice, and chains are
    everywhere alike.
    """
    graph = networks.Graph.of(networks.communities((12,), 1.0))
    stream = networks.drawn(graph, networks.Sizes(k=3, steps=1, chains=4, each=1, held=400), 0)
    met = networks.looked_at(graph, stream)
    twice = np.mean([chain[0] == chain[2] for chain in stream.nodes.tolist()])

    assert (met["nodes"], met["edges"]) == (12, 66)
    assert met["differ"] == pytest.approx(3 - twice)
    assert met["gathered"] == pytest.approx(12, rel=0.05)
    assert met["off_chain"] == pytest.approx((2 * (1 - twice)) / 2)
    assert 0.03 < twice < 0.16  # one in eleven


def test_a_chain_that_goes_to_and_fro_is_seen():
    """On a graph with two sides no edge is between places an even number apart; on others some are."""
    star, whole = ([(0, v) for v in range(1, 9)], networks.communities((9,), 1.0))
    sizes = networks.Sizes(k=6, steps=1, chains=2, each=1, held=20)
    even = []
    for edges in (star, whole):
        graph = networks.Graph.of(edges)
        even.append(networks.looked_at(graph, networks.drawn(graph, sizes, 0))["even"])

    assert even[0] == 0
    assert even[1] > 0.5


def test_the_mean_patch_is_a_dictionary_of_one_atom():
    """Against least squares, patch by patch."""
    graph = networks.Graph.of(networks.hubs(50))
    stream = networks.drawn(graph, networks.Sizes(k=5, steps=3, chains=2, each=2, held=6), 1)
    M = np.concatenate(stream.minibatches).mean(axis=0).reshape(-1, 1)
    X = stream.held.reshape(len(stream.held), -1).T
    rest = X - M @ np.linalg.lstsq(M, X, rcond=None)[0]

    assert networks.mean_error(stream) == pytest.approx(np.linalg.norm(rest) / np.linalg.norm(X), rel=1e-12)


def test_drawn_graphs_have_what_they_are_named_for():
    """Hubs are known to many; a community knows itself; a ring without shortcuts has one degree."""
    degrees = {
        name: np.diff(networks.Graph.of(edges).starts)
        for name, edges in {"hubs": networks.hubs(), "ring": networks.ring(share=0.0)}.items()
    }
    u, v = networks.communities((30, 30), 0.5, 0.02).T

    assert degrees["hubs"].max() > 10 * np.median(degrees["hubs"])
    assert set(degrees["ring"].tolist()) == {6}
    assert ((u < 30) == (v < 30)).mean() > 0.9


def test_graphs_are_read_from_a_folder(tmp_path):
    """From its `networks`, or from itself; a file that is damaged is refused as data."""
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / "COVID_PPI_edges.csv").write_text("a,b\nb,c\nc,a\n")
    (tmp_path / "Caltech36_edges.csv").write_text("1,2\n2,3\n")
    (tmp_path / "facebook_combined_edges.csv.gz").write_bytes(b"no gzip")

    assert networks.read(tmp_path, "COVID PPI")[0].nodes == 3
    assert networks.read(tmp_path, "Caltech36")[1] == "Caltech36_edges.csv"
    assert invoke("networks", "--data", tmp_path).exit_code == 3


def test_a_broker_that_is_not_there_is_said_at_once(monkeypatch):
    """With exit code 6, before anything is learned."""
    monkeypatch.setattr(through, "PATIENCE", 0.5)
    monkeypatch.setattr(image, "run", None)
    result = invoke("image", "--quick", "--through-kafka", "localhost:1")

    assert result.exit_code == 6, result.output
    assert "localhost:1" in result.stderr


@pytest.mark.broker
def test_through_kafka_the_same_is_learned(broker):
    """The service, from a topic, has the loadings of the learner alone to the last bit, in every shaping."""
    result = invoke("image", "--quick", "--through-kafka", broker, "--json")

    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["kafka"]
    assert [(row["shaping"], row["same_bits"]) for row in rows] == [(shaping, True) for shaping in image.SHAPINGS]


@pytest.mark.broker
def test_clips_go_through_kafka_in_pieces(broker, monkeypatch):
    """The same bits again, of messages that are larger than a record."""
    monkeypatch.setattr(video, "QUICK", video.Sizes(40, 3, 4, 80, 64))
    result = invoke("video", "--quick", "--through-kafka", broker, "--json")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["kafka"]
    assert found["clips"] == 4
    assert found["same_bits"]
    assert found["pieces"] == 3


def test_a_page_of_quick_looks(tmp_path):
    """It tells of what there is, and says that these are no figures."""
    for name in page.PICTURES:
        found = json.loads(invoke(name, "--quick", "--json").stdout)
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    result = invoke("page", "--results", tmp_path, "--out", tmp_path / "docs" / "paper.md")
    told = (tmp_path / "docs" / "paper.md").read_text()

    assert result.exit_code == 0, result.output
    assert told.count("a quick look, not figures") == len(page.PICTURES)
    assert "pictures/" not in told  # none were drawn
    for name in (*ncpd.LENGTHS, *image.SHAPINGS, *weather.GROUPINGS, *networks.GRAPHS, ncpd.OURS, ncpd.HALS):
        assert name in told


def test_pictures_are_drawn(tmp_path):
    """Where Matplotlib is there."""
    pytest.importorskip("matplotlib")
    for name in ("image", "video", "weather", "text", "networks"):
        assert invoke(name, "--quick", "--out", tmp_path).exit_code == 0
    assert invoke("paper", "--quick", "--only", "synthetic", "--out", tmp_path).exit_code == 0

    assert {path.name for path in tmp_path.iterdir()} == {
        *("paper.json", "image.json", "video.json", "weather.json", "text.json", "networks.json"),
        *(file for files in page.PICTURES.values() for file in files),
    }


def test_the_page_that_is_kept():
    """docs/paper.md shows figures, no quick looks, names no path of a machine, and its pictures are small."""
    told = (ROOT / "docs" / "paper.md").read_text()
    shown = re.findall(r"\((pictures/[^)]+)\)", told)

    assert "quick look" not in told
    assert not re.search(r"(?<![\w.])/(work|home|tmp|root|Users)\b", told)
    assert len(shown) == sum(map(len, page.PICTURES.values()))
    assert all((ROOT / "docs" / file).stat().st_size < 150_000 for file in shown)


def test_entries_outside_are_refused():
    """Also those that only NumPy would take for places from the end."""
    with pytest.raises(DataError):
        Entries((2, 2, 2), (np.array([-1]), np.array([0]), np.array([0])), np.ones(1))
