"""A door before a broker that counts who comes."""

import select
import socket
import threading
from contextlib import suppress


class Counting:
    """Hands every connection on, and counts them."""

    def __init__(self, address):
        self._behind = address.rpartition(":")[::2]
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self.count = 0
        self._threads = [threading.Thread(target=self._welcome, daemon=True)]
        self._threads[0].start()

    def close(self):
        """Nobody comes in any more; those who are in have left by now."""
        self._door.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _welcome(self):
        with self._door, suppress(OSError):
            while True:
                guest, _ = self._door.accept()
                self.count += 1
                self._threads.append(threading.Thread(target=self._hand_on, args=(guest,), daemon=True))
                self._threads[-1].start()

    def _hand_on(self, guest):
        with guest, suppress(OSError), socket.create_connection(self._behind) as host:
            other = {guest: host, host: guest}
            while True:
                for end in select.select(list(other), [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    other[end].sendall(data)
