"""HTTP connections whose deadline belongs to the socket: whatever a server sends, and however
slowly, it ends in time.
"""

from __future__ import annotations

import http.client
import io
import socket
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


class TimedConnection(http.client.HTTPConnection):
    """A connection in clear text with a deadline for each request."""

    deadline = 0.0

    def until(self, deadline: float) -> None:
        """Everything from now on, connecting included, must be over by then."""
        self.deadline = deadline
        self.timeout = max(deadline - monotonic(), 0.001)
        if isinstance(self.sock, _Timed):
            self.sock.deadline = deadline

    def connect(self) -> None:
        super().connect()
        self.sock: Any = _Timed(self.sock, self.deadline)


class TimedTlsConnection(http.client.HTTPSConnection):
    """The same over TLS; the handshake is part of the time."""

    deadline = 0.0

    def until(self, deadline: float) -> None:
        """Everything from now on, connecting included, must be over by then."""
        self.deadline = deadline
        self.timeout = max(deadline - monotonic(), 0.001)
        if isinstance(self.sock, _Timed):
            self.sock.deadline = deadline

    def connect(self) -> None:
        super().connect()
        self.sock: Any = _Timed(self.sock, self.deadline)
