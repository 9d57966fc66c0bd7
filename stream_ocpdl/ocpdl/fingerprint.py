"""Under which conditions equal bits may be expected.

Kernels are compiled for the CPU they run on, and NumPy chooses its loops by it. Two learners with the same fingerprint
that see the same minibatches in the same order have the same bits; two with different ones agree to rounding only.
The number of threads is not part of it (see `kernels`), and neither is BLAS: nothing that enters a state calls it.
"""

import hashlib
import json
from functools import cache
from importlib.metadata import version
from typing import Any

import llvmlite.binding
import numba
import numpy as np


@cache
def conditions() -> dict[str, str]:
    """What the bits depend on."""
    config: Any = numba.config
    features = config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten()
    return {
        "cpu": str(config.CPU_NAME or llvmlite.binding.get_host_cpu_name()),
        "cpu_features": hashlib.sha256(str(features).encode()).hexdigest()[:16],
        "jit": "off" if config.DISABLE_JIT else f"on, level {config.OPT}",
        "llvmlite": llvmlite.__version__,
        "numba": numba.__version__,
        "numpy": np.__version__,
        "stream_ocpdl": version("stream-ocpdl"),
    }


def fingerprint() -> str:
    """The conditions as a short name."""
    return hashlib.sha256(json.dumps(conditions(), sort_keys=True).encode()).hexdigest()[:16]
