"""Every set in every mode, codes of either sign: the laws of Algorithm 2 hold whatever is mixed with what."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_ocpdl import (
    Ball,
    Box,
    Columns,
    ConfigError,
    DataError,
    Learner,
    NonnegativeBall,
    NonnegativeColumns,
    OnlineCPDL,
    Problem,
    Simplex,
    State,
    Workers,
    assumption_card,
    stationarity,
)
from stream_ocpdl.ocpdl.learner import warm_up
from tests.test_laws import Disc
from tests.test_learner import check_against_the_oracle, check_run, mixture
from tests.test_missing import with_gaps

SETS = [
    "nonnegative",
    "signed",
    NonnegativeBall(1.5),
    NonnegativeColumns(0.7),
    Ball(1.5),
    Columns(0.7),
    Box(),
    Box(-0.5, 2.0),
    Box(0.2, 0.9),
    Simplex(),
    Simplex(2.5),
]


@st.composite
def runs(draw):
    """A problem with sets of its own in every mode, and minibatches for it, signed where that is allowed."""
    modes = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 3 if modes > 2 else 6)) for _ in range(modes))
    one = st.sampled_from([*SETS, Disc()])
    rank, scale = draw(st.integers(1, 3)), 10.0 ** draw(st.integers(-2, 2))
    penalty = st.sampled_from([0.0, 0.0, 0.01, 0.3])
    problem = Problem(
        shape=shape,
        rank=rank,
        sparsity=scale * draw(penalty),
        ridge=draw(penalty),
        batch_size=draw(st.integers(1, 6)),
        radius=draw(st.sampled_from(["auto", None, 0.02, 0.5])),
        constraints=draw(st.one_of(one, st.tuples(*[one] * modes))),
        codes=draw(st.sampled_from(["nonnegative", "signed"])),
        code_bound=draw(st.sampled_from(["auto", "auto", 0.5 * scale])),
        missing=draw(st.sampled_from(["reject", "impute"])),
        dtype=draw(st.sampled_from(["float64", "float64", "float32"])),
        seed=draw(st.integers(0, 99)),
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    batches = []
    for t, b in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))):
        X = scale * (random.random((b, *shape)) - (0.0 if problem.nonnegative else 0.5))
        batches.append(with_gaps(X, seed=t) if problem.missing == "impute" else X)
    return problem, batches


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs())
def test_every_step_obeys_the_paper(run):
    """The surrogate is exact, falls and majorises; codes and loadings are optimal, and in their sets; prop:Wt_bd.

    Fails with |H| forgotten in λ‖H‖₁, and with codes that are clipped after they were found.
    """
    check_run(*run)
