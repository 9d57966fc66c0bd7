"""Online nonnegative CP-dictionary learning for streams of tensors.

After *Online nonnegative CP-dictionary learning for Markovian data* (Lyu, Strohmeier, Needell); labels such as
`eq:def_Btrj` in docstrings are those of the paper's LaTeX source.
"""

from typing import TYPE_CHECKING, Any

from stream_ocpdl import interrupts as _interrupts  # noqa: F401  (before all that takes long)
from stream_ocpdl.errors import (
    BrokerError,
    ConfigError,
    DataError,
    DecodeError,
    NumericError,
    OcpdlError,
    QueueFull,
    StateError,
)
from stream_ocpdl.estimator import OnlineCPDL
from stream_ocpdl.fingerprint import fingerprint
from stream_ocpdl.ocpdl.arrays import Sparse
from stream_ocpdl.ocpdl.constraints import Ball, Box, Columns, NonnegativeBall, NonnegativeColumns, Simplex
from stream_ocpdl.ocpdl.diagnostics import assumption_card, stationarity
from stream_ocpdl.ocpdl.learner import Learner
from stream_ocpdl.ocpdl.matching import match_atoms
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.reshape import Layout, Scaling
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.ocpdl.revival import dead_atoms
from stream_ocpdl.ocpdl.schedules import Balanced, Constant, PowerLaw
from stream_ocpdl.ocpdl.shadows import Shadows
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import Workers

if TYPE_CHECKING:
    from stream_ocpdl.sinks import DrawSink
    from stream_ocpdl.stream.client import TensorProducer, read_codes, read_dead_letters, read_snapshots

__all__ = [
    "Balanced",
    "Ball",
    "Box",
    "BrokerError",
    "Columns",
    "ConfigError",
    "Constant",
    "DataError",
    "DecodeError",
    "DrawSink",
    "Layout",
    "Learner",
    "NonnegativeBall",
    "NonnegativeColumns",
    "NumericError",
    "OcpdlError",
    "OnlineCPDL",
    "PowerLaw",
    "Problem",
    "QueueFull",
    "Scaling",
    "Shadows",
    "Simplex",
    "Sparse",
    "State",
    "StateError",
    "Step",
    "TensorProducer",
    "Workers",
    "assumption_card",
    "dead_atoms",
    "fingerprint",
    "match_atoms",
    "read_codes",
    "read_dead_letters",
    "read_snapshots",
    "stationarity",
]


def __getattr__(name: str) -> Any:
    """The names that need a Kafka client are imported when they are asked for."""
    if name in ("TensorProducer", "read_codes", "read_dead_letters", "read_snapshots"):
        from stream_ocpdl.stream import client

        return getattr(client, name)
    if name == "DrawSink":
        from stream_ocpdl.sinks import DrawSink

        return DrawSink
    raise AttributeError(f"module 'stream_ocpdl' has no attribute {name!r}")
