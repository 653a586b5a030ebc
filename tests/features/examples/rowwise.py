"""Examples of row-wise generators, vocabularies and lookup tables."""

from __future__ import annotations

import fastrec.features as ff

EXAMPLES = {
    "Bucketize": [
        lambda: ff.Bucketize("price", quantiles=4),
        lambda: ff.Bucketize("clicks", quantiles=[0, 0.25, 0.9], name="part", scope="all"),
        lambda: ff.Bucketize(ff.TargetEncode("city", "y"), quantiles=3),
    ],
    "Categorify": [
        lambda: ff.Categorify(["item", "city", "flag", "clicks", "time"]),
        lambda: ff.Categorify(["city", "user"], min_count={"city": 2}, max_size={"user": 3}, unseen=True, scope="all"),
        lambda: ff.Categorify(["item", "text", "city"], shared="word", max_size=4, name="one"),
        lambda: ff.Categorify(["city", "tags"], min_count=3, buckets=5),
        lambda: ff.Categorify(["tags", ff.Lag("item", by="user", order="when")], shared=True, min_count=2),
        lambda: ff.Categorify(ff.Bucketize(ff.TargetEncode("city", "y"), quantiles=3), unseen=True),
    ],
    "Clip": [
        lambda: ff.Clip(["price", "clicks"], quantiles=(0.1, 0.8)),
        lambda: ff.Clip(["price", "clicks"], 0, 2),
        lambda: ff.Clip("clicks", high=1.5),
        lambda: ff.Clip(ff.TargetEncode("city", "y"), scope="all"),
    ],
    "DateOf": [
        lambda: ff.DateOf("clicks", "clicks"),
        lambda: ff.DateOf("clicks", ff.Lag("clicks", by="user", order="when"), "views", name="then"),
        lambda: ff.DateOf("clicks", "clicks", clock="clicks"),
    ],
    "DatePart": [
        lambda: ff.DatePart("time"),
        lambda: ff.DatePart("time", ["quarter", "Hour", "minute", "second", "weekofyear", "weekday"]),
        lambda: ff.DatePart("price", "dayofyear"),
    ],
    "Digits": [lambda: ff.Digits(["price", "clicks"]), lambda: ff.Digits(["price", "clicks", "z"], 3, decimals=2)],
    "FillMissing": [
        lambda: ff.FillMissing(["price", "clicks"]),
        lambda: ff.FillMissing(["clicks", "y"], "mean", add_col=False),
        lambda: ff.FillMissing("price", "mode", scope="all"),
        lambda: ff.FillMissing(["price", "clicks"], "constant", value={"clicks": -1}),
        lambda: ff.FillMissing(ff.Combine(ff.TargetEncode("city", "y"), "+", "clicks")),
    ],
    "HashEncode": [
        lambda: ff.HashEncode(["city", "item", "flag", "clicks", "time"], 13),
        lambda: ff.HashEncode("city", 5, seed=3, name="second"),
        lambda: ff.HashEncode(ff.CountEncode("city"), 7),
    ],
    "JoinTable": [
        lambda: ff.JoinTable("items", "item", "tags"),
        lambda: ff.JoinTable(
            "log", ["user", "when"], ["worth", "word", "kind", "item"], duplicates="last", name="event"
        ),
        lambda: ff.JoinTable("log", {"clicks": "user"}, ["when", "kind"], duplicates="first"),
    ],
    "Log1p": [lambda: ff.Log1p("views"), lambda: ff.Log1p(["price", "clicks"], signed=True)],
    "NaNPattern": [
        lambda: ff.NaNPattern(["price", "item", "tags", "time", "flag", "vec", "row"]),
        lambda: ff.NaNPattern(["price", ff.Lag("price", by="user", order="when")], name="gaps"),
    ],
    "Normalize": [
        lambda: ff.Normalize(["price", "clicks", "z"]),
        lambda: ff.Normalize(ff.TargetEncode("city", "y"), scope="all"),
    ],
    "RoundTo": [
        lambda: ff.RoundTo(["price", "clicks"], [2, 0.5], stats=["value", "gap", "is_round"]),
        lambda: ff.RoundTo("z", 0.05),
    ],
    "RowStats": [
        lambda: ff.RowStats(["price", "clicks", "flag", "z", "views"]),
        lambda: ff.RowStats(["clicks", "price", "time"], ["nunique", "negative", "sum", "max"], name="few"),
        lambda: ff.RowStats(["z", ff.TargetEncode("city", "y")], "std", name="two"),
    ],
}

ROW_WISE = [
    ff.Bucketize("price", [0]),
    ff.Clip("price", -1, 1),
    ff.DatePart("t"),
    ff.Digits("price", 2, decimals=1),
    ff.HashEncode(["item", "city"], 9),
    ff.Log1p("price", signed=True),
    ff.NaNPattern(["price", "city", "tags"]),
    ff.RoundTo("price", 2, stats=["value", "is_round"]),
    ff.RowStats(["price", "t", "y", "id", "user"], ["missing", "nunique", "sum", "mean", "std", "min"]),
]

ENCODERS = [
    [ff.Bucketize(ff.TargetEncode("item", "y"), quantiles=3)],
    [ff.Bucketize(ff.TargetEncode("item", "y"), [0.3, 0.6])],
    [ff.Categorify(ff.Bucketize(ff.TargetEncode("item", "y"), [0, 0.3, 0.6]), min_count=2)],
    [ff.Clip(ff.TargetEncode("item", "y"), quantiles=(0.2, 0.7)), ff.Clip(ff.TargetEncode("city", "y"), high=0.5)],
    [
        ff.FillMissing(ff.Combine(ff.TargetEncode("item", "y"), "+", "price")),
        ff.FillMissing(ff.TargetEncode("item", "y"), "mean"),
    ],
    [ff.GroupRank(ff.Normalize(ff.TargetEncode("item", "y")), by="city")],
    [ff.RowStats([ff.TargetEncode("item", "y"), "price"], ["mean", "nunique"])],
    [ff.HashEncode(ff.TargetEncode("item", "y"), 50), ff.RoundTo(ff.TargetEncode("item", "y"), 0.25)],
]
