"""``TfIdfSimilarity``: how like two lists of words of one row are."""

from __future__ import annotations

import itertools

import torch

from fastrec._core import limits
from fastrec.features._engine.key_counts import merge_counts
from fastrec.features._engine.keyed import sort_keys, spread, sum_by_cell
from fastrec.features._engine.lists import FittedOnLists, coded_elements, list_of
from fastrec.features._engine.options import check_scope
from fastrec.features._inputs import name_of
from fastrec.features.base import Cells, Col, Scope, State, Tensors
from fastrec.segments import segment_count, segment_sum
from fastrec.table import Coded, Column, Table
from fastrec.table.concat_columns import concat_columns
from fastrec.table.offsets import lengths_of, rows_of


class TfIdfSimilarity(FittedOnLists):
    """Cosine of the TF-IDF vectors of two lists of the same row, in 0 … 1.

    A word weighs ``tf · (ln((1 + n) / (1 + df)) + 1)`` (tf: its count in the list; n: the training rows' lists of both
    columns, empty ones too; df: those with the word), as scikit-learn's ``TfidfVectorizer`` fitted on both columns.
    Unknown words do not count; a list without a known word gives 0, a missing list NaN.

    Args:
        a: a column of lists, or a generator of one (``Tokens('title', 'words')``).
        b: likewise, of the same kind of elements.
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).
        name: the output's name; None: ``tfidf_{a}__{b}``.

    Source: Salton, Buckley 1988, "Term-weighting approaches in automatic text retrieval"; smoothed as in scikit-learn.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import TfIdfSimilarity, Tokens
        >>> df = pd.DataFrame({"query": ["red shoe", "a hat"], "title": ["red boot", "hat, a"]})
        >>> like = TfIdfSimilarity(Tokens("query", "words"), Tokens("title", "words"), name="like")
        >>> like.fit_transform(df)["like"].round(3).tolist()
        [0.383, 1.0]
    """

    by_key = (("keys", "count"),)

    def __init__(self, a: Col, b: Col, *, scope: Scope = "train", name: str | None = None) -> None:
        super().__init__()
        self.a, self.b, self.scope, self.name = a, b, scope, name
        check_scope(self)

    @property
    def sources(self) -> list[Col]:
        return [self.a, self.b]

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"tfidf_{name_of(self.a)}__{name_of(self.b)}"]

    def _read(self, table: Table) -> tuple[Column, Column, Coded]:
        """Return both list columns, and the elements of the first, then of the second, as keys."""
        a, b = (list_of(table, name_of(c), wanted_by=self) for c in (self.a, self.b))
        for column in (a, b):
            coded_elements(column, wanted_by=self)  # refuses what is no key
        if a is b or a.elements is b.elements:
            one = coded_elements(a, wanted_by=self)
            return a, b, Coded(torch.cat([one.codes, one.codes]), one.keys)
        return a, b, concat_columns([a.elements, b.elements], table.device).coded()

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        a, b, coded = self._read(table)
        keys, codes = sort_keys(coded)
        size = len(keys) + 1
        count = torch.zeros(1 if cells is None else cells.count, size, dtype=torch.int64, device=codes.device)
        lists = count.new_zeros(len(count), 1)
        for column, own in ((a, codes[: len(a.elements)]), (b, codes[len(a.elements) :])):
            pairs = torch.unique(rows_of(column.values) * size + own)
            rows = pairs // size
            of_pair = None if cells is None else Cells(cells.codes[rows], cells.count)
            count += sum_by_cell(torch.ones_like(rows), pairs % size, of_pair, size)
            known = (~column.is_missing()).long()
            lists += sum_by_cell(known, torch.zeros_like(known), cells, 1)
        return {"keys": keys, "count": count[:, 1:], "lists": lists}

    def merge(self, a: State, b: State) -> State:
        keys, count = merge_counts(a["keys"], a["count"], b["keys"], b["count"])
        one, cells = torch.zeros(1, dtype=torch.int64), len(count)
        lists = spread(a["lists"], one, 1, cells) + spread(b["lists"], one, 1, cells)
        return {"keys": keys, "count": count, "lists": lists}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """Return each key's weight, squared; 0 for keys in no list."""
        count, lists = state["count"], state["lists"]
        if keep is not None:
            count, lists = count[keep.to(count.device)], lists[keep.to(count.device)]
        total = count.sum(0)
        weight = torch.log((1 + lists.sum()) / (1 + total).double()) + 1
        square = torch.where(total > 0, weight**2, 0)
        return {"square": torch.cat([square.new_zeros(1), square])}

    def prepare(self, state: State, table: Table) -> Tensors:
        a, b, coded = self._read(table)
        codes = coded.recode(state["keys"])
        return {
            "a": codes[: len(a.elements)],
            "b": codes[len(a.elements) :],
            "a_offsets": a.values,
            "b_offsets": b.values,
            "missing": a.is_missing() | b.is_missing(),
        }

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        a, b, missing = tensors["a_offsets"], tensors["b_offsets"], tensors["missing"]
        square = fit["square"].to(missing.device)
        result = torch.zeros(len(missing), dtype=torch.float64, device=missing.device)
        elements = torch.cumsum(lengths_of(a) + lengths_of(b), 0)
        whole = int(elements[-1]) if len(elements) else 0
        marks = torch.arange(0, whole, limits.TFIDF_ELEMENTS, device=missing.device)
        cuts = [*torch.searchsorted(elements, marks, right=True).tolist(), len(missing)]
        for first, last in itertools.pairwise(cuts):
            if last > first:
                parts = [
                    (own[bounds[first] : bounds[last]], bounds[first : last + 1])
                    for own, bounds in ((tensors["a"], a), (tensors["b"], b))
                ]
                result[first:last] = _cosine(*parts, square)
        return {self.outputs[0]: torch.where(missing, torch.nan, result)}


def _cosine(
    a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor], square: torch.Tensor
) -> torch.Tensor:
    """Return the cosine of the weighted counts of each row's two lists (codes; offsets from any start): ``[n]``."""
    size, n = len(square), len(a[1]) - 1
    both = torch.cat([rows_of(own[1]) * size + own[0] for own in (a, b)])
    pairs, where = torch.unique(both, return_inverse=True)
    rows, weight = pairs // size, square[pairs % size]
    counts = [segment_count(part, len(pairs)).double() for part in where.split([len(a[0]), len(b[0])])]
    dot = segment_sum(counts[0] * counts[1] * weight, rows, n)
    norms = segment_sum(counts[0] ** 2 * weight, rows, n) * segment_sum(counts[1] ** 2 * weight, rows, n)
    return torch.where(norms > 0, dot / norms.clamp_min(torch.finfo(norms.dtype).tiny).sqrt(), 0).clamp_max(1)
