"""``NetRanker``: a fastai net over candidates, trained on whole lists with a softmax over each list."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fastai.data.block import RegressionBlock
from fastai.torch_core import set_seed
from torch import Tensor, nn

from fastrec._core import limits
from fastrec.errors import DataError, check_whole
from fastrec.estimators._net_training import Architecture, KeepBest, train_one_cycle
from fastrec.estimators._on_ranks import fit_on_ranks, is_for_ranks, share_of
from fastrec.estimators._trained_net import STARTED, NetStart, TrainedNet, missing_flags, net_columns, outputs_of
from fastrec.estimators.base import Estimator, Ranker, Trace
from fastrec.losses import ListwiseSoftmax
from fastrec.metrics import mrr
from fastrec.models import EventNet, TabularNet
from fastrec.segments import segment_sum
from fastrec.tabular import Categorify, RankGauss, TabularFrame
from fastrec.validate import Lists, whole_lists

_LIST = "__list__"
_TARGETS = ("__share__", _LIST, "__weight__")  # names that no feature may have
_TABULAR = {"layers": [128, 64], "ps": 0.2, "embed_p": 0.05, "use_bn": False, "act_cls": nn.SiLU}


class NetRanker(Ranker):
    """A net of ``fastrec.models``, trained with fastai's one-cycle schedule on batches of whole lists.

    Numbers are transformed by ``RankGauss``. If values are missing, a flag is added as an input (one for all columns
    that are missing in the same rows).

    Args:
        model: a class of ``fastrec.models``, its name, or a class of your own with the same interface.
        options: the model's own options; they override the next three arguments and the defaults of a ``TabularNet``
            here (no batch norm in the hidden layers, SiLU).
        layers: width of each hidden layer; None: 128 and 64, or another model's own default.
        ps: dropout after each hidden layer; None: .2, or another model's own default.
        embed_p: dropout on the embeddings; None: .05, or another model's own default.
        epochs: the number of epochs, unless ``max_rows`` allows fewer.
        max_rows: limit epochs so that at most about this many candidates are seen; at least one epoch.
        lr: the schedule's highest rate for a batch of 3,000 candidates; it scales with the root of the batch size.
        bs: candidates in a batch, at most all of them. AdamW is the optimizer; from 32,768 candidates on, embeddings
            have no momentum, and the other momenta scale with the batch size.
        wd: weight decay.
    """

    def __init__(
        self,
        name: str = "net",
        *,
        model: type[nn.Module] | str = TabularNet,
        options: Mapping[str, Any] | None = None,
        layers: Sequence[int] | None = None,
        epochs: int = 8,
        max_rows: int = 20_000_000,
        lr: float = 2e-3,
        bs: int | None = None,
        wd: float = 0.02,
        ps: float | Sequence[float] | None = None,
        embed_p: float | None = None,
    ) -> None:
        self.name, self.epochs, self.max_rows, self.lr, self.wd = name, epochs, max_rows, lr, wd
        check_whole(name, epochs=epochs, max_rows=max_rows, bs=bs)
        self.bs = bs or limits.RANKED_BATCH
        layers = None if layers is None else list(layers)
        given = {n: v for n, v in (("layers", layers), ("ps", ps), ("embed_p", embed_p)) if v is not None}
        defaults = _TABULAR if Architecture(model).model is TabularNet else {}
        self.architecture = Architecture(model, {**defaults, **given, **(options or {})})
        self.start_anew()
        if issubclass(self.architecture.model, EventNet) and not self.reads_events:
            raise DataError(f"{self.architecture.model.__name__} reads events", remedy="Give it to a SessionRanker")
        self.forget()

    def forget(self) -> None:
        """Drop the net and the preparation of its columns."""
        super().forget()
        self._trained: TrainedNet | None = None

    def start_from(self, other: Estimator) -> bool:
        """Begin with another's weights: embeddings by value, all else by name; half the epochs follow."""
        known = isinstance(other, NetRanker) and other._trained is not None
        if not known or other.architecture.model is not self.architecture.model:
            return False
        self._start = NetStart(other._trained, events=other._event_values())
        self.began_with = repr(self._start)
        return True

    def start_anew(self) -> None:
        """Let the next net begin with initial weights."""
        self._start: NetStart | None = None
        self.began_with = ""  # identifies the first weights: cached results of a run depend on it

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> NetRanker:
        """Train the net and record the loss and MRR of ``valid`` after each epoch."""
        self.check_task(train)
        if is_for_ranks():
            fit_on_ranks(self, train, valid, seed=seed, device=device)
            return self
        train = whole_lists(train, name=self.name)
        set_seed(seed)
        self.forget()
        train, flags = self._with_columns(train), missing_flags(train)
        cats, conts = list(train.cats), [*train.conts, *flags]
        frame = TabularFrame(
            net_columns(train, flags, [*cats, *conts], dict(zip(_TARGETS, _targets_of(train), strict=True))),
            procs=[Categorify, RankGauss],
            cat_names=cats,
            cont_names=conts,
            y_names=list(_TARGETS),
            y_block=RegressionBlock(),
            y_dtype=torch.float64,
            groups=_LIST,
            device=device,
        )
        # a batch consists of whole lists: it may be a little smaller or larger
        bs = min(self.bs, len(train))
        tfms, more = self._event_inputs(train, frame)
        dls = frame.dataloaders(bs=share_of(bs), groups=True, seed=seed, device=device or torch.device("cpu"), **tfms)
        # After _event_inputs, which learns the codes of events.
        self._trained = TrainedNet.begin(
            self.architecture, dls, frame, flags, start=self._start, more=more, events=self._event_values()
        )
        epochs = max(1, min(self.epochs, math.ceil(self.max_rows / len(train))))
        epochs = epochs if self._start is None else self._start.epochs(epochs)
        report = KeepBest((lambda net: {}) if valid is None or not len(valid) else self._report(valid), None)
        schedule = {"lr": self.lr, "bs": bs, "base_bs": limits.RANKED_BATCH, "wd": self.wd}
        train_one_cycle(dls, self._trained.net, WeightedListLoss(), epochs, **schedule, cbs=[report])
        self._trained.net.eval()
        self.trace = Trace(curves=report.records, began=STARTED if self._start is not None else "")
        return self

    def _with_columns(self, rows: Lists) -> Lists:
        """Return lists with all columns of the net."""
        return rows

    def _event_inputs(self, train: Lists, frame: TabularFrame) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return options of the dataloaders and of the net, for inputs besides the frame's columns."""
        return {}, {}

    def _event_values(self) -> dict[str, list[Any]]:
        """Return column of events → the values of its codes, in their order."""
        return {}

    def _report(self, valid: Lists) -> Callable[[Any], dict[str, float]]:
        """Return the function that KeepBest calls after each epoch; columns are prepared once, before training."""
        targets = torch.stack([t.double() for t in _targets_of(valid)], 1)
        scored, loss = self._scorer(valid), WeightedListLoss()

        def report(net: Any) -> dict[str, float]:
            scores = scored()
            loss_of_all = float(loss(scores[:, None], targets))
            return {"valid_loss": loss_of_all, "mrr": mrr(scores, targets[:, 0], valid.groups)}

        return report

    def _scorer(self, data: Lists) -> Callable[[], Tensor]:
        """Prepare the columns of lists; the returned function scores them with the net's current weights."""
        trained = self._trained
        frame = trained.frame_of(data)
        return lambda: outputs_of(trained.net, frame, limits.RANKED_AT_ONCE).squeeze(1)

    def predict(self, data: Lists) -> Tensor:
        """Return scores of the candidates: float64 ``[n]`` on the CPU."""
        if self._trained is None:
            raise self.not_fitted()
        return self._scorer(data)() if len(data) else torch.zeros(0, dtype=torch.float64)

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except ``model`` and its options, which ``write`` saves."""
        return {n: getattr(self, n) for n in ("name", "epochs", "max_rows", "lr", "bs", "wd")}

    def write(self, folder: Path) -> dict[str, Any]:
        """Write weights (``model.safetensors``), the arguments of the net (``net/``) and the preparation of columns."""
        if self._trained is None:
            raise self.not_fitted()
        return self._trained.write(folder)

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Restore what ``write`` wrote."""
        self._trained = TrainedNet.read(folder, about, WeightedListLoss())
        self.architecture = self._trained.architecture


class WeightedListLoss(nn.Module):
    """``ListwiseSoftmax``, averaged with the weights of the lists.

    Targets are ``[b, 3]``: a candidate's share of its list's relevance (they sum to 1, or are 0 in a list without any),
    the list's id and the list's weight.
    """

    n_out = 1

    def __init__(self) -> None:
        super().__init__()
        self.each = ListwiseSoftmax(reduction="none")

    def denominator(self, targets: Tensor) -> Tensor:
        """Return the divisor of the mean, a scalar, for combining the means of several ranks' batches."""
        targets = targets.as_subclass(Tensor)
        return (targets[:, 0] * targets[:, 2]).sum()

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of scores ``[b, 1]``: a scalar."""
        targets = targets.as_subclass(Tensor)
        scores = scores.as_subclass(Tensor)
        share, groups, weight = targets.unbind(1)
        losses = self.each(scores, share, groups)
        total = (share * weight).sum()
        return (losses * weight.to(losses.dtype)).sum() / torch.where(total > 0, total, 1.0).to(losses.dtype)


def _targets_of(data: Lists) -> tuple[Tensor, Tensor, Tensor]:
    """Return each candidate's share of its list's relevance, its list's number and weight: float64, int64, float64."""
    if data.label is None:
        raise DataError("lists to report on came without labels", remedy="Give label=, or leave valid out")
    label = data.label.double()
    _, lists = torch.unique_consecutive(data.groups, return_inverse=True)  # small numbers: ids may not fit a float
    total = segment_sum(label, lists, int(lists[-1]) + 1 if len(lists) else 0)[lists]
    weight = torch.ones_like(label) if data.weight is None else data.weight.double()
    return torch.where(total > 0, label / total, 0.0), lists, weight
