"""Piecewise-linear embeddings of numbers (arXiv 2203.05556), and the bins that they stand on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.models.training_rows import training_rows

By = Literal["quantile", "tree"]


class PiecewiseLinear(nn.Module):
    """Each number as a vector that changes linearly within each of its column's bins.

    A number is first encoded by how far it has come through each bin: 1 for those that it has passed, a share for the
    one that it is in, 0 for those beyond; the first bin goes on below, the last above, without end (section 3.2.1 of
    arXiv 2203.05556). A linear layer for each column makes the vector of it; with ``straight`` the number itself is
    added through a linear layer of its own, and the encoding's layer starts at zero (arXiv 2410.24210, appendix).

    Args:
        bins: for each column its edges, increasing, float ``[bins + 1]``, as ``bins_of`` gives them.
        d_embedding: width of each column's vector.
        activation: end with a ReLU.
        straight: add a linear function of the number, and start from it.

    Raises:
        DataError: a column's edges are fewer than two, not finite or do not increase; or the width is below 1.
    """

    def __init__(
        self, bins: Sequence[Tensor], d_embedding: int = 16, *, activation: bool = False, straight: bool = True
    ) -> None:
        super().__init__()
        bins = [torch.as_tensor(b, dtype=torch.float32) for b in bins]
        _check_bins(bins, d_embedding)
        self.n_columns, self.d_embedding, self.activation = len(bins), d_embedding, activation
        steps = max(len(b) - 1 for b in bins)
        for name, fill in (("left", 0.0), ("scale", 0.0), ("low", 0.0), ("high", 1.0)):
            self.register_buffer(name, torch.full((len(bins), steps), fill))
        for i, edges in enumerate(bins):
            n = len(edges) - 1
            self.left[i, :n], self.scale[i, :n] = edges[:-1], 1 / (edges[1:] - edges[:-1])
            self.low[i, 0], self.high[i, n - 1] = -torch.inf, torch.inf
        self.weight = nn.Parameter(torch.zeros(len(bins), steps, d_embedding))
        self.bias = nn.Parameter(torch.zeros(len(bins), d_embedding))
        self.slope = nn.Parameter(torch.zeros(len(bins), d_embedding)) if straight else None
        self.reset_parameters()

    @property
    def embedding_dim(self) -> int:
        """Width of what ``forward`` returns."""
        return self.n_columns * self.d_embedding

    def reset_parameters(self) -> None:
        """Draw the weights uniformly: the straight part's, or without one each column's layer's."""
        with torch.no_grad():
            self.weight.zero_()
            if self.slope is not None:
                limit = self.d_embedding**-0.5
                self.slope.uniform_(-limit, limit)
                self.bias.uniform_(-limit, limit)
                return
            for i, n in enumerate((self.scale > 0).sum(1).tolist()):
                self.weight[i, :n].uniform_(-(n**-0.5), n**-0.5)
                self.bias[i].uniform_(-(n**-0.5), n**-0.5)

    def encode(self, x: Tensor) -> Tensor:
        """Encode how far each number has come through each bin.

        Args:
            x: numbers ``[b, columns]``, float.

        Returns:
            ``[b, columns, bins]``, columns with fewer bins filled up with zeros.
        """
        # from the bin's edge first: a product with large numbers would leave no digits for the difference
        return torch.clamp((x[..., None] - self.left) * self.scale, self.low, self.high)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors of a batch.

        Args:
            x: numbers ``[b, columns]``, float.

        Returns:
            ``[b, columns · d_embedding]``: the columns' vectors side by side.
        """
        out = torch.bmm(self.encode(x).transpose(0, 1), self.weight).transpose(0, 1) + self.bias
        if self.slope is not None:
            out = torch.addcmul(out, x[..., None], self.slope)
        return (out.relu() if self.activation else out).flatten(1)

    def extra_repr(self) -> str:
        """Show columns, bins and width."""
        return f"{self.n_columns} columns, up to {self.left.shape[1]} bins, {self.d_embedding} wide"


def bins_of(
    data: Any,
    n_bins: int = 48,
    *,
    by: By = "quantile",
    y: Tensor | None = None,
    names: Sequence[str] | None = None,
    max_rows: int | None = limits.BIN_ROWS,
    min_leaf: int = 64,
) -> list[Tensor]:
    """Compute bin edges of every continuous column from training rows.

    Args:
        data: dataloaders, whose training rows are taken, or numbers ``[n, columns]``.
        n_bins: bins of a column at most; a column with few different values gets fewer.
        by: edges at equal shares of the rows (``'quantile'``), or where a decision tree on this column alone splits
            to tell the target (``'tree'``).
        y: the target of each row ``[n]`` for ``'tree'`` (whole numbers are classes); dataloaders bring their own.
        names: the columns' names, for messages; dataloaders bring their own.
        max_rows: rows to take, drawn at random; None: all.
        min_leaf: for ``'tree'``: rows that each bin holds at least.

    Returns:
        For each column increasing edges, float32 ``[bins + 1]``; a column of one value gets one bin around it.

    Raises:
        DataError: a column holds no finite number; settings out of range; a tree without a target of one column.
    """
    if n_bins < 1 or min_leaf < 1 or by not in ("quantile", "tree"):
        raise DataError(
            f"n_bins={n_bins}, min_leaf={min_leaf}, by={by!r}", remedy="Numbers from 1; 'quantile' or 'tree'"
        )
    if hasattr(data, "train_ds"):
        names = list(data.train_ds.cont_names) if names is None else names
        _, x, own = training_rows(data, max_rows)
        y = own if y is None else y
    else:
        x = torch.as_tensor(data)
        if max_rows is not None and len(x) > max_rows:
            rows = torch.from_numpy(np.sort(np.random.default_rng(0).choice(len(x), max_rows, replace=False)))
            x, y = x[rows], None if y is None else y[rows]
    values = x.detach().cpu().numpy()
    target = _one_target(y, len(values)) if by == "tree" else None
    names = [str(i) for i in range(values.shape[1])] if names is None else list(names)
    return [
        _edges(values[:, i], n_bins, target=target, min_leaf=min_leaf, name=names[i]) for i in range(values.shape[1])
    ]


def _check_bins(bins: Sequence[Tensor], d_embedding: int) -> None:
    if not len(bins) or d_embedding < 1:
        raise DataError(
            f"vectors of width {d_embedding} for {len(bins)} columns", remedy="Give one column and width 1, or more"
        )
    for i, edges in enumerate(bins):
        if edges.ndim != 1 or len(edges) < 2 or not edges.isfinite().all() or (edges[1:] <= edges[:-1]).any():
            raise DataError(
                f"the bin edges of continuous column {i} are {edges.tolist()}",
                remedy="Give two edges or more, finite and increasing, as bins_of does",
            )


def _one_target(y: Tensor | None, n: int) -> np.ndarray:
    y = None if y is None else torch.as_tensor(y)
    if y is None or y.numel() != n:
        shape = None if y is None else list(y.shape)
        raise DataError(f"bins by a tree need one target for each of {n} rows, not {shape}", remedy="Give y [n]")
    return y.detach().cpu().reshape(-1).numpy()


def _edges(x: np.ndarray, n_bins: int, *, target: np.ndarray | None, min_leaf: int, name: str) -> Tensor:
    known = np.isfinite(x)
    if not known.any():
        raise DataError("no finite number to make bins of", column=name, remedy="Leave the column out")
    x, target = (x, target) if known.all() else (x[known], None if target is None else target[known])
    inner = _quantiles(x, n_bins) if target is None else _tree_splits(x, target, n_bins, min_leaf)
    edges = np.unique(np.concatenate([[x.min()], inner, [x.max()]]).astype(np.float32))
    if len(edges) == 1:  # wide enough to differ from the value in float32
        reach = max(0.5, float(np.spacing(np.abs(edges[0]))))
        edges = np.array([edges[0] - reach, edges[0] + reach], dtype=np.float32)
    return torch.from_numpy(edges)


def _quantiles(x: np.ndarray, n_bins: int) -> np.ndarray:
    return np.quantile(x, np.linspace(0, 1, n_bins + 1)[1:-1])


def _tree_splits(x: np.ndarray, target: np.ndarray, n_bins: int, min_leaf: int) -> np.ndarray:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    kind = DecisionTreeRegressor if np.issubdtype(target.dtype, np.floating) else DecisionTreeClassifier
    tree = kind(max_leaf_nodes=max(n_bins, 2), min_samples_leaf=min_leaf, random_state=0)
    splits = tree.fit(x[:, None], target).tree_
    return splits.threshold[splits.children_left >= 0] if n_bins > 1 else np.empty(0)
