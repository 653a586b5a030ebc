"""``XGBRanker``: gradient-boosted trees that rank (``rank:ndcg``) or classify (``binary:logistic``)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import xgboost as xgb

from fastrec.errors import DataError
from fastrec.estimators.base import Ranker, Trace, saved_to
from fastrec.table import Column, Vocab, save_state
from fastrec.table.key_types import is_text
from fastrec.validate import Lists, whole_lists

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
    unseen ones are missing. The columns of a table on a GPU stay there where CuPy is installed.

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
        on_gpu = params["device"] != "cpu"
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
            _handed(self._matrix(train), on_gpu=on_gpu),
            train.label.float().numpy(),
            feature_names=names,
            max_bin=params["max_bin"],
            nthread=params["nthread"],
            base_margin=_handed(self._start(train), on_gpu=on_gpu),
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
        values, start = self._matrix(data), self._start(data)
        if values.is_cuda and _cupy() is not None:
            return self._predict_there(values, start)
        self._booster.set_param({"device": "cpu"})
        matrix = xgb.DMatrix(
            _handed(values, on_gpu=False),
            feature_names=self._used,
            nthread=torch.get_num_threads(),
            base_margin=_handed(start, on_gpu=False),
        )
        margins = self._booster.predict(matrix, output_margin=True)
        return torch.from_numpy(margins.astype(np.float64))

    def _predict_there(self, values: torch.Tensor, start: torch.Tensor | None) -> torch.Tensor:
        """Margins of rows that are on a GPU, where they stay; their scores alone come back."""
        self._booster.set_param({"device": str(values.device)})
        margins = self._booster.inplace_predict(
            _handed(values, on_gpu=True),
            predict_type="margin",
            validate_features=False,  # an array has no names
            base_margin=_handed(start, on_gpu=True),
        )
        return torch.as_tensor(margins).double().cpu()

    def save(self, folder: Any) -> None:
        """Write ``model.ubj`` (XGBoost's own form), ``ranker.json`` and the vocabularies."""
        if self._booster is None:
            raise self.not_fitted()
        about = {
            "objective": self.objective,
            "rounds": self.rounds,
            "margin": self.margin,
            "params": self.params,
            "features": self._booster.feature_names,
        }
        with saved_to(folder) as part:
            self._booster.save_model(part / "model.ubj")
            (part / "ranker.json").write_text(json.dumps(about, indent=1))
            save_state(part / "vocabularies", {n: v.to_state() for n, v in self._vocabs.items()})

    def _start(self, data: Lists) -> torch.Tensor | None:
        return None if self.margin is None else data.table[self.margin].number(torch.float32)

    def _matrix(self, data: Lists) -> torch.Tensor:
        """Columns side by side where the table is: float32 ``[n, columns]``, NaN where missing; categories by code."""
        result = torch.empty((len(data), len(self._used)), dtype=torch.float32, device=data.table.device)
        for i, name in enumerate(self._used):
            column = data.table[name]
            if name in self._vocabs:
                codes = self._vocabs[name].encode(column).float()
                values = torch.where(codes > 0, codes, torch.nan)
            else:
                values = column.number(torch.float32)
            result[:, i] = values.clamp(-_LARGEST, _LARGEST)
        return result

    def _names(self, data: Lists) -> list[str]:
        names = list(self.columns) if self.columns is not None else [*data.cats, *data.conts]
        odd = next((n for n in names if set(n) & set("[]<")), None)
        if odd is not None:
            raise DataError("XGBoost takes no name with [, ] or <", column=odd, remedy="Rename the column")
        return names


def _handed(values: torch.Tensor | None, *, on_gpu: bool) -> Any:
    """A tensor as XGBoost takes it: numpy's array, or CuPy's of the same memory where trees grow on a GPU."""
    if values is None:
        return None
    cupy = _cupy() if on_gpu and values.is_cuda else None
    return values.cpu().numpy() if cupy is None else cupy.from_dlpack(values)


def _cupy() -> Any:
    """CuPy, without which XGBoost takes no arrays on a GPU, or None."""
    try:
        return importlib.import_module("cupy")
    except ImportError:
        return None


def _holds_text(column: Column) -> bool:
    return column.kind == "category" and is_text(column.distinct.type)


def _gains(booster: xgb.Booster, names: Sequence[str]) -> dict[str, float]:
    gains: Mapping[str, Any] = booster.get_score(importance_type="total_gain")
    return {n: float(gains.get(n, 0.0)) for n in names}
