"""Examples of the generators that the trivago recipe is built from."""

from __future__ import annotations

import fastrec.features as ff

EXAMPLES = {
    "BayesianRate": [
        lambda: ff.BayesianRate("clicks", "views", weight=3),
        lambda: ff.BayesianRate(ff.CountEncode("city"), "views"),
    ],
    "Bucketize": [
        lambda: ff.Bucketize("price", [-1, 0.5, 3]),
        lambda: ff.Bucketize(ff.Diff("price", by="user"), [0], name="up"),
    ],
    "Combine": [
        lambda: ff.Combine("price", "-", "clicks"),
        lambda: ff.Combine("price", "/", "views", name="share"),
        lambda: ff.Combine(ff.CountEncode("city"), "*", ff.TargetEncode("city", "y")),
    ],
    "CountEncode": [
        lambda: ff.CountEncode(["city", "item"]),
        lambda: ff.CountEncode("city", log=True),
        lambda: ff.CountEncode(ff.Cross("city", "item"), scope="all"),
    ],
    "Cross": [
        lambda: ff.Cross("city", "item"),
        lambda: ff.Cross(["city", "item", "flag"], min_count=2),
        lambda: ff.Cross("item", "city", buckets=7, seed=3),
    ],
    "CumStat": [
        lambda: ff.CumStat("price", by="user", order="when", stats=["count", "sum", "mean", "min", "max"]),
        lambda: ff.CumStat(["price", "clicks"], by=["user", "city"]),
    ],
    "Cyclic": [
        lambda: ff.Cyclic("time", "hour"),
        lambda: ff.Cyclic("time", "dayofyear"),
        lambda: ff.Cyclic("clicks", 7),
        lambda: ff.Cyclic("clicks", "weekday"),
    ],
    "Diff": [lambda: ff.Diff(["price", "clicks", "time"], by="user", order=["when"], n=[1, 2])],
    "GroupPick": [
        lambda: ff.GroupPick("price", by="user", order="when"),
        lambda: ff.GroupPick(["price", "clicks"], by=["user", "city"], order="clicks", nth=2, last=True, name="late"),
    ],
    "GroupRank": [
        lambda: ff.GroupRank(["price", "clicks", "time"], by="user"),
        lambda: ff.GroupRank("price", by=["user", "city"], method="dense", descending=True, normalise=True),
        lambda: ff.GroupRank(ff.TargetEncode("item", "y"), by="user"),
    ],
    "GroupStats": [
        lambda: ff.GroupStats("price", by="city", stats=["mean", "std", "min", "max", "sum", "count"]),
        lambda: ff.GroupStats(["price", "clicks"], by=["city", "item"], stats="mean", over="group"),
        lambda: ff.GroupStats(ff.TargetEncode("item", "y"), by="city", scope="all"),
    ],
    "History": [
        lambda: ff.History(["user", "item"], order="when", stats=["count", "since", "steps", "since_first", "is_last"]),
        lambda: ff.History(
            ["user", "item"],
            order=["when"],
            table="log",
            event="kind",
            kinds=["a", "b c"],
            by_kind=True,
            values=["worth", "word"],
            sums="worth",
            name="seen",
        ),
    ],
    "JaccardToHistory": [
        lambda: ff.JaccardToHistory(
            "user", item="item", properties="tags", order="when", table="log", items="items", last=2
        )
    ],
    "Lag": [
        lambda: ff.Lag(["price", "clicks", "city", "time", "flag"], by="user", order="when", n=[1, -1]),
        lambda: ff.Lag("price"),
    ],
    "LastKnown": [
        lambda: ff.LastKnown(["price", "city"], by="user", order="when"),
        lambda: ff.LastKnown("price", by="user", ahead=True),
    ],
    "TargetEncode": [
        lambda: ff.TargetEncode(["city", "item"], "y", stats=["mean", "std", "count"], smooth=2),
        lambda: ff.TargetEncode(ff.Cross("city", "item"), ["y", "z"], folds=3, weight="views"),
        lambda: ff.TargetEncode("flag", "y", fold_column="fold"),
    ],
    "Where": [
        lambda: ff.Where("price", "clicks"),
        lambda: ff.Where(ff.TargetEncode("city", "y"), "price", name="sure"),
    ],
}

ROW_WISE = [
    ff.Combine("price", "-", "t"),
    ff.Combine("price", "/", "t"),
    ff.Cyclic("t", 7),
    ff.Cyclic("t", "month"),
    ff.Bucketize("price", [-1, 1]),
    ff.Where("price", "t"),
]

CAUSAL = [
    ff.Lag(["price", "item"], by="user", order="t"),
    ff.Lag("price", by=["user", "city"], order="t", n=[1, 3]),
    ff.Lag("price", order="t"),
    ff.Diff(["price", "t"], by="user", order="t"),
    ff.CumStat("price", by="user", order="t", stats=["count", "sum", "mean", "min", "max"]),
    ff.LastKnown(["price", "city"], by="user", order="t"),
    ff.History(["user", "item"], order="t", stats=["count", "since", "steps", "since_first", "is_last"]),
    ff.History("user", order="t", event="item", kinds=["a", "b"], by_kind=True, values=["price"], sums=["price"]),
]

ENCODERS = [
    [ff.TargetEncode("item", "y")],
    [ff.TargetEncode(["item", "city"], "y", smooth=1, stats=["mean", "std", "count"])],
    [ff.TargetEncode(ff.Cross("item", "user"), "y", folds=3, smooth=0)],
    [ff.TargetEncode("item", "y"), ff.Combine(ff.TargetEncode("item", "y"), "-", ff.TargetEncode("city", "y"))],
    [ff.GroupRank(ff.TargetEncode("item", "y"), by="user")],
    [ff.GroupRank(ff.TargetEncode("item", "y"), by="city")],
    [ff.GroupStats(ff.TargetEncode("item", "y"), by="city", stats=["mean", "sum", "max"])],
    [ff.GroupStats(ff.TargetEncode("item", "y"), by="user", over="group"), ff.GroupStats("price", by="city")],
    [ff.Lag(ff.TargetEncode("item", "y"), by="user", order="t"), ff.Diff(ff.TargetEncode("item", "y"))],
    [ff.CumStat(ff.TargetEncode("item", "y"), by="city", stats=["mean", "max"])],
    [ff.GroupPick(ff.TargetEncode("item", "y"), by="user", order="price"), ff.CountEncode("item")],
    [ff.BayesianRate(ff.TargetEncode("item", "y", stats="count"), "t")],
    [ff.Where(ff.GroupRank(ff.TargetEncode("item", "y"), by="city"), "t", name="deep")],
    [
        ff.GroupRank(ff.Combine(ff.TargetEncode("item", "y"), "+", "price", name="sum"), by="city"),
        ff.CountEncode(ff.Cross("item", "city")),
    ],
]
