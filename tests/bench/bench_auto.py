"""A scored submission with no code: ``fastrec.fit`` beside early-stopped LightGBM and AutoGluon on the same rows.

    python tests/bench/bench_auto.py --data DIR --minutes 5 --seeds 1 --peer AUTOGLUON/bin/python --peer-script run.py

Each system gets the same training file, in the same minutes of wall time on all cores; scored are the same test rows.
LightGBM is stopped early on an eighth of the rows, at a rate of .05, and takes what it takes. AutoGluon lives in an
environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from auto_tables import TABLES, write_folder
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


def lightgbm(folder: Path, target: str, metric: str, minutes: float) -> np.ndarray:
    """LightGBM as most people first use it."""
    import lightgbm as lgb

    train, test = pd.read_csv(folder / "train.csv"), pd.read_csv(folder / "test.csv")
    train = train[train[target].notna()]
    y, train, test = train[target], train.drop(columns=[target, "row_id"]), test.drop(columns="row_id")
    for c in train.columns[[not pd.api.types.is_numeric_dtype(t) for t in train.dtypes]]:
        if c.lower() == "date":
            train[c], test[c] = (pd.to_datetime(f[c]).astype("int64") for f in (train, test))
        else:
            kind = pd.CategoricalDtype(sorted(train[c].dropna().astype(str).unique()))
            train[c], test[c] = (f[c].astype(str).astype(kind) for f in (train, test))
    options = {"n_estimators": 5000, "learning_rate": 0.05, "verbose": -1, "n_jobs": os.cpu_count()}
    model = lgb.LGBMRegressor(**options) if metric == "rmse" else lgb.LGBMClassifier(**options)
    a, b, ya, yb = train_test_split(train, y, test_size=0.125, random_state=0, stratify=None if metric == "rmse" else y)
    model.fit(a, ya, eval_set=[(b, yb)], callbacks=[lgb.early_stopping(50, verbose=False)])
    return model.predict(test) if metric == "rmse" else model.predict_proba(test)


def peer(folder: Path, target: str, metric: str, minutes: float, *, python: str, script: str) -> np.ndarray:
    """AutoGluon's medium preset, without the column of row numbers."""
    with tempfile.TemporaryDirectory() as own:
        files = {n: Path(own) / f"{n}.csv" for n in ("train", "test")}
        for n, path in files.items():
            pd.read_csv(folder / f"{n}.csv").drop(columns="row_id").to_csv(path, index=False)
        out = Path(own) / "out.csv"
        command = [python, script, *map(str, files.values()), target, PEER_METRICS[metric], str(out)]
        done = subprocess.run([*command, "--minutes", str(minutes)], check=True, capture_output=True, text=True)
        print(done.stdout[-1500:])
        made = pd.read_csv(out, index_col=0)
    return made.to_numpy()


def cpu() -> float:
    """CPU seconds of this process and its children."""
    return sum(sum(resource.getrusage(w)[:2]) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FASTREC_DATA", "../shared/data")))
    parser.add_argument(
        "--folders", type=Path, help="tables made beforehand: NAME/data, NAME/truth.csv, NAME/about.json"
    )
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--systems", default="fastrec,lightgbm,autogluon")
    parser.add_argument("--peer", help="AutoGluon's Python; without it AutoGluon is left out")
    parser.add_argument("--peer-script")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/auto.json"))
    a = parser.parse_args()
    systems = {"fastrec": ours, "lightgbm": lightgbm}
    if a.peer:
        systems["autogluon"] = lambda *x: peer(*x, python=a.peer, script=a.peer_script)
    found = []
    for name in a.tables.split(","):
        for seed in range(a.seeds):
            with tempfile.TemporaryDirectory() as place:
                if a.folders:
                    folder, truth_file = a.folders / name / "data", a.folders / name / "truth.csv"
                    about = json.loads((a.folders / name / "about.json").read_text())
                    target, metric = about["target"], about["metric"]
                else:
                    read, target, metric = TABLES[name]
                    folder, truth_file = write_folder(read(a.data), target, Path(place), seed=seed)
                truth = pd.read_csv(truth_file)[target]
                for system in (s for s in a.systems.split(",") if s in systems):
                    began, used = time.perf_counter(), cpu()
                    said = systems[system](folder, target, metric, a.minutes)
                    seconds, used = time.perf_counter() - began, cpu() - used
                    line = {"case": name, "seed": seed, "system": system, "metric": metric, "rows": len(truth)}
                    line |= {"score": score(metric, truth, said), "seconds": seconds, "cpu_seconds": used}
                    found.append(line | {"rows_per_s": len(truth) / seconds, "ratio": None})
                    print(line, flush=True)
                    a.out.parent.mkdir(parents=True, exist_ok=True)
                    a.out.write_text(json.dumps(found, indent=1))
    lines = Lines("table", "seed", "metric", "system", "score", "s", "CPU s")
    for r in found:
        figures = f"{r['score']:.5f}", f"{r['seconds']:.0f}", f"{r['cpu_seconds']:.0f}"
        lines.add_row(r["case"], str(r["seed"]), r["metric"], r["system"], *figures)
    Console(width=100).print(lines)


if __name__ == "__main__":
    main()
