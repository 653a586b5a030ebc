"""Columns whose names mean something elsewhere, or are hardly names at all."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fastai.data.core import DataLoaders, TfmdDL
from fastai.learner import Learner
from fastai.tabular.core import Categorify, FillMissing, Normalize, TabularPandas

from fastrec.errors import DataError
from fastrec.tabular import ParquetFrame, RecDataLoaders, TabularFrame, TabularLoader
from fastrec.training import RecLearner, rec_learner

PROCS = [Categorify, FillMissing, Normalize]
FEW = ["bs", "c", "cats", "device", "items", "loss_func", "n", "one_batch", "path", "train", "valid", "vocab"]


def of_cats(names, *, n=40):
    rng = np.random.default_rng(0)
    data = {name: rng.integers(0, 3, n).astype(str) for name in names}
    df = pd.DataFrame(data | {"its number": rng.normal(size=n), "its target": rng.integers(0, 2, n).astype(float)})
    return RecDataLoaders.from_df(
        df, cat_names=list(names), cont_names=["its number"], y_names="its target", procs=PROCS, bs=16, seed=0
    )


def known_names():
    """Public names of fastai's and this library's loaders, frames and learners, and what fastai asks them for."""
    plain = of_cats(["one"])
    things = [DataLoaders, TfmdDL, Learner, RecLearner, TabularLoader, TabularFrame, TabularPandas, pd.DataFrame]
    things += [plain, plain.train, plain.train_ds, rec_learner(plain)]
    names = {name for thing in things for name in dir(thing) if not name.startswith("_")}
    return sorted({*names, *FEW})


def test_no_columns_name_is_an_attribute():
    names = known_names()
    assert len(names) > 300
    plain, named = of_cats(["one"]), of_cats(names)
    for part in (lambda dls: dls, lambda dls: dls.train, lambda dls: dls.train_ds, lambda dls: dls.train_ds.procs):
        want = {name for name in names if hasattr(part(plain), name)}
        assert {name for name in names if hasattr(part(named), name)} == want
    assert named.c == plain.c == 1
    assert named.classes["c"] == ["#na#", "0", "1", "2"]  # by its name it is found all the same


def test_any_name_may_be_a_category_a_number_a_target_a_list_or_a_vector():
    rng, n = np.random.default_rng(0), 24
    kinds = {
        "cat_names": lambda: rng.integers(0, 3, n).astype(str),
        "cont_names": lambda: rng.normal(size=n),
        "y_names": lambda: rng.normal(size=n),
        "list_names": lambda: [rng.integers(0, 3, k).astype(str).tolist() for k in rng.integers(0, 3, n)],
        "vector_names": lambda: [rng.normal(size=2) for _ in range(n)],
    }
    for name in FEW:
        for odd in kinds:
            names = {kind: name if kind == odd else f"the {kind}" for kind in kinds}
            df = pd.DataFrame({names[kind]: make() for kind, make in kinds.items()})
            dls = RecDataLoaders.from_df(df, procs=PROCS, bs=8, seed=0, **names)
            learn = rec_learner(dls, layers=[4])
            assert learn.model.to(dls.device)(*dls.one_batch()[:-1]).shape == (8, 1), (name, odd)


def test_a_model_of_columns_with_such_names_trains_and_predicts():
    dls = of_cats(FEW)
    learn = rec_learner(dls, layers=[4])
    with learn.no_bar(), learn.no_logging():
        learn.fit(1, 1e-3)
        row = dict.fromkeys(FEW, "1") | {"its number": 0.5}
        assert learn.predict(row)[2].shape == (1,)
    assert dls.test_dl(pd.DataFrame([row])).one_batch()[0].shape == (1, len(FEW))


def test_fastais_own_frame_whose_column_hides_the_number_of_outputs_is_named():
    df = pd.DataFrame({"c": list("abcd") * 4, "y": np.arange(16.0)})
    to = TabularPandas(df, [Categorify], ["c"], [], "y", splits=[list(range(12)), list(range(12, 16))])
    dls = to.dataloaders(bs=4)
    with pytest.raises(DataError, match=r"number of outputs cannot be told.*Pass n_out"):
        rec_learner(dls)
    batch = dls.one_batch()[:-1]  # fastai's loader takes it to the device that fastai prefers
    assert rec_learner(dls, n_out=1).model.to(batch[0].device)(*batch).shape == (4, 1)


def test_a_whole_number_of_any_kind_counts_outputs():
    dls = of_cats(["c"])
    assert rec_learner(dls, n_out=np.int64(3)).model.to(dls.device)(*dls.one_batch()[:-1]).shape == (16, 3)
    for odd in (0.5, -1):
        with pytest.raises(DataError, match="number of outputs"):
            rec_learner(dls, n_out=odd)


LABELS = {
    "spaces": ["a b", " a", "a "],
    "unicode": ["ä", "日本", "λ"],
    "empty": ["", "x", "y"],
    "case": ["A", "a", "Aa"],
    "numbers": [0, -1, 2.5],
    "a number and its text": [1, "1", "y"],
    "times": [pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-02"), "y"],
    "several levels": [("a", "x"), ("a", "y"), ("b", "x")],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_odd_labels_are_names_like_others(labels):
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"c": rng.integers(0, 3, 20).astype(str), "x": rng.normal(size=20), "y": rng.normal(size=20)})
    odd = df.set_axis(pd.Index(labels), axis=1)  # tuples make a MultiIndex
    plain, named = (
        TabularFrame(d, PROCS, [c], [x], [y], splits=[range(15), range(15, 20)])
        for d, (c, x, y) in ((df, df.columns), (odd, labels))
    )
    assert (list(named.cat_names), list(named.cont_names), list(named.y_names)) == tuple([n] for n in labels)
    for part in ("x_cat", "x_cont", "y"):
        assert getattr(named, part).equal(getattr(plain, part))
    assert list(named.items.columns) == list(named.decode().items.columns) == labels
    assert named.decode().items.to_numpy().tolist() == plain.decode().items.to_numpy().tolist()


def test_columns_of_one_name_are_refused():
    df = pd.DataFrame([["a", 1.0, 2.0]] * 4, columns=["a", "b", "b"])
    for names in ({"cont_names": ["b"]}, {"cat_names": ["a"], "y_names": "b"}):
        with pytest.raises(DataError, match="column 'b': several columns have this name"):
            TabularFrame(df, PROCS, **names)
    TabularFrame(df, PROCS, ["a"])  # what is not asked for does not matter


@pytest.mark.parametrize("kind", ["cat_names", "cont_names", "list_names", "y_names"])
def test_a_column_that_has_the_name_of_a_mark_of_missing_values_is_refused(kind):
    df = pd.DataFrame({"x": [1.0, np.nan, 3.0, 4.0], "x_na": [1.0, 2.0, 3.0, 4.0]})
    if kind == "cat_names":
        df["x_na"] = list("abcd")
    if kind == "list_names":
        df["x_na"] = [["a"]] * 4
    names = {"cont_names": ["x", "x_na"] if kind == "cont_names" else ["x"]}
    names |= {kind: ["x_na"]} if kind != "cont_names" else {}
    with pytest.raises(DataError, match=r"column 'x_na': FillMissing makes a column of this name.*add_col=False"):
        TabularFrame(df, PROCS, **names)
    to = TabularFrame(df, [Categorify, FillMissing(add_col=False), Normalize], **names)  # as the remedy says
    assert len(to.decode().items) == 4
    TabularFrame(df.fillna(2.0), PROCS, **names)  # nothing missing, no mark


def test_so_it_is_in_a_stream_of_files(tmp_path):
    df = pd.DataFrame({"x": [1.0, np.nan, 3.0, 4.0], "x_na": list("abcd"), "y": [0.0, 1.0, 0.0, 1.0]})
    df.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"column 'x_na': FillMissing makes a column of this name"):
        ParquetFrame(tmp_path / "a.parquet", procs=PROCS, cat_names=["x_na"], cont_names=["x"], y_names="y")
