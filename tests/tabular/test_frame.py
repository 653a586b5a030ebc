from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback import schedule  # noqa: F401  (gives learners fit_one_cycle and lr_find)
from fastai.data.block import CategoryBlock, MultiCategoryBlock, RegressionBlock
from fastai.data.transforms import RandomSplitter
from fastai.losses import BCEWithLogitsLossFlat
from fastai.tabular.core import Categorify, FillMissing, Normalize, TabularPandas
from fastai.tabular.learner import tabular_learner

from fastrec.errors import DataError, DataWarning, MissingColumnError, MissingFileError
from fastrec.features import CountEncode, Cross, FeatureSet, HashEncode, NaNPattern
from fastrec.table import Table
from fastrec.tabular import TabularFrame

CATS, CONTS = ["word", "small", "flag"], ["gappy", "whole", "normal"]
PROCS = [Categorify, FillMissing, Normalize]


def make(n=400, seed=0, *, missing=True):
    r = np.random.default_rng(seed)
    df = pd.DataFrame(
        {
            "word": r.choice(list("abcde"), n),
            "small": r.integers(-2, 5, n),
            "flag": r.random(n) < 0.4,
            "gappy": r.normal(5, 3, n),
            "whole": r.integers(0, 100, n),
            "normal": r.normal(size=n).astype("float32"),
            "unused": r.choice(["p", "q"], n),
        }
    )
    df["label"] = np.where(df["whole"] + 5 * df["gappy"] + r.normal(0, 5, n) > 75, "yes", "no")
    df["price"] = 0.1 * df["whole"] + df["normal"].astype("float64")
    if missing:
        df.loc[r.random(n) < 0.1, "gappy"] = np.nan
        df.loc[r.random(n) < 0.05, "word"] = np.nan
    return df


def build(cls, df, y="label", block=CategoryBlock, procs=PROCS, **options):
    if "splits" not in options:
        options["splits"] = RandomSplitter(seed=1)(df)
    return cls(df, list(procs), list(CATS), list(CONTS), y, y_block=block, **options)


def processed(to, df):
    new = to.new(df)
    new.process()
    return new


def trained(dls):
    learn = tabular_learner(dls, layers=[4])
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1)
    return learn


@pytest.fixture(scope="module")
def pair():
    df = make()
    return df, build(TabularPandas, df, reduce_memory=False), build(TabularFrame, df)


def test_rows_and_columns_are_picked_as_from_fastais(pair):
    _, stock, ours = pair
    assert ours.valid.targ.index.tolist() == stock.valid.targ.index.tolist()
    assert set(ours.valid.all_cols.columns) == set(stock.valid.all_cols.columns)
    np.testing.assert_array_equal(ours.iloc[[3, 1]].cats, stock.iloc[[3, 1]].cats)
    np.testing.assert_array_equal(ours.loc[ours.rows[:4].numpy(), "small"], stock.loc[ours.rows[:4].numpy(), "small"])
    np.testing.assert_array_equal(ours.iloc[:3, "small"], stock.iloc[:3, "small"].items)
    np.testing.assert_array_equal(ours[["word"]], stock[["word"]])


def test_a_column_first_missing_at_test_time_is_filled():
    df = make(200)
    ours = build(TabularFrame, df)
    test = df.head(3).copy()
    test["normal"], test["word"] = np.nan, "never seen"
    new = processed(ours, test)
    median = df.loc[ours.train.rows.numpy(), "normal"].median()
    assert list(new.cat_names) == list(ours.cat_names)
    np.testing.assert_allclose(new.decode().items["normal"], median, rtol=1e-6)
    assert new.decode().items["word"].tolist() == ["#na#"] * 3
    stock = build(TabularPandas, df).new(test)
    with pytest.raises(AssertionError, match="nan values"):
        stock.process()


def test_a_constant_column_is_zero_and_an_empty_one_is_filled():
    df = pd.DataFrame({"same": [1e8 + 0.1] * 5, "void": [np.nan] * 5, "y": [0.0] * 5})
    ours = TabularFrame(df, PROCS, [], ["same", "void"], "y")
    assert ours.x_cont.abs().max() == 0
    assert list(ours.cat_names) == ["void_na"]
    assert ours.x_cat.flatten().tolist() == [2] * 5
    assert list(ours.classes["void_na"]) == ["#na#", False, True]


@pytest.mark.parametrize(
    ("values", "block", "dtype"),
    [
        ([1.5, 2.5], None, torch.float64),
        (np.float32([1.5, 2.5]), None, torch.float32),
        ([1, 2], None, torch.int64),
        ([1, 2], CategoryBlock, torch.int64),
        ([True, False], None, torch.int64),
        ([True, False], RegressionBlock, torch.float32),
    ],
)
def test_targets_keep_their_dtype(values, block, dtype):
    to = TabularFrame({"x": [1.0, 2.0], "y": values}, None, None, "x", "y", y_block=block)
    assert to.y.dtype == dtype
    assert to.y.shape == (2, 1)


def test_targets_that_cannot_be_are_named():
    df = pd.DataFrame({"x": [1.0, 2, 3, 4], "y": ["a", "b", "c", None], "i": [3, 0.5, 1, 1], "j": [3, np.inf, 1, 1]})
    both, block = ["i", "j"], MultiCategoryBlock(encoded=True, vocab=["i", "j"])
    for words, y, options in (
        ("column 'i', row 1: the whole-number target is 0.5", "i", {"y_dtype": torch.int64}),
        ("column 'j', row 1: the whole-number target is inf", "j", {"y_dtype": torch.int64}),
        ("column 'y', row 2: the target 'c' is not among", "y", {"splits": ([0, 1], [2])}),
        ("row 3: the target is missing", "y", {"splits": ([1, 2, 3], [0])}),
        ("'i', row 0: .* takes 0 and 1, and this one is 3.*a column for each", both, {"y_block": block}),
        ("lists of classes", "y", {"y_block": MultiCategoryBlock}),
    ):
        with pytest.raises(DataError, match=words):
            TabularFrame(df, None, None, "x", y, **options)
    block = CategoryBlock(vocab=["c", "a", "b"], sort=False)
    to = TabularFrame(df, None, None, "x", "y", splits=([0, 1], [2]), y_block=block)
    assert to.ys["y"].tolist() == [1, 2, 0]
    assert list(to.vocab) == ["c", "a", "b"]


def test_the_dtypes_can_be_chosen_and_setup_can_wait():
    data = {"c": [1, 2, 1, 2], "x": [1.0, 2.0, 3.0, 4.0], "a": list("pqpq"), "b": list("qqpp")}
    options = {"splits": ([1, 0], [2]), "cat_dtype": torch.int64, "do_setup": False}
    to = TabularFrame(data, Categorify, "c", "x", ["a", "b"], **options)
    assert "raw" in repr(to)
    assert (len(to), to.split, len(to.train), len(to.valid)) == (3, 2, 2, 1)
    to.setup()
    assert to.rows.tolist() == [1, 0, 2]
    assert to.ys.to_numpy().tolist() == [[1, 1], [0, 1], [0, 0]]  # two targets of one vocabulary
    assert to.decode().items["b"].tolist() == ["q", "q", "p"]
    assert [t.dtype for t in to.packed.views] == [torch.int64, torch.float32, torch.int64]


def test_no_target_and_an_empty_one_are_absent_and_the_callers_lists_and_frame_are_left_alone():
    df, cats = make(60), list(CATS)
    kept, none = df.copy(), TabularFrame(df, PROCS, cats, CONTS, inplace=True)
    assert none.y is None
    assert [tuple(t.shape) for t in none.dataloaders(bs=8, device="cpu").one_batch()] == [(8, 4), (8, 3)]
    to = processed(build(TabularFrame, df), df.assign(label=None))
    assert to.y is None
    assert list(to.all_col_names) == list(to.x_names)
    with pytest.raises(MissingColumnError, match="no targets"):
        _ = to.ys
    pd.testing.assert_frame_equal(df, kept)
    assert cats == CATS


def test_many_labels_at_once():
    df = make(60)
    df["l1"], df["l2"] = (df["whole"] > 50).astype(int), df["flag"]
    block = MultiCategoryBlock(encoded=True, vocab=["l1", "l2"])
    to = TabularFrame(df, PROCS, CATS, CONTS, ["l1", "l2"], y_block=block)
    assert (to.y.dtype, to.c) == (torch.float32, 2)
    assert to.decode().items["l1"].tolist() == (df["l1"] == 1).tolist()
    assert isinstance(trained(to.dataloaders(bs=16, device="cpu")).loss_func, BCEWithLogitsLossFlat)


def test_categorical_order_and_unused_target_classes_follow_fastai():
    k = pd.Categorical(["lo", "hi", "lo"], categories=["lo", "mid", "hi"], ordered=True)
    df = pd.DataFrame({"k": k, "x": [1.0, 2, 3], "y": k})
    ours, stock = (c(df, [Categorify], ["k"], ["x"], "y") for c in (TabularFrame, TabularPandas))
    assert list(ours.classes["k"]) == list(stock.classes["k"]) == ["#na#", "lo", "mid", "hi"]
    assert list(ours.vocab) == list(stock.vocab) == ["lo", "hi"]
    np.testing.assert_array_equal(ours.cats, stock.cats)
    assert ours.ys["y"].tolist() == [0, 1, 0]  # fastai keeps the categorical's own codes here: 0, 2, 0 for 2 classes


def same_rows(got, want):
    for a, b in zip(got.packed.views, want.packed.views, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu(), atol=1e-6, rtol=1e-6)


def test_every_frame_library_gives_the_same(df_module):
    df, splits = make(60), (range(40), range(40, 60))
    columns = {n: [None if pd.isna(v) else v for v in df[n].tolist()] for n in df}
    got = build(TabularFrame, df_module.frame(columns), splits=splits)
    same_rows(got, build(TabularFrame, df, splits=splits))


def test_files_tables_and_dicts_go_in(tmp_path):
    df = make(60)
    df.to_parquet(tmp_path / "a.parquet")
    df.to_csv(tmp_path / "a.csv", index=False)
    splits = (range(40), range(40, 60))
    want = build(TabularFrame, df, splits=splits)
    for source in (tmp_path / "a.parquet", str(tmp_path / "a.csv"), Table.read(df), {n: df[n].tolist() for n in df}):
        same_rows(build(TabularFrame, source, splits=splits), want)
    new = processed(want, tmp_path / "a.csv")
    assert torch.equal(new.x_cat, want.x_cat)
    with pytest.raises(MissingFileError):
        want.new(tmp_path / "b.csv")


def test_splits_of_every_form_and_those_that_cannot_be_meant():
    df = make(30)
    want = build(TabularFrame, df, splits=([5, 3, 8], [1, 0]))
    assert want.rows.tolist() == [5, 3, 8, 1, 0]
    assert want.x_cont.shape == (5, 3)
    for splits in ((np.array([5, 3, 8]), np.array([1, 0])), (torch.tensor([5, 3, 8]), torch.tensor([1, 0]))):
        assert torch.equal(build(TabularFrame, df, splits=splits).packed.buffer, want.packed.buffer)
    mask = np.arange(30) < 20
    both = ((mask, ~mask), (slice(20), slice(20, None)))
    by_mask, by_slice = (build(TabularFrame, df, splits=splits) for splits in both)
    assert torch.equal(by_mask.packed.buffer, by_slice.packed.buffer)
    assert by_slice.split == 20
    with pytest.raises(DataError, match="row 30, but there are 30"):
        build(TabularFrame, df, splits=([0], [30]))
    for splits in ([0, 1, 2], np.arange(3), torch.arange(3)):
        with pytest.raises(DataError, match="splits are row numbers themselves"):
            build(TabularFrame, df, splits=splits)
    for wrong, odd in (([0.5, 1.5], "0.5"), (["a"], "'a'"), ([None], "None"), ([0.0, np.nan], "nan")):
        with pytest.raises(DataError, match=f"splits are row numbers, and {odd} is none.*a mask or a slice"):
            build(TabularFrame, df, splits=(wrong, [2]))
    assert build(TabularFrame, df, splits=([0.0, 1.0], [])).rows.tolist() == [0, 1]
    with pytest.warns(DataWarning, match=r"2 rows are in training and in validation \(the first is row 3\)"):
        TabularFrame({"x": np.arange(6.0)}, cont_names="x", splits=([0, 1, 3, 4], [3, 4, 5]))


def test_features_that_are_codes_join_the_categories():
    df = make(100, missing=False)
    splits = (list(range(0, 100, 2)), list(range(1, 100, 2)))
    features = [Cross("word", "unused"), HashEncode("word", 4), NaNPattern(["gappy"]), CountEncode("word")]
    build_with = lambda procs, cats, conts: TabularFrame(  # noqa: E731
        df, procs, cats, conts, "label", splits=splits, features=FeatureSet(features)
    )
    to = build_with(PROCS, "word", ["normal"])
    assert list(to.cat_names) == ["word", "word_x_unused", "hash_word", "nan_pattern"]
    assert list(to.cont_names) == ["normal", "count_word"]
    both = df["word"] + df["unused"]
    assert len(to.classes["word_x_unused"]) == 1 + both.iloc[::2].nunique()
    places = dict(zip(sorted(both.iloc[::2].unique()), range(1, 99)))
    assert to.valid.x_cat[:, 1].tolist() == [places.get(pair, 0) for pair in both.iloc[1::2]]
    torch.testing.assert_close(processed(to, df.iloc[1::2]).x_cat, to.valid.x_cat)
    to = build_with(PROCS, [], ["normal", "hash_word"])  # as was asked
    assert list(to.cont_names) == ["normal", "hash_word", "count_word"]
    assert not build_with([FillMissing, Normalize], [], ["normal"]).cat_names  # nothing numbers categories


def test_groups_are_numbered_and_follow_the_rows():
    df = make(40)
    df["session"] = np.repeat(np.arange(10), 4)
    to = build(TabularFrame, df, splits=(range(4, 40), range(4)), groups=["session"])
    assert to.groups.shape == (40,)
    assert to.valid.groups.unique().numel() == 1
    assert to.iloc[[0, 1, 35]].groups.tolist() == to.groups[[0, 1, 35]].tolist()
    test = processed(to, df.drop(columns="session"))
    assert test.groups is None
    with pytest.raises(DataError, match="'session', row 7: a row does not say"):
        build(TabularFrame, df.assign(session=df["session"].where(df.index != 7)), groups="session")


@pytest.mark.parametrize("n", [0, 1])
def test_empty_frames_and_single_rows(n):
    df = make(20).head(n)
    to = TabularFrame(df, PROCS, CATS, CONTS, "price")
    assert len(to) == to.x_cat.shape[0] == to.x_cont.shape[0] == n
    assert to.x_cont.abs().sum() == 0
    dls = to.dataloaders(bs=4, device="cpu", shuffle=False)
    assert [len(b[0]) for b in dls.train] == [1] * n
    assert len(to.decode().items) == n


def test_without_categorify_codes_and_flags_pass_as_they_are():
    to = TabularFrame({"c": [3, 1], "x": [0.5, np.nan], "y": [1.0, 2.0]}, None, "c", "x", "y")
    assert to.x_cat.tolist() == [[3], [1]]
    assert to.x_cont[:, 0].isnan().tolist() == [False, True]
    assert to.decode().items["c"].tolist() == [3, 1]
    with pytest.raises(DataError, match="Add Categorify"):
        TabularFrame({"c": ["a"]}, None, "c")
    to = TabularFrame({"x": [0.5, np.nan]}, FillMissing, None, "x")
    assert to.x_cat.tolist() == [[0], [1]]
    assert to.x_cont.flatten().tolist() == [0.5, 0.5]


def test_a_column_that_cannot_be_used_is_named(pair):
    df, _, ours = pair
    for names, error, match in (
        ((["nowhere"], ["whole"], ["price"]), MissingColumnError, "'nowhere'"),
        ((["word"], ["nowhere"], ["price"]), MissingColumnError, "'nowhere'"),
        ((["word"], ["whole"], ["nowhere"]), MissingColumnError, "'nowhere'"),
        ((["word", "small"], ["small"]), DataError, "named twice"),
        ((["word"], ["small", "price"], "price"), DataError, "'price': the target is among the columns to predict it"),
    ):
        with pytest.raises(error, match=match):
            TabularFrame(df, PROCS, *names)
    dls = ours.dataloaders(device="cpu")
    with pytest.raises(MissingColumnError, match="'whole'"):
        dls.test_dl(df.drop(columns="whole"))
    with pytest.raises(DataError, match="'small'"):
        dls.test_dl(df.assign(small=df["small"].astype(str) + "x"))


def test_procs_of_one_frame_serve_another(pair):
    df, _, ours = pair
    again = build(TabularFrame, df, procs=pickle.loads(pickle.dumps(ours.procs)).fs)
    assert torch.equal(again.packed.buffer, ours.packed.buffer)


def test_prepared_rows_can_go_in_without_processing(pair):
    _, _, ours = pair
    dl = ours.dataloaders(bs=64, device="cpu").test_dl(ours.valid.items, process=False)
    assert torch.equal(dl.dataset.x_cat, ours.valid.x_cat)
    torch.testing.assert_close(dl.dataset.x_cont, ours.valid.x_cont)
    assert dl.dataset.decode().items["word"].tolist() == ours.valid.decode().items["word"].tolist()


def test_setters_write_into_the_rows(pair):
    _, _, ours = pair
    to = ours.copy()
    to.conts = to.conts.astype("float64") + 1
    torch.testing.assert_close(to.x_cont, ours.x_cont + 1)
    to.xs = ours.xs
    to.cats = ours.cats
    assert torch.equal(to.packed.buffer, ours.packed.buffer)
    with pytest.raises(DataError, match="ContProc"):
        to.transform(["word"], str)
    assert to.to_device("cpu") is to
    assert build(TabularFrame, pair[0], device="cpu").x_cat.device.type == "cpu"


def test_an_exported_learner_holds_no_rows(tmp_path):
    sizes = []
    for n in (300, 30000):
        df = make(n, missing=False)
        learn = tabular_learner(build(TabularFrame, df).dataloaders(bs=64, device="cpu", path=tmp_path), layers=[8])
        learn.export()
        sizes.append((tmp_path / "export.pkl").stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 2000
    assert sizes[1] < 100_000
