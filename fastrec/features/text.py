"""Text features: tokens, TF-IDF components and similarity."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features._engine.chain import naming
from fastrec.features._engine.keyed import add_spread, sort_keys, sum_by_cell, union_keys
from fastrec.features._engine.options import coded_elements, list_of
from fastrec.features.base import Cells, Col, Fitted, RowWise, Scope, State, Tensors
from fastrec.features.columns import masked, name_of
from fastrec.features.encode import SumsByKey
from fastrec.features.vectors import distinct_texts, signed
from fastrec.segments import segment_count, segment_sum
from fastrec.table import Coded, Column, Keys, Table, as_column
from fastrec.table.column import lengths_of, offsets_of, rows_of, runs
from fastrec.table.keys import is_text
from fastrec.table.table import concat_columns

_PATTERNS = {
    "hashtags": r"(?<!\w)#(\w+)",
    "mentions": r"(?<![\w@])@(\w+)",  # excludes the domains of e-mail addresses
    "words": r"\w+",
}


class Tokens(RowWise):
    """Matches of a pattern in a text, in order, as a list of strings.

    A missing text gives a missing list, a text without a match an empty one.

    Args:
        col: a text or categorical column, or a generator.
        pattern: ``'hashtags'`` (``#word``, without the sign), ``'mentions'`` (``@word``, likewise), ``'words'`` (runs
            of letters, digits and underscores of any script), or a Python regular expression. Its one group, if any,
            is what is taken of a match. ``r'[^|]+'`` splits ``'a|b'``.
        lower: convert the tokens to lower case.
        name: the output's name; None: ``hashtags_{col}``, ``mentions_{col}``, ``words_{col}``, else ``tokens_{col}``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Tokens
        >>> df = pd.DataFrame({"text": ["#New from @Ann: #deals", "nothing"]})
        >>> [list(x) for x in Tokens("text", "hashtags").fit_transform(df)["hashtags_text"]]
        [['new', 'deals'], []]
    """

    def __init__(self, col: Col, pattern: str = "hashtags", *, lower: bool = True, name: str | None = None) -> None:
        self._compiled()

    def _compiled(self) -> re.Pattern[str]:
        try:
            compiled = re.compile(_PATTERNS.get(self.pattern, self.pattern))
        except (re.error, TypeError) as error:
            remedy = f"Use {', '.join(map(repr, _PATTERNS))} or a regular expression"
            raise DataError(f"Tokens: {self.pattern!r} is no pattern ({error})", remedy=remedy) from error
        if compiled.groups > 1:
            raise DataError(f"Tokens: {self.pattern!r} has {compiled.groups} groups", remedy="Write others as (?:…)")
        return compiled

    @property
    def outputs(self) -> list[str]:
        word = self.pattern if self.pattern in _PATTERNS else "tokens"
        return [self.name or f"{word}_{name_of(self.col)}"]

    def prepare(self, table: Table) -> Tensors:
        return self._read(table)[0]

    def apply(self, tensors: Tensors) -> Tensors:
        offsets, rows = tensors["offsets"], tensors["text"]
        new, places = runs(offsets[rows], offsets[rows + 1] - offsets[rows])
        return {"offsets": new, "piece": tensors["piece"][places]}

    def compute(self, table: Table) -> dict[str, Column]:
        tensors, pieces = self._read(table)
        lists, name = self.apply(tensors), self.outputs[0]
        elements = Column("category", lists["piece"], name=name, distinct=pieces)
        return {name: masked(name, lists["offsets"], tensors["text"] == 0, "list", elements=elements)}

    def _read(self, table: Table) -> tuple[Tensors, pa.Array]:
        """Return the rows' texts by code, each distinct text's tokens by code, and the distinct tokens."""
        texts, codes = distinct_texts(table, name_of(self.col), "Tokens needs text", "Convert it to text first")
        find = self._compiled().findall  # the slowest part, so only on distinct texts
        found = [[piece for piece in find(text) if piece] for text in texts.to_pylist()]
        lengths = np.fromiter((0, *map(len, found)), dtype=np.int64, count=len(found) + 1)  # first: a missing text
        pieces = [piece.lower() if self.lower else piece for some in found for piece in some]
        column = as_column(pa.array(pieces, pa.large_string()))
        tensors = {"offsets": offsets_of(torch.from_numpy(lengths)), "piece": column.values}
        return {"text": codes, **{n: t.to(codes.device) for n, t in tensors.items()}}, column.distinct


# Texts as bags of words, on the host.
#
# Bags are sorted by the bytes of their codes and counts: the result does not depend on row order or partitions.


@dataclass(frozen=True, eq=False)
class Bags:
    """Distinct bags of words."""

    words: Keys  # the ``K`` words that occur, ascending
    size: int  # number of bags; one may be empty
    pairs: torch.Tensor  # int64 ``[P]``, ascending: ``bag · K + word`` of each word of each bag
    times: torch.Tensor  # int64 ``[P]``, how often the word occurs in the bag

    def split(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return bag and word of each pair, int64 ``[P]``."""
        width = max(len(self.words), 1)
        return self.pairs // width, self.pairs % width


def count_words(
    offsets: torch.Tensor, codes: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count each text's words (code 0: none): text, word from 0, and count, int64 ``[P]`` each, in that order."""
    pairs = (rows_of(offsets) * max(size, 1) + codes - 1)[codes > 0]
    found, times = np.unique(pairs.numpy(), return_counts=True)
    pairs = torch.from_numpy(found)
    return pairs // max(size, 1), pairs % max(size, 1), torch.from_numpy(times.astype(np.int64))


def distinct_bags(
    words: Keys, text: torch.Tensor, word: torch.Tensor, times: torch.Tensor, texts: int
) -> tuple[Bags, torch.Tensor]:
    """Find the distinct bags in the output of ``count_words``, and each text's bag: int64 ``[texts]``.

    Words ascend; unused ones are dropped.
    """
    used, word = torch.unique(word, return_inverse=True)
    words = words if len(used) == len(words) else words.take(used)
    entries = np.stack([word.numpy(), times.numpy()], 1).astype(">u4")
    ends = offsets_of(torch.bincount(text, minlength=texts) * entries.itemsize * 2).numpy()
    keys = pa.Array.from_buffers(pa.large_binary(), texts, [None, pa.py_buffer(ends), pa.py_buffer(entries)])
    codes, distinct = Keys((keys,)).distinct()
    order = distinct.sort_order()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    bag_of = place[codes]
    # Each bag's words are those of its first text.
    first = torch.full((len(order),), texts).scatter_reduce_(0, bag_of, torch.arange(texts), "amin")
    bag = bag_of[text]
    rows = (first[bag] == text).nonzero().squeeze(1)
    pairs, moved = torch.sort(bag[rows] * max(len(words), 1) + word[rows])
    return Bags(words, len(order), pairs, times[rows][moved]), bag_of


def merge_bags(a: Bags, b: Bags) -> tuple[Bags, torch.Tensor, torch.Tensor]:
    """Return the union of the bags, and the positions in it of the bags of ``a`` and of ``b``."""
    words, left, right = union_keys(a.words, b.words)
    (bag_a, word_a), (bag_b, word_b) = a.split(), b.split()
    text, word = torch.cat([bag_a, bag_b + a.size]), torch.cat([left[word_a], right[word_b]])
    bags, bag_of = distinct_bags(words, text, word, torch.cat([a.times, b.times]), a.size + b.size)
    return bags, bag_of[: a.size], bag_of[a.size :]


class TextSvd(Fitted):
    """First components of a text's TF-IDF (latent semantic analysis), as ``dims`` float64 columns.

    A word weighs ``log(1 + tf) · (ln((1 + n) / (1 + df)) + 1)`` (tf: its count in the text; n: training rows with a
    text; df: those with the word). Each text's weights are divided by their Euclidean norm, and projected on the right
    singular vectors of the training matrix. A missing text, or one without a known word, is all 0. The decomposition
    of the words' Gram matrix is exact: memory grows as ``max_words²``, time as ``max_words³``. Each component's largest
    entry is positive; components beyond the rank are 0.

    The state holds the distinct training texts as counted words (16 bytes each), so that partitions merge exactly.

    Args:
        col: a column of text or of lists of words, or a generator: ``Tokens('title', 'hashtags')``.
        dims: the number of columns.
        max_words: the maximal number of learned words: those in the most rows (ties: the smaller word).
        min_count: the minimal number of training rows with a word.
        pattern: the words of a text, as in ``Tokens``, in lower case; not applied to lists.

    Source: Deerwester et al. 1990, "Indexing by latent semantic analysis"; Salton, Buckley 1988, "Term-weighting
    approaches in automatic text retrieval"; the idf smoothed as in scikit-learn.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import TextSvd
        >>> df = pd.DataFrame({"text": ["red shoe", "red boot", "Red shoe!", "a hat", None]})
        >>> TextSvd("text", 2, min_count=1).fit_transform(df)[["svd0_text", "svd1_text"]].round(2).values.tolist()
        [[0.97, 0.0], [0.55, 0.0], [0.97, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """

    by_row = False
    _saved = ("idf", "components", "place")
    _least: ClassVar = {"dims": 1, "max_words": 1}

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
        with naming(self):
            Tokens("", pattern)

    @property
    def outputs(self) -> list[str]:
        return [f"svd{i}_{name_of(self.col)}" for i in range(self.dims)]

    def _texts(self, column: Column) -> tuple[torch.Tensor, Column]:
        """Return each row's distinct text (int64 ``[n]``), and these texts as lists of words, on the host."""
        name = name_of(self.col)
        if column.kind == "category" and is_text(column.distinct.type):
            # A dictionary may hold texts of other partitions: only those that occur here are split, once each.
            used, row = torch.unique(column.values.long().cpu(), return_inverse=True)
            texts = as_column(column.distinct.take(pa.array(used.numpy() - 1, mask=(used == 0).numpy())), name=name)
            words = Tokens(name, self.pattern)
            return row, words.compute(Table({name: texts}))[words.outputs[0]]
        known = (~column.is_missing()).nonzero()
        if column.kind not in ("list", "vector") and len(known):
            needed = "TextSvd needs text, or lists of words"
            raise DataError(needed, column=name, row=int(known[0]), remedy="Convert it to text first")
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
        count = add_spread(a["count"], b["count"], range(bags.size), left, right)
        return {"words": bags.words, "count": count, "pairs": bags.pairs, "times": bags.times}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        # place int64 [1 + words], idf [1 + V], components [1 + V, dims]; entry 0: outside the vocabulary (size V).
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
        idf, components, place = (fit[n].to(text.device) for n in self._saved)
        of_text, size, at = rows_of(offsets), offsets.shape[0] - 1, place[tensors["word"]]
        weight = _weights(tensors["times"], idf[at], of_text, size)
        # Column by column: all at once would take words × dims numbers of memory.
        return {n: _sum(weight * components[:, i][at], of_text, size)[text] for i, n in enumerate(self.outputs)}


def _bags_of(state: State) -> Bags:
    return Bags(state["words"], state["count"].shape[1], state["pairs"], state["times"])


def _sum(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    # Unlike segment_sum, this can be traced.
    return torch.zeros(size, dtype=torch.float64, device=values.device).index_add_(0, codes, values)


def _weights(times: torch.Tensor, idf: torch.Tensor, text: torch.Tensor, texts: int) -> torch.Tensor:
    """Return the TF-IDF of each word of each text, float64 ``[P]``, with Euclidean norm 1 per text."""
    weight = torch.log1p(times.double()) * idf
    norm = _sum(weight * weight, text, texts).sqrt()
    return weight / torch.where(norm > 0, norm, 1)[text]


def _components(
    weight: torch.Tensor, row: torch.Tensor, col: torch.Tensor, shape: tuple[int, int], dims: int
) -> np.ndarray:
    # Right singular vectors of a sparse matrix, by descending value: float64 [columns, dims]. LAPACK's solver is exact
    # for equal values and has no random start.
    from scipy.linalg import eigh
    from scipy.sparse import csr_matrix

    cols = shape[1]
    if not cols:
        return np.zeros((0, dims))
    matrix = csr_matrix((weight.numpy(), (row.numpy(), col.numpy())), shape)
    gram = (matrix.T @ matrix).toarray()
    sizes, vectors = eigh(gram, subset_by_index=(max(cols - dims, 0), cols - 1), overwrite_a=True)
    sizes, vectors = sizes[::-1], vectors[:, ::-1] * (sizes[::-1] > 1e-12 * sizes[-1])  # others are rounding
    turned = signed(torch.from_numpy(np.ascontiguousarray(vectors))).numpy() + 0.0  # no -0.0
    return np.pad(turned, ((0, 0), (0, dims - len(sizes))))


class TfIdfSimilarity(SumsByKey):
    """Cosine similarity of the TF-IDF vectors of two lists of a row, in 0 … 1.

    A word weighs ``tf · (ln((1 + n) / (1 + df)) + 1)`` (tf: its count in the list; n: the training rows' lists of both
    columns, empty ones too; df: those with the word), as scikit-learn's ``TfidfVectorizer`` fitted on both columns.
    Unknown words are ignored. A list without a known word gives 0, a missing list NaN.

    Args:
        a: a list column, or a generator (``Tokens('title', 'words')``).
        b: likewise, with elements of the same kind.
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

    _reads = ("a", "b")
    by_row = False
    by_key = (("keys", "count"),)

    def __init__(self, a: Col, b: Col, *, scope: Scope = "train", name: str | None = None) -> None: ...

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"tfidf_{name_of(self.a)}__{name_of(self.b)}"]

    def _read(self, table: Table) -> tuple[Column, Column, Coded]:
        """Return both list columns, and the elements of the first, then of the second, as keys."""
        a, b = (list_of(table, name_of(c), wanted_by=self) for c in (self.a, self.b))
        for column in (a, b):
            coded_elements(column, wanted_by=self)  # raises if elements cannot be keys
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

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """Return each key's squared weight; 0 for keys in no list."""
        count, lists = state["count"], state["lists"]
        if keep is not None:
            count, lists = count[keep.to(count.device)], lists[keep.to(count.device)]
        total = count.sum(0)
        square = torch.where(total > 0, (torch.log((1 + lists.sum()) / (1 + total).double()) + 1) ** 2, 0)
        return {"square": torch.cat([square.new_zeros(1), square])}

    def prepare(self, state: State, table: Table) -> Tensors:
        a, b, coded = self._read(table)
        own, other = coded.recode(state["keys"]).tensor_split([len(a.elements)])
        missing = a.is_missing() | b.is_missing()
        return {"a": own, "b": other, "a_offsets": a.values, "b_offsets": b.values, "missing": missing}

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
                sides = ((tensors["a"], a), (tensors["b"], b))
                parts = [(own[ends[first] : ends[last]], ends[first : last + 1]) for own, ends in sides]
                result[first:last] = _cosine(*parts, square)
        return {self.outputs[0]: torch.where(missing, torch.nan, result)}


def _cosine(
    a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor], square: torch.Tensor
) -> torch.Tensor:
    """Return the cosine of the weighted counts of each row's two lists (codes; offsets may start anywhere): ``[n]``."""
    size, n = len(square), len(a[1]) - 1
    pairs, where = torch.unique(torch.cat([rows_of(own[1]) * size + own[0] for own in (a, b)]), return_inverse=True)
    rows, weight = pairs // size, square[pairs % size]
    counts = [segment_count(part, len(pairs)).double() for part in where.split([len(a[0]), len(b[0])])]
    dot = segment_sum(counts[0] * counts[1] * weight, rows, n)
    norms = segment_sum(counts[0] ** 2 * weight, rows, n) * segment_sum(counts[1] ** 2 * weight, rows, n)
    return torch.where(norms > 0, dot / norms.clamp_min(torch.finfo(norms.dtype).tiny).sqrt(), 0).clamp_max(1)
