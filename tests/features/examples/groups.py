"""Examples of the generators over groups and over the events before a row."""

from __future__ import annotations

from fastrec.features import (
    Collect,
    CoVisit,
    Cross,
    DeviationFromGroup,
    GroupStats,
    LastAction,
    Neighbours,
    TargetEncode,
)

EXAMPLES = {
    "CoVisit": [
        lambda: CoVisit("item", by="user", order="when", stats=["sum", "max", "mean"]),
        lambda: CoVisit("city", by="user", order=["when"], window=2, last=3, half_life=4, folds=3, name="together"),
        lambda: CoVisit(
            "item",
            by="user",
            order="when",
            table="log",
            event="kind",
            weights={"a": 1, "b c": 0.5, "d": 0},
            half_life=10,
        ),
    ],
    "Collect": [
        lambda: Collect(["item", "price", "clicks", "time", "flag"], by="user", order="when", max_len=3),
        lambda: Collect(["worth", "word"], by="user", order="when", table="log", max_len=2, name="log"),
        lambda: Collect([TargetEncode("city", "y"), "views"], by=["user", "flag"]),
    ],
    "DeviationFromGroup": [
        lambda: DeviationFromGroup(["price", "clicks"], by="user"),
        lambda: DeviationFromGroup("price", by=["user", "city"], how="ratio", stat="median", name="dear"),
        lambda: DeviationFromGroup("clicks", by="city", how="z", over="train"),
        lambda: DeviationFromGroup(TargetEncode("item", "y"), by="user", how="z"),
        lambda: DeviationFromGroup("views", by="item", stat="median", over="train", scope="all"),
    ],
    "GroupStats": [
        lambda: GroupStats("price", by="city", stats=["median", "q05", "q975", "skew", "nunique"]),
        lambda: GroupStats(["price", "clicks"], by="user", stats=["median", "skew", "q25"], over="group", name="own"),
        lambda: GroupStats(["item", "time", "clicks"], by="flag", stats=["first", "last", "count"], order="when"),
        lambda: GroupStats(["city", "price"], by="user", stats=["last", "nunique"], order=["when"], over="group"),
        lambda: GroupStats("clicks", by="city", stats=["histogram", "mean"], bins=[-3, 0, 2], scope="all"),
        lambda: GroupStats(Cross("city", "item"), by="user", stats=["nunique", "first"], order="when", scope="all"),
        lambda: GroupStats(TargetEncode("item", "y"), by="user", stats=["median", "skew"]),
    ],
    "LastAction": [
        lambda: LastAction("user", order="when", action="item"),
        lambda: LastAction(["user", "flag"], order=["when"], action="time", n=[1, 2], since=False),
        lambda: LastAction("user", order="when", action="kind", table="log", n=2, name="log"),
        lambda: LastAction("user", order=None, action="city", since=False),
    ],
    "Neighbours": [
        lambda: Neighbours(
            ["price", "clicks", "time"], by="user", order="when", what=["diff_previous", "above", "below"]
        ),
        lambda: Neighbours(["city", "price", "flag"], by=["user", "item"], order="when", n=[1, 2]),
        lambda: Neighbours(TargetEncode("item", "y"), by="user", what=["next", "diff_next", "above"]),
    ],
}

CAUSAL = [
    LastAction("user", order="t", action="item", n=[1, 2]),
    LastAction(["user", "city"], order="t", action="price"),
    Collect(["item", "price"], by="user", order="t", max_len=3),
]

ENCODERS = [
    [GroupStats(TargetEncode("item", "y"), by="city", stats=["median", "q25", "skew", "nunique", "last"], order="t")],
    [GroupStats(TargetEncode("item", "y"), by="user", stats=["median", "skew"], over="group")],
    [DeviationFromGroup(TargetEncode("item", "y"), by="user")],
    [DeviationFromGroup(TargetEncode("item", "y"), by="city", how="z", over="train")],
    [Neighbours(TargetEncode("item", "y"), by="city", order="t", what=["previous", "next", "diff_next", "above"])],
    [Collect(TargetEncode("item", "y"), by="user", order="t")],
]

NOT_NUMBERS = [
    GroupStats("other", by="city", stats=["nunique", "median"]),
    GroupStats("price", by="city", stats="first", order="other"),
    DeviationFromGroup("other", by="city"),
    Neighbours("other", by="city", what="diff_next"),
    Neighbours("other", by="city", what="above"),
    LastAction("user", order="other", action="city"),
    Collect("price", by="user", order="other"),
    CoVisit("item", by="user", order="other"),
]
