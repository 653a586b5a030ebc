"""The addresses of our own: score, rank, events, reload."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from starlette.responses import Response

from fastrec.serve.server.bodies import JSON, Body, parse_body, write_json
from fastrec.serve.server.call import Call
from fastrec.serve.server.columns import RequestColumns
from fastrec.serve.server.events_body import events_table
from fastrec.serve.server.refusal import Refusal, shortened
from fastrec.serve.server.scorer import Scorer
from fastrec.serve.server.service import Service

__all__ = ["events", "json_response", "rank", "reload", "score", "top"]


def json_response(value: dict[str, Any], status: int = 200) -> Response:
    """Make an answer of JSON."""
    return Response(write_json(value), status, media_type=JSON)


async def score(service: Service, call: Call) -> Response:
    """Answer rows with their scores, in the rows' order."""

    def parse() -> tuple[Scorer, RequestColumns]:
        body = parse_body(call.body, call.content_type, {"context", "request_id"}, service.limits)
        scorer = _answering(service, call, body)
        return scorer, body.columns(scorer.spec, service.limits.max_rows)

    scorer, columns = await service.parse(len(call.body), parse)
    outputs = await service.score(scorer, columns, call.timeout, call.came)
    answer: dict[str, Any] = {"scores": outputs[0].tolist()}
    if scorer.spec.classes is not None and scorer.spec.outputs[0].width > 1:
        answer["classes"] = scorer.spec.classes
    return json_response(answer)


async def rank(service: Service, call: Call) -> Response:
    """Answer one list's candidates with their ids, the best first; equal scores keep the candidates' order."""

    def parse() -> tuple[Scorer, Body, RequestColumns]:
        body = parse_body(call.body, call.content_type, {"context", "k", "request_id"}, service.limits)
        scorer = _answering(service, call, body)
        if scorer.spec.outputs[0].width != 1:
            raise Refusal(422, f"a {scorer.spec.task} model gives several scores a row, which have no order")
        return scorer, body, body.columns(scorer.spec, service.limits.max_rows)

    scorer, body, columns = await service.parse(len(call.body), parse)
    k = top(body.fields.get("k", call.query("k")))
    if columns.n_lists > 1:
        raise Refusal(422, f"there are {columns.n_lists} lists, and one is ranked", column=scorer.spec.list)
    scores = (await service.score(scorer, columns, call.timeout, call.came))[0]
    order = np.argsort(-scores.astype(np.float64), kind="stable")[:k]
    positions = order.tolist()
    ids = positions if columns.items is None else [columns.items[i] for i in positions]
    return json_response({"ids": ids, "scores": scores[order].tolist(), "positions": positions})


async def events(service: Service, call: Call) -> Response:
    """Store events of one table and answer how many, once they are on disk."""
    spec = service.scorer.spec

    def parse() -> tuple[str, pa.Table]:
        body = parse_body(call.body, call.content_type, {"table"}, service.limits)
        table = body.fields.get("table", call.query("table"))
        if type(table) is not str or table not in spec.tables:
            known = ", ".join(spec.tables)
            remedy = f"Known: {known}" if known else None
            raise Refusal(422, f"there is no table of events {shortened(table)!r}", remedy=remedy)
        return table, events_table(spec.tables[table], body, service.limits.max_rows)

    if service.scorer.events is None:
        raise Refusal(404, "this export takes no events")
    table, taken = await service.parse(len(call.body), parse)
    await service.observe(taken, table)
    return json_response({"table": table, "events": taken.num_rows})


async def reload(service: Service, call: Call) -> Response:
    """Load the export's folder anew; the answer comes when the new one is in place."""
    return json_response({"version": await service.reload()})


def _answering(service: Service, call: Call, body: Body) -> Scorer:
    scorer = service.choose(call.id_or(body.fields.get("request_id")))
    call.version = scorer.label
    return scorer


def top(k: Any) -> int | None:
    """Parse how many are wanted, from a body or an address; None if it does not say."""
    if k is None:
        return None
    if type(k) is str and k.isascii() and k.isdigit() and len(k) < 10:
        k = int(k)
    if type(k) is not int or k < 1:
        raise Refusal(422, f"k is {shortened(k)!r}, not a whole number above 0")
    return k
