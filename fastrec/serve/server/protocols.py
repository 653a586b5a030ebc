"""The Open Inference Protocol, version 2, with tensors in JSON or in binary: what ``tritonclient.http`` speaks.

The protocol's text: https://github.com/kserve/open-inference-protocol; tensors in binary: Triton's
``protocol/extension_binary_data``.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fastrec._version import __version__
from fastrec.competition.explain import Mixtures, of_both_classes
from fastrec.serve.server.batcher import Scorer
from fastrec.serve.server.bodies import (
    JSON,
    Body,
    check_rows,
    checked_columns,
    events_table,
    json_response,
    parse_body,
    parse_json,
)
from fastrec.serve.server.call import Call, Refusal, shortened
from fastrec.serve.server.columns import RequestColumns, from_array, from_values
from fastrec.serve.server.pages import EXPLAIN_FIELDS, RANK_FIELDS, SCORE_FIELDS, Address, of_events, of_rows
from fastrec.serve.server.service import Service
from fastrec.serve.server.spec import Input, Output, Spec

# HTTP as uvicorn reads it with httptools, with bounds: how large the head of a request is, and how long it takes.

_BYTES, _HEADERS = 64 * 1024, 128  # of a request's head


def bounded(seconds: float) -> type[HttpToolsProtocol]:
    """Make a protocol that refuses a head that takes so many seconds (408), or has over 64 KiB or 128 headers (431)."""

    class Bounded(HttpToolsProtocol):
        _unread = 0  # bytes since the parser last told of a body or of a new request
        _alarm: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._alarm = self.loop.call_later(seconds, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_is_there()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._unread += len(data)
            super().data_received(data)
            if self._unread > _BYTES and not self.transport.is_closing():
                # a head without an end, or what follows a body: that one is being answered
                self._end(431, _TOO_LARGE, answered=self.cycle is not None and not self.cycle.response_complete)

        def on_message_begin(self) -> None:
            self._unread = 0
            super().on_message_begin()
            if self._alarm is None:
                self._alarm = self.loop.call_later(seconds, self._give_up)

        def on_body(self, body: bytes) -> None:
            self._unread = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._unread = 0
            super().on_message_complete()

        def on_headers_complete(self) -> None:
            self._head_is_there()
            app, size = self.app, len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > _BYTES or len(self.headers) > _HEADERS:
                self.app, self.url = _refuse, b"/"
            try:
                super().on_headers_complete()
            finally:
                self.app = app

        def send_400_response(self, msg: str) -> None:
            self._end(400, "this is no request of HTTP")

        def _give_up(self) -> None:
            self._end(408, f"the head did not come within {seconds:g} s", answered=self.scope is None)

        def _end(self, status: int, says: str, *, answered: bool = False) -> None:
            if not answered:
                body = orjson.dumps({"error": says})
                head = f"connection: close\r\ncontent-type: {JSON}\r\ncontent-length: {len(body)}\r\n\r\n"
                self.transport.write(STATUS_LINE[status] + head.encode() + body)
            self.transport.close()

        def _head_is_there(self) -> None:
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None

    return Bounded


_TOO_LARGE = f"the head has more than {_BYTES} bytes or {_HEADERS} headers"


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    await json_response({"error": _TOO_LARGE}, 431, {"Connection": "close"})(scope, receive, send)


async def score(service: Service, call: Call) -> Response:
    """Answer rows with their scores, in the rows' order."""
    scorer, _, columns = await _rows(service, call, SCORE_FIELDS)
    outputs = await service.score(scorer, columns, call.timeout, call.came)
    answer: dict[str, Any] = {"scores": outputs[0].tolist()}
    answer |= {o.name: v.tolist() for o, v in zip(scorer.spec.outputs[1:], outputs[1:])}
    if scorer.spec.classes is not None and scorer.spec.outputs[-1].width > 1:
        answer["classes"] = scorer.spec.classes
    return json_response(answer)


async def rank(service: Service, call: Call) -> Response:
    """Answer one list's candidates with their ids, the best first; equal scores keep the candidates' order."""

    def check(scorer: Scorer) -> None:
        if scorer.spec.outputs[0].width != 1:
            raise Refusal(422, f"a {scorer.spec.task} model gives several scores a row, which have no order")

    scorer, body, columns = await _rows(service, call, RANK_FIELDS, check)
    k = top(body.fields.get("k", call.query("k")))
    if columns.n_lists > 1:
        raise Refusal(422, f"there are {columns.n_lists} lists, and one is ranked", column=scorer.spec.list)
    scores = (await service.score(scorer, columns, call.timeout, call.came))[0]
    order = np.argsort(-scores.astype(np.float64), kind="stable")[:k]
    positions = order.tolist()
    ids = positions if columns.items is None else [columns.items[i] for i in positions]
    return json_response({"ids": ids, "scores": scores[order].tolist(), "positions": positions})


async def explain(service: Service, call: Call) -> Response:
    """Answer rows with the contributions of their columns; the mixtures of each row wait in the queue as rows do."""

    def check(scorer: Scorer) -> None:
        if scorer.background is None or (scorer.spec.outputs[0].width > 1 and scorer.spec.classes is None):
            why = "this export is not explained: it ranks, reads events, has several targets or no rows to compare with"
            raise Refusal(422, why, remedy="Export the run anew, or call SavedRun(run).explain")

    scorer, body, columns = await _rows(service, call, EXPLAIN_FIELDS, check)
    classes, arrays = scorer.spec.classes, columns.arrays()
    asked = call.query("of")  # text, whatever the classes are
    of = body.fields.get("of", next((c for c in classes or () if str(c) == asked), asked))
    width, n = scorer.spec.outputs[0].width, columns.rows
    if of is not None and (classes is None or of not in classes):
        known = "Leave it out" if classes is None else f"There are {', '.join(map(str, classes))}"
        raise Refusal(422, f"of is {shortened(of)!r}, which has no score of its own", remedy=known)
    names = sorted(i.name for i in scorer.spec.sent)  # as SavedRun.explain draws orders of columns
    both = {name: np.concatenate([arrays[name], scorer.background[name]]) for name in names}
    codes = np.stack([np.unique(both[name], return_inverse=True)[1] for name in names], 1)
    mixtures, explained = Mixtures(len(names), len(codes) - n), []
    for i in range(n):
        taken, numbers = await asyncio.to_thread(mixtures.of, codes[i], codes[n:])
        place = np.where(taken < 0, i, taken + n)
        sent = {name: both[name][place[:, j]] for j, name in enumerate(names)}
        mixed = RequestColumns(scorer.spec, sent, len(place), from_array)
        scores = (await service.score(scorer, mixed, call.timeout, call.came))[0]
        explained.append(mixtures.contributions(scores.reshape(len(place), -1), numbers))
    values = np.stack(explained) if n else np.zeros((0, len(names) + 2, width))
    if classes is not None and width == 1:
        values, of = of_both_classes(values), classes[-1] if of is None else of
    chosen = values[:, -1].argmax(1) if of is None else np.full(n, classes.index(of))
    values = values[np.arange(n), :, chosen].T.tolist()
    made = {i.name: values[names.index(i.name)] for i in scorer.spec.sent}
    answer = {"contributions": made, "base": values[-2], "predictions": values[-1]}
    if classes is not None and width > 1:
        answer["classes"] = [classes[c] for c in chosen]
    return json_response(answer)


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


async def _rows(
    service: Service, call: Call, fields: Collection[str], check: Callable[[Scorer], None] = lambda scorer: None
) -> tuple[Scorer, Body, RequestColumns]:
    """Read the rows of a body, and choose the export that answers; ``check`` refuses one before its columns."""

    def parse() -> tuple[Scorer, Body, RequestColumns]:
        body = parse_body(call.body, call.content_type, fields, service.limits)
        scorer = service.choose(call.id_or(body.fields.get("request_id")))
        call.version = scorer.label
        check(scorer)
        return scorer, body, body.columns(scorer.spec, service.limits.max_rows)

    return await service.parse(len(call.body), parse)


def top(k: Any) -> int | None:
    """Parse how many are wanted, from a body or an address; None if it does not say."""
    if k is None:
        return None
    if type(k) is str and k.isascii() and k.isdigit() and len(k) < 10:
        k = int(k)
    if type(k) is not int or k < 1:
        raise Refusal(422, f"k is {shortened(k)!r}, not a whole number above 0")
    return k


_HEADER = b"inference-header-content-length"
_NAMES = {"int64": "INT64", "float64": "FP64", "float32": "FP32", "string": "BYTES", "bool": "BOOL"}
_BINARY = {"BOOL": "?", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
_BINARY |= {f"{u.upper()}INT{8 * size}": f"<{u or 'i'}{size}" for size in (1, 2, 4, 8) for u in ("", "u")}
_VERSION = "1"  # of the protocol; a registry's number is in the header


async def server(service: Service, call: Call) -> Response:
    """Describe this server."""
    return json_response({"name": "fastrec", "version": __version__, "extensions": ["binary_tensor_data"]})


async def model(service: Service, call: Call) -> Response:
    """Describe the model's inputs and outputs."""
    spec = _spec(service, call)
    inputs = [i for i in spec.sent if i.events is None]
    if spec.list is not None:
        inputs.append(Input(spec.list, "int64"))
    takes = [{"name": i.name, "datatype": _NAMES[i.type], "shape": [-1]} for i in inputs]
    gives = [{"name": o.name, "datatype": _NAMES[o.type], "shape": _shape(o, -1)} for o in spec.outputs]
    about = {"name": spec.name, "versions": [_VERSION], "platform": "onnxruntime_onnx"}
    return json_response({**about, "inputs": takes, "outputs": gives})


async def model_ready(service: Service, call: Call) -> Response:
    """Tell whether this model answers."""
    _spec(service, call)
    return Response(b"", 503 if service.stopping else 200)


async def infer(service: Service, call: Call) -> Response:
    """Answer tensors with tensors."""
    _spec(service, call)
    scorer, head, columns = await service.parse(len(call.body), lambda: _parse(service, call))
    spec, call.version = scorer.spec, scorer.label
    parameters = _parameters(head)
    timeout = call.timeout
    if type(parameters.get("timeout")) is int and parameters["timeout"] > 0:
        timeout = min(timeout, parameters["timeout"] / 1e6)  # microseconds
    wanted = _wanted(spec, head, bool(parameters.get("binary_data_output")))
    outputs = await service.score(scorer, columns, timeout, call.came)
    given = {o.name: (o, values) for o, values in zip(spec.outputs, outputs)}
    tensors, parts = [], []
    for name, binary in wanted.items():
        output, values = given[name]
        tensor = {"name": name, "datatype": _NAMES[output.type], "shape": _shape(output, len(values))}
        if binary:
            parts.append(np.ascontiguousarray(values).tobytes())
            tensor["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            tensor["data"] = values.reshape(-1).tolist()
        tensors.append(tensor)
    answer = {"model_name": spec.name, "model_version": _VERSION, "outputs": tensors}
    if type(head.get("id")) is str:
        answer["id"] = head["id"]
    text = orjson.dumps(answer)
    if not parts:
        return Response(text, media_type=JSON)
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return Response(text + b"".join(parts), media_type="application/octet-stream", headers=headers)


def _spec(service: Service, call: Call) -> Spec:
    spec, path = service.scorer.spec, call.request.path_params
    if path["name"] != spec.name or path.get("version", _VERSION) != _VERSION:
        there = f"there is {spec.name!r}, version {_VERSION}"
        raise Refusal(404, f"there is no model {shortened(path['name'])!r} of this version; {there}")
    return spec


def _parse(service: Service, call: Call) -> tuple[Scorer, dict[str, Any], RequestColumns]:
    """Return the export that answers, the request's head, and its tensors as columns."""
    length = call.headers.get(_HEADER)
    end = len(call.body)
    if length is not None:
        if not (length.isdigit() and len(length) < 16 and int(length) <= end):
            said = shortened(length.decode("latin-1"))
            raise Refusal(400, f"header {_HEADER.decode()} is {said!r}, the body has {end} bytes")
        end = int(length)
    head, rest = parse_json(call.body[:end]), memoryview(call.body)[end:]
    if type(head) is not dict or type(head.get("inputs")) is not list:
        raise Refusal(400, "the request has no list of inputs")
    scorer, max_rows = service.choose(call.id_or(head.get("id"))), service.limits.max_rows
    tensors: dict[str, list[Any] | np.ndarray] = {}
    rows = None
    for said in head["inputs"]:
        if type(said) is not dict or type(said.get("name")) is not str:
            raise Refusal(400, "an input is no object with a name")
        if said["name"] in tensors:
            raise Refusal(400, "two inputs have this name", column=said["name"])
        shape = said.get("shape")
        fits = type(shape) is list and shape and all(type(n) is int and n >= 0 for n in shape)
        if not fits or len(shape) > 2 or shape[1:] not in ([], [1]):
            raise Refusal(400, f"its shape is {shortened(shape)}, not [n] or [n, 1]", column=said["name"])
        n = shape[0]
        check_rows(n, max_rows)
        if rows not in (None, n):
            raise Refusal(400, f"it has {n} rows, another input has {rows}", column=said["name"])
        rows = n
        tensors[said["name"]], rest = _tensor(said, n, rest)
    if scorer.spec.events_count is not None:
        why = "the model reads lists of events, which tensors of this protocol do not hold"
        raise Refusal(422, why, remedy="Send /v1/score")
    if len(rest):
        raise Refusal(400, f"{len(rest)} bytes of the body belong to no input")

    def convert(column: Input, values: list[Any] | np.ndarray) -> np.ndarray:
        return from_values(column, values) if isinstance(values, list) else from_array(column, values)

    def as_list(values: list[Any] | np.ndarray) -> list[Any]:
        return values if isinstance(values, list) else values.tolist()

    return scorer, head, checked_columns(scorer.spec, tensors, rows or 0, convert, as_list)


def _tensor(said: dict[str, Any], n: int, rest: memoryview) -> tuple[list[Any] | np.ndarray, memoryview]:
    """Return the values of one input, and the binary part behind it."""
    name, kind = said["name"], said.get("datatype")
    if type(kind) is not str or (kind != "BYTES" and kind not in _BINARY):
        raise Refusal(400, f"its datatype is {shortened(kind)}, which is unknown", column=name)
    size = _parameters(said).get("binary_data_size")
    if size is None:
        data = said.get("data")
        if type(data) is not list:
            raise Refusal(400, "it has neither data nor binary_data_size", column=name)
        if len(said["shape"]) == 2 and all(type(v) is list and len(v) == 1 for v in data):
            data = [v[0] for v in data]
        if len(data) != n:
            raise Refusal(400, f"it has {len(data)} values, its shape says {n}", column=name)
        return data, rest
    if type(size) is not int or not 0 <= size <= len(rest):
        raise Refusal(400, f"binary_data_size is {shortened(size)}, and {len(rest)} bytes are left", column=name)
    if "data" in said:
        raise Refusal(400, "it has data and binary_data_size", column=name)
    raw, rest = rest[:size], rest[size:]
    if kind == "BYTES":
        return _texts(name, raw, n), rest
    if size != n * np.dtype(_BINARY[kind]).itemsize:
        raise Refusal(400, f"{size} bytes are not {n} values of {kind}", column=name)
    if kind == "BOOL":
        return np.frombuffer(raw, np.uint8) != 0, rest
    return np.require(np.frombuffer(raw, _BINARY[kind]), requirements="A"), rest  # aligned, wherever it lay in the body


def _texts(name: str, raw: memoryview, n: int) -> list[str]:
    texts, at = [], 0
    try:
        while at < len(raw) and len(texts) <= n:
            end = at + 4 + struct.unpack_from("<I", raw, at)[0]
            if end > len(raw):
                raise ValueError("it ends too early")
            texts.append(str(raw[at + 4 : end], "utf-8"))
            at = end
    except (struct.error, ValueError) as error:
        raise Refusal(400, f"its bytes are no texts: {error}", column=name, row=len(texts)) from None
    if len(texts) != n:
        raise Refusal(400, f"its bytes are not {n} texts", column=name)
    return texts


def _parameters(said: dict[str, Any]) -> dict[str, Any]:
    found = said.get("parameters")
    return found if type(found) is dict else {}


def _wanted(spec: Spec, head: dict[str, Any], binary: bool) -> dict[str, bool]:
    """Return the requested outputs, and whether each comes in binary."""
    asked = head.get("outputs")
    if asked is None or asked == []:
        return {o.name: binary for o in spec.outputs}
    if type(asked) is not list or not all(type(o) is dict for o in asked):
        raise Refusal(400, "outputs is no list of objects")
    known = [o.name for o in spec.outputs]
    for said in asked:
        if said.get("name") not in known:
            raise Refusal(400, f"there is no output {shortened(said.get('name'))!r}; there are {', '.join(known)}")
    return {said["name"]: bool(_parameters(said).get("binary_data", binary)) for said in asked}


def _shape(output: Output, rows: int) -> list[int]:
    return [rows] if output.width == 1 else [rows, output.width]


_MODELS = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
ADDRESSES = [
    Address(
        "/v1/score", score, "Scores of rows, in their order.", "POST",
        post=of_rows(SCORE_FIELDS, lambda spec: {
            "scores" if o is spec.outputs[0] else o.name: {
                "type": "array", "items": {} if o.width > 1 else {"type": "number"},
            }
            for o in spec.outputs
        }),
    ),
    Address(
        "/v1/rank", rank, "The candidates of one list, the best first.", "POST",
        post=of_rows(RANK_FIELDS, lambda spec: {n: {"type": "array"} for n in ("ids", "scores", "positions")}),
    ),
    Address(
        "/v1/explain", explain, "The contributions of columns to the scores of rows.", "POST",
        post=lambda spec: None if spec.list is not None else of_rows(EXPLAIN_FIELDS, lambda spec: {
            "contributions": {"type": "object"}, **{n: {"type": "array"} for n in ("base", "predictions")}
        })(spec),
    ),
    Address("/v1/events", events, "Take events in; the answer comes when they are on disk.", "POST", post=of_events),
    Address("/v2", server, "Open Inference Protocol: the server."),
    Address(_MODELS[0], model, "Open Inference Protocol: inputs and outputs; /ready and /infer below it."),
    Address(_MODELS[1], model),
    *(Address(f"{path}/ready", model_ready) for path in _MODELS),
    *(Address(f"{path}/infer", infer, method="POST") for path in _MODELS),
]  # fmt: skip
