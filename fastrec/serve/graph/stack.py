"""A run's stack in a graph: base models' predictions blended as in training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fastrec._core import limits
from fastrec.estimators import Estimator
from fastrec.serve.forest import forest_of_xgboost
from fastrec.serve.graph.columns import GraphColumn, GraphTable
from fastrec.serve.graph.estimators import GraphRows, margins, prediction, tree_matrix, writer
from fastrec.serve.graph.tensor import GraphTensor
from fastrec.stacking import StackModel
from fastrec.stacking.row_inputs import as_task, in_columns, names_of


def blended(stack: StackModel, base: Mapping[str, Any], rows: GraphRows) -> Any:
    """What a stack makes of its base models' predictions: float64 ``[rows]`` or ``[rows, k]``.

    Args:
        stack: the stack.
        base: base model → its prediction.
        rows: the rows that they are of.
    """
    used = {m: base[m] for m in stack.models}
    two = _of_lists(used, rows, stack.extra) if rows.task == "ranking" else _of_rows(used, rows, stack.extra)
    parts = [_blend(blend, two) for blend in stack.blends]
    total = parts[0] / len(parts)
    for part in parts[1:]:
        total = total + part / len(parts)
    return total


def _of_rows(base: Mapping[str, Any], rows: GraphRows, extra: list[str]) -> GraphRows:
    columns: dict[str, Any] = {n: rows.table[n] for n in extra}
    used = [n for n in extra if n not in rows.cats]
    for model, values in base.items():
        names, wide = names_of(model, rows), in_columns(values)
        columns |= {n: wide[:, j].double() for j, n in enumerate(names)}
        used += names
    return _two(rows, columns, used, extra)


def _of_lists(base: Mapping[str, Any], rows: GraphRows, extra: list[str]) -> GraphRows:
    columns: dict[str, Any] = {n: rows.table[n] for n in extra}
    used = [n for n in extra if n not in rows.cats]
    for model, values in base.items():
        made = {f"{model}_{word}": v for word, v in in_list(values, rows).items()}
        columns |= made | {model: values}
        used += [n for n in made if n != f"{model}_log_softmax"]
    return _two(rows, columns, used, extra)


def _two(rows: GraphRows, columns: Mapping[str, Any], used: list[str], extra: list[str]) -> GraphRows:
    table = GraphTable(columns)
    cats = [n for n in extra if n in rows.cats]
    return GraphRows(table, rows.task, cats, used, rows.n_outputs, rows.lists)


def in_list(scores: GraphTensor, rows: GraphRows) -> dict[str, Any]:
    """``fastrec.stacking.blends.in_list`` as nodes."""
    lists = rows.lists
    assert lists is not None
    rough = torch.where(scores.isnan(), -torch.inf, scores)
    top = lists.reduce(rough, "max")
    near = torch.where(rough.isfinite() & top.isfinite(), rough - top, -limits.FAR_GAP)
    gap = torch.where(rough == top, 0.0, near)
    log_softmax = gap - lists.reduce(gap.exp(), "add").log()
    rank = (lists.place([(rough, True)]) + 1).double()
    return {"rank": rank, "gap": gap, "softmax": log_softmax.exp(), "log_softmax": log_softmax}


def _blend(blend: Estimator, two: GraphRows) -> Any:
    kind = type(blend).__name__
    if kind in ("BoostedBlend", "TreeBlend"):
        return prediction(blend, two)
    return blend.predict(two)  # type: ignore[arg-type] - sums of columns: the code of training writes the nodes


@writer("BoostedBlend")
def _boosted(blend: Any, two: GraphRows) -> Any:
    start = GraphColumn("number", blend.blend.predict(two), name="__start__")
    return prediction(blend.trees, two.with_table(two.table.with_columns({"__start__": start}), two.conts))


@writer("TreeBlend")
def _tree_blend(blend: Any, two: GraphRows) -> Any:
    matrix = tree_matrix(blend._inputs, two.table)
    start = blend.sums.linear(two).float()
    forests = [forest_of_xgboost(b, len(blend._inputs.names)) for b in blend._boosters]
    sums = [margins(f, matrix).float() for f in forests]
    if two.task == "multiclass":
        return (sums[0] + start).double().softmax(1)
    total = torch.stack([s[:, 0] for s in sums], 1) + start
    return as_task(total.double() if two.task == "regression" else total.double().sigmoid(), two)
