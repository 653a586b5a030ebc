"""Scores to ordered lists: one list per group, best first, always the same for the same input."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fastrec.errors import DataError
from fastrec.metrics.lists import cut, flat_tensor
from fastrec.table.key_types import is_text

__all__ = ["RankedLists", "rank_lists", "ranked_strings"]


class RankedLists(NamedTuple):
    """Rows in ranked order: list ``i`` is ``order[offsets[i]:offsets[i + 1]]``.

    ``order`` ``[m]`` int64 are row numbers, ``offsets`` ``[g + 1]`` int64; lists stand in the order in which their
    groups first appear.
    """

    order: Tensor
    offsets: Tensor


def rank_lists(scores: Any, groups: Any, *, k: int | None = None) -> RankedLists:
    """Order every group's rows by score, highest first.

    Equal scores keep the order of the rows (the order of display, where rows are in it); missing scores come last.

    Args:
        scores: ``[n]`` numbers; tensor, array or Series.
        groups: ``[n]`` integers or strings, in any order.
        k: keep the first k of each list; None for all.

    Returns:
        Row numbers in ranked order and where each list starts, on the device of the scores.

    Raises:
        DataError: lengths differ, or a group is missing.
    """
    s = flat_tensor(scores, "scores")
    s = (s.cpu() if s.device.type == "mps" else s).double()
    codes = _codes_by_appearance(groups).to(s.device)
    if len(codes) != len(s):
        raise DataError(f"groups has {len(codes)} rows, scores has {len(s)}", remedy="Give one group per scored row")
    best_first = torch.sort(-s, stable=True).indices  # ascending, so that NaN is last
    order = best_first[torch.sort(codes[best_first], stable=True).indices]
    sizes = torch.bincount(codes)
    if k is not None:
        place = torch.arange(len(s), device=s.device) - (sizes.cumsum(0) - sizes)[codes[order]]
        order = order[place < cut(k)]
        sizes = sizes.clamp(max=cut(k))
    return RankedLists(order, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


def ranked_strings(items: Any, scores: Any, groups: Any, *, sep: str = " ", k: int | None = 25) -> pa.Array:
    """Join the items of each group to one string, the best first.

    Args:
        items: ``[n]`` integers or strings; tensor, array, Series or Arrow array.
        scores: ``[n]`` numbers.
        groups: ``[n]`` integers or strings.
        sep: what stands between two items.
        k: keep the first k of each list; None for all.

    Returns:
        ``[g]`` Arrow strings, in the order in which the groups first appear.

    Raises:
        DataError: lengths differ, an item or a group is missing, an item holds ``sep``, or items are floats.
    """
    text = _item_strings(items, sep)
    order, offsets = rank_lists(scores, groups, k=k)
    if len(text) != len(scores):
        raise DataError(f"items has {len(text)} rows, scores has {len(scores)}", remedy="Give one item per scored row")
    chosen = text.take(pa.array(order.cpu().numpy()))
    lists = pa.LargeListArray.from_arrays(pa.array(offsets.cpu().numpy()), chosen)
    return pc.binary_join(lists, pa.scalar(sep, pa.large_string()))


def arrow_column(values: Any, name: str) -> pa.Array:
    """Convert an Arrow, pandas, polars or numpy column, a tensor or a list to one plain Arrow array.

    Args:
        values: ``[n]`` values; missing ones (None, NaN, NA) become null, categories their values.
        name: what to call it in an error.

    Returns:
        An Arrow array ``[n]``.

    Raises:
        DataError: the values are of mixed or unknown types.
    """
    try:
        if isinstance(values, Tensor):
            values = values.detach().as_subclass(Tensor).cpu().numpy()
        elif not isinstance(values, pa.Array | pa.ChunkedArray) and hasattr(values, "to_arrow"):
            values = values.to_arrow()
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            values = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            f"the values cannot be read as one column ({error})", column=name, remedy="Give values of one type"
        ) from error
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _codes_by_appearance(groups: Any) -> Tensor:
    if isinstance(groups, Tensor) and groups.device.type != "cpu":
        ids, codes = torch.unique(flat_tensor(groups, "groups"), return_inverse=True)
        row = torch.arange(len(codes), device=codes.device)
        first = torch.full((len(ids),), len(codes), device=codes.device).scatter_reduce(0, codes, row, "amin")
        number = torch.empty_like(first)
        number[torch.argsort(first)] = torch.arange(len(ids), device=codes.device)
        return number[codes]
    column = arrow_column(groups, "groups")
    if column.null_count:
        row = int(np.flatnonzero(column.is_null())[0])
        raise DataError("a group is missing", column="groups", row=row, remedy="Give every row the list it is in")
    codes = column.dictionary_encode().indices  # Arrow numbers values as it meets them
    return torch.from_numpy(codes.to_numpy().astype(np.int64))


def _item_strings(items: Any, sep: str) -> pa.Array:
    column = arrow_column(items, "items")
    if not (pa.types.is_integer(column.type) or is_text(column.type)):
        raise DataError(
            f"items are {column.type}, which has no exact text", column="items", remedy="Give integers or strings"
        )
    if column.null_count:
        row = int(np.flatnonzero(column.is_null())[0])
        raise DataError("an item is missing", column="items", row=row, remedy="Drop rows without an item")
    text = column.cast(pa.large_string())
    holds = pc.match_substring(text, sep) if is_text(column.type) else None
    if holds is not None and pc.any(holds).as_py():
        row = int(np.flatnonzero(holds)[0])
        raise DataError(f"an item holds the separator {sep!r}", column="items", row=row, remedy="Choose another sep")
    return text
