"""Examples of the generators over groups and over the events before a row."""

from __future__ import annotations

import fastrec.features as ff

EXAMPLES = {
    "CoVisit": [
        lambda: ff.CoVisit("item", by="user", order="when", stats=["sum", "max", "mean"]),
        lambda: ff.CoVisit("city", by="user", order=["when"], window=2, last=3, half_life=4, folds=3, name="together"),
        lambda: ff.CoVisit(
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
        lambda: ff.Collect(["item", "price", "clicks", "time", "flag"], by="user", order="when", max_len=3),
        lambda: ff.Collect(["worth", "word"], by="user", order="when", table="log", max_len=2, name="log"),
        lambda: ff.Collect([ff.TargetEncode("city", "y"), "views"], by=["user", "flag"]),
    ],
    "DeviationFromGroup": [
        lambda: ff.DeviationFromGroup(["price", "clicks"], by="user"),
        lambda: ff.DeviationFromGroup("price", by=["user", "city"], how="ratio", stat="median", name="dear"),
        lambda: ff.DeviationFromGroup("clicks", by="city", how="z", over="train"),
        lambda: ff.DeviationFromGroup(ff.TargetEncode("item", "y"), by="user", how="z"),
        lambda: ff.DeviationFromGroup("views", by="item", stat="median", over="train", scope="all"),
    ],
    "GroupStats": [
        lambda: ff.GroupStats("price", by="city", stats=["median", "q05", "q975", "skew", "nunique"]),
        lambda: ff.GroupStats(
            ["price", "clicks"], by="user", stats=["median", "skew", "q25"], over="group", name="own"
        ),
        lambda: ff.GroupStats(["item", "time", "clicks"], by="flag", stats=["first", "last", "count"], order="when"),
        lambda: ff.GroupStats(["city", "price"], by="user", stats=["last", "nunique"], order=["when"], over="group"),
        lambda: ff.GroupStats("clicks", by="city", stats=["histogram", "mean"], bins=[-3, 0, 2], scope="all"),
        lambda: ff.GroupStats(
            ff.Cross("city", "item"), by="user", stats=["nunique", "first"], order="when", scope="all"
        ),
        lambda: ff.GroupStats(ff.TargetEncode("item", "y"), by="user", stats=["median", "skew"]),
    ],
    "LastAction": [
        lambda: ff.LastAction("user", order="when", action="item"),
        lambda: ff.LastAction(["user", "flag"], order=["when"], action="time", n=[1, 2], since=False),
        lambda: ff.LastAction("user", order="when", action="kind", table="log", n=2, name="log"),
        lambda: ff.LastAction("user", order=None, action="city", since=False),
    ],
    "Neighbours": [
        lambda: ff.Neighbours(
            ["price", "clicks", "time"], by="user", order="when", what=["diff_previous", "above", "below"]
        ),
        lambda: ff.Neighbours(["city", "price", "flag"], by=["user", "item"], order="when", n=[1, 2]),
        lambda: ff.Neighbours(ff.TargetEncode("item", "y"), by="user", what=["next", "diff_next", "above"]),
    ],
}

CAUSAL = [
    ff.LastAction("user", order="t", action="item", n=[1, 2]),
    ff.LastAction(["user", "city"], order="t", action="price"),
    ff.Collect(["item", "price"], by="user", order="t", max_len=3),
]

ENCODERS = [
    [
        ff.GroupStats(
            ff.TargetEncode("item", "y"), by="city", stats=["median", "q25", "skew", "nunique", "last"], order="t"
        )
    ],
    [ff.GroupStats(ff.TargetEncode("item", "y"), by="user", stats=["median", "skew"], over="group")],
    [ff.DeviationFromGroup(ff.TargetEncode("item", "y"), by="user")],
    [ff.DeviationFromGroup(ff.TargetEncode("item", "y"), by="city", how="z", over="train")],
    [
        ff.Neighbours(
            ff.TargetEncode("item", "y"), by="city", order="t", what=["previous", "next", "diff_next", "above"]
        )
    ],
    [ff.Collect(ff.TargetEncode("item", "y"), by="user", order="t")],
]
