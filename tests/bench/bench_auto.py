"""A scored submission with no code: ``fastrec.fit`` beside LightGBM, CatBoost and AutoGluon on the same rows.

    python tests/bench/bench_auto.py --data DIR --minutes 5 --seeds 1 --peer AUTOGLUON/bin/python --peer-script run.py

Each system gets the same training file, in the same minutes of wall time on all cores; scored are the same test rows.
LightGBM and CatBoost are stopped early on an eighth of the rows: they take what they take. AutoGluon lives in an
environment of its own. On one core (``taskset -c 1``, ``OMP_NUM_THREADS=1``, ``--cpus 1``) ten minutes of wall time
are 600 seconds of CPU time for all. ``--tables`` takes the names in ``tables/index.json`` of ``--data``, too: a third
of their rows is the test. Results in the file of ``--out`` are not run again: a long comparison can be gone on with.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from _auto_simulated import counts, flights, wide
from _timing import DATA, Options, Record, arguments, cores, read, timed, write
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score
from sklearn.model_selection import train_test_split

warnings.simplefilter("ignore")
PEER_METRICS = {"auc": "roc_auc", "logloss": "log_loss", "rmse": "rmse"}
Table = tuple[Callable[[Path], pd.DataFrame], str, str]  # reader, target, metric


# Tables -------------------------------------------------------------------------------------------------------------


def write_folder(frame: pd.DataFrame, target: str, folder: Path, *, seed: int, share: float) -> pd.Series:
    """Cut a table at random into ``train.csv`` and ``test.csv``, ``share`` of the rows, and return the test's target.

    Raises:
        ValueError: a class is in one part alone: a simulated table whose first draws were by the same seed.
    """
    frame = frame.reset_index(drop=True).reset_index(names="row_id")
    test = np.random.default_rng(seed).random(len(frame)) < share
    frame[~test].to_csv(folder / "train.csv", index=False)
    frame[test].drop(columns=target).to_csv(folder / "test.csv", index=False)
    classes = set() if pd.api.types.is_float_dtype(frame[target]) else set(frame[target].dropna())
    if 0 < len(classes) <= 30 and any(set(frame[target][rows].dropna()) != classes for rows in (test, ~test)):
        raise ValueError(f"seed {seed} leaves a class without rows in one part: take another")
    return frame.loc[test, target]


def adult(data: Path) -> pd.DataFrame:
    names = "age workclass fnlwgt education education_num marital occupation relationship race sex gain loss hours "
    names = (names + "country income").split()
    return pd.read_csv(data / "adult" / "adult.data", names=names, skipinitialspace=True, na_values="?")


def census(data: Path) -> pd.DataFrame:
    frame = pd.read_parquet(data / "census-income" / "train.parquet")
    return frame.drop(columns=[n for n in frame if n.startswith("__index")])


def rossmann(data: Path) -> pd.DataFrame:
    """Rossmann's days, without the number of customers, which is known only afterwards."""
    return pd.read_parquet(data / "rossmann" / "rossmann.parquet").drop(columns="Customers")


TABLES: dict[str, Table] = {
    "adult": (adult, "income", "auc"),
    "census": (census, "income_50k", "auc"),
    "rossmann": (rossmann, "Sales", "rmse"),
    "flights": (lambda _: flights()[0], "late", "auc"),
    "wide": (lambda _: wide()[0], "TARGET", "auc"),
    "counts": (lambda _: counts(), "target", "logloss"),
}


def listed(name: str, data: Path) -> pd.DataFrame:
    """Read a table of the folder ``tables``; categories written as numbers get a letter, to stay so in a CSV."""
    frame = pd.read_parquet(data / "tables" / f"{name}.parquet")
    for column in texts(frame):
        if frame[column].dropna().astype(str).str.fullmatch(r"-?[\d.]+").all():
            frame[column] = ("v" + frame[column].astype(str)).where(frame[column].notna())
    return frame


def texts(frame: pd.DataFrame) -> list[str]:
    return [c for c in frame if not pd.api.types.is_numeric_dtype(frame[c])]


def table_of(a: Options, name: str) -> tuple[Callable[[Path], pd.DataFrame], str, str, float]:
    """Return a table's reader, target and metric, and the share of its rows that is the test."""
    index = read(a.data / "tables" / "index.json")
    own = {t["name"]: (partial(listed, t["name"]), t["target"], t["metric"], 1 / 3) for t in index}
    return own[name] if name in own else (*TABLES[name], 0.2)  # as those who publish figures of these tables cut them


# Systems: from the folder, the target, the metric and the minutes to predictions --------------------------------------


def ours(folder: Path, target: str, metric: str, minutes: float) -> np.ndarray:
    import fastrec

    train, test = (pd.read_csv(folder / f"{n}.csv") for n in ("train", "test"))
    fitted = fastrec.fit(train, target, metric=metric, minutes=minutes, test=test, quiet=True)
    print(fitted.leaderboard()[["model", metric]].to_string(index=False))
    return fitted.predict(test) if metric == "rmse" else fitted.predict_proba(test).to_numpy()


def untried(folder: Path, target: str, metric: str, minutes: float) -> np.ndarray:
    """Fit fastrec without its trials: no features are generated, and trees have the usual sizes."""
    from fastrec.auto import auto_fit

    new = auto_fit.new_competition
    with patch.object(auto_fit, "new_competition", lambda *args, **how: new(*args, **{**how, "seconds": 0.0})):
        return ours(folder, target, metric, minutes)


def parts(folder: Path, target: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read training rows with a target and test rows, without the column of row numbers."""
    train, test = (pd.read_csv(folder / f"{n}.csv").drop(columns="row_id") for n in ("train", "test"))
    return train[train[target].notna()].reset_index(drop=True), test


def boosted(model: Any, train: pd.DataFrame, test: pd.DataFrame, target: str, metric: str, **how: Any) -> np.ndarray:
    """Train a library's model, stopped early on an eighth of the rows, and predict."""
    x, y = train.drop(columns=target), train[target]
    strata = None if metric == "rmse" else y
    a, b, ya, yb = train_test_split(x, y, test_size=0.125, random_state=0, stratify=strata)
    model.fit(a, ya, eval_set=[(b, yb)], **how)
    return model.predict(test) if metric == "rmse" else model.predict_proba(test)


def lightgbm(folder: Path, target: str, metric: str, minutes: float) -> np.ndarray:
    import lightgbm as lgb

    train, test = parts(folder, target)
    for c in texts(train.drop(columns=target)):
        if c.lower() == "date":
            train[c], test[c] = (pd.to_datetime(f[c]).astype("int64") for f in (train, test))
        else:
            kind = pd.CategoricalDtype(sorted(train[c].dropna().astype(str).unique()))
            train[c], test[c] = (f[c].astype(str).astype(kind) for f in (train, test))
    cls = lgb.LGBMRegressor if metric == "rmse" else lgb.LGBMClassifier
    model = cls(n_estimators=5000, learning_rate=0.05, verbose=-1, n_jobs=cores())
    return boosted(model, train, test, target, metric, callbacks=[lgb.early_stopping(50, verbose=False)])


def catboost(folder: Path, target: str, metric: str, minutes: float) -> np.ndarray:
    import catboost as cb

    train, test = parts(folder, target)
    names = texts(train.drop(columns=target))
    for c in names:
        train[c], test[c] = (f[c].astype(object).fillna("missing").astype(str) for f in (train, test))
    cls = cb.CatBoostRegressor if metric == "rmse" else cb.CatBoostClassifier
    model = cls(verbose=False, allow_writing_files=False, thread_count=cores())
    return boosted(model, train, test, target, metric, cat_features=names, early_stopping_rounds=50)


def autogluon(folder: Path, target: str, metric: str, minutes: float, *, a: Options) -> np.ndarray:
    with tempfile.TemporaryDirectory() as own:
        files = [Path(own) / f"{n}.csv" for n in ("train", "test", "out")]
        for path in files[:2]:
            pd.read_csv(folder / path.name).drop(columns="row_id").to_csv(path, index=False)
        command = [a.peer, a.peer_script, *map(str, files[:2]), target, PEER_METRICS[metric], str(files[2])]
        command += ["--minutes", str(minutes), "--cpus", str(a.cpus), "--preset", a.preset]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout[-1500:])
        return pd.read_csv(files[2], index_col=0).to_numpy()


def score(metric: str, truth: pd.Series, said: pd.DataFrame | np.ndarray) -> float:
    """Score probabilities (a column for each class) or amounts."""
    if metric == "rmse":
        return float(mean_squared_error(truth, np.asarray(said).reshape(-1)) ** 0.5)
    classes = sorted(truth.unique())
    wide = np.asarray(said)[:, -len(classes) :]
    return float(
        roc_auc_score(truth == classes[-1], wide[:, -1]) if metric == "auc" else log_loss(truth, wide, labels=classes)
    )


def main() -> None:
    a = arguments(
        __doc__,
        data=DATA,
        tables=(",".join(TABLES), "names with commas between"),
        minutes=(5.0, "for each table"),
        seeds=(1, "splits, up to this one"),
        from_seed=(0, "the first split, where others are in another file"),
        systems=("lightgbm,catboost,fastrec,autogluon", "names with commas between"),
        peer=(None, "AutoGluon's Python; without it AutoGluon is left out"),
        peer_script=(None, "what it runs"),
        preset=("medium_quality", "AutoGluon's; another is a system of its own name"),
        cpus=(cores(), "that AutoGluon may use"),
        out=(Path("runs/bench/auto.json"), "the file of results"),
    )
    systems = {"fastrec": ours, "untried": untried, "lightgbm": lightgbm, "catboost": catboost}
    if a.peer:
        systems["autogluon" if a.preset == "medium_quality" else a.preset] = partial(autogluon, a=a)
    found: list[Record] = read(a.out)
    there = {(r["case"], r["seed"], r["system"]) for r in found}
    asked = [s for s in a.systems.split(",") if a.peer or s != "autogluon"]
    if odd := [s for s in asked if s not in systems]:
        raise SystemExit(f"there is no system {odd[0]!r} here: there are {', '.join(systems)}")
    for seed, name in itertools.product(range(a.from_seed, a.seeds), a.tables.split(",")):
        left = [s for s in asked if (name, seed, s) not in there]
        if not left:
            continue
        make, target, metric, share = table_of(a, name)
        with tempfile.TemporaryDirectory() as place:
            truth = write_folder(make(a.data), target, Path(place), seed=seed, share=share)
            for system in left:
                said, seconds, used = timed(partial(systems[system], Path(place), target, metric, a.minutes))
                line = {"case": name, "seed": seed, "system": system, "metric": metric, "rows": len(truth)}
                line |= {"score": score(metric, truth, said), "seconds": seconds, "cpu_seconds": used}
                found.append(line | {"rows_per_s": len(truth) / seconds, "ratio": None})
                print(line, flush=True)
                write(a.out, found)
    by = pd.DataFrame(found).groupby(["case", "metric", "system"], sort=False)  # over the seeds
    told = {"seeds": ("score", "size"), "score": ("score", "mean"), "from": ("score", "min"), "to": ("score", "max")}
    print(by.agg(**told, seconds=("seconds", "mean"), cpu_seconds=("cpu_seconds", "mean")).round(5).to_string())


if __name__ == "__main__":
    main()
