"""Threads that are kept, for what is done beside: calls, and the watch over calls that may never come back.

A thread for each would be many a second, for as long as a service runs, and the C library keeps memory for every one of
them. They are daemons: what hangs holds up nobody's end.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

LOOK = 1.0
"""Seconds between two looks at whether an alarm is due."""

_calls: "SimpleQueue[tuple[Callable[[], Any], Future[Any]]]" = SimpleQueue()
_idle = threading.Semaphore(0)
"""As often as there are threads that wait for a call."""

_alarms: dict[object, tuple[float, Callable[[], object]]] = {}
_changed = threading.Lock()
_watching = False


def aside(call: Callable[[], T]) -> Future[T]:
    """Make a call in a thread that has nothing else to do; there are as many as calls were made at once."""
    future: Future[T] = Future()
    _calls.put((call, future))
    if not _idle.acquire(blocking=False):
        threading.Thread(target=_make_calls, name="aside", daemon=True).start()
    return future


def _make_calls() -> None:
    while True:
        _make(*_calls.get())
        _idle.release()


def _make(call: Callable[[], T], future: Future[T]) -> None:
    """Make a call. An error keeps its frames, and those must not keep the error: else the client would live on."""
    try:
        future.set_result(call())
    except BaseException as error:  # whoever waits for the result is to hear of it
        future.set_exception(error)
    finally:
        del call, future


@contextmanager
def alarm(seconds: float, ring: Callable[[], object]) -> Iterator[None]:
    """Call somebody if what is done here takes longer than this."""
    global _watching
    key = object()
    with _changed:
        _alarms[key] = (time.monotonic() + seconds, ring)
        if not _watching:
            _watching = True
            threading.Thread(target=_watch, name="alarms", daemon=True).start()
    try:
        yield
    finally:
        with _changed:
            _alarms.pop(key, None)


def _watch() -> None:
    while True:
        time.sleep(LOOK)
        with _changed:
            due = [key for key, (deadline, _) in _alarms.items() if time.monotonic() >= deadline]
            rings = [_alarms.pop(key)[1] for key in due]
        while rings:
            rings.pop()()
