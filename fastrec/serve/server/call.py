"""One request of HTTP as the handlers get it: its body read up to a bound, its deadline known."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.requests import Request

from fastrec.serve.server.refusal import Refusal, shortened

__all__ = ["TIMEOUT", "Call", "read_call"]

TIMEOUT = "x-timeout-ms"


@dataclass
class Call:
    """A request with its body.

    Args:
        request: path and query.
        headers: the value of each header; the names are in small letters.
        body: all of it.
        timeout: seconds from ``came`` until the answer is of no use.
        came: when it came, by ``time.monotonic``.
    """

    request: Request
    headers: dict[bytes, bytes]
    body: bytes
    timeout: float
    came: float = field(default_factory=time.monotonic)

    def age(self) -> float:
        """Seconds since it came."""
        return time.monotonic() - self.came

    @property
    def content_type(self) -> str:
        """The header of that name."""
        return self.headers.get(b"content-type", b"").decode("latin-1")

    def query(self, name: str) -> str | None:
        """A parameter of the address."""
        return self.request.query_params.get(name)


async def read_call(request: Request, *, max_body: int, timeout: float) -> Call:
    """Read a request's body and its deadline.

    Args:
        request: as Starlette gives it.
        max_body: bytes that a body may have.
        timeout: seconds that a request may take; its header may ask for less.

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
        parts.append(part)
    return Call(request, headers, parts[0] if len(parts) == 1 else b"".join(parts), timeout, came)


def _too_large(max_body: int) -> Refusal:
    return Refusal(413, f"the body has more than {max_body} bytes", remedy="Send fewer rows")
