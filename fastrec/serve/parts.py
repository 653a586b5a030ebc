"""Write an exported graph in parts: features, each net, each forest and the stack as files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastrec.errors import DataError
from fastrec.serve.forest.from_xgboost import booster_of_margins
from fastrec.serve.graph.builder import Graph, GraphCut, GraphPart

_FOLDER = "parts"


def write_parts(graph: Graph, folder: Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Write the parts of a graph, in the order in which they run.

    Args:
        graph: the whole graph.
        folder: the export's folder.
        about: the content of ``serving.json``.

    Returns:
        Their description for ``serving.json``.
    """
    (folder / _FOLDER).mkdir()
    # width -1: as wide as the longest row of the request
    raw = [GraphCut(i["name"], i["name"], i["type"], -1 if "events" in i else None) for i in about["inputs"]]
    raw += [GraphCut(n, n, "int64", None) for n in [about.get("events_count")] if n is not None]
    ends = [
        GraphCut(o["name"], graph.output_value(o["name"]), o["type"], None if o["width"] == 1 else o["width"])
        for o in about["outputs"]
    ]
    for part in graph.marks:
        for i, cut in enumerate(part.inputs):
            cut.name = f"{part.name}_in{i}"
        for cut in part.outputs:
            cut.name = f"{part.name}_out"
    features = [c for p in graph.marks for c in p.inputs]
    predictions = [c for p in graph.marks for c in p.outputs]
    parts = [GraphPart("features", "onnx", raw, features)] if features else []
    # the stack computes other columns that it reads, of lists for instance, from the raw ones itself
    parts += [*graph.marks, GraphPart("stack", "onnx", [*predictions, *raw], ends)]
    return [_write_part(graph, folder, part) for part in parts]


def _write_part(graph: Graph, folder: Path, part: GraphPart) -> dict[str, Any]:
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
    sides = {
        side: [{"name": c.name, "type": c.dtype, "width": c.width} for c in cuts]
        for side, cuts in (("inputs", inputs), ("outputs", part.outputs))
    }
    return {"name": part.name, "kind": part.kind, "file": file, "files": files, **sides}
