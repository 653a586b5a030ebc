"""Parts of the check for GPUs: every stage once, trees, nets of sessions, Dask, serving, out of memory."""

from __future__ import annotations

import tempfile
import time
import timeit
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _frames import event_log, skewed
from _gpu_trace import At, seconds_of, share, synchronize
from _gpu_training import frame, learner
from _timing import Record, Timing, bare, record

from fastrec.errors import DeviceMemoryError
from fastrec.estimators import NetModel, XGBModel
from fastrec.estimators.base import Estimator
from fastrec.features import CountEncode, FeatureSet, GroupStats, Lag, TargetEncode
from fastrec.sequences import NextItemNet, SessionFrame
from fastrec.table import Table
from fastrec.tabular.packed import Layout, Packed
from fastrec.validate import Rows

CPU = torch.device("cpu")
PARTITIONS = 8


def smoke(at: At, *, rows: int) -> Iterator[Record]:
    """Run each stage on few rows, on the device and on the CPU, and compare."""
    warnings.simplefilter("ignore")
    for name, stage in STAGES.items():
        begun, wrong = time.perf_counter(), ""
        try:
            wrong = _differs(stage(at.device, rows), stage(CPU, rows), 1e-6 if name in EXACT else 0.05)
        except Exception as error:  # what a later stage says is worth as much
            where = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})".replace("\n", " ")
        synchronize(at.device)
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
    """Return float64 ``[rows, columns]`` on the host, keys by their code."""
    columns = [table[n] for n in names]
    found = [c.number() if c.kind in ("number", "datetime") else c.coded().codes.double() for c in columns]
    return torch.stack(found, 1).cpu().numpy()


def _log(rows: int, device: torch.device) -> Table:
    table = Table.read(event_log(rows, ordered=True).to_pandas(), device=device)
    assert table.device.type == device.type, f"the table is on {table.device}"
    return table


def _read(device: torch.device, rows: int) -> np.ndarray:
    return _values(_log(rows, device), ["item", "city", "price"])


def _features(device: torch.device, rows: int) -> np.ndarray:
    import bench_features

    return _values(bench_features.with_fastrec(_log(rows, device)), list(bench_features.NAMES))


def _packed(device: torch.device, rows: int) -> np.ndarray:
    return torch.cat([view.double() for view in frame(rows, device).packed.views[:2]], 1).cpu().numpy()


def _batches(device: torch.device, rows: int) -> np.ndarray:
    loader = frame(rows, device).dataloaders(bs=256, device=device).train.new(shuffle=False)
    cats, conts, *_ = next(iter(loader))
    assert cats.device.type == device.type, f"the batch is on {cats.device}"
    return torch.cat([cats.double(), conts.double()], 1).cpu().numpy()


def _trained(way: str, device: torch.device, rows: int) -> np.ndarray:
    """Return the mean prediction of a net after an epoch, in one of the benchmark's ways."""
    learn = learner(frame(rows, device), 256, device, way, [32])
    with learn.no_bar(), learn.no_logging():
        learn.fit(1, 1e-3)
        said = learn.get_preds(dl=learn.dls.train.new(shuffle=False, drop_last=False))[0]
    return said.mean(0).cpu().double().numpy()


def _rows(device: torch.device, rows: int, **columns: list[str]) -> Rows:
    table = _log(rows, device)
    return Rows(table, "binary", **columns, label=table["clicked"].number().cpu())


def _trees(device: torch.device, rows: int) -> np.ndarray:
    data = _rows(device, rows, conts=["price", "item"])
    model = XGBModel("trees", rounds=10).fit(data, seed=0, device=device)
    return model.predict(data).numpy().mean(keepdims=True)


def _sessions(device: torch.device, rows: int) -> np.ndarray:
    log = session_log(min(rows, 2_000) // 10, 100)
    net = NextItemNet("SASRec", epochs=1, warm=False)
    net.device = device
    items = net.fit(log, seed=0).recommend(log, 5)
    return np.array([len(items[0] if isinstance(items, tuple) else items)], dtype=float)


def _saved(device: torch.device, rows: int) -> np.ndarray:
    """Check that a net saved on the device predicts the same on the CPU."""
    data = _rows(device, rows, cats=["city"], conts=["price"])
    model = NetModel("net", model="TabularNet", epochs=1, bs=256, options={"layers": [16]})
    model.fit(data, seed=0, device=device)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "m")
        said, again = model.predict(data), Estimator.load(Path(folder) / "m").predict(data)
    assert torch.allclose(said, again, atol=1e-5), "what was loaded says something else"
    return said.numpy().mean(keepdims=True)


STAGES: dict[str, Callable[[torch.device, int], np.ndarray]] = {
    "table": _read,
    "features": _features,
    "packed rows": _packed,
    "loader": _batches,
    "net, float32": partial(_trained, "float32"),
    "net, bf16": partial(_trained, "bf16"),
    "net, graph": partial(_trained, "float32, graph"),
    "trees": _trees,
    "sessions": _sessions,
    "saved net": _saved,
}
EXACT = ("table", "features", "packed rows", "loader")  # what learns differs by its sums


def trees(at: At, *, rows: int, rounds: int) -> Iterator[Record]:
    data, model = _rows(at.device, rows, conts=["price", "item", "user"]), XGBModel("trees", rounds=rounds)
    fit, predict = partial(model.fit, data, seed=0, device=at.device), partial(model.predict, data)
    for case, run in (("training", fit), ("predicting", predict)):
        yield bare(f"trees, {case}", f"XGBoost, {rounds} rounds", rows, seconds_of(run, at.device))


def session_log(count: int, items: int) -> SessionFrame:
    """Draw sessions of geometric lengths, 6 events on average, items' frequencies in proportion to 1 / (rank + 10)."""
    rng = np.random.default_rng(0)
    lengths = rng.geometric(1 / 5, count) + 1
    return SessionFrame({"items": np.split(skewed(rng, items, lengths.sum()), np.cumsum(lengths)[:-1])}, item="items")


def sessions(at: At, *, count: int, items: int) -> Iterator[Record]:
    """Time an epoch over every event, and the best items of every session, after a warm-up."""
    log = session_log(count, items)
    few = log.take(torch.arange(min(count, 500)))

    def seconds(run: Callable[[], Any]) -> float:
        synchronize(at.device)
        return timeit.timeit(lambda: (run(), synchronize(at.device)), number=1)

    for net in ("SASRec", "GRU4Rec"):
        for half in (False, True):
            model = NextItemNet(net, epochs=1, warm=False, half=half)
            model.device = at.device
            model.fit(few, seed=0)
            events = len(log.values) - len(log)  # the first of a session is nobody's target
            name = f"{net}, {'bf16 logits' if half else 'float32'}"
            yield bare("sessions, an epoch", name, events, seconds(partial(model.fit, log, seed=0)))
        yield bare("sessions, the best 20 items", net, len(log), seconds(partial(model.recommend, log, 20)))


def dask(at: At, *, rows: int) -> Iterator[Record]:
    """Compare features of a dask-cuDF frame with those of a cuDF frame; off CUDA pandas and Dask stand for the two."""
    frame = event_log(rows, ordered=True).to_pandas()
    if at.device.type == "cuda":
        import cudf
        import dask_cudf

        frame = cudf.from_pandas(frame)
        cut = dask_cudf.from_cudf(frame, npartitions=PARTITIONS)
    else:
        import dask.dataframe as dd

        cut = dd.from_pandas(frame, npartitions=PARTITIONS, sort=False)
    lag = Lag("price", by="user", order="timestamp")
    made: dict[str, np.ndarray] = {}

    def values(system: str, df: Any) -> None:
        fs = FeatureSet([CountEncode("item"), TargetEncode("item", "clicked"), GroupStats("price", by="user"), lag])
        found = fs.fit_transform(df)
        found = (found.compute() if hasattr(found, "compute") else found)[list(fs.outputs)]
        found = found.to_pandas() if hasattr(found, "to_pandas") else found
        made[system] = found.to_numpy("float64", na_value=np.nan)

    whole, parts = "one frame", f"{PARTITIONS} partitions"
    timings = {n: Timing(seconds_of(partial(values, n, df), at.device)) for n, df in ((whole, frame), (parts, cut))}
    for system, timing in timings.items():
        same = np.allclose(made[whole], made[system], rtol=1e-6, atol=1e-9, equal_nan=True)
        yield record("features, dask", system, rows, timing, timings[whole], same=same)


def serving(at: At, *, rows: int, batch: int, calls: int) -> Iterator[Record]:
    """Time an exported run by onnxruntime on the device: raw columns to score, and the net alone from codes to score.

    Seconds of a call are the median and the 99th percentile, copies to the device and back are in it.
    """
    from bench_serving import exported, planted

    from fastrec.serve.export import feeds_of
    from fastrec.serve.session import open_session
    from fastrec.serve.verify import read_about

    def outputs(session: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        taken = {i.name for i in session.get_inputs()}
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, {n: v for n, v in feeds.items() if n in taken}), strict=True))

    with tempfile.TemporaryDirectory() as folder:
        _, export = exported(folder, rows, parts=True)
        about = read_about(export)
        feeds = feeds_of(about, Table.read(planted(batch, 1).drop(columns="y")))
        parts = {p["name"]: p for p in about["parts"]}
        net = next(p for name, p in parts.items() if name.startswith("net"))
        codes = outputs(open_session(export / parts["features"]["file"]), feeds)
        whole = open_session(export / about["model"]["file"], device=at.device.type)
        alone = open_session(export / net["file"], device=at.device.type)
        inputs = {c["name"]: codes[c["name"]] for c in net["inputs"]}
        moved = sum(v.nbytes for v in inputs.values())
        for system, call in (
            ("graph, raw columns", partial(outputs, whole, feeds)),
            ("net, codes", partial(alone.run, None, inputs)),
        ):
            times = np.array(timeit.repeat(call, number=1, repeat=calls + 5)[5:])  # the first calls warm up
            more = {"batch": batch, "p99_seconds": float(np.quantile(times, 0.99))}
            one = bare(f"serving, batch {batch:,}", system, batch, float(np.median(times)), **more)
            floor = moved / at.floors.to_device if at.floors and system == "net, codes" else None
            yield share(one, floor, f"{moved / 1e6:.1f} MB on the way to the device")


def memory(at: At) -> Iterator[Record]:
    rows, begun, said, named = 1 << 46, time.perf_counter(), None, False
    try:
        Packed.empty(rows, Layout(4, 4), device=at.device)
    except DeviceMemoryError as error:
        said, named = error, f"{rows:,} packed rows" in str(error) and bool(error.remedy)
    seconds = time.perf_counter() - begun
    yield bare("out of memory", "fastrec", rows, seconds, named=named, notes=str(said)) | {"rows_per_s": None}
