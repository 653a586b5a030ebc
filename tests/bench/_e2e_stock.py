"""The stock side of the end-to-end benchmark: pandas and fastai as a competent user writes them.

Repeated text is categorical from the start, sessions and items are integers, no step loops over rows, histories come
from a merge on two integer keys (faster here than ``merge_asof``). Three steps are written in two ways: plain, as the
libraries' documentation has them, and *tuned*, in the fastest way that was found: Arrow's parser, one split of all
lists with ``np.repeat``, and target means as differences of two ``transform``s.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import _e2e_data as data
import numpy as np
import pandas as pd
from fastai.data.block import CategoryBlock
from fastai.tabular.core import Categorify, FillMissing, Normalize, TabularPandas

_KEPT = ["session", "step", "timestamp", "user_id", "city", "current_filters", "platform", "device", "is_valid", "fold"]


def read(folder: Path, *, tuned: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the log, and a row per candidate."""
    types = dict.fromkeys(data.TEXTS, "category")
    file = data.log_file(folder)
    if file.suffix == ".parquet":
        log = pd.read_parquet(file, columns=list(data.COLUMNS)).astype(types)
    else:
        log = pd.read_csv(file, usecols=list(data.COLUMNS), dtype=types, engine="pyarrow" if tuned else None)
    log["session"] = log["session_id"].cat.codes
    start = log.groupby("session", sort=False)["timestamp"].transform("min")
    log["is_valid"] = start >= data.LAST_DAY
    log["fold"] = (start % data.FOLDS).where(~log["is_valid"], data.FOLDS)
    clicks = log.loc[log["action_type"] == data.CLICK, [*_KEPT, "reference", "impressions", "prices"]]
    clicks = clicks.assign(reference=clicks["reference"].astype("int64"))
    clicks = clicks.reset_index(names="row").reset_index(names="list_id")  # row: the click's in the log
    rows = clicks.drop(columns=["impressions", "prices"])
    if tuned:
        lengths = clicks["impressions"].str.count(r"\|") + 1
        rows = rows.iloc[np.repeat(np.arange(len(clicks)), lengths)].reset_index(drop=True)
        rows["item_id"] = np.array("|".join(clicks["impressions"]).split("|"), dtype="int64")
        rows["price"] = np.array("|".join(clicks["prices"]).split("|"), dtype="float64")
    else:
        rows = rows.assign(item_id=clicks["impressions"].str.split("|"), price=clicks["prices"].str.split("|"))
        rows = rows.explode(["item_id", "price"], ignore_index=True).astype({"item_id": "int64", "price": "float64"})
    rows["position"] = rows.groupby("list_id", sort=False).cumcount() + 1
    rows[data.TARGET] = (rows["item_id"] == rows["reference"]).astype("int64")
    return log, rows


def features(log: pd.DataFrame, rows: pd.DataFrame, *, tuned: bool = False) -> data.Prepared:
    of_session = log.groupby("session", sort=False)
    rows["last_action"] = of_session["action_type"].shift().iloc[rows["row"].to_numpy()].array
    rows["session_since"] = of_session["timestamp"].diff().iloc[rows["row"].to_numpy()].array
    valid = rows["is_valid"].to_numpy()
    known = rows[data.TARGET].where(~valid)  # missing where it is to be predicted
    for keys in (["item_id"], ["item_id", "city"]):
        if tuned:
            means = target_by_difference(rows, known, keys)
        else:
            means = target_by_fold(rows, rows.loc[~valid, [*keys, "fold", data.TARGET]], keys)
        rows[f"te_{'_x_'.join(keys)}__clicked"] = means
    for key in ("item_id", "user_id"):
        rows[f"count_{key}"] = known.groupby(rows[key], sort=False, observed=True).transform("count")
    of_list = rows.groupby("list_id", sort=False)
    rows["descrank_count_item_id__list_id"] = of_list["count_item_id"].rank("min", ascending=False)
    rows["rank_price__list_id"] = of_list["price"].rank("min")
    rows["price_over_mean"] = rows["price"] / of_list["price"].transform("mean")
    _of_touches(log, rows)
    splits = (np.flatnonzero(~valid).tolist(), np.flatnonzero(valid).tolist())  # fastai adds the two lists
    rest = (rows[n].to_numpy() for n in ("list_id", data.TARGET, "timestamp"))
    return data.Prepared(rows[[*data.USED]], splits, *rest)


def target_by_fold(rows: pd.DataFrame, known: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Compute means of ``clicked`` as mostly written: from known rows of the other folds, joined to the fold's."""
    made = pd.Series(0.0, index=rows.index)
    for fold in sorted(rows["fold"].unique()):
        others = known[known["fold"] != fold]
        prior = others[data.TARGET].mean()
        stats = others.groupby(keys, sort=False, observed=True)[data.TARGET].agg(["sum", "count"])
        means = (stats["sum"] + data.SMOOTH * prior) / (stats["count"] + data.SMOOTH)
        inside = rows["fold"] == fold
        made[inside] = rows.loc[inside, keys].join(means.rename("mean"), on=keys)["mean"].fillna(prior)
    return made


def target_by_difference(rows: pd.DataFrame, known: pd.Series, keys: list[str]) -> pd.Series:
    """Compute the same as sums of all folds less those of the own one, which is exact for clicks."""
    whole = known.groupby([rows[k] for k in keys], sort=False, observed=True)
    own = known.groupby([*(rows[k] for k in keys), rows["fold"]], sort=False, observed=True)
    of_fold = known.groupby(rows["fold"]).agg(["sum", "count"])
    rest = of_fold.sum() - of_fold
    prior = rows["fold"].map(rest["sum"] / rest["count"])
    total = whole.transform("sum") - own.transform("sum")
    count = whole.transform("count") - own.transform("count")
    return (total + data.SMOOTH * prior) / (count + data.SMOOTH)


def _of_touches(log: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Add the session's earlier actions on the item."""
    touches = log.loc[log["action_type"].isin(data.ITEM_ACTIONS), ["session", "step", "timestamp", "reference"]]
    touches = touches.assign(item_id=touches.pop("reference").astype("int64"))
    here = rows[["session", "item_id", "step"]].reset_index(names="at")
    pairs = here.merge(touches, on=["session", "item_id"], suffixes=("", "_of_touch"))
    pairs = pairs[pairs["step_of_touch"] < pairs["step"]]
    told = {"count": ("step_of_touch", "size"), "last": ("step_of_touch", "max"), "time": ("timestamp", "max")}
    found = pairs.groupby("at").agg(**told).reindex(rows.index)
    rows["touch_count"] = found["count"].fillna(0)
    rows["touch_since"] = rows["timestamp"] - found["time"]
    touched = rows.loc[found["last"].notna(), ["list_id", "position"]].assign(last=found["last"])
    last = touched.sort_values("last").drop_duplicates("list_id", keep="last").set_index("list_id")["position"]
    rows["offset_touched"] = rows["position"] - rows["list_id"].map(last)


def preprocess(made: data.Prepared) -> Any:
    about = [Categorify, FillMissing, Normalize], list(data.CATS), list(data.CONTS), data.TARGET, CategoryBlock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pandas' options and arrays
        return TabularPandas(made.frame, *about, splits=made.splits)


def columns(made: data.Prepared, step: int = 1) -> dict[str, np.ndarray]:
    """Return every ``step``-th row of the columns, training rows first, to compare the sides."""
    order = np.concatenate([np.asarray(s) for s in made.splits])[::step]
    frame = made.frame.iloc[order].astype(dict.fromkeys(data.CATS, object))
    return {n: frame[n].to_numpy() for n in data.USED}
