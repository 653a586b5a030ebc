from __future__ import annotations

import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.data.transforms import Normalize as FastaiNormalize
from fastai.tabular.core import Categorify as FastaiCategorify
from fastai.tabular.core import FillMissing as FastaiFillMissing
from fastai.tabular.core import FillStrategy, TabularProc
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from fastrec.errors import DataError, DataWarning, MissingColumnError, NotFittedError
from fastrec.features import Combine, CountEncode, Cross, FeatureSet, GroupStats, Lag, TargetEncode
from fastrec.table import ClassList, Table, Vocab, load_state, save_state
from fastrec.tabular import (
    Categorify,
    Features,
    FillMissing,
    LogTransform,
    Normalize,
    ParquetFrame,
    RankGauss,
    RobustScale,
    TabularFrame,
)
from fastrec.tabular.procs.features import FeatureChain
from fastrec.tabular.procs.procs import as_procs, proc_from_state
from tests._core.refusals import refused

numbers = st.floats(-1e6, 1e6, width=32)


def column(values, name="x"):
    return Table.read(pd.DataFrame({name: values}))[name]


def tensor(values):
    return torch.tensor([math.nan if v is None else v for v in values], dtype=torch.float64)


def fitted(proc, values, name="x"):
    proc.reset([name])
    proc.fit(name, tensor(values))
    return proc


def applied(proc, values):
    return fitted(proc, values).apply("x", tensor(values)).numpy()


@given(st.lists(st.none() | numbers, min_size=1, max_size=30))
def test_median_and_mode_equal_pandas(values):
    present = pd.Series(values, dtype=float).dropna()
    median, mode = fitted(FillMissing(), values).fills["x"], fitted(FillMissing("mode"), values).fills["x"]
    if len(present) == 0:
        assert median == mode == 0
        return
    assert median == pytest.approx(present.median(), rel=1e-15)
    counts = present.value_counts(sort=False)
    assert mode == next(v for v in present if counts[v] == counts.max())


def test_fill_values_of_every_strategy_and_of_a_column_that_is_not_flagged():
    for proc, fill in (
        (FillMissing(), 3.5),
        (FillMissing("mode"), 4.0),
        (FillMissing("constant", fill_vals={"x": -1}), -1.0),
        (FillMissing("constant"), 0.0),
        (FillMissing(lambda c, fill: c.max() + fill, fill_vals={"x": 1}), 5.0),
    ):
        assert fitted(proc, [np.nan, 4.0, 1.0, 4.0, 3.0]).na_dict == {"x": fill}
    with pytest.raises(DataError, match="no fill strategy"):
        FillMissing("mean")
    proc = fitted(FillMissing(), [1.0, 2.0, 9.0])
    assert (proc.na_dict, proc.flagged) == ({}, [])
    assert proc.apply("x", tensor([None, math.inf, 5.0])).tolist() == [2.0, math.inf, 5.0]
    for proc in (FillMissing(), LogTransform()):  # the input is left alone
        values = tensor([None, 3.0])
        fitted(proc, [1.0, None]).apply("x", values)
        assert values.isnan().tolist() == [True, False]


@given(st.lists(numbers, min_size=2, max_size=40))
def test_normalize_equals_numpy(values):
    array = np.array(values, dtype=np.float64)
    proc = fitted(Normalize(), values)
    done = proc.apply("x", torch.tensor(array)).numpy()
    if array.min() == array.max():
        assert (done == 0).all()
        return
    expected = (array - array.mean()) / (array.std() + 1e-7)
    np.testing.assert_allclose(done, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(proc.invert("x", torch.tensor(done)).numpy(), array, rtol=1e-9, atol=1e-6)


def test_normalize_keeps_the_digits_of_large_numbers_and_leaves_missing_values_out():
    z = np.random.default_rng(0).normal(size=5000)
    z = (z - z.mean()) / z.std()
    for centre in (1e8, 1.7e9, 1e12):
        np.testing.assert_allclose(applied(Normalize(), centre + z), z, atol=max(1e-6, centre * 3e-16))
    proc = fitted(Normalize(), [1.0, np.nan, 3.0])
    assert (proc.means["x"], round(proc.stds["x"], 6)) == (2.0, 1.0)
    assert fitted(Normalize(), [np.nan]).means["x"] == 0


def test_class_list_behaves_like_a_category_map():
    classes = ClassList(Vocab.fit(column(["b", "a", None])))
    assert (len(classes), classes[1], classes.o2i["b"], list(classes.items)) == (3, "a", 2, ["#na#", "a", "b"])
    assert pickle.loads(pickle.dumps(classes)) == classes
    assert classes != ["a"]
    assert repr(classes) == "['#na#', 'a', 'b']"


def test_fastais_procs_are_translated_and_ordered_and_what_is_no_proc_is_refused():
    given_procs = [FastaiNormalize, FastaiCategorify(), FastaiFillMissing(FillStrategy.mode, add_col=False)]
    found = as_procs(given_procs)
    assert [type(p) for p in found] == [FillMissing, Categorify, Normalize]
    assert (found[0].fill_strategy, found[0].add_col) == ("mode", False)
    own = Categorify()
    assert as_procs(own)[0] is own
    assert as_procs(None) == []
    refused(DataError, "cannot prepare", lambda: as_procs([TabularProc]))
    refused(DataError, "twice", lambda: as_procs([Categorify, FastaiCategorify]))
    refused(DataError, "procs=", lambda: Categorify().setup(None))


def test_use_before_fitting_is_named():
    with pytest.raises(NotFittedError, match="'x'"):
        Categorify().encode("x", column([1]))
    for kind in (FillMissing, Normalize, LogTransform, RankGauss, RobustScale):
        for proc in (kind(), fitted(kind(), [1.0], "y")):
            with pytest.raises(NotFittedError, match=f"{kind.__name__} has not seen column 'x'"):
                proc.apply("x", tensor([0.0]))


@pytest.mark.parametrize(
    "proc", [LogTransform(["x"]), Normalize(), RankGauss(), RobustScale(), FillMissing(), FillMissing("mode")]
)
def test_state_comes_back_through_files(proc, tmp_path):
    proc.reset(["x", "z"])
    proc.fit("x", tensor([3.0, 1.0, None, 2.0, 2.0, 8.0]))
    save_state(tmp_path / "s", proc.to_state())
    again, x = proc_from_state(load_state(tmp_path / "s")), tensor([*range(-9, 9), None])
    assert type(again) is type(proc)
    assert repr(proc_from_state(proc.to_state()).to_state()) == repr(proc.to_state())
    for name in "xz":
        assert torch.equal(again.apply(name, x).nan_to_num(-9), proc.apply(name, x).nan_to_num(-9))


def test_states_of_codes_of_features_and_of_ones_own_fill_come_back(tmp_path):
    categorify = Categorify(min_count={"x": 2, "other": 9})
    categorify.fit(column(["a", "a", "b", None]))
    proc = Features(te())
    proc.feature_set.fit(make())
    save_state(tmp_path / "s", {"codes": categorify.to_state(), "features": proc.to_state()})
    codes, features = map(proc_from_state, load_state(tmp_path / "s").values())
    assert codes.encode("x", column(["b", "a", "q"])).tolist() == [1, 2, 0]
    test = make().drop(columns="y")
    pd.testing.assert_frame_equal(features.feature_set.transform(test), proc.feature_set.transform(test))
    custom = fitted(FillMissing(lambda values, fill: values.max()), [3.0, np.nan])
    assert proc_from_state(custom.to_state()).fills == {"x": 3.0}


MEDIAN_OF = {
    "apart": lambda rng, n: rng.normal(size=n) * 10.0 ** rng.integers(-9, 9, n),
    "counts": lambda rng, n: rng.negative_binomial(0.2, 0.3, n).astype(float),
    "few": lambda rng, n: rng.integers(0, 3, n).astype(float),
    "halves": lambda rng, n: np.where(np.arange(n) < n // 2, 1.0, 2.0),
    "half zero": lambda rng, n: np.where(np.arange(n) % 2 == 0, 0.0, rng.random(n)),
    "rising": lambda rng, n: np.arange(n, dtype=float),
    "in periods of the sample": lambda rng, n: np.where(np.arange(n) % 64 == 0, 1e9, rng.random(n)),
    "infinite": lambda rng, n: rng.choice([-np.inf, 0.0, 3.0, np.inf], n),
    "one": lambda rng, n: np.full(n, -2.5),
}


@pytest.mark.parametrize("kind", MEDIAN_OF)
@pytest.mark.parametrize("n", [1, 2, 7, 8_192, 8_193, 200_001])
@pytest.mark.parametrize("gaps", [0.0, 0.1])
def test_the_median_is_exact_however_many_numbers_are_equal(kind, n, gaps):
    rng = np.random.default_rng(n)
    values = MEDIAN_OF[kind](rng, n)
    values[rng.random(n) < gaps] = np.nan
    fill = fitted(FillMissing(), values)
    ranked = sorted(values[~np.isnan(values)].tolist())
    middle = len(ranked) // 2
    expected = (ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2) if ranked else 0.0
    assert fill.fills["x"] == expected or (np.isnan(expected) and np.isnan(fill.fills["x"]))
    assert fill.was_missing["x"] == bool(np.isnan(values).any())


def gauss_oracle(values: np.ndarray) -> np.ndarray:
    """Quantiles of mid-ranks, cut at 3, then mean 0 and sd 1; missing and infinite values take no part."""
    result = np.zeros(len(values))
    there = np.isfinite(values)
    if not there.any():
        return result
    quantile = norm.ppf((rankdata(values[there]) - 0.5) / there.sum()).clip(-3, 3)
    spread = quantile.std()
    result[there] = (quantile - quantile.mean()) / spread if spread > 1e-12 else 0.0
    return result


odd_numbers = st.sampled_from([0.0, -0.0, 1.5, -7.0, 1e9, -1e-300, math.nan, math.inf, -math.inf]) | st.floats(
    -1e6, 1e6
)


@settings(max_examples=80, deadline=None)
@given(values=st.lists(odd_numbers, max_size=40))
def test_training_values_get_the_quantiles_of_their_ranks(values):
    x = np.array(values, dtype=np.float64)
    got, there = applied(RankGauss(), x), ~np.isinf(x)
    np.testing.assert_allclose(got[there], gauss_oracle(x)[there], atol=1e-9)
    most = got[there].max(initial=0) if np.isfinite(x).any() else 0
    np.testing.assert_allclose(got[x == np.inf], most, atol=1e-9)  # as the largest


def test_many_distinct_values_are_interpolated_closely_between_them_linear_and_beyond_them_flat():
    x = np.exp(2 * np.random.default_rng(0).normal(size=20_000))
    got, expected = applied(RankGauss(), x), gauss_oracle(x)
    inside = np.abs(expected) < 2.5
    np.testing.assert_allclose(got[inside], expected[inside], atol=0.02)
    assert np.abs(got - expected).max() < 0.5
    assert (np.diff(got[np.argsort(x)]) >= 0).all()
    proc = fitted(RankGauss(), [0.0, 10.0, 20.0])
    at = proc.apply("x", torch.tensor([-math.inf, -5, 0, 5, 10, 20, 21, math.inf, math.nan], dtype=torch.float64))
    low, mid, high = at[2], at[4], at[5]
    assert torch.equal(at[:2], low.expand(2))
    torch.testing.assert_close(at[3], (low + mid) / 2)
    assert torch.equal(at[6:8], high.expand(2))
    assert (at[8], round(float(mid), 12)) == (0, 0)
    assert torch.isclose(high, -low)


def robust_oracle(values: np.ndarray) -> np.ndarray:
    there = values[np.isfinite(values)]
    if not len(there):
        return np.zeros(len(values))
    first, median, third = np.quantile(there, [0.25, 0.5, 0.75])
    reach = there.max() - there.min()
    scale = 1 / (third - first) if third > first else 2 / reach if reach > 0 else 0.0
    if scale == 0:
        return np.zeros(len(values))
    z = np.nan_to_num((values - median) * scale, nan=0.0, posinf=1e9, neginf=-1e9)
    return z / np.sqrt(1 + (z / 3) ** 2)


@settings(max_examples=80, deadline=None)
@given(values=st.lists(st.sampled_from([0.0, 1.5, 1e9, math.nan, math.inf, -math.inf]) | numbers, max_size=30))
def test_values_are_centred_scaled_and_clipped(values):
    x = np.array(values, dtype=np.float64)
    got = applied(RobustScale(), x)
    np.testing.assert_allclose(got, robust_oracle(x), atol=1e-6)
    assert (np.abs(got) <= 3).all()


def test_in_a_frame_robust_scale_fills_what_is_missing_and_goes_back():
    df = pd.DataFrame({"x": [1.0, 5.0, np.nan, 2.0], "whole": [1, 2, 3, 100]})
    frame = TabularFrame(df, [RobustScale], cont_names=["x", "whole"])
    x = frame.x_cont.cpu().double().numpy()
    np.testing.assert_allclose(x[:, 0], robust_oracle(df.x.to_numpy()), atol=1e-6)
    np.testing.assert_allclose(x[:, 1], robust_oracle(df.whole.to_numpy(dtype=float)), atol=1e-6)
    back = frame.decode().items
    np.testing.assert_allclose(back.whole, df.whole, rtol=1e-4)
    np.testing.assert_allclose(back.x, [1, 5, 2, 2], rtol=1e-4)


maybe_numbers = st.none() | st.floats(-1e6, 1e6) | st.integers(-5, 5).map(float)


def log_oracle(train, values):
    low = min((0.0 if v is None else v for v in train), default=0.0)
    return [math.log(max((0.0 if v is None else v) - low, 0.0) + 1.0) for v in values]


@given(st.lists(maybe_numbers, max_size=30), st.lists(maybe_numbers, max_size=30))
def test_logs_follow_the_recipe_and_their_inverse_gives_the_values_back(train, other):
    proc = fitted(LogTransform(), train)
    for values in (train, other):
        np.testing.assert_allclose(proc.apply("x", tensor(values)), log_oracle(train, values), rtol=1e-9, atol=1e-9)
    back = proc.invert("x", proc.apply("x", tensor(train)))
    np.testing.assert_allclose(back, tensor(train).nan_to_num(0.0), rtol=1e-9, atol=1e-6)


def test_the_smallest_training_value_is_zero_what_lies_below_too_and_named_columns_must_be_there():
    proc = fitted(LogTransform(), [7.0, 5.0, 9.0])
    assert proc.apply("x", tensor([5.0, 4.0, -math.inf, None])).tolist() == [0, 0, 0, 0]
    assert proc.apply("x", tensor([5 + math.e - 1, math.inf])).tolist() == [pytest.approx(1), math.inf]
    for values in ([5.0, None], [], [None], [math.inf, -math.inf]):
        assert fitted(LogTransform(), values).lows == {"x": 0.0}
    assert fitted(LogTransform("x"), [1.0, 2.0]).apply("x", tensor([2.0])).item() == pytest.approx(math.log(2))
    said = r"column 'y': LogTransform is to change it, but .* Add it to cont_names"
    refused(MissingColumnError, said, lambda: LogTransform(["y"]).reset(["x"]))


@pytest.mark.parametrize("fill", [False, True])
def test_between_filling_and_normalizing(fill):
    r = np.random.default_rng(0)
    data = {"x": r.exponential(50, 60).round() + 2, "z": r.normal(size=60), "y": r.normal(size=60)}
    data["x"][::7] = np.nan
    procs = [Normalize, LogTransform, *([FillMissing] if fill else []), Categorify]
    assert [p.order for p in as_procs(procs)] == sorted(p.order for p in as_procs(procs))
    to = TabularFrame(data, procs, None, ["x", "z"], "y", splits=(range(40), range(40, 60)))
    for i, name in enumerate(["x", "z"]):
        raw, train = data[name], data[name][:40]
        value = np.median(train[~np.isnan(train)]) if fill else 0.0
        raw, train = (np.where(np.isnan(v), value, v) for v in (raw, train))
        logs, learnt = (np.log1p(np.maximum(v - train.min(), 0)) for v in (raw, train))
        np.testing.assert_allclose(to.x_cont[:, i].cpu(), (logs - learnt.mean()) / (learnt.std() + 1e-7), atol=1e-6)
    assert list(to.cat_names) == (["x_na"] if fill else [])
    shown = to.decode().items["x"].to_numpy()
    present = ~np.isnan(data["x"])
    low = np.nanmin(data["x"][:40]) if fill else 0
    np.testing.assert_allclose(shown[present], np.maximum(data["x"][present], low), rtol=1e-4)


# ``Features`` among the procs equals ``features=``

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
    procs = [Categorify, FillMissing, *procs, Normalize]
    return TabularFrame(make() if df is None else df, procs, list(cats), ["x"], "y", splits=SPLITS, **options)


@pytest.mark.parametrize("keep", ["all", "outputs", ["city"]])
def test_a_proc_is_what_the_argument_is(keep):
    want, got = frame([], features=te()), frame([Features(te(keep=keep))])
    assert list(got.cont_names) == list(want.cont_names) == ["x", "te_city__y", "count_item"]
    assert torch.equal(got.packed.buffer, want.packed.buffer)
    assert torch.equal(frame([], features=te(keep=keep)).packed.buffer, want.packed.buffer)
    alone = te().fit_transform(make().iloc[:90])["te_city__y"]  # out of fold, for training rows alone
    np.testing.assert_allclose(got.train.decode().items["te_city__y"], alone, rtol=1e-5)
    test = make().head(7).drop(columns="y")
    counts = make()["item"].head(90).value_counts()[test["item"]]
    for to in (want, got):
        new = to.new(test)
        new.process()
        np.testing.assert_allclose(new.decode().items["count_item"], counts, rtol=1e-5)
    assert isinstance(got.features, FeatureSet)


@pytest.mark.parametrize("leak", [CountEncode("y"), GroupStats("y", by="item"), Combine("y", "*", "x", name="z")])
def test_generators_that_read_the_target_of_the_frame_are_refused(leak, tmp_path):
    df, file = make(), tmp_path / "rows.parquet"
    df.to_parquet(file)
    features = FeatureSet([leak])
    for build in (
        lambda: frame([], features=features),
        lambda: frame([Features(FeatureSet([leak])), Features(te())]),
        lambda: ParquetFrame(file, [], [], ["x"], "y", valid=file, features=FeatureSet([leak])),
    ):
        with pytest.raises(DataError, match=r"column 'y': \w+ reads the target"):
            build()
    assert features.get_params()["target"] is None  # it is the frame's
    assert TabularFrame(df.assign(sold=1), [], [], "x", "sold", features=features).cont_names[1:] == leak.outputs


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


def days(n=60):
    r = np.random.default_rng(1)
    df = pd.DataFrame({"shop": r.integers(0, 3, n), "day": np.arange(n), "sold": r.integers(1, 9, n).astype(float)})
    return df.assign(y=r.normal(size=n))


@pytest.mark.parametrize("order", ["day", None])
@pytest.mark.parametrize("split", ["by time", "at random", "both have a row"])
def test_validation_rows_look_back_to_training_rows(order, split):
    df = days()
    valid = np.arange(40, 60) if split == "by time" else np.random.default_rng(2).choice(60, 20, replace=False)
    train = np.setdiff1d(np.arange(60), valid)
    before = df.groupby("shop")["sold"].shift()
    if split == "both have a row":
        train = np.append(train, valid[0])
    if split != "by time":
        train = np.random.default_rng(3).permutation(train)
    features = FeatureSet([Lag("sold", by="shop", order=order), CountEncode("shop")])
    with warnings.catch_warnings():
        warnings.simplefilter("error" if split != "both have a row" else "ignore")
        to = TabularFrame(df, None, "shop", "sold", "y", splits=(train, valid), features=features)
    np.testing.assert_array_equal(to.valid.conts["lag1_sold__shop"], before[valid])
    own = df.iloc[np.sort(train)].groupby("shop")["sold"].shift()  # training rows never see those of validation
    np.testing.assert_array_equal(to.train.conts["lag1_sold__shop"], own[train])


def test_targets_of_validation_rows_are_hidden_from_features():
    df, features = days(), FeatureSet([Lag("y", by="shop", order="day")])
    to = TabularFrame(df, None, None, None, "y", splits=(range(40), range(40, 60)), features=features)
    hidden = df["y"].where(df.index < 40).groupby(df["shop"]).shift()
    np.testing.assert_allclose(to.valid.conts["lag1_y__shop"], hidden[40:], rtol=1e-6)
    np.testing.assert_allclose(to.valid.ys["y"], df["y"][40:], rtol=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_test_rows_look_back_to_the_history_that_is_given(several):
    df = days()
    train, test = df[:50], df[50:].drop(columns="y")
    lag = Lag("sold", by="shop", order="day")
    features = [FeatureSet([lag]), FeatureSet([Lag("lag1_sold__shop", by="shop", order="day")])]
    features = FeatureChain(features) if several else FeatureSet([lag])
    dls = TabularFrame(
        train, None, None, "sold", "y", splits=(range(40), range(40, 50)), features=features
    ).dataloaders()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = dls.test_dl(test, history=train).dataset.conts
    lags = df["sold"].groupby(df["shop"])
    np.testing.assert_array_equal(made["lag1_sold__shop"], lags.shift()[50:])
    if several:
        np.testing.assert_array_equal(made["lag1_lag1_sold__shop__shop"], lags.shift(2)[50:])
    with pytest.warns(DataWarning, match=r"'lag1_sold__shop'.* look back to .*, and only the given.*history=") as told:
        alone, _ = (dls.test_dl(test).dataset.conts for _ in range(2))
    assert len(told) == 1
    np.testing.assert_array_equal(alone["lag1_sold__shop"], test.groupby("shop")["sold"].shift())


def test_outputs_that_are_no_numbers_are_used_where_they_are_named_and_other_frames_may_use_the_procs():
    to = frame([Features(FeatureSet([Cross("city", "item")]))], cats=["city", "city_x_item"])
    pairs = make().head(90)[["city", "item"]].drop_duplicates()
    assert len(to.classes["city_x_item"]) == 1 + len(pairs)
    want = frame([Features(te())])
    again = TabularFrame(make(), want.procs, ["city"], ["x"], "y", splits=SPLITS, features=want.features)
    assert again.features is want.features
    assert torch.equal(again.packed.buffer, want.packed.buffer)


class Twice:
    outputs = ("twice",)

    def fit_transform(self, df):
        return df.assign(twice=df["x"] * 2)

    transform = fit_transform


def test_sets_go_first_what_is_none_works_but_cannot_be_restored_and_anything_else_is_refused():
    assert [type(p) for p in as_procs([Normalize, Features(te()), Features(te())])][:2] == [Features, Features]
    to = frame([Features(Twice())])
    np.testing.assert_allclose(to.decode().items["twice"], 2 * make()["x"], atol=1e-5)
    state = Features(Twice()).to_state()
    assert state == {"kind": "Features", "outputs": ["twice"]}
    refused(DataError, "Make them anew", lambda: proc_from_state(state))
    refused(DataError, r"7 is no set of features: it has no fit_transform.*Give a FeatureSet", lambda: Features(7))
