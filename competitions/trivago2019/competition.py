"""RecSys Challenge 2019 (trivago): rank the hotels of a list by how likely the session clicks them.

The recipe, from top to bottom: which rows are candidates, what is known about each strictly before its list was shown,
which models learn from it. Run it with ``fastrec run competitions/trivago2019 --data DIR --out DIR``, or as a script.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

if __package__ in (None, ""):  # run as a script, or loaded by path: the workspace's folders are found from its root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from competitions.trivago2019.data import CLICK, ITEM_ACTIONS, read
from fastrec.competition import RECSYS2019, Competition, CompetitionData
from fastrec.estimators import ColumnRanker, NetRanker, Ranker, XGBRanker
from fastrec.features import Bucketize, Cross, FeatureSet, JaccardToHistory, TargetEncode
from fastrec.stacking import Stack
from features import calendar, clickstream, popularity, price

EVENT = {"log": "touches", "event": "action_type"}
ORDER = ["timestamp", "place"]  # place = number of the event in its session, by timestamp, step and place in the file
GAPS = [3, 6, 10, 16, 25, 40, 65, 110, 200, 500, 1500]  # seconds
USUAL_RATES = (0.35, 2.8)  # a list of 25 has an exposure of 2.85, one click and, by the published counts, 8 touches
OFFSETS = [-12, -8, *range(-5, 9), 12]  # places below the item touched last


class Trivago2019(Competition):
    """Candidates are the listed items of every click; those of the withheld clicks are to be ranked."""

    name = "RecSys Challenge 2019 (trivago)"
    task = "ranking"
    fold_key = "session_id"
    submission = RECSYS2019
    counted = "is_last"  # the test asks for the last click of a session
    weight = "weight"  # earlier clicks of a session count half
    touched = "touch_count"

    def load(self, data: Path, *, rows: int | None, device: torch.device) -> CompetitionData:
        return read(data, rows=rows, device=device)

    def features(self) -> FeatureSet:
        keys = {"session": "session_id", "item": "item_id"}
        gap = Bucketize("session_touch_since", GAPS, name="gap_bucket")
        offset = Bucketize("offset_touched1", OFFSETS, name="offset_bucket")
        return FeatureSet(
            [
                clickstream.touches(
                    **keys, **EVENT, order=ORDER, kinds=ITEM_ACTIONS, dwell="dwell", run=["run", "run_seconds"]
                ),
                clickstream.clicks(**keys, **EVENT, order=ORDER, click=CLICK),
                clickstream.session_context(session="session_id", order=ORDER, log="log", event="action_type"),
                clickstream.last_state(
                    session="session_id",
                    order=ORDER,
                    log="log",
                    event="action_type",
                    kind="change of sort order",
                    value="reference",
                    name="sort",
                ),
                clickstream.shown_before(**keys, order=ORDER, log="shown", position="position", price="price"),
                price.in_list(group="list_id", price="price", position="position"),
                clickstream.earlier_clicks(
                    session="session_id", order=ORDER, log="clicked", position="position", price="price_over_mean"
                ),
                clickstream.positions(group="list_id", position="position"),
                clickstream.of_user(
                    user="user_id",
                    **keys,
                    **EVENT,
                    group="list_id",
                    time="timestamp",
                    click=CLICK,
                    shown="shown",
                    position="position",
                ),
                price.beside_touched(group="list_id", price="price"),
                popularity.usual(item="item_id", price="price", position="position"),
                popularity.earlier(
                    **keys,
                    **EVENT,
                    group="list_id",
                    time="timestamp",
                    shown="shown",
                    exposure="exposure",
                    click=CLICK,
                    usual_rates=USUAL_RATES,
                ),
                JaccardToHistory(
                    "session_id", item="item_id", properties="properties", order=ORDER, table="touches", items="items"
                ),
                # How likely a click is at this distance below the item touched last, that long after the touch.
                gap,
                offset,
                TargetEncode([Cross(gap, offset), Cross(offset, "position")], "clicked", smooth=50),
                calendar.cycles("timestamp"),
            ],
            key=self.fold_key,
        )

    @property
    def categories(self) -> Sequence[str]:
        return [
            "touch_last_action_type",
            "session_touch_last_action_type",
            "session_last_action_type",
            "sort_last_reference",
            "platform",
            "device",
            "position",
            "gap_bucket",
            "offset_bucket",
        ]

    @property
    def plain(self) -> Sequence[str]:
        """Return columns of the files that are features as they are."""
        return ["list_length", "price", "filters", "is_last"]

    def baselines(self) -> Sequence[Ranker]:
        return [ColumnRanker("display_order", ["position"]), ColumnRanker("recency", ["touch_steps", "position"])]

    def models(self, *, bs: int | None) -> Sequence[Ranker]:
        # Settings by out-of-fold score on the last clicks of train.csv; differences below .002 are noise there.
        trees = {"max_depth": 4, "subsample": 0.8, "min_child_weight": 5, "reg_lambda": 3, "max_bin": 64}
        return [
            NetRanker("net", layers=[128, 64], epochs=8, bs=bs),
            XGBRanker("xgb", objective="rank:ndcg", rounds=200, eta=0.1, colsample_bytree=0.5, **trees),
            XGBRanker(
                "xgb_binary",
                objective="binary:logistic",
                rounds=320,
                eta=0.05,
                colsample_bytree=1.0,
                colsample_bynode=0.2,
                **trees,
            ),
        ]

    def stack(self) -> Stack:
        return Stack()


if __name__ == "__main__":
    from fastrec.cli import script

    script(Trivago2019)
