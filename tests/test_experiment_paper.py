"""The paper's comparison in the small: the same numbers twice, its weights, who is ahead."""

import json
from itertools import pairwise

import numpy as np
import pytest

from stream_ocpdl.experiments import ncpd
from stream_ocpdl.experiments.races import Mark, at_times, compare
from stream_ocpdl.experiments.records import spelled
from tests.benching import invoke, numbers


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


def test_a_file_that_is_cut_short_is_refused(tmp_path):
    """With exit code 3, and in one line."""
    (tmp_path / "20news_tfidf_40x5000x26_coo.npz").write_bytes(b"PK\x03\x04 and no more")
    result = invoke("paper", "--only", "20news", "--data", tmp_path)

    assert result.exit_code == 3, result.output
    assert len(result.stderr.splitlines()) == 1


def test_a_machine_gets_json(tmp_path):
    """On standard output, and nothing else there; with the command, without any path, and the conditions."""
    result = invoke("paper", "--quick", "--only", "synthetic", "--repeats", 1, "--data", tmp_path, "--json")
    found = json.loads(result.stdout)

    assert found["command"] == "stream-ocpdl bench paper --data DATA --quick --only synthetic --repeats 1"
    assert {"cpu", "cores", "numpy", "numba"} <= set(found["conditions"])
    assert str(tmp_path) not in result.stdout
    assert spelled("image", [("--only", ("headlines weeks",))]) == "stream-ocpdl bench image --only 'headlines weeks'"
