"""What runs in processes of its own: the test-suite, the end-to-end benchmark and that of extreme batches."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _timing import ROOT, Record, bare

_LISTED = 20  # failures, and messages of them, that a record names
OVER_LIMIT, INTERRUPTED = STOPPED = 124, 130  # as timeout(1) and a shell have it
_GRACE = 20.0  # seconds that an interrupted program has to write what it has


def program(
    command: Sequence[str], *, device: str, limit: float, log: Path, folder: Path = ROOT, group: bool = False
) -> tuple[int, float]:
    """Run a program of this repository; what it says goes to a file.

    It is interrupted in time to write what it has, then ended.

    Args:
        command: its arguments, after Python's own.
        device: for ``FASTREC_DEVICE``.
        limit: seconds after which it is stopped.
        log: the file.
        folder: where it runs.
        group: it gets a process group of its own, of which nothing is left once it has ended.

    Returns:
        Its exit status, or ``OVER_LIMIT``, or ``INTERRUPTED`` where this process was; and the seconds that it ran.
    """
    env = {**os.environ, "FASTREC_DEVICE": device, "PYTHONUNBUFFERED": "1"}
    env["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT), env.get("PYTHONPATH", "")) if p)
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        running = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=env,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=group,
        )
        try:
            status = running.wait(limit - min(_GRACE, limit / 4))
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
            status = INTERRUPTED if isinstance(why, KeyboardInterrupt) else OVER_LIMIT
            running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(min(_GRACE, limit / 4))
        finally:
            if group:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
            running.kill()
            running.wait()
    return status, time.perf_counter() - begun


def last_lines(log: Path, count: int = 3) -> str:
    """The end of a program's words, on one line, without this machine's folders."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-count:]).replace(str(ROOT), ".").replace(str(Path.home()), "~")[-400:]


# The test-suite ------------------------------------------------------------------------------------------------------


def suite(device: str, *, tests: Sequence[str], jobs: int, limit: float, folder: Path) -> list[Record]:
    """All tests with ``FASTREC_DEVICE`` set, and how many passed, failed and were skipped."""
    report, log = folder / "gpu-tests.xml", folder / "gpu-tests.txt"
    report.unlink(missing_ok=True)
    parallel = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
    if importlib.util.find_spec("pytest_timeout"):  # one test that hangs is not to take all of the time
        parallel += ["--timeout", "120", "--timeout-method", "thread"]
    command = ["-m", "pytest", "-v", *parallel, "--tb=short", f"--junitxml={report.resolve()}", *tests]
    status, seconds = program(command, device=device, limit=limit, log=log)
    found = outcomes(report) if report.exists() else told(log)  # pytest may not end in time to write its report
    if not found:
        raise RuntimeError(f"the test-suite ended with {status} before a test had ended: {last_lines(log)}")
    return [suite_record(found, device, status, seconds)]


def outcomes(report: Path) -> list[tuple[str, str, str]]:
    """Outcome, name and message of every test in pytest's report in JUnit's form."""
    tags = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    found = []
    for case in ET.parse(report).iter("testcase"):
        if case.get("name"):  # one that was interrupted has none
            own = next((one for one in case if one.tag in tags), None)
            kind, message = ("passed", "") if own is None else (tags[own.tag], own.get("message") or "")
            found.append((kind, f"{case.get('classname', '')}::{case.get('name')}", message))
    return found


def told(log: Path) -> list[tuple[str, str, str]]:
    """The same from the words of ``pytest -v``, without messages: a line for each test that has ended."""
    words = {"passed": ("PASSED", "XPASS"), "failed": ("FAILED", "ERROR"), "skipped": ("SKIPPED", "XFAIL")}
    kinds = {word: kind for kind, own in words.items() for word in own}
    found = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        name = next((word for word in line.split() if "::" in word), None)
        kind = next((word for word in line.split() if word in kinds), None)
        if name and kind and line.rstrip().endswith(("]", name)):
            found[name] = kinds[kind]
    return [(kind, name, "") for name, kind in found.items()]


def suite_record(found: Sequence[tuple[str, str, str]], device: str, status: int, seconds: float) -> Record:
    """A record of all outcomes."""
    names = [name for kind, name, _ in found if kind == "failed"]
    counts = {kind: sum(one[0] == kind for one in found) for kind in ("passed", "failed", "skipped")}
    why = Counter(message.splitlines()[0][:160] for kind, _, message in found if kind == "failed" and message)
    return bare(
        "test-suite", f"FASTREC_DEVICE={device}", len(found), round(seconds, 1), **counts,
        status=status, failures=names[:_LISTED], messages=dict(why.most_common(_LISTED)),
        cudf=importlib.util.find_spec("cudf") is not None,
        notes=f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped",
    )  # fmt: skip


# The other benchmarks ------------------------------------------------------------------------------------------------


def end_to_end(
    device: str, *, rows: int, seeds: int, repeats: int, more: Sequence[str], limit: float, folder: Path
) -> list[Record]:
    """``bench_e2e.py`` and its records, the report beside its file of results."""
    out, log = folder / "gpu-e2e.json", folder / "gpu-e2e.log"
    out.unlink(missing_ok=True)
    command = [str(ROOT / "tests/bench/bench_e2e.py"), "--rows", str(rows), "--seeds", str(seeds)]
    command += ["--repeats", str(repeats), "--device", device, "--format", "parquet", "--out", str(out.resolve())]
    command += ["--report", str((folder / "gpu-e2e.md").resolve()), *more]
    return _read("bench_e2e.py", command, out, log, device=device, limit=limit)


def extreme(
    device: str, *, rows: int, seeds: int, resume: bool, more: Sequence[str], limit: float, folder: Path
) -> list[Record]:
    """``bench_extreme.py`` on planted clicks and its records; with ``resume`` those of a stopped run are taken up."""
    out, log = folder / "gpu-extreme.json", folder / "gpu-extreme.log"
    if not resume:
        out.unlink(missing_ok=True)
    command = [str(ROOT / "tests/bench/bench_extreme.py"), "--cases", "planted", "--rows", str(rows)]
    command += ["--tune-rows", str(max(1, min(rows // 2, 4_000_000))), "--seeds", str(seeds), "--resume"]
    command += ["--out", str(out.resolve()), *more]
    return _read("bench_extreme.py", command, out, log, device=device, limit=limit)


def placement(device: str, *, rows: int, bs: int, limit: float, folder: Path) -> list[Record]:
    """``bench_embeddings.py`` on a device that has room for a twentieth of the rows, and its records."""
    out, log = folder / "gpu-placement.json", folder / "gpu-placement.log"
    out.unlink(missing_ok=True)
    command = [str(ROOT / "tests/bench/bench_embeddings.py"), "--device", device, "--rows", str(rows)]
    command += ["--bs", str(bs), "--warm", "10", "--batches", "50", "--out", str(out.resolve())]
    found = _read("bench_embeddings.py", command, out, log, device=device, limit=limit)
    return [{**r, "rows_per_s": round(r["batch"] / r["seconds"]), "ratio": None} for r in found]


def _read(name: str, command: Sequence[str], out: Path, log: Path, *, device: str, limit: float) -> list[Record]:
    status, _ = program(command, device=device, limit=limit, log=log)
    if not out.exists():
        raise RuntimeError(f"{name} ended with {status} and without results: {last_lines(log)}")
    found = json.loads(out.read_text(encoding="utf-8"))
    if status:
        note = f"{name} ended with {status} before it was done: {last_lines(log, 1)}"
        found = [{**one, "notes": "; ".join(t for t in (one.get("notes"), note) if t)} for one in found]
    return found


# Out of memory, and the machine --------------------------------------------------------------------------------------


def out_of_memory(device: torch.device) -> list[Record]:
    """Ask for more rows than any device holds, and look at what the error says."""
    from fastrec.errors import DeviceMemoryError
    from fastrec.tabular.packed import Layout, Packed

    rows, begun, said = 1 << 46, time.perf_counter(), None
    try:
        Packed.empty(rows, Layout(4, 4), device=device)
    except DeviceMemoryError as error:
        said = error
    named = said is not None and f"{rows:,} packed rows" in str(said) and bool(said.remedy)
    seconds = time.perf_counter() - begun
    return [bare("out of memory", "fastrec", rows, seconds, named=named, notes=str(said)) | {"rows_per_s": None}]


def machine(device: torch.device, command: str, date: str, host: str) -> Record:
    """What everything ran on: the device, its driver, versions, the command and the date."""
    versions = {}
    for name in ("torch", "cudf-cu13", "dask-cudf-cu13", "cuml-cu13", "rmm-cu13", "cupy-cuda13x", "xgboost", "fastai"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    about: dict[str, Any] = {"device": "CPU", "on_gpu": False, "driver": None, "cuda": torch.version.cuda}
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        about |= {"device": f"{found.name}, {found.total_memory / 2**30:.0f} GiB", "on_gpu": True, "driver": _driver()}
        about["capability"] = f"{found.major}.{found.minor}"
    return bare("machine", about["device"], 0, **about, host=host, versions=versions, command=command, date=date)


def _driver() -> str | None:
    path = Path("/proc/driver/nvidia/version")
    if path.exists():
        return path.read_text().splitlines()[0].removeprefix("NVRM version:").strip()
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip().splitlines()[0]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return None
