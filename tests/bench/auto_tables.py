"""Tables as Kaggle gives them: a folder with train.csv, test.csv and sample_submission.csv, the truth beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _auto_simulated import counts, flights, wide


def write_folder(frame: pd.DataFrame, target: str, out: Path, *, seed: int, share: float = 0.2) -> tuple[Path, Path]:
    """Cut a table at random into a folder of files and the truth.

    Args:
        frame: the table.
        target: its target.
        out: where to.
        seed: of the cut.
        share: of the rows that are the test.

    Returns:
        The folder and the file of the truth.

    Raises:
        ValueError: a class is in one part alone: a simulated table whose first draws were by the same seed.
    """
    folder, truth = out / "data", out / "truth.csv"
    folder.mkdir(parents=True, exist_ok=True)
    frame = frame.reset_index(drop=True)
    frame.insert(0, "row_id", np.arange(len(frame)))
    test = np.random.default_rng(seed).random(len(frame)) < share
    frame[~test].to_csv(folder / "train.csv", index=False)
    frame[test].drop(columns=target).to_csv(folder / "test.csv", index=False)
    sample = frame.loc[test, ["row_id"]]
    classes = sorted(frame[target].dropna().unique()) if not pd.api.types.is_float_dtype(frame[target]) else []
    for rows in (test, ~test) if 0 < len(classes) <= 30 else ():
        if set(frame[target][rows].dropna()) != set(classes):
            raise ValueError(f"seed {seed} leaves a class without rows in one part: take another")
    if 2 < len(classes) <= 30:
        sample = sample.assign(**{f"Class_{c}": 1 / len(classes) for c in classes})
    else:
        sample = sample.assign(**{target: 0.5})
    sample.to_csv(folder / "sample_submission.csv", index=False)
    frame.loc[test, ["row_id", target]].to_csv(truth, index=False)
    return folder, truth


def read_adult(data: Path) -> pd.DataFrame:
    """UCI Adult, its 32,561 training rows."""
    names = "age workclass fnlwgt education education_num marital occupation relationship race sex gain loss hours "
    names = (names + "country income").split()
    return pd.read_csv(data / "adult" / "adult.data", names=names, skipinitialspace=True, na_values="?")


def read_census(data: Path) -> pd.DataFrame:
    """Census-Income (KDD): the training part."""
    frame = pd.read_parquet(data / "census-income" / "train.parquet")
    return frame.drop(columns=[n for n in frame if n.startswith("__index")])


def read_rossmann(data: Path) -> pd.DataFrame:
    """Rossmann's days, without the number of customers, which is known only afterwards."""
    return pd.read_parquet(data / "rossmann" / "rossmann.parquet").drop(columns="Customers")


TABLES = {
    "adult": (read_adult, "income", "auc"),
    "census": (read_census, "income_50k", "auc"),
    "rossmann": (read_rossmann, "Sales", "rmse"),
    "flights": (lambda _: flights()[0], "late", "auc"),
    "wide": (lambda _: wide()[0], "TARGET", "auc"),
    "counts": (lambda _: counts(), "target", "logloss"),
}


def read_table(path: Path) -> pd.DataFrame:
    """A table of the folder ``tables``; categories that are written as numbers get a letter, to stay so in a CSV."""
    frame = pd.read_parquet(path)
    for name in frame.columns[[not pd.api.types.is_numeric_dtype(t) for t in frame.dtypes]]:
        if frame[name].dropna().astype(str).str.fullmatch(r"-?[\d.]+").all():
            frame[name] = ("v" + frame[name].astype(str)).where(frame[name].notna())
    return frame


def tables_of(data: Path) -> dict[str, tuple[Callable[[Path], pd.DataFrame], str, str]]:
    """The tables that ``tables/index.json`` lists: name → reader, target and metric; none where it is absent."""
    index = data / "tables" / "index.json"
    listed: list[dict[str, Any]] = json.loads(index.read_text()) if index.is_file() else []
    return {
        t["name"]: (lambda data, n=t["name"]: read_table(data / "tables" / f"{n}.parquet"), t["target"], t["metric"])
        for t in listed
    }
