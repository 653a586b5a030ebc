"""Trained estimators in a graph: what each predicts of a graph's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastrec._core import limits
from fastrec.estimators import Estimator, XGBModel
from fastrec.estimators._dense_inputs import DenseInputs
from fastrec.estimators._tree_inputs import TreeInputs
from fastrec.serve.forest import EstimatorForests, Forest, forests_of
from fastrec.serve.graph.builder import Cut
from fastrec.serve.graph.columns import GraphTable, as_graph_column, encode
from fastrec.serve.graph.groups import GraphGroups
from fastrec.serve.graph.linear import linear_prediction
from fastrec.serve.graph.list_events import GraphEvents, session_outputs
from fastrec.serve.graph.nets import _matrix, net_outputs
from fastrec.serve.graph.tensor import GraphTensor, N, NotInGraphError, value_of
from fastrec.table import Vocab

_WRITERS: dict[str, Callable[[Any, Any], Any]] = {}


@dataclass
class GraphRows:
    """Rows of a graph, with what estimators ask of ``Rows``.

    Args:
        table: the columns.
        task: the task.
        cats, conts: which of them are categories, and numbers.
        n_outputs: how many classes or targets.
        lists: of a ranking: the lists.
        events: what was before the lists; None: the graph has no such inputs.
    """

    table: GraphTable
    task: str
    cats: Sequence[str]
    conts: Sequence[str]
    n_outputs: int = 1
    lists: GraphGroups | None = None
    events: GraphEvents | None = None

    def __len__(self) -> int:
        return N

    @property
    def n_scores(self) -> int:
        """How many numbers are predicted for a row."""
        return self.n_outputs if self.task in ("multiclass", "multilabel", "regression") else 1

    def with_table(self, table: GraphTable, conts: Sequence[str]) -> GraphRows:
        """The same rows with other columns, numbers all of them."""
        return GraphRows(table, self.task, [], list(conts), self.n_outputs, self.lists)


def prediction(model: Estimator, rows: GraphRows) -> Any:
    """What an estimator predicts: float64 ``[rows]`` or ``[rows, k]``.

    Raises:
        NotInGraphError: there is no such way for its kind.
    """
    for kind in type(model).__mro__:
        if kind.__name__ in _WRITERS:
            return _WRITERS[kind.__name__](model, rows)
    if hasattr(model, "_trained") or hasattr(model, "_nets"):
        raise model.not_fitted()
    raise NotInGraphError(
        f"{model.name} ({type(model).__name__}) has no form in a graph",
        remedy="Leave the model out of the recipe, or serve the run itself",
    )


def writer(*names: str) -> Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]:
    """Take a function as what writes estimators of these classes."""

    def take(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        for name in names:
            _WRITERS[name] = function
        return function

    return take


# Nets ----------------------------------------------------------------------------------------------------------------


@writer("NetRanker")
def _net_ranker(model: Any, rows: GraphRows) -> Any:
    return net_outputs(model._trained, rows.table)[:, 0]


@writer("SessionRanker")
def _session_ranker(model: Any, rows: GraphRows) -> Any:
    if rows is None or rows.events is None:  # never scored without them
        raise NotInGraphError(
            f"{model.name} ({type(model).__name__}, {model.architecture.model.__name__}) reads the events before a "
            "list, which the graph of a run has not",
            remedy="Leave the model out of the recipe, or write it alone (fastrec.serve.export_session_ranker)",
        )
    return session_outputs(model, rows)


@writer("NetModel")
def _net_model(model: Any, rows: GraphRows) -> Any:
    return mean([model._head.predict(net_outputs(net, rows.table)) for net in model._nets])


def mean(parts: list[Any]) -> Any:
    """The mean of predictions, added in their order."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts) if len(parts) > 1 else total


# Trees ---------------------------------------------------------------------------------------------------------------


@writer("XGBModel", "LGBMModel", "CatBoostModel", "XGBRanker")
def _trees(model: Any, rows: GraphRows) -> Any:
    plain = isinstance(model, XGBModel) and not model.native_cats
    return _grown(forests_of(model), tree_matrix(model._inputs, rows.table), rows, model._parts if plain else None)


def _grown(
    forests: EstimatorForests, matrix: GraphTensor, rows: GraphRows, boosters: Sequence[Any] | None = None
) -> GraphTensor:
    """What an estimator's trees predict of a matrix as in training; ``boosters``: XGBoost's own, where they are."""
    graph = matrix.graph
    matrix = matrix.to(torch.float64 if forests.dtype == "float64" else torch.float32)
    start = None if forests.start is None else as_value(rows.table[forests.start].number(torch.float32), torch.float32)
    prefix = graph.fresh("forest")
    graph.add(*forests.nodes(matrix.value, f"{prefix}_said", prefix=prefix, start=start))
    for i, part in enumerate(forests.parts):
        if isinstance(part, Forest):
            own = None if boosters is None or part.targets > 1 or forests.start is not None else boosters[i]
            given = Cut("", matrix.value, forests.dtype, matrix.shape[1])
            sums = Cut("", f"{prefix}_p{i}_margin", "float64" if own is None else "float32", part.targets, "float64")
            graph.mark("onnx" if own is None else "xgboost", [given], sums, booster=own)
    shape = (N,) if rows.n_scores == 1 else (N, rows.n_scores)
    return GraphTensor(graph, f"{prefix}_said", torch.empty(shape, dtype=torch.float64, device="meta"))


def margins(forest: Forest, matrix: GraphTensor) -> GraphTensor:
    """What trees add up to, without what they start from: float64 ``[rows, targets]``."""
    graph = matrix.graph
    prefix = graph.fresh("forest")
    graph.add(*forest.nodes(matrix.value, f"{prefix}_sums", prefix=prefix, base=False))
    return GraphTensor(graph, f"{prefix}_sums", torch.empty((N, forest.targets), dtype=torch.float64, device="meta"))


def tree_matrix(inputs: TreeInputs, table: GraphTable) -> GraphTensor:
    """``TreeInputs.matrix`` of a graph's rows: float32 ``[rows, columns]``."""
    columns = []
    for name in inputs.names:
        if name in inputs.vocabs:
            codes = encode(inputs.vocabs[name], as_graph_column(table[name])).float()
            columns.append(torch.where(codes > 0, codes, torch.nan))
        else:
            columns.append(table[name].number(torch.float32))
    some = next(table[n].values.graph for n in table.names if isinstance(table[n].values, GraphTensor))
    return _matrix(some, columns, torch.float32).clamp(-limits.LARGEST_NUMBER, limits.LARGEST_NUMBER)


# scikit-learn --------------------------------------------------------------------------------------------------------


@writer("SKModel")
def _sk_model(model: Any, rows: GraphRows) -> Any:
    dense = isinstance(model._inputs, DenseInputs)
    matrix = (dense_matrix if dense else tree_matrix)(model._inputs, rows.table)
    said = linear_prediction(model._parts, matrix, model._task, model._n_outputs)
    return _grown(forests_of(model), matrix, rows) if said is None else said


def dense_matrix(inputs: DenseInputs, table: GraphTable) -> GraphTensor:
    """``DenseInputs.matrix`` of a graph's rows: float64 ``[rows, columns]``."""
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


# Rules and what wraps others -----------------------------------------------------------------------------------------


@writer("ConstantModel")
def _constant(model: Any, rows: GraphRows) -> Any:
    name = next(n for n in rows.table.names if isinstance(rows.table[n].values, GraphTensor))
    column = as_graph_column(rows.table[name])
    zero = column.is_missing() if column.text is not None else column.values != column.values
    if not isinstance(zero, GraphTensor):
        zero = column.values != column.values
    zero = zero.double() * 0
    return zero + model._value if not model._value.ndim else zero[:, None] + model._value


@writer("OffsetModel")
def _offset(model: Any, rows: GraphRows) -> Any:
    values = rows.table[model.column].number()
    return torch.where(values.isnan(), model._mean, values) + prediction(model.model, rows)


@writer("CentredModel", "PseudoLabelled")
def _pseudo(model: Any, rows: GraphRows) -> Any:
    return prediction(model.model, rows)


@writer("ColumnRanker")
def _column_ranker(model: Any, rows: GraphRows) -> Any:
    assert rows.lists is not None
    keys = []
    for name in model.columns:
        values = rows.table[name].number()
        keys.append((torch.where(values.isnan(), torch.inf, values), False))
    return -rows.lists.place(keys).double()


def as_value(values: GraphTensor, dtype: torch.dtype) -> str:
    """The name of a tensor's value as a dtype."""
    return value_of(values.graph, values, dtype)
