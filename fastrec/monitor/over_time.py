"""``metric_over_time`` and ``event_metrics``: a metric by period, of labelled rows and of served lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from fastrec._core.messages import refuse_absent
from fastrec.competition import SavedRun
from fastrec.competition.forms.values import names_in, predicted_values, read_text
from fastrec.competition.reading import Reading
from fastrec.errors import DataError
from fastrec.features import explode
from fastrec.metrics import Metric, as_scored, bootstrap_interval, bootstrap_metric, get_metric
from fastrec.metrics.intervals import cluster_means, interval_of
from fastrec.monitor.monitor_rows import as_read, is_run, prediction_columns, read_table
from fastrec.table import Column, Table
from fastrec.table.convert import as_column
from fastrec.table.keys import UNITS_PER_SECOND

Every = Literal["hour", "day", "week", "value"]
_SECONDS = {"hour": 3600, "day": 86_400, "week": 7 * 86_400}


def metric_over_time(
    metric: str | Metric,
    label: Any,
    prediction: Any,
    time: Any,
    *,
    every: Every = "day",
    groups: Any = None,
    repeats: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """Compute a metric in every period, each with its 95 % bootstrap interval.

    Args:
        metric: a name, such as ``'auc'``, or a ``Metric``.
        label, prediction: ``[n]`` (or ``[n, k]``), as the metric takes them.
        time: ``[n]`` times, or numbers of seconds since 1970; with ``every='value'`` any values.
        every: ``'hour'``, ``'day'`` or ``'week'`` (from Monday), in UTC; ``'value'``: each value is a period.
        groups: ``[n]`` integers, the list of each row, for a metric of lists and as the unit of resampling.
        repeats: resamples of the interval.
        seed: of the resamples.

    Returns:
        One row a period, in order: ``period``, ``rows``, ``value``, ``low``, ``high``. They are NaN if the metric is
        undefined in it (the AUC of one class).

    Raises:
        DataError: lengths differ, a time is missing, or there are more than 400 periods.
    """
    y, p = np.asarray(label), np.asarray(prediction)
    names, codes = periods_of(time, every)
    sizes = {"label": len(y), "prediction": len(p), "time": len(codes)}
    lists = None if groups is None else np.asarray(groups)
    sizes |= {} if lists is None else {"groups": len(lists)}
    if len(set(sizes.values())) > 1:
        raise DataError(f"values of unequal lengths: {sizes}", remedy="Give one of each for every row")
    metric = get_metric(metric)
    rows = []
    for k, name in enumerate(names):
        some = codes == k
        own = None if lists is None else lists[some]
        try:
            made = bootstrap_metric(metric, y[some], {"p": p[some]}, groups=own, repeats=repeats, seed=seed)
            value, low, high = made.interval("p")
        except DataError:  # labels of one class, lists without a click
            value = low = high = float("nan")
        rows.append({"period": name, "rows": int(some.sum()), "value": value, "low": low, "high": high})
    made = pd.DataFrame(rows)
    made.attrs["metric"] = metric.name  # for the comparison with a run's metric
    return made


def periods_of(time: Any, every: Every, *, most: int | None = 400) -> tuple[list[str], np.ndarray]:
    """Return the ordered names of periods, ``every`` long, and each row's period number: int64 ``[n]``.

    ``time`` has times, or seconds since 1970. Times beyond the year 2262 (such as milliseconds taken for seconds) and
    more than ``most`` periods are refused.
    """
    column = as_column(time, name=(time.name if isinstance(time, Column) else "") or "time")
    column.refuse_missing("a time is missing", "Fill or drop it")
    if every == "value":
        coded = column.coded().in_order()
        distinct, codes = np.unique(coded.codes.cpu().numpy(), return_inverse=True)
        keys = coded.keys.columns[0]
    elif every in _SECONDS:
        distinct, codes = np.unique(_starts(column, _SECONDS[every]), return_inverse=True)
        form = "%Y-%m-%d %H:00" if every == "hour" else "%Y-%m-%d"
        # Milliseconds taken for seconds lie beyond the last week that pandas' dates reach, in the year 2262.
        if len(distinct) and max(abs(int(distinct[0])), abs(int(distinct[-1]))) > 2**63 // 10**9 - 8 * 86_400:
            remedy = "Divide milliseconds by 1000, or give dates"
            raise DataError("these are no seconds since 1970", column=column.name or "time", remedy=remedy)
    else:
        raise DataError(f"there is no period {every!r}", remedy="Give 'hour', 'day', 'week' or 'value'")
    if most is not None and len(distinct) > most:
        raise DataError(f"there are more than {most} periods", column=column.name, remedy="Take a longer period")
    if every == "value":
        names = [str(keys[int(i) - 1]) for i in distinct]
    else:
        names = [pd.Timestamp(int(s), unit="s").strftime(form) for s in distinct]
    return names, codes.astype(np.int64)


def _starts(column: Column, length: int) -> np.ndarray:
    if column.kind == "datetime":
        seconds = column.integer().cpu().numpy() // UNITS_PER_SECOND[str(column.unit)]
    elif column.kind == "number":
        seconds = column.number().cpu().numpy()
        if not np.isfinite(seconds).all():
            raise DataError("a time is infinite", column=column.name or "time", remedy="Leave the row out")
        seconds = np.clip(seconds, -(2.0**62), 2.0**62)  # values beyond are refused below, by name
    else:
        raise DataError("these are no times", column=column.name, remedy="Give dates, or seconds since 1970")
    # Weeks begin on Monday; 1970 began on a Thursday.
    shift = 3 * 86_400 if length == _SECONDS["week"] else 0
    return (np.floor((seconds + shift) / length) * length - shift).astype(np.int64)


def over_time_of_files(
    reference: Path,
    new: Path,
    scores: Path,
    labels: Path,
    *,
    time: str,
    every: Every,
    metric: str | None,
    groups: str | None,
    trust: Sequence[str] = (),
) -> pd.DataFrame:
    """Compute the metric by period from files of rows, their predictions and their labels.

    If ``reference`` is a run, it gives the metric, target and list column; ``metric`` and ``groups`` replace its
    values. ``time`` is a column of the rows or the labels.
    """
    run = SavedRun(reference, trust=trust) if is_run(reference) else None
    reading = Reading() if run is None else run.reading
    rows = read_table(new, ("test", "train"), reading)
    truth = as_read(read_table(labels, ("test", "train")), reading)  # another file, with values of the recipe's types
    if len(rows) != len(truth):
        raise DataError(f"{len(truth)} labels of {len(rows)} rows", file=labels, remedy="Give one for each row")
    if run is None and metric is None:
        raise DataError("which metric is not known", remedy="Give --metric, or a run as reference")
    prediction = _predictions(scores, run)
    label = _labels(truth, run, labels)
    if groups is None and run is not None and run.target is None:
        groups = run.config["list_column"]
    used = get_metric(metric or (run.config["metric"] if run is not None else None))
    if len(label) == len(prediction):  # else ``metric_over_time`` refuses them, with all lengths
        # The run's metric cuts classes by thresholds of other folds; a fixed 0.5 would look like a loss.
        prediction = as_scored(used, label, prediction, np.zeros(len(label), np.int64)).numpy()
    return metric_over_time(
        used, label, prediction, _column((rows, truth), time, new), every=every,
        groups=None if groups is None else _column((rows, truth), groups, new).coded().codes.numpy(),
    )  # fmt: skip


def _predictions(file: Path, run: SavedRun | None) -> np.ndarray:
    form = None if run is None or run.target is None else run.form
    if form is not None and form.values and set(form.values) <= set(names_in(file, form.sep)):
        return predicted_values(read_text(file, form.values, form.sep), form, run.target, file)[0].numpy()
    columns = [c.number().numpy() for c in prediction_columns(file).values()]
    return columns[0] if len(columns) == 1 else np.column_stack(columns)


def _labels(truth: Table, run: SavedRun | None, file: Path) -> np.ndarray:
    """Return the labels as the metric takes them: on the target's scale, with classes as numbers."""
    if run is not None and run.target is not None and all(n in truth for n in run.target.names):
        return run.target.restore(run.target.encode(truth)).numpy()
    names = [run.config["label"]] if run is not None and run.target is None else []
    names = [n for n in names if n in truth] or [n for n in truth.names if truth[n].plain().kind == "number"]
    if len(names) != 1:
        problem = f"which column holds labels cannot be told ({', '.join(names[:8]) or 'no numbers'})"
        raise DataError(problem, file=file, remedy="Give a file with that column alone")
    return truth[names[0]].plain().number().numpy()


def _column(tables: tuple[Table, Table], name: str, file: Path) -> Column:
    refuse_absent([name], [n for t in tables for n in t.names], "there is no such column", file=file)
    return next(t[name] for t in tables if name in t)


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
