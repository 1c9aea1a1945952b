"""HTTP connections whose deadline belongs to the socket: whatever a server sends, and however
slowly, it ends in time.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
from time import monotonic
from typing import Any


class _Timed:
    """A connected socket that every operation may use only until `deadline` (monotonic seconds)."""

    def __init__(self, inner: socket.socket, deadline: float) -> None:
        self.inner = inner
        self.deadline = deadline

    def left(self) -> float:
        seconds = self.deadline - monotonic()
        if seconds <= 0:
            raise TimeoutError("the time for this request is over")
        return seconds

    def sendall(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while view:
            self.inner.settimeout(self.left())
            view = view[self.inner.send(view[: 1 << 20]) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self))

    def close(self) -> None:
        self.inner.close()


class _Incoming(io.RawIOBase):
    """What the server sends. Closing it leaves the connection open, as http.client expects."""

    def __init__(self, timed: _Timed) -> None:
        super().__init__()
        self.timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.timed.inner.settimeout(self.timed.left())
        return self.timed.inner.recv_into(buffer)


class _Punctual(http.client.HTTPConnection):
    """What connections with a deadline for each request have in common."""

    deadline = 0.0

    def until(self, deadline: float) -> None:
        """Everything from now on, connecting included, must be over by then."""
        self.deadline = deadline
        self.timeout = max(deadline - monotonic(), 0.001)
        if isinstance(self.sock, _Timed):
            self.sock.deadline = deadline

    def disturbed(self) -> bool:
        """Whether the server has hung up or sent something since the last answer: what it says next
        may not be the answer to the next request.
        """
        if not isinstance(self.sock, _Timed):
            return False
        self.sock.inner.settimeout(0)
        try:
            self.sock.inner.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        return True

    def connect(self) -> None:
        """To one address of the host after the other, for as long as there is time."""
        self._create_connection = self._reached
        super().connect()
        self.sock: Any = _Timed(self.sock, self.deadline)

    def _reached(self, address: tuple[str, int], *rest: object) -> socket.socket:
        host, port = address
        failed: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, place in socket.getaddrinfo(
            host, port, 0, socket.SOCK_STREAM
        ):
            left = self.deadline - monotonic()
            if left <= 0:
                raise TimeoutError("the time for this request is over")
            link = socket.socket(family, kind, protocol)
            link.settimeout(left)
            try:
                link.connect(place)
                return link
            except OSError as error:
                link.close()
                failed = error
        raise failed


class TimedConnection(_Punctual):
    """A connection in clear text with a deadline for each request."""


class TimedTlsConnection(_Punctual, http.client.HTTPSConnection):
    """The same over TLS; the handshake is part of the time."""
