"""What the server says about itself: OpenAPI for programs, a page for people. Nothing is fetched from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from starlette.responses import HTMLResponse, Response

from fastrec._version import __version__
from fastrec.serve.server.bodies import ARROW, JSON, write_json
from fastrec.serve.server.call import TIMEOUT, Call
from fastrec.serve.server.service import Metrics, Service
from fastrec.serve.server.spec import Input, Spec

__all__ = ["ERRORS", "STYLE", "describe", "example", "openapi", "page", "times"]

_TYPES = {"int64": "integer", "float64": "number", "float32": "number", "string": "string", "bool": "boolean"}
STYLE = """body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
td,th{text-align:left;padding:.1rem 1rem .1rem 0}pre{background:#f4f4f4;padding:1rem;overflow:auto}"""
ERRORS = {
    "400": "The body is malformed.",
    "401": "The token is missing or wrong.",
    "408": "The body came too slowly.",
    "413": "Too many rows, or the body is too large.",
    "415": "The body is neither JSON nor a stream of Arrow, or compressed.",
    "431": "The head of the request is too large.",
    "422": "A column is unknown, missing or of another type; the answer names column and row.",
    "503": "Too much is waiting; Retry-After says when to come again.",
    "504": "There was no answer in time.",
}


async def openapi(service: Service, call: Call) -> Response:
    """Answer with OpenAPI 3.1."""
    return Response(write_json(describe(service.scorer.spec)), media_type=JSON)


async def page(service: Service, call: Call) -> Response:
    """Answer with a page for people."""
    return HTMLResponse(_html(service.scorer.spec, times(service.metrics)))


def times(metrics: Metrics) -> str:
    """Render how long answers took since the start, as a table."""
    half, most = metrics.seconds.within(0.5), metrics.seconds.within(0.99)
    rows = "".join(
        f"<tr><td>{escape(path)}<td>{most[path,][0]:,}<td>{1000 * half[path,][1]:g} ms<td>{1000 * most[path,][1]:g} ms"
        for (path,) in sorted(most)
    )
    head = "<tr><th>address<th>requests<th>half within<th>99 % within"
    says = 'Since the start; <a href="metrics">metrics</a> are for Prometheus.'
    return f"<h2>Times</h2><p>{says}</p><table>{head}{rows}</table>"


def example(spec: Spec, rows: int = 2) -> dict[str, list[Any]]:
    """Make up columns that the export takes."""
    values = {"int64": 1, "float64": 0.5, "float32": 0.5, "string": "a", "bool": True}
    noon = "2026-01-31T12:00:00"
    columns: dict[str, list[Any]] = {
        i.name: [noon + ("Z" if i.zone else "") if i.unit else values[i.type]] * rows for i in spec.sent
    }
    columns |= {i.name: [columns[i.name][:1]] * rows for i in spec.event_columns}
    if spec.item is not None and spec.item not in columns:
        columns[spec.item] = list(range(rows))
    return columns


def describe(spec: Spec) -> dict[str, Any]:
    """Describe all addresses of an export in OpenAPI 3.1."""
    columns = {"type": "object", "additionalProperties": False, "properties": {i.name: _list(i) for i in spec.sent}}
    columns["required"] = [i.name for i in spec.sent if i.required]
    for name in (spec.list, spec.item):
        if name is not None:
            columns["properties"].setdefault(name, {"type": "array", "items": {"type": ["integer", "string"]}})
    score = {"scores": {"type": "array", "items": {} if spec.outputs[0].width > 1 else {"type": "number"}}}
    ranked = {name: {"type": "array"} for name in ("ids", "scores", "positions")}
    k = {"k": {"type": "integer", "minimum": 1, "description": "How many to give; all without it."}}
    paths: dict[str, Any] = {
        "/v1/score": {"post": _post("Scores of rows, in their order.", spec, columns, {}, score)},
        "/v1/rank": {"post": _post("The candidates of one list, the best first.", spec, columns, k, ranked)},
        "/v1/reload": {"post": {"summary": "Load the export anew; needs the token.", "responses": {"200": _says()}}},
    }
    for path, says in {
        "/health": "Whether the process answers.",
        "/ready": "Whether requests should be sent here.",
        "/metrics": "Counts and durations for Prometheus.",
        "/v2": "Open Inference Protocol: the server.",
        "/v2/models/{name}": "Open Inference Protocol: inputs and outputs; /ready and /infer below it.",
    }.items():
        paths[path] = {"get": {"summary": says, "responses": {"200": _says()}}}
        if "{name}" in path:
            paths[path]["parameters"] = [
                {"name": "name", "in": "path", "required": True, "schema": {"const": spec.name}}
            ]
    if spec.tables:
        paths["/v1/events"] = {"post": _events(spec)}
    return {
        "openapi": "3.1.0",
        "info": {"title": spec.name, "version": spec.version[:12], "description": f"Served by fastrec {__version__}."},
        "paths": paths,
    }


def _post(
    says: str, spec: Spec, columns: dict[str, Any], more: dict[str, Any], gives: dict[str, Any]
) -> dict[str, Any]:
    row = {**columns, "properties": {n: c["items"] for n, c in columns["properties"].items()}}
    context = {"context": {"type": "object", "description": "Values that hold for every row."}}
    said = {"request_id": {"description": "By it requests are split among versions, as by the header X-Request-Id."}}
    fields = {"columns": columns, "rows": {"type": "array", "items": row}, **context, **said, **more}
    body = {"type": "object", "additionalProperties": False, "properties": fields}
    content = {JSON: {"schema": body, "example": {"columns": example(spec)}}, ARROW: {}}
    return {
        "summary": says,
        "parameters": [{"name": TIMEOUT, "in": "header", "schema": {"type": "integer", "minimum": 1}}],
        "requestBody": {"required": True, "content": content},
        "responses": {"200": _says(gives), **{status: {"description": text} for status, text in ERRORS.items()}},
    }


def _events(spec: Spec) -> dict[str, Any]:
    tables = [
        {
            "type": "object",
            "required": ["table"],
            "properties": {
                "table": {"const": name},
                "columns": {"type": "object", "properties": {c.name: _list(c) for c in columns}},
                "rows": {"type": "array", "items": {"type": "object"}},
            },
        }
        for name, columns in spec.tables.items()
    ]
    return {
        "summary": "Take events in; the answer comes when they are on disk.",
        "parameters": [{"name": "table", "in": "query", "schema": {"enum": list(spec.tables)}}],
        "requestBody": {"required": True, "content": {JSON: {"schema": {"oneOf": tables}}, ARROW: {}}},
        "responses": {"200": _says(), **{status: {"description": text} for status, text in ERRORS.items()}},
    }


def _says(gives: dict[str, Any] | None = None) -> dict[str, Any]:
    if gives is None:
        return {"description": "Done."}
    return {"description": "Done.", "content": {JSON: {"schema": {"type": "object", "properties": gives}}}}


def _list(column: Input) -> dict[str, Any]:
    kinds: list[str] = [_TYPES[column.type]]
    if column.unit is not None:
        kinds = ["string", "integer"]
    items: dict[str, Any] = {"type": [*kinds, "null"] if column.may_be_missing else kinds}
    if column.unit is not None:
        items["description"] = _time(column)
    if column.events is not None:
        said = f"The events before the row's list, the oldest first; the last {column.events} are read."
        items = {"type": ["array", "null"], "items": items, "description": said}
    return {"type": "array", "items": items}


def _time(column: Input) -> str:
    zone = "without a zone" if column.zone is None else f"with an offset (the model reads it in {column.zone})"
    return f"A time: ISO 8601 {zone}, or an integer in {column.unit} since 1970."


def _html(spec: Spec, took: str) -> str:
    rows = "".join(
        f"<tr><td>{escape(i.name)}<td>{'' if i.events is None else 'a list of: '}"
        f"{_TYPES[i.type] if not i.unit else escape(_time(i))}"
        f"<td>{'yes' if i.required else ''}<td>{'yes' if i.may_be_missing else ''}"
        for i in spec.sent
    )
    addresses = "".join(
        f"<tr><td>{method.upper()}<td>{escape(path)}<td>{escape(said['summary'])}"
        for path, methods in describe(spec)["paths"].items()
        for method, said in methods.items()
        if isinstance(said, dict)
    )
    body = escape(json.dumps({"columns": example(spec, 1)}, ensure_ascii=False, indent=1))
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(spec.name)}</title>
<style>{STYLE}</style>
<h1>{escape(spec.name)}</h1><p>{escape(spec.task)}, version {escape(spec.version[:12])}, fastrec {__version__}.
<a href="openapi.json">OpenAPI</a></p>
<h2>Addresses</h2><table>{addresses}</table>
<h2>Columns</h2><table><tr><th>name<th>type<th>required<th>may be null{rows}</table>
<h2>A body for /v1/score</h2><pre>{body}</pre>{took}</html>"""
