"""What an item costs beside the others in its list, its neighbours, and the items touched before."""

from __future__ import annotations

from fastrec.features import Combine, CumStat, Diff, FeatureSet, GroupPick, GroupRank, GroupStats, Where


def in_list(*, group: str, price: str, position: str) -> FeatureSet:
    """Price rank, price over the list's mean and minimum, spread, steps to the neighbours, how many above are cheaper.

    Args:
        group: the list's column.
        price: the price's column.
        position: the place in the list.
    """
    stats = GroupStats(price, by=group, stats=["mean", "std", "min"], over="group")
    return FeatureSet(
        [
            stats,
            GroupRank(price, by=group, method="average"),
            GroupRank(price, by=group, normalise=True),
            Combine(price, "/", f"mean_{price}__{group}", name=f"{price}_over_mean"),
            Combine(price, "/", f"min_{price}__{group}", name=f"{price}_over_min"),
            Diff(price, by=group, order=position, n=[1, -1]),
            CumStat(price, by=group, order=position, stats="smaller"),
            Combine(
                price, "/", CumStat(price, by=group, order=position, stats="min"), name=f"{price}_over_cheapest_above"
            ),
        ]
    )


def beside_touched(*, group: str, price: str, touched: str = "touch_count", steps: str = "touch_steps") -> FeatureSet:
    """Price over that of the item touched last, and over the mean of all touched in the list.

    Args:
        group: the list's column.
        price: the price's column.
        touched, steps: what ``clickstream.touches`` made.
    """
    last = GroupPick(price, by=group, order=steps, name="touched1")
    mean = GroupStats(Where(price, touched, name=f"touched_{price}"), by=group, stats="mean", over="group")
    of_list = f"mean_{price}__{group}"
    return FeatureSet(
        [
            Combine(price, "/", last, name=f"{price}_over_touched1"),
            Combine(price, "/", mean, name=f"{price}_over_touched"),
            Combine(mean, "/", of_list, name=f"touched_{price}_over_mean"),
        ]
    )
