"""``rec_learner``: a fastai Learner for tabular and recommender data in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import fastai.callback.progress
import fastai.callback.schedule  # noqa: F401 - gives every Learner fit_one_cycle, lr_find, no_bar
import pandas as pd
import torch
from fastai.data.transforms import get_c
from fastai.learner import Learner
from fastai.tabular.learner import TabularLearner
from fastai.torch_core import find_bs
from fastcore.basics import tuplify
from fastcore.foundation import L
from torch import nn

from fastrec._core.malloc import keeping_memory
from fastrec._core.oom import naming_out_of_memory
from fastrec.errors import DataError, MissingColumnError
from fastrec.models import EmbeddingTables, TabularNet, load_tables, save_tables, table_frame
from fastrec.optim import adamw, as_opt_func
from fastrec.tabular import TabularFrame
from fastrec.training.amp import BF16Autocast
from fastrec.training.building import build_model, check_options, check_takes_extras, refuse_options
from fastrec.training.fetch_rows import FetchRows
from fastrec.training.lean_learner import LeanLearner
from fastrec.training.options import training_callbacks
from fastrec.training.process_group import distributed
from fastrec.training.settle_rows import SettleRows
from fastrec.training.stop_on_nan import StopOnNaN

LEARNER_OPTIONS = frozenset(inspect.signature(Learner.__init__).parameters) - {"self", "dls", "model"}
TRAINING_OPTIONS = frozenset(inspect.signature(training_callbacks).parameters) - {"device"}

_SMALLER = (
    "Lower the batch size (bs=), train in 16 bits (amp='bf16'), make embeddings narrower (emb_szs=) or their gradients "
    "row-sparse (grads='rows'), or keep the rows on the host (place='host')"
)


class RecLearner(LeanLearner, TabularLearner):
    """fastai's tabular Learner, whose ``predict`` takes a row from any library, and ``to_bf16`` a CPU."""

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
        """Train as fastai's ``fit``; an error about memory names its cause.

        On a CPU freed memory is kept for the next batch meanwhile: those of large batches are fetched anew otherwise.

        Raises:
            DeviceMemoryError: the model, its optimizer or its batches do not fit the device.
            DataError: a metric could not be scored at the end of the epoch.
        """
        for metric in self.metrics:
            if hasattr(metric, "check"):  # a mistake should not take an epoch to show
                metric.check(self)
        on_cpu = all(p.device.type == "cpu" for p in self.model.parameters())
        keeping = keeping_memory() if on_cpu else nullcontext()
        with keeping, naming_out_of_memory("beginning to train, or between two batches", _SMALLER):
            super().fit(n_epoch, lr, wd, cbs, reset_opt, start_epoch)

    def distrib_ctx(self, sync_bn: bool = True, **kwargs: Any) -> AbstractContextManager[Any]:
        """Train on all processes that ``torchrun`` has started, see ``fastrec.scale.distributed``.

        Args:
            sync_bn: batch norms take their statistics over the batches of all processes.
            **kwargs: ``timeout``.
        """
        return distributed(self, sync_bn=sync_bn, **kwargs)

    def get_preds(self, ds_idx: int = 1, dl: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Predict as fastai does; of a shared loader all rows, on every process."""
        if dl is None and _is_share(self.dls[ds_idx]):
            dl = self.dls[ds_idx].new(shuffle=False, drop_last=False, rank=0, world_size=1)
        return super().get_preds(ds_idx, _whole(dl), *args, **kwargs)

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
        finally:
            for cb in self.cbs:
                if isinstance(cb, BF16Autocast):
                    cb.leave()

    def predict(self, row: Any) -> tuple[Any, Any, Any]:
        """Predict one raw row.

        Args:
            row: column name to raw value: a dict, a pandas Series, a named polars row (``df.row(0, named=True)``),
                or a pandas or polars frame of one row.

        Returns:
            The row with its prediction (its ``show()`` and ``decode()`` give names back), the decision (class code
            or number) and the raw outputs (probabilities or numbers), as fastai's ``predict``.

        Raises:
            MissingColumnError: the row lacks a column that the model was trained on.
            DataError: it is no row, or more than one.
        """
        dl = self._row_loader(_as_mapping(row))
        inputs, outputs, _, decided = self.get_preds(dl=dl, with_input=True, with_decoded=True)
        decoded = self.dls.decode((*tuplify(inputs), *tuplify(decided)))
        return decoded, decided[0], outputs[0]

    def table(self, name: str) -> pd.DataFrame:
        """Return the embedding table of a column: one row per category, with its index and vector.

        Args:
            name: a categorical or list column.
        """
        return table_frame(self._embeds(), self.dls.classes, name)

    def save_tables(self, folder: str | Path, names: Sequence[str] | None = None) -> None:
        """Save embedding tables by the names of columns and categories, see ``fastrec.models.save_tables``."""
        save_tables(self._embeds(), self.dls.classes, folder, names)

    def load_tables(self, folder: str | Path, names: Sequence[str] | None = None) -> dict[str, int]:
        """Start from saved embedding tables; new categories stay as they are, see ``fastrec.models.load_tables``.

        Returns:
            Column → how many of its categories were found.
        """
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
            raise MissingColumnError(
                f"the row lacks a column that the model needs: {error}",
                remedy=f"Give every column that the model was trained on; the row has {list(row)}",
            ) from error


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
        model: a class called as ``model(emb_szs, n_cont, n_out, …)``, or a model already built. A class may have
            ``options_for(dls, given)``, options that it learns from the data; a model ``wrap_loss(loss)``, the loss
            that fits its outputs.
        layers: width of each hidden layer; by default the model's own, or 200 and 100 where it has none.
        emb_szs: column name to width, where it is not to follow ``emb_sz_rule``; or ``(rows, width)`` of every column.
        n_out: number of outputs; by default the loss's own ``n_out``, else what the targets need.
        y_range: ``(low, high)`` of the outputs.
        opt_func: a fastai ``opt_func``, or a torch optimizer's class, see ``as_opt_func``.
        loss_func: the loss; by default what fastai takes for the targets.
        metrics: fastai metrics.
        config: options of the model as fastai's ``tabular_config`` gives them; those given by name count before them.
        **options: Learner's own (``lr``, ``cbs``, ``path``, ``wd``, ``moms``, …); how to train (``amp='bf16'``, …), see
            ``training_callbacks``; all others go to the model.

    Returns:
        The Learner; ``fit_one_cycle``, ``lr_find``, ``to_fp16``, ``export`` and the rest are fastai's.

    Raises:
        DataError: the training loader yields no batch; an option that nobody takes; model options came with a model
            already built; or the model takes no lists and vectors, and the frame has some.
        MissingColumnError: ``emb_szs`` names a column that is not categorical.
    """
    if not len(dls.train):
        raise DataError(
            f"the training loader yields no batch: {dls.train.n} rows, batch size {dls.train.bs}, "
            f"drop_last={dls.train.drop_last}",
            remedy="Use a batch size of at most the number of rows, or drop_last=False",
        )
    config = {**(config or {}), **{k: v for k, v in {"layers": layers, "y_range": y_range}.items() if v is not None}}
    own = {k: options.pop(k) for k in list(options) if k in LEARNER_OPTIONS}
    training = {k: options.pop(k) for k in list(options) if k in TRAINING_OPTIONS}
    config |= options
    check_options(config, model, {*LEARNER_OPTIONS, *TRAINING_OPTIONS, *NAMED_OPTIONS})
    if isinstance(model, nn.Module):
        refuse_options({*config, *(k for k, v in {"emb_szs": emb_szs, "n_out": n_out}.items() if v is not None)})
        net = model
    else:
        n_out = n_out or getattr(loss_func, "n_out", None) or get_c(dls)
        net = build_model(dls, model, emb_szs, n_out, config)
    check_takes_extras(net, dls)
    loss_func = loss_func or getattr(dls.train_ds, "loss_func", None)
    if loss_func is not None and hasattr(net, "wrap_loss"):
        loss_func = net.wrap_loss(loss_func)
    own["cbs"] = _callbacks(dls, net, own.get("cbs"), training)
    opt_func = as_opt_func(opt_func, model=net)
    return RecLearner(dls, net, loss_func=loss_func, opt_func=opt_func, metrics=metrics, **own)


NAMED_OPTIONS = frozenset(
    p.name for p in inspect.signature(rec_learner).parameters.values() if p.kind is p.KEYWORD_ONLY
)


def _callbacks(dls: Any, net: nn.Module, cbs: Any, training: dict[str, Any]) -> list[Any]:
    """Return the given callbacks, those that the net needs, and those of options."""
    given = [*L(cbs)]
    tables = [m for m in net.modules() if isinstance(m, EmbeddingTables)]
    if any(name.endswith("_rows") for m in tables for name in m.weights):
        given.append(SettleRows())
    if any(not placed.sharded for m in tables for placed in m.placed.values()):
        given.append(FetchRows())
    if any(isinstance(cb, StopOnNaN) or cb is StopOnNaN for cb in given):
        training = {**training, "stop_on_nan": False}  # it is there
    return [*given, *training_callbacks(getattr(dls, "device", None) or "cpu", **training)]


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
        raise DataError(
            f"one row is needed, not {type(row).__name__}{many}",
            remedy="Give a dict, a Series or a named row; for a frame: learn.get_preds(dl=learn.dls.test_dl(frame))",
        )
    return row


def _frame_of(row: Mapping[str, Any], known: Any) -> pd.DataFrame:
    """Make a frame of one row without its target, which may be wrong or of no known class."""
    inputs = {*known.cat_names, *known.cont_names}
    # a missing number must not turn its column into one of objects
    numbers = {k: float("nan") for k, v in row.items() if v is None and k in known.cont_names}
    given = {**row, **numbers}
    return pd.DataFrame([{k: v for k, v in given.items() if k in inputs or k not in known.y_names}])
