"""What runs in processes of its own: the test-suite, the end-to-end benchmark, extreme batches and placement."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from _gpu_trace import At, share
from _timing import ROOT, Options, Record, bare, read, versions

_LISTED = 20  # failures that a record names
OVER_LIMIT, INTERRUPTED = STOPPED = 124, 130  # as timeout(1) and a shell have it
_GRACE = 20.0  # seconds that an interrupted program has to write what it has
ROOMS = ("device", "rapids", "segments", "table", "features", "tabular", "models", "losses", "optim", "training")


def program(
    command: Sequence[str], *, device: str, limit: float, log: Path, folder: Path = ROOT, group: bool = False
) -> tuple[int, float]:
    """Run a program of this repository with ``FASTREC_DEVICE`` set; what it says goes to the file ``log``.

    It is interrupted in time to write what it has before ``limit`` seconds are over, then ended. With ``group`` it has
    a process group of its own, of which nothing is left once it has ended.

    Returns:
        its exit status, ``OVER_LIMIT`` or ``INTERRUPTED`` (where this process was), and the seconds that it ran.
    """
    env = {**os.environ, "FASTREC_DEVICE": device, "PYTHONUNBUFFERED": "1"}
    env["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT), env.get("PYTHONPATH", "")) if p)
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        how = {"cwd": folder, "env": env, "stdout": file, "stderr": subprocess.STDOUT, "start_new_session": group}
        running = subprocess.Popen([sys.executable, *command], **how)
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
    """Return the end of a program's output, on one line, without this machine's folders."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-count:]).replace(str(ROOT), ".").replace(str(Path.home()), "~")[-400:]


# The test-suite ------------------------------------------------------------------------------------------------------


def suite(at: At, *, tests: Sequence[str] | None) -> Iterator[Record]:
    """Run tests with ``FASTREC_DEVICE`` set, those of ``ROOMS`` if None; how many passed, failed and were skipped."""
    o, log = at.options, at.options.out.parent / "gpu-tests.txt"
    if tests is None:
        tests = ["tests/_core/test_environment.py"]
        tests += [f"tests/{room}" for room in ROOMS if (ROOT / "tests" / room).is_dir()]
    more = ["-n", str(o.jobs), "--dist", "worksteal"] if o.jobs > 1 else []
    if importlib.util.find_spec("pytest_timeout"):  # one test that hangs is not to take all of the time
        more += ["--timeout", "120", "--timeout-method", "thread"]
    command = ["-m", "pytest", "-v", *more, "--tb=short", *(o.tests.split() or tests)]
    status, seconds = program(command, device=o.device, limit=o.limit, log=log)
    found = outcomes(log)
    if not found:
        raise RuntimeError(f"the test-suite ended with {status} before a test had ended: {last_lines(log)}")
    yield suite_record(found, o.device, status, seconds)


def outcomes(log: Path) -> dict[str, str]:
    """Read ``passed``, ``failed`` or ``skipped`` of each ended test from the lines of ``pytest -v``."""
    kinds = {"PASSED": "passed", "XPASS": "passed", "FAILED": "failed", "ERROR": "failed"}
    kinds |= {"SKIPPED": "skipped", "XFAIL": "skipped"}
    any_kind = "|".join(kinds)
    of_worker = re.compile(rf"\[gw\d+\] \[ *\d+%\] (?P<kind>{any_kind}) (?P<name>\S+::.+)")
    of_one = re.compile(rf"(?P<name>\S+::.+?) (?P<kind>{any_kind})\b.*\[ *\d+%\]")
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    found = filter(None, (of_worker.fullmatch(line.strip()) or of_one.fullmatch(line.strip()) for line in lines))
    return {match["name"]: kinds[match["kind"]] for match in found}


def suite_record(found: dict[str, str], device: str, status: int, seconds: float) -> Record:
    counts = {kind: sum(one == kind for one in found.values()) for kind in ("passed", "failed", "skipped")}
    more = {"status": status, "failures": [name for name, kind in found.items() if kind == "failed"][:_LISTED]}
    more["cudf"] = importlib.util.find_spec("cudf") is not None
    more["notes"] = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return bare("test-suite", f"FASTREC_DEVICE={device}", len(found), round(seconds, 1), **counts, **more)


# The other benchmarks ------------------------------------------------------------------------------------------------


def other(name: str, o: Options, *words: object) -> list[Record]:
    """Run ``bench_<name>.py`` and return its records."""
    folder = o.out.parent
    out, log, file = folder / f"gpu-{name}.json", folder / f"gpu-{name}.log", f"bench_{name}.py"
    out.unlink(missing_ok=True)
    command = [str(ROOT / "tests/bench" / file), *map(str, words), "--out", str(out.resolve())]
    status, _ = program(command, device=o.device, limit=o.limit, log=log)
    if not out.exists():
        raise RuntimeError(f"{file} ended with {status} and without results: {last_lines(log)}")
    found = read(out)
    if status:
        note = f"{file} ended with {status} before it was done: {last_lines(log, 1)}"
        found = [{**one, "notes": "; ".join(t for t in (one.get("notes"), note) if t)} for one in found]
    return found


def end_to_end(at: At, *, repeats: int, more: Sequence[str] = ()) -> Iterator[Record]:
    o, words = at.options, ["--repeats", repeats, "--device", at.options.device, "--format", "parquet"]
    words += ["--data", o.data.resolve(), "--report", (o.out.parent / "gpu-e2e.md").resolve()]
    found = other("e2e", o, "--rows", o.rows, "--seeds", o.seeds, *words, *more)
    if at.floors is None:
        yield from found
        return
    import _e2e_data

    size = _e2e_data.log_file(_e2e_data.files(o.rows, root=o.data, parquet=True)).stat().st_size
    what = f"the files' {size / 1e9:.2f} GB on the way to the device"
    yield from (share(one, size / at.floors.to_device, what) for one in found)


def extreme(at: At, *, more: Sequence[str] = ()) -> Iterator[Record]:
    o = at.options
    yield from other(
        "extreme", o, "--rows", o.rows, "--seeds", o.seeds, "--tune-rows", max(1, min(o.rows // 2, 4_000_000)), *more
    )


def placement(at: At, *, rows: int, bs: int) -> Iterator[Record]:
    words = ["--device", at.options.device, "--rows", rows, "--bs", bs, "--warm", 10, "--batches", 50]
    yield from other("embeddings", at.options, *words)


def machine(device: torch.device, **more: str) -> Record:
    """Describe the machine: the device, its driver and versions, besides command, date and host."""
    names = ("torch", "cudf-cu13", "dask-cudf-cu13", "cuml-cu13", "rmm-cu13", "cupy-cuda13x", "xgboost", "fastai")
    about = {"device": "CPU", "on_gpu": False, "driver": None, "cuda": torch.version.cuda}
    if device.type == "cuda":
        found, driver = torch.cuda.get_device_properties(device), Path("/proc/driver/nvidia/version")
        about |= {"device": f"{found.name}, {found.total_memory / 2**30:.0f} GiB", "on_gpu": True}
        if driver.exists():
            about["driver"] = driver.read_text().splitlines()[0].removeprefix("NVRM version:").strip()
        about["capability"] = f"{found.major}.{found.minor}"
    return bare("machine", about["device"], 0, **about, versions=versions(names), **more)
