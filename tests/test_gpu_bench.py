"""The check for GPUs at a small size on a CPU: what it counts, what it judges, and what it says where there is none."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "tests" / "bench"
NAMES = ("_gpu_trace", "_gpu_parts", "_gpu_programs", "_gpu_report", "_gpu_training")
CPU = torch.device("cpu")
ONE = {"case": "x", "system": "y", "rows": 1, "seconds": 1.0, "rows_per_s": 1, "ratio": None}


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        modules = {n.removeprefix("_gpu_"): importlib.import_module(n) for n in NAMES}
        yield SimpleNamespace(**modules, main=importlib.import_module("bench_gpu"))


@pytest.fixture(scope="module")
def floors(bench: SimpleNamespace) -> list[dict[str, Any]]:
    return [{**r, "part": "floors"} for r in bench.trace.floors(bench.trace.At(CPU), size=1 << 22, side=256, repeats=3)]


@pytest.fixture(scope="module")
def at(bench: SimpleNamespace, floors: list[dict[str, Any]]) -> Any:
    return bench.trace.At(CPU, bench.trace.Floors.of(floors))


# The trace -----------------------------------------------------------------------------------------------------------

COPY = "Memcpy DtoH (Device -> Pageable)"
EVENTS = [  # category, name, begin and duration in microseconds, bytes
    ("kernel", "gemm", 100.0, 30.0, None),
    ("kernel", "other stream", 110.0, 10.0, None),
    ("gpu_memcpy", COPY, 120.0, 20.0, 8),
    ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 10.0, 5.0, 5_000),
    ("gpu_memcpy", COPY, 200.0, 50.0, 4_000),
    ("gpu_memset", "Memset (Device)", 300.0, 1.0, 64),
    ("cpu_op", "aten::add", 0.0, 1.0, None),
]
TRACE = [{"cat": c, "name": n, "ts": t, "dur": d, "args": {"bytes": b} if b else {}} for c, n, t, d, b in EVENTS]
TRACE = {"traceEvents": [*TRACE, {"ph": "M", "name": "process_name"}]}


def test_events_come_by_time_and_host_operations_are_left_out(bench):
    events = bench.trace.read(TRACE)
    assert [e.start for e in events] == pytest.approx([1e-5, 1e-4, 1.1e-4, 1.2e-4, 2e-4, 3e-4])
    assert [e.size for e in bench.trace.to_host(events)] == [8, 4_000]
    # 5 alone, 100 to 140 by three that overlap, 50 and 1 alone
    assert bench.trace.busy(events) == pytest.approx(96e-6)
    assert bench.trace.busy([]) == 0


def test_large_copies_and_too_many_of_them_are_beyond_what_is_allowed(bench):
    def of(stage: str, events: list[Any], rows: int = 1_000, batches: int = 1) -> dict[str, Any]:
        return bench.training.counted(stage, events, rows=rows, batches=batches, seconds=1.0)

    events = bench.trace.read(TRACE)
    one = of("features", events)
    assert (one["copies"], one["large"], one["largest_bytes"], one["beyond"]) == (2, 1, 4_000, 1)
    assert of("features", events, rows=4_001)["beyond"] == 0
    assert of("XGBoost", events)["beyond"] == 0  # the scores
    assert of("frame", [bench.trace.Event(COPY, 0.0, 1e-6)])["beyond"] == 1  # of unknown size
    small = [bench.trace.Event(COPY, i, 1e-6, 4) for i in range(20)]
    assert of("loader", small, batches=10)["beyond"] == 20 - 1 - 2
    assert of("net", small, batches=18)["beyond"] == 0


def test_copies_of_every_stage_from_a_frame_to_trees_are_counted(bench, monkeypatch):
    """A CPU has no copies of its own: beside what each stage did stands one that holds a byte a row."""
    profiled, sizes = bench.training.profiled, {stage: 800 + i for i, stage in enumerate(bench.training.ALLOWED)}
    waiting = iter(sizes.values())

    def with_a_copy(run: Any, device: torch.device) -> list[Any]:
        return [*profiled(run, device), bench.trace.Event(COPY, 0.0, 1e-6, next(waiting))]

    monkeypatch.setattr(bench.training, "profiled", with_a_copy)
    found = list(bench.training.copies(bench.trace.At(CPU), rows=800, bs=128, batches=2))
    assert {r["system"]: r["largest_bytes"] for r in found} == sizes
    assert all(set(r) >= set(ONE) and r["copies"] == r["large"] == 1 and r["events"] > 1 for r in found)
    # only the trees' scores may go to the host
    assert {r["system"]: r["beyond"] for r in found} == {stage: int(stage != "XGBoost") for stage in sizes}


# Figures -------------------------------------------------------------------------------------------------------------


def test_floors_are_read_back_from_their_records(bench, floors):
    found = bench.trace.Floors.of(floors)
    assert found.copy == next(r["rows"] / r["seconds"] for r in floors if r["system"] == "copy on the device")
    assert set(found.flops) == {"float32", "bfloat16"}
    assert 0 < next(r["seconds"] for r in floors if r["system"] == "kernels") < 1e-2
    assert bench.trace.Floors.of(floors[1:]) is None
    half = bench.trace.share({"seconds": 2.0}, 1.0, "x")
    assert half == {"seconds": 2.0, "floor_s": 1.0, "floor_share": 0.5, "floor_of": "x"}


def test_loader_and_steps_run_on_a_cpu(bench, at, tmp_path):
    loaded = list(bench.training.loader(at, rows=1_000, batches=[100]))
    assert [r["system"] for r in loaded] == ["fastrec", "bare index_select"]
    assert loaded[0]["row_bytes"] == 4 * bench.training.frame(1_000, CPU).packed.layout.words
    steps = list(bench.training.steps(at, rows=1_000, batches=[64], count=2, repeats=1))
    by = {r["system"]: r for r in steps}
    assert list(by) == ["float32", "bf16", "float32, graph", "bf16, graph"]
    assert by["float32"]["speedup"] == 1.0
    assert by["bf16"]["speedup"] == pytest.approx(by["float32"]["seconds"] / by["bf16"]["seconds"], rel=0.01)
    assert "notes" not in by["float32, graph"]  # its code ran, with a stand-in for the graph
    assert all(set(r) >= set(ONE) and r["floor_share"] > 0 for r in (*loaded, *steps))
    (share,) = bench.training.embeddings(at, rows=1_000, batches=[64], count=2)
    assert 0 < share["share"] < 1
    found = list(bench.training.business(at, rows=500, batches=[64], count=2, image=tmp_path / "a.md"))
    assert [r["system"] for r in found] == ["float32", "bf16, graph"]
    assert all(0 < r["busy"] <= 1 for r in found)
    assert (tmp_path / "a-profile.png").read_bytes().startswith(b"\x89PNG")


def test_sessions_dask_and_memory_run_on_a_cpu(bench, at):
    (one,) = bench.parts.memory(at)
    assert one["named"] is True
    found = list(bench.parts.sessions(at, count=200, items=50))
    assert [r["case"] for r in found].count("sessions, an epoch") == 4
    assert all(set(r) >= set(ONE) and r["rows_per_s"] > 0 for r in found)
    pytest.importorskip("dask.dataframe")
    whole, cut = bench.parts.dask(at, rows=1_000)
    assert [whole["same"], cut["same"]] == [True, True]


def test_the_smoke_names_what_differs(bench, at, monkeypatch):
    calls = iter([1.0, 2.0])

    def broken(device: torch.device, rows: int) -> Any:
        raise RuntimeError("misaligned address")

    stages = {
        "table": lambda device, rows: np.array([next(calls)]),
        "net": broken,
        "same": lambda device, rows: np.array([float("nan"), 1.0]),
    }
    monkeypatch.setattr(bench.parts, "STAGES", stages)
    differs, failed, same = bench.parts.smoke(at, rows=10)
    assert (differs["wrong"], differs["notes"]) == (True, "1 of 1 values differ, first 1, on the CPU 2")
    assert failed["notes"].startswith("RuntimeError: misaligned address (test_gpu_bench.py:")
    assert (same["wrong"], same["notes"]) == (False, "as on the CPU")


# The test-suite ------------------------------------------------------------------------------------------------------

SAID = """[gw0] [  1%] PASSED tests/a.py::fine[with blanks]
tests/a.py::bad
[gw1] [  2%] FAILED tests/a.py::bad
[gw0] [  3%] SKIPPED tests/a.py::left
tests/b.py::fine[with blanks] PASSED                     [  1%]
tests/b.py::bad FAILED                                   [  2%]
tests/b.py::left SKIPPED (not here)                      [  3%]
tests/a.py::begun
FAILED tests/a.py::bad - ValueError: no"""


def test_a_suite_is_counted_by_its_words_as_far_as_it_came(bench, tmp_path):
    """By those of two workers, and of one."""
    (tmp_path / "x.txt").write_text(SAID)
    one = bench.programs.suite_record(bench.programs.outcomes(tmp_path / "x.txt"), "cuda", 124, 10.0)
    assert (one["passed"], one["failed"], one["skipped"], one["rows"]) == (2, 2, 2, 6)
    assert one["failures"] == ["tests/a.py::bad", "tests/b.py::bad"]
    assert "2 skipped" in bench.report.report([{**one, "part": "suite"}])


# Goals and report ----------------------------------------------------------------------------------------------------


def system(name: str, ratio: float, **stages: float) -> dict[str, Any]:
    shared = {"case": "end to end", "system": name, "rows": 40_000_000, "ratio": ratio, "part": "e2e"}
    scores = {"mrr_mean": 0.61, "mrr_sd": 0.001, "seconds": sum(stages.values()), "rows_per_s": 1}
    return {**shared, **scores, "stages": stages}


STAGES = {"read": 40.0, "features": 100.0, "preprocess": 60.0, "train": 90.0, "predict": 10.0}
E2E = [
    system("stock", 1.0, **STAGES),
    system("stock, tuned pandas", 1.5, **STAGES),
    system("+ loader", 2.0, **STAGES),
    system("+ data on the device", 33.3, read=1.0, features=5.0, preprocess=1.0, train=2.0, predict=0.5),
]
MACHINE = {**ONE, "case": "machine", "system": "a GPU, 80 GiB", "part": "machine", "host": "a host", "on_gpu": True}
MACHINE |= {"versions": {"torch": "2.11"}, "driver": "580.1", "cuda": "13.0", "command": "x", "date": "2026-01-01"}


def steps(batch: int, *speedups: float) -> list[dict[str, Any]]:
    ways = zip(("bf16", "float32, graph", "bf16, graph"), speedups, strict=True)
    shared = {"case": f"training step, batch {batch:,}", "batch": batch, "part": "steps"}
    return [{**shared, "system": way, "speedup": speedup} for way, speedup in ways]


STEPS = [*steps(4_096, 1.2, 1.5, 3.0), *steps(65_536, 1.9, 1.0, 1.7)]
STEPS.append({**STEPS[-1], "speedup": 9.0, "notes": "no graph: lists"})
SMOKE = {"case": "smoke", "system": "net", "wrong": True, "notes": "CUDA error", "part": "smoke"}
LOADER = {"case": "loader, batch 4,096", "system": "fastrec", "rows_per_s": 299_000_000, "part": "loader"}
PLANTED = {"case": "planted CTR", "train_rows": 36_000_000, "part": "extreme", "batch": 204_800}
LOST = [
    {**PLANTED, "system": "LAMB", "auc_lost": 0.002},
    {**PLANTED, "system": "CowClip", "auc_lost": 0.0004},
    {**PLANTED, "system": "CowClip", "auc_lost": 0.1, "batch": 819_200},
    {**PLANTED, "system": "CowClip", "auc_lost": None, "case": "planted CTR, rate"},
]
NET = {"case": "serving, batch 16,384", "system": "net, codes", "batch": 16_384, "part": "serving"}
NET |= {"rows_per_s": 1_600_000, "p99_seconds": 0.011}
RAW = {**NET, "system": "graph, raw columns", "rows_per_s": 300_000, "p99_seconds": 0.06}
CACHED = {"case": "train", "system": "cached", "rows": 20_000_000, "speed": 0.85, "hit_rate": 0.86, "part": "placement"}
WHOLE = {**ONE, "case": "features, dask", "system": "one frame", "same": True, "part": "dask", "ratio": 1.0}
SUITE = {"case": "test-suite", "system": "x", "part": "suite", "notes": "", "cudf": True, "failed": 0, "passed": 9}
TESTS, TIMES = "tests that fail on the device", "end to end over stock fastai"
DASK, SERVED = "features of dask-cuDF that differ from cuDF's", "a net served, batches of 16,384"
PLACED, MRR = "speed with a twentieth of a table on the device", "MRR lost to stock fastai"
FIGURES = [
    (E2E, "40 M rows, from files to a trained net", (9.0, "met")),
    (E2E, TIMES, (33.3, "met")),
    (E2E, "preprocessing over TabularPandas", (60.0, "met")),
    (E2E, "features over pandas", (20.0, "met")),
    (E2E, MRR, (0.0, "met")),
    ([*E2E[:-1], {**E2E[-1], "mrr_mean": 0.6}], MRR, (0.01, "missed")),
    ([{**r, "rows": 10_000} for r in E2E], TIMES, (33.3, "not at full size")),
    ([{**r, "part": "suite"} for r in E2E], TIMES, (None, "not run")),
    (STEPS, "16 bits over float32, by graphs, to batch 65,536", (1.7, "met")),  # 3.0 / 1.5 and 1.7 / 1.0
    (STEPS, "CUDA graphs over float32, every batch to 65,536", (1.7, "met")),
    ([SMOKE], "stages that fail, or differ from the CPU", (1, "missed")),
    (LOST, "AUC lost at batch 204,800", (0.0004, "met")),
    ([LOADER], "loader, rows on the device", (299.0, "missed")),
    ([RAW, NET], SERVED, (1.6, "met")),
    ([RAW, NET], "the same, 99th percentile", (11.0, "missed")),
    ([{**NET, "batch": 256}], SERVED, (1.6, "not at full size")),
    ([CACHED], PLACED, (0.85, "met")),
    ([{**CACHED, "rows": 20_000}], PLACED, (0.85, "not at full size")),
    ([WHOLE, {**WHOLE, "system": "8 partitions", "same": False, "ratio": 3.0}], DASK, (1, "missed")),
    ([WHOLE], DASK, (None, "not run")),  # one frame alone shows nothing
    ([{**SUITE, "status": 0}], TESTS, (0, "met")),
    ([{**SUITE, "failed": 2, "status": 1}], TESTS, (2, "missed")),
    ([{**SUITE, "status": 124}], TESTS, (1, "missed")),
    ([{**SUITE, "passed": 0, "status": 0}], TESTS, (1, "missed")),
]


@pytest.mark.parametrize(("records", "name", "expected"), FIGURES)
def test_goals_find_their_figures(bench, records, name, expected):
    (goal,) = (g for g in bench.report.GOALS if g.name == name)
    figure = goal.figure(records)
    assert (figure and round(figure.value, 6), bench.report.verdict(goal, records, judged=True)) == expected
    if figure:
        assert bench.report.verdict(goal, records, judged=False) == "not on a GPU"


def test_the_report_has_every_goal_figures_and_what_failed(bench, floors):
    empty = bench.report.report([])
    assert "Nothing of fastrec has been run on a GPU yet" in empty
    assert all(f"| {g.name} |" in empty for g in bench.report.GOALS)
    assert empty.count("| not run |") == len(bench.report.GOALS)
    failed = {**ONE, "case": "busy", "part": "busy", "error": "ended with 1"}
    shared = {"floor_share": 0.11, "floor_s": 0.5, "floor_of": "0.8 GB"}
    quick = {**ONE, **shared, "case": "loader, batch 8", "system": "fastrec", "part": "loader", "batch": 8}
    full = bench.report.report([MACHINE, *floors, *E2E, failed, quick], "x.png")
    for said in (
        "| ≥ 30.0× | 33.3× | met |",
        "| ≥ 300 M rows/s | 0 M rows/s | missed | 11% of 0.8 GB | batch 8 |",
        "Parts that failed:\n\n- `busy`: ended with 1\n",
        "| ≥ 85 % |  | failed to run |",
        "driver   580.1",
        "(x.png)",
        "| kernels | ",
        "| end to end | + data on the device | 40,000,000 | 9.5 | 1 | 33.30 |  |  |  |",
        "| loader, batch 8 | fastrec | 1 | 1 | 1 |  | 0.5 | 11% |  |",
    ):
        assert said in full
    assert "run on a GPU yet" not in full
    assert "on a CPU, at small sizes" in bench.report.report([{**MACHINE, "on_gpu": False}])


def test_the_repository_s_report_has_every_goal_and_part(bench):
    text = (ROOT / "GPU.md").read_text(encoding="utf-8")
    assert all(f"| {g.name} |" in text for g in bench.report.GOALS)
    assert "make gpu" in text
    told = re.findall(r"^- `(\w+)`: ", text.split("Parts (`--cases`):")[1].split("\n## ")[0], flags=re.MULTILINE)
    assert told == list(bench.main.PARTS)


@pytest.mark.parametrize("by_hand", ["", "\n## By hand\n\n### Below\n\n| a |\n"])
def test_sections_by_hand_outlive_a_new_report(by_hand, bench, tmp_path):
    path = tmp_path / "GPU.md"
    path.write_text(f"# fastrec on a GPU\n\nold\n{by_hand}\n## Goals\n\nold\n")
    for records in ([], [MACHINE, *E2E], [MACHINE]):
        bench.report.write(path, records)
        assert path.read_text() == bench.report.report(records) + by_hand


# The command ---------------------------------------------------------------------------------------------------------


def test_without_a_gpu_one_line_says_what_is_needed(bench, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = ["--out", str(tmp_path / "a.json"), "--report", str(tmp_path / "A.md")]
    assert bench.main.main(["--cases", "floors", *out]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no GPU was found" in said
    assert "needs an NVIDIA GPU with its driver, a CUDA build of torch" in said
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit):
        bench.main.main(["--cases", "floors,flours", *out])
    assert "there is no 'flours'; there are smoke, floors, suite" in capsys.readouterr().err


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="this machine has a GPU")
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_says_so_before_it_installs_anything():
    done = subprocess.run(["make", "gpu"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode
    assert "no NVIDIA GPU was found" in done.stderr
    assert not done.stdout.strip()


def test_a_part_that_fails_is_recorded_and_stops_no_other(bench, monkeypatch, tmp_path):
    def run(command: Any, *, log: Path, **how: Any) -> tuple[int, float]:
        name = command[command.index("--part") + 1]
        log.write_text("first\nCUDA error: misaligned address\n")
        if name == "floors":
            return 1, 0.1
        Path(command[-1]).write_text(json.dumps([ONE]))
        return 0, 0.1

    monkeypatch.setattr(bench.main.programs, "program", run)
    monkeypatch.setattr(bench.main.report, "write", lambda *args: None)
    out = tmp_path / "gpu.json"
    assert bench.main.main(["--device", "cpu", "--small", "--cases", "floors,memory", "--out", str(out)]) == 1
    machine, floors, memory = json.loads(out.read_text())
    assert machine["case"] == "machine"
    assert floors["error"] == "ended with 1: first | CUDA error: misaligned address"
    assert memory["case"] == "x"


def test_other_benchmarks_are_asked_for_the_sizes_given(bench, monkeypatch, tmp_path):
    asked = []

    def run(command: Any, **how: Any) -> tuple[int, float]:
        asked.append(command)
        assert how["device"] == "cuda"
        Path(command[command.index("--out") + 1]).write_text(json.dumps([{"case": "planted", "notes": "n"}]))
        return len(asked) - 1, 1.0

    monkeypatch.setattr(bench.programs, "program", run)
    options = bench.main.parse(["--rows", "40000000", "--seeds", "5", "--out", str(tmp_path / "gpu.json")])
    (one,) = bench.main.run_part("e2e", options, None)
    assert one["notes"] == "n"
    (tmp_path / "gpu-extreme.log").write_text("stopped\n")
    (one,) = bench.main.run_part("extreme", options, None)
    assert one["notes"] == "n; bench_extreme.py ended with 1 before it was done: stopped"
    for command in asked:
        assert command[command.index("--rows") + 1] == "40000000"
        assert command[command.index("--seeds") + 1] == "5"
    taken = importlib.import_module("bench_e2e").parse(asked[0][1:])  # its own command line takes it
    assert (taken.repeats, taken.format, taken.device) == (3, "parquet", "cuda")


# A limit of time ------------------------------------------------------------------------------------------------------

PARENT = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=False)
pathlib.Path("pid").write_text(str(child.pid))
try:
    time.sleep(600)
except KeyboardInterrupt:
    pathlib.Path("said").write_text("what there was")
"""


def test_a_program_over_its_limit_writes_what_it_has_and_takes_its_own_along(bench, tmp_path):
    how = {"device": "cpu", "log": tmp_path / "log", "folder": tmp_path, "group": True}
    status, seconds = bench.programs.program(["-c", PARENT], limit=8.0, **how)
    assert status == 124
    assert seconds < 60
    assert (tmp_path / "said").read_text() == "what there was"
    assert ends(int((tmp_path / "pid").read_text()))


def ends(pid: int) -> bool:
    """Whether a process is gone within some seconds."""
    state = Path("/proc") / str(pid) / "stat"
    for _ in range(100):
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


SLOW = """
import os, pathlib, time
import pytest

def test_passes():
    pass

def test_fails():
    raise ValueError("a planted one")

def test_takes_long():
    pathlib.Path(__file__).with_name("pid").write_text(str(os.getpid()))
    time.sleep(600)
"""


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_check_that_is_stopped_keeps_what_it_has_and_leaves_no_process(way, tmp_path):
    """As a script's background job, which ignores SIGINT from its start."""
    out, tests, pid = tmp_path / "gpu.json", tmp_path / "test_slow.py", tmp_path / "pid"
    tests.write_text(SLOW)
    out.write_text(json.dumps([earlier := {**ONE, "part": "memory", "size": "small"}]))
    command = [sys.executable, str(BENCH / "bench_gpu.py"), "--device", "cpu", "--small", "--minutes", "20"]
    command += ["--cases", "suite,memory,floors", "--tests", str(tests), "--jobs", "1", "--out", str(out)]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        check = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    while not (pid.exists() and pid.read_text()):
        assert check.poll() is None
        time.sleep(0.1)
    check.send_signal(way)
    check.communicate(timeout=100)
    assert ends(int(pid.read_text()))
    found = json.loads(out.read_text())
    assert earlier in found
    suite = [r for r in found if r["part"] == "suite"]
    if way == signal.SIGKILL:
        assert check.returncode == -way
        assert [r["error"] for r in suite] == ["the check was stopped while it ran"]
    else:
        assert check.returncode == 1
        assert (suite[0]["passed"], suite[0]["failed"]) == (1, 1)
        assert suite[0]["failures"][0].endswith("test_slow.py::test_fails")
        assert "stopped after" in suite[1]["error"]
    assert "floors" not in {r["part"] for r in found}
    assert "`suite`: " in out.with_suffix(".md").read_text()


@pytest.fixture
def timed(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the check with parts that take no time; gives those that were begun, with their limits."""
    begun: list[tuple[str, str, float]] = []
    ends: dict[str, str] = {}
    clock = [0.0]

    def in_child(name: str, options: Any, limit: float, size: str) -> list[dict[str, Any]]:
        waiting = next(r for r in json.loads(options.out.read_text()) if r["part"] == name)
        assert name in ends or "stopped while it ran" in waiting.get("error", "") or "took" in waiting
        begun.append((name, size, limit))
        clock[0] += 50
        one = {**ONE, "part": name}
        return [{**one, "error": ends[name]}] if name in ends else [{**one, "size": size, "took": 50.0}]

    monkeypatch.setattr(bench.main, "in_child", in_child)
    monkeypatch.setattr(bench.main, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(bench.main.importlib.util, "find_spec", lambda name: None if name in ends else object())
    out = tmp_path / "gpu.json"

    def run(minutes: float, cases: str, **wrong: str) -> list[tuple[str, str, float]]:
        begun.clear()
        ends.clear()
        ends.update(wrong)
        argv = ["--device", "cpu", "--minutes", str(minutes), "--cases", cases, "--out", str(out)]
        run.failed = bench.main.main(argv)
        run.records = {r["part"]: r for r in json.loads(out.read_text())}
        return list(begun)

    run.report = out.with_suffix(".md")
    return run


def test_parts_are_begun_as_far_as_the_time_goes_and_gone_on_with(timed):
    cases = "smoke,floors,copies,loader,steps"
    assert [b[0] for b in timed(3, cases)] == ["smoke", "floors", "copies"]  # 50 s each, of 180
    assert timed.records["steps"]["skipped"] == "its 60 s are more than the 20 s that were left"
    assert "Parts left out:\n\n- `loader`: its 25 s are more than" in timed.report.read_text()
    again = timed(5, cases)
    assert [b[0] for b in again] == ["loader", "steps"]
    assert [b[2] for b in again] == [75.0, 180.0]  # thrice their estimates
    assert timed(5, cases) == []
    assert timed(6, "suite")[0][2] == 350.0  # what is left
    assert timed.failed == 0


def test_what_failed_is_tried_again_and_what_cannot_be_imported_is_named(timed):
    assert [b[0] for b in timed(30, "floors,memory", floors="was stopped after 9 s")] == ["floors", "memory"]
    assert timed.failed == 1
    assert [b[0] for b in timed(30, "floors,memory,loader", fastai="")] == ["floors"]
    assert timed.records["loader"]["skipped"] == "no fastai"
    assert timed.failed == 0


def test_with_time_left_the_whole_way_runs_at_its_full_size(timed):
    assert [b[:2] for b in timed(9, "e2e")] == [("e2e", "medium"), ("e2e", "full")]  # 8 x 50 s
    assert timed(9, "e2e") == []


def test_a_full_size_that_fails_leaves_the_middle_s_figures(timed):
    assert [b[:2] for b in timed(5, "e2e")] == [("e2e", "medium")]
    assert [b[:2] for b in timed(9, "e2e", e2e="ended with 1")] == [("e2e", "full")]
    assert timed.records["e2e"]["size"] == "medium"
    assert timed.failed == 1
