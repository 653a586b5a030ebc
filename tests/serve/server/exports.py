"""Small exports for the server's tests: real graphs with vocabularies, an MLP and trees, and the same by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from fastrec.features import FeatureSet, History
from fastrec.serve import write_online_state
from fastrec.serve.graph.features import GraphGroups
from fastrec.serve.onnx_builder import Graph, GraphTensor

DTYPES = {"string": object, "int64": np.int64, "float64": np.float64, "float32": np.float32, "bool": bool}
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
SPLIT = 40.0  # of the tree, on price


def columns(rows: int, seed: int = 0) -> dict[str, list[Any]]:
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
    """An export; ``weights``: seed of the MLP; ``made``: the input made from events; ``changes``: to serving.json.

    A score of ``ranking`` is 100 · the rows of its list more, ``multiclass`` has 1 - score too. ``extra`` are float64
    inputs, of which the score has a thousandth of the sum.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inputs = [*INPUTS, *(_input(name, "float64") for name in extra)]
    if task == "ranking":
        inputs.append(_input("list_id", "int64"))
        changes = {"list": "list_id", "item": "item_id", **changes}
    inputs = [{**one, "made": one["name"] == made} for one in inputs]
    width = 2 if task == "multiclass" else 1
    raw = toy(weights, inputs, list(extra), task).model().SerializeToString()
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


def toy(weights: int, inputs: list[dict[str, Any]], extra: list[str], task: str) -> Graph:
    graph = Graph()
    names = {i["name"]: graph.input(i["name"], DTYPES[i["type"]]) for i in inputs}

    def tensor(value: str, dtype: torch.dtype) -> Any:
        return GraphTensor.of(graph, value, dtype)

    def looked_up(name: str, known: dict[Any, float], dtype: Any) -> Any:
        codes = np.array([*known.values()], np.int64)
        return tensor(graph.lookup(names[name], np.array([*known], dtype), codes), torch.int64).float()

    def days(name: str, unit: float) -> Any:
        value = tensor(names[name], torch.int64)
        return torch.where(value == INT_MISSING, 0.0, ((value.double() / unit - 1.7e9) / 1e8).float())

    price = tensor(names["price"], torch.float64).float()
    ratio = tensor(names["ratio"], torch.float32)
    features = [
        looked_up("city", CITIES, object),
        looked_up("user", USERS, np.int64),
        torch.where(price.isnan(), 0.0, price) / 100,
        torch.where(ratio.isnan(), 0.0, ratio),
        tensor(names["mobile"], torch.bool).float(),
        days("at", 1e6),
        days("seen", 1.0),
    ]
    net = (torch.stack(features, 1) @ torch.from_numpy(weights_of(weights))).clamp_min(0).mean(1)
    score = (net + torch.where(price <= SPLIT, -0.25, 0.25)).sigmoid().double()
    for name in extra:
        score = score + tensor(names[name], torch.float64) * 1e-3
    if task == "ranking":
        ones = tensor(names["price"], torch.float64).isnan().double() * 0 + 1
        score = score + 100 * GraphGroups(tensor(names["list_id"], torch.int64)).reduce(ones, "add")
    score = torch.stack([1 - score, score], 1) if task == "multiclass" else score
    graph.output("score", score.value, np.float64, 2 if task == "multiclass" else None)
    return graph


COUNT = "seen_count"


def with_events(folder: Path, *, weights: int = 0) -> Path:
    """The toy whose score has a thousandth of the number of a user's earlier events more."""
    at = {"unit": "us", "zone": None}
    log = {"user": {"type": "int64"}, "at": {"type": "int64", "time": at}}
    tables = {"tables": {"log": {"columns": log}}, "history": False}
    write_export(folder, weights=weights, extra=[COUNT], made=COUNT, events=tables)
    events = pd.DataFrame({"user": [7, 7, 2**53 + 1], "at": pd.to_datetime(["2026-01-01"] * 3).astype("M8[us]")})
    features = FeatureSet([History("user", order="at", table="log", stats="count", name="seen")])
    features.fit(events, tables={"log": events})
    features.save(folder / "features")
    write_online_state(folder / "events", features, {"log": events})
    return folder


def event(user: int) -> dict[str, Any]:
    return {"user": user, "at": "2026-01-02T00:00:00"}
