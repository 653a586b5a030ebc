"""WSDM Cup 2022, cross-market recommendation: rank a user's candidates by how likely the user takes them.

Collaborative filters learn from the two train files (``fastrec.retrieval.score_candidates``). Rankers learn from their
scores, and from where these stand in the list. Run it with ``fastrec run competitions/xmarket2022 --data DIR --out
DIR``, or as a script.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

if __package__ in (None, ""):  # run as a script, or loaded by path: the workspace's folders are found from its root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from competitions.xmarket2022.data import read
from fastrec.competition import Competition, CompetitionData, SubmissionForm
from fastrec.estimators import ColumnRanker, Estimator, LGBMModel, NetRanker, XGBRanker


class XMarket2022(Competition):
    """Candidates are those of the run file; users without an answer are to be ranked."""

    name = "WSDM Cup 2022 (XMarket)"
    task = "ranking"
    also = ("ndcg@10", "hit_rate@10")
    label = "taken"
    item = "itemId"
    fold_key = "userId"
    list_column = "list"
    counted = "counted"  # not lists made by hiding an interaction, nor of users whose answers are events
    weight = "weight"
    submission = SubmissionForm(ids=("userId", "itemId"), values=("score",), sep="\t", max_items=100)

    def load(self, data: Path, *, rows: int | None, device: torch.device) -> CompetitionData:
        return read(data, rows=rows, device=device)

    def baselines(self) -> Sequence[Estimator]:
        return [ColumnRanker(n, [c]) for n, c in (("popularity", "item_events_place"), ("ease", "ease_place"))]

    def models(self, *, bs: int | None) -> Sequence[Estimator]:
        # Settings by out-of-fold score on one market; differences below .002 are noise there.
        trees = {"subsample": 0.8, "min_child_weight": 5, "reg_lambda": 3, "max_bin": 64, "colsample_bytree": 0.4}
        leaves = {"num_leaves": 15, "min_data_in_leaf": 50, "feature_fraction": 0.4, "lambda_l2": 3, "max_bin": 127}
        fixed = {"rounds": 200, "early_stopping_rounds": None}
        return [
            NetRanker("net", layers=[64, 32], epochs=3, bs=bs),
            XGBRanker("xgb", rounds=200, eta=0.1, max_depth=5, **trees),
            LGBMModel("lgbm", **fixed, **leaves, lambdarank_truncation_level=20),
            LGBMModel("lgbm_binary", objective="binary", **fixed, **leaves),
        ]


if __name__ == "__main__":
    from fastrec.cli import script

    script(XMarket2022)
