"""Small exports for the server's tests: real graphs with vocabularies, an MLP and trees, and the same by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

INT_MISSING = -(2**63)
CITIES = {"Köln": 1.0, "Oslo": 2.0, "": 3.0, "東京": 4.0}  # "" is missing; unseen: 0
USERS = {2**53: 1.0, 2**53 + 1: 2.0, 2**63 - 1: 3.0, INT_MISSING: 4.0}  # doubles cannot tell the first two apart


def _input(name: str, kind: str, missing: Any = None, *, required: bool = True, time: Any = None) -> dict[str, Any]:
    return {"name": name, "type": kind, "missing": missing, "time": time, "required": required, "made": False}


INPUTS = [
    _input("city", "string", ""),
    _input("user", "int64", INT_MISSING),
    _input("price", "float64"),
    _input("ratio", "float32", required=False),
    _input("mobile", "bool"),
    _input("at", "int64", INT_MISSING, required=False, time={"unit": "us", "zone": None}),
    _input("seen", "int64", INT_MISSING, required=False, time={"unit": "s", "zone": "Europe/Berlin"}),
]
_ONNX = {
    "string": TensorProto.STRING, "int64": TensorProto.INT64, "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT, "bool": TensorProto.BOOL,
}  # fmt: skip
SPLIT = 40.0  # of the tree, on price


def columns(rows: int, seed: int = 0) -> dict[str, list[Any]]:
    """Rows that JSON can hold; some values are missing, some unseen."""
    rng = np.random.default_rng(seed)
    return {
        "city": rng.choice(np.array([*CITIES, "unseen", None], object), rows).tolist(),
        "user": [[2**53, 2**53 + 1, 2**63 - 1, 7, None][i] for i in rng.integers(0, 5, rows)],
        "price": [None if v > 90 else float(v) for v in rng.uniform(0, 100, rows)],
        "ratio": [float(np.float32(v)) for v in rng.normal(size=rows)],
        "mobile": [bool(v) for v in rng.integers(0, 2, rows)],
        "at": [f"2026-01-{d:02d}T00:00:00.25" for d in rng.integers(1, 29, rows)],
        "seen": [1_700_000_000 + int(v) for v in rng.integers(0, 10**6, rows)],
    }


def by_hand(rows: dict[str, list[Any]], *, weights: int = 0) -> list[float]:
    """The score of each row as the graph should give it, in plain Python."""
    w = weights_of(weights)
    scores = []
    for i in range(len(next(iter(rows.values())))):
        row = {name: values[i] for name, values in rows.items()}
        price = row["price"]
        features = [
            CITIES.get(row["city"] or "", 0.0),
            USERS.get(INT_MISSING if row["user"] is None else row["user"], 0.0),
            0.0 if price is None else price / 100,
            0.0 if row.get("ratio") is None else row["ratio"],
            float(row["mobile"]),
            _days(row.get("at")),
            _days(row.get("seen")),
        ]
        hidden = [max(0.0, sum(f * w[j][k] for j, f in enumerate(features))) for k in range(4)]
        tree = 0.25 if price is None or price > SPLIT else -0.25  # a missing price goes right
        scores.append(1 / (1 + np.exp(-(sum(hidden) / 4 + tree))))
    return scores


def _days(value: Any) -> float:
    if value is None:
        return 0.0
    if isinstance(value, str):
        value = datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp()
    return (value - 1_700_000_000) / 1e8


def weights_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(7, 4)).astype(np.float32) / 4


def write_export(
    folder: Path, *, weights: int = 0, task: str = "binary", extra: Sequence[str] = (), made: str = "", **changes: Any
) -> Path:
    """An export in ``folder``.

    Args:
        folder: made if it is not there.
        weights: seed of the MLP: another seed is another model.
        task: ``binary``; ``ranking``: ``list_id`` tells lists apart, and a score is 100 · the rows of its list more;
            ``multiclass``: the score and 1 - score.
        extra: more float64 inputs, of which the score has a thousandth of the sum.
        made: the input that is made from events.
        changes: other fields of serving.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inputs = [*INPUTS, *(_input(name, "float64") for name in extra)]
    if task == "ranking":
        inputs.append(_input("list_id", "int64"))
        changes = {"list": "list_id", "item": "item_id", **changes}
    inputs = [{**one, "made": one["name"] == made} for one in inputs]
    width = 2 if task == "multiclass" else 1
    graph = onnx_graph(weights, inputs, list(extra), task)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 4)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    raw = model.SerializeToString()
    (folder / "model.onnx").write_bytes(raw)
    said = {
        "format": 1, "fastrec": "0.1.0", "name": "Toy", "task": task, "metric": "auc",
        "model": {"file": "model.onnx", "sha256": hashlib.sha256(raw).hexdigest()}, "inputs": inputs,
        "outputs": [{"name": "score", "type": "float64", "width": width}],
        "classes": ["no", "yes"] if task == "multiclass" else None,
        "target": None, "list": None, "item": None, "events": None,
    }  # fmt: skip
    (folder / "serving.json").write_text(json.dumps({**said, **changes}), encoding="utf-8")
    return folder


def onnx_graph(weights: int, inputs: list[dict[str, Any]], extra: list[str], task: str) -> Any:
    """Columns → vocabularies, missing values → MLP + tree → sigmoid."""
    nodes: list[Any] = []
    held: list[Any] = []

    def constant(name: str, values: Any, dtype: Any) -> str:
        held.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    _vocabulary(nodes, "city", "city_code", TensorProto.STRING, {k.encode(): v for k, v in CITIES.items()})
    _vocabulary(nodes, "user", "user_code", TensorProto.INT64, USERS)
    axis = constant("axis", [1], np.int64)
    zero = constant("zero", 0, np.float32)
    for name, scale in (("price", 100), ("ratio", 1)):
        narrow = node("Cast", [name], f"{name}_32", to=TensorProto.FLOAT)
        known = node("Where", [node("IsNaN", [narrow], f"{name}_nan"), zero, narrow], f"{name}_known")
        node("Div", [known, constant(f"{name}_scale", scale, np.float32)], f"{name}_code")
    node("Cast", ["mobile"], "mobile_code", to=TensorProto.FLOAT)
    for name, unit in (("at", 1e6), ("seen", 1)):
        missing = node("Equal", [name, constant(f"{name}_missing", INT_MISSING, np.int64)], f"{name}_is_missing")
        seconds = node("Div", [node("Cast", [name], f"{name}_64", to=TensorProto.DOUBLE),
                               constant(f"{name}_unit", unit, np.float64)], f"{name}_seconds")  # fmt: skip
        since = node("Sub", [seconds, constant(f"{name}_start", 1.7e9, np.float64)], f"{name}_since")
        days = node("Div", [since, constant(f"{name}_day", 1e8, np.float64)], f"{name}_days")
        narrow = node("Cast", [days], f"{name}_32", to=TensorProto.FLOAT)
        node("Where", [missing, zero, narrow], f"{name}_code")
    flat = [node("Unsqueeze", [f"{i['name']}_code", axis], f"{i['name']}_column") for i in INPUTS]
    features = node("Concat", flat, "features", axis=1)
    hidden = node("Relu", [node("MatMul", [features, constant("w", weights_of(weights), np.float32)], "h")], "hidden")
    net = node("ReduceMean", [hidden, axis], "net", keepdims=0)
    tree_in = node("Unsqueeze", ["price_32", axis], "tree_in")
    nodes.append(_tree(tree_in, "tree_out"))
    total = node("Add", [net, node("Squeeze", ["tree_out", axis], "tree")], "margin")
    score = node("Cast", [node("Sigmoid", [total], "p")], "p64", to=TensorProto.DOUBLE)
    if extra:
        more = node("Sum", extra, "more")
        score = node("Add", [score, node("Mul", [more, constant("mill", 1e-3, np.float64)], "part")], "with_more")
    if task == "ranking":
        one = node("Unsqueeze", ["list_id", axis], "list_column")
        other = node("Unsqueeze", ["list_id", constant("axis0", [0], np.int64)], "list_row")
        same = node("Cast", [node("Equal", [one, other], "same")], "same64", to=TensorProto.DOUBLE)
        rows = node("ReduceSum", [same, axis], "rows", keepdims=0)
        score = node("Add", [score, node("Mul", [rows, constant("per_row", 100, np.float64)], "by_rows")], "listed")
    if task == "multiclass":
        rest = node("Sub", [constant("one", 1, np.float64), score], "rest")
        both = [node("Unsqueeze", [v, axis], f"{v}_column") for v in (rest, score)]
        node("Concat", both, "score", axis=1)
    else:
        node("Identity", [score], "score")
    ins = [helper.make_tensor_value_info(i["name"], _ONNX[i["type"]], ["n"]) for i in inputs]
    shape = ["n", 2] if task == "multiclass" else ["n"]
    outs = [helper.make_tensor_value_info("score", TensorProto.DOUBLE, shape)]
    return helper.make_graph(nodes, "toy", ins, outs, held)


def _vocabulary(nodes: list[Any], name: str, output: str, kind: int, codes: dict[Any, float]) -> None:
    keys = helper.make_tensor("k", kind, [len(codes)], list(codes))
    values = helper.make_tensor("v", TensorProto.FLOAT, [len(codes)], list(codes.values()))
    tensors = {"keys_tensor": keys, "values_tensor": values}
    tensors["default_tensor"] = helper.make_tensor("d", TensorProto.FLOAT, [1], [0.0])
    nodes.append(helper.make_node("LabelEncoder", [name], [output], domain="ai.onnx.ml", **tensors))


def _tree(source: str, output: str) -> Any:
    """``price <= SPLIT`` → -0.25, else and missing → 0.25."""
    return helper.make_node(
        "TreeEnsembleRegressor", [source], [output], domain="ai.onnx.ml", n_targets=1, nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[SPLIT, 0.0, 0.0], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        nodes_missing_value_tracks_true=[0, 0, 0], target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0],
        target_weights=[-0.25, 0.25],
    )  # fmt: skip
