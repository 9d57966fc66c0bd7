"""Threads for kernels. A kernel releases the GIL and computes a range of independent outputs; ranges run side by
side and begin at multiples of a grain, so that every output is computed as it would be by one thread.

A pool of our own, and not Numba's: several learners may step at once, from any thread, and a range too small to
be worth a thread is computed where it is.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from stream_ocpdl.errors import ConfigError

WORTH_A_THREAD = 2_000_000
"""Multiplications below which a second thread costs more than it brings (about 100 µs)."""


class Workers:
    """Runs kernels on a number of threads; as a context manager, ends them."""

    def __init__(self, threads: int = 1) -> None:
        if not isinstance(threads, int) or threads < 1:
            raise ConfigError(f"threads must be a whole number, at least 1, not {threads!r}")
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "ocpdl") if threads > 1 else None

    def run(self, kernel: Callable[..., Any], size: int, cost: float, *args: Any, grain: int = 1) -> None:
        """Call kernel(lo, hi, *args) over [0, size); `cost` is the multiplications of one output."""
        share = -(-size // (self.threads * grain)) * grain
        if self._pool is None or share >= size or size * cost < WORTH_A_THREAD:
            kernel(0, size, *args)
            return
        ranges = [(lo, min(lo + share, size)) for lo in range(0, size, share)]
        others = [self._pool.submit(kernel, lo, hi, *args) for lo, hi in ranges[1:]]
        kernel(*ranges[0], *args)
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads; from now on everything runs on the calling one."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


SERIAL = Workers(1)
"""The calling thread alone."""
