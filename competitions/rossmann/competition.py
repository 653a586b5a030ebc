"""Rossmann Store Sales: the sales of every store for the six weeks to come.

The recipe, from top to bottom: which rows, what is known ahead of each day, what the sales before the six weeks say,
which models learn from it. Run it with ``fastrec run competitions/rossmann --data DIR --out DIR``, or as a script.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

if __package__ in (None, ""):  # run as a script, or loaded by path: the workspace's folders are found from its root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from competitions.rossmann.data import HORIZON, read
from competitions.rossmann.history import OUTPUTS, store_history
from fastrec.competition import Competition, CompetitionData
from fastrec.estimators import CentredModel, Estimator, LGBMModel, NetModel, OffsetModel
from fastrec.features import FeatureSet
from fastrec.validate import Folds, Target


class Rossmann(Competition):
    """The last six weeks of the file are the test; models are chosen on the three times six weeks before."""

    name = "Rossmann Store Sales"
    task = "regression"
    target = "Sales"
    scale = "log"
    metric = "rmspe"
    also = ("rmse", "mape")
    ids = ("Store", "Date")
    time = "day"
    weight = "weight"  # 0 in the first half year, of which there is too little history
    counted = "counted"  # days like the test's, which has neither a public holiday nor carnival
    history = True  # features of the test weeks look back to the training rows

    def load(self, data: Path, *, rows: int | None, device: torch.device) -> CompetitionData:
        return read(data, rows=rows, device=device)

    def folds(self, found: CompetitionData, target: Target | None) -> Folds:
        return Folds.time_series(found.train, "day", 3, horizon=f"{HORIZON}D")

    def features(self) -> FeatureSet:
        """Return features of earlier sales (``history.py``); the others are known ahead (``data.py``)."""
        return FeatureSet([store_history], target=[])  # it reads sales that were known six weeks before

    @property
    def categories(self) -> Sequence[str]:
        return ["Store", "StoreType", "Assortment", "StateHoliday", "DayOfWeek", "region", "promo2_month"]

    @property
    def plain(self) -> Sequence[str]:
        """Columns known ahead of each day, without any that identify the season of one year."""
        known = ["Promo", "SchoolHoliday", "Promo2", "CompetitionDistance", "competition_months", "promo2_weeks"]
        when = ["ahead", "month_day", "region_school", "region_since", "region_until"]
        near = [f"{n}_{w}" for n in ("closed", "long_closed", "holiday") for w in ("since", "until")]
        week = [f"{n}_{w}" for n in ("open", "promo", "school") for w in ("before", "after")]
        return [*known, *when, *near, *week]

    def models(self, *, bs: int | None) -> Sequence[Estimator]:
        # Every model corrects the regression's forecast. Rounds and epochs are fixed, by out-of-fold score on a quarter
        # of the stores: rows to stop by would be the newest, which are worth most.
        trees = {
            "rounds": 350,
            "early_stopping_rounds": None,
            "learning_rate": 0.05,
            "num_leaves": 63,
            "min_data_in_leaf": 60,
            "feature_fraction": 0.4,
            "max_bin": 127,
            "cat_smooth": 20,
        }
        models = [
            LGBMModel("lgbm", **trees),
            # knows stores by what they do, not by their numbers
            LGBMModel("lgbm_any", columns=[*self.categories[1:], *self.plain, *OUTPUTS], **trees),
            NetModel(
                "net",
                model="TabularNet",
                options={"layers": [256, 128], "ps": 0.1, "embed_p": 0.1},
                epochs=3,
                bs=bs or 1024,
                lr=5e-4,
                seeds=3,
                keep_best=False,
            ),
        ]
        # What all stores miss on a day (its weather, say) teaches nothing about the days to come.
        return [OffsetModel(CentredModel(m, "day", share=0.7), "forecast") for m in models]


if __name__ == "__main__":
    from fastrec.cli import script

    script(Rossmann)
