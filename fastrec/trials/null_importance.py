"""Gains of trees beside those that the same trees find where the target is shuffled."""

from __future__ import annotations

from dataclasses import replace

import torch

from fastrec.errors import DataError
from fastrec.estimators import Estimator
from fastrec.validate import Rows


def null_importance(
    model: Estimator, rows: Rows, *, repeats: int = 20, seed: int = 0, device: torch.device | None = None
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """A model's gains, and those of ``repeats`` models of shuffled targets (Altmann et al. 2010, section 2.1: PIMP).

    The target is shuffled within the rows given, in a ranking within each list. A column with many values finds gain in
    noise; it is compared with what it finds itself.

    Args:
        model: untrained, one that says gains. It must not stop early: where there is nothing to learn it would stop at
            once, and no gain be found by chance.
        rows: training rows.
        repeats: how many shuffled targets.
        seed: of the shuffles and the models: all are trained with the same.
        device: where to train.

    Returns:
        Column → gain; column → its gains with shuffled targets.

    Raises:
        DataError: the model says no gains, or there are no labels.
    """
    if rows.label is None:
        raise DataError("rows without labels have no target to shuffle", remedy="Give training rows")

    def gains(some: Rows) -> dict[str, float]:
        found = model.fresh().fit(some, None, seed=seed, device=device).trace.importance
        if not found:
            raise DataError(f"{model.name} says no gains", remedy="Use XGBoost, LightGBM or CatBoost")
        return {n: float(found.get(n, 0.0)) for n in rows.names}

    true, draw = gains(rows), torch.Generator().manual_seed(seed)
    nulls: dict[str, list[float]] = {n: [] for n in rows.names}
    for _ in range(repeats):
        label = rows.label[_shuffled(rows, draw)]
        for name, gain in gains(replace(rows, label=label)).items():
            nulls[name].append(gain)
    return true, nulls


def _shuffled(rows: Rows, draw: torch.Generator) -> torch.Tensor:
    """An order of the rows at random; in a ranking candidates stay in their list."""
    order = torch.randperm(len(rows), generator=draw)
    if rows.task != "ranking":
        return order
    assert rows.groups is not None
    return order[torch.argsort(rows.groups[order], stable=True)]
