"""Vectors: normalised columns, principal components, and encodings of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.features._engine.chain import naming
from fastrec.features._engine.keyed import add_spread, sort_keys, sum_by_cell, union_keys
from fastrec.features._engine.options import OfColumns, coded_elements, float64, list_of, row_weights
from fastrec.features.base import Cells, Col, Feature, Fitted, Scope, State, Tensors
from fastrec.features.columns import Selector, as_list, masked, name_of, names_of, number_of
from fastrec.table import Column, Table
from fastrec.table.column import rows_of
from fastrec.table.keys import is_text


class VectorColumns(OfColumns, Fitted):
    """Several number columns, or one column of lists or vectors, as one L2-normalised vector column.

    A zero vector stays zero; infinite entries determine the direction. A vector with a missing entry is missing (in a
    Table: masked, and zeros). Float32 vectors stay float32, all others become float64.

    Args:
        cols: number columns, or one column of lists or vectors, or generators.
        dims: the vectors' length; None: learned from the training rows. A list of another length is an error.
        normalise: divide each vector by its length.
        name: the output's name; None: ``vector_{col}`` for one column (required for several).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import VectorColumns
        >>> df = pd.DataFrame({"image": [[3.0, 4.0], [0.0, 0.0], None]})
        >>> [x if x is None else x.tolist() for x in VectorColumns("image").fit_transform(df)["vector_image"]]
        [[0.6, 0.8], [0.0, 0.0], None]
    """

    _least: ClassVar = {"dims": 1}

    def __init__(
        self,
        cols: str | Feature | Selector | Sequence[str | Feature | Selector],
        *,
        dims: int | None = None,
        normalise: bool = True,
        name: str | None = None,
    ) -> None:
        chosen = any(isinstance(c, Selector) for c in as_list(cols))  # their number is known only after fit
        count = 0 if chosen else len(self.columns)
        if not chosen and not count:
            raise DataError("VectorColumns of no column", remedy="Name one or more")
        if name is None and count != 1:
            raise DataError("VectorColumns of several columns has no name", remedy="Give it one: name='image'")
        if dims is not None and count > 1 and count != dims:
            raise DataError(f"VectorColumns: {count} columns are no vector of {dims}", remedy="Leave dims out")

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"vector_{self.columns[0]}"]

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        return {"dims": torch.tensor([self._width(table)])}

    def merge(self, a: State, b: State) -> State:
        x, y = int(a["dims"]), int(b["dims"])
        if x and y and x != y:
            raise _of_two_lengths(self, x, y, self.columns[0])
        return a if x else b

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        return state

    def _width(self, table: Table) -> int:
        if self.dims is not None or len(self.columns) > 1:
            return self.dims or len(self.columns)
        column = table[self.columns[0]]
        if self._is_number(column):
            return 1
        return (column if column.kind == "vector" else list_of(table, self.columns[0], wanted_by=self)).vector_width()

    @staticmethod
    def _is_number(column: Column) -> bool:
        if column.kind not in ("number", "category") or bool(column.is_missing().all()):
            return False
        try:
            column.number()
        except DataError:  # text
            return False
        return True

    def prepare(self, state: State, table: Table) -> Tensors:
        width = int(state["dims"]) or self._width(table) or 1
        names = self.columns
        if len(names) > 1:
            return {"vector": torch.stack([number_of(table, n, wanted_by=self) for n in names], 1)}
        column = table[names[0]]
        if self._is_number(column):
            numbers = number_of(table, names[0], wanted_by=self)
            return {"vector": Column("vector", numbers.unsqueeze(1), names[0], numbers.isnan()).vectors(width)}
        column = column if column.kind in ("list", "vector") else list_of(table, names[0], wanted_by=self)
        return {"vector": column.vectors(width)}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        values = tensors["vector"]
        return {self.outputs[0]: unit(values) if self.normalise else values}

    def wrap(self, tensors: Tensors) -> dict[str, Column]:
        result = {}
        for name, values in tensors.items():
            missing = values.isnan().any(1)
            values = values.masked_fill(missing.unsqueeze(1), 0) if bool(missing.any()) else values
            result[name] = masked(name, values, missing, "vector")
        return result


def _of_two_lengths(generator: Feature, x: int, y: int, column: str) -> DataError:
    problem = f"{type(generator).__name__}: vectors have {x} numbers in one part of the rows and {y} in another"
    return DataError(problem, column=column, remedy="Give all rows vectors of one length")


def unit(values: torch.Tensor) -> torch.Tensor:
    """Divide vectors ``[n, d]`` by their lengths; zero vectors stay zero."""
    length = torch.linalg.vector_norm(values, dim=1, dtype=torch.float64)
    # Lengths in this range have finite, non-zero squares in float32 too; other vectors are scaled first.
    plain = (length > float64(1e-30)) & (length < float64(1e30))
    result = values / torch.where(plain, length, 1).to(values.dtype).unsqueeze(1)
    odd = (~plain).nonzero().squeeze(1)
    if values.numel():  # not len(odd), which tracing would fix to its example's value
        # Zeros, vectors whose squares over- or underflow, and missing ones.
        some = values[odd]
        largest = some.abs().amax(1, keepdim=True)
        endless = torch.where(some.isinf(), some.sign(), 0)
        scaled = torch.where(largest.isinf(), endless, some / torch.where(largest > 0, largest, 1))
        length = torch.linalg.vector_norm(scaled, dim=1, keepdim=True, dtype=torch.float64)
        result[odd] = (scaled / torch.where(length > 0, length, 1)).to(values.dtype)
    return result


def distinct_texts(table: Table, name: str, needs: str, remedy: str) -> tuple[pa.Array, torch.Tensor]:
    """Return a column's distinct texts, and each row's number among them from 1 (0: missing); refuse other types."""
    column = table[name]
    if column.kind == "category" and is_text(column.distinct.type):
        return column.distinct, column.values.long()
    known = (~column.is_missing()).nonzero()
    if len(known):
        raise DataError(needs, column=name, row=int(known[0]), remedy=remedy)
    return pa.array([], pa.large_string()), torch.zeros(len(column), dtype=torch.int64, device=table.device)


class Pca(Fitted):
    """First principal components, of the training rows, of a column of vectors or lists, as ``dims`` float64 columns.

    The result does not depend on the partitions. Each component's largest entry is positive; components beyond the rank
    are 0. Missing vectors give missing components and are not used in fitting.

    Args:
        col: a column of vectors, or of lists of numbers of one length, or a generator: ``TextEmbed(…)``.
        dims: the number of columns.
        whiten: divide each component by its standard deviation.

    Source: Pearson 1901; the covariances merged as in Chan, Golub, LeVeque 1979, "Updating formulae".

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Pca
        >>> df = pd.DataFrame({"v": [[1.0, 0.0], [3.0, 0.0], [2.0, 0.0], None]})
        >>> Pca("v", 1).fit_transform(df)["pca0_v"].tolist()
        [-1.0, 1.0, 0.0, nan]
    """

    _least: ClassVar = {"dims": 1}

    def __init__(self, col: Col, dims: int = 16, *, whiten: bool = False) -> None: ...

    @property
    def outputs(self) -> list[str]:
        return [f"pca{i}_{name_of(self.col)}" for i in range(self.dims)]

    def _vectors(self, table: Table, width: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the vectors float64 ``[n, d]`` (0 where missing), and which rows are known."""
        reader = VectorColumns(name_of(self.col), normalise=False)
        with naming(self):
            width = reader._width(table) if width is None else width
            values = reader.prepare({"dims": torch.tensor([width])}, table)["vector"].double()
        known = values.isfinite().all(1)
        return torch.where(known[:, None], values, 0.0), known

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        values, known = self._vectors(table)
        values = values if bool(known.any()) else values[:, :0]  # the width is not known yet
        count = 1 if cells is None else cells.count
        whole = cells is None
        codes = values.new_zeros(len(values), dtype=torch.int64) if whole else cells.codes.to(values.device)
        found = [_moments(values[known & (codes == k)]) for k in range(count)]
        return {n: torch.stack([f[n] for f in found]) for n in ("count", "mean", "scatter")}

    def merge(self, a: State, b: State) -> State:
        a, b = (a, b) if a["mean"].shape[1] >= b["mean"].shape[1] else (b, a)
        if b["mean"].shape[1] < a["mean"].shape[1]:
            if float(b["count"].sum()):
                raise _of_two_lengths(self, b["mean"].shape[1], a["mean"].shape[1], name_of(self.col))
            b = {n: v.new_zeros(len(v), *a[n].shape[1:]) for n, v in b.items()}
        cells = max(len(a["count"]), len(b["count"]))
        a, b = ({n: torch.cat([v, v.new_zeros(cells - len(v), *v.shape[1:])]) for n, v in s.items()} for s in (a, b))
        return _merged(a, b)

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """Return the mean ``[d]`` and components ``[d, dims]``, float64."""
        # Cells are merged one by one, because differences of sums would cancel.
        total = {n: v[:1] * 0 for n, v in state.items()}
        for k in range(len(state["count"])):
            if keep is None or bool(keep[k]):
                total = _merged(total, {n: v[k : k + 1] for n, v in state.items()})
        count, mean, scatter = (total[n][0] for n in ("count", "mean", "scatter"))
        components = torch.zeros(len(mean), self.dims, dtype=torch.float64, device=mean.device)
        if len(mean) and float(count):
            sizes, vectors = torch.linalg.eigh(scatter / count)
            sizes, vectors = sizes.flip(0)[: self.dims], vectors.flip(1)[:, : self.dims]
            # Variances below a share of the largest are rounding errors.
            kept = sizes > 1e-12 * sizes[0].clamp(min=torch.finfo(torch.float64).tiny)
            vectors = torch.where(kept, signed(vectors), 0.0)
            scale = torch.where(kept, sizes, 1.0).sqrt() if self.whiten else 1.0
            components[:, : len(sizes)] = vectors / scale
        return {"mean": mean, "components": components}

    def prepare(self, state: State, table: Table) -> Tensors:
        width = state["mean"].shape[1]
        if not width:  # fitted without any vector
            none = torch.zeros(len(table), 0, dtype=torch.float64, device=table.device)
            return {"vector": none, "known": torch.zeros(len(table), dtype=torch.bool, device=table.device)}
        values, known = self._vectors(table, width)
        return {"vector": values, "known": known}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        values = tensors["vector"]
        made = (values - fit["mean"].to(values.device)) @ fit["components"].to(values.device)
        made = torch.where(tensors["known"].unsqueeze(1), made, torch.nan)
        return {n: made[:, i] for i, n in enumerate(self.outputs)}


def _moments(values: torch.Tensor) -> State:
    """Return count, mean and scatter (sum of centred outer products) of vectors ``[n, d]``."""
    count = torch.tensor(float(len(values)), dtype=torch.float64, device=values.device)
    mean = values.sum(0) / max(len(values), 1)
    centred = values - mean
    return {"count": count, "mean": mean, "scatter": centred.T @ centred}


def _merged(a: State, b: State) -> State:
    count = a["count"] + b["count"]
    share = b["count"] / count.clamp(min=1)
    delta = b["mean"] - a["mean"]
    outer = delta[:, :, None] * delta[:, None, :] * (a["count"] * share)[:, None, None]
    return {"count": count, "mean": a["mean"] + delta * share[:, None], "scatter": a["scatter"] + b["scatter"] + outer}


def signed(vectors: torch.Tensor) -> torch.Tensor:
    """Flip columns so that their largest entry is positive; of entries equal up to rounding, the first."""
    large = vectors.abs()
    first = (large >= large.amax(0) * (1 - 1e-6)).int().argmax(0)
    return vectors * torch.where(vectors[first, torch.arange(vectors.shape[1])] < 0, -1.0, 1.0)


class SvdEncode(Fitted):
    """Encoding of keys by the first components of their co-occurrence matrix with other keys.

    The matrix of row keys × column keys holds counts (or sums of weights) over the training rows. From its truncated
    singular value decomposition ``U S Vᵀ`` each row key gets its row of ``U S`` as ``dims`` float64 columns, as in
    scikit-learn's ``TruncatedSVD``. Each component's largest entry is positive. Components beyond the rank, and missing
    or unseen keys, are 0.

    Args:
        rows: the column of keys to encode, or a generator: ``'item'``.
        cols: the keys that they occur with, plain or lists: ``'user'``, ``Tokens('title', 'words')``.
        dims: the number of columns.
        weight: a number column, 0 or above, to sum instead of counting; missing weights count as 0.
        log: take ``log(1 + value)`` of the matrix first, so that a few frequent pairs do not dominate.
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive); ``transform`` then needs
            ``cols`` and ``weight`` as well.
        seed: the seed of the decomposition's random start.

    Source: Deerwester et al. 1990, "Indexing by latent semantic analysis"; Halko, Martinsson, Tropp 2011, "Finding
    structure with randomness", algorithm 5.1.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import SvdEncode
        >>> df = pd.DataFrame({"item": ["a", "a", "b"], "user": [1, 1, 2]})
        >>> SvdEncode("item", "user", dims=2).fit_transform(df)[["svd0_item__user", "svd1_item__user"]].values.tolist()
        [[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]]
    """

    _reads = ("rows", "cols", "weight")
    by_row, _saved = False, ("vectors",)
    _least: ClassVar = {"dims": 1}

    def __init__(
        self,
        rows: Col,
        cols: Col,
        *,
        dims: int = 8,
        weight: Col | None = None,
        log: bool = False,
        scope: Scope = "train",
        seed: int = 0,
    ) -> None: ...

    @property
    def fit_only(self) -> list[str]:
        if self.scope == "all":
            return []
        return [n for source in self.sources[1:] for n in names_of(source) if n != name_of(self.rows)]

    @property
    def outputs(self) -> list[str]:
        return [f"svd{i}_{name_of(self.rows)}__{name_of(self.cols)}" for i in range(self.dims)]

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        rows, row = sort_keys(table[name_of(self.rows)].coded())
        column, at = table[name_of(self.cols)], None
        if column.kind in ("list", "vector"):
            lists = list_of(table, name_of(self.cols), wanted_by=self)
            cols, col = sort_keys(coded_elements(lists, wanted_by=self))
            at = rows_of(lists.values)
            row = row[at]
        else:
            cols, col = sort_keys(column.coded())
        known = (row > 0) & (col > 0)
        weight = None
        if self.weight is not None:  # a missing weight is not above 0: its pair is dropped
            weight = row_weights(table, name_of(self.weight), wanted_by=self)
            weight = weight if at is None else weight[at]
            known &= weight > 0
        kept = known.nonzero().squeeze(1)
        pairs = (row[kept] - 1) * len(cols) + col[kept] - 1
        pairs, codes = torch.unique(pairs, return_inverse=True)
        of_pair = None if cells is None else Cells((cells.codes if at is None else cells.codes[at])[kept], cells.count)
        values = torch.ones_like(codes) if weight is None else weight[kept]
        return {"rows": rows, "cols": cols, "pairs": pairs, "sum": sum_by_cell(values, codes, of_pair, len(pairs))}

    def merge(self, a: State, b: State) -> State:
        (rows, row_a, row_b), (cols, col_a, col_b) = (union_keys(a[n], b[n]) for n in ("rows", "cols"))
        both, device = [], a["pairs"].device  # loaded states are on the host
        for state, row, col in ((a, row_a, col_a), (b, row_b, col_b)):
            own, width = state["pairs"].to(device), max(len(state["cols"]), 1)
            row, col = row.to(device), col.to(device)
            both.append(row[own // width] * len(cols) + col[own % width])
        pairs, places = torch.unique(torch.cat(both), return_inverse=True)
        total = add_spread(a["sum"], b["sum"], pairs, *places.split([len(both[0]), len(both[1])]))
        return {"rows": rows, "cols": cols, "pairs": pairs, "sum": total}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """Return the vectors: float64 ``[1 + row keys, dims]``; the first is for an unknown key."""
        values = (state["sum"] if keep is None else state["sum"][keep.to(state["sum"].device)]).sum(0).double()
        vectors = torch.zeros(len(state["rows"]) + 1, self.dims, dtype=torch.float64, device=values.device)
        width = max(len(state["cols"]), 1)
        used = (values > 0).nonzero().squeeze(1)
        if not len(used):
            return {"vectors": vectors}
        # Keys without a pair here (those of other folds) would only enlarge the matrix.
        rows, row = torch.unique(state["pairs"][used] // width, return_inverse=True)
        cols, col = torch.unique(state["pairs"][used] % width, return_inverse=True)
        values = torch.log1p(values[used]) if self.log else values[used]
        made = _components(values, row, col, (len(rows), len(cols)), self.dims, self.seed)
        vectors[rows + 1, : made.shape[1]] = torch.from_numpy(made).to(vectors.device)
        return {"vectors": vectors}

    def prepare(self, state: State, table: Table) -> Tensors:
        return {"key": table[name_of(self.rows)].coded().recode(state["rows"])}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        table = fit["vectors"].to(tensors["key"].device)
        return {name: table[:, i].contiguous()[tensors["key"]] for i, name in enumerate(self.outputs)}


def _components(
    values: torch.Tensor, row: torch.Tensor, col: torch.Tensor, shape: tuple[int, int], dims: int, seed: int
) -> np.ndarray:
    """Return ``U S`` of a sparse matrix, float64 ``[rows, k]`` with ``k ≤ dims``; negligible components are 0."""
    from scipy.sparse import csr_matrix
    from sklearn.decomposition import TruncatedSVD

    dims = min(dims, *shape)
    shape = (shape[0], max(shape[1], 2))  # scikit-learn needs two columns; a zero column changes nothing
    matrix = csr_matrix((values.cpu().numpy(), (row.cpu().numpy(), col.cpu().numpy())), shape)
    svd = TruncatedSVD(n_components=dims, n_iter=7, random_state=seed)
    with np.errstate(invalid="ignore", divide="ignore"):  # of the explained variance of a constant matrix
        made = np.asarray(svd.fit_transform(matrix), dtype=np.float64)
    size = np.sqrt((made**2).sum(0))
    made[:, size <= 1e-7 * size.max()] = 0  # smaller singular values are rounding errors
    return signed(torch.from_numpy(made)).numpy() + 0.0  # no -0.0
