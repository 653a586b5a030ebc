"""What a training has besides its weights, as plain values and back: optimizer, random numbers, gradients, records."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from fastai.callback.schedule import ParamScheduler
from fastai.callback.tracker import TrackerCallback
from fastai.callback.training import GradientAccumulation
from fastai.optimizer import OptimWrapper
from fastcore.foundation import L
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.ranks import is_first, rank, world_size
from fastrec.errors import DataError
from fastrec.optim.row_sparse import cache_of

# attributes of fastai's callbacks that change as a training goes on; other callbacks name theirs as ``checkpointed``
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
    raise DataError(
        f"{path} holds a {type(value).__name__}, which a checkpoint cannot keep",
        remedy="Keep numbers, text, tensors, and lists and dicts of these",
    )


# ---- random numbers


def random_state() -> dict[str, Any]:
    """Return the states of torch's (and CUDA's), numpy's and Python's random generators."""
    name, keys, place, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 - fastai draws from it
    return {
        "torch": torch.get_rng_state(),
        "python": _python_state(random.getstate()),
        "numpy": {"name": name, "keys": torch.from_numpy(keys.astype(np.int64)), "rest": [place, has_gauss, gauss]},
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the generators from ``random_state``."""
    torch.set_rng_state(state["torch"])
    random.setstate(_of_python_state(state["python"]))
    numbers = state["numpy"]
    np.random.set_state((numbers["name"], numbers["keys"].numpy().astype(np.uint32), *numbers["rest"]))  # noqa: NPY002
    if state["cuda"] and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def set_random_of_rank(state: dict[str, Any]) -> None:
    """Restore the generators on rank 0; the other ranks draw different numbers from there on."""
    set_random_state(state)
    if not is_first():
        torch.manual_seed(int(torch.randint(1 << 62, ())) + rank())


def loader_state(loader: Any) -> dict[str, Any] | None:
    """Return the state of a loader's random generator; None if it has none."""
    rng = getattr(loader, "rng", None)
    return _python_state(rng.getstate()) if isinstance(rng, random.Random) else None


def set_loader_state(loader: Any, state: dict[str, Any] | None) -> None:
    """Restore a loader's random generator from ``loader_state``."""
    if state is not None:
        loader.rng.setstate(_of_python_state(state))


def _python_state(state: tuple[Any, ...]) -> dict[str, Any]:
    version, words, gauss = state
    return {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss}


def _of_python_state(state: dict[str, Any]) -> tuple[Any, ...]:
    return state["version"], tuple(state["words"].tolist()), state["gauss"]


# ---- the optimizer and gradients


def optimizer_state(opt: Any) -> dict[str, Any]:
    """Return the state of fastai's optimizer, or of a torch optimizer in fastai's wrapper."""
    return plain(opt.state_dict(), "the optimizer")


def set_optimizer_state(opt: Any, state: dict[str, Any]) -> None:
    """Restore an optimizer from ``optimizer_state``, on its parameters' devices."""
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


# ---- records and callbacks


def records(learn: Any) -> dict[str, Any]:
    """Return the Recorder's values and running means."""
    recorder = learn.recorder
    losses = [torch.as_tensor(loss).cpu() for loss in recorder.losses]
    metrics = learn.metrics if recorder.train_metrics else []
    return {
        "lrs": plain(recorder.lrs),
        "iters": plain(recorder.iters),
        "values": plain(recorder.values),
        "losses": torch.stack(losses) if losses else torch.empty(0),
        "smooth": {"count": recorder.smooth_loss.count, "val": recorder.smooth_loss.val},
        "metrics": [_plain_attributes(m) for m in metrics],
    }


def set_records(learn: Any, state: dict[str, Any]) -> None:
    """Restore the Recorder from ``records``, except the metrics of training batches."""
    recorder, smooth = learn.recorder, state["smooth"]
    recorder.lrs, recorder.iters = list(state["lrs"]), list(state["iters"])
    recorder.values = [L(row) for row in state["values"]]
    recorder.losses = list(state["losses"].unbind())
    recorder.smooth_loss.count, recorder.smooth_loss.val = smooth["count"], smooth["val"]
    if smooth["count"]:
        learn.smooth_loss = recorder.smooth_loss.value


def set_metrics(learn: Any, state: dict[str, Any]) -> None:
    """Restore the metrics of training batches, once the Recorder has reset them for the epoch."""
    for metric, kept in zip(learn.metrics if state["metrics"] else [], state["metrics"], strict=True):
        vars(metric).update(kept)


def _plain_attributes(metric: Any) -> dict[str, Any]:
    found = {}
    for name, value in vars(metric).items():
        try:
            found[name] = plain(value)
        except DataError:  # the metric's function, not what it has added up
            continue
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
        raise DataError(
            f"the callbacks were {was} and are {now}", remedy="Train with the same callbacks as before, or elsewhere"
        )
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
        names = [n for n in names if n in vars(cb)]
        if names:
            found.append((cb, names))
    return found


# ---- which training it is


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
    schedules = [cb.scheds for cb in learn.cbs if isinstance(cb, ParamScheduler)]
    found = {}
    for name, f in (pair for scheds in schedules for pair in scheds.items()):
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
