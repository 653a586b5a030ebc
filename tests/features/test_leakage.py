"""``check_leakage`` catches planted leaks, names the guilty column and no other, and leaves clean pipelines alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import fastrec.features as ff
from fastrec.errors import DataError, FastrecError, LeakageError
from fastrec.features.base import Fitted, Grouped
from fastrec.features.leakage.check import LeakageReport
from fastrec.table import Column, Table
from tests.features.examples import EXAMPLES
from tests.features.frames import clicks, columns, tables, to_pandas


def kinds(report):
    return {(leak.column, leak.kind) for leak in report.leaks}


def in_fold_mean(df):
    return df.assign(
        rate=df.groupby("item")["clicked"].transform("mean"),
        price2=df["price"] * 2,
        n=df.groupby("item")["t"].transform("count"),
    )


@pytest.mark.parametrize("kind", ["float", "bool", "text", "category", "Int64", "time", "several"])
def test_targets_of_every_type(kind):
    df = clicks()
    rng = np.random.default_rng(1)
    df["z"] = rng.normal(size=len(df))
    df["clicked"] = {
        "float": rng.normal(size=len(df)),
        "bool": df["clicked"] == 1,
        "text": np.array(["a", "b", "c"])[rng.integers(0, 3, len(df))],
        "category": pd.Categorical(np.array(["a", "b", "c"])[rng.integers(0, 3, len(df))]),
        "Int64": df["clicked"].astype("Int64").where(rng.random(len(df)) < 0.8),
        "time": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 9, len(df)), unit="D"),
        "several": df["clicked"],
    }[kind]
    before = df.copy()

    def pipeline(d):
        assert d["clicked"].dtype == before["clicked"].dtype
        most = d.groupby("item")["clicked"].transform(lambda s: s.nunique())
        return d.assign(most=most, price2=d["price"] + 1, z2=d.groupby("user")["z"].transform("mean"))

    target = ["clicked", "z"] if kind == "several" else "clicked"
    report = ff.check_leakage(pipeline, df, target, probes=12)
    assert set(report.columns) == {"most", *(["z2"] if kind == "several" else [])}
    pd.testing.assert_frame_equal(df, before)


def uses_future(d):
    d = d.sort_values("t")
    user = d.groupby("user")["price"]
    d["lag"], d["lead"] = user.shift(1), user.shift(-1)
    d["trailing"], d["centred"] = d["price"].rolling(3).mean(), d["price"].rolling(3, center=True).mean()
    d["so_far"], d["ever"] = user.cummax(), user.transform("max")
    d["past_rate"] = d.groupby("item")["clicked"].transform(lambda s: s.shift().expanding().mean())
    return d


@pytest.mark.parametrize("seed", range(2))
def test_a_functions_future_columns_are_named(seed):
    df = clicks(seed=seed)
    report = ff.check_leakage(uses_future, df, "clicked", "t", seed=seed)
    assert kinds(report) == {("lead", "future"), ("centred", "future"), ("ever", "future")}
    assert report.outputs[0] == "lag"
    assert "t = " in report.leaks[0].detail
    assert ff.check_leakage(uses_future, df, "clicked").ok  # without an order there is no future


@pytest.mark.parametrize("options", [{"key": "s"}, {}])
def test_short_sessions_one_after_the_other(options):
    n = 300
    df = pd.DataFrame({"s": np.arange(n) // 3, "t": np.arange(n), "x": np.random.default_rng(0).random(n)})
    df["y"] = (df["x"] > 0.5).astype(int)
    report = ff.check_leakage(lambda d: d.assign(lead=d.groupby("s")["x"].shift(-1)), df, "y", "t", **options)
    assert kinds(report) == {("lead", "future")}


def test_a_time_with_a_zone_and_ties_and_several_order_columns():
    df = clicks()
    df["day"] = pd.Timestamp("2024-01-01", tz="Asia/Tokyo") + pd.to_timedelta(df["t"] // 10, unit="D")

    def pipeline(d):
        d = d.sort_values(["day", "t"], kind="stable")
        same_day = d.groupby("day")["price"].transform("mean")
        return d.assign(same_day=same_day, lag=d["price"].shift(1)).sort_index()

    assert kinds(ff.check_leakage(pipeline, df, "clicked", "day")) == set()
    assert kinds(ff.check_leakage(pipeline, df, "clicked", ["day", "t"])) == {("same_day", "future")}


class Ahead(Grouped):
    """The largest value of the group, later rows included; nothing is declared."""

    def __init__(self, col, by):
        self.col, self.by = col, by

    @property
    def sources(self):
        return [self.col, self.by]

    @property
    def outputs(self):
        return ["ahead"]

    def compute(self, table, context):
        codes = table.coded(self.by).codes
        best = torch.full((int(codes.max()) + 1,), -torch.inf, dtype=torch.float64, device=table.device)
        best.scatter_reduce_(0, codes, table[self.col].number(), "amax")
        return {"ahead": Column("number", best[codes], name="ahead")}


def test_statistics_of_all_training_rows_are_noted_and_with_strict_reported():
    fs = ff.FeatureSet(
        [ff.CountEncode("item"), ff.Lag(ff.CountEncode("user"), by="item", order="t"), ff.Lag("price", order="t")]
    )
    report = ff.check_leakage(fs, clicks(), "clicked", "t")
    assert report.ok
    assert [note.split("'")[1] for note in report.notes] == ["count_item", "lag1_count_user__item"]
    assert "CountEncode" in report.notes[1]
    strict = ff.check_leakage(fs, clicks(), "clicked", "t", strict=True)
    assert kinds(strict) == {("count_item", "future"), ("lag1_count_user__item", "future")}


class LeakyCausal(ff.CountEncode):
    """Says that training rows get their values from earlier rows, and gives them those from all."""

    causal = True

    @property
    def outputs(self):
        return ["causal_count"]

    def _name(self, col):
        return "causal_count"


class MeanOfAll(Fitted):
    """A user's own generator: the mean target, which forgets to leave the row's fold out."""

    uses_target = True
    fit_only = sources = property(lambda self: [self.target])
    outputs = property(lambda self: ["mean_of_all"])

    def __init__(self, target):
        super().__init__()
        self.target = target

    def collect(self, table, cells=None):
        y = table[self.target].number()
        return {"sum": y.sum(), "count": torch.tensor(len(y), device=y.device)}

    def merge(self, a, b):
        return {n: a[n] + b[n] for n in a}

    def finalize(self, state, keep=None):
        return {"mean": state["sum"] / state["count"]}

    def prepare(self, state, table):
        return {"one": torch.ones(len(table), dtype=torch.float64, device=table.device)}

    def apply(self, fit, tensors):
        return {"mean_of_all": tensors["one"] * fit["mean"]}


PRICES = [ff.GroupStats("price", by="item"), ff.Lag("price", by="user")]
CLEAN = [
    ff.Lag("price", by="user", order="t"),
    ff.CountEncode("item"),
    ff.Lag(ff.CountEncode("user"), by="item", order="t"),
]
# Generators, options, the leaks, and the class of the generator where each begins.
LEAKY_SETS = {
    "group statistics of the target": (
        [ff.GroupStats("clicked", by="item"), ff.CountEncode("item"), *PRICES], {},
        {("mean_clicked__item", "own target")}, ["GroupStats(cols='clicked', by='item')"],
    ),
    "what reads a leak, with the generator where it begins": (
        [ff.GroupRank(ff.GroupStats("clicked", by="item"), by="user"), ff.CountEncode("item")], {},
        {("rank_mean_clicked__item__user", "own target")}, ["GroupStats(cols='clicked', by='item')"],
    ),
    "looking ahead, declared or not": (
        [*CLEAN, ff.Lag("price", order="t", n=-1), Ahead("price", "user")], {"order": "t"},
        {("lead1_price", "future"), ("ahead", "future")}, ["Lag", "Ahead"],
    ),
    "a causal step, not excused by other steps": (
        [LeakyCausal("item"), ff.CountEncode("item")], {"order": "t"}, {("causal_count", "future")}, ["LeakyCausal"],
    ),
    "looking ahead behind a fitted step": (
        [ff.Lag(ff.CountEncode("user"), by="item", order="t", n=-1), ff.CountEncode("item")], {"order": "t"},
        {("lead1_count_user__item", "future")}, [""],
    ),
    "earlier targets of the fold": (
        [ff.Lag("clicked", by="user", order="t"), ff.CountEncode("item")], {"order": "t", "folds": "fold"},
        {("lag1_clicked__user", "outer fold")}, ["Lag"],
    ),
    "no fold left out": (
        [MeanOfAll("clicked"), ff.CountEncode(ff.Cross("item", "fold"))], {"folds": "fold"},
        {("mean_of_all", "own target"), ("mean_of_all", "outer fold")}, ["MeanOfAll"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAKY_SETS)
def test_a_set_that_leaks_is_named_with_its_generator(name):
    features, options, leaks, makers = LEAKY_SETS[name]
    report = ff.check_leakage(ff.FeatureSet(features), clicks(), "clicked", **options)
    assert kinds(report) == leaks
    assert all(any(leak.generator.startswith(maker) for maker in makers) for leak in report.leaks)
    assert len({leak.generator for leak in report.leaks}) == len(makers)
    noted = [note.split("'")[1] for note in report.notes if note.split("'")[1] == "count_item"]
    assert noted == (["count_item"] if "order" in options else [])


class LeakyPrior(ff.TargetEncode):
    """A target encoding whose prior is the mean over all rows, whichever are to be kept out."""

    def finalize(self, state, keep=None):
        kept = super().finalize(state, keep)
        everything = super().finalize(state)
        return {n: (v + everything[n][:1]) / 2 for n, v in kept.items()}  # a key's place 0 holds the prior


def test_outer_fold_targets_in_a_generators_prior_are_named():
    df = clicks(400)
    df["rare"] = np.arange(400) // 2  # many keys that other folds have not seen
    fs = ff.FeatureSet(
        [LeakyPrior("rare", "clicked"), ff.TargetEncode("item", "clicked"), ff.CountEncode("item")], key="user"
    )
    report = ff.check_leakage(fs, df, "clicked", folds=df["fold"].to_numpy())
    assert ("te_rare__clicked", "outer fold") in kinds(report)
    assert report.columns == ["te_rare__clicked"]
    assert all("LeakyPrior" in leak.generator for leak in report.leaks)


def uses_target(make):
    return any(step.uses_target for step in ff.FeatureSet([make()]).steps)


# One example of a class that knows no target: others work on the same columns in other ways.
CASES = [
    pytest.param(make, id=f"{name}-{i}")
    for name, all_ in EXAMPLES.items()
    for i, make in enumerate(all_)
    if i == 0 or uses_target(make)
]
TABLES = {n: Table.read(t) for n, t in tables().items()}
TROUBLED = Table.read(to_pandas(columns(30)))


@pytest.mark.parametrize("make", CASES)
def test_no_generator_of_the_library_gives_away_a_rows_target(make):
    fs = ff.FeatureSet([make()], key="row", folds=3)
    if any("y" in s.inputs and "y" not in s.fit_only for s in fs.steps):
        pytest.skip("takes the target for a column like any other")
    report = ff.check_leakage(fs, TROUBLED, "y", tables=TABLES, probes=2)
    assert report.ok, str(report)


def test_columns_that_differ_from_run_to_run_are_named_as_such():
    rng = np.random.default_rng(0)
    report = ff.check_leakage(lambda d: d.assign(noise=rng.random(len(d)), x=d["price"]), clicks(), "clicked", "t")
    assert kinds(report) == {("noise", "random")}


@pytest.mark.parametrize("form", [float, bool, "Int64"])
def test_a_copy_of_the_target_is_named(form):
    df = clicks()
    df["same"] = df["clicked"].astype(form)
    report = ff.check_leakage(lambda d: d.assign(again=d["clicked"].astype(form), x=d["price"]), df, "clicked")
    assert kinds(report) == {("same", "copy"), ("again", "copy")}
    assert report.leaks[0].row is None
    assert ff.check_leakage(lambda d: d[["price"]] * 2, df, "clicked").ok  # what is not returned is not used


def pandas_pipeline(d):
    return d.assign(
        rate=d.groupby("item")["clicked"].transform("mean"), lag=d["price"].shift(1), up=d["item"].str.upper()
    )


def arrow_pipeline(d):
    return pa.Table.from_pandas(pandas_pipeline(d.to_pandas()), preserve_index=False)


def made_of(d):
    return {n: pandas_pipeline(pd.DataFrame(d))[n].to_numpy() for n in ("rate", "lag", "up")}


LIBRARIES = {
    "pandas": (pandas_pipeline, pd.DataFrame),
    "polars": (lambda d: pl.from_pandas(pandas_pipeline(d.to_pandas())), pl.DataFrame),
    "pyarrow": (arrow_pipeline, pa.table),
    "batch": (arrow_pipeline, pa.RecordBatch.from_pydict),
    "dict": (lambda d: {**d, **made_of(d)}, lambda data: {n: np.array(v) for n, v in data.items()}),
    "table": (lambda d: d.with_columns(made_of(d.to_pandas())), Table),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_functions_of_every_frame_library(library):
    pipeline, make = LIBRARIES[library]
    frame = make({n: v.tolist() for n, v in clicks(60).items()})
    report = ff.check_leakage(pipeline, frame, "clicked", folds="fold")
    assert report.columns == ["rate"]
    assert report.outputs == ["rate", "lag", "up"]
    assert ff.check_leakage(ff.FeatureSet([ff.TargetEncode("item", "clicked")]), frame, "clicked", folds="fold").ok


def test_a_function_that_changes_its_input_harms_nobody():
    df = clicks()
    before = df.copy()

    def pipeline(d):
        d["price"] *= 2
        del d["t"]
        return d

    report = ff.check_leakage(pipeline, df, "clicked", "t")
    assert report.outputs == ["price"]
    assert report.ok
    pd.testing.assert_frame_equal(df, before)


def test_an_index_that_tells_the_rows_is_followed_and_a_lost_order_refused():
    df = clicks().set_index(pd.Index([f"r{i}" for i in range(120)]))

    def lag(d):
        d = d.sort_values("t")
        return d.assign(lag=d["price"].shift(1))

    assert ff.check_leakage(lag, df, "clicked", "t").ok
    with pytest.raises(DataError, match="another order") as caught:
        ff.check_leakage(lambda d: lag(d).reset_index(drop=True), df, "clicked", "t")
    assert caught.value.column in ("t", "clicked")


def test_a_sets_own_fit_is_left_alone_and_other_tables_reach_it():
    df = clicks()
    fs = ff.FeatureSet([ff.TargetEncode("item", "clicked"), ff.CountEncode("item")], key="user").fit(df.iloc[:20])
    before = fs.transform(df)
    ff.check_leakage(fs, df, "clicked", "t", folds="fold")
    pd.testing.assert_frame_equal(fs.transform(df), before)
    log = pd.DataFrame({"user": [1, 2, 3], "t": [1, 5, 9]})
    fs = ff.FeatureSet([ff.History("user", order="t", table="log", stats=["count"])])
    assert ff.check_leakage(fs, clicks(), "clicked", "t", tables={"log": log}).ok


def test_selectors_stand_for_the_columns_first_chosen():
    df = clicks().assign(city=lambda d: d["item"].str[:2])
    report = ff.check_leakage(ff.FeatureSet([ff.CountEncode(ff.category(min_card=5))]), df, "clicked", "t")
    assert report.outputs == ["count_item", "count_city"]
    assert report.ok


def test_of_a_large_frame_a_part_is_checked_and_rows_keep_their_numbers():
    df = clicks(3000)

    def pipeline(d):
        assert len(d) <= 200
        return in_fold_mean(d)

    for options in ({}, {"key": "user"}, {"order": "t"}):
        report = ff.check_leakage(pipeline, df, "clicked", max_rows=200, **options)
        leak = next(leak for leak in report.leaks if leak.kind == "own target")
        row = df.iloc[leak.row]
        assert leak.column == "rate"
        assert f"from {row['clicked']} to {1 - row['clicked']}" in leak.detail
        assert "of 3,000" in report.checked[0]


def test_frames_of_two_rows_and_columns_that_are_not_made_every_time():
    df = pd.DataFrame({"x": [1.0, 2.0], "t": [5, 5], "clicked": [0, 1]})
    report = ff.check_leakage(lambda d: d.assign(z=d["x"] + 1), df, "clicked", "t", folds=[0, 1])
    assert report.ok
    assert "no future" in " ".join(report.checked)
    df = clicks()
    df["kind"] = np.where(df["t"] < 118, "early", "late")
    report = ff.check_leakage(lambda d: pd.get_dummies(d[["kind"]]), df, "clicked", "t")
    assert report.ok
    assert "'kind_late' could not be compared" in report.notes[0]


def test_the_report_says_what_where_and_what_to_do():
    report = ff.check_leakage(in_fold_mean, clicks(), "clicked", folds="fold")
    assert kinds(report) == {("rate", "own target"), ("rate", "outer fold")}
    assert (report.outputs, report.ok, report.leaks[0].generator) == (["rate", "price2", "n"], False, None)
    text = str(report)
    words = "1 column leaks among 3", "'rate', own target: row", "'rate', outer fold", "TargetEncode", "cross_fit"
    assert [w for w in words if w not in text] == []
    with pytest.raises(LeakageError, match="rate") as caught:
        report.raise_for_leaks()
    assert isinstance(caught.value, FastrecError)
    assert (caught.value.column, caught.value.row) == ("rate", report.leaks[0].row)
    assert caught.value.remedy
    clean = ff.check_leakage(lambda d: d[["price"]] + 1, clicks(), "clicked")
    assert "no leak found among 1" in str(clean)
    assert bool(clean)
    clean.raise_for_leaks()
    assert LeakageReport([]).ok


@pytest.mark.parametrize(
    ("pipeline", "options", "error", "message"),
    [
        (lambda d: d.iloc[1:], {}, DataError, "119 rows for 120"),
        (lambda d: None, {}, DataError, "returns nothing"),
        (lambda d: d.nonsense, {}, DataError, "failed on the rows as they are: AttributeError"),
        (lambda d: d.assign(x=1 / (len(d) == 120)), {}, DataError, "failed when the rows at or after t = "),
        ("text", {}, DataError, "neither a FeatureSet nor a function"),
        (in_fold_mean, {"target": "fold0"}, DataError, "one value only"),
        (in_fold_mean, {"probes": 0}, DataError, "probes=0"),
        (in_fold_mean, {"target": "nope"}, FastrecError, "'nope'"),
        (in_fold_mean, {"folds": [0, 1]}, DataError, "fold"),
    ],
)
def test_what_cannot_be_checked_is_told_why(pipeline, options, error, message):
    options = {"target": "clicked", "order": "t", **options}
    with pytest.raises(error, match=message) as caught:
        ff.check_leakage(pipeline, clicks().assign(fold0=0), **options)
    assert message != "one value only" or caught.value.column == "fold0"
