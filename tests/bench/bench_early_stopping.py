"""Early-stopped trees beside trees that are trained again on all rows, the early-stopping hold-out included.

    python tests/bench/bench_early_stopping.py --data DIR --tables blood-transfusion-service-center,adult

A third of each table is the test; five folds of the other rows each fit a model of default settings, and the test gets
the mean of the five. A way of stopping is a number of random hold-outs, 0 for trees that stay as they stopped;
``0:4000`` and ``1:4000`` hold out 4,000 rows at most. The error is 1 - AUC, log loss or RMSE.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from _timing import DATA, Record, arguments, bare, read, screen, table, timed, use_threads, write
from bench_auto import TABLES, listed
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score
from sklearn.model_selection import KFold, StratifiedKFold

from fastrec._core import limits
from fastrec.estimators import CatBoostModel, LGBMModel, XGBModel, _tree_model
from fastrec.estimators.base import held_out
from fastrec.table import Table
from fastrec.validate import Rows

warnings.simplefilter("ignore")
KINDS: dict[str, type[_tree_model.TreeModel]] = {"lgbm": LGBMModel, "xgb": XGBModel, "catboost": CatBoostModel}
ERRORS = {
    "auc": lambda truth, said: 1 - roc_auc_score(truth, said),
    "logloss": log_loss,
    "rmse": lambda truth, said: mean_squared_error(truth, said) ** 0.5,
}


def rows_of(frame: pd.DataFrame, target: str, metric: str) -> Rows:
    """Return a table's rows: text is categories, missing numbers stay."""
    columns = frame.drop(columns=target)
    cats = [c for c in columns if not pd.api.types.is_numeric_dtype(columns[c])]
    codes, classes = pd.factorize(frame[target], sort=True)
    label = torch.tensor(frame[target].to_numpy() if metric == "rmse" else codes).double()
    task = "regression" if metric == "rmse" else "binary" if len(classes) == 2 else "multiclass"
    outputs = len(classes) if task == "multiclass" else 1
    conts = [c for c in columns if c not in cats]
    return Rows(Table.read(columns), cats=cats, conts=conts, label=label, task=task, n_outputs=outputs)


def cross_fitted(kind: type[_tree_model.TreeModel], way: str, train: Rows, test: Rows, seed: int) -> np.ndarray:
    """Return the mean prediction of five folds' models for the test's rows."""
    draws, _, most = way.partition(":")
    share = min(1 / 8, int(most) / (len(train) * 0.8)) if most else 1 / 8
    limits.FEW_ROWS, limits.STOP_DRAWS = len(train), int(draws)
    _tree_model.rows_to_stop_by = lambda rows, seed=0: held_out(rows, share, seed)
    strata = None if train.task == "regression" else train.label.numpy()
    cut = (KFold if strata is None else StratifiedKFold)(5, shuffle=True, random_state=seed)
    said = []
    for inside, _ in cut.split(np.zeros(len(train)), strata):
        model = kind("trees", rounds=2000)
        model.regrows = draws != "0"
        said.append(model.fit(train.take(torch.from_numpy(inside))).predict(test).numpy())
    return np.mean(said, axis=0)


def main() -> None:
    args = arguments(
        __doc__,
        data=DATA,
        tables=("", "names in tables/index.json or of bench_auto, with commas; those of the index by default"),
        ways=("0,1,4", "draws, and after a colon rows to hold out at most; the first is what others are set beside"),
        kinds=(tuple(KINDS), "libraries"),
        seeds=("0,1", "of the cuts"),
        threads=(1, "that each library may use"),
        out=(Path("runs/bench/early_stopping.json"), "the file of results"),
    )
    use_threads(args.threads)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    index = {t["name"]: t for t in read(args.data / "tables" / "index.json")}
    records: list[Record] = []
    changes: dict[tuple[str, str], list[float]] = {}
    times: dict[tuple[str, str], list[float]] = {}
    for name in args.tables.split(",") if args.tables else index:
        if name in index:
            frame, target, metric = listed(name, args.data), index[name]["target"], index[name]["metric"]
        else:
            make, target, metric = TABLES[name]
            frame = make(args.data)
        frame = frame[frame[target].notna()].reset_index(drop=True)
        rows = rows_of(frame, target, metric)
        for seed in map(int, args.seeds.split(",")):
            held = torch.from_numpy(np.random.default_rng(seed).random(len(rows)) < 1 / 3)
            train, test = rows.take(~held), rows.take(held)
            for kind in args.kinds:
                first: Record = {}
                for way in args.ways.split(","):
                    said, seconds, cpu = timed(lambda: cross_fitted(KINDS[kind], way, train, test, seed))  # noqa: B023
                    error = float(ERRORS[metric](test.label.numpy(), said))
                    one = bare(f"{name}, {seed}", f"{kind}, {way}", len(train), seconds, error=error, cpu_seconds=cpu)
                    first = first or one
                    one["change"] = 100 * (error / first["error"] - 1)
                    said = f"{error:.5f} {one['change']:+6.2f} % {cpu:7.1f} s"
                    print(f"{name:30s} {seed} {kind:9s} {way:8s} {said}", flush=True)
                    changes.setdefault((kind, way), []).append(one["change"])
                    times.setdefault((kind, way), []).append(cpu / first["cpu_seconds"])
                    records.append(one)
                    write(args.out, records)
    lines = []
    for (kind, way), own in changes.items():
        error = np.std(own) / max(len(own) - 1, 1) ** 0.5
        lines.append([kind, way, f"{np.mean(own):+.2f}", f"{error:.2f}", f"{np.mean(times[kind, way]):.1f}"])
    head = ("library", "way", "change, %", "standard error", "times the seconds")
    console = screen(120)
    console.print(table("error, and time", head, lines, left=2))
    write(args.out, records, console.export_text())


if __name__ == "__main__":
    main()
