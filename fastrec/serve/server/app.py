"""The server as an ASGI application: addresses, who may use them, and errors as JSON."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from fastrec._core.limits import CLIENT_BODIES
from fastrec.serve.server import pages
from fastrec.serve.server import protocols as v1
from fastrec.serve.server import protocols as v2
from fastrec.serve.server import recommend as addresses
from fastrec.serve.server.bodies import JSON, write_json
from fastrec.serve.server.call import VERSION, BytesHeld, Call, Limits, Refusal, read_call
from fastrec.serve.server.recommend import RecommendService, recommends
from fastrec.serve.server.service import CONTENT_TYPE, EventState, Service
from fastrec.serve.server.versions import Canary

__all__ = ["build_app"]

_log = logging.getLogger("fastrec.serve")
_Handler: TypeAlias = Callable[[Any, Call], Awaitable[Response]]


def build_app(
    export: str | Path,
    *,
    events: EventState | None = None,
    limits: Limits | None = None,
    token: str | None = None,
    canary: Canary | None = None,
) -> Starlette:
    """Build the application of ``make_app``."""
    recommending = recommends(export)
    service: Any = (
        RecommendService(export, limits=limits, canary=canary)
        if recommending
        else Service(export, events=events, limits=limits, canary=canary)
    )
    held = BytesHeld(CLIENT_BODIES * service.limits.max_body)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.get_running_loop().create_task(service.watch())
        yield
        watching.cancel()
        service.close()

    def route(path: str, handler: _Handler, *, method: str = "GET", public: bool = False) -> Route:
        return Route(path, _endpoint(service, held, path, handler, None if public else token), methods=[method])

    async def reload(service: Service, call: Call) -> Response:
        if token is None:
            raise Refusal(403, "there is no token", remedy="Start the server with one, or send it SIGHUP")
        return await v1.reload(service, call)

    routes = [
        route("/v1/reload", reload, method="POST"),
        route("/health", _alive, public=True),
        route("/ready", _ready, public=True),
        route("/metrics", _metrics),
        route("/openapi.json", addresses.openapi if recommending else pages.openapi),
        route("/", addresses.page if recommending else pages.page),
    ]
    routes.append(route("/docs", addresses.page if recommending else pages.page))
    routes += [route("/v1/recommend", addresses.recommend, method="POST")] if recommending else _scoring(route)
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_such_address})
    app.state.service = service
    return app


def _scoring(route: Callable[..., Route]) -> list[Route]:
    routes = [
        route("/v1/score", v1.score, method="POST"),
        route("/v1/rank", v1.rank, method="POST"),
        route("/v1/events", v1.events, method="POST"),
        route("/v2", v2.server),
        route("/v2/health/live", _alive, public=True),
        route("/v2/health/ready", _ready, public=True),
    ]
    for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        routes += [
            route(model, v2.model),
            route(f"{model}/ready", v2.model_ready),
            route(f"{model}/infer", v2.infer, method="POST"),
        ]
    return routes


def _endpoint(
    service: Service, held: BytesHeld, path: str, handler: _Handler, token: str | None
) -> Callable[[Request], Awaitable[Response]]:
    """Wrap a handler in what all addresses share: token, body, errors, counts."""

    limits = service.limits

    async def endpoint(request: Request) -> Response:
        call = None
        try:
            if token is not None:
                _check_token(request, token)
            with held.one_request(request.client.host if request.client else None) as one:
                call = await read_call(request, max_body=limits.max_body, timeout=limits.timeout, held=one)
                response = await handler(service, call)
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


def _check_token(request: Request, token: str) -> None:
    kind, _, sent = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(sent.strip().encode(), token.encode()):
        raise Refusal(401, "the token is missing or wrong", remedy="Send the header `Authorization: Bearer TOKEN`")


def _refused(refusal: Refusal) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
    if refusal.status == 408:  # what still comes is not waited for
        headers["Connection"] = "close"
    if refusal.retry_after is not None:
        headers["Retry-After"] = str(refusal.retry_after)
    return Response(write_json(refusal.body()), refusal.status, headers=headers, media_type=JSON)


async def _no_such_address(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {404: "there is no such address", 405: "this address takes another method"}.get(error.status_code)
    return Response(
        write_json({"error": said or error.detail}), error.status_code, headers=error.headers, media_type=JSON
    )


async def _alive(service: Service, call: Call) -> Response:
    return v1.json_response({"live": True})


async def _ready(service: Service, call: Call) -> Response:
    return v1.json_response({"ready": not service.stopping}, 503 if service.stopping else 200)


async def _metrics(service: Service, call: Call) -> Response:
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)
