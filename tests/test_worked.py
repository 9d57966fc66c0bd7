"""The worked examples of examples/, each with few draws: they end well, say what was explained, and draw it."""

import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.test_kafka import ROOT


@pytest.fixture
def edges(tmp_path):
    """The edge list of a ring with shortcuts."""
    path = tmp_path / "graph.csv"
    pairs = np.array([(u, (u + d) % 30) for u in range(30) for d in (1, 2)])
    np.savetxt(path, pairs, fmt="%d", delimiter=",")
    return path


@pytest.mark.parametrize(
    "line",
    [
        "ising.py --side 6 --count 60 --rank 3",
        "motifs.py --edges EDGES --k 5 --count 60 --rank 3",
        "motifs.py --k 4 --count 30 --rank 2 --chain glauber",
        "posterior.py --count 60",
        "posterior.py --count 60 --signed",
    ],
)
def test_a_worked_example(line, edges, tmp_path):
    """As many tiles as draws and atoms, in an SVG that can be parsed."""
    out = tmp_path / "picture.svg"
    script, *options = line.replace("EDGES", str(edges)).split()
    command = [sys.executable, str(ROOT / "examples" / script), *options, "--out", str(out)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)

    assert ended.returncode == 0, ended.stderr
    assert "explained: " in ended.stdout
    frames = ElementTree.parse(out).getroot().findall("{*}rect[@stroke]")
    assert len(frames) >= 4
