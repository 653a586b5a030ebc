"""Rate MovieLens-100k: RMSE on a random fifth, as in fastai's tutorial of collaborative filtering; or this file's.

Systems, each trained anew on every seed's split (``RandomSplitter(0.2, seed)``):
  fastai collab_learner         as in the tutorial: 50 factors, y_range (0, 5.5), five epochs, lr .005, wd .1.
  fastrec MatrixFactorization   users and items alone.
  fastrec DeepFM                besides: age, gender, occupation, genres, year, the time since the user's first rating,
                                the items that the user has rated and the users that have rated the item (not how;
                                as SVD++ has it). From training rows only. The mean of some nets with other seeds.

The settings were chosen on a tenth of the training rows of seed 0 (``--inner`` scores there, and leaves the test rows
alone). ``seconds`` is one seed's preparation, training and prediction, ``rows`` the ratings trained on, all epochs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from _public import Split, data_folder, records, repeat, split_of
from _timing import command_line, cores, heading, show, use_threads, write
from fastai.collab import TabularCollab, collab_learner
from fastai.data.block import RegressionBlock, TransformBlock
from fastai.tabular.core import Categorify, Normalize
from fastai.torch_core import set_seed
from rich.console import Console

from fastrec.models import DeepFM, MatrixFactorization
from fastrec.tabular import TabularFrame
from fastrec.training import rec_learner

RANGE = (0.5, 5.5)
IDS = ["user_id", "item_id"]


def read(folder: Path) -> pd.DataFrame:
    """Ratings with what is known of users and items."""
    parts = [pd.read_csv(folder / f"ml-100k.{part}", sep="\t") for part in ("inter", "user", "item")]
    ratings, users, items = (p.rename(columns=lambda c: c.split(":")[0]) for p in parts)
    df = ratings.merge(users, on="user_id", how="left").merge(items, on="item_id", how="left")
    df["rating"] = df["rating"].astype(np.float32)
    df["genres"] = [text.split() if isinstance(text, str) else [] for text in df["class"]]
    df["year"] = pd.to_numeric(df["release_year"], errors="coerce")
    df["year"] = df["year"].fillna(df["year"].median()).astype(np.float32)
    df["age"] = df["age"].astype(np.float32)
    return df


def with_history(df: pd.DataFrame, train: Sequence[int]) -> pd.DataFrame:
    """With who rated what, and when a user began, by the training rows."""
    known = df.iloc[train]
    out = df.copy()
    for column, key, value in (("seen", "user_id", "item_id"), ("raters", "item_id", "user_id")):
        lists = known.groupby(key)[value].agg(list).to_dict()
        out[column] = [lists.get(k, []) for k in df[key]]
    first = df["user_id"].map(known.groupby("user_id")["timestamp"].min()).fillna(df["timestamp"])
    out["since_first"] = np.log1p((df["timestamp"] - first).clip(lower=0)).astype(np.float32)
    return out


def rmse(predicted: torch.Tensor, wanted: torch.Tensor) -> float:
    """Root of the mean squared error."""
    return float((predicted.double().flatten() - wanted.double().flatten()).square().mean().sqrt())


def fastai(df: pd.DataFrame, split: Split, seed: int) -> tuple[float, int]:
    """The tutorial's net on these rows."""
    ratings = df[[*IDS, "rating"]]
    frame = TabularCollab(ratings, [Categorify], IDS, y_names=["rating"], y_block=TransformBlock(), splits=split)
    learn = collab_learner(frame.dataloaders(bs=64), n_factors=50, y_range=(0, 5.5))
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(5, 5e-3, wd=0.1)
        return rmse(*learn.get_preds()), 5 * len(split[0])


def factors(df: pd.DataFrame, split: Split, seed: int) -> tuple[float, int]:
    """Matrix factorization."""
    frame = TabularFrame(df, [Categorify], IDS, y_names="rating", y_block=RegressionBlock(), splits=split)
    dls = frame.dataloaders(bs=512, seed=seed, device=torch.device("cpu"))
    learn = rec_learner(dls, MatrixFactorization, dim=50, y_range=RANGE, wd=0.6)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(6, 1e-2)
        return rmse(*learn.get_preds()), 6 * len(split[0])


def all_columns(df: pd.DataFrame, split: Split, seed: int, *, nets: int, epochs: int = 4) -> tuple[float, int]:
    """The mean of some nets over all columns."""
    frame = TabularFrame(
        with_history(df, split[0]),
        [Categorify, Normalize],
        [*IDS, "gender", "occupation"],
        ["age", "year", "since_first"],
        "rating",
        y_block=RegressionBlock(),
        splits=split,
        list_names=["genres", "seen", "raters"],
    )
    predicted, wanted = [], None
    for i in range(nets):
        set_seed(1000 * seed + i, reproducible=True)
        dls = frame.dataloaders(bs=512, val_bs=4096, seed=1000 * seed + i, device=torch.device("cpu"))
        learn = rec_learner(dls, DeepFM, emb_dim=16, layers=[32], y_range=RANGE, wd=0.6)
        with learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(epochs, 1e-2)
            found, wanted = learn.get_preds()
        predicted.append(found.flatten())
    return rmse(torch.stack(predicted).mean(0), wanted), nets * epochs * len(split[0])


def main() -> None:
    """Run the systems, print the table, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_folder("movielens-100k"), help="folder of the ml-100k files")
    parser.add_argument("--seeds", type=int, default=5, help="splits to run on")
    parser.add_argument("--nets", type=int, default=5, help="nets whose mean predicts, with all columns")
    parser.add_argument("--systems", default="", help="those whose name holds this word (default: all)")
    parser.add_argument("--inner", action="store_true", help="score a tenth of the training rows, not the test rows")
    parser.add_argument("--threads", type=int, default=cores(), help="that every system may use (default: all cores)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/movielens.json"), help="the file of results")
    options = parser.parse_args()
    use_threads(options.threads)
    console = Console(record=True, width=180)
    console.print(heading(command_line()), highlight=False)
    df = read(options.data)
    splits = [split_of(len(df), seed, inner=options.inner) for seed in range(options.seeds)]
    ours = f"fastrec DeepFM, mean of {options.nets}"
    cases = {
        "users and items": {
            "fastrec MatrixFactorization": partial(factors, df),
            "fastai collab_learner": partial(fastai, df),
        },
        "all columns": {ours: partial(all_columns, df, nets=options.nets)},
    }
    made = []
    for case, systems in cases.items():
        chosen = {name: run for name, run in systems.items() if options.systems in name}
        if chosen:
            found = repeat(chosen, splits, lambda line: print(line, flush=True))
            made += records(f"MovieLens-100k, {case}", "rmse", found, next(iter(chosen)))
    show(console, made, title="Ratings of MovieLens-100k" + (", a part of the training rows" if options.inner else ""))
    write(options.out, made, console.export_text())
    print(f"written: {options.out} and {options.out.with_suffix('.txt')}")


if __name__ == "__main__":
    main()
