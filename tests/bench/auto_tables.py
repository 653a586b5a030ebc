"""Tables as Kaggle gives them: a folder with train.csv, test.csv and sample_submission.csv, the truth beside it."""

from __future__ import annotations

from pathlib import Path

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
