"""The pure parts of the benchmarks: what is said of a measurement, once it was made."""

import json
import os
import threading
import time
from math import inf

import numpy as np
import pytest

from benchmarks import compare, sink, sparse, weather
from benchmarks.blocks import Switch, others
from benchmarks.limit import Case
from benchmarks.measure import finite, slope, spread, table, time_to
from benchmarks.races import OURS, results
from benchmarks.stopping import Mark, Took, between, race
from benchmarks.wholes import Whole


def document(rows, **other):
    """A file that a benchmark might have written."""
    head = {"benchmark": "limit", "quick": False, "keys": ["case", "threads"]}
    return head | {"ratios": {"share": "higher", "multiple": "lower"}, "rows": rows} | other


def row(case="a", threads=1, **values):
    return {"case": case, "threads": threads, **values}


def worse(old, new, **other):
    """(name, column, factor) of everything that changed between two lists of rows."""
    found = compare.changes(document(old), document(new, **other))
    return [(change.row, change.column, change.factor) for change in found]


def test_a_ratio_that_should_be_higher_is_worse_when_it_falls():
    """Half the share is twice as bad, in whatever order the rows come."""
    old = [row("a", share=0.5), row("b", share=0.2)]
    new = [row("b", share=0.4), row("a", share=0.25)]

    assert worse(old, new) == [(("a", 1), "share", 2.0), (("b", 1), "share", 0.5)]


def test_a_ratio_that_should_be_lower_is_worse_when_it_rises():
    """Three times the memory is three times as bad; the wrong sign of the direction would call it a third."""
    assert worse([row(multiple=2.0)], [row(multiple=6.0)]) == [(("a", 1), "multiple", 3.0)]


def test_absolute_times_are_not_compared():
    """A machine ten times slower with the same shares has no regression."""
    assert worse([row(share=0.5, us=1.0)], [row(share=0.5, us=10.0)]) == [(("a", 1), "share", 1.0)]


@pytest.mark.parametrize("new", [[], [row(threads=2, share=0.5)], [row(share=None)]])
def test_what_is_no_longer_measured_is_worse(new):
    """A row that went missing, or a level that is not reached any more, must not pass."""
    assert worse([row(share=0.5)], new) == [(("a", 1), "share", inf)]


def test_what_was_never_reached_is_not_compared():
    """A contender that had no value before cannot have lost it."""
    assert worse([row(share=None)], [row(share=0.5)]) == []


def test_rows_of_one_name_are_refused():
    """Keys that do not tell rows apart would compare some of them with the wrong partner."""
    with pytest.raises(compare.NotComparableError, match="two rows"):
        worse([row(share=0.5), row(share=0.1)], [row(share=0.5)])


@pytest.mark.parametrize("other", [{"quick": True}, {"benchmark": "peers"}, {"ratios": {}}])
def test_files_of_different_kinds_are_refused(other):
    """A short run and a full one, or two benchmarks, say nothing of each other."""
    with pytest.raises(compare.NotComparableError):
        worse([row(share=0.5)], [row(share=0.5)], **other)


@pytest.mark.parametrize(
    ("share", "arguments", "code"), [(0.45, [], 0), (0.4, [], 1), (0.4, ["--tolerance", "1.3"], 0)]
)
def test_the_exit_code_tells(share, arguments, code, tmp_path, capsys):
    """1, with the name of the row, if a share fell by more than the tolerance, 15 % unless told; 0 otherwise."""
    for name, value in (("old", 0.5), ("new", share)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document([row("c", 2, share=value)])))

    assert compare.main([str(tmp_path / "old.json"), str(tmp_path / "new.json"), *arguments]) == code
    assert ("c, 2: share 0.5 → 0.4 (1.25× worse)" in capsys.readouterr().out) == (code == 1)


def test_a_slope_is_the_exponent():
    """y = 3 x^1.5 has slope 1.5, however x is spaced."""
    x = [1.0, 2.0, 10.0, 64.0]

    assert slope(x, [3 * value**1.5 for value in x]) == pytest.approx(1.5)


def test_time_to_error_is_interpolated_in_the_logarithm():
    """From 1 to 0.01 in two seconds: 0.1 is reached after one. A line through the errors would say 1.82."""
    assert time_to([(0.0, 1.0), (2.0, 0.01)], 0.1) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("curve", "level", "when"),
    [
        ([(1.0, 0.5), (2.0, 0.4)], 0.5, 1.0),  # below from the first point on
        ([(1.0, 0.5), (2.0, 0.4)], 0.3, inf),  # never
        ([(1.0, 0.5), (2.0, 0.4), (3.0, 0.6), (4.0, 0.1)], 0.4, 2.0),  # the first time counts
        ([(1.0, 0.5), (2.0, 0.0)], 0.1, 2.0),  # an error of zero has no logarithm
        ([], 0.1, inf),
    ],
)
def test_time_to_error_at_the_ends(curve, level, when):
    """Where there is nothing to interpolate, the time is that of a point, or never."""
    assert time_to(curve, level) == when


def test_a_median_may_be_never():
    """If half of the runs never arrive, neither does their median: inf must not be averaged away."""
    assert spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert spread([1.0, inf, 2.0, inf]) == (inf, 1.0, inf)
    assert finite(inf) is None


def test_a_race_is_told_in_multiples_of_ours():
    """Ours needs 1 s to within 10 % of 1.0 and the other 4 s: ratio 4, and null where it never arrives."""
    curves = {OURS: [[(1.0, 1.1), (2.0, 1.0)]], "other": [[(4.0, 1.1), (8.0, 1.05)]]}

    rows = {(r["contender"], r["within"]): r for r in results(curves, 1.0, (10, 1))}

    assert rows["other", 10]["ms"] == 4000
    assert rows["other", 10]["ratio"] == 4
    assert rows["other", 1]["ratio"] is None
    assert rows[OURS, 1]["ms"] < 2000


def test_the_work_of_a_step():
    """4MRb + 4MR flops; B in and out and X in."""
    case = Case("", (3, 5), 2, 7)

    assert case.flops == 4 * 15 * 7 * 2 + 4 * 15 * 7
    assert case.bytes("float32") == 4 * (2 * 7 * 15 + 2 * 15)


def test_a_table_shows_a_dash_for_what_is_missing(capsys):
    """None and inf are dashes, columns are aligned."""
    table(
        [{"name": "a", "ms": 1.25}, {"name": "long", "ms": None}, {"name": "b", "ms": inf}], {"name": "", "ms": ".1f"}
    )

    assert capsys.readouterr().out.splitlines() == ["name   ms", "   a  1.2", "long    –", "   b    –"]


def test_the_weather_in_the_small(capsys, tmp_path):
    """Days that are mixtures of three kinds are predicted better than by the mean of city and hour, in every unit; the
    line between the hours is exact where series are lines. Without the data there is nothing to tell.
    """
    random = np.random.default_rng(0)
    kinds = np.einsum("ri,rh,rk->rihk", *(random.random((3, size)) for size in (5, 24, 4)))
    days = np.einsum("dr,rihk->dihk", random.exponential(size=(56, 3)), kinds) * [290.0, 60.0, 1000.0, 4.0]
    days[random.random(days.shape) < 0.05] = np.nan
    rows = weather.results(days, (4,), (1, 2))
    mean = next(row for row in rows if row["method"] == weather.MEAN)
    ours = [row for row in rows if row["rank"] and row["passes"] == 2 and "deviation" in row["method"]]
    weather.report(rows)

    assert mean["gain"] == 1.0
    assert len(ours) == len(weather.GROUPINGS)
    assert all(row[name] < mean[name] for row in ours for name in (*weather.MEASURES, "all, σ", "all, rms"))
    assert "(city, hour), measurement; deviation" in capsys.readouterr().out
    line = np.arange(48.0).reshape(2, 1, 24, 1) + np.zeros((2, 3, 24, 4))
    assert np.allclose(
        weather.between_the_hours(np.where(random.random(line.shape) < 0.2, np.nan, line))[:, :, 5:20], line[:, :, 5:20]
    )
    assert weather.run(weather.Options(data=tmp_path)) == []


def test_slices_of_a_sparse_tensor(tmp_path):
    """A file, or a folder of files, of coordinates in any order: its slices along the last mode, empty ones as well."""
    X = np.zeros((3, 4, 5))
    X[2, 1, 4], X[0, 3, 4], X[1, 1, 0] = 1.0, 2.0, 3.0
    i, j, k = (places[::-1] for places in np.nonzero(X))
    np.savez(tmp_path / "small_coo.npz", shape=X.shape, i=i, j=j, k=k, v=X[i, j, k])

    for path in (tmp_path, tmp_path / "small_coo.npz"):
        (case,) = sparse.cases(path)
        assert (case.name, case.shape, case.share) == ("small_coo", (3, 4), 3 / 60)
        for k, tensor in enumerate(case.tensors):
            assert tensor.indices.tolist() == np.flatnonzero(X[..., k]).tolist()
            assert tensor.values.tolist() == X[..., k][X[..., k] != 0].tolist()


def test_sparse_and_whole_are_measured_on_the_same():
    """In the small: both ways learn the same, every ratio is there, and the tensor is as sparse as it was asked for."""
    case = sparse.drawn((8, 60, 30), 0.05, 3)
    row = sparse.measure(case, 2, "float64", 10, 1)

    assert len(case.tensors) == 30
    assert 0.02 < case.share <= 0.05
    assert row["apart"] < 1e-9
    assert all(row[name] > 0 for name in (*sparse.RATIOS, "parts_ms", "pass_ms", "whole_parts_ms", "whole_pass_ms"))
    assert {*sparse.KEYS, *sparse.COLUMNS} <= set(row)


def spinning(seconds):
    """Work of so many seconds of CPU, twice."""

    def work(mark):
        mark()
        for _ in range(2):
            began = time.process_time()
            while time.process_time() - began < seconds:
                pass
            mark()

    return work


def test_two_processes_in_turns():
    """What one takes is what it takes while it goes: together no more than there was."""
    began, ready = time.monotonic(), []
    taken = race([(spinning, (0.4,)), (spinning, (0.8,))], set(), lambda: ready.append(time.monotonic()))
    whole = time.monotonic() - ready[0]

    assert began < ready[0]
    assert [len(each) for each in taken] == [2, 2]
    assert all(0.39 < took.cpu < 0.6 for took in taken[0])
    assert all(0.79 < took.cpu < 1.0 for took in taken[1])
    assert 2.3 < sum(took.wall for each in taken for took in each) < whole


def dying(seconds):
    """Work that ends its process."""

    def work(mark):
        mark()
        os._exit(3)

    return work


def test_a_process_that_ends_too_early_is_noticed():
    """The other one is let go, and nobody waits for marks that do not come."""
    with pytest.raises(EOFError):
        race([(spinning, (0.2,)), (dying, (0.2,))], set())


def test_time_without_stops():
    """A turn that began before a mark, or ends after it, counts in part; one between marks does in full."""
    marks, turns = [Mark(1.0, 0.0), Mark(4.0, 0.5), Mark(9.0, 0.75)], [(0.0, 2.0), (3.0, 5.0), (6.0, 7.0), (8.5, 11.0)]

    assert between(marks, turns) == [Took(2.0, 0.5), Took(2.5, 0.25)]


def test_intervals_of_few():
    """Student's: of four values 3.18 standard errors to each side; of one there is none."""
    mean, low, high = sink.interval([1.0, 2.0, 3.0, 4.0])

    assert (mean, high - mean) == (2.5, pytest.approx(3.1824 * 1.29099 / 2, rel=1e-4))
    assert low == pytest.approx(2 * mean - high)
    assert sink.interval([1.5]) == (1.5, None, None)


def test_whole_runs_are_compared_with_both():
    """With the mean of two runs without, and with a callback that does nothing; of one race no interval is known."""
    ends = {"ends": 0.0, "complete": True}
    there = Whole(Took(9.0, 8.0), Took(11.0, 12.0), Took(10.0, 10.0), Took(10.5, 10.2), **ends)
    away = there._replace(again=None)

    found, other = sink.ratios([there]), sink.ratios([away, away])
    assert [found[name] for name in ("wall", "wall_own", "cpu", "nothing")] == [1.05, 1.05, pytest.approx(1.02), 1.0]
    assert (found["again"], found["wall_from"]) == (pytest.approx(11 / 9), None)
    assert other["wall"] == other["wall_to"] == pytest.approx(10.5 / 9)
    assert "again" not in other


class Kept:
    """A sink that takes a while of CPU for each draw."""

    def __init__(self):
        self.kept = []

    def expect(self, check):
        """Nothing."""

    def draw(self, point, chain):
        self.kept.append((point, chain))
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass

    def draws(self, points):
        self.kept.extend((point, chain) for chain, point in enumerate(points))


def test_every_other_block_is_handed_over():
    """Draws of tuning are in none; what a draw costs is what the sampler's thread took more."""
    kept = Kept()
    switch = Switch(kept, 5)
    for k in range(42):
        switch.draw(k, k % 2, tuning=k < 2)
    several = Switch(Kept(), 4)
    for k in range(6):
        several.draws([k, k])

    assert [point for point, _ in kept.kept] == [k + 2 for k in range(40) if k // 5 % 2 == 0]
    assert switch.handed == {0: 12, 1: 8}
    assert several.handed == {0: 4, 1: 4}
    assert len(switch.more()) == 3  # the eighth block has no end
    assert all(0.0019 < more < 0.01 for more in switch.more())
    assert 0 <= switch.alone() < 0.001


def test_the_time_of_other_threads():
    """That of the thread that acts is not in it."""

    def spin():
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass

    def both():
        thread = threading.Thread(target=spin)
        thread.start()
        thread.join()
        spin()

    assert 0.09 < others(both) < 0.15
