"""``RecDataLoaders`` beside fastai's ``TabularDataLoaders`` on the same data."""

from __future__ import annotations

import copy
import io

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.data.block import CategoryBlock
from fastai.learner import load_learner
from fastai.tabular.core import Categorify, FillMissing, Normalize
from fastai.tabular.core import cont_cat_split as fastai_split
from fastai.tabular.data import TabularDataLoaders

from fastrec.errors import DataError, MissingColumnError, MissingFileError, UnreadableFileError
from fastrec.features import CountEncode, FeatureSet
from fastrec.tabular import RecDataLoaders, TabularFrame
from fastrec.tabular.dataloaders import cont_cat_split
from fastrec.training import rec_learner

PROCS = [Categorify, FillMissing, Normalize]


def make(n=200, seed=0):
    r = np.random.default_rng(seed)
    df = pd.DataFrame(
        {
            "word": r.choice(list("abc"), n),
            "few": r.integers(0, 4, n),
            "many": r.integers(0, 1000, n),
            "flag": r.random(n) < 0.5,
            "real": r.normal(size=n),
            "session": np.arange(n) // 5,
        }
    )
    df.loc[::9, "real"] = np.nan
    df["label"] = np.where(df["many"] > 500, "yes", "no")
    return df


def both(df, **options):
    """Fastai's and ours, each given its own lists and the same state of torch's generator."""
    found = []
    for cls in (TabularDataLoaders, RecDataLoaders):
        torch.manual_seed(5)
        copied = {k: list(v) if isinstance(v, list) else v for k, v in options.items()}
        found.append(cls.from_df(df, procs=list(PROCS), y_names="label", device="cpu", **copied))
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
    for a, b in zip(ours.valid, stock.valid, strict=True):
        assert torch.equal(a[0].long(), b[0])


def test_a_csv_file_gives_what_fastai_makes_of_it(tmp_path):
    make().to_csv(tmp_path / "plain.csv", index=False)
    lines = (tmp_path / "plain.csv").read_text().replace(",", ", ")
    (tmp_path / "spaced.csv").write_text(lines)
    names = {"cat_names": ["word", "few", "flag"], "cont_names": ["many", "real"], "y_names": "label", "bs": 8}
    for source in (tmp_path / "plain.csv", str(tmp_path / "spaced.csv")):
        found = [
            cls.from_csv(source, procs=list(PROCS), valid_idx=range(20), device="cpu", **copy.deepcopy(names))
            for cls in (TabularDataLoaders, RecDataLoaders)
        ]
        np.testing.assert_array_equal(found[1].train_ds.cats, found[0].train_ds.cats)
        np.testing.assert_allclose(found[1].train_ds.conts, found[0].train_ds.conts.astype("float64"), atol=1e-5)
        assert list(found[1].vocab) == list(found[0].vocab)
    kept = RecDataLoaders.from_csv(io.StringIO(lines), skipinitialspace=False, cont_names=[" many"], y_names=" label")
    assert list(kept.vocab) == [" no", " yes"]


def test_a_csv_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"nowhere\.csv"):
        RecDataLoaders.from_csv(tmp_path / "nowhere.csv", y_names="y")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UnreadableFileError, match=r"empty\.csv"):
        RecDataLoaders.from_csv(tmp_path / "empty.csv", y_names="y")


def test_frames_of_every_library_and_paths(df_module, tmp_path):
    df = make(60)
    want = RecDataLoaders.from_df(df, procs=PROCS, y_names="label", valid_idx=range(9), device="cpu")
    frame = df_module.frame({n: [None if pd.isna(v) else v for v in df[n].tolist()] for n in df})
    df.to_parquet(tmp_path / "a.parquet")
    for source in (frame, tmp_path / "a.parquet"):
        got = RecDataLoaders.from_df(source, procs=PROCS, y_names="label", valid_idx=range(9), device="cpu")
        assert list(got.cat_names) == list(want.cat_names)
        assert list(got.cont_names) == list(want.cont_names)
        assert torch.equal(got.train_ds.x_cat.cpu(), want.train_ds.x_cat.cpu())
        torch.testing.assert_close(got.train_ds.x_cont.cpu(), want.train_ds.x_cont.cpu())


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


@pytest.mark.parametrize("seed", [None, 3])
def test_with_no_names_all_inputs_are_found(seed):
    dls = RecDataLoaders.from_df(make(), procs=PROCS, y_names=["label"], groups="session", seed=seed, device="cpu")
    assert list(dls.cont_names) == ["many", "real"]
    assert list(dls.cat_names) == ["word", "few", "flag", "real_na"]


def test_with_only_one_kind_named_the_rest_is_as_in_fastai():
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
    dls = RecDataLoaders.from_df(
        df, tmp_path, procs=PROCS, cat_names="few", cont_names="real", y_names="label", y_block=CategoryBlock,
        features=FeatureSet([CountEncode("word")]), seed=0, cat_dtype=torch.int64, device="cpu",
    )  # fmt: skip
    assert list(dls.cont_names) == ["real", "count_word"]
    assert dls.one_batch()[0].dtype == torch.int64
    counts = df["word"].iloc[dls.train_ds.rows.numpy()].value_counts()
    test = dls.test_dl(df.head(3).drop(columns="label")).dataset.decode().items
    np.testing.assert_allclose(test["count_word"], df["word"].head(3).map(counts), rtol=1e-5)
    learn = rec_learner(dls, layers=[4])
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)
        want = learn.predict(df.iloc[0])[2]
        learn.export()
        again = load_learner(tmp_path / "export.pkl")
        assert type(again.dls) is RecDataLoaders
        with again.no_bar():
            assert torch.equal(again.predict(df.iloc[0].drop("label"))[2], want)
    assert want.shape == (2,)


def test_weights_and_columns_and_rows_that_are_not_there():
    df = make(50)
    dls = RecDataLoaders.from_df(
        df, y_names="label", cont_names="many", valid_idx=range(10), wgts=[0.0] * 39 + [1.0], bs=8, device="cpu"
    )
    assert {v for b in dls.train for v in b[1].flatten().tolist()} == {float(df["many"][49])}
    with pytest.raises(MissingColumnError, match="'nowhere'"):
        RecDataLoaders.from_df(df, y_names="label", cont_names="nowhere")
    with pytest.raises(DataError, match="row 50"):
        RecDataLoaders.from_df(df, y_names="label", cont_names="many", valid_idx=[50])
