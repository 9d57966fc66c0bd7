"""The samplers by their names, as a command line spells them: a kind, and words such as temperature=2.3."""

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.synthetic import chain, truth
from stream_ocpdl.samplers.chain import Sampler
from stream_ocpdl.samplers.ising import Ising
from stream_ocpdl.samplers.markov import Markov
from stream_ocpdl.samplers.metropolis import Metropolis
from stream_ocpdl.samplers.motif import Graph, Motif
from stream_ocpdl.sources import Shape, from_file

STATES = 20
"""Tensors of the finite chain, if no file has them."""


def function(text: str) -> Callable[..., Any]:
    """A function of a user's module, such as "mine:log_density"; modules are also looked for where we are."""
    module, _, name = text.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{text!r} is no function, such as module:function: {error}") from error
    if not callable(found):
        raise ConfigError(f"{text!r} is no function but a {type(found).__name__}")
    return found  # type: ignore[no-any-return]


KINDS: dict[str, dict[str, Callable[[str], Any]]] = {
    "ising": {"temperature": float, "field": float, "sweeps": int},
    "motif": {"edges": Path, "chain": str, "steps": int},
    "markov": {"states": Path, "relaxation": float},
    "metropolis": {"density": function, "map": function, "scale": float, "steps": int},
}
"""What each may be told."""


def read(kind: str, words: Mapping[str, str]) -> dict[str, Any]:
    """The words of a sampler, each as what it must be."""
    found = {}
    for name, text in words.items():
        if name not in KINDS[kind]:
            raise ConfigError(f"{kind} has no {name!r}; it has {', '.join(KINDS[kind])}")
        try:
            found[name] = KINDS[kind][name](text)
        except ConfigError:
            raise
        except ValueError:
            raise ConfigError(f"{name} of {kind} must be a number, not {text!r}") from None
    return found


def named(kind: str, shape: Shape, rank: int, seed: int, words: Mapping[str, str]) -> Sampler:
    """A sampler whose draws have this shape."""
    told = read(kind, words)
    if kind == "ising":
        return Ising(_two(shape, "an Ising lattice"), **told)
    if kind == "motif":
        k, other = _two(shape, "a patch of an adjacency matrix")
        if k != other:
            raise ConfigError(f"a patch of an adjacency matrix is square; the model has {list(shape)}")
        if "edges" not in told:
            raise ConfigError("motif needs a graph: edges=FILE with two nodes a line")
        return Motif(Graph.read(told.pop("edges")), k, **told)
    if kind == "markov":
        return Markov(_states(told.pop("states", None), shape, rank, seed), **told)
    if "density" not in told:
        raise ConfigError("metropolis needs a log density: density=MODULE:FUNCTION")
    return Metropolis(told.pop("density"), np.zeros(shape), to_tensor=told.pop("map", np.asarray), **told)


def _two(shape: Shape, what: str) -> tuple[int, int]:
    if len(shape) != 2:
        raise ConfigError(f"{what} has two modes; the model has {len(shape)}")
    return shape[0], shape[1]


def _states(path: Path | None, shape: Shape, rank: int, seed: int) -> Any:
    """The tensors of a file, or far-apart ones of a chain with a known dictionary."""
    if path is not None:
        return np.stack(list(from_file(path, shape).each))
    mixtures = chain(truth(shape, rank, seed), seed)
    return np.stack([[next(mixtures) for _ in range(20)][-1] for _ in range(STATES)])
