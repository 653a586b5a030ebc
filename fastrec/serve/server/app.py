"""The server as an ASGI application (addresses, who may use them, errors as JSON), and its process."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from fastrec._core.limits import CLIENT_BODIES
from fastrec.serve.online import Online
from fastrec.serve.server import pages, protocols, recommend
from fastrec.serve.server.bodies import json_response
from fastrec.serve.server.call import VERSION, BytesHeld, Call, Limits, Refusal, read_call
from fastrec.serve.server.pages import Address
from fastrec.serve.server.service import CONTENT_TYPE, Service
from fastrec.serve.server.spec import read_spec
from fastrec.serve.server.versions import Canary

_log = logging.getLogger("fastrec.serve")


def make_app(
    export: str | Path,
    *,
    events: Online | None = None,
    limits: Limits | None = None,
    token: str | None = None,
    canary: Canary | None = None,
) -> Starlette:
    """Make an application for one export, registry, recommender or run; the model is loaded and warm on return.

    Any ASGI server runs it: ``uvicorn.run(make_app("export"))``.

    Args:
        export: an export of ``fastrec export``; a registry, whose current version answers (a promoted one takes over
            within a second, and no request is lost); a folder of ``Recommender.save``; or the run directory of a recipe
            for next items. The last two answer ``/v1/recommend``.
        events: the state from which the export's columns of events are computed.
        limits: the server's bounds; None: the defaults of ``Limits``.
        token: the token that clients must send as ``Authorization: Bearer …``, except for health; None: all requests
            are answered, and only SIGHUP reloads.
        canary: a version of the registry that answers a share of the requests.

    Returns:
        A Starlette application; ``app.state.service`` holds the export.

    Raises:
        MissingFileError: there is no export.
        UnreadableFileError: the files are not of one export, or are damaged.
        MissingPackageError: onnxruntime is not installed.
    """
    service: Any
    if recommend.recommends(export):
        service, own, page = recommend.RecommendService(export, limits=limits, canary=canary), _SESSIONS, recommend.page
    else:
        service, own, page = Service(export, events=events, limits=limits, canary=canary), _ROWS, pages.page
    service.addresses = [*own, *_ALL, Address("/", page), Address("/docs", page)]
    held = BytesHeld(CLIENT_BODIES * service.limits.max_body)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.get_running_loop().create_task(service.watch())
        yield
        watching.cancel()
        service.close()

    routes = [Route(a.path, _endpoint(service, held, a, token), methods=[a.method]) for a in service.addresses]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_such_address})
    app.state.service = service
    return app


def _endpoint(
    service: Service, held: BytesHeld, address: Address, token: str | None
) -> Callable[[Request], Awaitable[Response]]:
    limits, path = service.limits, address.path

    async def endpoint(request: Request) -> Response:
        call = None
        try:
            if token is not None and not address.public:
                kind, _, sent = request.headers.get("authorization", "").partition(" ")
                if kind.lower() != "bearer" or not hmac.compare_digest(sent.strip().encode(), token.encode()):
                    remedy = "Send the header `Authorization: Bearer TOKEN`"
                    raise Refusal(401, "the token is missing or wrong", remedy=remedy)
            if token is None and address.handler is protocols.reload:
                raise Refusal(403, "there is no token", remedy="Start the server with one, or send it SIGHUP")
            with held.one_request(request.client.host if request.client else None) as one:
                call = await read_call(request, max_body=limits.max_body, timeout=limits.timeout, held=one)
                response = await address.handler(service, call)
        except Refusal as refusal:
            response = _refused(refusal)
        except ClientDisconnect:
            response = Response(b"", 400)  # nobody reads it
        except Exception:
            _log.exception("%s failed", path)
            response = _refused(Refusal(500, "the server failed on this request; its log says why"))
        if call is not None:
            service.metrics.seconds.see(call.age(), path)
            if call.version is not None:
                response.headers[VERSION] = call.version
                service.metrics.answers.add(call.version, str(response.status_code))
        service.metrics.requests.add(path, str(response.status_code))
        return response

    return endpoint


def _refused(refusal: Refusal) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
    if refusal.status == 408:  # what still comes is not waited for
        headers["Connection"] = "close"
    if refusal.retry_after is not None:
        headers["Retry-After"] = str(refusal.retry_after)
    return json_response(refusal.body(), refusal.status, headers)


async def _no_such_address(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {404: "there is no such address", 405: "this address takes another method"}
    return json_response({"error": known.get(error.status_code, error.detail)}, error.status_code, error.headers)


async def _alive(service: Service, call: Call) -> Response:
    return json_response({"live": True})


async def _ready(service: Service, call: Call) -> Response:
    return json_response({"ready": not service.stopping}, 503 if service.stopping else 200)


async def _metrics(service: Service, call: Call) -> Response:
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


_ALL = [
    Address("/v1/reload", protocols.reload, "Load the model anew; needs the token.", "POST"),
    Address("/health", _alive, "Whether the process answers.", public=True),
    Address("/ready", _ready, "Whether requests should be sent here.", public=True),
    Address("/metrics", _metrics, "Counts and durations for Prometheus."),
    Address("/openapi.json", pages.openapi),
]
_SESSIONS = [Address("/v1/recommend", recommend.recommend, recommend.SAYS, "POST", post=recommend.of_sessions)]
_ROWS = [
    *protocols.ADDRESSES,
    Address("/v2/health/live", _alive, public=True),
    Address("/v2/health/ready", _ready, public=True),
]


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
        http=protocols.bounded(service.limits.timeout),
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
    if recommend.recommends(export) or read_spec(export).events is None:
        yield None
        return
    online = Online.load(Path(export) / "events")
    try:
        yield online
    finally:
        online.close()
