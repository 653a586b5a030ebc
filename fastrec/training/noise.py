"""Training rows changed anew in every batch, and pretraining on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fastai.callback.core import Callback
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.models import TabularNet, TwoTower
from fastrec.models.fields import training_rows
from fastrec.optim import adamw
from fastrec.training.learner import LeanLearner
from fastrec.training.stop_on_nan import StopOnNaN


class MoreNegatives(Callback):
    """Callback that adds negative items to each training batch of a ``TwoTower``, for ``InBatchSoftmax``.

    Without it, rare items are hardly ever negatives. ``uniform`` ones are drawn from all items alike (mixed negatives,
    Yang et al. 2020). ``hard`` ones are those that the net ranks first for a query of the batch, without its known
    items. An added row has target 0, and so no loss of its own.

    Args:
        uniform: uniform negatives per batch; ``item_log_q(…, uniform=share)`` corrects for them.
        hard: hard negatives per batch.
        query: the categorical column that identifies a query; required for ``hard``.
        among: draw a hard negative from so many of a query's first items.
        every: batches after which item vectors are recomputed.

    Raises:
        DataError: the model is no ``TwoTower`` with an item column, or reads lists or vectors; or there are no targets.
    """

    def __init__(
        self, uniform: int = 0, hard: int = 0, *, query: str | None = None, among: int = 20, every: int = 20
    ) -> None:
        super().__init__()
        if min(uniform, hard) < 0 or min(among, every) < 1 or not uniform + hard or (hard and query is None):
            problem = f"uniform={uniform}, hard={hard}, query={query!r}, among={among}, every={every}"
            raise DataError(problem, remedy="Give uniform or hard, with hard a query, and numbers above 0")
        self.uniform, self.hard, self.query, self.among, self.every = uniform, hard, query, among, every

    def before_fit(self) -> None:
        """Collect the items, a training row of each, and what each query is known to have."""
        net, dls, names = self.learn.model, self.learn.dls, list(self.learn.dls.cat_names)
        item = getattr(net, "item_column", None)
        if not isinstance(net, TwoTower) or item is None or self.query not in (None, *names):
            remedy = f"Use it with a TwoTower that has an item column; columns are {names}"
            raise DataError(f"negatives of {type(net).__name__}, query={self.query!r}", remedy=remedy)
        cats, conts, _ = training_rows(dls)
        self.codes, place = torch.unique(cats[:, item].long(), return_inverse=True)
        row = torch.full((len(self.codes),), len(cats)).scatter_reduce_(0, place, torch.arange(len(cats)), "amin")
        self.device = next(net.parameters()).device
        self.rows = [part[row].to(self.device) for part in (cats, conts)]
        self.column = None if self.query is None else names.index(self.query)
        if self.column is not None:
            self.pairs = torch.unique(cats[:, self.column].long() * len(self.codes) + place).to(self.device)
        self.done = 0

    def before_batch(self) -> None:
        """Add the rows."""
        if not self.learn.training:
            return
        if len(self.learn.xb) != 2 or len(self.learn.yb) != 1:
            remedy = "Leave out its lists and vectors, and give a target: 1 for each row"
            raise DataError("a batch has more than categories, numbers and a target", remedy=remedy)
        chosen = torch.randint(len(self.codes), (self.uniform,), device=self.device)
        if self.hard:
            chosen = torch.cat([chosen, self._hard()])
        y = self.learn.yb[0]
        self.learn.xb = tuple(torch.cat([x, r[chosen].to(x)]) for x, r in zip(self.learn.xb, self.rows, strict=True))
        self.learn.yb = (torch.cat([y, y.new_zeros(len(chosen), *y.shape[1:])]),)

    @torch.no_grad()
    def _hard(self) -> Tensor:
        """Return places of items that stand high for some of the batch's queries."""
        net, items = self.learn.model.eval(), len(self.codes)
        if self.done % self.every == 0:
            self.vectors = net.item_vectors(*self.rows)
        self.done += 1
        drawn = torch.randint(len(self.learn.xb[0]), (self.hard,), device=self.device)
        cats, conts = (x[drawn] for x in self.learn.xb)
        scores = net.query_vectors(cats, conts) @ self.vectors.T
        net.train()
        wanted = cats[:, self.column].long().unsqueeze(1) * items + torch.arange(items, device=self.device)
        place = torch.searchsorted(self.pairs, wanted).clamp_max(len(self.pairs) - 1)  # pairs ascend
        scores = scores.masked_fill(self.pairs[place] == wanted, -torch.inf)
        best, found = scores.topk(min(self.among, items), dim=1)
        pick = (torch.rand(best.shape, device=self.device) * (best > -torch.inf)).argmax(1, keepdim=True)
        return found.gather(1, pick)[best.gather(1, pick) > -torch.inf]  # a query may know all items


class SwapNoise(Callback):
    """Callback that replaces cells of training rows by those of other rows of the batch.

    Columns keep their distribution; targets, lists and vectors stay as they are.

    Args:
        share: share of the cells to replace.

    Source: M. Jahrer's first place in Porto Seguro's Safe Driver Prediction (Kaggle 2017).
    """

    order, run_valid = 5, False

    def __init__(self, share: float = 0.1) -> None:
        super().__init__()
        if not 0 <= share <= 1:
            raise DataError(f"a share of {share} of the cells", remedy="Give a number from 0 to 1")
        self.share = share

    def before_batch(self) -> None:
        """Swap cells."""
        learn: Any = self.learn
        cats, conts, *rest = learn.xb
        learn.xb = (swapped(cats, self.share), swapped(conts, self.share), *rest)


class RowMixUp(Callback):
    """Callback that mixes training rows with others of the batch, and the losses of their targets.

    Numbers are ``w x + (1 - w) x'``. A category is the row's own with probability ``w``, else the other's. The loss,
    which must be a mean over rows, is ``w L(y) + (1 - w) L(y')``. Each batch has one ``w``.

    Args:
        alpha: both parameters of the beta distribution; ``w`` is the larger of the draw and 1 minus it.

    Source: Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization".
    """

    order, run_valid = 6, False

    def __init__(self, alpha: float = 0.4) -> None:
        super().__init__()
        if not alpha > 0:
            raise DataError(f"alpha={alpha} is not above 0", remedy="Give a number above 0: 0.4, say")
        self.alpha = alpha
        self._loss: Any = None

    def before_batch(self) -> None:
        """Mix the rows, and set the loss for them."""
        self.after_loss()
        learn: Any = self.learn
        cats, conts, *rest = learn.xb
        weight = float(torch.distributions.Beta(self.alpha, self.alpha).sample())
        weight = max(weight, 1 - weight)
        other = torch.randperm(len(conts), device=conts.device)
        kept = torch.rand(cats.shape, device=cats.device) < weight
        learn.xb = (torch.where(kept, cats, cats[other]), weight * conts + (1 - weight) * conts[other], *rest)
        if len(learn.yb):
            own = self._loss = learn.loss_func

            def loss(pred: Tensor, *targets: Tensor) -> Tensor:
                return weight * own(pred, *targets) + (1 - weight) * own(pred, *(y[other] for y in targets))

            learn.loss_func = loss

    def after_loss(self) -> None:
        """Give the Learner its loss back."""
        if self._loss is not None:
            self.learn.loss_func, self._loss = self._loss, None

    # what breaks off between the two, such as Ctrl-C, leaves the loss of its batch behind
    before_fit = before_validate = after_cancel_batch = after_loss


def swapped(values: Tensor, share: float) -> Tensor:
    """Swap a share of the cells of rows ``[b, columns]`` with those of other rows, drawn for each cell."""
    if not values.numel():
        return values
    other = torch.randint(len(values), values.shape, device=values.device)
    return torch.where(torch.rand(values.shape, device=values.device) < share, values.gather(0, other), values)


def pretrain_denoising(
    dls: Any, net: TabularNet, epochs: int = 10, *, share: float = 0.15, lr: float = 2e-3, wd: float = 0.01
) -> list[float]:
    """Train all layers but the last to reconstruct rows from swap noise.

    A temporary linear layer predicts every category (cross-entropy divided by the logarithm of the number of codes)
    and every number (squared error divided by its variance in the batch). Validation rows and targets are not used.

    Args:
        dls: tabular dataloaders.
        net: a net with hidden layers; its weights are changed.
        epochs, lr, wd: as for ``fit_one_cycle``.
        share: share of the cells to swap, see ``SwapNoise``.

    Returns:
        The loss of each batch.

    Source: Vincent et al. 2008, "Extracting and Composing Robust Features with Denoising Autoencoders"; swap noise
    after M. Jahrer (Kaggle 2017).
    """
    if not isinstance(net, TabularNet) or len(net.layers) < 2:
        name = type(net).__name__
        raise DataError(f"{name} has no hidden layers that could be trained so", remedy="Give a TabularNet with layers")
    names = list(dls.cat_names)
    sizes = [len(dls.train_ds.classes[n]) for n in names] if names else []
    whole = _Denoiser(net, sizes).to(next(net.parameters()).device)
    cbs = [_OwnRowsAsTargets(), SwapNoise(share), StopOnNaN(targets=False)]
    learn = LeanLearner(dls, whole, loss_func=_Reconstruction(sizes), opt_func=adamw, wd=wd, cbs=cbs)
    learn._do_epoch_validate = lambda *args, **kwargs: None  # nothing is chosen by it
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(epochs, lr)
    return [float(v) for v in learn.recorder.losses]


class _OwnRowsAsTargets(Callback):
    """The targets of a batch are its rows, before noise is put on them."""

    order = SwapNoise.order - 1

    def before_batch(self) -> None:
        learn: Any = self.learn
        learn.yb = tuple(learn.xb[:2])


class _Denoiser(nn.Module):
    """A net with a linear layer in place of its last."""

    def __init__(self, net: TabularNet, sizes: Sequence[int]) -> None:
        super().__init__()
        self.net = net
        hidden = next(m for m in net.layers[-1] if isinstance(m, nn.Linear)).in_features
        self.back = nn.Linear(hidden, sum(sizes) + net.n_cont)

    def forward(self, x_cat: Tensor, x_cont: Tensor, *extras: Tensor) -> Tensor:
        return self.back(self.net.layers[:-1](self.net.all_inputs(x_cat, x_cont, extras)))


class _Reconstruction(nn.Module):
    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(sizes)

    def forward(self, outputs: Tensor, cats: Tensor, conts: Tensor) -> Tensor:
        parts = outputs.split([*self.sizes, conts.shape[1]], 1)
        losses = [
            F.cross_entropy(p, cats[:, i].long()) / torch.tensor(float(max(n, 2))).log()
            for i, (n, p) in enumerate(zip(self.sizes, parts[:-1], strict=True))
        ]
        if conts.shape[1]:
            spread = conts.var(0, unbiased=False).clamp_min(1e-6)
            losses += list(((parts[-1] - conts).square() / spread).mean(0).unbind())
        return torch.stack(losses).mean()
