"""What every model does first: embedded columns, lists and vectors made from a batch. The base of all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.models.embedding import CheckIds, EmbeddingTables, Grads, Pool, side_by_side
from fastrec.models.placement.settings import Embeddings, Placement


class InputOptions(TypedDict, total=False):
    """Options of the inputs, which every model takes (see ``FieldNet``)."""

    cat_names: Sequence[str] | None
    list_szs: Sequence[tuple[int, int]]
    list_names: Sequence[str] | None
    pool: Pool
    tie: Mapping[str, str] | None
    vector_szs: Sequence[int]
    embed_p: float
    bn_cont: bool
    pad: bool
    check_ids: CheckIds
    grads: Grads
    placement: Placement | Embeddings | None


class FieldNet(nn.Module):
    """The inputs of a net: categorical columns and lists as embeddings, numbers and vectors as dense values.

    Subclasses call ``embed`` or ``fields`` and ``dense`` from their ``forward(x_cat, x_cont, *extras)``. It takes ids
    ``[b, categorical columns]``, numbers ``[b, n_cont]``, a ``ListBatch`` for each list column and ``[b, d]`` for each
    vector column; inputs without columns are ignored. An id out of range raises a ``DataError``.

    Args:
        emb_szs: ``(rows, width)`` for each categorical column, in the order of the batch.
        n_cont: number of continuous columns.
        cat_names: names of the categorical columns, for ``embeds.table(name)`` and for messages.
        list_szs: ``(rows, width)`` for each list column; of a tied one the rows and width of the other's table.
        list_names: names of the list columns.
        pool: how a list's vectors become one: ``'mean'``, ``'sum'`` or ``'max'``; an empty list is zeros.
        tie: list column → the categorical (or list) column whose table it looks up in.
        vector_szs: width of each vector column; each enters through a LayerNorm of its own.
        embed_p: dropout on the embeddings. Above 0 every row has a mask of its own, so that on a CPU tables of 64 or
            more numbers a row are multiplied row by row in training, not once for every id.
        bn_cont: batch norm on the continuous columns.
        pad: round the tables' widths up to multiples of 4 floats.
        check_ids: when to look for ids out of range, see ``EmbeddingTables``.
        grads: dense or row-sparse gradients of the tables, see ``EmbeddingTables``.
        placement: where large tables lie, see ``Embeddings``.

    Raises:
        DataError: there is no input column at all.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        *,
        cat_names: Sequence[str] | None = None,
        list_szs: Sequence[tuple[int, int]] = (),
        list_names: Sequence[str] | None = None,
        pool: Pool = "mean",
        tie: Mapping[str, str] | None = None,
        vector_szs: Sequence[int] = (),
        embed_p: float = 0.0,
        bn_cont: bool = True,
        pad: bool = True,
        check_ids: CheckIds = "auto",
        grads: Grads = "dense",
        placement: Placement | Embeddings | None = None,
    ) -> None:
        super().__init__()
        emb_szs, list_szs = list(emb_szs), list(list_szs)
        if not emb_szs and not n_cont and not list_szs and not vector_szs:
            raise DataError("a net without any input column cannot be", remedy="Give cat_names or cont_names")
        self.embeds = (
            EmbeddingTables(
                emb_szs,
                names=cat_names,
                list_szs=list_szs,
                list_names=list_names,
                pool=pool,
                tie=tie,
                pad=pad,
                check_ids=check_ids,
                grads=grads,
                placement=placement,
            )
            if emb_szs or list_szs
            else None
        )
        self.n_lists, self.n_fields = len(list_szs), len(emb_szs) + len(list_szs)
        self.n_emb = self.embeds.embedding_dim if self.embeds is not None else 0
        self.n_cont, self.n_dense = n_cont, n_cont + sum(vector_szs)
        self.emb_drop = nn.Dropout(embed_p)
        self.bn_cont = nn.BatchNorm1d(n_cont) if bn_cont and n_cont else None
        self.vector_norms = nn.ModuleList([nn.LayerNorm(d) for d in vector_szs])

    def embed_pieces(self, x_cat: Tensor | None, extras: Sequence[Tensor] = ()) -> list[Tensor]:
        """Embed a batch as pieces ``[b, ·]``, whose concatenation ``embed`` returns."""
        if self.embeds is None:
            return []
        pieces = self.embeds.pieces(x_cat, extras[: self.n_lists])
        return [self.emb_drop(torch.cat(pieces, 1))] if self.training and self.emb_drop.p else pieces

    def fetch_ahead(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> None:
        """Begin to bring the next batch's rows of tables that are on the host (see ``Embeddings``).

        Args:
            x_cat: as for ``forward``.
            x_cont: not used.
            *extras: as for ``forward``.
        """
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
        """Embed a batch, its columns side by side.

        Args:
            x_cat: ids ``[b, categorical columns]``, integers.
            extras: a ``ListBatch`` for each list column, then ``[b, d]`` for each vector column.

        Returns:
            ``[b, n_emb]``: the columns' vectors in order, then the lists'.
        """
        return side_by_side(self.embed_pieces(x_cat, extras))

    def fields(self, x_cat: Tensor | None, extras: Sequence[Tensor] = ()) -> Tensor:
        """Embed a batch as one vector for each field: ``[b, n_fields, width]``; for tables of one width."""
        found = self.embed(x_cat, extras)
        return found.unflatten(1, (self.n_fields, -1))

    def dense_pieces(self, x_cont: Tensor | None, extras: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the numbers and vectors of a batch as pieces ``[b, ·]``."""
        pieces = [] if not self.n_cont else [x_cont if self.bn_cont is None else self.bn_cont(x_cont)]
        vectors = extras[self.n_lists :]
        return pieces + [norm(v) for norm, v in zip(self.vector_norms, vectors, strict=True)]

    def dense(self, x_cont: Tensor | None, extras: Sequence[Tensor] = ()) -> Tensor:
        """Return the numbers of a batch, then its vectors.

        Args:
            x_cont: numbers ``[b, n_cont]``, float; unused where there are none.
            extras: as for ``embed``.

        Returns:
            ``[b, n_dense]``; there must be some.
        """
        return side_by_side(self.dense_pieces(x_cont, extras))
