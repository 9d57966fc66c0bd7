"""Ctrl-C while a command is still being imported, or is on its way out: it ends at once, and without a traceback.

To import Numba takes most of a second, and an interrupt in there would be shown as a bug. So, if this process is our
command, signals keep the system's own meaning until the command is there, and have it again when it is done. A program
that imports the package as a library has its signals for itself.

The first process of a container is another matter: to it the system's own meaning of a signal is none at all, and
SIGTERM would be ignored until the service has its own handler, after minutes of compiling. So it gets one at once.
"""

import os
import signal
import sys
from os.path import basename  # which is there already: to import anything takes time


def is_command() -> bool:
    """Whether this process was started as `stream-ocpdl`, or `python -m stream_ocpdl`."""
    if not sys.argv:
        return False
    name, words = basename(sys.argv[0]), sys.orig_argv
    module = any(words[i : i + 2] == ["-m", "stream_ocpdl"] for i in range(1, len(words)))
    return name == "stream-ocpdl" or (module and name in ("-m", "__main__.py"))


def quiet() -> None:
    """From now on an interrupt just ends the command."""
    if is_command() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def heard() -> None:
    """From now on it is an exception."""
    if is_command() and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def fatal(last_words: bytes = b"") -> None:
    """From now on it ends the command without an exception: compilers call back, and some lose one on the way."""

    def end(number: int, _: object) -> None:
        os.write(1, last_words)
        os._exit(128 + number)

    if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def mortal() -> None:
    """From now on SIGTERM ends this process also if it is the first one of its container."""
    if is_command() and os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


quiet()
mortal()
