"""The run of a ``StreamedCompetition``: nets trained on a stream of rows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from fastai.callback.core import Callback, CancelFitException
from fastai.torch_core import set_seed

from fastrec._core import limits
from fastrec.competition.forms.rows import SubmissionForm
from fastrec.competition.run_files import recipe_notes, run_folder, write_config, write_models
from fastrec.competition.run_record import Run
from fastrec.competition.streamed.recipe import StreamedNet
from fastrec.errors import DataError
from fastrec.estimators import Estimator, NetModel
from fastrec.estimators._net_training import Architecture
from fastrec.estimators.base import Trace
from fastrec.losses import BCE
from fastrec.metrics import Metric, get_metric
from fastrec.stacking import HillClimb, MeanBlend, StackModel
from fastrec.stacking.stack import level_two_of
from fastrec.table import Table, Vocab
from fastrec.tabular import ParquetFrame
from fastrec.training import rec_learner
from fastrec.validate import Rows, Target


class LastRows(Callback):
    """Stores targets and predictions of the last ``rows`` training rows, before the net was trained on each.

    In the first epoch each row is new: its prediction is as unbiased as one of a held-out row, at no cost (progressive
    validation: Blum, Kalai, Langford 1999).
    """

    def __init__(self, rows: int = 200_000) -> None:
        super().__init__()
        self.rows = rows
        self.seen, self._held = 0, 0
        self._parts: deque[tuple[torch.Tensor, torch.Tensor]] = deque()

    def after_pred(self) -> None:
        """Store a batch, and drop batches beyond ``rows``."""
        if not self.learn.training:
            return
        said = self.learn.pred.detach().reshape(-1).sigmoid()
        self._parts.append((said, self.learn.yb[0].detach().reshape(-1).clone()))
        self.seen += len(said)
        self._held += len(said)
        while self._held - len(self._parts[0][0]) >= self.rows:
            self._held -= len(self._parts.popleft()[0])

    @property
    def said(self) -> torch.Tensor:
        """Probabilities, float64 ``[rows]``."""
        return torch.cat([p.double().cpu() for p, _ in self._parts])

    @property
    def label(self) -> torch.Tensor:
        """Targets, float64 ``[rows]``."""
        return torch.cat([y.double().cpu() for _, y in self._parts])


def blend_by_last_rows(last: Mapping[str, LastRows], metric: str | Metric | None, epochs: Sequence[int]) -> Estimator:
    """Fit a blend of nets by their predictions of the ``last`` rows before training on them.

    It is ``HillClimb``; the plain mean if the nets have not seen the same rows, or have seen them before.
    """
    names, each = list(last), list(last.values())
    same = len({r.seen for r in each}) == 1 and each[0].seen > 0
    if len(names) < 2 or max(epochs) > 1 or not same or not all(torch.equal(r.label, each[0].label) for r in each):
        return MeanBlend(names)
    label = each[0].label
    if len(torch.unique(label)) < 2:
        return MeanBlend(names)
    said = {n: r.said for n, r in last.items()}
    rows = Rows(Table({n: v.numpy() for n, v in said.items()}), "binary", label=label)
    return HillClimb(names, metric=metric, rows=None).fit(level_two_of(said, rows, ()))


def run_clicks(run: Run) -> None:
    """Run a streamed recipe: nets, scores on the test rows, submission and report.

    Packed rows are cached in ``.packed`` beside the run directory, for the next run.
    """
    recipe, stages = run.recipe, run.stages
    nets = dict(recipe.nets())
    frame = recipe.frame(run.data, run.out.absolute().parent / ".packed", rows=run.rows, stages=stages)
    if frame.valid is None or not len(frame.valid):
        raise DataError(f"{recipe.name}: the recipe's frame has no test rows", remedy="Give it valid=")
    models: dict[str, NetModel] = {}
    last = {name: LastRows() for name in nets}
    for i, (name, asks) in enumerate(nets.items()):
        with stages.stage(f"train {name}", asks.epochs * len(frame)) as advance:
            left = None if run.budget is None else max(run.budget.left, 1.0) / (len(nets) - i)
            options = {"seconds": left, "buffer_rows": recipe.buffer_rows, "advance": advance}
            options |= {"device": run.device, "seed": run.seed, "bs": run.bs}
            models[name] = train_streamed(frame, asks, name, cbs=[last[name]], **options)
    with stages.stage("predict", len(frame.valid) * len(models)) as advance:
        predicted, label = _predict(frame, models, run.device, recipe.buffer_rows, advance)
    blend = blend_by_last_rows(last, recipe.metric, [asks.epochs for asks in nets.values()])
    stack = StackModel(list(models), [blend])
    predicted["stack"] = stack.predict(predicted, Rows(Table({"row": np.arange(len(label))}), "binary"))
    metrics = [get_metric(m) for m in (recipe.metric or "auc", *recipe.also)]
    test = {m.name: {n: m(label, p) for n, p in predicted.items()} for m in metrics}
    cats, conts, target = list(frame.recipe.cat_names), list(frame.recipe.conts), str(recipe.target)
    form = SubmissionForm(values=(target,), probabilities=True)
    with run_folder(run) as part:
        with stages.stage("write"):
            asked = Target(target, "binary", classes=Vocab(pa.array([0, 1]), name=target))
            write_models(part, {n: [m] for n, m in models.items()}, stack, target=asked)
            pq.write_table(recipe.sample(run.data, limits.SAMPLE_ROWS), part / "sample.parquet")
            (part / "test").mkdir()
            for name, values in predicted.items():
                pq.write_table(pa.table({"prediction": values.numpy()}), part / "test" / f"{name}.parquet")
            form.write(part / "submission.csv", {}, {target: predicted["stack"].numpy()})
            config = {**recipe_notes(recipe, cats, conts), "metric": metrics[0].name, "models": list(models)}
            config |= {"nets": net_notes(nets), "tables": {}, "ids": [], "target": [target], "outputs": ["0", "1"]}
            write_config(part, run, {**config, "submission": asdict(form)})
        scores = {"metric": metrics[0].name, "greater_is_better": metrics[0].greater_is_better}
        scores |= {"models": test.pop(metrics[0].name), "also": test, "oof": {}, "oracle": recipe.oracle(run.data)}
        rows = {"train rows": len(frame), "test rows": len(label), "features": len(cats) + len(conts)}
        run.scores = {**scores, "rows": rows}


CLICKS = [run_clicks]


def net_notes(nets: Mapping[str, StreamedNet]) -> dict[str, Any]:
    """Return the settings of nets for ``config.json``."""
    return {n: {**asdict(a), "model": a.model.__name__} for n, a in nets.items()}


def train_streamed(
    frame: ParquetFrame,
    asks: StreamedNet,
    name: str,
    *,
    device: torch.device,
    seed: int = 0,
    bs: int | None = None,
    seconds: float | None = None,
    buffer_rows: int = 1_000_000,
    advance: Callable[[int], None] | None = None,
    cbs: Sequence[Callback] = (),
) -> NetModel:
    """Train a net on a frame's rows, whose target is 0 or 1, by AdamW and the one-cycle schedule.

    On CUDA it computes in bfloat16 if the device supports it. Tables of 20,000 rows or more have row-sparse gradients.
    On CUDA small tables have dense gradients and the step a CUDA graph instead.

    ``bs``: rows in a batch, None: the net's; ``seconds``: the time limit, None: no limit; ``buffer_rows``: rows
    shuffled together; ``advance`` is called with the rows of each batch.
    """
    set_seed(seed)
    # 500 batches or more, of 256 to 8192 rows: a power of two.
    rule = 1 << max(8, min(13, (len(frame) // 500).bit_length() - 1))
    bs = min(bs or asks.bs or rule, len(frame))
    dls = frame.dataloaders(bs, buffer_rows=buffer_rows, seed=seed, device=device)
    sizes = [len(dls.classes[n]) for n in dls.cat_names]
    on_cuda = device.type == "cuda"
    graph = on_cuda and sum(sizes) <= limits.GRAPH_ROWS
    architecture = Architecture(asks.model, {"grads": "dense" if graph else "rows", **asks.options})
    plan = architecture.plan(dls)
    if asks.width is not None:
        plan["emb_szs"] = [(n, asks.width) for n in sizes]
    net = architecture.build(plan)
    amp = "bf16" if on_cuda and torch.cuda.is_bf16_supported() else None
    cbs = [*cbs, *([] if seconds is None and advance is None else [EachBatch(seconds, advance)])]
    learn = rec_learner(dls, net, loss_func=BCE(), wd=asks.wd, amp=amp, graph=graph, cbs=cbs)
    moms = {"moms": (0.9, 0.9, 0.9)} if graph else {}  # a graph's steps share one momentum
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(asks.epochs, asks.lr * (bs / 8192) ** 0.5, pct_start=0.1, **moms)
    model = NetModel.of_net(name, architecture, plan, net, frame.frame, "binary")
    losses = np.asarray([float(v) for v in learn.recorder.losses])
    # The curve has the mean losses of 20 ranges of batches.
    parts = np.array_split(losses, min(20, len(losses))) if len(losses) else []
    ends = np.cumsum([len(p) for p in parts]) / max(len(losses), 1)
    curve = [{"epoch": float(e), "train_loss": float(p.mean())} for e, p in zip(ends, parts, strict=True)]
    model.trace = Trace(curves=curve)
    return model


class EachBatch(Callback):
    """Calls ``advance`` with the rows of each batch, and ends a training after some seconds."""

    def __init__(self, seconds: float | None, advance: Callable[[int], None] | None) -> None:
        super().__init__()
        self.seconds, self.advance = seconds, advance

    def before_fit(self) -> None:
        """Note the start."""
        self._until = None if self.seconds is None else time.monotonic() + self.seconds

    def after_batch(self) -> None:
        """Report the batch, and end the training at its time limit."""
        if not self.learn.training:
            return
        if self.advance is not None:
            self.advance(len(self.learn.yb[0]))
        if self._until is not None and time.monotonic() > self._until:
            raise CancelFitException


def _predict(
    frame: ParquetFrame, models: Mapping[str, NetModel], device: torch.device, buffer_rows: int, advance: Any
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    loader = frame.dataloaders(1 << 16, buffer_rows=buffer_rows, device=device).valid
    predicted: dict[str, list[torch.Tensor]] = {name: [] for name in models}
    label = []
    nets = {name: model.nets[0].to(device).eval() for name, model in models.items()}
    with torch.no_grad():
        for cats, conts, y in loader:
            for name, net in nets.items():
                predicted[name].append(net(cats, conts).double().sigmoid().squeeze(1).cpu())
                advance(len(y))
            label.append(y.double().squeeze(1).cpu())
    return {name: torch.cat(parts) for name, parts in predicted.items()}, torch.cat(label)
