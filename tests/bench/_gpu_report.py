"""``GPU.md``: what ``make gpu`` does, goals and figures side by side, floors, and what everything ran on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from _gpu_goals import GOALS, Goal
from _timing import Record

PARTS = {  # in the order of ``--minutes``
    "smoke": "every stage once on few rows, beside the same on the CPU",
    "floors": "what the machine itself reaches: copies, products of matrices, kernels",
    "suite": "the whole test-suite with `FASTREC_DEVICE=cuda`, over cuDF's frames too where cuDF is installed",
    "copies": "copies to the host on the way frame → features → TabularFrame → loader → net → XGBoost, counted by "
    "torch's profiler",
    "loader": "rows a second of a shuffled epoch, rows on the device",
    "steps": "a training step in float32, bf16, fp16 and by CUDA graphs, batches of 4,096 to 65,536",
    "e2e": "from raw files to scores beside pandas and stock fastai (`make bench-e2e`), 40 M rows",
    "embeddings": "the share of a step that the embeddings' backward pass takes",
    "placement": "a table of 20 M rows of which a twentieth has room on the device, beside one that is all there",
    "trees": "XGBoost: rows a second that it grows on and that it predicts",
    "serving": "an exported run by onnxruntime's CUDA provider: from raw columns, and the net alone from codes",
    "memory": "that running out of memory names what was being done, how much was wanted and what to lower",
    "busy": "how busy the device is while it trains, before and after, with pictures",
    "sessions": "an epoch of SASRec and GRU4Rec over every event, and the best items of every session",
    "dask": "features of a dask-cuDF frame beside those of one cuDF frame",
    "extreme": "AUC at batches of 4,096 to 819,200 (`make bench-extreme`), 40 M rows, five seeds",
}
_NOT_YET = """**Nothing of fastrec has been run on a GPU yet.** The code for GPUs is written and shares the CPU's; the
check below is ready, and its own code has run on a CPU with small sizes. Goals stand without figures until then: the
figures that exist are of CPUs (`BENCHMARKS.md`), and counts on a stand-in for a GPU (the last section). To get figures
of a GPU, call `make gpu GPU_ARGS='--minutes 30'` on a machine that has one; it writes them into this file.
"""
_ON_CPU = """**This run was on a CPU, at small sizes: it shows that the check works, and nothing about a GPU.**
"""
_HOW = """## The check

    make gpu                                  # everything; hours, most of them for the two runs of 40 M rows
    make gpu GPU_ARGS='--cases suite,copies'  # some parts; records of the others stay, the report is of all
    make gpu GPU_ARGS='--rows 4000000 --seeds 1'
    make gpu GPU_ARGS='--minutes 30'          # the parts in the order of their worth, as far as the time goes
    make gpu GPU_PYTHON=python3               # a Python that has everything already, instead of a new environment
    make gpu DEVICE=cpu GPU_ARGS='--small'    # the same code on a CPU; writes runs/bench/gpu-cpu.json and .md

It needs an NVIDIA GPU with its driver (for CUDA 13: 580 or newer), a CUDA build of torch, and for cuDF Linux. Without a
GPU it says so and ends with an error. Each part runs in a process of its own, one after the other; a part that fails is
named in the report and stops no other. Records are in `runs/bench/gpu.json`, written after every part.

`--minutes` runs the parts in the order below, at middle sizes: 4 M rows instead of 40 M, and of the suite the folders
that work on the device. A part is begun if its estimate fits into the time that is left. It has a limit: 20 s before,
it is interrupted, to write what it has; then it is ended with all that it has started. If time is left, the end-to-end
benchmark runs at 40 M rows. The quotes are needed: make would take a bare `30` for a target. A part whose packages are
not installed is skipped and named.

Ctrl-C, or `kill`, stops the check: the part that runs writes what it has, within 20 s. If the check is killed outright,
its part is, too; the records of earlier parts are kept. The same command again goes on with what is missing.

"""
_PACKAGES = """## Bringing the packages in

`make gpu` makes `.venv-gpu` from `constraints-gpu.txt` with the extras `dev` and `gpu` (cuDF, dask-cuDF, cuML). By
hand:

    python3 -m venv .venv-gpu
    .venv-gpu/bin/pip install -c constraints-gpu.txt -e '.[dev,gpu]'

A machine without a package index takes wheels that another one has fetched, of the same Python and platform:

    pip download -d wheels -c constraints-gpu.txt '.[dev,gpu]' 'setuptools>=77'         # there
    pip install --no-index --find-links wheels -c constraints-gpu.txt -e '.[dev,gpu]'   # here
    make gpu GPU_PYTHON=python3

The constraints name RAPIDS 26.10, which wants pandas 3.0, and a torch for CUDA 13: without a named torch pip prefers
an old one for CUDA 12. Calls of cuDF are checked on CPUs, too, against RAPIDS' recorded names and arguments
(`tests/rapids/`); `python -m tests.rapids.signatures FOLDER 26.10` records them anew from unpacked wheels.

The part `serving` wants `onnxruntime-gpu` in place of `onnxruntime`, with `onnx` and `onnxscript`.

Where torch with CUDA is installed already, leave it out of what is carried over. Without cuDF everything else is
measured all the same: frames are pandas', their columns are copied to the device once.

## Memory

torch and RAPIDS each keep what they have freed. `fastrec.scale.share_pool()` gives both one pool of RMM; call it
before anything is on the GPU. CUDA graphs are not used then, as their memory would be given to others. Copies
of batches wait for the steps that were queued before them.

Products of float32 matrices are exact, without TF32: `torch.set_float32_matmul_precision("high")` allows it.

What does not fit raises `fastrec.errors.DeviceMemoryError`: what was being done, bytes asked for and free, and what to
lower.
"""


_OWN = ("Goals", "Floors", "Before and after", "All figures", "The check", "Bringing the packages in", "Memory")


def report(records: Sequence[Record], image: str | None = None) -> str:
    """The whole file.

    Args:
        records: of all parts that have run; none: of none.
        image: file name of the pictures, if there are any.
    """
    about = next((r for r in records if r["case"] == "machine"), None)
    on_gpu = about is not None and about["on_gpu"]
    intro = _NOT_YET if about is None else "" if on_gpu else _ON_CPU
    parts = [
        "# fastrec on a GPU\n",
        intro,
        _machine(about) if about else "",
        _goals(records, judged=on_gpu),
        _failed(records),
        _floors(records),
        f"## Before and after\n\n![What the device does]({image})\n" if image else "",
        _figures(records),
        _HOW + "Parts (`--cases`):\n\n" + "".join(f"- `{name}`: {text}.\n" for name, text in PARTS.items()),
        _PACKAGES,
    ]
    return "\n".join(part for part in parts if part)


def _machine(one: Record) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
    lines = [
        ("device", one["system"]),
        ("driver", one["driver"] or "none"),
        ("CUDA", one["cuda"] or "none"),
        ("host", one["host"]),
        ("versions", versions),
        ("command", one["command"]),
        ("date", one["date"]),
    ]
    return "```\n" + "".join(f"{name:9s}{text}\n" for name, text in lines) + "```\n"


# Tables --------------------------------------------------------------------------------------------------------------


def verdict(goal: Goal, records: Sequence[Record], *, judged: bool) -> str:
    """``met``, ``missed``, or why neither can be said."""
    failed = any(r.get("error") for r in records if r.get("part") == goal.part)
    found = goal.find([r for r in records if r.get("part") == goal.part])
    if found is None:
        return "failed to run" if failed else "not run"
    if not judged:
        return "not on a GPU"
    if not found.full:
        return "not at full size"
    return "met" if goal.met(found.value) else "missed"


def _goals(records: Sequence[Record], *, judged: bool) -> str:
    lines = ["## Goals\n", "| what | goal | figure | | share of the floor | notes |", "|:---|---:|---:|:---|---:|:---|"]
    for goal in GOALS:
        found = goal.find([r for r in records if r.get("part") == goal.part])
        sign = "≥" if goal.side == "at least" else "≤"
        figure = "" if found is None else goal.form.format(found.value)
        share = "" if found is None or found.share is None else f"{found.share:.0%} of {found.floor}"
        limit, said = goal.form.format(goal.limit), verdict(goal, records, judged=judged)
        notes = "" if found is None else _cell(found.notes)
        lines.append(f"| {goal.name} | {sign} {limit} | {figure} | {said} | {share} | {notes} |")
    return "\n".join(lines) + "\n"


def _failed(records: Sequence[Record]) -> str:
    failed = [r for r in records if r.get("error")]
    lines = [f"- `{r['part']}`: {_cell(r['error'])}" for r in failed]
    text = "Parts that failed:\n\n" + "\n".join(lines) + "\n" if lines else ""
    left = [f"- `{r['part']}`: {_cell(r['skipped'])}" for r in records if r.get("skipped")]
    return text + ("\n" if text and left else "") + ("Parts left out:\n\n" + "\n".join(left) + "\n" if left else "")


def _floors(records: Sequence[Record]) -> str:
    own = [r for r in records if r.get("part") == "floors" and "per_second" in r]
    if not own:
        return ""
    lines = ["## Floors\n", "| measured | speed |", "|:---|---:|", *(f"| {r['system']} | {r['notes']} |" for r in own)]
    return "\n".join(lines) + "\n"


def _figures(records: Sequence[Record]) -> str:
    own = [r for r in records if r.get("part") not in (None, "floors", "machine")]
    own = [r for r in own if not r.get("error") and not r.get("skipped")]
    if not own:
        return ""
    head = "| case | system | rows | seconds | rows/s | ratio | floor, s | share | notes |"
    lines = ["## All figures\n", head, "|:---|:---|" + "---:|" * 6 + ":---|"]
    for r in own:
        seconds = "" if r["seconds"] is None else f"{r['seconds']:.6g}"
        rate = "" if r["rows_per_s"] is None else f"{r['rows_per_s']:,}"
        ratio = "" if r["ratio"] is None else f"{r['ratio']:.2f}"
        floor = f"{r['floor_s']:.3g}" if "floor_s" in r else ""
        share = f"{r['floor_share']:.0%}" if "floor_share" in r else ""
        batch = f"batch {r['batch']:,}" if "batch" in r and "batch" not in r["case"] else ""
        notes = "; ".join(t for t in (batch, _cell(str(r.get("notes") or ""))) if t)
        cells = [r["case"], r["system"], f"{r['rows']:,}", seconds, rate, ratio, floor, share, notes]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def write(path: Path, records: Sequence[Record]) -> None:
    """Write the report, unless a crash comes between: then the old one stays. Sections by hand go to its end."""
    image = path.with_name(f"{path.stem}-profile.png")
    part = path.with_name(f".{path.name}.part")
    old = re.split("^(?=## )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:] if path.exists() else []
    by_hand = [section.strip() for section in old if section.partition("\n")[0].removeprefix("## ") not in _OWN]
    new = report(records, image.name if image.exists() else None)
    part.write_text("\n".join([new, *(f"{section}\n" for section in by_hand)]), encoding="utf-8")
    part.replace(path)
