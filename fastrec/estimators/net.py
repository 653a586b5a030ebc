"""``NetRanker``: a fastai net over candidates, trained on whole lists by the softmax of each list."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from fastai.data.block import RegressionBlock
from fastai.torch_core import set_seed
from safetensors.torch import save_file
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.estimators.base import Ranker, Trace, saved_to
from fastrec.losses import ListwiseSoftmax
from fastrec.metrics import MRR
from fastrec.models import TabularNet
from fastrec.optim import adamw, lamb, scale_lr
from fastrec.segments import segment_sum
from fastrec.table import Table, concat, save_state
from fastrec.tabular import Categorify, RankGauss, TabularFrame
from fastrec.training import RecLearner, rec_learner
from fastrec.validate import Lists, whole_lists

_BS = 3_000  # candidates: about 130 lists of 23
_LIST = "__list__"
_TARGETS = ("__share__", _LIST, "__weight__")  # not names that a feature may have
_LAMB_FROM = 32_768  # candidates in a batch from which LAMB trains


class NetRanker(Ranker):
    """A ``TabularNet`` trained with fastai's one-cycle schedule on batches of whole lists.

    Numbers go through ``RankGauss``, and where values are missing a flag goes in beside them (one for all columns that
    are missing in the same rows).

    Args:
        name: the ranker's name.
        layers: width of each hidden layer.
        epochs: how often every list is seen, at the size at which ``max_rows`` is not reached.
        max_rows: epochs are cut so that at most about this many candidates are seen; one epoch at least.
        lr: the schedule's highest rate at a batch of 3,000 candidates; it grows with the square root of the batch.
        bs: candidates in a batch, up to the whole set.
        wd: weight decay.
        ps: dropout after each hidden layer.
        embed_p: dropout on the embeddings.
    """

    def __init__(
        self,
        name: str = "net",
        *,
        layers: Sequence[int] = (128, 64),
        epochs: int = 8,
        max_rows: int = 20_000_000,
        lr: float = 2e-3,
        bs: int | None = None,
        wd: float = 0.02,
        ps: float = 0.2,
        embed_p: float = 0.05,
    ) -> None:
        self.name, self.layers, self.epochs, self.max_rows = name, list(layers), epochs, max_rows
        self.lr, self.bs, self.wd, self.ps, self.embed_p = lr, bs or _BS, wd, ps, embed_p
        self.forget()

    def forget(self) -> None:
        """Drop the net and what its columns were prepared with."""
        super().forget()
        self._learn: RecLearner | None = None
        self._flags: dict[str, str] = {}

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Ranker:
        """Train the net; the curves tell of ``valid``."""
        train = whole_lists(train, name=self.name)
        set_seed(seed)
        self._flags = _missing_patterns(train)
        valid = valid if valid is not None and len(valid) else None
        parts = [self._frame_of(train), *([self._frame_of(valid)] if valid is not None else [])]
        sizes = np.cumsum([0, *map(len, parts)])
        splits = [range(a, b) for a, b in pairwise(sizes)]
        frame = TabularFrame(
            concat(parts),
            procs=[Categorify, RankGauss],
            cat_names=list(train.cats),
            cont_names=[*train.conts, *self._flags],
            y_names=list(_TARGETS),
            y_block=RegressionBlock(),
            y_dtype=torch.float64,
            groups=_LIST,
            splits=splits if valid is not None else None,
            device=device,
        )
        bs = min(self.bs, len(train))
        dls = frame.dataloaders(bs=bs, groups=True, seed=seed, device=device or torch.device("cpu"))
        self._learn = rec_learner(
            dls,
            TabularNet,
            layers=self.layers,
            n_out=1,
            ps=self.ps,
            embed_p=self.embed_p,
            use_bn=False,
            act_cls=nn.SiLU,
            loss_func=WeightedListLoss(),
            metrics=[] if valid is None else [_ClickMRR(groups=valid.groups)],
            opt_func=lamb if bs >= _LAMB_FROM else adamw,
            wd=self.wd,
        )
        epochs = max(1, min(self.epochs, math.ceil(self.max_rows / len(train))))
        with self._learn.no_bar(), self._learn.no_logging():
            self._learn.fit_one_cycle(epochs, scale_lr(self.lr, bs, _BS), pct_start=0.25)
        # What scoring needs is the net and the procs: not the training rows, nor the optimizer's state.
        self._learn.dls, self._learn.opt = self._learn.dls.new_empty(), None
        self.trace = Trace(curves=self._curves(valid))
        return self

    def _curves(self, valid: Lists | None) -> list[dict[str, float]]:
        assert self._learn is not None
        recorder = self._learn.recorder
        words = ("train_loss", "valid_loss", "mrr") if valid is not None else ("train_loss",)
        return [
            {"epoch": i, **dict(zip(words, map(float, row), strict=False))} for i, row in enumerate(recorder.values)
        ]

    def predict(self, data: Lists) -> Tensor:
        """Scores of the candidates: float64 ``[n]`` on the CPU."""
        if self._learn is None:
            raise self.not_fitted()
        if not len(data):
            return torch.zeros(0, dtype=torch.float64)
        frame = self._frame_of(data, known=False)
        dl = self._learn.dls.test_dl(frame, bs=1 << 15)
        with self._learn.no_bar(), self._learn.no_logging():
            scores, _ = self._learn.get_preds(dl=dl, reorder=False)
        return scores.squeeze(1).double().cpu()

    def _frame_of(self, data: Lists, *, known: bool = True) -> Table:
        columns: dict[str, Any] = {n: data.table[n] for n in (*data.cats, *data.conts)}
        columns |= {flag: data.table[n].is_missing().double() for flag, n in self._flags.items()}
        if known:
            columns |= dict(zip(_TARGETS, _targets_of(data), strict=True))
        return Table(columns, device=data.table.device)

    def save(self, folder: Any) -> None:
        """Write ``model.safetensors``, ``ranker.json`` and the procs' state."""
        if self._learn is None:
            raise self.not_fitted()
        weights = {n: w.contiguous() for n, w in self._learn.model.state_dict().items()}
        procs = {p.name: p.to_state() for p in self._learn.dls.procs.fs if hasattr(p, "to_state")}
        about = {k: getattr(self, k) for k in ("layers", "epochs", "lr", "bs", "wd", "ps", "embed_p")}
        about |= {
            "cats": list(self._learn.dls.cat_names),
            "conts": list(self._learn.dls.cont_names),
            "flags": self._flags,
        }
        with saved_to(folder) as part:
            save_file(weights, part / "model.safetensors")
            save_state(part / "procs", procs)
            (part / "ranker.json").write_text(json.dumps(about, indent=1))


class _ClickMRR(MRR):
    """``MRR`` where the targets are label, list and weight."""

    def accumulate(self, learn: Any) -> None:
        """Keep one batch."""
        self._epoch_groups = self.groups
        self._preds.append(learn.pred.detach().cpu().reshape(-1))
        self._targets.append(learn.yb[0].detach().as_subclass(Tensor).cpu()[:, 0])


class WeightedListLoss(nn.Module):
    """``ListwiseSoftmax``, mean over the weights of the lists.

    Targets are ``[b, 3]``: a candidate's share of its list's relevance (1 in all, or 0 in a list without any), the
    list's id and the list's weight.
    """

    n_out = 1

    def __init__(self) -> None:
        super().__init__()
        self.each = ListwiseSoftmax(reduction="none")

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The loss of scores ``[b, 1]``: a scalar."""
        targets = targets.as_subclass(Tensor)
        scores = scores.as_subclass(Tensor)
        share, groups, weight = targets.unbind(1)
        losses = self.each(scores, share, groups)
        total = (share * weight).sum()
        return (losses * weight.to(losses.dtype)).sum() / torch.where(total > 0, total, 1.0).to(losses.dtype)


def _targets_of(data: Lists) -> tuple[Tensor, Tensor, Tensor]:
    """Each candidate's share of its list's relevance, its list's number and weight: float64, int64, float64 ``[n]``."""
    if data.label is None:
        raise DataError("lists to report on came without labels", remedy="Give label=, or leave valid out")
    label = data.label.double()
    _, lists = torch.unique_consecutive(data.groups, return_inverse=True)  # small numbers: ids may not fit a float
    total = segment_sum(label, lists, int(lists[-1]) + 1 if len(lists) else 0)[lists]
    weight = torch.ones_like(label) if data.weight is None else data.weight.double()
    return torch.where(total > 0, label / total, 0.0), lists, weight


def _missing_patterns(data: Lists) -> dict[str, str]:
    """One number column for every distinct set of rows in which columns are missing: name of its flag → column."""
    seen: dict[int, str] = {}
    for name in data.conts:
        missing = data.table[name].is_missing().cpu()
        if bool(missing.any()) and not bool(missing.all()):
            seen.setdefault(hash(np.packbits(missing.numpy()).tobytes()), name)
    flags: dict[str, str] = {}
    for name in seen.values():
        flag = f"{name}_is_missing"
        while flag in data.conts or flag in data.cats or flag in flags:
            flag += "_"
        flags[flag] = name
    return flags
