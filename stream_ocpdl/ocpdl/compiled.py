"""How functions are compiled.

Flags: reassociation and contraction, so that loops become vector instructions; never `nnan` or `ninf`, because a
NaN or an infinity must survive until somebody notices it. `error_model="numpy"` spares the division checks.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.extending

from stream_ocpdl.machine import KERNELS

F = TypeVar("F", bound=Callable[..., Any])

KEPT = KERNELS is not None

intrinsic: Callable[[F], Any] = cast(Any, numba.extending).intrinsic
"""For a function that says itself what it is compiled to."""


def kernel(function: F) -> F:
    """Compile once per signature, and keep the result on disk if there is a place for it."""
    flags = {"nsz", "arcp", "contract", "afn", "reassoc"}
    return cast(F, numba.njit(cache=KEPT, nogil=True, error_model="numpy", fastmath=flags)(function))


def exact(function: F) -> F:
    """The same in the order that is written, for sums that two kernels must have to the last bit."""
    return cast(F, numba.njit(cache=KEPT, nogil=True, error_model="numpy")(function))


def part(function: F) -> F:
    """A part of a kernel, laid into it: to hand over arrays takes as long as a round of small rows.

    Products and sums are contracted, but sums are added in the order that is written.
    """
    compiled = numba.njit(cache=KEPT, nogil=True, error_model="numpy", fastmath={"contract"}, forceinline=True)
    return cast(F, compiled(function))


def written_in(function: F) -> F:
    """A part that is written into a kernel before that is compiled, and takes its flags.

    Whatever calls a kernel is optimised together with it: each function between two takes seconds to compile.
    """
    return cast(F, numba.njit(cache=KEPT, nogil=True, error_model="numpy", inline="always")(function))
