"""Connections of raters' browsers, bounded in number and in time."""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BoundedConnection"]


class BoundedConnection(H11Protocol):
    """uvicorn's connection, which must send each request whole within `seconds` and in at most
    `largest` bytes: whoever goes on sending after the answer "too large" is cut off.

    Beyond `most` connections that still owe a request, the one that owes it longest is closed: slow
    ones are pushed out by others, never the other way round.
    """

    seconds: ClassVar[float] = 15.0
    most: ClassVar[int] = 800
    largest: ClassVar[int] = 2**18
    _received = 0
    _waiting: ClassVar[dict[BoundedConnection, TimerHandle]] = {}

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > self.largest:
            self._drop()
            return
        super().data_received(data)
        if self.conn.their_state is h11.DONE:
            self._stop_waiting()
            self._received = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # a request that was answered before its end keeps the time that it had
        if self.conn.their_state is not h11.DONE and self not in self._waiting:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        if len(self._waiting) >= self.most:
            next(iter(self._waiting))._drop()
        self._waiting[self] = self.loop.call_later(self.seconds, self._drop)

    def _drop(self) -> None:
        self._stop_waiting()
        self.transport.abort()

    def _stop_waiting(self) -> None:
        timer = self._waiting.pop(self, None)
        if timer is not None:
            timer.cancel()
