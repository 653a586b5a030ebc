"""``event_metrics``: hit rate, MRR and click-through rate of served lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch

from fastrec._core.messages import refuse_absent
from fastrec.errors import DataError
from fastrec.features import explode
from fastrec.metrics import bootstrap_interval
from fastrec.metrics.intervals import cluster_means, interval_of
from fastrec.monitor.over_time import Every, periods_of
from fastrec.table import Table

_ALL = "all"


def event_metrics(
    served: Any,
    clicks: Any,
    *,
    request: str = "request_id",
    item: str = "item_id",
    time: str | None = None,
    every: Every = "day",
    segment: str | None = None,
    k: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Compute hit rate, MRR and click-through rate of served lists, each with its 95 % interval over requests.

    Hit rate is the share of lists with a click, MRR the mean of 1 / place of the first clicked item (0 without a
    click), click-through rate the share of shown items that were clicked. Only the first click on an item of its
    request's list counts.

    Args:
        served: the lists, a table of any library or a file: one row per shown item, in list order, or one row per
            request with a list of items. Requests with an empty list do not count.
        clicks: a table or file with the columns ``request`` and ``item``.
        request, item: the columns of both.
        time: the column of ``served`` with its times; None: no split by period.
        every: the length of a period.
        segment: the column of ``served`` to split by; None: no split.
        k: count the first ``k`` places of a list only; None: all.
        seed: of the resamples.

    Returns:
        One row for each period and segment, ``'all'`` first: ``period``, ``segment``, ``requests``, ``shown``,
        ``clicked``, and ``hit_rate``, ``mrr``, ``ctr``, each with ``…_low`` and ``…_high``.

    Raises:
        MissingColumnError: a column is absent.
        DataError: nothing was served, or ``k`` is below 1.
    """
    shown = _shown(Table.read(served, device="cpu"), request, item, [n for n in (time, segment) if n is not None])
    clicked = Table.read(clicks, device="cpu")
    refuse_absent((request, item), clicked.names, "the clicks lack it")
    if k is not None and k < 1:
        raise DataError(f"the first {k} places", remedy="Give 1 or more")
    lists = shown[request].coded().codes.numpy() - 1
    place = pd.Series(lists).groupby(lists).cumcount().to_numpy() + 1  # in the order of the rows
    inside = torch.from_numpy(place <= (k or len(place)))
    shown, lists, place = shown.take(inside), lists[inside.numpy()], place[inside.numpy()]
    pairs = shown.coded([request, item])
    hits = np.isin(pairs.codes.numpy(), clicked.coded([request, item]).recode(pairs.keys).numpy())
    hits &= pairs.codes.numpy() > 0
    names, period = (_ALL,), np.zeros(len(lists), np.int64)
    if time is not None:
        names, period = periods_of(shown[time], every)  # type: ignore[assignment]
    groups = np.array([_ALL] * len(lists), object)
    if segment is not None:
        coded = shown[segment].coded()
        groups = np.array(["missing", *map(str, coded.keys.columns[0].to_pylist())], object)[coded.codes.numpy()]
    parts = _parts(list(names), period, groups)
    return pd.DataFrame([{**about, **_figures(lists[some], place[some], hits[some], seed)} for about, some in parts])


def _shown(table: Table, request: str, item: str, more: list[str]) -> Table:
    refuse_absent((request, item, *more), table.names, "the lists lack it")
    if table[item].kind == "list":
        table = explode(table.select([request, item, *more]), {item: item}, row="__list__")
    if not len(table):
        raise DataError("nothing was served", remedy="Give lists with items")
    table[request].refuse_missing("a request has no id", "Drop the row")
    return table


def _parts(names: list[str], period: np.ndarray, groups: np.ndarray) -> Iterator[tuple[dict[str, str], np.ndarray]]:
    segments = sorted({*groups.tolist()} - {_ALL})
    for p in [None, *(range(len(names)) if names != [_ALL] else [])]:
        in_period = np.ones(len(period), bool) if p is None else period == p
        for s in [None, *segments]:
            some = in_period if s is None else in_period & (groups == s)
            if some.any():
                yield {"period": _ALL if p is None else names[p], "segment": _ALL if s is None else s}, some


def _figures(lists: np.ndarray, place: np.ndarray, hits: np.ndarray, seed: int) -> dict[str, float]:
    _, codes = np.unique(lists, return_inverse=True)
    first = np.full(int(codes.max()) + 1, np.inf)
    np.minimum.at(first, codes[hits], place[hits])
    # Clicks on one list are not independent: requests are resampled.
    mean, draws = cluster_means(hits[:, None].astype(np.float64), codes, repeats=1000, seed=seed)
    intervals = {
        "hit_rate": bootstrap_interval(np.isfinite(first).astype(np.float64), seed=seed),
        "mrr": bootstrap_interval(1 / first, seed=seed),
        "ctr": interval_of(float(mean[0]), draws[:, 0]),
    }
    made: dict[str, float] = {"requests": len(first), "shown": len(hits), "clicked": int(hits.sum())}
    for name, (value, low, high) in intervals.items():
        made |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return made
