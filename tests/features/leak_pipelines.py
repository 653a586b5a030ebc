"""Pipelines with a leak planted in them, and clean ones: each a function from a frame to what ``check_leakage`` takes.

Every planted one makes the guilty column ``x`` (or what ``GUILTY`` says) beside clean columns.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold, cross_val_predict
from sklearn.preprocessing import PowerTransformer, TargetEncoder

import fastrec.features as ff

WORDS = np.array(["red", "blue", "old", "new", "big", "tiny"])


def frame(n: int = 600, seed: int = 0) -> pd.DataFrame:
    """Rows as of a competition: ``y`` clicked or not, ``z`` a number; both follow ``size`` and the item."""
    rng = np.random.default_rng(seed)
    item = rng.integers(0, 60, n)
    size = rng.normal(size=n)
    score = size + rng.normal(size=60)[item] + rng.normal(size=n)
    df = pd.DataFrame(
        {
            "user": rng.integers(0, 40, n),
            "item": [f"i{k:02d}" for k in item],
            "city": np.array(["rome", "oslo", "bern", "riga"])[rng.integers(0, 4, n)],
            "price": rng.lognormal(3, 1, n),
            "size": size,
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.integers(18, 80, n)),
            "t": rng.permutation(n),
            "text": [" ".join(rng.choice(WORDS, k)) for k in rng.integers(1, 5, n)],
            "y": (score > 0).astype(int),
            "z": score,
        }
    )
    df["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(df["t"], unit="h")
    return df


def clean_columns(d: pd.DataFrame) -> dict[str, pd.Series]:
    """Columns that stand beside a leak and must not be named with it."""
    return {"log_price": np.log1p(d["price"]), "n_item": d.groupby("item")["item"].transform("count")}


def adds(make, target="y", **options):
    """A case whose function adds ``x = make(d)``."""

    def case(df):
        return lambda d: d.assign(**clean_columns(d), x=make(d)), df, target, options

    return case


def outside(make, target="y", **options):
    """A case whose ``x`` was made beforehand: ``make(df)`` gives the function that looks it up for other rows."""
    return lambda df: adds(make(df), target, **options)(df)


def there(make, target="y"):
    """A case whose frame has ``x`` already."""
    return lambda df: (lambda d: d.assign(**clean_columns(d)), df.assign(x=make(df)), target, {})


def joins(key, make, target="y"):
    """A case that joins a table of ``rate`` by key."""

    def case(df):
        table = make(df).rename("rate").reset_index()
        fs = ff.FeatureSet([ff.JoinTable(f"{key}s", key, "rate"), ff.CountEncode("item")])
        return fs, df, target, {"tables": {f"{key}s": table}}

    return case


def smoothed(df):
    stats = df.groupby("item")["y"].agg(["sum", "count"])
    return (stats["sum"] + 10 * df["y"].mean()) / (stats["count"] + 10)


def in_rows(share):
    def make(d):
        chosen = np.arange(len(d)) % round(1 / share) == 7
        return np.where(chosen, d["y"], d["size"].round(1))

    return make


def in_one_rare_key(d):
    others = d.groupby("item")["size"].transform("mean")
    rare = d["user"].map(d["user"].value_counts()) == d["user"].value_counts().min()
    rare &= d["user"] == d.loc[rare, "user"].min()
    return others.where(~rare, d.groupby("user")["y"].transform("mean"))


def leave_one_out(d, by="item", y="y"):
    group = d.groupby(by)[y]
    return (group.transform("sum") - d[y]) / (group.transform("count") - 1)


def smoothed_leave_one_out(d):
    group, total = d.groupby("item")["y"], d["y"]
    prior = (total.sum() - total) / (len(d) - 1)
    return (group.transform("sum") - total + 5 * prior) / (group.transform("count") - 1 + 5)


def low_bit(d):
    bits = d["price"].to_numpy().view(np.int64)
    return ((bits & ~1) | d["y"].to_numpy()).view(np.float64)


def sorted_rows(df):
    df = df.sort_values("y", kind="stable").reset_index(drop=True)
    return lambda d: d.assign(**clean_columns(d), x=np.arange(len(d))), df, "y", {}


def sorted_ids(df):
    df = df.sort_values("y", kind="stable").assign(x=np.arange(len(df)) + 1000)
    df = df.sample(frac=1, random_state=0).reset_index(drop=True)
    return lambda d: d.assign(**clean_columns(d)), df, "y", {}


def means_of_two_keys(df):
    rates = df.groupby(["city", "user"])["z"].mean().rename("rate").reset_index()
    return lambda d: d.merge(rates, how="left", on=["city", "user"])["rate"].to_numpy()


def counts_with_unlabeled_rows(df):
    fs = ff.FeatureSet([ff.CountEncode(ff.Cross("item", "y"), scope="all"), ff.CountEncode("item", scope="all")])
    return fs, df, "y", {}


def later(make):
    """A case of times, which an order must be given for."""
    return lambda df: (
        lambda d: d.assign(log_price=np.log1p(d["price"]), x=make(d.sort_values("t")).reindex(d.index)),
        df,
        "y",
        {"order": "t"},
    )


PLANTED = {
    # What the adversary found.
    "a table of target means": joins("item", lambda df: df.groupby("item")["y"].mean()),
    "a table of smoothed target means": joins("item", smoothed),
    "a table of rounded target means": joins("user", lambda df: df.groupby("user")["z"].mean().round(3), "z"),
    "target means in the frame already": there(lambda df: df.groupby("item")["y"].transform("mean")),
    "2 y + 1 of an outer frame": outside(lambda df: lambda d: d["t"].map(df.set_index("t")["y"] * 2 + 1)),
    "2 z + 1 of an outer frame": outside(lambda df: lambda d: d["t"].map(df.set_index("t")["z"] * 2 + 1), "z"),
    "an outer target as text": outside(lambda df: lambda d: d["t"].map(df.set_index("t")["y"].map({0: "n", 1: "p"}))),
    "row number of sorted rows": sorted_rows,
    "ids given in the order of the target": sorted_ids,
    "own target in 1 % of the rows": adds(in_rows(0.01)),
    "one rare key": adds(in_one_rare_key),
    "leave one out": adds(leave_one_out),
    "leave one out of a number": adds(lambda d: leave_one_out(d, "user", "z"), "z"),
    "leave one out of two keys": adds(lambda d: leave_one_out(d, ["city", "user"])),
    "smoothed leave one out": adds(smoothed_leave_one_out),
    "price + 1e-10 y": adds(lambda d: d["price"] + 1e-10 * d["y"]),
    "size + 1e-10 y": adds(lambda d: d["size"] + 1e-10 * d["y"]),
    "a bit of the mantissa": adds(low_bit),
    # What is known.
    "in-fold mean": adds(lambda d: d.groupby("item")["y"].transform("mean")),
    "sum": adds(lambda d: d.groupby("user")["y"].transform("sum")),
    "max of small groups": adds(lambda d: d.groupby(["item", "user"])["y"].transform("max")),
    "means of two keys outside": outside(means_of_two_keys, "z"),
    "deviation of few groups": adds(lambda d: d.groupby("city")["z"].transform("mean") - d["z"].mean(), "z"),
    "rank of the target": adds(lambda d: d["z"].rank(), "z"),
    "running sum with the row": adds(lambda d: d.groupby("user")["y"].cumsum()),
    "TargetEncoder.fit, then transform": adds(
        lambda d: TargetEncoder().fit(d[["item"]], d["y"]).transform(d[["item"]]).ravel()
    ),
    "a copy with noise": adds(lambda d: d["z"] + np.random.default_rng(0).normal(size=len(d)), "z"),
    "nanoseconds": adds(lambda d: d["day"] + pd.to_timedelta(d["y"], unit="ns")),
    "text": adds(lambda d: d["text"] + d["y"].astype(str)),
    "lists": adds(lambda d: pd.Series([[a, float(b)] for a, b in zip(d["size"], d["y"])], index=d.index)),
    "missing where the target is 1": adds(lambda d: d["size"].where(d["y"] == 0)),
    "codes in the order of the means": adds(
        lambda d: d["item"].map(d.groupby("item")["y"].mean().rank(method="first"))
    ),
    "counts of the target, unlabeled rows too": counts_with_unlabeled_rows,
    "a lead of the target": later(lambda d: d.groupby("user")["y"].shift(-1)),
}
GUILTY = {
    "a table of target means": "items_rate",
    "a table of smoothed target means": "items_rate",
    "a table of rounded target means": "users_rate",
    "counts of the target, unlabeled rows too": "count_item_x_y",
}


def out_of_fold(folds, y="y", dtype=float):
    """Target means of the other folds, as notebooks write them."""

    def make(d):
        made = np.zeros(len(d), dtype)
        for train, valid in folds(d):
            rates = d.iloc[train].groupby("item")[y].mean()
            made[valid] = d.iloc[valid]["item"].map(rates).fillna(d.iloc[train][y].mean())
        return made

    return make


def cross_fitted(d, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer ones want the folds given, older ones know no such way
        return TargetEncoder(random_state=0).fit_transform(d[["item"]], d[y]).ravel()


def by_subtraction(d):
    """The same out of sums less the fold's own, in single precision, which rounds with the row's own target."""
    fold = np.random.default_rng(0).integers(0, 5, len(d))
    z = d["z"].astype("float32") + np.float32(3)
    total, own = z.groupby(d["item"]).transform("sum"), z.groupby([d["item"], fold]).transform("sum")
    n, own_n = z.groupby(d["item"]).transform("count"), z.groupby([d["item"], fold]).transform("count")
    return ((total - own) / (n - own_n)).astype("float32")


def strong(df):
    rng = np.random.default_rng(5)
    df = df.assign(strong=df["z"] + 0.3 * df["z"].std() * rng.normal(size=len(df)))
    return lambda d: d.assign(**clean_columns(d), x=d["strong"] * 2), df, "z", {}


def nearly_separating(df):
    df = df.assign(strong=df["y"] * 3 + np.random.default_rng(5).normal(size=len(df)))
    return lambda d: d.assign(x=d["strong"].round(2), b=(d["strong"] > 1.5).astype(int)), df, "y", {}


def item_quality(df):
    quality = df.groupby("item")["z"].mean().round(0)
    return lambda d: d.assign(x=d["item"].map(quality).fillna(0)), df, "y", {}


def item_facts(df):
    rng = np.random.default_rng(2)
    items = pd.DataFrame({"item": sorted(set(df["item"]))})
    items = items.assign(stars=rng.integers(1, 6, len(items)), rare=rng.random(len(items)) < 0.02)
    fs = ff.FeatureSet([ff.JoinTable("items", "item", ["stars", "rare"]), ff.TargetEncode("item", "y")], key="user")
    return fs, df, "y", {"tables": {"items": items}}


def trend(df):
    df = df.sort_values("t").assign(y=np.linspace(0, 9, len(df)) + df["size"].to_numpy())
    return lambda d: d.assign(**clean_columns(d), x=np.arange(len(d))), df.reset_index(drop=True), "y", {}


def few_rows_a_key(df):
    df = df.assign(item=np.arange(len(df)) // 2)
    return ff.FeatureSet([ff.TargetEncode("item", "y")], key="t"), df, "y", {}


def of_set(*features, target="y", **options):
    return lambda df: (ff.FeatureSet(list(features), key="user"), df, target, options)


CLEAN = {
    "TargetEncode by key": of_set(ff.TargetEncode(["item", "city"], "y"), ff.CountEncode("item")),
    "TargetEncode by rows": lambda df: (ff.FeatureSet([ff.TargetEncode(["item", "user"], "y")]), df, "y", {}),
    "TargetEncode of a number": of_set(ff.TargetEncode("item", "z", stats=["mean", "std"]), target="z"),
    "TargetEncode of two rows a key": few_rows_a_key,
    "TargetEncode of several statistics": of_set(ff.TargetEncode("city", "y", stats=["mean", "woe", "count"])),
    "CumTarget": of_set(ff.CumTarget("item", "y", order="t"), order="t"),
    "CumTarget of a number": of_set(
        ff.Combine("price", "-", ff.CumTarget("user", "y", order="t", of="price")), order="t"
    ),
    "counts, ranks, deviations": of_set(
        ff.CountEncode("item"),
        ff.GroupStats("price", by="item"),
        ff.DeviationFromGroup("price", by="city"),
        ff.GroupRank("size", by="user"),
        ff.NaNPattern(["age", "price"]),
    ),
    "facts of another table": item_facts,
    "lags of the target": later(lambda d: d.groupby("user")["y"].shift(1)),
    "running target means, shifted": later(
        lambda d: d.groupby("item")["y"].transform(lambda s: s.shift().expanding().mean())
    ),
    "running sums, shifted": later(lambda d: d.groupby("user")["y"].cumsum() - d["y"]),
    "folds by rows": adds(out_of_fold(lambda d: KFold(5, shuffle=True, random_state=0).split(d))),
    "folds by rows of a number": adds(out_of_fold(lambda d: KFold(5).split(d), "z"), "z"),
    "folds by key": adds(out_of_fold(lambda d: GroupKFold(5).split(d, groups=d["user"]))),
    "stratified folds": adds(out_of_fold(lambda d: StratifiedKFold(5, shuffle=True, random_state=0).split(d, d["y"]))),
    "single precision": adds(by_subtraction, "z"),
    "TargetEncoder.fit_transform": adds(lambda d: cross_fitted(d, "y")),
    "TargetEncoder.fit_transform of a number": adds(lambda d: cross_fitted(d, "z"), "z"),
    "stacked predictions": adds(
        lambda d: cross_val_predict(
            LogisticRegression(), d[["size", "price"]], d["y"], method="predict_proba", cv=StratifiedKFold(3)
        )[:, 1]
    ),
    "date parts": adds(lambda d: d["day"].dt.month * 744 + d["day"].dt.day * 24 + d["day"].dt.hour),
    "tf-idf": adds(lambda d: np.asarray(TfidfVectorizer().fit_transform(d["text"]).sum(1)).ravel()),
    "quantile bins": adds(lambda d: pd.qcut(d["price"], 8, labels=False)),
    "Yeo-Johnson": adds(lambda d: PowerTransformer().fit_transform(d[["price"]]).ravel()),
    "a seeded noise": adds(lambda d: np.random.default_rng(0).normal(size=len(d))),
    "a strong predictor": strong,
    "a nearly separating predictor": nearly_separating,
    "a separating predictor": lambda df: (
        lambda d: d.assign(x=d["strong"]),
        df.assign(strong=df["y"] * 9 + np.random.default_rng(5).normal(size=len(df))),
        "y",
        {},
    ),
    "quality of items": item_quality,
    "rows of a trend": trend,
}
