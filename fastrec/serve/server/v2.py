"""The Open Inference Protocol, version 2, with tensors in JSON or in binary: what ``tritonclient.http`` speaks.

The protocol's text: https://github.com/kserve/open-inference-protocol; tensors in binary: Triton's
``protocol/extension_binary_data``.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from starlette.responses import Response

from fastrec._version import __version__
from fastrec.serve.server.bodies import JSON, parse_json, write_json
from fastrec.serve.server.call import Call
from fastrec.serve.server.columns import RequestColumns
from fastrec.serve.server.reading import check_rows, checked_columns
from fastrec.serve.server.refusal import Refusal, shortened
from fastrec.serve.server.scorer import Scorer
from fastrec.serve.server.service import Service
from fastrec.serve.server.spec import Input, Output, Spec
from fastrec.serve.server.values import from_array, from_values

__all__ = ["infer", "model", "model_ready", "server"]

_HEADER = b"inference-header-content-length"
_NAMES = {"int64": "INT64", "float64": "FP64", "float32": "FP32", "string": "BYTES", "bool": "BOOL"}
_BINARY = {"BOOL": "?", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
_BINARY |= {
    f"{sign}INT{bits}": f"<{kind}{bits // 8}" for bits in (8, 16, 32, 64) for sign, kind in (("", "i"), ("U", "u"))
}
_VERSION = "1"


async def server(service: Service, call: Call) -> Response:
    """Describe this server."""
    return Response(
        write_json({"name": "fastrec", "version": __version__, "extensions": ["binary_tensor_data"]}), media_type=JSON
    )


async def model(service: Service, call: Call) -> Response:
    """Describe the model's inputs and outputs."""
    spec = _spec(service, call)
    inputs = [i for i in spec.sent if i.events is None]
    if spec.list is not None:
        inputs.append(Input(spec.list, "int64"))
    said = {
        "name": spec.name,
        "versions": [_VERSION],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": i.name, "datatype": _NAMES[i.type], "shape": [-1]} for i in inputs],
        "outputs": [{"name": o.name, "datatype": _NAMES[o.type], "shape": _shape(o, -1)} for o in spec.outputs],
    }
    return Response(write_json(said), media_type=JSON)


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
    return _answer(spec, head, wanted, {o.name: (o, values) for o, values in zip(spec.outputs, outputs)})


def _spec(service: Service, call: Call) -> Spec:
    spec, path = service.scorer.spec, call.request.path_params
    if path["name"] != spec.name or path.get("version", _VERSION) != _VERSION:
        raise Refusal(404, f"there is no model {shortened(path['name'])!r} of this version; there is {spec.name!r}")
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
        n = _rows(said)
        check_rows(n, max_rows)
        if rows not in (None, n):
            raise Refusal(400, f"it has {n} rows, another input has {rows}", column=said["name"])
        rows = n
        tensors[said["name"]], rest = _tensor(said, n, rest)
    if scorer.spec.events_count is not None:
        raise Refusal(
            422, "the model reads lists of events, which tensors of this protocol do not hold", remedy="Send /v1/score"
        )
    if len(rest):
        raise Refusal(400, f"{len(rest)} bytes of the body belong to no input")
    return scorer, head, checked_columns(scorer.spec, tensors, rows or 0, _column, _keys)


def _rows(said: dict[str, Any]) -> int:
    shape = said.get("shape")
    fits = type(shape) is list and shape and all(type(n) is int and n >= 0 for n in shape)
    if not fits or len(shape) > 2 or shape[1:] not in ([], [1]):
        raise Refusal(400, f"its shape is {shortened(shape)}, not [n] or [n, 1]", column=said["name"])
    return shape[0]


def _tensor(said: dict[str, Any], n: int, rest: memoryview) -> tuple[list[Any] | np.ndarray, memoryview]:
    """Return the values of one input, and the binary part behind it."""
    name, kind = said["name"], said.get("datatype")
    if type(kind) is not str or (kind != "BYTES" and kind not in _BINARY):
        raise Refusal(400, f"its datatype is {shortened(kind)}, which is unknown", column=name)
    size = _parameters(said).get("binary_data_size")
    if size is None:
        return _from_json(said, n), rest
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


def _from_json(said: dict[str, Any], n: int) -> list[Any]:
    data = said.get("data")
    if type(data) is not list:
        raise Refusal(400, "it has neither data nor binary_data_size", column=said["name"])
    if len(said["shape"]) == 2 and all(type(v) is list and len(v) == 1 for v in data):
        data = [v[0] for v in data]
    if len(data) != n:
        raise Refusal(400, f"it has {len(data)} values, its shape says {n}", column=said["name"])
    return data


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


def _column(column: Input, values: list[Any] | np.ndarray) -> np.ndarray:
    return from_values(column, values) if isinstance(values, list) else from_array(column, values)


def _keys(values: list[Any] | np.ndarray) -> list[Any]:
    return values if isinstance(values, list) else values.tolist()


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


def _answer(
    spec: Spec, head: dict[str, Any], wanted: dict[str, bool], outputs: dict[str, tuple[Output, np.ndarray]]
) -> Response:
    tensors, parts = [], []
    for name, binary in wanted.items():
        output, values = outputs[name]
        said = {"name": name, "datatype": _NAMES[output.type], "shape": _shape(output, len(values))}
        if binary:
            parts.append(np.ascontiguousarray(values).tobytes())
            said["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            said["data"] = values.reshape(-1).tolist()
        tensors.append(said)
    told = {"model_name": spec.name, "model_version": _VERSION, "outputs": tensors}
    if type(head.get("id")) is str:
        told["id"] = head["id"]
    text = write_json(told)
    if not parts:
        return Response(text, media_type=JSON)
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return Response(text + b"".join(parts), media_type="application/octet-stream", headers=headers)


def _shape(output: Output, rows: int) -> list[int]:
    return [rows] if output.width == 1 else [rows, output.width]
