"""``TextSvd``: free text as a few numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.features._engine.bags import Bags, count_words, distinct_bags, merge_bags
from fastrec.features._engine.keyed import sort_keys, spread, sum_by_cell
from fastrec.features._engine.lists import FittedOnLists, coded_elements, list_of
from fastrec.features._engine.naming import naming
from fastrec.features._engine.options import check_scope
from fastrec.features._inputs import name_of
from fastrec.features.base import Cells, Col, Scope, State, Tensors
from fastrec.features.pca import signed
from fastrec.features.tokens import Tokens
from fastrec.table import Column, Table, as_column
from fastrec.table.key_types import is_text
from fastrec.table.offsets import offsets_of, rows_of

_LEARNED = ("idf", "components", "place")


class TextSvd(FittedOnLists):
    """A text as ``dims`` float64 columns: the first components of its words' TF-IDF (latent semantic analysis).

    A word weighs ``log(1 + tf) · (ln((1 + n) / (1 + df)) + 1)`` (tf: its count in the text; n: training rows with a
    text; df: those with the word). Each text's weights are divided by their Euclidean norm, and projected by the right
    singular vectors of the training rows' matrix. Unknown words do not count: a text without a known word, or a missing
    one, is all 0. The decomposition is exact, of the words' Gram matrix: memory grows as ``max_words²``, time as
    ``max_words³``. Each component's largest entry is positive, and components past the rank are 0.

    The state holds the distinct training texts as counted words (16 bytes each), so that partitions merge exactly.

    Args:
        col: a column of text or of lists of words, or a generator of one: ``Tokens('title', 'hashtags')``.
        dims: the number of columns.
        max_words: the largest number of words learned: those in the most rows (of equals the smaller word).
        min_count: the least number of training rows with a word.
        pattern: the words of a text, as in ``Tokens``, in lower case. Lists stay as they are.
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).

    Source: Deerwester et al. 1990, "Indexing by latent semantic analysis"; Salton, Buckley 1988, "Term-weighting
    approaches in automatic text retrieval"; the idf smoothed as in scikit-learn.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import TextSvd
        >>> df = pd.DataFrame({"text": ["red shoe", "red boot", "Red shoe!", "a hat", None]})
        >>> TextSvd("text", 2, min_count=1).fit_transform(df)[["svd0_text", "svd1_text"]].round(2).values.tolist()
        [[0.97, 0.0], [0.55, 0.0], [0.97, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """

    def __init__(
        self,
        col: Col,
        dims: int = 16,
        *,
        max_words: int = 2000,
        min_count: int = 2,
        pattern: str = "words",
        scope: Scope = "train",
    ) -> None:
        super().__init__()
        self.col, self.dims, self.max_words, self.min_count = col, dims, max_words, min_count
        self.pattern, self.scope = pattern, scope
        if dims < 1 or max_words < 1:
            raise DataError(f"TextSvd: dims is {dims}, max_words {max_words}", remedy="Both are 1 or more")
        check_scope(self)
        with naming(self):
            Tokens("", pattern)

    @property
    def outputs(self) -> list[str]:
        return [f"svd{i}_{name_of(self.col)}" for i in range(self.dims)]

    def _texts(self, column: Column) -> tuple[torch.Tensor, Column]:
        """Return each row's distinct text (int64 ``[n]``), and these texts as lists of words, on the host."""
        name = name_of(self.col)
        if column.kind == "category" and is_text(column.distinct.type):
            # Dictionaries may hold texts of other partitions' rows: only those that occur here are split, once each.
            used, row = torch.unique(column.values.long().cpu(), return_inverse=True)
            gone = (used == 0).numpy()
            texts = as_column(column.distinct.take(pa.array(used.numpy() - 1, mask=gone)), name=name)
            words = Tokens(name, self.pattern)
            return row, words.compute(Table({name: texts}))[words.outputs[0]]
        known = (~column.is_missing()).nonzero()
        if column.kind not in ("list", "vector") and len(known):
            raise DataError(
                "TextSvd needs text, or lists of words",
                column=name,
                row=int(known[0]),
                remedy="Convert it to text first",
            )
        return torch.arange(len(column)), list_of(Table({name: column.to("cpu")}), name, wanted_by=self)

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        row, texts = self._texts(table[name_of(self.col)])
        words, codes = sort_keys(coded_elements(texts, wanted_by=self))
        bags, bag_of = distinct_bags(words, *count_words(texts.values, codes, len(words)), len(texts))
        known = (~texts.is_missing()[row]).nonzero().squeeze(1)
        of_row = None if cells is None else Cells(cells.codes.cpu()[known], cells.count)
        count = sum_by_cell(torch.ones_like(known), bag_of[row[known]], of_row, bags.size)
        return {"words": bags.words, "count": count, "pairs": bags.pairs, "times": bags.times}

    def merge(self, a: State, b: State) -> State:
        bags, left, right = merge_bags(_bags_of(a), _bags_of(b))
        cells = max(len(a["count"]), len(b["count"]))
        count = spread(a["count"], left, bags.size, cells) + spread(b["count"], right, bags.size, cells)
        return {"words": bags.words, "count": count, "pairs": bags.pairs, "times": bags.times}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        # place int64 [1 + words], idf [1 + V], components [1 + V, dims]; entry 0: outside the vocabulary of size V.
        count = (state["count"] if keep is None else state["count"][keep.to(state["count"].device)]).sum(0)
        bag, word = _bags_of(state).split()
        rows = _sum(count[bag].double(), word, len(state["words"]))
        first = torch.sort(rows, descending=True, stable=True).indices[: self.max_words]
        chosen = first[rows[first] >= max(self.min_count, 1)].sort().values
        place = torch.zeros(len(rows) + 1, dtype=torch.int64)
        place[chosen + 1] = torch.arange(1, len(chosen) + 1)
        idf = torch.zeros(len(chosen) + 1, dtype=torch.float64)
        idf[1:] = torch.log((1 + count.sum()) / (1 + rows[chosen])) + 1
        place_of_pair = place[word + 1]
        used = ((place_of_pair > 0) & (count[bag] > 0)).nonzero().squeeze(1)
        bag, at = bag[used], place_of_pair[used]
        weight = _weights(state["times"][used], idf[at], bag, len(count)) * count[bag].double().sqrt()
        components = torch.zeros(len(idf), self.dims, dtype=torch.float64)
        components[1:] = torch.from_numpy(_components(weight, bag, at - 1, (len(count), len(chosen)), self.dims))
        return {"idf": idf, "components": components, "place": place}

    def prepare(self, state: State, table: Table) -> Tensors:
        row, texts = self._texts(table[name_of(self.col)])
        codes = coded_elements(texts, wanted_by=self).recode(state["words"])
        text, word, times = count_words(texts.values, codes, len(state["words"]))
        lengths = torch.bincount(text, minlength=len(texts))
        tensors = {"text": row, "offsets": offsets_of(lengths), "word": word + 1, "times": times}
        return {n: t.to(table.device) for n, t in tensors.items()}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        text, offsets = tensors["text"], tensors["offsets"]
        idf, components, place = (fit[n].to(text.device) for n in _LEARNED)
        of_text, size, at = rows_of(offsets), offsets.shape[0] - 1, place[tensors["word"]]
        weight = _weights(tensors["times"], idf[at], of_text, size)
        # Column by column: all at once would take as many numbers as there are words, times dims.
        return {n: _sum(weight * components[:, i][at], of_text, size)[text] for i, n in enumerate(self.outputs)}

    def get_state(self) -> State:
        # The decomposition is saved too: another machine may differ in rounding, or turn equal components.
        state, fit = self._learned()
        return {**state, **fit}

    def set_state(self, state: State) -> None:
        self.state_ = {n: v for n, v in state.items() if n not in _LEARNED}
        self.fit_ = {n: state[n] for n in _LEARNED}


def _bags_of(state: State) -> Bags:
    return Bags(state["words"], state["count"].shape[1], state["pairs"], state["times"])


def _sum(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    # Unlike segment_sum it can be traced.
    return torch.zeros(size, dtype=torch.float64, device=values.device).index_add_(0, codes, values)


def _weights(times: torch.Tensor, idf: torch.Tensor, text: torch.Tensor, texts: int) -> torch.Tensor:
    """Return the TF-IDF of each word of each text, float64 ``[P]``, with a Euclidean norm of 1 per text."""
    weight = torch.log1p(times.double()) * idf
    norm = _sum(weight * weight, text, texts).sqrt()
    return weight / torch.where(norm > 0, norm, 1)[text]


def _components(
    weight: torch.Tensor, row: torch.Tensor, col: torch.Tensor, shape: tuple[int, int], dims: int
) -> np.ndarray:
    """Return right singular vectors of a sparse matrix, the largest value's first: float64 ``[columns, dims]``."""
    # LAPACK's solver is exact where values are equal, and has no random start.
    from scipy.linalg import eigh
    from scipy.sparse import csr_matrix

    cols = shape[1]
    if not cols:
        return np.zeros((0, dims))
    matrix = csr_matrix((weight.numpy(), (row.numpy(), col.numpy())), shape)
    gram = (matrix.T @ matrix).toarray()
    sizes, vectors = eigh(gram, subset_by_index=(max(cols - dims, 0), cols - 1), overwrite_a=True)
    sizes, vectors = sizes[::-1], vectors[:, ::-1] * (sizes[::-1] > 1e-12 * sizes[-1])  # the others are rounding
    turned = signed(torch.from_numpy(np.ascontiguousarray(vectors))).numpy() + 0.0  # no -0.0
    return np.pad(turned, ((0, 0), (0, dims - len(sizes))))
