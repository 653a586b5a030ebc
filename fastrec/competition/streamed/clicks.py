"""``StreamedCompetition``: rows that do not fit into memory, and nets that learn from the stream of them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from fastai.callback.core import Callback, CancelFitException
from fastai.torch_core import set_seed
from torch import nn

from fastrec._core.atomic import atomic_folder
from fastrec._core.progress import Stages
from fastrec.competition.forms.value_form import ValueForm
from fastrec.competition.recipe import Competition
from fastrec.competition.run_files import now, origin, write_json
from fastrec.competition.run_options import RunOptions
from fastrec.competition.scoring import Decision
from fastrec.competition.streamed.last_rows import LastRows, blend_by_last_rows
from fastrec.errors import DataError
from fastrec.estimators import NetModel
from fastrec.estimators._architecture import Architecture
from fastrec.estimators.base import Trace
from fastrec.losses import BCE
from fastrec.metrics import get_metric
from fastrec.report import write_report
from fastrec.stacking import StackModel
from fastrec.table import Table, Vocab, save_state
from fastrec.tabular import ParquetFrame
from fastrec.training import rec_learner
from fastrec.validate import Rows, Target

__all__ = ["StreamedCompetition", "StreamedNet", "run_streamed"]

_GRAPH_ROWS = 1 << 20  # of all tables together: so many or fewer have dense gradients on CUDA, and a graph
_SAMPLE = 2_000  # rows
_STEPS, _BASE = 500, 8192  # batches that there should be, and rows of one that a net's rate is for
_SCORED = 1 << 16  # rows that are scored at a time


@dataclass(frozen=True)
class StreamedNet:
    """A net of a streamed recipe, and how it is trained.

    Args:
        model: a class of ``fastrec.models``.
        options: its own options.
        width: of every table; None: by the number of values.
        bs: rows in a batch; None: so that there are 500 batches or more, but from 256 to 8192 rows.
        lr: the highest rate of the one-cycle schedule, at batches of 8192 rows; it goes with the root of their size.
        epochs: how often every row is seen; of clicks one is best (arXiv 1906.00091; more learn rare values by heart).
        wd: weight decay.
    """

    model: type[nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)
    width: int | None = None
    bs: int | None = None
    lr: float = 1e-2
    epochs: int = 1
    wd: float = 0.0


class StreamedCompetition(Competition):
    """A recipe for files larger than memory, of clicks or other outcomes that are 0 or 1.

    Each net learns from the stream; they are scored on the frame's validation rows, which are the test, and by nothing
    else: no choice is made by it. Their weights are found by what each said of the last training rows before it learned
    from them. The run directory is like any other's: ``fastrec export`` and ``fastrec predict`` take it.

    Attributes:
        buffer_rows: rows that are mixed with one another at a time.
    """

    task = "binary"
    metric = "auc"
    also = ("logloss",)
    target = "label"
    buffer_rows = 1_000_000

    @abstractmethod
    def frame(self, data: Path, cache: Path, *, rows: int | None, stages: Stages) -> ParquetFrame:
        """Training rows, and as validation rows those of the test, with a target that is 0 or 1.

        Args:
            data: the folder of the competition's files.
            cache: a folder for packed rows.
            rows: use only about this many training rows.
            stages: progress.
        """

    @abstractmethod
    def nets(self) -> Mapping[str, StreamedNet]:
        """The nets, by name; what is submitted is a weighted mean of their probabilities."""

    @abstractmethod
    def sample(self, data: Path, rows: int) -> pa.Table:
        """Some test rows with all columns but the target, as they are before anything is prepared."""

    def oracle(self, data: Path) -> float | None:
        """The best score that there can be on the test, where that is known."""
        return None


def run_streamed(recipe: StreamedCompetition, data: Path, out: Path, asked: RunOptions) -> None:
    """Carry a streamed recipe out: nets, scores on the test rows, submission and report.

    Packed rows stay in ``.packed`` beside the run directory, for the next run.

    Args:
        recipe, data, out: see ``run_competition``.
        asked: what the caller asked for.
    """
    started, nets, stages = now(), dict(recipe.nets()), asked.stages
    frame = recipe.frame(data, out.absolute().parent / ".packed", rows=asked.rows, stages=stages)
    if frame.valid is None or not len(frame.valid):
        raise DataError(f"{recipe.name}: the recipe's frame has no test rows", remedy="Give it valid=")
    models: dict[str, NetModel] = {}
    last = {name: LastRows() for name in nets}
    for i, (name, asks) in enumerate(nets.items()):
        with stages.stage(f"train {name}", asks.epochs * len(frame)) as advance:
            left = None if asked.budget is None else max(asked.budget.left, 1.0) / (len(nets) - i)
            options = {"seconds": left, "buffer_rows": recipe.buffer_rows, "advance": advance}
            options |= {"device": asked.device, "seed": asked.seed, "bs": asked.bs}
            models[name] = train_streamed(frame, asks, name, cbs=[last[name]], **options)
    with stages.stage("predict", len(frame.valid) * len(models)) as advance:
        predicted, label = _predict(frame, models, asked.device, recipe.buffer_rows, advance)
    blend = blend_by_last_rows(last, recipe.metric, [asks.epochs for asks in nets.values()])
    stack = StackModel(list(models), [blend])
    predicted["stack"] = stack.predict(predicted, Rows(Table({"row": np.arange(len(label))}), "binary"))
    scores = _scores(recipe, predicted, label, recipe.oracle(data))
    config = _config(recipe, frame, nets, models)
    about = {"started": started, "data": data.resolve().name, **asked.notes()}
    with atomic_folder(out) as part:
        with stages.stage("write"):
            _write(part, recipe, models, recipe.sample(data, _SAMPLE), predicted)
            stack.save(part / "stack")
            write_json(part / "config.json", {**config, **about})
        counts = {"train rows": len(frame), "test rows": len(label), "features": len(config["features"])}
        seconds = {n: round(s, 3) for n, s in stages.seconds.items()}
        write_json(part / "scores.json", {**scores, "seconds": seconds, "rows": counts})
        write_report(part, name=out.resolve().name)


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
    """Train a net on a frame's rows, by AdamW and the one-cycle schedule.

    On CUDA it computes in bfloat16 where the device has it. Tables of 20,000 rows or more have row-sparse gradients;
    on CUDA, where all tables together are small, dense ones and a CUDA graph instead.

    Args:
        frame: the rows; its target is 0 or 1.
        asks: the net.
        name: what the model is to be called.
        device: where to compute.
        seed: of everything random.
        bs: rows in a batch; None: the net's.
        seconds: when to stop; None: when all rows were seen.
        buffer_rows: rows that are mixed with one another at a time.
        advance: is told of rows as they are trained on.
        cbs: more callbacks.

    Returns:
        The model.
    """
    set_seed(seed)
    rule = 1 << max(8, min(13, (len(frame) // _STEPS).bit_length() - 1))
    bs = min(bs or asks.bs or rule, len(frame))
    dls = frame.dataloaders(bs, buffer_rows=buffer_rows, seed=seed, device=device)
    sizes = [len(dls.classes[n]) for n in dls.cat_names]
    on_cuda = device.type == "cuda"
    graph = on_cuda and sum(sizes) <= _GRAPH_ROWS
    options = {"grads": "dense" if graph else "rows", **asks.options}
    architecture = Architecture(asks.model, options)
    plan = architecture.plan(dls)
    if asks.width is not None:
        plan["emb_szs"] = [(n, asks.width) for n in sizes]
    net = architecture.build(plan)
    amp = "bf16" if on_cuda and torch.cuda.is_bf16_supported() else None
    cbs = [*cbs, *([] if seconds is None and advance is None else [EachBatch(seconds, advance)])]
    learn = rec_learner(dls, net, loss_func=BCE(), wd=asks.wd, amp=amp, graph=graph, cbs=cbs)
    moms = {"moms": (0.9, 0.9, 0.9)} if graph else {}  # a graph's step cannot have another momentum every time
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(asks.epochs, asks.lr * (bs / _BASE) ** 0.5, pct_start=0.1, **moms)
    model = NetModel.of_net(name, architecture, plan, net, frame.frame, "binary")
    losses = [float(v) for v in learn.recorder.losses]
    model.trace = Trace(curves=_curve(losses))
    return model


class EachBatch(Callback):
    """Tells of each batch, and ends a training after some seconds, whatever rows are left.

    Args:
        seconds: counted from the first batch; None: it goes on to the end.
        advance: is told of the rows of each batch.
    """

    def __init__(self, seconds: float | None, advance: Callable[[int], None] | None) -> None:
        super().__init__()
        self.seconds, self.advance = seconds, advance

    def before_fit(self) -> None:
        """Note when it begins."""
        self._until = None if self.seconds is None else time.monotonic() + self.seconds

    def after_batch(self) -> None:
        """Tell of it, and end the training if it is time."""
        if not self.learn.training:
            return
        if self.advance is not None:
            self.advance(len(self.learn.yb[0]))
        if self._until is not None and time.monotonic() > self._until:
            raise CancelFitException


def _curve(losses: Sequence[float], points: int = 20) -> list[dict[str, float]]:
    """The mean loss of so many stretches of batches, one after the other."""
    parts = np.array_split(np.asarray(losses), min(points, len(losses))) if len(losses) else []
    ends = np.cumsum([len(p) for p in parts])
    return [
        {"epoch": float(end / len(losses)), "train_loss": float(p.mean())} for end, p in zip(ends, parts, strict=True)
    ]


def _predict(
    frame: ParquetFrame, models: Mapping[str, NetModel], device: torch.device, buffer_rows: int, advance: Any
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Each net's probabilities of the validation rows, float64 ``[n]``, and their target."""
    loader = frame.dataloaders(_SCORED, buffer_rows=buffer_rows, device=device).valid
    found: dict[str, list[torch.Tensor]] = {name: [] for name in models}
    label = []
    nets = {name: model.nets[0].to(device).eval() for name, model in models.items()}
    with torch.no_grad():
        for cats, conts, y in loader:
            for name, net in nets.items():
                found[name].append(net(cats, conts).double().sigmoid().squeeze(1).cpu())
                advance(len(y))
            label.append(y.double().squeeze(1).cpu())
    return {name: torch.cat(parts) for name, parts in found.items()}, torch.cat(label)


def _scores(
    recipe: StreamedCompetition, predicted: Mapping[str, torch.Tensor], label: torch.Tensor, oracle: float | None
) -> dict[str, Any]:
    metrics = [get_metric(m) for m in (recipe.metric or "auc", *recipe.also)]
    test = {m.name: {n: m(label, p) for n, p in predicted.items()} for m in metrics}
    first = metrics[0]
    return {
        "metric": first.name,
        "greater_is_better": first.greater_is_better,
        "task": recipe.task,
        "models": test.pop(first.name),
        "also": test,
        "oof": {},
        "oracle": oracle,
    }


def _config(
    recipe: StreamedCompetition, frame: ParquetFrame, asked: Mapping[str, StreamedNet], models: Mapping[str, NetModel]
) -> dict[str, Any]:
    cats, conts = list(frame.recipe.cat_names), list(frame.recipe.conts)
    nets = {n: {**asdict(a), "model": a.model.__name__} for n, a in asked.items()}
    return {
        "competition": recipe.name,
        "task": recipe.task,
        "metric": get_metric(recipe.metric or "auc").name,
        "features": [*cats, *conts],
        "categories": cats,
        "models": list(models),
        "nets": nets,
        "tables": {},
        "history": False,
        "reading": recipe.reading.to_state(),
        "ids": [],
        "target": [recipe.target],
        "outputs": ["0", "1"],
        "submission": _form(recipe).to_state(),
        **origin(recipe),
    }


def _form(recipe: StreamedCompetition) -> ValueForm:
    return ValueForm(values=(str(recipe.target),), probabilities=True)


def _write(
    part: Path,
    recipe: StreamedCompetition,
    models: Mapping[str, NetModel],
    sample: pa.Table,
    predicted: Mapping[str, torch.Tensor],
) -> None:
    """What predicts, what was predicted, and what ``fastrec export`` needs."""
    for name, model in models.items():
        model.save(part / "models" / name / "fold0")
    classes = Vocab(pa.array([0, 1]), name=str(recipe.target))
    save_state(part / "target", Target(str(recipe.target), "binary", classes=classes).to_state())
    write_json(part / "decision.json", asdict(Decision()))
    write_json(part / "curves.json", {n: m.trace.curves for n, m in models.items()})
    pq.write_table(sample, part / "sample.parquet")
    (part / "test").mkdir()
    for name, values in predicted.items():
        pq.write_table(pa.table({"prediction": values.numpy()}), part / "test" / f"{name}.parquet")
    _form(recipe).write(part / "submission.csv", {}, {str(recipe.target): predicted["stack"].numpy()})
