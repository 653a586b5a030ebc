"""Census income (KDD): who of the persons in two yearly surveys has an income above 50,000 dollars.

The recipe, from top to bottom: what is known of a person, which combinations say more together than apart, which
models learn from it. Run it with ``fastrec run competitions/census --data DIR --out DIR``, or as a script.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a script, or loaded by path: the workspace's folders are found from its root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fastrec.competition import Competition
from fastrec.estimators import CatBoostModel, Estimator, LGBMModel, NetModel, XGBModel
from fastrec.features import Bucketize, Combine, CountEncode, Cross, FeatureSet, TargetEncode

TARGET, RICH = "income_50k", "' 50000+.'"  # the quotation marks and spaces are the publisher's

SCHOOL = ["education", "hs_college"]
WORK = [
    "class_worker", "det_ind_code", "det_occ_code", "major_ind_code", "major_occ_code", "union_member",
    "unemp_reason", "full_or_part_emp", "own_or_self", "vet_question", "vet_benefits", "year",
]  # fmt: skip
FAMILY = ["marital_stat", "sex", "tax_filer_stat", "det_hh_fam_stat", "det_hh_summ", "fam_under_18"]
ORIGIN = ["race", "hisp_origin", "country_father", "country_mother", "country_self", "citizenship"]
MOVES = [
    "region_prev_res", "state_prev_res", "mig_chg_msa", "mig_chg_reg", "mig_move_reg", "mig_same",
    "mig_prev_sunbelt",
]  # fmt: skip
NUMBERS = [
    "age", "wage_per_hour", "capital_gains", "capital_losses", "stock_dividends", "num_emp", "weeks_worked",
]  # fmt: skip

AGES = [16, 19, 22, 25, 28, 31, 34, 37, 40, 44, 48, 52, 56, 60, 65, 70, 76]
WEEKS = [1, 13, 27, 40, 48, 51, 52]
AMOUNTS = [1, 100, 500, 1_500, 4_000, 7_000, 10_000, 15_000, 20_000]


class Census(Competition):
    """A person is a row; the column ``unknown`` is the survey's weight, which the publisher says is not to be used."""

    name = "Census income (KDD)"
    task = "binary"
    metric = "auc"
    also = ("logloss",)
    target = TARGET
    positive = RICH

    def features(self) -> FeatureSet:
        age, weeks = Bucketize("age", AGES, name="age_group"), Bucketize("weeks_worked", WEEKS, name="weeks_group")
        assets = Combine(Combine("capital_gains", "+", "stock_dividends"), "-", "capital_losses", name="assets")
        wealth = Bucketize(assets, AMOUNTS, name="assets_group")
        # Exact amounts recur, as sums that tax forms and the survey's own limits make.
        alone = [
            "det_occ_code",
            "det_ind_code",
            "det_hh_fam_stat",
            "capital_gains",
            "capital_losses",
            "stock_dividends",
        ]
        together = [
            Cross("det_occ_code", "det_ind_code"),
            Cross("det_occ_code", "education"),
            Cross("det_occ_code", "sex"),
            Cross("det_occ_code", "num_emp"),
            Cross("det_occ_code", age),
            Cross("det_occ_code", weeks),
            Cross("det_ind_code", "education"),
            Cross("education", age),
            Cross("education", wealth),
            Cross("education", "sex", "class_worker"),
            Cross("education", "sex", weeks),
            Cross("sex", age, weeks),
            Cross("sex", age, "marital_stat", "det_hh_summ"),
            Cross(age, wealth),
        ]
        return FeatureSet(
            [
                assets,
                CountEncode(["det_occ_code", "det_ind_code", "det_hh_fam_stat", "country_self"], log=True),
                TargetEncode([*alone, *together], TARGET, classes=[RICH], smooth=30),
            ]
        )

    @property
    def categories(self) -> Sequence[str]:
        return [*SCHOOL, *WORK, *FAMILY, *ORIGIN, *MOVES]

    @property
    def plain(self) -> Sequence[str]:
        return NUMBERS

    def models(self, *, bs: int | None) -> Sequence[Estimator]:
        return [
            LGBMModel(
                "lgbm", rounds=700, learning_rate=0.03, num_leaves=16, min_data_in_leaf=40, feature_fraction=0.25,
                lambda_l2=10, cat_smooth=60, early_stopping_rounds=None,
            ),
            XGBModel(
                "xgb", rounds=600, eta=0.05, max_depth=5, min_child_weight=8, colsample_bytree=0.3, reg_lambda=5,
                early_stopping_rounds=None,
            ),
            CatBoostModel(
                "catboost", rounds=600, learning_rate=0.08, max_ctr_complexity=1, rsm=0.3, border_count=64,
                early_stopping_rounds=None,
            ),
            NetModel("tabm", model="TabM", epochs=5, bs=bs, options={"k": 8, "layers": [128, 128], "d_embedding": 8}),
        ]  # fmt: skip


if __name__ == "__main__":
    from fastrec.cli import script

    script(Census)
