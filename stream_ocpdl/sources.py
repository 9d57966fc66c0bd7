"""Tensors of one shape from files, from a pipe, or from a chain with a known dictionary: for those who fill a topic.

A source can be read again from its beginning, and gives the same tensors in the same order: that is how a run that was
cut short goes on.
"""

import csv
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import nan
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

import numpy as np

from stream_ocpdl.errors import ConfigError, DataError, OcpdlError
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.synthetic import chain

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".pgm", ".ppm")
VIDEOS = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".mpg")

DAMAGED = (ValueError, EOFError, KeyError, MemoryError, NotImplementedError, BadZipFile, zlib.error, struct.error)
"""What NumPy raises of a file that is not what it should be, or claims to be larger than the memory."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors to come, and how many there are, where that is known."""

    count: int | None
    each: Iterator[BigArray]


def from_file(path: Path, shape: Shape, array: str | None = None, stride: int | None = None) -> Tensors:
    """The tensors of a file, by the end of its name."""
    kind = path.suffix.lower()
    try:
        if kind == ".npy":
            return stacked(_mapped(path), shape, path.name)
        if kind == ".npz":
            return stacked(_member(path, array), shape, path.name)
        if kind in IMAGES:
            return _patches(_image(path, shape), shape, stride, path.name)
        if kind == ".csv":
            return Tensors(None, windows(path, _two(shape), stride))
    except OcpdlError:
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except DAMAGED as error:
        raise DataError(f"{path} cannot be read: {_brief(error)}") from error
    if kind in VIDEOS:
        raise ConfigError(
            f"{path}: nothing that is installed reads {kind}. Make an animated .gif of it, or the frames a .npy file:"
            ' ffmpeg -i CLIP -f rawvideo -pix_fmt gray - | python -c \'import sys, numpy as np; np.save("clip.npy",'
            " np.frombuffer(sys.stdin.buffer.read(), np.uint8).reshape(-1, HEIGHT, WIDTH))'"
        )
    raise ConfigError(f"{path} has no ending that is known: .npy, .npz, .csv, or an image ({', '.join(IMAGES)})")


def stacked(values: Any, shape: Shape, name: str) -> Tensors:
    """The tensors of an array: one, or many along its first axis."""
    if values.dtype.kind not in "fiub":
        raise DataError(f"{name} has dtype {values.dtype}, not numbers")
    if values.shape == shape:
        return Tensors(1, iter([values]))
    if values.shape[1:] != shape:
        raise DataError(f"{name} has shape {list(values.shape)}, not {list(shape)} or any number of those")
    return Tensors(len(values), iter(values))


def _mapped(path: Path) -> BigArray:
    """An array that stays on disk."""
    found = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(found, np.ndarray):
        found.close()
        raise DataError(f"{path.name} is a .npz file: call it so")
    return found


def _member(path: Path, array: str | None) -> Any:
    """An array of a .npz file; such files are compressed, so it is read into memory."""
    file = np.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(file, np.ndarray):
        raise DataError(f"{path.name} is a .npy file: call it so")
    with file:
        if (array or "") not in (*file.files, ""):
            raise DataError(f"{path.name} has no array {array!r}; it has {', '.join(file.files)}")
        if array is None and len(file.files) != 1:
            raise ConfigError(f"{path.name} has {', '.join(file.files)}: say which with --array")
        return file[array or file.files[0]]


def _image(path: Path, shape: Shape) -> BigArray:
    """An image as an array: grey (H, W), coloured (H, W, 3), or the frames of an animation in grey (F, H, W)."""
    with path.open("rb") as file:
        try:
            from PIL import Image, ImageSequence
        except ImportError:
            raise ConfigError("images are read by Pillow, which is not installed: pip install pillow") from None
        try:
            image = Image.open(file)
            if len(shape) == 2:
                return np.asarray(image.convert("L"))
            if len(shape) == 3 and shape[-1] == 3 and getattr(image, "n_frames", 1) == 1:
                return np.asarray(image.convert("RGB"))
            if len(shape) == 3:
                return np.stack([np.asarray(frame.convert("L")) for frame in ImageSequence.Iterator(image)])
        except Exception as error:  # of a damaged image Pillow raises nearly anything
            raise DataError(f"{path.name} is no image that Pillow reads: {_brief(error)}") from error
    raise ConfigError(f"an image has two modes, or three with its colours or frames; the model has {len(shape)}")


def _patches(image: BigArray, shape: Shape, stride: int | None, name: str) -> Tensors:
    """Every patch of an image, the last mode fastest; colours are never cut."""
    if any(size < wanted for size, wanted in zip(image.shape, shape, strict=True)):
        raise DataError(f"{name} has shape {list(image.shape)}, smaller than a patch of {list(shape)}")
    steps = [stride or wanted for wanted in shape]
    starts = [range(0, size - n + 1, by) for size, n, by in zip(image.shape, shape, steps, strict=True)]
    count = int(np.prod([len(s) for s in starts]))
    places = (tuple(slice(a, a + n) for a, n in zip(at, shape, strict=True)) for at in product(*starts))
    return Tensors(count, (image[place] for place in places))


def windows(path: Path, shape: tuple[int, int], stride: int | None) -> Iterator[Array]:
    """Windows of I₁ rows of a table with I₂ columns of numbers; an empty cell is NaN, a first line may have names."""
    path.open("rb").close()  # whether it can be opened is to be known at once

    def each() -> Iterator[Array]:
        rows, columns = shape
        kept: deque[list[float]] = deque(maxlen=rows)
        fresh = 0
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            for number, row in _table(file, path.name):
                if not row or (number == 1 and not _is_numbers(row)):
                    continue
                kept.append(_numbers(row, columns, f"{path.name}, line {number}"))
                fresh += 1
                if len(kept) == rows and (fresh - rows) % (stride or rows) == 0:
                    yield np.array(kept)

    return each()


def _two(shape: Shape) -> tuple[int, int]:
    if len(shape) != 2:
        raise ConfigError(f"windows of a table have two modes, rows and columns; the model has {len(shape)}")
    return shape[0], shape[1]


def _table(file: IO[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with their lines."""
    reader = csv.reader(file)
    try:
        yield from ((reader.line_num, row) for row in reader)
    except csv.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: {error}") from error


def _is_numbers(row: Sequence[str]) -> bool:
    try:
        for cell in row:
            float(cell.strip() or "nan")
    except ValueError:
        return False
    return True


def _numbers(row: Sequence[str], columns: int, where: str) -> list[float]:
    if len(row) != columns:
        raise DataError(f"{where} has {len(row)} cells, not {columns}")
    found = []
    for place, cell in enumerate(row, start=1):
        try:
            found.append(float(cell) if cell.strip() else nan)
        except ValueError:
            raise DataError(f"{where}, cell {place}: {cell[:40]!r} is no number") from None
    return found


def from_pipe(pipe: IO[bytes], shape: Shape) -> Tensors:
    """Arrays in .npy format one after the other, each a tensor or many along the first axis."""

    def each() -> Iterator[BigArray]:
        reader, number = _Reader(pipe), 0
        while reader.more():
            number += 1
            try:
                values = np.lib.format.read_array(reader, allow_pickle=False)
            except (*DAMAGED, OSError) as error:
                raise DataError(f"array {number} of standard input cannot be read: {_brief(error)}") from error
            yield from stacked(values, shape, f"array {number} of standard input").each

    return Tensors(None, each())


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


class _Reader:
    """A pipe that NumPy takes for no file, for in a pipe it cannot seek."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._ahead = pipe, b""

    def more(self) -> bool:
        """Whether it is not at its end."""
        self._ahead = self._ahead or self._pipe.read(1)
        return bool(self._ahead)

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or what is left."""
        first, self._ahead = self._ahead[:size] if size >= 0 else self._ahead, b""
        return first + self._pipe.read(size - len(first) if size >= 0 else -1)


def shape_of(path: Path) -> Shape:
    """The shape of the tensors that lie along the first axis of a .npy file."""
    if path.suffix.lower() != ".npy":
        raise ConfigError(f"{path} is neither a .npy file with tensors along its first axis nor an image")
    try:
        shape = _mapped(path).shape
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except DAMAGED as error:
        raise DataError(f"{path} cannot be read: {_brief(error)}") from error
    if len(shape) < 2 or 0 in shape:
        raise DataError(f"{path} has shape {list(shape)}; tensors along the first axis are needed")
    return shape[1:]


def in_colour(path: Path) -> BigArray:
    """An image (H, W, 3)."""
    try:
        return _image(path, (1, 1, 3))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def painted(side: int = 192, panes: int = 24, seed: int = 0) -> BigArray:
    """A picture (side, side, 3) with many textures: panes of glass, each of a colour, with stripes of its own."""
    random = np.random.default_rng([seed, 2])
    centres, hues = random.random((panes, 2)) * side, random.random((panes, 3)) ** 1.5
    turns, waves = random.random(panes) * np.pi, 2 * np.pi / random.uniform(4, 14, panes)
    y, x = np.mgrid[:side, :side]
    distances = np.sqrt((y[..., None] - centres[:, 0]) ** 2 + (x[..., None] - centres[:, 1]) ** 2)
    pane = distances.argmin(axis=-1)
    first, second = np.partition(distances, 1, axis=-1)[..., :2].transpose(2, 0, 1)
    stripes = 0.6 + 0.4 * np.sin(waves[pane] * (y * np.cos(turns[pane]) + x * np.sin(turns[pane])))
    lead = np.clip((second - first) / 2, 0.1, 1.0)  # dark where two panes meet
    return np.asarray(hues[pane] * (stripes * lead)[..., None])


def walk(image: BigArray, shape: Shape, seed: int, stride: int = 3) -> Iterator[BigArray]:
    """Patches of an image without end, each a short way from the one before: a Markov chain, slow to mix."""
    room = [size - wanted for size, wanted in zip(image.shape, shape, strict=True)]
    if min(room) < 0:
        raise DataError(f"the image has shape {list(image.shape)}, smaller than a patch of {list(shape)}")
    random = np.random.default_rng([seed, 3])
    place = random.integers(0, np.array(room) + 1)
    while True:
        place = np.abs(place + random.integers(-stride, stride + 1, len(room)))
        place = np.where(place > room, 2 * np.array(room) - place, place).clip(0, room)  # off the edges
        yield image[tuple(slice(a, a + n) for a, n in zip(place, shape, strict=True))]


def from_sampler(loadings: Sequence[Array], seed: int, count: int) -> Tensors:
    """Mixtures of a known dictionary along a Markov chain."""
    return Tensors(count, islice(chain(loadings, seed), count))
