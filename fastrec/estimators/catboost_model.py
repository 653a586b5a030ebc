"""``CatBoostModel``: CatBoost for any task."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from fastrec._core.imports import require
from fastrec.errors import DataError, WriteError
from fastrec.estimators._tree_model import TreeData, TreeModel, catboost_in_time
from fastrec.estimators.base import ClassWeight
from fastrec.validate import Rows

_EXPONENTS = ("Poisson", "Tweedie")  # losses that model the logarithm of the target


def catboost() -> ModuleType:
    """Import CatBoost, or raise a ``MissingPackageError`` that says how to install it."""
    return require("catboost", "CatBoost", "pip install fastrec-tabular[trees]")


class CatBoostModel(TreeModel):
    """CatBoost for any task; a task with several targets gets one model per target.

    Rows are selected as in ``XGBModel``. CatBoost encodes categories, including text columns, by ordered target
    statistics; missing and unseen values form one category. Ranking scores are raw, and the relevance is divided by its
    maximum.

    Args:
        rounds, early_stopping_rounds, columns, class_weight: as for ``XGBModel``, including ``eval_metric``.
        objective: CatBoost's loss function, suitable for the task; None: ``YetiRank``, ``Logloss``, ``MultiClass``,
            ``RMSE``.
        keys: numbers to treat as categories, such as months and days. CatBoost combines categories, so that a day of a
            month gets its own statistic.
        **params: CatBoost's own parameters; they override the defaults. Constraints name columns, as for ``XGBModel``.
    """

    beside = False  # its loggers are shared by the whole process
    suffix = ".cbm"
    elsewhere = {  # noqa: RUF012
        "iterations": "rounds=", "num_boost_round": "rounds=", "n_estimators": "rounds=", "num_trees": "rounds=",
        "random_seed": "fit's seed=", "random_state": "fit's seed=", "loss_function": "objective=",
        "od_wait": "early_stopping_rounds=", "task_type": "fit's device=", "class_weights": "class_weight=",
        "auto_class_weights": "class_weight=", "scale_pos_weight": "class_weight=",
    }  # fmt: skip
    objectives = {  # noqa: RUF012 - declared in the base class
        "ranking": ("YetiRank", "QueryRMSE", "QuerySoftMax", "PairLogit", "LambdaMart", "StochasticRank"),
        "binary": ("Logloss", "CrossEntropy", "Focal"),
        "multiclass": ("MultiClass",),
        "regression": (
            "RMSE", "MAE", "Quantile", "LogLinQuantile", "Poisson", "MAPE", "Lq", "Huber", "Expectile", "Tweedie",
            "LogCosh",
        ),
        "multilabel": ("Logloss", "CrossEntropy", "Focal"),
    }  # fmt: skip
    suits = {  # noqa: RUF012 - CatBoost has no gamma: the nearest
        "mae": ("MAE", ""), "mape": ("MAPE", ""), "pinball": ("Quantile:alpha=", ""),
        "poisson_deviance": ("Poisson", ""), "gamma_deviance": ("Tweedie:variance_power=1.99", ""),
    }  # fmt: skip
    defaults = {"learning_rate": 0.05, "depth": 6}  # noqa: RUF012
    aliases = {"eta": "learning_rate", "max_depth": "depth", "reg_lambda": "l2_leaf_reg"}  # noqa: RUF012

    def __init__(
        self,
        name: str = "catboost",
        *,
        rounds: int = 2000,
        early_stopping_rounds: int | None = 50,
        columns: Sequence[str] | None = None,
        class_weight: ClassWeight = None,
        objective: str | None = None,
        keys: Sequence[str] = (),
        **params: Any,
    ) -> None:
        if isinstance(keys, str):
            raise DataError("CatBoostModel: keys is one text", remedy=f"Give a list: keys=[{keys!r}]")
        super().__init__(name, rounds, early_stopping_rounds, columns, class_weight, objective, params)
        self.keys = list(keys)

    def _params(self, train: Rows, seed: int, device: torch.device | None) -> dict[str, Any]:
        catboost()  # import it before a time limit starts: it takes a second or more
        params = {"thread_count": torch.get_num_threads(), **self._over_defaults()}
        params |= {"loss_function": self._objective(train.task), "random_seed": seed}
        # otherwise it creates a folder catboost_info in the working directory
        params |= {"allow_writing_files": False, "logging_level": "Silent"}
        if device is not None and device.type == "cuda":
            params |= {"task_type": "GPU", "devices": str(device.index or 0)}
        if train.task == "multiclass":
            params["classes_count"] = train.n_outputs
        if train.task == "ranking":
            params.setdefault("eval_metric", "NDCG")
        return params

    def _values(self, rows: Rows, params: Mapping[str, Any]) -> pd.DataFrame:
        inputs, table = self._inputs, rows.table
        columns = {}
        for i, name in enumerate(inputs.names):
            column = inputs.codes(table, name).int() if name in inputs.vocabs else table[name].number(torch.float32)
            columns[str(i)] = column.cpu().numpy()  # CatBoost would hash the text of every row: codes serve as well
        return pd.DataFrame(columns)

    def _matrix(self, data: TreeData, params: Mapping[str, Any], ref: Any = None) -> Any:
        label, ranks = data.label, data.groups is not None
        if ranks:
            label = label / max(label.max(), 1.0)  # its ranking metrics expect 0 to 1
        return catboost().Pool(
            data.values,
            label,
            cat_features=self._cats,
            group_id=data.groups,
            group_weight=data.weight if ranks else None,
            weight=None if ranks else data.weight,
        )

    @property
    def _cats(self) -> list[int]:
        return [i for i, n in enumerate(self._inputs.names) if n in self._inputs.vocabs]

    def _train(self, params: Mapping[str, Any], matrix: Any, held: Any = None) -> tuple[Any, Sequence[float]]:
        params, options = {**self._by_place(params), "iterations": self._rounds}, {}
        if (deadline := self._deadline) is not None:
            options["callbacks"] = [SimpleNamespace(after_iteration=lambda info: not deadline.is_over)]
            params = catboost_in_time(deadline, catboost(), params, matrix, self._rounds)
        if self._before is not None:
            options["init_model"] = self._before
        if held is not None:
            options |= {"eval_set": held, "early_stopping_rounds": self.early_stopping_rounds, "use_best_model": True}
        # with fewer than 200 rounds, its defaults differ from those of the trees that gave the best number
        if self._rounds < self.rounds and self._before is None and held is None:
            params["iterations"] = min(max(params["iterations"], 200), self.rounds)
        trees = catboost().CatBoost(params).fit(matrix, **options)
        if trees.tree_count_ > self._rounds and self._before is None:
            trees.shrink(self._rounds)
        results = trees.get_evals_result().get("validation", {})
        metric = params.get("eval_metric", params["loss_function"])
        # a metric's name may be followed by default options; YetiRank reports another metric first
        return trees, next((v for n, v in results.items() if n == metric or n.startswith(f"{metric}:")), [])

    def _gains(self, trees: Any) -> Iterable[float]:
        return trees.get_feature_importance(type="PredictionValuesChange")

    def _predicted(self, trees: Any, values: pd.DataFrame) -> torch.Tensor:
        kind = "Probability" if self._task in ("binary", "multiclass", "multilabel") else "RawFormulaVal"
        if self._task == "regression" and (self.objective or "").startswith(_EXPONENTS):
            kind = "Exponent"
        pool = catboost().Pool(values, cat_features=self._cats)
        predictions = trees.predict(pool, prediction_type=kind, thread_count=torch.get_num_threads())
        predictions = predictions[:, 1] if self._task in ("binary", "multilabel") else predictions
        return torch.from_numpy(np.array(predictions, dtype=np.float64))

    def _cannot_go_on(self, device: torch.device | None) -> str:
        # With statistics of categories, CatBoost joins the trees but not their lookup tables: predictions become wrong.
        if self._inputs.vocabs:
            return f"CatBoost goes on without categories only, and {next(iter(self._inputs.vocabs))} is one"
        return "CatBoost goes on where it runs on a CPU only" if device is not None and device.type == "cuda" else ""

    def _text_of(self, trees: Any) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            self._write_trees(trees, Path(folder) / "trees")
            return (Path(folder) / "trees").read_bytes()

    def _write_trees(self, trees: Any, path: Path) -> None:
        try:
            trees.save_model(str(path))
        except catboost().CatBoostError as error:  # CatBoost's own exception, even if the disk is full
            problem = "could not be written (the file system refused a model's file)"
            remedy = "Free disk space or choose another place; what was there before is untouched"
            raise WriteError(problem, file=path, remedy=remedy) from error

    def _read_trees(self, path: Path) -> Any:
        trees = catboost().CatBoost()
        trees.load_model(str(path))
        if trees.feature_names_ != [str(i) for i in range(len(self._inputs.names))]:
            raise ValueError("the trees are of other columns")
        return trees
