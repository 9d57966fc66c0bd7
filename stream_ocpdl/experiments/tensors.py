"""Tensors of three modes, whole or by their entries, and where an experiment takes them from.

Both kinds answer the same questions: the products of an unfolding with the other factors, and minibatches of slices
along the last mode. So every method meets a sparse tensor by its entries, and nobody wins by wasting nothing while the
others multiply zeros.

Data come from a folder, by name of file (`FILES`): coordinates `i`, `j`, `k`, values `v` and `shape` in an .npz file.
Where there is none, documents are drawn, with the shape and about the density of what is missing.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np

from stream_ocpdl.errors import ConfigError, DataError
from stream_ocpdl.ocpdl import baselines
from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices, Sparse

Shape: TypeAlias = tuple[int, int, int]
Factors: TypeAlias = Sequence[Array]


@dataclass(frozen=True)
class Whole:
    """A tensor with all its cells."""

    X: BigArray

    @property
    def shape(self) -> tuple[int, ...]:
        """I, J, K."""
        return self.X.shape

    @cached_property
    def energy(self) -> float:
        """‖X‖²."""
        return float(np.vdot(self.X, self.X))

    @cached_property
    def _slices(self) -> BigArray:
        return np.ascontiguousarray(np.moveaxis(self.X, -1, 0))

    def correlations(self, factors: Factors, i: int) -> Array:
        """unfold(X, i)ᵀ Out of the other factors, (Iᵢ, R)."""
        return baselines.correlations(self.X, factors, i)

    def minibatch(self, chosen: Indices) -> BigArray:
        """These slices along the last mode, copied."""
        return np.asarray(self._slices[chosen])

    def whole(self) -> BigArray:
        """All cells."""
        return self.X


@dataclass(frozen=True)
class Entries:
    """A tensor by its entries, in any order."""

    shape: tuple[int, ...]
    places: tuple[Indices, ...]
    values: Array

    def __post_init__(self) -> None:
        sizes = {len(self.values), *map(len, self.places)}
        inside = len(self.places) == len(self.shape) and all(
            len(at) == 0 or (at.min() >= 0 and at.max() < size)
            for at, size in zip(self.places, self.shape, strict=True)
        )
        if len(sizes) != 1 or not inside or not np.isfinite(self.values).all() or np.any(self.values < 0):
            raise DataError(f"entries of a tensor {self.shape}: not nonnegative numbers at places inside of it")

    @cached_property
    def energy(self) -> float:
        """‖X‖²."""
        return float(np.vdot(self.values, self.values))

    @property
    def share(self) -> float:
        """Entries of all cells."""
        return len(self.values) / prod(self.shape)

    @cached_property
    def slices(self) -> list[Sparse]:
        """Along the last mode."""
        *front, count = self.shape
        indices = np.ravel_multi_index(self.places[:-1], front)
        order = np.lexsort((indices, self.places[-1]))
        ends = np.searchsorted(self.places[-1][order], np.arange(count + 1))
        pieces = (order[ends[k] : ends[k + 1]] for k in range(count))
        return [Sparse(tuple(front), indices[these], self.values[these]) for these in pieces]

    def correlations(self, factors: Factors, i: int) -> Array:
        """unfold(X, i)ᵀ Out of the other factors, (Iᵢ, R): a sum over entries, column by column."""
        out = np.empty_like(factors[i])
        for r in range(out.shape[1]):
            terms = self.values.copy()
            for j, U in enumerate(factors):
                if j != i:
                    terms *= U[:, r][self.places[j]]
            out[:, r] = np.bincount(self.places[i], terms, self.shape[i])
        return out

    def minibatch(self, chosen: Indices) -> list[Sparse]:
        """These slices along the last mode."""
        return [self.slices[k] for k in chosen]

    def whole(self) -> BigArray:
        """All cells."""
        X = np.zeros(self.shape)
        X[self.places] = self.values
        return X


Tensor: TypeAlias = Whole | Entries


def error_of(data: Tensor, factors: Factors, L: Array | None = None) -> float:
    """‖X − Out(factors)‖ / ‖X‖; L are the correlations of the last mode, if they are known."""
    L = data.correlations(factors, len(factors) - 1) if L is None else L
    G = np.ones((L.shape[1],) * 2)
    for U in factors:
        G = G * (U.T @ U)
    rest = data.energy - 2.0 * float(np.vdot(L, factors[-1])) + float(G.sum())
    return sqrt(max(rest, 0.0) / data.energy)


def synthetic(size: int = 100, inner: int = 50, seed: int = 0) -> Whole:
    """X = 0.01 · Out(V₁, V₂, V₃), V uniform (section:experimanl_validation)."""
    random = np.random.default_rng(seed)
    return Whole(0.01 * np.einsum("ir,jr,kr->ijk", *(random.random((size, inner)) for _ in range(3)), optimize=True))


def documents(shape: Shape, each: int, topics: int = 10, seed: int = 0) -> Entries:
    """Times × words × documents: a document has a topic, which has its season, and about `each` words of it.

    Words of a topic are as frequent as in speech, the r-th by 1/r; a document has norm one, as tf-idf has it.
    """
    times, words, count = shape
    random = np.random.default_rng([seed, 0xD0C5])
    peaks, widths = random.random(topics) * times, times * random.uniform(0.05, 0.3, topics)
    season = 0.05 + np.exp(-0.5 * ((np.arange(times)[:, None] - peaks) / widths) ** 2)
    season /= season.sum(axis=1, keepdims=True)
    topic = np.array([random.choice(topics, count, p=p) for p in season]).reshape(-1)
    orders = np.array([random.permutation(words) for _ in range(topics)])
    ranks = np.minimum((words ** random.random((len(topic), each))).astype(int), words - 1)
    flat = np.arange(len(topic))[:, None] * words + orders[topic[:, None], ranks]
    found, where = np.unique(flat, return_inverse=True)
    weights = np.bincount(where.reshape(-1), 1.0 + random.random(flat.size), len(found))
    document, word = found // words, found % words
    norms = np.sqrt(np.bincount(document, weights**2, len(topic)))
    return Entries(shape, (document // count, word, document % count), weights / norms[document])


@dataclass(frozen=True)
class Wanted:
    """A tensor of the paper: the file that has it, or the nearest to it, and what stands in for it."""

    file: str | None
    shape: Shape
    each: int
    """Words of a document, where documents are drawn."""


FILES = {
    "20news": Wanted("20news_tfidf_40x5000x26_coo.npz", (40, 5000, 26), 60),
    "headlines weeks": Wanted("headlines_weeks_x_words_x_700_coo.npz", (53, 5833, 700), 5),
    "headlines months": Wanted("headlines_203months_x_words_x_min_coo.npz", (203, 4315, 29), 5),
    "twitter": Wanted(None, (90, 5000, 1000), 12),
}
"""The paper's Twitter tensor is withheld by its authors: it is always drawn, of tweets with about ten words."""


DRAWN_AS_PAPER, DRAWN_DOCUMENTS = "drawn, as the paper draws it", "drawn documents"


def read(data: Path | None, name: str, quick: bool = False) -> tuple[Tensor, str]:
    """A tensor of the paper, and in a few words what it is; a small one for a quick look."""
    if name == "synthetic":
        return (synthetic(30, 15), "drawn, small") if quick else (synthetic(), DRAWN_AS_PAPER)
    wanted = FILES[name]
    if quick:
        return documents((8, 120, 20), 8, 4), "drawn, small"
    path = data / wanted.file if data is not None and wanted.file is not None else None
    if path is None or not path.exists():
        return documents(wanted.shape, wanted.each), DRAWN_DOCUMENTS
    return coordinates(path), path.name


def coordinates(path: Path) -> Entries:
    """The tensor of an .npz file."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            shape, values = file["shape"], file["v"].astype(np.float64)
            places = tuple(file[name].astype(np.int64) for name in ("i", "j", "k"))
    except (OSError, KeyError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise DataError(f"{path} has no coordinates of a tensor: {error}") from error
    return Entries(tuple(int(size) for size in shape), places, values)


def medium(data: Path | None, name: str) -> Path | None:
    """A file that is meant itself, or the one of this name in a folder of data; none where there is no such one."""
    if data is None:
        return None
    if not data.exists():
        raise ConfigError(f"--data {data}: there is no such file or folder; without it a stand-in is drawn")
    places = [data] if data.is_file() else [data / "media" / name, data / name]
    return next((path for path in places if path.exists()), None)


def folder(data: Path | None) -> Path | None:
    """The folder of data, which must be there if it is named."""
    if data is not None and not data.is_dir():
        raise ConfigError(f"--data {data}: there is no such folder; without it stand-ins are drawn")
    return data


def described(data: Tensor) -> dict[str, Any]:
    """What is told of a tensor."""
    share = data.share if isinstance(data, Entries) else 1.0
    return {"shape": list(data.shape), "entries": share, "norm": sqrt(data.energy)}
