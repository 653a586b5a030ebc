"""The server as a process: signals, threads, the socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from fastrec.serve.online import Online
from fastrec.serve.server.call import Refusal
from fastrec.serve.server.protocols import bounded
from fastrec.serve.server.recommend import recommends
from fastrec.serve.server.service import Service
from fastrec.serve.server.spec import read_spec

if TYPE_CHECKING:
    from starlette.applications import Starlette


def run_app(app: Starlette, *, host: str, port: int, started: Callable[[str], None] | None = None) -> None:
    """Answer until SIGTERM or Ctrl-C, and finish accepted requests. SIGHUP reloads the export.

    Port 0 is a free one; ``started`` is called with the server's address when it listens.
    """
    # Threads that put batches together and the event loop take turns: with the 5 ms that are usual the loop would wait
    # that long for each of them.
    sys.setswitchinterval(0.0005)
    log = logging.getLogger("fastrec.serve")
    if not log.hasHandlers():  # a reload says one line
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
    service: Service = app.state.service
    config = uvicorn.Config(
        app, host=host, port=port, access_log=False, log_level="warning", timeout_graceful_shutdown=60, ws="none",
        http=bounded(service.limits.timeout),
    )  # fmt: skip
    _Server(config, service, started).run()


class _Server(uvicorn.Server):
    """A uvicorn server that also reloads, marks the service as stopping, and exits with status 0 on a signal."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[str], None] | None) -> None:
        super().__init__(config)
        self._service, self._say = service, started
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started and self._say is not None:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._say(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers = {s: lambda s=s: self.handle_exit(s, None) for s in (signal.SIGINT, signal.SIGTERM)}
        handlers |= {signal.SIGHUP: self._reload} if hasattr(signal, "SIGHUP") else {}
        for one, handler in handlers.items():
            loop.add_signal_handler(one, handler)
        try:
            yield
        finally:
            for one in handlers:
                loop.remove_signal_handler(one)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._service.stopping = True
        super().handle_exit(sig, frame)

    def _reload(self) -> None:
        async def reload() -> None:
            with contextlib.suppress(Refusal):  # it is in the log
                await self._service.reload()

        task = asyncio.get_running_loop().create_task(reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@contextmanager
def open_events(export: str | Path) -> Iterator[Online | None]:
    """Open the state that computes an export's columns from events; None: it needs none."""
    if recommends(export) or read_spec(export).events is None:
        yield None
        return
    online = Online.load(Path(export) / "events")
    try:
        yield online
    finally:
        online.close()
