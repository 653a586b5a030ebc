"""``metric_over_time``: a model's metric by day, or by another period, where labels are known."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd

from fastrec.errors import DataError
from fastrec.metrics import Metric, bootstrap_metric, get_metric
from fastrec.table import Column
from fastrec.table.from_values import as_column
from fastrec.table.key_types import UNITS_PER_SECOND

__all__ = ["Every", "metric_over_time", "periods_of"]

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
        label: ``[n]`` (or ``[n, k]``), as the metric takes it.
        prediction: ``[n]`` (or ``[n, k]``), as the metric takes it.
        time: ``[n]`` times, or numbers of seconds since 1970; with ``every='value'`` any values.
        every: ``'hour'``, ``'day'`` or ``'week'`` (from Monday), in UTC; ``'value'``: each value is a period.
        groups: ``[n]`` integers, the list of each row: where the metric is of lists, and what is drawn as a whole.
        repeats: resamples of the interval.
        seed: of the resamples.

    Returns:
        One row a period, in order: ``period``, ``rows``, ``value``, ``low``, ``high``; a period in which the metric has
        no value (the AUC of one class) has NaN.

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
    made.attrs["metric"] = metric.name  # what it may be compared with
    return made


def periods_of(time: Any, every: Every, *, most: int | None = 400) -> tuple[list[str], np.ndarray]:
    """Return the periods' names in order, and the number of each row's: int64 ``[n]``.

    Args:
        time: ``[n]`` times, or seconds since 1970.
        every: how long a period is.
        most: how many periods there may be; None: any number.

    Raises:
        DataError: a time is missing or no time, it is beyond the year 2262 (such as milliseconds that are taken for
            seconds), or there are too many periods.
    """
    column = time if isinstance(time, Column) else as_column(time, name="time")
    missing = column.is_missing()
    if bool(missing.any()):
        raise DataError(
            "a time is missing", column=column.name or "time", row=int(missing.nonzero()[0]), remedy="Fill or drop it"
        )
    if every == "value":
        coded = column.coded().in_order()
        distinct, codes = np.unique(coded.codes.cpu().numpy(), return_inverse=True)
        keys = coded.keys.columns[0]
    elif every in _SECONDS:
        distinct, codes = np.unique(_starts(column, _SECONDS[every]), return_inverse=True)
        form = "%Y-%m-%d %H:00" if every == "hour" else "%Y-%m-%d"
        # Milliseconds taken for seconds lie beyond the last week that pandas' dates reach, in the year 2262.
        if len(distinct) and max(abs(int(distinct[0])), abs(int(distinct[-1]))) > 2**63 // 10**9 - 8 * 86_400:
            raise DataError(
                "these are no seconds since 1970", column=column.name or "time",
                remedy="Divide milliseconds by 1000, or give dates",
            )  # fmt: skip
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
        seconds = np.clip(seconds, -(2.0**62), 2.0**62)  # what is beyond is refused with its name, not as whole number
    else:
        raise DataError("these are no times", column=column.name, remedy="Give dates, or seconds since 1970")
    # Weeks begin on Monday; 1970 began on a Thursday.
    shift = 3 * 86_400 if length == _SECONDS["week"] else 0
    return (np.floor((seconds + shift) / length) * length - shift).astype(np.int64)
