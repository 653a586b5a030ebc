"""What ``test_ddp_training.py`` lets torchrun start twice: trainings, whose results go to a folder."""

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from fastai.callback.core import Callback
from fastai.callback.training import GradientAccumulation
from fastai.data.block import CategoryBlock
from fastai.metrics import RocAucBinary, accuracy

from fastrec._core.ranks import rank, world_size
from fastrec.errors import DataError
from fastrec.metrics import AUC, MRR, mrr
from fastrec.optim import adamw, lamb
from fastrec.scale import distributed
from fastrec.tabular import Categorify, ParquetFrame, TabularFrame
from fastrec.training import Checkpoint, CowClip, rec_learner

ROWS, VALID, BS = 101, 45, 16
TABLES = [(20_000, 4), (8, 4)]  # the first is large enough for row-sparse gradients
OPTIONS = {
    "adamw": (adamw, []),
    "lamb": (lamb, []),
    "cowclip": (adamw, [CowClip]),
    "accumulated": (adamw, [GradientAccumulation]),
}


def rows(n: int = ROWS + VALID) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    df = pd.DataFrame({"item": rng.integers(0, 40, n), "city": rng.integers(0, 6, n), "x": rng.normal(size=n)})
    df["row"] = np.arange(n, dtype=np.float32)
    df["y"] = (rng.random(n) < 1 / (1 + np.exp(-df.x - df.city / 3 + 1))).astype(int)
    df["list"] = np.arange(n) // 5
    return df


def batch_by_batch(df: pd.DataFrame) -> pd.DataFrame:
    """The training rows in the order in which two ranks take them, batch by batch, then the validation rows."""
    halves = np.split(np.arange(ROWS), [ROWS // 2])
    order = [half[at : at + BS] for at in range(0, ROWS, BS) for half in halves]
    return df.iloc[[*np.concatenate(order), *range(ROWS, len(df))]].reset_index(drop=True)


def loaders(df: pd.DataFrame, bs: int, *, shuffle: bool = False, **options):
    columns = [Categorify], ["item", "city"], ["x", "row"], "y", CategoryBlock()
    to = TabularFrame(df, *columns, splits=(range(ROWS), range(ROWS, len(df))), device="cpu", groups="list")
    return to.dataloaders(bs=bs, shuffle=shuffle, drop_last=False, device="cpu", **options)


def make(dls, kind: str = "adamw", **options):
    torch.manual_seed(3)
    opt, cbs = OPTIONS[kind]
    cbs = [partial(c, n_acc=2 * dls.train.bs) if c is GradientAccumulation else c for c in cbs]
    groups = torch.arange(VALID) // 5 + ROWS // 5
    metrics = [accuracy, RocAucBinary(), AUC(), MRR(groups)]
    with torch.random.fork_rng():
        learn = rec_learner(
            dls, layers=[8], emb_szs=TABLES, n_out=2, grads="rows", opt_func=opt, cbs=[c() for c in cbs],
            metrics=metrics, **options,
        )  # fmt: skip
    with torch.no_grad():
        for p in learn.model.parameters():  # the row numbers are among the inputs
            p.mul_(0.3)
    return learn


class Watch(Callback):
    """Keeps the loss of every training batch, and the numbers of its rows."""

    order = 60

    def before_fit(self):
        self.losses, self.epochs = [], []

    def before_train(self):
        self.epochs.append([])

    def after_batch(self):
        if self.training:
            self.losses.append(float(self.learn.loss))
            self.epochs[-1].append(self.xb[1][:, -1].long())


class End(Callback):
    order = 99

    def __init__(self, epoch: int, batch: int = 0):
        self.at = epoch, batch

    def before_batch(self):
        if self.training and (self.learn.epoch, self.iter) == self.at:
            raise KeyboardInterrupt


def weights(learn) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in learn.model.state_dict().items()}


def fit(learn, epochs: int = 2, cbs=()) -> dict:
    """A training's losses, rows, table of the Recorder and weights."""
    watch = Watch()
    with learn.no_bar(), learn.no_logging(), distributed(learn):
        learn.fit(epochs, 0.05, wd=0.1, cbs=[watch, *cbs])
        values = [[float(v) for v in row] for row in learn.recorder.values]
        scored = learn.validate()
        preds, _ = learn.get_preds()
    return {
        "losses": watch.losses,
        "epochs": watch.epochs,
        "values": values,
        "scored": [float(v) for v in scored],
        "preds": preds,
        "weights": weights(learn),
    }


def main(folder: Path) -> None:
    df, found = rows(), {}
    early = make(loaders(df, BS), placement="row-sharded")  # before the ranks are joined: it holds whole tables
    for kind in OPTIONS:
        learn = make(loaders(df, BS), kind)
        with torch.no_grad():
            for p in learn.model.parameters():
                p.add_(rank())  # the ranks begin with rank 0's
        found[kind] = fit(learn)
    learn = make(loaders(df, BS, shuffle=True))  # made after the ranks were joined, and without a seed
    found["shares"] = [len(dl) for dl in learn.dls.loaders], learn.dls.valid.world_size
    found["mrr"] = (
        mrr((p := learn.get_preds()[0])[:, 1], torch.tensor(df.y[ROWS:].values), df.list[ROWS:].values),
        len(p),
    )
    found["shuffled"] = fit(learn)
    found["groups"] = fit(make(loaders(df, BS, shuffle=True, groups=True)))
    stream = ParquetFrame(
        folder / "rows.parquet", [Categorify], ["item", "city"], ["x", "row"], "y", CategoryBlock, device="cpu"
    )
    learn, watch = rec_learner(stream.dataloaders(bs=BS, buffer_rows=40, drop_last=False), layers=[8], n_out=2), Watch()
    with learn.no_bar(), learn.no_logging(), distributed(learn):
        learn.fit(2, 0.01, cbs=watch)
    found["stream"] = {"epochs": watch.epochs}
    found["checkpoints"] = checkpoints(df, folder)
    found["sent"] = sent(df)
    found["row-sharded"] = fit(make(loaders(df, BS), placement="row-sharded"))
    try:
        fit(early)
    except DataError as error:
        found["early"] = str(error)
    torch.save(found, folder / f"found{rank()}.pt")


def checkpoints(df, folder: Path):
    """A training that is left after an epoch and goes on, beside one that is not left."""
    straight = fit(make(loaders(df, BS, shuffle=True, seed=1)), 3)
    for name, left in (("within", End(1, 3)), ("two", End(1)), ("one", End(1))):
        learn = make(loaders(df, BS, shuffle=True, seed=1))
        with suppress(KeyboardInterrupt):
            fit(learn, 3, [Checkpoint(folder / name, every=1 if name == "within" else None), left])
    again = fit(make(loaders(df, BS, shuffle=True, seed=1)), 3, [Checkpoint(folder / "two")])
    return straight, again, weights(learn)


def sent(df):
    learn = make(loaders(df, BS))
    with learn.no_bar(), learn.no_logging(), distributed(learn):
        learn.fit(1, 0.01)
        cb = learn.data_parallel
        return cb._grads.sent, len(learn.dls.train)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    assert world_size() == 2
