"""Tell incomes of UCI Adult: AUC on a random fifth of ``adult.data``; or this file.

Systems, each trained anew on every seed's split (``RandomSplitter(0.2, seed)``):
  fastrec TabM           TabM-mini over piecewise-linear numbers, bins by trees; the epoch with the best AUC on a tenth
                         of the training rows, which it is not trained on.
  fastai tabular_learner layers 200-100, the best epoch chosen likewise.
  XGBoost                trees with categories as such, stopped early on the same tenth.

TabM's settings were chosen on a part of the training rows of seeds 0 and 1 (``--inner`` scores on such a part, and
leaves the test rows alone). ``seconds`` is one seed's preparation, training and prediction, ``rows`` the training rows
times the epochs (of trees: once).
"""

from __future__ import annotations

import argparse
import io
import tempfile
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from _public import Split, cut, data_folder, records, repeat, split_of
from _timing import command_line, cores, heading, show, use_threads, write
from fastai.callback.tracker import SaveModelCallback
from fastai.data.block import RegressionBlock
from fastai.metrics import RocAucBinary
from fastai.tabular.core import Categorify, FillMissing, Normalize, TabularPandas
from fastai.tabular.learner import tabular_learner
from rich.console import Console

from fastrec.losses import BCE
from fastrec.metrics import AUC, auc
from fastrec.models import TabM, bins_of
from fastrec.tabular import TabularFrame
from fastrec.training import rec_learner

CATS = ["workclass", "education", "marital", "occupation", "relationship", "race", "sex", "country"]
CONTS = ["age", "weight", "education_years", "gain", "loss", "hours"]
COLUMNS = ["age", "workclass", "weight", "education", "education_years", "marital", "occupation", "relationship"]
COLUMNS += ["race", "sex", "gain", "loss", "hours", "country", "income"]
STOP_SHARE = 0.1  # of the training rows, to choose the epoch by


def read(file: Path) -> pd.DataFrame:
    """The rows, with ``rich`` 1 where the income is above 50,000."""
    df = pd.read_csv(file, names=COLUMNS, skipinitialspace=True)
    df[CONTS] = df[CONTS].astype(np.float32)
    return df.assign(rich=(df["income"] == ">50K").astype(np.float32))


def _fit_best(learn: Any, epochs: int, lr: float, metric: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        learn.path = Path(folder)
        keep = SaveModelCallback(monitor=metric, comp=np.greater, with_opt=False)
        with learn.no_bar(), learn.no_logging(), redirect_stdout(io.StringIO()):  # the callback tells of every epoch
            learn.fit_one_cycle(epochs, lr, cbs=keep)
    return learn


def tabm(df: pd.DataFrame, split: Split, seed: int, *, k: int, epochs: int) -> tuple[float, int]:
    """TabM-mini over piecewise-linear numbers."""
    train, valid = cut(split[0], seed, STOP_SHARE)
    frame = TabularFrame(
        df, [Categorify, Normalize], CATS, CONTS, "rich", y_block=RegressionBlock(), splits=(train, valid)
    )
    dls = frame.dataloaders(bs=256, val_bs=4096, seed=seed, device=torch.device("cpu"))
    bins = bins_of(dls, by="tree", min_leaf=16)
    learn = rec_learner(dls, TabM, layers=[128, 128], k=k, bins=bins, loss_func=BCE(), metrics=AUC(), wd=3e-4)
    _fit_best(learn, epochs, 2e-2, "auc")
    with learn.no_bar():
        found = learn.get_preds(dl=dls.test_dl(df.iloc[split[1]].drop(columns="rich")))[0]
    return auc(found.flatten(), torch.from_numpy(df["rich"].to_numpy()[split[1]])), epochs * len(train)


def fastai(df: pd.DataFrame, split: Split, seed: int, *, epochs: int = 6) -> tuple[float, int]:
    """fastai's own."""
    train, valid = cut(split[0], seed, STOP_SHARE)
    frame = TabularPandas(
        df, [Categorify, FillMissing, Normalize], CATS, CONTS, "income", splits=(train, valid), reduce_memory=False
    )
    dls = frame.dataloaders(bs=256)
    learn = tabular_learner(dls, layers=[200, 100], metrics=RocAucBinary())
    _fit_best(learn, epochs, 1e-2, "roc_auc_score")
    with learn.no_bar():
        found = learn.get_preds(dl=dls.test_dl(df.iloc[split[1]].drop(columns="income")))[0][:, 1]
    return auc(found, torch.from_numpy(df["rich"].to_numpy()[split[1]])), epochs * len(train)


def trees(df: pd.DataFrame, split: Split, seed: int, *, threads: int) -> tuple[float, int]:
    """XGBoost."""
    from xgboost import XGBClassifier

    train, valid = cut(split[0], seed, STOP_SHARE)
    inputs = df[CATS + CONTS].astype(dict.fromkeys(CATS, "category"))
    model = XGBClassifier(
        n_estimators=2000,
        learning_rate=0.06,
        max_depth=6,
        min_child_weight=3,
        subsample=0.8,
        colsample_bytree=0.6,
        early_stopping_rounds=50,
        eval_metric="auc",
        enable_categorical=True,
        random_state=seed,
        n_jobs=threads,
    )
    parts = [(inputs.iloc[rows], df["rich"].iloc[rows]) for rows in (train, valid)]
    model.fit(*parts[0], eval_set=[parts[1]], verbose=False)
    found = torch.from_numpy(model.predict_proba(inputs.iloc[split[1]])[:, 1])
    return auc(found, torch.from_numpy(df["rich"].to_numpy()[split[1]])), len(train)


def main() -> None:
    """Run the systems, print the table, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_folder("adult"), help="folder of adult.data")
    parser.add_argument("--seeds", type=int, default=5, help="splits to run on")
    parser.add_argument("--members", type=int, default=16, help="of TabM")
    parser.add_argument("--epochs", type=int, default=8, help="of TabM")
    parser.add_argument("--systems", default="", help="those whose name holds this word (default: all)")
    parser.add_argument("--inner", action="store_true", help="score a tenth of the training rows, not the test rows")
    parser.add_argument("--threads", type=int, default=cores(), help="that every system may use (default: all cores)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/adult.json"), help="the file of results")
    options = parser.parse_args()
    use_threads(options.threads)
    console = Console(record=True, width=180)
    console.print(heading(command_line()), highlight=False)
    df = read(options.data / "adult.data")
    splits = [split_of(len(df), seed, inner=options.inner) for seed in range(options.seeds)]
    systems = {
        "fastrec TabM-mini, piecewise-linear numbers": partial(tabm, df, k=options.members, epochs=options.epochs),
        "fastai tabular_learner": partial(fastai, df),
        "XGBoost": partial(trees, df, threads=options.threads),
    }
    chosen = {name: run for name, run in systems.items() if options.systems in name}
    if not chosen:
        parser.error(f"there is no system {options.systems!r}; there are {', '.join(systems)}")
    found = repeat(chosen, splits, lambda line: print(line, flush=True))
    made = records("Adult", "auc", found, next(iter(chosen)))
    show(console, made, title="Incomes of Adult" + (", a part of the training rows" if options.inner else ""))
    write(options.out, made, console.export_text())
    print(f"written: {options.out} and {options.out.with_suffix('.txt')}")


if __name__ == "__main__":
    main()
