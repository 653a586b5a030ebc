"""Examples of the generators of targets, rates and counts."""

from __future__ import annotations

import fastrec.features as ff

EXAMPLES = {
    "BayesianRate": [
        lambda: ff.BayesianRate("clicks", "views", weight=None),
        lambda: ff.BayesianRate("views", ff.CountEncode("city"), weight=None, prior=0.25, name="usual"),
    ],
    "CountEncode": [
        lambda: ff.CountEncode(["city", "item"], normalise=True),
        lambda: ff.CountEncode("city", by=["user", "flag"], normalise=True, scope="all"),
        lambda: ff.CountEncode("city", by="user", log=True),
    ],
    "CumCount": [
        lambda: ff.CumCount("user", order="when"),
        lambda: ff.CumCount(["user", "city"], order=["fold", "when"]),
        lambda: ff.CumCount(by="city"),
    ],
    "CumTarget": [
        lambda: ff.CumTarget(["city", "item"], "y", order="when", smooth=2),
        lambda: ff.CumTarget(ff.Cross("city", "item"), ["y", "z"], order="when", half_life=7, weight="views"),
        lambda: ff.CumTarget("flag", "y", order=["user", "when"], smooth=0, name="sofar"),
        lambda: ff.CumTarget("city", "y", order="fold", half_life=0.5, smooth=0),
        lambda: ff.CumTarget("user", "y", order="when", of=["z", ff.Combine("z", "*", "views")], smooth=1),
    ],
    "NUnique": [
        lambda: ff.NUnique(["city", "clicks"], by="user"),
        lambda: ff.NUnique(ff.Cross("city", "item"), by=["user", "flag"], scope="all"),
        lambda: ff.NUnique(["time", "price"], by="city"),
    ],
    "RankByCount": [
        lambda: ff.RankByCount(["city", "item"]),
        lambda: ff.RankByCount("city", method="dense", scope="all"),
        lambda: ff.RankByCount(ff.Cross("city", "item"), method="ordinal"),
    ],
    "TargetEncode": [
        lambda: ff.TargetEncode(["city", "item"], "y", stats=["mean", "std", "woe"], smooth=2, weight="views"),
        lambda: ff.TargetEncode(
            "city", ["item", "text"], classes=["i0", "i2", ""], stats=["count", "mean", "std", "woe"]
        ),
        lambda: ff.TargetEncode("city", "clicks", classes=[-1, 2], smooth=0),
    ],
}

CAUSAL = [
    ff.CumCount("user", order="t"),
    ff.CumCount(["user", "city"], order=["t", "id"]),
    ff.CumTarget(["item", "city"], "y", order="t", smooth=1),
    ff.CumTarget("user", "y", order="t", half_life=1.5),
    ff.CumTarget(ff.Cross("item", "city"), "y", order=["t", "id"], smooth=0),
    ff.CumTarget("item", "y", order="t", smooth=0, half_life=0.001, weight="t"),
    ff.CumTarget("user", "y", order="t", of="id", smooth=1),
]

ENCODERS = [
    [ff.CumTarget(["item", "city"], "y", order="t")],
    [ff.CumTarget("user", "y", order="t", half_life=2, smooth=1), ff.CountEncode("item")],
    [ff.GroupRank(ff.CumTarget("item", "y", order="t"), by="user")],
    [ff.Combine(ff.CumTarget("item", "y", order="t"), "-", ff.TargetEncode("item", "y"))],
    [ff.CountEncode(ff.TargetEncode("item", "y"), normalise=True), ff.RankByCount(ff.TargetEncode("item", "y"))],
    [ff.NUnique(ff.TargetEncode("item", "y"), by="user")],
    [ff.TargetEncode("item", "y", classes=[0, 1], stats=["mean", "woe"])],
    [ff.BayesianRate(ff.TargetEncode("item", "y", stats="count"), "t", weight=None)],
]
