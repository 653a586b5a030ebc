"""``Features`` among the procs equals ``features=``."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from fastrec.errors import DataError
from fastrec.features import CountEncode, Cross, FeatureSet, TargetEncode
from fastrec.table import load_state, save_state
from fastrec.tabular import Categorify, Features, FillMissing, Normalize, TabularFrame
from fastrec.tabular.procs.features import FeatureChain
from fastrec.tabular.procs.registry import as_procs, proc_from_state
from fastrec.training import rec_learner

SPLITS = (range(0, 90), range(90, 120))


def make(n=120):
    r = np.random.default_rng(0)
    df = pd.DataFrame({"city": r.choice(list("abcde"), n), "item": r.integers(0, 9, n), "x": r.normal(size=n)})
    df["y"] = (df["x"] + df["city"].isin(["a", "b"]) + r.normal(size=n) > 0.5).astype(float)
    df.index = np.arange(n)[::-1] * 3
    return df


def te(**options):
    return FeatureSet([TargetEncode("city", "y"), CountEncode("item")], **options)


def frame(procs, df=None, *, cats=("city",), **options):
    df = make() if df is None else df
    return TabularFrame(
        df, [Categorify, FillMissing, *procs, Normalize], list(cats), ["x"], "y", splits=SPLITS, **options
    )


@pytest.mark.parametrize("keep", ["all", "outputs", ["city"]])
def test_a_proc_is_what_the_argument_is(keep):
    want, got = frame([], features=te()), frame([Features(te(keep=keep))])
    assert list(got.cont_names) == list(want.cont_names) == ["x", "te_city__y", "count_item"]
    assert torch.equal(got.packed.buffer, want.packed.buffer)
    alone = te().fit_transform(make().iloc[:90])
    np.testing.assert_allclose(
        got.train.decode().items["te_city__y"], alone["te_city__y"].to_numpy(), rtol=1e-5
    )  # out of fold, for training rows alone
    test = make().head(7).drop(columns="y")
    for to in (want, got):
        new = to.new(test)
        new.process()
        np.testing.assert_allclose(
            new.decode().items["count_item"], make()["item"].head(90).value_counts()[test["item"]], rtol=1e-5
        )
    assert isinstance(got.features, FeatureSet)


def test_the_argument_may_leave_columns_out_of_its_result_too():
    assert torch.equal(frame([], features=te(keep="outputs")).packed.buffer, frame([], features=te()).packed.buffer)


@pytest.mark.parametrize("split", ["procs", "both"])
def test_several_go_one_after_the_other(split):
    first = lambda: FeatureSet([Cross("city", "item")], keep="outputs")  # noqa: E731
    second = lambda: FeatureSet([CountEncode("city_x_item")])  # noqa: E731
    if split == "procs":
        got = frame([Features(first()), Features(second())])
    else:
        got = frame([Features(second())], features=first())
    want = frame([], features=FeatureSet([Cross("city", "item"), CountEncode("city_x_item")]))
    assert isinstance(got.features, FeatureChain)
    assert list(got.cont_names) == list(want.cont_names)
    assert torch.equal(got.packed.buffer, want.packed.buffer)
    assert got.features.outputs == ["city_x_item", "count_city_x_item"]
    assert got.features.inputs == got.features.fit_inputs == ["city", "item"]
    test = [to.new(make().head(5)) for to in (got, want)]
    for to in test:
        to.process()
    assert torch.equal(test[0].packed.buffer, test[1].packed.buffer)


def test_outputs_that_are_no_numbers_are_used_where_they_are_named():
    to = frame([Features(FeatureSet([Cross("city", "item")]))], cats=["city", "city_x_item"])
    pairs = make().head(90)[["city", "item"]].drop_duplicates()
    assert len(to.classes["city_x_item"]) == 1 + len(pairs)


def test_every_frame_library(df_module):
    df = make().reset_index(drop=True)
    got = frame([Features(te(keep="outputs"))], df_module.frame({n: df[n].tolist() for n in df}))
    torch.testing.assert_close(got.x_cont.cpu(), frame([Features(te())], df).x_cont.cpu(), atol=1e-6, rtol=1e-6)


def test_another_frames_procs_bring_their_features():
    want = frame([Features(te())])
    again = TabularFrame(make(), want.procs, ["city"], ["x"], "y", splits=SPLITS, features=want.features)
    assert again.features is want.features
    assert torch.equal(again.packed.buffer, want.packed.buffer)


def test_they_go_first_and_what_is_none_is_refused():
    assert [type(p) for p in as_procs([Normalize, Features(te()), Features(te())])][:2] == [Features, Features]
    with pytest.raises(DataError, match=r"7 is no set of features: it has no fit_transform.*Give a FeatureSet"):
        Features(7)


def test_a_learner_trains_predicts_and_is_exported(tmp_path):
    from fastai.learner import load_learner

    learn = rec_learner(frame([Features(te())]).dataloaders(bs=16, device="cpu", path=tmp_path), layers=[4])
    row = {"city": "a", "item": 3, "x": 0.5}
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)
        want = learn.predict(row)[2]
        unseen = learn.predict({"city": "zz", "item": None, "x": None})[2]
        learn.export()
        again = load_learner(tmp_path / "export.pkl")
        with again.no_bar():
            assert torch.equal(again.predict(row)[2], want)
    assert unseen.isfinite().all()


def test_in_a_stream(tmp_path):
    from fastrec.tabular import ParquetFrame

    df = make().reset_index(drop=True)
    df.to_parquet(tmp_path / "a.parquet")
    got = ParquetFrame(
        tmp_path / "a.parquet", procs=[Categorify, FillMissing, Normalize, Features(te())], cat_names=["city"],
        cont_names=["x"], y_names="y",
    )  # fmt: skip
    want = TabularFrame(df, [Categorify, FillMissing, Normalize], ["city"], ["x"], "y", features=te())
    rows = [b[1] for b in got.dataloaders(bs=120, shuffle=False, drop_last=False, device="cpu").train]
    torch.testing.assert_close(torch.cat(rows), want.x_cont.cpu(), atol=1e-5, rtol=1e-5)


def test_state_comes_back(tmp_path):
    proc = Features(te())
    proc.feature_set.fit(make())
    save_state(tmp_path / "s", proc.to_state())
    again = proc_from_state(load_state(tmp_path / "s"))
    assert type(again) is Features
    test = make().drop(columns="y")
    pd.testing.assert_frame_equal(again.feature_set.transform(test), proc.feature_set.transform(test))


class Twice:
    outputs = ("twice",)

    def fit_transform(self, df):
        return self.transform(df)

    def transform(self, df):
        return df.assign(twice=df["x"] * 2)


def test_what_is_no_feature_set_works_but_cannot_be_restored():
    to = frame([Features(Twice())])
    np.testing.assert_allclose(to.decode().items["twice"], 2 * make()["x"], atol=1e-5)
    state = Features(Twice()).to_state()
    assert state == {"kind": "Features", "outputs": ["twice"]}
    with pytest.raises(DataError, match="Make them anew"):
        proc_from_state(state)
