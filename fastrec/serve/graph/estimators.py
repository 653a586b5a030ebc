"""Write trained estimators into a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn import linear_model
from sklearn.linear_model._base import LinearModel  # no public class has all of these for its descendants

from fastrec._core import limits
from fastrec.estimators import CatBoostModel, Estimator, XGBModel
from fastrec.estimators._tree_model import TreeInputs
from fastrec.estimators.base import assembled
from fastrec.estimators.sklearn import DenseInputs
from fastrec.serve.forest.forest import Forest
from fastrec.serve.forest.libraries import EstimatorForests, forest_of_xgboost, forests_of
from fastrec.serve.graph.columns import GraphColumn, GraphTable, as_graph_column, encode
from fastrec.serve.graph.features import GraphGroups
from fastrec.serve.graph.lists import GraphEvents, session_outputs
from fastrec.serve.graph.nets import _matrix, net_outputs
from fastrec.serve.onnx_builder import GraphCut, GraphTensor, N, NotInGraphError, registrar, value_of
from fastrec.stacking import StackModel
from fastrec.stacking.blends import as_task, in_columns, names_of
from fastrec.table import Vocab
from fastrec.validate import Rows
from fastrec.validate.target import Task

_CLASSIFIERS = (linear_model.LogisticRegression, linear_model.SGDClassifier)
_POWERS = (linear_model.PoissonRegressor, linear_model.GammaRegressor, linear_model.TweedieRegressor)
_REGRESSORS = (LinearModel, linear_model.SGDRegressor, *_POWERS)


def linear_prediction(parts: list[Any], product: Callable[[torch.Tensor], Any], task: Task, k: int) -> Any:
    """Write the prediction of linear estimators: float64 ``[rows]`` or ``[rows, k]``; None if others are among them.

    ``parts`` has a trained estimator, or a constant, for each output. ``product`` multiplies the matrix of inputs with
    weights ``[columns, outputs]``.
    """
    kinds = _REGRESSORS if task == "regression" else _CLASSIFIERS
    trained = [p for p in parts if not isinstance(p, float)]
    if not trained or not all(isinstance(p, kinds) and type(p).__module__.startswith("sklearn.") for p in trained):
        return None
    width = np.atleast_2d(trained[0].coef_).shape[1]
    zero = product(torch.zeros((width, 1), dtype=torch.float64))[:, 0]  # of each row: constants have as many
    return assembled([zero + p if isinstance(p, float) else _said(p, product, task, k) for p in parts], task)


def _said(part: Any, product: Callable[[torch.Tensor], Any], task: Task, k: int) -> Any:
    """Write the prediction of one output: ``[rows]``, or ``[rows, k]`` for a multiclass task."""
    weights = torch.from_numpy(np.atleast_2d(np.asarray(part.coef_, dtype=np.float64)).T.copy())
    sums = product(weights) + torch.from_numpy(np.array(part.intercept_, dtype=np.float64).reshape(-1))
    if task == "regression":
        if isinstance(part, linear_model.TweedieRegressor):
            log = part.link == "log" or (part.link == "auto" and part.power > 0)
        else:
            log = isinstance(part, _POWERS)
        return (sums.exp() if log else sums)[:, 0]
    if task != "multiclass":
        return _of_two(part, sums)[:, 0]
    # scikit-learn before 1.8 learned classes one against the rest on request
    one_by_one = getattr(part, "solver", None) == "liblinear" or getattr(part, "multi_class", None) == "ovr"
    if len(part.classes_) == 2:
        second = _of_two(part, sums)
        shares = torch.cat([1 - second, second], 1)
    elif isinstance(part, linear_model.LogisticRegression) and not one_by_one:
        shares = sums.softmax(1)
    else:
        shares = _of_two(part, sums)
        shares = torch.where(shares.sum(1, keepdim=True) == 0, 1.0, shares)  # no class at all: all of them alike
        shares = shares / shares.sum(1, keepdim=True)
    places = torch.zeros((len(part.classes_), k), dtype=torch.float64)  # a class may have had no row
    places[torch.arange(len(places)), torch.from_numpy(np.asarray(part.classes_).astype(np.int64))] = 1
    return shares @ places


def _of_two(part: Any, sums: Any) -> Any:
    # onnxruntime's Sigmoid is 0 below -37, and of several classes the least unlikely one counts
    return (sums.clamp(-1, 1) + 1) / 2 if getattr(part, "loss", None) == "modified_huber" else 1 / (1 + (-sums).exp())


_WRITERS: dict[str, Callable[[Any, Any], Any]] = {}  # class of estimators → function that writes it
writer = registrar(_WRITERS)


@dataclass
class GraphRows:
    """Symbolic rows, with the attributes of ``Rows`` that estimators read; ``lists`` and ``events`` are a ranking's."""

    table: GraphTable
    task: str
    cats: Sequence[str]
    conts: Sequence[str]
    n_outputs: int = 1
    lists: GraphGroups | None = None
    events: GraphEvents | None = None

    def __len__(self) -> int:
        return N

    n_scores = Rows.n_scores


def prediction(model: Estimator, rows: GraphRows) -> Any:
    """Write an estimator's prediction: float64 ``[rows]`` or ``[rows, k]``; refuse a kind that has no writer."""
    # a subclass is written as its parent, unless it has its own writer
    for kind in type(model).__mro__:
        if kind.__name__ in _WRITERS:
            return _WRITERS[kind.__name__](model, rows)
    if hasattr(model, "_trained") or hasattr(model, "_nets"):
        raise model.not_fitted()
    why = f"{model.name} ({type(model).__name__}) has no form in a graph"
    raise NotInGraphError(why, remedy="Leave the model out of the recipe, or serve the run itself")


writer("NetRanker")(lambda model, rows: net_outputs(model._trained, rows.table)[:, 0])


@writer("SessionRanker")
def _session_ranker(model: Any, rows: GraphRows) -> Any:
    if rows is None or rows.events is None:  # without events it would score like another model
        kind = f"{type(model).__name__}, {model.architecture.model.__name__}"
        why = f"{model.name} ({kind}) reads the events before a list, which the graph of a run has not"
        raise NotInGraphError(why, remedy="Leave the model out of the recipe")
    return session_outputs(model, rows)


@writer("NetModel")
def _net_model(model: Any, rows: GraphRows) -> Any:
    return mean([model._head.predict(net_outputs(net, rows.table)) for net in model._nets])


def mean(parts: list[Any]) -> Any:
    """Write the mean of predictions, added in their order."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts) if len(parts) > 1 else total


@writer("XGBModel", "LGBMModel", "CatBoostModel", "XGBRanker")
def _trees(model: Any, rows: GraphRows) -> Any:
    # XGBoost's own file can be a part only if its trees read the matrix as it is
    plain = isinstance(model, XGBModel) and not model.native_cats
    # CatBoost reads infinite values itself: where a column has missing values, -inf goes their way
    matrix = tree_matrix(model._inputs, rows.table, bounded=not isinstance(model, CatBoostModel))
    return _grown(forests_of(model), matrix, rows, model._parts if plain else None)


def _grown(
    forests: EstimatorForests, matrix: GraphTensor, rows: GraphRows, boosters: Sequence[Any] | None = None
) -> GraphTensor:
    """Write the prediction of an estimator's trees; ``boosters``: XGBoost's own, if there are any."""
    graph = matrix.graph
    # trees compare in the dtype of their training
    matrix = matrix.to(torch.float64 if forests.dtype == "float64" else torch.float32)
    start = None
    if forests.start is not None:
        start = value_of(graph, rows.table[forests.start].number(torch.float32), torch.float32)
    predicted, margins = forests.predictions(matrix.value, graph, start=start)
    for i, (part, margin) in enumerate(zip(forests.parts, margins, strict=True)):
        if isinstance(part, Forest) and margin is not None:
            own = None if boosters is None or part.targets > 1 or forests.start is not None else boosters[i]
            given = GraphCut("", matrix.value, forests.dtype, matrix.shape[1])
            sums = GraphCut("", margin, "float64" if own is None else "float32", part.targets, "float64")
            graph.mark("onnx" if own is None else "xgboost", [given], sums, booster=own)
    width = () if rows.n_scores == 1 else (rows.n_scores,)
    return GraphTensor.of(graph, predicted, torch.float64, *width)


def tree_matrix(inputs: TreeInputs, table: GraphTable, *, bounded: bool = True) -> GraphTensor:
    """Write ``TreeInputs.matrix``: float32 ``[rows, columns]``; ``bounded``: without infinite values."""
    columns = []
    for name in inputs.names:
        if name in inputs.vocabs:
            codes = encode(inputs.vocabs[name], as_graph_column(table[name])).float()
            columns.append(torch.where(codes > 0, codes, torch.nan))
        else:
            columns.append(table[name].number(torch.float32))
    some = next(table[n].values.graph for n in table.names if isinstance(table[n].values, GraphTensor))
    matrix = _matrix(some, columns, torch.float32)
    return matrix.clamp(-limits.LARGEST_NUMBER, limits.LARGEST_NUMBER) if bounded else matrix


@writer("SKModel")
def _sk_model(model: Any, rows: GraphRows) -> Any:
    inputs = model._inputs
    if isinstance(inputs, DenseInputs) and inputs.cats == "every":
        predicted = linear_prediction(model._parts, sparse_product(inputs, rows.table), model._task, model._n_outputs)
        if predicted is not None:
            return predicted
        why = f"{model.name} ({type(model.estimator).__name__}) has no form in a graph"
        raise NotInGraphError(why, remedy="Leave the model out of the recipe, or serve the run itself")
    matrix = (dense_matrix if isinstance(inputs, DenseInputs) else tree_matrix)(inputs, rows.table)
    predicted = linear_prediction(model._parts, lambda w: matrix.double() @ w, model._task, model._n_outputs)
    return _grown(forests_of(model), matrix, rows) if predicted is None else predicted


def sparse_product(inputs: DenseInputs, table: GraphTable) -> Callable[[torch.Tensor], Any]:
    """Return what multiplies ``inputs.matrix``, which has a column for every value, with weights: it looks them up."""

    def product(weights: torch.Tensor) -> Any:
        sums: Any = 0
        for name, own in zip(inputs.widths, weights.split(list(inputs.widths.values())), strict=True):
            if name in inputs.numbers:
                columns = inputs.numbers[name].columns(table[name].number())
                sums += sum(c.double()[:, None] * w for c, w in zip(columns, own, strict=True))
            else:  # code 0, missing or unseen, has no column
                codes = encode(inputs.inputs.vocabs[name], as_graph_column(table[name]))
                sums += torch.cat([torch.zeros((1, own.shape[1]), dtype=torch.float64), own])[codes]
        return sums

    return product


def dense_matrix(inputs: DenseInputs, table: GraphTable) -> GraphTensor:
    """Write ``DenseInputs.matrix``: float64 ``[rows, columns]``."""
    columns: list[Any] = []
    for name in inputs.inputs.names:
        if name in inputs.numbers:
            columns += inputs.numbers[name].columns(table[name].number())
            continue
        vocab: Vocab = inputs.inputs.vocabs[name]
        codes = encode(vocab, as_graph_column(table[name]))
        if inputs.cats == "code":
            columns.append(codes.double())
        else:
            columns += [(codes == i).double() for i in range(1, len(vocab))]
    return _matrix(next(c.graph for c in columns if isinstance(c, GraphTensor)), columns, torch.float64)


@writer("ConstantModel")
def _constant(model: Any, rows: GraphRows) -> Any:
    name = next(n for n in rows.table.names if isinstance(rows.table[n].values, GraphTensor))
    column = as_graph_column(rows.table[name])
    zero = (column.is_missing() if column.text is not None else column.values != column.values).double() * 0
    return zero + model._value if not model._value.ndim else zero[:, None] + model._value


@writer("OffsetModel")
def _offset(model: Any, rows: GraphRows) -> Any:
    values = rows.table[model.column].number()
    return torch.where(values.isnan(), model._mean, values) + prediction(model.model, rows)


writer("CentredModel", "PseudoLabelled")(lambda model, rows: prediction(model.model, rows))


@writer("ColumnRanker")
def _column_ranker(model: Any, rows: GraphRows) -> Any:
    keys = []
    for name in model.columns:
        values = rows.table[name].number()
        keys.append((torch.where(values.isnan(), torch.inf, values), False))
    return -rows.lists.place(keys).double()


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
        if any(kind.__name__ in _WRITERS for kind in type(blend).__mro__):  # trees
            part = prediction(blend, two)
        else:
            part = blend.predict(two)  # type: ignore[arg-type] - sums of columns: the code of training writes the nodes
        part = part / len(stack.blends)
        total = part if total is None else total + part
    return total


def in_list(scores: GraphTensor, rows: GraphRows) -> dict[str, Any]:
    """Write ``fastrec.stacking.blends.in_list``."""
    rough = torch.where(scores.isnan(), -torch.inf, scores)
    top = rows.lists.reduce(rough, "max")
    near = torch.where(rough.isfinite() & top.isfinite(), rough - top, -limits.FAR_GAP)
    gap = torch.where(rough == top, 0.0, near)
    log_softmax = gap - rows.lists.reduce(gap.exp(), "add").log()
    rank = (rows.lists.place([(rough, True)]) + 1).double()
    return {"rank": rank, "gap": gap, "softmax": log_softmax.exp(), "log_softmax": log_softmax}


@writer("BoostedBlend")
def _boosted(blend: Any, two: GraphRows) -> Any:
    start = GraphColumn("number", blend.blend.predict(two), name="__start__")
    return prediction(blend.trees, replace(two, table=two.table.with_columns({"__start__": start}), cats=[]))


@writer("TreeBlend")
def _tree_blend(blend: Any, two: GraphRows) -> Any:
    matrix = tree_matrix(blend._inputs, two.table)
    start = blend.sums.linear(two).float()
    graph, sums = matrix.graph, []
    for booster in blend._boosters:
        forest = forest_of_xgboost(booster)
        margins = forest.margins(matrix.value, graph, base=False)
        sums.append(GraphTensor.of(graph, margins, torch.float64, forest.targets).float())
    if two.task == "multiclass":
        return (sums[0] + start).double().softmax(1)
    total = torch.stack([s[:, 0] for s in sums], 1) + start
    return as_task(total.double() if two.task == "regression" else total.double().sigmoid(), two)
