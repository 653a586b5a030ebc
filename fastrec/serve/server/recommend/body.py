"""The body of ``/v1/recommend`` → the sessions that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from fastrec._core.limits import ANSWER_ITEMS
from fastrec.serve.server.arrow_stream import parse_arrow
from fastrec.serve.server.bodies import ARROW, JSON, parse_json
from fastrec.serve.server.reading import check_rows
from fastrec.serve.server.recommend.asked import AskedSessions, RecommendSpec
from fastrec.serve.server.refusal import Refusal, shortened
from fastrec.serve.server.service import Limits
from fastrec.serve.server.spec import Input
from fastrec.serve.server.v1 import top
from fastrec.serve.server.values import from_arrow, from_values

__all__ = ["parse_sessions"]

_FIELDS = ("items", "context", "sessions", "k")
_PLAIN = (str, int, float, bool, type(None))


def parse_sessions(
    body: bytes, content_type: str, spec: RecommendSpec, k: Any, limits: Limits
) -> tuple[AskedSessions, bool]:
    """Parse the sessions of a body, and whether it was a single one.

    JSON is ``{"items": ["a", "b"], "k": 5}`` for one session, ``{"sessions": [{"items": ["a", "b"]}, …]}`` for several;
    ``context`` beside ``items`` holds values of the session. A stream of Arrow has a column ``items`` of lists; its
    other columns are the context.

    Args:
        body: as it came.
        content_type: the header.
        spec: what the model takes.
        k: how many items, from the address; None: as the body says.
        limits: what the server takes on; rows are sessions.
    """
    kind = content_type.split(";", 1)[0].strip().lower()
    if kind == ARROW:
        table = parse_arrow(body, max_rows=limits.max_rows, max_bytes=limits.max_body)
        asked, alone = _of_arrow(table, spec), False
    elif kind == JSON:
        said = parse_json(body)
        if type(said) is not dict:
            raise Refusal(400, "the body is no object of JSON")
        unknown = next((n for n in said if n not in _FIELDS), None)
        if unknown is not None:
            raise Refusal(422, f"the body has an unknown field {shortened(unknown)!r}")
        k, alone = said.get("k", k), "items" in said
        asked = _of_json(said, spec, limits.max_rows)
    else:
        raise Refusal(415, f"the content type is {shortened(kind)!r}", remedy=f"Send {JSON} or {ARROW}")
    asked.k = min(top(k) or spec.k, max(spec.items, 1))
    if asked.k * asked.rows > ANSWER_ITEMS:
        said = f"{asked.rows} sessions with {asked.k} items each are more than {ANSWER_ITEMS} items"
        raise Refusal(413, said, remedy="Send fewer sessions, or a smaller k")
    return asked, alone


def _of_json(said: dict[str, Any], spec: RecommendSpec, max_rows: int) -> AskedSessions:
    if ("items" in said) == ("sessions" in said):
        remedy = 'Send {"items": [1, 2]}, or {"sessions": [{"items": [1, 2]}]}'
        raise Refusal(422, "the body holds neither items nor sessions, or both", remedy=remedy)
    if "items" in said:
        sessions: Any = [{n: said[n] for n in ("items", "context") if n in said}]
    elif "context" in said:
        raise Refusal(422, "context stands beside sessions", remedy="Put it into each session")
    else:
        sessions = said["sessions"]
    if type(sessions) is not list:
        raise Refusal(422, "sessions is no list of objects")
    check_rows(len(sessions), max_rows)
    for row, session in enumerate(sessions):
        if type(session) is not dict or type(session.get("items")) is not list:
            raise Refusal(422, "the session is no object with a list of items", row=row)
        unknown = next((n for n in session if n not in ("items", "context")), None)
        if unknown is not None:
            raise Refusal(422, f"the session has an unknown field {shortened(unknown)!r}", row=row)
    lists = [s["items"] for s in sessions]
    offsets = np.concatenate([[0], np.cumsum([len(v) for v in lists], dtype=np.int64)]).astype(np.int64)
    column = Input("items", spec.type)
    items = _in_session(offsets, lambda: from_values(column, list(chain.from_iterable(lists))))
    return AskedSessions(items, offsets, 1, _context([s.get("context") for s in sessions], spec))


def _context(contexts: Sequence[Any], spec: RecommendSpec) -> dict[str, list[Any]]:
    if all(c is None for c in contexts):
        return {}
    for row, context in enumerate(contexts):
        if context is not None and type(context) is not dict:
            raise Refusal(422, "context is no object of values", row=row)
        for name, value in (context or {}).items():
            _check_name(name, spec, row)
            if type(value) not in _PLAIN:
                raise Refusal(422, f"{shortened(value)} is no single value", column=name, row=row)
            if type(value) is int and not -(2**63) <= value < 2**63:
                raise Refusal(422, f"{shortened(value)} is out of range", column=name, row=row)
    names = dict.fromkeys(n for c in contexts for n in c or {})
    made = {n: [(c or {}).get(n) for c in contexts] for n in names}
    for name, values in made.items():
        _check_kinds(name, values)
    return made


def _check_name(name: str, spec: RecommendSpec, row: int | None) -> None:
    if name in spec.context:
        return
    known = ", ".join(spec.context)
    remedy = f"It knows {known}" if known else "It knows the items alone"
    raise Refusal(422, "the model has no such context", column=name, row=row, remedy=remedy)


def _check_kinds(name: str, values: list[Any]) -> None:
    kinds = {type(v) for v in values} - {type(None)}
    if len(kinds) > 1 and kinds != {int, float}:
        names = " and ".join(sorted(k.__name__ for k in kinds))
        raise Refusal(422, f"its values are of several types ({names})", column=name)


def _of_arrow(table: pa.Table, spec: RecommendSpec) -> AskedSessions:
    names = table.column_names
    twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        raise Refusal(422, "two columns have this name", column=twice)
    if "items" not in names:
        raise Refusal(422, "the column is missing", column="items")
    lists = table["items"].combine_chunks()
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
        raise Refusal(422, f"its type is {shortened(str(lists.type))}, not a list of ids", column="items")
    if lists.null_count:
        raise Refusal(422, "the session has no list", column="items", row=int(np.argmax(lists.is_null())))
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    flat = lists.flatten()
    if pa.types.is_null(flat.type) and not len(flat):
        flat = pa.array([], pa.string() if spec.type == "string" else pa.int64())
    items = _in_session(offsets, lambda: from_arrow(Input("items", spec.type), flat))
    context = {}
    for name in (n for n in names if n != "items"):
        _check_name(name, spec, None)
        values = table[name].to_pylist()
        bad = next((i for i, v in enumerate(values) if type(v) not in _PLAIN), None)
        if bad is not None:
            raise Refusal(422, f"{shortened(values[bad])} is no single value", column=name, row=bad)
        context[name] = values
    return AskedSessions(items, offsets, 1, context)


def _in_session(offsets: np.ndarray, make: Any) -> np.ndarray:
    """Call ``make``; a row that it refuses becomes that of the session."""
    try:
        return make()
    except Refusal as refusal:
        row = None if refusal.row is None else int(np.searchsorted(offsets, refusal.row, side="right")) - 1
        raise Refusal(422, refusal.problem, column=refusal.column, row=row, remedy=refusal.remedy) from None
