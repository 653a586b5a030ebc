"""What a session did before a list was shown: which items were touched, when, how, and where they stand in the list."""

from __future__ import annotations

from collections.abc import Sequence

from fastrec.features import (
    Combine,
    CumStat,
    FeatureSet,
    GroupPick,
    GroupRank,
    GroupStats,
    History,
    Lag,
    LastKnown,
    Where,
)
from fastrec.features.base import Feature


def touches(
    *,
    session: str,
    item: str,
    order: Sequence[str],
    log: str,
    event: str,
    kinds: Sequence[str],
    dwell: str | None = None,
    run: Sequence[str] = (),
) -> FeatureSet:
    """How a candidate's item was touched earlier in its session.

    Args:
        session, item: key columns of candidates and log.
        order: columns that order both, the time first: ``['timestamp', 'place']``.
        log: the name of the table of item events.
        event: its column with the kind of event.
        kinds: the kinds to count apart.
        dwell: its column with the seconds spent on each event, if there is one.
        run: its columns with what is known of the run of events on one item that each belongs to (length, seconds).

    Returns:
        ``touch_…``: count, count by kind, seconds and steps since the last, seconds since the first, whether it was the
        session's last touch, its last kind, seconds spent; ``touch_share`` of the session's touches.
    """
    touch = History(
        [session, item],
        order=order,
        table=log,
        event=event,
        kinds=kinds,
        by_kind=True,
        stats=["count", "since", "steps", "since_first", "is_last"],
        values=[event],
        sums=[dwell] if dwell else [],
        name="touch",
    )
    of_session = History(
        session, order=order, table=log, stats=["count", "since", "steps"], values=[event, *run], name="session_touch"
    )
    share = Combine("touch_count", "/", "session_touch_count", name="touch_share")
    return FeatureSet([touch, of_session, share])


def clicks(*, session: str, item: str, order: Sequence[str], log: str, event: str, click: str) -> FeatureSet:
    """When a candidate's item, and anything in its session, was last clicked: ``click_…``, ``session_click_…``."""
    on_item = History(
        [session, item], order=order, table=log, event=event, kinds=[click], stats=["count", "steps"], name="click"
    )
    on_any = History(
        session,
        order=order,
        table=log,
        event=event,
        kinds=[click],
        stats=["count", "since", "steps"],
        name="session_click",
    )
    return FeatureSet([on_item, on_any])


def session_context(*, session: str, order: Sequence[str], log: str, event: str) -> FeatureSet:
    """How long the session has lasted, what its last event was, how long ago, and that beside its usual pace."""
    context = History(
        session, order=order, table=log, stats=["count", "since", "since_first"], values=[event], name="session"
    )
    pace = Combine("session_since_first", "/", "session_count", name="session_pace")
    return FeatureSet([context, pace, Combine("session_since", "/", "session_pace", name="session_gap_over_pace")])


def last_state(
    *, session: str, order: Sequence[str], log: str, event: str, kind: str, value: str, name: str
) -> FeatureSet:
    """Return what the session last set: value, count and age in steps of its last event of a kind."""
    return FeatureSet(
        [
            History(
                session,
                order=order,
                table=log,
                event=event,
                kinds=[kind],
                stats=["count", "steps"],
                values=[value],
                name=name,
            )
        ]
    )


def shown_before(*, session: str, item: str, order: Sequence[str], log: str, position: str, price: str) -> FeatureSet:
    """Whether an earlier list of the session had the item, where it stood, what it cost, and the changes since."""
    shown = History(
        [session, item], order=order, table=log, stats=["count", "steps"], values=[position, price], name="shown"
    )
    moved = Combine(position, "-", f"shown_last_{position}", name="position_change")
    dearer = Combine(price, "-", f"shown_last_{price}", name="price_change")
    return FeatureSet([shown, moved, dearer])


def earlier_clicks(*, session: str, order: Sequence[str], log: str, position: str, price: str) -> FeatureSet:
    """Mean position and mean price of the session's earlier clicks, and the candidate's distance to them.

    Args:
        session: key column of candidates and log.
        order: columns that order both.
        log: the name of the table of clicked candidates.
        position, price: its columns, and the candidates'.
    """
    past = History(session, order=order, table=log, stats=["count"], sums=[position, price], name="clicked")
    made: list[Feature] = [past]
    for column in (position, price):
        mean = Combine(f"clicked_sum_{column}", "/", "clicked_count", name=f"clicked_mean_{column}")
        made += [mean, Combine(column, "-", mean, name=f"{column}_beside_clicked")]
    return FeatureSet(made)


def positions(
    *, group: str, position: str, touched: str = "touch_count", steps: str = "touch_steps", clicked: str = "click_steps"
) -> FeatureSet:
    """Where a candidate stands in its list beside the items touched before: the strongest signal of a clickstream.

    Args:
        group: the list's column.
        position: the place in the list, from 1.
        touched, steps, clicked: what ``touches`` and ``clicks`` made.

    Returns:
        Position of the item touched last, second and third last, of the first and lowest touched, of the clicked one,
        and the distances to them; distance to the nearest touched item above and below; recency rank; the neighbours'
        last touches.
    """
    made: list[Feature] = [
        GroupRank(steps, by=group),
        Where(position, touched, name="touched_position"),
        GroupPick(position, by=group, order=steps, name="touched1"),
        GroupPick(position, by=group, order=steps, nth=2, name="touched2"),
        GroupPick(position, by=group, order=steps, nth=3, name="touched3"),
        GroupPick(position, by=group, order=clicked, name="clicked"),
        GroupStats("touched_position", by=group, stats=["count", "min", "max", "mean"], over="group"),
        GroupStats("touch_is_last", by=group, stats="max", over="group"),
        CumStat("touched_position", by=group, order=position, stats="count"),
        LastKnown("touched_position", by=group, order=position),
        LastKnown("touched_position", by=group, order=position, ahead=True),
        Lag([steps, touched], by=group, order=position, n=[1, -1]),
    ]
    anchors = {
        "offset_touched1": f"touched1_{position}__{group}",
        "offset_touched2": f"touched2_{position}__{group}",
        "offset_touched3": f"touched3_{position}__{group}",
        "offset_clicked": f"clicked_{position}__{group}",
        "offset_highest": f"min_touched_position__{group}",
        "offset_lowest": f"max_touched_position__{group}",
        "offset_mean": f"mean_touched_position__{group}",
        "offset_above": f"known_touched_position__{group}",
        "offset_below": f"next_known_touched_position__{group}",
    }
    made += [Combine(position, "-", anchor, name=name) for name, anchor in anchors.items()]
    step = Combine(anchors["offset_touched1"], "-", anchors["offset_touched2"], name="touch_direction")
    made += [step, Combine("offset_touched1", "-", "touch_direction", name="offset_next")]
    return FeatureSet(made)


def of_user(
    *,
    user: str,
    session: str,
    item: str,
    group: str,
    time: str,
    log: str,
    event: str,
    click: str,
    shown: str,
    position: str,
) -> FeatureSet:
    """Return what the user did with the item earlier, in any session, and where their last such item stands.

    Args:
        user, session, item: key columns of candidates and logs.
        group: the list's column.
        time: the time's column.
        log: the name of the table of item events.
        event: its column with the kind of event.
        click: the kind that is a click.
        shown: the name of the table of listed items.
        position: the place in the list, in candidates and listed items.

    Returns:
        ``user_touch_since``; ``user_touch`` and ``user_click``: counts without those of the session itself, which
        ``touches`` and ``clicks`` have; how often the item was listed for the user and how far it moved since;
        the distance to the listed item that the user touched last.
    """
    touch = History([user, item], order=time, table=log, stats=["count", "since"], name="user_touch")
    click_ = History(
        [user, item], order=time, table=log, event=event, kinds=[click], stats=["count"], name="user_click"
    )
    here = History([session, item], order=time, table=log, stats=["count"], name="here_touch")
    here_click = History(
        [session, item], order=time, table=log, event=event, kinds=[click], stats=["count"], name="here_click"
    )
    listed = History([user, item], order=time, table=shown, stats=["count"], values=[position], name="user_listed")
    last = GroupPick(position, by=group, order="user_touch_since", name="user_touched")
    return FeatureSet(
        [
            touch,
            listed,
            Combine("user_touch_count", "-", here, name="user_touch"),
            Combine(click_, "-", here_click, name="user_click"),
            Combine(position, "-", f"user_listed_last_{position}", name="user_position_change"),
            Combine(position, "-", last, name="offset_user_touched"),
        ]
    )
