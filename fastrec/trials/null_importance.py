"""Gains of trees, compared with those of the same trees on a shuffled target."""

from __future__ import annotations

from dataclasses import replace

import torch

from fastrec.errors import DataError
from fastrec.estimators import Estimator
from fastrec.validate import Rows


def null_importance(
    model: Estimator, rows: Rows, *, repeats: int = 20, seed: int = 0, device: torch.device | None = None
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Compute a model's gains, and those with shuffled targets (Altmann et al. 2010, section 2.1: PIMP).

    A column with many values has gain by chance; its own gains on shuffled targets measure that.

    Args:
        model: untrained, one that has gains. It must not stop early: on a shuffled target it would stop at once and
            have no gain.
        rows: training rows.
        repeats: number of shuffled targets.
        seed: of the shuffles and of all models.
        device: where to train.

    Returns:
        Column → gain; column → its gains with shuffled targets.

    Raises:
        DataError: the model has no gains, or there are no labels.
    """
    if rows.label is None:
        raise DataError("rows without labels have no target to shuffle", remedy="Give training rows")

    def gains(some: Rows) -> dict[str, float]:
        importance = model.fresh().fit(some, None, seed=seed, device=device).trace.importance
        if not importance:
            raise DataError(f"{model.name} has no gains", remedy="Use XGBoost, LightGBM or CatBoost")
        return {n: float(importance.get(n, 0.0)) for n in rows.names}

    true, draw = gains(rows), torch.Generator().manual_seed(seed)
    nulls: dict[str, list[float]] = {n: [] for n in rows.names}
    for _ in range(repeats):
        order = torch.randperm(len(rows), generator=draw)
        if rows.task == "ranking":
            assert rows.groups is not None
            # within each list: every list keeps its number of clicks
            order = order[torch.argsort(rows.groups[order], stable=True)]
        for name, gain in gains(replace(rows, label=rows.label[order])).items():
            nulls[name].append(gain)
    return true, nulls
