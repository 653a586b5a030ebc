"""``LGBMModel``: LightGBM for any task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.imports import require
from fastrec.errors import DataError
from fastrec.estimators._tree_model import TreeData, TreeModel
from fastrec.estimators.base import ClassWeight
from fastrec.validate import Rows


def lightgbm() -> ModuleType:
    """Import LightGBM, or raise a ``MissingPackageError`` that says how to install it."""
    return require("lightgbm", "LightGBM", "pip install fastrec-tabular[trees]")


class LGBMModel(TreeModel):
    """LightGBM for any task; a task with several targets gets one booster per target.

    Rows and columns are prepared as in ``XGBModel``. Trees grow on the CPU unless ``device_type`` is given, as
    LightGBM's usual packages lack CUDA. Ranking scores are margins; a relevance of 2 is a gain of 2.

    Args:
        rounds, early_stopping_rounds, columns, class_weight: as for ``XGBModel``; if ``metric`` is given, trees stop by
            the first one.
        objective: LightGBM's objective, suitable for the task; None: ``lambdarank``, ``binary``, ``multiclass``,
            ``regression`` (in a run, the one for its regression metric).
        native_cats: split categories by sets of values (LightGBM's own categorical splits); False: by code.
        **params: LightGBM's own parameters; they override the defaults. Constraints name columns, as for ``XGBModel``.
    """

    suffix = ".txt"
    elsewhere = {  # noqa: RUF012
        "num_boost_round": "rounds=", "num_iterations": "rounds=", "num_trees": "rounds=", "n_estimators": "rounds=",
        "early_stopping_round": "early_stopping_rounds=", "seed": "fit's seed=", "random_state": "fit's seed=",
    }  # fmt: skip
    objectives = {  # noqa: RUF012 - declared in the base class
        "ranking": ("lambdarank", "rank_xendcg", "binary", "regression"),
        "binary": ("binary", "cross_entropy"),
        "multiclass": ("multiclass",),
        "regression": (
            "regression", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie", "mae", "l1", "l2", "mse",
        ),
        "multilabel": ("binary", "cross_entropy"),
    }  # fmt: skip
    suits = {  # noqa: RUF012
        "mae": ("mae", ""), "mape": ("mape", ""), "pinball": ("quantile", "alpha"),
        "poisson_deviance": ("poisson", ""), "gamma_deviance": ("gamma", ""),
    }  # fmt: skip
    defaults = {  # noqa: RUF012
        "learning_rate": 0.05, "num_leaves": 31, "bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.8,
    }  # fmt: skip
    aliases = {  # noqa: RUF012 - LightGBM ignores an alias if the main name is given too
        "eta": "learning_rate", "shrinkage_rate": "learning_rate",
        "num_leaf": "num_leaves", "max_leaves": "num_leaves", "max_leaf": "num_leaves", "max_leaf_nodes": "num_leaves",
        "subsample": "bagging_fraction", "sub_row": "bagging_fraction", "bagging": "bagging_fraction",
        "subsample_freq": "bagging_freq",
        "colsample_bytree": "feature_fraction", "sub_feature": "feature_fraction",
        "min_data_per_leaf": "min_data_in_leaf", "min_data": "min_data_in_leaf",
        "min_child_samples": "min_data_in_leaf", "min_samples_leaf": "min_data_in_leaf",
        "reg_lambda": "lambda_l2", "lambda": "lambda_l2", "l2_regularization": "lambda_l2",
        "n_jobs": "num_threads", "nthread": "num_threads", "num_thread": "num_threads", "nthreads": "num_threads",
        "ndcg_eval_at": "eval_at", "ndcg_at": "eval_at", "map_eval_at": "eval_at", "map_at": "eval_at",
        "verbose": "verbosity", "metrics": "metric", "metric_types": "metric", "mc": "monotone_constraints",
    }  # fmt: skip

    def __init__(
        self,
        name: str = "lgbm",
        *,
        rounds: int = 2000,
        early_stopping_rounds: int | None = 50,
        columns: Sequence[str] | None = None,
        class_weight: ClassWeight = None,
        objective: str | None = None,
        native_cats: bool = True,
        **params: Any,
    ) -> None:
        self.native_cats = native_cats
        super().__init__(name, rounds, early_stopping_rounds, columns, class_weight, objective, params)

    def _params(self, train: Rows, seed: int, device: torch.device | None) -> dict[str, Any]:
        with suppress(AttributeError):  # a private name that other versions may lack
            known = lightgbm().basic._ConfigAliases._get_all_param_aliases()
            self.refuse_unknown([*known, *chain(*known.values())])
        params = {"num_threads": torch.get_num_threads(), "verbosity": -1, **self._over_defaults()}
        params |= {"objective": self._objective(train.task), "seed": seed}
        # Otherwise timing decides how histograms are built, and with it the last digits.
        params |= {"deterministic": True}
        # LightGBM refuses both ways at once
        params.setdefault("force_row_wise", not params.get("force_col_wise", False))
        if train.task == "multiclass":
            params["num_class"] = train.n_outputs
        if params["objective"] in ("lambdarank", "rank_xendcg"):
            # its default gain is 2^relevance - 1; here the gain is the relevance itself
            params.setdefault("label_gain", list(range(max(int(train.label.max()) + 1, 2))))
            # its default NDCG looks at the first place only, which stops trees after a few rounds
            params.setdefault("eval_at", limits.WHOLE_LIST)
            odd = (train.label < 0) | (train.label != train.label.round())
            if bool(odd.any()):
                problem = f"{self.name} ranks by whole relevances, 0 or above"
                raise DataError(problem, row=int(odd.nonzero()[0]), remedy="Round them, or use XGBModel")
        return params

    def _values(self, rows: Rows, params: Mapping[str, Any]) -> np.ndarray:
        return self._inputs.matrix(rows.table).cpu().numpy()

    def _matrix(self, data: TreeData, params: Mapping[str, Any], ref: Any = None) -> Any:
        coded = [i for i, n in enumerate(self._inputs.names) if n in self._inputs.vocabs] if self.native_cats else []
        return lightgbm().Dataset(
            data.values,
            data.label,
            weight=data.weight,
            group=None if data.groups is None else data.sizes,
            # LightGBM rejects some names that columns may have
            feature_name=[f"f{i}" for i in range(len(self._inputs.names))],
            categorical_feature=coded,
            params=self._by_place(params),
            reference=ref,
        )

    def _train(self, params: Mapping[str, Any], matrix: Any, held: Any = None) -> tuple[Any, Sequence[float]]:
        lgb, params, deadline, rounds = lightgbm(), self._by_place(params), self._deadline, self._rounds
        results: dict[str, dict[str, list[float]]] = {}
        options: dict[str, Any] = {"init_model": self._before, "callbacks": []}
        if held is not None:
            stop = lgb.early_stopping(self.early_stopping_rounds, first_metric_only=True, verbose=False)
            options = {**options, "valid_sets": [held], "valid_names": ["held"]}
            options["callbacks"] = [stop, lgb.record_evaluation(results)]
        more_is_better = False

        def in_time(env: Any) -> None:
            nonlocal more_is_better
            more_is_better = held is not None and bool(env.evaluation_result_list[0][3])
            reset = env.model.reset_parameter
            if deadline.after_round(env.iteration + 1, rounds, rate, lambda r: reset({"learning_rate": r})):
                raise lgb.callback.EarlyStopException(env.iteration, env.evaluation_result_list or [])

        in_time.order = 40  # type: ignore[attr-defined]  # after early stopping (30) and the curve's recorder (20)
        if deadline is not None:
            rate = float(params["learning_rate"])
            options["callbacks"].append(in_time)
        trees = lgb.train(params, matrix, rounds, **options)
        if held is None:
            return trees, []
        curve, best = next(iter(results["held"].values())), trees.best_iteration
        if deadline is not None and deadline.is_over:  # stopped by time: best_iteration is not the best round
            best = int(np.argmax(curve) if more_is_better else np.argmin(curve)) + 1
            best += 0 if self._before is None else self._before.current_iteration()
        # LightGBM keeps the trees after the best one.
        if 0 < best < trees.current_iteration():
            trees = lgb.Booster(model_str=trees.model_to_string(num_iteration=best))
        return trees, curve

    def _gains(self, trees: Any) -> Iterable[float]:
        return trees.feature_importance("gain")

    def _predicted(self, trees: Any, values: np.ndarray) -> torch.Tensor:
        predictions = trees.predict(values, raw_score=self._task == "ranking", num_threads=torch.get_num_threads())
        return torch.from_numpy(np.asarray(predictions, dtype=np.float64))

    def _text_of(self, trees: Any) -> bytes:
        return trees.model_to_string().encode()

    def _read_trees(self, path: Path) -> Any:
        trees = lightgbm().Booster(model_str=path.read_text(encoding="utf-8"))
        if trees.num_feature() != len(self._inputs.names):
            raise ValueError("the trees are of other columns")
        return trees
