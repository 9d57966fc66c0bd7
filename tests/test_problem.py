"""Settings that make no sense are refused with their name; the card tells the truth."""

import pytest

from stream_ocpdl import (
    ConfigError,
    Constant,
    Learner,
    NonnegativeBall,
    NonnegativeColumns,
    PowerLaw,
    Problem,
    Workers,
    assumption_card,
)

MISTAKES = [
    ({"rank": 0}, "rank must be a whole number, at least 1, not 0"),
    ({"shape": ()}, "shape must be one positive size a mode"),
    ({"shape": (3, 0)}, "shape must be one positive size a mode"),
    ({"shape": 5}, "shape must be the sizes of the modes"),
    ({"sparsity": -1.0}, "sparsity must be nonnegative"),
    ({"ridge": float("nan")}, "ridge must be nonnegative"),
    ({"weights": 0.5}, "weights must be a schedule"),
    ({"per": "week"}, "per must be 'tensor' or 'step'"),
    ({"batch_size": 0}, "batch_size must be a whole number, at least 1"),
    ({"rank": "5"}, "rank must be a whole number"),
    ({"rank": 2.5}, "rank must be a whole number"),
    ({"shape": (3.5, 2)}, "shape must be the sizes of the modes"),
    ({"seed": -1}, "seed must be"),
    ({"ridge": "a"}, "ridge must be"),
    ({"radius": 0.0}, "radius must be positive"),
    ({"radius": "large"}, "radius must be positive"),
    ({"constraints": "positive"}, "constraints must be"),
    ({"constraints": (NonnegativeBall(),)}, "constraints must be one for each mode"),
    ({"dtype": "float16"}, "dtype must be"),
    ({"tolerance": 0.0}, "tolerance must be"),
    ({"missing": "ignore"}, "missing must be 'reject' or 'impute'"),
    ({"rank": True}, "rank must be"),
    ({"constraints": NonnegativeBall}, "constraints must be"),
    ({"weights": PowerLaw}, "weights must be"),
    ({"radius": [1.0]}, "radius must be"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=lambda value: str(value)[:30])
def test_mistakes_are_named(change, message):
    """Every wrong setting is a ConfigError, which is a ValueError, and names the setting."""
    with pytest.raises(ConfigError, match=message):
        Problem(**({"shape": (3, 4), "rank": 2} | change))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PowerLaw(beta=0.0),
        lambda: PowerLaw(delta=-1.0),
        lambda: Constant(1.5),
        lambda: NonnegativeBall(0.0),
        lambda: NonnegativeColumns(float("inf")),
        lambda: Workers(0),
        lambda: Workers("2"),
        lambda: PowerLaw("a"),
        lambda: PowerLaw(1e4),
        lambda: NonnegativeBall("a"),
    ],
)
def test_parts_refuse_too(wrong):
    """Schedules, sets and workers are as strict."""
    with pytest.raises(ConfigError):
        wrong()


def standing(problem, state=None):
    return {line.name: str(line.standing) for line in assumption_card(problem, state)}


def test_the_card():
    """Each hypothesis fails on the card exactly when the configuration breaks it."""
    plain = Problem(shape=(3, 4), rank=2)

    assert standing(plain) == {
        "(A1)": "open",
        "(A2) loadings": "holds",
        "(A2) codes": "holds",
        "(A3)": "holds",
        "(A4)": "open",
        "radius": "holds",
    }
    assert standing(Problem(shape=(3,), rank=2, constraints=NonnegativeBall()))["(A2) loadings"] == "fails"
    assert standing(Problem(shape=(3,), rank=2, weights=Constant(0.1)))["(A3)"] == "fails"
    assert standing(Problem(shape=(3,), rank=2, ridge=0.1))["(A4)"] == "holds"
    assert standing(Problem(shape=(3,), rank=2, radius=None))["radius"] == "fails"
    assert standing(plain, Learner(plain).state)["(A2) codes"] == "holds"


def test_weights():
    """w₁ = 1 always; per tensor, 1/t is b/N; a weight never exceeds one."""
    per_tensor = Problem(shape=(3,), rank=1, batch_size=10)
    per_step = Problem(shape=(3,), rank=1, per="step", weights=PowerLaw(0.76))

    assert per_tensor.weight(1, 3, 3) == 1.0
    assert per_tensor.weight(2, 8, 5) == pytest.approx(5 / 8)
    assert per_tensor.weight(4, 40, 10) == pytest.approx(per_step.weight(4, 40, 10)) == pytest.approx(4**-0.76)
    assert 0.9 < per_tensor.weight(9, 1010, 1000) < 1.0
    assert Problem(shape=(3,), rank=1, weights=Constant(0.2)).weight(1, 99, 99) == 1.0
