"""Examples of the generators that the trivago recipe is built from."""

from __future__ import annotations

from fastrec.features import (
    BayesianRate,
    Bucketize,
    Combine,
    CountEncode,
    Cross,
    CumStat,
    Cyclic,
    Diff,
    GroupPick,
    GroupRank,
    GroupStats,
    History,
    JaccardToHistory,
    Lag,
    LastKnown,
    TargetEncode,
    Where,
)

EXAMPLES = {
    "BayesianRate": [
        lambda: BayesianRate("clicks", "views", weight=3),
        lambda: BayesianRate(CountEncode("city"), "views"),
    ],
    "Bucketize": [
        lambda: Bucketize("price", [-1, 0.5, 3]),
        lambda: Bucketize(Diff("price", by="user"), [0], name="up"),
    ],
    "Combine": [
        lambda: Combine("price", "-", "clicks"),
        lambda: Combine("price", "/", "views", name="share"),
        lambda: Combine(CountEncode("city"), "*", TargetEncode("city", "y")),
    ],
    "CountEncode": [
        lambda: CountEncode(["city", "item"]),
        lambda: CountEncode("city", log=True),
        lambda: CountEncode(Cross("city", "item"), scope="all"),
    ],
    "Cross": [
        lambda: Cross("city", "item"),
        lambda: Cross(["city", "item", "flag"], min_count=2),
        lambda: Cross("item", "city", buckets=7, seed=3),
    ],
    "CumStat": [
        lambda: CumStat("price", by="user", order="when", stats=["count", "sum", "mean", "min", "max"]),
        lambda: CumStat(["price", "clicks"], by=["user", "city"]),
    ],
    "Cyclic": [
        lambda: Cyclic("time", "hour"),
        lambda: Cyclic("time", "dayofyear"),
        lambda: Cyclic("clicks", 7),
        lambda: Cyclic("clicks", "weekday"),
    ],
    "Diff": [lambda: Diff(["price", "clicks", "time"], by="user", order=["when"], n=[1, 2])],
    "GroupPick": [
        lambda: GroupPick("price", by="user", order="when"),
        lambda: GroupPick(["price", "clicks"], by=["user", "city"], order="clicks", nth=2, last=True, name="late"),
    ],
    "GroupRank": [
        lambda: GroupRank(["price", "clicks", "time"], by="user"),
        lambda: GroupRank("price", by=["user", "city"], method="dense", descending=True, normalise=True),
        lambda: GroupRank(TargetEncode("item", "y"), by="user"),
    ],
    "GroupStats": [
        lambda: GroupStats("price", by="city", stats=["mean", "std", "min", "max", "sum", "count"]),
        lambda: GroupStats(["price", "clicks"], by=["city", "item"], stats="mean", over="group"),
        lambda: GroupStats(TargetEncode("item", "y"), by="city", scope="all"),
    ],
    "History": [
        lambda: History(["user", "item"], order="when", stats=["count", "since", "steps", "since_first", "is_last"]),
        lambda: History(
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
        lambda: JaccardToHistory(
            "user", item="item", properties="tags", order="when", table="log", items="items", last=2
        )
    ],
    "Lag": [
        lambda: Lag(["price", "clicks", "city", "time", "flag"], by="user", order="when", n=[1, -1]),
        lambda: Lag("price"),
    ],
    "LastKnown": [
        lambda: LastKnown(["price", "city"], by="user", order="when"),
        lambda: LastKnown("price", by="user", ahead=True),
    ],
    "TargetEncode": [
        lambda: TargetEncode(["city", "item"], "y", stats=["mean", "std", "count"], smooth=2),
        lambda: TargetEncode(Cross("city", "item"), ["y", "z"], folds=3, weight="views"),
        lambda: TargetEncode("flag", "y", fold_column="fold"),
    ],
    "Where": [lambda: Where("price", "clicks"), lambda: Where(TargetEncode("city", "y"), "price", name="sure")],
}

ROW_WISE = [
    Combine("price", "-", "t"),
    Combine("price", "/", "t"),
    Cyclic("t", 7),
    Cyclic("t", "month"),
    Bucketize("price", [-1, 1]),
    Where("price", "t"),
]

CAUSAL = [
    Lag(["price", "item"], by="user", order="t"),
    Lag("price", by=["user", "city"], order="t", n=[1, 3]),
    Lag("price", order="t"),
    Diff(["price", "t"], by="user", order="t"),
    CumStat("price", by="user", order="t", stats=["count", "sum", "mean", "min", "max"]),
    LastKnown(["price", "city"], by="user", order="t"),
    History(["user", "item"], order="t", stats=["count", "since", "steps", "since_first", "is_last"]),
    History("user", order="t", event="item", kinds=["a", "b"], by_kind=True, values=["price"], sums=["price"]),
]

ENCODERS = [
    [TargetEncode("item", "y")],
    [TargetEncode(["item", "city"], "y", smooth=1, stats=["mean", "std", "count"])],
    [TargetEncode(Cross("item", "user"), "y", folds=3, smooth=0)],
    [TargetEncode("item", "y"), Combine(TargetEncode("item", "y"), "-", TargetEncode("city", "y"))],
    [GroupRank(TargetEncode("item", "y"), by="user")],
    [GroupRank(TargetEncode("item", "y"), by="city")],
    [GroupStats(TargetEncode("item", "y"), by="city", stats=["mean", "sum", "max"])],
    [GroupStats(TargetEncode("item", "y"), by="user", over="group"), GroupStats("price", by="city")],
    [Lag(TargetEncode("item", "y"), by="user", order="t"), Diff(TargetEncode("item", "y"))],
    [CumStat(TargetEncode("item", "y"), by="city", stats=["mean", "max"])],
    [GroupPick(TargetEncode("item", "y"), by="user", order="price"), CountEncode("item")],
    [BayesianRate(TargetEncode("item", "y", stats="count"), "t")],
    [Where(GroupRank(TargetEncode("item", "y"), by="city"), "t", name="deep")],
    [
        GroupRank(Combine(TargetEncode("item", "y"), "+", "price", name="sum"), by="city"),
        CountEncode(Cross("item", "city")),
    ],
]

NOT_NUMBERS = [
    Combine("price", "+", "other"),
    Cyclic("other", 7),
    Cyclic("other", "hour"),
    Diff("other"),
    GroupStats("other", by="city"),
    GroupRank("other", by="city"),
    GroupPick("price", by="city", order="other"),
    TargetEncode("city", "other"),
    BayesianRate("other", "views"),
    Bucketize("other", [1]),
    Where("price", "other"),
    CumStat("other", by="city"),
    History("user", order="other"),
    Lag("price", order="other"),
    LastKnown("price", by="user", order="other"),
]
