"""``XGBRanker``: gradient-boosted trees that rank (``rank:ndcg``) or classify (``binary:logistic``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import xgboost as xgb

from fastrec.rankers.base import Lists, Ranker, Trace, whole_lists
from fastrec.state import save_state
from fastrec.vocab import Vocab

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

    Lists of one candidate, or without a relevant one, teach no ranking and are left out of training; every list is scored. Scores
    are margins (log-odds for ``binary:logistic``), on one scale across lists. Missing values are XGBoost's own.

    Args:
        name: the ranker's name.
        objective: ``'rank:ndcg'``, ``'rank:pairwise'``, ``'rank:map'`` or ``'binary:logistic'``.
        rounds: how many trees.
        columns: the columns to use; None: all categories (by code) and numbers.
        **params: XGBoost's own parameters, over the defaults.
    """

    def __init__(
        self,
        name: str,
        *,
        objective: Literal["rank:ndcg", "rank:pairwise", "rank:map", "binary:logistic"] = "rank:ndcg",
        rounds: int = 200,
        columns: Sequence[str] | None = None,
        **params: Any,
    ) -> None:
        self.name, self.objective, self.rounds, self.columns = name, objective, rounds, columns
        self.params = params
        self.trace = Trace()
        self._booster: xgb.Booster | None = None
        self._vocabs: dict[str, Vocab] = {}

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Ranker:
        train = whole_lists(train)
        assert train.label is not None
        ranks = self.objective.startswith("rank:")
        params = {**_DEFAULTS, **(_RANKING if ranks else {}), **self.params, "objective": self.objective, "seed": seed}
        params["device"] = "cuda" if device is not None and device.type == "cuda" else "cpu"
        params.setdefault("nthread", torch.get_num_threads())
        options: dict[str, Any] = {}
        _, codes, sizes = torch.unique_consecutive(train.groups, return_inverse=True, return_counts=True)
        if ranks:
            options["qid"] = codes.numpy()
        if train.weight is not None:
            first = torch.cumsum(sizes, 0) - sizes
            options["weight"] = (train.weight[first] if ranks else train.weight).double().numpy()
        names = self._names(train)
        self._vocabs = {n: Vocab.fit(train.table[n]) for n in names if train.table[n].kind == "category"}
        data = xgb.QuantileDMatrix(
            self._matrix(train, names),
            train.label.float().numpy(),
            feature_names=names,
            max_bin=params["max_bin"],
            **options,
        )
        self._booster = xgb.train(params, data, self.rounds)
        self.trace = Trace(importance=_gains(self._booster, names))
        return self

    def predict(self, data: Lists) -> torch.Tensor:
        assert self._booster is not None, "fit first"
        if not len(data):
            return torch.zeros(0, dtype=torch.float64)
        names = self._names(data)
        self._booster.set_param({"device": "cpu"})
        margins = self._booster.predict(xgb.DMatrix(self._matrix(data, names), feature_names=names), output_margin=True)
        return torch.from_numpy(margins.astype(np.float64))

    def save(self, folder: Any) -> None:
        assert self._booster is not None, "fit first"
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._booster.save_model(folder / "model.ubj")
        about = {
            "objective": self.objective,
            "rounds": self.rounds,
            "params": self.params,
            "features": self._booster.feature_names,
        }
        (folder / "ranker.json").write_text(json.dumps(about, indent=1))
        save_state(folder / "vocabularies", {n: v.to_state() for n, v in self._vocabs.items()})

    def _matrix(self, data: Lists, names: Sequence[str]) -> np.ndarray:
        """Columns side by side: float32 ``[n, len(names)]``, NaN where missing; text by its code in the training rows."""
        result = np.empty((len(data), len(names)), dtype=np.float32)
        for i, name in enumerate(names):
            column = data.table[name]
            if name in self._vocabs:
                codes = self._vocabs[name].encode(column).float()
                values = torch.where(codes > 0, codes, torch.nan)
            else:
                values = column.number(torch.float32)
            result[:, i] = values.cpu().numpy()
        return result

    def _names(self, data: Lists) -> list[str]:
        return list(self.columns) if self.columns is not None else [*data.cats, *data.conts]


def _gains(booster: xgb.Booster, names: Sequence[str]) -> dict[str, float]:
    gains: Mapping[str, Any] = booster.get_score(importance_type="total_gain")
    return {n: float(gains.get(n, 0.0)) for n in names}
