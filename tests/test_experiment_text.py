"""Topics of headlines in the small, with their words and weeks."""

import numpy as np
import pytest

from stream_ocpdl.experiments import text
from stream_ocpdl.experiments.tensors import Entries
from tests.benching import invoke


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
