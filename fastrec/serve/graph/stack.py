"""Write a run's stack into a graph: base models' predictions blended as in training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fastrec._core import limits
from fastrec.serve.forest import forest_of_xgboost
from fastrec.serve.graph.columns import GraphColumn, GraphTable
from fastrec.serve.graph.estimators import GraphRows, margins, prediction, tree_matrix, writer
from fastrec.serve.graph.tensor import GraphTensor
from fastrec.stacking import StackModel
from fastrec.stacking.row_inputs import as_task, in_columns, names_of


def blended(stack: StackModel, base: Mapping[str, Any], rows: GraphRows) -> Any:
    """Write a stack's prediction, from those of its base models: float64 ``[rows]`` or ``[rows, k]``."""
    used = {m: base[m] for m in stack.models}
    columns: dict[str, Any] = {n: rows.table[n] for n in stack.extra}
    conts = [n for n in stack.extra if n not in rows.cats]
    for model, values in used.items():
        if rows.task == "ranking":
            of_model = {f"{model}_{word}": v for word, v in in_list(values, rows).items()}
            columns |= of_model | {model: values}
            conts += [n for n in of_model if n != f"{model}_log_softmax"]
        else:
            names, wide = names_of(model, rows), in_columns(values)
            columns |= {n: wide[:, j].double() for j, n in enumerate(names)}
            conts += names
    cats = [n for n in stack.extra if n in rows.cats]
    two = GraphRows(GraphTable(columns), rows.task, cats, conts, rows.n_outputs, rows.lists)
    total = None
    for blend in stack.blends:
        if type(blend).__name__ in ("BoostedBlend", "TreeBlend"):
            part = prediction(blend, two)
        else:
            part = blend.predict(two)  # type: ignore[arg-type] - sums of columns: the code of training writes the nodes
        part = part / len(stack.blends)
        total = part if total is None else total + part
    return total


def in_list(scores: GraphTensor, rows: GraphRows) -> dict[str, Any]:
    """Write ``fastrec.stacking.blends.in_list``."""
    lists = rows.lists
    assert lists is not None
    rough = torch.where(scores.isnan(), -torch.inf, scores)
    top = lists.reduce(rough, "max")
    near = torch.where(rough.isfinite() & top.isfinite(), rough - top, -limits.FAR_GAP)
    gap = torch.where(rough == top, 0.0, near)
    log_softmax = gap - lists.reduce(gap.exp(), "add").log()
    rank = (lists.place([(rough, True)]) + 1).double()
    return {"rank": rank, "gap": gap, "softmax": log_softmax.exp(), "log_softmax": log_softmax}


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
