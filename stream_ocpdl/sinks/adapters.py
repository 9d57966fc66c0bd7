"""How samplers hand their draws over. None of them is imported: they are known by what they do.

- PyMC: `pm.sample(callback=pymc(sink))`. External samplers ignore callbacks, which is noticed and said.
- emcee: `for state in emcee(sink, sampler.sample(…))`, or `EnsembleSampler(…, backend=Backend(sink, backend))`.
- NumPyro: `chunk(sink, mcmc.get_samples(group_by_chain=True))` after each chunk of a run.
- CmdStan: `CsvTail(sink, path, chain).poll()`, as often as one likes while it samples.
- Any other: `DrawSink.each`, `DrawSink.draw`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stream_ocpdl.errors import ConfigError, DataError
from stream_ocpdl.sinks.sink import DrawSink


def pymc(sink: DrawSink) -> Callable[..., None]:
    """For `pm.sample(callback=…)`; `to_tensor` gets the point, values by their names.

    If it was never called when the sink is left, PyMC had an external sampler do the work.
    """
    called = False
    sink.sampler = sink.sampler or "pymc"

    def callback(trace: Any, draw: Any) -> None:  # noqa: ARG001  (PyMC names them)
        nonlocal called
        called = True
        sink.draw(draw.point, int(draw.chain), bool(draw.tuning))

    def check() -> None:
        if not called:
            raise ConfigError(
                "PyMC did not call the callback, and no draw was written: external samplers (nuts_sampler='nutpie',"
                " 'numpyro', 'blackjax') ignore it. Sample with nuts_sampler='pymc', or write the draws afterwards with"
                " stream_ocpdl.sinks.adapters.chunk"
            )

    sink.expect(check)
    return callback


def emcee(sink: DrawSink, states: Iterable[Any]) -> Iterator[Any]:
    """The states of `EnsembleSampler.sample`, the place of each walker queued as a draw of a chain."""
    sink.sampler = sink.sampler or "emcee"
    for state in states:
        sink.draws(state.coords)
        yield state


class Backend:
    """A backend of emcee's that also hands every step to a sink; draws have the number of the backend's iteration."""

    def __init__(self, sink: DrawSink, backend: Any) -> None:
        sink.sampler = sink.sampler or "emcee"
        self._sink, self._backend = sink, backend

    def save_step(self, state: Any, accepted: Any) -> None:
        """Keep a step, and queue it."""
        number = int(self._backend.iteration)
        self._backend.save_step(state, accepted)
        self._sink.draws(state.coords, number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def chunk(sink: DrawSink, samples: Any) -> None:
    """Draws of several chains, (chains, draws, …) as an array or by names, as NumPyro groups them by chain."""
    parts = {name: np.asarray(value) for name, value in samples.items()} if isinstance(samples, Mapping) else None
    whole = np.asarray(samples) if parts is None else next(iter(parts.values()), np.empty(0))
    if whole.ndim < 2 or (parts and any(part.shape[:2] != whole.shape[:2] for part in parts.values())):
        raise DataError("samples must be (chains, draws, …) in every part: get_samples(group_by_chain=True)")
    for k in range(whole.shape[1]):
        for chain in range(whole.shape[0]):
            point = whole[chain, k] if parts is None else {name: part[chain, k] for name, part in parts.items()}
            sink.draw(point, chain)


class CsvTail:
    """The file that CmdStan writes, read as it grows; a line that is not whole yet is left for the next time.

    `to_tensor` of the sink gets the values of the columns by their names; those that end with __ are the sampler's own.
    With save_warmup the lines before "Adaptation terminated" are draws of tuning.
    """

    def __init__(self, sink: DrawSink, path: Path, chain: int = 0) -> None:
        sink.sampler = sink.sampler or "cmdstan"
        self._sink, self._path, self._chain = sink, Path(path), chain
        self._at, self._line, self._names = 0, 0, list[str]()
        self._warming = False

    def poll(self) -> int:
        """Queue the draws that came since the last time; how many lines of draws there were. No file is no draw yet."""
        if not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            file.seek(self._at)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._at += len(whole)
        return sum(self._take(line.decode("utf-8", "replace").strip()) for line in whole.splitlines())

    def _take(self, line: str) -> bool:
        self._line += 1
        if line.startswith("#"):
            words = line.lstrip("# ").split()
            self._warming |= words[:2] == ["save_warmup", "="] and words[2] in ("1", "true")
            self._warming &= not line.startswith("# Adaptation terminated")
            return False
        cells = line.split(",")
        if not self._names:
            self._names = cells
            return False
        if not line:
            return False
        try:
            values = dict(zip(self._names, map(float, cells), strict=True))
        except ValueError as error:
            raise DataError(f"{self._path}, line {self._line} is no draw: {error}") from error
        point = {name: value for name, value in values.items() if not name.endswith("__")}
        self._sink.draw(point, self._chain, self._warming)
        return True
