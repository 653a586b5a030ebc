"""``XGBRanker``: ``XGBModel`` with the defaults and the options of a ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import xgboost as xgb

from fastrec.estimators._tree_inputs import TreeInputs
from fastrec.estimators._xgb_calls import gains, params_for_xgboost
from fastrec.estimators.base import Ranker, Trace
from fastrec.estimators.xgb_model import XGBModel
from fastrec.table import Vocab


class XGBRanker(XGBModel, Ranker):
    """XGBoost over candidates in lists.

    Lists of one candidate, without a relevant one or of weight 0 are left out of training; every list is scored. Scores
    are margins (log-odds for ``binary:logistic``), on one scale across lists. Columns are encoded as by ``XGBModel``.
    Names with ``[``, ``]`` or ``<``, which XGBoost refuses, are escaped for it (``%5B``, ``%5D``, ``%3C``).

    Args:
        name: the ranker's name.
        objective: ``'rank:ndcg'``, ``'rank:pairwise'``, ``'rank:map'`` or ``'binary:logistic'``.
        rounds: how many trees.
        columns: the columns to use; None: all categories (by code) and numbers.
        margin: a column of scores to start from: the trees learn corrections to it; None: they start from nothing.
        early_stopping_rounds: stop when so many trees have brought no gain on an eighth of the training lists, whole
            lists chosen by a hash of their number, which the trees then do not learn from; the trees up to the best one
            are kept. None: grow all ``rounds``, from all lists.
        **params: XGBoost's own parameters, over the defaults.

    Raises:
        DataError: a parameter is given under a name that another argument has here.
    """

    defaults = {  # noqa: RUF012 - declared in the base class
        "tree_method": "hist",
        "max_bin": 64,
        "eta": 0.1,
        "max_depth": 5,
        "subsample": 0.8,
        "colsample_bytree": 0.5,
    }
    ranking = {  # noqa: RUF012
        **XGBModel.ranking,
        "lambdarank_pair_method": "topk",
        "lambdarank_num_pair_per_sample": 8,
    }

    def __init__(
        self,
        name: str,
        *,
        objective: Literal["rank:ndcg", "rank:pairwise", "rank:map", "binary:logistic"] = "rank:ndcg",
        rounds: int = 200,
        columns: Sequence[str] | None = None,
        margin: str | None = None,
        early_stopping_rounds: int | None = None,
        **params: Any,
    ) -> None:
        super().__init__(
            name,
            rounds=rounds,
            early_stopping_rounds=early_stopping_rounds,
            columns=columns,
            objective=objective,
            **params,
        )
        self.margin = margin

    @property
    def ranks(self) -> bool:
        """Whether the objective ranks, rather than classifies."""
        return self._objective("ranking").startswith("rank:")

    def params_in_full(self, seed: int, device: torch.device | None = None) -> dict[str, Any]:
        """Return XGBoost's parameters, the defaults among them."""
        given = {**(self.ranking if self.ranks else {}), **self._over_defaults(), "objective": self.objective}
        return params_for_xgboost(given, seed, device)

    @property
    def reads(self) -> list[str]:
        """The columns that it needs to predict.

        Raises:
            NotFittedError: it has not been trained.
        """
        if self._task is None:
            raise self.not_fitted()
        return list(dict.fromkeys([*self._inputs.names, *([self.margin] if self.margin else [])]))

    def adopt(self, trees: xgb.Booster, columns: Sequence[str], vocabs: Mapping[str, Vocab] | None = None) -> None:
        """Take trees that were grown elsewhere as what was learned.

        Args:
            trees: grown from these columns, in this order.
            columns: their names.
            vocabs: the codes of those that are categories, as ``TreeInputs`` has them.
        """
        self._parts, self._inputs, self._task = [trees], TreeInputs(columns, vocabs or {}), "ranking"
        self.trace = Trace(importance=gains(trees, columns))
