"""Matrix factorization and two towers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec.errors import DataError, MissingColumnError
from fastrec.losses.lists import PairScores
from fastrec.models.embedding import EmbeddingTables, side_by_side
from fastrec.models.fields import Activation, FieldNet, InputOptions, mlp, squash, training_rows
from fastrec.models.placement.plan import share_out


class MatrixFactorization(FieldNet):
    """A score of two ids: the dot product of their vectors, a bias of each, and one for all.

    With equal weights (and ``mean=0``) it computes what fastai's ``EmbeddingDotBias`` does.

    Args:
        emb_szs: ``(rows, width)`` of the two columns (user and item, say); the widths give way to ``dim``.
        n_cont: number of continuous columns: none.
        out_sz: number of outputs: 1.
        dim: width of the vectors, rounded up to a multiple of 4 unless ``pad=False``.
        bias: each id has a bias.
        mean: the common bias, on the scale of the targets; it is not trained. ``rec_learner`` takes the mean of the
            training targets. None: 0 before any sigmoid.
        y_range: ``(low, high)`` of a sigmoid on the score; None: no sigmoid.
        std: scale of the initial truncated normal.
        **inputs: options of the inputs, see ``FieldNet``; no lists or vectors.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int = 0,
        out_sz: int = 1,
        *,
        dim: int = 50,
        bias: bool = True,
        mean: float | None = None,
        y_range: tuple[float, float] | None = None,
        std: float = 0.01,
        **inputs: Unpack[InputOptions],
    ) -> None:
        others = n_cont + len(inputs.get("list_szs", ())) + len(inputs.get("vector_szs", ()))
        if len(emb_szs) != 2 or others or out_sz != 1:
            raise DataError(
                f"matrix factorization of {len(emb_szs)} categorical columns, {others} others and {out_sz} outputs",
                remedy="Give two categorical columns and a numeric target (y_block=RegressionBlock), or n_out=1",
            )
        own, of_biases = share_out(inputs.get("placement"), [dim, 1])
        # two sets of tables, vectors and biases, share one limit of memory
        super().__init__([(rows, dim) for rows, _ in emb_szs], 0, **{**inputs, "placement": own})
        self.embeds.reset_parameters(std)
        self.biases: EmbeddingTables | None = None
        if bias:
            tables = {k: v for k, v in inputs.items() if k in ("check_ids", "grads")} | {"placement": of_biases}
            ones = [(rows, 1) for rows, _ in emb_szs]
            self.biases = EmbeddingTables(ones, names=inputs.get("cat_names"), pad=False, std=std, **tables)
        self.register_buffer("mean", torch.tensor([_start(mean, y_range)]))
        self.squeeze = squash(y_range)

    @classmethod
    def options_for(cls, dls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options from the data, for ``rec_learner``: the mean of numeric targets, if none is given."""
        if "mean" in given:
            return {}
        y = training_rows(dls)[2]
        if y is None or getattr(dls, "vocab", None) is not None:  # codes of classes have no mean
            return {}
        mean, y_range = float(y.double().mean()), given.get("y_range")
        return {"mean": mean} if y_range is None or y_range[0] < mean < y_range[1] else {}

    def forward(self, x_cat: Tensor, x_cont: Tensor | None = None) -> Tensor:
        """Return the scores ``[b, 1]`` of pairs of ids ``[b, 2]``, see ``FieldNet``."""
        one, other = self.fields(x_cat).unbind(1)
        out = (one * other).sum(1, keepdim=True) + self.mean
        if self.biases is not None:
            out = out + self.biases(x_cat).sum(1, keepdim=True)
        return self.squeeze(out)

    def user_vectors(self) -> Tensor:
        """Return vectors of all codes of the first column, biases included: ``[rows, width + 2]``.

        Their products with ``item_vectors`` are the scores without the common bias and sigmoid.
        """
        vectors, bias = self._side(0)
        return torch.cat([vectors, bias, torch.ones_like(bias)], 1)

    def item_vectors(self) -> Tensor:
        """Return vectors of all codes of the second column, as ``user_vectors``."""
        vectors, bias = self._side(1)
        return torch.cat([vectors, torch.ones_like(bias), bias], 1)

    def _side(self, column: int) -> tuple[Tensor, Tensor]:
        name = self.embeds.slices[column].name
        vectors = self.embeds.table(name)
        return vectors, vectors.new_zeros(len(vectors), 1) if self.biases is None else self.biases.table(name)


def _start(mean: float | None, y_range: tuple[float, float] | None) -> float:
    if mean is None or y_range is None:
        return mean or 0.0
    low, high = y_range
    if not low < mean < high:
        raise DataError(f"mean={mean} is outside y_range={y_range}", remedy="Give a wider y_range, or mean=None")
    # the sigmoid's inverse: a score of nothing known is the mean
    share = (mean - low) / (high - low)
    return math.log(share / (1 - share))


class TwoTower(FieldNet):
    """A multi-layer perceptron over the query's columns, one over the item's; a row's score is their dot product.

    ``query_vectors`` and ``item_vectors`` serve a search for nearest vectors. A training row is a query with its item.
    With ``InBatchSoftmax`` the items of a batch's other rows are negatives; ``BCE`` and ``BPR`` use the rows' targets.

    Args:
        out_sz: number of outputs: 1.
        query: names of the query's columns, among ``cat_names``, ``cont_names``, ``list_names``, ``vector_names``.
        item: names of the item's columns; a column may be in both, or in none.
        dim: width of the vectors.
        layers: width of each hidden layer, in both towers.
        normalize: scale vectors to length 1.
        temperature: divisor of scores; None: 0.05 if normalized, else 1.
        item_id: the categorical column that identifies items; None: the first of ``item``.
        cont_names: names of the continuous columns (``rec_learner`` gives them).
        vector_names: names of the vector columns (likewise).
        emb_szs, n_cont, ps, use_bn, act_cls: see ``TabularNet``.
        **inputs: options of the inputs, see ``FieldNet``.
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
            problem = f"two towers of {len(query)} and {len(item)} columns, width {dim}, {out_sz} outputs, "
            problem += f"temperature {temperature}"
            remedy = "Give query=[…] and item=[…], one output (loss_func=InBatchSoftmax(), BCE() or BPR()), and "
            remedy += "a width and a temperature above 0"
            raise DataError(problem, remedy=remedy)
        cats = list(inputs.get("cat_names") or map(str, range(len(emb_szs))))
        sizes = inputs.get("vector_szs", ())
        conts = [f"cont{i}" for i in range(self.n_cont)] if cont_names is None else list(cont_names)
        vectors = [f"vector{i}" for i in range(len(sizes))] if vector_names is None else list(vector_names)
        fields = [*cats, *(self.embeds.list_names if self.embeds is not None else [])]
        names = [*fields, *conts, *vectors]
        if len(conts) != self.n_cont or len(vectors) != len(sizes) or len(set(names)) != len(names):
            remedy = "Give cont_names and vector_names as many names as there are such columns"
            raise DataError(f"the columns' names {names} are not one each, all different", remedy=remedy)
        own = [self.embeds.slice_of(n).width for n in fields] + [1] * self.n_cont + list(sizes)
        widths = dict(zip(names, own, strict=True))
        self.normalize, self.temperature, self.dim = normalize, temperature, dim
        # a tower's columns as few slices of the one lookup for both
        self.query_runs, self.item_runs = _runs(query, widths), _runs(item, widths)
        if item_id is not None and item_id not in cats:
            raise MissingColumnError("it is no categorical column", column=item_id, remedy=f"Those are {cats}")
        item_id = next((n for n in item if n in cats), None) if item_id is None else item_id
        self.item_column = None if item_id is None else cats.index(item_id)
        options = {"ps": ps, "use_bn": use_bn, "act_cls": act_cls}
        for side, runs in (("query", self.query_runs), ("item", self.item_runs)):
            n_in = sum(stop - start for start, stop in runs)
            setattr(self, f"{side}_tower", mlp([n_in, *layers, dim], **options))

    @classmethod
    def options_for(cls, dls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options from the data, for ``rec_learner``: names of columns."""
        named = {"cont_names": list(dls.cont_names), "vector_names": list(getattr(dls.train_ds, "vector_names", ()))}
        return {k: v for k, v in named.items() if k not in given}

    def query_vectors(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the query's vector of each row, ``[b, dim]``; the item's columns may hold any values."""
        return self._vectors("query", self.all_inputs(x_cat, x_cont, extras))

    def item_vectors(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the item's vector of each row, as ``query_vectors``."""
        return self._vectors("item", self.all_inputs(x_cat, x_cont, extras))

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return dot products over the temperature ``[b, 1]``, as ``PairScores`` for ``InBatchSoftmax``."""
        inputs = self.all_inputs(x_cat, x_cont, extras)
        queries, items = self._vectors("query", inputs) / self.temperature, self._vectors("item", inputs)
        if torch.compiler.is_compiling():  # a graph has plain tensors
            return (queries * items).sum(1, keepdim=True)
        return PairScores.of(queries, items, None if self.item_column is None else x_cat[:, self.item_column])

    def _vectors(self, side: str, inputs: Tensor) -> Tensor:
        taken = [inputs[:, start:stop] for start, stop in getattr(self, f"{side}_runs")]
        out = getattr(self, f"{side}_tower")(side_by_side(taken))
        return F.normalize(out, dim=1) if self.normalize else out


def item_log_q(dls: Any, column: str, *, uniform: float = 0.0) -> Tensor:
    """Return the log share of each item in the training rows, for ``InBatchSoftmax(log_q=…)``.

    Args:
        dls: dataloaders of the training rows.
        column: the categorical column that identifies items.
        uniform: share of a batch whose items are drawn uniformly (see ``MoreNegatives``).

    Returns:
        float32 ``[rows of the table]``; an item that never occurs counts as once.
    """
    names = list(dls.cat_names)
    if column not in names:
        raise MissingColumnError("it is no categorical column", column=column, remedy=f"Those are {names}")
    ids = training_rows(dls)[0][:, names.index(column)].long()
    counts = torch.bincount(ids, minlength=len(dls.train_ds.classes[column])).clamp(min=1)
    return ((1 - uniform) * counts.double() / len(ids) + uniform / len(torch.unique(ids))).log().float()


def _runs(names: Sequence[str], widths: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """Return where the inputs of some columns lie, in the order of the inputs; neighbours as one piece."""
    if unknown := [n for n in names if n not in widths]:
        raise MissingColumnError("the net has no such column", column=unknown[0], remedy=f"Columns are {list(widths)}")
    runs: list[tuple[int, int]] = []
    for name, stop in zip(widths, accumulate(widths.values()), strict=True):
        start = stop - widths[name]
        if name in names and runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        elif name in names:
            runs.append((start, stop))
    return tuple(runs)
