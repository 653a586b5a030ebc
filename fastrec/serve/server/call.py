"""One HTTP request for the handlers: its body, up to a bound, and its deadline."""

from __future__ import annotations

import asyncio
import reprlib
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from fastrec._core import limits
from fastrec.errors import FastrecError


@dataclass(frozen=True)
class Limits:
    """The bounds of a server.

    Args:
        batch_rows: rows of a batch; a larger request is scored alone, so 1 means no batches.
        max_wait: seconds that a batch which is not full waits for more requests.
        queue_rows: rows that may wait; further requests are refused (503).
        max_rows: rows of one request.
        max_body: bytes of one body.
        timeout: seconds until a request is refused (504); a request may ask for less.
        workers: batches that are scored at once; None: the number of cores.
        threads: threads of onnxruntime for one batch.
        device: the device that computes: ``'cpu'``, ``'cuda'`` or ``'tensorrt'``.
    """

    batch_rows: int = 256
    max_wait: float = 0.0
    queue_rows: int = 32_768
    max_rows: int = 10_000
    max_body: int = 32 * 2**20
    timeout: float = 30.0
    workers: int | None = None
    threads: int = 1
    device: str = "cpu"


class Refusal(FastrecError):
    """An error that a client gets as its answer.

    Args:
        status: the status of HTTP, 400 to 599.
        problem, column, row, remedy: see ``FastrecError``; ``row`` is that of the request, from 0.
        retry_after: seconds after which the same request may be sent again, for 503.
    """

    def __init__(
        self,
        status: int,
        problem: str,
        *,
        column: str | None = None,
        row: int | None = None,
        remedy: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(problem, column=None if column is None else shortened(column), row=row, remedy=remedy)
        self.status, self.retry_after = status, retry_after

    def body(self) -> dict[str, Any]:
        """Return the error as the client gets it: ``error``, and ``column`` and ``row`` if known."""
        known = {n: v for n, v in (("column", self.column), ("row", self.row)) if v is not None}
        return {"error": str(self), **known}


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 60


def shortened(value: Any) -> str:
    """Write a client's value for a message: long values are cut, half characters are escaped."""
    text = value if isinstance(value, str) and len(value) <= 60 else _BRIEF.repr(value)
    return text.encode("utf-8", "backslashreplace").decode()


TIMEOUT = "x-timeout-ms"
REQUEST_ID, VERSION = "x-request-id", "x-model-version"


@dataclass
class Call:
    """A request with its body."""

    request: Request
    headers: dict[bytes, bytes]  # by their names in small letters
    body: bytes
    timeout: float  # seconds from ``came``
    came: float = field(default_factory=time.monotonic)
    version: str | None = None  # what answered, for the answer's header

    def age(self) -> float:
        """Return the seconds since it came."""
        return time.monotonic() - self.came

    def id_or(self, said: object) -> object:
        """Return the request's id from its header, else ``said``, the one of its body."""
        header = self.headers.get(REQUEST_ID.encode())
        return said if header is None else header.decode("latin-1")

    @property
    def content_type(self) -> str:
        """The header of that name."""
        return self.headers.get(b"content-type", b"").decode("latin-1")

    def query(self, name: str) -> str | None:
        """Return a parameter of the address."""
        return self.request.query_params.get(name)


class BytesHeld:
    """The bytes of all bodies in memory: at most ``limit`` for a client, and twice that in total.

    A single body may have more. If there is no room, a body that has been arriving for over a second is dropped.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._now = limit, Counter[Any]()
        self._bodies: dict[HeldBody, None] = {}  # the oldest first

    @contextmanager
    def one_request(self, client: str | None) -> Iterator[HeldBody]:
        """Count the bytes of one request's body, by the client's address."""
        one = HeldBody(self, client)
        self._bodies[one] = None
        try:
            yield one
        finally:
            del self._bodies[one]
            self.give_back(one)

    def take(self, one: HeldBody, size: int) -> None:
        """Count more bytes of a body; refuse them (503) if there is no room."""
        for who, limit in ((one.client, self._limit), (_ALL, 2 * self._limit)):
            while self._now[who] > one.bytes and self._now[who] + size > limit:
                slow = (b for b in self._bodies if b is not one and b.is_slow() and who in (b.client, _ALL))
                late = next(slow, None)
                if late is None:
                    raise Refusal(503, "too many bytes are waiting", remedy="Try again later", retry_after=1)
                late.give_way()
        one.bytes += size
        self._now[one.client] += size
        self._now[_ALL] += size

    def give_back(self, one: HeldBody) -> None:
        """Release the bytes of a body."""
        for who in (one.client, _ALL):
            self._now[who] -= one.bytes
        self._now += Counter()  # without clients that have none
        one.bytes = 0


_ALL = object()


@dataclass(eq=False)
class HeldBody:
    """The body of one request of a ``client``, counted by ``of``."""

    of: BytesHeld
    client: str | None
    bytes: int = 0
    came: float = field(default_factory=time.monotonic)
    gave_way: bool = False
    reading: asyncio.Timeout | None = None  # while it comes

    def is_slow(self) -> bool:
        """Check if it is still arriving and may be dropped."""
        return self.reading is not None and time.monotonic() - self.came > limits.SLOW_BODY

    def give_way(self) -> None:
        """Stop reading it."""
        self.reading.reschedule(0)  # long past
        self.reading, self.gave_way = None, True
        self.of.give_back(self)


async def read_call(request: Request, *, max_body: int, timeout: float, held: HeldBody) -> Call:
    """Read a request's body, of at most ``max_body`` bytes, and its deadline; ``held`` counts the bytes."""
    came = time.monotonic()
    headers = dict(request.scope["headers"])  # a dict: Starlette searches all headers each time
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
    if length.isdigit() and int(length[:20]) > max_body:  # cut: int() of endless digits takes long
        raise _too_large(max_body)
    parts, size = [], 0
    try:
        async with asyncio.timeout(timeout) as held.reading:
            async for part in request.stream():
                size += len(part)
                if size > max_body:
                    raise _too_large(max_body)
                held.of.take(held, len(part))
                parts.append(part)
    except TimeoutError:
        said = "while others waited" if held.gave_way else f"within {timeout:g} s"
        raise Refusal(408, f"the body did not come {said}") from None
    finally:
        held.reading = None
    return Call(request, headers, parts[0] if len(parts) == 1 else b"".join(parts), timeout, came)


def _too_large(max_body: int) -> Refusal:
    return Refusal(413, f"the body has more than {max_body} bytes", remedy="Send fewer rows")
