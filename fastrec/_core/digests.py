"""Digests of files: what was damaged since it was written is refused before it is read."""

from __future__ import annotations

import hashlib
from pathlib import Path


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file's bytes, as hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def digests_below(folder: Path, *, but: str) -> dict[str, str]:
    """Return the digest of every file in a folder and below it.

    Args:
        folder: where to look.
        but: a file of the folder that is left out: the one that the digests are written to.

    Returns:
        Path from the folder on → ``file_digest``, in the order of the paths.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / but)
    return {p.relative_to(folder).as_posix(): file_digest(p) for p in files}
