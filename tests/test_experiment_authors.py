"""The authors' code takes part in the paper's comparison, judged as ours is."""

import json
from itertools import islice

import numpy as np
import pytest

from stream_ocpdl.experiments import authors, ncpd, racers
from stream_ocpdl.experiments.tensors import error_of, read, synthetic
from stream_ocpdl.ocpdl.baselines import start
from tests.benching import invoke, numbers

THEIRS = {
    "utils/ocpdl.py": """
import numpy as np
class Online_CPDL:
    def __init__(self, X, batch_size, n_components, alpha, beta):
        self.shape = X.shape
        self.ini_A, self.ini_B = 0.0, 0.0
        self.loading = {f"U{i}": np.random.rand(X.shape[i], n_components) for i in range(X.ndim - 1)}
    def step(self, X, A, B, loading, t, radius, beta):
        print("they print")
        assert X.shape[:-1] == self.shape[:-1]
        moved = {name: U * (1 + np.random.rand(*U.shape) / t) for name, U in loading.items()}
        return None, A, B, {name: np.asfortranarray(U) for name, U in moved.items()}
""",
    "utils/BCD_DR.py": """
import numpy as np
class ALS_DR:
    def __init__(self, X, n_components, alpha):
        self.size = np.product(X.shape)
    def ALS(self, iter, ini_loading, if_compute_recons_error):
        return {name: 0.5**iter * U for name, U in ini_loading.items()} | {"other": None}
""",
}
"""What a checkout of the authors' code has, as far as it is asked for."""


@pytest.fixture
def theirs(tmp_path):
    """A checkout that learns nothing."""
    (tmp_path / "utils").mkdir()
    for file, code in THEIRS.items():
        (tmp_path / file).write_text(code)
    return tmp_path


def test_the_authors_code_takes_part(theirs):
    """Its steps are coded as ours are, its iterations go on from where they were, and the same numbers come twice; the
    page names it, with no path.
    """
    arguments = ("paper", "--quick", "--only", "synthetic", "--repeats", 1, "--authors", theirs, "--json")
    first, second = (invoke(*arguments) for _ in range(2))
    found = json.loads(first.stdout)
    (case,) = found["cases"]
    rows = {row["contender"]: row for row in case["rows"]}

    assert numbers(case) == numbers(json.loads(second.stdout)["cases"][0])
    assert found["command"].endswith("--authors AUTHORS")
    assert str(theirs) not in first.stdout
    assert set(found["authors"]) == set(THEIRS)
    assert "they print" not in first.output
    named = {*map(ncpd.authors_name, ncpd.AUTHORS_RADII), ncpd.AUTHORS_ALS}
    assert named <= {row["peer"] for row in case["against"]}
    assert rows[ncpd.authors_name(1.0)]["steps"] == ncpd.QUICK.theirs
    X, U = read(None, "synthetic", True)[0], start((30, 30, 30), ncpd.RANK, 0)
    halved = [error_of(X, [0.5**k * V for V in U]) for k in (1, 2, 3)]
    assert [error for _, _, error in rows[ncpd.AUTHORS_ALS]["curves"][0]] == pytest.approx(halved)
    for name in ("authors", "text"):
        one = found if name == "authors" else json.loads(invoke("text", "--quick", "--json").stdout)
        (theirs / f"{name}.json").write_text(json.dumps(one))
    assert invoke("page", "--results", theirs, "--out", theirs / "paper.md").exit_code == 0
    told = (theirs / "paper.md").read_text()
    assert f"| {ncpd.AUTHORS_ALS} | {rows[ncpd.AUTHORS_ALS]['error']:.5f} ± 0.00000 |" in told
    assert found["command"] in told
    assert str(theirs) not in told


def test_their_dictionary_is_judged_by_its_own_stream(theirs):
    """Drawn and learned from the seed alone; errors are those with the optimal codes."""
    X = synthetic(12, 5)
    stream = authors.ocpdl(theirs, X, 3, 4, 1.0)
    (_, first), (_, second) = islice(stream(7), 2)
    curve = racers.online(X, stream, 2)(7, False)

    assert [mark.error for mark in curve] == [racers.coded_error(X, first), racers.coded_error(X, second)]
    assert not np.array_equal(first[0], second[0])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (None, "has no utils/BCD_DR.py"),
        ("import a_module_that_nobody_has", "needs a_module_that_nobody_has"),
        ("def (", "cannot be read"),
    ],
)
def test_what_is_no_checkout(theirs, damage, said):
    """Is said in one line, before anything is run, with exit code 2."""
    file = theirs / "utils" / "BCD_DR.py"
    file.unlink() if damage is None else file.write_text(damage)
    result = invoke("paper", "--quick", "--only", "synthetic", "--authors", theirs)

    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert "run 1" not in result.stderr
