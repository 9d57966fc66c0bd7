"""Child processes and their files that never outlive us, however we end.

`close()` ends them in an orderly exit. When this process is killed nothing of it runs any more, so a guardian
process watches: it leads the process group of all children, and once its parent is gone it kills the group and
removes the directory. Asking the kernel instead (PR_SET_PDEATHSIG) would tie the children to the *thread* that
started them, needs code between fork and exec, leaves the files, and exists on Linux only.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

_WAIT_SECONDS = 30.0

# SIGHUP comes to a group with stopped members when its parent dies: just when the guardian is needed.
# The killer leaves the group first, or it would kill itself before it removes the files.
_GUARDIAN = """
import os, shutil, signal, sys, time
parent, directory = int(sys.argv[1]), sys.argv[2]
signal.signal(signal.SIGHUP, signal.SIG_IGN)
while os.getppid() == parent:
    time.sleep(0.2)
group = os.getpgrp()
if os.fork() == 0:
    os.setsid()
    os.killpg(group, signal.SIGKILL)
    time.sleep(0.2)
    shutil.rmtree(directory, ignore_errors=True)
else:
    os.wait()
"""


class ProcessGroup:
    """A temporary directory and the processes that work in it."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARDIAN, str(os.getpid()), str(self.directory)],
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        self._children: list[subprocess.Popen[bytes]] = []

    def spawn(self, command: list[str], cwd: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start a process of the group; what it prints is appended to `log`."""
        with log.open("ab") as output:
            child = subprocess.Popen(
                command,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=self._guardian.pid,
            )
        self._children.append(child)
        return child

    def close(self) -> None:
        """Kill every process of the group, and remove the directory. May be called again."""
        if self._guardian.returncode is None:
            os.killpg(self._guardian.pid, signal.SIGKILL)
            for process in (*self._children, self._guardian):
                process.wait(_WAIT_SECONDS)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def tail(log: Path, lines: int = 25) -> str:
    """The last complaints in a log: an orderly shutdown says a hundred harmless things after the one that matters."""
    complaints = [line for line in log.read_text(errors="replace").splitlines() if " INFO " not in line]
    return "\n".join(complaints[-lines:])
