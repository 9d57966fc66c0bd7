"""Sparse minibatches, learned by their entries and as a whole: how many times faster the former is.

**Data.** COO tensors of three modes (`shape`, `i`, `j`, `k`, `v` in an .npz file) from the file, or the folder of such
files named *_coo.npz, that `--data` or OCPDL_DATA names; slices along the last mode are the stream. Without data, a
tensor of 53 × 5833 × 700 with 0.08 % entries, drawn from a few topics.

**Contenders** take turns minibatch by minibatch, on one thread, by CPU time, and each has a learner of its own. The
tensors are there as messages have them, by their entries. `parts` is coding and absorbing alone, on the same loadings
and on a B set aside; by entries, B is contracted for the first modes while it absorbs, so the other way does that too.
`whole` is a pass over all tensors: gathering the minibatch into a place that is always the same (or joining the
entries), and the step with all that follows, the update of the loadings, which costs both the same. In a problem whose
B is in tiles absorbing is not a part that can be had alone. `apart` is how far the loadings are from each other in the
end: the largest ‖U − V‖/‖U‖ of a mode.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.measure import FULL, Options, Row, one_thread, table
from stream_ocpdl import Learner, Problem, Sparse
from stream_ocpdl.experiments.tensors import Entries, coordinates
from stream_ocpdl.ocpdl import aggregates, arrays, sparse
from stream_ocpdl.ocpdl.batch import Batch, fill
from stream_ocpdl.ocpdl.blocks import Blocks
from stream_ocpdl.ocpdl.entries import SparseBatch, join
from stream_ocpdl.ocpdl.learner import encode

KEYS = ("case", "R", "dtype")
RATIOS = {"parts": "higher", "whole": "higher"}

BATCH = 100
RANKS = (5, 10, 20)
PASSES = 3
"""One that does not count goes before."""

SIZES, SHARE, TOPICS = (53, 5833, 700), 0.0008, 10
"""Of the tensor that is drawn where no data are given."""

COLUMNS = {
    "case": "",
    "shape": "",
    "tensors": "",
    "entries": ".3%",
    "b": "",
    "R": "",
    "dtype": "",
    "parts_ms": ".2f",
    "parts": ".1f",
    "pass_ms": ".1f",
    "whole": ".1f",
    "apart": ".0e",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A stream of sparse tensors."""

    name: str
    tensors: list[Sparse]

    @property
    def shape(self) -> tuple[int, ...]:
        """I₁ … Iₙ."""
        return self.tensors[0].shape

    @property
    def share(self) -> float:
        """Entries of all cells."""
        return sum(len(one.values) for one in self.tensors) / (len(self.tensors) * int(np.prod(self.shape)))


def run(options: Options = FULL) -> list[Row]:
    """Every tensor and rank."""
    rows: list[Row] = []
    with one_thread():
        for case in cases(options.data):
            for R in RANKS[:1] if options.quick else RANKS:
                rows.append(measure(case, R, "float64", BATCH, 1 if options.quick else PASSES))
                table(rows[-1:], COLUMNS)
    return rows


def cases(data: Path | None) -> Iterator[Case]:
    """The tensors of a file or folder; one that is drawn if there is none."""
    if data is None:
        yield drawn(SIZES, SHARE)
        return
    for path in sorted(data.glob("*_coo.npz")) if data.is_dir() else [data]:
        yield sliced(path.stem, coordinates(path))


def sliced(name: str, tensor: Entries) -> Case:
    """The slices along the last mode of a tensor in coordinates."""
    return Case(name, tensor.slices)


def drawn(sizes: tuple[int, ...], share: float, topics: int = TOPICS) -> Case:
    """Entries of a few topics, each with modes of its own in which few places are frequent."""
    random, count = np.random.default_rng(0), int(share * np.prod(sizes))
    topic = random.integers(topics, size=count)
    places = []
    for size in sizes:
        orders = np.array([random.permutation(size) for _ in range(topics)])
        ranks = np.minimum((size ** random.random(count)).astype(int) - 1, size - 1)
        places.append(orders[topic, ranks])
    flat, where = np.unique(np.ravel_multi_index(tuple(places), sizes), return_inverse=True)
    values = np.bincount(where, 1.0 + random.random(count), len(flat))
    return sliced("drawn", Entries(sizes, np.unravel_index(flat, sizes), values))


@dataclass(slots=True)
class Contender:
    """A learner, how it makes a minibatch, how it absorbs one, and the times that it took."""

    learner: Learner
    gather: Callable[[list[Sparse]], Batch | SparseBatch]
    aside: aggregates.Aggregates
    parts: list[float] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)

    def learn(self, tensors: list[Sparse], loadings: tuple[np.ndarray, ...] | None) -> None:
        """A minibatch; before it, outside of its clock, coding and absorbing alone, if there are loadings for it."""
        problem, state = self.learner.problem, self.learner.state
        began = time.process_time()
        batch = self.gather(tensors)
        gathered = time.process_time() - began
        if loadings is not None:
            began = time.process_time()
            H = encode(problem, problem.sets(state.scale), loadings, batch).H
            if isinstance(batch, SparseBatch):
                sparse.absorb(self.aside, loadings, batch, H, 0.1, consume=True)
            else:
                absorbed = aggregates.absorb(self.aside, batch.X, batch.energy, H, 0.1, consume=True)
                aggregates.Intermediate(absorbed, loadings)
            self.parts.append(time.process_time() - began)
        began = time.process_time()
        self.learner.step(batch)
        self.passes[-1] += gathered + time.process_time() - began


def measure(case: Case, R: int, dtype: str, b: int, passes: int) -> Row:
    """A row: the median minibatch of the parts, the median pass of the whole."""
    problem = Problem(shape=case.shape, rank=R, batch_size=b, dtype=dtype)  # type: ignore[arg-type]
    place = arrays.empty((b, *case.shape), dtype)
    whole = contender(problem, lambda rows: fill(problem, rows, place[: len(rows)])[0])
    few = contender(problem, lambda rows: joined(problem, rows))
    tiled = isinstance(few.learner.state.aggregates.B, Blocks)
    for turn in range(passes + 1):
        for one in (whole, few):
            one.passes.append(0.0)
        for start in range(0, len(case.tensors), b):
            loadings = None if tiled or turn == 0 else tuple(few.learner.state.loadings)
            for one in (whole, few):
                one.learn(case.tensors[start : start + b], loadings)
    pass_ms, parts_ms = 1e3 * float(np.median(few.passes[1:])), 1e3 * float(np.median(few.parts)) if few.parts else None
    return {
        "case": case.name,
        "shape": "×".join(map(str, case.shape)),
        "tensors": len(case.tensors),
        "entries": case.share,
        "b": b,
        "R": R,
        "dtype": dtype,
        "parts_ms": parts_ms,
        "whole_parts_ms": 1e3 * float(np.median(whole.parts)) if few.parts else None,
        "parts": float(np.median(whole.parts) / np.median(few.parts)) if few.parts else None,
        "pass_ms": pass_ms,
        "whole_pass_ms": 1e3 * float(np.median(whole.passes[1:])),
        "whole": float(np.median(whole.passes[1:]) / np.median(few.passes[1:])),
        "apart": max(
            float(np.linalg.norm(U - V) / np.linalg.norm(U))
            for U, V in zip(whole.learner.state.loadings, few.learner.state.loadings, strict=True)
        ),
    }


def contender(problem: Problem, gather: Callable[[list[Sparse]], Batch | SparseBatch]) -> Contender:
    """One that has learned nothing."""
    return Contender(
        Learner(problem, in_place=True), gather, aggregates.nothing(problem.shape, problem.rank, problem.dtype)
    )


def joined(problem: Problem, rows: list[Sparse]) -> SparseBatch:
    """The minibatch by its entries, whatever would be chosen for it."""
    found = join(problem, rows)
    if found is None or found[1]:
        raise ValueError(f"the data cannot be learned: {found}")
    return found[0]
