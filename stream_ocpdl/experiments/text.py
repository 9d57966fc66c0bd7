"""Topics of headlines over time, learned from sparse tensors: an atom has its weeks and its words.

The tensors are those of “headlines weeks”: the k-th headline of every week, weeks × words, by their entries. They are
drawn a hundred at a time, 150 steps with default settings. An atom is told by its most frequent words, by the week in
which it is most active, and by its spread, 1/Σu² of its activity u as shares: how many weeks it is about.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stream_ocpdl.errors import DataError
from stream_ocpdl.experiments.tensors import DRAWN_DOCUMENTS, FILES, Entries, coordinates, documents
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.learner import Learner
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.sources import DAMAGED

HEADLINES = FILES["headlines weeks"]
RANK, BATCH, STEPS, WORDS = 15, 100, 150, 8


def read(data: Path | None, quick: bool) -> tuple[Entries, list[str], list[str], str]:
    """Headlines with the names of their words and weeks, and what they are; documents without names as a stand-in."""
    path = None if data is None or quick or HEADLINES.file is None else data / HEADLINES.file
    if path is None or not path.exists():
        tensor = documents((20, 200, 120), 5, 4) if quick else documents(HEADLINES.shape, HEADLINES.each)
        weeks, words = (
            [f"{what}{k}" for k in range(n)] for what, n in zip(("week", "word"), tensor.shape, strict=False)
        )
        return tensor, words, weeks, DRAWN_DOCUMENTS
    tensor = coordinates(path)
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as found:
            words, weeks = ([str(name) for name in found[key]] for key in ("words", "slices"))
    except (OSError, *DAMAGED) as error:
        raise DataError(f"{path} has no names of words and slices: {error}") from error
    if (len(weeks), len(words)) != tensor.shape[:2]:
        raise DataError(f"{path} has {len(weeks)} slices and {len(words)} words, and a tensor of shape {tensor.shape}")
    return tensor, words, weeks, path.name


def learn(tensor: Entries, rank: int, steps: int, batch: int, seed: int = 0) -> tuple[Array, Array]:
    """Activity (R, weeks), as large as in all headlines, and words (R, words), each as shares; most used first."""
    learner = Learner(Problem(tensor.shape[:-1], rank, batch_size=batch, seed=seed), in_place=True)
    random = np.random.default_rng([0x7E47, seed])
    for _ in range(steps):
        learner.step(tensor.minibatch(random.choice(tensor.shape[-1], batch, replace=False)))
    U, V = learner.state.loadings
    totals = learner.code(tensor.slices).H.sum(axis=0) * V.sum(axis=0)
    activity, words = (U * totals).T, (V / np.maximum(V.sum(axis=0), 1e-300)).T
    order = np.argsort(-activity.sum(axis=1), kind="stable")
    return np.asarray(activity[order]), np.asarray(words[order])


def run(data: Path | None, quick: bool, say: Callable[[str], None]) -> tuple[dict[str, Any], Array]:
    """A row for each atom; and the activity that is drawn."""
    tensor, names, weeks, source = read(data, quick)
    rank, steps, batch = (4, 20, 40) if quick else (RANK, STEPS, BATCH)
    activity, words = learn(tensor, rank, steps, batch)
    say(f"{steps} steps")
    rows = [row(*pair, names, weeks) for pair in zip(activity, words, strict=True)]
    body = {"source": source, "shape": list(tensor.shape), "entries": tensor.share, "steps": steps, "batch": batch}
    return body | {"rows": rows}, activity


def row(active: Array, words: Array, names: list[str], weeks: list[str]) -> dict[str, Any]:
    """An atom in words."""
    shares = active / max(float(active.sum()), 1e-300)
    return {
        "words": [names[j] for j in np.argsort(-words, kind="stable")[:WORDS] if words[j] > 0.0],
        "peak": weeks[int(shares.argmax())].split("/")[0],
        "peak_share": float(shares.max()),
        "spread": 1.0 / max(float(np.vdot(shares, shares)), 1e-300),
    }
