"""A process among encoders: the main thread takes part in the group, another one codes.

So a batch may take as long as it likes, and the group still hears from us; and a transaction always finds the token of
the present generation.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from stream_ocpdl.errors import OcpdlError

POLL = 0.1
"""Seconds of one poll of the group."""


class Group(Protocol):
    """A membership."""

    def poll(self, timeout: float) -> None:
        """Take part; terms begin and end in here."""
        ...


class Member:
    """Runs the work until told to stop, or until it or the group fails."""

    def __init__(
        self,
        group: Group,
        work: Callable[[Callable[[], bool]], None],
        stopping: Callable[[], bool],
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        """`work` gets a function that says whether to come to an end."""
        self._group, self._work, self._stopping, self._turned = group, work, stopping, turned
        self._errors: list[BaseException] = []

    def run(self) -> None:
        """Work; raise the first error, after everything has ended."""
        thread = threading.Thread(target=self._code, name="encoder", daemon=True)
        thread.start()
        while thread.is_alive():
            self._turned()
            try:
                self._group.poll(POLL)
            except OcpdlError as error:
                self._errors.append(error)
                time.sleep(POLL)  # a poll that fails does not wait
        if self._errors:
            raise self._errors[0]

    def _code(self) -> None:
        try:
            self._work(lambda: self._stopping() or bool(self._errors))
        except BaseException as error:  # the main thread is to raise it
            self._errors.append(error)
