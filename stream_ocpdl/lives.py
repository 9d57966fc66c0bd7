"""The service as a process, for those who start it to kill it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from stream_ocpdl.config.settings import Settings
from stream_ocpdl.errors import OcpdlError


class VerificationFailed(OcpdlError):
    """The service did not do what it is started for."""


class Life:
    """A process of the service, with its log; whatever is left of it at the end is killed."""

    def __init__(self, settings: Settings, *more: str, **variables: str) -> None:
        """`more` are words of its command line, `variables` of its environment."""
        self._directory = tempfile.TemporaryDirectory()
        path = Path(self._directory.name)
        settings.save(path / "service.json")
        alone = ["--config", str(path / "service.json"), "--set", "http.port=null"]  # many of them on one machine
        command = [sys.executable, "-m", "stream_ocpdl", "run", *alone, *more]
        self._path = path / "log"
        with self._path.open("wb") as log:
            environment = os.environ | variables
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=environment)  # noqa: S603
        self._log = ""

    @property
    def log(self) -> str:
        """What it has said so far."""
        if self._path.exists():
            self._log = self._path.read_text(errors="replace")
        return self._log

    def lines(self) -> list[dict[str, Any]]:
        """The same, line by line, without one that is not whole."""
        return [json.loads(line) for line in self.log.split("\n")[:-1] if line.startswith("{")]

    def close(self) -> None:
        """Kill it, if need be. What it said can still be read."""
        self.process.kill()
        self.process.wait()
        _ = self.log
        self._directory.cleanup()

    def sleep(self, seconds: float) -> None:
        """Sleep, unless the service ends by itself."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise VerificationFailed(f"the service ended by itself with code {self.process.returncode}")

    def dies(self, point: str) -> bool:
        """Wait for the crash point; false if a replay that is to be interrupted does not come."""
        try:
            self.process.wait(30 if point == "in-replay" else 120)
        except subprocess.TimeoutExpired:
            if point == "in-replay":
                return False
            raise VerificationFailed(f"the crash point {point} was not reached in 120 s") from None
        if self.process.returncode != -signal.SIGKILL:
            raise VerificationFailed(f"the service ended by itself with code {self.process.returncode} before {point}")
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self.close()
        if isinstance(error, VerificationFailed):
            error.add_note(self.log[-4000:])
