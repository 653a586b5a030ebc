"""Which models ``fastrec.fit`` should have: what each brings a blend of the others, over public tables.

    python tests/bench/choose_portfolio.py --data DIR --out runs/portfolio

Of each table in ``tables/index.json`` of ``--data`` a third is held out. Every model is cross-fitted on the other rows,
and a blend by hill climbing learns its weights from the out-of-fold predictions alone. Printed is by how much the error
(1 - AUC, log loss, RMSE) on the held-out third falls when a model joins the first six, or rises when one of these is
taken away, and its CPU time. Predictions in the folder of ``--out`` are not made again.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from _timing import DATA, arguments, cores, read, table
from rich.console import Console
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler
from sklearn.svm import SVC, SVR

from fastrec.auto.columns import read_files
from fastrec.auto.problem import Asked
from fastrec.auto.trial import QuickTrial
from fastrec.auto.understand import understand
from fastrec.errors import FastrecError
from fastrec.estimators import CatBoostModel, Estimator, LGBMModel, NetModel, SKModel, XGBModel
from fastrec.metrics import get_metric
from fastrec.stacking.hill_climb import climb
from fastrec.table import Table
from fastrec.validate import Rows

warnings.simplefilter("ignore")


def models(amounts: bool) -> dict[str, Callable[[], Estimator]]:
    """Name the models; ``fit`` begins with the first six."""
    extra, forest = (
        (ExtraTreesRegressor, RandomForestRegressor) if amounts else (ExtraTreesClassifier, RandomForestClassifier)
    )
    machine = SVR(C=5.0, epsilon=0.05) if amounts else CalibratedClassifierCV(SVC(), ensemble=False)
    line = Ridge(10.0) if amounts else LogisticRegression(C=0.03, max_iter=1_000)
    net, other = ("RealMLP", "TabM") if amounts else ("TabM", "RealMLP")
    trees = {"n_estimators": 150, "min_samples_leaf": 2, "max_features": 0.5}
    usual = {"min_samples_leaf": 1, "max_features": 0.5} if amounts else {"min_samples_leaf": 5, "max_features": "sqrt"}
    few = {"num_leaves": 6, "min_data_in_leaf": 5, "feature_fraction": 0.5, "learning_rate": 0.05, "lambda_l2": 5.0}
    small = {"max_depth": 3, "colsample_bytree": 0.5, "subsample": 0.7, "eta": 0.05, "min_child_weight": 3}
    logistic = {} if amounts else {"logistic": lambda: SKModel("m", LogisticRegression(C=0.1, max_iter=1_000))}
    return {
        "lgbm": lambda: LGBMModel("m"),
        "xgb": lambda: XGBModel("m"),
        "lgbm, extra trees": lambda: LGBMModel("m", extra_trees=True, feature_fraction=0.5),
        "net": lambda: NetModel("m", model=net),
        "forest": lambda: SKModel("m", extra(**trees), cats="code"),
        "catboost": lambda: CatBoostModel("m"),
        "other net": lambda: NetModel("m", model=other),
        "catboost, depth 4": lambda: CatBoostModel("m", depth=4, l2_leaf_reg=8, learning_rate=0.06),
        "xgb, depth 3": lambda: XGBModel("m", **small),
        "lgbm, 6 leaves": lambda: LGBMModel("m", **few),
        "random forest": lambda: SKModel("m", forest(n_estimators=150, **usual), cats="code"),
        "splines": lambda: SKModel("m", make_pipeline(SplineTransformer(6), StandardScaler(), line)),
        "SVM": lambda: SKModel("m", machine),
        **logistic,
    }


FIRST = 6


def collect(about: dict[str, Any], data: Path, out: Path, limit: float) -> None:
    """Keep each model's out-of-fold and held-out predictions of a table, and its seconds of CPU time."""
    frame = pd.read_parquet(data / "tables" / f"{about['name']}.parquet")
    target, amounts = about["target"], about["metric"] == "rmse"
    cut = (KFold if amounts else StratifiedKFold)(3, shuffle=True, random_state=0)
    known, held = next(cut.split(frame, None if amounts else frame[target]))
    with tempfile.TemporaryDirectory() as folder:
        frame.iloc[known].to_parquet(Path(folder) / "train.parquet")
        frame.iloc[held].drop(columns=target).to_parquet(Path(folder) / "test.parquet")
        problem = understand(read_files(Path(folder)), Asked(target, about["metric"]))
    trial = QuickTrial(problem, [], 60.0, rows=len(known), n_folds=5)
    test = Rows(
        Table.read(problem.files.tables["test"]), problem.task, cats=trial.cats, conts=trial.conts,
        n_outputs=trial.target.n_outputs,
    )  # fmt: skip
    truth = trial.target.encode(Table.read(frame.iloc[held][[target]]))
    out.mkdir(parents=True, exist_ok=True)
    np.savez(out / "truth.npz", label=trial.label.numpy(), test=truth.numpy())
    parts = list(trial.parts())
    for name, make in models(amounts).items():
        if (out / f"{name}.npz").exists():
            continue
        began, oof, tests = time.process_time(), np.zeros(0), []
        try:
            for (_, inside), (train, valid) in zip(trial.folds, parts, strict=True):
                model = make()
                model.time_limit = limit
                said = model.fit(train, None, seed=0).predict(valid).numpy()
                oof = oof if len(oof) else np.zeros((len(trial.table), *said.shape[1:]))
                oof[inside.numpy()] = said
                tests.append(model.predict(test).numpy())
        except FastrecError as error:
            print(f"{about['name']}, {name}: {error}")
            continue
        np.savez(out / f"{name}.npz", oof=oof, test=np.mean(tests, 0), seconds=time.process_time() - began)
        print(f"{about['name']}, {name}: {time.process_time() - began:.0f} s", flush=True)


def error(metric: str, label: np.ndarray, truth: np.ndarray, parts: Sequence[Mapping[str, np.ndarray]]) -> float:
    """Return the error on held-out rows of a blend whose weights are learned out of fold."""
    score = get_metric(metric)
    oof, test = (torch.from_numpy(np.stack([p[w].reshape(len(p[w]), -1) for p in parts], 1)) for w in ("oof", "test"))
    counts = climb(score, SimpleNamespace(label=torch.from_numpy(label), groups=None), oof, 40)
    said = torch.einsum("nmk,m->nk", test, counts.double() / counts.sum())
    value = float(score(torch.from_numpy(truth), said[:, 0] if said.shape[1] == 1 else said))
    return 1 - value if score.greater_is_better else value


def main() -> None:
    args = arguments(
        __doc__,
        data=DATA,
        tables=("", "names in tables/index.json, with commas; all by default"),
        out=(Path("runs/portfolio"), "folder of predictions"),
        seconds=(60.0, "for a fold's model"),
    )
    torch.set_num_threads(cores())
    gains: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    for about in read(args.data / "tables" / "index.json"):
        name, metric = about["name"], about["metric"]
        if args.tables and name not in args.tables.split(","):
            continue
        collect(about, args.data, args.out / name, args.seconds)
        kept = {p.stem: np.load(p) for p in sorted((args.out / name).glob("*.npz"))}
        truth, first = kept.pop("truth"), [n for n in list(models(metric == "rmse"))[:FIRST] if n in kept]
        whole = error(metric, truth["label"], truth["test"], [kept[n] for n in first])
        for n, own in kept.items():
            others = [m for m in first if m != n] if n in first else [*first, n]
            changed = error(metric, truth["label"], truth["test"], [kept[m] for m in others])
            gains.setdefault(n, []).append(100 * (changed / whole - 1 if n in first else 1 - changed / whole))
            seconds.setdefault(n, []).append(float(own["seconds"]))
    lines = []
    for n, own in gains.items():
        values = np.array(own)
        cells = f"{values.mean():+.2f}", str((values > 0).sum()), str((values < 0).sum()), f"{np.mean(seconds[n]):.0f}"
        lines.append([n, *cells])
    head = ("model", "worth, % of the error", "tables better", "worse", "seconds")
    Console(width=120).print(table("what each model brings", head, lines))


if __name__ == "__main__":
    main()
