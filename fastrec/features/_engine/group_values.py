"""Statistics by cell and key that need the values: quantiles, first and last. States merge exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastrec.features._engine import keyed
from fastrec.features._engine.order import run_begins, take_or_missing
from fastrec.features.base import Cells, State
from fastrec.segments import Groups, lexical_order
from fastrec.table import Coded, Column, Keys, as_column

Tally = dict[str, torch.Tensor]


def tally_values(values: torch.Tensor, known: torch.Tensor, codes: torch.Tensor, cells: Cells | None) -> Tally:
    """Count each key's known values (code 0: left out): ``cell``, ``key`` from 0, ``value``, ``count``, sorted so."""
    rows = (known & (codes > 0)).nonzero().squeeze(1)
    cell = torch.zeros_like(rows) if cells is None else cells.codes[rows]
    return _tally(cell, codes[rows] - 1, values[rows] + 0.0, torch.ones_like(rows))  # -0.0 becomes 0.0


def _tally(cell: torch.Tensor, key: torch.Tensor, value: torch.Tensor, count: torch.Tensor) -> Tally:
    order = lexical_order([cell, key, value]) if len(key) else None
    parts = [cell, key, value, count] if order is None else [x[order] for x in (cell, key, value, count)]
    cell, key, value, count = parts
    new = run_begins(cell, key, value)
    last = torch.ones_like(new)
    last[:-1] = new[1:]
    ends = torch.cumsum(count, 0)[last]
    count = torch.diff(ends, prepend=ends.new_zeros(1))
    return {"cell": cell[new], "key": key[new], "value": value[new], "count": count}


def merge_tallies(a: Tally, b: Tally, left: torch.Tensor, right: torch.Tensor) -> Tally:
    """Merge two partitions' tallies; ``left``, ``right``: positions of their keys in the union."""
    parts = [{**t, "key": places.to(a["key"].device)[t["key"]]} for t, places in ((a, left), (b, right))]
    return _tally(*(torch.cat([part[n] for part in parts]) for n in ("cell", "key", "value", "count")))


def tally_quantiles(tally: Tally, shares: Sequence[float], size: int, keep: torch.Tensor | None) -> list[torch.Tensor]:
    """Compute quantiles of each key's values, linear between two (Hyndman, Fan 1996, definition 7).

    ``size``: the number of keys. ``keep`` (bool for each fold's cell): count only these cells; None: all. Returns for
    each of ``shares`` (0 to 1) float64 ``[size + 1]``; NaN for a key without values and in entry 0.
    """
    if keep is not None:
        kept = keep.to(tally["cell"].device)[tally["cell"]]
        tally = {n: v[kept] for n, v in tally.items()}
    if len(tally["cell"]) and bool((tally["cell"] != tally["cell"][0]).any()):
        tally = _tally(torch.zeros_like(tally["cell"]), tally["key"], tally["value"], tally["count"])
    total = tally["key"].new_zeros(size).index_add_(0, tally["key"], tally["count"])
    made = _at_shares(tally["value"], total, shares, torch.cumsum(tally["count"], 0))
    return [torch.cat([m.new_full((1,), torch.nan), m]) for m in made]


def quantiles_here(
    values: torch.Tensor, known: torch.Tensor, codes: torch.Tensor, size: int, shares: Sequence[float]
) -> list[torch.Tensor]:
    """Compute ``tally_quantiles`` for rows that need no merge: float64 ``[size]``; entry 0 is undefined."""
    rows = None if bool(known.all()) else known.nonzero().squeeze(1)
    codes, values = (codes, values) if rows is None else (codes[rows], values[rows])
    order = lexical_order([codes, values])
    values = values if order is None else values.index_select(0, order)
    return _at_shares(values, torch.bincount(codes, minlength=size), shares, None)


def _at_shares(
    value: torch.Tensor, total: torch.Tensor, shares: Sequence[float], reached: torch.Tensor | None
) -> list[torch.Tensor]:
    """Compute quantiles of values sorted by key; each key has ``total`` of them."""
    # reached: cumulative counts, if equal values are merged; None: each value occurs once
    start, some = torch.cumsum(total, 0) - total, total > 0
    result = []
    for share in shares:
        place = (total - 1).clamp_min(0).double() * float(share)  # an integer times a float is a float32
        low = torch.floor(place).long()
        if not len(value):
            result.append(torch.full_like(place, torch.nan))
            continue
        at = [start + low, start + torch.minimum(low + 1, (total - 1).clamp_min(0))]
        if reached is not None:
            at = [torch.searchsorted(reached, a, right=True) for a in at]
        (a, b), part = [value[a.clamp_max(len(value) - 1)] for a in at], place - low
        gap = b - a
        between = torch.where(gap.isfinite(), a + gap * part, a * (1 - part) + b * part)
        # For a fraction of 0 take ``a`` alone: 0 times infinity is NaN.
        result.append(torch.where(some, torch.where(part == 0, a, between), torch.nan))
    return result


def count_distinct_here(coded: Coded, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Count distinct values of rows that need no merge: int64 ``[size]``; entry 0 is undefined."""
    rows = (coded.codes > 0).nonzero().squeeze(1)
    return torch.bincount(torch.unique(codes[rows] * coded.size + coded.codes[rows]) // coded.size, minlength=size)


def pick_ends(
    coded: Coded,
    order: Sequence[torch.Tensor],
    codes: torch.Tensor,
    cells: Cells | None,
    size: int,
    ends: Sequence[str],
) -> dict[str, Any]:
    """Find the first or last value in each cell and key (code 0: no key).

    At equal ``order`` the smallest value is first, the largest last. ``values`` are sorted ``Keys``; each end has a
    ``code`` ``[cells, size - 1]``, 0 = none, and an ``order`` of the same shape.
    """
    values, of_row = keyed.sort_keys(coded)
    count = 1 if cells is None else cells.count
    rows = ((codes > 0) & (of_row > 0)).nonzero().squeeze(1)
    place = codes[rows] - 1 if cells is None else cells.codes[rows] * (size - 1) + codes[rows] - 1
    groups = Groups.of(place, *(o[rows] for o in order), of_row[rows])
    rows, place = groups.sort(rows), groups.codes
    begins = groups.start == torch.arange(len(rows), device=rows.device)
    made: dict[str, Any] = {}
    for end in ends:
        at = begins if end == "first" else torch.cat([begins[1:], begins.new_ones(min(len(rows), 1))])
        chosen, where = rows[at], place[at]
        fields = []
        for source in (of_row, *order):
            array = source.new_zeros(count * (size - 1))
            array[where] = source[chosen]
            fields.append(array.view(count, size - 1))
        made[end] = {"code": fields[0], "order": fields[1:]}
    return _recoded(values, made)


def _recoded(values: Keys, made: dict[str, Any]) -> dict[str, Any]:
    """Drop values that no key uses: a state must not depend on other rows of the frame."""
    used = torch.bincount(torch.cat([m["code"].reshape(-1) for m in made.values()]), minlength=len(values) + 1) > 0
    used[0] = False
    table = torch.cumsum(used, 0) * used
    values = values.take(used[1:].nonzero().squeeze(1).cpu())
    return {"values": values} | {n: {**m, "code": table[m["code"]]} for n, m in made.items()}


def merge_ends(
    a: dict[str, Any], b: dict[str, Any], left: torch.Tensor, right: torch.Tensor, size: int
) -> dict[str, Any]:
    """Merge two partitions' ends; ``left``, ``right``: positions of their keys among ``size``."""
    values, mine, theirs = keyed.union_keys(a["values"], b["values"])
    made = {}
    for end in (n for n in a if n != "values"):
        cells = max(len(x[end]["code"]) for x in (a, b))
        pair = []
        for part, codes, places in ((a[end], mine, left), (b[end], theirs, right)):
            table = torch.cat([codes.new_zeros(1), codes + 1]).to(part["code"].device)
            wide = [keyed.spread(v, places, size, cells) for v in (table[part["code"]], *part["order"])]
            pair.append({"code": wide[0], "order": wide[1:]})
        made[end] = _better(*pair, end)
    return _recoded(values, made)


def _better(a: dict[str, Any], b: dict[str, Any], end: str) -> dict[str, Any]:
    earlier = torch.zeros_like(a["code"], dtype=torch.bool)
    equal = torch.ones_like(earlier)
    for x, y in zip((*a["order"], a["code"]), (*b["order"], b["code"]), strict=True):
        earlier |= equal & ((x < y) if end == "first" else (x > y))
        equal &= x == y
    mine = (a["code"] > 0) & ((b["code"] == 0) | earlier)
    chosen = [torch.where(mine, x, y) for x, y in zip((a["code"], *a["order"]), (b["code"], *b["order"]), strict=True)]
    return {"code": chosen[0], "order": chosen[1:]}


def end_codes(state: dict[str, Any], end: str, keep: torch.Tensor | None) -> torch.Tensor:
    """Return the code of each key's value in ``state['values']``: int64 ``[K + 1]``, 0 = none, as in entry 0."""
    part = state[end]
    code, order = part["code"], part["order"]
    if keep is not None:
        keep = keep.to(code.device)
        code, order = code[keep], [o[keep] for o in order]
    best = {"code": torch.zeros_like(part["code"][0]), "order": [torch.zeros_like(o[0]) for o in part["order"]]}
    for i in range(len(code)):
        best = _better({"code": code[i], "order": [o[i] for o in order]}, best, end)
    return torch.cat([best["code"].new_zeros(1), best["code"]])


def decoded(codes: torch.Tensor, values: Keys, name: str) -> Column:
    """Return the values of codes ``[n]``; code 0 is missing."""
    return take_or_missing(as_column(values.columns[0], name=name).to(codes.device), codes - 1)


# Statistics of number columns by cell, merged exactly: value counts (for quantiles, mode) and moments.


def count_values(numbers: torch.Tensor, cells: Cells | None = None) -> State:
    """Count distinct numbers except NaN: ``value`` float64 ``[K]``, ascending, and ``count`` int64 ``[cells, K]``."""
    known = ~numbers.isnan()
    rows = None if bool(known.all()) else known
    numbers = numbers if rows is None else numbers[rows]
    if cells is None or cells.count == 1:
        value, count = torch.unique_consecutive(torch.sort(numbers).values, return_counts=True)
        return {"value": value, "count": count[None]}
    ordered, order = torch.sort(numbers, stable=True)
    value, codes = torch.unique_consecutive(ordered, return_inverse=True)
    cell = (cells.codes if rows is None else cells.codes[rows])[order]
    return {"value": value, "count": keyed.count_by_cell(codes, Cells(cell, cells.count), len(value))}


def merge_values(a: State, b: State) -> State:
    """Merge the value counts of two partitions."""
    value, codes = torch.unique(torch.cat([a["value"], b["value"].to(a["value"].device)]), return_inverse=True)
    places = codes.tensor_split([len(a["value"])])
    return {"value": value, "count": keyed.add_spread(a["count"], b["count"], value, *places)}


def total_counts(counts: State, keep: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the counts over the cells in ``keep`` (None: all): distinct values ``[K]``, counts ``[K]``."""
    by_cell = counts["count"]
    return counts["value"], (by_cell if keep is None else by_cell[keep.to(by_cell.device)]).sum(0)


def quantiles(value: torch.Tensor, count: torch.Tensor, shares: list[float]) -> torch.Tensor:
    """Compute exact quantiles of values with counts (``[K]``), linear between neighbours as ``numpy.quantile``.

    NaN without values. Next to an infinity the lower neighbour is taken.
    """
    ends = torch.cumsum(count, 0)
    size = int(ends[-1]) if len(ends) else 0
    share = torch.tensor(shares, dtype=torch.float64, device=value.device)
    if not size:
        return torch.full_like(share, torch.nan)
    place = share * (size - 1)
    below = torch.floor(place).long()
    a, b = (value[torch.searchsorted(ends, p, right=True)] for p in (below, (below + 1).clamp_max(size - 1)))
    part = place - below
    between = torch.where(part < 0.5, a + (b - a) * part, b - (b - a) * (1 - part))
    return torch.where((a == b) | ~between.isfinite(), a, between)


def mode(value: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return the most frequent value, float64 ``[]``: the smallest of ties, NaN without values."""
    if not len(count) or not int(count.max()):
        return value.new_tensor(torch.nan)
    return value[(count == count.max()).nonzero()[0, 0]]  # argmax guarantees no order among ties


def column_moments(numbers: torch.Tensor, cells: Cells | None = None) -> State:
    """Compute ``count mean m2 min max`` of finite numbers in two passes: 1e8 ± 1 keeps its digits. ``[cells, 1]``."""
    finite = numbers.isfinite()
    every = bool(finite.all())
    present = numbers if every else numbers[finite]
    if cells is None or cells.count == 1:
        parts = [present]
    else:  # one pass per cell, of which there are few, keeps torch's pairwise sums
        codes = cells.codes if every else cells.codes[finite]
        parts = [present[codes == cell] for cell in range(cells.count)]
    moments = []
    for part in parts:
        size = torch.tensor(float(len(part)), dtype=torch.float64, device=part.device)
        mean = (part / size).sum()  # divided first, as the sum of large numbers would overflow
        rounding = ((part - mean) / size).sum()  # devices sum in another order; infinite for huge numbers
        mean = torch.where(rounding.isfinite(), mean + rounding, mean)
        rest = part - mean
        ends = torch.aminmax(part) if len(part) else [torch.full_like(size, keyed.EMPTY[n]) for n in ("min", "max")]
        moments.append({"count": size, "mean": mean, "m2": torch.dot(rest, rest), "min": ends[0], "max": ends[1]})
    return {n: torch.stack([m[n] for m in moments])[:, None] for n in moments[0]}


def merge_column_moments(a: State, b: State) -> State:
    """Merge count, mean, squared deviations and bounds of two partitions."""
    one = torch.zeros(1, dtype=torch.int64)
    return keyed.merge_arrays(a, {n: v.to(a["count"].device) for n, v in b.items()}, one, one, 1)


def total_moments(moments: State, keep: torch.Tensor | None) -> State:
    """Merge moments over the cells in ``keep`` (None: all): float64 ``[]`` each."""
    return {n: v[0] for n, v in keyed.over_cells(moments, keep).items()}
