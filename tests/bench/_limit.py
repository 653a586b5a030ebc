"""A process under a hard limit of memory: a memory cgroup where this one may make them, else its private memory."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def run_limited(command: Sequence[str], limit: int) -> str:
    """Run a command that is killed, or refused memory, where it takes more than it may.

    In a cgroup all counts that cannot be dropped: private memory, and files' pages only while there is room.
    ``RLIMIT_DATA`` counts all private memory that was asked for, of which much is never touched.

    Args:
        command: program and arguments.
        limit: bytes.

    Returns:
        What held it, and how often the limit was met.

    Raises:
        RuntimeError: it was killed, or ended with an error.
    """
    group = _own_group()
    if group is None:
        _run(command, lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
        return f"RLIMIT_DATA of {limit:,} bytes"
    inner = group / f"limited-{os.getpid()}"
    inner.mkdir()
    try:
        name = "memory.max" if (inner / "memory.max").exists() else "memory.limit_in_bytes"
        (inner / name).write_text(str(limit))
        _run(command, lambda: (inner / "cgroup.procs").write_text(str(os.getpid())))
        met = inner / "memory.failcnt"
        times = f"; memory was reclaimed {met.read_text().strip()} times at the limit" if met.exists() else ""
        return f"cgroup of {limit:,} bytes{times}"
    finally:
        inner.rmdir()


def _run(command: Sequence[str], before: object) -> None:
    done = subprocess.run(list(command), preexec_fn=before, check=False)  # type: ignore[arg-type]
    if done.returncode:
        why = "it was killed: more memory than it may have" if done.returncode == -9 else "see above"
        raise RuntimeError(f"the process ended with {done.returncode} ({why})")


def _own_group() -> Path | None:
    """This process's memory cgroup, if groups can be made in it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("memory", ""):
            continue
        found = (_ROOT / "memory" if controllers else _ROOT) / path.strip("/")
        try:
            trial = found / f"trial-{os.getpid()}"
            trial.mkdir()
            usable = any((trial / n).exists() for n in ("memory.max", "memory.limit_in_bytes"))
            trial.rmdir()
        except OSError:
            continue
        if usable:
            return found
    return None
