"""Examples of row-wise generators, vocabularies and lookup tables."""

from __future__ import annotations

from fastrec.features import (
    Bucketize,
    Categorify,
    Clip,
    Combine,
    CountEncode,
    DateOf,
    DatePart,
    Digits,
    FillMissing,
    GroupRank,
    HashEncode,
    JoinTable,
    Lag,
    Log1p,
    NaNPattern,
    Normalize,
    RoundTo,
    RowStats,
    TargetEncode,
)

EXAMPLES = {
    "Bucketize": [
        lambda: Bucketize("price", quantiles=4),
        lambda: Bucketize("clicks", quantiles=[0, 0.25, 0.9], name="part", scope="all"),
        lambda: Bucketize(TargetEncode("city", "y"), quantiles=3),
    ],
    "Categorify": [
        lambda: Categorify(["item", "city", "flag", "clicks", "time"]),
        lambda: Categorify(["city", "user"], min_count={"city": 2}, max_size={"user": 3}, unseen=True, scope="all"),
        lambda: Categorify(["item", "text", "city"], shared="word", max_size=4, name="one"),
        lambda: Categorify(["city", "tags"], min_count=3, buckets=5),
        lambda: Categorify(["tags", Lag("item", by="user", order="when")], shared=True, min_count=2),
        lambda: Categorify(Bucketize(TargetEncode("city", "y"), quantiles=3), unseen=True),
    ],
    "Clip": [
        lambda: Clip(["price", "clicks"], quantiles=(0.1, 0.8)),
        lambda: Clip(["price", "clicks"], 0, 2),
        lambda: Clip("clicks", high=1.5),
        lambda: Clip(TargetEncode("city", "y"), scope="all"),
    ],
    "DateOf": [
        lambda: DateOf("clicks", "clicks"),
        lambda: DateOf("clicks", Lag("clicks", by="user", order="when"), "views", name="then"),
        lambda: DateOf("clicks", "clicks", clock="clicks"),
    ],
    "DatePart": [
        lambda: DatePart("time"),
        lambda: DatePart("time", ["quarter", "Hour", "minute", "second", "weekofyear", "weekday"]),
        lambda: DatePart("price", "dayofyear"),
    ],
    "Digits": [lambda: Digits(["price", "clicks"]), lambda: Digits(["price", "clicks", "z"], 3, decimals=2)],
    "FillMissing": [
        lambda: FillMissing(["price", "clicks"]),
        lambda: FillMissing(["clicks", "y"], "mean", add_col=False),
        lambda: FillMissing("price", "mode", scope="all"),
        lambda: FillMissing(["price", "clicks"], "constant", value={"clicks": -1}),
        lambda: FillMissing(Combine(TargetEncode("city", "y"), "+", "clicks")),
    ],
    "HashEncode": [
        lambda: HashEncode(["city", "item", "flag", "clicks", "time"], 13),
        lambda: HashEncode("city", 5, seed=3, name="second"),
        lambda: HashEncode(CountEncode("city"), 7),
    ],
    "JoinTable": [
        lambda: JoinTable("items", "item", "tags"),
        lambda: JoinTable("log", ["user", "when"], ["worth", "word", "kind", "item"], duplicates="last", name="event"),
        lambda: JoinTable("log", {"clicks": "user"}, ["when", "kind"], duplicates="first"),
    ],
    "Log1p": [lambda: Log1p("views"), lambda: Log1p(["price", "clicks"], signed=True)],
    "NaNPattern": [
        lambda: NaNPattern(["price", "item", "tags", "time", "flag", "vec", "row"]),
        lambda: NaNPattern(["price", Lag("price", by="user", order="when")], name="gaps"),
    ],
    "Normalize": [
        lambda: Normalize(["price", "clicks", "z"]),
        lambda: Normalize(TargetEncode("city", "y"), scope="all"),
    ],
    "RoundTo": [
        lambda: RoundTo(["price", "clicks"], [2, 0.5], stats=["value", "gap", "is_round"]),
        lambda: RoundTo("z", 0.05),
    ],
    "RowStats": [
        lambda: RowStats(["price", "clicks", "flag", "z", "views"]),
        lambda: RowStats(["clicks", "price", "time"], ["nunique", "negative", "sum", "max"], name="few"),
        lambda: RowStats(["z", TargetEncode("city", "y")], "std", name="two"),
    ],
}

ROW_WISE = [
    Bucketize("price", [0]),
    Clip("price", -1, 1),
    DatePart("t"),
    Digits("price", 2, decimals=1),
    HashEncode(["item", "city"], 9),
    Log1p("price", signed=True),
    NaNPattern(["price", "city", "tags"]),
    RoundTo("price", 2, stats=["value", "is_round"]),
    RowStats(["price", "t", "y", "id", "user"], ["missing", "nunique", "sum", "mean", "std", "min"]),
]

ENCODERS = [
    [Bucketize(TargetEncode("item", "y"), quantiles=3)],
    [Bucketize(TargetEncode("item", "y"), [0.3, 0.6])],
    [Categorify(Bucketize(TargetEncode("item", "y"), [0, 0.3, 0.6]), min_count=2)],
    [Clip(TargetEncode("item", "y"), quantiles=(0.2, 0.7)), Clip(TargetEncode("city", "y"), high=0.5)],
    [FillMissing(Combine(TargetEncode("item", "y"), "+", "price")), FillMissing(TargetEncode("item", "y"), "mean")],
    [GroupRank(Normalize(TargetEncode("item", "y")), by="city")],
    [RowStats([TargetEncode("item", "y"), "price"], ["mean", "nunique"])],
    [HashEncode(TargetEncode("item", "y"), 50), RoundTo(TargetEncode("item", "y"), 0.25)],
]

NOT_NUMBERS = [
    Bucketize("other", quantiles=3),
    Clip("other"),
    Clip("other", 0, 1),
    DatePart("other"),
    Digits("other"),
    FillMissing("other"),
    FillMissing("other", "constant"),
    Log1p("other"),
    Normalize("other"),
    RoundTo("other", 5),
    RowStats(["price", "other"]),
]
