"""How often an item is shown, touched and clicked by others, earlier in time; and what is usual for it."""

from __future__ import annotations

from fastrec.features import BayesianRate, Combine, CountEncode, FeatureSet, GroupRank, GroupStats, History


def usual(*, item: str, price: str, position: str) -> FeatureSet:
    """How often an item is listed, its price beside its usual price, its position beside its usual position.

    No target is in these: they are counted over train and test lists together (the run reports them as transductive).

    Args:
        item, price, position: columns of the candidates.
    """
    stats = GroupStats([price, position], by=item, stats="mean", scope="all")
    return FeatureSet(
        [
            CountEncode(item, log=True, scope="all"),
            stats,
            Combine(price, "/", f"mean_{price}__{item}", name=f"{price}_over_usual"),
            Combine(position, "-", f"mean_{position}__{item}", name=f"{position}_beside_usual"),
        ]
    )


def earlier(
    *,
    item: str,
    session: str,
    group: str,
    time: str,
    log: str,
    shown: str,
    exposure: str,
    event: str,
    click: str,
    usual_rates: tuple[float, float],
) -> FeatureSet:
    """Clicks and touches of an item by other sessions, strictly earlier: as rates of exposure, as ranks in the list.

    Args:
        item, session, group, time: columns of the candidates; all but the list's are in the logs too.
        log: the name of the table of item events.
        shown: the name of the table of listed items.
        exposure: its column with the expected clicks of a place in a list.
        event: the log's column with the kind of event.
        click: the kind that is a click.
        usual_rates: clicks and touches per exposure of an item of which nothing is known. They are given, not learned,
            so that nothing later than a row has a share in its rates.
    """

    def others(table: str, word: str, **options: object) -> Combine:
        everyone = History(
            item, order=time, table=table, stats=options.pop("stats", ["count"]), name=f"all_{word}", **options
        )
        own = History([session, item], order=time, table=table, stats=everyone.stats, name=f"own_{word}", **options)
        return Combine(everyone, "-", own, name=f"others_{word}")

    clicks = others(log, "clicks", event=event, kinds=[click])
    touches = others(log, "touches")
    exposed = others(shown, "exposure", stats=[], sums=[exposure])
    return FeatureSet(
        [
            clicks,
            touches,
            BayesianRate(clicks, exposed, weight=3.0, prior=usual_rates[0], name="click_rate"),
            BayesianRate(touches, exposed, weight=3.0, prior=usual_rates[1], name="touch_rate"),
            GroupRank(clicks, by=group, descending=True, method="average"),
            GroupRank("click_rate", by=group, descending=True, method="average"),
            GroupRank("touch_rate", by=group, descending=True, method="average"),
        ]
    )
