"""Write trained estimators into a graph."""

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
from fastrec.serve.graph.builder import GraphCut
from fastrec.serve.graph.columns import GraphTable, as_graph_column, encode
from fastrec.serve.graph.groups import GraphGroups
from fastrec.serve.graph.linear import linear_prediction
from fastrec.serve.graph.list_events import GraphEvents, session_outputs
from fastrec.serve.graph.nets import _matrix, net_outputs
from fastrec.serve.graph.tensor import GraphTensor, N, NotInGraphError, registrar, value_of
from fastrec.table import Vocab

_WRITERS: dict[str, Callable[[Any, Any], Any]] = {}  # class of estimators → function that writes it
writer = registrar(_WRITERS)


@dataclass
class GraphRows:
    """Symbolic rows, with the attributes of ``Rows`` that estimators read.

    Args:
        table: the columns.
        task: the task.
        cats, conts: names of categories, and of numbers.
        n_outputs: number of classes or targets.
        lists: of a ranking: the lists.
        events: events before the lists, if the graph has such inputs.
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
        """Number of predictions for a row."""
        return self.n_outputs if self.task in ("multiclass", "multilabel", "regression") else 1

    def with_table(self, table: GraphTable, conts: Sequence[str]) -> GraphRows:
        """Return the same rows with other columns, all numbers."""
        return GraphRows(table, self.task, [], list(conts), self.n_outputs, self.lists)


def prediction(model: Estimator, rows: GraphRows) -> Any:
    """Write an estimator's prediction: float64 ``[rows]`` or ``[rows, k]``.

    Raises:
        NotInGraphError: there is no such way for its kind.
    """
    # a subclass is written as its parent, unless it has its own writer
    for kind in type(model).__mro__:
        if kind.__name__ in _WRITERS:
            return _WRITERS[kind.__name__](model, rows)
    if hasattr(model, "_trained") or hasattr(model, "_nets"):
        raise model.not_fitted()
    raise NotInGraphError(
        f"{model.name} ({type(model).__name__}) has no form in a graph",
        remedy="Leave the model out of the recipe, or serve the run itself",
    )


@writer("NetRanker")
def _net_ranker(model: Any, rows: GraphRows) -> Any:
    return net_outputs(model._trained, rows.table)[:, 0]


@writer("SessionRanker")
def _session_ranker(model: Any, rows: GraphRows) -> Any:
    if rows is None or rows.events is None:  # without events it would score like another model
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
    """Write the mean of predictions, added in their order."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts) if len(parts) > 1 else total


@writer("XGBModel", "LGBMModel", "CatBoostModel", "XGBRanker")
def _trees(model: Any, rows: GraphRows) -> Any:
    # XGBoost's own file can be a part only if its trees read the matrix as it is
    plain = isinstance(model, XGBModel) and not model.native_cats
    return _grown(forests_of(model), tree_matrix(model._inputs, rows.table), rows, model._parts if plain else None)


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
    prefix = graph.fresh("forest")
    graph.add(*forests.nodes(matrix.value, f"{prefix}_predicted", prefix=prefix, start=start))
    for i, part in enumerate(forests.parts):
        if isinstance(part, Forest):
            own = None if boosters is None or part.targets > 1 or forests.start is not None else boosters[i]
            given = GraphCut("", matrix.value, forests.dtype, matrix.shape[1])
            sums = GraphCut(
                "", f"{prefix}_p{i}_margin", "float64" if own is None else "float32", part.targets, "float64"
            )
            graph.mark("onnx" if own is None else "xgboost", [given], sums, booster=own)
    shape = (N,) if rows.n_scores == 1 else (N, rows.n_scores)
    return GraphTensor(graph, f"{prefix}_predicted", torch.empty(shape, dtype=torch.float64, device="meta"))


def margins(forest: Forest, matrix: GraphTensor) -> GraphTensor:
    """Write the sums of leaves without the base: float64 ``[rows, targets]``."""
    graph = matrix.graph
    prefix = graph.fresh("forest")
    graph.add(*forest.nodes(matrix.value, f"{prefix}_sums", prefix=prefix, base=False))
    return GraphTensor(graph, f"{prefix}_sums", torch.empty((N, forest.targets), dtype=torch.float64, device="meta"))


def tree_matrix(inputs: TreeInputs, table: GraphTable) -> GraphTensor:
    """Write ``TreeInputs.matrix``: float32 ``[rows, columns]``."""
    columns = []
    for name in inputs.names:
        if name in inputs.vocabs:
            codes = encode(inputs.vocabs[name], as_graph_column(table[name])).float()
            columns.append(torch.where(codes > 0, codes, torch.nan))
        else:
            columns.append(table[name].number(torch.float32))
    some = next(table[n].values.graph for n in table.names if isinstance(table[n].values, GraphTensor))
    return _matrix(some, columns, torch.float32).clamp(-limits.LARGEST_NUMBER, limits.LARGEST_NUMBER)


@writer("SKModel")
def _sk_model(model: Any, rows: GraphRows) -> Any:
    dense = isinstance(model._inputs, DenseInputs)
    matrix = (dense_matrix if dense else tree_matrix)(model._inputs, rows.table)
    predicted = linear_prediction(model._parts, matrix, model._task, model._n_outputs)
    return _grown(forests_of(model), matrix, rows) if predicted is None else predicted


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
