"""The paper's comparison (fig:benchmark): nonnegative CP-decomposition of one tensor, error against CPU time, R = 5.

**Ours** learns minibatches that are a fifth of the slices along the last mode, drawn anew each step. When the clock
stands, all slices get their optimal nonnegative codes, and the error is that of the whole tensor with these codes, as
the paper has it. The contenders are our default settings, and the paper's: weights w_t = t^−β/log t (w₁ = 1) and radius
c′w_t for β in {0.75, 1} and c′ in {1, 10, 100, 1000}; "None" has β = 1 and no radius. As in the paper, these begin
with loadings uniform in [0, 1], whatever the scale of the data is; ours by default begin at the scale of the data.

**As printed** the paper's weights are w_t = c′t^−β/log t, w₁ = c′, which for c′ > 1 are no weights in (0, 1]. What can
be meant, and is done here, is that c′ belongs to the radius. `printed` says which satisfy (A3), by either reading.

**Offline** methods meet a sparse tensor by its entries, as ours does, and once more with all its cells, as the paper
has them, where these are not too many (`offline.MOST`).

**The authors' code**, if there is a checkout of it, meets all cells. Its columns have norm at most one, which is
another problem; `AUTHORS_RADII` are those of its radii that are tried.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import log, prod, sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stream_ocpdl.experiments import authors, offline, racers
from stream_ocpdl.experiments.racers import Race
from stream_ocpdl.experiments.races import compare, told
from stream_ocpdl.experiments.tensors import (
    DRAWN_AS_PAPER,
    DRAWN_DOCUMENTS,
    FILES,
    Factors,
    Tensor,
    Whole,
    described,
    read,
)
from stream_ocpdl.ocpdl.baselines import DRAWN, start
from stream_ocpdl.ocpdl.constraints import NonnegativeBall
from stream_ocpdl.ocpdl.learner import Learner
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.schedules import Verdict
from stream_ocpdl.ocpdl.state import State

RANK = 5
BETAS, RADII = (0.75, 1.0), (1.0, 10.0, 100.0, 1000.0)
OURS, ALS, MU, HALS = "OCPDL, our default", "ALS", "MU", "TensorLy HALS"
ALS_WHOLE, MU_WHOLE = "ALS, all cells", "MU, all cells"
AUTHORS_RADII = (1.0, 1000.0)
AUTHORS_ALS = "authors' ALS"


def authors_name(radius: float) -> str:
    """The authors' code with this radius.

    >>> authors_name(1.0)
    "authors' OCPDL, β = 0.75, c′ = 1"
    """
    return f"authors' OCPDL, β = {authors.BETA:g}, c′ = {radius:g}"


PEERS = (ALS, MU, ALS_WHOLE, MU_WHOLE, HALS, *map(authors_name, AUTHORS_RADII), AUTHORS_ALS)

LOOSE = 1e3
"""The paper's norm bound M ≥ √R‖X‖^{1/3}, so many times: compact, as (A2) wants it, and never met."""


@dataclass(frozen=True)
class Lengths:
    """How long a case runs: seeds, steps of online learning, iterations of offline methods.

    `whole` is of those that go over all cells: none where the tensor is too large for them; `theirs` of the authors'
    online learning.
    """

    repeats: int
    steps: int
    als: int
    mu: int
    whole: int
    theirs: int


LENGTHS = {
    "synthetic": Lengths(10, 400, 150, 500, 120, 200),
    "20news": Lengths(5, 200, 150, 300, 15, 100),
    "headlines months": Lengths(3, 150, 150, 300, 4, 30),
    "headlines weeks": Lengths(3, 150, 80, 150, 0, 0),
    "twitter": Lengths(3, 80, 30, 50, 0, 0),
}
KNOWN = (DRAWN_AS_PAPER, *(wanted.file or DRAWN_DOCUMENTS for wanted in FILES.values()))
"""The sources of all cases, where the data are there."""

QUICK = Lengths(2, 12, 6, 12, 3, 4)


@dataclass(frozen=True)
class Printed:
    """w(t) = t^−β / log t with w(1) = 1, as the paper prints it."""

    beta: float

    def __call__(self, t: float) -> float:
        """1 until the logarithm is a number to divide by."""
        return 1.0 if t < 2 else min(1.0, float(t**-self.beta / log(t)))

    def a3(self) -> Verdict:
        """(A3), of these weights."""
        if self.beta >= 1:
            return Verdict(False, "w_{t+1}⁻¹ − w_t⁻¹ grows like log t, beyond 1")
        return Verdict(self.beta >= 0.75, "Σ w_t² √t = Σ t^(1/2 − 2β)/log² t")


def printed(beta: float | None, radius: float | None) -> str:
    """Whether (A3) holds of w_t = c′t^−β/log t as printed, and of t^−β/log t with c′ in the radius alone."""
    if not Printed(1.0 if beta is None else beta).a3().holds:
        return "no, by either reading: w_{t+1}⁻¹ − w_t⁻¹ grows like log t" + ("; no radius" if radius is None else "")
    if radius is not None and radius > 1:
        return "no as printed: w₁ = c′ > 1; yes if c′ belongs to the radius"
    return "yes"


def contenders(data: Tensor, lengths: Lengths, theirs: Path | None = None) -> dict[str, Race]:
    """All who race, by name; `theirs` is a checkout of the authors' code."""
    found: dict[str, Race] = {OURS: _online(data, lengths, "default", None)}
    for beta in BETAS:
        for c in RADII:
            found[f"OCPDL, β = {beta:g}, c′ = {c:g}"] = _online(data, lengths, beta, c)
    found["OCPDL, β = None"] = _online(data, lengths, 1.0, None)
    found[ALS] = racers.offline(data, RANK, offline.als(data), lengths.als)
    found[MU] = racers.offline(data, RANK, offline.mu(data), lengths.mu)
    if not lengths.whole or prod(data.shape) > offline.MOST:
        return found
    X = Whole(np.ascontiguousarray(data.whole()))
    if not isinstance(data, Whole):
        found[ALS_WHOLE] = racers.offline(X, RANK, offline.als(X), lengths.whole)
        found[MU_WHOLE] = racers.offline(X, RANK, offline.mu(X), lengths.whole)
    found[HALS] = racers.offline(X, RANK, offline.hals(X), lengths.whole)
    return found if theirs is None else found | _theirs(theirs, data, X, lengths)


def _theirs(path: Path, data: Tensor, X: Whole, lengths: Lengths) -> dict[str, Race]:
    """The authors' code; errors of its dictionaries are found as ours are."""
    streams = {c: authors.ocpdl(path, X, RANK, batch_of(X), c) for c in AUTHORS_RADII}
    found = {authors_name(c): racers.online(data, stream, lengths.theirs) for c, stream in streams.items()}
    return found | {AUTHORS_ALS: racers.offline(X, RANK, authors.als(path, X), lengths.whole)}


def run(
    name: str,
    data: Path | None,
    quick: bool,
    repeats: int | None,
    say: Callable[[str], None],
    theirs: Path | None = None,
) -> dict[str, Any]:
    """One case: what the tensor is, a row for each contender, and where our default is above a peer."""
    tensor, source = read(data, name, quick)
    lengths = QUICK if quick else LENGTHS[name]
    count = repeats or lengths.repeats
    runs = racers.in_turns(
        contenders(tensor, lengths, theirs), count, lambda done: say(f"{name}: run {done} of {count}")
    )
    best = min(mark.error for curves in runs.values() for curve in curves for mark in curve)
    return {
        "case": name,
        "source": source,
        "tensor": described(tensor),
        "repeats": count,
        "best": best,
        "rows": [told(contender, curves, best) | {"a3": _a3(contender)} for contender, curves in runs.items()],
        "against": [asdict(compare(runs, OURS, peer)) for peer in PEERS if peer in runs],
    }


def _a3(contender: str) -> str | None:
    """What is said of (A3) for a contender; nothing of offline methods."""
    if contender == OURS:
        return "yes"
    settings = {f"OCPDL, β = {beta:g}, c′ = {c:g}": (beta, c) for beta in BETAS for c in RADII}
    if contender == "OCPDL, β = None":
        return printed(None, None)
    return printed(*settings[contender]) if contender in settings else None


# --- online ----------------------------------------------------------------------------------------------------------


def _online(data: Tensor, lengths: Lengths, beta: float | Literal["default"], radius: float | None) -> Race:
    b = batch_of(data)

    def learner(seed: int) -> Learner:
        shape = data.shape[:-1]
        if beta == "default":
            return Learner(Problem(shape, RANK, batch_size=b, seed=seed), in_place=True)
        bound = LOOSE * sqrt(RANK) * data.energy ** (1 / 6)
        problem = Problem(
            *(shape, RANK),
            weights=Printed(beta),
            per="step",
            batch_size=b,
            radius=radius,
            constraints=NonnegativeBall(bound),
            seed=seed,
        )
        scale = sqrt(data.energy / data.shape[-1])
        first = State.initial(problem)._replace(loadings=start(shape, RANK, seed), scale=scale)
        return Learner(problem, first, in_place=True)

    return racers.online(data, lambda seed: _steps(data, learner(seed), b, seed), lengths.steps)


def batch_of(data: Tensor) -> int:
    """A fifth of the slices along the last mode."""
    return max(1, round(DRAWN * data.shape[-1]))


def _steps(data: Tensor, learner: Learner, b: int, seed: int) -> Iterator[tuple[float, Factors]]:
    """Drawing and learning are timed."""
    random = np.random.default_rng([seed, 0x5AB5])
    while True:
        began = time.process_time()
        learner.step(data.minibatch(random.choice(data.shape[-1], b, replace=False)))
        yield time.process_time() - began, learner.state.loadings
