"""Requests at a fixed rate, whether or not answers come (an open loop), over connections that are kept open."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from fastrec.serve.server.load.plan import Target

__all__ = ["Outcome", "send_at_rate"]

_PATIENCE = 35.0  # seconds after the last request; the server's own limit is 30 by default


@dataclass
class Outcome:
    """What came of the requests of one rate.

    Args:
        seconds: of each answer with status 200, from the moment at which its request was due.
        statuses: how many answers had which status; 0: the connection broke, or no answer came.
        took: seconds from the first request's moment to the last answer.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    took: float = 0.0


async def send_at_rate(target: Target, request: bytes, *, rate: float, seconds: float, connections: int) -> Outcome:
    """Send ``rate`` requests a second for ``seconds``.

    A request for which no connection is free waits for one, and its waiting counts.

    Args:
        target: the server.
        request: what is sent, all of it.
        rate: requests a second.
        seconds: how long.
        connections: how many may be open, each with one request on its way.
    """
    load = _Load(target, request, connections)
    count, loop = max(1, round(rate * seconds)), asyncio.get_running_loop()
    begin = loop.time() + 0.05
    for number in range(count):
        due = begin + number / rate
        wait = due - loop.time()
        if wait > 0.0005:  # what is due within a tick goes now
            await asyncio.sleep(wait)
        load.send(due)
        if number % 64 == 63:
            await asyncio.sleep(0)  # answers are read even where the rate cannot be kept up
    try:
        await asyncio.wait_for(load.all_answered(), _PATIENCE)
    except TimeoutError:
        load.give_up()
    load.outcome.took = max(load.last - begin, 1e-9)
    return load.outcome


class _Load:
    """Requests that are due, and the connections that they go out by."""

    def __init__(self, target: Target, request: bytes, connections: int) -> None:
        self._target, self._request, self._left = target, request, connections
        self._due: deque[float] = deque()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._on_way = 0
        self._done = asyncio.Event()
        self.outcome = Outcome()
        self.last = 0.0

    def send(self, due: float) -> None:
        self._on_way += 1
        self._due.append(due)
        self._pass_on()

    async def all_answered(self) -> None:
        while self._on_way:
            self._done.clear()
            await self._done.wait()
        self._close()

    def give_up(self) -> None:
        for _ in range(self._on_way):
            self._count(0, None)
        self._close()

    def answered(self, connection: _Connection, status: int, due: float, *, open_still: bool) -> None:
        self._count(status, due)
        if open_still:
            self._idle.append(connection)
        else:
            self.lost(connection)
        self._pass_on()

    def lost(self, connection: _Connection) -> None:
        """A connection is gone; another may be opened for it."""
        if connection in self._open:
            self._open.discard(connection)
            self._left += 1
            if connection in self._idle:
                self._idle.remove(connection)

    def _pass_on(self) -> None:
        while self._due and self._idle:
            self._idle.pop().send(self._request, self._due.popleft())
        while self._left and len(self._opening) < len(self._due):
            self._left -= 1
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self), self._target.host, self._target.port
            )
        except OSError:
            self._left += 1
            if self._due:
                self._due.popleft()
                self._count(0, None)
            return
        self._open.add(connection)
        self._idle.append(connection)
        self._pass_on()

    def _count(self, status: int, due: float | None) -> None:
        self.last = asyncio.get_running_loop().time()
        self.outcome.statuses[status] = self.outcome.statuses.get(status, 0) + 1
        if status == 200 and due is not None:
            self.outcome.seconds.append(self.last - due)
        self._on_way -= 1
        if not self._on_way:
            self._done.set()

    def _close(self) -> None:
        for connection in list(self._open):
            connection.close()


class _Connection(asyncio.Protocol):
    """One connection with at most one request on its way; reads answers that state their length."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._due: float | None = None
        self._buffer = bytearray()
        self._size = -1  # of the answer, head and body; -1: not known yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, request: bytes, due: float) -> None:
        self._due = due
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._size < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end]).lower()
            at = head.find(b"content-length:")
            length = 0 if at < 0 else int(head[at + 15 :].split(b"\r\n", 1)[0])
            self._size, self._status = end + 4 + length, int(head[9:12])
            self._stays = b"connection: close" not in head
        if len(self._buffer) >= self._size and self._due is not None:
            due, self._due = self._due, None
            self._buffer.clear()
            self._size = -1
            if not self._stays:
                self._transport.close()
            self._load.answered(self, self._status, due, open_still=self._stays)

    def connection_lost(self, error: Exception | None) -> None:
        due, self._due = self._due, None
        self._load.lost(self)
        if due is not None:
            self._load.answered(self, 0, due, open_still=False)
