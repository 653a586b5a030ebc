"""A client that calls an ASGI application directly, as a server would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import unquote

from fastrec.serve import make_app

CLOSE: list[Callable[[], None]] = []  # called by conftest after a test


def serve(export: Any, **options: Any) -> Any:
    app = make_app(export, **options)
    CLOSE.append(app.state.service.close)
    return app


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(test(*args, **fixtures))

    return run


async def until(ready: Any) -> None:
    for _ in range(24_000):
        if ready():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came")


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def request(
    app: Callable[..., Awaitable[None]],
    method: str,
    path: str,
    body: bytes | Iterable[bytes] = b"",
    headers: dict[str, str] | None = None,
    *,
    client: str = "127.0.0.1",
    ends: str = "",
) -> Answer:
    """One request, its body in parts; ``ends``: after them, the client is ``"gone"`` or ``"silent"``."""
    path, _, query = path.partition("?")
    raw = [(k.lower().encode(), v.encode("latin-1")) for k, v in (headers or {}).items()]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": raw, "client": (client, 1), "server": ("127.0.0.1", 80), "state": {},
    }  # fmt: skip
    parts = [body] if isinstance(body, bytes) else list(body)
    more = [i < len(parts) - 1 or bool(ends) for i in range(len(parts))]
    left = [{"type": "http.request", "body": p, "more_body": m} for p, m in zip(parts, more)]
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not left and ends == "silent":
            await asyncio.Event().wait()
        return left.pop(0) if left else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    await app(scope, receive, send)
    head = {k.decode(): v.decode("latin-1") for k, v in said[0]["headers"]}
    return Answer(said[0]["status"], head, b"".join(m.get("body", b"") for m in said[1:]))


def post(app: Any, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
    return asyncio.run(post_soon(app, path, body, headers))


async def post_soon(app: Any, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await request(app, "POST", path, raw, {"content-type": "application/json", **(headers or {})})


def get(app: Any, path: str, headers: dict[str, str] | None = None) -> Answer:
    return asyncio.run(request(app, "GET", path, headers=headers))


def scores(app: Any, body: Any, headers: dict[str, str] | None = None) -> Any:
    answer = post(app, "/v1/score", body, headers)
    assert answer.status == 200, answer.body
    return answer.json()["scores"]


def refused(app: Any, path: str, body: Any, status: int, says: str = "", **options: Any) -> Answer:
    """An answer with this status, whose text says so; ``column`` and ``row``: which of them it names."""
    answer = post(app, path, body, options.pop("headers", None))
    said = answer.json()
    assert answer.status == status, answer.body
    assert says in said["error"], said
    assert {name: said.get(name) for name in options} == options
    return answer
