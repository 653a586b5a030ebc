"""``SvdEncode``: keys as vectors, from what they occur with."""

from __future__ import annotations

import numpy as np
import torch

from fastrec.errors import DataError
from fastrec.features._engine.keyed import sort_keys, spread, sum_by_cell, union_keys
from fastrec.features._engine.lists import FittedOnLists, coded_elements, list_of
from fastrec.features._engine.options import check_scope
from fastrec.features._inputs import name_of, names_of, number_of
from fastrec.features.base import Cells, Col, Scope, State, Tensors
from fastrec.features.pca import signed
from fastrec.table import Table
from fastrec.table.offsets import rows_of


class SvdEncode(FittedOnLists):
    """Each key as a vector: the first components of the matrix of its counts with other keys.

    The matrix of row keys × column keys holds counts (or sums of weights) over the training rows. Its truncated
    singular value decomposition ``U S Vᵀ`` gives each row key its row of ``U S`` as ``dims`` float64 columns:
    scikit-learn's ``TruncatedSVD``. Each component's largest entry is positive; components past the rank, and keys
    missing or not seen, are 0.

    Args:
        rows: the column whose keys become vectors, or a generator of one: ``'item'``.
        cols: the column of the keys that they occur with, plain or lists: ``'user'``, ``Tokens('title', 'words')``.
        dims: the number of columns.
        weight: a number column, 0 or above, to sum instead of counting; a missing weight counts as 0.
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
    ) -> None:
        super().__init__()
        self.rows, self.cols, self.dims, self.weight = rows, cols, dims, weight
        self.log, self.scope, self.seed = log, scope, seed
        if dims < 1:
            raise DataError(f"SvdEncode: dims is {dims}", remedy="Make at least 1 column")
        check_scope(self)

    @property
    def sources(self) -> list[Col]:
        return [self.rows, self.cols, *([] if self.weight is None else [self.weight])]

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
        weight = self._weights(table)
        if weight is not None:
            weight = weight if at is None else weight[at]
            known &= weight > 0
        kept = known.nonzero().squeeze(1)
        pairs = (row[kept] - 1) * len(cols) + col[kept] - 1
        pairs, codes = torch.unique(pairs, return_inverse=True)
        of_pair = None if cells is None else Cells((cells.codes if at is None else cells.codes[at])[kept], cells.count)
        values = torch.ones_like(codes) if weight is None else weight[kept]
        return {"rows": rows, "cols": cols, "pairs": pairs, "sum": sum_by_cell(values, codes, of_pair, len(pairs))}

    def _weights(self, table: Table) -> torch.Tensor | None:
        if self.weight is None:
            return None
        values = number_of(table, name_of(self.weight), wanted_by=self)
        bad = (values < 0) | values.isinf()
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise DataError(
                f"SvdEncode: a weight is {float(values[row])}",
                column=name_of(self.weight),
                row=row,
                remedy="Weights must be finite and 0 or above",
            )
        return values  # a missing one is not above 0: its pair is left out

    def merge(self, a: State, b: State) -> State:
        (rows, row_a, row_b), (cols, col_a, col_b) = (union_keys(a[n], b[n]) for n in ("rows", "cols"))
        both = []
        for state, row, col in ((a, row_a, col_a), (b, row_b, col_b)):
            own, width = state["pairs"], max(len(state["cols"]), 1)
            row, col = row.to(own.device), col.to(own.device)
            both.append(row[own // width] * len(cols) + col[own % width])
        pairs, places = torch.unique(torch.cat(both), return_inverse=True)
        left, right = places.split([len(both[0]), len(both[1])])
        cells = max(len(a["sum"]), len(b["sum"]))
        total = spread(a["sum"], left, len(pairs), cells) + spread(b["sum"], right, len(pairs), cells)
        return {"rows": rows, "cols": cols, "pairs": pairs, "sum": total}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """Return the vectors: float64 ``[1 + row keys, dims]``; the first is for an unknown key."""
        total = state["sum"] if keep is None else state["sum"][keep.to(state["sum"].device)]
        values = total.sum(0).double()
        vectors = torch.zeros(len(state["rows"]) + 1, self.dims, dtype=torch.float64, device=values.device)
        width = max(len(state["cols"]), 1)
        used = (values > 0).nonzero().squeeze(1)
        if not len(used):
            return {"vectors": vectors}
        # Keys that occur in no pair here (those of other folds) would only make the matrix larger.
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

    def get_state(self) -> State:
        # The vectors are kept too: another machine's decomposition may differ in rounding, or turn equal components.
        state, fit = self._learned()
        return {**state, "vectors": fit["vectors"]}

    def set_state(self, state: State) -> None:
        self.state_ = {n: v for n, v in state.items() if n != "vectors"}
        self.fit_ = {"vectors": state["vectors"]}


def _components(
    values: torch.Tensor, row: torch.Tensor, col: torch.Tensor, shape: tuple[int, int], dims: int, seed: int
) -> np.ndarray:
    """Return ``U S`` of a sparse matrix, float64 ``[rows, k]`` with ``k ≤ dims``; components of rounding are 0."""
    from scipy.sparse import csr_matrix
    from sklearn.decomposition import TruncatedSVD

    dims = min(dims, *shape)
    shape = (shape[0], max(shape[1], 2))  # scikit-learn wants two columns; one of zeros changes nothing
    matrix = csr_matrix((values.cpu().numpy(), (row.cpu().numpy(), col.cpu().numpy())), shape)
    svd = TruncatedSVD(n_components=dims, n_iter=7, random_state=seed)
    with np.errstate(invalid="ignore", divide="ignore"):  # of the explained variance, where a matrix has none
        made = np.asarray(svd.fit_transform(matrix), dtype=np.float64)
    size = np.sqrt((made**2).sum(0))
    made[:, size <= 1e-7 * size.max()] = 0  # singular values this small are rounding
    return signed(torch.from_numpy(made)).numpy() + 0.0  # no -0.0
