"""``Checkpoint``: a killed training resumes and ends with the same weights."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastai.callback.core import Callback, CancelEpochException
from fastai.callback.schedule import ParamScheduler
from fastai.callback.tracker import TrackerCallback
from fastai.callback.training import GradientAccumulation
from fastai.optimizer import OptimWrapper
from fastcore.foundation import L
from torch import Tensor, nn

from fastrec._core import limits, ranks
from fastrec._core.atomic import remove, remove_leftovers
from fastrec._core.ranks import is_first, rank, world_size
from fastrec.errors import DataError, MissingFileError, check_whole, warn
from fastrec.optim.torch_optimizers import cache_of
from fastrec.table import load_state, save_state
from fastrec.training.rows import AroundLoader
from fastrec.training.stop_on_nan import StopOnNaN

# attributes of fastai's callbacks that change during training; other callbacks name theirs as ``checkpointed``
_CHANGING = {ParamScheduler: ("hps",), TrackerCallback: ("best", "wait", "new_best"), GradientAccumulation: ("count",)}


def plain(value: Any, path: str = "state") -> Any:
    """Convert a value to nested dicts with text for keys, lists, tensors and JSON values."""
    if isinstance(value, Mapping):
        return {str(k): plain(v, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple | L):
        return [plain(v, f"{path}.{i}") for i, v in enumerate(value)]
    if isinstance(value, Tensor):
        return value.detach().as_subclass(Tensor)
    if isinstance(value, np.ndarray):
        return value.tolist()
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    remedy = "Keep numbers, text, tensors, and lists and dicts of these"
    raise DataError(f"{path} holds a {type(value).__name__}, which a checkpoint cannot keep", remedy=remedy)


def random_state() -> dict[str, Any]:
    """Return the states of torch's (and CUDA's), numpy's and Python's random generators."""
    return {
        "torch": torch.get_rng_state(),
        "python": plain(random.getstate()),
        "numpy": plain(np.random.get_state()),  # noqa: NPY002 - fastai draws from it
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the generators from ``random_state``."""
    torch.set_rng_state(state["torch"])
    set_python_random(random, state["python"])
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
    if state["cuda"] and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def set_random_of_rank(state: dict[str, Any]) -> None:
    """Restore the generators on rank 0; the other ranks draw different numbers from there on."""
    set_random_state(state)
    if not is_first():
        torch.manual_seed(int(torch.randint(1 << 62, ())) + rank())


def loader_state(loader: Any) -> list[Any] | None:
    """Return the state of a loader's random generator; None if it has none."""
    rng = getattr(loader, "rng", None)
    return plain(rng.getstate()) if isinstance(rng, random.Random) else None


def set_loader_state(loader: Any, state: list[Any] | None) -> None:
    """Restore a loader's random generator from ``loader_state``."""
    if state is not None:
        set_python_random(loader.rng, state)


def set_python_random(rng: Any, state: list[Any]) -> None:
    """Restore one of Python's generators, or ``random`` itself."""
    rng.setstate((state[0], tuple(state[1]), state[2]))


def set_optimizer_state(opt: Any, state: dict[str, Any]) -> None:
    """Restore fastai's optimizer, or its wrapper of torch's, from a state of ``plain``, on its parameters' devices."""
    if not isinstance(opt, OptimWrapper):
        params = [p for group in opt.param_lists for p in group]
        kept = [_moved(s, p.device) for s, p in zip(state["state"], params, strict=True)]
        rest = {k: v for k, v in state.items() if k not in ("state", "hypers")}
        if rest.get("slow_weights") is not None:  # Lookahead's
            rest["slow_weights"] = _moved(rest["slow_weights"], params[0].device)
        opt.load_state_dict({"state": kept, "hypers": L(dict(h) for h in state["hypers"]), **rest})
        return
    opt.state_dict()  # undecayed parameters part from the others now, as they had when the state was saved
    inner = opt.opt
    groups = [  # JSON made lists of tuples
        {k: tuple(v) if isinstance(own.get(k), tuple) else v for k, v in g.items()}
        for g, own in zip(state["param_groups"], inner.param_groups, strict=True)
    ]
    kept = {int(number): dict(own) for number, own in state["state"].items()}
    opt.load_state_dict({"state": kept, "param_groups": groups})
    params = [p for group in inner.param_groups for p in group["params"]]
    for number, own in kept.items():  # torch turns a state's whole numbers into the parameter's floats
        found = inner.state[params[number]]
        for name, value in own.items():
            if isinstance(value, Tensor) and found[name].dtype != value.dtype:
                found[name] = value.to(found[name].device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {k: _moved(v, device) for k, v in value.items()}
    return [_moved(v, device) for v in value] if isinstance(value, list) else value


def gradients(model: nn.Module) -> dict[str, Any]:
    """Return accumulated gradients by parameter; 0 for a gradient of zeros."""
    found: dict[str, Any] = {}
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        if p.grad.is_sparse:
            grad = p.grad.coalesce()
            cache = cache_of(p)
            rows = grad.indices() if cache is None else cache.rows_of(grad.indices()[0])[None]
            found[name] = {"rows": rows, "values": grad.values()}
        else:
            found[name] = p.grad.detach() if p.grad.any() else 0
    return found


def set_gradients(model: nn.Module, state: dict[str, Any]) -> None:
    """Restore gradients from ``gradients``."""
    for name, p in model.named_parameters():
        grad = state.get(name)
        if isinstance(grad, dict):
            cache, rows = cache_of(p), grad["rows"].to(p.device)
            rows = rows if cache is None else cache.leased(rows)[1]
            values = grad["values"].to(p.device)
            p.grad = torch.sparse_coo_tensor(rows, values, p.shape, is_coalesced=cache is None, check_invariants=False)
        elif isinstance(grad, Tensor):
            p.grad = grad.to(p.device)
        else:
            p.grad = None if grad is None else torch.zeros_like(p)


def records(learn: Any) -> dict[str, Any]:
    """Return the Recorder's values and running means."""
    recorder = learn.recorder
    losses = [torch.as_tensor(loss).cpu() for loss in recorder.losses]
    return {
        "lrs": plain(recorder.lrs), "iters": plain(recorder.iters), "values": plain(recorder.values),
        "losses": torch.stack(losses) if losses else torch.empty(0),
        "smooth": {"count": recorder.smooth_loss.count, "val": recorder.smooth_loss.val},
        "metrics": [_plain_attributes(m) for m in (learn.metrics if recorder.train_metrics else [])],
    }  # fmt: skip


def set_records(learn: Any, state: dict[str, Any]) -> None:
    """Restore the Recorder from ``records``, except the metrics of training batches."""
    recorder, smooth = learn.recorder, state["smooth"]
    recorder.lrs, recorder.iters = list(state["lrs"]), list(state["iters"])
    recorder.values = [L(row) for row in state["values"]]
    recorder.losses = list(state["losses"].unbind())
    recorder.smooth_loss.count, recorder.smooth_loss.val = smooth["count"], smooth["val"]
    if smooth["count"]:
        learn.smooth_loss = recorder.smooth_loss.value


def _plain_attributes(metric: Any) -> dict[str, Any]:
    found = {}
    for name, value in vars(metric).items():
        with suppress(DataError):  # the metric's function, not what it has added up
            found[name] = plain(value)
    return found


def callback_states(learn: Any) -> list[dict[str, Any]]:
    """Return the changing attributes of callbacks, and the loss scale of float16."""
    found = []
    for cb, names in _changing(learn):
        kept = {n: plain(getattr(cb, n), f"{type(cb).__name__}.{n}") for n in names}
        found.append({"callback": type(cb).__name__, "kept": kept})
    scaler = getattr(learn, "scaler", None)
    return [*found, {"callback": "scaler", "kept": plain(scaler.state_dict()) if scaler is not None else {}}]


def set_callback_states(learn: Any, states: list[dict[str, Any]]) -> None:
    """Restore the callbacks from ``callback_states``."""
    *states, scaler = states
    own = _changing(learn)
    was, now = [s["callback"] for s in states], [type(cb).__name__ for cb, _ in own]
    if was != now:
        raise DataError(f"the callbacks were {was} and are {now}", remedy="Train with the same ones as before")
    for (cb, _), state in zip(own, states, strict=True):
        for name, value in state["kept"].items():
            setattr(cb, name, value)
    if scaler["kept"] and getattr(learn, "scaler", None) is not None:
        learn.scaler.load_state_dict(scaler["kept"])


def _changing(learn: Any) -> list[tuple[Any, list[str]]]:
    found = []
    for cb in learn.cbs.sorted("order"):
        names = [*getattr(type(cb), "checkpointed", ())]
        names += [n for kind, own in _CHANGING.items() if isinstance(cb, kind) for n in own]
        if names := [n for n in names if n in vars(cb)]:
            found.append((cb, names))
    return found


def fingerprint(learn: Any) -> dict[str, Any]:
    """Describe what a resumed training must share: parameters, optimizer, data and schedule."""
    dl, opt, data, loss = learn.dls.train, learn.opt, learn.dls.train_ds, learn.loss_func
    inner = opt.opt if isinstance(opt, OptimWrapper) else opt
    described = getattr(dl, "stream_fingerprint", None)  # of rows that are not in memory
    steps = [getattr(getattr(s, "func", s), "__name__", "") for s in getattr(opt, "cbs", [])]  # of fastai's own
    weights = {k: v for k, v in learn.model.state_dict().items() if isinstance(v, Tensor)}
    kinds = ("cat_names", "cont_names", "list_names", "vector_names", "y_names")
    return plain(
        {
            "parameters": {k: f"{v.dtype} {list(v.shape)}" for k, v in weights.items()},
            "optimizer": [type(inner).__name__, *steps],
            "loss": getattr(loss, "__name__", type(loss).__name__),
            "epochs": learn.n_epoch,
            "ranks": world_size(),
            "batches": len(dl),
            "batch size": getattr(dl, "bs", None),
            "rows": getattr(dl, "n", None),
            "columns": {k: list(getattr(data, k, [])) for k in kinds},
            "data": described() if described is not None else _checksum(data),
            "schedule": _schedule(learn),
        }
    )


def _schedule(learn: Any) -> dict[str, Any]:
    found = {}
    for name, f in (pair for cb in learn.cbs if isinstance(cb, ParamScheduler) for pair in cb.scheds.items()):
        found[name] = [np.atleast_1d(np.asarray(f(at), dtype=np.float64)) for at in (0.0, 0.1, 0.3, 0.5, 0.9)]
    for name in ("lr", "wd"):
        if name not in found:
            found[name] = [h.get(name) for h in learn.opt.hypers]
    return found


def _checksum(data: Any) -> int | None:
    """Hash some packed rows, the first and the last among them; None if there are none in memory."""
    buffer = getattr(getattr(data, "packed", None), "buffer", None)
    if not isinstance(buffer, Tensor) or not len(buffer):
        return None
    n, taken = len(buffer), min(len(buffer), limits.FINGERPRINT_ROWS)
    rows = torch.arange(taken, device=buffer.device) * max(n - 1, 1) // max(taken - 1, 1)
    return zlib.crc32(buffer.index_select(0, rows.clamp_(max=n - 1)).cpu().numpy().tobytes())


class Checkpoint(Callback):
    """Callback that saves a training's last and best state; a killed training resumes from the last.

    Run ``learn.fit_one_cycle(5, 1e-2, cbs=Checkpoint('runs/a'))`` again with the same data and settings: it continues
    from the last save and ends with the same weights (on a CPU to the bit). Saved are weights, optimizer, schedule,
    batch order, random numbers, the Recorder and fastai's callbacks. A callback of your own lists its changing
    attributes (numbers, text, tensors, lists and dicts) in ``checkpointed = ('name', …)``. A finished training is
    loaded, not repeated.

    A state is a folder of JSON and safetensors; the last one is removed only when the next is complete. With several
    processes (``fastrec.scale.distributed``), rank 0 saves to a folder that all can read. If their number changes
    within an epoch, that epoch begins again.

    Args:
        folder: the target folder, for one training; it is created if needed.
        every: batches between two saves; None: after every epoch. The start is saved, too.
        keep_best: a column of the Recorder's table (``'valid_loss'``, a metric): also keep the best epoch's weights.
        lower: whether lower is better; None: if the name contains loss, error, mse or mae.

    Raises:
        DataError: the folder is of another training, or several processes accumulate gradients.
    """

    order = 95  # after all that changes a training's state

    def __init__(
        self, folder: str | Path, *, every: int | None = None, keep_best: str | None = None, lower: bool | None = None
    ) -> None:
        super().__init__()
        check_whole("Checkpoint", every=every)
        self.folder, self.every, self.keep_best = Path(folder), every, keep_best
        named_low = any(w in (keep_best or "") for w in ("loss", "error", "mse", "mae"))
        self.lower = named_low if lower is None else lower
        self._on = False

    def _trains(self) -> bool:
        return not self.learn.lock.locked() and not hasattr(self.learn, "lr_finder")

    @property
    def _live(self) -> bool:
        return self._on and self._trains()

    def before_fit(self) -> None:
        """Load the last state, or save the first."""
        learn = self.learn
        if not self._trains():
            return
        self._on = True
        if ranks.world_size() > 1 and any(isinstance(cb, GradientAccumulation) for cb in learn.cbs):
            remedy = "Leave out Checkpoint or GradientAccumulation, or train in one process"
            raise DataError("a checkpoint does not keep what several processes have accumulated", remedy=remedy)
        self._mute: dict[Any, bool] = {}
        self._resumed: dict[str, Any] | None = None
        self._begin: dict[str, Any] | None = None
        self._offset, self._best, self._other_ranks = 0, None, False
        self._print = fingerprint(learn)
        self._column = None
        if self.keep_best is not None:
            names = list(learn.recorder.metric_names)[1:]
            if self.keep_best not in names:
                raise DataError(f"there is no {self.keep_best!r} to keep the best of", remedy=f"Give one of {names}")
            self._column = names.index(self.keep_best)
        found = ranks.on_first_rank(lambda: _newest(self.folder, "last"), "looking for a checkpoint")
        if found is None:
            self._save(0, 0)
            return
        try:
            state = load_state(found)
        except MissingFileError as error:
            if ranks.is_first():
                raise
            problem = f"rank {ranks.rank()} cannot see the checkpoint that rank 0 sees"
            raise MissingFileError(problem, file=found, remedy="Give a folder that all machines share") from error
        ranks.agree(True, "checkpoint")  # all have read it: rank 0 may replace it
        self._resume(state, found)

    def before_epoch(self) -> None:
        """Skip epochs that are over."""
        if self._live and self._resumed is not None and self.learn.epoch < self._resumed["epoch"]:
            self._mute = {cb: cb.run for cb in self.learn.cbs if cb is not self}
            for cb in self._mute:
                cb.run = False
            raise CancelEpochException

    def before_train(self) -> None:
        """Resume the epoch at its last saved batch."""
        if not self._live:
            return
        learn, resumed, self._offset = self.learn, self._resumed, 0
        self._begin, self._resumed = {"random": random_state(), "loader": loader_state(learn.dl)}, None
        if resumed is not None:
            learn.train_iter = resumed["train_iter"]
            # rows are shared out otherwise: the epoch begins again
            if resumed["batch"] and self._other_ranks:
                learn.train_iter -= resumed["batch"]
                self._set_random(resumed["begin"])
                resumed = None
        if resumed is None or not resumed["batch"]:
            learn.dl = _Batches(learn.dl, self)
            return
        learn.pct_train, self._offset, self._begin = resumed["pct_train"], resumed["batch"], resumed["begin"]
        # of training batches, which the Recorder has reset for the epoch
        kept_metrics = resumed["records"]["metrics"]
        for metric, kept in zip(learn.metrics if kept_metrics else [], kept_metrics, strict=True):
            vars(metric).update(kept)
        learn.dl = _Batches(learn.dl, self, resumed)

    def before_batch(self) -> None:
        """Count the batches that were skipped."""
        if self._on and self.learn.training:
            self.learn.iter += self._offset

    def batch_done(self, done: int) -> None:
        """Save after a training batch, if it is time; ``done`` of the epoch's batches are over."""
        if self.every is not None and self.learn.train_iter % self.every == 0:
            self._save(self.learn.epoch, done)

    def after_epoch(self) -> None:
        """Save the epoch's end, and the weights if they are the best."""
        if not self._live:
            return
        learn = self.learn
        if self._mute:  # the end of a skipped epoch
            for cb, run in self._mute.items():
                cb.run = run
            self._mute = {}
            if self._resumed["epoch"] == learn.epoch + 1:
                self._set_random(self._resumed["now"])
            return
        if self._column is not None:
            self._keep_best()
        if learn.epoch + 1 < learn.n_epoch:
            self._save(learn.epoch + 1, 0)

    def after_fit(self) -> None:
        """Save the final state."""
        if not self._live:
            return
        if not (self._resumed and self._resumed["done"]):
            self._save(self.learn.n_epoch, 0, done=True)
        self._on = False

    def _save(self, epoch: int, batch: int, *, done: bool = False) -> None:
        learn = self.learn
        for cb in learn.cbs:
            if isinstance(cb, StopOnNaN):
                cb.check()  # a spoilt state must not take a sound one's place
        if not ranks.is_first():
            return
        loss = learn.loss_func.state_dict() if isinstance(learn.loss_func, nn.Module) else {}
        now = {"random": random_state(), "loader": loader_state(learn.dls.train)}
        state = {
            "fingerprint": self._print, "epoch": epoch, "batch": batch, "done": done, "train_iter": learn.train_iter,
            "pct_train": float(learn.pct_train), "model": plain(learn.model.state_dict(), "the model"),
            "loss": plain(loss, "the loss"), "optimizer": plain(learn.opt.state_dict(), "the optimizer"),
            "gradients": gradients(learn.model), "now": now, "begin": self._begin if batch else None,
            "records": records(learn), "callbacks": callback_states(learn), "best": self._best,
        }  # fmt: skip
        _replace(self.folder, "last", state)

    def _resume(self, state: dict[str, Any], file: Path) -> None:
        learn = self.learn
        self._other_ranks = _check_same(state["fingerprint"], self._print, file)
        set_callback_states(learn, state["callbacks"])  # refuses others
        learn.model.load_state_dict(state["model"])
        if state["loss"]:
            learn.loss_func.load_state_dict(state["loss"])
        set_optimizer_state(learn.opt, state["optimizer"])
        set_gradients(learn.model, state["gradients"])
        set_records(learn, state["records"])
        self._best, self._resumed = state["best"], state
        if state["epoch"] == 0 and not state["batch"]:
            self._set_random(state["now"])
        place = f"the training in {self.folder}"
        if state["batch"] and self._other_ranks:
            left = f"within epoch {state['epoch']} by another number of processes"
            warn(f"{place} was left {left}: that epoch begins again", UserWarning)
        if state["done"]:
            done = "is complete: its weights were loaded, nothing is trained. Give another folder to train again."
            warn(f"{place} {done}", UserWarning)

    def _set_random(self, state: dict[str, Any]) -> None:
        set_random_of_rank(state["random"])
        set_loader_state(self.learn.dls.train, state["loader"])

    def _keep_best(self) -> None:
        value = self.learn.recorder.values[-1][self._column]
        value = None if value is None else float(value)
        if value is None or value != value:
            return
        best = None if self._best is None else self._best["value"]
        if best is None or (value < best if self.lower else value > best):
            self._best = {"name": self.keep_best, "value": value, "epoch": self.learn.epoch}
            weights = plain(self.learn.model.state_dict(), "the model")
            if ranks.is_first():
                _replace(self.folder, "best", {**self._best, "model": weights})


class _Batches(AroundLoader):
    """A loader's batches from a given one on; work after a batch is complete when the next is requested."""

    def __init__(self, loader: Any, checkpoint: Checkpoint, resumed: dict[str, Any] | None = None) -> None:
        super().__init__(loader)
        self.checkpoint, self.resumed = checkpoint, resumed

    def __iter__(self) -> Iterator[Any]:
        done, batches = 0, self.loader
        if self.resumed is not None:  # the epoch's order is drawn as it was
            done, begin = self.resumed["batch"], self.resumed["begin"]
            set_random_state(begin["random"])
            set_loader_state(self.loader, begin["loader"])
            batches = self._loaded_from(done)
            set_random_of_rank(self.resumed["now"]["random"])
        for batch in batches:
            yield batch
            done += 1
            self.checkpoint.batch_done(done)


def load_checkpoint(folder: str | Path, model: nn.Module, *, best: bool = True) -> dict[str, Any]:
    """Load the weights that a ``Checkpoint`` saved into a model with the same parameters.

    Args:
        folder: the checkpoint's folder.
        model: the model, whose weights are replaced.
        best: load the best epoch's weights; False: the last ones.

    Returns:
        The best ``name``, ``value`` and ``epoch``; or how many epochs and batches were complete.

    Raises:
        MissingFileError, UnreadableFileError: there is no such state, or it is damaged.
        DataError: the model has other parameters.
    """
    kind = "best" if best else "last"
    found = _newest(Path(folder), kind)
    if found is None:
        remedy = f"Train with Checkpoint(folder{', keep_best=…' if best else ''})"
        raise MissingFileError(f"there is no checkpoint of the {kind} state", file=folder, remedy=remedy)
    state = load_state(found)
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        raise DataError(str(error), file=found, remedy="Make the model as it was made for the training") from error
    return {k: state[k] for k in (("name", "value", "epoch") if best else ("epoch", "batch"))}


def _numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    found = [(p.name.removeprefix(f"{kind}-"), p) for p in folder.glob(f"{kind}-*")]
    return sorted((int(number), p) for number, p in found if number.isdigit())


def _newest(folder: Path, kind: str) -> Path | None:
    return next((path for _, path in reversed(_numbered(folder, kind))), None)


def _replace(folder: Path, kind: str, state: dict[str, Any]) -> None:
    """Save a state under the next number, then remove earlier and incomplete ones."""
    before = _numbered(folder, kind)  # the last state stays until the new one is whole
    save_state(folder / f"{kind}-{before[-1][0] + 1 if before else 1:06d}", state)
    for _, old in before:
        remove(old)
    remove_leftovers(folder)


def _check_same(was: dict[str, Any], now: dict[str, Any], file: Path) -> bool:
    """Refuse another training; return whether the number of processes differs."""
    before, after = (p.get("ranks", 1) for p in (was, now))
    passed = ("ranks", "batches", "batch size") if before != after else ("ranks",)
    other = [k for k in dict.fromkeys([*was, *now]) if k not in passed and was.get(k) != now.get(k)]
    if not other:
        return before != after
    told = []
    for key in other:
        a, b = was.get(key), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            part = next(k for k in dict.fromkeys([*a, *b]) if a.get(k) != b.get(k))
            key, a, b = f"{key}: {part}", a.get(part), b.get(part)
        told.append(f"{key} was {a} and is {b}")
    remedy = "Train with the same data and settings as before, or give another folder"
    raise DataError(f"the checkpoint is of another training ({'; '.join(told)})", file=file, remedy=remedy)
