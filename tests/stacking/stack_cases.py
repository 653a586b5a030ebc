"""Rows of every task, and base models that know something of them: made by hand, out of fold by construction."""

import numpy as np
import torch

from fastrec.stacking import Stack
from fastrec.table import Table
from fastrec.validate import Lists, Predictions, Rows, folds_digest

TASKS = {  # case → task, numbers a row
    "ranking": ("ranking", 1),
    "binary": ("binary", 1),
    "multiclass": ("multiclass", 3),
    "regression": ("regression", 1),
    "several targets": ("regression", 2),
    "multilabel": ("multilabel", 2),
}
SIZE = 5  # candidates a list


def digest_of(folds: torch.Tensor) -> str:
    return folds_digest([(folds == k).nonzero().squeeze(1) for k in torch.unique(folds) if k >= 0], len(folds))


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def softmax(z: np.ndarray) -> np.ndarray:
    made = np.exp(z - z.max(1, keepdims=True))
    return made / made.sum(1, keepdims=True)


def make(case: str, n: int, models: int, seed: int, noise: float) -> tuple[Rows, dict[str, torch.Tensor]]:
    """Labels drawn from a truth that each model sees with a noise of its own, the later the more."""
    task, k = TASKS[case]
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(n, k))
    seen = [truth + rng.normal(size=truth.shape) * noise * (1 + m) for m in range(models)]
    columns = Table({"city": rng.choice(["oslo", "rome"], n), "x": rng.normal(size=n)})
    if task == "multiclass":
        label = (truth + rng.gumbel(size=truth.shape)).argmax(1)
        predicted = [softmax(s) for s in seen]
    elif task in ("binary", "multilabel"):
        label = (rng.random(truth.shape) < sigmoid(truth)).astype(float)
        predicted = [sigmoid(s) for s in seen]
    elif task == "regression":
        label, predicted = 5 + 2 * truth + rng.normal(size=truth.shape), [5 + 2 * s for s in seen]
    else:
        of_lists = (truth[:, 0] + rng.gumbel(size=n)).reshape(-1, SIZE)
        label = (of_lists.argmax(1)[:, None] == np.arange(SIZE)).astype(float).reshape(-1, 1)
        predicted = seen
    flat = task != "multilabel" and k == 1
    label = torch.from_numpy(label[:, 0] if flat else label)
    made = {f"m{i}": torch.from_numpy(np.ascontiguousarray(p[:, 0] if flat else p)) for i, p in enumerate(predicted)}
    if task == "ranking":
        groups = torch.arange(n // SIZE).repeat_interleave(SIZE)
        return Lists(columns, groups, cats=["city"], conts=["x"], label=label), made
    return Rows(columns, task, cats=["city"], conts=["x"], label=label, n_outputs=k), made


def folds_for(data: Rows, count: int = 4) -> torch.Tensor:
    return (torch.arange(len(data)) if data.groups is None else data.groups) * 7 % count


class Given(Stack):
    """A stack that tries these blends."""

    def __init__(self, *own, **options) -> None:
        super().__init__(**options)
        self.own = own

    def blends(self, models, data, metric):
        return list(self.own)


def bases(scores: dict[str, torch.Tensor], test: dict[str, torch.Tensor], digest: str | None) -> list[Predictions]:
    return [Predictions(m, scores[m], test[m], folds=digest) for m in scores]
