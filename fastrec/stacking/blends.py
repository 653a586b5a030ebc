"""Blends of lists: rankers whose inputs are the base models' scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from fastrec._core import limits
from fastrec.estimators import Ranker, Trace, XGBRanker
from fastrec.metrics import group_ranks
from fastrec.segments import segment_max, segment_sum
from fastrec.stacking.row_inputs import refuse_twice
from fastrec.table import Table
from fastrec.validate import Lists, whole_lists

_START = "__start__"  # the column that trees begin from

Inputs = Literal["rank", "gap", "softmax", "log_softmax"]


def in_list(scores: torch.Tensor, groups: torch.Tensor) -> dict[Inputs, torch.Tensor]:
    """Return a model's rank, gap and share of the softmax within each list.

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
    # A missing score ranks last, as in the metrics.
    rough = torch.where(scores.isnan(), -torch.inf, scores)
    top = segment_max(rough, codes, size)[codes]
    gap = torch.where(rough == top, 0.0, torch.where(rough.isfinite() & top.isfinite(), rough - top, -limits.FAR_GAP))
    total = segment_sum(gap.exp(), codes, size)[codes]
    log_softmax = gap - total.log()
    rank = group_ranks(scores, groups, ties="ordinal").double() if len(scores) else scores
    return {"rank": rank, "gap": gap, "softmax": log_softmax.exp(), "log_softmax": log_softmax}


def level_two(scores: Mapping[str, torch.Tensor], data: Lists, extra: Sequence[str] = ()) -> Lists:
    """Return the candidates with level-2 inputs instead of features; the models' own scores are columns, but no input.

    Args:
        scores: base model → float64 ``[n]``.
        data: the candidates.
        extra: columns of level 1 to keep beside them.
    """
    columns: dict[str, Any] = {n: data.table[n] for n in extra}
    used = [n for n in extra if n not in data.cats]
    for model, values in scores.items():
        inputs = {f"{model}_{word}": v for word, v in in_list(values, data.groups).items()}
        refuse_twice([model, *inputs], columns)
        columns |= inputs
        columns[model] = values.double()
        used += [n for n in inputs if n != f"{model}_log_softmax"]
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

    learned = ("weights",)

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
            # The softmax of large scores overflows without its maximum taken off.
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
        """Return the weighted sum: float64 ``[n]``."""
        if self.weights is None:
            raise self.not_fitted()
        return self._inputs(data) @ self.weights


class BoostedBlend(Ranker):
    """XGBoost's ranker over level-2 inputs, starting from a ``LinearBlend``: the trees learn corrections to it.

    Args:
        models: the base models' names.
        name: the ranker's name.
        rounds: how many trees.
        **params: XGBoost's own parameters.
    """

    learned = ("blend", "trees")

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
        """Return the corrected blend: float64 ``[n]``."""
        return self.trees.predict(self._started(data))

    def _started(self, data: Lists) -> Lists:
        return replace(data, table=data.table.with_columns({_START: self.blend.predict(data)}))


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
        """Return the blend as it is: there is nothing to learn."""
        return self

    def predict(self, data: Lists) -> torch.Tensor:
        """Return the mean: float64 ``[n]``."""
        parts = torch.stack([data.table[f"{m}_{self.of}"].number().cpu() for m in self.models], 1)
        return parts.mean(1) if self.of == "log_softmax" else -parts.mean(1)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write nothing: nothing was learned."""
        return {}
