"""``Pca``: a vector column's first principal components, as number columns."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.features._engine.naming import naming
from fastrec.features._inputs import name_of
from fastrec.features.base import Cells, Col, Fitted, State, Tensors
from fastrec.features.vector_columns import VectorColumns
from fastrec.table import Table


class Pca(Fitted):
    """A column of vectors or lists as ``dims`` float64 columns: its first principal components in the training rows.

    The result does not depend on the partitions. Each component's largest entry is positive; components past the rank
    are 0. A missing vector gives missing components and is not learned from.

    Args:
        col: a column of vectors or of lists of numbers of one length, or a generator of one: ``TextEmbed(…)``.
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

    def __init__(self, col: Col, dims: int = 16, *, whiten: bool = False) -> None:
        super().__init__()
        self.col, self.dims, self.whiten = col, dims, whiten
        if dims < 1:
            raise DataError(f"Pca: dims is {dims}", remedy="Make at least 1 column")

    @property
    def outputs(self) -> list[str]:
        return [f"pca{i}_{name_of(self.col)}" for i in range(self.dims)]

    def _vectors(self, table: Table, width: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the vectors float64 ``[n, d]`` (0 where missing), and which rows have one."""
        reader = VectorColumns(name_of(self.col), normalise=False)
        with naming(self):
            width = reader._width(table) if width is None else width
            values = reader.prepare({"dims": torch.tensor([width])}, table)["vector"].double()
        known = values.isfinite().all(1)
        return torch.where(known[:, None], values, 0.0), known

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        values, known = self._vectors(table)
        values = values if bool(known.any()) else values[:, :0]  # their width is not known yet
        count = 1 if cells is None else cells.count
        codes = torch.zeros(len(values), dtype=torch.int64) if cells is None else cells.codes.to(values.device)
        found = [_moments(values[known & (codes == k)]) for k in range(count)]
        return {n: torch.stack([f[n] for f in found]) for n in ("count", "mean", "scatter")}

    def merge(self, a: State, b: State) -> State:
        a, b = (a, b) if a["mean"].shape[1] >= b["mean"].shape[1] else (b, a)
        if b["mean"].shape[1] < a["mean"].shape[1]:
            if float(b["count"].sum()):
                raise DataError(
                    f"Pca: vectors have {b['mean'].shape[1]} numbers in one part of the rows and "
                    f"{a['mean'].shape[1]} in another",
                    column=name_of(self.col),
                    remedy="Give all rows vectors of one length",
                )
            b = {n: v.new_zeros(len(v), *a[n].shape[1:]) for n, v in b.items()}
        cells = max(len(a["count"]), len(b["count"]))
        a, b = ({n: torch.cat([v, v.new_zeros(cells - len(v), *v.shape[1:])]) for n, v in s.items()} for s in (a, b))
        return _merged(a, b)

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """Return the mean ``[d]`` and components ``[d, dims]``, float64."""
        # Cells are merged one by one: differences of sums would cancel.
        chosen = [k for k in range(len(state["count"])) if keep is None or bool(keep[k])]
        total = {n: v[:1] * 0 for n, v in state.items()}
        for k in chosen:
            total = _merged(total, {n: v[k : k + 1] for n, v in state.items()})
        count, mean, scatter = (total[n][0] for n in ("count", "mean", "scatter"))
        components = torch.zeros(len(mean), self.dims, dtype=torch.float64, device=mean.device)
        if len(mean) and float(count):
            sizes, vectors = torch.linalg.eigh(scatter / count)
            sizes, vectors = sizes.flip(0)[: self.dims], vectors.flip(1)[:, : self.dims]
            # Variances below a share of the largest are rounding.
            kept = sizes > 1e-12 * sizes[0].clamp(min=torch.finfo(torch.float64).tiny)
            vectors = torch.where(kept, signed(vectors), 0.0)
            scale = torch.where(kept, sizes, 1.0).sqrt() if self.whiten else 1.0
            components[:, : len(sizes)] = vectors / scale
        return {"mean": mean, "components": components}

    def prepare(self, state: State, table: Table) -> Tensors:
        width = state["mean"].shape[1]
        if not width:  # it was fitted on no vector
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
    """Return count, mean and scatter (the centred sum of outer products) of vectors ``[n, d]``."""
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
    """Turn columns so that their largest entry is positive; of equal ones, but for rounding, the first."""
    large = vectors.abs()
    first = (large >= large.amax(0) * (1 - 1e-6)).int().argmax(0)
    return vectors * torch.where(vectors[first, torch.arange(vectors.shape[1])] < 0, -1.0, 1.0)
