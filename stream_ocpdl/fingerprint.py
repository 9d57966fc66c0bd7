"""Under which conditions equal bits may be expected.

Kernels are compiled for the CPU they run on, NumPy chooses its loops by it, and weights are powers from the C library.
Two learners with the same fingerprint that see the same minibatches in the same order have the same bits; two with
different ones agree to rounding only. The number of threads is not part of it (see `ocpdl.kernels`), and neither is
BLAS: nothing that enters a state calls it.
"""

import hashlib
import json
import os
import platform
from functools import cache
from importlib.metadata import version
from typing import Any

import llvmlite.binding
import numba
import numpy as np

from stream_ocpdl.machine import mathematics

ENVIRONMENT = ("NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "NUMBA_LOOP_VECTORIZE", "NUMBA_SLP_VECTORIZE")


@cache
def conditions() -> dict[str, str]:
    """What the bits depend on."""
    config: Any = numba.config
    features = config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten()
    return {
        "cpu": str(config.CPU_NAME or llvmlite.binding.get_host_cpu_name()),
        "cpu_features": hashlib.sha256(str(features).encode()).hexdigest()[:16],
        "environment": ",".join(f"{name}={os.environ[name]}" for name in ENVIRONMENT if name in os.environ),
        "jit": "off" if config.DISABLE_JIT else f"on, level {config.OPT}",
        "libc": " ".join(platform.libc_ver()),
        "llvmlite": llvmlite.__version__,
        "mathematics": mathematics(),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def fingerprint() -> str:
    """The conditions as a short name."""
    return hashlib.sha256(json.dumps(conditions(), sort_keys=True).encode()).hexdigest()[:16]


def build() -> dict[str, str]:
    """What is running: the release, and the conditions in short."""
    return {"version": version("stream-ocpdl"), "python": platform.python_version(), "fingerprint": fingerprint()}
