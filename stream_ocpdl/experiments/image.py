"""Patches of a painting in three shapings (fig:gogh): what atoms look like, and how well they stand for the picture.

A pool of 1000 patches of 20 × 20 pixels in three colours is drawn from the picture, and a minibatch is 100 of it; as
many other patches are held out. A patch is learned as it is (vertical × horizontal × colour), with its space as one
mode (400 × 3), or as a vector (1200), each with 24 atoms and 400 steps.

- The paper's settings: λ = 1 and w_t = 1/t. With a penalty columns have norm at most one.
- Without a penalty: λ = 0 with our default weights, in a loose ball, and with columns of norm at most one.
- The same in a loose ball with w_t = 0.1, which (A3) does not allow: in 400 steps of a pool of 1000 what is forgotten
  comes again.

The error of patches is ‖X − X̂‖/‖X‖ with the optimal nonnegative codes, without a penalty, whatever was learned with. It
depends on which patches were drawn more than on anything else, so there are several splits, and beside each an offline
factorisation of its pool (scikit-learn's NMF of the vectors, where it is installed).
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stream_ocpdl.errors import DataError
from stream_ocpdl.experiments.tensors import medium
from stream_ocpdl.ocpdl.aggregates import correlate, gram_of_atoms, reconstruction
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.constraints import NonnegativeColumns
from stream_ocpdl.ocpdl.learner import Learner
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.reshape import Layout
from stream_ocpdl.ocpdl.schedules import Balanced, Constant
from stream_ocpdl.ocpdl.solvers import box_solver
from stream_ocpdl.sources import in_colour, painted

PATCH = (20, 20, 3)
PAINTING = "gogh_cafe.jpg"

SHAPINGS: dict[str, tuple[tuple[int, ...], ...]] = {
    "20 × 20 × 3": ((0,), (1,), (2,)),
    "400 × 3": ((0, 1), (2,)),
    "1200": ((0, 1, 2),),
}
PLAIN = "20 × 20 × 3"

PAPER, FREE = "λ = 1, w = 1/t", "λ = 0, our default"
UNIT, FORGETFUL = "λ = 0, unit columns", "λ = 0, w = 0.1"
SETTINGS: dict[str, dict[str, Any]] = {
    PAPER: {"sparsity": 1.0, "weights": Balanced()},
    FREE: {},
    UNIT: {"constraints": NonnegativeColumns(1.0)},
    FORGETFUL: {"weights": Constant(0.1)},
}


CHOICES = [
    (shaping, setting)
    for shaping in SHAPINGS
    for setting in SETTINGS
    if shaping == PLAIN or setting not in (UNIT, FORGETFUL)
]
"""What is learned."""


@dataclass(frozen=True)
class Sizes:
    """How much is learned."""

    rank: int = 24
    batch: int = 100
    steps: int = 400
    pool: int = 1000
    splits: int = 5
    stride: int = 10
    """Between patches of the picture that is put together again."""


FULL, QUICK = Sizes(), Sizes(6, 20, 10, 100, 1, 20)


def picture(data: Path | None, quick: bool = False) -> tuple[BigArray, str]:
    """A picture (H, W, 3) in [0, 1], and what it is: an image, the painting of a folder, or a stand-in."""
    found = None if quick else medium(data, PAINTING)
    if found is None:
        return painted(96 if quick else 384).astype(np.float32), "a drawn picture"
    return (in_colour(found) / np.float32(255)).astype(np.float32), found.name


def patches(image: BigArray, count: int, *seed: int) -> BigArray:
    """Patches (count, 20, 20, 3) from anywhere in the picture."""
    rooms = [size - n + 1 for size, n in zip(image.shape, PATCH, strict=True)]
    if min(rooms) < 1:
        raise DataError(f"the picture has shape {list(image.shape)}, smaller than a patch of {list(PATCH)}")
    random = np.random.default_rng([0x6061, *seed])
    rows, columns = (random.integers(room, size=count) for room in rooms[:2])
    return np.stack([image[y : y + PATCH[0], x : x + PATCH[1]] for y, x in zip(rows, columns, strict=True)])


def minibatches(pool: BigArray, sizes: Sizes, seed: int) -> Iterator[BigArray]:
    """As many as there are steps, each drawn from the pool."""
    random = np.random.default_rng([0xBA7C, seed])
    for _ in range(sizes.steps):
        yield pool[random.choice(len(pool), sizes.batch, replace=False)]


def problem_of(shaping: str, setting: str, sizes: Sizes, seed: int) -> tuple[Layout, Problem]:
    """What is learned."""
    layout = Layout(PATCH, SHAPINGS[shaping])
    return layout, Problem(layout.grouped, sizes.rank, batch_size=sizes.batch, seed=seed, **SETTINGS[setting])


def learn(shaping: str, setting: str, sizes: Sizes, pool: BigArray, seed: int, also: Sequence[int] = ()) -> list[Any]:
    """The loadings after the last step, and before them those after the steps in `also`."""
    layout, problem = problem_of(shaping, setting, sizes, seed)
    learner, found = Learner(problem), []
    for t, X in enumerate(minibatches(pool, sizes, seed), 1):
        learner.step(layout.fold(X))
        if t in also or t == sizes.steps:
            found.append([U.copy() for U in learner.state.loadings])
    return found


def represented(X: BigArray, shaping: str, loadings: Sequence[Array]) -> Array:
    """X̂ (b, 20, 20, 3) with the optimal nonnegative codes; atoms that are nothing stay out of it."""
    layout = Layout(PATCH, SHAPINGS[shaping])
    folded = np.ascontiguousarray(layout.fold(X), dtype=np.float64)
    alive = gram_of_atoms(loadings).diagonal() > 0.0
    U = [np.ascontiguousarray(V[:, alive]) for V in loadings]
    L = correlate(folded, U)
    H = np.asarray(box_solver(np.inf, 1e-10)(gram_of_atoms(U), L, np.zeros_like(L)).Y)
    return np.asarray(layout.unfold(reconstruction(U, H)))


def error_of(X: BigArray, Y: Array) -> float:
    """‖X − X̂‖/‖X‖."""
    return float(np.linalg.norm(X - Y) / np.linalg.norm(X))


def restored(image: BigArray, shaping: str, loadings: Sequence[Array], stride: int) -> Array:
    """The whole picture: patches that overlap, each represented, and their mean where they do."""
    height, width = image.shape[:2]
    total, count = np.zeros(image.shape), np.zeros((height, width, 1))
    across = _starts(width, PATCH[1], stride)
    for y in _starts(height, PATCH[0], stride):
        row = np.stack([image[y : y + PATCH[0], x : x + PATCH[1]] for x in across])
        for x, patch in zip(across, represented(row, shaping, loadings), strict=True):
            total[y : y + PATCH[0], x : x + PATCH[1]] += patch
            count[y : y + PATCH[0], x : x + PATCH[1]] += 1.0
    return np.asarray(total / count)


def _starts(size: int, patch: int, stride: int) -> list[int]:
    """Places of patches, up to the edge."""
    return sorted({*range(0, size - patch + 1, stride), size - patch})


def atoms_of(shaping: str, loadings: Sequence[Array]) -> Array:
    """The atoms (R, 20, 20, 3)."""
    return Layout(PATCH, SHAPINGS[shaping]).atoms(list(loadings))


def offline_error(pool: BigArray, held: BigArray, rank: int) -> float | None:
    """The held-out error of scikit-learn's NMF of the pool; None where it is not installed."""
    try:
        from sklearn.decomposition import NMF
    except ImportError:
        return None
    model = NMF(rank, init="nndsvda", tol=1e-5, max_iter=300, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it could go on: the last of its digits is not needed
        model.fit(np.asarray(pool, np.float64).reshape(len(pool), -1))
    return error_of(held, represented(held, "1200", [np.ascontiguousarray(model.components_.T)]))


@dataclass(frozen=True)
class Found:
    """Figures, and what is drawn: dictionaries of the paper's settings and the pictures they give."""

    body: dict[str, Any]
    image: BigArray
    atoms: dict[str, Array]
    restored: dict[str, Array]


def run(data: Path | None, quick: bool, splits: int | None, say: Callable[[str], None]) -> Found:
    """All shapings and settings, on several splits; pictures are of the first."""
    sizes = QUICK if quick else FULL
    image, source = picture(data, quick)
    count = splits or sizes.splits
    errors: dict[tuple[str, str, int], list[float]] = {}
    floors, atoms, whole = [], {}, {}
    for split in range(count):
        pool, held = patches(image, sizes.pool, split, 0), patches(image, sizes.pool, split, 1)
        for shaping, setting in CHOICES:
            half, last = learn(shaping, setting, sizes, pool, split, (sizes.steps // 2,))
            for steps, U in ((sizes.steps // 2, half), (sizes.steps, last)):
                error = error_of(held, represented(held, shaping, U))
                errors.setdefault((shaping, setting, steps), []).append(error)
            if split == 0 and setting == PAPER:
                atoms[shaping], whole[shaping] = atoms_of(shaping, last), restored(image, shaping, last, sizes.stride)
        floors.append(None if quick else offline_error(pool, held, sizes.rank))
        say(f"split {split + 1} of {count}")
    rows = [
        {"shaping": shaping, "setting": setting, "steps": steps, "errors": found, **_spread(found)}
        | ({"picture": error_of(image, whole[shaping])} if setting == PAPER and steps == sizes.steps else {})
        for (shaping, setting, steps), found in errors.items()
    ]
    body = {"source": source, "shape": list(image.shape), "splits": count, "rank": sizes.rank, "batch": sizes.batch}
    return Found(body | {"pool": sizes.pool, "rows": rows, "offline": floors}, image, atoms, whole)


def _spread(found: list[float]) -> dict[str, float]:
    return {"error": float(np.mean(found)), "deviation": float(np.std(found))}
