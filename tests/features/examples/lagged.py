"""Examples of the generators that look back at the earlier rows of a group."""

from __future__ import annotations

import fastrec.features as ff

EXAMPLES = {
    "Diff": [lambda: ff.Diff(["price", "clicks", "time"], by="user", order="when", horizon=3)],
    "Ewm": [
        lambda: ff.Ewm(["price", "clicks"], half_life=[2, "4.5s"], by="user", order="when"),
        lambda: ff.Ewm("z", half_life=0.5),
    ],
    "Lag": [lambda: ff.Lag(["clicks", "city", "time", "flag"], by="user", order="when", n=[1, 2], horizon="5s")],
    "PctChange": [
        lambda: ff.PctChange(["price", "clicks", "flag"], by="user", order="when", n=[1, -2]),
        lambda: ff.PctChange("clicks", by=["user", "city"], order="when", horizon=2.5),
    ],
    "Rolling": [
        lambda: ff.Rolling(
            ["price", "clicks"],
            ["mean", "sum", "count", "std", "min", "max", "median"],
            by="user",
            order="when",
            window=[3, "12s"],
        ),
        lambda: ff.Rolling("z", "std", by=["user", "city"], order="when", window="20s", closed="both", min_count=3),
        lambda: ff.Rolling("views", ["sum", "max"], window=4, closed="right", min_count=0, name="last"),
        lambda: ff.Rolling("z", "median", by="user", order="when", window=[1, "7s"], closed="neither"),
    ],
    "TimeSince": [
        lambda: ff.TimeSince(["flag", "clicks"], by="user", order="when"),
        lambda: ff.TimeSince("flag", by=["user", "city"], order="when", first=True),
        lambda: ff.TimeSince(order="when"),
    ],
}

CAUSAL = [
    ff.Lag(["price", "item"], by="user", order="t", n=[1, 2], horizon=2),
    ff.Diff("price", by="user", order="t", horizon="1s"),
    ff.PctChange("price", by="user", order="t", n=[1, 2]),
    ff.TimeSince("price", by="user", order="t"),
    ff.TimeSince(by="user", order="t"),
    ff.TimeSince("price", by="city", order="t", first=True),
    ff.Rolling(
        "price", ["mean", "sum", "count", "std", "min", "max", "median"], by="user", order="t", window=[2, "3s"]
    ),
    ff.Rolling("price", ["mean", "std", "median"], by="city", order="t", window="2s", closed="neither"),
    ff.Rolling("price", ["sum", "max"], by="user", order="t", window=[2, "2s"], closed="both"),
    ff.Ewm("price", half_life=[1.5, "2s"], by="user", order="t"),
]

ENCODERS = [
    [ff.Rolling(ff.TargetEncode("item", "y"), ["mean", "std"], by="user", order="t", window="3s")],
    [ff.Ewm(ff.TargetEncode("item", "y"), half_life=2, by="user", order="t")],
]
