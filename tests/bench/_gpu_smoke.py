"""Every stage once, on few rows: it runs on the device, and gives what the CPU gives."""

from __future__ import annotations

import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _gpu_trace import synchronize
from _timing import Record, bare


def measure(device: torch.device, *, rows: int) -> Iterator[Record]:
    """One record for each stage, whatever becomes of the others.

    Args:
        device: where.
        rows: of the frame that every stage is given.
    """
    warnings.simplefilter("ignore")
    for name, stage in _STAGES.items():
        begun, wrong = time.perf_counter(), ""
        try:
            here, there = stage(device, rows), stage(torch.device("cpu"), rows)
            wrong = _differs(here, there, 1e-6 if name in _EXACT else 0.05)
        except Exception as error:  # what a later stage says is worth as much
            where = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})".replace("\n", " ")
        synchronize(device)
        seconds = round(time.perf_counter() - begun, 3)
        more = {"wrong": bool(wrong), "notes": wrong[:300] or "as on the CPU", "rows_per_s": None}
        yield bare("smoke", name, rows, seconds) | more


def _differs(here: np.ndarray, there: np.ndarray, tolerance: float) -> str:
    if here.shape != there.shape:
        return f"shape {here.shape}, on the CPU {there.shape}"
    far = np.abs(here - there) > tolerance * np.maximum(np.abs(there), 1)
    far |= np.isnan(here) != np.isnan(there)
    if not far.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(far)[0])
    return f"{int(far.sum())} of {far.size} values differ, first {here[at]:.6g}, on the CPU {there[at]:.6g}"


def _values(table: Any, names: list[str]) -> np.ndarray:
    """Float64 ``[rows, columns]`` on the host, keys by their code."""
    columns = [table[n] for n in names]
    found = [c.number() if c.kind in ("number", "datetime") else c.coded().codes.double() for c in columns]
    return torch.stack(found, 1).cpu().numpy()


def _log(rows: int) -> Any:
    from _logs import event_log

    return event_log(rows, ordered=True).to_pandas()


# Stages --------------------------------------------------------------------------------------------------------------


def _table(device: torch.device, rows: int) -> np.ndarray:
    from fastrec.table import Table

    table = Table.read(_log(rows), device=device)
    assert table.device.type == device.type, f"the table is on {table.device}"
    return _values(table, ["item", "city", "price"])


def _features(device: torch.device, rows: int) -> np.ndarray:
    import _eight

    from fastrec.table import Table

    made = _eight.with_fastrec(Table.read(_log(rows), device=device))
    return _values(made, list(_eight.NAMES))


def _frame(device: torch.device, rows: int) -> Any:
    from _tabular import tabular, with_fastrec

    return with_fastrec(tabular(rows, "int")).to_device(device)


def _packed(device: torch.device, rows: int) -> np.ndarray:
    cats, conts, *_ = _frame(device, rows).packed.views
    return torch.cat([cats.double(), conts.double()], 1).cpu().numpy()


def _batches(device: torch.device, rows: int) -> np.ndarray:
    loader = _frame(device, rows).dataloaders(bs=256, device=device).train.new(shuffle=False)
    cats, conts, *_ = next(iter(loader))
    assert cats.device.type == device.type, f"the batch is on {cats.device}"
    return torch.cat([cats.double(), conts.double()], 1).cpu().numpy()


def _trained(way: str) -> Callable[[torch.device, int], np.ndarray]:
    """The loss of a net after an epoch, in one of the benchmark's ways."""

    def run(device: torch.device, rows: int) -> np.ndarray:
        from fastai.torch_core import set_seed

        from fastrec.optim import adamw
        from fastrec.training import CudaGraph, rec_learner

        set_seed(0)
        to = _frame(device, rows)
        dtype, _, graph = way.partition(", ")
        again = None if device.type == "cuda" else (lambda run, _device, _warm_up: run)
        cbs = [CudaGraph(record=again)] if graph else []
        dls = to.dataloaders(bs=256, device=device, drop_last=True)
        learn = rec_learner(dls, layers=[32], opt_func=adamw, cbs=cbs, amp=None if dtype == "float32" else dtype)
        with learn.no_bar(), learn.no_logging():
            learn.fit(1, 1e-3)
            said = learn.get_preds(dl=dls.train.new(shuffle=False, drop_last=False))[0]
        return said.mean(0).cpu().double().numpy()

    return run


def _trees(device: torch.device, rows: int) -> np.ndarray:
    from fastrec.estimators import XGBModel
    from fastrec.table import Table
    from fastrec.validate import Rows

    log = _log(rows)
    table = Table.read(log, device=device)
    label = torch.from_numpy(log["clicked"].to_numpy(float))
    data = Rows(table.select(["price", "item"]), "binary", conts=["price", "item"], label=label)
    model = XGBModel("trees", rounds=10).fit(data, seed=0, device=device)
    return model.predict(data).numpy().mean(keepdims=True)


def _sessions(device: torch.device, rows: int) -> np.ndarray:
    from _gpu_sessions import _sessions as made

    from fastrec.sequences import NextItemNet

    log = made(min(rows, 2_000) // 10, 100)
    net = NextItemNet("SASRec", epochs=1, warm=False)
    net.device = device
    items = net.fit(log, seed=0).recommend(log, 5)
    return np.array([len(items[0] if isinstance(items, tuple) else items)], dtype=float)


def _saved(device: torch.device, rows: int) -> np.ndarray:
    """A net that is saved where it was trained says the same when it is loaded on a CPU."""
    from fastrec.estimators import NetModel
    from fastrec.estimators.base import Estimator
    from fastrec.table import Table
    from fastrec.validate import Rows

    log = _log(rows)
    label = torch.from_numpy(log["clicked"].to_numpy(float))
    data = Rows(Table.read(log), "binary", cats=["city"], conts=["price"], label=label)
    model = NetModel("net", model="TabularNet", epochs=1, bs=256, options={"layers": [16]})
    model.fit(data, seed=0, device=device)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "m")
        loaded = Estimator.load(Path(folder) / "m")
        said, again = model.predict(data), loaded.predict(data)
    assert torch.allclose(said, again, atol=1e-5), "what was loaded says something else"
    return said.numpy().mean(keepdims=True)


_STAGES: dict[str, Callable[[torch.device, int], np.ndarray]] = {
    "table": _table,
    "features": _features,
    "packed rows": _packed,
    "loader": _batches,
    "net, float32": _trained("float32"),
    "net, bf16": _trained("bf16"),
    "net, graph": _trained("float32, graph"),
    "trees": _trees,
    "sessions": _sessions,
    "saved net": _saved,
}
_EXACT = ("table", "features", "packed rows", "loader")  # what learns differs by its sums
