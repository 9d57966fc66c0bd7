"""The paper's days of cities in the small: three groupings, held-out cells, the means to beat."""

import numpy as np
import pytest

from stream_ocpdl.experiments import weather
from tests.benching import invoke


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
