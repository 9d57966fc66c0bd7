"""The server of the endpoints, in a thread of its own: it answers while the service learns, waits, or is stuck."""

import errno
import logging
import socket
import threading
from asyncio import CancelledError
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette

from stream_ocpdl.errors import ConfigError

PATIENCE = 2.0
"""Seconds to wait for the server when the service ends."""


CUT = ("ASGI callable returned without completing response", "Cancel ")
"""How lines begin that say that somebody was let go: who does not read, or still asks when the service ends."""


def not_a_reader_let_go(record: logging.LogRecord) -> bool:
    """Whether a line of the server's log is another than that an answer was cut, which is no error."""
    cancelled = record.exc_info is not None and isinstance(record.exc_info[1], CancelledError)
    return not cancelled and not record.getMessage().startswith(CUT)


class Server:
    """An ASGI application on an address. The port is taken at once, so that who starts it hears if it is not free."""

    def __init__(self, application: Any, host: str, port: int) -> None:
        self._socket = listen(host, port)
        self.address = address_of(self._socket)
        config = uvicorn.Config(
            application,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        logging.getLogger("uvicorn.error").addFilter(not_a_reader_let_go)
        if isinstance(application, Starlette):  # streams without an end are to end with it
            application.state.ending = lambda: self._server.should_exit
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="endpoints", daemon=True
        )

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; who still asks is not waited for."""
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        self._socket.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket on this address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            told = f"port {port} of {host} is in use; choose another with http.port, 0 for any free one, null for none"
        else:
            told = f"http cannot listen at {host}:{port}: {error.strerror or error}"
        raise ConfigError(told) from None


def address_of(listening: socket.socket) -> str:
    """As one types it into a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
