"""The whole check on an NVIDIA GPU, beside goals and floors: ``make gpu``, or this file; ``GPU.md`` says all of it.

Parts (``--cases``) are the names in ``PARTS``, each in a process of its own; records of parts that are not run stay in
the file of results. Fields besides those of ``_timing.py``: ``part``; ``floor_s``, ``floor_share`` and ``floor_of``,
the seconds below which it cannot be, the share of that speed that is reached, and the floor's work; ``error``, where a
part failed. ``--device cpu --small`` runs the same code on a CPU and writes beside, never ``GPU.md``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the simulation is a competition's, not the package's

import _gpu_programs as programs
import _gpu_report as report
import torch
from _gpu_trace import At, Floors
from _timing import ROOT, Options, Record, arguments, bare, command_line, cores, machine, now, read, write

NO_GPU = (
    "error: no GPU was found: {why}. This check needs an NVIDIA GPU with its driver, a CUDA build of torch and, for "
    "cuDF, the extra 'gpu' (GPU.md says how to bring them in); --device cpu --small tries its code on a CPU"
)
SIZES = ("small", "medium", "full")


class Part(NamedTuple):
    """A part of the check.

    Smoke, floors, copies, loader, steps, embeddings, memory and busy have the seconds that an H100 with 16 cores took;
    the others' are guesses.
    """

    run: str  # its module and function
    wants: str  # packages, with blanks between
    medium: float  # seconds at this size
    small: float
    sizes: dict[str, tuple[Any, ...]]  # argument → its values at the three sizes; the last one goes for those beyond


_NET, _TREES, _SERVE = "fastai", "fastai xgboost", "fastai onnx onnxruntime onnxscript"
_BATCHES = {"batches": ([128, 256], [4_096, 16_384, 65_536]), "count": (3, 40, 60)}  # count: batches that are timed
_EVERY = {"batches": ([128, 256], [4_096, 16_384, 65_536, 204_800, 819_200])}
_ENDS = _BATCHES | {"batches": ([128, 256], [4_096, 65_536])}
_ROWS, _MORE = {"rows": (2_000, 4_000_000)}, {"rows": (2_000, 4_000_000, 10_000_000)}
_HUGE = {"rows": (20_000, 2_000_000, 20_000_000), "bs": (64, 16_384)}
_COPIES = {"rows": (4_000, 1_000_000), "bs": (512, 16_384), "batches": (5, 50)}
_SERVED = {"rows": (2_000, 20_000), "batch": (256, 16_384), "calls": (3, 300)}
_SESSIONS = {"count": (600, 50_000, 500_000), "items": (300, 20_000, 50_000)}
_FLOORS = {"size": (1 << 22, 1 << 30), "side": (256, 8_192), "repeats": (3, 20)}
_TESTS = {"tests": (["tests/_core/test_environment.py"], None, [])}
# A first read of files took seven times the second.
_FILES = {"repeats": (1, 3), "more": (["--lr", "adamw=0.01,lamb=0.03"], [])}
_CLICKS = {"more": (["--batches", "128,256", "--rules", "AdamW"], [])}
PARTS = {  # in the order of ``--minutes``
    "smoke": Part("parts.smoke", _NET, 40, 60, {"rows": (2_000, 20_000)}),
    "floors": Part("trace.floors", "", 12, 8, _FLOORS),
    "suite": Part("programs.suite", "pytest hypothesis", 300, 45, _TESTS),
    "copies": Part("training.copies", _TREES, 40, 20, _COPIES),
    "loader": Part("training.loader", _NET, 25, 15, _MORE | _EVERY),
    "steps": Part("training.steps", _NET, 60, 25, _MORE | _BATCHES | {"repeats": (1, 1, 3)}),
    "e2e": Part("programs.end_to_end", _TREES, 240, 120, _FILES),
    "embeddings": Part("training.embeddings", _NET, 60, 15, _ROWS | _BATCHES),
    "placement": Part("programs.placement", _NET, 120, 20, _HUGE),
    "trees": Part("parts.trees", "xgboost", 30, 12, _MORE | {"rounds": (10, 200, 500)}),
    "serving": Part("parts.serving", _SERVE, 60, 40, _SERVED),
    "memory": Part("parts.memory", "", 15, 8, {}),
    "busy": Part("training.business", _NET, 45, 25, _ROWS | _ENDS),
    "sessions": Part("parts.sessions", _NET, 60, 25, _SESSIONS),
    "dask": Part("parts.dask", "dask distributed", 60, 25, {"rows": (5_000, 1_000_000, 10_000_000)}),
    "extreme": Part("programs.extreme", _NET, 600, 60, _CLICKS),
}
_LAST = 10.0  # seconds of ``--minutes`` that are left for the end
_FULL_E2E = 8.0  # times the middle size's seconds


def run_part(name: str, options: Options, floors: Floors | None) -> list[Record]:
    """Return the records of one part, as far as it came before it was interrupted."""
    device = torch.device(options.device)
    device = torch.device("cuda", device.index or 0) if device.type == "cuda" else device  # as tensors have it
    part, size = PARTS[name], SIZES.index(options.size)
    module, _, function = part.run.partition(".")
    run = getattr(importlib.import_module(f"_gpu_{module}"), function)
    found: list[Record] = []
    with contextlib.suppress(KeyboardInterrupt):
        for one in run(At(device, floors, options), **{n: v[min(size, len(v) - 1)] for n, v in part.sizes.items()}):
            found.append(one)
    return found


def in_child(name: str, options: Options, limit: float, size: str) -> list[Record]:
    """Run a part in a process of its own, so that what it leaves on the device, or breaks there, stays its own."""
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
    found = [{**one, "part": name, "size": size, "took": seconds} for one in read(made)]
    made.unlink(missing_ok=True)
    if status == 0 and found:
        return found
    ended = f"was stopped after {seconds:.0f} s" if status in programs.STOPPED else f"ended with {status}"
    return [*found, _blank(name, seconds, error=f"{ended}: {programs.last_lines(log)}", status=status)]


def _blank(name: str, seconds: float | None = None, **more: Any) -> Record:
    return bare(name, "fastrec", 0, seconds, part=name, **more)


def _why_not(name: str, options: Options, left: float | None, estimate: float) -> str | None:
    wants, on_cuda = PARTS[name].wants.split(), options.device.startswith("cuda")
    gone = [n for n in (*wants, *["dask_cudf"] * (name == "dask" and on_cuda)) if importlib.util.find_spec(n) is None]
    if name == "serving" and on_cuda and not gone:
        import onnxruntime

        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            gone.append("onnxruntime-gpu")
    if gone:
        return f"no {', '.join(gone)}"
    if left is not None and estimate > left:
        return f"its {estimate:.0f} s are more than the {max(left, 0):.0f} s that were left"
    return None


# The command ---------------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str] | None = None) -> Options:
    given = list(sys.argv[1:] if argv is None else argv)
    options = arguments(
        __doc__,
        given,
        device=("cuda", "cuda, cuda:1, or cpu to try the code"),
        small=(False, "small sizes, and a few tests for the suite"),
        minutes={"type": float, "help": "for all parts together, in the order of their worth"},
        size={"choices": SIZES, "help": "of a part, by itself"},
        cases=(tuple(PARTS), "parts"),
        rows={"type": int, "help": "of e2e and extreme (default: 40,000,000)"},
        seeds={"type": int, "help": "nets of each kind there (default: 5)"},
        tests=("", "what the suite runs (default: all tests)"),
        jobs=(min(14, cores()), "processes of the test-suite"),
        limit=(6.0 * 3_600, "seconds after which a program is stopped"),
        data=(ROOT / "runs/e2e-data", "where simulated files are kept"),
        out={"type": Path, "help": "the file of results (default: runs/bench/gpu.json)"},
        report={"type": Path, "help": "default: GPU.md; of a CPU, beside --out"},
        part={"choices": [*PARTS], "help": "the one that this process runs"},
        part_out={"type": Path, "help": "where its records go"},
        begun={"type": float, "help": "when it was started"},
    )
    on_cpu = torch.device(options.device).type == "cpu"
    options.given = given
    options.size = options.size or ("small" if options.small else "full" if options.minutes is None else "medium")
    at = SIZES.index(options.size)
    options.rows = options.rows or (10_000, 4_000_000, 40_000_000)[at]
    options.seeds = options.seeds or (1, 1, 5)[at]
    options.out = options.out or ROOT / "runs/bench" / ("gpu-cpu.json" if on_cpu else "gpu.json")
    options.report = options.report or (options.out.with_suffix(".md") if on_cpu else ROOT / "GPU.md")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts, write records and report; 1 where a part failed, 2 where there is no GPU."""
    options = parse(argv)
    if torch.device(options.device).type == "cuda" and not torch.cuda.is_available():
        cuda = torch.version.cuda
        why = "is a build without CUDA" if cuda is None else f"for CUDA {cuda} sees no device"
        print(NO_GPU.format(why=f"torch {torch.__version__} {why}"), file=sys.stderr)
        return 2
    if options.part is not None:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        options.limit = max(1.0, options.limit - (time.time() - options.begun))  # imports took some of it
        write(options.part_out, run_part(options.part, options, Floors.of(read(options.out))))
        return 0
    return _all(options)


def _end_with(parent: int) -> None:
    """End this part, with all that it has started, once the check itself has been killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _write(options: Options, about: Record, name: str, found: list[Record]) -> None:
    """Put the records of one part in the place of its earlier ones, and write the report of all."""
    others = [r for r in read(options.out) if r.get("part") not in (name, "machine")]
    order = [*PARTS]
    records = sorted([*others, *found], key=lambda r: order.index(r["part"]))
    write(options.out, [{**about, "part": "machine"}, *records])
    report.write(options.report, read(options.out))


def _all(options: Options) -> int:
    failed, date = False, now()
    about = programs.machine(torch.device(options.device), command=command_line(), date=date, host=machine())
    print(f"{about['system']}, driver {about['driver']}, {about['host']}, {date}", flush=True)
    begun, plan = time.monotonic(), [(name, options.size) for name in options.cases]
    if options.size == "medium" and "e2e" in options.cases:
        plan.append(("e2e", "full"))
    for name, size in plan:
        there = [r for r in read(options.out) if r.get("part") == name]
        good = [] if any(r.get("error") or isinstance(r.get("skipped"), str) for r in there) else there
        estimate = PARTS[name].small if size == "small" else PARTS[name].medium
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
        for one in found:
            seconds = "" if one["seconds"] is None else f"{one['seconds']:12.6f} s"
            shown = one.get("error") or one.get("notes") or one.get("floor_of") or ""
            print(f"  {name:10s} {one['case']:34s} {one['system']:26s} {seconds}  {shown}", flush=True)
        errors = any(r.get("error") for r in found)
        failed = failed or errors
        if not (errors and good and left is not None):
            _write(options, about, name, found)
        if found[-1].get("status") == programs.INTERRUPTED:
            print("stopped: the same command goes on with what is missing", flush=True)
            break
    print(f"written: {os.path.relpath(options.out)}, {os.path.relpath(options.report)}")
    return int(failed)


if __name__ == "__main__":
    for one in (signal.SIGINT, signal.SIGTERM):  # a script's background jobs ignore the first, and so would the parts
        signal.signal(one, signal.default_int_handler)
    sys.exit(main())
