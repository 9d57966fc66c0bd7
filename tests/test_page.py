"""Atoms are drawn as what they are."""

import json
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from stream_ocpdl.ocpdl.reshape import Layout
from stream_ocpdl.page.files import static
from stream_ocpdl.page.views import LINES, POINTS, SLICES, Axis, atoms, picture

ROOT = Path(__file__).parents[1]


def decoded(view):
    """The numbers of a view, as the script reads them."""
    raw = np.frombuffer(b64decode(view["values"]), {"u1": np.uint8, "f4": "<f4"}[view["dtype"]]).astype(float)
    low, high = view["range"]
    return (low + (high - low) * raw / (255.0 if view["dtype"] == "u1" else 1.0)).reshape(view["shape"])


def loadings(*shape, rank=2, seed=0):
    random = np.random.default_rng(seed)
    return [random.random((rows, rank)) for rows in shape]


DRAWN = {
    "a short axis": ((7,), None, None, [("bars", [7])]),
    "a long axis": ((90,), None, None, [("lines", [1, 90])]),
    "time": ((7,), None, ("hour",), [("lines", [1, 7])]),
    "a matrix": ((20, 30), None, None, [("heat", [20, 30])]),
    "rows along time": ((24, 5), None, ("hour", "station"), [("lines", [5, 24])]),
    "columns along time": ((5, 24), None, ("station", "Hours of the day"), [("lines", [5, 24])]),
    "too many lines": ((24, LINES + 1), None, ("hour", "station"), [("heat", [24, LINES + 1])]),
    "both are time": ((7, 24), None, ("day", "hour"), [("heat", [7, 24])]),
    "far longer": ((100, 4), None, None, [("lines", [4, 100])]),
    "a colour patch": ((12, 10, 3), None, None, [("colour", [12, 10, 3])]),
    "colour by name": ((2, 40, 3), None, ("y", "x", "colour"), [("colour", [2, 40, 3])]),
    "three measurements": (
        (12, 10, 3),
        None,
        ("y", "x", "measurement"),
        [("bars", [12]), ("bars", [10]), ("bars", [3])],
    ),
    "three modes": ((24, 40, 6), None, None, [("bars", [24]), ("lines", [1, 40]), ("bars", [6])]),
    "a group": ((36, 24, 4), ((0, 1), (2,)), ("city", "hour", "m"), [("heat", [36, 24]), ("bars", [4])]),
    "a group in colour": ((5, 8, 8, 3), ((1, 2, 3), (0,)), None, [("colour", [8, 8, 3]), ("bars", [5])]),
    "a group of three": ((5, 8, 9), ((0, 1, 2),), None, [("heat", [8, 9])] * 5),
    "a clip": ((4, 6, 8, 3), ((0, 1, 2, 3),), ("frame", "y", "x", "rgb"), [("colour", [6, 8, 3])] * 4),
}


@pytest.mark.parametrize(("shape", "groups", "axes", "wanted"), DRAWN.values(), ids=DRAWN)
def test_what_atoms_are_drawn_as(shape, groups, axes, wanted):
    """By their axes, their names, and how they were grouped."""
    layout = Layout(shape, groups) if groups else None
    found = atoms(loadings(*(layout.grouped if layout else shape)), layout, axes)

    assert [atom["atom"] for atom in found] == [0, 1]
    for atom in found:
        assert [(view["kind"], view["shape"]) for view in atom["views"]] == wanted


def test_a_whole_atom_has_its_numbers():
    """To what a colour can tell; a transposed group is where it was in the data."""
    U = loadings(30, 4)
    layout = Layout((5, 4, 6), ((2, 0), (1,)))
    [view] = atoms([U[0][:20], U[1]][:2], Layout((20, 4)), which=[1])[0]["views"]

    assert decoded(view) == pytest.approx(np.outer(U[0][:20, 1], U[1][:, 1]), abs=1 / 255)
    first, second = atoms(U, layout, which=[0])[0]["views"]
    assert decoded(first) == pytest.approx(U[0][:, 0].reshape(6, 5), abs=1 / 255)
    assert decoded(second) == pytest.approx(U[1][:, 0], rel=1e-6)


def test_a_group_whose_modes_are_turned_round():
    """A matrix learned as one mode, its columns first, is drawn as the matrix."""
    T = np.arange(6.0).reshape(2, 3)
    [view] = atoms([T.T.reshape(-1, 1)], Layout((2, 3), ((1, 0),)))[0]["views"]

    assert decoded(view) == pytest.approx(T, abs=5 / 255)


def test_long_axes_are_means():
    """Said in the view; a product that would not fit into memory is never made."""
    U = [np.linspace(0, 1, 1_000_001)[:, None], np.ones((300_000, 1))]
    [view] = atoms(U, axes=("gene", "cell"))[0]["views"]

    assert view["axes"][0] == {"name": "gene", "size": 1_000_001, "drawn": POINTS, "step": 5001}
    assert view["note"] == "gene: a point is the mean of 5001; cell: a point is the mean of 1500"
    assert decoded(view)[:, 0] == pytest.approx(np.linspace(0.0025, 0.9975, POINTS), abs=0.005)


def test_slices_that_are_too_many_are_few_and_said():
    """The first and the last are among them."""
    views = atoms([np.ones((50 * 9 * 8, 1))], Layout((50, 9, 8), ((0, 1, 2),)), ("frame", "y", "x"))[0]["views"]

    assert len(views) == SLICES
    assert (views[0]["title"], views[-1]["title"]) == ("frame × y × x: frame 0", "frame × y × x: frame 49")
    assert views[0]["note"] == f"{SLICES} of 50 slices"


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("shape", [(4, 3), (12, 12, 3)])
def test_products_that_are_too_large_are_drawn(shape, sign):
    """Each loading is finite, and the atom is not: JSON has no such numbers."""
    U, *rest = [1e200 * U for U in loadings(*shape)]
    U[0], U[1] = 0.0, sign * U[1]

    for found in atoms([U, *rest]):
        assert json.dumps(found, allow_nan=False)
        assert np.abs(decoded(found["views"][0])).max() == 1e300


@pytest.mark.parametrize("values", [[0.0, 0.0], [-1e300, 1e300], [-3.0, 1.0], [1e-310, 2e-310], [np.nan, np.inf]])
def test_any_numbers(values):
    """Zero, both signs, the largest, the least, and those that a damaged file may have: all JSON, none invented."""
    [view] = atoms([np.array(values)[:, None]])[0]["views"]
    finite = np.nan_to_num(values, posinf=0.0)
    bound = np.abs(finite).max()

    assert view["range"] == [-bound if finite.min() < 0 else 0.0, bound]
    assert decoded(view) / (bound or 1.0) == pytest.approx(finite / (bound or 1.0), abs=1e-6)


def test_zero_is_dark_and_signs_are_even():
    """A nonnegative picture begins at zero even where it has none; a signed one has zero in the middle."""
    axes = [Axis("y", 1), Axis("x", 2)]

    assert picture(np.array([[2.0, 4.0]]), axes)["range"] == [0.0, 4.0]
    assert picture(np.array([[-1.0, 4.0]]), axes)["range"] == [-4.0, 4.0]


def test_scripts_and_styles_are_there():
    """And need nothing from elsewhere."""
    for name in ("atoms.js", "style.css"):
        text = static(name)
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "import " not in text


def test_the_wheel_has_them(tmp_path):
    """What is not Python is installed, too."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = ZipFile(wheel).namelist()

    assert {str(path.relative_to(ROOT)) for path in (ROOT / "stream_ocpdl" / "page" / "static").iterdir()} <= set(names)
