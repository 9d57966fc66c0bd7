"""Tensors of the experiments: entries stand for the whole, stand-ins for what is missing, damaged data are refused."""

import numpy as np
import pytest

from stream_ocpdl.errors import DataError
from stream_ocpdl.experiments import offline
from stream_ocpdl.experiments.tensors import Entries, Whole, coordinates, documents, error_of, read, synthetic
from stream_ocpdl.ocpdl.baselines import start


@pytest.fixture(scope="module")
def few():
    """A sparse tensor, by entries and as a whole."""
    entries = documents((6, 40, 9), 5, 3)
    return entries, Whole(np.ascontiguousarray(entries.whole()))


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


def test_entries_outside_are_refused():
    """Also those that only NumPy would take for places from the end."""
    with pytest.raises(DataError):
        Entries((2, 2, 2), (np.array([-1]), np.array([0]), np.array([0])), np.ones(1))
