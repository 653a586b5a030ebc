from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.data.block import CategoryBlock
from fastai.data.core import TfmdDL
from fastai.learner import load_learner
from fastai.tabular.core import Categorify, FillMissing, Normalize, TabularPandas
from fastai.tabular.core import cont_cat_split as fastai_split
from fastai.tabular.data import TabularDataLoaders

from fastrec.errors import DataError, MissingColumnError
from fastrec.features import CountEncode, FeatureSet
from fastrec.tabular import ParquetFrame, RecDataLoaders, TabularFrame
from fastrec.tabular.dataloaders import cont_cat_split
from fastrec.tabular.packed import Layout, Packed
from fastrec.training import rec_learner
from tests.tabular.test_frame import make as rows_of
from tests.training.helpers import quiet_fit

PROCS = [Categorify, FillMissing, Normalize]


def make(n=200):
    df = rows_of(n, missing=False).rename(columns={"small": "few", "whole": "many", "gappy": "real"})
    df.loc[::9, "real"] = np.nan
    return df.assign(session=np.arange(n) // 5)[["word", "few", "many", "flag", "real", "session", "label"]]


def both(source, by="from_df", **options):
    """Fastai's and ours, each given its own lists and the same state of torch's generator."""
    found = []
    for cls in (TabularDataLoaders, RecDataLoaders):
        torch.manual_seed(5)
        make, own = getattr(cls, by), copy.deepcopy({"procs": PROCS, **options})
        found.append(make(source, y_names="label", device="cpu", **own))
    return found


@pytest.mark.parametrize("valid", [None, [3, 1, 150]])
def test_rows_codes_and_numbers_are_fastais(valid, tmp_path):
    names = {"cat_names": ["word", "few"], "cont_names": ["many", "real"]}
    stock, ours = both(make(), path=tmp_path, bs=16, val_bs=8, valid_idx=valid, **names)
    assert type(ours) is RecDataLoaders
    assert isinstance(ours.train_ds, TabularFrame)
    about = [(d.path, d.bs, d.valid.bs, len(d.train), len(d.valid)) for d in (ours, stock)]
    assert about[0] == about[1]
    assert list(ours.cat_names) == list(stock.cat_names) == ["word", "few", "real_na"]
    for a, b in ((ours.train_ds, stock.train_ds), (ours.valid_ds, stock.valid_ds)):
        assert a.rows.tolist() == b.items.index.tolist()
        np.testing.assert_array_equal(a.cats, b.cats)
        np.testing.assert_array_equal(a.ys, b.ys)
        np.testing.assert_allclose(a.conts, b.conts.astype("float64"), atol=1e-5)


def test_a_csv_file_gives_what_fastai_makes_of_it(tmp_path):
    make().to_csv(tmp_path / "plain.csv", index=False)
    lines = (tmp_path / "plain.csv").read_text().replace(",", ", ")
    (tmp_path / "spaced.csv").write_text(lines)
    names = {"cat_names": ["word", "few", "flag"], "cont_names": ["many", "real"]}
    for source in (tmp_path / "plain.csv", str(tmp_path / "spaced.csv")):
        stock, ours = both(source, "from_csv", bs=8, valid_idx=range(20), **names)
        np.testing.assert_array_equal(ours.train_ds.cats, stock.train_ds.cats)
        np.testing.assert_allclose(ours.train_ds.conts, stock.train_ds.conts.astype("float64"), atol=1e-5)
        assert list(ours.vocab) == list(stock.vocab)
    kept = RecDataLoaders.from_csv(io.StringIO(lines), skipinitialspace=False, cont_names=[" many"], y_names=" label")
    assert list(kept.vocab) == [" no", " yes"]


def test_columns_are_told_apart_as_fastai_does():
    df = make(300)
    df["huge"] = np.arange(300, dtype="uint64") + (1 << 63)
    df["tiny"] = pd.Series(np.arange(300) % 7, dtype="uint8")
    df["kind"] = pd.Categorical(df["few"])
    df["whole"] = np.float32(1.0)
    for max_card in (3, 20, 5000):
        assert cont_cat_split(df, max_card, "label") == fastai_split(df, max_card, "label")
    beyond = df.assign(when=pd.Timestamp("2020-01-01"), parts=[[1, 2]] * 300)[["when", "parts", "word"]]
    assert cont_cat_split(beyond) == (["when"], ["word"])


def test_with_no_names_all_inputs_are_found_and_with_one_kind_named_the_rest_is_as_in_fastai():
    dls = RecDataLoaders.from_df(make(), procs=PROCS, y_names=["label"], groups="session", device="cpu")
    assert list(dls.cont_names) == ["many", "real"]
    assert list(dls.cat_names) == ["word", "few", "flag", "real_na"]
    df = make().drop(columns=["word"])
    ours = RecDataLoaders.from_df(df, procs=PROCS, cat_names=["few", "flag"], y_names="label")
    assert set(ours.cont_names) == set(df) - {"few", "flag"} - {"label"}  # as fastai writes it, in no order
    assert list(ours.cont_names) == ["many", "real", "session"]
    ours = RecDataLoaders.from_df(df, procs=PROCS, cont_names=["real"], y_names="label")
    assert list(ours.cat_names) == ["real_na"]
    with pytest.raises(DataError, match="'word'"):
        RecDataLoaders.from_df(make(), cat_names=["few"], y_names="label")


def test_a_seed_fixes_split_and_order_and_nothing_else():
    def rows(seed):
        before = torch.get_rng_state()
        dls = RecDataLoaders.from_df(make(), y_names="label", cont_names="many", seed=seed, bs=32, device="cpu")
        assert torch.equal(torch.get_rng_state(), before)
        return dls.valid_ds.rows.tolist(), [b[1].flatten().tolist() for b in dls.train]

    assert rows(4) == rows(4)
    assert rows(4)[0] != rows(5)[0]
    torch.manual_seed(4)
    assert rows(4)[0] == torch.randperm(200)[:40].tolist()


@pytest.mark.parametrize("groups", ["session", ["word", "few"]])
def test_groups_stay_whole_in_the_split_and_in_batches(groups):
    df = make()
    dls = RecDataLoaders.from_df(df, procs=PROCS, y_names="label", groups=groups, seed=0, bs=20, device="cpu")
    keys = df[[groups] if isinstance(groups, str) else groups].apply(tuple, axis=1)
    sides = [set(keys.iloc[ds.rows.numpy()]) for ds in (dls.train_ds, dls.valid_ds)]
    assert not sides[0] & sides[1]
    assert len(sides[1]) == int(0.2 * keys.nunique())
    seen = []
    for _ in dls.train:
        batch = keys.iloc[dls.train_ds.rows[dls.train.batch_rows].numpy()]
        seen += list(dict.fromkeys(batch))
    assert sorted(seen) == sorted(sides[0])


@pytest.mark.parametrize("valid", [slice(5, 9), np.arange(200) // 4 == 1, torch.tensor([7, 5, 6])])
def test_validation_rows_of_every_form(valid):
    dls = RecDataLoaders.from_df(make(), y_names="label", cont_names="many", valid_idx=valid, device="cpu")
    want = np.arange(200)[valid.numpy() if isinstance(valid, torch.Tensor) else valid]
    assert dls.valid_ds.rows.tolist() == want.tolist()
    assert dls.train_ds.rows.tolist() == [i for i in range(200) if i not in want]


def test_features_and_frame_options_go_in_and_a_learner_trains(tmp_path):
    df = make()
    names = {"cat_names": "few", "cont_names": "real", "y_names": "label", "y_block": CategoryBlock}
    options = {"features": FeatureSet([CountEncode("word")]), "seed": 0, "cat_dtype": torch.int64, "device": "cpu"}
    dls = RecDataLoaders.from_df(df, tmp_path, procs=PROCS, **names, **options)
    assert list(dls.cont_names) == ["real", "count_word"]
    assert dls.one_batch()[0].dtype == torch.int64
    counts = df["word"].iloc[dls.train_ds.rows.numpy()].value_counts()
    test = dls.test_dl(df.head(3).drop(columns="label")).dataset.decode().items
    np.testing.assert_allclose(test["count_word"], df["word"].head(3).map(counts), rtol=1e-5)
    learn = quiet_fit(rec_learner(dls, layers=[4]), 1, by="fit")
    learn.export()
    again = load_learner(tmp_path / "export.pkl")
    assert type(again.dls) is RecDataLoaders
    unseen = {"few": None, "word": "zz", "real": None}
    with learn.no_bar(), again.no_bar():
        for row in (df.iloc[0].drop("label"), unseen):
            outputs = learn.predict(row)[2]
            assert torch.equal(again.predict(row)[2], outputs)
            assert outputs.isfinite().tolist() == [True, True]
    with pytest.raises(MissingColumnError, match="'nowhere'"):
        RecDataLoaders.from_df(df, y_names="label", cont_names="nowhere")
    with pytest.raises(DataError, match="row 200"):
        RecDataLoaders.from_df(df, **names, valid_idx=[200])


# Columns whose names mean something elsewhere, or are hardly names at all
FEW = ["bs", "c", "cats", "device", "items", "loss_func", "n", "one_batch", "path", "train", "valid", "vocab"]


def of_cats(names, *, n=40):
    rng = np.random.default_rng(0)
    data = {name: rng.integers(0, 3, n).astype(str) for name in names}
    df = pd.DataFrame(data | {"its number": rng.normal(size=n), "its target": rng.integers(0, 2, n).astype(float)})
    given = {"cat_names": list(names), "cont_names": ["its number"], "y_names": "its target"}
    return RecDataLoaders.from_df(df, **given, procs=PROCS, bs=16, seed=0)


def known_names():
    """Public names of fastai's and this library's loaders, frames and learners, and what fastai asks them for."""
    plain = of_cats(["one"])
    things = [TfmdDL, TabularPandas, pd.DataFrame, plain, plain.train, plain.train_ds, rec_learner(plain)]
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
    for name in ("c", "items", "loss_func", "train"):
        for odd in kinds:
            names = {kind: name if kind == odd else f"the {kind}" for kind in kinds}
            df = pd.DataFrame({names[kind]: make() for kind, make in kinds.items()})
            dls = RecDataLoaders.from_df(df, procs=PROCS, bs=8, seed=0, **names)
            learn = rec_learner(dls, layers=[4])
            assert learn.model.to(dls.device)(*dls.one_batch()[:-1]).shape == (8, 1), (name, odd)


def test_fastais_own_frame_whose_column_hides_the_number_of_outputs_is_named():
    df = pd.DataFrame({"c": list("abcd") * 4, "y": np.arange(16.0)})
    to = TabularPandas(df, [Categorify], ["c"], [], "y", splits=[list(range(12)), list(range(12, 16))])
    dls = to.dataloaders(bs=4)
    with pytest.raises(DataError, match=r"number of outputs cannot be told.*Pass n_out"):
        rec_learner(dls)
    batch = dls.one_batch()[:-1]  # fastai's loader takes it to the device that fastai prefers
    assert rec_learner(dls, n_out=np.int64(3)).model.to(batch[0].device)(*batch).shape == (4, 3)
    for odd in (0.5, -1):
        with pytest.raises(DataError, match="number of outputs"):
            rec_learner(dls, n_out=odd)


LABELS = [
    *(["a b", " a", "a "], ["ä", "日本", "λ"], ["", "x", "y"], ["A", "a", "Aa"], [0, -1, 2.5], [1, "1", "y"]),
    [pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-02"), "y"],
    [("a", "x"), ("a", "y"), ("b", "x")],  # several levels
]


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_odd_labels_are_names_like_others(labels):
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"c": rng.integers(0, 3, 20).astype(str), "x": rng.normal(size=20), "y": rng.normal(size=20)})
    odd = df.set_axis(pd.Index(labels), axis=1)  # tuples make a MultiIndex
    splits, given = [range(15), range(15, 20)], ((df, df.columns), (odd, labels))
    plain, named = (TabularFrame(d, PROCS, [c], [x], [y], splits=splits) for d, (c, x, y) in given)
    assert (list(named.cat_names), list(named.cont_names), list(named.y_names)) == tuple([n] for n in labels)
    for part in ("x_cat", "x_cont", "y"):
        assert getattr(named, part).equal(getattr(plain, part))
    assert list(named.items.columns) == list(named.decode().items.columns) == labels
    assert named.decode().items.to_numpy().tolist() == plain.decode().items.to_numpy().tolist()


@pytest.mark.parametrize("kind", ["cat_names", "cont_names", "list_names", "y_names"])
def test_a_column_that_has_the_name_of_a_mark_of_missing_values_is_refused(kind, tmp_path):
    marks = {"cat_names": list("abcd"), "list_names": [["a"]] * 4}.get(kind, [1.0, 2.0, 3.0, 4.0])
    df = pd.DataFrame({"x": [1.0, np.nan, 3.0, 4.0], "x_na": marks})
    names = {"cont_names": ["x"], kind: ["x", "x_na"] if kind == "cont_names" else ["x_na"]}
    with pytest.raises(DataError, match=r"column 'x_na': FillMissing makes a column of this name.*add_col=False"):
        TabularFrame(df, PROCS, **names)
    to = TabularFrame(df, [Categorify, FillMissing(add_col=False), Normalize], **names)  # as the remedy says
    assert len(to.decode().items) == 4
    TabularFrame(df.fillna(2.0), PROCS, **names)  # nothing missing, no mark
    if kind == "cat_names":  # of a stream of files, too
        df.to_parquet(tmp_path / "a.parquet")
        with pytest.raises(DataError, match=r"column 'x_na': FillMissing makes a column of this name"):
            ParquetFrame(tmp_path / "a.parquet", procs=PROCS, **names)


def test_slices_share_memory_and_are_saved_without_the_rest():
    packed = Packed.of(torch.arange(6000).reshape(3000, 2), torch.zeros(3000, 1), None, Layout(2, 1))
    part = packed.rows(1, 3)
    part.views[0][0, 0] = 77
    assert packed.views[0][1].tolist() == [77, 3]
    saved = pickle.dumps(part)
    assert len(saved) < 3000
    assert pickle.loads(saved).views[0].tolist() == [[77, 3], [4, 5]]
    assert packed.on(torch.device("cpu")) is packed
    assert packed.on(torch.device("meta")) is packed.on(torch.device("meta"))
