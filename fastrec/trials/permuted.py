"""Permutation importance out of fold, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from fastrec.estimators import Estimator
from fastrec.metrics import Interval, Metric, bootstrap_metric
from fastrec.validate import Rows

# for every fold the numbers of the rows that it scores, its training rows, and the rows that it scores
FoldRows = tuple[torch.Tensor, Rows, Rows]


def permuted_losses(
    model: Estimator,
    folds: Iterable[FoldRows],
    metric: Metric,
    restore: Callable[[torch.Tensor], torch.Tensor] | None,
    clusters: torch.Tensor | None,
    *,
    seed: int = 0,
    device: torch.device | None = None,
) -> dict[str, Interval]:
    """Measure by how much a metric is worse if one column is shuffled (Breiman 2001, section 10), out of fold.

    Args:
        model: untrained.
        folds: see ``FoldRows``.
        metric: the metric.
        restore: takes labels and predictions to the target's scale; None: they are on it.
        clusters: int64 ``[n]`` of all rows: groups that are resampled whole; None: lists, or rows.
        seed: of models and shuffles; fold k's models get ``seed + k``.
        device: where to train.

    Returns:
        Column → the loss, above 0 if the metric is worse, with its 95 % interval over all scored rows together.
    """
    restore = restore or (lambda values: values)
    draw = torch.Generator().manual_seed(seed)
    parts: dict[str | None, list[torch.Tensor]] = {None: []}
    numbers, labels, groups = [], [], []
    for k, (at, train, valid) in enumerate(folds):
        fitted = model.fresh().fit(train, None, seed=seed + k, device=device)
        gains, base = fitted.trace.importance, fitted.predict(valid)
        for name in valid.names:
            order = torch.randperm(len(valid), generator=draw)
            predicted = base
            # a column without gain is not in the model: shuffling it changes nothing
            if not gains or gains.get(name, 0.0) > 0:
                table = valid.table.with_columns({name: valid.table[name].take(order.to(valid.table.device))})
                predicted = fitted.predict(valid.with_table(table))
            parts.setdefault(name, []).append(restore(predicted))
        parts[None].append(restore(base))
        numbers.append(at)
        labels.append(restore(valid.label))
        groups.append(valid.groups)
    y, rows = torch.cat(labels), torch.cat(numbers)
    lists = torch.cat(groups) if valid.task == "ranking" else None
    units = None if clusters is None else clusters[rows]
    predictions = {n: torch.cat(values) for n, values in parts.items()}
    base, losses = predictions.pop(None), {}
    for name, shuffled in predictions.items():
        if torch.equal(shuffled, base):
            losses[name] = Interval(0.0, 0.0, 0.0)
            continue
        pair = {"a": base, "b": shuffled} if metric.greater_is_better else {"a": shuffled, "b": base}
        # 200 resamples bound the time, as every column draws its own (not measured)
        result = bootstrap_metric(metric, y, pair, groups=lists, clusters=units, repeats=200)
        losses[name] = result.difference("a", "b")
    return losses
