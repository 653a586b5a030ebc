"""Defaults of each model's training on a table: procs, options, epochs, batch, rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from fastrec.models import RealMLP, TabM, TabularNet
from fastrec.tabular import Categorify, RankGauss, RobustScale
from fastrec.validate import Rows
from fastrec.validate.tasks import Task


@dataclass(frozen=True)
class NetRecipe:
    """Defaults for a model.

    Args:
        epochs: how often every row is seen, at most.
        max_rows: epochs are cut so that about so many rows are seen.
        min_rows: of a small table there are more epochs, until so many rows are seen; 64 epochs at most.
        lr: the schedule's highest rate, at ``base_bs`` rows.
        wd: weight decay.
        procs: what prepares the columns.
        options: of the model.
        bs: rows in a batch; None: a hundredth of the training rows, up to a power of two, 256 to 2,048.
        base_bs: the batch size that ``lr`` is for.
    """

    epochs: int = 16
    max_rows: int = 8_000_000
    min_rows: int = 0
    lr: float = 2e-3
    wd: float = 0.02
    procs: tuple[Any, ...] = (Categorify, RankGauss)
    options: Mapping[str, Any] = field(default_factory=dict)
    bs: int | None = None
    base_bs: int = 256

    def epochs_for(self, n: int) -> int:
        """Return the epochs over ``n`` training rows, before ``max_rows``."""
        return max(self.epochs, min(-(-self.min_rows // n), 64))

    def batch(self, n: int) -> int:
        """Return the rows in a batch, for ``n`` training rows."""
        if self.bs is not None:
            return self.bs
        # About a hundred steps an epoch, but neither tiny nor huge batches.
        return min(max(1 << round(n / 100).bit_length(), 256), 2_048)


_TABULAR = {"layers": [256, 128], "ps": 0.1, "embed_p": 0.05, "use_bn": False, "bn_cont": False, "act_cls": nn.SiLU}
# A TabM of the paper's size (32 members, layers of 256) costs seven times as much, for tables that a CPU should do.
_TABM = {"k": 8, "layers": [128, 128], "d_embedding": 8}
_RECIPES: dict[type[nn.Module], NetRecipe] = {
    TabularNet: NetRecipe(options=_TABULAR, max_rows=4_000_000),
    TabM: NetRecipe(options=_TABM, epochs=10, max_rows=2_000_000, min_rows=300_000),
}
# arXiv 2407.04491, table A.1: 256 epochs at batch 256. On a CPU that is hours for a million rows, so the rows that are
# seen are bounded, to 7,800 updates: some 100 seconds of one core.
_CLASSES = NetRecipe(epochs=256, max_rows=2_000_000, lr=0.04, wd=0.02, procs=(Categorify, RobustScale), bs=256)
_AMOUNTS = replace(_CLASSES, lr=0.2, options={"act": "mish"})


def recipe_of(model: type[nn.Module], task: Task) -> NetRecipe:
    """Return the defaults of a model; those without ones of their own share the plain ones."""
    if issubclass(model, RealMLP):
        return _AMOUNTS if task == "regression" else _CLASSES
    return _RECIPES.get(model, NetRecipe())


def default_model(data: Rows) -> str:
    """Name the model of ``model='auto'``: the best on held-out rows at the same cost.

    For amounts RealMLP (Rossmann), for classes and labels TabM (Adult, Census-Income), for many numbers TabularNet.
    """
    # Beyond, a TabM's embeddings of numbers cost more than they bring.
    if len(data.conts) > 150:
        return "TabularNet"
    return "RealMLP" if data.task == "regression" else "TabM"
