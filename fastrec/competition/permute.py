"""``permutation_importance``: what a model's score loses where a feature's values are shuffled."""

from __future__ import annotations

import torch

from fastrec.competition.scoring import Scorer
from fastrec.estimators import Estimator
from fastrec.validate import Rows


def permutation_importance(
    model: Estimator, rows: Rows, scorer: Scorer, *, seed: int = 0, most_rows: int = 4_000, most: int = 40
) -> dict[str, float]:
    """Measure how much a score drops if one feature's values are shuffled among rows (Breiman 2001, section 10).

    Args:
        model: a trained model.
        rows: rows with labels that it was not trained on.
        scorer: the score.
        seed: of the shuffles.
        most_rows: so many rows are used, or some more where lists are whole.
        most: so many features are tried: those of the highest gain, where the model says gains.

    Returns:
        Feature → the score as it is less the score with the feature shuffled (above 0: the feature helps).
    """
    rows = _some(rows, most_rows)
    gains = model.trace.importance
    names = sorted(rows.names, key=lambda n: -gains.get(n, 0.0))[:most]
    sign = 1.0 if scorer.metric.greater_is_better else -1.0
    one = torch.zeros(len(rows), dtype=torch.int64)  # classes by thresholds that others of these rows say
    whole = scorer(rows, model.predict(rows), folds=one)
    draw, made = torch.Generator().manual_seed(seed), {}
    for name in names:
        order = torch.randperm(len(rows), generator=draw).to(rows.table.device)
        shuffled = rows.table.with_columns({name: rows.table[name].take(order)})
        made[name] = sign * (whole - scorer(rows, model.predict(rows.with_table(shuffled)), folds=one))
    return made


def _some(rows: Rows, most: int) -> Rows:
    if len(rows) <= most:
        return rows
    if rows.task != "ranking":
        return rows.take(torch.linspace(0, len(rows) - 1, most).long())
    assert rows.groups is not None
    return rows.take((rows.groups <= rows.groups[most - 1]).nonzero().squeeze(1))
