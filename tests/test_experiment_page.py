"""The page of all experiments, its pictures, and what is asked for wrongly."""

import json
import re
from pathlib import Path

import pytest

from stream_ocpdl.experiments import image, ncpd, networks, page, weather
from tests.benching import invoke

ROOT = Path(__file__).parents[1]


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
