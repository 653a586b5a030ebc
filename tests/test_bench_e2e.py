"""The end-to-end benchmark at a small size: both sides make the same columns, and the report is whole."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

NAMES = ("_e2e_data", "_e2e_stock", "_e2e_fastrec", "_e2e_train", "bench_e2e")
LRS = {"adamw": 0.01, "lamb": 0.03, "split": (0.02, 0.08)}


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent / "bench"))
        yield SimpleNamespace(**{n.removeprefix("_e2e_"): importlib.import_module(n) for n in NAMES})


@pytest.fixture(scope="module")
def folder(bench: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench.data.files(10_000, root=tmp_path_factory.mktemp("e2e"))


@pytest.fixture(scope="module")
def sides(bench: SimpleNamespace, folder: Path) -> dict[str, Any]:
    made = {"ours": bench.fastrec.features(*bench.fastrec.read(folder))}
    for name, tuned in (("plain", False), ("tuned", True)):
        made[name] = bench.stock.features(*bench.stock.read(folder, tuned=tuned), tuned=tuned)
    return made


def test_files_are_simulated_once_and_hold_the_rows(bench, folder, sides):
    written = (folder / "train.csv").stat().st_mtime_ns
    assert bench.data.files(10_000, root=folder.parent) == folder
    assert (folder / "train.csv").stat().st_mtime_ns == written
    assert 10_000 <= len(sides["ours"].clicked) < 12_000


def test_parquet_files_give_what_csv_files_give(bench, folder, sides):
    other = bench.data.files(10_000, root=folder.parent, parquet=True)
    assert bench.data.log_file(other).suffix == ".parquet"
    for side, known in ((bench.fastrec, "ours"), (bench.stock, "plain")):
        made = side.features(*side.read(other))
        bench.data.check_equal(side.columns(made), side.columns(sides[known]))


@pytest.mark.parametrize("way", ["plain", "tuned"])
def test_both_sides_make_the_same_columns(bench, sides, way):
    ours, theirs = sides["ours"], sides[way]
    bench.data.check_equal(bench.fastrec.columns(ours), bench.stock.columns(theirs))
    order = np.concatenate(theirs.splits)
    for name in ("clicked", "time"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)[order])
    # Ours numbers training lists first.
    assert np.array_equal(np.diff(ours.lists) != 0, np.diff(theirs.lists[order]) != 0)
    assert len(set(ours.lists)) == len(set(theirs.lists))
    assert [len(s) for s in ours.splits] == [len(s) for s in theirs.splits]
    assert min(len(s) for s in ours.splits) > 1_000
    bench.data.check_equal(bench.fastrec.columns(ours), bench.stock.columns(bench.fastrec.as_pandas(ours)))


@pytest.mark.parametrize("column", ["item_id", "te_item_id__clicked", "touch_since", "clicked"])
def test_a_difference_between_the_sides_is_found(bench, sides, column):
    ours, theirs = bench.fastrec.columns(sides["ours"]), bench.stock.columns(sides["plain"])
    changed = theirs[column].copy()
    changed[7] = "another" if column == "item_id" else 77
    for other in (changed, theirs[column][:9]):
        with pytest.raises(SystemExit, match=f"the two sides differ: {column}: "):
            bench.data.check_equal(ours, {**theirs, column: other})


def test_sessions_of_the_last_day_validate(bench, sides):
    ours = sides["ours"]
    train, valid = (np.asarray(s) for s in ours.splits)
    assert not set(ours.lists[train]) & set(ours.lists[valid])
    assert ours.time[valid].min() >= bench.data.LAST_DAY
    held_out = ours.time[train] >= bench.data.LAST_DAY - bench.data.DAY  # where rates are chosen
    assert 0.1 < held_out.mean() < 0.4


def test_all_nets_are_the_same(bench, sides):
    to = {"frame": bench.fastrec.preprocess(sides["ours"]), "stock": bench.stock.preprocess(sides["plain"])}
    width = sum(w for n, w in bench.train.EMB_SZS.items() if n in to["frame"].cat_names)
    shapes = []
    for system in bench.train.SYSTEMS:
        if system.data in to:
            model = bench.train._learner(system, to[system.data], bench.train.Settings(LRS, 4_096)).model
            shapes.append([tuple(m.weight.shape) for m in model.modules() if type(m).__name__ == "Linear"])
            assert model.n_emb == width
    assert len(shapes) == 9
    assert all(s == shapes[0] for s in shapes)


def test_the_table_and_the_report(bench, folder, tmp_path, monkeypatch):
    report = tmp_path / "BENCHMARKS.md"
    report.write_text("# Benchmarks\n\nabove\n\n<!-- bench-e2e -->\nold\n<!-- /bench-e2e -->\n\nbelow\n")
    monkeypatch.setattr(bench.bench_e2e._timing, "use_threads", lambda count: None)  # other tests' threads stay
    monkeypatch.setattr(bench.bench_e2e, "warm_up", lambda options: None)
    out = tmp_path / "e2e.json"
    rates = "adamw=0.01,lamb=0.03,split=0.02:0.08"
    sizes = f"--rows 10000 --seeds 1 --repeats 1 --lr {rates} --device cpu".split()  # and a look at bfloat16
    bench.bench_e2e.main([*sizes, "--data", str(folder.parent), "--out", str(out), "--report", str(report)])
    records, text = json.loads(out.read_text()), report.read_text()
    systems = ["stock", "stock, tuned pandas", *(s.name for s in bench.train.SYSTEMS[1:])]
    assert [r["system"] for r in records] in (systems, [s for s in systems if s != "+ bf16"])
    for one in records:
        assert one["case"] == "end to end"
        assert sum(one["stages"].values()) == pytest.approx(one["seconds"], abs=1e-3)
        assert list(one["stages"]) == list(bench.bench_e2e.STAGES)
        assert min(one["stages"].values()) > 0
        assert one["ratio"] == pytest.approx(records[0]["seconds"] / one["seconds"], abs=0.01)
        assert one["rows_per_s"] == pytest.approx(one["rows"] / one["seconds"], rel=0.01)
        assert 0.3 < one["auc_mean"] < 1
        assert 0 < one["mrr_mean"] < 1
        assert one["mrr_sd"] == one["auc_sd"] == 0.0  # of one seed
        (line,) = (t for t in text.splitlines() if t.startswith(f"| {one['system']} | {one['stages']['read']:.2f} |"))
        assert line.endswith(f" | {one['auc_mean']:.4f} ± 0.0000 | {one['mrr_mean']:.4f} ± 0.0000 |")
    assert text.startswith("# Benchmarks\n\nabove\n\n<!-- bench-e2e -->\n## End to end")
    assert text.endswith("<!-- /bench-e2e -->\n\nbelow\n")
    assert "old" not in text.split("<!-- bench-e2e -->")[1].split("\n")[1]
    assert 5_000 < (tmp_path / "BENCHMARKS-e2e.png").stat().st_size < 150_000


def test_medians_and_standard_deviations_are_over_repeats_and_seeds(bench):
    one = {"read": [1.0, 9.0, 2.0], "features": [3.0, 3.0, 3.5], "preprocess": [0.5, 0.25, 0.5]}
    seconds = {"stock": one, "tuned": one, "frame": one}
    seconds["features"] = {"handing over": [0.125], "preprocess": [0.75]}
    trained = [bench.train.Trained(4.0, 1.0, 0.75, 0.5), bench.train.Trained(6.0, 3.0, 0.85, 0.7)]
    every = {s.name: trained for s in bench.train.SYSTEMS if s.data != "device"}
    settings = bench.train.Settings(LRS, 16_384)
    assert [bench.train.extreme_batch(rows) for rows in (42_760_000, 1_000)] == [204_800, 4_096]  # the article's size
    records = {r["system"]: r for r in bench.bench_e2e.records_of(seconds, every, settings, 1_000)}
    stages = {"read": 2.0, "features": 3.0, "preprocess": 0.5, "train": 5.0, "predict": 2.0}
    assert records["stock"]["stages"] == stages
    assert records["+ features"]["stages"] == {**stages, "features": 3.125, "preprocess": 0.75}
    assert records["stock"]["mrr_mean"] == pytest.approx(0.6)
    assert records["stock"]["mrr_sd"] == pytest.approx(np.std([0.5, 0.7], ddof=1), abs=1e-5)
    assert records["stock"]["auc_sd"] == pytest.approx(np.std([0.75, 0.85], ddof=1), abs=1e-5)
    assert records["+ extreme batch, LAMB"]["lr"] == pytest.approx(0.06)
    assert records["+ loader"]["lr"] == 0.01
    assert records["+ batch of 8,192, momentum scaled"]["lr"] == pytest.approx([0.02 * 2**0.5, 0.08 * 2**0.5], abs=1e-6)
    assert records["+ data on the device"]["stages"] == records["+ extreme batch, LAMB"]["stages"]


def test_the_learning_rate_with_the_smallest_loss_is_taken(bench, sides, monkeypatch):
    losses = {0.01: 0.4, 0.03: float("inf"), 0.1: 0.3, 0.3: 0.5}
    monkeypatch.setattr(bench.train, "_loss", lambda system, to, settings: losses[settings.lrs[system.rule]])
    ours = sides["ours"]
    found = bench.train.tune(ours.frame, shown=ours.time, grids={"lamb": tuple(losses)}, extreme=8_192, device="cpu")
    assert found == {"lamb": 0.1}
