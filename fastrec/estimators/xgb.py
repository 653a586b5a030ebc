"""``XGBRanker``: gradient-boosted trees that rank (``rank:ndcg``) or classify (``binary:logistic``)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import xgboost as xgb

from fastrec.errors import DataError
from fastrec.estimators.base import Ranker, Trace
from fastrec.table import Column, Table, Vocab, load_state, save_state
from fastrec.table.key_types import is_text
from fastrec.validate import Lists, group_folds, whole_lists

_DEFAULTS = {
    "tree_method": "hist",
    "max_bin": 64,
    "eta": 0.1,
    "max_depth": 5,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
}
_LARGEST = 1e38  # XGBoost refuses infinite values, and adds to the largest one
_HELD = 8  # one list in so many is held out where training may stop early
_ELSEWHERE = {  # names that XGBoost's other interfaces have: here they would be passed over without a word
    "num_boost_round": "rounds=",
    "n_estimators": "rounds=",
    "seed": "fit's seed=",
    "random_state": "fit's seed=",
    "device": "fit's device=",
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
        elsewhere = next((n for n in params if n in _ELSEWHERE), None)
        if elsewhere is not None:
            raise DataError(f"XGBRanker does not take {elsewhere}", remedy=f"Give it as {_ELSEWHERE[elsewhere]}")
        self.forget()

    def forget(self) -> None:
        """Drop the trees."""
        super().forget()
        self._booster: xgb.Booster | None = None
        self._vocabs: dict[str, Vocab] = {}
        self._used: list[str] = []

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> XGBRanker:
        """Grow the trees; ``valid`` is not looked at."""
        train = whole_lists(train, name=self.name)
        ranks = self.objective.startswith("rank:")
        params = {**_DEFAULTS, **(_RANKING if ranks else {}), **self.params, "objective": self.objective, "seed": seed}
        params["device"] = str(device) if device is not None and device.type == "cuda" else "cpu"
        params.setdefault("nthread", torch.get_num_threads())
        params = _with_names_as_xgboost_has_them(params)
        held = None if self.early_stopping_rounds is None else self._held_out(train)
        used = train if held is None else train.take(~held)
        self._used = self._names(train)
        coded = (n for n in self._used if n in train.cats or _holds_text(train.table[n]))
        self._vocabs = {n: Vocab.fit(used.table[n]) for n in coded}
        data = self._training_matrix(used, params)
        if held is None:
            self._booster = xgb.train(params, data, self.rounds)
        else:
            evals = [(self._training_matrix(train.take(held), params, ref=data), "held")]
            stop = {"evals": evals, "early_stopping_rounds": self.early_stopping_rounds, "verbose_eval": False}
            grown = xgb.train(params, data, self.rounds, **stop)
            self._booster = grown[: grown.best_iteration + 1]
        self.trace = Trace(importance=_gains(self._booster, self._used))
        return self

    def _held_out(self, train: Lists) -> torch.Tensor:
        """The lists that say when to stop: bool ``[n]``, an eighth of the lists."""
        try:
            return group_folds(Table({"list": train.groups}), "list", _HELD) == 0
        except DataError as error:
            raise DataError(
                f"{self.name} has too few lists to hold an eighth of them out",
                remedy="Give more lists, or leave out early_stopping_rounds",
            ) from error

    def _training_matrix(self, train: Lists, params: Mapping[str, Any], ref: Any = None) -> xgb.QuantileDMatrix:
        """Lists with labels as XGBoost takes them; ``ref``: the matrix whose bins it is to have."""
        ranks, on_gpu = self.objective.startswith("rank:"), params["device"] != "cpu"
        options: dict[str, Any] = {}
        _, codes, sizes = torch.unique_consecutive(train.groups, return_inverse=True, return_counts=True)
        if ranks:
            options["qid"] = codes.numpy()
        if train.weight is not None:
            first = torch.cumsum(sizes, 0) - sizes
            options["weight"] = (train.weight[first] if ranks else train.weight).double().numpy()
        assert train.label is not None
        return xgb.QuantileDMatrix(
            _handed(self._matrix(train), on_gpu=on_gpu),
            train.label.float().numpy(),
            feature_names=_as_xgboost_has_them(self._used),
            max_bin=params["max_bin"],
            nthread=params["nthread"],
            base_margin=_handed(self._start(train), on_gpu=on_gpu),
            ref=ref,
            **options,
        )

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
            feature_names=_as_xgboost_has_them(self._used),
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
        save_state(folder / "vocabularies", {n: v.to_state() for n, v in self._vocabs.items()})
        return {"used": self._used, "features": self._booster.feature_names}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """The inverse of ``write``."""
        self._used = list(about["used"])
        self._vocabs = {n: Vocab.from_state(v) for n, v in load_state(folder / "vocabularies").items()}
        booster = xgb.Booster(model_file=folder / "model.ubj")
        if booster.feature_names != _as_xgboost_has_them(self._used):
            raise ValueError("the trees are of other columns")
        self._booster = booster

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
        return list(self.columns) if self.columns is not None else [*data.cats, *data.conts]


def _as_xgboost_has_them(names: Sequence[str]) -> list[str]:
    """Names of columns without the characters that XGBoost refuses, no two of them alike."""
    return [n.replace("%", "%25").replace("[", "%5B").replace("]", "%5D").replace("<", "%3C") for n in names]


def _with_names_as_xgboost_has_them(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters whose constraints name columns as the trees know them."""
    monotone, together = params.get("monotone_constraints"), params.get("interaction_constraints")
    changed: dict[str, Any] = {}
    if isinstance(monotone, Mapping):
        names = _as_xgboost_has_them(list(monotone))
        changed["monotone_constraints"] = dict(zip(names, monotone.values(), strict=True))
    if together is not None and not isinstance(together, str):
        changed["interaction_constraints"] = [_as_xgboost_has_them(names) for names in together]
    return {**params, **changed}


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
    return {n: float(gains.get(own, 0.0)) for n, own in zip(names, _as_xgboost_has_them(names), strict=True)}
