"""OpenAPI for programs and a page for people, from the table that requests are routed by. Nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any, TypeAlias

from starlette.responses import HTMLResponse, Response

from fastrec._version import __version__
from fastrec.serve.server.bodies import ARROW, JSON, json_response
from fastrec.serve.server.call import TIMEOUT, Call
from fastrec.serve.server.service import Metrics
from fastrec.serve.server.spec import Input, Spec

Handler: TypeAlias = Callable[[Any, Call], Awaitable[Response]]
_TYPES = {"int64": "integer", "float64": "number", "float32": "number", "string": "string", "bool": "boolean"}
_STYLE = """body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
td,th{text-align:left;padding:.1rem 1rem .1rem 0}pre{background:#f4f4f4;padding:1rem;overflow:auto}"""
_ERRORS = {
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
# Fields that a body of /v1/score may have beside its rows, and one of /v1/rank: bodies are checked by their names.
SCORE_FIELDS: dict[str, Any] = {
    "context": {"type": "object", "description": "Values that hold for every row."},
    "request_id": {"description": "By it requests are split among versions, as by the header X-Request-Id."},
}
EXPLAIN_FIELDS: dict[str, Any] = {
    **SCORE_FIELDS,
    "of": {"description": "The class that is explained; without it the second of two, else each row's likeliest."},
}
RANK_FIELDS: dict[str, Any] = {
    **SCORE_FIELDS,
    "k": {"type": "integer", "minimum": 1, "description": "How many to give; all without it."},
    "candidates": {"description": "As rows; no column of theirs is in context, and no item is there twice."},
}


@dataclass(frozen=True)
class Address:
    """A path with what answers there."""

    path: str
    handler: Handler  # called with the service and the request
    says: str | None = None  # one sentence for the description; None: it is not described
    method: str = "GET"
    public: bool = False  # answered without a token
    post: Callable[[Any], dict[str, Any] | None] | None = None  # spec → ``operation`` of body and answer


def operation(body: dict[str, Any], gives: dict[str, Any], *, example: Any = None, **query: Any) -> dict[str, Any]:
    """Describe a body of JSON (or Arrow) and its answer; ``query``: schemas of parameters of the address."""
    sent = [("header", TIMEOUT, {"type": "integer", "minimum": 1}), *(("query", n, s) for n, s in query.items())]
    schema = {"schema": body} | ({} if example is None else {"example": example})
    answer = {"description": "Done.", "content": {JSON: {"schema": gives}}}
    return {
        "parameters": [{"name": name, "in": place, "schema": kind} for place, name, kind in sent],
        "requestBody": {"required": True, "content": {JSON: schema, ARROW: {}}},
        "responses": {"200": answer, **{status: {"description": text} for status, text in _ERRORS.items()}},
    }


def of_rows(fields: dict[str, Any], answer: Callable[[Spec], dict[str, Any]]) -> Callable[[Spec], dict[str, Any]]:
    """Make a ``post`` for rows of columns with other fields beside them; ``answer`` has the answer's properties."""

    def post(spec: Spec) -> dict[str, Any]:
        one = {**{n: {"description": "It is ignored."} for n in spec.ignored}, **_columns(spec)}
        lists = {n: {"type": "array", "items": c} for n, c in one.items()}
        columns = _object(lists, required=[i.name for i in spec.sent if i.required])
        forms = {"columns": columns, "rows": {"type": "array", "items": _object(one)}, **fields}
        if "candidates" in fields:
            candidate = _object(one) if spec.item is None else _object(one, required=[spec.item])
            forms["candidates"] = {"type": "array", "items": candidate, "minItems": 1, **fields["candidates"]}
        return operation(_object(forms), {"type": "object", "properties": answer(spec)}, example=example(spec, fields))

    return post


def of_events(spec: Spec) -> dict[str, Any] | None:
    """Describe the bodies of ``/v1/events``: one for each table."""
    tables = []
    for name, columns in spec.tables.items():
        own = {c.name: {"type": "array", "items": _value(c, nullable=c.may_be_missing)} for c in columns}
        lists = {"type": "object", "properties": own}
        rows = {"type": "array", "items": {"type": "object"}}
        tables.append(_object({"table": {"const": name}, "columns": lists, "rows": rows}, required=["table"]))
    return operation({"oneOf": tables}, {"type": "object"}, table={"enum": list(spec.tables)}) if tables else None


def describe(spec: Any, addresses: Sequence[Address]) -> dict[str, Any]:
    """Describe a model's addresses in OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for one in addresses:
        said = {"responses": {"200": {"description": "Done."}}} if one.post is None else one.post(spec)
        if one.says is not None and said is not None:
            paths[one.path] = {one.method.lower(): {"summary": one.says, **said}}
            if "{name}" in one.path:
                name = {"name": "name", "in": "path", "required": True, "schema": {"const": spec.name}}
                paths[one.path]["parameters"] = [name]
    about = {"title": spec.name, "version": spec.version[:12], "description": f"Served by fastrec {__version__}."}
    return {"openapi": "3.1.0", "info": about, "paths": paths}


async def openapi(service: Any, call: Call) -> Response:
    """Answer with OpenAPI."""
    return json_response(describe(service.scorer.spec, service.addresses))


def example(spec: Spec, fields: Collection[str]) -> dict[str, Any]:
    """Make up a body with two rows: of a ranking's candidates where ``fields`` has them, else as columns."""
    made = {"integer": (1, 2), "number": (0.5, 1.5), "string": ("a", "b"), "boolean": (True, False)}
    columns = {}
    for name, schema in _columns(spec).items():
        value = schema.get("items", schema)
        first, second = value["examples"] * 2 if "examples" in value else made[value["type"][0]]
        pair = [first, second if name == spec.item else first]
        columns[name] = pair if value is schema else [[v] for v in pair]
    if spec.list is None or "candidates" not in fields:
        return {"columns": columns}
    same = {spec.list, *spec.of_list, *(i.name for i in spec.event_columns)} - {spec.item}
    candidates = [{n: v[row] for n, v in columns.items() if n not in same} for row in (0, 1)]
    return {"context": {n: v[0] for n, v in columns.items() if n in same}, "candidates": candidates}


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, **more}


def _columns(spec: Spec) -> dict[str, dict[str, Any]]:
    """Describe one value of every column that is read; the list's id and the item come first."""
    columns: dict[str, dict[str, Any]] = {}
    about = {
        "The group's id; without it all rows are one group.": spec.list,
        "The candidate's id, which /v1/rank requires.": spec.item,
    }
    for says, name in about.items():
        if name is not None:
            declared = next((i.type for i in spec.inputs if i.name == name), spec.ignored.get(name))
            known = {"string": ["string"], "text": ["string"], None: ["integer", "string"]}
            columns[name] = {"type": known.get(declared, ["integer"]), "description": says}
    for column in spec.sent:
        schema = _value(column, nullable=column.nullable)
        if column.name in columns:
            schema.setdefault("description", columns[column.name]["description"])
        columns[column.name] = schema
    return columns


def _value(column: Input, *, nullable: bool) -> dict[str, Any]:
    written, schema = column.text or {}, {"type": [_TYPES[column.type]]}
    if column.unit is not None:
        noon = datetime(2026, 1, 31, 12, tzinfo=None if column.zone is None else UTC)
        form = written.get("date")
        zone = "without a zone" if column.zone is None else f"with an offset (the model reads it in {column.zone})"
        says = (
            f"A time: {'' if form is None else f'{form}, '}ISO 8601 {zone}, or an integer in {column.unit} since 1970."
        )
        value = noon.isoformat() if form is None else noon.strftime(form)
        schema = {"type": ["string", "integer"], "description": says, "examples": [value]}
    elif "clock" in written:
        schema = {"type": ["string"], "description": "A time of day.", "examples": ["12:00"]}
    elif "bool" in written:
        schema = {"type": ["boolean"]}
    if nullable:
        schema["type"].append("null")
    if column.events is None:
        return schema
    says = f"The events before the row's list, the oldest first; the last {column.events} are read."
    return {"type": ["array", "null"], "items": schema, "description": says}


async def page(service: Any, call: Call) -> Response:
    """Answer with a page of the addresses, the columns, an example, and how long answers took."""
    spec = service.scorer.spec
    rows = ""
    for name, schema in _columns(spec).items():
        types = " or ".join(t for t in schema.get("items", schema)["type"] if t != "null")
        says = escape(schema.get("items", schema).get("description", "") or schema.get("description", ""))
        rows += (
            f"<tr><td>{escape(name)}<td>{'a list of ' * ('items' in schema)}{types}"
            f"<td>{'yes' if name in spec.required else ''}<td>{'yes' if 'null' in schema['type'] else ''}<td>{says}"
        )
    columns = f"<h2>Columns</h2><table><tr><th>name<th>type<th>required<th>may be null<th>{rows}</table>"
    others = [n for n in spec.ignored if n not in (spec.list, spec.item)]
    if others:
        columns += f"<p>Accepted and ignored: {escape(', '.join(others))}</p>"
    fields = SCORE_FIELDS if spec.list is None else RANK_FIELDS
    return render(service, spec.task, columns, "/v1/score" if spec.list is None else "/v1/rank", example(spec, fields))


def render(service: Any, kind: str, more: str, path: str, body: Any) -> Response:
    """Render a page: ``kind`` of model, HTML of its own, and an example of a ``path``'s body."""
    spec = service.scorer.spec
    addresses = "".join(
        f"<tr><td>{method.upper()}<td>{escape(where)}<td>{escape(said['summary'])}"
        for where, methods in describe(spec, service.addresses)["paths"].items()
        for method, said in methods.items()
        if method != "parameters"
    )
    return HTMLResponse(f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(spec.name)}</title>
<style>{_STYLE}</style>
<h1>{escape(spec.name)}</h1><p>{escape(kind)}, version {escape(spec.version[:12])}, fastrec {__version__}.
<a href="openapi.json">OpenAPI</a></p>
<h2>Addresses</h2><table>{addresses}</table>{more}
<h2>A body for {path}</h2><pre>{escape(json.dumps(body, ensure_ascii=False, indent=1))}</pre>
{_times(service.metrics)}</html>""")


def _times(metrics: Metrics) -> str:
    half, most = metrics.seconds.within(0.5), metrics.seconds.within(0.99)
    rows = "".join(
        f"<tr><td>{escape(path)}<td>{most[path,][0]:,}<td>{1000 * half[path,][1]:g} ms<td>{1000 * most[path,][1]:g} ms"
        for (path,) in sorted(most)
    )
    head = "<tr><th>address<th>requests<th>half within<th>99 % within"
    says = 'Since the start; <a href="metrics">metrics</a> are for Prometheus.'
    return f"<h2>Times</h2><p>{says}</p><table>{head}{rows}</table>"
