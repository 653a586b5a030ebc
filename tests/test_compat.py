"""One script of stock fastai code on ``TabularPandas`` and on ``TabularFrame``: the same codes, rows and scores.

The script never asks which of the two it runs on. What is meant to differ is listed in the modules' docstrings and
tested in ``test_tabular.py``, ``test_procs.py``, ``test_loader.py`` and at the end of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback import schedule  # noqa: F401  (gives learners fit_one_cycle and lr_find)
from fastai.callback.fp16 import MixedPrecision  # noqa: F401  (gives learners to_fp16)
from fastai.callback.tracker import EarlyStoppingCallback, SaveModelCallback
from fastai.data.block import CategoryBlock, MultiCategoryBlock, RegressionBlock
from fastai.data.transforms import RandomSplitter
from fastai.interpret import ClassificationInterpretation, Interpretation
from fastai.learner import Learner, load_learner
from fastai.metrics import accuracy, accuracy_multi, mse
from fastai.tabular.core import Categorify, FillMissing, Normalize, TabularPandas, add_datepart, cont_cat_split
from fastai.tabular.learner import tabular_learner
from fastai.tabular.model import get_emb_sz
from fastai.torch_core import set_seed

from fastrec.tabular import TabularFrame

# fastai under one pandas or another: Categorify meets an unseen category, add_datepart uses old names, FillMissing
# fills a row of objects
pytestmark = [
    pytest.mark.filterwarnings("ignore:Constructing a Categorical with a dtype and values containing"),
    pytest.mark.filterwarnings("ignore:Series\\.dt\\.\\w+ is deprecated"),
    pytest.mark.filterwarnings("ignore:Downcasting object dtype arrays on .fillna"),
    pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame"),
]

PROCS = [Categorify, FillMissing, Normalize]
KINDS = (TabularPandas, TabularFrame)


@dataclass
class Case:
    """A data set and what is to be learnt of it."""

    df: pd.DataFrame
    cats: list[str]
    conts: list[str]
    y: str | list[str]
    block: Callable[[], Any] | None = None
    metric: Any = mse
    splits: Any = None
    bs: int = 64
    targets: list[str] = field(init=False)
    rows: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.targets = [self.y] if isinstance(self.y, str) else self.y
        self.splits = self.splits or RandomSplitter(seed=1)(self.df)
        self.rows = [*self.splits[0], *self.splits[1]]

    def frame(self, cls: type, **options: Any) -> Any:
        """The data as fastai takes them; its lists are copies, since fastai adds to them."""
        options = {"splits": self.splits, "reduce_memory": False, **options}
        y, block = self.y, self.block
        return cls(self.df, list(PROCS), list(self.cats), list(self.conts), y, block and block(), **options)


# ---- the data


def mixed(n: int = 320) -> pd.DataFrame:
    """Integers, text, booleans, categoricals and missing values, and targets that depend on them."""
    r = np.random.default_rng(0)
    df = pd.DataFrame(
        {
            "word": r.choice(list("abcde"), n),
            "small": r.integers(-2, 5, n),
            "flag": r.random(n) < 0.4,
            "size": pd.Categorical(r.choice(["S", "M", "L"], n), categories=["S", "M", "L"], ordered=True),
            "gappy": r.normal(50, 3, n),
            "whole": r.integers(0, 1000, n),
            "narrow": r.normal(size=n).astype("float32"),
        }
    )
    score = df["whole"] / 500 + df["narrow"] + df["word"].isin(["a", "b"]) + r.normal(0, 0.3, n)
    df["answer"] = pd.cut(score, [-np.inf, 1, 2, np.inf], labels=["low", "mid", "high"]).astype(str)
    df["price"], df["cost"] = score, 0.5 * df["whole"]
    df["yes"] = score > 1.4
    df["l1"], df["l2"], df["l3"] = (score > 1), df["flag"] ^ (score > 2), df["whole"] > 500
    df.loc[r.random(n) < 0.1, "gappy"] = np.nan
    df.loc[r.random(n) < 0.05, "word"] = np.nan
    return df


CATS, CONTS = ["word", "small", "flag", "size"], ["gappy", "whole", "narrow"]
LABELS = ["l1", "l2", "l3"]


def there(path: Path) -> Path:
    if not path.is_file():
        pytest.skip(f"no data at {path}")
    return path


def adult(folder: Path) -> Case:
    names = "age workclass fnlwgt education education_num marital occupation relationship race sex gain loss hours "
    names, path = [*names.split(), "country", "income"], there(folder / "adult" / "adult.data")
    df = pd.read_csv(path, names=names, skipinitialspace=True, na_values="?", nrows=1500)
    conts, cats = cont_cat_split(df, max_card=1, dep_var="income")
    df["hours"] = df["hours"].where(df.index % 17 > 0)
    return Case(df, cats, conts, "income", CategoryBlock, accuracy, bs=128)


def rossmann(folder: Path) -> Case:
    path = there(folder / "rossmann" / "rossmann.parquet")
    df = add_datepart(pd.read_parquet(path, filters=[("Store", "<=", 2)]), "Date")
    df["Sales"] = np.log(df["Sales"])
    df["PromoInterval"] = df["PromoInterval"].where(df["PromoInterval"].notna(), np.nan)  # fastai cannot sort None
    conts = ["CompetitionDistance", "CompetitionOpenSinceYear", "Promo2SinceYear", "Elapsed"]
    cats = [n for n in df if n not in {*conts, "Sales", "Customers", "Open"}]
    order = df["Elapsed"].argsort().to_numpy()
    splits = (order[:1100].tolist(), order[1100:].tolist())
    return Case(df, cats, conts, "Sales", RegressionBlock, mse, splits, bs=128)


CASES: dict[str, Callable[[], Case]] = {
    "classes": lambda: Case(mixed(), CATS, CONTS, "answer", CategoryBlock, accuracy),
    "two classes, by type": lambda: Case(mixed(), CATS, CONTS, "yes", None, accuracy),
    "numbers": lambda: Case(mixed(), CATS, CONTS, "price"),
    "several numbers": lambda: Case(mixed(), CATS, CONTS, ["price", "cost"], RegressionBlock),
    "labels": lambda: Case(mixed(), CATS, CONTS, [*LABELS], partial(MultiCategoryBlock, True, LABELS), accuracy_multi),
    "no categories": lambda: Case(mixed(), [], CONTS, "price"),
    "no numbers": lambda: Case(mixed(), CATS, [], "answer", CategoryBlock, accuracy),
}
REAL: dict[str, Callable[[Path], Case]] = {"Adult": adult, "Rossmann": rossmann}


@pytest.fixture(scope="module", params=[*CASES, *REAL])
def case(request: pytest.FixtureRequest) -> Case:
    made = CASES.get(request.param)
    return made() if made else REAL[request.param](request.getfixturevalue("data_dir"))


# ---- the script


def quiet(learn: Learner) -> Learner:
    learn.logger = lambda *_: None
    learn.remove_cbs([cb for cb in learn.cbs if cb.name == "progress"])
    return learn


def look(case: Case, cls: type, shown: list[pd.DataFrame], folder: Any) -> dict[str, Any]:
    """Prepare the data and look at them."""
    to = case.frame(cls)
    dls = to.dataloaders(bs=case.bs, shuffle=False, path=folder, device="cpu")
    found = {
        "names": [list(v) for v in (to.cat_names, to.cont_names, to.y_names, to.x_names, to.all_col_names)],
        "sizes": [len(to), to.split, len(to.train), len(to.valid), to.n_subsets, len(dls.train), len(dls.valid)],
        "classes": {n: list(c) for n, c in to.classes.items()} if case.cats else {},
        "fills": to.procs.fill_missing.na_dict if case.conts else {},
        "vocab": list(getattr(to, "vocab", [])),
        "c": dls.c,
        "embeddings": get_emb_sz(to) if case.cats else [],
        "index": to.items.index.tolist(),
        "cats": to.cats.to_numpy(dtype=np.int64),
        "conts": to.conts.to_numpy(dtype=np.float64),
        "ys": to.ys.to_numpy(dtype=np.float64),
        "n_inp": dls.n_inp,
        "shapes": [[tuple(t.shape) for t in b] for dl in dls for b in dl],
        "rows": to.new(to.all_cols.copy()).decode().items if cls is TabularPandas else to.decode().items,
    }
    dls.show_batch(max_n=3)
    dls.valid.show_batch(max_n=4)
    to.show(max_n=5)
    found["shown"] = list(shown)
    found["new"] = [[tuple(t.shape) for t in b] for dl in (dls.new(bs=10), dls.valid.new(bs=9)) for b in dl]
    weights = np.arange(len(to.train)) % 50 == 7
    weighted = to.dataloaders(bs=16, wgts=weights.astype(float), device="cpu")
    drawn = {row for b in weighted.train for row in map(tuple, np.concatenate([t.numpy() for t in b[:2]], 1))}
    heavy = np.concatenate([found["cats"], found["conts"]], 1)[: len(weights)][weights]
    found["drawn"] = (len(weighted.train), all(np.isclose(heavy, row, atol=1e-4).all(1).any() for row in drawn))
    return found


def learn_it(case: Case, cls: type, folder: Any) -> dict[str, Any]:
    """Train on the data, and use what was learnt."""
    dls = case.frame(cls).dataloaders(bs=case.bs, shuffle=False, path=folder, device="cpu")
    set_seed(0)
    learn = quiet(tabular_learner(dls, layers=[16], metrics=case.metric))
    found: dict[str, Any] = {"loss": type(learn.loss_func).__name__}
    found["valley"] = learn.lr_find(show_plot=False, num_it=20).valley
    learn.fit_one_cycle(4, 3e-2, cbs=[SaveModelCallback(), EarlyStoppingCallback(patience=2)])
    found["epochs"], found["fit"] = len(learn.recorder.values), learn.recorder.values[-1]
    learn.fine_tune(1, 1e-3)
    learn.to_fp16().fit(1, 1e-3)
    learn.to_fp32()
    found["scores"] = list(learn.validate())
    found["preds"], found["targets"] = learn.get_preds()
    train = learn.get_preds(ds_idx=0)
    found["train"] = train[0].shape
    test = case.df.iloc[case.splits[1]].drop(columns=case.targets)
    found["test"], found["no targets"] = learn.get_preds(dl=dls.test_dl(test, bs=7))
    found["with targets"] = learn.get_preds(dl=dls.test_dl(case.df.iloc[case.splits[1]]))[1]
    row = test.dropna(subset=case.conts).iloc[0]
    full, found["decision"], found["raw"] = learn.predict(row)
    found["row"] = full.decode().items
    learn.show_results(max_n=3, shuffle=False)
    if case.metric is accuracy:
        told = ClassificationInterpretation.from_learner(learn)
        found["confusion"] = told.confusion_matrix().tolist()
    else:
        told = Interpretation.from_learner(learn)
    found["losses"] = told.top_losses(3)[0]
    learn.export("learner.pkl")
    again = quiet(load_learner(folder / "learner.pkl"))
    found["loaded"] = again.get_preds(dl=again.dls.test_dl(test))[0]
    return found


@pytest.fixture(scope="module")
def pair(case: Case, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the script found on either of the two."""
    found = []
    for cls in KINDS:
        shown, folder = [], tmp_path_factory.mktemp(cls.__name__)
        with pytest.MonkeyPatch.context() as patch:
            for module in ("fastai.tabular.core", "fastai.tabular.learner", "fastrec.tabular.frame"):
                patch.setattr(f"{module}.display_df", lambda df, shown=shown: shown.append(df.copy()))
            found.append({**look(case, cls, shown, folder), **learn_it(case, cls, folder)})
            found[-1]["results"] = shown[-1]
    return found


# ---- what it found


def alike(case: Case, a: pd.DataFrame, b: pd.DataFrame, *, rtol: float = 1e-4) -> None:
    """Two decoded frames with the same text and classes, and the same numbers within rounding."""
    assert set(a) == set(b)
    for name in a:
        if name in case.conts or (name.removesuffix("_pred") in case.targets and a[name].dtype.kind == "f"):
            scale = float(np.abs(case.df[name.removesuffix("_pred")]).max())
            np.testing.assert_allclose(a[name], b[name].astype("float64"), rtol=rtol, atol=rtol * scale)
        else:
            assert a[name].astype(str).tolist() == b[name].astype(str).tolist(), name


def test_the_frames_are_the_same(pair):
    stock, ours = pair
    for what in ("names", "sizes", "classes", "vocab", "c", "embeddings", "index", "n_inp", "shapes", "new", "drawn"):
        assert ours[what] == stock[what], what
    np.testing.assert_array_equal(ours["cats"], stock["cats"])
    np.testing.assert_array_equal(ours["ys"], stock["ys"])
    assert ours["fills"] == pytest.approx(stock["fills"], rel=1e-12)


def test_prepared_numbers_equal_a_float64_oracle(case, pair):
    stock, ours = pair
    train, every = (case.df.iloc[rows][case.conts].astype("float64") for rows in (case.splits[0], case.rows))
    fills = train.median()
    assert ours["fills"] == pytest.approx({n: fills[n] for n in ours["fills"]}, rel=1e-15)
    train, every = train.fillna(fills), every.fillna(fills)
    want = (every - train.mean()) / (train.std(ddof=0) + 1e-7)
    np.testing.assert_allclose(ours["conts"], want, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(stock["conts"], want, rtol=1e-4, atol=1e-4)


def test_decoded_and_shown_rows_are_the_same(case, pair):
    stock, ours = pair
    alike(case, ours["rows"], stock["rows"])
    assert len(ours["shown"]) == len(stock["shown"]) == 3
    for a, b in zip(ours["shown"], stock["shown"], strict=True):
        assert len(a) == len(b) > 3
        alike(case, a, b)
    alike(case, ours["row"], stock["row"], rtol=1e-3)


def test_the_same_batches_train_the_same_model(pair):
    stock, ours = pair
    assert ours["loss"] == stock["loss"]
    assert 0.1 < ours["valley"] / stock["valley"] < 10
    assert ours["epochs"] == stock["epochs"]
    assert list(ours["fit"]) == pytest.approx(list(stock["fit"]), rel=2e-3, abs=2e-3)
    assert list(ours["scores"]) == pytest.approx(list(stock["scores"]), rel=2e-3, abs=2e-3)
    for what in ("preds", "test", "raw", "losses", "loaded"):
        torch.testing.assert_close(torch.Tensor(ours[what]), torch.Tensor(stock[what]), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(torch.Tensor(ours["decision"]), torch.Tensor(stock["decision"]), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(ours["test"], ours["preds"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours["loaded"], ours["test"], rtol=1e-5, atol=1e-5)
    assert ours["train"] == stock["train"]
    assert ours.get("confusion") == stock.get("confusion")
    assert ours["no targets"] is stock["no targets"] is None
    for what in ("targets", "with targets"):
        torch.testing.assert_close(ours[what].double(), stock[what].double(), rtol=1e-6, atol=1e-6)


def test_results_are_shown_decoded(case, pair):
    """A deliberate difference: fastai shows codes and scaled numbers."""
    stock, ours = pair
    a, b = ours["results"], stock["results"]
    assert len(a) == len(b) == 3
    assert set(a) == set(b)
    for name in case.cats:
        assert a[name].astype(str).tolist() == [str(stock["classes"][name][int(code)]) for code in b[name]]
    for name in case.targets:
        codes = b[f"{name}_pred"]
        if stock["vocab"] and case.metric is accuracy:
            assert a[f"{name}_pred"].tolist() == [stock["vocab"][int(code)] for code in codes]


# ---- deliberate differences that no other file tests


def test_views_hold_named_columns_by_position_and_y_is_a_tensor():
    case = CASES["several numbers"]()
    case.df.index = np.arange(len(case.df))[::-1] * 10
    stock, ours = (case.frame(cls) for cls in KINDS)
    assert set(stock.items) - set(ours.items) == set(case.df) - {*CATS, *CONTS, *case.y}
    assert ours.items.index.tolist() == case.rows
    assert stock.items.index.tolist() == case.df.index[case.rows].tolist()
    assert isinstance(stock.y, pd.Series)
    assert isinstance(ours.y, torch.Tensor)
    assert ours.y.shape == (len(ours), 2)
    np.testing.assert_array_equal(ours.y[:, 0], stock.y)
