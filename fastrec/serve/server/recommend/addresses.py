"""The address of our own where items are recommended."""

from __future__ import annotations

from typing import Any

from starlette.responses import HTMLResponse, Response

from fastrec.serve.server.bodies import JSON, write_json
from fastrec.serve.server.call import Call
from fastrec.serve.server.pages import times
from fastrec.serve.server.recommend.body import parse_sessions
from fastrec.serve.server.recommend.pages import describe, html
from fastrec.serve.server.recommend.service import RecommendService

__all__ = ["openapi", "page", "recommend"]


async def recommend(service: RecommendService, call: Call) -> Response:
    """Return sessions → for each the ids of its best items, and their scores."""
    spec = service.scorer.spec
    asked, alone = await service.parse(
        len(call.body),
        lambda: parse_sessions(call.body, call.content_type, spec, call.query("k"), service.limits),  # type: ignore[arg-type]
    )
    call.version = service.scorer.label
    best, seconds = await service.answer(asked, call.timeout, call.came)
    answers: list[dict[str, Any]] = [{"ids": ids, "scores": scores} for ids, scores in best]
    body = write_json(answers[0] if alone else {"sessions": answers})
    timing = ", ".join(f"{stage};dur={1000 * took:.3f}" for stage, took in seconds.items())
    return Response(body, media_type=JSON, headers={"Server-Timing": timing} if timing else None)


async def openapi(service: RecommendService, call: Call) -> Response:
    """Answer with OpenAPI 3.1."""
    return Response(write_json(describe(service.scorer.spec)), media_type=JSON)  # type: ignore[arg-type]


async def page(service: RecommendService, call: Call) -> Response:
    """Answer with a page for people."""
    return HTMLResponse(html(service.scorer.spec, times(service.metrics)))  # type: ignore[arg-type]
