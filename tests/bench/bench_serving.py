"""An exported graph beside fastai's ``predict`` and XGBoost's own, and what the server costs beside the graph.

``python tests/bench/bench_serving.py [--rows 20000] [--repeats 30]`` trains a net and 200 trees of depth 5 on a planted
table of 60 columns (12 of text, 8 of whole numbers, 40 numbers; 21 target encodings) and exports the run.

Cases, all in one process and one thread:
  score   batches of 1, 64 and 1,024 rows, raw columns to scores.
  server  requests of 1,024 rows through the application: CPU time in all; ``beyond`` is that beyond the graph's own.
  load    vocabularies of 1,000,000 keys, until they can answer.

``--folder DIR`` leaves the export in ``DIR/export``, for ``fastrec serve`` and ``load_server.py``.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import timeit
import warnings
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the client of the server's tests

from _timing import Options, Record, Timing, race, record, run_cases
from load_server import ARROW, as_arrow

from fastrec.competition import Competition, run_competition
from fastrec.competition.predict import SavedRun
from fastrec.estimators import Estimator, NetModel, XGBModel
from fastrec.estimators._trained_net import net_columns
from fastrec.features import Cross, FeatureSet, TargetEncode
from fastrec.serve import Limits, Scorer, make_app
from fastrec.serve.export import export_run, feeds_of, read_sample
from fastrec.serve.graph.columns import OTHER_NO_TEXT, encode, input_column
from fastrec.serve.onnx_builder import Graph, value_of
from fastrec.serve.session import open_session
from fastrec.serve.verify import read_about
from fastrec.table import Table, Vocab

TEXT = [f"text{i}" for i in range(12)]
IDS = [f"id{i}" for i in range(8)]
NUMBERS = [f"x{i}" for i in range(40)]


class Planted(Competition):
    name, task, target, metric = "Planted", "binary", "y", "auc"

    @property
    def categories(self):
        return [*TEXT, *IDS]

    def features(self):
        return FeatureSet([TargetEncode([*TEXT, *IDS, Cross("text0", "id0")], "y")])

    def models(self, *, bs):
        return [
            NetModel("net", model="TabularNet", epochs=2),
            XGBModel("xgb", rounds=200, max_depth=5, early_stopping_rounds=None),
        ]


def planted(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    data = {n: rng.zipf(1.5, rows).clip(max=1000 * (i + 1)) for i, n in enumerate(TEXT)}
    frame = pd.DataFrame({n: [f"wert-{v}" for v in values] for n, values in data.items()})
    for i, n in enumerate(IDS):
        frame[n] = rng.integers(0, 2_000 * (i + 1), rows) + (1 << 53)
    numbers = rng.normal(size=(rows, len(NUMBERS)))
    numbers[rng.random(numbers.shape) < 0.05] = np.nan
    frame[NUMBERS] = numbers
    signal = np.nan_to_num(numbers[:, :5]).sum(1) + (data["text0"] == 1) + rng.normal(size=rows)
    frame["y"] = (signal > 0.5).astype(int)
    return frame


@cache
def exported(folder: str, rows: int, *, parts: bool = False) -> tuple[Path, Path]:
    """Train on the planted rows, on the host, and export; return the folders of the run and of the export."""
    data = Path(folder) / "data"
    data.mkdir(parents=True)
    planted(rows, 0).to_parquet(data / "train.parquet")
    planted(4_096, 1).drop(columns="y").to_parquet(data / "test.parquet")
    run = run_competition(Planted(), data, Path(folder) / "run", device="cpu")
    return run, export_run(run, Path(folder) / "export", fold=0, parts=parts).folder


def score(options: Options) -> Iterator[Record]:
    import fastai.tabular.all as fa

    run, export = exported(options.folder, options.rows)
    first = planted(options.rows, 0)
    session = open_session(export / "model.onnx")
    sample = read_sample(run)
    feeds = feeds_of(read_about(export), sample)
    saved = SavedRun(run)
    models = {n: Estimator.load(saved.folder / "models" / n / "fold0") for n in ("net", "xgb")}
    rows = saved.rows(sample.drop(list(saved.features.outputs)))
    matrix = models["xgb"]._inputs.matrix(rows.table).numpy()
    net = models["net"]._nets[0]
    frame = net.frame.new(net_columns(rows, net.flags, [*net.frame.cat_names, *net.frame.cont_names]))
    frame.process()
    about = {"procs": [fa.Categorify, fa.FillMissing, fa.Normalize], "cat_names": [*TEXT, *IDS], "cont_names": NUMBERS}
    about |= {"y_names": "y", "y_block": fa.CategoryBlock(), "bs": 4_096, "num_workers": 0}
    learner = fa.tabular_learner(fa.TabularDataLoaders.from_df(first.head(5_000), **about), layers=[256, 128])

    def torched(n: int) -> torch.Tensor:
        with torch.no_grad():
            return net.net(frame.x_cat[:n], frame.x_cont[:n])

    def predicted(n: int) -> object:
        with learner.no_bar(), learner.no_logging(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return learner.predict(first.iloc[0])

    ours = "fastrec, raw columns to score"
    systems = {
        ours: lambda n: session.run(None, {k: v[:n] for k, v in feeds.items()}),
        "XGBoost inplace_predict, trees alone": lambda n: models["xgb"]._parts[0].inplace_predict(matrix[:n]),
        "the net in torch, codes to score": torched,
    }
    for n in (1, 64, 1_024):
        own = systems if n > 1 else {**systems, "fastai learn.predict, its net alone": predicted}
        often = max(4, 64 // n)  # calls of milliseconds are timed several at a time: not what the system before left
        calls = {name: partial(timeit.repeat, partial(call, n), number=often, repeat=1) for name, call in own.items()}
        timings, _ = race(calls, options.repeats)
        timings = {name: t.over(often) for name, t in timings.items()}
        yield from (record(f"{n} rows", name, n, t, timings[ours]) for name, t in timings.items())


def server(options: Options) -> Iterator[Record]:
    from tests.serve.server.calls import request

    _, export = exported(options.folder, options.rows)
    rows = planted(1_024, 1).drop(columns="y").astype(object)
    columns = rows.where(rows.notna(), None).to_dict("list")
    as_rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
    bodies = {
        "Arrow": (as_arrow(columns), ARROW),
        "JSON columns": (json.dumps({"columns": columns}).encode(), "application/json"),
        "JSON rows": (json.dumps({"rows": as_rows}).encode(), "application/json"),
    }
    scorer = Scorer(export)
    feeds = feeds_of(read_about(export), Table.read(pa.table(columns)))
    app, loop = make_app(export, limits=Limits(workers=1)), asyncio.new_event_loop()

    def ask(body: bytes, kind: str) -> None:
        headers = {"content-type": kind, "content-length": str(len(body))}
        answer = loop.run_until_complete(request(app, "POST", "/v1/score", body, headers))
        assert answer.status == 200, answer.body

    calls = {f"fastrec, {name}": partial(ask, *body) for name, body in bodies.items()}
    timings, _ = race({"graph alone": partial(scorer.run, feeds), **calls}, options.repeats)
    app.state.service.close()
    loop.close()
    graph = timings["graph alone"]
    for name, timing in timings.items():
        notes = f"{1000 * (timing.cpu_seconds - graph.cpu_seconds):.2f} CPU ms beyond the graph"
        yield record("request of 1,024 rows", name, 1_024, timing, graph, notes=notes)


def load(options: Options) -> Iterator[Record]:
    """Open files whose only work is to find keys, each in a process of its own: seconds and bytes until it answers."""
    keys = 1_000_000
    for kind, goal in (("int64", 0.5), ("string", 2.5)):
        numbers = np.arange(keys) * 7919
        table = Table({"key": numbers + (1 << 53) if kind == "int64" else [f"key-{i}" for i in numbers.tolist()]})
        graph = Graph()
        column = input_column(graph, "key", table["key"], no_text=OTHER_NO_TEXT)
        codes = encode(Vocab.fit(table["key"]), column)
        graph.output("code", value_of(graph, codes, torch.int64), np.int64)
        path = Path(options.folder) / f"{kind}.onnx"
        path.write_bytes(graph.model().SerializeToString())
        program = (
            "import json, sys, time; import onnxruntime as ort;"
            "held = lambda: int(open('/proc/self/statm').read().split()[1]) * 4096; before = held();"
            "o = ort.SessionOptions(); o.intra_op_num_threads = 1; t = time.perf_counter();"
            "s = ort.InferenceSession(sys.argv[1], o);"
            "print(json.dumps([time.perf_counter() - t, held() - before]))"
        )
        runs = [json.loads(subprocess.check_output([sys.executable, "-c", program, str(path)])) for _ in range(3)]
        timing = Timing.of([seconds for seconds, _ in runs])
        memory = max(m for _, m in runs)
        megabytes = [round(b / 1e6) for b in (memory, path.stat().st_size)]
        notes = f"goal {goal} s; {megabytes[0]} MB, file {megabytes[1]} MB"
        more = {"bytes": memory, "goal_seconds": goal, "notes": notes}
        yield record(f"load {keys:,} {kind} keys", "fastrec", keys, timing, timing, **more)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        run_cases(
            __doc__,
            {"score": score, "server": server, "load": load},
            "serving",
            threads=1,
            rows=(20_000, "of the planted table"),
            repeats=(30, "timed calls of every system"),
            folder=(made, "where the run and its export are left (default: nowhere)"),
        )
