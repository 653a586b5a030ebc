"""When something happens: the hour and the weekday as points on their circles."""

from __future__ import annotations

from fastrec.features import Cyclic, FeatureSet


def cycles(time: str) -> FeatureSet:
    """Hour of the day and day of the week of a time column (integers: seconds since 1970), as sine and cosine."""
    return FeatureSet([Cyclic(time, "hour"), Cyclic(time, "weekday")])
