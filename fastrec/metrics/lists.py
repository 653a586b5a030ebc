"""What the grouped metrics share: checked float64 inputs, groups as dense codes, and orders within groups."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fastrec.errors import DataError

Ties = Literal["worst", "ordinal", "best"]
Empty = Literal["zero", "skip"]


class ScoredLists:
    """Scores and labels as float64 with groups as dense codes, and the reductions that the metrics share."""

    def __init__(
        self, scores: Tensor, labels: Tensor, ids: Tensor, codes: Tensor, sample_weight: Tensor | None
    ) -> None:
        self.scores, self.labels, self.ids, self.codes = scores, labels, ids, codes
        self.n_rows = torch.bincount(codes, minlength=len(ids))
        self.sample_weight = sample_weight
        self.relevant = labels > 0
        self.has_relevant = torch.bincount(codes[self.relevant], minlength=len(ids)) > 0

    def sums(self, values: Tensor, codes: Tensor) -> Tensor:
        """Sum the values of each group, for rows whose groups are ``codes``."""
        return torch.zeros(len(self.ids), dtype=values.dtype, device=values.device).index_add_(0, codes, values)

    def position(self, sorted_codes: Tensor) -> Tensor:
        """Return the place of each row in its list, from 0, for rows that are sorted by group."""
        starts = self.n_rows.cumsum(0) - self.n_rows
        return torch.arange(len(sorted_codes), device=sorted_codes.device) - starts[sorted_codes]

    def mean(self, values: Tensor, empty: Empty) -> float:
        """Return the weighted mean of one value per group; groups without a relevant row count 0 or not at all."""
        values = torch.where(self.has_relevant, values, 0.0)
        if self.sample_weight is None:
            weight = torch.ones_like(values)
        else:
            weight = self.sums(self.sample_weight, self.codes) / self.n_rows
        if choice(empty, "empty", ("zero", "skip")) == "skip":
            weight = weight * self.has_relevant
        return float((values * weight).sum() / weight.sum())


def prepare(scores: Any, labels: Any, groups: Any, sample_weight: Any = None) -> ScoredLists:
    """Check the inputs of a metric and put them on one device; no groups means one group of all rows."""
    raw = flat_tensor(scores, "scores")
    # Apple's GPU has no float64.
    device = torch.device("cpu") if raw.device.type == "mps" else raw.device
    s = raw.to(device).double()
    if not len(s):
        raise DataError("there are no rows to score", column="scores", remedy="Give at least one row")
    given = {"labels": labels, "groups": groups, "sample_weight": sample_weight}
    columns = {name: flat_tensor(x, name).to(device) for name, x in given.items() if x is not None}
    for name, x in columns.items():
        if len(x) != len(s):
            raise DataError(
                f"{name} has {len(x)} rows, scores has {len(s)}", column=name, remedy="Give one value per scored row"
            )
    y = columns.get("labels", torch.zeros_like(s)).double()
    refuse_rows(y.isnan(), "labels", "is missing", "Leave out rows without a known label")
    weight = columns.get("sample_weight")
    if weight is not None:
        weight = check_weights(weight, "sample_weight")
    group = columns.get("groups", torch.zeros(len(s), dtype=torch.int64, device=device))
    check_integers(group)
    group = group.long()
    # groups that are in order need no sort
    in_order = bool((group[1:] >= group[:-1]).all())
    ids, codes = (torch.unique_consecutive if in_order else torch.unique)(group, return_inverse=True)
    return ScoredLists(s, y, ids, codes, weight)


def check_weights(weight: Tensor, name: str) -> Tensor:
    """Return weights as float64; refuse those that are no finite numbers >= 0."""
    weight = weight.double()
    refuse_rows(~(weight >= 0) | weight.isinf(), name, "is missing, infinite or below 0", "Weights are >= 0")
    return weight


def check_integers(groups: Tensor) -> None:
    """Refuse groups that are no integers."""
    if groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool:
        raise DataError(
            f"groups are {groups.dtype}, not integers", column="groups", remedy="Give integer codes, one per list"
        )


def order_rows(lists: ScoredLists, ties: Ties) -> Tensor:
    """Sort rows by group, then score from high to low with NaN last, then by the tie rule."""
    order = None
    if ties != "ordinal":
        order = then(None, lists.labels if ties == "worst" else -lists.labels)
    return then(then(order, -lists.scores), lists.codes)  # ascending sorts put NaN last


def then(order: Tensor | None, key: Tensor) -> Tensor:
    """Sort by a key that matters more than those already sorted by; earlier keys decide its ties."""
    if order is None:
        return torch.sort(key, stable=True).indices
    return order[torch.sort(key[order], stable=True).indices]


def runs(codes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the run of equal (group, score) that each sorted row is in, and where each run starts."""
    same = (scores[1:] == scores[:-1]) | (scores[1:].isnan() & scores[:-1].isnan())
    change = torch.cat([codes.new_ones(1, dtype=torch.bool), ~same | (codes[1:] != codes[:-1])])
    return change.long().cumsum(0) - 1, change.nonzero()[:, 0]


def flat_tensor(x: Any, name: str) -> Tensor:
    """Turn a tensor, array, Series, list or an array on a GPU into one flat plain tensor."""
    t = plain_tensor(x, name)
    if t.ndim != 1 and (t.ndim != 2 or t.shape[1] != 1):
        raise DataError(f"{name} has shape {tuple(t.shape)}", column=name, remedy="Give one value per row")
    return t.reshape(-1)


def plain_tensor(x: Any, name: str) -> Tensor:
    """Turn a tensor, array, Series, frame, list or an array on a GPU into a plain tensor of any shape."""
    if isinstance(x, Tensor):
        return x.detach().as_subclass(Tensor)
    if hasattr(x, "__cuda_array_interface__"):
        return torch.as_tensor(x, device="cuda")
    return torch.from_numpy(_plain_array(x, name))


def _plain_array(x: Any, name: str) -> np.ndarray:
    a = np.asarray(x)
    if a.dtype == object:  # nullable columns come as objects, with None or pandas' NA among them
        a = np.array([np.nan if v is None or type(v).__name__ == "NAType" else v for v in a.tolist()])
    if a.dtype.kind not in "biuf":
        raise DataError(f"{a.dtype} values are not numbers", column=name, remedy="Give numbers; code text first")
    if a.dtype == np.uint64 and a.size and a.max() > np.iinfo(np.int64).max:
        raise DataError("a value is above 2^63 - 1", column=name, remedy="Code such ids as smaller integers first")
    a = a.astype({"b": bool, "f": np.float64}.get(a.dtype.kind, np.int64), copy=False)
    # torch warns about arrays that it could not write to, such as pandas'
    return a if a.flags.writeable and a.flags.c_contiguous else a.copy()


def refuse_rows(bad: Tensor, column: str, problem: str, remedy: str) -> None:
    """Raise a DataError that names the first bad row, if there is one."""
    if bool(bad.any()):
        raise DataError(
            f"a value {problem} ({int(bad.sum())} in all)", column=column, row=int(bad.nonzero()[0]), remedy=remedy
        )


def choice(value: Any, name: str, allowed: tuple[str, ...]) -> Any:
    """Return the value, if it is an allowed one."""
    if value not in allowed:
        raise DataError(f"{name}={value!r} is not one of {', '.join(allowed)}", remedy=f"Choose {name} among them")
    return value


def cut(k: int | None) -> int:
    """Return as a number how many places of a list count."""
    if k is None:
        return torch.iinfo(torch.int64).max
    if int(k) != k or k < 1:
        raise DataError(f"k={k!r} is not a whole number above 0", remedy="Use k=None for the whole list")
    return int(k)
