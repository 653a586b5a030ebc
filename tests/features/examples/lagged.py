"""Examples of the generators that look back at the earlier rows of a group."""

from __future__ import annotations

from fastrec.features import Diff, Ewm, Lag, PctChange, Rolling, TargetEncode, TimeSince

EXAMPLES = {
    "Diff": [lambda: Diff(["price", "clicks", "time"], by="user", order="when", horizon=3)],
    "Ewm": [
        lambda: Ewm(["price", "clicks"], half_life=[2, "4.5s"], by="user", order="when"),
        lambda: Ewm("z", half_life=0.5),
    ],
    "Lag": [lambda: Lag(["clicks", "city", "time", "flag"], by="user", order="when", n=[1, 2], horizon="5s")],
    "PctChange": [
        lambda: PctChange(["price", "clicks", "flag"], by="user", order="when", n=[1, -2]),
        lambda: PctChange("clicks", by=["user", "city"], order="when", horizon=2.5),
    ],
    "Rolling": [
        lambda: Rolling(
            ["price", "clicks"],
            ["mean", "sum", "count", "std", "min", "max", "median"],
            by="user",
            order="when",
            window=[3, "12s"],
        ),
        lambda: Rolling("z", "std", by=["user", "city"], order="when", window="20s", closed="both", min_count=3),
        lambda: Rolling("views", ["sum", "max"], window=4, closed="right", min_count=0, name="last"),
        lambda: Rolling("z", "median", by="user", order="when", window=[1, "7s"], closed="neither"),
    ],
    "TimeSince": [
        lambda: TimeSince(["flag", "clicks"], by="user", order="when"),
        lambda: TimeSince("flag", by=["user", "city"], order="when", first=True),
        lambda: TimeSince(order="when"),
    ],
}

CAUSAL = [
    Lag(["price", "item"], by="user", order="t", n=[1, 2], horizon=2),
    Diff("price", by="user", order="t", horizon="1s"),
    PctChange("price", by="user", order="t", n=[1, 2]),
    TimeSince("price", by="user", order="t"),
    TimeSince(by="user", order="t"),
    TimeSince("price", by="city", order="t", first=True),
    Rolling("price", ["mean", "sum", "count", "std", "min", "max", "median"], by="user", order="t", window=[2, "3s"]),
    Rolling("price", ["mean", "std", "median"], by="city", order="t", window="2s", closed="neither"),
    Rolling("price", ["sum", "max"], by="user", order="t", window=[2, "2s"], closed="both"),
    Ewm("price", half_life=[1.5, "2s"], by="user", order="t"),
]

ENCODERS = [
    [Rolling(TargetEncode("item", "y"), ["mean", "std"], by="user", order="t", window="3s")],
    [Ewm(TargetEncode("item", "y"), half_life=2, by="user", order="t")],
]

NOT_NUMBERS = [
    Ewm("other", half_life=2),
    PctChange("other"),
    Rolling("other", window=2),
    TimeSince("other", order="when"),
    Lag("price", order="other", horizon=1),
    Rolling("price", order="other", window="1s"),
    Ewm("price", order="other", half_life="1s"),
    TimeSince(order="other"),
]
