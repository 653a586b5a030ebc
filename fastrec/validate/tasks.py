"""The kinds of task: what is predicted, and in which shape."""

from __future__ import annotations

from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.metrics.metric import TASKS

Task = Literal["ranking", "binary", "multiclass", "regression", "multilabel"]


def check_task(task: str) -> Task:
    """Return the task, if there is one of that name."""
    if task not in TASKS:
        raise DataError(f"there is no task {task!r}", remedy=f"Give one of {', '.join(TASKS)}")
    return task  # type: ignore[return-value]


def check_label(label: torch.Tensor, task: Task, n_outputs: int) -> None:
    """Refuse targets that do not fit their task.

    Args:
        label: ``[n]`` or ``[n, k]``, as ``Rows`` describes it.
        n_outputs: classes of a multiclass task, columns of one with several targets.
    """
    wide = (task == "multilabel") or (task == "regression" and n_outputs > 1)
    if label.ndim != 1 + wide or (wide and label.shape[1] != n_outputs):
        raise DataError(
            f"the target of a {task} task has the shape {tuple(label.shape)}",
            remedy=f"Give [n, {n_outputs}]" if wide else "Give one value for each row",
        )
    if task == "ranking":
        return
    value = (label if label.ndim == 2 else label.unsqueeze(1)).double()
    bad, problem = ~value.isfinite(), "missing or infinite"
    if not bool(bad.any()) and task in ("binary", "multilabel"):
        bad, problem = (value != 0) & (value != 1), "neither 0 nor 1"
    elif not bool(bad.any()) and task == "multiclass":
        bad = (value < 0) | (value >= n_outputs) | (value != value.round())
        problem = f"no class of 0 to {n_outputs - 1}"
    if bool(bad.any()):
        row = int(bad.any(1).nonzero()[0])
        raise DataError(f"a target is {problem}", row=row, remedy=f"Mend the target, or name another task than {task}")
