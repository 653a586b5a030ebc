"""``rec_learner``: a fastai Learner for tabular and recommender data in one line."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import Any

import fastai.callback.hook  # gives every Learner its summary
import fastai.callback.progress
import fastai.callback.schedule  # noqa: F401 - gives every Learner fit_one_cycle, lr_find, no_bar
import numpy as np
import pandas as pd
import torch
from fastai.callback.core import _inner_loop
from fastai.callback.schedule import ParamScheduler
from fastai.data.transforms import get_c
from fastai.learner import AvgSmoothLoss, Learner, Metric
from fastai.losses import BaseLoss
from fastai.metrics import accuracy, error_rate, top_k_accuracy
from fastai.tabular.learner import TabularLearner
from fastai.torch_core import TensorBase, find_bs
from fastcore.basics import PrettyString, getcallable, tuplify
from fastcore.foundation import L
from torch import nn

from fastrec._core.device import on_host
from fastrec._core.memory import keeping_memory, naming_out_of_memory
from fastrec.errors import DataError, MissingColumnError
from fastrec.models import EmbeddingTables, FieldNet, TabularNet, embedding_sizes, load_tables, save_tables, table_frame
from fastrec.models.fields import options_of
from fastrec.optim import adamw, as_opt_func
from fastrec.tabular import TabularFrame
from fastrec.training.acceleration import BF16Autocast, CompiledModel, CudaGraph, Precision, mixed_precision
from fastrec.training.ranks import distributed
from fastrec.training.rows import FetchRows, SettleRows
from fastrec.training.stop_on_nan import StopOnNaN


def check_options(given: Iterable[str], model: Callable[..., nn.Module] | nn.Module, known: Iterable[str]) -> None:
    """Refuse options that a model does not take."""
    built, known = isinstance(model, nn.Module), set(known)
    names = options_of(type(model) if built else model)
    if names is None:
        return
    own = set(names)
    # what a model that is there already would take, or others do, is another mistake
    unknown = [n for n in given if n not in own and not (built and n in known)]
    if not unknown:
        return
    made = type(model) if built else getattr(model, "func", model)
    name = getattr(made, "__name__", type(made).__name__)
    near = [] if unknown[0] in known else get_close_matches(unknown[0], sorted(own | known), 1)
    raise DataError(
        f"{name} takes no {', '.join(map(repr, unknown))}"
        + ("" if unknown[0] in known else ", nor do rec_learner and Learner"),
        remedy="".join(f"Did you mean {n!r}? " for n in near)
        + f"{name} takes {', '.join(sorted(own))}; rec_learner and Learner {', '.join(sorted(known - {*unknown}))}",
    )


def build_model(
    dls: Any, model: Callable[..., nn.Module], emb_szs: Any, n_out: int, options: Mapping[str, Any]
) -> nn.Module:
    """Build a model for the columns of dataloaders."""
    if not isinstance(n_out, Integral) or n_out < 1:  # fastai's dls.c may be a column of that name
        raise DataError("the number of outputs cannot be told from the targets", remedy="Pass n_out, or set dls.c")
    names, frame = list(dls.cat_names), dls.train_ds
    lists = list(frame.list_names) if isinstance(frame, TabularFrame) else []
    emb_szs, list_szs = _sizes(emb_szs, names, lists, frame)
    own = frame.extras.columns if isinstance(frame, TabularFrame) and frame.extras is not None else {}
    vectors = [own[n].shape[1] for n in own if n not in lists]
    inputs = {"cat_names": names or None, "list_szs": list_szs, "list_names": lists, "vector_szs": vectors}
    accepted, taken = inspect.signature(model).parameters, options_of(model)
    made = getattr(model, "func", model)
    # a subclass that takes any option passes these on to ``FieldNet``
    taken = [*inputs] if taken is None and isinstance(made, type) and issubclass(made, FieldNet) else taken or []
    defaults = {k: v for k, v in inputs.items() if k in accepted or k in taken}
    if "layers" in accepted and accepted["layers"].default is inspect.Parameter.empty:
        defaults["layers"] = [200, 100]
    learnt = getattr(made, "options_for", None)
    if learnt is not None:
        defaults |= learnt(dls, {**getattr(model, "keywords", {}), **options})
    return model(emb_szs, len(dls.cont_names), n_out, **(defaults | dict(options)))


def check_takes_extras(net: nn.Module, dls: Any) -> None:
    """Refuse a model without inputs for the frame's lists and vectors."""
    frame = dls.train_ds
    names = [*frame.list_names, *frame.vector_names] if isinstance(frame, TabularFrame) else []
    if not names:
        return
    try:
        inspect.signature(net.forward).bind(*range(2 + len(names)))
    except TypeError:
        problem = f"{type(net).__name__} takes no lists or vectors, but the frame has {names}"
        remedy = "Pass a model with forward(x_cat, x_cont, *extras), or leave out list_names and vector_names"
        raise DataError(problem, remedy=remedy) from None


def _sizes(given: Any, names: list[str], lists: list[str], frame: Any) -> tuple[list[Any], list[Any]]:
    every = [*names, *lists]
    if given is None or isinstance(given, Mapping):
        given = embedding_sizes(frame.classes if every else {}, every, widths=given)
    elif len(given) != len(every):
        problem = f"{len(given)} embedding sizes for {len(names)} categorical columns and {len(lists)} list columns"
        raise DataError(problem, remedy=f"Give one each for {every}")
    return list(given[: len(names)]), list(given[len(names) :])


def training_callbacks(
    dls: Any,
    net: nn.Module,
    cbs: Any,
    *,
    amp: Precision | None = None,
    stop_on_nan: bool = True,
    graph: bool = False,
    compile: bool = False,
) -> list[Any]:
    """Return the given callbacks, those that the net needs, and those of ``rec_learner``'s training options.

    Args:
        amp: mixed precision: ``'bf16'``, ``'fp16'`` (CUDA only) or None.
        stop_on_nan: add ``StopOnNaN``.
        graph: replay steps from a CUDA graph, see ``CudaGraph``.
        compile: compile the model, see ``CompiledModel``.
    """
    found = [*L(cbs)]
    stop_on_nan = stop_on_nan and not any(isinstance(cb, StopOnNaN) or cb is StopOnNaN for cb in found)
    tables = [m for m in net.modules() if isinstance(m, EmbeddingTables)]
    settles = any(name.endswith("_rows") for m in tables for name in m.weights)
    fetches = any(not placed.sharded for m in tables for placed in m.placed.values())
    kinds = {SettleRows: settles, FetchRows: fetches, StopOnNaN: stop_on_nan, CudaGraph: graph, CompiledModel: compile}
    precision = mixed_precision(amp, getattr(dls, "device", None) or "cpu")
    return [*found, *([] if precision is None else [precision]), *(kind() for kind, on in kinds.items() if on)]


# At batch 4,096 a net of a competition's size takes some 5 ms a batch on two cores, of which fastai's events, schedules
# and tensor subclasses took 1.5: every event asked every callback, and each schedule built tensors for a cosine.
class LeanLearner(Learner):
    """A Learner that calls callbacks only for events that they have, and schedules without tensors."""

    _known: Sequence[Any] = ()
    _hearers: dict[str, list[Any]] = {}  # noqa: RUF012 - replaced, never changed, before it is first filled

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        recorder = getattr(self, "recorder", None)
        if recorder is not None and type(recorder.smooth_loss) is AvgSmoothLoss:
            recorder.smooth_loss = SmoothLoss(recorder.smooth_loss.beta)

    def __call__(self, event_name: Any) -> None:
        """Call an event of all callbacks, in their order."""
        if not isinstance(event_name, str) or event_name not in _INNER:  # the rare ones, and lists of events
            super().__call__(event_name)
            if event_name == "after_train" and hasattr(self, "recorder"):
                losses = self.recorder.losses
                away = [i for i, loss in enumerate(losses) if not on_host(loss)]
                here = torch.stack([losses[i] for i in away]).cpu() if away else ()  # one copy for all
                for i, loss in zip(away, here, strict=True):
                    losses[i] = loss
            return
        if event_name == "after_loss" and type(getattr(self, "loss", None)) is TensorBase:
            # every operation on fastai's subclass goes through Python, the backward pass too
            self.loss_grad = self.loss_grad.as_subclass(torch.Tensor)
            self.loss = self.loss.detach().as_subclass(torch.Tensor)  # a plain one warns where it is made a number
        if len(self._known) != len(self.cbs) or any(a is not b for a, b in zip(self._known, self.cbs, strict=True)):
            self._known, self._hearers = list(self.cbs), {}
        if event_name not in self._hearers:
            hears = (c for c in self.cbs.sorted("order") if hasattr(type(c), event_name) or event_name in vars(c))
            self._hearers[event_name] = list(hears)
        for cb in self._hearers[event_name]:
            cb(event_name)

    def _set_device(self, b: Any) -> Any:
        device = next(self.model.parameters()).device
        if type(b) is tuple and all(type(x) is torch.Tensor and x.device == device for x in b):
            return b
        return super()._set_device(b)

    def _do_one_batch(self) -> None:
        loss_func = self.loss_func
        # fastai's losses cast to a tensor subclass, which sends every operation through Python
        if not isinstance(loss_func, BaseLoss) or type(loss_func).__call__ is not BaseLoss.__call__:
            super()._do_one_batch()
            return
        self.pred = self.model(*self.xb)
        self("after_pred")
        if len(self.yb):
            self.loss_grad = plain_loss(loss_func, self.pred, *self.yb)
            self.loss = self.loss_grad.detach()
        self("after_loss")
        if self.training and len(self.yb):
            self._do_grad_opt()

    def fit_one_cycle(
        self,
        n_epoch: int,
        lr_max: Any = None,
        div: float = 25.0,
        div_final: float = 1e5,
        pct_start: float = 0.25,
        wd: float | None = None,
        moms: Sequence[Any] | None = None,
        cbs: Any = None,
        reset_opt: bool = False,
        start_epoch: int = 0,
    ) -> None:
        """Train by the 1cycle policy, as fastai's ``fit_one_cycle`` (arXiv 1708.07120).

        Args:
            lr_max: the highest learning rate: a number, or a slice or list over parameter groups; None: ``self.lr``.
            moms: momentum at the start, in the middle and at the end, each a number or an array over parameter groups;
                None: the Learner's.
        """
        if self.opt is None:
            self.create_opt()
        self.opt.set_hyper("lr", self.lr if lr_max is None else lr_max)
        rates = np.array([h["lr"] for h in self.opt.hypers])
        moments = self.moms if moms is None else moms
        cycles = {"lr": one_cycle(pct_start, rates / div, rates, rates / div_final)}
        if "mom" in self.opt.hypers[-1]:  # torch's Adagrad, for one, has none
            cycles["mom"] = one_cycle(pct_start, *moments)
        self.fit(n_epoch, cbs=[ParamScheduler(cycles), *L(cbs)], reset_opt=reset_opt, wd=wd, start_epoch=start_epoch)


_INNER = frozenset(_inner_loop)


class SmoothLoss(AvgSmoothLoss):
    """fastai's smoothed loss, left on the model's device: a copy to the host would wait for every batch."""

    def accumulate(self, learn: Learner) -> None:
        """Add one batch's loss (with several processes that of all, see ``DataParallel``)."""
        loss = learn.loss.detach().as_subclass(torch.Tensor)
        loss = loss.mean() if loss.ndim else loss
        self.count += 1
        self.val = torch.lerp(loss, self.val.to(loss.device, loss.dtype), self.beta)


def plain_loss(loss_func: BaseLoss, pred: torch.Tensor, target: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Compute fastai's flattening loss without casting its inputs to a tensor subclass."""
    pred, target = (
        x.transpose(loss_func.axis, -1).contiguous() if isinstance(x, torch.Tensor) else x for x in (pred, target)
    )
    if loss_func.floatify and target.dtype != torch.float16:
        target = target.float()
    if target.dtype in (torch.int8, torch.int16, torch.int32):
        target = target.long()
    if loss_func.flatten:
        pred = pred.view(-1, pred.shape[-1]) if loss_func.is_2d else pred.view(-1)
        target = target.view(-1)
    return loss_func.func(pred, target, **kwargs)


def one_cycle(pct: float, start: Any, middle: Any, end: Any) -> Callable[[float], Any]:
    """Return a schedule, by the share that is done, from ``start`` to ``middle`` to ``end`` along half cosines."""

    def at(done: float) -> Any:
        done = float(done)
        first, last, share = (
            (start, middle, done / pct) if done < pct else (middle, end, (done - pct) / max(1 - pct, 1e-12))
        )
        return first + (1 + math.cos(math.pi * (1 - share))) * (last - first) / 2

    return at


LEARNER_OPTIONS = frozenset(inspect.signature(Learner.__init__).parameters) - {"self", "dls", "model"}
TRAINING_OPTIONS = frozenset(inspect.signature(training_callbacks).parameters) - {"dls", "net", "cbs"}


def check_one_output(metrics: Iterable[Any]) -> None:
    """Refuse fastai's metrics that take the largest of several outputs."""
    for metric in metrics:
        function = getattr(metric, "func", None)
        largest = getattr(function, "func", function) in (accuracy, error_rate, top_k_accuracy)
        if largest or getattr(metric, "dim_argmax", None) is not None:
            problem = f"{metric.name} takes the likeliest of several outputs, and the model has one"
            remedy = (
                "Use fastrec's AUC() or fastai_metric('accuracy'), or leave loss_func out for an output of each class"
            )
            raise DataError(problem, remedy=remedy)


_SMALLER = (
    "Lower the batch size (bs=), train in 16 bits (amp='bf16'), make embeddings narrower (emb_szs=) or their gradients "
    "row-sparse (grads='rows'), or keep the rows on the host (place='host')"
)


class RecLearner(LeanLearner, TabularLearner):
    """fastai's tabular Learner, whose ``predict`` takes a row from any library, and ``to_bf16`` a CPU."""

    n_out: int | None = None  # that the model was built with; None: it was built already
    graph_reason: str | None = "no CUDA graph was asked for"
    compile_reason: str | None = "no compiled model was asked for"

    def to_bf16(self) -> RecLearner:
        """Add bfloat16 autocast: on CUDA fastai's, else ``BF16Autocast``."""
        on_cuda = torch.device(getattr(self.dls, "device", None) or "cpu").type == "cuda"
        return super().to_bf16() if on_cuda else self.add_cb(BF16Autocast())

    def to_fp32(self) -> RecLearner:
        """Train in float32 throughout."""
        super().to_fp32()
        return self.remove_cb(BF16Autocast)

    def fit(
        self,
        n_epoch: int,
        lr: Any = None,
        wd: float | None = None,
        cbs: Any = None,
        reset_opt: bool = False,
        start_epoch: int = 0,
    ) -> None:
        """Train as fastai's ``fit``; on a CPU freed memory is reused for the next batch.

        Raises:
            DeviceMemoryError: the model, its optimizer or its batches do not fit the device.
            DataError: a metric could not be scored at the end of the epoch, or the loss cannot take the targets.
        """
        loss = getattr(self.loss_func, "loss", self.loss_func)  # TabM's is around the one that was given
        for asked in (loss, *self.metrics):
            if hasattr(asked, "check"):  # a mistake should not take an epoch to show
                asked.check(self)
        if (self.n_out or getattr(loss, "n_out", None)) == 1:
            check_one_output(self.metrics)
        keeping = keeping_memory() if all(on_host(p) for p in self.model.parameters()) else nullcontext()
        with keeping, naming_out_of_memory("beginning to train, or between two batches", _SMALLER):
            super().fit(n_epoch, lr, wd, cbs, reset_opt, start_epoch)

    def create_opt(self) -> None:
        """Make the optimizer as fastai does, of a model on its device: Adagrad begins its state where it is made."""
        device = getattr(self.dls, "device", None)
        if device is not None and not on_host(torch.device(device)):
            with naming_out_of_memory("taking the model to its device", _SMALLER):
                self.model.to(device)
        super().create_opt()

    def distrib_ctx(self, sync_bn: bool = True, **kwargs: Any) -> AbstractContextManager[Any]:
        """Train on all processes that ``torchrun`` has started, with the options of ``fastrec.scale.distributed``."""
        return distributed(self, sync_bn=sync_bn, **kwargs)

    def get_preds(self, ds_idx: int = 1, dl: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Predict as fastai does, none of no rows; of a shared loader all rows, on every process."""
        if dl is None and _is_share(self.dls[ds_idx]):
            dl = self.dls[ds_idx].new(shuffle=False, drop_last=False, rank=0, world_size=1)
        found = super().get_preds(ds_idx, _whole(dl), *args, **kwargs)
        if len(self.dls[ds_idx] if dl is None else dl):
            return found
        given = inspect.signature(super().get_preds).bind(ds_idx, dl, *args, **kwargs).arguments
        at = int(given.get("with_input", False))
        if found[at] is not None or not kwargs.get("with_preds", True):
            return found
        none = torch.zeros(0, self.n_out or get_c(self.dls))
        decoded = [getcallable(self.loss_func, "decodes")(none)] if given.get("with_decoded", False) else []
        return (*found[:at], none, found[at + 1], *decoded, *found[at + 2 :])

    def validate(self, ds_idx: int = 1, dl: Any = None, cbs: Any = None) -> Any:
        """Validate as fastai does; of a shared loader over all rows, on every process."""
        return super().validate(ds_idx, _whole(self.dls[ds_idx] if dl is None else dl), cbs)

    def one_batch(self, i: int, b: Any) -> None:
        """Train or validate on one batch and always leave autocast afterwards."""

        def doing() -> str:
            return f"{'training on' if self.training else 'predicting'} a batch of {find_bs(b):,} rows"

        try:
            with naming_out_of_memory(doing, _SMALLER):
                super().one_batch(i, b)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            remedy = "Give bs=2 or more with drop_last=True, or a net without batch norms (use_bn=False, bn_cont=False)"
            raise DataError("a training batch of one row has no spread for batch norms", remedy=remedy) from error
        finally:
            for cb in self.cbs:
                if isinstance(cb, BF16Autocast):
                    cb.leave()

    def predict(self, row: Any) -> tuple[Any, Any, Any]:
        """Predict one raw row.

        Args:
            row: raw values by column: a dict, a pandas Series, a named polars row (``df.row(0, named=True)``), or a
                pandas or polars frame of one row.

        Returns:
            As fastai's ``predict``: the row with its prediction, the decision (class code or number) and the raw
            outputs (probabilities or numbers).

        Raises:
            MissingColumnError: the row lacks a column of the training rows.
            DataError: this is not one row.
        """
        dl = self._row_loader(_as_mapping(row))
        inputs, outputs, _, decided = self.get_preds(dl=dl, with_input=True, with_decoded=True)
        return self.dls.decode((*tuplify(inputs), *tuplify(decided))), decided[0], outputs[0]

    def summary(self) -> PrettyString:
        """Summarise as fastai does; the totals count embeddings too, which are parameters of no layer."""
        sizes = [(p.numel(), p.requires_grad) for p in self.model.parameters()]
        total, trained = sum(n for n, _ in sizes), sum(n for n, trains in sizes if trains)
        tables = [m for m in self.model.modules() if isinstance(m, EmbeddingTables)]
        rows = sum(p.numel() for m in tables for p in m.parameters())
        counts = (
            f"Total params: {total:,}{f' ({rows:,} in embeddings)' if tables else ''}\n"
            f"Total trainable params: {trained:,}\nTotal non-trainable params: {total - trained:,}\n"
        )
        return PrettyString(re.sub(r"(Total .*params: .*\n)+", counts, super().summary()))

    def table(self, name: str) -> pd.DataFrame:
        """Return the embedding table of a categorical or list column: one row per category, with its vector."""
        return table_frame(self._embeds(), self.dls.classes, name)

    def save_tables(self, folder: str | Path, names: Sequence[str] | None = None) -> None:
        """Save embedding tables by the names of columns and categories, see ``fastrec.models.save_tables``."""
        save_tables(self._embeds(), self.dls.classes, folder, names)

    def load_tables(self, folder: str | Path, names: Sequence[str] | None = None) -> dict[str, int]:
        """Start from saved embedding tables; new categories stay as they are, see ``fastrec.models.load_tables``."""
        return load_tables(self._embeds(), self.dls.classes, folder, names)

    def _embeds(self) -> EmbeddingTables:
        found = next((m for m in self.model.modules() if isinstance(m, EmbeddingTables)), None)
        if found is None:
            raise DataError(f"{type(self.model).__name__} has no EmbeddingTables", remedy="Use a model of fastrec")
        return found

    def _row_loader(self, row: Mapping[str, Any]) -> Any:
        known = self.dls.train_ds
        prepared = known.one_row(row) if isinstance(known, TabularFrame) else None
        if prepared is not None:
            return self.dls.valid.new(prepared)
        try:
            return self.dls.test_dl(_frame_of(row, known))
        except KeyError as error:
            if isinstance(error, MissingColumnError):
                raise
            remedy = f"Give every column that the model was trained on; the row has {list(row)}"
            raise MissingColumnError(f"the row lacks a column that the model needs: {error}", remedy=remedy) from error


def _is_share(dl: Any) -> bool:
    return getattr(dl, "world_size", 1) > 1


def _whole(dl: Any) -> Any:
    return dl.new(rank=0, world_size=1) if _is_share(dl) else dl


def rec_learner(
    dls: Any,
    model: Callable[..., nn.Module] | nn.Module = TabularNet,
    *,
    layers: Sequence[int] | None = None,
    emb_szs: Mapping[str, int] | Sequence[tuple[int, int]] | None = None,
    n_out: int | None = None,
    y_range: tuple[float, float] | None = None,
    opt_func: Any = adamw,
    loss_func: Any = None,
    metrics: Any = None,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> RecLearner:
    """Make a Learner with a model for the columns of ``dls``.

    Args:
        dls: tabular dataloaders: of fastai's ``TabularPandas``, or anything with its ``cat_names``, ``cont_names``
            and ``classes``.
        model: a class called as ``model(emb_szs, n_cont, n_out, …)``, or a built model. A class may have
            ``options_for(dls, given)``, which learns options from the data; a model ``wrap_loss(loss)``.
        layers: width of each hidden layer; None: the model's default, else 200 and 100.
        emb_szs: column name to width, instead of ``emb_sz_rule``; or ``(rows, width)`` of every column.
        n_out: number of outputs; None: the loss's own ``n_out``, else what the targets need.
        y_range: ``(low, high)`` of the outputs.
        opt_func: a fastai ``opt_func``, or a torch optimizer's class, see ``as_opt_func``.
        loss_func: the loss; None: fastai's for the targets.
        metrics: fastai metrics.
        config: options of the model as of fastai's ``tabular_config``; options given by name override them.
        **options: Learner's own (``lr``, ``cbs``, ``path``, ``wd``, ``moms``, …); those of ``training_callbacks``
            (``amp='bf16'``, …); all others go to the model.

    Raises:
        DataError: the training loader yields no batch, or the model does not take the frame's lists and vectors.
    """
    _check_kinds(dls, model, loss_func, metrics)
    if not len(dls.train):
        problem = f"the training loader yields no batch: {dls.train.n} rows, batch size {dls.train.bs}, "
        problem += f"drop_last={dls.train.drop_last}"
        raise DataError(problem, remedy="Use a batch size of at most the number of rows, or drop_last=False")
    config = {**(config or {}), **{k: v for k, v in {"layers": layers, "y_range": y_range}.items() if v is not None}}
    own = {k: options.pop(k) for k in list(options) if k in LEARNER_OPTIONS}
    training = {k: options.pop(k) for k in list(options) if k in TRAINING_OPTIONS}
    config |= options
    check_options(config, model, {*LEARNER_OPTIONS, *TRAINING_OPTIONS, *NAMED_OPTIONS})
    if isinstance(model, nn.Module):
        if given := sorted({*config, *(k for k, v in {"emb_szs": emb_szs, "n_out": n_out}.items() if v is not None)}):
            raise DataError(f"{given} cannot change a model that is already built", remedy="Pass the model's class")
        net = model
    else:
        n_out = n_out or getattr(loss_func, "n_out", None) or get_c(dls)
        net = build_model(dls, model, emb_szs, n_out, config)
    check_takes_extras(net, dls)
    loss_func = loss_func or getattr(dls.train_ds, "loss_func", None)
    if loss_func is not None and hasattr(net, "wrap_loss"):
        loss_func = net.wrap_loss(loss_func)
    own["cbs"] = training_callbacks(dls, net, own.get("cbs"), **training)
    opt_func = as_opt_func(opt_func, model=net)
    learn = RecLearner(dls, net, loss_func=loss_func, opt_func=opt_func, metrics=metrics, **own)
    learn.n_out = n_out
    return learn


def _check_kinds(dls: Any, model: Any, loss_func: Any, metrics: Any) -> None:
    """Refuse arguments of another kind by what to give instead."""
    if not hasattr(dls, "train_ds"):
        how = "to.dataloaders()" if hasattr(dls, "dataloaders") else "RecDataLoaders.from_df(df, …)"
        problem = f"rec_learner takes dataloaders, and this is of {type(dls).__name__}"
        raise DataError(problem, remedy=f"Give it {how}")
    odd = [metric for metric in L(metrics) if not (callable(metric) or isinstance(metric, Metric))]
    if not callable(model):
        remedy = "Give the class itself, as in rec_learner(dls, DLRM), or a net"
        raise DataError(f"the model is {model!r}, which is no class and no net", remedy=remedy)
    if loss_func is not None and not callable(loss_func):
        raise DataError(f"the loss is {loss_func!r}, which is none", remedy="Give the loss itself, as in BCE()")
    if odd:
        problem = f"the metric is {odd[0]!r}, which is none"
        raise DataError(problem, remedy="Give the metric itself, as in AUC(), or fastai_metric('auc') by its name")


NAMED_OPTIONS = {p.name for p in inspect.signature(rec_learner).parameters.values() if p.kind is p.KEYWORD_ONLY}


def _as_mapping(row: Any) -> Mapping[str, Any]:
    if isinstance(row, pd.Series):
        return row.to_dict()
    rows = len(row) if hasattr(row, "__len__") and not isinstance(row, Mapping | str) else None
    if rows == 1:
        if isinstance(row, pd.DataFrame):
            row = row.to_dict("records")
        elif hasattr(row, "to_dicts"):  # polars
            row = row.to_dicts()
        row = row[0] if isinstance(row, list) else row
    if not isinstance(row, Mapping):
        many = "" if rows is None else f" of {rows:,} rows"
        remedy = "Give a dict, a Series or a named row; for a frame: learn.get_preds(dl=learn.dls.test_dl(frame))"
        raise DataError(f"one row is needed, not {type(row).__name__}{many}", remedy=remedy)
    return row


def _frame_of(row: Mapping[str, Any], known: Any) -> pd.DataFrame:
    """Make a frame of one row without its target, which may be wrong or of no known class."""
    inputs = {*known.cat_names, *known.cont_names}
    # a missing number must not turn its column into one of objects
    given = {**row, **{k: float("nan") for k, v in row.items() if v is None and k in known.cont_names}}
    return pd.DataFrame([{k: v for k, v in given.items() if k in inputs or k not in known.y_names}])
