"""The code of the paper's authors, from a checkout of HanbaekLyu/OnlineCPDL; nothing of it is here.

Theirs has no entries: a tensor has all its cells, its slices along the last mode. A step draws slices with replacement
and copies them, as their `train_dict` does, without its evaluation. Columns of loadings have norm at most one, and the
radius is c′(t + 1)^−β/log(t + 2). They draw from NumPy's global generator, which is seeded.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.experiments.offline import Iterate
from stream_ocpdl.experiments.racers import Stream
from stream_ocpdl.experiments.tensors import Factors, Whole
from stream_ocpdl.ocpdl.arrays import Array

BETA = 0.75
"""Of the weights t^−β that their own benchmark tries."""

ONLINE, OFFLINE = "utils/ocpdl.py", "utils/BCD_DR.py"


def checkout(path: Path) -> Path:
    """The folder, which must have their code."""
    missing = [file for file in (ONLINE, OFFLINE) if not (path / file).is_file()]
    if missing:
        raise ConfigError(
            f"--authors {path}: no checkout of HanbaekLyu/OnlineCPDL, it has no {' and no '.join(missing)}"
        )
    return path


def told(path: Path) -> dict[str, str]:
    """Which code it was: the beginnings of its checksums."""
    return {file: sha256((path / file).read_bytes()).hexdigest()[:12] for file in (ONLINE, OFFLINE)}


def ocpdl(path: Path, data: Whole, rank: int, batch: int, radius: float) -> Stream:
    """The step of their `Online_CPDL`."""
    module = load(path / ONLINE)

    def stream(seed: int) -> Iterator[tuple[float, Factors]]:
        np.random.seed(seed)  # noqa: NPY002 — their code draws from the global generator
        X = data.X
        model = module.Online_CPDL(X=X, batch_size=batch, n_components=rank, alpha=0, beta=BETA)
        A, B, loading, t = model.ini_A, model.ini_B, model.loading, 0
        while True:
            t += 1
            with silence():
                began = time.process_time()
                drawn = X.take(np.random.randint(X.shape[-1], size=batch), axis=-1)  # noqa: NPY002
                _, A, B, loading = model.step(drawn, A, B, loading, t, radius, beta=BETA)
                took = time.process_time() - began
            yield took, _factors(loading, X.ndim - 1)

    return stream


def als(path: Path, data: Whole) -> Iterate:
    """Their alternating least squares without a radius, the best of theirs offline."""
    module = load(path / OFFLINE)

    def iterate(factors: list[Array], rounds: int) -> list[Array]:
        with silence():
            model = module.ALS_DR(X=data.X, n_components=factors[0].shape[1], alpha=0)
            start = {f"U{i}": U.copy() for i, U in enumerate(factors)}
            found = model.ALS(iter=rounds, ini_loading=start, if_compute_recons_error=False)
        return _factors(found, len(factors))

    return iterate


def _factors(loading: dict[str, Any], count: int) -> list[Array]:
    """A dictionary of loadings as a list, each by rows."""
    return [np.array(loading[f"U{i}"], np.float64, order="C") for i in range(count)]


def load(path: Path) -> ModuleType:
    """A module of theirs, from its file."""
    spec = spec_from_file_location(f"authors_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no module")
    module = module_from_spec(spec)
    vars(np).setdefault("product", np.prod)  # they were written for NumPy 1
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the authors' code needs {error.name}: pip install {error.name}") from None
    except (OSError, SyntaxError, ImportError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return module


@contextmanager
def silence() -> Iterator[None]:
    """What they print goes nowhere."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
