"""XGBoost for lists, and for any task."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import xgboost as xgb

from fastrec.estimators._tree_model import Deadline, TreeData, TreeInputs, TreeModel
from fastrec.estimators.base import ClassWeight, Ranker, Trace
from fastrec.table import Vocab
from fastrec.validate import Rows


def names_for_xgboost(names: Sequence[str]) -> list[str]:
    """Escape the characters of column names that XGBoost refuses."""
    return [n.replace("%", "%25").replace("[", "%5B").replace("]", "%5D").replace("<", "%3C") for n in names]


def params_for_xgboost(params: Mapping[str, Any], seed: int, device: torch.device | None) -> dict[str, Any]:
    """Add the seed, the device and torch's number of threads; rename the columns of constraints."""
    params = {**params, "seed": seed}
    params["device"] = str(device) if device is not None and device.type == "cuda" else "cpu"
    params.setdefault("nthread", torch.get_num_threads())
    monotone, together = params.get("monotone_constraints"), params.get("interaction_constraints")
    if isinstance(monotone, Mapping):
        names = names_for_xgboost(list(monotone))
        params["monotone_constraints"] = dict(zip(names, monotone.values(), strict=True))
    if together is not None and not isinstance(together, str):
        params["interaction_constraints"] = [names_for_xgboost(names) for names in together]
    return params


def handed(values: torch.Tensor | None, *, on_gpu: bool) -> Any:
    """Return a tensor as XGBoost takes it: a numpy array, or a CuPy array of the same memory if trees grow on a GPU."""
    if values is None:
        return None
    cupy = _cupy() if on_gpu and values.is_cuda else None
    return values.cpu().numpy() if cupy is None else cupy.from_dlpack(values)


def _cupy() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError:
        return None


def predicted(
    booster: xgb.Booster,
    values: torch.Tensor,
    names: Sequence[str],
    *,
    margin: bool,
    start: torch.Tensor | None = None,
    types: Sequence[str] | None = None,
) -> torch.Tensor:
    """Predict rows: float64 ``[n]`` or ``[n, k]`` on the CPU.

    With CuPy, GPU rows are predicted in place and only the predictions are copied to the host. ``margin``: return sums
    of leaves, before the objective's link; ``start``: the margin to start from; ``types``: None: all columns are
    numbers.
    """
    # In place: the columns are not copied to the host.
    if values.is_cuda and types is None and _cupy() is not None:
        booster.set_param({"device": str(values.device)})
        there = booster.inplace_predict(
            handed(values, on_gpu=True),
            predict_type="margin" if margin else "value",
            validate_features=False,  # an array has no names
            base_margin=handed(start, on_gpu=True),
        )
        return torch.as_tensor(there).double().cpu()
    # The booster may have been trained on a GPU that is not available now.
    booster.set_param({"device": "cpu"})
    matrix = xgb.DMatrix(
        handed(values, on_gpu=False),
        feature_names=names_for_xgboost(names),
        feature_types=types,
        enable_categorical=types is not None,
        nthread=torch.get_num_threads(),
        base_margin=handed(start, on_gpu=False),
    )
    return torch.from_numpy(booster.predict(matrix, output_margin=margin).astype(np.float64))


def linked(margins: torch.Tensor, objective: str) -> torch.Tensor | None:
    """Apply an objective's link to float64 margins ``[n]`` or ``[n, k]``; None: only XGBoost knows it.

    XGBoost's own probabilities are float32, and their last bit depends on the library version. A stack's trees compare
    such numbers, so they could predict differently where the model is served.
    """
    if objective == "multi:softprob":
        return margins.softmax(1)
    if objective in ("binary:logistic", "reg:logistic"):
        return margins.sigmoid()
    if objective in ("count:poisson", "reg:gamma", "reg:tweedie"):
        return margins.exp()
    return margins if objective in ("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror") else None


def gains(booster: xgb.Booster, names: Sequence[str]) -> dict[str, float]:
    """Return feature → total gain."""
    scores: Mapping[str, Any] = booster.get_score(importance_type="total_gain")
    return {n: float(scores.get(escaped, 0.0)) for n, escaped in zip(names, names_for_xgboost(names), strict=True)}


# parameters of XGBoost's own class that have no effect when training on a prepared matrix
_NOT_TRAINED_BY = {"self", "kwargs", "missing", "callbacks", "enable_categorical", "feature_types", "importance_type"}


class XGBModel(TreeModel):
    """XGBoost for any task; a task with several targets gets one booster per target.

    Rows of weight 0 are excluded from training, and so are ranking lists that teach nothing. XGBoost handles missing
    values itself. Categories and text columns are encoded by their position among the sorted training values; unseen
    values count as missing. With CuPy, columns of a GPU table stay on the GPU. Ranking scores are margins.

    Args:
        rounds: the maximum number of trees (multiclass: per class).
        early_stopping_rounds: stop after this many rounds without improvement on a hold-out, an eighth of the training
            rows: the last ones by ``order``, whole ``groups``, or rows sampled by class. The trees up to the best round
            are kept. The loss is monitored, or ``eval_metric`` if given. Except in ranking, trees stopped by the loss
            are then regrown on all rows if time allows, with the best number of rounds scaled to more rows. For up to
            10,000 unordered rows, four such hold-outs determine that number. None: grow all ``rounds`` on all rows.
        columns: the columns to use; None: all categories and numbers.
        class_weight: ``'balanced'``, or class number → weight; None: equal weights.
        objective: XGBoost's objective, suitable for the task; None: ``rank:ndcg``, ``binary:logistic``,
            ``multi:softprob``, ``reg:squarederror``.
        native_cats: split categories by sets of values (XGBoost's own categorical splits) instead of by code.
        **params: XGBoost's own parameters, which override the defaults; constraints name columns:
            ``monotone_constraints={'price': -1}``.
    """

    suffix = ".ubj"
    elsewhere = {  # noqa: RUF012 - names of XGBoost's other interfaces, which would be ignored silently
        "num_boost_round": "rounds=", "n_estimators": "rounds=", "seed": "fit's seed=", "random_state": "fit's seed=",
        "device": "fit's device=",
    }  # fmt: skip
    objectives = {  # noqa: RUF012 - declared in the base class
        "ranking": ("rank:ndcg", "rank:", "binary:logistic", "reg:"),
        "binary": ("binary:logistic",),
        "multiclass": ("multi:softprob",),
        "regression": ("reg:squarederror", "reg:", "count:poisson"),
        "multilabel": ("binary:logistic",),
    }
    suits = {  # noqa: RUF012
        "mae": ("reg:absoluteerror", ""), "pinball": ("reg:quantileerror", "quantile_alpha"),
        "poisson_deviance": ("count:poisson", ""), "gamma_deviance": ("reg:gamma", ""),
    }  # fmt: skip
    defaults = {  # noqa: RUF012
        "tree_method": "hist", "max_bin": 256, "eta": 0.05, "max_depth": 6, "subsample": 0.8, "colsample_bytree": 0.8,
    }  # fmt: skip
    ranking: ClassVar[Mapping[str, Any]] = {"ndcg_exp_gain": False}
    """Further defaults of ``rank:`` objectives: the gain is the relevance itself, which may be a fraction."""
    aliases = {"learning_rate": "eta", "lambda": "reg_lambda"}  # noqa: RUF012

    def __init__(
        self,
        name: str = "xgb",
        *,
        rounds: int = 2000,
        early_stopping_rounds: int | None = 50,
        columns: Sequence[str] | None = None,
        class_weight: ClassWeight = None,
        objective: str | None = None,
        native_cats: bool = False,
        **params: Any,
    ) -> None:
        self.native_cats = native_cats
        super().__init__(name, rounds, early_stopping_rounds, columns, class_weight, objective, params)

    def _params(self, train: Rows, seed: int, device: torch.device | None) -> dict[str, Any]:
        objective = self._objective(train.task)
        fixed: dict[str, Any] = {"objective": objective}
        if objective == "multi:softprob":
            fixed["num_class"] = train.n_outputs
        ranks = self.ranking if objective.startswith("rank:") else {}
        return self._checked(params_for_xgboost({**ranks, **self._over_defaults(), **fixed}, seed, device))

    def _checked(self, params: dict[str, Any]) -> dict[str, Any]:
        asked = xgb.Booster({"num_feature": 1})  # XGBoost would only warn; this booster tells which names it knows
        with self._refusals_as_errors():
            asked.set_param({n: v for n, v in params.items() if not n.endswith(("constraints", "metric"))})
            asked.set_param("validate_parameters", False)
            names = re.findall(r'"(\w+)":', asked.save_config())
        self.refuse_unknown({*names, *inspect.signature(xgb.XGBModel.__init__).parameters} - _NOT_TRAINED_BY)
        return params

    def _types(self) -> list[str] | None:
        """Return XGBoost's type of each column; None: all are numbers."""
        return ["c" if n in self._inputs.vocabs else "q" for n in self._inputs.names] if self.native_cats else None

    def _values(self, rows: Rows, params: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the columns, and the scores that the trees start from."""
        start = None if self.margin is None else rows.table[self.margin].number(torch.float32)
        return self._inputs.matrix(rows.table), start

    def _matrix(self, data: TreeData, params: Mapping[str, Any], ref: Any = None) -> xgb.QuantileDMatrix:
        ranks = params["objective"].startswith("rank:")
        binned = {"max_bin": params["max_bin"], "ref": ref}
        # Continued trees first predict these rows, which needs exact values instead of new bins.
        make, more = (xgb.QuantileDMatrix, binned) if self._before is None else (xgb.DMatrix, {})
        # values keep their device: XGBoost bins a GPU's columns in place
        (values, start), on_gpu = data.values, params["device"] != "cpu"
        weight = data.weight  # of a list that of its first row
        if ranks and weight is not None:
            weight = weight[np.cumsum(data.sizes) - data.sizes]
        return make(
            handed(values, on_gpu=on_gpu),
            data.label,
            base_margin=handed(start, on_gpu=on_gpu),
            weight=weight,
            qid=data.groups if ranks else None,
            feature_names=names_for_xgboost(self._inputs.names),
            feature_types=self._types(),
            enable_categorical=self.native_cats,
            nthread=params["nthread"],
            **more,
        )

    def _train(self, params: Mapping[str, Any], matrix: Any, held: Any = None) -> tuple[xgb.Booster, Sequence[float]]:
        callbacks = [] if self._deadline is None else [InTime(self._deadline, params["eta"], self._rounds)]
        go_on = {"num_boost_round": self._rounds, "xgb_model": self._before, "callbacks": callbacks}
        if held is None:
            return xgb.train(dict(params), matrix, **go_on), []
        results: dict[str, dict[str, list[float]]] = {}
        stop = {"early_stopping_rounds": self.early_stopping_rounds, "evals_result": results, "verbose_eval": False}
        trees = xgb.train(dict(params), matrix, evals=[(held, "held")], **go_on, **stop)
        best = trees.attr("best_iteration")  # None if the time ended in the first round
        curve = list(results["held"].values())[-1] if results else []  # the last of several metrics is monitored
        # XGBoost keeps the trees after the best one
        return trees if best is None else trees[: int(best) + 1], curve

    def _gains(self, trees: xgb.Booster) -> Iterable[float]:
        return gains(trees, self._inputs.names).values()

    def _predicted(self, trees: xgb.Booster, values: tuple[torch.Tensor, torch.Tensor | None]) -> torch.Tensor:
        names, types = self._inputs.names, self._types()
        values, start = values
        sums = predicted(trees, values, names, margin=True, start=start, types=types)
        if self._task == "ranking":
            return sums
        # get margins first, then apply the link in double precision if it is known
        predictions = linked(sums, self._objective(self._task))
        return predicted(trees, values, names, margin=False, types=types) if predictions is None else predictions

    def _text_of(self, trees: xgb.Booster) -> bytes:
        return bytes(trees.save_raw("ubj"))

    def _read_trees(self, path: Path) -> xgb.Booster:
        trees = xgb.Booster(model_file=path)
        if trees.feature_names != names_for_xgboost(self._inputs.names):
            raise ValueError("the trees are of other columns")
        return trees


class InTime(xgb.callback.TrainingCallback):
    """Ends a training at a deadline, at a higher rate if not all rounds would fit."""

    def __init__(self, deadline: Deadline, rate: float, rounds: int) -> None:
        self.deadline, self.rate, self.rounds = deadline, rate, rounds

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Return whether to stop."""
        return self.deadline.after_round(epoch + 1, self.rounds, self.rate, lambda r: model.set_param({"eta": r}))


class XGBRanker(XGBModel, Ranker):
    """XGBoost over candidates in lists.

    Lists of one candidate, without a relevant one or of weight 0 are excluded from training; every list is scored.
    Scores are margins (log-odds for ``binary:logistic``) on one scale across lists. Columns are encoded as in
    ``XGBModel``. Names with ``[``, ``]`` or ``<``, which XGBoost refuses, are escaped (``%5B``, ``%5D``, ``%3C``).

    Args:
        objective: ``'rank:ndcg'``, ``'rank:pairwise'``, ``'rank:map'`` or ``'binary:logistic'``.
        rounds, columns, params: as for ``XGBModel``.
        margin: a column of initial scores, to which the trees learn corrections; None: they start from scratch.
        early_stopping_rounds: as for ``XGBModel``; the hold-out consists of whole lists, chosen by a hash of their
            number.
    """

    defaults = {**XGBModel.defaults, "max_bin": 64, "eta": 0.1, "max_depth": 5, "colsample_bytree": 0.5}  # noqa: RUF012
    ranking = {  # noqa: RUF012
        **XGBModel.ranking, "lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": 8,
    }  # fmt: skip

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
        # skips XGBModel's constructor, whose other arguments do not apply to ranking
        TreeModel.__init__(self, name, rounds, early_stopping_rounds, columns, None, objective, params)
        self.native_cats, self.margin = False, margin

    @property
    def ranks(self) -> bool:
        """Whether the objective ranks, rather than classifies."""
        return self._objective("ranking").startswith("rank:")

    def params_in_full(self, seed: int) -> dict[str, Any]:
        """Return XGBoost's parameters, defaults included."""
        given = {**(self.ranking if self.ranks else {}), **self._over_defaults(), "objective": self.objective}
        return self._checked(params_for_xgboost(given, seed, None))

    @property
    def reads(self) -> list[str]:
        """The columns that prediction needs."""
        if self._task is None:
            raise self.not_fitted()
        return list(dict.fromkeys([*self._inputs.names, *([self.margin] if self.margin else [])]))

    def adopt(self, trees: xgb.Booster, columns: Sequence[str], vocabs: Mapping[str, Vocab] | None = None) -> None:
        """Use trees that were grown elsewhere, from these columns in this order, as the trained model."""
        self._parts, self._inputs, self._task = [trees], TreeInputs(columns, vocabs or {}), "ranking"
        self.trace = Trace(importance=gains(trees, columns))
