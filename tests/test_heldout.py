"""Cells that are held out are predicted from the others, and scored."""

import numpy as np
import pytest
import scipy.sparse

from stream_ocpdl import DataError, OnlineCPDL
from tests import paper
from tests.test_learner import mixture
from tests.test_missing import with_gaps

X = next(mixture((6, 5), 2, b=100, noise=0.05))
CELLS = np.random.default_rng(3).random(X.shape) < 0.2


def fitted(missing="reject", data=X):
    return OnlineCPDL(2, batch_size=20, random_state=0, missing=missing).fit(data)


@pytest.mark.parametrize("missing", ["reject", "impute"])
def test_held_out_cells_are_the_oracles(missing):
    """The rest is X less what codes of the other cells say, whether or not the problem knows missing cells.

    Fails if a held-out cell has a part in its code.
    """
    model = fitted(missing)
    rest = model.held_out(X, CELLS)
    H = paper.coding(np.where(CELLS, np.nan, X), model.loadings_)
    wanted = X - np.einsum("br,rij->bij", H, paper.out(model.loadings_))

    assert np.allclose(rest[CELLS], wanted[CELLS], rtol=1e-6, atol=1e-8)
    assert np.isnan(rest[~CELLS]).all()
    assert model.score_cells(X, CELLS) == pytest.approx(1 - np.sum(rest[CELLS] ** 2) / np.sum(X[CELLS] ** 2))


def test_their_values_change_nothing_but_the_comparison():
    """Predictions are the same whatever stands in the held-out cells."""
    model, other = fitted(), np.where(CELLS, 1e6, X)

    assert np.allclose((X - model.held_out(X, CELLS))[CELLS], (other - model.held_out(other, CELLS))[CELLS], atol=1e-6)


def test_cells_that_were_not_observed_do_not_count():
    """A NaN of the data cannot be compared: it is NaN in the rest, and no part of the score."""
    seen = with_gaps(X, 0.2)
    model = fitted("impute", seen)
    rest = model.held_out(seen, CELLS)

    assert np.array_equal(np.isnan(rest), ~CELLS | np.isnan(seen))
    assert 0.5 < model.score_cells(seen, CELLS) < 1.0


def test_nothing_held_out():
    """No cells: no error, a score of zero, and codes are those of whole tensors."""
    model = fitted()

    assert np.isnan(model.held_out(X, np.zeros_like(CELLS))).all()
    assert model.score_cells(X, np.zeros_like(CELLS)) == 0.0


def test_whole_numbers_can_be_held_out():
    """Counts have no NaN of their own; the mask hides them all the same."""
    counts = np.random.default_rng(0).poisson(5.0, X.shape)

    assert 0 < fitted(data=counts).score_cells(counts, CELLS) < 1


def test_sparse_tensors_can_be_held_out():
    """In a matrix or in a list; an absent entry was observed, and is zero."""
    few = np.where(X > np.median(X), X, 0.0)
    model, table = fitted(data=few), few.reshape(100, 30)
    flat = OnlineCPDL(2, batch_size=20, random_state=0).fit(table)

    assert model.score_cells([scipy.sparse.csr_array(x) for x in few], CELLS) == model.score_cells(few, CELLS)
    assert np.array_equal(
        flat.held_out(scipy.sparse.csr_matrix(table), CELLS.reshape(100, 30)),
        flat.held_out(table, CELLS.reshape(100, 30)),
        equal_nan=True,
    )


BAD = {
    "numbers": CELLS.astype(int),
    "other shape": CELLS[:50],
    "everything of a tensor": np.ones_like(CELLS),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_masks_are_named(name):
    """A mask is boolean, of X's shape, and leaves every tensor a cell to be coded by."""
    with pytest.raises(DataError, match=r"cells must be a mask|no observed cell"):
        fitted().held_out(X, BAD[name])
