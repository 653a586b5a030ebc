"""What fastrec runs on here: versions, device, threads, memory, optional parts; and the library as a wheel."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch

from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.memory import free_memory, shown_bytes
from fastrec._version import __file__ as version_file
from fastrec._version import __version__
from fastrec.errors import MissingPackageError

PACKAGE = "fastrec-tabular"
PARTS: Mapping[str, str] = {  # extra → what it provides
    "trees": "CatBoostModel, LGBMModel",
    "compiled": "compiled loops",
    "tune": "fastrec tune",
    "export": "fastrec export",
    "serve": "fastrec serve",
    "retrieval": "approximate search of vectors",
    "scale": "Dask frames",
    "embed": "vectors of pictures and text",
    "mlflow": "runs noted in MLflow",
    "polars": "polars frames in and out",
    "gpu": "cuDF frames, cuML models (NVIDIA, Linux)",
}


def required(extra: str = "") -> dict[str, str]:
    """Return package → lowest version, as the installed fastrec asks for them: all that it needs, or an extra's."""
    try:
        lines = requires(PACKAGE) or ()
    except PackageNotFoundError as error:
        remedy = "Install it: pip install -e . in its folder"
        raise MissingPackageError(f"{PACKAGE} is not installed, only its files are there", remedy=remedy) from error
    parts = [re.fullmatch(r"([\w.-]+)[ (]*>=([\w.]+)[^;]*(?:;.*extra == .(\w+).*)?", line) for line in lines]
    return {found[1]: found[2] for found in parts if found is not None and (found[3] or "") == extra}


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{PACKAGE}[{extra}]'"


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None: it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def is_older(found: str, floor: str) -> bool:
    """Compare versions, such as ``'2.13.0+cpu'``, by the numbers that they begin with; an empty one is below all."""
    a, b = (tuple(map(int, re.findall(r"\d+", re.match(r"[\d.]*", v)[0]))) for v in (found, floor))  # type: ignore[index]
    width = max(len(a), len(b))
    return a + (0,) * (width - len(a)) < b + (0,) * (width - len(b))


def machine(device: DeviceLike = "auto") -> dict[str, str]:
    """Describe the machine, and a device as runs take it, in words."""
    where = resolve_device(device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else str(where),
        "threads": f"{torch.get_num_threads()} of torch's, {cores} cores to run on",
        "memory": _memory("cpu"),
    }
    if where.type == "cuda":
        found["memory of the device"] = _memory(where)
    return found


def _memory(device: torch.device | str) -> str:
    found = free_memory(device)
    return "unknown" if found is None else f"{shown_bytes(found[0])} free of {shown_bytes(found[1])}"


def write_own_wheel(folder: Path, *, version: str | None = None) -> Path:
    """Write the running code as a wheel that pip installs, called ``version`` (None: its own), into a folder."""
    version = version or __version__
    stem = f"{PACKAGE.replace('-', '_')}-{version}"
    home = Path(version_file).parent
    files = {
        f"fastrec/{p.relative_to(home).as_posix()}": p.read_bytes()
        for p in sorted(home.rglob("*"))
        if p.is_file() and "__pycache__" not in p.parts and not p.name.startswith(".")
    }
    about = f"{stem}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {PACKAGE}", f"Version: {version}", "Requires-Python: >=3.11"]
    lines += [f"Requires-Dist: {name}>={floor}" for name, floor in required().items()]
    for extra in PARTS:
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {name}>={floor}; extra == '{extra}'" for name, floor in required(extra).items()]
    files[f"{about}/METADATA"] = "\n".join([*lines, ""]).encode()
    files[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: fastrec\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{about}/entry_points.txt"] = b"[console_scripts]\nfastrec = fastrec.cli:main\n"
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}"
        for name, content in files.items()
    ]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same files give the same bytes
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path
