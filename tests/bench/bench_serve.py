"""What the server costs beside the graph; ``load_server.py`` sends its load.

``python tests/bench/bench_serve.py export DIR`` writes an export of 60 columns (12 of strings, 8 of int64, 40 of
float64), a net and 200 trees of depth 5; ``bodies DIR`` writes bodies of 1 and 1,024 rows for it; ``cpu DIR`` prints
the CPU time of one request of 1,024 rows in the process: in all, of the graph alone, and the difference.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
from onnx import TensorProto, helper, numpy_helper

STRINGS, INTEGERS, FLOATS, TREES, DEPTH, VALUES = 12, 8, 40, 200, 5, 1000
NAMES = [
    *(("string", f"s{i}") for i in range(STRINGS)),
    *(("int64", f"i{i}") for i in range(INTEGERS)),
    *(("float64", f"f{i}") for i in range(FLOATS)),
]
_KINDS = {"string": TensorProto.STRING, "int64": TensorProto.INT64, "float64": TensorProto.DOUBLE}


def write_export(folder: Path, seed: int = 0) -> None:
    """Vocabularies → embeddings and numbers → net; the numbers → trees; their mean is the score."""
    rng = np.random.default_rng(seed)
    nodes: list[Any] = []
    held: list[Any] = []

    def constant(name: str, values: Any) -> str:
        held.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    axis = constant("axis", np.array([1], np.int64))
    parts, numbers = [], []
    for kind, name in NAMES:
        if kind == "float64":
            narrow = node("Cast", [name], f"{name}_32", to=TensorProto.FLOAT)
            known = node("Where", [node("IsNaN", [narrow], f"{name}_nan"), "zero", narrow], f"{name}_known")
            numbers.append(node("Unsqueeze", [known, axis], f"{name}_column"))
            continue
        keys = [f"{name}={i}".encode() for i in range(VALUES)] if kind == "string" else list(range(VALUES))
        nodes.append(
            helper.make_node(
                "LabelEncoder", [name], [f"{name}_code"], domain="ai.onnx.ml",
                keys_tensor=helper.make_tensor("k", _KINDS[kind], [VALUES], keys),
                values_tensor=helper.make_tensor("v", TensorProto.INT64, [VALUES], range(1, VALUES + 1)),
                default_tensor=helper.make_tensor("d", TensorProto.INT64, [1], [0]),
            )
        )  # fmt: skip
        table = constant(f"{name}_table", rng.normal(size=(VALUES + 1, 8)).astype(np.float32))
        parts.append(node("Gather", [table, f"{name}_code"], f"{name}_vector"))
    constant("zero", np.float32(0))
    conts = node("Concat", numbers, "conts", axis=1)
    layer = node("Concat", [*parts, conts], "layer0", axis=1)
    width = 8 * (STRINGS + INTEGERS) + FLOATS
    for i, size in enumerate((200, 100, 1), 1):
        w = constant(f"w{i}", (rng.normal(size=(width, size)) / width**0.5).astype(np.float32))
        layer, width = node("MatMul", [layer, w], f"layer{i}"), size
        if size > 1:
            layer = node("Relu", [layer], f"relu{i}")
    nodes.append(_forest("conts", "trees", rng))
    both = node("Add", [layer, "trees"], "both")
    score = node("Sigmoid", [node("Squeeze", [both, axis], "margin")], "p")
    node("Cast", [score], "score", to=TensorProto.DOUBLE)
    ins = [helper.make_tensor_value_info(name, _KINDS[kind], ["n"]) for kind, name in NAMES]
    outs = [helper.make_tensor_value_info("score", TensorProto.DOUBLE, ["n"])]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 4)]
    model = helper.make_model(helper.make_graph(nodes, "bench", ins, outs, held), opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    raw = model.SerializeToString()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(raw)
    missing = {"string": "", "int64": -(2**63), "float64": None}
    said = {
        "format": 1, "fastrec": "0.1.0", "name": "bench", "task": "binary", "metric": "auc",
        "model": {"file": "model.onnx", "sha256": hashlib.sha256(raw).hexdigest()},
        "inputs": [{"name": n, "type": k, "missing": missing[k], "time": None, "required": True, "made": False}
                   for k, n in NAMES],
        "outputs": [{"name": "score", "type": "float64", "width": 1}],
        "classes": None, "target": None, "list": None, "item": None, "events": None,
    }  # fmt: skip
    (folder / "serving.json").write_text(json.dumps(said), encoding="utf-8")


def _forest(source: str, output: str, rng: np.random.Generator) -> Any:
    """Full trees with random splits: node i has the children 2i + 1 and 2i + 2."""
    inner, size = 2**DEPTH - 1, 2 ** (DEPTH + 1) - 1
    leaf = np.arange(size) >= inner
    one = {
        "nodes_nodeids": np.arange(size),
        "nodes_truenodeids": np.where(leaf, 0, 2 * np.arange(size) + 1),
        "nodes_falsenodeids": np.where(leaf, 0, 2 * np.arange(size) + 2),
    }
    attributes: dict[str, Any] = {name: np.tile(values, TREES).tolist() for name, values in one.items()}
    leaves = np.arange(inner, size)
    return helper.make_node(
        "TreeEnsembleRegressor", [source], [output], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=np.repeat(np.arange(TREES), size).tolist(),
        nodes_featureids=np.where(np.tile(leaf, TREES), 0, rng.integers(0, FLOATS, TREES * size)).tolist(),
        nodes_modes=np.tile(np.where(leaf, "LEAF", "BRANCH_LT"), TREES).tolist(),
        nodes_values=rng.normal(size=TREES * size).tolist(),
        nodes_missing_value_tracks_true=[0] * (TREES * size),
        target_treeids=np.repeat(np.arange(TREES), len(leaves)).tolist(),
        target_nodeids=np.tile(leaves, TREES).tolist(),
        target_ids=[0] * (TREES * len(leaves)),
        target_weights=(rng.normal(size=TREES * len(leaves)) / 50).tolist(),
        **attributes,
    )  # fmt: skip


def make_columns(rows: int, seed: int = 1) -> dict[str, list[Any]]:
    """Rows as a client has them; a tenth of the values is unseen."""
    rng = np.random.default_rng(seed)
    draw = {
        "string": lambda name: [f"{name}={v}" for v in rng.integers(0, VALUES * 10 // 9, rows)],
        "int64": lambda name: rng.integers(0, VALUES * 10 // 9, rows).tolist(),
        "float64": lambda name: rng.normal(size=rows).tolist(),
    }
    return {name: draw[kind](name) for kind, name in NAMES}


def bodies(rows: int) -> dict[str, tuple[bytes, str]]:
    """The same rows as Arrow, as columns of JSON and as rows of JSON."""
    columns = make_columns(rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, (table := pa.table(columns)).schema) as writer:
        writer.write_table(table)
    as_rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
    return {
        "arrow": (sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream"),
        "columns": (json.dumps({"columns": columns}).encode(), "application/json"),
        "rows": (json.dumps({"rows": as_rows}).encode(), "application/json"),
    }


def cpu_times(folder: Path, rows: int = 1024, times: int = 30) -> None:
    """CPU milliseconds of one request through the application, and of the graph alone; the smallest of ``times``."""
    from fastrec.serve import Limits, Scorer, make_app
    from tests.serve.server.calls import request

    scorer = Scorer(folder)
    plain = {n: np.array(v, object if isinstance(v[0], str) else None) for n, v in make_columns(rows).items()}
    alone = _smallest(lambda: scorer.run(plain), times)
    print(f"graph alone {alone:.2f} ms")
    app = make_app(folder, limits=Limits(workers=1))
    loop = asyncio.new_event_loop()
    for form, (body, kind) in bodies(rows).items():
        headers = {"content-type": kind, "content-length": str(len(body))}

        def once(body: bytes = body, headers: dict[str, str] = headers) -> None:
            answer = loop.run_until_complete(request(app, "POST", "/v1/score", body, headers))
            assert answer.status == 200, answer.body

        took = _smallest(once, times)
        print(f"{form} {len(body):,} bytes: {took:.2f} ms, {took - alone:.2f} ms more than the graph")
    app.state.service.close()
    loop.close()


def _smallest(call: Callable[[], Any], times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return min(taken) * 1000


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    what, where = sys.argv[1:3]
    if what == "export":
        write_export(Path(where))
    elif what == "bodies":
        for n in (1, 1024):
            for form, (body, _) in bodies(n).items():
                (Path(where) / f"{form}{n}.{'arrow' if form == 'arrow' else 'json'}").write_bytes(body)
    else:
        cpu_times(Path(where))
