"""The installed library as a wheel, written from its own files without build tool or network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from fastrec._core.environment import PACKAGE, PARTS, REQUIRED
from fastrec._version import __file__ as version_file
from fastrec._version import __version__

_WHEN = (1980, 1, 1, 0, 0, 0)  # the same files give the same bytes


def write_own_wheel(folder: Path, *, version: str | None = None) -> Path:
    """Write the running code as a wheel that pip installs.

    Args:
        folder: where to; it is there.
        version: what it is called; None: its own version.

    Returns:
        The file.
    """
    version = version or __version__
    stem = f"{PACKAGE.replace('-', '_')}-{version}"
    home = Path(version_file).parent
    files = {
        f"fastrec/{p.relative_to(home).as_posix()}": p.read_bytes()
        for p in sorted(home.rglob("*"))
        if p.is_file() and "__pycache__" not in p.parts and not p.name.startswith(".")
    }
    about = f"{stem}.dist-info"
    files[f"{about}/METADATA"] = _metadata(version).encode()
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
            entry = zipfile.ZipInfo(name, _WHEN)
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def _metadata(version: str) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {PACKAGE}", f"Version: {version}", "Requires-Python: >=3.11"]
    lines += [f"Requires-Dist: {name}>={floor}" for name, floor in REQUIRED.items()]
    for part in PARTS:
        lines.append(f"Provides-Extra: {part.extra}")
        for name, floor in part.packages.items():
            lines.append(f"Requires-Dist: {name}{f'>={floor}' if floor else ''}; extra == '{part.extra}'")
    return "\n".join([*lines, ""])
