"""Two towers: a query's columns and an item's columns as vectors of one length, whose product is the score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec.errors import DataError, MissingColumnError
from fastrec.losses.in_batch import PairScores
from fastrec.models.embedding import side_by_side
from fastrec.models.field_net import FieldNet, InputOptions
from fastrec.models.mlp import Activation, mlp_blocks
from fastrec.models.training_rows import training_rows


class TwoTower(FieldNet):
    """A multi-layer perceptron over the query's columns, one over the item's; a row's score is their dot product.

    Vectors of either side can be computed for themselves (``query_vectors``, ``item_vectors``), so that a query finds
    its items by a search for nearest vectors. It trains on rows of a query with its item: with ``InBatchSoftmax`` the
    items of a batch's other rows are the negatives; with ``BCE`` or ``BPR`` the rows' own targets tell.

    Args:
        emb_szs: ``(rows, width)`` for each categorical column, in the order of the batch.
        n_cont: number of continuous columns.
        out_sz: number of outputs: 1.
        query: names of the query's columns, among ``cat_names``, ``cont_names``, ``list_names``, ``vector_names``.
        item: names of the item's columns; a column may be in both, or in none.
        dim: width of the vectors.
        layers: width of each hidden layer, in both towers.
        normalize: vectors of length 1.
        temperature: what scores are divided by; by default 0.05 for vectors of length 1, else 1.
        item_id: the categorical column that tells items apart; by default the first of ``item``.
        cont_names: names of the continuous columns (``rec_learner`` gives them).
        vector_names: names of the vector columns (likewise).
        ps: dropout after each hidden layer, one for all or one each; none by default.
        use_bn: batch norm in the hidden layers.
        act_cls: activation: a module, or a class or function that makes one.
        **inputs: options of the inputs, see ``FieldNet``.

    Raises:
        DataError: a tower without a column, more than one output, a temperature or width that is not above 0.
        MissingColumnError: a named column is not there.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int = 1,
        *,
        query: Sequence[str] = (),
        item: Sequence[str] = (),
        dim: int = 64,
        layers: Sequence[int] = (128,),
        normalize: bool = True,
        temperature: float | None = None,
        item_id: str | None = None,
        cont_names: Sequence[str] | None = None,
        vector_names: Sequence[str] | None = None,
        ps: float | Sequence[float] | None = None,
        use_bn: bool = False,
        act_cls: Activation = nn.ReLU,
        **inputs: Unpack[InputOptions],
    ) -> None:
        super().__init__(emb_szs, n_cont, **inputs)
        temperature = (0.05 if normalize else 1.0) if temperature is None else temperature
        if not query or not item or out_sz != 1 or dim < 1 or temperature <= 0:
            raise DataError(
                f"two towers of {len(query)} and {len(item)} columns, width {dim}, {out_sz} outputs, "
                f"temperature {temperature}",
                remedy="Give query=[…] and item=[…], one output (loss_func=InBatchSoftmax(), BCE() or BPR()), and "
                "a width and a temperature above 0",
            )
        cats = list(inputs.get("cat_names") or map(str, range(len(emb_szs))))
        widths = self._widths(cats, cont_names, vector_names, inputs.get("vector_szs", ()))
        self.normalize, self.temperature, self.dim = normalize, temperature, dim
        self.query_runs, self.item_runs = _runs(query, widths), _runs(item, widths)
        self.item_column = _item_column(item_id, item, cats)
        options = {"ps": ps, "use_bn": use_bn, "act_cls": act_cls}
        for side, runs in (("query", self.query_runs), ("item", self.item_runs)):
            n_in = sum(stop - start for start, stop in runs)
            setattr(self, f"{side}_tower", nn.Sequential(*mlp_blocks([n_in, *layers, dim], **options)))

    @classmethod
    def options_for(cls, dls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options from the data, for ``rec_learner``: names of columns."""
        vectors = list(getattr(dls.train_ds, "vector_names", ()))
        named = {"cont_names": list(dls.cont_names), "vector_names": vectors}
        return {k: v for k, v in named.items() if k not in given}

    def query_vectors(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the query's vector of each row.

        Args:
            x_cat: ids ``[b, categorical columns]``, integers; unused where there are none.
            x_cont: numbers ``[b, n_cont]``, float; unused where there are none.
            *extras: a ``ListBatch`` for each list column, then ``[b, d]`` for each vector column.

        Returns:
            ``[b, dim]``. The item's columns have to be there, with any values.
        """
        return self._query(self._inputs(x_cat, x_cont, extras))

    def item_vectors(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the item's vector of each row, as ``query_vectors``."""
        return self._item(self._inputs(x_cat, x_cont, extras))

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Score each row's query and item.

        Args:
            x_cat: ids ``[b, categorical columns]``, integers; unused where there are none.
            x_cont: numbers ``[b, n_cont]``, float; unused where there are none.
            *extras: a ``ListBatch`` for each list column, then ``[b, d]`` for each vector column.

        Returns:
            ``[b, 1]``: dot product over temperature. Until something is computed from it, it also knows the vectors
            (``PairScores``), from which ``InBatchSoftmax`` makes the scores of all pairs.

        Raises:
            DataError: an id is out of range.
        """
        inputs = self._inputs(x_cat, x_cont, extras)
        queries, items = self._query(inputs) / self.temperature, self._item(inputs)
        if torch.compiler.is_compiling():  # a graph has plain tensors
            return (queries * items).sum(1, keepdim=True)
        ids = None if self.item_column is None else x_cat[:, self.item_column]
        return PairScores.of(queries, items, ids)

    def _inputs(self, x_cat: Tensor | None, x_cont: Tensor | None, extras: Sequence[Tensor]) -> Tensor:
        pieces = self.embed_pieces(x_cat, extras) + self.dense_pieces(x_cont, extras)
        return side_by_side(pieces)

    def _query(self, inputs: Tensor) -> Tensor:
        out = self.query_tower(_taken(inputs, self.query_runs))
        return F.normalize(out, dim=1) if self.normalize else out

    def _item(self, inputs: Tensor) -> Tensor:
        out = self.item_tower(_taken(inputs, self.item_runs))
        return F.normalize(out, dim=1) if self.normalize else out

    def _widths(
        self, cats: Sequence[str], conts: Sequence[str] | None, vectors: Sequence[str] | None, sizes: Sequence[int]
    ) -> dict[str, int]:
        conts = [f"cont{i}" for i in range(self.n_cont)] if conts is None else list(conts)
        vectors = [f"vector{i}" for i in range(len(sizes))] if vectors is None else list(vectors)
        fields = [*cats, *(self.embeds.list_names if self.embeds is not None else [])]
        names = [*fields, *conts, *vectors]
        if len(conts) != self.n_cont or len(vectors) != len(sizes) or len(set(names)) != len(names):
            raise DataError(
                f"the columns' names {names} are not one each, all different",
                remedy="Give cont_names and vector_names as many names as there are such columns",
            )
        widths = [self.embeds.slice_of(n).width for n in fields] + [1] * self.n_cont + list(sizes)
        return dict(zip(names, widths, strict=True))


def item_log_q(dls: Any, column: str) -> Tensor:
    """Return the log share of each item in the training rows, for ``InBatchSoftmax(log_q=…)``.

    Args:
        dls: dataloaders of the training rows.
        column: the categorical column that tells items apart.

    Returns:
        Logarithm of each id's share of the rows, float32 ``[rows of the table]``; an item that never occurs counts as
        if it did once.

    Raises:
        MissingColumnError: it is not a categorical column.
    """
    names = list(dls.cat_names)
    if column not in names:
        raise MissingColumnError(
            "it is not a categorical column", column=column, remedy=f"Categorical columns are {names}"
        )
    ids = training_rows(dls)[0][:, names.index(column)].long()
    counts = torch.bincount(ids, minlength=len(dls.train_ds.classes[column])).clamp(min=1)
    return (counts.double() / len(ids)).log().float()


def _runs(names: Sequence[str], widths: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """Return where the inputs of some columns lie, in the order of the inputs; neighbours as one piece."""
    if unknown := [n for n in names if n not in widths]:
        raise MissingColumnError(
            "a tower has a column that the net has not", column=unknown[0], remedy=f"Columns are {list(widths)}"
        )
    runs: list[tuple[int, int]] = []
    for name, stop in zip(widths, accumulate(widths.values()), strict=True):
        start = stop - widths[name]
        if name in names and runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        elif name in names:
            runs.append((start, stop))
    return tuple(runs)


def _taken(inputs: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
    pieces = [inputs[:, start:stop] for start, stop in runs]
    return side_by_side(pieces)


def _item_column(item_id: str | None, item: Sequence[str], cats: Sequence[str]) -> int | None:
    if item_id is not None and item_id not in cats:
        raise MissingColumnError(
            "it is not a categorical column", column=item_id, remedy=f"Categorical columns are {list(cats)}"
        )
    found = item_id if item_id is not None else next((n for n in item if n in cats), None)
    return None if found is None else cats.index(found)
