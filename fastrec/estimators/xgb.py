"""``XGBRanker``: gradient-boosted trees that rank (``rank:ndcg``) or classify (``binary:logistic``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import xgboost as xgb

from fastrec.estimators._held_out import rows_to_stop_by
from fastrec.estimators._tree_inputs import TreeInputs
from fastrec.estimators._tree_start import TreeStart
from fastrec.estimators._xgb_calls import (
    gains,
    handed,
    names_for_xgboost,
    params_for_xgboost,
    predicted,
    refuse_names_of_other_interfaces,
)
from fastrec.estimators.base import Estimator, Ranker, Trace
from fastrec.table import Vocab
from fastrec.validate import Lists, whole_lists

_DEFAULTS = {
    "tree_method": "hist",
    "max_bin": 64,
    "eta": 0.1,
    "max_depth": 5,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
}
_RANKING = {"lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": 8, "ndcg_exp_gain": False}


class XGBRanker(Ranker):
    """XGBoost over candidates in lists.

    Lists of one candidate, without a relevant one or of weight 0 teach no ranking and are left out of training; every
    list is scored. Scores are margins (log-odds for ``binary:logistic``), on one scale across lists. Missing values are
    XGBoost's own. Categories, and text among the numbers, go in by their code among the training rows' sorted values;
    unseen ones are missing. The columns of a table on a GPU stay there where CuPy is installed. Names with ``[``, ``]``
    or ``<``, which XGBoost does not take, reach it in another spelling (``%5B``, ``%5D``, ``%3C``; ``%`` is ``%25``).

    Args:
        name: the ranker's name.
        objective: ``'rank:ndcg'``, ``'rank:pairwise'``, ``'rank:map'`` or ``'binary:logistic'``.
        rounds: how many trees.
        columns: the columns to use; None: all categories (by code) and numbers.
        margin: a column of scores to start from: the trees learn corrections to it; None: they start from nothing.
        early_stopping_rounds: stop when so many trees have brought no gain on an eighth of the training lists, whole
            lists chosen by a hash of their number, which the trees then do not learn from; the trees up to the best one
            are kept. Never on the lists that are scored. None: grow all ``rounds``, from all lists.
        **params: XGBoost's own parameters, over the defaults.

    Raises:
        DataError: a parameter is given under a name that another argument has here.
    """

    beside = True

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
        self.name, self.objective, self.rounds, self.columns = name, objective, rounds, columns
        self.margin, self.early_stopping_rounds, self.params = margin, early_stopping_rounds, params
        refuse_names_of_other_interfaces(params, "XGBRanker")
        self.start_anew()
        self.forget()

    def forget(self) -> None:
        """Drop the trees."""
        super().forget()
        self._booster: xgb.Booster | None = None
        self._inputs = TreeInputs([], {})

    def start_from(self, other: Estimator) -> bool:
        """Grow on another's trees, where columns and values of categories are the same; half the rounds follow."""
        if type(other) is not type(self) or not isinstance(other, XGBRanker) or other._booster is None:
            return False
        if (other.objective, other.margin) != (self.objective, self.margin):
            return False
        text = bytes(other._booster.save_raw("ubj"))
        self._start = TreeStart(other._inputs, [other._booster], "ranking", 1, [text])
        self.began_with = repr(self._start)
        return True

    def start_anew(self) -> None:
        """Let the next trees grow from nothing."""
        self._start: TreeStart | None = None
        self.began_with = ""  # which trees: what is kept of a run goes by it

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> XGBRanker:
        """Grow the trees; ``valid`` is not looked at."""
        self.check_task(train)
        train = whole_lists(train, name=self.name)
        params = self.params_in_full(seed, device)
        held = None if self.early_stopping_rounds is None else rows_to_stop_by(train)
        used = train if held is None else train.take(~held)
        self._inputs = TreeInputs.fit(used, self.columns)
        before, rounds, began = None, self.rounds, ""
        if self._start is not None:
            differs = self._start.differs(self._inputs, used)
            began = f"grown anew: {differs}" if differs else "grown on the trees that were there"
            if not differs:
                before, rounds, self._inputs = self._start.parts[0], TreeStart.rounds(rounds), self._start.inputs
        binned = before is None  # trees that others grow on are asked about the rows first: exactly, not by new bins
        data = self._training_matrix(used, params, binned=binned)
        if held is None:
            self._booster = xgb.train(params, data, rounds, xgb_model=before)
        else:
            evals = [(self._training_matrix(train.take(held), params, ref=data, binned=binned), "held")]
            stop = {"evals": evals, "early_stopping_rounds": self.early_stopping_rounds, "verbose_eval": False}
            grown = xgb.train(params, data, rounds, xgb_model=before, **stop)
            self._booster = grown[: grown.best_iteration + 1]
        self.trace = Trace(importance=gains(self._booster, self._inputs.names), began=began)
        return self

    @property
    def ranks(self) -> bool:
        """Whether it learns to rank, rather than to classify."""
        return self.objective.startswith("rank:")

    def params_in_full(self, seed: int, device: torch.device | None = None) -> dict[str, Any]:
        """XGBoost's parameters, the defaults among them."""
        given = {**_DEFAULTS, **(_RANKING if self.ranks else {}), **self.params, "objective": self.objective}
        return params_for_xgboost(given, seed, device)

    @property
    def reads(self) -> list[str]:
        """The columns that it needs to predict.

        Raises:
            NotFittedError: it has not been trained.
        """
        if self._booster is None:
            raise self.not_fitted()
        return list(dict.fromkeys([*self._inputs.names, *([self.margin] if self.margin else [])]))

    def adopt(self, trees: xgb.Booster, columns: Sequence[str], vocabs: Mapping[str, Vocab] | None = None) -> None:
        """Take trees that were grown elsewhere as what was learned.

        Args:
            trees: grown from these columns, in this order.
            columns: their names.
            vocabs: the codes of those that are categories, as ``TreeInputs`` has them.
        """
        self._booster, self._inputs = trees, TreeInputs(columns, vocabs or {})
        self.trace = Trace(importance=gains(trees, columns))

    def _training_matrix(
        self, train: Lists, params: Mapping[str, Any], ref: Any = None, *, binned: bool = True
    ) -> xgb.DMatrix:
        """Lists with labels as XGBoost takes them; ``ref``: the matrix whose bins it is to have."""
        on_gpu = params["device"] != "cpu"
        options: dict[str, Any] = {}
        _, codes, sizes = torch.unique_consecutive(train.groups, return_inverse=True, return_counts=True)
        if self.ranks:
            options["qid"] = codes.numpy()
        if train.weight is not None:
            first = torch.cumsum(sizes, 0) - sizes
            options["weight"] = (train.weight[first] if self.ranks else train.weight).double().numpy()
        assert train.label is not None
        options |= {"max_bin": params["max_bin"], "ref": ref} if binned else {}
        return (xgb.QuantileDMatrix if binned else xgb.DMatrix)(
            handed(self._inputs.matrix(train.table), on_gpu=on_gpu),
            train.label.float().numpy(),
            feature_names=names_for_xgboost(self._inputs.names),
            nthread=params["nthread"],
            base_margin=handed(self._margins(train), on_gpu=on_gpu),
            **options,
        )

    def predict(self, data: Lists) -> torch.Tensor:
        """Margins of the candidates: float64 ``[n]`` on the CPU."""
        if self._booster is None:
            raise self.not_fitted()
        if not len(data):
            return torch.zeros(0, dtype=torch.float64)
        values, names = self._inputs.matrix(data.table), self._inputs.names
        return predicted(self._booster, values, names, margin=True, start=self._margins(data))

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        names = ("name", "objective", "rounds", "columns", "margin", "early_stopping_rounds")
        return {**{n: getattr(self, n) for n in names}, **self.params}

    def write(self, folder: Path) -> dict[str, Any]:
        """The trees (``model.ubj``, XGBoost's own form) and the vocabularies."""
        if self._booster is None:
            raise self.not_fitted()
        # XGBoost's own writing raises an error of its own for a full disk
        (folder / "model.ubj").write_bytes(self._booster.save_raw("ubj"))
        return {**self._inputs.write(folder), "features": self._booster.feature_names}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """The inverse of ``write``."""
        self._inputs = TreeInputs.read(folder, about)
        booster = xgb.Booster(model_file=folder / "model.ubj")
        if booster.feature_names != names_for_xgboost(self._inputs.names):
            raise ValueError("the trees are of other columns")
        self._booster = booster

    def _margins(self, data: Lists) -> torch.Tensor | None:
        return None if self.margin is None else data.table[self.margin].number(torch.float32)
