"""One request of HTTP as the handlers get it: its body read up to a bound, its deadline known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.requests import Request

from fastrec.serve.server.refusal import Refusal, shortened

__all__ = ["REQUEST_ID", "TIMEOUT", "VERSION", "BytesHeld", "Call", "read_call"]

TIMEOUT = "x-timeout-ms"
REQUEST_ID, VERSION = "x-request-id", "x-model-version"


@dataclass
class Call:
    """A request with its body.

    Args:
        request: path and query.
        headers: the value of each header; the names are in small letters.
        body: all of it.
        timeout: seconds from ``came`` until the answer is of no use.
        came: when it came, by ``time.monotonic``.
        version: what answered it, for the answer's header.
    """

    request: Request
    headers: dict[bytes, bytes]
    body: bytes
    timeout: float
    came: float = field(default_factory=time.monotonic)
    version: str | None = None

    def age(self) -> float:
        """Seconds since it came."""
        return time.monotonic() - self.came

    def id_or(self, said: object) -> object:
        """The request's id: that of the header, else the one that its body says; None: neither."""
        header = self.headers.get(REQUEST_ID.encode())
        return said if header is None else header.decode("latin-1")

    @property
    def content_type(self) -> str:
        """The header of that name."""
        return self.headers.get(b"content-type", b"").decode("latin-1")

    def query(self, name: str) -> str | None:
        """A parameter of the address."""
        return self.request.query_params.get(name)


class BytesHeld:
    """The bytes of all bodies that are being read, wait, or are being answered; bounded.

    Args:
        limit: how many there may be; one body alone may have more.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.now = limit, 0

    @contextmanager
    def one_request(self) -> Iterator[Callable[[int], None]]:
        """While it lasts, what is taken is held.

        Raises:
            Refusal: 503 from the function that takes bytes, where there is no room for them.
        """
        mine = 0

        def take(size: int) -> None:
            nonlocal mine
            if self.now > mine and self.now + size > self._limit:
                raise Refusal(503, "too many bytes are waiting", remedy="Try again later", retry_after=1)
            mine += size
            self.now += size

        try:
            yield take
        finally:
            self.now -= mine


async def read_call(request: Request, *, max_body: int, timeout: float, take: Callable[[int], None]) -> Call:
    """Read a request's body and its deadline.

    Args:
        request: as Starlette gives it.
        max_body: bytes that a body may have.
        timeout: seconds that a request may take; its header may ask for less.
        take: is told the bytes that come, and may refuse them.

    Raises:
        Refusal: the body is too large (413) or compressed (415), or the header is no number (400).
    """
    came = time.monotonic()
    headers = dict(request.scope["headers"])  # looked up once by name, where Starlette goes through them each time
    asked = headers.get(TIMEOUT.encode())
    if asked is not None:
        if not (asked.isdigit() and len(asked) < 10 and int(asked)):
            raise Refusal(400, f"header {TIMEOUT} is {shortened(asked.decode('latin-1'))!r}, not milliseconds above 0")
        timeout = min(timeout, int(asked) / 1000)
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise Refusal(415, "the body is compressed", remedy="Send it as it is")
    if request.method != "POST":
        return Call(request, headers, b"", timeout, came)
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > max_body:
        raise _too_large(max_body)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_body:
            raise _too_large(max_body)
        take(len(part))
        parts.append(part)
    return Call(request, headers, parts[0] if len(parts) == 1 else b"".join(parts), timeout, came)


def _too_large(max_body: int) -> Refusal:
    return Refusal(413, f"the body has more than {max_body} bytes", remedy="Send fewer rows")
