"""An exported graph beside fastai's ``predict`` and XGBoost's own: seconds of CPU in one process, one thread.

``python tests/bench/bench_serving.py [--rows 20000] [--repeats 30]`` trains a net and 200 trees of depth 5 on a planted
table of 60 columns (12 of text, 8 of whole numbers, 40 numbers; 21 target encodings), exports the run and scores
batches of 1 and 1,024 rows. Writes ``runs/bench/serving.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table as RichTable

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fastrec.competition import Competition, run_competition
from fastrec.competition.predict import SavedRun
from fastrec.estimators import Estimator, NetModel, XGBModel
from fastrec.features import Cross, FeatureSet, TargetEncode
from fastrec.serve.export import export_run, feeds_of, read_sample
from fastrec.serve.verify import open_graph, read_about

TEXT = [f"text{i}" for i in range(12)]
IDS = [f"id{i}" for i in range(8)]
NUMBERS = [f"x{i}" for i in range(40)]


class Planted(Competition):
    """Sixty columns, a net, trees."""

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
    """A table whose target depends on some of its columns."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), args.rows, args.repeats)
    table = RichTable("case", "system", "CPU ms", "rows/s", title="serving, one thread")
    for m in measured:
        table.add_row(m["case"], m["system"], f"{m['seconds'] * 1e3:.2f}", f"{m['rows_per_s']:,.0f}")
    Console().print(table)
    out = Path("runs/bench")
    out.mkdir(parents=True, exist_ok=True)
    (out / "serving.json").write_text(json.dumps(measured, indent=1))


def measure(folder: Path, rows: int, repeats: int) -> list[dict]:
    data = folder / "data"
    data.mkdir()
    planted(rows, 0).to_parquet(data / "train.parquet")
    planted(4_096, 1).drop(columns="y").to_parquet(data / "test.parquet")
    run = run_competition(Planted(), data, folder / "run")
    made = export_run(run, folder / "export", fold=0)
    begun = time.perf_counter()
    session = open_graph(made.folder / "model.onnx")
    loaded = time.perf_counter() - begun
    sample = read_sample(Path(run))
    feeds = feeds_of(read_about(made.folder), sample)
    size = (made.folder / "model.onnx").stat().st_size
    print(f"{len(session.get_inputs())} inputs, {size / 1e6:.1f} MB, loaded in {loaded:.2f} s")
    saved = SavedRun(run)
    models = {n: Estimator.load(saved.folder / "models" / n / "fold0") for n in ("net", "xgb")}
    made_rows = saved.rows(sample.drop(list(saved.features.outputs)))
    matrix = models["xgb"]._inputs.matrix(made_rows.table).numpy()
    net = models["net"]._nets[0]
    systems = {
        "fastrec, raw columns to score": lambda n: session.run(None, {k: v[:n] for k, v in feeds.items()}),
        "XGBoost inplace_predict, trees alone": lambda n: models["xgb"]._parts[0].inplace_predict(matrix[:n]),
        "the net in torch, codes to score": lambda n: torched(net, made_rows, n),
    }
    found = []
    for n in (1, 64, 1_024):
        each = {name: [] for name in systems}
        for _ in range(repeats + 3):
            for name, call in systems.items():
                begun = time.process_time()
                call(n)
                each[name].append(time.process_time() - begun)
        ours = float(np.median(each["fastrec, raw columns to score"][3:]))
        for name, seconds in each.items():
            median = float(np.median(seconds[3:]))
            found.append(
                {"case": f"{n} rows", "system": name, "rows": n, "seconds": median, "rows_per_s": n / max(median, 1e-9),
                 "ratio": median / ours}
            )  # fmt: skip
    return found


def torched(net, rows, n):
    frame = FRAMES.setdefault(id(rows), prepared(net, rows))
    with torch.no_grad():
        return net.net(frame.x_cat[:n], frame.x_cont[:n])


FRAMES: dict = {}


def prepared(net, rows):
    from fastrec.estimators._trained_net import net_columns

    frame = net.frame.new(net_columns(rows, net.flags, [*net.frame.cat_names, *net.frame.cont_names]))
    frame.process()
    return frame


if __name__ == "__main__":
    main()
