"""``export_next_items``: write a run's net of next items as one ONNX file, from raw item ids to the best items."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.export import Dim

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec._core.progress import Stages
from fastrec._version import __version__
from fastrec.competition.next_items.predict import SavedNextItems
from fastrec.errors import DataError
from fastrec.sequences import NextItemNet
from fastrec.sequences._virtual_items import has_virtual
from fastrec.serve.graph.builder import ROWS, Graph
from fastrec.serve.graph.nets import exported
from fastrec.serve.session_scores import SessionScores
from fastrec.table import Vocab
from fastrec.table.key_types import is_text

__all__ = ["ExportedNextItems", "export_next_items", "net_of"]

FILE, TASK = "serving.json", "next_item"


@dataclass(frozen=True)
class ExportedNextItems:
    """An export.

    Args:
        folder: its folder.
        about: the content of ``serving.json``.
    """

    folder: Path
    about: dict[str, Any]


def export_next_items(
    run: str | Path,
    out: str | Path,
    *,
    model: str | None = None,
    trust: Sequence[str] = (),
    stages: Stages | None = None,
) -> ExportedNextItems:
    """Write a run's net as a graph: sessions of raw item ids → ids of the best items, and their scores.

    The graph's inputs are ``items`` ``[rows, length]`` (ids as in the training files, the last event last; what is no
    known item, such as the filling of short sessions, is passed over) and ``k`` ``[1]``; its outputs ``ids`` and
    ``scores``, ``[rows, k]``. Where there are fewer items, ids are ``serving.json``'s ``missing`` and scores -inf.

    Other models of the run's blend (neighbours, trees) have no form in a graph: ``left_out`` names them. A server of
    the run directory itself has them all.

    Args:
        run: the run directory.
        out: the folder to make; an earlier export there is replaced when this one is complete.
        model: the name of the net in the blend; None: the only one.
        trust: modules of custom models that may be imported.
        stages: progress; None: none is shown.

    Raises:
        DataError: the run has no net, or several; or the items' ids are neither integers nor text.
        FastrecError: the run cannot be read, or the folder not be written.
    """
    out = Path(out)
    check_replaceable(out, FILE)
    stages = stages or Stages(quiet=True)
    saved = SavedNextItems(run, trust=trust)
    name, net = net_of(saved, model)
    items = net.items
    assert items is not None
    if has_virtual(items):
        raise DataError(
            f"{name} reads virtual items, which are no ids that a graph could take", column=items.name or None,
            remedy="Serve the run directory itself",
        )  # fmt: skip
    with stages.stage("graph"):
        graph = _graph(net, items, exclude_seen=saved.exclude_seen)
    missing = missing_of(items)
    about: dict[str, Any] = {
        "format": 1,
        "fastrec": __version__,
        "name": saved.config["competition"],
        "task": TASK,
        "net": {"name": name, **net.settings()},
        "left_out": [n for n in saved.blend.models if n != name],
        "exclude_seen": saved.exclude_seen,
        "items": len(items) - 1,
        "k": saved.form.max_items,
        "inputs": [
            {"name": "items", "type": type_of(items), "shape": [ROWS, "length"], "missing": missing},
            {"name": "k", "type": "int64", "shape": [1]},
        ],
        "outputs": [
            {"name": "ids", "type": type_of(items), "shape": [ROWS, "k"]},
            {"name": "scores", "type": "float32", "shape": [ROWS, "k"]},
        ],
    }
    with atomic_folder(out) as part, stages.stage("write"):
        graph.export(part, about)
        (part / FILE).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
    return ExportedNextItems(out, about)


def net_of(saved: SavedNextItems, name: str | None = None) -> tuple[str, NextItemNet]:
    """Return a run's net and its name.

    Raises:
        DataError: there is none of that name, or none at all, or several.
    """
    nets = {n: m for n, m in saved.blend.models.items() if isinstance(m, NextItemNet)}
    if name is None and len(nets) == 1:
        name = next(iter(nets))
    if name is None or name not in nets:
        has = f"its models are {', '.join(saved.blend.models)}"
        if name is None and not nets:
            raise DataError(f"the run has no net: {has}", file=saved.folder, remedy="Serve the run directory itself")
        which = "and --model names none" if name is None else f"none is {name!r}"
        raise DataError(
            f"the run has {len(nets)} nets, {which}: {has}", file=saved.folder, remedy=f"Name one of {', '.join(nets)}"
        )
    return name, nets[name]


def type_of(items: Vocab) -> str:
    """Return the type of items' ids in a graph.

    Raises:
        DataError: they are neither integers nor text.
    """
    kind = items.values.type
    if is_text(kind):
        return "string"
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return "int64"
    raise DataError(f"items are of type {kind}, neither integers nor text", column=items.name or None)


def missing_of(items: Vocab) -> str | int:
    """Choose a value for no item that is no item's id."""
    known = items.values
    if type_of(items) == "int64":
        taken = set(known.slice(0, 10).to_pylist())  # values are sorted: these are the smallest
        return next(v for v in range(-(2**63), -(2**63) + 20) if v not in taken)
    texts = set(known.to_pylist())
    return next(t for t in ("", *(f"#{'na' * i}#" for i in range(1, 9))) if t not in texts)


def _graph(net: NextItemNet, items: Vocab, *, exclude_seen: bool) -> Graph:
    graph, kind, missing = Graph(), type_of(items), missing_of(items)
    dtype = object if kind == "string" else np.int64
    ids = np.array([missing, *items.values.to_pylist()], dtype=dtype)
    given = graph.input("items", dtype, (ROWS, "length"))
    k = graph.input("k", np.int64, (1,))
    codes = graph.op(
        "LabelEncoder", given, domain="ai.onnx.ml", keys_tensor=ids[1:],
        values_tensor=np.arange(1, len(ids), dtype=np.int64), default_tensor=np.array([0], np.int64),
    )  # fmt: skip
    example = torch.ones((3, 2), dtype=torch.int64)
    module = SessionScores(net, exclude_seen=exclude_seen).eval()
    proto = exported(module, (example,), shapes=({0: Dim("sessions"), 1: Dim("length")},))
    scores = graph.merge(proto, [codes])[0]
    # TopK fails if there are fewer items than k
    most = graph.op("Min", k, graph.constant(np.array([len(items)], np.int64)))
    best, places = graph.op("TopK", scores, most, outputs=2, axis=1, largest=1, sorted=1)
    there = graph.op("Greater", best, graph.constant(np.array([-np.inf], np.float32)))
    items_of_places = graph.op("Gather", graph.constant(ids), places)
    graph.output("ids", graph.op("Where", there, items_of_places, graph.constant(ids[:1])), dtype, "k")
    graph.output("scores", best, np.float32, "k")
    return graph
