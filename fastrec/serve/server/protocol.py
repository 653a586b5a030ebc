"""HTTP as uvicorn reads it with httptools, with bounds: how large the head of a request is, and how long it takes."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fastrec.serve.server.bodies import JSON, write_json

__all__ = ["bounded"]

_BYTES, _HEADERS = 64 * 1024, 128  # of a request's head


def bounded(seconds: float) -> type[HttpToolsProtocol]:
    """Make a protocol that refuses a late head (408) or one of more than 64 KiB or 128 headers (431).

    Args:
        seconds: until the head of a request must be there.
    """

    class Bounded(HttpToolsProtocol):
        _unread = 0  # bytes since the parser last told of a body or of a new request
        _alarm: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._alarm = self.loop.call_later(seconds, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_is_there()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._unread += len(data)
            super().data_received(data)
            if self._unread > _BYTES and not self.transport.is_closing():
                # a head without an end, or what follows a body: that one is being answered
                self._end(431, _TOO_LARGE, answered=self.cycle is not None and not self.cycle.response_complete)

        def on_message_begin(self) -> None:
            self._unread = 0
            super().on_message_begin()
            if self._alarm is None:
                self._alarm = self.loop.call_later(seconds, self._give_up)

        def on_body(self, body: bytes) -> None:
            self._unread = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._unread = 0
            super().on_message_complete()

        def on_headers_complete(self) -> None:
            self._head_is_there()
            app, size = self.app, len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > _BYTES or len(self.headers) > _HEADERS:
                self.app, self.url = _refuse, b"/"
            try:
                super().on_headers_complete()
            finally:
                self.app = app

        def send_400_response(self, msg: str) -> None:
            self._end(400, "this is no request of HTTP")

        def _give_up(self) -> None:
            self._end(408, f"the head did not come within {seconds:g} s", answered=self.scope is None)

        def _end(self, status: int, says: str, *, answered: bool = False) -> None:
            if not answered:
                body = write_json({"error": says})
                head = f"connection: close\r\ncontent-type: {JSON}\r\ncontent-length: {len(body)}\r\n\r\n"
                self.transport.write(STATUS_LINE[status] + head.encode() + body)
            self.transport.close()

        def _head_is_there(self) -> None:
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None

    return Bounded


_TOO_LARGE = f"the head has more than {_BYTES} bytes or {_HEADERS} headers"


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    await Response(write_json({"error": _TOO_LARGE}), 431, headers={"Connection": "close"}, media_type=JSON)(
        scope, receive, send
    )
