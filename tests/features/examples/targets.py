"""Examples of the generators of targets, rates and counts."""

from __future__ import annotations

from fastrec.features import (
    BayesianRate,
    Combine,
    CountEncode,
    Cross,
    CumCount,
    CumTarget,
    GroupRank,
    NUnique,
    RankByCount,
    TargetEncode,
)

EXAMPLES = {
    "BayesianRate": [
        lambda: BayesianRate("clicks", "views", weight=None),
        lambda: BayesianRate("views", CountEncode("city"), weight=None, prior=0.25, name="usual"),
    ],
    "CountEncode": [
        lambda: CountEncode(["city", "item"], normalise=True),
        lambda: CountEncode("city", by=["user", "flag"], normalise=True, scope="all"),
        lambda: CountEncode("city", by="user", log=True),
    ],
    "CumCount": [
        lambda: CumCount("user", order="when"),
        lambda: CumCount(["user", "city"], order=["fold", "when"]),
        lambda: CumCount(by="city"),
    ],
    "CumTarget": [
        lambda: CumTarget(["city", "item"], "y", order="when", smooth=2),
        lambda: CumTarget(Cross("city", "item"), ["y", "z"], order="when", half_life=7, weight="views"),
        lambda: CumTarget("flag", "y", order=["user", "when"], smooth=0, name="sofar"),
        lambda: CumTarget("city", "y", order="fold", half_life=0.5, smooth=0),
        lambda: CumTarget("user", "y", order="when", of=["z", Combine("z", "*", "views")], smooth=1),
    ],
    "NUnique": [
        lambda: NUnique(["city", "clicks"], by="user"),
        lambda: NUnique(Cross("city", "item"), by=["user", "flag"], scope="all"),
        lambda: NUnique(["time", "price"], by="city"),
    ],
    "RankByCount": [
        lambda: RankByCount(["city", "item"]),
        lambda: RankByCount("city", method="dense", scope="all"),
        lambda: RankByCount(Cross("city", "item"), method="ordinal"),
    ],
    "TargetEncode": [
        lambda: TargetEncode(["city", "item"], "y", stats=["mean", "woe"], smooth=2, weight="views"),
        lambda: TargetEncode("city", ["item", "text"], classes=["i0", "i2", ""], stats=["count", "mean", "std", "woe"]),
        lambda: TargetEncode("city", "clicks", classes=[-1, 2], smooth=0),
    ],
}

CAUSAL = [
    CumCount("user", order="t"),
    CumCount(["user", "city"], order=["t", "id"]),
    CumTarget(["item", "city"], "y", order="t", smooth=1),
    CumTarget("user", "y", order="t", half_life=1.5),
    CumTarget(Cross("item", "city"), "y", order=["t", "id"], smooth=0),
    CumTarget("item", "y", order="t", smooth=0, half_life=0.001, weight="t"),
    CumTarget("user", "y", order="t", of="id", smooth=1),
]

ENCODERS = [
    [CumTarget(["item", "city"], "y", order="t")],
    [CumTarget("user", "y", order="t", half_life=2, smooth=1), CountEncode("item")],
    [GroupRank(CumTarget("item", "y", order="t"), by="user")],
    [Combine(CumTarget("item", "y", order="t"), "-", TargetEncode("item", "y"))],
    [CountEncode(TargetEncode("item", "y"), normalise=True), RankByCount(TargetEncode("item", "y"))],
    [NUnique(TargetEncode("item", "y"), by="user")],
    [TargetEncode("item", "y", classes=[0, 1], stats=["mean", "woe"])],
    [BayesianRate(TargetEncode("item", "y", stats="count"), "t", weight=None)],
]

NOT_NUMBERS = [
    CumTarget("city", "other", order="when"),
    CumTarget("city", "y", order="other"),
    CumTarget("city", "y", order="when", weight="other"),
    CumCount("user", order="other"),
    BayesianRate("clicks", "other", weight=None),
    TargetEncode("city", "other", stats="woe"),
]
