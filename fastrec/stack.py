"""Stacking: a second model over the base models' out-of-fold scores.

Level-2 inputs of a candidate, for every base model: its rank in the list, its gap to the list's best score, and its
share of the list's softmax. They do not depend on the offset of a model's scores in a list, so that out-of-fold scores
(one model) and test scores (mean of the folds' models) mean the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from fastrec.columns import as_column
from fastrec.errors import DataError
from fastrec.features.folds import fold_numbers
from fastrec.metrics import group_ranks, reciprocal_ranks
from fastrec.rankers.base import Lists, Ranker, Trace, saved_to, whole_lists
from fastrec.rankers.xgb import XGBRanker
from fastrec.segments import segment_max, segment_sum
from fastrec.table import Table
from fastrec.validate import Predictions

_START = "__start__"  # the column that trees begin from
_FAR = 1000.0  # what an infinite gap counts as
Inputs = Literal["rank", "gap", "softmax", "log_softmax"]


def in_list(scores: torch.Tensor, groups: torch.Tensor) -> dict[Inputs, torch.Tensor]:
    """What a model's scores say within each list.

    A score of NaN or -inf puts a candidate last, at a softmax of 0; of several of +inf each shares the top.

    Args:
        scores: float64 ``[n]``.
        groups: int64 ``[n]``, the list of each candidate.

    Returns:
        ``rank`` (from 1, ties by row), ``gap`` (score less the list's best, ≤ 0), ``softmax`` and ``log_softmax``, each
        ``[n]``.
    """
    _, codes = torch.unique(groups, return_inverse=True)
    size = int(codes.max()) + 1 if len(codes) else 0
    rough = torch.where(scores.isnan(), -torch.inf, scores)
    top = segment_max(rough, codes, size)[codes]
    gap = torch.where(rough == top, 0.0, torch.where(rough.isfinite() & top.isfinite(), rough - top, -_FAR))
    total = segment_sum(gap.exp(), codes, size)[codes]
    log_softmax = gap - total.log()
    rank = group_ranks(scores, groups, ties="ordinal").double() if len(scores) else scores
    return {"rank": rank, "gap": gap, "softmax": log_softmax.exp(), "log_softmax": log_softmax}


def level_two(scores: Mapping[str, torch.Tensor], data: Lists, extra: Sequence[str] = ()) -> Lists:
    """The candidates with level-2 inputs instead of features.

    Args:
        scores: base model → float64 ``[n]``.
        data: the candidates.
        extra: columns of level 1 to keep beside them.
    """
    columns: dict[str, Any] = {n: data.table[n] for n in extra}
    used = [n for n in extra if n not in data.cats]
    for model, values in scores.items():
        made = {f"{model}_{word}": v for word, v in in_list(values, data.groups).items()}
        twice = next((n for n in made if n in columns), None)
        if twice is not None:
            raise DataError("two level-2 inputs have this name", column=twice, remedy="Rename the column or the model")
        columns |= made
        used += [n for n in made if n != f"{model}_log_softmax"]
    cats = [n for n in extra if n in data.cats]
    return Lists(Table(columns, device="cpu"), data.groups, cats=cats, conts=used, label=data.label, weight=data.weight)


class LinearBlend(Ranker):
    """A weighted sum of the base models' in-list log-softmax.

    The weights are those of maximum likelihood of the clicks (conditional logit), with a ridge.

    Args:
        models: the base models' names.
        name: the ranker's name.
        ridge: penalty on the squared weights, in units of lists.

    Source: McFadden 1974, "Conditional logit analysis of qualitative choice behavior".
    """

    def __init__(self, models: Sequence[str], *, name: str = "blend", ridge: float = 1.0) -> None:
        self.name, self.models, self.ridge = name, list(models), ridge
        self.forget()

    def forget(self) -> None:
        """Drop the weights."""
        super().forget()
        self.weights: torch.Tensor | None = None

    def _inputs(self, data: Lists) -> torch.Tensor:
        return torch.stack([data.table[f"{m}_log_softmax"].number().cpu() for m in self.models], 1)

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Ranker:
        """Find the weights; ``valid`` is not looked at."""
        train = whole_lists(train, name=self.name)
        x, y = self._inputs(train), train.label.double()
        _, codes = torch.unique_consecutive(train.groups, return_inverse=True)
        size = int(codes.max()) + 1 if len(codes) else 0
        share = y / segment_sum(y, codes, size)[codes]
        share = share if train.weight is None else share * train.weight
        weights = torch.full((len(self.models),), 1 / len(self.models), dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([weights], max_iter=50, line_search_fn="strong_wolfe")

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            score = x @ weights
            top = segment_max(score.detach(), codes, size)[codes]
            total = torch.zeros(size, dtype=torch.float64).index_add(0, codes, (score - top).exp())
            value = -(share * (score - top - total.log()[codes])).sum() + self.ridge * (weights**2).sum()
            value.backward()
            return value

        optimizer.step(loss)
        self.weights = weights.detach()
        self.trace = Trace(importance={m: float(w) for m, w in zip(self.models, self.weights, strict=True)})
        return self

    def predict(self, data: Lists) -> torch.Tensor:
        """The weighted sum: float64 ``[n]``."""
        if self.weights is None:
            raise self.not_fitted()
        return self._inputs(data) @ self.weights

    def save(self, folder: Any) -> None:
        """Write the weights (``ranker.json``)."""
        if self.weights is None:
            raise self.not_fitted()
        about = {"weights": dict(zip(self.models, self.weights.tolist(), strict=True)), "ridge": self.ridge}
        with saved_to(folder) as part:
            (part / "ranker.json").write_text(json.dumps(about, indent=1))


class BoostedBlend(Ranker):
    """XGBoost's ranker over level-2 inputs, starting from a ``LinearBlend``: the trees learn corrections to it.

    Args:
        models: the base models' names.
        name: the ranker's name.
        rounds: how many trees.
        **params: XGBoost's own parameters.
    """

    def __init__(self, models: Sequence[str], *, name: str = "boosted_blend", rounds: int = 40, **params: Any) -> None:
        self.models, self.name, self.rounds, self.params = list(models), name, rounds, params
        self.forget()

    def forget(self) -> None:
        """Drop weights and trees."""
        super().forget()
        self.blend = LinearBlend(self.models)
        self.trees = XGBRanker(self.name, rounds=self.rounds, margin=_START, **self.params)

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Ranker:
        """Find the weights, then grow the trees; ``valid`` is not looked at."""
        self.blend.fit(train)
        self.trees.fit(self._started(train), seed=seed, device=device)
        self.trace = self.trees.trace
        return self

    def predict(self, data: Lists) -> torch.Tensor:
        """The blend, corrected: float64 ``[n]``."""
        return self.trees.predict(self._started(data))

    def _started(self, data: Lists) -> Lists:
        return replace(data, table=data.table.with_columns({_START: self.blend.predict(data)}))

    def save(self, folder: Any) -> None:
        """Write the weights (``blend/``) and the trees (``trees/``)."""
        with saved_to(folder) as part:
            self.blend.save(part / "blend")
            self.trees.save(part / "trees")


class AverageBlend(Ranker):
    """The plain mean of what the base models say in each list: nothing is fitted, so nothing can be overfitted.

    Args:
        models: the base models' names.
        of: average the in-list ``'log_softmax'`` (a product of the models' click shares) or ``'rank'`` (Borda count).
        name: the ranker's name; None: ``mean_`` and what is averaged.
    """

    def __init__(
        self, models: Sequence[str], *, of: Literal["log_softmax", "rank"] = "log_softmax", name: str | None = None
    ) -> None:
        self.models, self.of, self.name = list(models), of, name or f"mean_{of}"
        self.forget()

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Ranker:
        """Nothing to learn."""
        return self

    def predict(self, data: Lists) -> torch.Tensor:
        """The mean: float64 ``[n]``."""
        parts = torch.stack([data.table[f"{m}_{self.of}"].number().cpu() for m in self.models], 1)
        return parts.mean(1) if self.of == "log_softmax" else -parts.mean(1)

    def save(self, folder: Any) -> None:
        """Write what is averaged (``ranker.json``)."""
        with saved_to(folder) as part:
            (part / "ranker.json").write_text(json.dumps({"models": self.models, "mean_of": self.of}, indent=1))


class Stack:
    """Trains level 2 on the base models' out-of-fold scores, fold by fold on the base models' own folds.

    An XGBoost ranker, a fitted linear blend, an XGBoost ranker that starts from that blend, and two plain means are
    tried; the one with the best out-of-fold score is the stack.

    Args:
        extra: columns of level 1 that the XGBoost ranker sees too.
        rounds: how many trees the XGBoost ranker has.
        **params: that ranker's own parameters.
    """

    def __init__(self, *, extra: Sequence[str] = (), rounds: int = 60, **params: Any) -> None:
        self.extra, self.rounds = list(extra), rounds
        self.params = {"max_depth": 3, "eta": 0.1, "min_child_weight": 20, "colsample_bytree": 0.8, **params}

    def rankers(self, models: Sequence[str]) -> list[Ranker]:
        """The level-2 models that are tried."""
        return [
            XGBRanker("xgb_ranker", rounds=self.rounds, **self.params),
            LinearBlend(models),
            BoostedBlend(models, max_depth=3, eta=0.05, min_child_weight=20, subsample=0.7),
            AverageBlend(models),
            AverageBlend(models, of="rank"),
        ]

    def fit(
        self,
        base: Sequence[Predictions],
        train: Lists,
        folds: torch.Tensor,
        test: Lists,
        *,
        counted: torch.Tensor | None = None,
        seed: int = 0,
    ) -> tuple[Predictions, dict[str, float]]:
        """Stack base models.

        Args:
            base: their out-of-fold and test scores.
            train: the training lists, with labels.
            folds: whole numbers ``[n]`` from 0: the base models' folds.
            test: the test lists.
            counted: bool ``[n]``: the training candidates whose lists the choice is made by; None: all.
            seed: of everything random.

        Returns:
            The chosen stack's predictions, named ``stack``, and the out-of-fold score of each that was tried.
        """
        names = [p.name for p in base]
        if not names:
            raise DataError("there is nothing to stack", remedy="Give at least one base model")
        if len(folds) != len(train):
            raise DataError(f"{len(folds)} folds for {len(train)} candidates", remedy="Give the base models' own folds")
        folds = fold_numbers(as_column(folds, name="folds")).cpu()
        two = level_two({p.name: p.oof for p in base}, train, self.extra)
        two_test = level_two({p.name: p.test for p in base}, test, self.extra)
        tried = [self._cross_fit(ranker, two, folds, two_test, seed) for ranker in self.rankers(names)]
        scores = {p.name: _counted_score(p.oof, train, counted) for p in tried}
        best = max(tried, key=lambda p: scores[p.name])
        chosen = Predictions("stack", best.oof, best.test, importance=best.importance, models=best.models)
        return chosen, scores

    @staticmethod
    def _cross_fit(ranker: Ranker, two: Lists, folds: torch.Tensor, test: Lists, seed: int) -> Predictions:
        present = torch.unique(folds)
        count = len(present)
        result = Predictions(
            ranker.name, torch.zeros(len(two), dtype=torch.float64), torch.zeros(len(test), dtype=torch.float64)
        )
        for k, fold in enumerate(present):
            inside = folds == fold
            model = ranker.fresh().fit(two.take(~inside), seed=seed + k)
            result.oof[inside] = model.predict(two.take(inside))
            result.test += model.predict(test) / count
            result.models.append(model)
            for name, gain in model.trace.importance.items():
                result.importance[name] = result.importance.get(name, 0.0) + gain / count
        return result


def _counted_score(scores: torch.Tensor, data: Lists, counted: torch.Tensor | None) -> float:
    rows = torch.ones(len(data), dtype=torch.bool) if counted is None else counted.cpu()
    assert data.label is not None
    return float(reciprocal_ranks(scores[rows], data.label[rows], data.groups[rows], ties="ordinal")[1].mean())
