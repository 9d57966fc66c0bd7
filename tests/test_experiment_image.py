"""The paper's painting in the small: three shapings, the same numbers twice, also through a broker."""

import json

import numpy as np
import pytest

from stream_ocpdl.experiments import image, through
from tests.benching import invoke


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
