"""A scored submission with no code: ``fastrec.fit`` beside LightGBM, CatBoost and AutoGluon on the same rows.

    python tests/bench/bench_auto.py --data DIR --minutes 5 --seeds 1 --peer AUTOGLUON/bin/python --peer-script run.py

Each system gets the same training file, in the same minutes of wall time on all cores; scored are the same test rows.
LightGBM and CatBoost are stopped early on an eighth of the rows, fastai's stock learner trains for five epochs: they
take what they take. AutoGluon lives in an environment of its own. On one core (``taskset -c 1``, ``OMP_NUM_THREADS=1``,
``--cpus 1``) ten minutes of wall time are 600 seconds of CPU time for all. ``--tables`` takes the names in
``tables/index.json`` of ``--data``, too: a third of their rows is the test. Results in the file of ``--out`` are not
run again: a long comparison can be gone on with.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from _timing import cpu_time
from auto_tables import TABLES, tables_of, write_folder
from rich.console import Console
from rich.table import Table as Lines
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score
from sklearn.model_selection import train_test_split

warnings.simplefilter("ignore")
PEER_METRICS = {"auc": "roc_auc", "logloss": "log_loss", "rmse": "rmse"}


def score(metric: str, truth: pd.Series, said: pd.DataFrame | np.ndarray) -> float:
    """A score of probabilities (a column for each class) or amounts."""
    if metric == "rmse":
        return float(mean_squared_error(truth, np.asarray(said).reshape(-1)) ** 0.5)
    classes = sorted(truth.unique())
    wide = np.asarray(said)[:, -len(classes) :]
    return float(
        roc_auc_score(truth == classes[-1], wide[:, -1]) if metric == "auc" else log_loss(truth, wide, labels=classes)
    )


def ours(folder: Path, target: str, metric: str, minutes: float) -> np.ndarray:
    """``fastrec.fit`` on the files as they are."""
    import fastrec

    train, test = pd.read_csv(folder / "train.csv"), pd.read_csv(folder / "test.csv")
    fitted = fastrec.fit(train, target, metric=metric, minutes=minutes, test=test, quiet=True)
    print(fitted.leaderboard()[["model", metric]].to_string(index=False))
    return fitted.predict(test) if metric == "rmse" else fitted.predict_proba(test).to_numpy()


def read(folder: Path, target: str) -> tuple[pd.DataFrame, pd.Series, pd.DataFrame]:
    """Training rows, their known targets and test rows, without the column of row numbers."""
    train, test = pd.read_csv(folder / "train.csv"), pd.read_csv(folder / "test.csv")
    train = train[train[target].notna()]
    return train.drop(columns=[target, "row_id"]), train[target], test.drop(columns="row_id")


def lightgbm(folder: Path, target: str, metric: str, minutes: float) -> np.ndarray:
    """LightGBM as most people first use it."""
    import lightgbm as lgb

    train, y, test = read(folder, target)
    for c in train.columns[[not pd.api.types.is_numeric_dtype(t) for t in train.dtypes]]:
        if c.lower() == "date":
            train[c], test[c] = (pd.to_datetime(f[c]).astype("int64") for f in (train, test))
        else:
            kind = pd.CategoricalDtype(sorted(train[c].dropna().astype(str).unique()))
            train[c], test[c] = (f[c].astype(str).astype(kind) for f in (train, test))
    options = {"n_estimators": 5000, "learning_rate": 0.05, "verbose": -1, "n_jobs": len(os.sched_getaffinity(0))}
    model = lgb.LGBMRegressor(**options) if metric == "rmse" else lgb.LGBMClassifier(**options)
    a, b, ya, yb = train_test_split(train, y, test_size=0.125, random_state=0, stratify=None if metric == "rmse" else y)
    model.fit(a, ya, eval_set=[(b, yb)], callbacks=[lgb.early_stopping(50, verbose=False)])
    return model.predict(test) if metric == "rmse" else model.predict_proba(test)


def catboost(folder: Path, target: str, metric: str, minutes: float) -> np.ndarray:
    """CatBoost with its own settings, text and missing categories as texts, stopped early on an eighth of the rows."""
    import catboost as cb

    train, y, test = read(folder, target)
    texts = [c for c in train if not pd.api.types.is_numeric_dtype(train[c])]
    for c in texts:
        train[c], test[c] = (f[c].astype(object).fillna("missing").astype(str) for f in (train, test))
    options = {"verbose": False, "allow_writing_files": False, "thread_count": len(os.sched_getaffinity(0))}
    model = cb.CatBoostRegressor(**options) if metric == "rmse" else cb.CatBoostClassifier(**options)
    a, b, ya, yb = train_test_split(train, y, test_size=0.125, random_state=0, stratify=None if metric == "rmse" else y)
    model.fit(a, ya, cat_features=texts, eval_set=(b, yb), early_stopping_rounds=50)
    return model.predict(test) if metric == "rmse" else model.predict_proba(test)


def fastai(folder: Path, target: str, metric: str, minutes: float) -> np.ndarray:
    """fastai's ``tabular_learner`` as its tutorial has it: two layers, one cycle of five epochs."""
    from fastai.tabular.all import (
        Categorify,
        CategoryBlock,
        FillMissing,
        Normalize,
        RegressionBlock,
        TabularDataLoaders,
        cont_cat_split,
        tabular_learner,
    )

    train, test = pd.read_csv(folder / "train.csv"), pd.read_csv(folder / "test.csv").drop(columns="row_id")
    train = train[train[target].notna()].drop(columns="row_id").reset_index(drop=True)
    amounts = metric == "rmse"
    conts, cats = cont_cat_split(train, dep_var=target)
    block = RegressionBlock() if amounts else CategoryBlock()
    loaders = TabularDataLoaders.from_df(
        train, procs=[Categorify, FillMissing, Normalize], cat_names=cats, cont_names=conts, y_names=target,
        y_block=block, bs=64,
    )  # fmt: skip
    learner = tabular_learner(loaders)
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(5, 1e-2 if not amounts else 1e-3)
        said = learner.get_preds(dl=loaders.test_dl(test))[0].numpy()
    return said[:, 0] if amounts else said


def peer(folder: Path, target: str, metric: str, minutes: float, *, python: str, script: str, cpus: int) -> np.ndarray:
    """AutoGluon's medium preset, without the column of row numbers."""
    with tempfile.TemporaryDirectory() as own:
        files = {n: Path(own) / f"{n}.csv" for n in ("train", "test")}
        for n, path in files.items():
            pd.read_csv(folder / f"{n}.csv").drop(columns="row_id").to_csv(path, index=False)
        out = Path(own) / "out.csv"
        command = [python, script, *map(str, files.values()), target, PEER_METRICS[metric], str(out)]
        done = subprocess.run(
            [*command, "--minutes", str(minutes), "--cpus", str(cpus)], check=True, capture_output=True, text=True
        )
        print(done.stdout[-1500:])
        made = pd.read_csv(out, index_col=0)
    return made.to_numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FASTREC_DATA", "../shared/data")))
    parser.add_argument(
        "--folders", type=Path, help="tables made beforehand: NAME/data, NAME/truth.csv, NAME/about.json"
    )
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--from-seed", type=int, default=0, help="the first split, where others are in another file")
    parser.add_argument("--systems", default="lightgbm,catboost,fastrec,autogluon")
    parser.add_argument("--peer", help="AutoGluon's Python; without it AutoGluon is left out")
    parser.add_argument("--peer-script")
    parser.add_argument("--cpus", type=int, default=len(os.sched_getaffinity(0)), help="that AutoGluon may use")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/auto.json"))
    a = parser.parse_args()
    systems = {"fastrec": ours, "lightgbm": lightgbm, "catboost": catboost, "fastai": fastai}
    if a.peer:
        systems["autogluon"] = lambda *x: peer(*x, python=a.peer, script=a.peer_script, cpus=a.cpus)
    found = json.loads(a.out.read_text()) if a.out.is_file() else []
    there = {(r["case"], r["seed"], r["system"]) for r in found}
    asked = [s for s in a.systems.split(",") if s in systems]
    for seed, name in itertools.product(range(a.from_seed, a.seeds), a.tables.split(",")):
        left = [s for s in asked if (name, seed, s) not in there]
        with tempfile.TemporaryDirectory() as place:
            folder, truth_file, target, metric = _table(a, name, seed, Path(place)) if left else (None,) * 4
            for system in left:
                truth = pd.read_csv(truth_file)[target]
                began, used = time.perf_counter(), cpu_time()
                said = systems[system](folder, target, metric, a.minutes)
                seconds, used = time.perf_counter() - began, cpu_time() - used
                line = {"case": name, "seed": seed, "system": system, "metric": metric, "rows": len(truth)}
                line |= {"score": score(metric, truth, said), "seconds": seconds, "cpu_seconds": used}
                found.append(line | {"rows_per_s": len(truth) / seconds, "ratio": None})
                print(line, flush=True)
                a.out.parent.mkdir(parents=True, exist_ok=True)
                a.out.write_text(json.dumps(found, indent=1))
    _print(pd.DataFrame(found))


def _table(a: argparse.Namespace, name: str, seed: int, place: Path) -> tuple[Path, Path, str, str]:
    """A table's folder, the file of the truth, target and metric."""
    if a.folders:
        about = json.loads((a.folders / name / "about.json").read_text())
        return a.folders / name / "data", a.folders / name / "truth.csv", about["target"], about["metric"]
    own = tables_of(a.data)
    read, target, metric = (own | TABLES)[name]
    share = 1 / 3 if name in own else 0.2  # as those who publish figures of these tables cut them
    return *write_folder(read(a.data), target, place, seed=seed, share=share), target, metric


def _print(found: pd.DataFrame) -> None:
    """Means over the seeds."""
    lines = Lines("table", "metric", "system", "seeds", "score", "from", "to", "s", "CPU s")
    for (case, metric, system), own in found.groupby(["case", "metric", "system"], sort=False):
        scores = [f"{x:.5f}" for x in (own["score"].mean(), own["score"].min(), own["score"].max())]
        means = own[["seconds", "cpu_seconds"]].mean()
        lines.add_row(case, metric, system, str(len(own)), *scores, f"{means.iloc[0]:.0f}", f"{means.iloc[1]:.0f}")
    Console(width=110).print(lines)


if __name__ == "__main__":
    main()
