"""What the models share: embedded columns of a batch, fields of one width, the multi-layer perceptron."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from fastai.layers import LinBnDrop, SigmoidRange
from torch import Tensor, nn

from fastrec._core.device import on_host
from fastrec.errors import DataError
from fastrec.models.embedding import CheckIds, EmbeddingTables, Pool, side_by_side
from fastrec.models.embedding_layout import Grads
from fastrec.models.placement.plan import Embeddings, Placement


class TableOptions(TypedDict, total=False):
    """Options that a model hands on to its ``EmbeddingTables``."""

    list_names: Sequence[str] | None
    pool: Pool
    tie: Mapping[str, str] | None
    pad: bool
    check_ids: CheckIds
    grads: Grads
    placement: Placement | Embeddings | None


class InputOptions(TableOptions, total=False):
    """Options of the inputs, which every model takes (see ``FieldNet``)."""

    cat_names: Sequence[str] | None
    list_szs: Sequence[tuple[int, int]]
    vector_szs: Sequence[int]
    embed_p: float
    bn_cont: bool


def options_of(model: Callable[..., nn.Module]) -> list[str] | None:
    """Return the names of a model's options, behind its three sizes, with those of ``InputOptions`` if it takes them.

    None: it takes any.
    """
    parameters = list(inspect.signature(model).parameters.values())
    names = [p.name for p in parameters[3:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    rest = next((p for p in parameters if p.kind is p.VAR_KEYWORD), None)
    if rest is None:
        return names
    return [*names, *InputOptions.__annotations__] if InputOptions.__name__ in str(rest.annotation) else None


class FieldNet(nn.Module):
    """The inputs of a net: categorical columns and lists as embeddings, numbers and vectors as dense values.

    Subclasses call ``embed`` or ``fields`` and ``dense`` in ``forward(x_cat, x_cont, *extras)``. It takes ids
    ``[b, categorical columns]``, numbers ``[b, n_cont]``, a ``ListBatch`` for each list column and ``[b, d]`` for each
    vector column; inputs without columns are ignored. An id out of range raises a ``DataError``.

    Args:
        emb_szs: ``(rows, width)`` for each categorical column, in the order of the batch.
        n_cont: number of continuous columns.
        cat_names: names of the categorical columns, for ``embeds.table(name)`` and for messages.
        list_szs: ``(rows, width)`` for each list column; of a tied one the rows and width of the other's table.
        vector_szs: width of each vector column; each enters through a LayerNorm of its own.
        embed_p: dropout on the embeddings.
        bn_cont: batch norm on the continuous columns.
        **tables: ``list_names``, ``pool``, ``tie``, ``pad``, ``check_ids``, ``grads`` and ``placement`` of the tables,
            see ``EmbeddingTables``.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        *,
        cat_names: Sequence[str] | None = None,
        list_szs: Sequence[tuple[int, int]] = (),
        vector_szs: Sequence[int] = (),
        embed_p: float = 0.0,
        bn_cont: bool = True,
        **tables: Unpack[TableOptions],
    ) -> None:
        super().__init__()
        emb_szs, list_szs = list(emb_szs), list(list_szs)
        has_tables = bool(emb_szs or list_szs)
        if not has_tables and not n_cont and not vector_szs:
            raise DataError("a net without any input column cannot be", remedy="Give cat_names or cont_names")
        self.embeds = EmbeddingTables(emb_szs, names=cat_names, list_szs=list_szs, **tables) if has_tables else None
        self.n_lists, self.n_fields = len(list_szs), len(emb_szs) + len(list_szs)
        self.n_emb = self.embeds.embedding_dim if self.embeds is not None else 0
        self.n_cont, self.n_dense = n_cont, n_cont + sum(vector_szs)
        self.emb_drop = nn.Dropout(embed_p)
        self.bn_cont = nn.BatchNorm1d(n_cont) if bn_cont and n_cont else None
        # vectors of any model come in any scale
        self.vector_norms = nn.ModuleList([nn.LayerNorm(d) for d in vector_szs])

    def embed_pieces(self, x_cat: Tensor | None, extras: Sequence[Tensor] = ()) -> list[Tensor]:
        """Embed a batch as pieces ``[b, ·]``, whose concatenation ``embed`` returns."""
        if self.embeds is None:
            return []
        pieces = self.embeds.pieces(x_cat, extras[: self.n_lists])
        # one mask for all columns, as fastai draws it
        return [self.emb_drop(torch.cat(pieces, 1))] if self.training and self.emb_drop.p else pieces

    def fetch_ahead(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> None:
        """Begin to bring the next batch's rows of tables that are on the host (see ``Embeddings``)."""
        for tables in self._placed_tables():
            tables.fetch_ahead(x_cat, extras[: len(tables.list_names)])

    def count_rows(self, x_cat: Tensor) -> None:
        """Count future lookups of rows: ids ``[n, columns]`` of training rows, see ``EmbeddingTables``."""
        for tables in self._placed_tables():
            if tables.n_columns:
                tables.count(x_cat)

    def _placed_tables(self) -> list[EmbeddingTables]:
        return [m for m in self.modules() if isinstance(m, EmbeddingTables) and m.placed]

    def embed(self, x_cat: Tensor | None, extras: Sequence[Tensor] = ()) -> Tensor:
        """Embed a batch's columns, then its lists: ``[b, n_emb]``."""
        return side_by_side(self.embed_pieces(x_cat, extras))

    def fields(self, x_cat: Tensor | None, extras: Sequence[Tensor] = ()) -> Tensor:
        """Embed a batch as one vector for each field: ``[b, n_fields, width]``; for tables of one width."""
        return self.embed(x_cat, extras).unflatten(1, (self.n_fields, -1))

    def dense_pieces(self, x_cont: Tensor | None, extras: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the numbers and vectors of a batch as pieces ``[b, ·]``."""
        pieces = [] if not self.n_cont else [x_cont if self.bn_cont is None else self._normalized(x_cont)]
        return pieces + [norm(v) for norm, v in zip(self.vector_norms, extras[self.n_lists :], strict=True)]

    def _normalized(self, x_cont: Tensor) -> Tensor:
        if on_host(x_cont) or torch.compiler.is_compiling():
            return self.bn_cont(x_cont)
        # CUDA sums the gradient of columns that are part of a wider tensor by one block a column: of a step of 65,536
        # rows that took 1.8 of 9.3 ms (H100)
        made = self.bn_cont(x_cont.contiguous())
        if made.requires_grad:
            made.register_hook(lambda grad: None if grad is None else grad.contiguous())  # None: no gradient came
        return made

    def dense(self, x_cont: Tensor | None, extras: Sequence[Tensor] = ()) -> Tensor:
        """Return the numbers of a batch, then its vectors, of which there must be some: ``[b, n_dense]``."""
        return side_by_side(self.dense_pieces(x_cont, extras))

    def all_inputs(self, x_cat: Tensor | None, x_cont: Tensor | None = None, extras: Sequence[Tensor] = ()) -> Tensor:
        """Return the embeddings of a batch, then its dense values: ``[b, n_emb + n_dense]``."""
        return side_by_side(self.embed_pieces(x_cat, extras) + self.dense_pieces(x_cont, extras))


Activation = nn.Module | Callable[[], nn.Module]


def mlp(
    sizes: Sequence[int],
    *,
    ps: float | Sequence[float] | None = None,
    use_bn: bool = True,
    last_is_output: bool = True,
    bn_final: bool = False,
    act_cls: Activation = nn.ReLU,
    lin_first: bool = True,
    y_range: tuple[float, float] | None = None,
) -> nn.Sequential:
    """Make a multi-layer perceptron: one block for each step from a width to the next; see ``TabularNet``.

    An output block has no activation, no dropout, and batch norm only with ``bn_final``.
    """
    hidden = len(sizes) - 1 - int(last_is_output)
    drops = [*dropouts(ps, hidden), *([0.0] if last_is_output else [])]
    blocks = []
    for i, p in enumerate(drops):
        act, bn = activation(act_cls) if i < hidden else None, use_bn and (i < hidden or bn_final)
        blocks.append(LinBnDrop(sizes[i], sizes[i + 1], bn=bn, p=p, act=act, lin_first=lin_first))
    return nn.Sequential(*blocks, *([] if y_range is None else [squash(y_range)]))


def dropouts(ps: float | Sequence[float] | None, n: int) -> list[float]:
    """Return one dropout for each of ``n`` layers."""
    drops = [0.0] * n if ps is None else [float(ps)] * n if isinstance(ps, int | float) else [float(p) for p in ps]
    if len(drops) != n:
        raise DataError(f"{len(drops)} dropouts for {n} layers", remedy="Give one number, or one for each layer")
    return drops


def activation(act_cls: Activation) -> nn.Module:
    """Make the activation of a class, a function or a module."""
    if isinstance(act_cls, nn.Module):
        return act_cls
    return nn.ReLU(inplace=True) if act_cls is nn.ReLU else act_cls()  # in place as in fastai's TabularModel


def of_width(sizes: Sequence[tuple[int, int]], width: int) -> list[tuple[int, int]]:
    """Return the same numbers of rows, each with that width."""
    return [(rows, width) for rows, _ in sizes]


def squash(y_range: tuple[float, float] | None) -> nn.Module:
    """Squash outputs by a sigmoid onto ``y_range``, if there is one."""
    return nn.Identity() if y_range is None else SigmoidRange(*y_range)


class LinearTerms(nn.Module):
    """One weight for each category and output, and one for each dense value: a linear model without its bias."""

    def __init__(
        self, emb_szs: Sequence[tuple[int, int]], n_dense: int, out_sz: int, inputs: InputOptions | None = None
    ) -> None:
        super().__init__()
        given = inputs or {}
        list_szs = given.get("list_szs", ())
        self.n_fields, self.out_sz = len(emb_szs) + len(list_szs), out_sz
        self.tables = None
        if self.n_fields:
            options = {k: given[k] for k in ("list_names", "pool", "tie", "grads", "placement") if k in given}
            options |= {"names": given.get("cat_names"), "list_szs": of_width(list_szs, out_sz)}
            # ids are checked where the model's embeddings are looked up, before these
            self.tables = EmbeddingTables(of_width(emb_szs, out_sz), pad=False, check_ids="never", **options)
        self.dense = nn.Linear(n_dense, out_sz, bias=False) if n_dense else None

    def forward(self, x_cat: Tensor | None, lists: Sequence[Tensor], dense: Tensor | None) -> Tensor:
        """Add up the weights of a row's categories, and its dense values times theirs: ``[b, out_sz]``."""
        terms = []
        if self.tables is not None:
            terms.append(self.tables(x_cat, *lists).unflatten(1, (self.n_fields, self.out_sz)).sum(1))
        if self.dense is not None:
            terms.append(self.dense(dense))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def training_rows(dls: Any, limit: int | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the training rows, or a sample of ``limit`` rows, as batches hold them.

    Ids ``[n, categorical columns]``, numbers float32 ``[n, n_cont]`` and targets ``[n]`` or ``[n, k]`` (None: none).
    """
    if limit is not None and limit < 1:
        raise DataError(f"a sample of {limit} rows", remedy="Give 1 or more, or None for all rows")
    frame = dls.train_ds
    packed = getattr(frame, "packed", None)
    if packed is None:
        ys = frame.ys.to_numpy() if len(frame.y_names) else None
        found = (
            torch.from_numpy(frame.cats.to_numpy().astype(np.int64)),
            torch.from_numpy(frame.conts.to_numpy().astype(np.float32)),
            None if ys is None else torch.from_numpy(np.ascontiguousarray(ys[:, 0] if ys.shape[1] == 1 else ys)),
        )
    elif len(packed):
        found = (frame.x_cat, frame.x_cont, frame.y)
    else:  # a stream's frame holds no rows itself
        parts, n = [], 0
        whole = {"drop_last": False, "rank": 0, "world_size": 1}
        for x_cat, x_cont, *rest in dls.train.new(shuffle=limit is not None, seed=0, **whole):
            parts.append(tuple(t.cpu() for t in (x_cat, x_cont, *rest[-1:])))
            n += len(x_cat)
            if limit is not None and n >= limit:
                break
        joined = [torch.cat(column)[:limit] for column in zip(*parts, strict=True)]
        found = (*joined, None)[:3] if parts else (torch.empty(0), None, None)
    n = len(found[0])
    if not n:
        raise DataError("there are no training rows", remedy="Give files or splits that leave rows to train on")
    if limit is None or n <= limit:
        return found
    rows = torch.from_numpy(np.sort(np.random.default_rng(0).choice(n, limit, replace=False)))
    return tuple(None if t is None else t[rows.to(t.device)] for t in found)
