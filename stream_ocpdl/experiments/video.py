"""Clips of a video of the cortex of a mouse (fig:brain): atoms that are a picture and its course over two seconds.

A clip has 50 frames that follow each other, from anywhere in the video, and is learned as (time, space · colour): the
modes of a frame are one, so that an atom's picture may have any form and any colours. Clips come one a step, 200 of
them, with 20 atoms, λ = 2, w_t = 1/t and c′ = 10⁵, in float32.

- A cell is a byte, from 0 to 255, as the authors' code feeds it; the paper does not say. A clip has a norm of some
  hundred thousand then, and λ = 2 means next to nothing, but for the columns of norm at most one that come with it.
- Columns of 460,080 cells are solved by sweeps until little changes (`TOLERANCE`): data are bytes, and B is float32.

The error is ‖X − X̂‖/‖X‖ with the optimal codes: of each clip before it was learned, and under the last dictionary of
all clips that lie end to end. Beside it stands the error of the mean frame, times a factor for each clip: what one atom
with a flat course can have.

Frames stay bytes (690 MB of the paper's video). The learner has B, 20 × 50 × 460,080 numbers (1.84 GB), once.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from stream_ocpdl.errors import ConfigError, DataError
from stream_ocpdl.experiments.tensors import medium
from stream_ocpdl.ocpdl.arrays import Array, BigArray
from stream_ocpdl.ocpdl.learner import Learner
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.reshape import Layout
from stream_ocpdl.ocpdl.schedules import Balanced
from stream_ocpdl.sizing import status

VIDEO = "mouse_brain_activity.mp4"
SPARSITY, RADIUS, TOLERANCE = 2.0, 1e5, 0.1

Frames = Sequence[BigArray]
"""Pictures (H, W, 3) in bytes."""


@dataclass(frozen=True)
class Sizes:
    """How much is learned, and how large a video is drawn where there is none."""

    length: int = 50
    rank: int = 20
    clips: int = 200
    frames: int = 400
    side: int = 96


FULL, QUICK = Sizes(), Sizes(16, 6, 12, 80, 32)


def frames_of(data: Path | None, quick: bool = False) -> tuple[Frames, str]:
    """The frames, and what they are: a video, that of a folder, or a stand-in."""
    found = None if quick else medium(data, VIDEO)
    sizes = QUICK if quick else FULL
    if found is None:
        return drawn(sizes.frames, sizes.side), "a drawn video"
    frames = decoded(found)
    if len(frames) < sizes.length:
        raise DataError(f"{found} has {len(frames)} frames; a clip has {sizes.length}")
    return frames, found.name


def decoded(path: Path) -> Frames:
    """All frames of a file, by PyAV."""
    try:
        import av
    except ImportError:
        raise ConfigError(
            "videos are read by PyAV, which is not installed: pip install 'stream-ocpdl[bench]'"
        ) from None
    try:
        with av.open(str(path)) as container:
            found = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    except (OSError, ValueError, IndexError) as error:  # of FFmpeg, which are both of the first; no video in it
        raise DataError(f"{path} is no video that PyAV reads: {' '.join(str(error).split())[:200]}") from error
    if len({frame.shape for frame in found}) != 1:
        raise DataError(f"{path} has {len(found)} frames, and not all of one size")
    return found


def drawn(frames: int, side: int, spots: int = 5, seed: int = 0) -> Frames:
    """A dark cortex of two halves on a brighter ground; spots in it light up, each as often as it will, and go out.

    Colours are those of the paper's video: from dark blue over green to red.
    """
    random, t = np.random.default_rng([0xB4A1, seed]), np.arange(frames)
    y, x = np.mgrid[-1 : 1 : complex(0, side), -1 : 1 : complex(0, side)]
    halves = np.maximum(*(np.exp(-(((x - c) / 0.38) ** 4) - (y / 0.7) ** 4) for c in (-0.36, 0.36)))
    level = np.repeat((0.25 - 0.2 * halves)[None], frames, axis=0)
    for k in range(spots):
        centre = np.array([random.uniform(-0.5, 0.5), (-1) ** k * random.uniform(0.2, 0.5)])
        spot = np.exp(-((y - centre[0]) ** 2 + (x - centre[1]) ** 2) / 0.012)
        course = np.clip(np.sin(2 * np.pi * (t / random.uniform(12, 40) + random.random())), 0.0, 1.0) ** 2
        level += 0.8 * course[:, None, None] * spot
    level = np.clip(level + random.normal(0, 0.01, level.shape), 0.0, 1.0)
    colours = np.stack([1.5 - np.abs(4 * level - c) for c in (3, 2, 1)], axis=-1)
    return list((255 * np.clip(colours, 0.0, 1.0)).astype(np.uint8))


def starts(frames: Frames, sizes: Sizes, clips: int, seed: int = 0) -> list[int]:
    """Where clips begin, each as likely as any other."""
    random = np.random.default_rng([0xC11B, seed])
    return [int(start) for start in random.integers(len(frames) - sizes.length + 1, size=clips)]


def clips_of(frames: Frames, begin: Sequence[int], length: int) -> Iterator[BigArray]:
    """Minibatches of one clip (1, length, H, W, 3), made when they are asked for."""
    for start in begin:
        yield np.stack(frames[start : start + length])[None]


def problem_of(frames: Frames, sizes: Sizes) -> tuple[Layout, Problem]:
    """What is learned."""
    layout = Layout((sizes.length, *frames[0].shape), ((0,), (1, 2, 3)))
    settings: dict[str, Any] = {"sparsity": SPARSITY, "radius": RADIUS, "weights": Balanced(), "tolerance": TOLERANCE}
    return layout, Problem(layout.grouped, sizes.rank, batch_size=1, dtype="float32", **settings)


def digest(loadings: Sequence[Array]) -> str:
    """The bits of a dictionary as a short text."""
    sha = hashlib.sha256()
    for U in loadings:
        sha.update(np.ascontiguousarray(U).data)
    return sha.hexdigest()


@dataclass(frozen=True)
class Found:
    """Figures; and the atoms, the most used first: pictures (R, H, W, 3) and courses (R, length)."""

    body: dict[str, Any]
    pictures: Array
    courses: Array
    bits: str
    """The digest of the last loadings."""


def run(data: Path | None, quick: bool, clips: int | None, say: Callable[[str], None]) -> Found:
    """Learn clip by clip, then look at all of the video."""
    sizes = QUICK if quick else FULL
    frames, source = frames_of(data, quick)
    count = clips or sizes.clips
    layout, problem = problem_of(frames, sizes)
    learner, began, cpu = Learner(problem, in_place=True), time.monotonic(), time.process_time()
    errors = []
    for t, clip in enumerate(clips_of(frames, starts(frames, sizes, count), sizes.length), 1):
        X = layout.fold(clip).astype(np.float32)
        errors.append(sqrt(learner.step(X).prequential_loss / energy(X)))
        if t % max(1, count // 20) == 0:
            say(f"clip {t} of {count}: error {errors[-1]:.4f} before it was learned, {time.monotonic() - began:.0f} s")
    cost = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
    whole, H = represented(learner, layout, frames, sizes.length)
    U, V = learner.state.loadings
    order, shares = by_use(H, learner.state.loadings)
    pictures = np.ascontiguousarray(V[:, order].T).reshape(-1, *frames[0].shape)
    courses = np.ascontiguousarray(U[:, order].T)
    body = {
        "source": source,
        "shape": [len(frames), *frames[0].shape],
        "length": sizes.length,
        "clips": count,
        "rank": sizes.rank,
        "before": errors,
        "error": whole,
        "mean": mean_error(frames, sizes.length),
        "rows": [row(*atom) for atom in zip(pictures, courses, shares[order], strict=True)],
        "cost": cost | {"peak_bytes": status("VmHWM")},
    }
    return Found(body, pictures, courses, digest((U, V)))


def energy(X: BigArray) -> float:
    """‖X‖², of float32 in float64, a frame at a time: there is no room for a second clip of that kind."""
    return float(sum(np.square(part, dtype=np.float64).sum() for part in X.reshape(-1, X.shape[-1])))


def end_to_end(frames: Frames, length: int) -> range:
    """Where clips begin that lie end to end; a rest is left out."""
    return range(0, len(frames) - length + 1, length)


def represented(learner: Learner, layout: Layout, frames: Frames, length: int) -> tuple[float, Array]:
    """‖X − X̂‖/‖X‖ of all clips that lie end to end, and their codes."""
    lost, total, codes = 0.0, 0.0, []
    for clip in clips_of(frames, end_to_end(frames, length), length):
        X = layout.fold(clip).astype(np.float32)
        coding = learner.code(X)
        lost, total = lost + float(coding.losses.sum()), total + energy(X)
        codes.append(coding.H[0])
    return sqrt(lost / total), np.array(codes)


def mean_error(frames: Frames, length: int) -> float:
    """The same of the mean frame, times the best factor for each clip."""
    mean = np.zeros(frames[0].shape)
    for frame in frames:
        mean += frame
    lost, total = 0.0, 0.0
    for start in end_to_end(frames, length):
        these = frames[start : start + length]
        inner = sum(float(np.vdot(frame, mean)) for frame in these)
        own = sum(float(np.square(frame, dtype=np.float64).sum()) for frame in these)
        lost, total = lost + own - inner**2 / (length * float(np.vdot(mean, mean))), total + own
    return sqrt(max(lost, 0.0) / total)


def by_use(H: Array, loadings: Sequence[Array]) -> tuple[Any, Array]:
    """The atoms, those with the largest norms in the mean of all clips first; and these as shares."""
    norms = np.prod([np.linalg.norm(U, axis=0) for U in loadings], axis=0)
    used = H.mean(axis=0) * norms
    return np.argsort(-used, kind="stable"), used / max(float(used.sum()), 1e-300)


def row(picture: Array, course: Array, share: float) -> dict[str, float]:
    """An atom in numbers: its share, how much of the picture its red is about, and how much of the time its course is.

    Red is what is active: a ground at rest has hardly any, and that all over. Both are 1/Σp² of shares p, which is one
    if all are the same.
    """
    return {"share": float(share), "area": spread(picture[..., 0]), "time": spread(course)}


def spread(values: Array) -> float:
    """(Σv)²/Σv² as a share of their number: about how much of them is not nothing.

    >>> spread(np.array([0.0, 3.0, 0.0, 0.0])), spread(np.ones(7))
    (0.25, 1.0)
    """
    squares = float(np.square(values).sum())
    return float(values.sum()) ** 2 / (squares * values.size) if squares > 0.0 else 0.0
