"""An exported graph in parts: columns and features, each net, each forest and the stack as files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastrec.errors import DataError
from fastrec.serve.forest.from_xgboost import booster_of_margins
from fastrec.serve.graph.builder import Graph, GraphCut, GraphPart

_FOLDER = "parts"
_ANY = -1  # width: as wide as the longest row of the request


def write_parts(graph: Graph, folder: Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Write the parts of a graph, in the order in which they run.

    Args:
        graph: the whole graph.
        folder: the export's folder.
        about: what ``serving.json`` says.

    Returns:
        What ``serving.json`` is to say of them.
    """
    (folder / _FOLDER).mkdir()
    raw = [GraphCut(i["name"], i["name"], i["type"], _ANY if "events" in i else None) for i in about["inputs"]]
    raw += [GraphCut(n, n, "int64", None) for n in [about.get("events_count")] if n is not None]
    ends = [GraphCut(o["name"], graph.output_value(o["name"]), o["type"], _width(o)) for o in about["outputs"]]
    inner: list[GraphPart] = [_named(p) for p in graph.marks]
    fed = [c for p in inner for c in p.inputs]
    made = [c for p in inner for c in p.outputs]
    parts = [GraphPart("features", "onnx", raw, fed)] if fed else []
    # What the stack reads of columns, of lists for instance, it makes of the raw ones itself.
    parts += [*inner, GraphPart("stack", "onnx", [*made, *raw], ends)]
    return [_written(graph, folder, part) for part in parts]


def _width(output: dict[str, Any]) -> int | None:
    return None if output["width"] == 1 else output["width"]


def _named(part: GraphPart) -> GraphPart:
    for i, cut in enumerate(part.inputs):
        cut.name = f"{part.name}_in{i}"
    for cut in part.outputs:
        cut.name = f"{part.name}_out"
    return part


def _written(graph: Graph, folder: Path, part: GraphPart) -> dict[str, Any]:
    if part.kind == "xgboost":
        file = f"{_FOLDER}/{part.name}.ubj"
        (folder / file).write_bytes(booster_of_margins(part.booster).save_raw("ubj"))
        inputs, files = part.inputs, [f"{part.name}.ubj"]
    else:
        file = f"{_FOLDER}/{part.name}.onnx"
        model, read = graph.part(part.inputs, part.outputs)
        inputs = [c for c in part.inputs if c.name in read]
        if not inputs:
            raise DataError(f"the part {part.name} reads nothing", remedy="Export without parts")
        files = [f.name for f in graph.save(folder / file, model=model)]
    described = {"inputs": [_said(c) for c in inputs], "outputs": [_said(c) for c in part.outputs]}
    return {"name": part.name, "kind": part.kind, "file": file, "files": files, **described}


def _said(cut: GraphCut) -> dict[str, Any]:
    return {"name": cut.name, "type": cut.dtype, "width": cut.width}
