"""The body of a request → the rows that it holds: JSON as columns or as rows, or a stream of Arrow."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from fastrec.serve.server.arrow_stream import parse_arrow
from fastrec.serve.server.columns import RequestColumns
from fastrec.serve.server.reading import columns_of_lists, columns_of_rows, columns_of_table
from fastrec.serve.server.refusal import Refusal, shortened
from fastrec.serve.server.spec import Spec

if TYPE_CHECKING:
    from fastrec.serve.server.service import Limits

__all__ = ["ARROW", "JSON", "Body", "parse_body", "parse_json", "write_json"]

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"


@dataclass
class Body:
    """What a body says: its rows, and the other fields of JSON.

    Args:
        fields: the object of JSON without its rows; empty for Arrow.
        table: the rows of a stream of Arrow.
        lists, rows: the rows of JSON, in one of the two forms.
    """

    fields: dict[str, Any]
    table: pa.Table | None = None
    lists: dict[str, list[Any]] | None = None
    rows: list[dict[str, Any]] | None = None

    def columns(self, spec: Spec, max_rows: int) -> RequestColumns:
        """Check the rows against what an export takes; ``context`` is repeated for each row."""
        if self.table is not None:
            return columns_of_table(spec, self.table, max_rows=max_rows)
        context = self.fields.get("context")
        if context is not None and type(context) is not dict:
            raise Refusal(422, "context is no object of values that hold for every row")
        if self.rows is not None:
            rows = [{**context, **r} if type(r) is dict else r for r in self.rows] if context else self.rows
            return columns_of_rows(spec, rows, max_rows=max_rows)
        return columns_of_lists(spec, self._widened(context, max_rows) if context else self.lists, max_rows=max_rows)

    def _widened(self, context: dict[str, Any], max_rows: int) -> dict[str, list[Any]]:
        if type(self.lists) is not dict:
            raise Refusal(422, "columns is no object of lists")
        first = next(iter(self.lists.values()), [])
        n = min(len(first), max_rows + 1) if type(first) is list else 0
        both = next((name for name in context if name in self.lists), None)
        if both is not None:
            raise Refusal(422, "it is in context and in columns", column=both)
        return {**{name: [value] * n for name, value in context.items()}, **self.lists}


def parse_body(body: bytes, content_type: str, fields: set[str], limits: Limits) -> Body:
    """Parse a body of JSON or Arrow by its content type.

    Args:
        body: as it came.
        content_type: the header, ``application/json`` or ``application/vnd.apache.arrow.stream``.
        fields: names of JSON's object that are allowed beside the rows.
        limits: what the server takes on.
    """
    kind = content_type.split(";", 1)[0].strip().lower()
    if kind == ARROW:
        return Body({}, table=parse_arrow(body, max_rows=limits.max_rows, max_bytes=limits.max_body))
    if kind != JSON:
        raise Refusal(415, f"the content type is {shortened(kind)!r}", remedy=f"Send {JSON} or {ARROW}")
    said = parse_json(body)
    if type(said) is not dict:
        raise Refusal(400, "the body is no object of JSON")
    unknown = next((n for n in said if n not in fields and n not in ("columns", "rows")), None)
    if unknown is not None:
        raise Refusal(422, f"the body has an unknown field {shortened(unknown)!r}")
    if ("columns" in said) == ("rows" in said):
        raise Refusal(422, "the body holds neither columns nor rows, or both", remedy='Send {"columns": {"a": [1]}}')
    return Body(said, lists=said.pop("columns", None), rows=said.pop("rows", None))


def parse_json(body: bytes | memoryview) -> Any:
    """Parse JSON with integers of 64 bits; NaN and Infinity, which clients send, are read too."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        text = bytes(body)
        if b"NaN" not in text and b"Infinity" not in text:
            raise Refusal(400, f"the body is no JSON: {error}") from None
    try:
        said = json.loads(text, parse_float=_float)
        json.dumps(said, ensure_ascii=False).encode()  # half of a surrogate pair is no text, which orjson sees itself
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON: {shortened(str(error))}") from None
    return said


def write_json(value: Mapping[str, Any]) -> bytes:
    """Write JSON; numbers that are not finite become null."""
    return orjson.dumps(value)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{shortened(text)} is larger than any number")
    return value
