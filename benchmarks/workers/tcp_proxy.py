"""A TCP proxy that cuts connections and slows them down when it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Proxy:
    """Listens on a free port of this machine and passes bytes on to a target.

    Args:
        target: Host and port.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target, self._cut_until = target, 0.0
        self.delay_s = 0.0  # of every piece of up to 64 kB
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, seconds: float) -> None:
        """End all connections and let none through for a while."""
        self._cut_until = time.monotonic() + seconds
        with self._guard:
            for end in self._open:
                _shut(end)
            self._open.clear()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                if time.monotonic() < self._cut_until:
                    raise OSError("cut")
                server = socket.create_connection(self._target, timeout=5)
                server.settimeout(None)
            except OSError:
                _shut(client)
                client.close()
                continue
            with self._guard:
                self._open |= {client, server}
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(self.delay_s)
                target.sendall(data)
        with self._guard:
            self._open -= {source, target}
        for end in (source, target):
            _shut(end)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
