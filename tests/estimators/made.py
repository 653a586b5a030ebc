"""Rows that tests of estimators learn from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from fastrec.table import Table
from fastrec.validate import Lists, Rows

CITIES = ["bergen", "oslo", "rome"]
N_OUT = {"multiclass": 3, "multilabel": 2}


def frame_of(seed: int = 0, n: int = 320) -> pd.DataFrame:
    """Rows with missing values; ``x`` and ``city`` say something of every target, ``z`` and ``item`` nothing."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.normal(size=n), "z[m]": rng.normal(size=n)})
    frame["city"] = rng.choice(CITIES, n)
    frame["item"] = rng.integers(0, 9, n)
    frame["value"] = 1.5 * frame.x + frame.city.map({"bergen": -1.0, "oslo": 0.0, "rome": 2.0})
    frame["value"] += rng.normal(size=n) / 2
    frame.loc[rng.random(n) < 0.1, "x"] = np.nan
    frame.loc[rng.random(n) < 0.1, "city"] = None
    return frame.assign(weight=rng.uniform(0.5, 2, n))


def rows_of(frame: pd.DataFrame, task: str, *, size: int = 4, **more) -> Rows:
    """Rows of a task; of a ranking lists of ``size`` candidates."""
    table = Table.read(frame[["x", "z[m]", "city", "item"]])
    value = torch.from_numpy(frame.value.to_numpy(copy=True))
    given = {"cats": ["city", "item"], "conts": ["x", "z[m]"], **more}
    if task == "ranking":
        lists = value.reshape(-1, size)
        label = (lists == lists.max(1, keepdim=True).values).double().reshape(-1)
        return Lists(table, torch.arange(len(value)) // size, **{"label": label, **given})
    label = {
        "binary": (value > 0).double(),
        "multiclass": (value > -0.5).long() + (value > 1),
        "regression": value,
        "multilabel": torch.stack([value > 0, value < -1], 1).double(),
    }[task]
    return Rows(table, task, **{"label": label, "n_outputs": N_OUT.get(task, 1), **given})


def start_rows(cities="ab", n=300, seed=0, task="binary", more=(), cats=("city",)):
    """Rows of some cities, for one that learns after another: of a ranking lists of five."""
    rng = np.random.default_rng(seed)
    city, x = rng.choice(list(cities), n), rng.normal(size=n)
    score = x + (city == "a") + rng.normal(size=n)
    label = {"regression": score, "multiclass": np.digitize(score, [0, 1])}.get(task, score > 0.5)
    label = torch.from_numpy(label.astype(np.int64 if task == "multiclass" else np.float64))
    extra = {name: rng.normal(size=n) for name in more}
    table = Table({"city": city.tolist(), "x": x, "z": rng.normal(size=n), **extra})
    given = {"cats": list(cats), "conts": ["x", "z", *more], "label": label}
    if task == "ranking":
        return Lists(table, torch.arange(n) // 5, **given)
    outputs = 3 if task == "multiclass" else 1
    return Rows(table, task, n_outputs=outputs, **given)
