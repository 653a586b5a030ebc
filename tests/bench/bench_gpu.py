"""The whole check on an NVIDIA GPU, beside goals and floors: ``make gpu``, or this file.

Parts (``--cases``), each in a process of its own, are the names in ``_PARTS``; ``_gpu_report.py`` says what each is.
Records of parts that are not run stay in the file of results, and the report is of all of them. Fields besides those of
``_timing.py``: ``part``; ``floor_s``, ``floor_share`` and ``floor_of``, the seconds below which it cannot be, the share
of that speed that is reached, and what the floor is made of; ``error``, where a part failed.

``--minutes 30`` runs the parts in the order of their worth, at middle sizes: a part is begun if its estimate fits into
what is left, is ended on a limit, and is left out if an earlier call has its records. ``--device cpu --small`` runs the
same code on a CPU at small sizes; it writes beside, never ``GPU.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the simulation is a competition's, not the package's

import _gpu_programs as programs
import _gpu_report as report
import torch
from _gpu_floors import Floors
from _timing import ROOT, Record, bare, command_line, cores, heading

Options = argparse.Namespace
NO_GPU = (
    "error: no GPU was found: {why}. This check needs an NVIDIA GPU with its driver, a CUDA build of torch and, for "
    "cuDF, the extra 'gpu' (GPU.md says how to bring them in); --device cpu --small tries its code on a CPU"
)


# Parts ---------------------------------------------------------------------------------------------------------------


def run_part(name: str, options: Options, floors: Floors | None) -> list[Record]:
    """The records of one part."""
    device = torch.device(options.device)
    numbered = torch.device("cuda", device.index or 0) if device.type == "cuda" else device  # as tensors have it
    return _PARTS[name][0](options, numbered, floors)


def _of(options: Options, small: Any, medium: Any, full: Any) -> Any:
    """What fits the size of the run."""
    return {"small": small, "medium": medium, "full": full}[options.size]


def _smoke(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _gpu_smoke

    return gathered(_gpu_smoke.measure(device, rows=_of(options, 2_000, 20_000, 20_000)))


def gathered(records: Iterable[Record]) -> list[Record]:
    """The records of a part, as far as it came before it was interrupted."""
    found: list[Record] = []
    with contextlib.suppress(KeyboardInterrupt):
        for one in records:
            found.append(one)
    return found


def _suite(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    few = ["tests/_core/test_environment.py"]
    rooms = ("device", "rapids", "segments", "table", "features", "tabular", "models", "losses", "optim", "training")
    some = [*few, *(f"tests/{room}" for room in rooms if (ROOT / "tests" / room).is_dir())]
    tests = options.tests.split() or _of(options, few, some, [])
    how = {"jobs": options.jobs, "limit": options.limit, "folder": options.out.parent}
    return programs.suite(options.device, tests=tests, **how)


def _floors(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _gpu_floors

    return gathered(_gpu_floors.measure(device, small=options.small))


def _copies(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _gpu_transfers

    rows, bs, batches = _of(options, (4_000, 512, 5), (1_000_000, 16_384, 50), (1_000_000, 16_384, 50))
    return gathered(_gpu_transfers.measure(device, rows=rows, bs=bs, batches=batches))


def _memory(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    return programs.out_of_memory(device)


def _sizes(options: Options) -> tuple[list[int], int]:
    """Batch sizes, and how many batches are timed."""
    return _of(options, ([128, 256], 3), ([4_096, 16_384, 65_536], 40), ([4_096, 16_384, 65_536], 60))


def _frame(options: Options, device: torch.device, medium: int, full: int) -> object:
    import _gpu_training

    return _gpu_training.frame(_of(options, 2_000, medium, full), device)


def _loader(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _gpu_training

    to = _frame(options, device, 4_000_000, 10_000_000)
    batches = [*_sizes(options)[0], *([] if options.small else [204_800, 819_200])]
    return gathered(_gpu_training.loader(to, device, floors, batches=batches))


def _steps(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _gpu_training

    batches, count = _sizes(options)
    # an epoch's end is not to be among the batches that are timed
    repeats, to = _of(options, 1, 1, 3), _frame(options, device, 4_000_000, 10_000_000)
    return gathered(_gpu_training.steps(to, device, floors, batches=batches, count=count, repeats=repeats))


def _embeddings(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _gpu_training

    batches, count = _sizes(options)
    return list(
        _gpu_training.embeddings(_frame(options, device, 4_000_000, 4_000_000), device, batches=batches, count=count)
    )


def _busy(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _gpu_trace
    import _gpu_training

    batches, count = _sizes(options)
    to, sizes = _frame(options, device, 4_000_000, 4_000_000), [batches[0], batches[-1]]
    ways = ["float32", "bf16, graph"]
    found, lanes = _gpu_training.business(to, device, batches=sizes, count=count, ways=ways)
    _gpu_trace.picture(options.report.with_name(f"{options.report.stem}-profile.png"), lanes)
    return found


def _placement(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    rows, bs = _of(options, (20_000, 64), (2_000_000, 16_384), (20_000_000, 16_384))
    return programs.placement(options.device, rows=rows, bs=bs, limit=options.limit, folder=options.out.parent)


def _sessions(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _gpu_sessions

    sessions, items = _of(options, (600, 300), (50_000, 20_000), (500_000, 50_000))
    return gathered(_gpu_sessions.measure(device, sessions=sessions, items=items))


def _dask(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _gpu_cluster

    return gathered(_gpu_cluster.measure(device, rows=_of(options, 5_000, 1_000_000, 10_000_000)))


def _serving(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _gpu_serving

    rows, calls = (2_000, 3) if options.small else (20_000, 300)
    batch = 256 if options.small else _gpu_serving.BATCH
    return gathered(_gpu_serving.measure(device, floors, rows=rows, batch=batch, calls=calls))


def _trees(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _gpu_trees

    rows, rounds = _of(options, (2_000, 10), (4_000_000, 200), (10_000_000, 500))
    return gathered(_gpu_trees.measure(device, rows=rows, rounds=rounds))


def _e2e(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    import _e2e_data
    from _gpu_floors import share

    small = ["--lr", "adamw=0.01,lamb=0.03"] if options.small else []
    found = programs.end_to_end(
        options.device,
        rows=options.rows,
        seeds=options.seeds,
        repeats=_of(options, 1, 3, 3),  # a first read took seven times the second
        more=["--data", str(options.data.resolve()), *small, *options.e2e_args.split()],
        limit=options.limit,
        folder=options.out.parent,
    )
    if floors is None:
        return found
    size = _e2e_data.log_file(_e2e_data.files(options.rows, root=options.data, parquet=True)).stat().st_size
    what = f"the files' {size / 1e9:.2f} GB on the way to the device"
    return [share(one, size / floors.to_device, what) for one in found]


def _extreme(options: Options, device: torch.device, floors: Floors | None) -> list[Record]:
    small = ["--batches", "128,256", "--rules", "AdamW"] if options.small else []
    how = {"rows": options.rows, "seeds": options.seeds, "limit": options.limit, "folder": options.out.parent}
    how["resume"] = options.resume
    return programs.extreme(options.device, more=[*small, *options.extreme_args.split()], **how)


# name → what runs; the packages that it wants; seconds at the middle and at the small size. At the middle size smoke,
# floors, copies, loader, steps, embeddings, memory and busy are as an H100 with 16 cores took them, rounded up; the
# others are guesses. The order is that of ``--minutes``.
_Part = Callable[[Options, torch.device, Floors | None], list[Record]]
_NET, _TREES = ("fastai",), ("fastai", "xgboost")
_PARTS: dict[str, tuple[_Part, tuple[str, ...], float, float]] = {
    "smoke": (_smoke, _NET, 40, 60),
    "floors": (_floors, (), 12, 8),
    "suite": (_suite, ("pytest", "hypothesis"), 300, 45),
    "copies": (_copies, _TREES, 40, 20),
    "loader": (_loader, _NET, 25, 15),
    "steps": (_steps, _NET, 60, 25),
    "e2e": (_e2e, _TREES, 240, 120),
    "embeddings": (_embeddings, _NET, 60, 15),
    "placement": (_placement, _NET, 120, 20),
    "trees": (_trees, ("xgboost",), 30, 12),
    "serving": (_serving, ("fastai", "onnx", "onnxruntime", "onnxscript"), 60, 40),
    "memory": (_memory, (), 15, 8),
    "busy": (_busy, _NET, 45, 25),
    "sessions": (_sessions, _NET, 60, 25),
    "dask": (_dask, ("dask", "distributed"), 60, 25),
    "extreme": (_extreme, _NET, 600, 60),
}
_LAST = 10.0  # seconds of ``--minutes`` that are left for the end
_FULL_E2E = 8.0  # times the middle size's seconds


# Records -------------------------------------------------------------------------------------------------------------


def in_child(name: str, options: Options, limit: float, size: str) -> list[Record]:
    """A part in a process of its own, so that what it leaves on the device, or breaks there, stays its own."""
    made, log = options.out.with_name(f"gpu-{name}.part.json"), options.out.with_name(f"gpu-{name}.part.log")
    made.unlink(missing_ok=True)
    # what the part itself starts has less, so that there is time to read its results
    inner = max(limit - 30, limit / 2)
    command = [str(Path(__file__).resolve()), *options.given, "--size", size, "--limit", f"{inner:.0f}"]
    begun = time.perf_counter()
    how = {"device": options.device, "limit": limit, "log": log, "folder": Path.cwd(), "group": True}
    command += ["--part", name, "--begun", str(time.time()), "--part-out", str(made.resolve())]
    status, _ = programs.program(command, **how)
    seconds = round(time.perf_counter() - begun, 1)
    found = json.loads(made.read_text(encoding="utf-8")) if made.exists() else []
    made.unlink(missing_ok=True)
    found = [{**one, "part": name, "size": size, "took": seconds} for one in found]
    if status == 0 and found:
        return found
    ended = f"was stopped after {seconds:.0f} s" if status in programs.STOPPED else f"ended with {status}"
    failed = _blank(name, seconds, error=f"{ended}: {programs.last_lines(log)}", status=status)
    return [*found, failed]


def _blank(name: str, seconds: float | None = None, **more: Any) -> Record:
    return bare(name, "fastrec", 0, seconds, part=name, **more)


def _why_not(name: str, options: Options, left: float | None, estimate: float) -> str | None:
    """Why a part is not begun."""
    gone = [n for n in _PARTS[name][1] if importlib.util.find_spec(n) is None]
    if name == "dask" and options.device.startswith("cuda") and importlib.util.find_spec("dask_cudf") is None:
        gone.append("dask_cudf")
    if name == "serving" and options.device.startswith("cuda") and not gone:
        import onnxruntime

        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            gone.append("onnxruntime-gpu")
    if gone:
        return f"no {', '.join(gone)}"
    if left is not None and estimate > left:
        return f"its {estimate:.0f} s are more than the {max(left, 0):.0f} s that were left"
    return None


def read(path: Path) -> list[Record]:
    """The records that are there already."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def keep(path: Path, records: list[Record]) -> None:
    """Write the records, so that a crash leaves the old ones or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def shown(path: Path) -> str:
    """A path as one reads it from here."""
    return os.path.relpath(path)


def say(name: str, records: list[Record]) -> None:
    """One line a record."""
    for one in records:
        seconds = "" if one["seconds"] is None else f"{one['seconds']:12.6f} s"
        shown = one.get("error") or one.get("notes") or one.get("floor_of") or ""
        print(f"  {name:10s} {one['case']:34s} {one['system']:26s} {seconds}  {shown}", flush=True)


# The command ---------------------------------------------------------------------------------------------------------


def parse(argv: list[str] | None = None) -> Options:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try the code")
    parser.add_argument("--small", action="store_true", help="small sizes, and a few tests for the suite")
    parser.add_argument(
        "--minutes", type=float, default=None, help="for all parts together, in the order of their worth"
    )
    parser.add_argument("--size", choices=["small", "medium", "full"], default=None, help=argparse.SUPPRESS)
    parser.add_argument("--cases", default=",".join(_PARTS), help="parts, with commas between")
    parser.add_argument("--rows", type=int, default=None, help="of e2e and extreme (default: 40,000,000)")
    parser.add_argument("--seeds", type=int, default=None, help="nets of each kind there (default: 5)")
    parser.add_argument("--tests", default="", help="what the suite runs (default: all tests)")
    parser.add_argument("--jobs", type=int, default=min(14, cores()), help="processes of the test-suite")
    parser.add_argument("--e2e-args", default="", help="further arguments of bench_e2e.py")
    parser.add_argument("--extreme-args", default="", help="further arguments of bench_extreme.py")
    parser.add_argument("--resume", action="store_true", help="go on with extreme where a run was stopped")
    parser.add_argument("--limit", type=float, default=6 * 3_600, help="seconds after which a program is stopped")
    parser.add_argument("--data", type=Path, default=ROOT / "runs/e2e-data", help="where simulated files are kept")
    parser.add_argument("--out", type=Path, default=None, help="the file of results (default: runs/bench/gpu.json)")
    parser.add_argument("--report", type=Path, default=None, help="default: GPU.md; of a CPU, beside --out")
    parser.add_argument("--report-only", action="store_true", help="write the report of the records that are there")
    parser.add_argument("--part", choices=[*_PARTS], help=argparse.SUPPRESS)
    parser.add_argument("--part-out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.given = sys.argv[1:] if argv is None else argv
    options.cases = [c for c in options.cases.split(",") if c]
    if unknown := [c for c in options.cases if c not in _PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(_PARTS)}")
    on_cpu = torch.device(options.device).type == "cpu" and not options.report_only
    options.size = options.size or ("small" if options.small else "full" if options.minutes is None else "medium")
    options.rows = options.rows or _of(options, 10_000, 4_000_000, 40_000_000)
    options.seeds = options.seeds or _of(options, 1, 1, 5)
    options.out = options.out or ROOT / "runs/bench" / ("gpu-cpu.json" if on_cpu else "gpu.json")
    options.report = options.report or (options.out.with_suffix(".md") if on_cpu else ROOT / "GPU.md")
    return options


def why_no_gpu(device: str) -> str | None:
    """Why the check cannot run on a device, or None."""
    if torch.device(device).type != "cuda" or torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    return f"torch {torch.__version__} for CUDA {torch.version.cuda} sees no device"


def main(argv: list[str] | None = None) -> int:
    """Run the parts, write records and report; 1 where a part failed, 2 where there is no GPU."""
    options = parse(argv)
    if options.report_only:
        report.write(options.report, read(options.out))
        print(f"written: {shown(options.report)}")
        return 0
    if why := why_no_gpu(options.device):
        print(NO_GPU.format(why=why), file=sys.stderr)
        return 2
    if options.part is not None:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        options.limit = max(1.0, options.limit - (time.time() - options.begun))  # imports took some of it
        found = run_part(options.part, options, Floors.of(read(options.out)))
        keep(options.part_out, found)
        return 0
    return _all(options)


def _end_with(parent: int) -> None:
    """End this part, with all that it has started, once the check itself has been killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _write(options: Options, about: Record, name: str, found: list[Record]) -> None:
    """Records of one part in the place of its earlier ones, and the report of all."""
    others = [r for r in read(options.out) if r.get("part") not in (name, "machine")]
    order = [*_PARTS]
    records = sorted([*others, *found], key=lambda r: order.index(r["part"]))
    keep(options.out, [{**about, "part": "machine"}, *records])
    report.write(options.report, read(options.out))


def _all(options: Options) -> int:
    host = next(t for t in heading([]).splitlines() if t.startswith("machine")).removeprefix("machine").strip()
    date, failed = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), False
    about = programs.machine(torch.device(options.device), " ".join(command_line()), date, host)
    print(f"{about['system']}, driver {about['driver']}, {host}, {date}", flush=True)
    begun, plan = time.monotonic(), [(name, options.size) for name in options.cases]
    if options.size == "medium" and "e2e" in options.cases:
        plan.append(("e2e", "full"))
    for name, size in plan:
        there = [r for r in read(options.out) if r.get("part") == name]
        good = [] if any(r.get("error") or isinstance(r.get("skipped"), str) for r in there) else there
        estimate = _PARTS[name][3 if size == "small" else 2]
        left = None if options.minutes is None else 60 * options.minutes - (time.monotonic() - begun) - _LAST
        if (name, size) == ("e2e", "full") and left is not None:
            estimate = _FULL_E2E * next((r["took"] for r in good), estimate)
        if left is not None and any(r.get("size") in (size, "full") for r in good):
            print(f"  {name:10s} its records are there already", flush=True)
            continue
        if why := _why_not(name, options, left, estimate):
            if not there:
                _write(options, about, name, [_blank(name, skipped=why)])
            print(f"  {name:10s} skipped: {why}", flush=True)
            continue
        limit = options.limit if left is None else min(options.limit, max(30.0, 3 * estimate), left)
        if not good:
            _write(options, about, name, [_blank(name, error="the check was stopped while it ran")])
        found = in_child(name, options, limit, size)
        say(name, found)
        errors = any(r.get("error") for r in found)
        failed = failed or errors
        if not (errors and good and left is not None):
            _write(options, about, name, found)
        if found[-1].get("status") == programs.INTERRUPTED:
            print("stopped: the same command goes on with what is missing", flush=True)
            break
    print(f"written: {shown(options.out)}, {shown(options.report)}")
    return int(failed)


if __name__ == "__main__":
    for one in (signal.SIGINT, signal.SIGTERM):  # a script's background jobs ignore the first, and so would the parts
        signal.signal(one, signal.default_int_handler)
    sys.exit(main())
