"""``XGBRanker``: gradient-boosted trees that rank (``rank:ndcg``) or classify (``binary:logistic``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import xgboost as xgb

from fastrec.errors import DataError
from fastrec.key_types import is_text
from fastrec.rankers.base import Lists, Ranker, Trace, whole_lists
from fastrec.state import save_state
from fastrec.table import Column
from fastrec.vocab import Vocab

_DEFAULTS = {
    "tree_method": "hist",
    "max_bin": 64,
    "eta": 0.1,
    "max_depth": 5,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
}
_LARGEST = 1e38  # XGBoost refuses infinite values, and adds to the largest one
_RANKING = {"lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": 8, "ndcg_exp_gain": False}


class XGBRanker(Ranker):
    """XGBoost over candidates in lists.

    Lists of one candidate, without a relevant one or of weight 0 teach no ranking and are left out of training; every
    list is scored. Scores are margins (log-odds for ``binary:logistic``), on one scale across lists. Missing values are
    XGBoost's own. Categories, and text among the numbers, go in by their code among the training rows' sorted values;
    unseen ones are missing.

    Args:
        name: the ranker's name.
        objective: ``'rank:ndcg'``, ``'rank:pairwise'``, ``'rank:map'`` or ``'binary:logistic'``.
        rounds: how many trees.
        columns: the columns to use; None: all categories (by code) and numbers.
        margin: a column of scores to start from: the trees learn corrections to it; None: they start from nothing.
        **params: XGBoost's own parameters, over the defaults.
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
        **params: Any,
    ) -> None:
        self.name, self.objective, self.rounds, self.columns = name, objective, rounds, columns
        self.margin, self.params = margin, params
        self.forget()

    def forget(self) -> None:
        """Drop the trees."""
        super().forget()
        self._booster: xgb.Booster | None = None
        self._vocabs: dict[str, Vocab] = {}
        self._used: list[str] = []

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Ranker:
        """Grow the trees; ``valid`` is not looked at."""
        train = whole_lists(train, name=self.name)
        ranks = self.objective.startswith("rank:")
        params = {**_DEFAULTS, **(_RANKING if ranks else {}), **self.params, "objective": self.objective, "seed": seed}
        params["device"] = str(device) if device is not None and device.type == "cuda" else "cpu"
        params.setdefault("nthread", torch.get_num_threads())
        options: dict[str, Any] = {}
        _, codes, sizes = torch.unique_consecutive(train.groups, return_inverse=True, return_counts=True)
        if ranks:
            options["qid"] = codes.numpy()
        if train.weight is not None:
            first = torch.cumsum(sizes, 0) - sizes
            options["weight"] = (train.weight[first] if ranks else train.weight).double().numpy()
        self._used = names = self._names(train)
        coded = (n for n in names if n in train.cats or _holds_text(train.table[n]))
        self._vocabs = {n: Vocab.fit(train.table[n]) for n in coded}
        data = xgb.QuantileDMatrix(
            self._matrix(train),
            train.label.float().numpy(),
            feature_names=names,
            max_bin=params["max_bin"],
            nthread=params["nthread"],
            base_margin=self._start(train),
            **options,
        )
        self._booster = xgb.train(params, data, self.rounds)
        self.trace = Trace(importance=_gains(self._booster, names))
        return self

    def predict(self, data: Lists) -> torch.Tensor:
        """Margins of the candidates: float64 ``[n]`` on the CPU."""
        if self._booster is None:
            raise self.not_fitted()
        if not len(data):
            return torch.zeros(0, dtype=torch.float64)
        self._booster.set_param({"device": "cpu"})
        matrix = xgb.DMatrix(
            self._matrix(data),
            feature_names=self._used,
            nthread=torch.get_num_threads(),
            base_margin=self._start(data),
        )
        margins = self._booster.predict(matrix, output_margin=True)
        return torch.from_numpy(margins.astype(np.float64))

    def save(self, folder: Any) -> None:
        """Write ``model.ubj`` (XGBoost's own form), ``ranker.json`` and the vocabularies."""
        if self._booster is None:
            raise self.not_fitted()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._booster.save_model(folder / "model.ubj")
        about = {
            "objective": self.objective,
            "rounds": self.rounds,
            "margin": self.margin,
            "params": self.params,
            "features": self._booster.feature_names,
        }
        (folder / "ranker.json").write_text(json.dumps(about, indent=1))
        save_state(folder / "vocabularies", {n: v.to_state() for n, v in self._vocabs.items()})

    def _start(self, data: Lists) -> np.ndarray | None:
        if self.margin is None:
            return None
        return data.table[self.margin].number(torch.float32).cpu().numpy()

    def _matrix(self, data: Lists) -> np.ndarray:
        """Columns side by side: float32 ``[n, columns]``, NaN where missing; categories by their code."""
        result = np.empty((len(data), len(self._used)), dtype=np.float32)
        for i, name in enumerate(self._used):
            column = data.table[name]
            if name in self._vocabs:
                codes = self._vocabs[name].encode(column).float()
                values = torch.where(codes > 0, codes, torch.nan)
            else:
                values = column.number(torch.float32)
            result[:, i] = values.clamp(-_LARGEST, _LARGEST).cpu().numpy()
        return result

    def _names(self, data: Lists) -> list[str]:
        names = list(self.columns) if self.columns is not None else [*data.cats, *data.conts]
        odd = next((n for n in names if set(n) & set("[]<")), None)
        if odd is not None:
            raise DataError("XGBoost takes no name with [, ] or <", column=odd, remedy="Rename the column")
        return names


def _holds_text(column: Column) -> bool:
    return column.kind == "category" and is_text(column.distinct.type)


def _gains(booster: xgb.Booster, names: Sequence[str]) -> dict[str, float]:
    gains: Mapping[str, Any] = booster.get_score(importance_type="total_gain")
    return {n: float(gains.get(n, 0.0)) for n in names}
